"""The feed of a channel whose server sends none: made of its segments, which are asked for one after the other.

A segment is passed on as its bytes come. One that is silent while later ones have begun is given up, and one that
nobody has written is passed over. Who comes back is sent nothing twice: a segment is asked for again, and what the
replica has of it is left out.

**A server that has lost all is another one**, and tells nobody: its channels begin anew, and may be as far as the copy
when they are asked for. So a feed that goes on first asks for the last segment that has passed here. If that has other
bytes now, or is not there any more, the channel begins anew here, in an epoch of its own: nothing is mixed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import httpx

from tricklecast.app.core.facts import (
    BodyBegun,
    ChannelCreated,
    ChannelEnded,
    ContentTypeNamed,
    EndReason,
    Fact,
    HeadJumped,
    SegmentClosed,
    SegmentEvicted,
    SegmentOpened,
)
from tricklecast.app.core.segment import State
from tricklecast.app.core.window import Eviction
from tricklecast.app.mirror.requests import Requests, Silent, number
from tricklecast.app.mirror.sides import GoneThere, SourceChannel, SourceLies
from tricklecast.app.replication.records import (
    Beat,
    Begin,
    End,
    FeedEnd,
    Hello,
    Parser,
    SnapshotOver,
    chunk_records,
    fact_record,
    record,
)
from tricklecast.app.replication.transport import BEAT_S
from tricklecast.trickle import wire
from tricklecast.trickle.client.connection import ResponseBody
from tricklecast.trickle.errors import TrickleError

SILENT_S: Final = (3.0, 24.0)
"""After the first time without a byte of a segment it is asked whether the channel has gone on without it; then after
twice the time, until the second one."""

BACK: Final = 5
"""Segments behind the head that are asked for; Livepeer's server keeps five. Its head may go back by as many, where
segments overlap; by more, the publisher has begun anew."""

SKIPPED: Final = 64
"""The feed tells of up to this many missing segments one by one; if more follow each other, the head jumps."""

WINDOW_SEGMENTS: Final = 256
WINDOW_BYTES: Final = 64 << 20
"""The window of a copy: a source that does not say what it keeps has none that could be followed."""

MAX_SEGMENT: Final = 256 << 20
"""Bytes of a segment; more is a body without an end."""

QUEUE: Final = 16
"""Pieces of a feed that wait to be taken, 120 KiB each at most: the source is not read meanwhile."""


class Passed(NamedTuple):
    """The bytes that have passed here of the last segment that had any."""

    seq: int
    size: int
    crc: int


class Counted:
    """A channel that was seen.

    Attributes:
        epoch: as counted here. head: the highest one of it; now: as it was told last. over: whether it has ended.
        passed: by its feed; ``None``: nothing.
    """

    __slots__ = ("epoch", "head", "now", "over", "passed")

    def __init__(self, epoch: int) -> None:
        self.epoch, self.head, self.now, self.over = epoch, 0, 0, False
        self.passed: Passed | None = None


class Counting(Protocol):
    """The server, whose epochs are counted (:class:`~tricklecast.app.mirror.plain_source.PlainSource`)."""

    requests: Requests
    instance: str

    async def channel(self, name: str) -> SourceChannel | None: ...
    def over(self, name: str) -> None: ...


class PlainFeed:
    """The feed of a channel, made of its segments (:class:`~tricklecast.app.mirror.sides.FeedStream`).

    Args:
        source: has the channel. known: the channel.
    """

    def __init__(self, source: Counting, name: str, known: Counted) -> None:
        self._source, self._name, self._known = source, name, known
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE)
        self._reading: asyncio.Task[None] | None = None
        self._error: TrickleError | None = None
        self._number = 0  # of the last fact
        self._window: deque[tuple[int, int]] = deque()  # seqs and sizes
        self._bytes = 0  # of these

    async def send(self, data: bytes) -> None:
        """Begin, with what the replica has."""
        (hello,) = Parser(self._name, float).feed(data)
        assert isinstance(hello, Hello), "a replica says it"
        self._reading = asyncio.get_running_loop().create_task(self._run(hello))

    async def receive(self) -> bytes:
        """The next records; a beat if there are none for a while."""
        try:
            async with asyncio.timeout(BEAT_S):
                part = await self._queue.get()
        except TimeoutError:
            return record(Beat())
        if part is None and self._error is not None:
            raise self._error
        return part or b""

    async def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))

    async def _run(self, hello: Hello) -> None:
        try:
            await self._follow(hello)
        except TrickleError as error:
            self._error = error
        await self._queue.put(None)

    async def _follow(self, hello: Hello) -> None:
        known, source = self._known, self._source
        goes_on = (hello.epoch, hello.instance) == (known.epoch, source.instance)
        held = {one.seq: one for one in hello.have if one.size or one.closed} if goes_on else {}
        if held and known.passed is not None:
            await self._compare(known.passed)
        await self._queue.put(record(Begin(source.instance, known.epoch, not goes_on)))
        seq = max(0, known.head - BACK)
        if held:
            seq = min([one.seq for one in held.values() if not one.closed], default=max(held) + 1)
            self._window.extend((one.seq, one.size) for one in sorted(held.values()) if one.closed)
            self._bytes = sum(size for _, size in self._window)
        elif not goes_on:
            await self._say(ChannelCreated, "", "", in_snapshot=True)
            await self._say(HeadJumped, seq, in_snapshot=True)
        await self._queue.put(record(SnapshotOver(0, sum(one.size for one in held.values()))))
        following: int | None = seq
        while following is not None:
            seq = following
            following = await self._segment(seq, held[seq].size if seq in held else 0)
        source.over(self._name)
        await self._say(ChannelEnded, known.head, EndReason.DELETED)
        await self._queue.put(record(End(FeedEnd.ENDED)))

    async def _compare(self, passed: Passed) -> None:
        """Ask again for what has passed here.

        Raises:
            GoneThere: the channel has begun anew, or nobody can tell.
        """
        requests, seq, size, crc = self._source.requests, passed.seq, 0, 0
        why = "its segment {} has other bytes now"
        try:
            async with requests.open(requests.path(self._name, seq), answer_s=SILENT_S[0]) as response:
                status = response.status_code
                if status == 200 and wire.CLOSED not in response.headers:
                    async for chunk in response.aiter_raw():
                        crc = crc32(memoryview(chunk)[: passed.size - size], crc)
                        size += len(chunk)
                        if size >= passed.size:
                            break
                elif status != wire.Status.SEQ_MISSING:
                    return  # what follows finds out
                elif self._known.now > seq:
                    why = "nobody can tell whether it is the same channel, since its segment {} is not kept any more"
        except Silent:
            if self._known.now > seq:
                raise
        if size < passed.size or crc != passed.crc:
            self._source.over(self._name)
            raise GoneThere(f"{self._name!r} begins anew here: {why.format(seq)}")

    async def _say(self, kind: type[Fact], *about: object, in_snapshot: bool = False) -> None:
        self._number += not in_snapshot
        fact = kind(0, 0 if in_snapshot else self._number, time.time(), self._name, self._known.epoch, *about)
        await self._queue.put(fact_record(fact, lambda at: round(at * 1e6)))

    async def _segment(self, seq: int, have: int) -> int | None:
        """Carry a segment; the seq of the next one, or ``None`` if the channel has ended.

        Args:
            have: bytes of it that the replica has.
        """
        requests, patience_s = self._source.requests, SILENT_S[0]
        while True:
            try:
                async with requests.open(requests.path(self._name, seq), answer_s=patience_s) as response:
                    status, headers = response.status_code, response.headers
                    if status == 404 or wire.CLOSED in headers:
                        return await self._closed(seq, State.TRUNCATED, have, None) if have else None
                    if status == wire.Status.SEQ_MISSING:
                        return await self._missing(seq, have, response)
                    if status != 200:
                        raise requests.refusal(status, b"", f"subscribe, for {self._name!r}")
                    if number(response, wire.SEQ) != seq:
                        raise SourceLies(f"{requests.shown}: another segment than {seq} of {self._name!r} was sent")
                    return await self._body(seq, have, response)
            except Silent:
                if await self._is_left(seq):
                    return await self._closed(seq, State.TRUNCATED if have else State.SKIPPED, have, seq + 1)
                patience_s = min(2 * patience_s, SILENT_S[1])

    async def _body(self, seq: int, have: int, response: httpx.Response) -> int:
        body, size = response.extensions["body"], 0
        assert isinstance(body, ResponseBody), "of our transport"
        body.limit_silence(None)
        state, patience_s, crc = State.COMPLETE, SILENT_S[0], 0
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    chunk = await body.receive()
            except TimeoutError:
                if not await self._is_left(seq):
                    patience_s = min(2 * patience_s, SILENT_S[1])
                    continue
                chunk, state = b"", State.TRUNCATED
            patience_s = SILENT_S[0]
            if not chunk:
                break
            if size == 0 == have:
                await self._open(seq, response.headers.get("content-type", ""))
            new = memoryview(chunk)[max(0, have - size) :]
            size, crc = size + len(chunk), crc32(chunk, crc)
            self._known.passed = Passed(seq, size, crc)
            if size > MAX_SEGMENT:
                raise SourceLies(f"segment {seq} of {self._name!r} has more than {MAX_SEGMENT} bytes, and no end")
            if new:
                await self._queue.put(b"".join(chunk_records(seq, new)))
        if size < have:
            raise SourceLies(f"segment {seq} of {self._name!r} had {have} bytes, and has {size} now")
        if why := body.trailer(wire.TRUNCATED) or response.headers.get(wire.TRUNCATED):
            state = State.TRUNCATED if size else State.SKIPPED if why == State.SKIPPED else State.EMPTY
        elif not size:
            state = State.EMPTY
        return await self._closed(seq, state, size, seq + 1) or 0

    async def _open(self, seq: int, content_type: str) -> None:
        if not self._window and content_type and content_type != wire.DEFAULT_CONTENT_TYPE:
            await self._say(ContentTypeNamed, content_type)
        self._known.head = max(self._known.head, seq + 1)
        await self._say(BodyBegun, seq, None, 0)
        await self._say(SegmentOpened, seq)

    async def _closed(self, seq: int, state: State, size: int, following: int | None) -> int | None:
        """A segment is over, and the oldest ones may have to leave the window. Returns what follows."""
        self._known.head = max(self._known.head, seq + 1)
        await self._say(SegmentClosed, seq, state, size, None)
        self._window.append((seq, size))
        self._bytes += size
        while len(self._window) > 1 and (len(self._window) > WINDOW_SEGMENTS or self._bytes > WINDOW_BYTES):
            oldest, freed = self._window.popleft()
            self._bytes -= freed
            await self._say(SegmentEvicted, oldest, Eviction.COUNT)
        return following

    async def _missing(self, seq: int, have: int, response: httpx.Response) -> int | None:
        """The source has no such segment: any more, or since its numbers have gone back."""
        head = number(response, wire.LATEST)
        if head <= seq:
            if head + BACK < seq:
                return await self._closed(seq, State.TRUNCATED, have, None) if have else None
            await asyncio.sleep(SILENT_S[0])
            return seq
        told = number(response, wire.NEXT) if wire.NEXT in response.headers else 0
        following = max(seq + 1, told, head - BACK)
        await self._closed(seq, State.TRUNCATED if have else State.SKIPPED, have, None)
        for one in range(seq + 1, min(following, seq + SKIPPED)):
            await self._closed(one, State.SKIPPED, 0, None)
        if following > seq + SKIPPED:
            self._known.head = max(self._known.head, following)
            await self._say(HeadJumped, following)
        return following

    async def _is_left(self, seq: int) -> bool:
        """Whether later segments have begun, so that the silent one has no publisher any more."""
        found = await self._source.channel(self._name)
        if found is not None and found.epoch != self._known.epoch:
            raise GoneThere(f"{self._name!r} has begun anew")
        return found is not None and self._known.head > seq + 1
