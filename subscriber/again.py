"""The rest of a segment whose connection was cut: the same GET once more, up to where it broke.

A GET of a segment begins at its first byte, so that what was handed on already comes again. It is read and dropped,
and its check sum compared: only then is what follows the rest of what the user has. A server that was restarted in
between may have another segment under that number.

A server cuts a reader off that is too slow, and cannot say so in a way that could be told from a broken network. So
that is handled in the same way: what is still kept is read on; what has left the window is gone, and ``on_lag`` says
where to go.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import anyio
import httpx

from tricklecast.subscriber.core import Cursor
from tricklecast.subscriber.getter import Getter, Got, body_of
from tricklecast.subscriber.runtime import Runtime
from tricklecast.subscriber.statistics import Counters
from tricklecast.subscriber.verdicts import Answer, Ask, Gone
from tricklecast.trickle import wire
from tricklecast.trickle.errors import ConnectionLost, TrickleError

ANSWER_S: Final = 5.0
"""How long the segment, and each chunk of what was there already, is waited for: a server that has it sends it at once.
One that makes the client wait has another segment in mind."""


@dataclass(frozen=True, slots=True)
class Read:
    """What a user has of a segment.

    Attributes:
        seq, epoch, life: which segment.
        size: bytes handed on.
        crc: their CRC-32.
    """

    seq: int
    epoch: int | None
    life: str | None = None
    size: int = 0
    crc: int = 0

    def plus(self, chunk: bytes) -> Read:
        """With another chunk."""
        return Read(self.seq, self.epoch, self.life, self.size + len(chunk), zlib.crc32(chunk, self.crc))

    def may_be(self, answer: Answer) -> bool:
        """Whether a response can be the same segment, judged by its head."""
        size, told = answer.natural(wire.SIZE), answer.life
        is_same = told is not None and told.name == self.life
        return (
            answer.status == wire.Status.OK
            and not (answer.closed or answer.empty)
            and answer.natural(wire.SEQ) == self.seq
            and (answer.natural(wire.EPOCH) == self.epoch or is_same)
            and not answer.is_renumbered(self.epoch, self.life, self.seq + 1)
            and (size is None or size >= self.size)
        )


@dataclass(frozen=True, slots=True)
class Rest:
    """A segment that goes on.

    Attributes:
        first: bytes of the first chunk that had not been handed on; may be empty.
        chunks: what follows.
        response: where it comes from.
        attempt: how many GETs the segment has taken so far.
    """

    first: bytes
    chunks: AsyncIterator[bytes]
    response: httpx.Response
    attempt: int


@dataclass(frozen=True, slots=True)
class Again:
    """Gets the rest of segments that were cut.

    Args:
        cursor: pays for the GETs, and says when.
        getter: makes them.
        counters: counts them.
        runtime: chance and time.
    """

    cursor: Cursor
    getter: Getter
    counters: Counters
    runtime: Runtime

    async def get(self, read: Read, error: ConnectionLost, attempt: int) -> Rest | None:
        """Ask for a segment until it goes on behind what was read of it.

        Args:
            read: what the user has.
            error: what cut it.
            attempt: how many GETs it has taken so far.

        Returns:
            The rest; ``None`` if it is not to be had.
        """
        cause: TrickleError = error
        floor_s: float | None = None
        while (verdict := self.cursor.cut(cause, self.runtime.now(), self.runtime.rng, floor_s=floor_s)) is not None:
            await self.runtime.sleep(verdict.delay_s)
            attempt += 1
            self.counters.requested()
            self.counters.retried(cause)
            got = await self.getter.get(Ask(read.seq, attempt), ANSWER_S)
            match got:
                case Gone():
                    return None
                case ConnectionLost():
                    cause, floor_s = got, None
                case Got(answer, response) if read.may_be(answer):
                    rest = await _skip(read, response, attempt)
                    if not isinstance(rest, ConnectionLost):
                        if rest is not None:
                            self.cursor.resumed()
                            self.counters.resumed()
                        return rest
                    cause, floor_s = rest, None
                case Got(answer) if _is_busy(answer.status):
                    cause, floor_s = answer.error(read.seq), answer.retry_after_s
                case Got(_, response):
                    await response.aclose()
                    return None
                case _:
                    return None
        return None


def _is_busy(status: int) -> bool:
    return status == wire.Status.TOO_MANY_REQUESTS or status >= wire.Status.SERVER_ERROR


async def _skip(read: Read, response: httpx.Response, attempt: int) -> Rest | ConnectionLost | None:
    """Drop what the user has; ``None`` if the segment does not begin with that."""
    rest: Rest | ConnectionLost | None = None
    try:
        rest = await _compare(read, response, attempt)
    finally:
        if not isinstance(rest, Rest):
            with anyio.CancelScope(shield=True):
                await response.aclose()
    return rest


async def _compare(read: Read, response: httpx.Response, attempt: int) -> Rest | ConnectionLost | None:
    chunks = body_of(response)
    size, crc, chunk = 0, 0, b""
    try:
        while size < read.size:
            with anyio.fail_after(ANSWER_S):
                chunk = await anext(chunks, b"")
            if not chunk:
                return None
            old = chunk[: read.size - size]
            size, crc = size + len(old), zlib.crc32(old, crc)
            chunk = chunk[len(old) :]
    except TimeoutError:
        return None
    except httpx.TransportError as error:
        return ConnectionLost(seq=read.seq, detail=str(error))
    return Rest(chunk, chunks, response, attempt) if crc == read.crc else None
