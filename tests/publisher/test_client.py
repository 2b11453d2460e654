"""The publisher against fake servers: preconnects, early answers, retries, and the order in which it ends."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.publisher.fakes import Trickle, cut, publisher, reply
from tests.support.peers import FakeServer, Head, Peer, fake_server, run
from tests.support.waiting import until
from tricklecast.publisher import Closed, Publisher, Receipt, Segment, client
from tricklecast.trickle import __version__, errors, wire


async def write_without_end(segment: Segment) -> None:
    """Write until something is raised."""
    async with segment:
        while True:
            await segment.write(b"x")


async def settled(pub: Publisher) -> None:
    """Wait until the publisher has given up."""
    while pub.error is None:
        await anyio.lowlevel.checkpoint()


def test_segments_are_numbered_and_receipted() -> None:
    """Each segment is one request, each chunk one HTTP chunk, and the answer becomes a receipt."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server, publisher(server, content_type="video/mp2t") as pub:
            async with pub.segment() as segment:
                await segment.write(b"one")
                await segment.write(b"")
                await segment.write(memoryview(b"two"))  # type: ignore[arg-type]
            assert segment.receipt == Receipt(0, 6, 6, Closed.COMPLETE)
            assert await pub.publish(b"x" * 200_000) == Receipt(1, 200_000, 200_000, Closed.COMPLETE)
            async with pub.segment() as empty:
                assert empty.seq == 2
            assert empty.receipt == Receipt(2, 0, 0, Closed.EMPTY)
        assert trickle.stored["0"] == [b"one", b"two"]
        assert trickle.stored["1"] == [b"x" * 200_000]
        assert trickle.stored["2"] == []
        head = trickle.heads[1].headers
        assert head["content-type"] == "video/mp2t"
        assert head["user-agent"] == f"tricklecast/{__version__}"
        assert wire.ATTEMPT.lower() not in head
        assert wire.RESET.lower() not in head

    run(main())


def test_one_preconnect_is_ahead() -> None:
    """The first request is open before there is a segment, the next one as soon as a segment has its first byte."""

    async def main() -> None:
        trickle = Trickle(head=7)
        async with fake_server(trickle) as server, publisher(server) as pub:
            await trickle.seen("POST 7")
            assert trickle.log == ["GET next", "POST 7"]
            async with pub.segment() as segment:
                assert trickle.log == ["GET next", "POST 7"]
                await segment.write(b"x")
                await trickle.seen("POST 8")
                await segment.write(b"y")
            assert trickle.log == ["GET next", "POST 7", "POST 8"]

    run(main())


def test_without_preconnect_a_request_begins_with_its_segment() -> None:
    """``preconnect=0`` opens nothing ahead."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server:
            async with publisher(server, start=3, preconnect=0) as pub:
                await pub.publish(b"x")
                await pub.publish(b"y")
            assert trickle.log == ["POST 3", "POST 4", "DELETE"]

    run(main())


def test_the_channel_is_ended_before_the_preconnect() -> None:
    """At the time of the DELETE the preconnect still stands, so that readers learn of the end, not of a gap."""

    async def main() -> None:
        trickle = Trickle()
        order: list[str] = []

        async def preconnect(peer: Peer, head: Head) -> None:
            assert await peer.reader.read(100) == b"0\r\n\r\n"
            order.append("preconnect closed")

        async def delete(peer: Peer, head: Head) -> None:
            order.append("DELETE arrived")
            await trickle.seen("POST 1")
            await peer.answer(200)
            order.append("DELETE answered")

        trickle.instead = {"POST 1": [preconnect], "DELETE": [delete]}
        async with fake_server(trickle) as server:
            async with publisher(server, start=0) as pub:
                await pub.publish(b"x")
            assert order == ["DELETE arrived", "DELETE answered", "preconnect closed"]

    run(main())


def test_nothing_is_asked_after_the_end() -> None:
    """A preconnect that breaks while the channel is being ended is not opened again."""

    async def main() -> None:
        trickle = Trickle()
        deleting = asyncio.Event()

        async def preconnect(peer: Peer, head: Head) -> None:
            await deleting.wait()
            peer.reset()

        async def delete(peer: Peer, head: Head) -> None:
            deleting.set()
            await peer.answer(200)

        trickle.instead = {"POST 1": [preconnect], "DELETE": [delete]}
        async with fake_server(trickle) as server:
            async with publisher(server, start=0) as pub:
                await pub.publish(b"x")
                await trickle.seen("POST 1")
                await pub.close()
                await pub.close()
                with pytest.raises(errors.ClosedHere):
                    await pub.publish(b"late")
            assert trickle.log == ["POST 0", "POST 1", "DELETE"]

    run(main())


def test_detach_leaves_the_channel() -> None:
    """The preconnect is cut, not ended, since an ended one would become an empty segment."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server:
            async with publisher(server, start=0) as pub:
                await pub.publish(b"x")
                await trickle.seen("POST 1")
                await pub.detach()
                await pub.detach()
            assert trickle.log == ["POST 0", "POST 1"]
        assert trickle.stored == {"0": [b"x"]}

    run(main())


def test_reset_is_sent_with_the_first_segment_only() -> None:
    """``start="reset"`` asks for the position, and its first POST resets."""

    async def main() -> None:
        trickle = Trickle(head=4)
        trickle.instead = {"POST 4": [cut()]}
        async with fake_server(trickle) as server, publisher(server, start="reset") as pub:
            await trickle.seen("POST 4", times=2)
            await pub.publish(b"x")
            await trickle.seen("POST 5")
        resets = [(head.path[-1], head.headers.get(wire.RESET.lower())) for head in trickle.heads[1:4]]
        assert resets == [("4", "1"), ("4", "1"), ("5", None)]

    run(main())


EARLY = [
    (404, {}, errors.ChannelNotFound),
    (200, {wire.CLOSED: wire.TERMINATED}, errors.ChannelEnded),
    (404, {wire.CLOSED: wire.TERMINATED}, errors.ChannelEnded),
    (409, {wire.LATEST: 9}, errors.Superseded),
    (403, {}, errors.Refused),
]


@pytest.mark.parametrize(("status", "headers", "error"), EARLY)
def test_an_early_no_to_the_preconnect_is_raised(
    status: int, headers: dict[str, object], error: type[Exception]
) -> None:
    """It is seen before the first byte, raised by the next use, and the channel is not ended."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(status, headers, b"because")]}
        async with fake_server(trickle) as server:
            async with publisher(server, start=0) as pub:
                await settled(pub)
                with pytest.raises(error):
                    await pub.publish(b"x")
            assert trickle.log == ["POST 0"]
            with pytest.raises(errors.ClosedHere):
                await pub.publish(b"y")

    run(main())


@pytest.mark.parametrize(("status", "headers", "error"), [*EARLY, (413, {}, errors.SegmentTooLarge)])
def test_an_early_answer_in_the_middle_of_a_segment_is_raised(
    status: int, headers: dict[str, object], error: type[Exception]
) -> None:
    """The writer is stopped while its body is still open."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(status, headers, after=2)]}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            segment = pub.segment()
            with pytest.raises(error):
                await write_without_end(segment)
            with pytest.raises(error):
                _ = segment.receipt
            with pytest.raises(errors.LocalProtocolError):
                await segment.write(b"x")
            if error is errors.SegmentTooLarge:
                assert pub.error is None
                assert (await pub.publish(b"y")).seq == 1

    run(main())


def test_an_error_that_comes_with_the_answer_is_raised_at_the_end_of_the_segment() -> None:
    """A segment is published only when its answer says so; where a retry would double it, it is lost, and told so."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(200, {wire.SIZE: 1}, after=2)], "POST 1": [cut(after=2)]}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            with pytest.raises(errors.Superseded):
                await pub.publish(b"xy")
            trickle.head = 1
            with pytest.raises(errors.ConnectionLost, match="double"):
                await pub.publish(b"x")
            assert (await pub.publish(b"x")).seq == 2
            await trickle.seen("DELETE 1")
            statistics = pub.statistics()
            assert (statistics.lost, statistics.segments, statistics.dropped) == (2, 1, 0)
            assert isinstance(statistics.last_error, errors.ConnectionLost)

    run(main())


def test_a_preconnect_is_retried_until_it_holds() -> None:
    """A busy server and a broken connection cost no data: the bytes go into the request that holds."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(503), cut(), reply(429)]}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            await trickle.seen("POST 0", times=4)
            assert await pub.publish(b"x") == Receipt(0, 1, 1, Closed.COMPLETE, attempts=4)
            assert pub.statistics().retries >= 3
        posts = [head.headers.get(wire.ATTEMPT.lower()) for head in trickle.heads if head.path.endswith("/0")]
        assert posts == [None, "2", "3", "4"]
        assert trickle.stored["0"] == [b"x"]

    run(main())


def test_470_moves_the_segment_to_the_head() -> None:
    """The segment is published under the seq that the server has room for."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 50": [reply(470, {wire.LATEST: 7})]}
        async with fake_server(trickle) as server, publisher(server, start=50) as pub:
            await trickle.seen("POST 7")
            assert (await pub.publish(b"x")).seq == 7
            assert (await pub.publish(b"y")).seq == 8
        assert trickle.log[:2] == ["POST 50", "POST 7"]

    run(main())


def test_a_broken_preconnect_does_not_disturb_the_open_segment() -> None:
    """The next request is opened again while the current segment goes on."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 1": [cut()]}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            async with pub.segment() as segment:
                await segment.write(b"x")
                await trickle.seen("POST 1", times=2)
                await segment.write(b"y")
            assert segment.receipt.stored == 2
            assert (await pub.publish(b"z")).seq == 1

    run(main())


def test_an_exception_cuts_the_segment_off() -> None:
    """A half segment is not passed off as a whole one, and the publisher goes on with the next."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            segment = pub.segment()

            async def fail() -> None:
                async with segment:
                    await segment.write(b"half")
                    await trickle.seen("POST 1")
                    raise LookupError

            with pytest.raises(LookupError):
                await fail()
            await trickle.seen("DELETE 0")
            await pub.publish(b"whole")
            with pytest.raises(errors.ClosedHere):
                _ = segment.receipt
        assert trickle.heads[2].headers[wire.TRUNCATED.lower()] == "dropped"
        # The last preconnect may have come to its end, without a byte.
        assert {seq: chunks for seq, chunks in trickle.stored.items() if chunks} == {"1": [b"whole"]}

    run(main())


def test_a_segment_that_was_entered_before_the_end_is_told() -> None:
    """Its first chunk raises what has happened in the meantime."""

    async def main() -> None:
        trickle = Trickle()
        refused = asyncio.Event()

        async def refuse(peer: Peer, head: Head) -> None:
            await refused.wait()
            await reply(403)(peer, head)

        trickle.instead = {"POST 0": [refuse]}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            segment = await pub.segment().__aenter__()
            assert segment.seq == 0
            refused.set()
            await settled(pub)
            with pytest.raises(errors.Refused):
                await segment.write(b"x")
            assert isinstance(pub.statistics().last_error, errors.Refused)

    run(main())


def test_a_number_is_not_wasted_on_nothing() -> None:
    """A segment that is given up before anything of it could be sent leaves its seq to the next one."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(503)]}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            await until(lambda: pub.statistics().retries)

            async def fail() -> None:
                async with pub.segment() as segment:
                    await segment.write(b"never")
                    raise LookupError

            with pytest.raises(LookupError):
                await fail()
            assert await pub.publish(b"x") == Receipt(0, 1, 1, Closed.COMPLETE, attempts=2)

    run(main())


def test_cancelling_ends_the_channel() -> None:
    """A publisher that is cancelled in a write still ends its channel, and leaves nothing running."""

    async def main() -> None:
        trickle = Trickle()

        async with fake_server(trickle) as server:

            async def work() -> None:
                async with publisher(server, start=0) as pub, pub.segment() as segment:
                    await segment.write(b"x")
                    await anyio.sleep_forever()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                await trickle.seen("POST 1")
                tasks.cancel_scope.cancel()
            assert trickle.log == ["POST 0", "POST 1", "DELETE"]

    run(main())


def test_a_cancelled_write_takes_its_chunk_back() -> None:
    """A chunk that could be neither kept nor sent before its write was cancelled is not sent after it."""

    async def main() -> None:
        trickle = Trickle()
        refused = asyncio.Event()

        async def busy(peer: Peer, head: Head) -> None:
            await reply(503, {"Retry-After": 1})(peer, head)
            refused.set()

        trickle.instead = {"POST 0": [busy]}
        async with (
            fake_server(trickle) as server,
            publisher(server, start=0, retain_bytes=0) as pub,
            pub.segment() as segment,
        ):
            await refused.wait()
            with anyio.move_on_after(0.1) as waiting:
                await segment.write(b"too late")
            assert waiting.cancelled_caught
            await segment.write(b"in time")
        assert trickle.stored["0"] == [b"in time"]

    run(main())


def test_the_position_is_asked_for_until_it_is_known() -> None:
    """A busy server is asked again, with the number of the attempt."""

    async def main() -> None:
        trickle = Trickle(head=2)
        trickle.instead = {"GET next": [reply(503), cut()]}
        async with fake_server(trickle) as server, publisher(server) as pub:
            assert (await pub.publish(b"x")).seq == 2
        assert [head.headers.get(wire.ATTEMPT.lower()) for head in trickle.heads[:3]] == [None, "2", "3"]

    run(main())


def test_no_server_is_an_error_at_once() -> None:
    """Whoever cannot be reached at all is not waited for."""

    async def main() -> None:
        async with fake_server(Trickle()) as server:
            pass
        with pytest.raises(errors.ConnectionLost):
            async with publisher(server):
                raise AssertionError("not reached")
        async with publisher(server, start=0) as pub:
            with pytest.raises(errors.ConnectionLost):
                await pub.publish(b"x")

    run(main())


def test_a_server_that_is_not_ours_is_left_alone() -> None:
    """Neither a POST nor a DELETE goes to a URL whose answers are not those of a trickle server."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"GET next": [reply(200, {}, b"<html>\n<p>hello")]}
        async with fake_server(trickle) as server:
            with pytest.raises(errors.RemoteProtocolError, match="<html>"):
                async with publisher(server):
                    raise AssertionError("not reached")
        assert trickle.log == ["GET next"]

    run(main())


def test_ending_is_retried_and_its_failure_reported() -> None:
    """A DELETE that breaks is made again; one that is refused raises, unless something else is being raised."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"DELETE": [cut(), reply(503), reply(403), reply(403)]}

        async def fail(server: FakeServer) -> None:
            async with publisher(server, start=0) as pub:
                await pub.publish(b"x")
                raise LookupError

        async with fake_server(trickle) as server:
            with pytest.raises(errors.Refused):
                async with publisher(server, start=0) as pub:
                    await pub.publish(b"x")
            with pytest.raises(LookupError) as caught:
                await fail(server)
        assert "not ended" in caught.value.__notes__[0]
        assert trickle.log.count("DELETE") == 4

    run(main())


def test_ending_takes_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer the DELETE is not waited for without end, and that is said."""

    async def main() -> None:
        monkeypatch.setattr(client, "CLOSE_S", 0.05)
        trickle = Trickle()

        async def silent(peer: Peer, head: Head) -> None:
            await peer.closed()

        trickle.instead = {"DELETE": [silent]}
        async with fake_server(trickle) as server:
            with pytest.raises(errors.ConnectionLost, match="no answer to the channel's end"):
                async with publisher(server, start=0) as pub:
                    await pub.publish(b"x")

    run(main())


def test_an_endless_refusal_is_not_read_to_its_end() -> None:
    """The text of an answer is for people: its beginning is enough, and need not be whole."""

    async def main() -> None:
        async def endless(peer: Peer, head: Head) -> None:
            await peer.send(b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(100):
                await peer.send(b"800\r\n" + b"n" * 0x800 + b"\r\n")
            await peer.closed()

        async def broken(peer: Peer, head: Head) -> None:
            await peer.send(b"HTTP/1.1 403 No\r\nContent-Length: 100\r\n\r\nfirst\x07 line\r\nsecond")

        trickle = Trickle()
        trickle.instead = {"POST 0": [endless, broken]}
        async with fake_server(trickle) as server:
            for text in ("n" * 1024, "first line"):
                with pytest.raises(errors.Refused) as caught:
                    async with publisher(server, start=0) as pub:
                        await pub.publish(b"x")
                assert isinstance(caught.value, errors.Refused)
                assert caught.value.detail == text

    run(main())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preconnect", 3),
        ("preconnect", 1.0),
        ("start", "x"),
        ("start", True),
        ("max_in_flight", 0),
        ("max_in_flight", math.inf),
        ("when_full", "explode"),
        ("retain_bytes", -1),
        ("retain_bytes", math.nan),
        ("idle_rotation_s", 0.0),
        ("idle_rotation_s", math.nan),
        ("idle_rotation_s", math.inf),
        ("content_type", "text/plain\n"),
        ("content_type", " text/plain"),
        ("headers", {"Content-Length": "3"}),
        ("headers", {"transfer-encoding": "chunked"}),
        ("headers", {"X-Name": "a\nb"}),
        ("url", "ftp://host/cam"),
        ("url", "http://999.1.1.1/cam"),
    ],
)
def test_a_wrong_argument_is_refused_at_construction(name: str, value: object) -> None:
    """The error is typed, and comes before any request."""
    options: dict[str, Any] = {"url": "http://host/cam", name: value}
    with pytest.raises(errors.InvalidInput):
        Publisher(**options)


def test_wrong_use_is_refused() -> None:
    """Each rule of the objects has its error, and breaking one changes nothing."""

    async def main() -> None:
        async with fake_server(Trickle()) as server:
            pub = publisher(server)
            assert pub.statistics().segments == 0
            with pytest.raises(errors.LocalProtocolError):
                pub.segment()
            async with pub:
                with pytest.raises(errors.LocalProtocolError):
                    await pub.__aenter__()
                segment = pub.segment()
                with pytest.raises(errors.LocalProtocolError):
                    await segment.write(b"x")
                async with segment:
                    with pytest.raises(errors.LocalProtocolError):
                        _ = segment.receipt
                    with pytest.raises(errors.LocalProtocolError):
                        await segment.__aenter__()

    run(main())
