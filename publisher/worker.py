"""Runs a blocking source in a thread of its own and hands its steps over, a bounded number ahead."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.from_thread import BlockingPortal
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from publisher.steps import Step

AHEAD: Final = 64
"""How many steps a source may be ahead: a second of media, or 4 MiB of plain bytes."""

IsStopped = Callable[[], bool]
Source = Callable[[IsStopped], Iterator[Step]]
"""Opens the source and makes its steps, both in the thread. The steps should end soon after the function that it is
given returns ``True``."""


@asynccontextmanager
async def stepping(source: Source) -> AsyncIterator[MemoryObjectReceiveStream[Step]]:
    """Run ``source`` in a thread; the block is entered once it is open, and the steps end when it does.

    Leaving the block early stops the source, without waiting for a read that may block for ever: the thread is a
    daemon, and ends with its read or with the process.

    Raises:
        Exception: what the source raised, before the block or after all of its steps.
    """
    send, receive = anyio.create_memory_object_stream[Step](AHEAD)
    worker = _Worker(source, send)
    # A portal is a task group, which would wrap the block's own exception into an exception group.
    failure: Exception | None = None
    async with BlockingPortal() as portal:
        threading.Thread(target=worker.run, args=(portal,), name="tricklecast source", daemon=True).start()
        try:
            with send, receive:
                await worker.opened.wait()
                if worker.failure is None:
                    yield receive
        except Exception as error:
            failure = error
        finally:
            worker.stop()
            await portal.stop(cancel_remaining=True)
    if failure := failure or worker.failure:
        raise failure


class _Worker:
    def __init__(self, source: Source, send: MemoryObjectSendStream[Step]) -> None:
        self.opened = anyio.Event()
        self.failure: Exception | None = None
        self._source = source
        self._send = send
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self, portal: BlockingPortal) -> None:
        try:
            steps = self._source(self._stopped.is_set)
            portal.call(self.opened.set)
            for step in steps:
                portal.call(self._send.send, step)
        except Exception as error:
            # Once stopped, nobody receives: that the hand-over broke, or the source, is of no interest any more.
            if not self._stopped.is_set():
                self.failure = error
        with suppress(RuntimeError, CancelledError):  # the portal is closed
            portal.call(self._finish)

    def _finish(self) -> None:
        self.opened.set()
        self._send.close()
