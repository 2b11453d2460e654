"""The newest events on a server, as the dashboard lists them.

**The problem.** A storm causes ten thousand refusals a second, and a person reads twenty lines.

**The idea.** Equal events of one second are one event with a count. At most :data:`PER_SECOND` different events of a
second are listed. Further ones, and all beyond the first :data:`MAX_COMPARED`, are counted by their kind. When the
second is over, its events are *sealed*: they get numbers, and do not change any more.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Final

from tricklecast.app.changes import Change
from tricklecast.trickle.records import Reason

KEPT_EVENTS: Final = 200
"""Events that are kept for those who come later."""

PER_SECOND: Final = 20
"""Different events of one second that are listed, 0.2 kB each."""

MAX_COMPARED: Final = 1_000
"""Events of one second that are compared with the others, which takes a microsecond each."""

MAX_NAME: Final = 128
"""Bytes of a client's own name in an event."""

ORDINARY: Final = frozenset({Reason.AHEAD, Reason.GONE, Reason.NOT_FOUND, Reason.CONFLICT, Reason.SHUTDOWN})
"""Reasons of refusals that are no events: the protocol gives them to publishers and readers every day."""


@dataclass(frozen=True, slots=True)
class DashboardEvent:
    """One event, or equal ones of one second."""

    number: int  # counts events from 1
    time: float  # of the first, in seconds since 1970
    kind: str  # refused, held, cut_off, evicted, truncated, skipped, created or ended
    why: str  # the reason, as the access log has it; empty for events that were only counted
    channel: str  # empty if it is not known
    client: str  # its own name, or its address; empty if it is not known
    seq: int | None  # of the segment; None if the event is about no segment
    count: int  # equal events of that second


_Key = tuple[str, str, str, bytes, str | None, int | None]


class Events:
    """The newest events: the plane's witness, and a listener of the log of facts.

    Args:
        clock: seconds. wall_us: microseconds since 1970.
    """

    def __init__(self, clock: Callable[[], float], wall_us: Callable[[], int]) -> None:
        self._clock, self._wall_us = clock, wall_us
        self._began = wall_us() / 1e6
        self._newest: deque[DashboardEvent] = deque(maxlen=KEPT_EVENTS)
        self._number = 0  # of the newest event
        # The present second.
        self._until = 0.0  # its end
        self._room = MAX_COMPARED  # events that may still be compared
        self._second: dict[_Key, list[float]] = {}  # its different events: the time of the first, and their count
        self._left_out: Counter[str] = Counter()  # its further events, by kind

    def note(
        self,
        kind: str,
        why: str,
        channel: str = "",
        name: bytes = b"",
        ip: str | None = None,
        *,
        seq: int | None = None,
        count: int = 1,
    ) -> None:
        """Note an event of this moment; see :class:`~tricklecast.app.data_plane.context.Witness`."""
        if why in ORDINARY and kind == "refused":
            return
        now = self._clock()
        if now >= self._until:
            self._until = now + 1.0
            self._room = MAX_COMPARED
            self.seal()
        self._room -= 1
        if self._room < 0:
            self._left_out[kind] += count
            return
        key = (kind, why, channel, name[:MAX_NAME], ip, seq)
        known = self._second.get(key)
        if known is not None:
            known[1] += count
        elif len(self._second) < PER_SECOND:
            self._second[key] = [self._wall_us() / 1e6, count]
        else:
            self._left_out[kind] += count

    def hear(self, facts: Sequence[Change]) -> None:
        """Note channels that began or ended, and segments that were truncated or skipped.

        A front that was started again hears the earlier facts of other workers, too, which are no events of now.
        """
        for fact in facts:
            if fact.time < self._began:
                continue
            if fact.state is None:
                self.note("created" if fact.kind == "added" else "ended", fact.reason or "", fact.channel)
            else:
                self.note(fact.state, "", fact.channel, seq=fact.seq)

    def seal(self) -> None:
        """End the present second: its events get their numbers."""
        if not self._second:
            return
        for (kind, why, channel, name, ip, seq), (at, count) in self._second.items():
            client = name.decode("latin-1") or ip or ""
            self._keep(at, kind, why, channel, client, seq, int(count))
        self._second = {}
        left_out, self._left_out = self._left_out, Counter()
        for kind, count in left_out.items():
            self._keep(self._wall_us() / 1e6, kind, "", "", "", None, count)

    def add(self, told: Sequence[DashboardEvent], heard: int) -> None:
        """Take sealed events of other workers of the server, in the order of their times.

        Args:
            heard: the number of the last event that followers have: those behind it may get other numbers.
        """
        unheard = self.after(heard)
        for _ in unheard:
            self._newest.pop()
        self._number -= len(unheard)
        for event in sorted([*unheard, *told], key=attrgetter("time")):
            self._number += 1
            self._newest.append(replace(event, number=self._number))

    def after(self, number: int) -> list[DashboardEvent]:
        """The events with higher numbers that are still kept, oldest first."""
        new = self._number - number
        return list(islice(self._newest, max(0, len(self._newest) - new), None)) if new > 0 else []

    def _keep(self, at: float, kind: str, why: str, channel: str, client: str, seq: int | None, count: int) -> None:
        self._number += 1
        self._newest.append(DashboardEvent(self._number, at, kind, why, channel, client, seq, count))
