"""How a task of asyncio that waits is woken: in the turn of the event loop in which it may go on, not in the next one.

Theory of operation
===================

*The problem.* When a socket has bytes, asyncio runs a callback, which completes a future. That only schedules the task:
it runs in the next turn, which has its own look at all sockets. A chunk or an answer takes two turns so, and a turn
costs as much as the rest of a small read.

*The idea.* asyncio lets a task wait for any object that behaves as a future (``asyncio.isfuture``): the task leaves a
callback with it, which runs the task. A :class:`Waiter` keeps that callback, and :meth:`Waiter.wake_now` calls it at
once, in the task's own context. A future of asyncio's own does more than that, and takes three times as long.

That task most often wakes another one: the request's task has the answer, and its program waits for that.
:meth:`Waiter.wake_soon` runs that one right after it, in the same callback, and so on for :data:`MAX_STEPS` tasks.

*Invariant.* No task may run within another one. So only the event loop itself may call :meth:`Waiter.wake_now`, in a
callback. All others wake, fail or cancel a waiter as any future: its task runs in the next turn.

Only what runs under asyncio imports this module, since it loads asyncio.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError, get_running_loop
from collections.abc import Callable, Generator
from contextvars import Context
from time import monotonic
from typing import ClassVar, Final

MAX_STEPS: Final = 16
"""So many tasks run in one callback, one after the other. Then others get their turn."""

_DUE: Final[dict[AbstractEventLoop, list[Waiter]]] = {}
"""Of each loop that runs tasks in :meth:`Waiter.wake_now` at this moment: the waiters whose tasks follow."""


def clock_of(loop: AbstractEventLoop) -> Callable[[], float]:
    """The clock of an event loop: asyncio's own loops have a method that does nothing but call another clock."""
    return monotonic if getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time else loop.time


class Waiter:
    """What one task of the present event loop waits for, as often as it likes.

    A wake that comes while it does not wait is nothing.

    Attributes:
        loop: the event loop.
    """

    __slots__ = ("_asyncio_future_blocking", "_error", "_in", "_wake", "loop")

    running: ClassVar = staticmethod(get_running_loop)  # for those who do not import asyncio

    def __init__(self) -> None:
        self.loop: Final = get_running_loop()
        self._asyncio_future_blocking = False  # how asyncio sees that it is awaited
        self._wake: Callable[[Waiter], object] | None = None  # runs the task; None: no task waits
        self._in: Context  # which it runs in
        self._error: BaseException | None = None  # that the task gets

    def __await__(self) -> Generator[Waiter, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def wake_now(self) -> None:
        """Run the task before this returns.

        Only for callbacks of the event loop: a task must not run another one.
        """
        loop = self.loop
        _DUE[loop] = due = [self]
        try:
            for waiter in due:  # which grows meanwhile
                wake, waiter._wake = waiter._wake, None
                if wake is not None:
                    waiter._in.run(wake, waiter)
        except BaseException:  # the program was told to end
            del _DUE[loop]
            for waiter in due:
                waiter.wake_soon()
            raise
        del _DUE[loop]

    def wake_soon(self) -> None:
        """Let the task run after the present one, in this turn or the next one."""
        due = _DUE.get(self.loop)
        if due is not None and len(due) < MAX_STEPS:
            due.append(self)
        else:
            self._schedule(None)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the task, in the next turn."""
        self._schedule(error)

    def _schedule(self, error: BaseException | None) -> bool:
        wake, self._wake = self._wake, None
        if wake is not None:
            self._error = error
            self.loop.call_soon(wake, self, context=self._in)
        return wake is not None

    # What asyncio's tasks and anyio call; see asyncio.Future.

    def get_loop(self) -> AbstractEventLoop:
        """The loop whose tasks may wait for it."""
        return self.loop

    def add_done_callback(self, fn: Callable[[Waiter], object], /, *, context: Context) -> None:
        """A task waits."""
        self._wake, self._in = fn, context

    def done(self) -> bool:
        """Whether no task waits."""
        return self._wake is None

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled; ``False``: it did not wait any more."""
        return self._schedule(CancelledError() if msg is None else CancelledError(msg))

    def result(self) -> None:
        """Raise in the task what it gets."""
        error, self._error = self._error, None
        if error is not None:
            raise error
