"""Runs a blocking source in a thread of its own and hands its steps over, a bounded number ahead.

The thread never waits for the event loop itself, only for room, and looks every so often whether it was stopped: so
it ends whatever becomes of the loop. For asyncio, on which the command line runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVarTuple, Unpack

import anyio

from tricklecast.publisher.steps import Step

AHEAD: Final = 64
"""How many steps a source may be ahead: a second of media, or 4 MiB of plain bytes."""

POLL_S: Final = 0.2
"""How soon a source that waits for room notices that it was stopped."""

Args = TypeVarTuple("Args")

IsStopped = Callable[[], bool]
Source = Callable[[IsStopped], Iterator[Step]]
"""Opens the source and makes its steps, both in the thread. The steps should end soon after the function that it is
given returns ``True``."""


@asynccontextmanager
async def stepping(source: Source) -> AsyncIterator[Steps]:
    """Run ``source`` in a thread; the block is entered once it is open, and the steps end when it does.

    Leaving the block early stops the source, without waiting for a read that may block for ever: the thread is a
    daemon, and ends with its read or with the process.

    Raises:
        Exception: what the source raised, before the block or after all of its steps.
    """
    steps = Steps()
    worker = _Worker(source, steps)
    threading.Thread(target=worker.run, name="tricklecast source", daemon=True).start()
    try:
        await worker.opened.wait()
        if worker.is_open:
            yield steps
    finally:
        worker.stop()
    if worker.failure is not None:
        raise worker.failure


class Steps:
    """The consumer's end."""

    def __init__(self) -> None:
        self.room = threading.Semaphore(AHEAD)
        self._waiting: deque[Step] = deque()
        self._over = False
        self._changed = anyio.Event()

    async def receive(self) -> Step:
        """The next step, as soon as there is one.

        Raises:
            anyio.EndOfStream: there is none any more.
        """
        while True:
            with suppress(anyio.WouldBlock):
                return self.receive_nowait()
            self._changed = anyio.Event()
            await self._changed.wait()

    def receive_nowait(self) -> Step:
        """The next step, if it is there.

        Raises:
            anyio.WouldBlock: not yet.
            anyio.EndOfStream: there is none any more.
        """
        if self._waiting:
            self.room.release()
            return self._waiting.popleft()
        raise anyio.EndOfStream if self._over else anyio.WouldBlock

    def add(self, step: Step) -> None:
        """One more; called in the event loop, as is :meth:`end`."""
        self._waiting.append(step)
        self._changed.set()

    def end(self) -> None:
        """No more."""
        self._over = True
        self._changed.set()


class _Worker:
    def __init__(self, source: Source, steps: Steps) -> None:
        self.opened = anyio.Event()
        self.is_open = False
        self.failure: Exception | None = None
        self._source = source
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()
        self._steps.room.release()

    def run(self) -> None:
        try:
            steps = self._source(self._stopped.is_set)
            self.is_open = True
            self._in_loop(self.opened.set)
            for step in steps:
                if not self._has_room():
                    break
                self._in_loop(self._steps.add, step)
        except Exception as error:
            if not self._stopped.is_set():  # otherwise nobody wants to know
                self.failure = error
        self._in_loop(self._finish)

    def _has_room(self) -> bool:
        while not self._stopped.is_set():
            if self._steps.room.acquire(timeout=POLL_S):
                return not self._stopped.is_set()
        return False

    def _finish(self) -> None:
        self._steps.end()
        self.opened.set()

    def _in_loop(self, call: Callable[[Unpack[Args]], None], *args: *Args) -> None:
        with suppress(RuntimeError):  # the loop is closed: the program is ending
            self._loop.call_soon_threadsafe(call, *args)
