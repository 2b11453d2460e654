"""This server as the destination of a mirror: it holds copies of another server's channels, and can take its place.

**A copy is a channel of this server** (:class:`~tricklecast.app.core.copies.Copy`): readers, lists, metrics and storage
know it as any other; only publishers are refused. Its window comes by the feed. What lies behind comes segment by
segment (:meth:`ServerDestination.insert`), into storage; without a data directory the window is all.

**A feed that begins anew changes nothing for readers.** After a restart of either server, or when the source cannot
tell what is here, the window is told again. What storage has stays, readers that wait go on to wait, and nothing is
written twice. Only another epoch ends the copy.

**Names are not shared.** A channel that began here is never mixed with one of the source that has the same name. Of a
lower epoch it ends, and the copy follows it; otherwise the copy is refused (:class:`NotACopy`), until somebody gives
the channel up (:meth:`ServerDestination.give_up`). Copies give way to what the source has now.

**Promotion** makes each copy a channel of this server, one epoch up, in one step: its row in the data directory gets
the new epoch, and stops to be that of a copy, in one transaction. So after a crash in the middle each channel is either
promoted or a copy, and :meth:`ServerDestination.promote` may be called again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from zlib import crc32

from tricklecast.app.access.rights import matches_any
from tricklecast.app.clock import to_time
from tricklecast.app.core.copies import Copy, OtherChannel
from tricklecast.app.core.facts import EndReason
from tricklecast.app.core.results import Cause, Refusal
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Segment, State
from tricklecast.app.core.state import Channel, SegmentSummary
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.held import keep_all_readers, send_all_away, send_away
from tricklecast.app.data_plane.responses import mirror_reply
from tricklecast.app.data_plane.upload import Upload
from tricklecast.app.mirror.read_only import ReadOnly
from tricklecast.app.mirror.sides import HeldCopy, SourceSegment
from tricklecast.app.replication.records import FeedEnd, FeedError
from tricklecast.app.replication.replica import Replica
from tricklecast.app.storage.archive import Archive, StoredChannel
from tricklecast.app.storage.restore import checksum
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.paths import is_reserved

logger = logging.getLogger("tricklecast.mirror")

FILLED_S: Final = 5.0
"""When no history was added to a copy for this time, the servers that follow it look at its history again."""

SLICE_S: Final = 0.01
"""Channels are promoted for this time, and then others have a turn."""


class NotACopy(TrickleError):
    """There is a channel here that has the name and is no copy, or is one of a later epoch."""


class HeldChannel:
    """The copy of a channel, for one feed after the other (:class:`~tricklecast.app.mirror.sides.Held`)."""

    def __init__(
        self, destination: ServerDestination, name: str, epoch: int, closed: Callable[[HeldCopy], None]
    ) -> None:
        plane = destination.plane
        self._destination, self._name, self._epoch = destination, name, epoch
        self._replica = Replica(
            name,
            plane.registry,
            plane.clock,
            to_time,
            closed=lambda seq, size, crc: closed(HeldCopy(seq, size, crc)),
            fresh=self._begin_anew,
        )
        if (copy := destination.copy(name)) is not None:
            self._replica.take(copy, copy.told_by)

    @property
    def live(self) -> bool:
        """Whether everything is here that the source had when the present feed began."""
        return self._replica.live

    def hello(self) -> bytes:
        """Begin with a new feed: what is sent to the source, once."""
        return self._replica.hello()

    def receive(self, data: bytes) -> FeedEnd | None:
        """Apply what has come; why the source ends the feed, if it does.

        Raises:
            FeedError: this is no feed, or it does not go on from what is here: the next one begins with all.
            OutOfMemory: there is no memory for its bytes.
        """
        try:
            return self._replica.receive(data)
        except TrickleError as error:
            self._replica.instance = ""  # what is here may be half of a step: all of its window comes
            if isinstance(error.__cause__, OtherChannel):
                self._destination.end(self._name)
            raise
        finally:
            if isinstance(copy := self._replica.channel, Copy):
                copy.told_by = self._replica.instance

    def _begin_anew(self, epoch: int) -> Channel:
        if epoch != self._epoch:
            raise FeedError(f"{self._name!r} is of epoch {epoch} by now")
        registry, now = self._destination.plane.registry, self._destination.plane.clock()
        if (copy := self._destination.copy(self._name)) is None:
            return registry.replicate(self._name, epoch, now, copied=True)
        copy.begin_again(now)
        registry.faults.deliver()
        return copy


class ServerDestination:
    """This server, as a mirror sees it (:class:`~tricklecast.app.mirror.sides.Destination`).

    Args:
        plane: of this server. archive: its storage, if it has any.

    Attributes:
        plane: as given.
        read_only: what is closed to publishers.
        lost: called with name, epoch and seq of a segment that was inserted, if it turns out that it cannot be kept.
        expired: called with name, epoch and seq of a segment of a copy that retention has removed.
        replaces: whether channels of this server make way for copies of the same name.
    """

    def __init__(self, plane: DataPlane, archive: Archive | None) -> None:
        self.plane = plane
        self._archive = archive
        self.read_only = ReadOnly(plane.registry, None if archive is None else archive.database.folder)
        self.lost: Callable[[str, int, int], None] = _ignore
        self.expired: Callable[[str, int, int], None] = _ignore
        self.replaces = False
        self._handing_over: asyncio.TimerHandle | None = None
        self._filling: dict[str, asyncio.TimerHandle] = {}  # by name, copies that are followed, and get history
        if archive is not None:
            archive.expired = self._expired

    # What is here.

    @property
    def stores(self) -> bool:
        """Whether it keeps segments behind the window of a channel."""
        return self._archive is not None

    @property
    def storage_problem(self) -> str:
        """Why the data directory cannot be written now; ``""`` if it can, or there is none."""
        failed = None if self._archive is None else self._archive.failed
        return "" if failed is None else f"the data directory cannot be written: {failed}"

    def copy(self, name: str) -> Copy | None:
        """The copy of that name, unless it has ended."""
        channel = self.plane.registry.channels.get(name)
        return channel if isinstance(channel, Copy) and not channel.ended else None

    def channels(self) -> Mapping[str, int]:
        """The epochs of the copied channels that live here, by name."""
        return {copy.name: copy.epoch for copy in self._copies()}

    def own_channels(self) -> Mapping[str, int]:
        """The epochs of channels of this server that live and are no copies, by name."""
        owned = (one for one in self.plane.registry.channels.values() if isinstance(one, OwnedChannel))
        return {one.name: one.epoch for one in owned if not (one.ended or is_reserved(one.name))}

    def copies(self, name: str, epoch: int) -> Iterable[HeldCopy]:
        """The closed segments that are here."""
        stored, copy = self._stored(name, epoch), self._copy_of(name, epoch)
        found: dict[int, HeldCopy] = {}
        if copy is not None:
            found = {one.seq: HeldCopy(one.seq, one.size, None) for one in copy.segments.values() if one.closed}
        if stored is not None:
            for seq, tap in stored.taps.items():
                if tap.segment.closed:
                    found[seq] = HeldCopy(seq, tap.segment.size, None)
            found |= {seq: HeldCopy(seq, entry.size, entry.crc) for seq, entry in stored.entries.items()}
        return found.values()

    def unfinished(self) -> Iterator[tuple[str, int, int, int]]:
        """Name, epoch, seq and size of segments that are being written at the source."""
        for copy in self._copies():
            for segment in copy.unclosed:
                if segment.size:
                    yield copy.name, copy.epoch, segment.seq, segment.size

    # What comes.

    def hold(self, name: str, epoch: int, closed: Callable[[HeldCopy], None]) -> HeldChannel:
        """The copy of a channel, of this epoch, for one feed after the other. An older epoch of it ends with that.

        Args:
            closed: told of each segment that has closed here, checked against the checksum that the feed has told.

        Raises:
            NotACopy: a channel of this server stands in its way.
        """
        registry = self.plane.registry
        copy, last = self.copy(name), registry.last_epoch(name)
        if copy is None or copy.epoch != epoch:
            is_other = last >= epoch and not self._were_copies(name, epoch)
            if is_other and not self.replaces:
                text = f"this server has had a channel {name!r} up to epoch {last}"
                raise NotACopy(f"{text}, which is no copy of epoch {epoch}")
            if is_other:
                self.give_up(name)
            elif last > epoch:
                logger.warning("the source counts the epochs of %r anew: its copies up to epoch %d go", name, last)
                self.give_up(name, epoch)
            self._end(name, EndReason.MOVED)
        return HeldChannel(self, name, epoch, closed)

    def keeps(self, name: str, epoch: int, segment: SourceSegment) -> bool:
        """Whether a segment from behind the window would stay here, if it was inserted now; retention decides."""
        if self._archive is None or (stored := self._stored(name, epoch)) is None:
            return True
        return self._archive.would_stay(stored, segment.seq, segment.size, segment.closed_us)

    def insert(self, name: str, epoch: int, segment: SourceSegment, body: Sequence[bytes]) -> bool:
        """Show a segment from behind the window; ``False`` if there is no room for it, or it is here already.

        Raises:
            OSError: the disk does not take it.
        """
        stored = self._stored(name, epoch)
        if self._archive is None or stored is None or stored.channel is None:
            return False
        seq, state, size, _, opened_us, closed_us = segment
        about = SegmentSummary(seq, state, size, opened_us, closed_us)
        done = self._archive.insert(stored, about, body, partial(self._lost, name, epoch, seq))
        if done and stored.channel.followers:
            self._fills(name)
        return done

    def end(self, name: str) -> None:
        """The channel has ended at the source, or is not mirrored any more."""
        if (copy := self.copy(name)) is not None:
            self.plane.registry.end_copy(copy, self.plane.clock(), EndReason.MOVED)

    def give_up(self, name: str, epoch: int = 1) -> None:
        """Forget a channel of this server with its segments, from an epoch on, so that a copy may have that one."""
        self._end(name, EndReason.MOVED)
        self.plane.registry.forget(name)
        if self._archive is not None:
            self._archive.forget(name, epoch)

    # Bytes, again.

    async def checksum(self, name: str, epoch: int, seq: int) -> int | None:
        """CRC-32 of the bytes of a segment, read again; ``None`` if it is not here any more."""
        stored, copy = self._stored(name, epoch), self._copy_of(name, epoch)
        if stored is not None and self._archive is not None and (entry := stored.entries.get(seq)) is not None:
            if not entry.size:
                return 0
            stored.hold(entry)
            try:
                place = stored.path_of(entry), entry.start, entry.size
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._archive.reads, checksum, *place)
            finally:
                stored.let_go(entry, entry.size)
        segment = None if stored is None or seq not in stored.taps else stored.taps[seq].segment
        if segment is None and copy is not None:
            segment = copy.segments.get(seq)
        return None if segment is None or not segment.closed else _crc(segment)

    def remove(self, name: str, epoch: int, seq: int) -> None:
        """Forget a segment whose bytes are wrong; it will be copied again."""
        stored, copy = self._stored(name, epoch), self._copy_of(name, epoch)
        if self._archive is not None and stored is not None:
            self._archive.remove(stored, seq)
        if copy is not None:
            copy.remove(seq)

    # Taking the source's place.

    async def promote(self, names: Iterable[str] | None = None) -> int:
        """Own channels of which this server has copies, one epoch up, in slices; returns how many.

        Args:
            names: of channels that :meth:`mirror` does not select any more; ``None``: all. Then the mirror is over: new
                channels may begin here at once.

        Raises:
            OSError: storage has not kept it; until it has, a restart finds copies.
        """
        plane, registry = self.plane, self.plane.registry
        if names is None:
            self.read_only.stop()
            waiting = [copy.name for copy in self._copies()]
        else:
            waiting = [*names]
        promoted = 0
        while waiting:
            began, heirs = plane.clock(), dict[Channel, Channel]()
            while waiting and plane.clock() - began < SLICE_S:
                name = waiting.pop()
                if (copy := self.copy(name)) is not None:
                    heirs[copy] = registry.promote(copy, plane.clock())
            keep_all_readers(plane, heirs)
            promoted += len(heirs)
            await asyncio.sleep(0)
        if (archive := self._archive) is not None:
            await archive.flush()
            if archive.failed is not None:
                raise OSError(f"the data directory does not know yet what was promoted: {archive.failed}")
        return promoted

    def mirror(self, source: str, selected: Callable[[str], bool]) -> None:
        """Refuse publishers of these channels from now on, and send away those that are here."""
        self.read_only.mirror(source, selected)
        self._refuse_publishers()

    def hand_over(self, heir: str, patterns: Sequence[str], within_s: float) -> tuple[int, dict[str, tuple[int, int]]]:
        """Refuse new segments for a time, since another server is about to take this one's place.

        Those that have a byte may end. Who has only connected is sent away.

        Args:
            within_s: for how long; 0: not any more.

        Returns:
            How many segments are open; and, if none is, the epoch and the head of each channel that is handed over.
        """
        if self._handing_over is not None:
            self._handing_over.cancel()
        self.read_only.hand_over(*((heir, tuple(patterns)) if within_s else ()))
        self._handing_over = asyncio.get_running_loop().call_later(within_s, self.read_only.hand_over)
        channels = [self.plane.registry.channels[name] for name in self.own_channels() if matches_any(patterns, name)]
        for channel in channels:
            assert isinstance(channel, OwnedChannel), "it is this server's own"
            self._refuse(channel, but=State.OPEN)
        opened = sum(segment.state is State.OPEN for channel in channels for segment in channel.unclosed)
        return opened, {} if opened else {channel.name: (channel.epoch, channel.next_seq) for channel in channels}

    def has_all(self, name: str, epoch: int, head: int) -> bool:
        """Whether the copy of a channel in which no segment is open has come to its head, at least."""
        copy = self._copy_of(name, epoch)
        return copy is not None and copy.next_seq >= head and not any(one.size for one in copy.unclosed)

    def depose(self, by: str, patterns: Sequence[str] = ("*",)) -> None:
        """Refuse publishers, since another server has taken this one's place; its channels stay readable.

        Readers that wait are told to ask again: here nothing more will come, and who knows both servers asks the other.

        Raises:
            OSError: the data directory does not take it; it holds for this start of the server only.
        """
        try:
            self.read_only.depose(by, patterns)
        finally:
            self._refuse_publishers()
            channels = self.plane.registry.channels
            deposed = [channels[name] for name in self.own_channels() if matches_any(patterns, name)]
            send_all_away(self.plane, deposed, cut=False)

    # Mechanics.

    def _copies(self) -> Iterator[Copy]:
        channels = self.plane.registry.channels.values()
        return (one for one in channels if isinstance(one, Copy) and not one.ended)

    def _copy_of(self, name: str, epoch: int) -> Copy | None:
        copy = self.copy(name)
        return copy if copy is not None and copy.epoch == epoch else None

    def _stored(self, name: str, epoch: int) -> StoredChannel | None:
        stored = None if self._archive is None else self._archive.latest.get(name)
        return stored if stored is not None and stored.copied and stored.row.epoch == epoch else None

    def _were_copies(self, name: str, epoch: int) -> bool:
        """Whether all channels of this name, from an epoch on, were copies."""
        stored = [] if self._archive is None else self._archive.epochs_of(name, epoch)
        is_own = isinstance(self.plane.registry.channels.get(name), OwnedChannel)
        return all(one.copied for one in stored) and not (is_own and not stored)

    def _end(self, name: str, reason: EndReason) -> None:
        """End a channel whose next epoch is about to begin here: readers that wait are told to ask again."""
        plane = self.plane
        if (channel := plane.registry.channels.get(name)) is not None:
            send_away(plane, channel, cut=False)
        if (owned := plane.registry.live(name)) is not None:
            self._refuse(owned)
            plane.registry.end(name, plane.clock(), reason, force=True)
        elif (copy := self.copy(name)) is not None:
            plane.registry.end_copy(copy, plane.clock(), reason)

    def _refuse_publishers(self) -> None:
        for channel in list(self.plane.registry.channels.values()):
            if isinstance(channel, OwnedChannel) and not is_reserved(channel.name):
                self._refuse(channel)

    def _refuse(self, owned: OwnedChannel, but: State | None = None) -> None:
        """Send those away that write to a channel, if nobody may any more, but to segments in this state."""
        if not (detail := self.read_only.why(owned.name)):
            return
        refusal = Refusal(Cause.MIRROR, head=owned.next_seq, epoch=owned.epoch, detail=detail)
        reply = mirror_reply(refusal, self.plane.jitter)
        for segment in owned.unclosed:
            writer = None if segment.state is but else segment.writer
            if writer is not None and isinstance(upload := writer.owner, Upload):
                upload.send_away(reply)

    def _fills(self, name: str) -> None:
        """History is added to a copy that others follow: no feed tells of that."""
        if (timer := self._filling.pop(name, None)) is not None:
            timer.cancel()
        self._filling[name] = asyncio.get_running_loop().call_later(FILLED_S, self._filled, name)

    def _filled(self, name: str) -> None:
        del self._filling[name]
        if (copy := self.copy(name)) is not None:
            self.plane.feeds.begin_anew(copy)

    def _expired(self, stored: StoredChannel, seq: int) -> None:
        if stored.copied:
            self.expired(stored.row.name, stored.row.epoch, seq)

    def _lost(self, name: str, epoch: int, seq: int) -> None:
        logger.warning("segment %d of %r (epoch %d) was copied and cannot be kept", seq, name, epoch)
        self.lost(name, epoch, seq)


def _crc(segment: Segment) -> int:
    crc = 0
    for chunk in segment.payload():
        crc = crc32(chunk, crc)
    return crc


def _ignore(name: str, epoch: int, seq: int) -> None:
    """Nobody wants to know."""
