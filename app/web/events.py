"""The newest events on a server, as the dashboard lists them.

Refusals may come by the ten thousand in a second. So equal ones of one second are one event with a count. At most
:data:`PER_SECOND` different ones of a second are kept. Those beyond, and all beyond the first :data:`EXAMINED`, are
only counted, by their kind.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tricklecast.app.changes import Change
from tricklecast.trickle.records import Reason

KEPT_EVENTS: Final = 200
"""Events that are kept for those who come later."""

PER_SECOND: Final = 20
"""Different events of one second that are kept, 0.2 kB each."""

EXAMINED: Final = 1_000
"""Events of one second of which it is looked whether they are equal to another one: a microsecond each."""

MAX_NAME: Final = 128
"""Bytes kept of a client's own name."""

ORDINARY: Final = frozenset({Reason.AHEAD, Reason.GONE, Reason.NOT_FOUND, Reason.CONFLICT, Reason.SHUTDOWN})
"""Reasons of refusals that belong to the protocol: publishers and readers get them every day, and go on."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event.

    Attributes:
        number: counts events from 1. time: of the first, in seconds since 1970.
        kind: ``refused``, ``held``, ``cut_off``, ``evicted``, ``truncated``, ``skipped``, ``created`` or ``ended``.
        why: the reason, as the access log has it; empty for events of which only the number is known.
        channel, client: whom it concerns; empty where that is not known.
        seq: of the segment; ``None`` if it is about no segment.
        count: how many there were within a second.
    """

    number: int
    time: float
    kind: str
    why: str
    channel: str
    client: str
    seq: int | None
    count: int


_Key = tuple[str, str, str, bytes, str | None, int | None]


class Events:
    """The newest events: the plane's witness, and a listener of the log of facts.

    Args:
        clock: seconds. wall_us: microseconds since 1970.
    """

    def __init__(self, clock: Callable[[], float], wall_us: Callable[[], int]) -> None:
        self._clock, self._wall_us = clock, wall_us
        self._kept: deque[Happened] = deque(maxlen=KEPT_EVENTS)
        self._number = 0
        self._until = 0.0
        self._room = EXAMINED
        # Events of the second that has not ended: when they began, how many there are, and those that are not kept.
        self._second: dict[_Key, list[float]] = {}
        self._left_out: Counter[str] = Counter()

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
            self._room = EXAMINED
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
        """Note channels that began or ended, and segments that did not become whole."""
        for fact in facts:
            if fact.state is None:
                self.note("created" if fact.kind == "added" else "ended", fact.reason or "", fact.channel)
            else:
                self.note(fact.state, "", fact.channel, seq=fact.seq)

    def seal(self) -> None:
        """Number the events of the present second: from now on they are told, and do not change any more."""
        if not self._second:
            return
        for (kind, why, channel, name, ip, seq), (at, count) in self._second.items():
            client = name.decode("latin-1") or ip or ""
            self._keep(at, kind, why, channel, client, seq, int(count))
        self._second = {}
        left_out, self._left_out = self._left_out, Counter()
        for kind, count in left_out.items():
            self._keep(self._wall_us() / 1e6, kind, "", "", "", None, count)

    def after(self, number: int) -> list[Happened]:
        """The events with higher numbers, as far as they are kept, oldest first."""
        new = self._number - number
        return list(islice(self._kept, max(0, len(self._kept) - new), None)) if new > 0 else []

    def _keep(self, at: float, kind: str, why: str, channel: str, client: str, seq: int | None, count: int) -> None:
        self._number += 1
        self._kept.append(Happened(self._number, at, kind, why, channel, client, seq, count))
