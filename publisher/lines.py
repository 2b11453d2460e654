"""Writes a channel of JSON lines, the counterpart of ``json_lines`` of :mod:`tricklecast.subscriber`.

A line is one chunk, so readers have it at once, and whole. Many lines share a segment, which costs the server less than
a segment for each. A segment ends a while after its first line, also if no further line comes, or when it has enough
lines or bytes. No line goes on over the end of a segment: a reader that begins at any segment gets no half of one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio

from tricklecast.publisher.writer import SegmentWriter
from tricklecast.trickle.client.arguments import check_number
from tricklecast.trickle.client.tasks import BackgroundTask
from tricklecast.trickle.errors import LocalProtocolError, TrickleError


class JsonLines:
    """Publishes one line of JSON for each object; made by :meth:`Publisher.json_lines`. Use it in ``async with``.

    Any number of tasks may write. Leaving the block ends the last segment and waits for its receipt, unless it is left
    with an exception, which cuts that segment off. If an earlier segment is lost, leaving the publisher's block raises
    ``SegmentsUnconfirmed``.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[SegmentWriter]],
        encode: Callable[[object], bytes],
        *,
        segment_s: float,
        segment_lines: int,
        segment_bytes: int,
    ) -> None:
        check_number("segment_s", segment_s, above=0)
        check_number("segment_lines", segment_lines, at_least=1, whole=True)
        check_number("segment_bytes", segment_bytes, at_least=1, whole=True)
        self._begin, self._encode = begin, encode
        self._segment_s = segment_s
        self._segment_lines, self._segment_bytes = segment_lines, segment_bytes
        self._segment: SegmentWriter | None = None
        self._lines = self._bytes = 0  # of the segment
        self._ends_at = 0.0
        self._begun = anyio.Event()  # there is a segment
        self._turn = anyio.Lock()  # a segment has one writer at a time
        self._timer: BackgroundTask | None = None
        self._is_open = False

    async def __aenter__(self) -> Self:
        if self._timer is not None:
            raise LocalProtocolError("a writer of lines is entered once")
        self._timer, self._is_open = BackgroundTask(self._rotate), True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        try:
            if self._timer is not None:
                await self._timer.stop()
            if error is None:
                async with self._turn:  # another task may be writing
                    if self._segment is not None:
                        await self._segment.end()
        finally:
            if self._segment is not None:
                self._segment.abort()  # unless it is over

    async def write(self, obj: object) -> None:
        """Write an object as a line; returns once it was handed to the connection. Readers get it at once.

        While the connection is away, it returns at once, as :meth:`SegmentWriter.write` does: that it returned does not
        say that the server has the line, nor that it will.

        A call that is cancelled has sent the whole line, or nothing of it.

        Raises:
            TypeError: ``obj`` cannot be written as JSON.
            InvalidInput: it has a value that JSON does not have, or its line is too long; nothing was sent.
            LocalProtocolError: this is not in its block.
            TrickleError: as :meth:`SegmentWriter.write`; the lines of this segment are lost. The next line begins
                another one.
        """
        data = self._encode(obj)
        async with self._turn:
            if not self._is_open:
                raise LocalProtocolError("lines are written inside the block of their writer")
            if self._segment is not None and self._bytes + len(data) > self._segment_bytes:
                self._end(self._segment)
            if self._segment is None:
                self._segment = await self._begin()
                self._lines = self._bytes = 0
                self._ends_at = anyio.current_time() + self._segment_s
                self._begun.set()
            self._lines, self._bytes = self._lines + 1, self._bytes + len(data)
            try:
                await self._segment.write(data)
            except TrickleError:
                self._segment, self._begun = None, anyio.Event()
                raise
            if self._lines >= self._segment_lines:
                self._end(self._segment)

    def _end(self, segment: SegmentWriter) -> None:
        self._segment, self._begun = None, anyio.Event()
        segment.end_nowait()

    async def _rotate(self) -> None:
        while True:
            await self._begun.wait()
            await anyio.sleep_until(self._ends_at)
            async with self._turn:
                if self._segment is not None and anyio.current_time() >= self._ends_at:
                    self._end(self._segment)
