"""The access log: one JSON line per exchange at its end, and one per lifecycle event.

Records are only queued where they arise. One background task turns them into lines and writes and rotates the file;
the hot path never waits for a disk. What does not fit into the queue is counted and reported as an event.

What is promised: after an orderly end every record is in the file; after the process was killed all but the queue (it
is emptied every ``GATHER_S``), and at most the last line is torn. A file is synced to the disk when it is let go of,
not in between: when the machine itself goes down, what the kernel had not written yet (some 30 s) is lost.

A log that cannot be written any more (a full disk, say) is no reason to send viewers away: records wait in the queue
and the file is tried again. One that never could be written is an error, and so is one that cannot be completed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import time
from bisect import bisect_right
from collections import deque
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from glob import escape
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import aiofiles
import aiofiles.os
import orjson

from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.records import AccessRecord, Event, Kind

BATCH: Final = 1000
"""Records encoded in one go: about 2 ms, so that encoding never holds up the readers for long."""

GATHER_S: Final = 0.1
"""How long the task lets records gather before it writes again."""

RETRY_S: Final = 1.0
"""How long after a failure a log is tried again that could be written before."""

STDOUT: Final = Path("-")
STDOUT_DESCRIPTOR: Final = 1
"""Standard output, as a path, and as it is."""

logger = logging.getLogger("tricklecast.access_log")


class AccessLogError(TrickleError):
    """The log cannot be written."""


class AccessLog:
    """Writes access records to a file.

    Args:
        path: the file; rotated ones lie beside it as ``name-<time>.suffix``. :data:`STDOUT`, a pipe or a device is
            written to as it is, and never rotated.
        node: this server's name, for events.
        max_bytes, max_age_s: rotate when the file reaches this size or age.
        files: rotated files kept; older ones are removed.
        queue: records that may wait to be written.

    Attributes:
        limit: that number. written, dropped: records so far.
    """

    def __init__(
        self, path: Path, *, node: str | None, max_bytes: int, max_age_s: float, files: int, queue: int
    ) -> None:
        self._path = path
        self._node = node
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._files = files
        self.limit = queue
        self._queue: deque[AccessRecord] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._reopening = False
        self._opened_at = 0.0
        self._rotates = False
        self._size = 0
        self._rotations = 0
        self._unreported = 0
        self._failing = False
        self.dropped = 0
        self.written = 0

    @property
    def queued(self) -> int:
        """Records that wait to be written; at most ``limit``."""
        return len(self._queue)

    def put(self, record: AccessRecord) -> None:
        """Queue a record; never blocks."""
        if len(self._queue) >= self.limit:
            self.dropped += 1
            self._unreported += 1
            return
        self._queue.append(record)
        if not self._wake.is_set():
            self._wake.set()

    def event(self, event: Event, **fields: Any) -> None:
        """Queue a lifecycle event; ``fields`` are those of :class:`~trickle.records.AccessRecord`."""
        now_us = time.time_ns() // 1000
        self.put(AccessRecord(now_us, kind=Kind.EVENT, event=event, node=self._node, **fields))

    def close(self) -> None:
        """No more records will come: :meth:`run` ends when all are written."""
        self._closing = True
        self._wake.set()

    def reopen(self) -> None:
        """Let go of the file, which somebody may have renamed, and go on with the one of that name."""
        self._reopening = True
        self._wake.set()

    async def run(self) -> None:
        """Write until closed.

        Raises:
            AccessLogError: the file could never be written, or not when the log was closed.
        """
        await self.check()
        while not self._closing or self._pending:
            try:
                await self._write_file()
            except OSError as error:
                await self._failed(error)

    async def check(self) -> None:
        """Find out whether the log can be opened, before anything depends on it.

        Raises:
            AccessLogError: it cannot.
        """
        try:
            await aiofiles.os.makedirs(self._path.parent, exist_ok=True)
            async with self._opened():
                pass
        except OSError as error:
            raise self._explained(error) from error

    async def _failed(self, error: OSError) -> None:
        """Wait before the next try, if there is to be one."""
        explained = self._explained(error)
        if self._closing or not self.written:
            raise explained from error
        if not self._failing:
            self._failing = True
            logger.warning("%s; it is tried again, and records wait meanwhile", explained)
        await asyncio.sleep(RETRY_S)
        self._wake.set()

    def _explained(self, error: OSError) -> AccessLogError:
        return AccessLogError(f"cannot write the access log {self._path}: {error.strerror or error}")

    def _opened(self) -> AbstractAsyncContextManager[Any]:
        # Without a buffer, so that it is known what was written when the disk is full.
        if self._path == STDOUT:
            return aiofiles.open(STDOUT_DESCRIPTOR, "ab", buffering=0, closefd=False)
        return aiofiles.open(self._path, "ab", buffering=0)

    @property
    def _pending(self) -> bool:
        return bool(self._queue or self._unreported)

    async def _write_file(self) -> None:
        """Write one file until it is due for rotation, to be opened again, or the log is closed."""
        async with self._opened() as file:
            self._rotates = self._path != STDOUT and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            self._size = await file.tell() if self._rotates else 0
            self._opened_at = time.monotonic()
            if self._size and await asyncio.to_thread(_is_torn, self._path):
                # Whoever wrote it was killed: the torn line stays one of its own, and is counted as such by readers.
                await file.write(b"\n")
            due = await self._write(file)
            await asyncio.to_thread(_sync, file.fileno())
        if due:
            await self._rotate()

    async def _write(self, file: Any) -> bool:
        """Write until there is a reason to let go of the file; returns whether it is due for rotation."""
        while True:
            if not self._closing:
                await self._wake.wait()
                self._wake.clear()
            await self._drain(file)
            if self._closing and not self._pending:
                return False
            if self._due():
                return True
            if self._reopening:
                self._reopening = False
                if self._queue:
                    self._wake.set()
                return False
            await asyncio.sleep(GATHER_S)

    async def _drain(self, file: Any) -> None:
        while self._pending:
            if self._unreported and len(self._queue) < self.limit:
                dropped, self._unreported = self._unreported, 0
                self.event(Event.LOG_DROPPED, detail=f"{dropped} records")
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            await self._write_batch(file, batch)
            if self._due():
                return

    async def _write_batch(self, file: Any, batch: list[AccessRecord]) -> None:
        """Write these records, or put those back whose lines did not get into the file whole."""
        lines = [orjson.dumps(record.as_dict(), option=orjson.OPT_APPEND_NEWLINE) for record in batch]
        data = memoryview(b"".join(lines))
        sent = 0
        try:
            while sent < len(data):
                sent += await file.write(data[sent:])
        finally:
            whole = bisect_right(list(accumulate(map(len, lines))), sent)
            self._queue.extendleft(reversed(batch[whole:]))
            self._size += sent
            self.written += whole
        if self._failing:
            self._failing = False
            logger.warning("the access log %s is written again", self._path)

    def _due(self) -> bool:
        old = time.monotonic() - self._opened_at >= self._max_age_s
        due = self._rotates and (self._size >= self._max_bytes or (old and self._size > 0))
        if due and self._queue:
            self._wake.set()
        return due

    async def _rotate(self) -> None:
        self._reopening = False
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        while True:
            self._rotations += 1
            target = self._path.with_name(f"{self._path.stem}-{stamp}-{self._rotations:04d}{self._path.suffix}")
            if not await aiofiles.os.path.exists(target):  # of a server that was there a moment ago
                break
        await aiofiles.os.rename(self._path, target)
        stamps = f"-{'[0-9]' * 8}T{'[0-9]' * 6}-*"
        rotated = sorted(self._path.parent.glob(escape(self._path.stem) + stamps + escape(self._path.suffix)))
        for old in rotated[: -self._files]:
            await aiofiles.os.remove(old)


def _is_torn(path: Path) -> bool:
    """Whether a file that is not empty ends in the middle of a line."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _sync(descriptor: int) -> None:
    """Have the disk hold what was written; a pipe or a device, which cannot, is no error."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
