"""Background tasks that any other task may stop, and waiting for a change.

Theory of operation
===================

*The problem.* A client works in the background from ``async with`` on. It may be opened in one task and closed in
another: by a fixture, a lifespan, or an async generator that asyncio collects. A task group does not allow that, since
its cancel scope belongs to the task that entered it.

*The idea.* :class:`BackgroundTask` starts an asyncio task, or a system task of trio, and gives the work a cancel scope.
Any task may cancel that scope and then wait until the work is over. A scope is used rather than ``Task.cancel()``,
because a scope cannot be lost: each ``await`` of the work raises until the work has ended, also if a library swallowed
the first cancellation.

*Invariants.* ``stop()`` returns only after the work is over, also if the waiting task is cancelled meanwhile. An error
of the work never reaches the event loop: ``check()`` raises it where somebody asks. This is the only module that starts
tasks outside a task group.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.lowlevel

from tricklecast.trickle.client.sockets import Waiter, clock_of, in_trio, running_loop
from tricklecast.trickle.errors import ClosedHere, LocalProtocolError, TrickleError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_TASKS: Final[set[asyncio.Task[None]]] = set()
"""Running tasks of asyncio, whose event loop holds only weak references to them."""


class Notifier:
    """Wakes the tasks that wait for something to change. While no task waits, :meth:`notify` costs next to nothing."""

    __slots__ = ("_event", "_spare", "_waiting")

    def __init__(self) -> None:
        self._waiting: tuple[Waiter, ...] = ()  # of the tasks of asyncio that wait now
        self._spare: Waiter | None = None  # for the next one
        self._event: anyio.Event | None = None  # for those of trio

    async def wait(self) -> None:
        """Wait for the next :meth:`notify`."""
        if "trio" in sys.modules and in_trio():
            self._event = self._event or anyio.Event()
            await self._event.wait()
            return
        # Not an event: anyio looks for its kind of loop for each one, which takes longer than the wait.
        waiter, self._spare = self._spare or Waiter(), None
        self._waiting += (waiter,)
        try:
            await waiter
        finally:
            self._spare = waiter
            if waiter in self._waiting:  # it was cancelled
                self._waiting = tuple(other for other in self._waiting if other is not waiter)

    def notify(self) -> None:
        """Wake all tasks that wait."""
        if self._waiting:
            waiting, self._waiting = self._waiting, ()
            for waiter in waiting:
                waiter.wake_soon()
        elif self._event is not None:
            event, self._event = self._event, None
            event.set()


def clock() -> Callable[[], float]:
    """Return the clock of the running event loop. ``anyio.current_time`` would look for the loop at each call."""
    if in_trio():
        import trio

        return trio.current_time
    return clock_of(running_loop()())


class HomeLoop:
    """The event loop in which a client was opened, which is the present one when this is made.

    The client's tasks and connections belong to that loop. In another one, a call would wait for them for ever.

    Args:
        client: its name in the error.
    """

    __slots__ = ("_client", "_loop", "_present")

    def __init__(self, client: str) -> None:
        self._client = client
        # anyio.lowlevel.current_token() takes ten times as long.
        self._present: Callable[[], object]
        if "trio" in sys.modules and in_trio():
            import trio

            self._present = trio.lowlevel.current_trio_token
        else:
            self._present = running_loop()
        self._loop = self._present()

    def check(self) -> None:
        """Check that the client is used in this loop.

        Raises:
            LocalProtocolError: it is used in another one.
        """
        try:
            if self._present() is self._loop:
                return
        except RuntimeError:  # this loop is of another kind
            pass
        raise LocalProtocolError(
            f"this {self._client} was opened in another event loop; threads share one of tricklecast.sync"
        )


async def beside(work: Callable[[], Coroutine[Any, Any, None]], wait: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``wait``, and do ``work`` in a second task until then. An error of either is raised."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            result = await wait()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        cause = group.exceptions[0]
        raise cause from cause.__cause__
    return result


def first_error(group: BaseExceptionGroup[E]) -> E:
    """Return the first error of a group and the groups in it that is a TrickleError; or else the first one."""
    errors: list[E] = []
    left: list[E | BaseExceptionGroup[E]] = [group]
    while left:
        one = left.pop()
        if isinstance(one, BaseExceptionGroup):
            left += reversed(one.exceptions)
        else:
            errors.append(one)
    return next((error for error in errors if isinstance(error, TrickleError)), errors[0])


class BackgroundTask:
    """Work in a task of its own. Any task may stop it.

    Args:
        work: runs in the new task, unless :meth:`stop` comes first.
        changes: is notified at its end.

    Attributes:
        is_over: the work has ended.
    """

    __slots__ = ("_changes", "_error", "_scope", "is_over")

    def __init__(self, work: Callable[[], Awaitable[None]], changes: Notifier | None = None) -> None:
        self._scope = anyio.CancelScope()  # cancels the work
        self._changes = changes or Notifier()  # wakes over()
        self.is_over = False
        # The error with which the work ended. This one stays if the program ends, and the event loop with it.
        self._error: BaseException | None = ClosedHere("the client's background task was cancelled")
        if in_trio():
            import trio

            trio.lowlevel.spawn_system_task(self._run, work, context=copy_context())
        else:
            import asyncio

            task = asyncio.get_running_loop().create_task(self._run(work))
            _TASKS.add(task)
            task.add_done_callback(self._discard)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            if not self._scope.cancel_called:
                with self._scope:
                    await work()
            self._error = None
        except Exception as error:  # out of a system task of trio it would end the whole program
            self._error = error
        finally:
            self._end()

    def _discard(self, task: asyncio.Task[None]) -> None:
        _TASKS.discard(task)
        self._end()  # _run() does not, if the task was cancelled before it began

    def _end(self) -> None:
        self.is_over = True
        self._changes.notify()

    async def over(self) -> None:
        """Wait until the work is over. Cancelling the waiting task does not cancel the work."""
        if self.is_over:
            await anyio.lowlevel.checkpoint_if_cancelled()
        while not self.is_over:
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
        """Cancel the work and wait until it is over. A cancellation of the waiting task takes effect afterwards.

        An error of the work is dropped.
        """
        import asyncio

        self._scope.cancel()
        cancelled: asyncio.CancelledError | None = None
        while not self.is_over:
            try:
                with anyio.CancelScope(shield=True):
                    await self.over()
            except asyncio.CancelledError as error:  # asyncio's own cancel reaches into shields
                cancelled = error
        if cancelled is not None:
            raise cancelled
