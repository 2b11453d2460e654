"""A segment that is read again, part by part."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from zlib import crc32

from tests.app.core.support import Watcher, content
from tests.support.waiting import until
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import COMPLETE
from tricklecast.app.storage.replay import PART_BYTES, Entry, replayed


class Shelf:
    """Where one segment is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.turn = asyncio.Semaphore(1)
        self.held = 0

    def path_of(self, entry: Entry) -> Path:
        return self.path

    def hold(self, entry: Entry) -> None:
        self.held += 1

    def let_go(self, entry: Entry, read: int) -> None:
        self.held -= 1

    def damaged(self, seq: int, entry: Entry, why: str) -> None:
        raise AssertionError(why)


def test_a_part_that_was_not_sent_yet_stays(tmp_path: Path) -> None:
    """A reader that asks twice for one part gets it once, and all of it."""
    data = random.Random(1).randbytes(2 * PART_BYTES)
    (tmp_path / "file").write_bytes(data)

    async def main() -> None:
        shelf, registry = Shelf(tmp_path / "file"), Registry(Limits(), autocreate=True)
        segment = replayed(0, Entry(COMPLETE, len(data), crc32(data), 1, 0, 0, 0), shelf, registry)
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
        assert content(segment) == data[:PART_BYTES]
        source.more()
        await until(lambda: segment.closed)
        assert content(segment) == data[PART_BYTES:]
        del segment.cursors[reader]
        source.more()
        await until(lambda: not shelf.held)
        assert registry.budget.used == 0

    asyncio.run(main())
