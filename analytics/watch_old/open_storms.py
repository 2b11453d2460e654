"""Storms that have begun and are not over: who takes part, what it adds up to, and what is to be told about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tricklecast.analytics.causes import likely_cause
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.report.model import Episode, identity
from tricklecast.analytics.watch_old.happenings import Context
from tricklecast.analytics.watch_old.judging import RANK
from tricklecast.analytics.watch_old.parts import Part, least, most, together

MAX_PARTS: Final = 2_000
"""Parts of a storm that are kept one by one; those of further clients are added up in one."""

OTHERS: Final = "others"
HOT_LOOP_MS: Final = 100

NO_STORM: Final = ""
"""What a part belongs to that there was no room for."""


class Kind(StrEnum):
    """What is told about a storm, at most once each."""

    BEGAN = "firing"
    WORSE = "worse"
    OVER = "resolved"


@dataclass(frozen=True, slots=True)
class Change:
    """Something to be told.

    Attributes:
        kind: what happened; episode: the storm as it is known now; into: the id of the fleet's storm that it turned
            out to be part of.
    """

    kind: Kind
    episode: Episode
    into: str | None = None

    @property
    def key(self) -> str:
        """The same for the same news, however often it is told."""
        return f"{self.episode.id}-{self.kind}"


@dataclass(slots=True)
class OpenStorm:
    """One storm.

    Attributes:
        id: the same as the report's, if it has one client and nothing was missed.
        storm, node, slow: what, where, and whether its pauses may be long.
        severity: the worst so far; context: what set it off; touched_s: when it was last added to, by our own clock.
        parts: what it adds up to, by whose it is.
    """

    id: str
    storm: StormClass
    node: str | None
    slow: bool
    severity: Severity
    context: Context
    touched_s: float
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def last_us(self) -> int:
        """Its last arrival."""
        return max(part.last_us for part in self.parts.values())

    def shares(self, part: Part) -> bool:
        """Whether it has one of the clients, or one of the channels, of a part."""
        return any(
            own.clients.keys() & part.clients.keys() or own.channels.keys() & part.channels.keys()
            for own in self.parts.values()
        )

    def put(self, name: str, part: Part, *, new: bool) -> None:
        """Adds a part, or replaces it by what it has grown to; of one that there was no room for, only its beginning.

        Args:
            new: it has not been added before.
        """
        if name in self.parts or len(self.parts) < MAX_PARTS:
            self.parts[name] = part
        elif new:
            self.parts[OTHERS] = part if OTHERS not in self.parts else together(self.parts[OTHERS], part)

    def episode(self, params: StormParams) -> Episode:
        """The storm as it is known now."""
        parts = list(self.parts.values())
        clients, channels = Counter[str](), Counter[str]()
        for part in parts:
            clients.update(part.clients)
            channels.update(part.channels)
        heaviest = max(parts, key=lambda part: part.n)
        releases = {release for part in parts for release in part.releases}
        start_us, end_us, hits = min(p.first_us for p in parts), self.last_us, sum(p.hits for p in parts)
        seq_hi, head = most(p.seq_hi for p in parts), most(p.head for p in parts)
        passed = seq_hi is not None and head is not None and head > seq_hi
        gap_ms, told = heaviest.gap_ms, heaviest.retry_after
        return Episode(
            id=self.id,
            storm=self.storm,
            severity=self.severity,
            start_us=start_us,
            end_us=end_us,
            n=sum(part.n for part in parts),
            hits=hits,
            clients=tuple(name for name, _ in clients.most_common(params.max_names)),
            n_clients=len(clients),
            channels=tuple(name for name, _ in channels.most_common(params.max_names)),
            n_channels=len(channels),
            node=self.node,
            release=releases.pop() if len(releases) == 1 else None,
            seq_lo=least(part.seq_lo for part in parts),
            seq_hi=seq_hi,
            head=head,
            trigger=self.context.trigger,
            trigger_us=self.context.trigger_us,
            peak_rps=round(max(*(p.peak_rps for p in parts), hits / max(1.0, (end_us - start_us) / 1e6)), 3),
            backoff="hot_loop" if gap_ms is not None and gap_ms < HOT_LOOP_MS and len(clients) == 1 else None,
            retry_after=told,
            bytes_out=sum(part.bytes_out for part in parts),
            handler_s=sum(part.dur_us for part in parts) / 1e6,
            why=likely_cause(self.storm, self.context.trigger, passed=passed, retry_after=told),
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any], now_s: float) -> OpenStorm:
        """One of what :meth:`OpenStorms.as_json` gave; the clock of that process means nothing to this one."""
        parts = {name: Part(**part) for name, part in values["parts"].items()}
        return cls(
            values["id"],
            StormClass(values["storm"]),
            values["node"],
            values["slow"],
            Severity(values["severity"]),
            Context(**values["context"]),
            now_s,
            parts,
        )


class OpenStorms:
    """All storms that are not over, at most so many.

    Attributes:
        untold: storms that were not told because there were too many at once.
    """

    def __init__(self, params: StormParams, most: int) -> None:
        """
        Args:
            params: how many names are listed; most: storms that may be open at once.
        """
        self._params = params
        self._most = most
        self._storms: dict[str, OpenStorm] = {}
        self._of_part: dict[str, str] = {}
        self.untold = 0

    def __iter__(self) -> Iterator[OpenStorm]:
        return iter(list(self._storms.values()))

    def __len__(self) -> int:
        return len(self._storms)

    def of_part(self, name: str) -> OpenStorm | None:
        """The storm that a part belongs to."""
        return self._storms.get(self._of_part.get(name, NO_STORM))

    def add(
        self,
        name: str,
        part: Part,
        storm: StormClass,
        severity: Severity,
        *,
        node: str | None,
        context: Context,
        slow: bool,
        now_s: float,
    ) -> Change | None:
        """Adds a part to the storm that it belongs to, or begins one.

        Returns:
            what is to be told, if anything is.
        """
        known = self.of_part(name) or self._joinable(part, storm, node)
        if known is None:
            if len(self._storms) >= self._most:
                if name not in self._of_part:
                    self._of_part[name] = NO_STORM
                    self.untold += 1
                return None
            identity = _storm_id(storm, node, part)
            known = OpenStorm(identity, storm, node, slow, severity, context, now_s)
            self._storms[identity] = known
            kind: Kind | None = Kind.BEGAN
        else:
            kind = Kind.WORSE if RANK[severity] > RANK[known.severity] else None
        known.severity = max(known.severity, severity, key=lambda each: RANK[each])
        known.touched_s = now_s
        known.put(name, part, new=name not in self._of_part)
        self._of_part[name] = known.id
        return Change(kind, known.episode(self._params)) if kind is not None else None

    def _joinable(self, part: Part, storm: StormClass, node: str | None) -> OpenStorm | None:
        """One client on several channels is one storm; and so are several clients on one channel."""
        return next(
            (
                open_storm
                for open_storm in self._storms.values()
                if open_storm.storm is storm and open_storm.node == node and open_storm.shares(part)
            ),
            None,
        )

    def end(self, storm: OpenStorm, into: str | None = None) -> Change:
        """Ends a storm."""
        del self._storms[storm.id]
        for name in storm.parts:
            self._of_part.pop(name, None)
        # With room for another storm, the parts of those that there was no room for may begin one.
        self._of_part = {name: held for name, held in self._of_part.items() if held not in (storm.id, NO_STORM)}
        return Change(Kind.OVER, storm.episode(self._params), into)

    def as_json(self) -> dict[str, Any]:
        """For the ledger."""
        return {"storms": list(self._storms.values()), "of_part": self._of_part}

    def load(self, values: Mapping[str, Any], now_s: float) -> None:
        """What :meth:`as_json` gave."""
        storms = [OpenStorm.from_json(each, now_s) for each in values["storms"]]
        self._storms = {storm.id: storm for storm in storms}
        self._of_part = dict(values["of_part"])


def _storm_id(storm: StormClass, node: str | None, part: Part) -> str:
    release = part.releases[0] if len(part.releases) == 1 else None
    return identity(storm, node, release, *list(part.clients)[:1], *list(part.channels)[:1], part.first_us)
