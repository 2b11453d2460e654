"""A segment that is read again from the data directory, for one reader.

It is a segment like any other, which grows: whenever its reader has sent all that there is, the next part is read. So
replaying and live readers are one reader, a replay takes a part of a segment in memory and no more, and a slow reader
is read for slowly.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import aiofiles

from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import (
    COMPLETE,
    EMPTY,
    FINISH,
    SKIP,
    SKIPPED,
    TERMINATE,
    TERMINATED,
    TRUNCATE,
    TRUNCATED,
    Segment,
    State,
    encode_frame,
)
from tricklecast.trickle.errors import TrickleError

logger = logging.getLogger("tricklecast.storage")

PART_BYTES: Final = 64 << 10
"""Read at a time, and held in memory for each replaying reader."""

_CLOSING: Final = {COMPLETE: FINISH, EMPTY: FINISH, TRUNCATED: TRUNCATE, SKIPPED: SKIP, TERMINATED: TERMINATE}


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
    """

    @property
    def turn(self) -> asyncio.Semaphore: ...

    def path_of(self, entry: Entry) -> Path:
        """The file."""

    def hold(self, entry: Entry) -> None:
        """The file is read from: retention must not remove it."""

    def let_go(self, entry: Entry, read: int) -> None:
        """The file is not read from any more; so many bytes were."""

    def damaged(self, seq: int, entry: Entry, why: str) -> None:
        """The segment does not match its checksum."""


def replayed(seq: int, entry: Entry, keeper: Keeper, registry: Registry) -> Segment:
    """A segment as it is in the directory; where it has bytes, they are read when its reader asks for them.

    Args:
        registry: in whose memory a part of it is held.
    """
    segment = Segment(seq)
    if entry.size:
        segment.source = Replay(segment, entry, keeper, registry)
    else:
        segment.close(_CLOSING[entry.state], 0.0)
    return segment


class Replay:
    """Fills a segment from its file.

    Attributes:
        size, state: of the whole segment.
    """

    def __init__(self, segment: Segment, entry: Entry, keeper: Keeper, registry: Registry) -> None:
        self.size = entry.size
        self.state = entry.state
        self._segment, self._entry, self._keeper, self._registry = segment, entry, keeper, registry
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._held = self._read = 0
        self._reading = False

    def more(self) -> None:
        """The reader has sent all that the segment holds, or has left. While a part is read, it is asked already."""
        if self._reading and self._segment.cursors:
            return
        if self._task is None and self._segment.cursors:
            self._keeper.hold(self._entry)
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._wanted.set()

    async def _run(self) -> None:
        registry = self._registry
        try:
            await self._fill()
        except (OSError, Damaged) as error:
            if isinstance(error, Damaged | FileNotFoundError):
                self._keeper.damaged(self._segment.seq, self._entry, str(error))
            else:  # it may pass: too many open files, a disk that does not answer
                logger.warning("segment %d cannot be read now: %s", self._segment.seq, error)
            self._segment.evict_readers(registry.faults)
        finally:
            registry.budget.used -= self._held
            self._keeper.let_go(self._entry, self._read)
        registry.faults.deliver()

    async def _fill(self) -> None:
        entry, segment, registry = self._entry, self._segment, self._registry
        crc, left = 0, entry.size
        async with aiofiles.open(self._keeper.path_of(entry), "rb", buffering=0) as file:
            await file.seek(entry.start)
            while left and await self._is_read():
                async with self._keeper.turn:
                    data = await file.read(min(left, PART_BYTES))
                    if not data:
                        raise Damaged(f"{left} bytes are missing")
                    crc = crc32(data, crc)
                    left -= len(data)
                    if not left and crc != entry.crc:
                        raise Damaged("its checksum does not match")
                    self._held = len(data)
                    registry.budget.charge(self._held)
                    self._read += self._held
                    segment.store(encode_frame((data,)), len(data))
                    self._reading = False
                    if not left:
                        segment.close(_CLOSING[entry.state], asyncio.get_running_loop().time())
                    segment.wake(registry.faults)

    async def _is_read(self) -> bool:
        """Wait until the reader has sent what there was, and let go of that; ``False`` if there is no reader."""
        await self._wanted.wait()
        self._wanted.clear()
        frames = self._segment.frames
        if frames:
            frames[-1] = b""
            self._registry.budget.used -= self._held
            self._held = 0
        self._reading = bool(self._segment.cursors)
        return self._reading
