"""The access log: one JSON line per exchange at its end, and one per lifecycle event.

The data plane encodes each record when its exchange ends, which takes 1 to 2 µs, and queues the line. One background
task writes the file and rotates it, so that no exchange waits for a disk. If much waits to be written, records are
queued as they are: they take less memory than their lines may, and the task encodes them. The log counts the records
that do not fit into the queue, and reports them as an event.

After an orderly end the file has every record. After a kill it lacks the queue, which the task empties every
:data:`GATHER_S`, and its last line may be torn. The task syncs a file to the disk when it closes it, not in between:
when the machine itself goes down, bytes that the kernel has not written yet (about 30 s) are lost.

If a log cannot be written any more, for example on a full disk, the server goes on: records wait in the queue, and the
task tries again. A write that has failed half-way is undone, so that the file ends with a whole
line wherever an operator moves it. A log whose first records cannot be written, or that cannot be completed, is an
error.

A write to a pipe whose reader has stopped, or to a file system that hangs, never returns. So all calls run in a
:class:`~tricklecast.app.daemon_thread.DaemonThread`, and the task gives them up :data:`END_S` after the close: SIGTERM
ends the server, and the error says how many records are lost. :attr:`AccessLog.stalled_s` tells how long nothing could
be written, for metrics, readiness and the operator.

Several processes may write one log. Each has a queue and a file object of its own. Under a lock that all of them share
(:class:`LogShare`), one at a time writes a batch or rotates, so lines stay whole also in a pipe. The writers of a file
do not wait for long for one that stands still (:data:`LOCK_S`). Words in shared memory
tell the next one that a file was renamed or made anew, when it began, and that a write was not completed, since its
process was killed or the disk took only a part.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import math
import mmap
import os
import secrets
import stat
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from enum import IntEnum
from glob import escape
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, TypeVar

import aiofiles
import aiofiles.os

from tricklecast.app.clock import wall_us
from tricklecast.app.core.facts import ChannelEnded, Fact
from tricklecast.app.daemon_thread import Abandoned, DaemonThread
from tricklecast.app.encoding import encode
from tricklecast.app.masking import Mask
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.records import AccessRecord, Event, Kind

AHEAD_BYTES: Final = 4 << 20
"""The queue takes lines up to this size, a quarter of a second of a busy process; then records as they are."""

WRITE_BYTES: Final = 1 << 20
"""The size of a write. Each takes 20 ms in a busy process, since its thread waits for the interpreter several times.
With writes of 250 lines such a process wrote less than half of its records, and the queue grew."""

BATCH: Final = 250
"""Records that the task encodes for one write, which takes about 0.5 ms: readers wait meanwhile."""

GATHER_S: Final = 0.1
"""The task lets records gather for this time between two writes."""

RETRY_S: Final = 1.0
"""The task waits for this time after a failed write."""

START_S: Final = 10.0
"""The deadline of the first records: a named pipe can be opened only when its reader has opened it, too."""

END_S: Final = 5.0
"""The deadline of the log after its close. A full queue of 100,000 records takes half a second."""

LOCK_S: Final = 0.5
"""A writer of a file that waits longer than this for the lock writes without it, and rotates nothing meanwhile: a
worker has been stopped while it had the lock. The kernel keeps two writes to one file apart; not so in a pipe."""

POLL_S: Final = 0.002
"""It tries again after this time; another writer has the lock for as long as its batch takes."""

STALLED_S: Final = 5.0
"""A log that could not write for this time has stalled: the operator is told, and the server is degraded."""

REMIND_S: Final = 60.0
"""The operator is told again at this interval."""

STDOUT: Final = Path("-")
STDOUT_DESCRIPTOR: Final = 1
"""Standard output as a setting, and its file descriptor."""

logger = logging.getLogger("tricklecast.access_log")

_T = TypeVar("_T")


class AccessLogError(TrickleError):
    """The log cannot be written."""


class _Word(IntEnum):
    """The words in the memory that the writers of one log share."""

    TORN = 0
    """1 while a writer has the lock, and after one that has not completed its write: the last line may be torn."""
    RENAMED = 1
    """Files that the writers have renamed, or made anew because somebody had removed them, so far. A writer that opened
    its file when there were fewer opens it anew. What another program has renamed waits for SIGHUP, as ever."""
    BEGAN_MS = 2
    """When the file began, in milliseconds of the monotonic clock; 0: no writer has opened it yet."""


class LogShare:
    """Memory and a lock of the processes that write one log. Make it before they are forked.

    The lock is that of a file (:func:`fcntl.lockf`): the kernel takes it back from a process that is killed.

    Attributes:
        key: of the hashes of addresses, so that a client has the same one in the lines of all of them.
    """

    def __init__(self) -> None:
        # In memory where that is possible (Linux): a container may have no folder that can be written to.
        if hasattr(os, "memfd_create"):
            self._file = open(os.memfd_create("access log"), "r+b", buffering=0)  # noqa: SIM115
        else:
            self._file = TemporaryFile("r+b", buffering=0)  # noqa: SIM115
        self.key = secrets.token_bytes(32)
        self.words = memoryview(mmap.mmap(-1, len(_Word) * 8)).cast("q")  # shared by processes that are forked

    def close(self) -> None:
        """Forget the lock, at the end of the server."""
        self._file.close()

    def lock(self, within_s: float = math.inf) -> bool | None:
        """Wait for the lock. Returns whether the last line may be torn; ``None``: another writer still has the lock."""
        until = time.monotonic() + within_s
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | (fcntl.LOCK_NB if within_s < math.inf else 0))
                break
            except (BlockingIOError, PermissionError):  # EAGAIN, or EACCES
                if time.monotonic() >= until:
                    return None
                time.sleep(POLL_S)
        torn, self.words[_Word.TORN] = self.words[_Word.TORN], 1
        return bool(torn)

    def unlock(self, whole: bool) -> None:
        """Let the next one write. ``whole``: the last line is complete."""
        self.words[_Word.TORN] = not whole
        fcntl.lockf(self._file, fcntl.LOCK_UN)


class AccessLog:
    """Writes access records to a file.

    Args:
        path: the file; rotated files lie beside it as ``name-<time>.suffix``. :data:`STDOUT`, pipes and devices are
            never rotated.
        node: this server's name, for events.
        max_bytes, max_age_s: the task rotates the file when it reaches this size or age.
        files: number of rotated files that are kept.
        queue: number of records that may wait to be written.
        mask: masks the addresses in a line; ``None``: they are written as they are.
        share: what all processes share that write this log; ``None``: there is only this one.
        worker: the number of this one among them, which its lines have.
    """

    def __init__(
        self,
        path: Path,
        *,
        node: str | None,
        max_bytes: int,
        max_age_s: float,
        files: int,
        queue: int,
        mask: Mask | None = None,
        share: LogShare | None = None,
        worker: int | None = None,
    ) -> None:
        self._path = path
        self._share, self._worker = share, worker
        self._node = node
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._files = files
        self.limit = queue  # records that may wait
        self._mask = mask
        self._queue: deque[bytes | AccessRecord] = deque()  # lines, and records that are not encoded yet
        self._ahead = 0  # bytes of the lines in the queue
        self._thread = DaemonThread("access log")
        self._wake = asyncio.Event()  # there are records, or the file is to be closed or reopened
        self._closing = False  # write all records, then end
        self._reopening = False  # open the path anew after the next write
        self._opened_at = 0.0  # by the monotonic clock, for the age of the file
        self._rotates = False  # the file is a regular one
        self._torn = False  # the last line may be torn; with several processes, known to the one that has the lock
        self._has_lock = True  # it may rotate the file
        self._renamed = 0  # of the files that the writers have renamed or made anew: how many when this one was opened
        self._size = 0  # of the file, in bytes; 0 if it is no regular one
        self._rotations = 0  # the last number in the name of a rotated file
        self._unreported = 0  # records that were dropped since the last event that told how many
        # When the records that wait began to wait, or when the last ones were written; None if none wait.
        self._waits_since: float | None = None
        self._usable = False  # it could be opened, and its first records were written
        # The file that is open since then. A pipe that is closed and opened again ends for its reader.
        self._first: Any = None
        self._trouble = ""  # the error that the operator was told; "" while records can be written
        self._remind_at = 0.0  # the operator is not told again before
        self.dropped = 0  # records that did not fit into the queue, since the start
        self.written = 0  # records that were written, since the start

    @property
    def queued(self) -> int:
        """Number of records that wait to be written; at most ``limit``."""
        return len(self._queue)

    @property
    def stalled_s(self) -> float:
        """Seconds for which no record could be written, although some wait; 0 if none wait."""
        return 0.0 if self._waits_since is None else time.monotonic() - self._waits_since

    @property
    def stalled(self) -> bool:
        """Whether no record could be written for :data:`STALLED_S`, although some wait."""
        return self.stalled_s >= STALLED_S

    def put(self, record: AccessRecord) -> None:
        """Queue a record, or count it as dropped if the queue is full; never blocks."""
        if len(self._queue) >= self.limit:
            self.dropped += 1
            self._unreported += 1
            return
        entry: bytes | AccessRecord = record
        if self._ahead < AHEAD_BYTES:
            try:
                entry = line = self._line(record)
                self._ahead += len(line)
            except MemoryError:
                entry = record  # the task tries again
        self._queue.append(entry)
        if self._waits_since is None:
            self._waits_since = time.monotonic()
        if not self._wake.is_set():
            self._wake.set()

    def event(self, event: Event, **fields: Any) -> None:
        """Queue a lifecycle event; ``fields`` are those of :class:`~trickle.records.AccessRecord`."""
        now_us = wall_us()
        self.put(AccessRecord(now_us, kind=Kind.EVENT, event=event, node=self._node, **fields))

    def note_fact(self, fact: Fact) -> None:
        """Log that a channel began or ended: the storm report joins storms to these events."""
        about = {"channel": fact.channel, "epoch": fact.epoch}
        if isinstance(fact, ChannelEnded):
            self.event(Event.CHANNEL_END, **about, next_seq=fact.next_seq, detail=fact.reason)
        else:
            self.event(Event.CHANNEL_CREATE, **about)

    def close(self) -> None:
        """End :meth:`run` when all records are written, or :data:`END_S` from now; the caller puts no more."""
        self._closing = True
        self._wake.set()
        asyncio.get_running_loop().call_later(END_S, self._thread.abandon)

    def reopen(self) -> None:
        """Close the file, which another program may have renamed, and open the path anew."""
        self._reopening = True
        self._wake.set()

    def look(self) -> None:
        """Tell the operator of a log that cannot be written, at first and every minute; the caller calls it often.

        It also lets go of a file that another process has renamed, since it may be removed: a worker that has nothing
        to write would keep its bytes on the disk.
        """
        if self._is_older():
            self._wake.set()
        if not (self._trouble or self.stalled):
            return
        self._tell(self._trouble or f"a write has not returned for {STALLED_S:.0f} s")

    async def run(self) -> None:
        """Write until closed.

        Raises:
            AccessLogError: the file could never be written, or could not be completed after :meth:`close`.
        """
        try:
            while not self._closing or self._pending:
                try:
                    await aiofiles.os.makedirs(self._path.parent, exist_ok=True, executor=self._thread)
                    await self._write_file()
                except (OSError, MemoryError) as error:
                    await self._failed(error)
        finally:
            self._thread.abandon()

    async def check(self) -> None:
        """Write the queued records, so that a log that cannot be written is an error at the start.

        Raises:
            AccessLogError: the log cannot be written.
        """
        giving_up = asyncio.get_running_loop().call_later(START_S, self._thread.abandon)
        try:
            await aiofiles.os.makedirs(self._path.parent, exist_ok=True, executor=self._thread)
            file = self._first = await self._open()
            async with self._alone():
                if self._pending and await self._begin(file, is_first=True):
                    await self._drain(file)
                    await self._call(_sync, file.fileno())
            self._usable = True
        except (OSError, MemoryError) as error:
            if self._first is not None:
                with contextlib.suppress(OSError):
                    await self._first.close()
            raise self._explained(error) from error
        finally:
            giving_up.cancel()

    async def _failed(self, error: OSError | MemoryError) -> None:
        """Wait before the next try, or raise if there is none."""
        if self._closing or not (self._usable or self.written):
            raise self._explained(error) from error
        self._tell(_reason(error))
        await asyncio.sleep(RETRY_S)
        self._wake.set()

    def _explained(self, error: OSError | MemoryError) -> AccessLogError:
        reason = _reason(error)
        if isinstance(error, Abandoned):
            reason = "nobody reads it, or the disk does not answer"
        if self._closing and self.queued:
            reason += f"; {self.queued} records are lost"
        return AccessLogError(f"cannot write the access log {self._path} (--access-log): {reason}")

    def _tell(self, trouble: str) -> None:
        """Tell the operator why nothing can be written, unless that was told within the last minute."""
        now = time.monotonic()
        if self._trouble and now < self._remind_at:
            return
        self._trouble, self._remind_at = trouble, now + REMIND_S
        logger.warning(
            "cannot write the access log %s (--access-log): %s; the server tries again once a second; "
            "%d records wait, %d were dropped",
            self._path,
            trouble,
            self.queued,
            self.dropped,
        )

    async def _call(self, function: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def _open(self) -> Any:
        is_stdout = self._path == STDOUT
        # A file is open for reading, too: its path may be that of another one by the time its last line is looked at.
        # A pipe is not, since it would have a reader then: the server itself.
        reads = not is_stdout and await self._call(_is_file, self._path)
        # Unbuffered, so that the task knows how much was written when the disk is full.
        file = await aiofiles.open(
            STDOUT_DESCRIPTOR if is_stdout else self._path,
            "a+b" if reads else "ab",
            buffering=0,
            closefd=not is_stdout,
            executor=self._thread,
        )
        self._rotates = not is_stdout and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return file

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Any]:
        file, self._first = self._first or await self._open(), None
        try:
            yield file
        finally:
            await file.close()  # by the thread; aiofiles' own `async with` closes a file in asyncio's pool

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """No other process writes to the log meanwhile, but for one that stands still (:data:`LOCK_S`)."""
        if self._share is None:
            yield
            return
        torn = await self._call(self._share.lock, LOCK_S if self._rotates else math.inf)
        self._torn, self._has_lock = bool(torn), torn is not None
        try:
            yield
        finally:
            if self._has_lock:
                # By the thread: after a write that has not returned, and was given up, nobody else may write.
                await self._call(self._share.unlock, not self._torn)

    @property
    def _pending(self) -> bool:
        return bool(self._queue or self._unreported)

    async def _write_file(self) -> None:
        """Write one file until it is due for rotation or to be reopened, or the log is closed."""
        async with self._opened() as file:
            async with self._alone():
                if not await self._begin(file):
                    return
            await self._write(file)
            await self._call(_sync, file.fileno())

    async def _begin(self, file: Any, *, is_first: bool = False) -> bool:
        """Look at a file that was opened. Returns whether it is still the one to write to."""
        self._size = await file.tell() if self._rotates else 0
        self._opened_at = time.monotonic()
        if self._share is not None and self._rotates:
            if await self._call(_is_another, file.fileno(), self._path):
                return False  # it was renamed since it was opened
            words = self._share.words
            self._renamed = words[_Word.RENAMED]
            if not self._size or not words[_Word.BEGAN_MS]:
                words[_Word.BEGAN_MS] = int(self._opened_at * 1000)
            self._opened_at = words[_Word.BEGAN_MS] / 1000
        if is_first and self._size and not await self._call(_is_a_log, file.fileno()):
            raise FileExistsError(errno.EEXIST, "the file is there, and is no access log; name another one")
        self._torn = self._torn or self._size > 0
        await self._mend(file)
        return True

    async def _mend(self, file: Any) -> None:
        """End a line that may be torn, since its writer was killed. It stays a line of its own; readers count it."""
        if self._torn and not (self._rotates and await self._call(_ends_whole, file.fileno())):
            await file.write(b"\n")
        self._torn = False

    async def _write(self, file: Any) -> None:
        """Write until there is a reason to close the file."""
        while True:
            if not self._closing:
                await self._wake.wait()
                self._wake.clear()
            async with self._alone():
                if self._rotates and await self._call(self._is_over, file.fileno()):
                    self._wake.set()
                    return
                await self._mend(file)
                if self._rotates and self._share is not None:
                    self._size = os.fstat(file.fileno()).st_size  # others have written, too
                await self._drain(file)
                if self._due():
                    await self._call(_sync, file.fileno())
                    await self._rotate(file)
                    return
            if self._closing and not self._pending:
                return
            if self._reopening:
                self._reopening = False
                if self._queue:
                    self._wake.set()
                return
            await asyncio.sleep(GATHER_S)

    def _is_older(self) -> bool:
        """Whether another process has renamed the file, or made it anew, since it was opened here."""
        return self._share is not None and self._renamed != self._share.words[_Word.RENAMED]

    def _is_over(self, descriptor: int) -> bool:
        """Whether another file has to be opened. The first one to see that somebody has removed it tells that."""
        if self._is_older():
            return True
        if os.fstat(descriptor).st_nlink:
            return False
        logger.warning("the access log %s (--access-log) was removed; the server makes it anew", self._path)
        self._note_renamed()
        return True

    def _note_renamed(self) -> None:
        if self._share is not None:
            self._share.words[_Word.RENAMED] += 1

    async def _drain(self, file: Any) -> None:
        # Records that come meanwhile wait for the next turn. Otherwise a busy server would make a write of a few lines
        # for each turn of its loop, and keep the lock for ever.
        until = self.written + max(1, len(self._queue))
        while self._pending and self.written < until:
            if self._unreported and len(self._queue) < self.limit:
                dropped, self._unreported = self._unreported, 0
                self.event(Event.LOG_DROPPED, detail=f"{dropped} records")
            await self._write_batch(file)
            if self._due():
                return
        if self._pending:
            self._wake.set()

    async def _write_batch(self, file: Any) -> None:
        """Write lines; those that were not written whole go back into the queue."""
        lines: list[bytes] = []
        sent = 0
        try:
            self._take(lines)
            data = memoryview(b"".join(lines))
            while sent < len(data):
                sent += await file.write(data[sent:])
        finally:
            ends = [0, *accumulate(map(len, lines))]
            whole = bisect_right(ends, sent) - 1
            self._queue.extendleft(reversed(lines[whole:]))
            self._ahead += ends[-1] - ends[whole]
            self.written += whole
            self._size += ends[whole]
            self._torn = sent > ends[whole]
            if self._rotates and self._torn:
                with contextlib.suppress(OSError):  # else the next one to write ends the torn line
                    await self._call(_shorten, file.fileno(), sent - ends[whole])
                    self._torn = False
        self._waits_since = time.monotonic() if self._pending else None
        if self._trouble:
            self._trouble = ""
            logger.warning("the access log %s can be written again; %d records were dropped", self._path, self.dropped)

    def _take(self, lines: list[bytes]) -> None:
        """Move the lines of the next write out of the queue."""
        queue = self._queue
        size = encoded = 0
        while queue and size < WRITE_BYTES and encoded < BATCH:
            first = queue[0]
            if isinstance(first, bytes):
                line = first
                self._ahead -= len(line)
            else:
                line = self._line(first)
                encoded += 1
            lines.append(line)
            size += len(line)
            queue.popleft()

    def _line(self, record: AccessRecord) -> bytes:
        record.worker = self._worker
        fields = record.as_dict()
        if self._mask is not None:
            self._mask(fields)
        return encode(fields) + b"\n"  # a copy: orjson's bytes lie in a buffer of 4 KiB or more

    def _due(self) -> bool:
        old = time.monotonic() - self._opened_at >= self._max_age_s
        due = self._rotates and self._has_lock and (self._size >= self._max_bytes or (old and self._size > 0))
        if due and self._queue:
            self._wake.set()
        return due

    async def _rotate(self, file: Any) -> None:
        self._reopening = False
        if self._share is not None and await self._call(_is_another, file.fileno(), self._path):
            return  # somebody else has renamed it, and another worker may have begun a new one
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        # A former server may have rotated in this same second: names are sorted by age.
        beside = self._path.parent.glob(escape(f"{self._path.stem}-{stamp}-") + "*" + escape(self._path.suffix))
        numbers = [path.stem.rpartition("-")[2] for path in beside]
        self._rotations = max([self._rotations, *map(int, filter(str.isdecimal, numbers))]) + 1
        target = self._path.with_name(f"{self._path.stem}-{stamp}-{self._rotations:04d}{self._path.suffix}")
        self._note_renamed()  # before it is: should this process be killed in between, the others only open it again
        await aiofiles.os.rename(self._path, target, executor=self._thread)
        stamps = f"-{'[0-9]' * 8}T{'[0-9]' * 6}-*"
        rotated = sorted(self._path.parent.glob(escape(self._path.stem) + stamps + escape(self._path.suffix)))
        for old in rotated[: -self._files]:
            await aiofiles.os.remove(old, executor=self._thread)


def _reason(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    return error.strerror or str(error)


def _is_file(path: Path) -> bool:
    """Whether this is a file, or will be one."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _is_a_log(descriptor: int) -> bool:
    """Whether a file that is not empty begins like a log. Records must not be added to a film or a key by mistake."""
    return os.pread(descriptor, 1, 0) == b"{"


def _ends_whole(descriptor: int) -> bool:
    """Whether a file is empty, or its last line is complete."""
    size = os.fstat(descriptor).st_size
    return not size or os.pread(descriptor, 1, size - 1) == b"\n"


def _is_another(descriptor: int, path: Path) -> bool:
    """Whether another file has the path now, or none."""
    try:
        return os.fstat(descriptor).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return True


def _shorten(descriptor: int, size: int) -> None:
    """Cut off the last bytes of a file. Its size is read first, since an operator may have emptied it to make room."""
    os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - size))


def _sync(descriptor: int) -> None:
    """Sync a file to the disk; a pipe or a device, which cannot be synced, is no error."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
