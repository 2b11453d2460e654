"""From a source that blocks, through a thread and a queue per segment, into a publisher.

A source makes steps (:mod:`tricklecast.publisher.steps`) in a thread of its own (:func:`stepping`). :class:`Feed`
writes them into segments. Segments overlap: the next one begins while the server has yet to confirm the one before it.
Live media cannot wait, so a segment whose connection stalls holds up no other: its chunks wait in memory up to a limit,
and the oldest segment is dropped when too many are in flight. Any other source waits instead.
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

from tricklecast.publisher.client import Publisher, Segment
from tricklecast.publisher.steps import Chunk, IsStopped, Step
from tricklecast.trickle.errors import BrokenByPeer, SegmentDropped

MAX_IN_FLIGHT: Final = 3
"""Segments that were begun, and that the server has not confirmed yet."""

STEPS_AHEAD: Final = 64
"""How many steps a source may be ahead: a second of media, or 4 MiB of plain bytes."""

JOIN_BYTES: Final = 32 * 1024
"""Chunks that wait in the queue are written as one, up to the size that servers pass on unsplit."""

QUEUE_BYTES: Final = 8 * 1024 * 1024
"""What may wait for the connection of one segment of live media, in bytes: seconds of the best video. If more waits,
the segment is dropped. Memory is bounded by this limit, times the segments in flight."""

BURST_S: Final = 0.5
"""How long live media waits before a full publisher drops its oldest segment, in seconds. Some sources (HLS) come in
bursts of several segments; receivers buffer more than this."""

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
    """What was published so far."""

    segments: int = 0  # confirmed by the server
    bytes: int = 0  # written, those of the segments in flight included
    lost: int = 0  # segments that failed
    dropped: int = 0  # segments that were given up here, because the network was too slow for them
    seq: int | None = None  # the newest segment; None before the first byte


# A source, in a thread.


@asynccontextmanager
async def stepping(source: Callable[[IsStopped], Iterator[Step]]) -> AsyncIterator[Steps]:
    """Run a source in a thread, for asyncio. The block is entered once the source is open.

    Leaving the block stops the source. A read that blocks is not waited for: the thread is a daemon, and ends with its
    read or with the process.

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
    """The steps of a source, as they are received."""

    def __init__(self) -> None:
        self.room = threading.Semaphore(STEPS_AHEAD)  # for steps that may be added
        self._waiting: deque[Step] = deque()
        self._over = False
        self._failure: Exception | None = None
        self._changed = anyio.Event()

    async def receive(self) -> Step:
        """See :class:`Receiver`."""
        while not self._waiting and not self._over:
            self._changed = anyio.Event()
            await self._changed.wait()
        if self._waiting:
            self.room.release()
            return self._waiting.popleft()
        raise self._failure or anyio.EndOfStream

    def add(self, step: Step) -> None:
        """Add a step; called in the event loop, as is :meth:`end`."""
        self._waiting.append(step)
        self._changed.set()

    def end(self, failure: Exception | None = None) -> None:
        """No step follows."""
        self._over, self._failure = True, failure
        self._changed.set()

    def check_opened(self) -> None:
        """Raise why the source could not be opened."""
        if self._failure is not None and not self._waiting:
            raise self._failure


# From steps to segments.


class Feed:
    """Publishes the steps of a source.

    A segment that fails is reported and skipped, since the next one may get through. An error after which nothing can
    be published is raised.

    Args:
        publisher: entered; made with ``when_full="drop"`` if segments may be dropped, otherwise with ``"wait"``.
        steps: what to publish.
        drops: segments are dropped when the network is too slow; otherwise the source waits.
        warn: is told about each segment that is lost or dropped.
    """

    def __init__(self, publisher: Publisher, steps: Receiver, *, drops: bool, warn: Callable[[str], None]) -> None:
        self.totals = Totals()
        self._publisher = publisher
        self._steps = steps
        self._drops = drops
        self._warn = warn
        self._in_flight: set[Segment] = set()
        self._queue: _Queue | None = None  # of the segment that the source is making
        self._writing = 0  # tasks that write a segment
        self._settled = anyio.Event()
        self._failure: Exception | None = None

    async def run(self) -> Totals:
        """Publish until the source ends.

        If its task is cancelled (Ctrl-C), the segment that the source is making is ended where it is, and the server
        has :data:`INTERRUPTED_S` seconds to confirm it. A cancellation of a scope cuts it off.

        Raises:
            TrickleError: the publisher cannot go on, or the source failed; then its last segment is truncated.
        """
        async with anyio.create_task_group() as tasks:
            try:
                while True:
                    step = await self._steps.receive()
                    if isinstance(step, Chunk):
                        queue = self._queue or await self._begin(tasks)
                        await queue.add(step.data)
                    else:
                        self._end_segment()
            except anyio.EndOfStream:
                self._end_segment()
            except anyio.get_cancelled_exc_class():
                self._end_segment()
                with anyio.move_on_after(INTERRUPTED_S, shield=True):
                    while self._writing:
                        await self._settled.wait()
                raise
            except Exception as error:  # of the source: segments that are complete can still be confirmed
                self._failure = error
                if self._queue is not None:
                    self._queue.fail(error)
            if self._drops:
                tasks.cancel_scope.deadline = anyio.current_time() + CONFIRM_S
        if self._failure is not None:
            raise self._failure
        for segment in self._in_flight:
            self.totals.lost += 1
            self._warn(f"segment {segment.seq} is lost: no answer within {CONFIRM_S:g} s")
        return self.totals

    def _end_segment(self) -> None:
        """No step follows that belongs to the same segment."""
        if self._queue is not None:
            self._queue.end()
            self._queue = None

    async def _begin(self, tasks: TaskGroup) -> _Queue:
        """Enter the next segment."""
        with anyio.move_on_after(BURST_S if self._drops else None):
            while len(self._in_flight) >= MAX_IN_FLIGHT:
                await self._settled.wait()
        queue = self._queue = _Queue(self._drops)
        self._writing += 1
        tasks.start_soon(self._write, queue, tasks)
        await queue.entered.wait()
        return queue

    async def _write(self, queue: _Queue, tasks: TaskGroup) -> None:
        segment = self._publisher.segment(wait=False)
        try:
            with queue.scope:
                async with segment:
                    self._in_flight.add(segment)
                    queue.entered.set()
                    while data := await queue.take():
                        await segment.write(data)
                        self.totals.bytes += len(data)
                        self.totals.seq = max(segment.seq, self.totals.seq or 0)
                await segment.settled()
            if queue.scope.cancelled_caught:
                raise SegmentDropped
            self.totals.segments += 1
        except SegmentDropped:
            self.totals.dropped += 1
            self._warn(f"segment {segment.seq} is dropped: {self._publisher.trouble or 'the network is too slow'}")
        except Exception as error:
            self._fail(segment, error, tasks)
        finally:
            queue.abandon()
            self._writing -= 1
            settled, self._settled = self._settled, anyio.Event()
            settled.set()
        self._in_flight.discard(segment)

    def _fail(self, segment: Segment, error: Exception, tasks: TaskGroup) -> None:
        if self._publisher.error is None and isinstance(error, BrokenByPeer):
            self.totals.lost += 1
            self._warn(f"segment {segment.seq} is lost: {error}")
        elif error is not self._failure:
            self._failure = self._failure or error
            tasks.cancel_scope.cancel()


class _Queue:
    """The chunks of one segment on their way to its connection."""

    def __init__(self, drops: bool) -> None:
        self.entered = anyio.Event()  # set when the segment has been entered, or never will be
        self.scope = anyio.CancelScope()  # of the task that writes the segment; cancelled when too much waits here
        self._drops = drops
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._over = False
        self._failure: Exception | None = None
        self._changed = anyio.Event()

    async def add(self, data: bytes) -> None:
        """Add a chunk; waits for room, unless segments are dropped instead."""
        while not self._drops and self._size >= JOIN_BYTES and not self._over:
            await self._changed.wait()
        if self._over:
            return
        if self._size + len(data) > QUEUE_BYTES:
            self.scope.cancel()
            self.abandon()
            return
        self._chunks.append(data)
        self._size += len(data)
        self._notify()

    def end(self) -> None:
        """No chunk follows."""
        self._over = True
        self._notify()

    def fail(self, error: Exception) -> None:
        """The rest of the segment is missing: :meth:`take` raises the error, so that the segment is truncated."""
        self._failure = error
        self.end()

    def abandon(self) -> None:
        """Nobody takes chunks any more; further ones are discarded."""
        self.entered.set()
        self._chunks.clear()
        self.end()

    async def take(self) -> bytes:
        """Wait for chunks, and take up to :data:`JOIN_BYTES` of them; empty at the end."""
        while not self._chunks and not self._over:
            await self._changed.wait()
        if self._failure is not None and not self._chunks:
            raise self._failure
        parts: list[bytes] = []
        taken = 0
        while self._chunks and (not parts or taken + len(self._chunks[0]) <= JOIN_BYTES):
            parts.append(self._chunks.popleft())
            taken += len(parts[-1])
        self._size -= taken
        self._notify()
        return b"".join(parts)

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
