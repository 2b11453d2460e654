"""A segment that is read again from the data directory, for one reader.

It is a closed segment like any other, with its size, state and times; only its bytes come later: whenever its reader
has sent all that is loaded, the next part is read. So replaying and live readers are one reader, a replay takes a part
of a segment in memory and no more, and a slow reader is read for slowly. The part counts against the memory of all
segments until it is sent; where no room can be made for it, its reader is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import aiofiles

from tricklecast.app.core.segment import Faults, Segment, State, encode_frame
from tricklecast.app.core.window import Budget
from tricklecast.trickle.errors import TrickleError

logger = logging.getLogger("tricklecast.storage")

PART_BYTES: Final = 64 << 10
"""Read at a time, and held in memory for each replaying reader."""


class Damaged(TrickleError):
    """The bytes in a file are not those that were written."""


class Entry(NamedTuple):
    """A closed segment in the directory.

    Attributes:
        size, crc: bytes, and their CRC-32. file, start: where they are; no file where there are none.
        opened_us, closed_us: when, microseconds since 1970.
    """

    state: State
    size: int
    crc: int
    file: int
    start: int
    opened_us: int
    closed_us: int


class Keeper(Protocol):
    """Where a replayed segment comes from.

    Attributes:
        turn: which all replays share: few of them read at a time, so that what is live comes between their parts.
        thread: in which files are read.
    """

    @property
    def turn(self) -> asyncio.Semaphore: ...
    @property
    def thread(self) -> Executor: ...

    def time_of(self, at_us: int) -> float:
        """The registry's time, seconds, at a time in microseconds since 1970."""

    def path_of(self, entry: Entry) -> Path:
        """The file."""

    def hold(self, entry: Entry) -> None:
        """The file is read from: retention must not remove it."""

    def let_go(self, entry: Entry, read: int) -> None:
        """The file is not read from any more; so many bytes were."""

    def damaged(self, seq: int, entry: Entry, why: str) -> None:
        """The segment does not match its checksum."""


def replayed(seq: int, entry: Entry, keeper: Keeper, budget: Budget, faults: Faults) -> Segment:
    """A segment as it is in the directory; where it has bytes, they are read when its reader asks for them.

    Args:
        budget: the memory in which a part of it is held.
        faults: told of readers that raise.
    """
    segment = Segment(seq)
    segment.restore(entry.state, entry.size, keeper.time_of(entry.opened_us), keeper.time_of(entry.closed_us))
    if entry.size:
        segment.source = Replay(segment, entry, keeper, budget, faults)
    return segment


class Replay:
    """Loads a segment from its file, one part at a time; a part is held until the reader has sent it."""

    def __init__(self, segment: Segment, entry: Entry, keeper: Keeper, budget: Budget, faults: Faults) -> None:
        self.unreadable = False
        self._segment, self._entry, self._keeper, self._budget, self._faults = segment, entry, keeper, budget, faults
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._held = self._read = 0  # bytes of the budget that it holds; bytes read so far
        self._reading = False  # a part is read, so that it need not be asked for

    def more(self) -> None:
        """The reader has sent all that is loaded, or has left. While a part is read, it is asked already."""
        if self._reading and self._segment.cursors:
            return
        if self._task is None and self._segment.cursors:
            self._keeper.hold(self._entry)
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._wanted.set()

    async def _run(self) -> None:
        segment, faults = self._segment, self._faults
        try:
            there = await self._load()
            while there:  # the last part is in memory, too, until its reader has sent it and left
                there = await self._is_read()
        except (OSError, Damaged) as error:
            self.unreadable = True
            if isinstance(error, Damaged | FileNotFoundError):
                self._keeper.damaged(segment.seq, self._entry, str(error))
            else:  # it may pass: too many open files, a disk that does not answer
                logger.warning("segment %d cannot be read now: %s", segment.seq, error)
            segment.evict_readers(faults)
        except Exception as error:
            faults.note(self, error)
            self.unreadable = True
            segment.evict_readers(faults)
        finally:
            self._budget.used -= self._held
            self._keeper.let_go(self._entry, self._read)
        faults.deliver()

    async def _load(self) -> bool:
        """Load part after part; returns whether the reader is still there."""
        entry, segment, faults = self._entry, self._segment, self._faults
        crc, left = 0, entry.size
        path, thread = self._keeper.path_of(entry), self._keeper.thread
        async with aiofiles.open(path, "rb", buffering=0, executor=thread) as file:
            await file.seek(entry.start)
            while left:
                if not await self._is_read():
                    return False
                async with self._keeper.turn:
                    data = await file.read(min(left, PART_BYTES))
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
        """Wait until the reader has sent what there was, and let go of that; ``False`` if there is no reader."""
        await self._wanted.wait()
        self._wanted.clear()
        if self._held:
            self._segment.frames[-1] = b""
            self._budget.used -= self._held
            self._held = 0
        self._reading = bool(self._segment.cursors)
        return self._reading
