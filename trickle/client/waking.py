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
    """A future that one task waits for. It has room for that task's callback only: a list of them takes longer."""

    running: Final = staticmethod(get_running_loop)  # for those who do not import asyncio
    _wake: Callable[[Waiter], object] | None = None  # runs the task
    _in: Context | None = None  # which it runs in

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        """Note how the task is run; see :class:`asyncio.Future`."""
        self._wake, self._in = fn, context

    def set_result(self, result: None, /) -> None:
        """See :class:`asyncio.Future`."""
        super().set_result(result)
        self._run_soon()

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """See :class:`asyncio.Future`."""
        super().set_exception(exception)
        self._run_soon()

    def cancel(self, msg: Any | None = None) -> bool:
        """See :class:`asyncio.Future`."""
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._run_soon()
        return is_cancelled

    def _run_soon(self) -> None:
        if self._wake is not None:
            self.get_loop().call_soon(self._wake, self, context=self._in)

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
                if wake is None or context is None:
                    waiter.set_result(None)
                else:
                    asyncio.Future.set_result(waiter, None)
                    context.run(wake, waiter)
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
