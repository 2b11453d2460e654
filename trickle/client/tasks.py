"""Tasks: work in the background that any other task may stop, and waiting for a change.

A task group cannot do this: its cancel scope belongs to the task that entered it. But a client may be opened in one
task and closed in another (a fixture, a lifespan, an async generator that asyncio collects). This is the only module
that starts tasks outside a task group: an asyncio task, or a system task of trio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Final

import anyio
import anyio.lowlevel

from tricklecast.trickle.client.sockets import in_trio
from tricklecast.trickle.errors import ClosedHere

_TASKS: Final[set[asyncio.Task[None]]] = set()
"""Running tasks: the event loop itself holds only weak references to them."""


class Changes:
    """Wakes the tasks that wait for something to change. Telling nobody costs nothing."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    async def wait(self) -> None:
        """Wait for the next :meth:`notify`."""
        self._event = self._event or anyio.Event()
        await self._event.wait()

    def notify(self) -> None:
        """Something has changed."""
        event, self._event = self._event, None
        if event is not None:
            event.set()


def clock() -> Callable[[], float]:
    """The clock of the event loop that runs: ``anyio.current_time`` looks for the loop each time that it is asked."""
    if in_trio():
        import trio

        return trio.current_time
    return asyncio.get_running_loop().time


class BackgroundTask:
    """Work in a task of its own. The task that began the work, or any other one, stops it.

    Args:
        work: called within the new task, unless :meth:`stop` comes first.
    """

    __slots__ = ("_changes", "_error", "_is_over", "_scope")

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        # A scope cancels the work, since it cannot get lost: every await until the end of the work feels it.
        self._scope = anyio.CancelScope()
        self._changes = Changes()
        self._is_over = False
        self._error: BaseException | None = _cancelled()  # stays if the program ends, and the event loop with it
        if in_trio():
            import trio

            trio.lowlevel.spawn_system_task(self._run, work, context=copy_context())
        else:
            task = asyncio.get_running_loop().create_task(self._run(work))
            _TASKS.add(task)
            task.add_done_callback(self._discard)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            if not self._scope.cancel_called:
                with self._scope:
                    await work()
            self._error = None
        except Exception as error:  # from a system task of trio, it would end the whole program
            self._error = error
        finally:
            self._end()

    def _discard(self, task: asyncio.Task[None]) -> None:
        _TASKS.discard(task)
        self._end()  # of a task that was cancelled before it began

    def _end(self) -> None:
        self._is_over = True
        self._changes.notify()

    async def over(self) -> None:
        """Wait until the work is over. Cancelling the waiting task does not touch the work."""
        if self._is_over:
            await anyio.lowlevel.checkpoint_if_cancelled()
        while not self._is_over:
            await self._changes.wait()

    def check(self) -> None:
        """Raise the error with which the work ended, if it ended with one; the work must be over.

        Raises:
            ClosedHere: the program cancelled all tasks, this one among them.
            BaseException: the work raised it.
        """
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Cancel the work and wait until it is over. Cancelling the waiting task takes effect afterwards.

        An error of the work is dropped.
        """
        self._scope.cancel()
        cancelled: asyncio.CancelledError | None = None
        while not self._is_over:
            try:
                with anyio.CancelScope(shield=True):
                    await self.over()
            except asyncio.CancelledError as error:  # asyncio's own cancel reaches into shields
                cancelled = error
        if cancelled is not None:
            raise cancelled


def _cancelled() -> ClosedHere:
    return ClosedHere("the client's background task was cancelled")
