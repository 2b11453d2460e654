"""Work that goes on while the user does something else, and ends with whoever wanted it.

A task group cannot do this: its cancel scope belongs to the task that entered it, but an async generator may be closed
by another one, as asyncio does with a generator that was dropped. So here is the only place in this package that makes
a task by itself; that binds it to asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from tricklecast.trickle.errors import ClosedHere


class Background:
    """Work in a task of its own. Whoever begins it stops it, from whichever task.

    Args:
        work: what to do; called within the task, unless that is stopped before.
    """

    __slots__ = ("_scope", "_task")

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        # Cancelled through a scope, since that cannot get lost: it is felt at every await until the work is over.
        self._scope = anyio.CancelScope()
        self._task = asyncio.get_running_loop().create_task(self._run(work))
        self._task.add_done_callback(_see)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        if not self._scope.cancel_called:
            with self._scope:
                await work()

    async def over(self) -> None:
        """Wait until the work is over. The one who waits can be cancelled without harm to the work."""
        await asyncio.wait((self._task,))

    def check(self) -> None:
        """Ask how the work ended; it must be over.

        Raises:
            ClosedHere: its task was cancelled, by somebody who cancels all tasks there are.
            BaseException: what the work raised, as it is.
        """
        if self._task.cancelled():
            raise ClosedHere("the subscriber's own task was cancelled")
        self._task.result()

    async def stop(self) -> None:
        """Cancel the work and wait until it is over; being cancelled meanwhile takes effect afterwards.

        What the work raises then is of interest to nobody.
        """
        self._scope.cancel()
        cancelled: asyncio.CancelledError | None = None
        while not self._task.done():
            try:
                with anyio.CancelScope(shield=True):
                    await self.over()
            except asyncio.CancelledError as error:  # asyncio's own cancel reaches into shields
                cancelled = error
        if cancelled is not None:
            raise cancelled


def _see(task: asyncio.Task[None]) -> None:
    """Look at an exception, or asyncio complains that nobody did: what nobody waits for may fail."""
    if not task.cancelled():
        task.exception()
