"""A server that speaks trickle and nothing else as a source: here one of our own, which is asked for nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from zlib import crc32

import httpx
import pytest

from tests.app.core.support import content
from tests.app.mirror.test_trickle_source import HERE, SEGMENT, Liar, answer, in_loop
from tests.interop.reference import reference_server
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.clock import to_time
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import State
from tricklecast.app.core.state import Channel
from tricklecast.app.mirror import plain_feed, plain_source
from tricklecast.app.mirror.opening import open_source
from tricklecast.app.mirror.plain_source import PlainSource
from tricklecast.app.mirror.requests import Requests
from tricklecast.app.mirror.sides import GoneThere, IndexTooOld, News, SourceError, SourceLies
from tricklecast.app.replication.records import FeedEnd
from tricklecast.app.replication.replica import Replica


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server whose control plane is elsewhere."""
    with local_server(control_port=0) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little patience."""
    monkeypatch.setattr(plain_source, "POLL_S", 0.01)
    monkeypatch.setattr(plain_feed, "SILENT_S", (0.2, 0.4))


def plain(server: LocalServer, *names: str, last: int = 0) -> PlainSource:
    """The source that a server is."""
    requests = Requests(f"http://127.0.0.1:{server.port}/trickle")
    return PlainSource(requests, names, lambda name: last)


class Copy:
    """A replica that follows a plain source for as long as a test lets it."""

    def __init__(self, name: str) -> None:
        self.told: list[tuple[int, int, int]] = []
        self.over: FeedEnd | None = None
        self.error: Exception | None = None
        self.registry = Registry(Limits(), autocreate=True)
        self.replica = Replica(name, self.registry, lambda: 7.0, to_time, closed=lambda *about: self.told.append(about))
        self._following: asyncio.Task[None] | None = None

    @property
    def channel(self) -> Channel:
        assert self.replica.channel is not None
        return self.replica.channel

    def begin(self, source: PlainSource) -> None:
        """Follow."""
        self._following = asyncio.create_task(self._follow(source))

    async def _follow(self, source: PlainSource) -> None:
        try:
            async with source.follow(self.replica.name) as stream:
                await stream.send(self.replica.hello())
                while self.over is None and (data := await stream.receive()):
                    self.over = self.replica.receive(data)
        except SourceError as error:
            self.error = error

    async def end(self) -> None:
        """Follow no more."""
        assert self._following is not None
        self._following.cancel()
        await asyncio.wait((self._following,))

    async def until(self, fact: Callable[[], object]) -> None:
        """Wait for something."""
        await until(lambda: fact() or self.error)
        assert self.error is None, self.error

    def closed(self) -> list[tuple[int, State, bytes]]:
        """The closed segments."""
        found = sorted(self.channel.segments.items())
        return [(seq, one.state, content(one)) for seq, one in found if one.closed]


@in_loop
async def test_a_channel_is_followed_as_its_bytes_come(server: LocalServer) -> None:
    """From its window on to its end: bytes as they come, whole segments, truncated ones, empty ones."""
    with server.client() as target:
        channel = target.channel("film").create("video/mp2t").publish(0, b"zero", b"one" * 100_000)
        source, copy = plain(server, "film"), Copy("film")
        listing = await source.look()
        assert [(one.name, one.epoch) for one in listing.channels] == [("film", 1)]
        copy.begin(source)
        await copy.until(lambda: len(copy.told) == 2)
        upload = channel.upload(2, b"half")
        await copy.until(lambda: 2 in copy.channel.segments and copy.channel.segments[2].size == 4)
        assert copy.channel.content_type == "video/mp2t"
        await asyncio.to_thread(lambda: upload.chunk(b", whole").stored())
        await asyncio.to_thread(channel.post, 3, b"")
        cut = channel.upload(4, b"cut")
        await copy.until(lambda: 4 in copy.channel.segments and copy.channel.segments[4].size == 3)
        await asyncio.to_thread(channel.close, 4, {"Lp-Trickle-Truncated": "1"})
        assert (await asyncio.to_thread(cut.answer)).status == 200
        await copy.until(lambda: len(copy.told) == 5)
        assert copy.closed() == [
            (0, State.COMPLETE, b"zero"),
            (1, State.COMPLETE, b"one" * 100_000),
            (2, State.COMPLETE, b"half, whole"),
            (3, State.EMPTY, b""),
            (4, State.TRUNCATED, b"cut"),
        ]
        assert copy.told[0] == (0, 4, crc32(b"zero"))
        await asyncio.to_thread(channel.end)
        await copy.until(lambda: copy.over)
        assert copy.over is FeedEnd.ENDED
        assert await source.channel("film") is None
        channel.publish(0, b"anew")
        again = await source.channel("film")
        assert again is not None
        assert again.epoch == 2
        await source.close()


@in_loop
async def test_a_broken_feed_goes_on_where_it_was(server: LocalServer) -> None:
    """What the replica has is not sent again, in the middle of a segment either."""
    with server.client() as target:
        channel = target.channel("broken").publish(0, b"zero")
        upload = channel.upload(1, b"half")
        source, copy = plain(server, "broken"), Copy("broken")
        copy.begin(source)
        await copy.until(lambda: 1 in copy.replica.channel.segments if copy.replica.channel else False)
        await copy.until(lambda: copy.channel.segments[1].size == 4)
        before = copy.channel
        await copy.end()
        await asyncio.to_thread(lambda: upload.chunk(b", whole").stored())
        channel.publish(2, b"two")
        copy.begin(source)
        await copy.until(lambda: len(copy.told) == 3)
        assert copy.channel is before
        assert [one[2] for one in copy.closed()] == [b"zero", b"half, whole", b"two"]
        await copy.end()
        other = plain(server, "broken", last=1)
        assert await other.channel("broken") is not None
        copy.begin(other)
        await copy.until(lambda: copy.channel is not before and len(copy.told) == 6)
        assert copy.channel.epoch == 2, "another mirror counts on"
        await copy.end()
        await source.close()
        await other.close()


@in_loop
async def test_segments_that_are_not_there(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody writes is passed over, one whose publisher is lost is cut; those behind the window are a jump.

    A feed that comes back too late to compare begins anew.
    """
    monkeypatch.setattr(plain_feed, "SKIPPED", 3)
    monkeypatch.setattr(plain_feed, "WINDOW_SEGMENTS", 4)
    with local_server(publisher_grace_s=60, skip_grace_s=0, window_segments=3) as other, other.client() as target:
        channel = target.channel("film").publish(0, b"zero")
        source, copy = plain(other, "film"), Copy("film")
        copy.begin(source)
        await copy.until(lambda: len(copy.told) == 1)
        lost = channel.upload(1, b"lost")
        await copy.until(lambda: 1 in copy.channel.segments and copy.channel.segments[1].size == 4)
        lost.connection.abort()
        await asyncio.to_thread(lambda: channel.post(2, b"two", {"Lp-Trickle-Reset": ""}))
        await copy.until(lambda: len(copy.told) == 3)
        assert copy.closed()[1][1:] in ((State.TRUNCATED, b"lost"), (State.COMPLETE, b"lost"))
        await copy.end()
        for seq in range(3, 20):
            channel.publish(seq, b"%d" % seq)
        passed, source._known["film"].passed = source._known["film"].passed, None  # as if it was slow, and not away
        copy.begin(source)
        await copy.until(lambda: copy.channel.next_seq == 20 and len(copy.channel.window) == 4)
        await copy.until(lambda: copy.told[-1][0] == 19)
        assert [one[2] for one in copy.closed()][1:] == [b"17", b"18", b"19"]
        await copy.end()
        source._known["film"].passed = passed
        copy.begin(source)
        await until(lambda: copy.error)
        assert "nobody can tell whether it is the same channel, since its segment 2 is not kept" in str(copy.error)
        await source.close()


@in_loop
async def test_names_come_from_the_changefeed(server: LocalServer) -> None:
    """Those of its window at first; without one, the names have to be given."""
    with server.client() as target:
        target.channel("first").create()
        source = plain(server)
        listing = await source.look()
        assert "first" in [one.name for one in listing.channels]
        target.channel("second").create()
        news = await source.news(listing.index, listing.instance)
        assert (list(news.names), news.index) == (["second"], listing.index + 1)
        for index, instance in ((listing.index + 100, listing.instance), (listing.index, "x")):
            with pytest.raises(IndexTooOld):
                await source.news(index, instance)
        await source.close()


@in_loop
async def test_without_a_changefeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels that are named are looked at again and again."""
    with local_server(changefeed=False) as server, server.client() as target:
        nameless = plain(server)
        with pytest.raises(SourceError, match="name the channels"):
            await nameless.look()
        await nameless.close()
        source = plain(server, "film", "other")
        listing = await source.look()
        assert (list(listing.channels), listing.index) == ([], 0)
        assert list((await source.news(0, listing.instance)).names) == []
        target.channel("film").create()
        assert list((await source.news(0, listing.instance)).names) == ["film"]
        assert list((await source.news(0, listing.instance)).names) == []
        target.channel("film").end()
        assert list((await source.news(0, listing.instance)).names) == ["film"]
        assert await source.segments("film", 1, -1) == ()
        with pytest.raises(GoneThere):
            _ = [chunk async for chunk in source.read("film", 1, SEGMENT)]
        with pytest.raises(GoneThere):
            async with source.follow("film"):
                pass
        await source.close()


@in_loop
async def test_a_server_with_the_habits_of_the_reference() -> None:
    """It forgets a channel that ends, and tells no epochs; a publisher that begins anew is another one."""

    def post(seq: int, body: bytes) -> None:
        httpx.post(f"{url}/{seq}", content=body, headers={"Content-Type": "video/mp2t"}).raise_for_status()

    with reference_server() as reference:
        url = reference.url("cam")
        source = await open_source(reference.base, channels=["cam", "x*"])
        assert isinstance(source, PlainSource)
        assert list((await source.look()).channels) == []
        for seq in range(8):
            await asyncio.to_thread(post, seq, b"%d" % seq)
        copy = Copy("cam")
        copy.begin(source)
        await copy.until(lambda: len(copy.told) == 5)
        await asyncio.to_thread(post, 8, b"8")
        await copy.until(lambda: len(copy.told) == 6)
        assert [one[::2] for one in copy.closed()] == [(seq, b"%d" % seq) for seq in range(3, 9)]
        assert copy.channel.content_type == "video/mp2t"
        await asyncio.to_thread(httpx.delete, url)
        await copy.until(lambda: copy.over)
        assert await source.channel("cam") is None
        await asyncio.to_thread(post, 0, b"anew")
        found = await source.channel("cam")
        assert found is not None
        assert found.epoch == 2
        await asyncio.to_thread(post, 9, b"later")
        assert (await source.channel("cam")) == found
        await asyncio.to_thread(reference.set_head, "cam", 1)
        found = await source.channel("cam")
        assert found is not None
        assert found.epoch == 3, "its head has gone back"
        again = Copy("cam")
        again.begin(source)
        await again.until(lambda: again.replica.live)
        await asyncio.to_thread(reference.restart)
        await until(lambda: again.error or again.over)
        await source.close()


@pytest.mark.parametrize(
    ("before", "then", "since"),
    [
        (["0", "1", "2"], [], ["a", "b", "c", "d"]),
        (["0", "1", "2"], [], ["a"]),
        (["0", "1", "2"], [], [*"abcdefghi"]),
        (["0", "1"], [b"half of 2"], ["a", "b", "half and more"]),
        (["0", "1"], [b"half of 2"], ["a", "b", "2"]),
        (["0", "1"], [b"half of 2"], ["a"]),
    ],
)
@in_loop
async def test_a_server_that_has_lost_all_is_another_one(
    before: Sequence[str], then: Sequence[bytes], since: Sequence[str]
) -> None:
    """A publisher that begins anew after it may be as far by then as the copy; its bytes are never put behind the old
    ones, nor taken for them.
    """

    def post(seq: int, body: str | Iterator[bytes]) -> None:
        with suppress(httpx.TransportError):
            httpx.post(f"{url}/{seq}", content=body)

    def halted() -> Iterator[bytes]:
        yield from then
        lost.wait(WITHIN_S)

    with reference_server() as reference:
        url, lost = reference.url("cam"), threading.Event()
        source, copy = await open_source(reference.base, channels=["cam"]), Copy("cam")
        assert isinstance(source, PlainSource)
        for seq, text in enumerate(before):
            await asyncio.to_thread(post, seq, text)
        upload = asyncio.create_task(asyncio.to_thread(post, len(before), halted())) if then else None
        size = sum(map(len, [*before, *then]))
        await until(lambda: reference.channels["cam"].head == len(before) + len(then))
        copy.begin(source)
        await copy.until(lambda: len(copy.told) == len(before))
        await copy.until(lambda: sum(one.size for one in copy.channel.segments.values()) == size)
        old, kept = copy.channel, [*since[-plain_feed.BACK :]]
        await copy.end()
        reference.restart()
        lost.set()
        if upload is not None:
            await upload
        for seq, text in enumerate(since):
            await asyncio.to_thread(post, seq, text)

        def arrived() -> bool:
            return copy.channel is not old and len(copy.closed()) == len(kept)

        for _ in range(2):
            copy.error = None
            copy.begin(source)
            await until(lambda: copy.error or arrived())
        assert copy.error is None, copy.error
        assert copy.channel.epoch == 2
        assert [body.decode() for _, _, body in copy.closed()] == kept
        held = {content(one) for one in old.segments.values()}
        assert held <= {*(text.encode() for text in before), *then}, "nothing was added to it"
        await copy.end()
        await source.close()


@in_loop
async def test_nothing_comes_for_a_while(monkeypatch: pytest.MonkeyPatch, server: LocalServer) -> None:
    """Beats say that the source is followed; news may be none."""
    monkeypatch.setattr(plain_feed, "BEAT_S", 0.01)
    monkeypatch.setattr(plain_source, "WAIT_S", 0.05)
    with server.client() as target:
        target.channel("still").create()
        source, copy = plain(server, "still"), Copy("still")
        copy.begin(source)
        await copy.until(lambda: copy.replica.live)
        await asyncio.sleep(0.5)
        listing = await source.look()
        assert await source.news(listing.index, listing.instance) == News(listing.index, ())
        assert (copy.over, copy.error) == (None, None)
        await copy.end()
        await source.close()


async def all_of(feed: plain_feed.PlainFeed, copy: Copy) -> None:
    """Apply a feed to its end."""
    while copy.replica.receive(await feed.receive()) is None:
        pass


HEAD = b"HTTP/1.1 200 OK\r\nlp-trickle-latest: 1\r\nlp-trickle-seq: 0\r\n"


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ([answer(200, b"x", lp_trickle_latest="x")], "Lp-Trickle-Latest is no number: 'x'"),
        ([answer(200, b"x", lp_trickle_latest="9" * 16)], "is no number"),
        ([answer(500, b"broken")], "answers 500: broken"),
        ([answer(200, b"1", lp_trickle_latest="1", lp_trickle_seq="7")], "another segment than 0"),
        ([HEAD + b"transfer-encoding: chunked\r\n\r\n", *[b"1000\r\n" + bytes(4096) + b"\r\n"] * 100], "no end"),
    ],
)
@in_loop
async def test_servers_that_lie(says: Sequence[bytes], problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed fails, and says why."""
    monkeypatch.setattr(plain_feed, "MAX_SEGMENT", 10_000)
    async with Liar(*says) as liar:
        source, copy = PlainSource(liar.requests, ["c"], lambda name: 0), Copy("c")
        if b"chunked" in says[0]:
            source._known["c"] = plain_feed.Counted(1)
            feed = plain_feed.PlainFeed(source, "c", source._known["c"])
            await feed.send(copy.replica.hello())
            with pytest.raises(SourceLies, match=problem):
                await all_of(feed, copy)
            await feed.close()
        else:
            copy.begin(source)
            await until(lambda: copy.error)
            assert problem in str(copy.error)
            await copy.end()
        await source.close()


@in_loop
async def test_news_that_make_no_sense() -> None:
    """They are told as such."""
    for says in (answer(200, b"[]"), answer(200, b'{"added": ["a/b"]}'), answer(200, b'{"added": 7}')):
        async with Liar(says) as liar:
            source = PlainSource(liar.requests, [], lambda name: 0)
            source._tells = True
            with pytest.raises(SourceLies):
                await source.news(0, source.instance)
            await source.close()
    source = PlainSource(Requests("http://127.0.0.1:1/trickle"), ["c"], lambda name: 0)
    with pytest.raises(SourceError, match=HERE):
        await source.look()
