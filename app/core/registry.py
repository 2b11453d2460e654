"""All channels of a server. Requests, time and replicas reach the core through :class:`Registry`, and only so.

A name stands for one channel after another, counted by the epoch. An epoch begins with a POST or a request, and ends
by request, after a time without a publisher, or by a fault of the server. Then it drains: for ``channel_drain_s`` its
readers may finish, and only a POST of seq 0, or one with a reset, begins the next epoch. After the drain a tombstone
stays, so that latecomers hear that the channel has ended, and that the next epoch is a higher one.

Nothing here runs by itself. The registry knows the earliest time at which each channel has something to do
(:class:`~tricklecast.app.core.rules.Agenda`), and its caller calls :meth:`Registry.expire` then. So a server with
10,000 idle channels looks at none of them. A time in the agenda may be too early, never too late.

A channel that another server owns (:meth:`Registry.replicate`) stands among the others, and has their readers and
limits. Its owner decides about it, so requests that would change it get :attr:`Cause.REPLICA`. A copy of one
(:class:`~tricklecast.app.core.copies.Copy`) is listed and stored as the server's own ones are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple, Protocol, overload

from tricklecast.app.core.copies import Copy
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, EndReason, Journal
from tricklecast.app.core.limits import Capacities, Capacity, Limit, Limits
from tricklecast.app.core.payers import Payers
from tricklecast.app.core.publishers import Identity
from tricklecast.app.core.results import COME_BACK_S, Ahead, AlreadyStored, Cause, Ended, Gone, Outcome, Refusal
from tricklecast.app.core.rules import ANONYMOUS, Agenda, OwnedChannel, earliest
from tricklecast.app.core.segment import WAITING, Cursor, Segment, Writer, WriterOwner
from tricklecast.app.core.state import Channel, Lives, Ready, Retained, Upcoming
from tricklecast.app.core.window import Budget, Eviction
from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import NO_LIFE, SEQ_NEXT, Life

Resolution = Ready | Upcoming | Ahead | Gone | Ended | Refusal
"""The result of the core for a GET."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A channel that has ended is remembered: its last epoch and head, and until when."""

    epoch: int
    head: int
    until: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all channels at one moment, for metrics.

    Attributes:
        live, draining: channels that take segments, and channels that have ended and can still be read.
        segments: closed segments in all windows.
        writing, preconnected: segments whose publisher is connected, after and before its first byte.
        orphaned: open segments whose publisher has gone, and may come back.
        waiting: readers of segments that have no byte yet.
        audience: clients that read, as people count them.
    """

    live: int
    draining: int
    segments: int
    writing: int
    preconnected: int
    orphaned: int
    waiting: int
    audience: int


class Restored(NamedTuple):
    """A channel that storage brings back after a restart.

    Attributes:
        name, epoch, content_type, next_seq: of the channel.
        created_at: when, seconds of the registry's clock. playlist: the mark of its playlist. lives: its numberings.
        drain_s: for one that has ended, how much longer it can be read; ``None`` for a live one.
        copied: another server owns it, and this one has a copy.
    """

    name: str
    epoch: int
    content_type: str
    next_seq: int
    created_at: float
    playlist: str = ""
    lives: Lives = ()
    drain_s: float | None = None
    copied: bool = False


class Storage(Protocol):
    """Keeps channels over a restart, and their segments beyond the window.

    Attributes:
        refuses: whether nothing may be published at present, because storage has failed.
        failed: why nothing can be kept at present; ``None`` if it can.
    """

    failed: str | None

    @property
    def refuses(self) -> bool: ...

    def begin(self, channel: OwnedChannel | Copy) -> Retained:
        """A channel came into being, was restored, or was adopted with the segments that it has."""

    def promote(self, name: str, epoch: int) -> None:
        """The stored channel of that name is of this epoch from now on; the end of the one before, and :meth:`begin`,
        follow."""

    def last_epoch(self, name: str) -> int:
        """The epoch of the last channel of that name; 0 if there was none."""


class _Nobody:
    """The owner of a segment that the server publishes in one step: nothing can preempt it."""

    def preempted(self, outcome: Outcome) -> None: ...


class Registry:
    """Every channel of a server.

    Args:
        limits: what may be held, and for how long.
        autocreate: whether a POST may create a channel.
        instance: a name of this start of the server that no other start has. The names of numberings are made of it
            (docs/reference/protocol.md, section 5); without it they have none.
        journal: hears of every fact; a new one if ``None``. Its faults are the registry's.
        budget: memory of all segments; a new one of these limits if ``None``.
        storage: keeps channels over a restart; ``None``: they are in memory only.
        capacities: the limits that all clients share; new ones of these limits if ``None``.
        payers: the publishers whose unfinished segments take memory; new ones of these limits if ``None``.
        reading: makes the limit of readers of the channel of this name, where other workers have some of these;
            ``None``: each channel has its own.
        owns: whether a channel of this name may begin here; ``None``: every one may. Requests for another one that is
            not here get :attr:`Cause.REPLICA`.
        epochs: the epoch that was decided elsewhere for a channel of this name, or ``None`` if none was; it may begin
            only if that is above :meth:`last_epoch`. ``None``: epochs are decided here.

        (`owns` and `epochs` may be set later: a cluster is made after the registry. So is a mirror.)

    Attributes:
        faults: of the journal: exceptions of its listeners, of cursors and of owners of writers. They are delivered at
            the end of the change, when all others have been told.
        shutting_down: whether nothing new begins: no channel, no reservation, no wait.
        come_back_s: shortest and longest time in seconds after which a client refused for that reason should come back.
        read_only: why nobody may publish to a channel of this name, or change it; ``""``: everybody may. ``None``: this
            server has neither a mirror nor a successor.
        payers, capacities, owns, epochs: as given. The data plane counts connections; the registry refuses newcomers
            while connections are short.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        autocreate: bool,
        instance: str = "",
        journal: Journal | None = None,
        budget: Budget | None = None,
        storage: Storage | None = None,
        capacities: Capacities | None = None,
        payers: Payers | None = None,
        reading: Callable[[str], Capacity] | None = None,
        owns: Callable[[str], bool] | None = None,
        epochs: Callable[[str], int | None] | None = None,
    ) -> None:
        self.limits = limits
        self.autocreate = autocreate
        self.shutting_down = False
        self.come_back_s = COME_BACK_S
        self.instance = instance
        self.storage = storage
        self.channels: dict[str, Channel] = {}
        self.capacities = capacities or Capacities.of(limits)
        self.journal = journal or Journal()
        self.faults = self.journal.faults
        self.budget = budget or Budget(limits.total_bytes, self.faults)
        self.payers = Payers(limits.publisher_bytes) if payers is None else payers  # there may be none yet
        self._reading = reading
        self.owns, self.epochs = owns, epochs
        self.read_only: Callable[[str], str] | None = None
        self._tombstones: OrderedDict[str, Tombstone] = OrderedDict()
        self._evicted = dict.fromkeys(Eviction, 0)
        self._serials = count(1)
        self._agenda: Agenda[Channel] = Agenda()

    def shut_down(self, come_back_s: tuple[int, int]) -> None:
        """From now on nothing new begins. It may be called again, since the time becomes shorter.

        Args:
            come_back_s: shortest and longest time, in seconds, after which a client that is refused is to come back.
        """
        self.shutting_down, self.come_back_s = True, come_back_s

    # Channels.

    @property
    def readers(self) -> int:
        """Readers at this moment, waiting ones included."""
        return self.capacities.readers.used

    def create(
        self, name: str, content_type: str, now: float, *, force: bool = False, resumed: bool = False
    ) -> OwnedChannel | Refusal:
        """Create a channel, or find it: idempotent, and an existing content type never changes.

        Args:
            name: of the channel.
            content_type: of its segments; ``""`` if it is not known yet.
            now: the time in seconds.
            force: create it even where ``autocreate`` is off or the name belongs to the server, and from the reserve.
            resumed: its publisher goes on with a stream that it began elsewhere, or before, and may use the reserve.
        """
        if is_reserved(name) and not force:
            return Refusal(Cause.RESERVED)
        if self.read_only is not None and (refused := self._refuse_writes(name)) is not None:
            return refused
        channel = self.channels.get(name)
        if channel is not None and not channel.ended:
            if not isinstance(channel, OwnedChannel):
                return channel.refuse(Cause.REPLICA)
            channel.name_content_type(content_type, now)
            return channel
        if not (self.autocreate or force) or (self.owns is not None and not self.owns(name)):
            return self._missing(name)
        if self.shutting_down:
            return Refusal(Cause.SHUTDOWN, come_back_s=self.come_back_s)
        if self.epochs is not None and self._next_epoch(name) is None:
            return Refusal(Cause.REPLICA)
        if self.storage is not None and self.storage.refuses and not force:
            return Refusal(Cause.STORAGE)
        join = not (force or resumed)
        if channel is None and not is_reserved(name) and not self.capacities.channels.admits(join=join):
            return Refusal(Cause.LIMIT, limit=Limit.CHANNELS)
        if join and not self.capacities.connections.joinable:
            return Refusal(Cause.LIMIT, limit=Limit.CONNECTIONS)
        channel = self._create(name, content_type, now)
        self.faults.deliver()
        return channel

    def restore(self, restored: Restored, now: float) -> OwnedChannel | Copy:
        """Bring a channel back after a restart, before the first request. Its closed segments are in storage.

        Segments below the head are final: a late POST for one of them gets 409. A publisher goes on at the head, or
        further on, where its numbers are by now.
        """
        channel = self._add(restored.name, restored.epoch, restored.content_type, now, copied=restored.copied)
        channel.restored(restored.created_at, restored.next_seq, restored.playlist, restored.lives)
        if restored.drain_s is not None:
            channel.channel_ended(now - self.limits.channel_drain_s + restored.drain_s)
        self._schedule_next(channel)
        return channel

    def replicate(self, name: str, epoch: int, now: float, *, copied: bool = False) -> Channel:
        """Hold a channel that another server owns: its facts and bytes are applied to what is returned.

        Another channel of the name that has ended is forgotten. Its owner counts it among the channels of the server.

        Args:
            copied: as one of this server's channels, which it counts, lists and stores (:class:`Copy`).

        Raises:
            LocalProtocolError: there is one that has not; its readers and writers would be lost.
        """
        if (before := self.channels.get(name)) is not None and not before.ended:
            raise LocalProtocolError(f"{before!r} is here, and has not ended")
        self._make_room(name, counts=copied and not is_reserved(name))
        if copied:
            self._tombstones.pop(name, None)
            channel: Channel = self._copy(name, epoch, "", now, NO_LIFE)
        else:
            channel = Channel(name, epoch, "", now, NO_LIFE, self.limits, self.budget, self.faults)
        self.channels[name] = channel
        if self._reading is not None:
            channel.reading = self._reading(name)
        return channel

    def end_copy(self, copy: Copy, now: float, reason: EndReason) -> None:
        """A channel is not copied any more: here it is over, and drains."""
        if not copy.ended:
            copy.abandon(now, reason)
            self.let_drain(copy)
            self.faults.deliver()

    def promote(self, copy: Copy, now: float) -> OwnedChannel:
        """Own a channel of which this server has a copy: it goes on in the next epoch, with all that is here of it.

        Its former owner may be lost, or may still go on in its epoch: nobody can mistake one for the other. Readers
        stay: the caller tells them of the new object. They see the same numbering go on.

        Raises:
            LocalProtocolError: it is not here, or has ended.
        """
        if self.channels.get(copy.name) is not copy or copy.ended:
            raise LocalProtocolError(f"{copy!r} is no copy that can be promoted")
        name, epoch = copy.name, copy.epoch + 1
        life = copy.life if copy.life.name else self._life(epoch)  # it has none if its owner was away since a restart
        if self.storage is not None and copy.retained is not None:
            self.storage.promote(name, epoch)
        copy.announce_end(now, EndReason.MOVED)
        return self._take_over(copy, epoch, life, now)

    def let_drain(self, channel: Channel) -> None:
        """A channel that another server owns has ended here: it is forgotten when its drain is over."""
        if self.channels.get(channel.name) is channel:
            self._schedule_next(channel)

    def let_go(self, channel: Channel) -> None:
        """Forget a channel that another server owns, where it may go on: no reader is told that it has ended."""
        if self.channels.get(channel.name) is channel:
            self._forget(channel)
            del self.channels[channel.name]

    def give_up(self, channel: OwnedChannel, now: float) -> None:
        """Forget a channel that goes on at another server in its epoch. The server hears that it has ended here.

        The caller has sent its readers and publishers away: those that are left are told that it has ended.

        Raises:
            LocalProtocolError: it is not owned here, or has ended.
        """
        if self.channels.get(channel.name) is not channel or channel.ended:
            raise LocalProtocolError(f"{channel!r} is no channel of this server that goes on")
        channel.followers = ()  # the other server tells them
        channel.end(EndReason.MOVED, now)
        self._forget(channel)
        del self.channels[channel.name]
        if _counts(channel):
            self.capacities.channels.give_back()
        self.faults.deliver()

    def disown(self, channel: OwnedChannel, now: float) -> Channel:
        """Hold a channel that goes on at another server in its epoch. The server hears that it has ended here.

        Its readers stay: the caller tells them of the new object.

        Raises:
            LocalProtocolError: it is not owned here, or has ended, or a segment has bytes and is not closed.
        """
        name = channel.name
        is_whole = all(segment.state is WAITING and segment.writer is None for segment in channel.unclosed)
        if self.channels.get(name) is not channel or channel.ended or not is_whole:
            raise LocalProtocolError(f"{channel!r} is no channel of this server that may move as it is")
        channel.followers = ()  # the other server tells them
        channel.announce(ChannelEnded, now, channel.next_seq, EndReason.MOVED)
        held = Channel(name, channel.epoch, "", now, NO_LIFE, self.limits, self.budget, self.faults)
        channel.move_to(held)
        self._agenda.clear(channel)
        self.channels[name] = held
        if _counts(channel):
            self.capacities.channels.give_back()
        self.faults.deliver()
        return held

    def adopt(self, channel: Channel, now: float) -> OwnedChannel:
        """Own a channel that another server has owned and that is held here: it goes on in the same epoch.

        The caller has seen to it that nobody else owns it any more. Its readers stay: the caller tells them of the new
        object. Its publishers come back as after a broken connection (:meth:`OwnedChannel.resume`).

        Raises:
            LocalProtocolError: it is not held here, or has ended.
        """
        if self.channels.get(channel.name) is not channel or isinstance(channel, OwnedChannel) or channel.ended:
            raise LocalProtocolError(f"{channel!r} is no channel of another server that goes on here")
        return self._take_over(channel, channel.epoch, channel.life, now)

    def _take_over(self, channel: Channel, epoch: int, life: Life, now: float) -> OwnedChannel:
        """Own a channel that is held here, in this epoch."""
        name = channel.name
        self._tombstones.pop(name, None)
        self._agenda.clear(channel)
        owned = self.channels[name] = self._own(name, epoch, "", now, self._life(epoch))
        channel.move_to(owned)
        owned.life = life
        if _counts(owned) and not _counts(channel):
            self.capacities.channels.take()
        self._store(owned)
        owned.announce(ChannelCreated, owned.created_at, owned.content_type, owned.life.name)
        owned.resume(now)
        self._schedule_next(owned)
        self.faults.deliver()
        return owned

    def forget(self, name: str) -> None:
        """Forget a channel that has ended, and that there ever was one."""
        channel = self.channels.get(name)
        if channel is not None and channel.ended:
            self._bury(channel, 0.0)
        self._tombstones.pop(name, None)

    def remember_ended(self, name: str, epoch: int, head: int, until: float) -> None:
        """Remember, after a restart, that a channel has ended."""
        self._tombstones[name] = Tombstone(epoch, head, until)

    def end(
        self,
        name: str,
        now: float,
        reason: EndReason = EndReason.DELETED,
        *,
        force: bool = False,
        if_idle_beside: Identity | None = None,
    ) -> Refusal | None:
        """End a channel. A channel that is missing, or has ended already, is a refusal.

        Args:
            if_idle_beside: refuse if a client other than this one publishes to it.
        """
        if is_reserved(name) and not force:
            return Refusal(Cause.RESERVED)
        if self.read_only is not None and not force and (refused := self._refuse_writes(name)) is not None:
            return refused
        channel = self.live(name)
        if channel is None:
            return self._missing(name)
        if if_idle_beside is not None:
            refusal = channel.refuse_beside_others(if_idle_beside, None, now)
            if refusal is not None:
                return refusal
        self._end(channel, now, reason)
        self.faults.deliver()
        return None

    def drop(self, channel: OwnedChannel) -> None:
        """Forget a channel that cannot be ended, because a fault of the server left its state unsound.

        Its readers are cut off. Its writers keep writing to segments that no reader will find.
        """
        if self.channels.get(channel.name) is not channel:
            return
        channel.ended = True  # and no function of its state is called any more: the state is unsound
        del self.channels[channel.name]
        if not is_reserved(channel.name):
            self.capacities.channels.give_back()
        channel.announce(ChannelEnded, channel.active_at, channel.next_seq, EndReason.FAULT)
        for segment in list(channel.segments.values()):
            segment.evict_readers(self.faults)
        self.faults.deliver()
        channel.window.clear()

    def live(self, name: str) -> OwnedChannel | None:
        """The channel of that name, unless it has ended or another server owns it."""
        channel = self.channels.get(name)
        return channel if isinstance(channel, OwnedChannel) and not channel.ended else None

    def refuse_other_epoch(self, name: str, epoch: int) -> Refusal | None:
        """The refusal of a request that is for one epoch of a channel only, unless that epoch goes on."""
        channel, tombstone = self.channels.get(name), self._tombstones.get(name)
        if channel is not None and channel.epoch != epoch:
            return channel.refuse(Cause.EPOCH)
        if tombstone is not None and tombstone.epoch != epoch:
            return Refusal(Cause.EPOCH, head=tombstone.head, epoch=tombstone.epoch)
        return self._missing(name) if channel is None or channel.ended else None

    def close_segment(
        self, name: str, seq: int, now: float, *, truncate: bool = False, leaver: Identity | None = None
    ) -> Refusal | None:
        """Close one segment, as truncated if ``truncate``; closing a closed one changes nothing.

        Args:
            leaver: this client publishes no more to the channel.
        """
        if is_reserved(name):
            return Refusal(Cause.RESERVED)
        if self.read_only is not None and (refused := self._refuse_writes(name)) is not None:
            return refused
        channel = self.live(name)
        if channel is None:
            return self._missing(name)
        refusal = channel.close_segment(seq, now, truncate=truncate)
        if leaver is not None:
            channel.publishers.dismiss(leaver)
        self.faults.deliver()
        return refusal

    # Reading.

    def find(self, name: str) -> Channel | Refusal:
        """The channel of that name, an ended one in its drain included."""
        return self.channels.get(name) or self._missing(name)

    def followed(self, name: str) -> OwnedChannel | Copy | Refusal:
        """The channel whose feed a client asks for, if it is one of this server's, and takes one more reader."""
        if self.shutting_down:
            return Refusal(Cause.SHUTDOWN, come_back_s=self.come_back_s)
        channel = self.channels.get(name)
        if channel is None:
            return self._missing(name)
        if channel.ended:
            return channel.refuse(Cause.ENDED)._replace(recently_ended=True)
        if not isinstance(channel, OwnedChannel | Copy):
            return channel.refuse(Cause.REPLICA)
        if not channel.settled:
            text = "This server copies the channel, and waits for its source to tell how the channel stands"
            return channel.refuse(Cause.MIRROR)._replace(detail=text)
        limit = self._limit_of_readers(channel, join=False)
        return channel if limit is None else channel.refuse(Cause.LIMIT)._replace(limit=limit)

    def feed_begun(self, channel: Channel) -> None:
        """Count a client that follows a channel among its readers."""
        self.capacities.readers.take()
        channel.reading.take()

    def feed_over(self, channel: Channel) -> None:
        """Count it out."""
        self.capacities.readers.give_back()
        channel.reading.give_back()

    def resolve(self, name: str, seq: int) -> Resolution:
        """Find what a GET of ``seq`` is answered now (docs/reference/protocol.md, section 4).

        A reader that names a seq goes on with what it reads; one that counts from the head (``seq`` < 0) is new.
        """
        channel = self.channels.get(name)
        if channel is None:
            return self._missing(name)
        readers, reading = self.capacities.readers, channel.reading
        # The cheap question first: every GET comes this way.
        if seq < 0 or readers.full or reading.full:
            limit = self._limit_of_readers(channel, join=seq < 0)
            if limit is not None:
                return channel.refuse(Cause.LIMIT)._replace(limit=limit)
        resolution = channel.resolve(seq)
        if self.shutting_down and isinstance(resolution, Upcoming):
            channel.release(resolution.segment)
            return channel.refuse(Cause.SHUTDOWN, resolution.segment.seq)._replace(come_back_s=self.come_back_s)
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
        claim: Life | None = None,
        client: Identity = ANONYMOUS,
        if_idle: bool = False,
        payer: str | None = None,
    ) -> Writer[OwnedChannel] | AlreadyStored | Refusal:
        """Give out the right to write a segment, creating the channel where that is allowed.

        A publisher of a live channel goes on, as does one that resumes its numbering (seq > 0) on a server that does
        not know the channel; any other is new.

        During the drain of an ended channel only a *beginning* starts its next epoch: seq 0, or a reset. Any
        other POST is a latecomer of the ended epoch (docs/reference/protocol.md, section 5).
        """
        if self.shutting_down:
            return Refusal(Cause.SHUTDOWN, come_back_s=self.come_back_s)
        if self.storage is not None and self.storage.refuses:
            return Refusal(Cause.STORAGE)
        if is_reserved(name):
            return Refusal(Cause.RESERVED)
        if self.read_only is not None and (refused := self._refuse_writes(name)) is not None:
            return refused
        channel = self.channels.get(name)
        if channel is not None and channel.ended and seq != 0 and not reset:
            return channel.refuse(Cause.ENDED, seq)._replace(recently_ended=True)
        live = channel if isinstance(channel, OwnedChannel) and not channel.ended else None
        join = live is None and seq <= 0
        if not self.capacities.publishers.admits(join=join) and not self._is_written(channel, seq):
            return Refusal(Cause.LIMIT, limit=Limit.PUBLISHERS)
        found = live or self.create(name, content_type, now, resumed=seq > 0)
        if isinstance(found, Refusal):
            return found
        result = found.reserve(
            seq,
            owner,
            next(self._serials),
            now,
            reset=reset,
            key=key,
            attempt=attempt,
            claim=claim,
            client=client,
            if_idle=if_idle,
            payer=None if payer is None else self.payers.of(payer),
        )
        if isinstance(result, Writer):
            result.count(self.capacities.publishers)
            found.name_content_type(content_type, now)
        if self.faults.noted:
            self.faults.deliver()
        return result

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

    # Memory.

    def give(self, size: int, *, asks: int, short: bool) -> None:
        """Give memory to other workers of the server; see :meth:`Budget.give`."""
        self.budget.give(size, asks=asks, short=short)
        self.faults.deliver()

    # Time.

    def next_deadline(self) -> float | None:
        """When :meth:`expire` should be called next: never later than something is due. Amortised O(1).

        It may be earlier, if something else has done meanwhile what was due; then :meth:`expire` finds nothing to do.
        """
        tombstones = (tombstone.until for tombstone in islice(self._tombstones.values(), 1))
        return earliest(self._agenda.next, *tombstones)

    def expire(self, now: float) -> None:
        """Do all that is due: skips, truncations, evictions, idle channels, drains, tombstones."""
        while (channel := self._agenda.pop(now)) is not None:
            self._expire_channel(channel, now)
        while self._tombstones:
            name, tombstone = next(iter(self._tombstones.items()))
            if tombstone.until > now and len(self._tombstones) <= self.limits.tombstones:
                break
            del self._tombstones[name]
        self.faults.deliver()

    def totals(self) -> Totals:
        """Sums over all channels, for metrics: cheaper than a picture of each."""
        live = draining = segments = writing = preconnected = orphaned = waiting = audience = 0
        for channel in self.channels.values():
            owned = isinstance(channel, OwnedChannel)  # else its owner counts its publishers
            audience += channel.audience
            live += channel.belongs and not channel.ended
            draining += channel.belongs and channel.ended
            segments += len(channel.window)
            for segment in channel.unclosed:
                if segment.state is WAITING:
                    waiting += len(segment.cursors)
                    preconnected += segment.writer is not None
                elif segment.writer is not None:
                    writing += 1
                else:
                    orphaned += owned
        return Totals(live, draining, segments, writing, preconnected, orphaned, waiting, audience)

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
        """Whether the segment has a writer, so that a publisher that takes it over is not one more."""
        segment = None if channel is None else channel.segments.get(seq)
        return segment is not None and segment.writer is not None

    def last_epoch(self, name: str) -> int:
        """The highest epoch of this name that is known here; 0 if there was none."""
        before = self.channels.get(name) or self._tombstones.get(name)
        last = 0 if before is None else before.epoch
        return last if self.storage is None else max(last, self.storage.last_epoch(name))

    def _next_epoch(self, name: str) -> int | None:
        """The epoch of the next channel of this name; ``None`` if it may not begin."""
        last = self.last_epoch(name)
        if self.epochs is None or is_reserved(name):
            return last + 1
        decided = self.epochs(name)
        return decided if decided is not None and decided > last else None

    def _create(self, name: str, content_type: str, now: float) -> OwnedChannel:
        epoch = self._next_epoch(name)
        assert epoch is not None, "it may begin"
        self._tombstones.pop(name, None)
        channel = self._add(name, epoch, content_type, now)
        channel.announce(ChannelCreated, now, content_type, channel.life.name)
        self._schedule_next(channel)
        return channel

    @overload
    def _add(self, name: str, epoch: int, content_type: str, now: float) -> OwnedChannel: ...
    @overload
    def _add(self, name: str, epoch: int, content_type: str, now: float, *, copied: bool) -> OwnedChannel | Copy: ...

    def _add(
        self, name: str, epoch: int, content_type: str, now: float, *, copied: bool = False
    ) -> OwnedChannel | Copy:
        self._make_room(name, counts=not is_reserved(name))
        make = self._copy if copied else self._own
        channel: OwnedChannel | Copy = make(name, epoch, content_type, now, self._life(epoch))
        self.channels[name] = channel
        if self._reading is not None:
            channel.reading = self._reading(name)
        if isinstance(channel, OwnedChannel):
            self._store(channel)
        return channel

    def _life(self, epoch: int) -> Life:
        return Life(f"{self.instance}.{epoch}") if self.instance else NO_LIFE

    def _copy(self, name: str, epoch: int, content_type: str, now: float, life: Life) -> Copy:
        return Copy(
            name,
            epoch,
            content_type,
            now,
            limits=self.limits,
            budget=self.budget,
            journal=self.journal,
            store=self._store,
            life=life,
        )

    def _own(self, name: str, epoch: int, content_type: str, now: float, life: Life) -> OwnedChannel:
        return OwnedChannel(
            name,
            epoch,
            content_type,
            now,
            limits=self.limits,
            budget=self.budget,
            journal=self.journal,
            schedule=self._schedule,
            life=life,
        )

    def _store(self, channel: OwnedChannel | Copy) -> None:
        if self.storage is not None and not is_reserved(channel.name):
            channel.retained = self.storage.begin(channel)

    def _make_room(self, name: str, *, counts: bool) -> None:
        """A channel of this name is about to begin: let go of the one before, and count the new one."""
        before = self.channels.get(name)
        if before is not None:
            self._forget(before)
        if counts and not _counts(before):
            self.capacities.channels.take()
        elif not counts and _counts(before):
            self.capacities.channels.give_back()

    def _end(self, channel: OwnedChannel, now: float, reason: EndReason) -> None:
        channel.end(reason, now)
        if self.limits.channel_drain_s <= 0:
            self._bury(channel, now)

    def _bury(self, channel: Channel, now: float) -> None:
        """The drain is over: the name is free again."""
        self._forget(channel)
        del self.channels[channel.name]
        if _counts(channel):
            self.capacities.channels.give_back()
        self._tombstones[channel.name] = Tombstone(channel.epoch, channel.next_seq, now + self.limits.tombstone_s)
        if len(self._tombstones) > self.limits.tombstones:
            self._tombstones.popitem(last=False)

    def _forget(self, channel: Channel) -> None:
        """An epoch of a channel is over; the segments that it has evicted still count."""
        channel.forget()
        self._agenda.clear(channel)
        for why, n in channel.window.evicted.items():
            self._evicted[why] += n

    def _refuse_writes(self, name: str) -> Refusal | None:
        """The refusal of a request that would change a channel whose owner is another server, if it is."""
        assert self.read_only is not None, "the caller has looked"
        if is_reserved(name) or not (detail := self.read_only(name)):
            return None
        channel = self.channels.get(name)
        refusal = Refusal(Cause.MIRROR) if channel is None else channel.refuse(Cause.MIRROR)
        return refusal._replace(detail=detail)

    def _missing(self, name: str) -> Refusal:
        if (channel := self.channels.get(name)) is not None:
            if not channel.ended:
                return channel.refuse(Cause.REPLICA)
            return channel.refuse(Cause.NOT_FOUND)._replace(recently_ended=True)
        if self.owns is not None and not self.owns(name):
            return Refusal(Cause.REPLICA)
        if (tombstone := self._tombstones.get(name)) is not None:
            return Refusal(Cause.NOT_FOUND, head=tombstone.head, epoch=tombstone.epoch, recently_ended=True)
        return Refusal(Cause.NOT_FOUND)

    def _expire_channel(self, channel: Channel, now: float) -> None:
        if channel.drain_until is not None and channel.drain_until <= now:
            self._bury(channel, now)
            return
        if isinstance(channel, OwnedChannel):
            channel.expire(now)
            if (idle_at := self._idle_at(channel)) is not None and idle_at <= now:
                self._end(channel, now, EndReason.IDLE)
        if self.channels.get(channel.name) is channel:
            self._schedule_next(channel)

    def _idle_at(self, channel: Channel) -> float | None:
        exempt = channel.ended or is_reserved(channel.name) or not isinstance(channel, OwnedChannel)
        return None if exempt else channel.active_at + self.limits.idle_timeout_s

    def _schedule_next(self, channel: Channel) -> None:
        when = earliest(channel.next_deadline(), self._idle_at(channel))
        if when is not None:
            self._schedule(channel, when)

    def _schedule(self, channel: Channel, when: float) -> None:
        """Look at a channel at ``when``; an earlier time that is already set for it stands."""
        present = self._agenda.times.get(channel)
        if present is None or when < present:
            self._agenda.set(channel, when)


def _counts(channel: Channel | None) -> bool:
    """Whether a channel counts: not the server's own ones, so that a limit of one leaves room for one."""
    return channel is not None and channel.belongs and not is_reserved(channel.name)
