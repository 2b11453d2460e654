"""Subscriptions in the process, for programs that embed the server: to facts, or to the segments of a channel.

Rules kept here (docs/reference/changes.md, "In the process"):

- A subscription is a cursor: on the list of facts (:mod:`app.changes`), or on one segment, as a reader is. The core
  does nothing for it but wake it, so a subscriber never keeps the server from anything.
- A subscription ends once, with one reason, which every later call raises. What was delivered before stays readable.
- A subscription that has ended is counted nowhere, whether or not its end has been noticed.
- No fact is passed over without a word: a subscriber that is too far behind ends, and is told from where to go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

from tricklecast.app.changes import FIELDS, Change, Changes
from tricklecast.app.core.limits import Capacity
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Ahead, Cause, Ended, Gone, Refusal
from tricklecast.app.core.segment import TERMINATED, Segment, State
from tricklecast.app.core.state import Channel, Ready, Upcoming
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.query import Query, parse
from tricklecast.trickle.errors import ChannelEnded, LocalProtocolError, TrickleError
from tricklecast.trickle.wire import SEQ_NEXT

CAPACITY: Final = 256
"""Facts, or segments, that a subscriber may be behind. (Tendermint's event bus: 100 messages.)"""

MAX_SUBSCRIPTIONS: Final = 500
"""Subscriptions at a time (Tendermint: 100 clients with 5 each)."""

STEPS: Final = 1_000
"""Facts that are judged in one turn of the event loop, over all subscriptions: about a millisecond."""

CLOSE_S: Final = 1.0
"""How long the bus may take to deliver the last facts when the server stops."""

T = TypeVar("T")


class SubscriptionEnded(TrickleError):
    """A subscription has ended.

    Attributes:
        index: where another one goes on without loss: ``subscribe(after=index)``, or ``read(start=index)``.
    """

    reason: ClassVar[str] = ""  # as a sentence

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index

    def __str__(self) -> str:
        return f"{self.reason}: go on from {self.index}"


class Unsubscribed(SubscriptionEnded):
    reason = "the subscriber has ended the subscription"


class OutOfCapacity(SubscriptionEnded):
    reason = "the subscriber was too far behind, or memory that it kept in use was needed"


class ServerClosed(SubscriptionEnded):
    reason = "the server is stopping"


ENDS: Final = (Unsubscribed, OutOfCapacity, ServerClosed, ChannelEnded)
"""Every reason; the last one is for subscriptions to segments only."""


class CannotSubscribe(TrickleError):
    """A limit is reached, the server is stopping, or there is nothing to be read there. Nothing was subscribed."""


class SegmentData(NamedTuple):
    """Some bytes of a segment, or its end.

    Attributes:
        channel, epoch, seq: of the segment.
        data: the bytes, as the publisher's writes arrived; none at the end of the segment.
        state: how the segment closed, at its end; ``None`` before.
        gap: the number of segments before this one that are lost; 0 but in the first data of a segment.
    """

    channel: str
    epoch: int
    seq: int
    data: bytes
    state: State | None = None
    gap: int = 0


class Subscription(Generic[T]):
    """An asynchronous iterator, for one task at a time. ``async with`` ends it at the end of the block.

    Attributes:
        ended: the reason of its end; ``None`` before.
    """

    def __init__(self, bus: Bus) -> None:
        self.ended: SubscriptionEnded | ChannelEnded | None = None
        self._bus = bus
        self._capacity = CAPACITY  # facts, or segments, that it may be behind
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Wait for the next fact, or for the next data of a segment.

        Raises:
            Unsubscribed, OutOfCapacity, ServerClosed: the subscription has ended for this reason; each later call
                raises the same.
            ChannelEnded: the channel whose segments are read is over.
            LocalProtocolError: another task waits for the next one already.
        """
        if self._waiter is not None:
            raise LocalProtocolError("another task reads this subscription")
        while (found := self._take()) is None:
            if self.ended is not None:
                raise self.ended.with_traceback(None)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()

    def unsubscribe(self) -> None:
        """End it; nothing happens if it has ended."""
        self.end(Unsubscribed(self.position()))

    def _take(self) -> T | None:
        """Take the next fact, or the next data, if there is one."""
        raise NotImplementedError

    def position(self) -> int:
        """The index, or the seq, from which another subscription goes on without loss."""
        raise NotImplementedError

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, reason: SubscriptionEnded | ChannelEnded) -> None:
        """End it, unless it has ended: the first reason stands."""
        if self.ended is None:
            self.ended = reason
            self._bus.left(self)
            self._wake()


class Facts(Subscription[Change]):
    """Facts that a query matches.

    A subscriber that begins in the past takes what is there at its own pace, as long as it is kept. Once it has reached
    the present it may be :data:`CAPACITY` facts behind.

    Attributes:
        query: selects the facts. seen: the index up to which all of them have been delivered.
    """

    def __init__(self, bus: Bus, query: Query, after: int) -> None:
        super().__init__(bus)
        self.query = query
        self.seen = after
        self._present = False  # whether it has reached the present: until then it takes facts only as they are read
        self._delivered: deque[Change] = deque()

    def _take(self) -> Change | None:
        if not self._delivered:
            return None
        if not self._present and self.ended is None:
            self._bus.pump_soon()
        return self._delivered.popleft()

    def position(self) -> int:
        return self.seen

    def is_behind(self, changes: Changes) -> bool:
        """Whether :meth:`fill` has something to do: in the present, new facts; in the past, room for further ones."""
        return self.seen < changes.index if self._present else len(self._delivered) < self._capacity

    def fill(self, changes: Changes, most: int) -> None:
        """Deliver the facts told since; at most ``most`` are judged. The caller has asked :meth:`is_behind`."""
        room, before = self._capacity - len(self._delivered), self.seen
        if before < changes.floor:
            self.end(OutOfCapacity(before))
            return
        # A subscriber in the present ends if there is one fact more than it has room for: read one more, to see that.
        found, self.seen = changes.read(before, self.query.matches, most=most, room=room + self._present)
        excess = found.pop() if len(found) > room else None
        if found:
            self._delivered += found
            self._wake()
        if excess is not None:
            self.seen = excess.index - 1
            self.end(OutOfCapacity(self.seen))
        self._present = self._present or self.seen == changes.index


class Segments(Subscription[SegmentData]):
    """The segments of one epoch of a channel, as they are written.

    It is a reader as any other (:class:`~tricklecast.app.core.segment.Cursor`), counted as one. Segments that were
    there when it began are no lag; of those that come later its subscriber may be :data:`CAPACITY` behind.

    Attributes:
        channel: the name. epoch: of the name. seq: the segment that is read. gap: segments before it that are lost.
    """

    def __init__(self, bus: Bus, channel: str, registry: Registry) -> None:
        super().__init__(bus)
        self.channel = channel
        self.epoch = 0
        self.seq = self.gap = 0
        self._registry = registry
        self._at: tuple[Channel, Segment] | None = None
        self._done = self._asked = 0
        self._allowed = self._capacity  # segments that it may be behind

    def begin(self, start: int, epoch: int | None) -> None:
        """Attach to the first segment.

        Raises:
            CannotSubscribe: there is none.
        """
        match found := self._find(start):
            case Refusal():
                why = f"limit reached: {found.limit}" if found.limit else "there is no such channel"
                raise CannotSubscribe("the server is stopping" if found.why is Cause.SHUTDOWN else why)
            case Ended():
                raise CannotSubscribe("the channel has ended")
            case Ahead():
                raise CannotSubscribe(f"segment {found.seq} is beyond the head, {found.head}")
            case Ready(channel=channel) | Upcoming(channel=channel):
                if epoch is not None and epoch != channel.epoch:
                    channel.release(found.segment)
                    raise CannotSubscribe(f"epoch {epoch} of the channel has ended; it is now in epoch {channel.epoch}")
        self.epoch = channel.epoch
        self._attach(channel, found.segment)
        self._allowed = max(self._capacity, channel.next_seq - self.seq)

    def wake(self) -> None:
        """There is more, or the segment has closed. (The segment calls this.)"""
        self._wake()

    def evict(self) -> None:
        """The memory of the segment is needed, or it cannot be read. (The segment calls this.)"""
        self.end(OutOfCapacity(self.seq))

    def judge(self) -> None:
        """End it if it is too far behind."""
        if self._at is not None:
            behind = self._at[0].next_seq - self.seq
            if behind > self._allowed:
                self.end(OutOfCapacity(self.seq))
            self._allowed = max(self._capacity, min(self._allowed, behind))

    def detach(self) -> None:
        """Let go of the segment."""
        if self._at is not None:
            (channel, segment), self._at = self._at, None
            channel.bytes_out += segment.offsets[self._done]
            self._registry.detach(self, channel, segment)
            if segment.source is not None:
                segment.source.more()

    def position(self) -> int:
        return self.seq

    def _find(self, seq: int) -> Ready | Upcoming | Ahead | Ended | Refusal:
        """Find the first segment from this one on that is there or may come, and count those before it as a gap."""
        found = self._registry.resolve(self.channel, seq)
        while isinstance(found, Gone):
            self.gap += found.following - found.seq
            found = self._registry.resolve(self.channel, found.following)
        return found

    def _attach(self, channel: Channel, segment: Segment) -> None:
        self._at = channel, segment
        self.seq, self._done = segment.seq, 0
        self._registry.attach(self, channel, segment)
        # At once: retention may remove the file of a segment as long as nothing is read from it.
        self._ask(segment)

    def _ask(self, segment: Segment) -> None:
        """Let a segment from storage load its next piece."""
        self._asked = self._done
        if segment.source is not None:
            segment.source.more()

    def _take(self) -> SegmentData | None:
        self.judge()
        if self._at is None:
            return None
        _, segment = self._at
        if self._done < len(segment.frames):
            data = b"".join(segment.payload(self._done, self._done + 1))
            self._done += 1
            return self._data(data, None)
        if not segment.closed:
            return None
        if not segment.is_loaded:
            # Once for each position: by each call the source learns that all that is loaded has been read.
            if self._asked != self._done:
                self._ask(segment)
            return None
        end = self._data(b"", segment.state)
        self._next()
        return None if segment.state is TERMINATED and not segment.size else end

    def _data(self, data: bytes, state: State | None) -> SegmentData:
        gap, self.gap = self.gap, 0
        return SegmentData(self.channel, self.epoch, self.seq, data, state, gap)

    def skip(self) -> None:
        """Leave the segment that is read, and go on with the one that follows."""
        if self._at is not None:
            self._next()

    def _next(self) -> None:
        """Go on with the segment that follows, in one step, so that nobody else takes its place."""
        self.detach()
        self.seq += 1
        match found := self._find(self.seq):
            case Ready(channel=channel) | Upcoming(channel=channel) if channel.epoch == self.epoch:
                self._attach(channel, found.segment)
            case Ready() | Upcoming():
                found.channel.release(found.segment)
                self.end(ChannelEnded(self.seq))
            case Refusal(why=Cause.SHUTDOWN):
                self.end(ServerClosed(self.seq))
            case Refusal(why=Cause.LIMIT):
                self.end(OutOfCapacity(self.seq))
            case _:
                self.end(ChannelEnded(self.seq))


class Bus:
    """All subscriptions of a server.

    Args:
        changes: the facts. registry: all channels.
        plane: of the server, for those who publish in the process; without it nobody can.
        defer: calls a function in a later turn of the event loop (``loop.call_soon``).

    Attributes:
        instance: the name of this start of the server; kept with an index, it makes sure that the index means the same.
        used: subscriptions that live. A new one is refused from 80 % of :data:`MAX_SUBSCRIPTIONS` on, until less than
            60 % are used; one that goes on (with ``after``) may use all.
        ends: the number of those that have ended, by the name of the reason.
    """

    def __init__(
        self,
        changes: Changes,
        registry: Registry,
        plane: DataPlane | None = None,
        *,
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        self.changes = changes
        self.instance = changes.instance
        self.plane = plane
        self.used = Capacity(MAX_SUBSCRIPTIONS)
        self.ends: Counter[str] = Counter()
        self._registry = registry
        self._defer = defer
        self._facts: dict[Facts, None] = {}
        self._segments: dict[Segments, None] = {}
        self._pumping = False
        self._closed = False

    def subscribe(
        self,
        query: str = "",
        *,
        after: int | None = None,
        instance: str | None = None,
    ) -> Facts:
        """Subscribe to facts.

        Args:
            query: selects the facts (docs/reference/changes.md); an empty one selects all of them.
            after: begin with the facts that follow this index; ``None``: with those that come from now on.
            instance: the start of the server that told ``after``, if that may have been another one.

        Raises:
            InvalidQuery: the query does not follow the grammar.
            IndexGone: the facts behind ``after`` are not kept any more.
            CannotSubscribe: there are too many subscriptions, or the server is stopping.
        """
        parsed = parse(query, FIELDS)
        if after is not None:
            self.changes.check(after, instance)
        self._admit(join=after is None)
        found = Facts(self, parsed, self.changes.index if after is None else after)
        self._enter()
        self._facts[found] = None
        self.pump_soon()
        return found

    def read(
        self,
        channel: str,
        start: int = SEQ_NEXT,
        *,
        epoch: int | None = None,
    ) -> Segments:
        """Subscribe to the segments of a channel, while they are written.

        Args:
            channel: the name.
            start: the first segment, as in a GET: N, -1 for the next one to begin, -2 for the newest one that has.
            epoch: of the channel that is meant; ``None``: the present one.

        Raises:
            CannotSubscribe: there is no such channel, epoch or segment, a limit is reached, or the server is stopping.
        """
        self._admit(join=start < 0)
        found = Segments(self, channel, self._registry)
        found.begin(start, epoch)
        self._enter()
        self._segments[found] = None
        return found

    def left(self, subscription: Subscription[Any]) -> None:
        """A subscription has ended: from now on it is counted nowhere."""
        if isinstance(subscription, Facts):
            del self._facts[subscription]
        elif isinstance(subscription, Segments):
            self._segments.pop(subscription, None)
            subscription.detach()
        self.used.give_back()
        if not self.used.used:
            self.changes.watchers.remove(self._told)
        self.ends[type(subscription.ended).__name__] += 1

    def pump_soon(self) -> None:
        """There are new facts, or a subscription has room again: deliver in a turn of the event loop of its own."""
        if not self._pumping:
            self._pumping = True
            self._defer(self._pump)

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Deliver what has been told, as far as the time allows, and end all subscriptions."""
        self._closed = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        self._told()
        while self._pumping and loop.time() < deadline:  # noqa: ASYNC110 - the pump goes on in the next turn
            await asyncio.sleep(0)
        living: list[Subscription[Any]] = [*self._facts, *self._segments]
        for subscription in living:
            subscription.end(ServerClosed(subscription.position()))

    def _admit(self, *, join: bool) -> None:
        if self._closed:
            raise CannotSubscribe("the server is stopping")
        if not self.used.admits(join=join):
            raise CannotSubscribe(f"{self.used.used} of {self.used.limit} subscriptions are used")

    def _enter(self) -> None:
        if not self.used.used:
            self.changes.watchers.append(self._told)
        self.used.take()

    def _told(self) -> None:
        for reader in list(self._segments):
            reader.judge()
        self.pump_soon()

    def _pump(self) -> None:
        """Deliver facts to all subscriptions, as many as one turn of the event loop allows."""
        self._pumping = False
        behind = [subscription for subscription in self._facts if subscription.is_behind(self.changes)]
        for subscription in behind:
            subscription.fill(self.changes, max(1, STEPS // len(behind)))
        if behind:
            self.pump_soon()
