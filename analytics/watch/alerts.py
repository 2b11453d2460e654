"""News: the difference between the incidents that the rules find now and those that were known before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Literal

import msgspec

from tricklecast.analytics.report.build import summary
from tricklecast.analytics.report.json import as_dict
from tricklecast.analytics.report.model import VERSION, Alert, Summary
from tricklecast.analytics.rules.classes import StormClass
from tricklecast.analytics.rules.incidents import Incident, Severity, without_place
from tricklecast.analytics.rules.params import Params
from tricklecast.analytics.watch.window import Found

Status = Literal["firing", "worse", "resolved"]
State = Literal["late", "firing", "worse", "resolved"]
"""Of an incident. It is ``late``, and not told, if its lines were read late, until it is clear whether it is over."""

SHOWN: Final = 20
"""Clients and channels that an alert names; there may be thousands."""

FORGET_US: Final = 2 * 3_600_000_000
"""An incident that is over is known for so long: longer than the window can hold its rows."""

SLACK_US: Final = 1_000_000
"""An incident is over so long after its gap: lines may be written late."""

RECENT_US: Final = 60_000_000
"""An incident that has been over for less is told twice, begun and ended, also if its lines were read late."""

ALONE: Final = "alone"
"""The last part of the key of an alert that an incident is over of which nobody was told that it began."""

_ORDER: Final = tuple(Severity)

_CROWDS: Final = frozenset({StormClass.OVERLOAD_AMPLIFICATION, StormClass.THUNDERING_HERD})
"""A crowd is over when it is no crowd any more, although some of its clients go on: these poll."""

AlertBody = Mapping[str, Any]
"""An :class:`~tricklecast.analytics.report.model.Alert` as JSON's types."""


@dataclass(frozen=True, slots=True)
class Known:
    """An incident that is known, and its last alert.

    Attributes:
        incident: as it was found last. severity: the worst that was told. status: of the last alert.
        gap_us: it is over so long after its last line. grown_us: when that was read, or the last one of a client of its
            that goes on.
        clients, channels: all of them. told: how many alerts there were.
    """

    incident: Summary
    severity: Severity
    status: State
    gap_us: int
    grown_us: int
    clients: tuple[str, ...]
    channels: tuple[str, ...]
    told: int

    @property
    def open(self) -> bool:
        """Whether it is not over."""
        return self.status != "resolved"

    @property
    def told_of(self) -> bool:
        """Whether it is not over, and somebody was told of it."""
        return self.status in ("firing", "worse")

    def quiet(self, now_us: int) -> bool:
        """Whether nothing of it was read for so long that it is over."""
        return now_us - self.grown_us >= self.gap_us + SLACK_US

    def meets(self, incident: Incident) -> bool:
        """Whether an incident has servers, clients and channels in common with this one."""
        return (
            not set(self.incident.nodes).isdisjoint(incident.nodes)
            and not set(self.clients).isdisjoint(incident.clients)
            and (not self.channels or not set(self.channels).isdisjoint(incident.channels))
        )

    def touches(self, incident: Incident) -> bool:
        """Whether an incident of the same clients, channels or servers was at the same time, or follows at once."""
        then = self.incident
        near = max(then.since_us, incident.since_us) <= min(then.until_us, incident.until_us) + self.gap_us
        return near and without_place(then.id) == without_place(incident.id)

    def goes_on_as(self, incident: Incident) -> bool:
        """Whether an incident of others begins in this one's course, and has clients and channels in common with it."""
        then = self.incident
        return then.since_us < incident.since_us <= then.until_us + self.gap_us and self.meets(incident)

    def alert(self, now_us: int, into: str | None = None, *, alone: bool = False) -> AlertBody:
        """Its last alert.

        Args:
            now_us: when it is told, microseconds since the epoch. into: the incident that this one is a part of.
            alone: it is over, and nobody was told that it began.
        """
        # Of a storm that comes again the id is the same, and the key is not.
        last = ALONE if alone else self.status
        key = f"{self.incident.id}-{self.incident.since_us // 1_000_000}-{self.told}-{last}"
        status = "firing" if self.status == "late" else self.status
        return as_dict(Alert("tricklecast storms watch", VERSION, key, status, now_us, into, self.incident))


def is_first(alert: AlertBody) -> bool:
    """Whether an alert tells of an incident that began: it goes on, or it is over and nobody was told that it began."""
    return alert["status"] == "firing" or str(alert["key"]).endswith(f"-{ALONE}")


def known_from(stored: object) -> Known:
    """Turns the result of :meth:`Tracker.stored` back."""
    return msgspec.convert(stored, Known)


class Tracker:
    """The incidents that are known.

    Attributes:
        changed: ids whose entries have changed since they were written down; gone: those that are forgotten.
    """

    def __init__(self, params: Params, known: Mapping[str, object]) -> None:
        """
        Args:
            params: thresholds. known: what :meth:`stored` gave in an earlier run, by id.
        """
        self._gap_us, self._slow_gap_us = round(params.gap_s * 1e6), round(params.slow_gap_s * 1e6)
        self._known = {name: known_from(entry) for name, entry in known.items()}
        self._by_client: dict[str, list[Known]] | None = None
        self.changed: set[str] = set()
        self.gone: set[str] = set()

    def open(self) -> list[Known]:
        """Incidents that are not over."""
        return [known for known in self._known.values() if known.open]

    def open_clients(self) -> list[str]:
        """The clients of incidents that are open."""
        return list({client for known in self.open() for client in known.clients})

    def told(self, client: str | None, channel: str | None) -> bool:
        """Whether an incident of a client on a channel is open; without a client, that of a crowd on a server."""
        if client is None:
            return any(known.incident.storm in _CROWDS and channel in known.incident.nodes for known in self.open())
        if self._by_client is None:
            self._by_client = defaultdict(list)
            for known in self.open():
                for name in known.clients:
                    self._by_client[name].append(known)
        return any(
            channel is None or not known.channels or channel in known.channels
            for known in self._by_client.get(client, ())
        )

    def stored(self) -> list[tuple[str, Any]]:
        """The entries that have changed, to be written down."""
        return [(name, msgspec.to_builtins(self._known[name])) for name in self.changed if name in self._known]

    def written(self) -> None:
        """All changes are written down."""
        self.changed.clear()
        self.gone.clear()

    def compare(self, found: Sequence[Found], now_us: int, told_us: int, *, late: bool = False) -> list[AlertBody]:
        """The alerts that follow from what the rules have found.

        Args:
            found: incidents.
            now_us: when the last lines were read; told_us: when the rules had been run. Microseconds since the epoch.
            late: the lines are read late, so that what begins is told only when it is clear whether it is over.
        """
        alerts: list[AlertBody] = []
        seen: set[str] = set()
        for each in found:
            incident = each.incident
            before = self._before(incident, found)
            if before is None and self._told_of_a_later_one(incident):
                continue
            after = self._entry(each, before, now_us)
            seen.add(after.incident.id)
            if before is not None and _size(after.incident) == _size(before.incident):
                continue
            if before is None or not before.open:
                # Rows of an incident that is over are in the window for a while; it began again if there are more.
                after = replace(after, status="late", severity=incident.severity)
                if late:
                    self._put(after)
                else:
                    alerts.append(self._told(replace(after, status="firing"), told_us))
            elif after.status == "late":
                self._put(replace(after, severity=max(before.severity, incident.severity, key=_ORDER.index)))
            elif _ORDER.index(incident.severity) > _ORDER.index(before.severity):
                after = replace(after, status="worse", severity=incident.severity)
                alerts.append(self._told(after, told_us))
            else:
                self._put(after)
        for known in self.open():
            into = None if known.incident.id in seen else self._part_of(known, found)
            if into and known.status == "late":
                self._put(replace(known, status="resolved"))
            elif into:
                alerts.append(self._told(replace(known, status="resolved"), told_us, into))
        return alerts

    def over(
        self,
        now_us: int,
        told_us: int,
        asked: Callable[[Sequence[tuple[Summary, Sequence[str], Sequence[str], int]]], Mapping[str, int]],
        *,
        all_read: bool,
        late: bool = False,
        late_us: Callable[[Known], int] = lambda known: 0,
    ) -> tuple[list[AlertBody], bool]:
        """The alerts that something is over, by when its last line was read; and that what was found late is not.

        Args:
            now_us, told_us, late: as of :meth:`compare`.
            asked: when the last lines of clients that go on were read. all_read: no lines have been added since the
                rules were run.
            late_us: how much later lines of an incident may be read than those that were read last.

        Returns:
            the alerts; and whether the rules have to be run before they can be told.
        """
        quiet = [known for known in self.open() if known.quiet(now_us - late_us(known))]
        alone = [known for known in quiet if known.incident.storm not in _CROWDS]
        going = asked([(known.incident, known.clients, known.channels, known.gap_us) for known in alone])
        for known in alone:
            if going.get(known.incident.id, 0) > known.grown_us:
                self._put(replace(known, grown_us=going[known.incident.id]))
        news = [
            known
            for known in self.open()
            if known.quiet(now_us - late_us(known)) or (known.status == "late" and not late)
        ]
        if news and not all_read:
            return [], True
        alerts = []
        for known in sorted(news, key=lambda known: known.incident.since_us):
            over = known.quiet(now_us - late_us(known))
            if known.status == "late" and not (over and known.quiet(told_us - RECENT_US)):
                alerts.append(self._told(replace(known, status="firing"), told_us))
            if over:
                alerts.append(self._told(replace(self._known[known.incident.id], status="resolved"), told_us))
        for name, known in list(self._known.items()):
            if now_us - known.grown_us > FORGET_US and not known.open:
                del self._known[name]
                self.gone.add(name)
        return alerts, False

    def _before(self, incident: Incident, found: Sequence[Found]) -> Known | None:
        """The known incident that this one is, or goes on with: the rules do not find the beginning of that one now.

        Its rows have left the window, or come too slowly at the moment.
        """
        known = [
            each
            for each in self._known.values()
            if each.touches(incident)
            or (each.goes_on_as(incident) and not any(each.touches(other.incident) for other in found))
        ]
        # Of those that are over it is the last one: an earlier one was a part of it.
        return max(
            known, key=lambda each: (each.open, each.open and each.touches(incident), each.grown_us), default=None
        )

    def _told_of_a_later_one(self, incident: Incident) -> bool:
        """Whether a later storm of the same ones has taken its id: then it was told, and is over."""
        return any(
            each.incident.since_us > incident.until_us and without_place(each.incident.id) == without_place(incident.id)
            for each in self._known.values()
        )

    @staticmethod
    def _part_of(known: Known, found: Sequence[Found]) -> str | None:
        """The incident that a known one turned out to be a part of: more was found to belong to it, before it."""
        then = known.incident
        for incident in (each.incident for each in found):
            together = incident.since_us <= then.until_us and incident.until_us >= then.since_us
            if incident.id != then.id and together and known.meets(incident):
                return incident.id
        return None

    def _entry(self, found: Found, before: Known | None, now_us: int) -> Known:
        incident = found.incident
        if before is not None:
            then = before.incident
            since_us, until_us = min(then.since_us, incident.since_us), max(then.until_us, incident.until_us)
            incident = replace(incident, id=then.id, since_us=since_us, until_us=until_us, n=max(then.n, incident.n))
        former = before or self._known.get(incident.id)
        if before is None and former is not None and former.open:
            incident = replace(incident, id=next(name for name in _places(incident.id) if name not in self._known))
            former = None
        body = summary(incident, most=SHOWN)
        grown = before is None or _size(body) != _size(before.incident)
        return Known(
            incident=body,
            severity=before.severity if before else incident.severity,
            status=before.status if before else "firing",
            gap_us=self._slow_gap_us if found.slow else self._gap_us,
            grown_us=(found.seen_us or now_us) if grown or before is None else before.grown_us,
            clients=_both(incident.clients, before.clients if before else ()),
            channels=_both(incident.channels, before.channels if before else ()),
            told=former.told if former else 0,
        )

    def _put(self, known: Known) -> None:
        self._known[known.incident.id] = known
        self._by_client = None
        self.changed.add(known.incident.id)

    def _told(self, known: Known, now_us: int, into: str | None = None) -> AlertBody:
        before = self._known.get(known.incident.id)
        known = replace(known, told=known.told + 1)
        self._put(known)
        alone = known.status == "resolved" and before is not None and before.status == "late"
        return known.alert(now_us, into, alone=alone)


def _places(name: str) -> Iterator[str]:
    return (f"{without_place(name)}-{place}" for place in count(2))


def _both(some: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*some, *others)))


def _size(incident: Summary) -> tuple[int, int]:
    """By which it is told whether an incident has grown."""
    return incident.n, incident.until_us
