"""One segment while it is being written."""

from __future__ import annotations

from types import TracebackType

from tricklecast.publisher.flights import Flight
from tricklecast.publisher.posts import Posts
from tricklecast.publisher.verdicts import Receipt
from tricklecast.trickle.errors import ClosedHere, LocalProtocolError


class Segment:
    """One segment while it is being written; made by :meth:`~tricklecast.publisher.client.Publisher.segment`.

    Leaving the block normally ends the segment and waits for its receipt, unless ``wait=False`` was asked for: then
    only until it was handed over, and :meth:`settled` waits for the rest. Leaving the block with an exception cuts the
    segment off, so that nobody takes the part for the whole: the server closes it as truncated.
    """

    def __init__(self, posts: Posts, *, wait: bool) -> None:
        self._posts = posts
        self._wait = wait
        self._flight: Flight | None = None
        self._left = False

    @property
    def seq(self) -> int:
        """Its number in the channel. Before the first chunk, the one that it would get now; final once it was
        published."""
        return self._posts.seq_of(self._entered())

    @property
    def receipt(self) -> Receipt:
        """What became of it.

        Raises:
            TrickleError: it failed.
            LocalProtocolError: it is not over yet (``ClosedHere``: it was cut off here; ``SegmentDropped``: too many
                were in flight).
        """
        return self._entered().receipt()

    async def __aenter__(self) -> Segment:
        if self._flight is not None:
            raise LocalProtocolError("a segment is entered once")
        self._flight = await self._posts.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        flight = self._entered()
        self._left = True
        handed_over = False
        try:
            if error is None:
                await self._posts.end(flight)
                handed_over = not self._wait
                if self._wait:
                    await flight.done.wait()
                    flight.receipt()
        finally:
            if not handed_over:
                self._posts.give_up(flight, ClosedHere("the segment was cut off"))

    async def write(self, chunk: bytes) -> None:
        """Write one chunk; returns once it was handed to the connection. Readers get it as it is, in one piece.

        While the connection has to be made again, it returns at once as long as the chunk can be kept.

        Raises:
            ChannelEnded: the channel has ended.
            ChannelNotFound: there is no such channel, and it may not be created.
            Superseded: the segment is closed, or another publisher has taken it over.
            SegmentTooLarge: the server keeps only the first part of it.
            Refused: the server said no.
            ConnectionLost: the connection broke, and the segment could not be sent again.
            SegmentDropped: it was given up, since too many were in flight.
            LocalProtocolError: the segment is not open.
        """
        flight = self._entered()
        if self._left:
            raise LocalProtocolError("the segment is not open")
        await self._posts.write(flight, bytes(chunk))

    async def settled(self) -> Receipt:
        """Wait until its fate is known. A wait that is cancelled changes nothing.

        Raises:
            TrickleError: it failed, as in :meth:`write`.
        """
        flight = self._entered()
        await flight.done.wait()
        return flight.receipt()

    def _entered(self) -> Flight:
        if self._flight is None:
            raise LocalProtocolError("the segment has not been entered")
        return self._flight
