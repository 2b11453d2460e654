"""A tricklecast server as the source of a mirror: its lists, its news, its feeds, and its stored segments.

What the source says is checked before anybody acts on it: types and ranges, the order of a list, the epoch of a
segment, the length of a body. Whether it fits what was said before, the engine knows.

In a cluster any node answers, but for feeds, which the owner of the channel sends. Another node names it (421), and the
mirror asks there, with its token: the source vouches for its nodes, as it does for its channels.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from urllib.parse import quote

from pydantic import AwareDatetime, BaseModel, Field

from tricklecast.app.cluster.peers import NodeUrl
from tricklecast.app.core.segment import State
from tricklecast.app.listener import tune
from tricklecast.app.mirror.requests import ANSWER_S, CONNECT_S, Requests, name_of
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
from tricklecast.app.replication.transport import SILENCE_S, STALL_S, TURN_BYTES, put
from tricklecast.trickle import wire
from tricklecast.trickle.client.grammar import InvalidHead, parse_response, request_head
from tricklecast.trickle.errors import InvalidInput

WAIT_S: Final = 20.0
"""How long a source waits for news."""

LOOK_S: Final = 60.0
"""How long it may take to list all channels."""

PAGE: Final = 1000
"""Segments of one list, and facts of one answer."""

HOPS: Final = 3
"""Nodes that are asked for one feed: a channel may move meanwhile."""

PEER_TIMEOUT_S: Final = 10
"""The kernel gives up a source whose machine does not answer for this time."""

_EPOCH_START: Final = datetime.fromtimestamp(0, UTC)

Number = Annotated[int, Field(ge=0, lt=1 << 63)]
Seq = Annotated[int, Field(ge=0, le=wire.LAST_SEQ)]


class _Live(BaseModel):
    channel: str
    epoch: Number


class _Fact(BaseModel):
    channel: str


class _Changes(BaseModel):
    instance: str
    index: Number
    changes: list[_Fact]
    channels: list[_Live] = []


class _Channel(BaseModel):
    epoch: Number
    state: str
    created_at: AwareDatetime


class _Deposed(BaseModel):
    state: str
    successor: str = ""


class _Segment(BaseModel):
    seq: Seq
    state: State
    size: Number
    opened_at: AwareDatetime
    closed_at: AwareDatetime | None
    crc32: Annotated[str | None, Field(pattern="^[0-9a-f]{8}$")] = None


class _Segments(BaseModel):
    epoch: Number
    segments: Annotated[list[_Segment], Field(max_length=PAGE)]
    more: bool


class TrickleSource:
    """See :class:`~tricklecast.app.mirror.sides.Source`.

    Args:
        requests: to the server.
    """

    plain: Final = ""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests

    async def close(self) -> None:
        """Close idle connections."""
        await self.requests.close()

    # What is there.

    async def look(self) -> Listing:
        """List all channels that live. When they began is not told: the times of facts are a little later."""
        found = await self._changes("snapshot=1", within_s=LOOK_S)
        channels = [SourceChannel(name_of(one.channel), one.epoch) for one in found.channels]
        return Listing(found.instance, found.index, channels)

    async def news(self, after: int, instance: str) -> News:
        """Wait for channels that begin or end."""
        query = f"after={after}&instance={quote(instance)}&wait_s={WAIT_S:g}&limit={PAGE}&q=kind%20!=%20'closed'"
        found = await self._changes(query, within_s=WAIT_S + ANSWER_S)
        if found.instance != instance:
            raise IndexTooOld(f"{self.requests.shown} was started again")
        if found.index < after:
            raise SourceLies(f"{self.requests.shown}: its index goes back from {after} to {found.index}")
        return News(found.index, list(dict.fromkeys(name_of(one.channel) for one in found.changes)))

    async def _changes(self, query: str, *, within_s: float) -> _Changes:
        right = "manage, for the channels that are mirrored"
        found = await self.requests.read(_Changes, f"/api/v1/changes?{query}", right, within_s=within_s)
        if isinstance(found, _Changes):
            return found
        if found.status_code == 410:
            raise IndexTooOld(f"{self.requests.shown} does not keep what has happened since")
        raise SourceError(f"{self.requests.root} has no API: is it of tricklecast, and is its control plane here?")

    async def successor(self) -> str:
        """The server that has taken this one's place for all channels; ``""``: none, as far as it tells this token."""
        try:
            found = await self.requests.read(_Deposed, "/api/v1/mirror", "manage, for all channels")
        except SourceError:
            return ""
        return found.successor if isinstance(found, _Deposed) and found.state == "deposed" else ""

    async def channel(self, name: str) -> SourceChannel | None:
        """A channel as it is now; ``None`` if no such channel lives."""
        found = await self.requests.read(_Channel, _route(name), f"manage, for {name!r}")
        if not isinstance(found, _Channel) or found.state != "live":
            return None
        return SourceChannel(name, found.epoch, _us(found.created_at))

    async def segments(self, name: str, epoch: int, after: int) -> Sequence[SourceSegment]:
        """The closed segments above a seq that can be read, ascending, a page of them."""
        while True:
            route = f"{_route(name)}/segments?from={after + 1}&limit={PAGE}"
            found = await self.requests.read(_Segments, route, f"manage, for {name!r}")
            if not isinstance(found, _Segments) or found.epoch != epoch:
                raise GoneThere(f"{name!r} is not in epoch {epoch} any more")
            before, closed = after, []
            for one in found.segments:
                if one.seq <= after:
                    raise SourceLies(f"{self.requests.shown}: its list of segments goes back from {after} to {one.seq}")
                after = one.seq
                if one.closed_at is not None:
                    crc = None if one.crc32 is None else int(one.crc32, 16)
                    times = _us(one.opened_at), _us(one.closed_at)
                    closed.append(SourceSegment(one.seq, one.state, one.size, crc, *times))
            if closed or not found.more:
                return closed
            if after == before:
                raise SourceLies(f"{self.requests.shown}: more segments follow, and none comes")

    async def read(self, name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
        """The bytes of a closed segment, as many as the list says."""
        if not segment.size:
            return
        seq, size = segment.seq, 0
        async with self.requests.open(self.requests.path(name, seq)) as response:
            status, headers = response.status_code, response.headers
            if status in (404, wire.Status.SEQ_MISSING):
                raise GoneThere(f"segment {seq} of {name!r} is not kept any more")
            if status != 200:
                raise self.requests.refusal(status, await _beginning(response.aiter_raw()), f"subscribe, for {name!r}")
            if headers.get(wire.EPOCH) != str(epoch):
                raise GoneThere(f"{name!r} is not in epoch {epoch} any more")
            if headers.get(wire.SEQ) != str(seq):
                raise SourceLies(f"{self.requests.shown}: another segment than {seq} of {name!r} was sent")
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > segment.size:
                    break
                yield chunk
        if size != segment.size:
            told = "more" if size > segment.size else str(size)
            raise SourceLies(f"segment {seq} of {name!r} was listed with {segment.size} bytes, and has {told}")

    # Feeds.

    @asynccontextmanager
    async def follow(self, name: str) -> AsyncIterator[FeedStream]:
        """Follow a channel, at the node that owns it."""
        place = NodeUrl.parse(self.requests.url)
        for _ in range(HOPS):
            found = await self._ask(place, name)
            if isinstance(found, NodeUrl):
                place = found
                continue
            try:
                yield found
            finally:
                found.close()
            return
        raise SourceError(f"{self.requests.shown}: its nodes do not agree where {name!r} is")

    async def _ask(self, place: NodeUrl, name: str) -> _Feed | NodeUrl:
        """Ask a node for a feed: that, or the node to ask next."""
        shown = f"{place.authority.decode()}"
        target = b"%b/%b" % (place.base, quote(name, safe="").encode())
        fields = {"Host": place.authority.decode(), "Connection": "Upgrade", "Upgrade": wire.FEED_PROTOCOL}
        head = request_head(
            b"GET", target, [(key.encode(), value.encode()) for key, value in (fields | self.requests.headers).items()]
        )
        tls = None
        if place.tls:
            tls = self.requests.tls or await asyncio.to_thread(ssl.create_default_context)
        writer = None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls, limit=TURN_BYTES)
            tune(writer.get_extra_info("socket"), peer_timeout_s=PEER_TIMEOUT_S)
            put(writer, [head])
            data = bytearray()
            async with asyncio.timeout(ANSWER_S):
                while (answer := parse_response(data)) is None:
                    more = await reader.read(TURN_BYTES)
                    if not more:
                        raise ConnectionResetError("it has closed the connection")
                    data += more
            response, size = answer
            headers = {key: value.decode("latin-1") for key, value in response.headers}
            status = response.status_code
            if status == wire.Status.SWITCHING and headers.get(b"upgrade", "").lower() == wire.FEED_PROTOCOL:
                feed, writer = _Feed(reader, writer, bytes(data[size:]), shown), None
                return feed
            if status == wire.Status.MISDIRECTED and (url := headers.get(wire.NODE.lower().encode())):
                return NodeUrl.parse(url)
        except TimeoutError:
            raise SourceError(f"{shown}: no answer in time") from None
        except (OSError, InvalidHead) as error:
            raise SourceError(f"{shown}: {error or type(error).__name__}") from error
        except InvalidInput as error:
            raise SourceLies(f"{shown} names a node that is none: {error}") from None
        finally:
            if writer is not None:
                writer.transport.abort()
        if status == 404:
            raise GoneThere(f"there is no channel {name!r} at {shown}")
        if status == 405:
            raise SourceError(f"{shown} sends no feeds: run the same release of tricklecast there")
        raise self.requests.refusal(status, bytes(data[size:]), f"subscribe, for {name!r}")


class _Feed:
    """See :class:`~tricklecast.app.mirror.sides.FeedStream`.

    Args:
        rest: bytes of it that have come with the answer.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rest: bytes, shown: str) -> None:
        self._reader, self._writer, self._rest, self._shown = reader, writer, rest, shown

    async def send(self, data: bytes) -> None:
        """Send ``HELLO``."""
        try:
            put(self._writer, [data])
            async with asyncio.timeout(STALL_S):
                await self._writer.drain()
        except OSError as error:
            raise SourceError(f"{self._shown}: {error or 'it takes nothing'}") from error

    async def receive(self) -> bytes:
        """The next bytes; ``b""`` when the source has closed the stream."""
        if rest := self._rest:
            self._rest = b""
            return rest
        try:
            async with asyncio.timeout(SILENCE_S):
                return await self._reader.read(TURN_BYTES)
        except TimeoutError:
            raise SourceError(f"{self._shown} has sent nothing for {SILENCE_S:.0f} s") from None
        except OSError as error:
            raise SourceError(f"{self._shown}: {error}") from error

    def close(self) -> None:
        """Leave."""
        self._writer.transport.abort()


def _route(name: str) -> str:
    return f"/api/v1/channels/{quote(name, safe='')}"


def _us(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - _EPOCH_START) // timedelta(microseconds=1)


async def _beginning(body: AsyncIterator[bytes]) -> bytes:
    """The first bytes of a refusal."""
    async for chunk in body:
        return chunk
    return b""
