"""The newest facts of the journal, for all that follow them: the route of changes, and subscriptions in the process.

The journal feeds one bounded list, and each follower has a cursor: the index up to which it has seen everything. So a
slow follower costs nothing but its cursor, and one that is too slow finds that the list's floor has passed it.

Where there is storage, a fact is told when storage has it, and not before: after a crash the server gives the indexes
of facts that were lost to other facts. The table of live channels, which is what a snapshot shows, changes in the step
in which a fact is told, so a snapshot is always that of its index.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact, SegmentClosed
from tricklecast.app.core.limits import Capacity
from tricklecast.app.core.registry import Registry
from tricklecast.app.query import Query
from tricklecast.app.storage.archive import Archive
from tricklecast.app.storage.database import MAX_FACTS, OPENED, FactRow
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.paths import is_reserved

KEPT: Final = 10_000
"""Facts that are kept without a data directory; with one, as many as it keeps (:data:`MAX_FACTS`)."""

MAX_FOLLOWERS: Final = 1_000
"""Requests that follow changes at a time."""

PER_FOLLOWER_S: Final = 0.0002
"""Requests are woken together, after so much time for each of them. So they cost the event loop at most about a tenth
of its time, however many there are and however many facts."""


class IndexGone(TrickleError):
    """An index from which nobody can go on: begin with a snapshot.

    Attributes:
        floor, index: the lowest and the highest index from which one can go on here. instance: of this server.
    """

    def __init__(self, problem: str, floor: int, index: int, instance: str) -> None:
        super().__init__(problem)
        self.floor = floor
        self.index = index
        self.instance = instance


@dataclass(frozen=True, slots=True)
class Change:
    """A fact, as followers see it. What does not apply to its kind is ``None``.

    Attributes:
        index: position in the journal, ascending. time: when, in seconds since 1970.
        kind: ``added`` or ``removed`` (a channel), ``closed`` (a segment).
        channel: its name. epoch: which life of the name.
        seq: of the segment; of a channel that was removed, the head.
        state: how a segment closed. bytes: how many it has.
        content_type: of a channel that was added, if it was known then. reason: why a channel was removed.
    """

    index: int
    time: float
    kind: str
    channel: str
    epoch: int
    seq: int | None = None
    state: str | None = None
    bytes: int | None = None
    content_type: str | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """What applies to its kind."""
        pairs = ((name, getattr(self, name)) for name in FIELDS)
        return {name: value for name, value in pairs if value is not None}


_TYPES: Final = {"int": int, "float": float}
FIELDS: Final[dict[str, type]] = {
    field.name: _TYPES.get(str(field.type).partition(" ")[0], str) for field in fields(Change)
}
"""The fields that a query may name."""


class Live(NamedTuple):
    """A channel that lives.

    Attributes:
        time: when it was added, in seconds since 1970. content_type: if it was known then.
    """

    channel: str
    epoch: int
    time: float
    content_type: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The live channels, and the index at which they were that."""

    index: int
    channels: list[Live]


_OF_CHANNELS: Final = (ChannelCreated, ChannelEnded)


class Changes:
    """The newest facts, without those about the server's own channels.

    Args:
        registry: whose journal it hears from now on.
        archive: storage, when it has been restored; ``None`` if there is none.
        defer: calls a function after the present change (``loop.call_soon``).
        keep: facts that are kept, at least; ``None``: :data:`KEPT`, or :data:`MAX_FACTS` with storage.
        wall_us: microseconds since 1970; with storage, its times are taken.

    Attributes:
        index: the newest one that is told. floor: facts up to this one are not kept any more.
        instance: the name of this start of the server. keep: facts that are kept, at least.
        watchers: called, soon after, when facts have been told. followers: requests that follow.
    """

    def __init__(
        self,
        registry: Registry,
        archive: Archive | None = None,
        *,
        defer: Callable[[Callable[[], None]], object],
        keep: int | None = None,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.instance = registry.instance
        self.watchers: list[Callable[[], None]] = []
        self.followers = Capacity(MAX_FOLLOWERS)
        self.index = self.floor = registry.journal.index if archive is None else archive.index
        self._defer, self._wall_us = defer, wall_us
        self.keep = keep or (KEPT if archive is None else MAX_FACTS)
        self._stored = archive is not None
        # The facts, their indexes and times: what becomes a Change only when somebody reads it.
        self._indexes, self._times = array("q"), array("q")
        self._facts: list[Change | FactRow | Fact] = []
        self._live: dict[str, Live] = {}
        self._applied = self.index
        self._lives: dict[str, int] = {}
        self._news: asyncio.Event | None = None
        self._waking = False
        if archive is not None:
            self._restore(registry, archive)
        registry.journal.subscribe(self._note, ChannelCreated, ChannelEnded, SegmentClosed)

    # For followers.

    def check(self, after: int, instance: str | None = None) -> None:
        """Make sure that a follower can go on from an index.

        Args:
            after: the index.
            instance: the start of the server that told the index; ``None``: this one, or one whose numbering it goes on
                with.

        Raises:
            IndexGone: the facts that follow are not kept any more, or the index belongs to another numbering.
        """
        last = self._lives.get(instance, -1) if instance not in (None, self.instance) else self.index
        if after > last:
            problem = f"index {after} comes from another start of the server"
        elif after < self.floor:
            problem = f"facts up to index {self.floor} are no longer kept"
        else:
            return
        raise IndexGone(f"{problem}; start with a snapshot", self.floor, self.index, self.instance)

    def part(self, after: int, most: int) -> list[Change]:
        """The facts that follow an index, at most so many. The caller has asked :meth:`check`."""
        first = bisect_right(self._indexes, after)
        last = bisect_right(self._indexes, self.index, first, min(len(self._indexes), first + most))
        found = [_change(*entry) for entry in zip(self._facts[first:last], self._times[first:last], strict=True)]
        self._facts[first:last] = found
        return found

    def snapshot(self) -> Snapshot | None:
        """The live channels; ``None`` while storage fails and more facts wait for it than are kept."""
        return None if self._applied > self.index else Snapshot(self.index, list(self._live.values()))

    async def more(self, after: int, within_s: float) -> None:
        """Wait until there are facts beyond an index, or the time is over."""
        if self.index <= after:
            self._news = self._news or asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), within_s)

    # From the journal and storage.

    def _note(self, fact: Fact) -> None:
        """Take a fact, in the middle of a change."""
        if not is_reserved(fact.channel):
            at_us = self._wall_us()
            self._indexes.append(fact.index)
            self._times.append(at_us)
            self._facts.append(fact)
            if not self._stored and type(fact) in _OF_CHANNELS:
                self._apply(fact, at_us)
            if len(self._facts) > self.keep + (self.keep >> 3):
                self._drop(len(self._facts) - self.keep)
        if not self._stored:
            self._applied = self.index = fact.index
            if self.watchers or self._news is not None:
                self._wake_soon()

    def tell(self, index: int) -> None:
        """Storage has the facts up to this index: from now on they are told."""
        first = bisect_right(self._indexes, self._applied)
        last = bisect_right(self._indexes, index, first)
        for fact, at_us in zip(self._facts[first:last], self._times[first:last], strict=True):
            self._apply(fact, at_us)
        self._applied = max(self._applied, index)
        self.index = index
        self._wake_soon()

    def _apply(self, fact: Change | FactRow | Fact, at_us: int) -> None:
        """Bring the table of live channels up to date. Facts from before the start are in it already."""
        if isinstance(fact, ChannelCreated):
            self._live[fact.channel] = Live(fact.channel, fact.epoch, at_us / 1e6, fact.content_type)
        elif isinstance(fact, ChannelEnded):
            self._live.pop(fact.channel, None)

    def _drop(self, count: int) -> None:
        floor = self._indexes[count - 1]
        if floor > self._applied:
            # Storage fails, and has the oldest facts not yet: there is no snapshot until it has them.
            first = bisect_right(self._indexes, self._applied)
            for fact, at_us in zip(self._facts[first:count], self._times[first:count], strict=True):
                self._apply(fact, at_us)
            self._applied = floor
        self.floor = floor
        for kept in (self._indexes, self._times, self._facts):
            del kept[:count]

    def _wake_soon(self) -> None:
        if not self._waking:
            self._waking = True
            self._defer(self._wake)

    def _wake(self) -> None:
        self._waking = False
        for watcher in list(self.watchers):
            watcher()
        if self._news is not None:
            news, self._news = self._news, None
            asyncio.get_running_loop().call_later(PER_FOLLOWER_S * self.followers.used, news.set)

    def _restore(self, registry: Registry, archive: Archive) -> None:
        """What storage has kept from before the start."""
        archive.on_kept = self.tell
        self._wall_us = lambda: archive.noted_us  # it has heard of the fact first, and keeps it with this time
        self._lives = archive.lives
        for name, channel in registry.channels.items():
            if not (channel.ended or is_reserved(name)):
                created_us = archive.live[name].row.created_us
                self._live[name] = Live(name, channel.epoch, created_us / 1e6, channel.content_type)
        rows = archive.database.facts()
        last = self.index
        while rows and rows[-1].number == last:
            row = rows.pop()
            last -= 1
            if not is_reserved(row.channel) and row.kind != OPENED:
                self._indexes.append(row.number)
                self._times.append(row.at_us)
                self._facts.append(row)
        for kept in (self._indexes, self._times, self._facts):
            kept.reverse()
        self.floor = last


def matching(found: list[Change], query: Query, visible: Callable[[str], bool]) -> list[Change]:
    """Those of some facts that a query matches, about channels that the follower may see."""
    return [change for change in found if query.matches(change) and visible(change.channel)]


def _change(entry: Change | FactRow | Fact, at_us: int) -> Change:
    if isinstance(entry, Change):
        return entry
    at_s = at_us / 1e6
    if isinstance(entry, FactRow):
        about = entry.number, at_s, entry.kind, entry.channel, entry.epoch, entry.seq
        match entry.kind:
            case "added":
                return Change(*about, content_type=entry.detail or None)
            case "removed":
                return Change(*about, reason=entry.detail)
            case _:
                return Change(*about, state=entry.detail, bytes=entry.size)
    match fact := entry:
        case ChannelCreated():
            content_type = fact.content_type or None
            return Change(fact.index, at_s, "added", fact.channel, fact.epoch, content_type=content_type)
        case ChannelEnded():
            reason = fact.reason.value
            return Change(fact.index, at_s, "removed", fact.channel, fact.epoch, fact.next_seq, reason=reason)
        case SegmentClosed():
            state = fact.state.value
            return Change(fact.index, at_s, "closed", fact.channel, fact.epoch, fact.seq, state, fact.size)
    raise AssertionError(fact)
