"""The log of facts: the server's newest ones, for all that follow its channels and segments.

**The problem.** A fact happens in the middle of a change of the core, when nobody may call the core. Most of those who
want to hear of it are slow, or come and go: programs, dashboards, clients behind a bad network. And with storage, a
fact that a crash may take back must not be told to somebody who keeps its index.

**The idea.** The core's step is to append the fact to one bounded list. A follower is a cursor on it: the index up to
which it has seen all. It reads on when the change is done, at its own pace, so it costs nothing but its cursor; a
cursor that the list's floor has passed is told so, never moved.

**Two ends.** With storage, the list has a head, the last fact that happened, and before it :attr:`Changes.index`, the
last fact that storage has. The route ``/api/v1/changes`` and subscriptions (:mod:`app.bus`) read up to the index: after
a crash, the indexes of the lost facts go to other facts. The changefeed and the dashboard keep no index, so they get a
fact at the end of the change in which it happened. Without storage both ends are the same.

**The table of live channels**, which is what a snapshot shows, is always that of the index.

**Several workers.** Each has a log of its own, and the log of the front takes the facts of all when somebody asks for
them (:mod:`app.workers.facts`). While the front does not know yet which channels of another worker live, it shows
nobody a snapshot.

Those who write a line for a channel between their lines for requests (access log, terminal) do not follow the log:
they are told by the journal itself, since the line belongs before that of the request which made the channel.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, Self

from tricklecast.app.clock import wall_us
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact, SegmentClosed
from tricklecast.app.core.limits import Capacity
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import COMPLETE, EMPTY, TERMINATED
from tricklecast.app.storage.archive import Archive
from tricklecast.app.storage.database import MAX_FACTS, OPENED, FactRow, Position
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import CHANGEFEED

logger = logging.getLogger("tricklecast.changes")

KEPT_FACTS: Final = 10_000
"""Facts that are kept without a data directory; with one, as many as it keeps (:data:`MAX_FACTS`)."""

MAX_UNHEARD: Final = 30_000
"""Facts of one turn of the event loop that listeners get: three for each of 10,000 channels, such as begun, truncated,
ended. Further ones are left out, and the log says how many."""

MAX_FOLLOWERS: Final = 1_000
"""Requests that follow changes at a time."""

PER_FOLLOWER_S: Final = 0.0002
"""All waiting requests are woken together, and this time for each of them passes after the fact: 0.2 s for 1,000. So
they cost the event loop at most about a tenth of its time, however many facts there are."""


TOLD_S: Final = 0.5
"""A request waits for this time until storage has the facts of other workers that have just come."""


class OtherLog(Protocol):
    """The log of another worker, as the front sees it."""

    async def catch_up(self) -> None:
        """Have all facts that the worker can tell now, or wait no longer; and :meth:`follow`."""

    def follow(self) -> None:
        """Have the next facts as they happen, for a time."""


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


@dataclass(slots=True)
class Change:
    """A fact, as followers see it. Fields that do not apply to its kind are ``None``.

    (Not frozen, since that takes three times as long to make; nobody changes one.)

    Attributes:
        index: position in the journal, ascending. time: when, in seconds since 1970.
        kind: ``added`` or ``removed`` (a channel), ``closed`` (a segment).
        channel: its name. epoch: of the name.
        seq: of the segment; of a channel that was removed, the head, if it is known.
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

    @classmethod
    def of(cls, row: FactRow) -> Self:
        """The fact of a row."""
        index, at_us, kind, channel, epoch, seq, detail, size = row
        match kind:
            case "closed":
                return cls(index, at_us / 1e6, kind, channel, epoch, seq, detail, size)
            case "removed":
                return cls(index, at_us / 1e6, kind, channel, epoch, seq, reason=detail)
            case _:
                return cls(index, at_us / 1e6, kind, channel, epoch, content_type=detail or None)

    def as_dict(self) -> dict[str, Any]:
        """The fields that apply to its kind."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}


FIELDS: Final[dict[str, type]] = {
    "index": int, "time": float, "kind": str, "channel": str, "epoch": int, "seq": int, "state": str, "bytes": int,
    "content_type": str, "reason": str,
}  # fmt: skip
"""The fields that a query may name."""

_INDEX: Final = attrgetter("index")


WHOLE: Final = (COMPLETE, EMPTY, TERMINATED)
"""States of segments that closed as their publisher wanted."""


class LiveChannel(NamedTuple):
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
    """The channels that were live at an index."""

    index: int
    channels: list[LiveChannel]


class Changes:
    """The newest facts, without those about the server's own channels.

    Args:
        registry: whose journal it hears from now on.
        archive: storage, when it has been restored; ``None`` if there is none.
        defer: calls a function after the present change (``loop.call_soon``).
        keep: facts that are kept, at least; ``None``: :data:`KEPT_FACTS`, or :data:`MAX_FACTS` with storage.
        wall_us: microseconds since 1970; with storage, its times are taken.

    Attributes:
        index: of the newest fact that followers may read. floor: facts up to this one are not kept any more.
        newest_heard: index of the newest fact that listeners get.
        instance: the name of this start of the server. keep: facts that are kept, at least.
        listeners: called, soon after, with the facts that have happened since the last time, told or not; segments that
            became whole are left out, since most facts are of that kind and no listener wants them. Of one turn of the
            event loop they get :data:`MAX_UNHEARD` facts.
        watchers: called, soon after, when facts have been told. followers: requests that follow.
        of_cluster: whether each node of a cluster has such a log, so that an index may be one of another node.
    """

    of_cluster = False

    def __init__(
        self,
        registry: Registry,
        archive: Archive | None = None,
        *,
        defer: Callable[[Callable[[], None]], object],
        keep: int | None = None,
        wall_us: Callable[[], int] = wall_us,
    ) -> None:
        self.instance = registry.instance
        self.listeners: list[Callable[[Sequence[Change]], None]] = []
        self.watchers: list[Callable[[], None]] = []
        self.followers = Capacity(MAX_FOLLOWERS)
        self.index = self.floor = registry.journal.index if archive is None else archive.index
        self.newest_heard = self.index
        self.keep = keep or (KEPT_FACTS if archive is None else MAX_FACTS)
        self._defer, self._wall_us, self._archive = defer, wall_us, archive
        self._faults, self._journal = registry.faults, registry.journal
        # By index; facts beyond self.index wait for storage. A whole segment becomes a Change when somebody reads it.
        self._log: list[Change | Fact] = []
        self._times = array("q")  # of the facts in the log
        self._unheard: list[Change] = []  # facts of this turn of the event loop, for the listeners
        self._left_out = 0  # facts of this turn beyond MAX_UNHEARD
        self._live: dict[str, LiveChannel] = {}
        self._applied = 0  # facts at the beginning of the log that are in the table of live channels
        self._news: asyncio.Event | None = None  # set when facts are told; None: no request waits
        self._waking = False  # whether _wake is going to be called
        self._woken_at = self.index  # the index when the watchers were called last
        self._others: dict[int, OtherLog] = {}  # by the number of the worker
        self._added = self.index  # the newest fact of another worker
        self._unknown: set[int] = set()  # workers whose live channels are not in the table yet
        self._known = asyncio.Event()  # there are none of these
        self._known.set()
        if archive is not None:
            self._restore(registry, archive)
        registry.journal.subscribe(self._note, ChannelCreated, ChannelEnded, SegmentClosed)

    # For followers.

    @property
    def missing(self) -> list[str]:
        """Nodes of the cluster that do not answer, by name: their facts may be missing."""
        return []

    def check(self, after: int, instance: str | None = None) -> None:
        """Make sure that a follower can go on from an index.

        Args:
            after: the index.
            instance: the start of the server that told the index; ``None``: this one, or one whose numbering it goes on
                with.

        Raises:
            IndexGone: the facts that follow are not kept any more, or the index belongs to another numbering.
        """
        last = self.index
        if instance not in (None, self.instance):
            last = -1 if self._archive is None else self._archive.server_starts.get(instance, -1)
        if after > last:
            problem = f"index {after} comes from another start of the server"
        elif after < self.floor:
            problem = f"facts up to index {self.floor} are no longer kept"
        else:
            return
        raise IndexGone(f"{problem}; start with a snapshot", self.floor, self.index, self.instance)

    def facts_after(self, after: int, most: int) -> list[Change]:
        """The facts that follow an index, up to the limits. The caller has called :meth:`check`."""
        first = bisect_right(self._log, after, key=_INDEX)
        last = bisect_right(self._log, self.index, first, min(len(self._log), first + most), key=_INDEX)
        found = list(map(_change, self._log[first:last], self._times[first:last]))
        self._log[first:last] = found
        return found

    def read(self, after: int, wants: Callable[[Change], bool], *, most: int, room: int) -> tuple[list[Change], int]:
        """The facts that follow an index and that a follower wants, and the index up to which it has seen all then.

        Args:
            after: the index; the caller has asked :meth:`check`.
            wants: whether the follower wants a fact. most: facts that it is asked of, at most.
            room: facts that are returned, at most.
        """
        judged = self.facts_after(after, most)
        found: list[Change] = []
        for change in judged:
            if wants(change):
                found.append(change)
                if len(found) == room:
                    return found, change.index
        # Behind the last one there may be facts about the server's own channels.
        return found, judged[-1].index if len(judged) == most else self.index

    def snapshot(self) -> Snapshot | None:
        """The live channels; ``None`` while storage fails and more facts wait for it than are kept, or while it is not
        known yet which channels of another worker live."""
        return None if self._unknown or self.floor > self.index else Snapshot(self.index, list(self._live.values()))

    @property
    def is_whole(self) -> bool:
        """Whether it has all facts since a moment at which no channel lived."""
        return self._archive is None and self.floor == 0

    async def known(self, within_s: float) -> None:
        """Wait until it is known which channels live in each worker, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._known.wait()

    async def more(self, after: int, within_s: float | None) -> None:
        """Wait until there are facts beyond an index, or the time is over (``None``: as long as it takes)."""
        if self.index <= after:
            self._news = self._news or asyncio.Event()
            with suppress(TimeoutError):  # wait_for would lose a cancellation that comes with the news
                async with asyncio.timeout(within_s):
                    await self._news.wait()

    async def catch_up(self) -> None:
        """Have the facts that can be told now of all workers, and follow them."""
        if not self._others:
            return
        await asyncio.gather(*(other.catch_up() for other in self._others.values()))
        index = self._added
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_S):
                while self.index < index and (self._archive is None or self._archive.failed is None):
                    await self.more(self.index, None)

    def follow(self) -> None:
        """Have the next facts of other workers as they happen, for a time."""
        for other in self._others.values():
            other.follow()

    # From the journal and storage.

    def _note(self, fact: Fact) -> None:
        """Take a fact, in the middle of a change."""
        is_whole = False
        if not is_reserved(fact.channel):
            is_whole = type(fact) is SegmentClosed and fact.state in WHOLE
            entry: Change | Fact
            if self._archive is not None:  # it has heard of the fact first, and keeps it with this time
                row = self._archive.noted
                at_us, entry = row.at_us, fact if is_whole else Change.of(row)
            else:
                at_us = self._wall_us()
                entry = fact if is_whole else Change.of(FactRow.of(fact, at_us))
            self._log.append(entry)
            self._times.append(at_us)
            if len(self._log) > self.keep + (self.keep >> 3):
                self._drop(len(self._log) - self.keep)  # many at once: it moves all others
            if isinstance(entry, Change):
                self.newest_heard = fact.index
                if self.listeners:
                    self._hear(entry)
        if self._archive is None:
            if is_whole:
                self._applied = len(self._log)  # it changes no table, and most facts are of its kind
            else:
                self._apply(len(self._log))
            self._tell(fact.index)

    def add(self, rows: Iterable[FactRow], worker: int, position: Position, *, gap: bool = False) -> None:
        """Take facts that have happened in another worker of the server, in their order: they get the next indexes.

        Args:
            worker: which one. position: the place in its log behind these facts.
            gap: facts before these are missing, so each follower begins with a snapshot, and reads none of these.
        """
        added = []
        for row in rows:
            index = self._journal.index = self._journal.index + 1
            added.append(row := row._replace(number=index))
            self._log.append(change := Change.of(row))
            self._times.append(row.at_us)
            if len(self._log) > self.keep + (self.keep >> 3):
                self._drop(len(self._log) - self.keep)
            if self.listeners and change.state not in WHOLE:
                self._hear(change)
            self._added = index
        if self._archive is not None:
            self._archive.add(added, worker, position)
        if gap:
            if self._log:
                self._drop(len(self._log))
            self._journal.index += 1  # no fact gets it, so that nobody has seen all up to here
            self.floor = self._journal.index
            if self._archive is not None:
                self._archive.skip()
        if self._archive is None:
            self.tell(self._journal.index)

    def expect(self, worker: int, log: OtherLog) -> None:
        """There is another worker, and :meth:`know` will say which channels live there."""
        self._others[worker] = log
        self._unknown.add(worker)
        self._known.clear()

    async def know(self, worker: int, live: Iterable[LiveChannel]) -> None:
        """Learn which channels of another worker live, once the facts that have been added so far are told."""
        index = self._journal.index
        while self.index < index:
            await self.more(self.index, None)
        self._live |= {one.channel: one for one in live}
        self._unknown.discard(worker)
        if not self._unknown:
            self._known.set()

    def tell(self, index: int) -> None:
        """Let followers read the facts up to this index: storage, if there is any, has them."""
        self._apply(bisect_right(self._log, index, self._applied, key=_INDEX))
        self._tell(index)

    def _tell(self, index: int) -> None:
        self.index = index
        if self.watchers or self._news is not None:
            self._wake_soon()

    def _apply(self, count: int) -> None:
        """Apply the facts at the beginning of the log, up to this number of them, to the table of live channels."""
        for entry in self._log[self._applied : count]:
            if type(entry) is not Change:
                continue
            if entry.kind == "added":
                content_type = entry.content_type or ""
                self._live[entry.channel] = LiveChannel(entry.channel, entry.epoch, entry.time, content_type)
            elif entry.kind == "removed":
                self._live.pop(entry.channel, None)
        self._applied = max(self._applied, count)

    def _hear(self, change: Change) -> None:
        if len(self._unheard) < MAX_UNHEARD:
            self._unheard.append(change)
        else:
            self._left_out += 1
        self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._waking:
            self._waking = True
            self._defer(self._wake)

    def _wake(self) -> None:
        """The change is done: tell all that follow."""
        self._waking = False
        news, self._unheard = self._unheard, []
        if self._left_out:
            text = "%d facts are missing on %s and on the dashboard: more than %d came at once"
            logger.warning(text, self._left_out, CHANGEFEED, MAX_UNHEARD)
            self._left_out = 0
        for listener in self.listeners:
            try:
                listener(news)
            except Exception as error:
                self._faults.note(listener, error)
        if self.index > self._woken_at:
            self._woken_at = self.index
            for watcher in list(self.watchers):
                watcher()
            if self._news is not None:
                waiting, self._news = self._news, None
                asyncio.get_running_loop().call_later(PER_FOLLOWER_S * self.followers.used, waiting.set)
        self._faults.deliver()

    def _drop(self, count: int) -> None:
        self._apply(count)  # if storage fails, and has not yet the oldest ones
        self.floor = self._log[count - 1].index
        self._applied -= count
        del self._log[:count], self._times[:count]

    def _restore(self, registry: Registry, archive: Archive) -> None:
        """Take over the facts that storage has kept from before the start."""
        archive.listeners.append(self.tell)
        for name, channel in registry.channels.items():
            if not (channel.ended or is_reserved(name)):
                created_us = archive.latest[name].row.created_us
                self._live[name] = LiveChannel(name, channel.epoch, created_us / 1e6, channel.content_type)
        rows = archive.database.facts()
        self.floor = self.index
        while rows and rows[-1].number == self.floor:
            row = rows.pop()
            self.floor -= 1
            if not is_reserved(row.channel) and row.kind != OPENED:
                self._log.append(Change.of(row))
                self._times.append(row.at_us)
        self._log.reverse()
        self._times.reverse()
        self._applied = len(self._log)


def _change(entry: Change | Fact, at_us: int) -> Change:
    return entry if isinstance(entry, Change) else Change.of(FactRow.of(entry, at_us))
