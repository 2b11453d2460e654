"""One segment as its subscriber reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Final, Literal, TypeAlias

import anyio
import httpx

from subscriber.getter import body_of
from subscriber.verdicts import Advance
from trickle import wire
from trickle.errors import ClosedHere, ConnectionLost, SegmentTooLarge

READ_LIMIT: Final = 64 * 1024 * 1024
"""Most bytes that ``read()`` takes by default: the server's own limit for a segment."""

OnBroken: TypeAlias = Literal["skip", "raise"]


class Reading(Enum):
    """How far the reading of a segment has come."""

    OPEN = "open"
    WHOLE = "whole"
    BROKEN = "broken"
    LEFT = "left"


class Segment:
    """A segment, iterated over chunk by chunk as the publisher sent them (up to 64 KiB each in one piece).

    It can be left at any time by going on to the next one. A read that is cancelled gives the segment up.

    Attributes:
        seq: its number.
        epoch: which life of the channel's name it belongs to; ``None`` where the server does not say.
        gap: segments missed immediately before this one.
        restarted: the channel's numbering is not the one of the segment before (it was created again, or the
            server has restarted).
        content_type: the channel's media type.
        size_at_start: bytes that were there when the answer began, ``None`` where the server does not say.
        truncated: why the segment is not whole: what the server said at its start or, at the latest, at its end.
        broken: the connection was cut before the segment's end; what was read is a part of it.
        bytes_read: how much has been handed on.
    """

    def __init__(
        self,
        begun: Advance,
        response: httpx.Response,
        on_bytes: Callable[[int], None],
        on_end: Callable[[Segment], None],
        *,
        stall_timeout_s: float | None = None,
        on_broken: OnBroken = "skip",
    ) -> None:
        self.seq: Final = begun.seq
        self.epoch: Final = begun.epoch
        self.gap: Final = begun.gap
        self.restarted: Final = begun.restarted
        self.content_type: Final = begun.content_type
        self.size_at_start: Final = begun.size_at_start
        self.truncated: str | None = begun.truncated
        self.broken: ConnectionLost | None = None
        self.bytes_read = 0
        self.reading = Reading.WHOLE if begun.empty else Reading.OPEN
        self._response = response
        self._on_bytes = on_bytes
        self._on_end = on_end
        self._stall_s = stall_timeout_s
        self._on_broken = on_broken
        self._chunks: AsyncIterator[bytes] | None = None

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
                raise SegmentTooLarge(None, seq=self.seq, detail=f"longer than the limit of {limit} bytes")
        if self.broken is not None:
            raise self.broken
        return b"".join(parts)

    async def aclose(self) -> None:
        """Leave the segment. Nothing happens if it was read to its end."""
        if self.reading is Reading.OPEN:
            await self._end(Reading.LEFT)

    async def _next_chunk(self) -> bytes:
        """The next chunk, ``b""`` at the end or after a cut."""
        if self.reading is Reading.LEFT:
            raise ClosedHere(f"segment {self.seq} was left")
        if self.reading is not Reading.OPEN:
            return b""
        if self._chunks is None:
            self._chunks = body_of(self._response)
        try:
            with anyio.fail_after(self._stall_s):
                chunk = await anext(self._chunks, b"")
        except TimeoutError:
            await self._break(f"no byte for {self._stall_s:g} s")
        except httpx.TransportError as error:
            await self._break(str(error))
        except BaseException:
            await self.aclose()
            raise
        else:
            self.bytes_read += len(chunk)
            self._on_bytes(len(chunk))
            if not chunk:
                await self._end(Reading.WHOLE)
            return chunk
        return b""

    async def _break(self, detail: str) -> None:
        self.broken = ConnectionLost(seq=self.seq, detail=detail)
        await self._end(Reading.BROKEN)

    async def _end(self, reading: Reading) -> None:
        self.reading = reading
        trailers = self._response.extensions.get("trailers", {})
        self.truncated = self.truncated or trailers.get(wire.TRUNCATED)
        self._on_end(self)
        with anyio.CancelScope(shield=True):
            await self._response.aclose()
