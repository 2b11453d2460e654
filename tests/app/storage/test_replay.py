"""A segment that is read again, part by part."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

from tests.app.core.support import Watcher, content
from tests.support.waiting import until
from tricklecast.app.clock import to_us
from tricklecast.app.core.segment import COMPLETE, EMPTY, SKIPPED, TERMINATED, TRUNCATED, Faults
from tricklecast.app.core.window import Budget
from tricklecast.app.storage.replay import PIECE_BYTES, StoredSegment, replayed


class Shelf:
    """Where one segment is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.turn = asyncio.Semaphore(1)
        self.thread = ThreadPoolExecutor(1)
        self.held = 0

    def path_of(self, entry: StoredSegment) -> Path:
        return self.path

    def hold(self, entry: StoredSegment) -> None:
        self.held += 1

    def let_go(self, entry: StoredSegment, read: int) -> None:
        self.held -= 1

    def damaged(self, seq: int, entry: StoredSegment, why: str) -> None:
        raise AssertionError(why)


def test_a_part_that_was_not_sent_yet_stays(tmp_path: Path) -> None:
    """A reader that asks twice for one part gets it once, and all of it."""
    data = random.Random(1).randbytes(2 * PIECE_BYTES)
    (tmp_path / "file").write_bytes(data)

    async def main() -> None:
        shelf, budget = Shelf(tmp_path / "file"), Budget(1 << 20, Faults())
        segment = replayed(0, StoredSegment(COMPLETE, len(data), crc32(data), 1, 0, 0, 0), shelf, budget, Faults())
        source, reader = segment.source, Watcher(segment)
        assert source is not None
        segment.cursors[reader] = None
        await shelf.turn.acquire()
        source.more()
        await until(lambda: shelf.turn._waiters)  # now it waits for its turn to read
        source.more()
        shelf.turn.release()
        await until(lambda: reader.wakes)
        for _ in range(10):
            await asyncio.sleep(0)
        assert content(segment) == data[:PIECE_BYTES]
        source.more()
        await until(lambda: segment.is_loaded)
        assert content(segment) == data[PIECE_BYTES:]
        assert budget.used == PIECE_BYTES  # the last part, too, is held until it is sent
        del segment.cursors[reader]
        source.more()
        await until(lambda: not shelf.held)
        assert budget.used == 0

    asyncio.run(main())


def test_a_segment_from_storage_is_what_it_was(tmp_path: Path) -> None:
    """Its size, state and times are known before a byte is read."""
    budget = Budget(1 << 20, Faults())
    for state, size in ((COMPLETE, 5), (TRUNCATED, 5), (TERMINATED, 5), (EMPTY, 0), (SKIPPED, 0)):
        entry = StoredSegment(state, size, 0, 1, 0, 2_000_000, 3_500_000)
        segment = replayed(4, entry, Shelf(tmp_path), budget, Faults())
        assert (segment.seq, segment.state, segment.size, segment.closed) == (4, state, size, True)
        assert (to_us(segment.opened_at), to_us(segment.closed_at or 0)) == (2_000_000, 3_500_000)
        assert segment.is_loaded == (not size)


def test_a_replay_for_which_there_is_no_memory_is_cut_off(tmp_path: Path) -> None:
    """A part that does not fit into the memory of all segments is not read: many slow readers cannot exceed it."""
    data = bytes(2 * PIECE_BYTES)
    (tmp_path / "file").write_bytes(data)

    async def main() -> None:
        shelf, budget = Shelf(tmp_path / "file"), Budget(PIECE_BYTES, Faults())
        segments = []
        for _ in range(2):
            segment = replayed(0, StoredSegment(COMPLETE, len(data), crc32(data), 1, 0, 0, 0), shelf, budget, Faults())
            segments.append(segment)
            reader = Evicted(segment)
            segment.cursors[reader] = None
            assert segment.source is not None
            segment.source.more()
        await until(lambda: not segments[1].cursors or not segments[0].cursors)
        kept, cut = sorted(segments, key=lambda segment: not segment.cursors)
        assert (len(kept.frames), len(cut.frames), budget.used) == (1, 0, PIECE_BYTES)
        assert cut.source is not None
        assert not cut.source.unreadable
        kept.cursors.clear()
        assert kept.source is not None
        kept.source.more()
        await until(lambda: not shelf.held)
        assert budget.used == 0

    asyncio.run(main())


class Evicted(Watcher):
    """A cursor that leaves when it is told to."""

    def evict(self) -> None:
        self.segment.cursors.clear()
        assert self.segment.source is not None
        self.segment.source.more()
