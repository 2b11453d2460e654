"""A segment as the program writes it: the calls that it may make at each stage, and their results."""

from __future__ import annotations

from types import TracebackType

from tricklecast.publisher.core import Receipt
from tricklecast.publisher.segments import Segments
from tricklecast.publisher.uploads import InFlight
from tricklecast.trickle.errors import ClosedHere, LocalProtocolError, as_bytes


class SegmentWriter:
    """One segment while it is being written; made by :meth:`Publisher.segment`.

    Leaving the block normally ends the segment and waits for its receipt, unless ``wait=False`` was asked for: then
    only until it was handed over, and :meth:`settled` waits for the rest. Leaving the block with an exception cuts the
    segment off, so that nobody takes the part for the whole: the server closes it as truncated.
    """

    def __init__(self, segments: Segments, *, wait: bool, is_one_chunk: bool = False) -> None:
        self._segments = segments
        self._wait = wait  # leaving the block waits for the receipt
        self._is_one_chunk = is_one_chunk  # its first chunk is its last one
        self._in_flight: InFlight | None = None  # None until it is entered
        self._writing = False  # a task is in write()

    @property
    def seq(self) -> int:
        """Its number in the channel. Before the first chunk, the one that it would get now; final once it was
        published.

        A segment that was given up before anything of it was sent has no number: this one is, or will be, that of
        another segment. The ``seq`` of ``SegmentDropped`` and of the event ``SegmentLost`` is ``None`` then.
        """
        segment = self._entered()
        return self._segments.coming_seq if segment.upload is None else segment.upload.ticket.seq

    @property
    def receipt(self) -> Receipt:
        """Return the result of the segment.

        Raises:
            TrickleError: it failed (``ClosedHere``: it was cut off here; ``SegmentDropped``: it was given up here).
            LocalProtocolError: it is not over yet.
        """
        segment = self._entered()
        if isinstance(segment.result, Receipt):
            return segment.result
        segment.check()
        raise LocalProtocolError("the segment is not over yet")

    async def __aenter__(self) -> SegmentWriter:
        if self._in_flight is not None:
            raise LocalProtocolError("a segment is entered once")
        self._in_flight = await self._segments.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        segment = self._in_flight or self._entered()
        segment.left = True
        handed_over = False
        try:
            if error is None:
                self.end_nowait()
                if self._wait:
                    await self.settled()
                elif segment.result is None and segment.upload is not None:
                    await segment.upload.body.flush()
                handed_over = not self._wait
        finally:
            if not handed_over and segment.result is None:
                self.abort()

    async def write(self, chunk: bytes) -> None:
        """Write one chunk; returns once it was handed to the connection. Readers get it as it is, in one piece.

        While the connection has to be made again, it returns at once as long as the chunk can be kept.

        A call that is cancelled has handed over the whole chunk, or nothing of it, and the segment goes on, unless the
        cancellation leaves its block. ``sent`` of its receipt counts the bytes that were handed over.

        Args:
            chunk: the bytes. An empty one is ignored.

        Raises:
            ChannelEnded: the channel has ended.
            ChannelNotFound: there is no such channel, and it may not be created.
            ChannelBusy: another client publishes to the channel.
            Superseded: the segment is closed, or another publisher has taken it over.
            SegmentTooLarge: the server keeps only the first part of it.
            Refused: the server said no.
            ConnectionLost: the connection broke, and the segment could not be sent again.
            SegmentDropped: it was given up, since the buffer was full.
            LocalProtocolError: the segment is not open, or another task is writing it.
            TypeError: the chunk is not bytes.
        """
        segment = self._in_flight
        if segment is None or segment.left or self._writing:
            segment = self._opened()
        self._writing = True
        try:
            if segment.result is not None:
                segment.check()
            if data := chunk if isinstance(chunk, bytes) else as_bytes(chunk):
                upload = segment.upload or self._segments.bind(segment)
                if not await upload.body.put(data, last=self._is_one_chunk):
                    segment.check()
        finally:
            self._writing = False

    def write_nowait(self, chunk: bytes) -> None:
        """Write one chunk without waiting, for live media: bytes that the connection does not take now wait in memory.

        Raises:
            TypeError: the chunk is not bytes.
            SegmentDropped: the buffer has no room for it; the segment is given up.
            TrickleError: as :meth:`write`.
        """
        segment = self._opened()
        segment.check()
        if (data := as_bytes(chunk)) and not self._segments.bind(segment).body.put_nowait(data):
            if segment.result is None:
                self._segments.drop(segment)
            segment.check()

    def end_nowait(self) -> None:
        """End the segment without waiting, instead of leaving its block; :meth:`settled` waits for the receipt."""
        segment = self._in_flight or self._entered()
        if self._writing:
            self._check_writer()
        segment.left = True
        segment.ended_at = self._segments.now()
        if segment.result is None:
            upload = segment.upload or self._segments.bind(segment)
            upload.body.end()

    async def end(self) -> Receipt:
        """End the segment, and wait for its receipt. A wait that is cancelled changes nothing: call it again.

        Raises:
            TrickleError: it failed, as in :meth:`write`.
        """
        if not self._entered().left:
            self.end_nowait()
        return await self.settled()

    def abort(self) -> None:
        """Cut the segment off, unless it is over: the server closes it as truncated, and its result is ``ClosedHere``.

        It does not wait, so it is called without ``await``::

            segment.abort()

        Raises:
            LocalProtocolError: it has not been entered.
        """
        segment = self._entered()
        segment.left = True
        if segment.result is None:
            self._segments.give_up(segment, ClosedHere("the segment was cut off"))

    async def settled(self) -> Receipt:
        """Wait until it was published or lost. A wait that is cancelled changes nothing.

        Raises:
            TrickleError: it failed, as in :meth:`write`.
        """
        segment = self._in_flight or self._entered()
        segment.asking += 1
        try:
            while segment.result is None:
                await segment.done.wait()
        finally:
            segment.asking -= 1
        return segment.result if isinstance(segment.result, Receipt) else self.receipt

    def _entered(self) -> InFlight:
        if self._in_flight is None:
            raise LocalProtocolError(
                "the segment has not been entered: write in its block (async with publisher.segment())"
            )
        return self._in_flight

    def _opened(self) -> InFlight:
        segment = self._entered()
        if segment.left:
            if isinstance(segment.result, ClosedHere):  # by another task, perhaps: a loop that writes ends by that
                segment.check()
            raise LocalProtocolError("the segment is not open")
        self._check_writer()
        return segment

    def _check_writer(self) -> None:
        if self._writing:
            raise LocalProtocolError("another task is writing this segment: a segment has one writer at a time")
