"""The archive: the event loop's side of storage, and the index of all stored segments.

**Gather, write, tell.** The archive subscribes to the journal's facts, and puts a tap on every open segment: a cursor
like a reader's, except that publishers are not paced by it. Facts and bytes since the last batch make the next one,
which :class:`~app.storage.database.Database` writes in a thread of its own. Channels go on meanwhile. When the batch is
written, the publishers that wait for it are answered (group commit: a slow disk makes batches larger, not more
numerous). So a publisher waits for the disk only with ``--ack journal`` or ``fsync``, and a reader never does.

**Each segment is in one place.** A segment has a tap until all of its bytes are in the directory; then it has an entry,
a :class:`~app.storage.replay.StoredSegment`. Until then it stays in memory, so a reader finds it in the window, behind
the tap or as an entry. A segment is one piece of one file: no file takes bytes of two segments at a time, and a file
takes no further segment once it has reached 16 MiB.

**Memory.** If the disk is too slow and memory is needed, the segment is given up (:meth:`Tap.evict`): its row and bytes
are removed, it is counted, and the log says so. The index in memory has a limit, :data:`MAX_SEGMENTS`.

**Failure.** After an error of the disk storage has failed as a whole, until bytes of segments are written again. The
comment above :meth:`Archive.missed` describes how it goes on. ADR 35 says why a success of SQLite alone is not enough.

**Retention** removes the oldest segments from the index and the database at once. A file is removed when no segment in
it is left and no replay reads it; ``files`` counts both.

**Copies.** A channel of another server of which this one has a copy is stored as the others are, with the times that
its owner told. Segments from behind its window come one by one, in any order (:meth:`Archive.insert`). Each is held in
memory until it is written, and found from the first moment on.

**Stop = crash = restart.** At its end a server writes the batch that is due and nothing else, so
:mod:`app.storage.restore` has one case only.

What was tried and is worse (ADR 22): a second producer of bytes for stored segments (the seam to the live one loses or
doubles bytes), a snapshot beside the log of changes (its number is wrong), aiofiles for writing (a hop per segment).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from heapq import heapify, heappop, heappush, merge
from itertools import count
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from tricklecast.app.clock import to_time, to_us, wall_us
from tricklecast.app.core.copies import Copy
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact, Journal, SegmentClosed, SegmentOpened
from tricklecast.app.core.registry import Registry, Restored
from tricklecast.app.core.segment import COMPLETE, WAITING, Segment, State, encode_frame
from tricklecast.app.core.state import Channel, Lives, SegmentSummary, summarize
from tricklecast.app.core.window import Budget
from tricklecast.app.daemon_thread import DaemonThread
from tricklecast.app.storage.database import (
    MAX_ENDED,
    MAX_FACTS,
    NO_ROOM,
    Append,
    Batch,
    ChannelRow,
    Database,
    FactRow,
    Position,
    SegmentRow,
    ServerStart,
    boot_id,
    unwritten,
)
from tricklecast.app.storage.replay import StoredSegment, pieces_of, replayed
from tricklecast.app.storage.restore import Inventory
from tricklecast.trickle.paths import is_reserved

logger = logging.getLogger("tricklecast.storage")

_P = ParamSpec("_P")
_T = TypeVar("_T")

FILE_BYTES: Final = 16 << 20
"""A file takes no further segment from this size on. Retention removes whole files."""

MAX_SEGMENTS: Final = 500_000
"""Stored segments of all channels. Each takes 0.5 kB of memory for its entry, and 10 µs at the start of the server."""

REPLAYING: Final = 2
"""Replays that read at a time: one for the disk, one for the event loop. A live reader then waits for one piece (64
KiB), however many others replay (measured: benchmarks/durable.py)."""

BEHIND_S: Final = 0.05
"""Changes for which no publisher waits are gathered for this time."""

RETRY_S: Final = 5.0
"""After an error the directory is tried again at this interval."""

END_S: Final = 10.0
"""The deadline of the last batch, when the server ends. It is small, since the disk keeps up all the time."""

LOG_S: Final = 60.0
"""The log tells of given-up segments at most once in this time: a publisher may give_up many a second."""

STALE: Final = 1000
"""``Archive.order`` is tidied when it holds this many removed segments, and more removed ones than present ones."""


class Ack(StrEnum):
    """The moment at which a publisher is answered (``--ack``)."""

    MEMORY = "memory"
    """At once: a crash loses what was written in the last moments."""
    JOURNAL = "journal"
    """When the kernel has the bytes: a crash of the server loses nothing, a crash of the machine may."""
    FSYNC = "fsync"
    """When the disk has the bytes."""
    QUORUM = "quorum"
    """When NATS has the bytes: more than the loss of a server, or of a minority of those of NATS, loses nothing."""


class OnDiskFull(StrEnum):
    """The behaviour of channels while the directory cannot be written (``--on-disk-full``)."""

    MEMORY = "memory"
    """Channels go on in memory. When the directory can be written again, it gets the segments of the windows."""
    REFUSE = "refuse"
    """Nothing may be published until it can be written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The limits of stored segments: the oldest ones are removed as soon as one limit is exceeded.

    Attributes:
        channel_bytes, channel_segments: of one channel. total_bytes: of all channels. age_s: since a segment closed.
    """

    channel_bytes: int = 1 << 30
    channel_segments: int = 100_000
    total_bytes: int = 10 << 30
    age_s: float = 86_400.0


class Tap:
    """The archive's cursor on a segment that is not wholly written yet.

    Attributes:
        channel, segment: the segment, and the channel to which it belongs.
        opened_us, closed_us: when, microseconds since 1970. file, start: where the segment is written.
        done: the number of its frames that are written; size, crc: their bytes, and the CRC-32 of these.
        lost: the segment comes from behind the window (:meth:`Archive.insert`); called if it cannot be kept.
    """

    __slots__ = ("channel", "closed_us", "crc", "done", "file", "lost", "opened_us", "segment", "size", "start")

    def __init__(self, channel: StoredChannel, segment: Segment, file: int, start: int, opened_us: int) -> None:
        self.channel = channel
        self.segment = segment
        self.file = file
        self.start = start
        self.opened_us = opened_us
        self.closed_us: int | None = None
        self.lost: Callable[[], None] | None = None
        self.done = self.size = self.crc = 0

    def wake(self) -> None:
        """Called by the segment: it has more bytes, or it has closed."""
        archive = self.channel.archive
        try:
            archive.dirty[self] = None
            archive.kick()
        except Exception as error:
            archive.missed(error)
            raise

    def evict(self) -> None:
        """Called by the segment: memory is short and the disk is slow, so the archive gives the segment up."""
        self.channel.archive.give_up(self)


class StoredChannel:
    """The stored segments of one epoch of a channel.

    Attributes:
        row: of the channel. known: the directory has the row. channel: ``None`` as soon as it has ended.
        copied: another server owns it, and this one has a copy.
        playlist: the mark of its playlist, as it was written last. lives: its numberings, likewise.
        entries: closed segments in the directory, by seq. seqs: their seqs, ascending. bytes: the sum of their sizes.
        taps: segments that are not wholly written yet, by seq.
        room: files that may take another segment, and their sizes.
    """

    __slots__ = (
        "archive", "bytes", "channel", "copied", "entries", "known", "lives", "playlist", "room", "row", "seqs", "taps",
    )  # fmt: skip

    def __init__(self, archive: Archive, row: ChannelRow, channel: Channel | None = None) -> None:
        self.archive = archive
        self.row = row
        self.known = self.copied = False
        self.playlist = ""
        self.lives: Lives = ()
        self.channel = channel
        self.entries: dict[int, StoredSegment] = {}
        self.seqs: list[int] = []
        self.bytes = 0
        self.taps: dict[int, Tap] = {}
        self.room: list[tuple[int, int]] = []

    def find(self, seq: int) -> Segment | None:
        """Return a segment that has left the window; a stored one is loaded for the one reader that asks."""
        if (tap := self.taps.get(seq)) is not None:
            return tap.segment
        entry = self.entries.get(seq)
        return None if entry is None else replayed(seq, entry, self, self.archive.budget, self.archive.faults)

    def following(self, seq: int) -> int | None:
        """The lowest seq at or above this one that is kept."""
        place = bisect_left(self.seqs, seq)
        stored = self.seqs[place : place + 1]
        return min([*stored, *(one for one in self.taps if one >= seq)], default=None)

    def opener(self, seq: int) -> Callable[[], Iterator[bytes]] | None:
        """A function that opens a segment in the directory for a thread, and reads it in pieces; ``None``: it is gone.

        The caller holds no file: if retention removes it meanwhile, the function raises :exc:`OSError`.
        """
        entry = self.entries.get(seq)
        return None if entry is None else partial(pieces_of, self.path_of(entry), entry)

    def has(self, seq: int, opened_at: float) -> bool:
        """Whether all of the segment is here that got its first byte at this time (without one: that closed then)."""
        found = self.taps.get(seq) or self.entries.get(seq)
        if found is None or found.opened_us != to_us(opened_at):
            return False
        return (found.segment if isinstance(found, Tap) else found).state is COMPLETE or not found.size

    def listed(self, seq: int, since_us: int) -> Iterator[SegmentSummary]:
        """The closed segments from this seq on, ascending, from the first one that closed at this time or later."""
        taps = (summarize(tap.segment, to_us) for one, tap in self.taps.items() if one >= seq and tap.segment.closed)
        to_be_written = sorted(one for one in taps if one.closed_us is not None and one.closed_us >= since_us)
        return merge(self._in_directory(seq, since_us), to_be_written)

    def _in_directory(self, seq: int, since_us: int) -> Iterator[SegmentSummary]:
        place = bisect_left(self.seqs, seq)
        place = bisect_left(self.seqs, since_us, place, key=lambda seq: self.entries[seq].closed_us)
        for at in range(place, len(self.seqs)):
            entry = self.entries[one := self.seqs[at]]
            yield SegmentSummary(one, entry.state, entry.size, entry.opened_us, entry.closed_us, entry.crc)

    @property
    def restored(self) -> Restored:
        """The channel, as it comes back after a restart."""
        row = self.row
        about = to_time(row.created_us), self.playlist, self.lives
        return Restored(row.name, row.epoch, row.content_type, row.next_seq, *about)

    # For replays: see SegmentStore.

    @property
    def turn(self) -> asyncio.Semaphore:
        return self.archive.replaying

    @property
    def thread(self) -> DaemonThread:
        return self.archive.reads

    def path_of(self, entry: StoredSegment) -> Path:
        return self.archive.database.path(self.row.id, entry.file)

    def hold(self, entry: StoredSegment) -> None:
        self.archive.files[self.row.id, entry.file] += 1

    def let_go(self, entry: StoredSegment, read: int) -> None:
        self.archive.counters.replayed += read
        self.archive.release(self, entry.file)

    def damaged(self, seq: int, entry: StoredSegment, why: str) -> None:
        self.archive.damaged(self, seq, entry, why)

    # For the archive.

    def add(self, seq: int, entry: StoredSegment) -> None:
        """Enter a closed segment that is in the directory."""
        self.entries[seq] = entry
        if not self.seqs or seq > self.seqs[-1]:
            self.seqs.append(seq)
        else:
            insort(self.seqs, seq)
        self.bytes += entry.size

    def remove(self, seq: int) -> StoredSegment:
        """Take a segment out of the index."""
        entry = self.entries.pop(seq)
        del self.seqs[bisect_left(self.seqs, seq)]
        self.bytes -= entry.size
        return entry


@dataclass(slots=True)
class StorageCounters:
    """Counters of an archive since the server started.

    Attributes:
        commits: batches that were written; commit_s: the time that this took in all, seconds.
        failures: batches that were not written, and failed attempts to go on after that.
        written: bytes written. replayed: bytes read again for readers.
        lost: segments that will never be in the directory. removed: segments that retention has removed.
        damaged: segments whose bytes do not match their checksums.
    """

    commits: int = 0
    commit_s: float = 0.0
    failures: int = 0
    written: int = 0
    lost: int = 0
    removed: int = 0
    damaged: int = 0
    replayed: int = 0


class Archive:
    """Keeps the channels of a registry, whose storage it is, in a data directory.

    Args:
        inventory: what the directory holds. journal: the registry's, which goes on at the inventory's index.
        budget: the registry's memory, which also holds bytes that are not written yet, and those of replays.
        ack: when publishers are answered. on_full: the behaviour while the directory cannot be written.
        wall_us: the time, microseconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        inventory: Inventory,
        journal: Journal,
        budget: Budget,
        *,
        ack: Ack = Ack.MEMORY,
        on_full: OnDiskFull = OnDiskFull.MEMORY,
        retention: Retention | None = None,
        wall_us: Callable[[], int] = wall_us,
    ) -> None:
        self.database = database
        self.budget = budget
        self.faults = journal.faults
        self.ack = ack
        self.on_full = on_full
        self.retention = retention or Retention()
        self.limit = self.retention.total_bytes  # of this archive; less if it shares the limit with other workers
        self.wall_us = wall_us
        self.failed: str | None = None  # why the directory cannot be written at present; None if it can
        self.dirty: dict[Tap, None] = {}  # taps on segments that have new bytes, or have closed
        self.latest: dict[str, StoredChannel] = {}  # by name, its latest epoch, live or remembered
        self.ended: dict[int, StoredChannel] = {}  # epochs that have ended, by id, in the order of their ends
        self.epochs: dict[str, int] = {}  # the last epoch of each name
        self.index = inventory.stored_index  # of the last fact that is written; no other fact ever gets it
        self.noted = FactRow(0, 0, "", "", 0)  # the last fact that has happened
        self.positions = database.positions()  # by worker, the place up to which the journal has its facts
        self.listeners: list[Callable[[int], None]] = []  # told of the index when it has changed
        self.expired: Callable[[StoredChannel, int], None] | None = None  # told of segments that retention removes
        self.server_starts = inventory.server_starts  # by name, the index up to which facts of the start are kept
        self.counters = StorageCounters(damaged=len(inventory.damaged))
        self._next_channel, self._next_file = inventory.next_channel, inventory.next_file  # ids that were never used
        self.files: dict[tuple[int, int], int] = {}  # by channel and file: segments in it, plus replays that read it
        self.order: deque[tuple[StoredChannel, int]] = deque()  # segments as they closed; removed ones linger
        self.inserted: list[tuple[int, int, StoredChannel, int]] = []  # a heap of the others, by the time they closed
        self._serials = count()
        self.bytes = self.segments = 0  # of all channels
        self._batch = inventory.batch  # the next one
        self._touched: dict[StoredChannel, None] = {}  # channels whose rows have changed since the last batch
        self._waiting: list[Callable[[bool], None]] = []  # told when the next batch is written, or could not be
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None  # calls _write
        self._soon = False  # the timer is for the next turn of the event loop, since a publisher waits
        # The call that the thread makes at present: a batch, or an attempt to go on.
        self._busy: asyncio.Future[None] | asyncio.Future[int] | None = None
        self.replaying = asyncio.Semaphore(REPLAYING)
        # Python waits for neither at its exit: a disk that does not answer must not keep the server.
        self._thread, self.reads = DaemonThread("storage"), DaemonThread("storage reads")
        self._closing = False
        # While the directory has failed:
        self._partly_written: list[tuple[StoredChannel, int, int]] = []  # segments: channel, seq, file
        self._lacking = 0  # segments that the directory lacks, those that were partly written included
        self._lost_before = 0  # counters.lost at the time of the failure
        self._room_left: int | None = None  # half of the bytes for which the last attempt found no room
        self._retrying: asyncio.TimerHandle | None = None  # the next attempt
        self._missed: Exception | None = None  # raised while a change was noted, until storage has failed for it
        # For the log:
        self._unlogged = 0  # segments that were given up since the last line
        self._newest_given_up = 0, ""  # seq and channel of the newest of them
        self._log_at = 0.0  # no further line before this time
        self._journal = journal
        self._enter(inventory)
        journal.subscribe(self._note, ChannelCreated, ChannelEnded, SegmentOpened, SegmentClosed)

    # The start.

    def _enter(self, inventory: Inventory) -> None:
        """Enter the channels and segments that are in the directory."""
        in_order = sorted(inventory.channels, key=lambda row: row.created_us)  # one that has moved has a later id
        channels = {row.id: StoredChannel(self, row) for row in in_order}
        for id, mark in self.database.playlists().items():
            if id in channels:
                channels[id].playlist = mark
        for id, lives in self.database.lives().items():
            if id in channels:
                channels[id].lives = lives
        for id in self.database.copies() & channels.keys():
            channels[id].copied = True
        for stored in channels.values():
            row = stored.row
            if self.epochs.get(row.name, 0) < row.epoch:
                self.latest.pop(row.name, None)  # so that the names come in the order in which these epochs ended
                self.latest[row.name], self.epochs[row.name] = stored, row.epoch
            if row.ended_us is not None:
                self.ended[row.id] = stored
        for segment in inventory.segments:
            assert segment.closed_us is not None, "an inventory has closed segments only"
            place = segment.size, segment.crc, segment.file, segment.start, segment.opened_us
            entry = StoredSegment(State(segment.state), *place, segment.closed_us)
            self._add(channels[segment.channel], segment.seq, entry)
            if segment.size:
                key = segment.channel, segment.file
                self.files[key] = self.files.get(key, 0) + 1
        for (channel, file), end in inventory.ends.items():
            if end < FILE_BYTES and (channel, file) in self.files and channels[channel].row.ended_us is None:
                channels[channel].room.append((file, end))

    def bring_back(self, registry: Registry, now: float) -> None:
        """Tell the registry of the channels in the directory, before the first request, and write the first batch.

        The latest epoch of each name comes back: live, in the rest of its drain, or as a tombstone. If the batch cannot
        be written, storage has failed; the server starts all the same, and serves the segments that it has.

        Args:
            registry: has no channels yet; its storage is this archive.
            now: the registry's time, seconds.
        """
        now_us, limits = self.wall_us(), registry.limits
        for stored in list(self.latest.values()):
            row, restored = stored.row, stored.restored
            if row.ended_us is None:
                registry.restore(restored._replace(copied=stored.copied), now)
                continue
            ended_s = max(0.0, (now_us - row.ended_us) / 1e6)
            forgotten_s = limits.channel_drain_s + limits.tombstone_s
            if ended_s < limits.channel_drain_s:
                registry.restore(restored._replace(drain_s=limits.channel_drain_s - ended_s), now)
            elif ended_s < forgotten_s:
                registry.remember_ended(row.name, row.epoch, row.next_seq, now + forgotten_s - ended_s)
        self.expire(self._all())
        batch, self._batch = self._batch, Batch()
        batch.server_start = ServerStart(registry.instance, self.index, now_us, boot_id())
        try:
            self.database.commit(batch)
        except (OSError, sqlite3.Error) as error:
            self._fail(error, batch, [])
            return
        self.index = self._journal.index
        for stored in self._all():
            stored.known = True
        try:
            self.database.probe(self._live_ids())
        except OSError as error:
            self._fail(error, Batch(), [])

    # Asked by the core.

    @property
    def refuses(self) -> bool:
        """All POSTs are refused at present."""
        return self.failed is not None and self.on_full is OnDiskFull.REFUSE

    def past(self, name: str) -> tuple[Restored, StoredChannel] | None:
        """The last channel of that name, if it has ended and there are segments of it."""
        stored = self.latest.get(name)
        is_live = stored is not None and stored.channel is not None and not stored.channel.ended
        if stored is None or is_live or not stored.seqs:
            return None
        return stored.restored, stored

    def last_epoch(self, name: str) -> int:
        """The epoch of the last channel of that name; 0 if there was none."""
        return self.epochs.get(name, 0)

    def begin(self, channel: Channel) -> StoredChannel:
        """Begin to store a channel that was created, restored, or adopted with the segments that it has."""
        present = self.latest.get(channel.name)
        if present is not None and isinstance(channel, Copy) and present.row.epoch == channel.epoch:
            created_us = to_us(channel.created_at)
            if present.row.created_us != created_us:  # its owner has forgotten that one
                self._discard(present)
                present = None
        if present is not None and present.row.epoch == channel.epoch:
            present.channel = channel  # it was restored, or it is back from another server
            self._note_kind(present)
            if present.row.ended_us is not None:
                present.row = present.row._replace(ended_us=None, reason="")
                del self.ended[present.row.id]
            self._take_held(present, channel)
            return present
        if present is not None and present.channel is not None:
            # It ended while the directory could not be written.
            self._end(present, present.channel.next_seq, "", self.wall_us())
            self._touched[present] = None
        created_us = to_us(channel.created_at)
        row = ChannelRow(
            self._next_channel, channel.name, channel.epoch, channel.content_type, channel.next_seq, created_us
        )
        self._next_channel += 1
        found = StoredChannel(self, row, channel)
        self._note_kind(found)
        self.latest[channel.name] = found
        self.epochs[channel.name] = channel.epoch
        self._take_held(found, channel)
        return found

    def _note_kind(self, stored: StoredChannel) -> None:
        copied = isinstance(stored.channel, Copy)
        if copied is not stored.copied:
            stored.copied = self._batch.copies[stored.row.id] = copied

    def promote(self, name: str, epoch: int) -> None:
        """The stored channel of that name is of this epoch from now on; the end of the one before is no end of it.

        :meth:`begin` follows.
        """
        stored = self.latest[name]
        stored.row = stored.row._replace(epoch=epoch)
        self.epochs[name] = epoch

    def epochs_of(self, name: str, first: int) -> list[StoredChannel]:
        """What is stored under this name, from an epoch on."""
        return [one for one in self._all() if one.row.name == name and one.row.epoch >= first]

    def forget(self, name: str, first: int) -> None:
        """Forget the channels of this name from an epoch on, with their segments. The registry has forgotten them."""
        for stored in self.epochs_of(name, first):
            self._discard(stored)
        self.kick()

    def _discard(self, stored: StoredChannel) -> None:
        """Forget a channel, whose name and epoch go to another one, with all of its segments."""
        for tap in list(stored.taps.values()):
            self._remove(tap)
        for seq in list(stored.seqs):
            self._drop(stored, seq)
        stored.channel = None
        self.ended[stored.row.id] = stored
        self._forget(stored)

    def _take_held(self, stored: StoredChannel, channel: Channel, but: Collection[Segment] = ()) -> int:
        """Begin to store the segments of a channel that are in memory and not in the directory.

        Args:
            stored: the channel as it is stored. but: without these.

        Returns:
            How many of them have bytes.
        """
        held = 0
        for seq, segment in channel.segments.items():
            if seq in stored.entries or seq in stored.taps or segment in but or segment.state is WAITING:
                continue
            held += segment.size > 0
            if self.failed is not None:
                self._lacking += segment.size > 0  # it is taken when the directory can be written again
            elif segment.size:
                self._tap(stored, segment)
                stored.taps[seq].closed_us = None if segment.closed_at is None else to_us(segment.closed_at)
            elif segment.closed_at is not None:
                self._nothing_in(stored, seq, segment.state, to_us(segment.closed_at))
        return held

    # Asked for publishers.

    @property
    def durability(self) -> str:
        """The value of ``Lp-Trickle-Durability`` in the responses to publishers at present."""
        return Ack.MEMORY if self.failed is not None else self.ack

    @property
    def backlog(self) -> int:
        """Bytes of segments that are not written yet; a batch that is being written counts."""
        return sum(tap.segment.size - tap.size for stored in self._all() for tap in stored.taps.values())

    def _all(self) -> list[StoredChannel]:
        """The channels that live and those that have ended; an ended one is the latest of its name, too."""
        return list({**dict.fromkeys(self.latest.values()), **dict.fromkeys(self.ended.values())})

    fenced: Final = False
    """It is never in doubt whose the channels are (:class:`app.data_plane.context.Durability`)."""

    @property
    def delays(self) -> bool:
        """Publishers are answered by :meth:`when_stored`, not at once."""
        return self.ack is not Ack.MEMORY and (self.failed is None or self.on_full is OnDiskFull.REFUSE)

    @property
    def degraded(self) -> str:
        """Why the promise is weaker than usual: ``durability`` says it all."""
        return ""

    def when_stored(self, then: Callable[[bool], None], channel: Channel | None = None) -> None:
        """Call back with ``True`` when all changes until now are written as ``ack`` says; ``False`` if they are not.

        Args:
            channel: a batch has the changes of all, so it does not matter.
        """
        del channel
        if self.failed is not None or self._closing:
            then(self.on_full is OnDiskFull.MEMORY and not self._closing)
            return
        self._waiting.append(then)
        self.kick()

    async def flush(self) -> bool:
        """Wait until all changes until now are written, or could not be: returns what :meth:`when_stored` tells."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.when_stored(lambda kept: None if done.done() else done.set_result(kept))
        return await done

    async def close(self) -> None:
        """Write the rest, for :data:`END_S` at most, and release the directory. The log says what it lacks.

        A call that has not returned by then still uses the database. It is left open: the process is about to end.
        """
        if self._closing:
            return
        try:
            async with asyncio.timeout(END_S):
                self._retry()  # after a failure the directory may be well again
                await self._idle()
                for stored in self.latest.values():
                    self._take_about(stored, self._batch)
                await self.flush()
                await self._idle()
                self._closing = True
                await asyncio.get_running_loop().run_in_executor(self._thread, self.database.close)
        except TimeoutError:
            logger.error("the data directory %s does not answer: the server ends without it", self.database.folder)
        self._closing = True
        for timer in (self._timer, self._retrying):
            if timer is not None:
                timer.cancel()
        self._thread.abandon()
        self.reads.abandon()
        await self._idle()  # a batch that was given up has failed
        self._log_at = 0.0
        self._log_given_up()
        if self.failed is not None and self._lacking:
            self._count_lost(self._lacking)
            why = f"{self._lacking} segments are missing in it ({self.failed})"
            logger.error("the data directory %s is left as it is: %s", self.database.folder, why)

    async def _idle(self) -> None:
        while self._busy is not None:
            await asyncio.wait([self._busy])

    def tick(self) -> None:
        """Remove segments that have become too old while nothing is published. The sweeper calls this."""
        self._log_given_up()
        if self.failed is None:
            self.expire()

    # Changes, gathered for the next batch.

    def damaged(self, stored: StoredChannel, seq: int, entry: StoredSegment, why: str) -> None:
        """Remove a segment that does not match its checksum."""
        if stored.entries.get(seq) is not entry:
            return  # retention, or another reader, has removed it meanwhile
        logger.error("segment %d of %r (epoch %d) is damaged: %s", seq, stored.row.name, stored.row.epoch, why)
        self.counters.damaged += 1
        self._drop(stored, seq)

    def kick(self) -> None:
        """Plan a batch: in the next turn of the event loop if a publisher waits for it, else in :data:`BEHIND_S`."""
        if self._busy is not None or self.failed is not None or self._closing:
            return  # the batch that is being written looks again when it is done
        soon = bool(self._waiting)
        if self._timer is not None:
            if self._soon or not soon:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._soon = soon
        self._timer = loop.call_soon(self._write) if soon else loop.call_later(BEHIND_S, self._write)

    def give_up(self, tap: Tap) -> None:
        """Give up a segment that is not wholly written."""
        if self.failed is None:  # else it is owed, and counted when it is clear which ones are lost
            self.counters.lost += 1
        self._unlogged += 1
        self._newest_given_up = tap.segment.seq, tap.channel.row.name
        self._log_given_up()
        self._remove(tap)
        if tap.lost is not None:
            tap.lost()

    def _remove(self, tap: Tap) -> None:
        self._leave(tap)
        # Its bytes in the directory have no end.
        self._batch.removed.add((tap.channel.row.id, tap.segment.seq))
        self.release(tap.channel, tap.file)

    def _log_given_up(self) -> None:
        """Tell the operator of segments that were given up, at once and then once in :data:`LOG_S`."""
        now = asyncio.get_running_loop().time()
        if self._unlogged and now >= self._log_at:
            text = "segments that are not stored, since their memory was needed: %d; the newest is %d of %r"
            logger.warning(text, self._unlogged, *self._newest_given_up)
            self._unlogged, self._log_at = 0, now + LOG_S

    def _leave(self, tap: Tap) -> None:
        self.dirty.pop(tap, None)
        if tap.channel.taps.get(tap.segment.seq) is tap:
            del tap.channel.taps[tap.segment.seq]
        if tap in tap.segment.taps:
            tap.segment.untap(tap)
            self.budget.settle(tap.segment)

    def _note(self, fact: Fact) -> None:
        """Note a fact. The core calls this in the middle of a change."""
        self.noted = row = FactRow.of(fact, self.wall_us())
        stored = None if is_reserved(fact.channel) else self.latest.get(fact.channel)
        try:
            if self.failed is None:
                self._take(fact, stored, row)
        except Exception as error:
            self.missed(error)
            raise
        finally:
            if self.failed is not None and type(fact) is SegmentOpened and stored is not None:
                self._lacking += fact.seq not in stored.taps

    def _take(self, fact: Fact, stored: StoredChannel | None, row: FactRow) -> None:
        """Add a fact to the next batch."""
        channel = None if stored is None else stored.channel
        at_us = to_us(fact.at) if isinstance(channel, Copy) else row.at_us
        match fact:
            case _ if stored is None:
                pass
            case ChannelEnded() if fact.epoch == stored.row.epoch:  # else it was promoted, and goes on
                self._end(stored, fact.next_seq, fact.reason, row.at_us)
            case SegmentOpened() if channel is not None:
                segment = channel.segments[fact.seq]
                if self._makes_way(stored, segment):
                    self._tap(stored, segment)
            case SegmentClosed() if not fact.size:
                self._makes_way(stored, None, fact.seq)
                self._nothing_in(stored, fact.seq, fact.state, at_us)
            case SegmentClosed() if (tap := stored.taps.get(fact.seq)) is not None:
                tap.closed_us = at_us
        self._add_fact(row)
        if stored is not None:
            self._touched[stored] = None
        self.kick()

    def _add_fact(self, row: FactRow) -> None:
        if len(self._batch.facts) >= MAX_FACTS:  # the disk stands still
            self._batch.facts.clear()
            self._batch.floor = row.number - 1
        self._batch.facts.append(row)

    def add(self, rows: Sequence[FactRow], worker: int, position: Position) -> None:
        """Keep facts of another worker, which have indexes of this journal, and the place in its log behind them."""
        self.positions[worker] = position
        if self.failed is None and rows:
            for row in rows:
                self._add_fact(row)
            self._batch.positions[worker] = position
            self.kick()

    def skip(self) -> None:
        """Facts are missing up to the present index, so each follower begins with a snapshot."""
        self._batch.floor = self._journal.index
        self._batch.positions |= self.positions
        self.kick()

    def _end(self, stored: StoredChannel, next_seq: int, reason: str, now_us: int) -> None:
        """Note that a channel has ended. Its segments stay for as long as any others."""
        self._take_about(stored, self._batch)
        row, channel = stored.row, stored.channel
        if channel is None:
            stored.row = row._replace(ended_us=now_us, reason=reason)
        else:
            stored.row = row._replace(
                content_type=channel.content_type, next_seq=next_seq, ended_us=now_us, reason=reason
            )
        stored.channel = None
        self.ended[stored.row.id] = stored

    def _tap(self, stored: StoredChannel, segment: Segment) -> Tap:
        """Put a tap on a segment, and give it a file into which no other segment is being written."""
        if stored.room:
            file, start = stored.room.pop()
        else:
            file, start = self._next_file, 0
            self._next_file += 1
        key = stored.row.id, file
        self.files[key] = self.files.get(key, 0) + 1
        tap = Tap(stored, segment, file, start, to_us(segment.opened_at))
        stored.taps[segment.seq] = tap
        segment.tap(tap)
        self.dirty[tap] = None
        return tap

    def _makes_way(self, stored: StoredChannel, segment: Segment | None, seq: int = -1) -> bool:
        """Make way for a segment of which another form may be stored: a part of it, or one that its owner has lost.

        Its row is replaced by that of the segment which comes, in the next batch.

        Args:
            segment: which comes; ``None``: one without a byte, of this seq.

        Returns:
            ``False``: it is being stored already.
        """
        seq = seq if segment is None else segment.seq
        self._batch.removed.discard((stored.row.id, seq))  # its row is replaced
        tap, entry = stored.taps.get(seq), stored.entries.get(seq)
        if tap is None and entry is None:
            return True
        if tap is not None:
            if tap.segment is segment:
                return False
            self._leave(tap)
            self.release(stored, tap.file)
        if entry is not None:
            stored.remove(seq)
            self.bytes -= entry.size
            self.segments -= 1
            if entry.file:
                self.release(stored, entry.file)
        return True

    def _nothing_in(self, stored: StoredChannel, seq: int, state: State, at_us: int, *, inserted: bool = False) -> None:
        """Note a segment that closed without a byte: it needs no file."""
        row = SegmentRow(stored.row.id, seq, state.value, 0, 0, 0, 0, at_us, at_us)
        self._batch.segments.append((row, None))
        self._add(stored, seq, StoredSegment(state, 0, 0, 0, 0, at_us, at_us), inserted=inserted)

    def _add(self, stored: StoredChannel, seq: int, entry: StoredSegment, *, inserted: bool = False) -> None:
        stored.add(seq, entry)
        if inserted:
            heappush(self.inserted, (entry.closed_us, next(self._serials), stored, seq))
        else:
            self.order.append((stored, seq))
        self.bytes += entry.size
        self.segments += 1

    # Segments from behind the window, which another server has.

    def insert(
        self, stored: StoredChannel, about: SegmentSummary, body: Sequence[bytes], lost: Callable[[], None]
    ) -> bool:
        """Store a closed segment of a channel that lives, below its head. From now on readers find it.

        Args:
            about: what is known of it. body: its bytes.
            lost: called if it turns out that it cannot be kept.

        Returns:
            ``False``: it is here already, retention would remove it at once, or there is no memory for its bytes.

        Raises:
            OSError: the directory cannot be written at present.
        """
        seq, state, _, opened_us, closed_us, _ = about
        size, channel = sum(map(len, body)), stored.channel
        assert channel is not None, "the channel lives"
        assert closed_us is not None, "the segment is closed"
        if self.failed is not None:
            raise OSError(errno.EIO, self.failed, str(self.database.folder))
        same = stored.entries.get(seq)
        if seq >= channel.next_seq or seq in channel.segments or seq in stored.taps:
            return False
        if same is not None and (same.state, same.size, same.opened_us) == (state, size, opened_us):
            return False
        if not self.would_stay(stored, seq, size, closed_us):
            return False
        segment = Segment(seq)
        for chunk in filter(None, body):
            segment.store(encode_frame((chunk,)), len(chunk))
        segment.restore(state, size, to_time(opened_us), to_time(closed_us))
        if size and not self.budget.take(channel.window, segment.cost):
            return False
        self._makes_way(stored, segment)
        if size:
            tap = self._tap(stored, segment)
            tap.closed_us, tap.lost = closed_us, lost
            self.budget.release(channel.window, segment)  # it lingers, until it is written
        else:
            self._nothing_in(stored, seq, state, closed_us, inserted=True)
        self._touched[stored] = None
        self.kick()
        return True

    def would_stay(self, stored: StoredChannel, seq: int, size: int, closed_us: int) -> bool:
        """Whether retention would keep a segment that comes now, or replaces itself, and rather remove older ones."""
        limits, oldest, same = self.retention, self._oldest(), stored.entries.get(seq)
        less, fewer = (0, 0) if same is None else (same.size, 1)
        is_full = self.bytes - less + size > self.limit or self.segments - fewer >= MAX_SEGMENTS
        if closed_us < self.wall_us() - round(limits.age_s * 1e6) or size > min(limits.channel_bytes, self.limit):
            return False
        if is_full and (oldest is None or oldest[2].closed_us >= closed_us):
            return False
        coming = {one: tap.segment.size for one, tap in stored.taps.items() if tap.segment.closed and one != seq}
        bytes_then = stored.bytes - less + sum(coming.values())
        segments_then = len(stored.seqs) - fewer + len(coming)
        lowest = min([*stored.seqs[:1], *coming], default=seq)
        is_full = bytes_then + size > limits.channel_bytes or segments_then >= limits.channel_segments
        return not is_full or seq > lowest

    def remove(self, stored: StoredChannel, seq: int) -> None:
        """Forget a segment whose bytes are wrong."""
        if (tap := stored.taps.get(seq)) is not None:
            self._remove(tap)
        if seq in stored.entries:
            self._drop(stored, seq)
        self.kick()

    # Writing.

    def _write(self) -> None:
        """Give the next batch to the thread."""
        self._timer = None
        if self._busy is not None or self.failed is not None:
            return
        batch, self._batch = self._batch, Batch()
        waiting, self._waiting = self._waiting, []
        written = self._take_dirty(batch)
        touched = self._take_channels(batch)
        began = asyncio.get_running_loop().time()
        self._busy = self._in_thread(self.database.commit, batch)
        self._busy.add_done_callback(lambda done: self._written(done, batch, written, touched, waiting, began))

    def _in_thread(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        return asyncio.wrap_future(self._thread.submit(call, *args, **kwargs))

    def _take_dirty(self, batch: Batch) -> list[tuple[Tap, SegmentRow, Append]]:
        """Add the new bytes of segments to a batch."""
        written = []
        for tap in self.dirty:
            self._take_about(tap.channel, batch)
            segment, channel_id = tap.segment, tap.channel.row.id
            append = Append(channel_id, tap.file, tap.start + tap.size, segment, tap.done, len(segment.frames), tap.crc)
            place = tap.size, tap.crc, tap.file, tap.start, tap.opened_us
            row = SegmentRow(channel_id, segment.seq, segment.state.value, *place, tap.closed_us)
            batch.appends.append(append)
            batch.segments.append((row, append))
            written.append((tap, row, append))
        self.dirty.clear()
        return written

    def _take_about(self, stored: StoredChannel, batch: Batch) -> None:
        """Add the mark of a channel's playlist and its numberings to a batch, if they are others than before.

        A numbering is in the batch of its first segment: no reader may find a segment of a numbering that nobody knows.
        """
        if (channel := stored.channel) is None:
            return
        if channel.playlist != stored.playlist:
            batch.playlists[stored.row.id] = stored.playlist = channel.playlist
        if channel.lives != stored.lives:
            batch.lives[stored.row.id] = stored.lives = channel.lives

    def _take_channels(self, batch: Batch) -> dict[StoredChannel, None]:
        """Add changed rows of channels to a batch: no segment is written before its channel."""
        touched, self._touched = self._touched, {}
        for stored in touched:
            self._take_about(stored, batch)
            row, channel = stored.row, stored.channel
            if channel is not None and (row.next_seq, row.content_type) != (channel.next_seq, channel.content_type):
                stored.row = row = row._replace(next_seq=channel.next_seq, content_type=channel.content_type)
            batch.channels[row.id] = row
        return touched

    def _written(
        self,
        done: asyncio.Future[None],
        batch: Batch,
        written: list[tuple[Tap, SegmentRow, Append]],
        touched: dict[StoredChannel, None],
        waiting: list[Callable[[bool], None]],
        began: float,
    ) -> None:
        self._busy = None
        try:
            done.result()
        except Exception as error:
            self._fail(error, batch, waiting)
            return
        self.counters.commits += 1
        self.counters.commit_s += asyncio.get_running_loop().time() - began
        if batch.facts or batch.floor:
            self.index = max(batch.floor, batch.facts[-1].number if batch.facts else 0)
            self._tell(self.listeners, self.index)
        self._note_written(written, touched)
        self._tell(waiting, True)
        if self.dirty or self._waiting or self._touched or self._batch != Batch():
            self.kick()
        self.expire(touched)
        self._fail_for_missed()

    def _note_written(self, written: list[tuple[Tap, SegmentRow, Append]], touched: Iterable[StoredChannel]) -> None:
        """Note that the segments and channels of a batch are written."""
        for stored in touched:
            stored.known = True
        for tap, row, append in written:
            self.counters.written += append.size
            tap.done = append.last
            tap.size += append.size
            tap.crc = append.crc
            if row.closed_us is not None:
                self._finish(tap, row.closed_us)

    def _tell(self, listeners: Iterable[Callable[[_T], None]], value: _T) -> None:
        """Call all of these. An exception of one keeps neither the others nor storage from going on."""
        for listener in listeners:
            try:
                listener(value)
            except Exception as error:
                self.faults.note(listener, error)
        self.faults.deliver()

    def _finish(self, tap: Tap, closed_us: int) -> None:
        """Turn the tap of a closed segment into an entry: all of its bytes are in the directory."""
        segment, stored = tap.segment, tap.channel
        if stored.taps.get(segment.seq) is not tap:
            return  # it was given up meanwhile
        self._leave(tap)
        place = tap.size, tap.crc, tap.file, tap.start, tap.opened_us
        self._add(stored, segment.seq, StoredSegment(segment.state, *place, closed_us), inserted=tap.lost is not None)
        if tap.start + tap.size < FILE_BYTES:
            stored.room.append((tap.file, tap.start + tap.size))

    # When the directory cannot be written.
    #
    # Until bytes of segments have been written again, storage has failed: a database that takes rows says nothing about
    # the folder of a channel. Every attempt has two batches. The first one holds the removals and ends that are due in
    # any case, and may make room; and a file is made and removed in the folder of each channel. The second one holds
    # segments that windows still have and the directory lacks, the newest first, in half of the free room: the other
    # half is for segments that are published next. A segment that leaves its window before that is lost, and counted.

    def missed(self, error: Exception) -> None:
        """Noting a change raised an exception, so it is unknown what the directory lacks: storage has failed.

        It has failed from this moment on, since the response to the change may be the next thing that happens. It goes
        on as after a failed batch, with all segments that the windows hold.
        """
        if self.failed is None:
            self.failed = str(error) or type(error).__name__
            self._missed = error
            asyncio.get_running_loop().call_soon(self._fail_for_missed)  # when the change is done

    def _fail_for_missed(self) -> None:
        """Fail for a change that was missed. A batch that is being written ends first, and then calls this."""
        if self._missed is not None and self._busy is None:
            self._fail(self._missed, Batch(), [])

    def _fail(self, error: Exception, batch: Batch, waiting: list[Callable[[bool], None]]) -> None:
        """Go on without the directory, or refuse publishers, until it can be written again."""
        self._missed = None
        self.counters.failures += 1
        self.failed = str(error) or type(error).__name__
        alone = self.on_full is OnDiskFull.MEMORY
        then = "channels go on in memory" if alone else "publishers are refused"
        logger.error("the data directory %s cannot be written (%s): %s", self.database.folder, self.failed, then)
        for stored in self._all():
            stored.room.clear()  # one of these files may be the reason
            for tap in list(stored.taps.values()):
                self._leave(tap)
                self._partly_written.append((stored, tap.segment.seq, tap.file))
                if tap.lost is None:
                    self._lacking += 1
                else:  # no window has it: it comes again
                    tap.lost()
        self._lost_before = self.counters.lost
        # Removed segments and ended channels are still to be written.
        self._batch = unwritten(batch, self._batch)
        unanswered = [*waiting, *self._waiting]
        self._waiting = []
        self._tell(unanswered, alone)
        self._try_again()

    def _try_again(self) -> None:
        if not self._closing:
            self._retrying = asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def _failed_again(self, error: BaseException, batch: Batch) -> None:
        """Plan the next attempt to go on: this one has failed, too."""
        self.counters.failures += 1
        failed, self.failed = self.failed, str(error) or type(error).__name__
        if self.failed != failed:
            logger.error("the data directory %s still cannot be written (%s)", self.database.folder, self.failed)
        self._batch = unwritten(batch, self._batch)
        self._count_lost(self._lacking - len(self._missing()))
        self._try_again()

    def _count_lost(self, segments: int) -> None:
        """Count segments as lost that the directory lacks and that are in no window any more."""
        self.counters.lost = max(self.counters.lost, self._lost_before + segments)

    def _live_ids(self) -> list[int]:
        """Ids of the channels that take POSTs."""
        return [stored.row.id for stored in self.latest.values() if stored.channel is not None]

    def _missing(self) -> list[tuple[StoredChannel, Segment]]:
        """Segments with bytes that are in memory and not in the directory, the newest first."""
        found = [
            (stored, segment)
            for stored in self.latest.values()
            if stored.channel is not None
            for seq, segment in stored.channel.segments.items()
            if segment.size and seq not in stored.entries and seq not in stored.taps
        ]
        return sorted(found, key=lambda one: one[1].opened_at, reverse=True)

    def _retry(self) -> None:
        """Attempt to go on, first batch: removals, which may make room, and a trial file in each folder."""
        if self.failed is None or self._busy is not None:
            return
        if self._retrying is not None:
            self._retrying.cancel()
        self.expire()
        batch, self._batch = self._batch, Batch()
        touched = self._take_channels(batch)
        trial = self._in_thread(self.database.recover, batch, self._live_ids())
        self._busy = trial
        trial.add_done_callback(partial(self._recovered, batch, touched))

    def _recovered(self, batch: Batch, touched: dict[StoredChannel, None], done: asyncio.Future[int]) -> None:
        self._busy = None
        if (error := done.exception()) is not None:
            self._failed_again(error, batch)
            return
        for stored in touched:
            stored.known = True
        room = done.result() // 2
        self._catch_up(room if self._room_left is None else min(room, self._room_left))

    def _catch_up(self, room: int) -> None:
        """Attempt to go on, second batch: segments of the windows that fit into the room, and always the newest one."""
        missing = self._missing()
        now_us = self.wall_us()
        for stored, segment in missing:
            room -= segment.size
            if room < 0 and self.dirty:
                break
            self._tap(stored, segment)
            stored.taps[segment.seq].closed_us = now_us if segment.closed else None
            self._touched[stored] = None
        if not missing:
            self._go_on([], missing)
            return
        batch = Batch()
        written, touched = self._take_dirty(batch), self._take_channels(batch)
        self._busy = self._in_thread(self.database.commit, batch)
        self._busy.add_done_callback(partial(self._caught_up, batch, written, touched, missing))

    def _caught_up(
        self,
        batch: Batch,
        written: list[tuple[Tap, SegmentRow, Append]],
        touched: dict[StoredChannel, None],
        missing: list[tuple[StoredChannel, Segment]],
        done: asyncio.Future[None],
    ) -> None:
        self._busy = None
        if (error := done.exception()) is None:
            self._note_written(written, touched)
            self._go_on([tap for tap, _, _ in written], missing)
            return
        if getattr(error, "errno", None) in NO_ROOM:  # there is a quota of which the file system does not tell
            self._room_left = sum(tap.segment.size for tap, _, _ in written) // 2
        for tap, _, _ in written:
            if tap.channel.taps.get(tap.segment.seq) is tap:
                self._leave(tap)
                self.release(tap.channel, tap.file)
        self._failed_again(error, batch)

    def _go_on(self, saved: list[Tap], missing: list[tuple[StoredChannel, Segment]]) -> None:
        """End the failure: the directory has the missing segments, or as many of them as fit."""
        self.failed = self._room_left = self._missed = None
        now_us = self.wall_us()
        self.skip()
        known = {segment for _, segment in missing}
        began = 0
        for stored in list(self.latest.values()):
            channel = stored.channel
            if channel is not None and channel.ended:
                self._end(stored, channel.next_seq, "", now_us)
            if channel is not None:
                began += self._take_held(stored, channel, known)  # they began while those before them were written
            self._touched[stored] = None
        for stored in self._all():
            for tap in stored.taps.values():
                if tap.segment.closed and tap.closed_us is None:
                    tap.closed_us = now_us
                    self.dirty[tap] = None
        for stored, seq, file in self._partly_written:
            if seq not in stored.taps and seq not in stored.entries:
                self._batch.removed.add((stored.row.id, seq))
            self.release(stored, file)
        has = sum(tap.segment.seq in tap.channel.entries or tap in tap.channel.taps.values() for tap in saved)
        lost = max(0, self._lacking - has - began)
        self._count_lost(lost)
        self._partly_written, self._lacking = [], 0
        folder = self.database.folder
        logger.warning("the data directory %s can be written again; %d segments are missing in it", folder, lost)
        self.kick()

    # Retention.

    def expire(self, channels: Iterable[StoredChannel] = ()) -> None:
        """Remove the oldest segments that exceed a limit: of all channels together, and of each of these."""
        limits = self.retention
        for stored in channels:
            while stored.bytes > limits.channel_bytes or len(stored.seqs) > limits.channel_segments:
                self._expire(stored, stored.seqs[0])
        oldest_us = self.wall_us() - round(limits.age_s * 1e6)
        while (oldest := self._oldest()) is not None:
            fits = self.bytes <= self.limit and self.segments <= MAX_SEGMENTS
            if fits and oldest[2].closed_us >= oldest_us:
                break
            self._expire(*oldest[:2])
        if len(self.order) + len(self.inserted) > 2 * self.segments + STALE:
            self.order = deque((stored, seq) for stored, seq in self.order if seq in stored.entries)
            self.inserted = [one for one in self.inserted if one[3] in one[2].entries]
            heapify(self.inserted)
        while len(self.ended) > MAX_ENDED:
            first = next(iter(self.ended.values()))
            if first.seqs or first.taps:
                break
            self._forget(first)

    def _oldest(self) -> tuple[StoredChannel, int, StoredSegment] | None:
        """The segment that goes first, if there is one."""
        order, inserted = self.order, self.inserted
        while order and order[0][1] not in order[0][0].entries:
            order.popleft()
        while inserted and inserted[0][3] not in inserted[0][2].entries:
            heappop(inserted)
        if inserted and (not order or inserted[0][0] < order[0][0].entries[order[0][1]].closed_us):
            stored, seq = inserted[0][2:]
        elif order:
            stored, seq = order[0]
        else:
            return None
        return stored, seq, stored.entries[seq]

    def _expire(self, stored: StoredChannel, seq: int) -> None:
        self._drop(stored, seq)
        if self.expired is not None:
            self.expired(stored, seq)

    def _drop(self, stored: StoredChannel, seq: int) -> None:
        entry = stored.remove(seq)
        self.bytes -= entry.size
        self.segments -= 1
        self.counters.removed += 1
        self._batch.removed.add((stored.row.id, seq))
        if entry.file:
            self.release(stored, entry.file)
        self.kick()

    def release(self, stored: StoredChannel, file: int) -> None:
        """Note that a file has one segment or one replay less. A file with none of either is removed."""
        key = stored.row.id, file
        self.files[key] -= 1
        if not self.files[key]:
            del self.files[key]
            stored.room = [place for place in stored.room if place[0] != file]
            self._batch.files.append(key)
            self.kick()

    def _forget(self, stored: StoredChannel) -> None:
        """Forget an ended channel without segments, since there are too many: its name begins at epoch 1 again."""
        row = stored.row
        if stored.known:
            self._batch.forgotten.append(row.id)
        else:  # while nothing can be written these are many
            self._batch.channels.pop(row.id, None)
        self._touched.pop(stored, None)
        del self.ended[row.id]
        if self.latest.get(row.name) is stored:
            del self.latest[row.name]
            del self.epochs[row.name]
