"""What is new: the difference between the incidents that the rules find now and those that were known before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tricklecast.analytics.rules.incidents import Incident, Severity
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.watch.window import Found

VERSION: Final = 2
"""Of the JSON object below: raised when a field changes its meaning or goes away; new fields do not raise it."""

FIRING, WORSE, RESOLVED = "firing", "worse", "resolved"

SHOWN: Final = 20
"""Clients and channels that are named in the news; there may be thousands."""

FORGET_US: Final = 2 * 3_600_000_000
"""An incident that is over is known for so long: longer than the window can hold its rows."""

SLACK_US: Final = 1_000_000
"""A storm is over so long after its gap: lines may be written late."""

_ORDER: Final = tuple(Severity)

News = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an incident.

    Attributes:
        id: as in the report. body: the incident as it was last told, or found.
        severity: the worst that was told. status: the last news.
        since_us, until_us: first and last line. n: its lines.
        gap_us: it is over so long after its last line. grown_us: when its last line was read.
        clients, channels, nodes: all of them. told: how many news there were.
    """

    id: str
    body: dict[str, Any]
    severity: str
    status: str
    since_us: int
    until_us: int
    n: int
    gap_us: int
    grown_us: int
    clients: Sequence[str]
    channels: Sequence[str]
    nodes: Sequence[str]
    told: int

    @property
    def open(self) -> bool:
        """Whether it is not over."""
        return self.status != RESOLVED


class Ledger:
    """The incidents that are known.

    Attributes:
        changed: ids whose entries have changed since they were written down; gone: those that are forgotten.
    """

    def __init__(self, params: Params, known: Mapping[str, Mapping[str, Any]]) -> None:
        """
        Args:
            params: thresholds. known: what :meth:`stored` gave in an earlier run, by id.
        """
        self._gap_us, self._slow_gap_us = round(params.gap_s * 1e6), round(params.slow_gap_s * 1e6)
        self._known = {name: Known(**entry) for name, entry in known.items()}
        self.changed: set[str] = set()
        self.gone: set[str] = set()

    def open(self) -> list[Known]:
        """Incidents that are not over."""
        return [known for known in self._known.values() if known.open]

    def firing(self, now_us: int) -> list[News]:
        """The last news of each incident that is not over."""
        return [_news(known, now_us) for known in self.open()]

    def told(self, client: str, channel: str | None) -> bool:
        """Whether an incident of a client on a channel is open."""
        return any(
            client in known.clients and (channel is None or not known.channels or channel in known.channels)
            for known in self.open()
        )

    def stored(self) -> list[tuple[str, dict[str, Any]]]:
        """The entries that have changed, to be written down."""
        return [(name, asdict(self._known[name])) for name in self.changed if name in self._known]

    def written(self) -> None:
        """All changes are written down."""
        self.changed.clear()
        self.gone.clear()

    def compare(self, found: Sequence[Found], now_us: int, told_us: int | None = None) -> list[News]:
        """The news in what the rules have found.

        Args:
            found: incidents.
            now_us: when the last lines were read; told_us: when the rules had been run. Microseconds since the epoch.
        """
        told_us = now_us if told_us is None else told_us
        news: list[News] = []
        ids = {each.incident.id for each in found}
        seen: set[str] = set()
        for each in found:
            incident = each.incident
            before = self._known.get(incident.id) or self._continued(incident, ids)
            after = self._entry(each, before, now_us)
            seen.add(after.id)
            if before is not None and (after.n, after.until_us) == (before.n, before.until_us):
                continue
            if before is None or not before.open:
                # Rows of an incident that is over are in the window for a while; it began again if there are more.
                after = replace(after, status=FIRING, severity=incident.severity.value)
                news.append(self._told(after, told_us))
            elif _ORDER.index(incident.severity) > _ORDER.index(Severity(before.severity)):
                after = replace(after, status=WORSE, severity=incident.severity.value)
                news.append(self._told(after, told_us))
            else:
                self._put(after)
        parts = [(known, self._part_of(known, found)) for known in self.open() if known.id not in seen]
        return news + [self._told(replace(known, status=RESOLVED), told_us, into) for known, into in parts if into]

    def over(self, now_us: int, *, all_read: bool) -> tuple[list[News], bool]:
        """The news that something is over, by when its last line was read.

        Args:
            all_read: no lines have been added since the rules were run.

        Returns:
            the news; and whether the rules have to be run before it can be told.
        """
        quiet = [known for known in self.open() if now_us - known.grown_us >= known.gap_us + SLACK_US]
        if quiet and not all_read:
            return [], True
        news = [self._told(replace(known, status=RESOLVED), now_us) for known in quiet]
        for known in [
            known for known in self._known.values() if now_us - known.grown_us > FORGET_US and not known.open
        ]:
            del self._known[known.id]
            self.gone.add(known.id)
        return news, False

    def _continued(self, incident: Incident, ids: Iterable[str]) -> Known | None:
        """The known incident that this one goes on with: the beginning of that one has left the window."""
        for known in self._known.values():
            if (
                known.id not in ids
                and known.since_us < incident.since_us <= known.until_us + known.gap_us
                and not set(known.nodes).isdisjoint(incident.nodes)
                and not set(known.clients).isdisjoint(incident.clients)
                and (not known.channels or not set(known.channels).isdisjoint(incident.channels))
            ):
                return known
        return None

    @staticmethod
    def _part_of(known: Known, found: Sequence[Found]) -> str | None:
        """The incident that a known one turned out to be a part of: more was found to belong to it, before it."""
        for incident in (each.incident for each in found):
            if (
                incident.id != known.id
                and incident.since_us <= known.until_us
                and incident.until_us >= known.since_us
                and not set(known.nodes).isdisjoint(incident.nodes)
                and not set(known.clients).isdisjoint(incident.clients)
                and (not known.channels or not set(known.channels).isdisjoint(incident.channels))
            ):
                return incident.id
        return None

    def _entry(self, found: Found, before: Known | None, now_us: int) -> Known:
        incident = found.incident
        known = before.id if before else incident.id
        since_us = min(before.since_us, incident.since_us) if before else incident.since_us
        n = max(before.n, incident.n) if before else incident.n
        grown = before is None or (n, incident.until_us) != (before.n, before.until_us)
        return Known(
            id=known,
            body=as_dict(replace(incident, id=known, since_us=since_us, n=n)),
            severity=before.severity if before else incident.severity.value,
            status=before.status if before else FIRING,
            since_us=since_us,
            until_us=incident.until_us,
            n=n,
            gap_us=self._slow_gap_us if found.slow else self._gap_us,
            grown_us=(found.seen_us or now_us) if grown or before is None else before.grown_us,
            clients=incident.clients,
            channels=incident.channels,
            nodes=incident.nodes,
            told=before.told if before else 0,
        )

    def _put(self, known: Known) -> None:
        self._known[known.id] = known
        self.changed.add(known.id)

    def _told(self, known: Known, now_us: int, into: str | None = None) -> News:
        known = replace(known, told=known.told + 1)
        self._put(known)
        return _news(known, now_us, into)


def _news(known: Known, now_us: int, into: str | None = None) -> News:
    return {
        "alert": "tricklecast storms watch",
        "version": VERSION,
        "key": f"{known.id}-{known.told}-{known.status}",
        "status": known.status,
        "told_us": now_us,
        "into": into,
        "incident": known.body,
    }


def as_dict(incident: Incident) -> dict[str, Any]:
    """An incident as JSON's types; of many clients and channels the first, and how many there are."""
    body = asdict(incident)
    del body["number"]
    body["class"] = body.pop("storm").value
    body["severity"], body["confidence"] = incident.severity.value, incident.confidence.value
    body["instead"] = incident.instead and incident.instead.value
    body["phases"] = [one | {"class": one["storm"].value} for one in body["phases"]]
    for phase in body["phases"]:
        del phase["storm"]
    for name in ("clients", "channels"):
        body[f"n_{name}"] = len(body[name])
        body[name] = list(body[name][:SHOWN])
    body["nodes"], body["samples"] = list(body["nodes"]), list(body["samples"])
    return body
