"""A program that runs beside a client: it speaks a protocol that our libraries lack, as ffmpeg does SRT.

The program has a process group of its own: a Ctrl-C on the terminal reaches us alone, and we end the program. The end
of its standard error is kept, since it says why the program failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from tricklecast.trickle.client.tasks import BackgroundTask

KEPT_BYTES: Final = 2000
"""Bytes of a program's standard error that are kept."""


class Program:
    """A program that has been started. It takes bytes (``input``) or gives bytes (``output``)."""

    __slots__ = ("_end", "_process", "_reading")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._end = bytearray()  # of its standard error, KEPT_BYTES at most
        self._reading = BackgroundTask(self._read)

    @classmethod
    async def start(cls, command: Sequence[str], *, takes_input: bool = False) -> Self:
        """Start a program.

        Args:
            command: its path and its arguments.
            takes_input: it reads its standard input, and its output is dropped; else it writes its standard output, and
                has nothing to read.

        Raises:
            OSError: it cannot be started.
        """
        stdin, stdout = (subprocess.PIPE, subprocess.DEVNULL) if takes_input else (subprocess.DEVNULL, subprocess.PIPE)
        with anyio.CancelScope(shield=True):  # cancelled half-way, it would leave a program that nobody ends
            process = await anyio.open_process(command, stdin=stdin, stdout=stdout, start_new_session=True)
        return cls(process)

    @property
    def input(self) -> ByteSendStream:
        """Its standard input."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def output(self) -> ByteReceiveStream:
        """Its standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    async def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        return await self._process.wait()

    async def last_words(self, within_s: float) -> str:
        """Wait until the program has closed its standard error, and return the end of that.

        Args:
            within_s: the longest wait, in seconds.
        """
        with anyio.move_on_after(within_s):
            await self._reading.over()
        return self._end.decode(errors="replace").strip()

    def kill(self) -> None:
        """End it and its children at once, if it still runs."""
        # Not Process.kill(): that may collect a program which has just ended, and asyncio's watcher of children then
        # warns of an "Unknown child process" (python/cpython#87744, Python < 3.13).
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Kill it, and wait until it is gone."""
        with anyio.CancelScope(shield=True):
            self.kill()
            await self._reading.stop()
            await self._process.aclose()

    async def _read(self) -> None:
        assert self._process.stderr is not None
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                self._end += await self._process.stderr.receive()
                del self._end[:-KEPT_BYTES]
