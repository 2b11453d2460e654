"""Writes the steps of a source into a publisher, segment by segment.

Segments overlap: the next one begins while the server has yet to answer the one before it. Where the source may not be
held up (live media), a connection that stalls holds up nothing but its own segment; chunks queue up in memory, up to a
limit, and the publisher drops the oldest segment when too many are under way. Otherwise the source waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskGroup

from tricklecast.publisher.client import MAX_IN_FLIGHT, Publisher, Segment
from tricklecast.publisher.steps import Chunk, Step
from tricklecast.publisher.worker import Steps
from tricklecast.trickle.errors import BrokenByPeer, SegmentDropped, TrickleError

JOIN_BYTES: Final = 32 * 1024
"""Chunks that wait anyway are written as one, up to the size that servers pass on unsplit."""

QUEUE_BYTES: Final = 8 * 1024 * 1024
"""What may wait for the connection of one segment, in bytes: seconds of the best video. Beyond it, live media drops the
segment; with as many as are in flight, and what the publisher keeps of each, that bounds the memory."""

PATIENCE_S: Final = 0.5
"""How long live media waits for room in front of a segment, in seconds, before the oldest one is dropped. Some sources
(HLS) come in bursts of several segments; that is no reason to drop any. Receivers buffer more than that."""

SETTLE_S: Final = 10.0
"""How long the last segments have for their answers when the source has ended, in seconds."""


@dataclass(slots=True)
class Totals:
    """What was published so far.

    Attributes:
        segments: complete ones.
        bytes: written, including those of the segments under way.
        lost: segments that failed.
        dropped: segments that were given up here, because the network was too slow for them.
        seq: the newest segment, if there is one.
    """

    segments: int = 0
    bytes: int = 0
    lost: int = 0
    dropped: int = 0
    seq: int | None = None


class Feed:
    """Publishes everything that a source produces.

    A segment that fails is reported and skipped, since the next one may still get through; if the publisher cannot go
    on, its error is raised.

    Args:
        publisher: entered; made with ``when_full="drop"`` if segments may be dropped, otherwise with ``"wait"``.
        steps: what to publish.
        drops: the source may not be held up: what the network is too slow for is dropped.
        warn: is told about each segment that is lost or dropped.
    """

    def __init__(
        self,
        publisher: Publisher,
        steps: Steps,
        *,
        drops: bool,
        warn: Callable[[str], None],
    ) -> None:
        self.totals = Totals()
        self._publisher = publisher
        self._steps = steps
        self._drops = drops
        self._warn = warn
        self._carried: set[Segment] = set()
        self._settled = anyio.Event()
        self._failure: TrickleError | None = None

    async def run(self) -> Totals:
        """Publish until the source ends.

        Raises:
            TrickleError: the publisher cannot go on.
        """
        async with anyio.create_task_group() as tasks:
            queue: _Queue | None = None
            while (step := await self._next()) is not None:
                if isinstance(step, Chunk):
                    queue = queue or await self._begin(tasks)
                    await queue.add(step.data)
                elif queue is not None:
                    queue.end()
                    queue = None
            if queue is not None:
                queue.end()
            if self._drops:
                tasks.cancel_scope.deadline = anyio.current_time() + SETTLE_S
        if self._failure is not None:
            raise self._failure
        for segment in self._carried:
            self.totals.lost += 1
            self._warn(f"segment {segment.seq} is lost: no answer within {SETTLE_S:g} s")
        return self.totals

    async def _begin(self, tasks: TaskGroup) -> _Queue:
        """Enter the next segment; what is added to the queue is written into it."""
        with anyio.move_on_after(PATIENCE_S if self._drops else None):
            while len(self._carried) >= MAX_IN_FLIGHT:
                await self._settled.wait()
        queue = _Queue(self._drops)
        tasks.start_soon(self._carry, queue, tasks)
        await queue.entered.wait()
        return queue

    async def _carry(self, queue: _Queue, tasks: TaskGroup) -> None:
        """Publish one segment, from its queue."""
        segment = self._publisher.segment(wait=False)
        try:
            with queue.scope:
                async with segment:
                    self._carried.add(segment)
                    queue.entered.set()
                    await self._write(segment, queue)
                await segment.settled()
            if queue.scope.cancelled_caught:
                raise SegmentDropped
            self.totals.segments += 1
        except SegmentDropped:
            self.totals.dropped += 1
            self._warn(f"segment {segment.seq} is dropped: {self._publisher.trouble or 'the network is too slow'}")
        except TrickleError as error:
            self._fail(segment, error, tasks)
        finally:
            queue.abandon()
        self._carried.discard(segment)
        settled, self._settled = self._settled, anyio.Event()
        settled.set()

    async def _write(self, segment: Segment, queue: _Queue) -> None:
        while data := await queue.take():
            await segment.write(data)
            self.totals.bytes += len(data)
            self.totals.seq = max(segment.seq, self.totals.seq or 0)

    def _fail(self, segment: Segment, error: TrickleError, tasks: TaskGroup) -> None:
        if self._publisher.error is not None or not isinstance(error, BrokenByPeer):
            self._failure = self._failure or error
            tasks.cancel_scope.cancel()
        else:
            self.totals.lost += 1
            self._warn(f"segment {segment.seq} is lost: {error}")

    async def _next(self) -> Step | None:
        try:
            return await self._steps.receive()
        except anyio.EndOfStream:
            return None


class _Queue:
    """The chunks of one segment on their way to its connection.

    Attributes:
        entered: the segment has been entered, or never will be.
        scope: what writes the segment; it is cancelled when too much waits here.
    """

    def __init__(self, drops: bool) -> None:
        self.entered = anyio.Event()
        self.scope = anyio.CancelScope()
        self._drops = drops
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._over = False
        self._changed = anyio.Event()

    async def add(self, data: bytes) -> None:
        """One more chunk; waits for room, unless the source may not be held up."""
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

    def abandon(self) -> None:
        """Nobody takes chunks any more; further ones are thrown away."""
        self.entered.set()
        self._chunks.clear()
        self.end()

    async def take(self) -> bytes:
        """The chunks that are there, up to :data:`JOIN_BYTES` together, as soon as there are any; none at the end."""
        while not self._chunks and not self._over:
            await self._changed.wait()
        parts: list[bytes] = []
        size = 0
        while self._chunks and (not parts or size + len(self._chunks[0]) <= JOIN_BYTES):
            parts.append(self._chunks.popleft())
            size += len(parts[-1])
        self._size -= size
        self._notify()
        return b"".join(parts)

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
