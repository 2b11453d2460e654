"""One segment as its subscriber reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

import anyio
import httpx

from tricklecast.subscriber.again import Again, Read
from tricklecast.subscriber.getter import body_of
from tricklecast.subscriber.verdicts import Advance
from tricklecast.trickle import wire
from tricklecast.trickle.errors import ClosedHere, ConnectionLost, Position, SegmentTooLarge

READ_LIMIT: Final = 64 * 1024 * 1024
"""Most bytes that ``read()`` takes by default: the server's own limit for a segment."""

OnBroken: TypeAlias = Literal["skip", "raise"]


class Reading(Enum):
    """How far the reading of a segment has come."""

    OPEN = "open"
    WHOLE = "whole"
    BROKEN = "broken"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Opened:
    """A GET that became a segment.

    Attributes:
        response: what its bytes come from.
        requested_at, answered_at: when the GET was made, and when its head was there; monotonic seconds.
    """

    response: httpx.Response
    requested_at: float
    answered_at: float


class Segment:
    """A segment, iterated over chunk by chunk as the publisher sent them (up to 64 KiB each in one piece).

    It can be left at any time by going on to the next one. A read that is cancelled gives the segment up. If its
    connection is cut, it is asked for again and goes on where it stopped, unless the server has no such segment any
    more (:mod:`tricklecast.subscriber.again`); only then it is ``broken``.

    Attributes:
        seq: its number.
        epoch: which life of the channel's name it belongs to; ``None`` where the server does not say.
        life: the name of its numbering, which stays the same when a server is restarted and its publisher goes on;
            ``None`` where the server does not say.
        gap: segments missed immediately before this one. After a ``restarted`` these are segments of the new
            numbering, as far as the server lets it be known; a segment that the user left by a seek is none.
        restarted: the channel's numbering is not the one of the segment before, or of the position that was begun at
            (the channel was created again, or the server has restarted).
        content_type: the channel's media type.
        size_at_start: bytes that were there when the answer began, ``None`` where the server does not say.
        lag: newer segments that had begun when the server got the GET for this one; 0 at the live edge.
        truncated: why the segment is not whole: what the server said at its start or, at the latest, at its end.
            ``"skipped"``: it has no byte because its publisher passed it over; an empty one that was published as that
            has ``None``.
        broken: the connection was cut before the segment's end; what was read is a part of it.
        requested_at: when the GET was made that was answered with this segment, in seconds on a monotonic clock.
        answered_at: when the head of that answer was there, on the same clock.
    """

    def __init__(
        self,
        begun: Advance,
        opened: Opened,
        again: Again,
        on_bytes: Callable[[int], None],
        on_end: Callable[[Segment], None],
        *,
        stall_timeout_s: float | None = None,
        on_broken: OnBroken = "skip",
    ) -> None:
        self.seq: Final = begun.seq
        self.epoch: Final = begun.epoch
        self.life: Final = begun.life
        self.gap: Final = begun.gap
        self.restarted: Final = begun.restarted
        self.content_type: Final = begun.content_type
        self.size_at_start: Final = begun.size_at_start
        self.lag: Final = begun.lag
        self.truncated: str | None = begun.truncated
        self.broken: ConnectionLost | None = None
        self.reading = Reading.WHOLE if begun.empty else Reading.OPEN
        self.requested_at: Final = opened.requested_at
        self.answered_at: Final = opened.answered_at
        self._response = opened.response
        self._again = again
        self._read = Read(begun.seq, begun.epoch, begun.life)
        self._attempt = 1
        self._gone_on_at: int | None = None
        self._on_bytes = on_bytes
        self._on_end = on_end
        self._stall_s = stall_timeout_s
        self._on_broken = on_broken
        self._chunks: AsyncIterator[bytes] | None = None
        self._reader: anyio.CancelScope | None = None
        self._stopped = False

    @property
    def bytes_read(self) -> int:
        """How many bytes have been handed on."""
        return self._read.size

    @property
    def position(self) -> Position:
        """Where to begin in order to read this segment again."""
        return Position(self.seq, self.epoch, self.life)

    @property
    def complete(self) -> bool:
        """Whether all of the segment has been read, and it was not cut short by anyone."""
        return self.reading is Reading.WHOLE and self.truncated is None

    def __aiter__(self) -> Segment:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk.

        A segment whose connection is cut ends here like a whole one, with ``broken`` set; its chunks are in the
        user's hands already. With ``on_broken="raise"``, and always in :meth:`read`, it raises instead.

        A segment that is left by a seek ends here, too.

        Raises:
            ConnectionLost: the segment broke, and that is to be raised.
            ClosedHere: the segment was left before.
        """
        chunk = await self._next_chunk()
        if chunk:
            return chunk
        if self.broken is not None and self._on_broken == "raise":
            self._on_broken = "skip"
            raise self.broken
        raise StopAsyncIteration

    async def read(self, limit: int = READ_LIMIT) -> bytes:
        """The whole rest of the segment.

        Args:
            limit: most bytes to hold.

        Raises:
            ConnectionLost: the segment broke: what came of it would be taken for the whole.
            SegmentTooLarge: it is longer than the limit; the segment has been left.
            ClosedHere: the segment was left before.
        """
        parts: list[bytes] = []
        size = 0
        while chunk := await self._next_chunk():
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                await self.aclose()
                error = SegmentTooLarge(None, seq=self.seq, detail=f"longer than the limit of {limit} bytes")
                error.resume = self.position
                raise error
        if self.broken is not None:
            raise self.broken
        if self.reading is Reading.LEFT:
            raise ClosedHere(f"segment {self.seq} was left by a seek")
        return b"".join(parts)

    async def aclose(self) -> None:
        """Leave the segment, also while another task reads it: there it raises ``ClosedHere``.

        Nothing happens if it was read to its end.
        """
        if self.reading is Reading.OPEN:
            if self._reader is not None:
                self._reader.cancel()
            await self._end(Reading.LEFT)

    async def stop(self) -> None:
        """Leave the segment, also while another task reads it: there it ends, marked as not complete."""
        self._stopped = True
        await self.aclose()

    async def _next_chunk(self) -> bytes:
        """The next chunk, ``b""`` at the end, after a cut and after :meth:`stop`."""
        chunk = await self._read_on() if self.reading is Reading.OPEN else b""
        if self._is_left() and not self._stopped:
            raise ClosedHere(f"segment {self.seq} was left")
        return chunk

    async def _read_on(self) -> bytes:
        chunk = b""
        try:
            with anyio.CancelScope() as self._reader:
                chunk = await self._pull_or_resume()
        except BaseException:
            self._reader = None
            await self.aclose()
            raise
        self._reader = None
        if self._is_left():
            return b""
        self._read = self._read.plus(chunk)
        self._on_bytes(len(chunk))
        return chunk

    async def _pull_or_resume(self) -> bytes:
        """A chunk with a byte in it at least, or ``b""``: the segment has ended."""
        while self.reading is Reading.OPEN:
            try:
                chunk = await self._pull()
            except ConnectionLost as error:
                chunk = await self._resume(error) if self.reading is Reading.OPEN else b""
            if chunk:
                return chunk
        return b""

    async def _pull(self) -> bytes:
        if self._chunks is None:
            self._chunks = body_of(self._response)
        try:
            if self._stall_s is None:
                chunk = await anext(self._chunks, b"")
            else:
                with anyio.fail_after(self._stall_s):
                    chunk = await anext(self._chunks, b"")
        except TimeoutError:
            raise self._lost(f"no byte for {self._stall_s:g} s") from None
        except httpx.TransportError as error:
            raise self._lost(str(error)) from error
        if not chunk:
            await self._end(Reading.WHOLE)
        return chunk

    async def _resume(self, error: ConnectionLost) -> bytes:
        """Go on behind what was handed on, or mark the segment as broken."""
        await self._close_response()
        # Once without any progress is enough: the same would happen again.
        stuck = self._gone_on_at == self._read.size
        rest = None if stuck else await self._again.get(self._read, error, self._attempt)
        if self._is_left():
            if rest is not None:
                await rest.response.aclose()
            return b""
        if rest is None:
            self.broken = error
            await self._end(Reading.BROKEN)
            return b""
        self._gone_on_at, self._attempt = self._read.size, rest.attempt
        self._response, self._chunks = rest.response, rest.chunks
        self.truncated = self.truncated or rest.response.headers.get(wire.TRUNCATED)
        return rest.first

    def _lost(self, detail: str) -> ConnectionLost:
        error = ConnectionLost(seq=self.seq, detail=detail)
        error.resume = self.position
        return error

    def _is_left(self) -> bool:
        """Whether another task has left the segment while this one was waiting."""
        return self.reading is Reading.LEFT

    async def _end(self, reading: Reading) -> None:
        if self.reading is not Reading.OPEN:
            return
        self.reading = reading
        trailers = self._response.extensions.get("trailers", {})
        self.truncated = self.truncated or trailers.get(wire.TRUNCATED)
        self._on_end(self)
        await self._close_response()

    async def _close_response(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._response.aclose()
