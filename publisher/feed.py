"""Writes the steps of a source into a publisher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio

from publisher.client import Publisher, Segment
from publisher.steps import Chunk, Step
from publisher.worker import Steps
from trickle.errors import BrokenByPeer

JOIN_BYTES: Final = 32 * 1024
"""Chunks that wait anyway are written as one, up to the size that servers pass on unsplit."""


@dataclass(slots=True)
class Totals:
    """What was published so far.

    Attributes:
        segments: complete ones.
        bytes: written, including those of the segment under way.
        lost: segments that failed half-way.
        dropped: segments that the network was too slow for.
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
        publisher: entered.
        steps: what to publish.
        warn: is told about each lost segment.
    """

    def __init__(
        self,
        publisher: Publisher,
        steps: Steps,
        *,
        warn: Callable[[str], None],
    ) -> None:
        self.totals = Totals()
        self._publisher = publisher
        self._steps = steps
        self._warn = warn
        self._pending: Step | None = None

    async def run(self) -> Totals:
        """Publish until the source ends.

        Raises:
            TrickleError: the publisher cannot go on.
        """
        while (step := await self._next()) is not None:
            if isinstance(step, Chunk):
                await self._segment(step)
        return self.totals

    async def _segment(self, first: Chunk) -> None:
        step: Step | None = first
        segment = self._publisher.segment()
        try:
            async with segment:
                while isinstance(step, Chunk):
                    await self._write(segment, step)
                    step = await self._next()
        except BrokenByPeer as error:
            if self._publisher.error is not None:
                raise
            self.totals.lost += 1
            self._warn(f"segment {segment.seq} is lost: {error}")
            while isinstance(step, Chunk):
                step = await self._next()
        else:
            self.totals.segments += 1

    async def _write(self, segment: Segment, chunk: Chunk) -> None:
        data = self._join(chunk.data)
        self.totals.seq = segment.seq
        await segment.write(data)
        self.totals.bytes += len(data)

    def _join(self, data: bytes) -> bytes:
        """Add the chunks that are there already."""
        parts, size = [data], len(data)
        while size < JOIN_BYTES:
            step = self._peek()
            if not isinstance(step, Chunk) or size + len(step.data) > JOIN_BYTES:
                break
            parts.append(step.data)
            size += len(step.data)
            self._pending = None
        return b"".join(parts)

    def _peek(self) -> Step | None:
        if self._pending is None:
            try:
                self._pending = self._steps.receive_nowait()
            except (anyio.WouldBlock, anyio.EndOfStream):
                return None
        return self._pending

    async def _next(self) -> Step | None:
        if self._pending is not None:
            step, self._pending = self._pending, None
            return step
        try:
            return await self._steps.receive()
        except anyio.EndOfStream:
            return None
