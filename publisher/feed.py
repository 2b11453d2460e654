"""From a source that blocks, through a thread, into a publisher.

A source makes steps (:mod:`tricklecast.publisher.steps`) in a thread of its own (:func:`stepping`). :class:`Feed`
writes them into segments. Segments overlap: the next one begins while the server has yet to confirm the one before it.
Live media cannot wait, so a segment whose connection stalls holds up no other: it waits in the publisher's buffer, and
the oldest segments are dropped when that is full. Any other source waits instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup

from tricklecast.publisher.client import Publisher, SegmentWriter
from tricklecast.publisher.core import Receipt
from tricklecast.publisher.steps import Chunk, IsStopped, Step
from tricklecast.trickle.client.tasks import Notifier
from tricklecast.trickle.errors import BrokenByPeer, SegmentDropped, SegmentTooLarge, TrickleError

STEPS_AHEAD: Final = 64
"""How many steps a source may be ahead: a second of media, or 4 MiB of plain bytes."""

JOIN_BYTES: Final = 32 * 1024
"""Chunks that the source has made meanwhile are written as one, up to the size that servers pass on unsplit."""

CONFIRM_S: Final = 10.0
"""How long the server may take to confirm the last segments of live media, in seconds."""

INTERRUPTED_S: Final = 2.0
"""How long it may take to confirm the last segments after Ctrl-C, in seconds."""


class Receiver(Protocol):
    """Where :class:`Feed` takes steps from: :class:`Steps`, or a memory object stream of anyio."""

    async def receive(self) -> Step:
        """The next step; raises ``anyio.EndOfStream`` after the last one, or why the source failed."""


@dataclass(slots=True)
class Totals:
    """Counters of a feed."""

    segments: int = 0  # confirmed by the server
    bytes: int = 0  # written, those of the segments in flight included
    lost: int = 0  # segments that failed
    dropped: int = 0  # segments that were given up here, because the network was too slow for them
    seq: int | None = None  # the newest segment; None before the first byte


# A source, in a thread.


@asynccontextmanager
async def stepping(source: Callable[[IsStopped], Iterator[Step]]) -> AsyncIterator[Steps]:
    """Run a source in a thread, for asyncio. The block is entered once the source is open.

    Leaving the block stops the source, and does not wait for a read that blocks: the thread is a daemon, and ends with
    its read or with the process.

    Raises:
        Exception: the source's, if it cannot be opened; a later one comes out of :meth:`Steps.receive`.
    """
    steps = Steps()
    loop = asyncio.get_running_loop()
    opened = anyio.Event()
    stopped = threading.Event()

    def in_loop(call: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the program is ending
            loop.call_soon_threadsafe(call, *args)

    def work() -> None:
        failure: Exception | None = None
        try:
            made = source(stopped.is_set)
            in_loop(opened.set)
            for step in made:
                steps.room.acquire()  # also succeeds at the end of the block
                if stopped.is_set():
                    break
                in_loop(steps.add, step)
        except Exception as error:
            failure = error
        in_loop(steps.end, failure)
        in_loop(opened.set)

    threading.Thread(target=work, name="tricklecast source", daemon=True).start()
    try:
        await opened.wait()
        steps.check_opened()
        yield steps
    finally:
        stopped.set()
        steps.room.release()


class Steps:
    """The steps of a source, as they are received: chunks that lie there together as one."""

    def __init__(self) -> None:
        self.room = threading.Semaphore(STEPS_AHEAD)  # for steps that may be added
        self._waiting: deque[Step] = deque()
        self._over = False
        self._failure: Exception | None = None
        self._changed = Notifier()

    async def receive(self) -> Step:
        """See :class:`Receiver`."""
        while not self._waiting and not self._over:
            await self._changed.wait()
        if not self._waiting:
            raise self._failure or anyio.EndOfStream
        parts: list[bytes] = []
        size = 0
        while self._waiting and isinstance(step := self._waiting[0], Chunk):
            size += len(step.data)
            if parts and size > JOIN_BYTES:
                break
            parts.append(step.data)
            self._take()
        return Chunk(b"".join(parts)) if parts else self._take()

    def _take(self) -> Step:
        self.room.release()
        return self._waiting.popleft()

    def add(self, step: Step) -> None:
        """Add a step; called in the event loop, as is :meth:`end`."""
        self._waiting.append(step)
        self._changed.notify()

    def end(self, failure: Exception | None = None) -> None:
        """No step follows."""
        self._over, self._failure = True, failure
        self._changed.notify()

    def check_opened(self) -> None:
        """Raise why the source could not be opened."""
        if self._failure is not None and not self._waiting:
            raise self._failure


# From steps to segments.


class Feed:
    """Publishes the steps of a source.

    It reports and skips a segment that fails, since the next one may get through. It raises an error after which
    nothing can be published.

    Args:
        publisher: entered; made with ``when_full="drop"`` if segments may be dropped, otherwise with ``"wait"``.
        drops: segments are dropped when the network is too slow; otherwise the source waits.
        warn: gets a line for people about each segment that is lost or dropped; the publisher's log has it, too.
        shorten: called with the size of a segment that the server refuses as too large: without an end to it, the rest
            of the media would be lost, too.
    """

    def __init__(
        self,
        publisher: Publisher,
        steps: Receiver,
        *,
        drops: bool,
        warn: Callable[[str], None] = lambda _: None,
        shorten: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.totals = Totals()
        self._publisher = publisher
        self._steps = steps
        self._drops = drops
        self._warn = warn
        self._shorten = shorten
        self._in_flight: dict[SegmentWriter, int] = {}  # the bytes that were written of each
        self._settling = 0  # tasks that wait for the end of a segment
        self._settled = Notifier()
        self._failure: Exception | None = None
        self._is_cut = False  # a cancellation truncates the segment that the source is making

    def cut_off(self) -> None:
        """The program has failed, and the task of :meth:`run` will be cancelled: the last segment is truncated then."""
        self._is_cut = True

    async def run(self) -> Totals:
        """Publish until the source ends.

        If its task is cancelled (Ctrl-C), it ends the segment that the source is making where that is, unless
        :meth:`cut_off` was called, and the server has :data:`INTERRUPTED_S` seconds to confirm it.

        Raises:
            TrickleError: the publisher cannot go on, or the source failed; then its last segment is truncated.
        """
        async with anyio.create_task_group() as tasks:
            segment: SegmentWriter | None = None
            try:
                while True:
                    step = await self._steps.receive()
                    if isinstance(step, Chunk):
                        segment = segment or await self._begin(tasks)
                        await self._write(segment, step.data)
                    elif segment is not None:
                        segment.end_nowait()
                        segment = None
            except anyio.EndOfStream:
                if segment is not None:
                    segment.end_nowait()
            except anyio.get_cancelled_exc_class():
                with suppress(TrickleError):  # _settle() reports it
                    if segment is not None and self._is_cut:
                        segment.abort()
                    elif segment is not None:
                        segment.end_nowait()
                with anyio.move_on_after(INTERRUPTED_S, shield=True):
                    while self._settling:
                        await self._settled.wait()
                raise
            except Exception as error:  # of the source: segments that are complete can still be confirmed
                self._failure = error
                if segment is not None:
                    segment.abort()
            if self._drops:
                tasks.cancel_scope.deadline = anyio.current_time() + CONFIRM_S
        if self._failure is not None:
            raise self._failure
        for segment in self._in_flight:
            segment._entered().is_seen = True  # the next lines tell it
            self.totals.lost += 1
            self._warn(f"segment {segment.seq} is lost: no answer within {CONFIRM_S:g} s")
        self._in_flight.clear()
        return self.totals

    def conclude(self) -> int:
        """Count the segments that the server has confirmed after :meth:`run`: they were under way when the publisher
        failed, or was interrupted.

        Returns:
            The number of others that no line has told.
        """
        results = [(one._entered().result, size) for one, size in self._in_flight.items()]
        self._in_flight.clear()
        self.totals.segments += sum(isinstance(result, Receipt) for result, _ in results)
        return sum(size > 0 and not isinstance(result, Receipt) for result, size in results)

    async def _begin(self, tasks: TaskGroup) -> SegmentWriter:
        """Enter the next segment."""
        segment = await self._publisher.begin()
        self._in_flight[segment] = 0
        self._settling += 1
        tasks.start_soon(self._settle, segment, tasks)
        return segment

    async def _write(self, segment: SegmentWriter, data: bytes) -> None:
        try:
            if self._drops:
                segment.write_nowait(data)
            else:
                await segment.write(data)
        except TrickleError:
            return  # _settle() reports it; the rest of the segment is left out
        if segment in self._in_flight:
            self._in_flight[segment] += len(data)
        self.totals.bytes += len(data)
        self.totals.seq = max(segment.seq, self.totals.seq or 0)

    async def _settle(self, segment: SegmentWriter, tasks: TaskGroup) -> None:
        """Wait until a segment was published or lost."""
        try:
            await segment.settled()
            self.totals.segments += 1
            self._in_flight.pop(segment, None)
        except SegmentDropped as error:
            self.totals.dropped += 1
            self._in_flight.pop(segment, None)
            name = "a segment" if error.seq is None else f"segment {error.seq}"
            self._warn(f"{name} is dropped: {self._publisher.trouble or 'the network is too slow'}")
        except Exception as error:
            if self._publisher.error is None and isinstance(error, BrokenByPeer):
                self.totals.lost += 1
                written = self._in_flight.pop(segment, 0)
                self._warn(f"segment {segment.seq} is lost: {error}")
                if isinstance(error, SegmentTooLarge):
                    self._shorten(written)
            elif self._failure is None:
                self._failure = error
                tasks.cancel_scope.cancel()
        finally:
            self._settling -= 1
            self._settled.notify()
