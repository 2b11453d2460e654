"""The replay of a stored segment: a closed segment whose bytes are read from the data directory for one reader.

The reader must not know where bytes come from, since a second producer of bytes would make a seam at which some are
lost or doubled. So a replayed segment is a :class:`~app.core.segment.Segment` like any other, with its true size, state
and times. Only its frames come later: when the reader has sent the loaded piece, the next 64 KiB are read.

- A replay holds one piece in memory. It counts against the memory of all segments until it is sent. If no room can be
  made for it, the reader is cut off.
- A slow reader is read for slowly: no piece is read before the one before is sent.
- Few replays read at a time (:data:`~app.storage.archive.REPLAYING`). Without that, 50 replays of 1 MB/s each raise the
  p99 of live readers from 1.4 to 8.9 ms.
- The checksum is known with the last piece. If it is wrong, the response breaks off without its final chunk, and the
  segment is removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import aiofiles

from tricklecast.app.clock import to_time
from tricklecast.app.core.segment import Faults, Segment, State, encode_frame
from tricklecast.app.core.window import Budget
from tricklecast.trickle.errors import TrickleError

logger = logging.getLogger("tricklecast.storage")

PIECE_BYTES: Final = 64 << 10
"""Bytes read at a time, and held in memory for each replay."""


class Damaged(TrickleError):
    """The bytes in a file differ from those that were written."""


class StoredSegment(NamedTuple):
    """A closed segment in the directory: what its row has (:class:`~app.storage.database.SegmentRow`)."""

    state: State
    size: int
    crc: int
    file: int
    start: int
    opened_us: int
    closed_us: int


def pieces_of(path: Path, entry: StoredSegment) -> Iterator[bytes]:
    """Read a segment in a thread, piece by piece, without its checksum.

    Raises:
        OSError: the file is gone, or cannot be read.
    """
    left = entry.size
    with path.open("rb", buffering=0) as file:
        file.seek(entry.start)
        while left and (data := file.read(min(left, PIECE_BYTES))):
            left -= len(data)
            yield data


class SegmentStore(Protocol):
    """The stored channel, as a replay sees it.

    Attributes:
        turn: shared by all replays, so that few read at a time and live readers are served between their pieces.
        thread: reads the files.
    """

    @property
    def turn(self) -> asyncio.Semaphore: ...
    @property
    def thread(self) -> Executor: ...

    def path_of(self, entry: StoredSegment) -> Path:
        """The path of the segment's file."""

    def hold(self, entry: StoredSegment) -> None:
        """Keep the segment's file from being removed."""

    def let_go(self, entry: StoredSegment, read: int) -> None:
        """The file may be removed again; this number of bytes was read from it."""

    def damaged(self, seq: int, entry: StoredSegment, why: str) -> None:
        """Remove the segment: its bytes are missing, or do not match its checksum."""


def replayed(seq: int, entry: StoredSegment, store: SegmentStore, budget: Budget, faults: Faults) -> Segment:
    """Return a stored segment for one reader. Its bytes are read when the reader asks for them.

    Args:
        budget: the memory that the loaded piece counts against.
        faults: told of readers that raise.
    """
    segment = Segment(seq)
    segment.restore(entry.state, entry.size, to_time(entry.opened_us), to_time(entry.closed_us))
    if entry.size:
        segment.source = Replay(segment, entry, store, budget, faults)
    return segment


class Replay:
    """Loads a segment from its file, one piece at a time; a piece is held until the reader has sent it."""

    def __init__(
        self, segment: Segment, entry: StoredSegment, store: SegmentStore, budget: Budget, faults: Faults
    ) -> None:
        self.unreadable = False  # bytes are missing or wrong, or cannot be read now
        self._segment, self._entry, self._store, self._budget, self._faults = segment, entry, store, budget, faults
        self._wanted = asyncio.Event()  # the reader has sent the loaded piece, or has left
        self._task: asyncio.Task[None] | None = None
        self._held = self._read = 0  # bytes of the budget that it holds; bytes read so far
        self._reading = False  # a piece is being read, so a wake-up by the reader changes nothing

    def more(self) -> None:
        """Called by the reader: it has sent all that is loaded, or has left."""
        if self._reading and self._segment.cursors:
            return
        if self._task is None and self._segment.cursors:
            self._store.hold(self._entry)
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._wanted.set()

    async def _run(self) -> None:
        segment, faults = self._segment, self._faults
        try:
            there = await self._load()
            while there:  # the last piece, too, counts until the reader has sent it and left
                there = await self._is_read()
        except (OSError, Damaged) as error:
            self.unreadable = True
            if isinstance(error, Damaged | FileNotFoundError):
                self._store.damaged(segment.seq, self._entry, str(error))
            else:  # it may pass: too many open files, a disk that does not answer
                logger.warning("segment %d cannot be read now: %s", segment.seq, error)
            segment.evict_readers(faults)
        except Exception as error:
            faults.note(self, error)
            self.unreadable = True
            segment.evict_readers(faults)
        finally:
            self._budget.used -= self._held
            self._store.let_go(self._entry, self._read)
        faults.deliver()

    async def _load(self) -> bool:
        """Load piece after piece. Returns whether the reader is still there."""
        entry, segment, faults = self._entry, self._segment, self._faults
        crc, left = 0, entry.size
        path, thread = self._store.path_of(entry), self._store.thread
        async with aiofiles.open(path, "rb", buffering=0, executor=thread) as file:
            await file.seek(entry.start)
            while left:
                if not await self._is_read():
                    return False
                async with self._store.turn:
                    data = await file.read(min(left, PIECE_BYTES))
                    if not data:
                        raise Damaged(f"{left} bytes are missing")
                    crc = crc32(data, crc)
                    left -= len(data)
                    self._read += len(data)
                    if not left and crc != entry.crc:
                        raise Damaged("its checksum does not match")
                    if not self._budget.lend(len(data)):
                        segment.evict_readers(faults)
                        return False
                    self._held = len(data)
                    segment.load(encode_frame((data,)), len(data))
                    self._reading = False
                    segment.wake(faults)
        return True

    async def _is_read(self) -> bool:
        """Wait until the reader has sent the loaded piece, and drop it. Returns ``False`` if there is no reader."""
        await self._wanted.wait()
        self._wanted.clear()
        if self._held:
            self._segment.frames[-1] = b""
            self._budget.used -= self._held
            self._held = 0
        self._reading = bool(self._segment.cursors)
        return self._reading
