"""How a task of asyncio that waits is woken: in the turn of the event loop in which it may go on, not in the next one.

Theory of operation
===================

*The problem.* When a socket has bytes, asyncio runs a callback, which completes a future. That only schedules the task:
it runs in the next turn, which has its own look at all sockets. A chunk or an answer takes two turns so, and a turn
costs as much as the rest of a small read.

*The idea.* A task that waits for a future leaves it a callback that runs the task. asyncio calls it for any object that
behaves as a future (``asyncio.isfuture``). A :class:`Waiter` keeps that callback, and :meth:`Waiter.wake_now` calls it
at once, in the task's own context.

That task most often wakes another one: the request's task has the answer, and its program waits for that.
:meth:`Waiter.wake_soon` runs that one right after it, in the same callback, and so on for :data:`MAX_STEPS` tasks.

*Invariant.* No task may run within another one. So only the event loop itself may call :meth:`Waiter.wake_now`, in a
callback. For all others a waiter is a future as any other: it is completed, fails and is cancelled in the next turn.

Only what runs under asyncio imports this module, since it loads asyncio.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable
from contextvars import Context
from time import monotonic
from typing import Any, Final

__all__ = ["Waiter", "clock_of", "get_running_loop"]

MAX_STEPS: Final = 16
"""So many tasks run in one callback, one after the other. Then others get their turn."""

_DUE: Final[dict[AbstractEventLoop, list[Waiter]]] = {}
"""Of each loop that runs tasks in :meth:`Waiter.wake_now` at this moment: the waiters whose tasks follow."""


def clock_of(loop: AbstractEventLoop) -> Callable[[], float]:
    """The clock of an event loop: asyncio's own loops have a method that does nothing but call another clock."""
    return monotonic if getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time else loop.time


class Waiter(asyncio.Future[None]):
    """A future that one task waits for."""

    running: Final = staticmethod(get_running_loop)  # for those who do not import asyncio
    _wake: Callable[[Waiter], object] | None = None  # runs the task
    _in: Context | None = None  # which it runs in

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Note how the task is run; see :class:`asyncio.Future`."""
        self._wake, self._in = fn, context
        super().add_done_callback(fn, context=context)

    def wake_now(self) -> None:
        """Complete the future, and run the task that waits for it before this returns; nothing if it is over.

        Only for callbacks of the event loop: a task must not run another one.
        """
        loop = self.get_loop()
        _DUE[loop] = due = [self]
        try:
            for waiter in due:  # which grows meanwhile
                if waiter.done():
                    continue
                wake, context = waiter._wake, waiter._in
                if wake is not None and context is not None:
                    waiter.remove_done_callback(wake)
                    waiter.set_result(None)
                    context.run(wake, waiter)
                else:
                    waiter.set_result(None)
        except BaseException:  # the program was told to end
            del _DUE[loop]
            for waiter in due:
                waiter.wake_soon()
            raise
        del _DUE[loop]

    def wake_soon(self) -> None:
        """Complete the future: its task runs after the present one, in this turn or the next one."""
        due = _DUE.get(self.get_loop())
        if due is not None and len(due) < MAX_STEPS:
            due.append(self)
        elif not self.done():
            self.set_result(None)
