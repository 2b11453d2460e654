"""Where received bytes go: a file, a named pipe, or standard output.

Bytes are written in order as they come; ``written`` counts them. The caller waits for each write, so memory stays
bounded, and no write blocks the event loop.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final, Self, TypeVarTuple

import anyio
from anyio import to_thread

from tricklecast.subscriber.segment import Segment
from tricklecast.trickle.errors import InvalidInput, Position, TrickleError

PIPE_BUF: Final = 4096
"""A pipe that poll() calls writable takes this many bytes without blocking (POSIX, Linux)."""

READER_POLL_S: Final = 0.05
"""How often the sink checks whether a named pipe has a reader: the system does not signal it."""

Args = TypeVarTuple("Args")


class SinkFailed(TrickleError):
    """The bytes cannot be written: disk full, file gone, ..."""


class SinkClosed(TrickleError):
    """The reader of the pipe has gone: a normal end, as for every program in a pipe."""


class Output:
    """Takes segments, one after another, and discards them; an async context manager."""

    @property
    def position(self) -> Position | None:
        """Where the run goes on, whatever the user says; ``None``: nowhere in particular."""
        return None

    @property
    def unsaved(self) -> Position | None:
        """The first segment that was ended and may not be on disk as a whole; ``None``: there is no such one."""
        return None

    @property
    def left_out(self) -> int:
        """Segments that it was given, and has nothing of."""
        return 0

    @property
    def file(self) -> str | None:
        """The file of the last segment; ``None`` if it has none of its own."""
        return None

    async def begin(self, segment: Segment) -> None:
        """A segment begins; one that was not ended is given up."""

    async def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            SinkFailed: it cannot be written.
            SinkClosed: the other end of the pipe is closed.
        """

    async def end(self) -> None:
        """The segment is over; errors as in :meth:`write`."""

    async def ended(self, gap: int) -> None:
        """The channel is over; ``gap`` segments were missed before its end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None: ...


class OneAtATime:
    """Calls functions in a worker thread, one after the other.

    When the task that waits for a function is cancelled, its thread goes on. The next function, which may close the
    file in use, waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def run(self, work: Callable[[*Args], object], *args: *Args) -> None:
        await to_thread.run_sync(self._locked, work, args)

    def _locked(self, work: Callable[..., object], args: tuple[object, ...]) -> None:
        with self._lock:
            work(*args)


def open_sink(target: str) -> FileSink | PipeSink:
    """The sink that ``target`` names.

    Args:
        target: a path, or ``-`` for standard output.

    Raises:
        InvalidInput: nothing can be written to that path.
    """
    if target == "-":
        return standard_sink("stdout")
    path = Path(target)
    return PipeSink(path) if path.is_fifo() else FileSink(path)


def standard_sink(name: str) -> FileSink | PipeSink:
    """The sink for ``stdout`` or ``stderr``, which is left open at the end.

    Raises:
        InvalidInput: the process was started with that closed.
    """
    stream = getattr(sys, name)
    if stream is None or getattr(sys, f"__{name}__") is None:  # the command puts /dev/null there
        raise InvalidInput(f"{name} is closed")
    descriptor = int(stream.fileno())
    mode = os.fstat(descriptor).st_mode
    return PipeSink(descriptor) if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else FileSink(descriptor)


class FileSink(Output):
    """Writes to a file, in a worker thread, since a disk may take its time.

    A path is opened, and its old content replaced, with the first byte: a channel that cannot be read destroys nothing.
    Nothing is buffered: ``written`` counts the file's bytes, also when the disk is full.

    Args:
        target: a path, or a descriptor, which is left open at the end.

    Raises:
        InvalidInput: the path is a folder, or its folder is missing or not writable.
    """

    def __init__(self, target: Path | int) -> None:
        self.written = 0
        self._target = target
        self._file: FileIO | None = None
        self._closed = False
        # A thread goes on when the task that waits for it is cancelled; a file that it opens late is closed by it.
        self._lock = threading.Lock()
        if isinstance(target, Path):
            check_path(target)

    async def write(self, data: bytes) -> None:
        await self._in_thread(self._write, data)

    async def __aexit__(self, *exc_info: object) -> None:
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._close_if_over)

    async def _in_thread(self, work: Callable[[*Args], object], *args: *Args) -> None:
        try:
            await to_thread.run_sync(work, *args, abandon_on_cancel=True)
        except OSError as error:
            raise _failure(error, self._target, self.written) from error

    def _write(self, data: bytes) -> None:
        with self._lock:
            if self._file is None and not self._closed:
                self._file = _open(self._target)
            view = memoryview(data)
            while view and self._file is not None:
                size = os.write(self._file.fileno(), view)
                self.written += size
                view = view[size:]
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._closed and self._lock.acquire(blocking=False):
            try:
                file, self._file = self._file, None
                if file is not None:
                    file.close()
            finally:
                self._lock.release()


class PipeSink(Output):
    """Writes to a pipe without a thread: a thread stuck in a full pipe could not be interrupted.

    A descriptor stays in blocking mode, since that mode is shared with every other program that holds the pipe. A
    named pipe is opened with the first byte, once it has a reader.

    Args:
        target: the path of a named pipe, or a descriptor, which is left open at the end.
    """

    def __init__(self, target: Path | int) -> None:
        self.written = 0
        self._target = target
        self._descriptor: int | None = None if isinstance(target, Path) else target

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            descriptor = await self._opened()
            while view:
                await anyio.wait_writable(descriptor)
                with suppress(BlockingIOError):  # of a named pipe: another writer was quicker
                    size = os.write(descriptor, view[:PIPE_BUF])
                    self.written += size
                    view = view[size:]
        except OSError as error:
            raise _failure(error, self._target, self.written) from error

    async def _opened(self) -> int:
        while self._descriptor is None:
            assert isinstance(self._target, Path)
            try:
                self._descriptor = os.open(self._target, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                await anyio.sleep(READER_POLL_S)
        return self._descriptor

    async def __aexit__(self, *exc_info: object) -> None:
        if isinstance(self._target, Path) and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def check_path(path: Path) -> None:
    """Find out early whether a file can be written.

    Raises:
        InvalidInput: the path is a folder, or its folder is missing or not writable.
    """
    if path.is_dir():
        raise InvalidInput(f"cannot write to {path}: it is a folder")
    if not path.parent.is_dir():
        raise InvalidInput(f"cannot write to {path}: its folder does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInput(f"cannot write to {path}: permission denied")


def _failure(error: OSError, target: Path | int, written: int) -> TrickleError:
    if isinstance(error, BrokenPipeError):
        return SinkClosed("the reader of the output is gone")
    name = "standard output" if isinstance(target, int) else target
    after = f" after {written} bytes" if written else ""
    return SinkFailed(f"cannot write to {name}{after}: {error.strerror or error}")


def _open(target: Path | int) -> FileIO:
    return open(target, "wb", buffering=0, closefd=not isinstance(target, int))
