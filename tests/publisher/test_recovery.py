"""The publisher and the real server, with connections that break and servers that die: every byte once, or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.app.core.support import owned
from tests.publisher.fakes import Answer, Trickle, cut, publisher, reply
from tests.publisher.proxies import WITHOUT_ANSWER, proxy
from tests.support.local import LocalServer, local_server
from tests.support.peers import fake_server, run
from tests.support.waiting import WITHIN_S, until
from tricklecast import testing
from tricklecast.publisher import Publisher, SegmentWriter, uploads
from tricklecast.publisher.events import PublisherEvent, Renumbered, Retrying, SegmentLost
from tricklecast.subscriber import Subscriber
from tricklecast.trickle import errors, wire
from tricklecast.trickle.client.bridge import TrickleTransport

CHUNKS = [b"one", b"2" * 5000, b"three" * 20_000, b"4", b"five"]
WHOLE = b"".join(CHUNKS)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """One server for all tests, each of which has a channel of its own."""
    with local_server() as running:
        yield running


async def get(server: LocalServer, channel: str, seq: int | str) -> httpx.Response:
    """What a subscriber gets."""
    async with httpx.AsyncClient() as http:
        return await http.get(f"http://127.0.0.1:{server.port}/trickle/{channel}/{seq}", timeout=WITHIN_S)


@pytest.mark.parametrize("cut", [0, 1, 4, 8, 100, 5013, 20_000, 105_000, WITHOUT_ANSWER])
def test_a_cut_connection_costs_no_byte(server: LocalServer, cut: int) -> None:
    """Wherever it breaks, in a chunk's size, in a chunk or behind it: readers get each byte once, and live."""

    async def main() -> None:
        channel = f"cut{cut}"
        async with proxy(server.port) as between, publisher(between.url(channel)) as pub:
            await pub.publish(b"before")
            between.cuts[f"POST /trickle/{channel}/1"] = [cut, cut]
            live: list[httpx.Response] = []

            async def read() -> None:
                live.append(await get(server, channel, 1))

            # The preconnect may be up already: its body is then cut as soon as there is any.
            between.cut_all()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                async with pub.segment() as segment:
                    for chunk in CHUNKS:
                        await segment.write(chunk)
            assert segment.receipt.attempts > 2
            assert (segment.receipt.seq, segment.receipt.sent, segment.receipt.stored) == (1, len(WHOLE), len(WHOLE))
            assert live[0].content == WHOLE
            assert wire.TRUNCATED not in live[0].headers
            assert (await get(server, channel, 1)).content == WHOLE
            assert (await pub.publish(b"after")).seq == 2
            assert (pub.statistics().lost, pub.statistics().dropped) == (0, 0)

    run(main())


def test_segments_that_overlap_survive_a_cut_together(server: LocalServer) -> None:
    """All connections at once: each segment goes on where it was, the later one as well as the earlier."""

    async def main() -> None:
        async with proxy(server.port) as between, publisher(between.url("together")) as pub:
            async with pub.segment(wait=False) as first, pub.segment(wait=False) as second:
                await first.write(b"first,")
                await second.write(b"second,")
                between.cut_all()
                await second.write(b"again")
                await first.write(b"again")
            assert [(await one.settled()).seq for one in (first, second)] == [0, 1]
            assert (await get(server, "together", 0)).content == b"first,again"
            assert (await get(server, "together", 1)).content == b"second,again"
            await pub.publish(b"third")

    run(main())


def test_a_dropped_segment_is_seen_by_its_reader_at_once(server: LocalServer) -> None:
    """The reader gets what there is, a clean end, and that it is a part, long before the publisher's grace ends."""

    async def main() -> None:
        url = f"http://127.0.0.1:{server.port}/trickle/drop"
        with server.client() as target:
            async with publisher(url, most=1, when_full="drop") as pub:
                slow = await pub.segment(wait=False).__aenter__()
                await slow.write(b"part")
                reader = await anyio.to_thread.run_sync(target.channel("drop").arrived, 0, b"part")
                assert (await pub.publish(b"newer")).seq == 1
                await anyio.to_thread.run_sync(reader.rest)
                with pytest.raises(errors.SegmentDropped):
                    await slow.write(b"more")
                (await anyio.to_thread.run_sync(target.channel("drop").get, 0)).truncated()
                assert pub.statistics().dropped == 1

    run(main())


def test_a_cut_off_segment_does_not_keep_its_readers_waiting(server: LocalServer) -> None:
    """An exception in the writer ends the segment for its readers, as a part."""

    async def main() -> None:
        url = f"http://127.0.0.1:{server.port}/trickle/fail"

        async def fail(pub: Publisher) -> None:
            async with pub.segment() as segment:
                await segment.write(b"part")
                raise LookupError

        async with publisher(url) as pub:
            with pytest.raises(LookupError):
                await fail(pub)
            response = await get(server, "fail", 0)
            assert response.content == b"part"
            await pub.publish(b"whole")

    run(main())


def test_live_media_goes_on_after_an_outage_in_which_much_was_dropped(server: LocalServer) -> None:
    """The server never heard of those numbers; it is told that they are over, and so are its readers. The block's end
    names the segments whose writers do not know yet."""

    async def main() -> None:
        with pytest.raises(errors.SegmentsUnconfirmed) as caught:
            await publish()
        assert len(caught.value.seqs) + caught.value.more >= 18

    async def publish() -> None:
        async with proxy(server.port) as between, publisher(between.url("leap"), most=2, when_full="drop") as pub:
            await pub.publish(b"before")
            between.down = True
            between.cut_all()
            for _ in range(20):
                async with pub.segment(wait=False) as lost:
                    await lost.write(b"lost")
            waiting = asyncio.ensure_future(get(server, "leap", 1))
            # A reader that came later would find that there is no segment 1.
            await until(lambda: server.plane.registry.readers > 0)
            between.down = False
            receipt = await pub.publish(b"after")
            statistics = pub.statistics()
            assert receipt.seq > 16  # numbers of segments of which nothing had left are used again
            assert (statistics.dropped + statistics.segments, statistics.lost, pub.error) == (22, 0, None)
            assert statistics.dropped >= 18
            assert (await get(server, "leap", receipt.seq)).content == b"after"
            assert (await waiting).content == b""

    run(main())


@pytest.mark.usefixtures("forked_servers")
@pytest.mark.parametrize("start", ["resume", 5])
def test_a_server_that_begins_later_is_waited_for(start: Any) -> None:
    """It is asked for the position, or given the first segment, until it is there."""

    async def main(server: testing.TestServer) -> None:
        tried = anyio.Event()

        def on_event(event: PublisherEvent) -> None:
            if isinstance(event, Retrying):
                tried.set()

        async def publish() -> None:
            async with publisher(server.url("late"), start=start, wait_for_server_s=None, on_event=on_event) as pub:
                await pub.publish(b"whole")

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish)
                await tried.wait()
                await anyio.to_thread.run_sync(server.restart)
            async with Subscriber(server.url("late"), start="earliest") as subscriber:
                assert await (await anext(subscriber)).read() == b"whole"

    with testing.server() as server:
        server.stop()
        run(main(server))


@pytest.mark.usefixtures("forked_servers")
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_live_stream_loses_nothing_while_its_server_restarts(end: str) -> None:
    """Segments that come while a real server is down wait in the buffer, and follow under their own numbers."""

    async def main(server: testing.TestServer) -> None:
        async with publisher(server.url("live"), when_full="drop") as pub:
            made: list[SegmentWriter] = []
            for number in range(30):
                if number == 5:
                    assert [(await segment.settled()).seq for segment in made] == list(range(5))
                    await anyio.to_thread.run_sync(getattr(server, end))
                if number == 20:
                    await anyio.to_thread.run_sync(server.restart)
                made.append(await pub.segment(wait=False).__aenter__())
                made[-1].write_nowait(b"%d" % number)
                made[-1].end_nowait()
            assert [(await segment.settled()).seq for segment in made] == list(range(30))
            assert (pub.statistics().dropped, pub.statistics().lost) == (0, 0)
            async with Subscriber(server.url("live"), start="earliest") as subscriber:
                first = await anext(subscriber)
                assert first.seq <= 5
                for seq in range(first.seq, 30):
                    segment = first if seq == first.seq else await anext(subscriber)
                    assert (segment.seq, await segment.read()) == (seq, b"%d" % seq)

    with testing.server() as server:
        run(main(server))


def test_another_publisher_is_not_interleaved_with(server: LocalServer) -> None:
    """Who finds the channel beyond its own segments after a lost connection stops, and says where it is."""

    async def main() -> None:
        direct = f"http://127.0.0.1:{server.port}/trickle/rival"
        async with proxy(server.port) as between, publisher(between.url("rival")) as mine:
            await mine.publish(b"mine")
            between.down = True
            between.cut_all()
            # Else the server may still take the other one's POST for one that takes a preconnect over, and say so.
            await until(lambda: not server.inside(lambda: server.plane.registry.channels["rival"].unclosed))
            async with publisher(direct, preconnect=0) as other:
                for number in range(1, 4):
                    assert (await other.publish(b"theirs")).seq == number
                between.down = False
                await until(lambda: mine.error is not None)
                with pytest.raises(errors.Superseded) as caught:
                    await mine.publish(b"mine")
                assert (caught.value.seq, caught.value.latest) == (0, 4)
                assert (await other.publish(b"theirs")).seq == 4

    run(main())


async def begin_anew(url: str) -> None:
    """Another client ends the channel, begins it again with one segment, and leaves."""
    async with httpx.AsyncClient() as http:
        await http.delete(url)
    other = await publisher(url, preconnect=0).open()
    assert (await other.publish(b"theirs")).seq == 0
    await other.detach()


def test_a_publisher_that_was_paused_writes_nothing_into_the_next_life(server: LocalServer) -> None:
    """Its next segment would fit behind those of its successor; the server refuses it, and the error says why."""

    async def main() -> None:
        url = f"http://127.0.0.1:{server.port}/trickle/pinned"
        async with publisher(url, preconnect=0) as mine:  # one request ahead would hear of the channel's end
            await mine.publish(b"mine")
            await begin_anew(url)
            with pytest.raises(errors.Superseded, match="begun the channel anew: it is in epoch 2") as caught:
                await mine.publish(b"late")
            assert (caught.value.seq, caught.value.latest, caught.value.epoch) == (1, 1, 2)
        assert (await get(server, "pinned", "next")).text == "1"

    run(main())


def test_a_server_that_has_forgotten_a_paused_publishers_channel_gets_the_next_segment(server: LocalServer) -> None:
    """As a server in memory mode that was restarted does: the channel begins anew with the publisher's numbers."""

    async def main() -> None:
        told: list[str] = []
        url = f"http://127.0.0.1:{server.port}/trickle/forgotten"
        async with publisher(url, preconnect=0, on_event=lambda event: told.append(str(event))) as pub:
            await pub.publish(b"before")
            registry = server.plane.registry
            server.inside(lambda: registry.drop(owned(registry, "forgotten")))
            assert (await pub.publish(b"after")).seq == 1
            assert any("channel not found: the server does not know it any more" in line for line in told)
            assert "the server does not have segment 0 any more, which it had confirmed" in told
            assert (await get(server, "forgotten", 1)).content == b"after"

    run(main())


def test_a_publisher_that_was_paused_does_not_end_the_next_life(server: LocalServer) -> None:
    """Its end is refused, too, and raises."""

    async def main() -> None:
        url = f"http://127.0.0.1:{server.port}/trickle/ends"
        mine = await publisher(url, preconnect=0).open()
        await mine.publish(b"mine")
        await begin_anew(url)
        with pytest.raises(errors.Superseded, match="epoch 2"):
            await mine.close()
        assert (await get(server, "ends", "0")).content == b"theirs"
        assert wire.CLOSED not in (await get(server, "ends", "next")).headers

    run(main())


def test_a_channel_that_was_ended_meanwhile_is_not_begun_again(server: LocalServer) -> None:
    """The publisher hears of it when it is back."""

    async def main() -> None:
        async with proxy(server.port) as between, publisher(between.url("over")) as pub:
            await pub.publish(b"x")
            between.down = True
            between.cut_all()
            async with httpx.AsyncClient() as http:
                await http.delete(f"http://127.0.0.1:{server.port}/trickle/over")
            between.down = False
            await until(lambda: pub.error is not None)
            with pytest.raises(errors.ChannelEnded):
                await pub.publish(b"y")

    run(main())


def test_one_request_at_a_time_looks_for_a_server_that_is_away(server: LocalServer) -> None:
    """However much was in flight: the position is asked for by one, and everything else follows."""

    async def main() -> None:
        async with proxy(server.port) as between, publisher(between.url("away"), preconnect=2) as pub:
            await pub.publish(b"x")
            async with pub.segment(wait=False) as first, pub.segment(wait=False) as second:
                await first.write(b"1")
                await second.write(b"2")
                before = len(between.requests)
                between.cut_all()
            await first.settled()
            await second.settled()
            posts = [request for request in between.requests[before:] if request.startswith("POST")]
            asked = [request for request in between.requests[before:] if request.startswith("GET")]
            assert len(asked) == 1
            assert len(posts) <= 6

    run(main())


@pytest.mark.usefixtures("forked_servers")
def test_a_killed_server_that_comes_back_gets_the_rest() -> None:
    """The segment under way is sent again whole, the writer is not disturbed, and the numbers go on."""

    async def main() -> None:
        with testing.server() as real:
            async with publisher(real.url("cam")) as pub:
                await pub.publish(b"before")
                async with pub.segment(wait=False) as ended:
                    await ended.write(b"unanswered? ")
                async with pub.segment() as segment:
                    await segment.write(b"written before, ")
                    await anyio.to_thread.run_sync(real.kill)
                    await segment.write(b"while it was away, ")
                    await anyio.to_thread.run_sync(real.restart)
                    await segment.write(b"and after")
                assert segment.receipt.seq == 2
                await ended.settled()
                assert (await pub.publish(b"next")).seq == 3
                async with httpx.AsyncClient() as http:
                    answer = await http.get(f"{real.url('cam')}/2")
                assert answer.content == b"written before, while it was away, and after"
                assert (pub.statistics().lost, pub.error) == (0, None)

    run(main())


def test_a_channel_that_has_just_ended_begins_at_any_number(server: LocalServer) -> None:
    """A program that chooses its first number need not wait until the server has forgotten the channel."""

    async def main() -> None:
        url = f"http://127.0.0.1:{server.port}/trickle/again"
        async with Publisher(url) as first:
            await first.publish(b"old")
        async with Publisher(url, start=5) as second:
            assert (await second.publish(b"new")).seq == 5
            assert (await get(server, "again", 5)).content == b"new"

    run(main())


@pytest.mark.usefixtures("forked_servers")
def test_a_segment_that_a_killed_server_had_stored_is_published(tmp_path: Path) -> None:
    """Only its answer was cut off. The server has forgotten the segment's key, so the publisher reads it back."""

    async def main() -> None:
        with testing.server(data_dir=tmp_path, ack="journal") as real:
            async with proxy(real.port) as between, publisher(between.url("cam")) as pub, httpx.AsyncClient() as http:
                between.cuts["POST /trickle/cam/1"] = [WITHOUT_ANSWER]
                await pub.publish(b"before")
                await until(lambda: "POST /trickle/cam/1" in between.requests)
                between.down = True
                async with pub.segment(wait=False) as segment:
                    await segment.write(b"the segment")
                while wire.SIZE not in (await http.head(f"{real.url('cam')}/1")).headers:
                    await anyio.lowlevel.checkpoint()
                await anyio.to_thread.run_sync(real.kill)
                await anyio.to_thread.run_sync(real.restart)
                between.down = False
                receipt = await segment.settled()
                assert (receipt.seq, receipt.sent, receipt.stored) == (1, 11, 11)
                assert (await pub.publish(b"next")).seq == 2
                assert (pub.statistics().lost, pub.statistics().segments) == (0, 3)

    run(main())


@pytest.mark.parametrize(
    ("answer", "is_published"),
    [
        (reply(200, {wire.SEQ: 1}, b"mine"), True),
        (reply(200, {wire.SEQ: 1}, b"hers"), False),
        (reply(200, {wire.SEQ: 1, wire.TRUNCATED: "truncated"}, b"mine"), False),
        (reply(403), False),
        (cut(), False),
    ],
    ids=["whole", "another's", "truncated", "may not read", "lost"],
)
def test_a_closed_segment_is_ones_own_if_it_has_the_same_bytes(answer: Answer, is_published: bool) -> None:
    """Any other one is somebody else's, or a part: the segment is lost, and the next one can be published."""

    async def main() -> None:
        trickle = Trickle(epoch=1)
        trickle.instead["POST 1"] = [cut(after=1), reply(409, {wire.LATEST: 2})]
        trickle.instead["GET 1"] = [answer]
        async with fake_server(trickle) as server, publisher(server, preconnect=0) as pub:
            await pub.publish(b"before")
            if is_published:
                assert (await pub.publish(b"mine")).seq == 1
            else:
                with pytest.raises(errors.Superseded):
                    await pub.publish(b"mine")
            assert (await pub.publish(b"next")).seq == 2

    run(main())


def test_segments_that_are_cut_off_before_they_begin_cost_no_others(server: LocalServer) -> None:
    """The server takes none of those behind a number that it never hears of: not while an older segment is open."""

    async def main() -> None:
        async with publisher(f"http://127.0.0.1:{server.port}/trickle/ahead", preconnect=0) as pub:
            made = [await pub.begin() for _ in range(10)]
            for at, segment in enumerate(made):  # no request can have begun, since nothing here waits
                segment.write_nowait(b"%d" % at)
            for at in (1, 2, 5, 6):
                made[at].abort()
            receipts = [await made[at].end() for at in (3, 4, 7, 8, 9)]
            assert [receipt.seq for receipt in receipts] == [1, 2, 3, 4, 5]
            assert (await pub.publish(b"next")).seq == 6
            assert (await made[0].end()).seq == 0
            assert pub.error is None
            stored = [(await get(server, "ahead", seq)).content for seq in range(7)]
        assert stored == [b"0", b"3", b"4", b"7", b"8", b"9", b"next"]

    run(main())


def test_segments_that_are_dropped_hold_up_no_others(server: LocalServer) -> None:
    """While an older one is open, the server would refuse those behind a gap, until nothing could be published."""

    async def main() -> None:
        async with publisher(f"{server_url(server)}/dropped", when_full="drop", most=8, preconnect=0) as pub:
            old = await pub.begin()
            await old.write(b"old")
            made = []
            for at in range(100):  # no request can begin, since nothing here waits
                segment = await pub.begin()
                segment.write_nowait(b"%d" % at)
                segment.end_nowait()
                made.append(segment)
            fates = [await fate(segment) for segment in made]
            assert fates == [None] * 93 + [*range(1, 8)]
            assert (await old.end()).seq == 0
            statistics = pub.statistics()
            assert (statistics.segments, statistics.dropped, statistics.retries) == (8, 93, 0)
            stored = [(await get(server, "dropped", seq)).content for seq in range(8)]
        assert stored == [b"old", *(b"%d" % at for at in range(93, 100))]

    run(main())


def test_any_segments_are_published_or_told(server: LocalServer) -> None:
    """Segments are dropped and cut off beside an older one that is open, on a slow network."""

    class Slow(TrickleTransport):
        """Requests take up to some milliseconds, each another time."""

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await anyio.sleep(dice.random() ** 2 * 0.02)
            return await super().handle_async_request(request)

    async def work(pub: Publisher, name: int, published: dict[int, bytes]) -> None:
        for at in range(10):
            made = [(await pub.begin(), b"%d of %d " % (at, name) * dice.choice([1, 50, 500])) for _ in range(5)]
            for segment, data in made:
                with suppress(errors.SegmentDropped):
                    segment.write_nowait(data)
                    segment.end_nowait()
                await anyio.sleep(dice.choice([0.0, 0.002]))
            with anyio.move_on_after(dice.choice([0.01, WITHIN_S])):
                for segment, data in made:
                    if (seq := await fate(segment)) is not None:
                        published[seq] = data
            for segment, _ in made:
                segment.abort()

    async def main(channel: str) -> None:
        url, published = f"{server_url(server)}/{channel}", dict[int, bytes]()
        with suppress(errors.SegmentsUnconfirmed):  # those of which nobody asked
            async with Publisher(url, when_full="drop", buffer_bytes=20_000, transport=Slow()) as pub:
                pub._segments.most = 12
                old = await pub.begin()
                await old.write(b"old")
                async with anyio.create_task_group() as tasks:
                    for name in range(4):
                        tasks.start_soon(work, pub, name, published)
                if (seq := await fate(old, end=True)) is not None:
                    published[seq] = b"old"
                assert pub.error is None
                for seq, data in published.items():
                    assert (await get(server, channel, seq)).content == data
        assert published

    for seed in range(3):
        dice = Random(seed)
        run(main(f"any{seed}"))


def test_what_stands_for_a_segment_that_was_given_up_is_not_published_elsewhere() -> None:
    """The server has passed that number without it: no warning, no retry, and no further empty segment."""

    async def main() -> None:
        under_way, given_up = anyio.Event(), anyio.Event()

        class Held(TrickleTransport):
            """The connection for segment 1 takes its time."""

            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if request.url.path.endswith("/1"):
                    under_way.set()
                    await given_up.wait()
                return await super().handle_async_request(request)

        trickle, seen = Trickle(), list[PublisherEvent]()
        trickle.instead = {"POST 1": [reply(409, {wire.LATEST: 3})]}
        options: dict[str, Any] = {"start": 0, "preconnect": 0, "transport": Held(), "on_event": seen.append}
        async with fake_server(trickle) as at, publisher(at, **options) as pub:
            first, second, third = [await pub.begin() for _ in range(3)]
            for one in (first, second, third):
                one.write_nowait(b"x")
            await under_way.wait()
            second.abort()
            given_up.set()
            assert [(await one.end()).seq for one in (third, first)] == [2, 0]
            await until(lambda: not (pub._segments._carriers.carrying or pub._segments._carriers.waiting))
            assert pub.statistics().retries == 0
        assert not [event for event in seen if isinstance(event, Renumbered)]

    run(main())


def test_those_that_wait_follow_a_segment_that_gets_a_later_number() -> None:
    """Behind them the server would refuse it until they are there, and each refusal is paid for."""

    async def main() -> None:
        go = anyio.Event()

        class Held(TrickleTransport):
            """The connection for segment 1 takes its time."""

            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if request.url.path.endswith("/1"):
                    await go.wait()
                return await super().handle_async_request(request)

        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(409, {wire.LATEST: 1})]}
        async with fake_server(trickle) as at, publisher(at, start=0, preconnect=0, transport=Held()) as pub:
            made = [await pub.begin() for _ in range(8)]
            for one in made:
                one.write_nowait(b"x")
                one.end_nowait()
            await until(lambda: made[0].seq == 2)
            go.set()
            assert [await fate(one) for one in made] == [2, 1, *range(3, 9)]
            assert pub.statistics().retries == 1

    run(main())


def test_a_segment_that_is_cut_off_as_its_pause_ends_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task is on its way already, so that no cancellation meets it."""

    async def main() -> None:
        go, sleep = anyio.Event(), anyio.sleep
        made: list[SegmentWriter] = []

        class Held(TrickleTransport):
            """The connection for segment 1 takes its time."""

            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if request.url.path.endswith("/1"):
                    await go.wait()
                return await super().handle_async_request(request)

        async def paused(delay_s: float) -> None:
            await sleep(delay_s)
            if made and made[0].seq == 2:
                made[0].abort()
                go.set()

        monkeypatch.setattr(anyio, "sleep", paused)
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(409, {wire.LATEST: 1})]}
        async with fake_server(trickle) as at, publisher(at, start=0, preconnect=0, transport=Held()) as pub:
            made += [await pub.begin() for _ in range(8)]
            for one in made:
                one.write_nowait(b"x")
                one.end_nowait()
            assert [await fate(one) for one in made[1:]] == [1, *range(3, 9)]
            await until(lambda: not (pub._segments._carriers.carrying or pub._segments._carriers.waiting))
            assert trickle.stored.keys() == {str(seq) for seq in (1, *range(3, 9))}
            assert pub.statistics().buffered_bytes == 0

    run(main())


def test_no_two_segments_get_one_number() -> None:
    """Where a segment gets a later number, the preconnect that had it is no longer there to hand it back."""

    async def main() -> None:
        go = anyio.Event()

        class Held(TrickleTransport):
            """The connections for segments 1 to 4 take their time."""

            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if request.url.path[-1:] in "1234":
                    await go.wait()
                return await super().handle_async_request(request)

        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(409, {wire.LATEST: 1})]}
        async with fake_server(trickle) as at, publisher(at, start=0, transport=Held()) as pub:
            made = [await pub.begin() for _ in range(8)]
            for one in made:
                one.write_nowait(b"x")
                one.end_nowait()
            await until(lambda: made[0].seq == 2)
            made[6].abort()
            made.append(await pub.begin())
            made[-1].write_nowait(b"x")
            made[-1].end_nowait()
            left = [one for at, one in enumerate(made) if at != 6]
            assert len({one.seq for one in left}) == len(left)
            go.set()
            assert [await fate(one) for one in left] == [2, 1, *range(3, 9)]

    run(main())


def test_segments_that_wait_go_back_with_the_first_one() -> None:
    """The publisher was told a head by one server, and publishes to another, whose head is lower: a proxy stands before
    both. Those whose turn had not come were never sent: under their numbers the server would not take them."""

    async def main() -> None:
        trickle = Trickle(head=20)
        trickle.instead = {f"POST {seq}": [reply(470, {wire.LATEST: 3})] for seq in range(20, 30)}
        async with fake_server(trickle) as at, publisher(at, preconnect=0) as pub:
            made = [await pub.begin() for _ in range(10)]
            for one in made:
                one.write_nowait(b"x")
                one.end_nowait()
            with anyio.fail_after(WITHIN_S):
                numbers = [await fate(one) for one in made]
            assert sorted(map(str, numbers)) == sorted(map(str, range(3, 13)))
            assert numbers[4:] == [*range(7, 13)]  # those that waited for the first four
            assert (await pub.publish(b"after")).seq == 13

    run(main())


def test_one_that_is_given_up_while_it_waits_goes_back_with_the_first_one() -> None:
    """It stands in for itself as an empty segment, so that those behind it have a number that the server takes."""

    async def main() -> None:
        trickle = Trickle(head=20)
        trickle.instead = {f"POST {seq}": [reply(470, {wire.LATEST: 3})] for seq in range(20, 24)}
        async with fake_server(trickle) as at, publisher(at, preconnect=0) as pub:
            made = [await pub.begin() for _ in range(8)]
            for one in made:
                one.write_nowait(b"x")
            made[5].abort()
            for one in [*made[:5], *made[6:]]:
                one.end_nowait()
            with anyio.fail_after(WITHIN_S):
                numbers = [await fate(one) for one in made if one is not made[5]]
            assert sorted(map(str, numbers)) == sorted(map(str, range(3, 10)))

    run(main())


def test_a_segment_whose_first_write_was_cancelled_has_its_number() -> None:
    """It is to be written yet: the number that it gets in place of one that the server has passed is no other's."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {f"POST {seq}": [reply(409, {wire.LATEST: seq + 1})] for seq in (0, 1)}
        async with (
            fake_server(trickle) as at,
            publisher(at, start=0, preconnect=0) as pub,
            pub.segment() as one,
            pub.segment() as two,
        ):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await one.write(b"not sent")
            two.write_nowait(b"second")
            await until(lambda: (one.seq, two.seq) == (2, 3))
            await one.write(b"first")
        assert [segment.receipt.seq for segment in (one, two)] == [2, 3]
        assert trickle.stored == {"2": [b"first"], "3": [b"second"]}

    run(main())


def test_a_segment_that_gave_its_number_away_is_not_told_by_it() -> None:
    """The number is another segment's, which is published."""

    async def main() -> None:
        under_way, given_up = anyio.Event(), anyio.Event()

        class Held(TrickleTransport):
            """The connection for segment 0 takes its time."""

            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if request.url.path.endswith("/0"):
                    under_way.set()
                    await given_up.wait()
                return await super().handle_async_request(request)

        seen: list[PublisherEvent] = []
        async with fake_server(Trickle()) as at, publisher(at, start=0, transport=Held(), on_event=seen.append) as pub:
            segment = await pub.begin()
            await under_way.wait()
            segment.write_nowait(b"its request is the next one's")
            segment.abort()
            made = [await pub.begin() for _ in range(6)]
            for one in made:
                one.write_nowait(b"x")
            left = [one for one in made if one is not made[1]]  # it waits, and is cut off by the end
            for one in left:
                one.end_nowait()
            given_up.set()
            assert await pub.close() == ()
            assert [(await one.settled()).seq for one in left] == [0, 1, 2, 3, 4]
        assert [event.seq for event in seen if isinstance(event, SegmentLost)] == [None, None]

    run(main())


@pytest.mark.parametrize("most", [3, 2])
def test_a_first_segment_that_is_not_sent_leaves_its_reset_to_the_next(most: int) -> None:
    """Whether its writer cuts it off, or it is dropped for the third one."""

    async def main() -> None:
        trickle = Trickle(head=3)
        options: dict[str, Any] = {"start": "reset", "preconnect": 0, "when_full": "drop", "most": most}
        async with fake_server(trickle) as at, publisher(at, **options) as pub:
            made = [await pub.begin() for _ in range(2)]
            for one in made:
                one.write_nowait(b"x")
            made.append(await pub.begin())
            made[0].abort()
            made[2].write_nowait(b"x")
            for one in made[1:]:
                one.end_nowait()
            assert [(await one.settled()).seq for one in made[1:]] == [3, 4]
            with pytest.raises(errors.ClosedHere if most == 3 else errors.SegmentDropped):
                await made[0].settled()
        posts = [head for head in trickle.heads if head.method == "POST"]
        assert [wire.RESET.lower() in head.headers for head in posts] == [True, False]

    run(main())


def test_tasks_that_carry_requests_are_few(server: LocalServer) -> None:
    """However many segments are given up before their requests begin."""

    async def main() -> None:
        async with publisher(f"{server_url(server)}/tasks") as pub:
            for _ in range(100):
                segment = await pub.begin()
                segment.write_nowait(b"x")
                segment.abort()
            assert pub._segments._carriers._tasks <= uploads.MAX_REQUESTS
            assert (await pub.publish(b"next")).seq == 0

    run(main())


async def fate(segment: SegmentWriter, *, end: bool = False) -> int | None:
    """The number under which a segment was published; ``None`` if it was dropped."""
    try:
        return (await (segment.end() if end else segment.settled())).seq
    except errors.SegmentDropped:
        return None


def server_url(server: LocalServer) -> str:
    """Where the server's channels are."""
    return f"http://127.0.0.1:{server.port}/trickle"
