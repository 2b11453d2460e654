"""Where received bytes go: a file, or standard output.

Bytes are written as they come and in order, never held back for later: what is in the file is what was received, and
:attr:`Sink.written` says how much that is. Memory stays bounded, since each write is waited for.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path
from typing import Final, Protocol, Self

import anyio
from aiofiles.threadpool import wrap
from aiofiles.threadpool.binary import AsyncBufferedIOBase

from tricklecast.trickle.errors import InvalidInput, TrickleError

PIPE_BUF: Final = 4096
"""A pipe that poll() calls writable takes this many bytes without blocking (POSIX, Linux)."""

READER_POLL_S: Final = 0.05
"""How often it is looked whether a named pipe has a reader: nothing tells of the first one."""


class SinkFailed(TrickleError):
    """The bytes cannot be written: disk full, file gone, ..."""


class SinkClosed(TrickleError):
    """Whoever read the pipe has gone: a normal end, as for every program in a pipe."""


class Sink(Protocol):
    """Takes bytes. An async context manager."""

    written: int
    """Bytes written so far."""

    async def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            SinkFailed: it cannot be written.
            SinkClosed: the other end of the pipe is closed.
        """
        ...

    async def flush(self) -> None:
        """Hand what is buffered to the operating system; called at the end of a segment."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


def open_sink(target: str) -> Sink:
    """The sink that ``target`` names.

    Args:
        target: a path, or ``-`` for standard output.

    Raises:
        InvalidInput: nothing can be written to that path.
    """
    if target == "-":
        return descriptor_sink(standard_stream("stdout"))
    path = Path(target)
    return PipeSink(path) if path.is_fifo() else FileSink(path)


def standard_stream(name: str) -> int:
    """The descriptor of ``stdout`` or ``stderr``.

    Raises:
        InvalidInput: the process was started with that closed.
    """
    stream = getattr(sys, name)
    if stream is None or getattr(sys, f"__{name}__") is None:  # the command puts /dev/null there
        raise InvalidInput(f"{name} is closed")
    return int(stream.fileno())


def descriptor_sink(descriptor: int) -> Sink:
    """The sink for an open file, terminal or pipe, which is left open at the end."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return PipeSink(descriptor)
    return FileSink(descriptor)


class FileSink:
    """Writes to a file, through a thread, since a disk may take its time.

    A path is opened, and what was there is replaced, with the first byte: a channel that cannot be read
    destroys nothing.

    Args:
        target: a path, or a descriptor, which is left open at the end.

    Raises:
        InvalidInput: the path is a folder, or its folder is missing or not writable.
    """

    def __init__(self, target: Path | int) -> None:
        self.written = 0
        self._target = target
        self._file: AsyncBufferedIOBase | None = None
        if isinstance(target, Path):
            check_path(target)

    async def write(self, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = await self._open()
            await self._file.write(data)
        except BrokenPipeError:
            raise SinkClosed("the reader of the output is gone") from None
        except OSError as error:
            raise self._failed(error) from error
        self.written += len(data)

    async def _open(self) -> AsyncBufferedIOBase:
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, _open, self._target)
        try:
            file: AsyncBufferedIOBase = wrap(await asyncio.shield(opening), loop=loop)
            return file
        except asyncio.CancelledError:
            # The thread goes on: what it opens is nobody's.
            opening.add_done_callback(_close)
            raise

    async def flush(self) -> None:
        if self._file is not None:
            try:
                await self._file.flush()
            except OSError as error:
                raise self._failed(error) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                with anyio.CancelScope(shield=True):
                    await file.close()
            except OSError as error:
                raise self._failed(error) from error

    def _failed(self, error: OSError) -> SinkFailed:
        name = "standard output" if isinstance(self._target, int) else str(self._target)
        return SinkFailed(f"cannot write to {name} after {self.written} bytes: {error.strerror or error}")


class PipeSink:
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
        except BrokenPipeError:
            raise SinkClosed("the reader of the output is gone") from None
        except OSError as error:
            name = self._target if isinstance(self._target, Path) else "standard output"
            raise SinkFailed(f"cannot write to {name}: {error.strerror or error}") from error

    async def flush(self) -> None:
        """Nothing is buffered."""

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

    async def __aenter__(self) -> Self:
        return self

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


def _open(target: Path | int) -> BufferedWriter:
    return open(target, "wb", closefd=not isinstance(target, int))


def _close(opening: asyncio.Future[BufferedWriter]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
