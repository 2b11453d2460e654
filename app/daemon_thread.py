"""A thread for blocking calls that may never return.

A write to a pipe without a reader, or to a file system that does not answer, blocks its thread until the other side
moves. Python waits at its exit for every thread of a ``ThreadPoolExecutor``, and asyncio waits for its own pool when a
loop ends: one such write would keep a server alive after SIGTERM. :class:`DaemonThread` is an executor whose thread
Python does not wait for, and whose owner can stop waiting (:meth:`DaemonThread.abandon`): then each call that has not
returned raises :exc:`Abandoned` at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Abandoned(TimeoutError):
    """The call has not returned in time; it may still have an effect."""


class DaemonThread(Executor):
    """Runs calls one after another, in one thread, which begins with the first of them or with :meth:`start`.

    The queue has no bound of its own: a caller awaits each call before the next one, or asks :attr:`pending` first.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()  # guards all that follows, and tells when it has changed
        # The calls that have not returned, the running one first; each is removed when it has returned.
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._abandoned = False  # the owner waits for no result any more: the thread ends, and no further call is taken

    @property
    def pending(self) -> int:
        """Number of calls that have not returned."""
        return len(self._calls)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Queue a call.

        Raises:
            Abandoned: as the result, if :meth:`abandon` was called.
        """
        future: Future[_T] = Future()
        with self._changed:
            if self._abandoned:
                future.set_exception(Abandoned(f"the {self._name} thread was given up"))
                return future
            self.start()
            self._calls.append((future, lambda: fn(*args, **kwargs)))
            self._changed.notify_all()
        return future

    def start(self) -> None:
        """Begin the thread now, while there is certainly memory for it.

        Raises:
            RuntimeError: there is none.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def abandon(self) -> None:
        """Wait no longer: every call that has not returned fails with :exc:`Abandoned`, and so do later ones."""
        with self._changed:
            self._abandoned = True
            given_up = [future for future, _ in self._calls]
            self._calls.clear()
            self._changed.notify_all()
        for future in given_up:
            if not future.done():
                future.set_exception(Abandoned(f"the {self._name} thread did not return in time"))

    def wait(self, timeout_s: float) -> bool:
        """Wait until every call has returned, for this time at most. Returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._abandoned)
                if self._abandoned:
                    return
                future, call = self._calls[0]
                wanted = future.set_running_or_notify_cancel()
            result = error = None
            try:
                result = call() if wanted else None
            except BaseException as raised:
                error = raised
            with self._changed:
                if self._abandoned:
                    return  # the future has its exception
                self._calls.popleft()
                self._changed.notify_all()
            if not wanted:
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
