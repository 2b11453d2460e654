"""A tricklecast server as a source, on real sockets; and servers that lie."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
import pytest

from tests.app.access.signing import SECRET, token
from tests.app.cluster.table import Table, members
from tests.support.certificates import make_certificate
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.clock import to_time
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import State
from tricklecast.app.mirror import trickle_source
from tricklecast.app.mirror.requests import Requests
from tricklecast.app.mirror.sides import GoneThere, IndexTooOld, SourceError, SourceLies, SourceSegment
from tricklecast.app.mirror.trickle_source import TrickleSource
from tricklecast.app.replication.records import FeedEnd
from tricklecast.app.replication.replica import Replica

HERE = r"127\.0\.0\.1"

Test = Callable[..., Coroutine[Any, Any, None]]


def in_loop(test: Test) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **more: Any) -> None:
        async def within() -> None:
            async with asyncio.timeout(WITHIN_S):
                await test(*args, **more)

        asyncio.run(within())

    return run


def source_of(
    server: LocalServer, text: str | None = None, tls: ssl.SSLContext | None = None, base: str = "/trickle"
) -> TrickleSource:
    """The source that a server is."""
    scheme = "http" if server.tls is None else "https"
    return TrickleSource(Requests(f"{scheme}://127.0.0.1:{server.port}{base}", text, tls or server.tls))


async def whole(source: TrickleSource, name: str, epoch: int, segment: SourceSegment) -> bytes:
    """The bytes of a segment."""
    return b"".join([chunk async for chunk in source.read(name, epoch, segment)])


class Copy:
    """A replica, and the segments that have closed in it."""

    def __init__(self, name: str) -> None:
        self.told: list[tuple[int, int, int]] = []
        registry = Registry(Limits(), autocreate=True)
        self.replica = Replica(name, registry, lambda: 7.0, to_time, closed=lambda *about: self.told.append(about))

    async def follow(self, source: TrickleSource, enough: Callable[[], object] = lambda: False) -> FeedEnd | None:
        """Apply a feed, until there is enough of it."""
        async with source.follow(self.replica.name) as stream:
            await stream.send(self.replica.hello())
            while not enough():
                data = await stream.receive()
                if not data or (over := self.replica.receive(data)) is not None:
                    return over if data else None
        return None


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server with default settings."""
    with local_server() as running:
        yield running


@in_loop
async def test_channels_are_listed_and_news_follow(server: LocalServer) -> None:
    """What has begun and ended since the list; nothing of what happens within a channel."""
    with server.client() as target:
        source = source_of(server)
        film, dot = target.channel("film").create(), target.channel("a%b é").create()
        listing = await source.look()
        assert [(one.name, one.epoch) for one in listing.channels] == [("film", 1), ("a%b é", 1)]
        for one in listing.channels:
            found = await source.channel(one.name)
            assert found is not None
            assert (found.name, found.epoch, found.created_us > 0) == (one.name, one.epoch, True)
            assert await source.channel(one.name) == found, "it begins once"
        waiting = asyncio.create_task(source.news(listing.index, listing.instance))
        await asyncio.to_thread(lambda: film.publish(0, b"x", b"y"))
        await asyncio.to_thread(dot.end)
        news = await waiting
        assert (list(news.names), news.index > listing.index) == (["a%b é"], True)
        assert await source.channel("a%b é") is None
        assert await source.channel("missing") is None
        with pytest.raises(IndexTooOld):
            await source.news(news.index, "another")
        with pytest.raises(IndexTooOld):
            await source.news(news.index + 1000, listing.instance)
        await source.close()


@in_loop
async def test_no_news_is_an_answer(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index may have gone on."""
    monkeypatch.setattr(trickle_source, "WAIT_S", 0.01)
    source = source_of(server)
    listing = await source.look()
    news = await source.news(listing.index, listing.instance)
    assert (news.index, list(news.names)) == (listing.index, [])
    await source.close()


@in_loop
async def test_segments_are_listed_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the data directory and of the window, a page after the other, with checksums where they are known."""
    monkeypatch.setattr(trickle_source, "PAGE", 2)
    with local_server(data_dir=tmp_path, window_segments=2) as server, server.client() as target:
        channel = target.channel("film")
        bodies = [b"zero" * 100_000, b"one", b"", b"three", b"four"]
        for seq, body in enumerate(bodies):
            channel.post(seq, body).expect(200)
        upload = channel.upload(5, b"open")
        channel.arrived(5, b"open").close()
        source = source_of(server)
        found: list[SourceSegment] = []
        while page := await source.segments("film", 1, found[-1].seq if found else -1):
            assert len(page) <= 2
            found += page
        states = [State.COMPLETE, State.COMPLETE, State.EMPTY, State.COMPLETE, State.COMPLETE]
        assert [(one.seq, one.state, one.size) for one in found] == [
            (seq, state, len(body)) for seq, (state, body) in enumerate(zip(states, bodies, strict=True))
        ]
        archive = server.archive
        assert archive is not None
        await asyncio.to_thread(eventually, lambda: len(archive.latest["film"].seqs) == 5)
        assert [one.crc for one in await source.segments("film", 1, -1)] == [crc32(body) for body in bodies[:2]]
        for seq, body in enumerate(bodies):
            assert await whole(source, "film", 1, found[seq]) == body
        assert 0 < found[0].opened_us <= found[0].closed_us
        upload.chunk(b"!").stored()
        assert [one.seq for one in await source.segments("film", 1, 4)] == [5]
        await source.close()


@in_loop
async def test_what_is_gone_is_told_as_such(server: LocalServer) -> None:
    """A segment that has left the window, another epoch, a channel that has ended."""
    with server.client() as target:
        channel = target.channel("gone").publish(0, b"zero")
        source = source_of(server)
        (segment,) = await source.segments("gone", 1, -1)
        with pytest.raises(GoneThere, match="segment 7 of 'gone' is not kept"):
            await whole(source, "gone", 1, segment._replace(seq=7))
        for epoch, name in ((2, "gone"), (1, "missing")):
            with pytest.raises(GoneThere):
                await source.segments(name, epoch, -1)
            with pytest.raises(GoneThere):
                await whole(source, name, epoch, segment)
        await asyncio.to_thread(channel.end)
        for name in ("gone", "missing"):
            with pytest.raises(GoneThere, match="there is no channel"):
                async with source.follow(name):
                    pass
        await source.close()


@in_loop
async def test_a_channel_is_followed(server: LocalServer) -> None:
    """Until it ends; a second feed brings what the first one has not."""
    with server.client() as target:
        channel = target.channel("followed").publish(0, b"zero")
        source, copy = source_of(server), Copy("followed")
        assert await copy.follow(source, lambda: copy.replica.live) is None
        channel.publish(1, b"one")
        following = asyncio.create_task(copy.follow(source, lambda: False))
        await until(lambda: len(copy.told) == 2)
        await asyncio.to_thread(channel.end)
        assert await following is FeedEnd.ENDED
        assert copy.told == [(0, 4, crc32(b"zero")), (1, 3, crc32(b"one"))]
        await source.close()


@in_loop
async def test_the_owner_in_a_cluster_sends_the_feed() -> None:
    """Another node names it, and lists its channels and segments."""
    table = Table()
    with members("a", "b", table=table) as (a, b), a.server.client() as target:
        target.channel("film").publish(0, b"zero")
        source, copy = source_of(b.server), Copy("film")
        await copy.follow(source, lambda: copy.replica.live)
        assert copy.told == [(0, 4, crc32(b"zero"))]
        b.server.inside(lambda: table.owners.update(there=("b", 1)))
        a.server.inside(lambda: table.owners.update(there=("b", 1)))
        with pytest.raises(GoneThere):
            async with source.follow("there"):
                pass
        await source.close()


@in_loop
async def test_rights_that_a_token_lacks(tmp_path: Path) -> None:
    """The error says which right is missing, and shows no secret."""
    (tmp_path / "secret").write_bytes(SECRET)
    with local_server(jwt_secret_file=tmp_path / "secret") as server, server.client() as target:
        publish = {"Authorization": f"Bearer {token(trickle={'publish': ['*']})}"}
        target.ask("POST", "/trickle/cam-1/0", publish, b"zero").expect(200)
        reads, manages = (token(trickle={right: ["cam-*"]}) for right in ("subscribe", "manage"))
        both = token(trickle={"subscribe": ["cam-*"], "manage": ["cam-*"]})
        for text, wrong in ((None, "wants another token"), (reads, "lacks the right manage"), ("x", "another token")):
            source = source_of(server, text)
            with pytest.raises(SourceError, match=wrong) as error:
                await source.look()
            assert text is None or text == "x" or text not in str(error.value)
            await source.close()
        source = source_of(server, manages)
        (segment,) = await source.segments("cam-1", 1, -1)
        with pytest.raises(SourceError, match=r"lacks the right subscribe, for 'cam-1' \(The token gives no right"):
            async with source.follow("cam-1"):
                pass
        with pytest.raises(SourceError, match="lacks the right subscribe"):
            await whole(source, "cam-1", 1, segment)
        await source.close()
        source, copy = source_of(server, both), Copy("cam-1")
        assert [one.name for one in (await source.look()).channels] == ["cam-1"]
        assert await whole(source, "cam-1", 1, segment) == b"zero"
        await copy.follow(source, lambda: copy.replica.live)
        await source.close()


@in_loop
async def test_tls_and_the_root_as_base_path(tmp_path: Path) -> None:
    """A source may speak TLS; then it has to be trusted."""
    certificate, key = make_certificate(tmp_path)
    with local_server(tls_cert=certificate, tls_key=key, base_path="/") as server, server.client() as target:
        target.channel("film").publish(0, b"zero")
        source, copy = source_of(server, base="/"), Copy("film")
        assert [one.name for one in (await source.look()).channels] == ["film"]
        await copy.follow(source, lambda: copy.replica.live)
        await source.close()
        stranger = source_of(server, tls=ssl.create_default_context(), base="")
        for ask in (stranger.look(), copy.follow(stranger)):
            with pytest.raises(SourceError, match=r"(?i)certificate"):
                await ask
        await stranger.close()


# Servers that lie.


def answer(status: int, body: bytes, **fields: str) -> bytes:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode() + body


class Liar:
    """A server that answers everything with the same bytes."""

    def __init__(self, *says: bytes, closes: bool = True) -> None:
        self._says, self._closes = says, closes

    async def __aenter__(self) -> TrickleSource:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.source = TrickleSource(Requests(f"http://127.0.0.1:{port}/trickle"))
        return self.source

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in self._says:
                writer.write(part.replace(b"PORT", b"%d" % self._server.sockets[0].getsockname()[1]))
                await writer.drain()
            if not self._closes:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def __aexit__(self, *_: object) -> None:
        await self.source.close()
        self._server.close()


SEGMENT = SourceSegment(3, State.COMPLETE, 4, None, 0, 0)


def listed(*seqs: int, more: bool = False) -> bytes:
    """A list of segments."""
    at = "2026-11-28T00:00:00Z"
    segments = [{"seq": seq, "state": "complete", "size": 1, "opened_at": at, "closed_at": at} for seq in seqs]
    return answer(200, orjson.dumps({"epoch": 1, "segments": segments, "more": more}))


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (listed(1, 0), "goes back from 1 to 0"),
        (listed(1, 1), "goes back"),
        (listed(more=True), "more segments follow, and none comes"),
        (listed(1 << 60), "segments.0.seq makes no sense"),
        (listed(*range(1001)), "segments makes no sense"),
        (answer(200, b"[]"), "makes no sense"),
        (answer(200, b"{"), "makes no sense"),
        (answer(500, b"broken\x1b[31m\nand more"), r"answers 500: broken[^\x1b]*$"),
        (answer(301, b"", location="http://elsewhere/"), "answers 301"),
        (b"nonsense\r\n\r\n", "127.0.0.1"),
        (b"", "127.0.0.1"),
    ],
)
@in_loop
async def test_lists_that_make_no_sense(says: bytes, problem: str) -> None:
    """Nothing of them is used."""
    async with Liar(says) as source:
        with pytest.raises(SourceError, match=problem):
            await source.segments("c", 1, -1)


@pytest.mark.parametrize(
    ("says", "error", "problem"),
    [
        (answer(200, b"12345", lp_trickle_epoch="1", lp_trickle_seq="3"), SourceLies, "4 bytes, and has more"),
        (answer(200, b"123", lp_trickle_epoch="1", lp_trickle_seq="3"), SourceLies, "4 bytes, and has 3"),
        (answer(200, b"1234", lp_trickle_epoch="1", lp_trickle_seq="4"), SourceLies, "another segment than 3"),
        (answer(200, b"1234", lp_trickle_epoch="2", lp_trickle_seq="3"), GoneThere, "not in epoch 1"),
        (answer(200, b"1234", lp_trickle_epoch="1", lp_trickle_seq="3")[:-1], SourceError, "127.0.0.1"),
        (answer(470, b"Entry not found"), GoneThere, "not kept"),
        (answer(503, b"Server is shutting down"), SourceError, "answers 503: Server is shutting down"),
    ],
)
@in_loop
async def test_segments_that_are_not_as_they_were_listed(says: bytes, error: type[SourceError], problem: str) -> None:
    """A reader has no more of them than the list says."""
    async with Liar(says) as source:
        with pytest.raises(error, match=problem):
            await whole(source, "c", 1, SEGMENT)


@in_loop
async def test_a_body_without_an_end() -> None:
    """It is left as soon as it is too long."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nlp-trickle-epoch: 1\r\nlp-trickle-seq: 3\r\n\r\n"
    async with Liar(head, *[b"1000\r\n" + bytes(4096) + b"\r\n"] * 10_000, closes=False) as source:
        with pytest.raises(SourceLies, match="4 bytes, and has more"):
            await whole(source, "c", 1, SEGMENT)


@in_loop
async def test_a_list_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left as soon as it is too long, or takes too long."""
    monkeypatch.setattr("tricklecast.app.mirror.requests.MAX_ANSWER", 100)
    monkeypatch.setattr(trickle_source, "LOOK_S", 0.2)
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n"
    async with Liar(head, bytes(200), closes=False) as source:
        with pytest.raises(SourceLies, match="more than 100 bytes"):
            await source.look()
    async with Liar(head, closes=False) as source:
        with pytest.raises(SourceError, match=r"no answer within 0\.2 s|127.0.0.1"):
            await source.look()


@pytest.mark.parametrize(
    ("says", "error", "problem"),
    [
        (answer(421, b"", lp_trickle_node="http://127.0.0.1:PORT/trickle"), SourceError, "do not agree"),
        (answer(421, b"", lp_trickle_node="ftp://x"), SourceLies, "names a node that is none"),
        (answer(421, b"Another server owns it"), SourceError, "answers 421: Another server owns it"),
        (answer(405, b"Method not allowed"), SourceError, "sends no feeds"),
        (answer(200, b"x"), SourceError, "answers 200"),
        (b"HTTP/1.1 101 X\r\nupgrade: websocket\r\n\r\n", SourceError, "answers 101"),
        (b"nonsense", SourceError, "it begins with"),
        (b"", SourceError, "has closed the connection"),
        (b"HTTP/1.1 101 X\r\n" + b"x: y\r\n" * 100_000, SourceError, "longer than"),
    ],
)
@in_loop
async def test_no_feed(says: bytes, error: type[SourceError], problem: str) -> None:
    """It is told what came instead."""
    async with Liar(says) as source:
        with pytest.raises(error, match=problem):
            async with source.follow("c"):
                pass


@in_loop
async def test_a_silent_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has so long to answer, to send, and to take."""
    monkeypatch.setattr(trickle_source, "ANSWER_S", 0.05)
    monkeypatch.setattr(trickle_source, "SILENCE_S", 0.05)
    async with Liar(closes=False) as source:
        with pytest.raises(SourceError, match="no answer in time"):
            async with source.follow("c"):
                pass
    silent = Liar(b"HTTP/1.1 101 X\r\nUpgrade: Trickle-Feed\r\n\r\nrest", closes=False)
    async with silent as source, source.follow("c") as stream:
        await stream.send(b"hello")
        assert await stream.receive() == b"rest"
        with pytest.raises(SourceError, match="has sent nothing"):
            await stream.receive()
    async with Liar(b"HTTP/1.1 101 X\r\nUpgrade: trickle-feed\r\n\r\n") as source, source.follow("c") as stream:
        assert await stream.receive() == b""


@in_loop
async def test_nobody_is_there() -> None:
    """A port at which nobody listens."""
    source = TrickleSource(Requests("http://127.0.0.1:1/trickle"))
    for ask in (source.look(), source.channel("c"), source.segments("c", 1, 0)):
        with pytest.raises(SourceError, match=HERE):
            await ask
    with pytest.raises(SourceError, match=HERE):
        async with source.follow("c"):
            pass
