"""Any other trickle server as the source of a mirror, such as Livepeer's: followed by plain GETs.

Such a server has no list, no feed and no epochs. So this is what a mirror of it has:

- **Channels** are those that it is told by name, and those that the changefeed (``_changes``) names, if there is one.
- **Epochs** are counted here. A channel that ended and exists again is one more, as is one whose head goes back. The
  first one that is seen is one more than the last one that the mirror knows, since nobody can tell whether it is the
  same channel.
- **The feed** is made here (:mod:`~tricklecast.app.replication.records`): the segments one after the other, each as its
  bytes come. A segment that is silent while later ones have begun is given up. Nothing behind the server's own window
  can be had, and there are no checksums.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Final

import httpx
from pydantic import BaseModel, Field, ValidationError

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
from tricklecast.app.mirror.requests import ANSWER_S, Requests, Silent, name_of
from tricklecast.app.mirror.sides import (
    FeedStream,
    GoneThere,
    IndexTooOld,
    Listing,
    News,
    SourceChannel,
    SourceError,
    SourceLies,
    SourceSegment,
)
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
from tricklecast.trickle.client.transport import ResponseBody
from tricklecast.trickle.errors import TrickleError

WAIT_S: Final = 20.0
"""How long a request for news of the changefeed waits."""

POLL_S: Final = 5.0
"""Without a changefeed, channels are looked at this often."""

SILENT_S: Final = 3.0
"""After this time without a byte of a segment it is asked whether the channel has gone on without it."""

BACK: Final = 5
"""Segments behind the head that are asked for; Livepeer's server keeps five. Its head may go back by as many, where
segments overlap; by more, the publisher has begun anew."""

SKIPPED: Final = 64
"""Segments that are not there are told one by one, up to so many at a time; then the head jumps."""

WINDOW_SEGMENTS: Final = 256
WINDOW_BYTES: Final = 64 << 20
"""The window of a copy: a source that does not say what it keeps has none that could be followed."""

MAX_SEGMENT: Final = 256 << 20
"""Bytes of a segment; more is a body without an end."""

QUEUE: Final = 16
"""Pieces of a feed that wait to be taken, 120 KiB each at most: the source is not read meanwhile."""

MAX_NAMES: Final = 10_000
"""Channels that are remembered."""


class _Change(BaseModel):
    added: Annotated[list[str], Field(max_length=MAX_NAMES)] = []
    removed: Annotated[list[str], Field(max_length=MAX_NAMES)] = []


class _Known:
    """A channel that was seen. epoch: as counted here. head: the highest one of it. over: whether it has ended."""

    __slots__ = ("epoch", "head", "over")

    def __init__(self, epoch: int) -> None:
        self.epoch, self.head, self.over = epoch, 0, False


class PlainSource:
    """See :class:`~tricklecast.app.mirror.sides.Source`.

    Args:
        requests: to the server. names: of channels that are mirrored. last_epoch: the last one that the mirror knows.

    Attributes:
        instance: of this object: what another one has counted is nothing to it.
    """

    def __init__(self, requests: Requests, names: Iterable[str], last_epoch: Callable[[str], int]) -> None:
        self.requests, self.instance = requests, f"plain-{secrets.token_hex(8)}"
        self._names, self._last_epoch = list(names), last_epoch
        self._known: dict[str, _Known] = {}
        self._tells = False  # there is a changefeed

    async def close(self) -> None:
        """Close idle connections."""
        await self.requests.close()

    # What is there.

    async def look(self) -> Listing:
        """List the channels that are known and live."""
        index = await self._head(wire.CHANGEFEED)
        self._tells = index is not None
        if index is None and not self._names:
            problem = "neither lists its channels nor has a changefeed: name the channels that are to be mirrored"
            raise SourceError(f"{self.requests.shown} {problem}")
        names = dict.fromkeys([*self._names, *self._known])
        for seq in range(max(0, (index or 0) - BACK), index or 0):
            names.update(dict.fromkeys(await self._told(seq) or ()))
        found = [await self.channel(name) for name in names]
        return Listing(self.instance, index or 0, [one for one in found if one is not None])

    async def news(self, after: int, instance: str) -> News:
        """Wait for names in the changefeed; without one, look at each channel after a while."""
        if instance != self.instance:
            raise IndexTooOld("another mirror has counted this index")
        if not self._tells:
            await asyncio.sleep(POLL_S)
            return News(after, [name for name in self._names if await self._is_news(name)])
        try:
            names = await self._told(after, WAIT_S)
        except Silent:
            return News(after, ())
        if names is None:
            raise IndexTooOld(f"{self.requests.shown} does not keep its news {after} any more")
        return News(after + 1, names)

    async def _told(self, seq: int, within_s: float = ANSWER_S) -> list[str] | None:
        """The names in one segment of the changefeed; ``None`` if it is not there."""
        response, body = await self.requests.get(self.requests.path(wire.CHANGEFEED, seq), within_s=within_s)
        if response.status_code in (404, wire.Status.SEQ_MISSING) or wire.CLOSED in response.headers:
            return None
        if response.status_code != 200:
            raise self.requests.refusal(response.status_code, body, "subscribe, for all channels (*)")
        try:
            change = _Change.model_validate_json(body or b"{}")
        except ValidationError as error:
            raise SourceLies(f"{self.requests.shown}: its news {seq} make no sense: {body[:80]!r}") from error
        return [name_of(name) for name in (*change.added, *change.removed)]

    async def _is_news(self, name: str) -> bool:
        known = self._known.get(name)
        epoch = None if known is None or known.over else known.epoch
        found = await self.channel(name)
        return epoch != (None if found is None else found.epoch)

    async def channel(self, name: str) -> SourceChannel | None:
        """A channel as it is now, with the epoch that is counted here."""
        before = known.head if (known := self._known.get(name)) is not None else 0
        head, known = await self._head(name), self._known.get(name)
        if head is None:
            self.over(name)
            return None
        if known is None or known.over or head + BACK < before:
            last = max(self._last_epoch(name), 0 if known is None else known.epoch)
            self._known.pop(name, None)
            known = self._known[name] = _Known(last + 1)
            while len(self._known) > MAX_NAMES:
                del self._known[next(iter(self._known))]
        known.head = max(known.head, head)
        return SourceChannel(name, known.epoch)

    def over(self, name: str) -> None:
        """A channel has ended: the next one of its name is another one."""
        if (known := self._known.get(name)) is not None:
            known.over = True

    async def _head(self, name: str) -> int | None:
        """The head of a channel; ``None`` if none of this name lives."""
        response, body = await self.requests.get(self.requests.path(name, wire.NEXT_ROUTE))
        status = response.status_code
        if name == wire.CHANGEFEED and status in (wire.Status.UNAUTHORIZED, wire.Status.FORBIDDEN):
            return None  # not for this token
        if status == 404 or wire.CLOSED in response.headers:
            return None
        if status != 200:
            raise self.requests.refusal(status, body, f"subscribe, for {name!r}")
        return self.number(response, wire.LATEST)

    def number(self, response: httpx.Response, field: str) -> int:
        """The number in a header field."""
        text = response.headers.get(field, "")
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(wire.LAST_SEQ))):
            raise SourceLies(f"{self.requests.shown}: {field} is no number: {text[:40]!r}")
        return int(text)

    async def segments(self, name: str, epoch: int, after: int) -> Sequence[SourceSegment]:
        """None: what is there comes by the feed."""
        return ()

    async def read(self, name: str, epoch: int, segment: SourceSegment) -> AsyncIterator[bytes]:
        """None was listed."""
        raise GoneThere(f"segment {segment.seq} of {name!r} cannot be read behind the feed")
        yield b""

    @asynccontextmanager
    async def follow(self, name: str) -> AsyncIterator[FeedStream]:
        """Follow a channel by GETs."""
        if await self.channel(name) is None:
            raise GoneThere(f"there is no channel {name!r} at {self.requests.shown}")
        feed = _PlainFeed(self, name, self._known[name])
        try:
            yield feed
        finally:
            await feed.close()


class _PlainFeed:
    """The feed of a channel, made of its segments (:class:`~tricklecast.app.mirror.sides.FeedStream`)."""

    def __init__(self, source: PlainSource, name: str, known: _Known) -> None:
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

    async def _say(self, kind: type[Fact], *about: object, in_snapshot: bool = False) -> None:
        self._number += not in_snapshot
        fact = kind(0, 0 if in_snapshot else self._number, time.time(), self._name, self._known.epoch, *about)
        await self._queue.put(fact_record(fact, lambda at: round(at * 1e6)))

    async def _segment(self, seq: int, have: int) -> int | None:
        """Carry a segment; the seq of the next one, or ``None`` if the channel has ended.

        Args:
            have: bytes of it that the replica has.
        """
        requests = self._source.requests
        while True:
            try:
                async with requests.open(requests.path(self._name, seq), answer_s=SILENT_S) as response:
                    status, headers = response.status_code, response.headers
                    if status == 404 or wire.CLOSED in headers:
                        return await self._closed(seq, State.TRUNCATED, have, None) if have else None
                    if status == wire.Status.SEQ_MISSING:
                        return await self._missing(seq, have, response)
                    if status != 200:
                        raise requests.refusal(status, b"", f"subscribe, for {self._name!r}")
                    if self._source.number(response, wire.SEQ) != seq:
                        raise SourceLies(f"{requests.shown}: another segment than {seq} of {self._name!r} was sent")
                    return await self._body(seq, have, response)
            except Silent:
                if await self._is_left(seq):
                    return await self._closed(seq, State.TRUNCATED if have else State.SKIPPED, have, seq + 1)

    async def _body(self, seq: int, have: int, response: httpx.Response) -> int:
        body, size = response.extensions["body"], 0
        assert isinstance(body, ResponseBody), "of our transport"
        body.limit_silence(None)
        state = State.COMPLETE
        while True:
            try:
                async with asyncio.timeout(SILENT_S):
                    chunk = await body.receive()
            except TimeoutError:
                if not await self._is_left(seq):
                    continue
                chunk, state = b"", State.TRUNCATED
            if not chunk:
                break
            if size == 0 == have:
                await self._open(seq, response.headers.get("content-type", ""))
            new = memoryview(chunk)[max(0, have - size) :]
            size += len(chunk)
            if size > MAX_SEGMENT:
                raise SourceLies(f"segment {seq} of {self._name!r} has more than {MAX_SEGMENT} bytes, and no end")
            for part in chunk_records(seq, new):
                await self._queue.put(bytes(part))
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
        head = self._source.number(response, wire.LATEST)
        if head <= seq:
            if head + BACK < seq:
                return await self._closed(seq, State.TRUNCATED, have, None) if have else None
            await asyncio.sleep(SILENT_S)
            return seq
        told = self._source.number(response, wire.NEXT) if wire.NEXT in response.headers else 0
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
