"""All channels by name and epoch: created, ended, drained, forgotten. The one way into the core."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, count, islice
from typing import Final

from tricklecast.app.core.budget import Budget
from tricklecast.app.core.capacity import Capacities
from tricklecast.app.core.channel import Channel
from tricklecast.app.core.drain import COME_BACK_S
from tricklecast.app.core.facts import EndReason, FactListener, Journal
from tricklecast.app.core.limits import Limit, Limits
from tricklecast.app.core.resolution import AlreadyStored, Refusal, Resolution, Wait, Why
from tricklecast.app.core.segment import Cursor, Segment
from tricklecast.app.core.statistics import RegistryStatistics, channel_statistics
from tricklecast.app.core.window import Eviction
from tricklecast.app.core.writer import Outcome, Writer, WriterOwner
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import SEQ_NEXT

STALE_DEADLINES: Final = 64
"""So many overtaken appointments, and twice the number of channels, may lie in the heap before it is cleaned."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A channel was here: its last epoch and head, and when it is forgotten that it has ended."""

    epoch: int
    head: int
    until: float


class _Nobody:
    """The owner of a segment that the server publishes in one step: there is no one to be told."""

    def preempted(self, outcome: Outcome) -> None: ...


class Registry:
    """Every channel of a server.

    Args:
        limits: what may be held, and for how long.
        autocreate: whether a POST may create a channel.
        listener: told of channels created and ended as it happens; segment_listener: of segments opened and closed.

    Attributes:
        shutting_down: if set, nothing new begins: no channel, no reservation, no wait.
        come_back_s: shortest and longest time after which who is refused for that reason is to come back.
        capacities: of the limits that all clients share. Connections are taken and given back outside; here is decided
            who may join while they are short.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        autocreate: bool,
        listener: FactListener,
        segment_listener: FactListener | None = None,
    ) -> None:
        self.limits = limits
        self.autocreate = autocreate
        self.shutting_down = False
        self.come_back_s = COME_BACK_S
        self.channels: dict[str, Channel] = {}
        self.capacities = Capacities.of(limits)
        self.budget = Budget(limits.total_bytes, self._reclaim)
        self.journal = Journal(listener, segment_listener)
        self._tombstones: OrderedDict[str, Tombstone] = OrderedDict()
        self._evicted = dict.fromkeys(Eviction, 0)
        self._serials = count(1)
        self._deadlines: list[tuple[float, int, Channel]] = []
        self._tie_breaker = count()

    # Channels.

    @property
    def readers(self) -> int:
        """Readers at this moment, waiting ones included."""
        return self.capacities.readers.used

    def create(
        self, name: str, content_type: str, now: float, *, force: bool = False, resumed: bool = False
    ) -> Channel | Refusal:
        """Create a channel, or find it: idempotent, and an existing content type never changes.

        Args:
            force: create even where ``autocreate`` is off, names that belong to the server, and within the reserve.
            resumed: its publisher goes on with what it has begun elsewhere, or before; it gets the reserve, too.
        """
        if is_reserved(name) and not force:
            return Refusal(Why.RESERVED)
        channel = self.channels.get(name)
        if channel is not None and not channel.ended:
            channel.content_type = channel.content_type or content_type
            return channel
        if not (self.autocreate or force):
            return self._missing(name)
        if self.shutting_down:
            return Refusal(Why.SHUTDOWN, come_back_s=self.come_back_s)
        join = not (force or resumed)
        if channel is None and not is_reserved(name) and not self.capacities.channels.admits(join=join):
            return Refusal(Why.LIMIT, limit=Limit.CHANNELS)
        if join and not self.capacities.connections.joinable:
            return Refusal(Why.LIMIT, limit=Limit.CONNECTIONS)
        return self._create(name, content_type, now)

    def end(
        self, name: str, now: float, reason: EndReason = EndReason.DELETED, *, force: bool = False
    ) -> Refusal | None:
        """End a channel. One that is missing, or has ended already, is a refusal."""
        if is_reserved(name) and not force:
            return Refusal(Why.RESERVED)
        channel = self.live(name)
        if channel is None:
            return self._missing(name)
        channel.end(reason, now)
        if self.limits.channel_drain_s <= 0:
            self._bury(channel, now)
        return None

    def live(self, name: str) -> Channel | None:
        """The channel of that name, unless it has ended."""
        channel = self.channels.get(name)
        return None if channel is None or channel.ended else channel

    def close_segment(self, name: str, seq: int, now: float, *, truncate: bool = False) -> Refusal | None:
        """Close one segment, as a part if ``truncate``; closing a closed one changes nothing."""
        if is_reserved(name):
            return Refusal(Why.RESERVED)
        channel = self.live(name)
        return self._missing(name) if channel is None else channel.close_segment(seq, now, truncate=truncate)

    # Reading.

    def find(self, name: str) -> Channel | Refusal:
        """The channel of that name, an ended one in its drain included."""
        return self.channels.get(name) or self._missing(name)

    def resolve(self, name: str, seq: int) -> Resolution:
        """What a GET of ``seq`` means now (docs/reference/protocol.md, section 4).

        Who names a seq goes on with what it reads; who counts from the head is new.
        """
        channel = self.channels.get(name)
        if channel is None:
            return self._missing(name)
        readers, reading = self.capacities.readers, channel.reading
        # Asked first what is true of all but a few requests: every GET comes this way.
        if seq < 0 or readers.used >= readers.limit or reading.used >= reading.limit:
            limit = self._limit_of_readers(channel, join=seq < 0)
            if limit is not None:
                return Refusal(Why.LIMIT, channel, limit=limit)
        resolution = channel.resolve(seq)
        if self.shutting_down and isinstance(resolution, Wait):
            channel.release(resolution.segment)
            return Refusal(Why.SHUTDOWN, channel, resolution.segment.seq, come_back_s=self.come_back_s)
        return resolution

    def attach(self, cursor: Cursor, channel: Channel, segment: Segment) -> None:
        """Count a reader in; it is woken as long as the segment is not closed."""
        self.capacities.readers.take()
        channel.attach(cursor, segment)

    def detach(self, cursor: Cursor, channel: Channel, segment: Segment) -> None:
        """Count a reader out, exactly once for each attach."""
        self.capacities.readers.give_back()
        channel.detach(cursor, segment)

    # Writing.

    def reserve(
        self,
        name: str,
        seq: int,
        owner: WriterOwner,
        now: float,
        *,
        content_type: str = "",
        reset: bool = False,
        key: str | None = None,
        attempt: int = 1,
    ) -> Writer | AlreadyStored | Refusal:
        """Give out the right to write a segment, creating the channel where that is allowed.

        A publisher of a live channel goes on, as does one that resumes its numbering (seq > 0) on a server that does
        not know the channel; any other is new.

        During the drain of an ended channel only a *beginning* starts its next epoch: seq 0, or a reset. Any
        other POST is a latecomer of the ended life (docs/reference/protocol.md, section 5).
        """
        if self.shutting_down:
            return Refusal(Why.SHUTDOWN, come_back_s=self.come_back_s)
        channel = self.channels.get(name)
        if channel is not None and channel.ended and seq != 0 and not reset:
            return Refusal(Why.ENDED, channel, seq, recently_ended=True)
        live = channel is not None and not channel.ended
        if not self.capacities.publishers.admits(join=not live and seq <= 0) and not self._is_written(channel, seq):
            return Refusal(Why.LIMIT, channel, limit=Limit.PUBLISHERS)
        found = self.create(name, "" if live else content_type, now, resumed=seq > 0)
        if isinstance(found, Refusal):
            return found
        answer = found.reserve(seq, owner, next(self._serials), now, reset=reset, key=key, attempt=attempt)
        if isinstance(answer, Writer):
            answer.count(self.capacities.publishers)
            found.content_type = found.content_type or content_type
        return answer

    def would_write(self, name: str, seq: int) -> int:
        """The seq that a POST of ``seq`` would be given now; nothing is reserved."""
        channel = self.live(name)
        return seq if seq >= 0 else channel.first_free() if channel else 0

    def publish_own(self, name: str, content_type: str, chunk: bytes, now: float) -> Outcome | None:
        """Publish one segment of one chunk to a channel of the server's own.

        Returns:
            How the segment closed; ``None`` if the server is shutting down.
        """
        channel = self.create(name, content_type, now, force=True)
        if isinstance(channel, Refusal):
            return None
        writer = channel.reserve(SEQ_NEXT, _Nobody(), next(self._serials), now)
        assert isinstance(writer, Writer), "the first free seq can be reserved"
        return channel.finish(writer, (chunk,), now)

    # Time.

    def next_deadline(self) -> float | None:
        """When :meth:`expire` has something to do next; it may turn out to be nothing."""
        channels = (when for when, _, _ in self._deadlines[:1])
        tombstones = (tombstone.until for tombstone in islice(self._tombstones.values(), 1))
        return min(chain(channels, tombstones), default=None)

    def expire(self, now: float) -> None:
        """Do all that is due: skips, truncations, evictions, idle channels, drains, tombstones."""
        while self._deadlines and self._deadlines[0][0] <= now:
            when, _, channel = heappop(self._deadlines)
            if channel.scheduled_at != when:
                continue
            channel.scheduled_at = None
            if self.channels.get(channel.name) is channel:
                self._expire_channel(channel, now)
        while self._tombstones:
            name, tombstone = next(iter(self._tombstones.items()))
            if tombstone.until > now and len(self._tombstones) <= self.limits.tombstones:
                break
            del self._tombstones[name]

    def statistics(self) -> RegistryStatistics:
        """A frozen picture of everything, for the control plane, metrics and tests."""
        return RegistryStatistics(
            channels=tuple(channel_statistics(channel) for channel in self.channels.values()),
            readers=self.readers,
            bytes_held=self.budget.used,
            evicted=self.evictions(),
            journal_index=self.journal.index,
            shutting_down=self.shutting_down,
        )

    def evictions(self) -> dict[Eviction, int]:
        """Segments that have left their windows since the server started, by the reason."""
        windows = [channel.window for channel in self.channels.values()]
        return {why: n + sum(window.evicted[why] for window in windows) for why, n in self._evicted.items()}

    # Mechanics.

    def _limit_of_readers(self, channel: Channel, *, join: bool) -> Limit | None:
        """The limit that one more reader would exceed."""
        if not self.capacities.readers.admits(join=join):
            return Limit.READERS
        if not channel.reading.admits(join=join):
            return Limit.CHANNEL_READERS
        return Limit.CONNECTIONS if join and not self.capacities.connections.joinable else None

    def _is_written(self, channel: Channel | None, seq: int) -> bool:
        """Whether somebody writes the segment, so that who takes it over is not one more."""
        segment = None if channel is None else channel.segments.get(seq)
        return segment is not None and segment.writer is not None

    def _create(self, name: str, content_type: str, now: float) -> Channel:
        before = self.channels.get(name)
        if before is not None:
            self._forget(before)
        elif not is_reserved(name):
            # A limit of one is to leave room for one, whatever the server has for itself.
            self.capacities.channels.take()
        tombstone = self._tombstones.pop(name, None)
        last = before.epoch if before else tombstone.epoch if tombstone else 0
        channel = Channel(
            name,
            last + 1,
            content_type,
            now,
            limits=self.limits,
            budget=self.budget,
            journal=self.journal,
            schedule=self._schedule,
        )
        self.channels[name] = channel
        self.journal.channel_created(name, channel.epoch, content_type)
        self._schedule_next(channel)
        return channel

    def _bury(self, channel: Channel, now: float) -> None:
        """The drain is over: the name is free again."""
        self._forget(channel)
        del self.channels[channel.name]
        if not is_reserved(channel.name):
            self.capacities.channels.give_back()
        self._tombstones[channel.name] = Tombstone(channel.epoch, channel.next_seq, now + self.limits.tombstone_s)
        if len(self._tombstones) > self.limits.tombstones:
            self._tombstones.popitem(last=False)

    def _forget(self, channel: Channel) -> None:
        """A life of a channel is over; what it has evicted still counts."""
        channel.forget()
        for why, n in channel.window.evicted.items():
            self._evicted[why] += n

    def _missing(self, name: str) -> Refusal:
        channel = self.channels.get(name)
        if channel is not None or (tombstone := self._tombstones.get(name)) is None:
            return Refusal(Why.NOT_FOUND, channel, recently_ended=channel is not None)
        return Refusal(Why.NOT_FOUND, recently_ended=True, epoch=tombstone.epoch, head=tombstone.head)

    def _expire_channel(self, channel: Channel, now: float) -> None:
        if channel.drain_until is not None and channel.drain_until <= now:
            self._bury(channel, now)
            return
        channel.expire(now)
        if (idle_at := self._idle_at(channel)) is not None and idle_at <= now:
            self.end(channel.name, now, EndReason.IDLE)
        if self.channels.get(channel.name) is channel:
            self._schedule_next(channel)

    def _idle_at(self, channel: Channel) -> float | None:
        exempt = channel.ended or is_reserved(channel.name)
        return None if exempt else channel.active_at + self.limits.idle_timeout_s

    def _schedule_next(self, channel: Channel) -> None:
        times = [when for when in (channel.next_deadline(), self._idle_at(channel)) if when is not None]
        if times:
            self._schedule(channel, min(times))

    def _schedule(self, channel: Channel, when: float) -> None:
        """Look at a channel at ``when``; an earlier appointment already made for it stands."""
        if channel.scheduled_at is None or when < channel.scheduled_at:
            channel.scheduled_at = when
            heappush(self._deadlines, (when, next(self._tie_breaker), channel))
            if len(self._deadlines) > 2 * len(self.channels) + STALE_DEADLINES:
                self._drop_stale_deadlines()

    def _drop_stale_deadlines(self) -> None:
        """Forget overtaken appointments, which would keep forgotten channels in memory until their time."""
        self._deadlines = [
            (channel.scheduled_at, next(self._tie_breaker), channel)
            for channel in self.channels.values()
            if channel.scheduled_at is not None
        ]
        heapify(self._deadlines)

    def _reclaim(self, size: int) -> None:
        """Free at least ``size`` bytes, if that is possible without touching what is being written.

        First go those who read what has left its window, then the oldest segments of whichever window is the largest
        at the time, and only in need the newest ones. A sixteenth of the budget is freed beyond what is needed, the
        newest ones aside, so that a full server does not search on every chunk.
        """
        goal = self.budget.used - size
        spare = self.limits.total_bytes >> 4
        for segment in list(self.budget.lingering):
            if self.budget.used > goal - spare:
                self.budget.drop_readers(segment)
        self._evict_largest(goal - spare, keep=1)
        self._evict_largest(goal, keep=0)

    def _evict_largest(self, goal: int, *, keep: int) -> None:
        """Evict from the largest windows, but not their newest ``keep``, until no more than ``goal`` bytes are held."""
        if self.budget.used <= goal:
            return
        heap = [(-channel.window.cost, number, channel) for number, channel in enumerate(self.channels.values())]
        heapify(heap)
        while heap and self.budget.used > goal:
            _, number, channel = heap[0]
            if channel.make_room(keep=keep):
                heapreplace(heap, (-channel.window.cost, number, channel))
            else:
                heappop(heap)
