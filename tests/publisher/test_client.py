"""The publisher against fake servers: preconnects, early answers, retries, and the order in which it ends."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.publisher.fakes import Trickle, cut, publisher, reply
from tests.support.peers import FakeServer, Head, Peer, fake_server, run
from tests.support.server import RunningServer
from tests.support.waiting import until
from tricklecast.publisher import Closed, Publisher, PublisherEvent, Receipt, SegmentWriter, client
from tricklecast.publisher.events import Failed, Finished, Renumbered, Retrying, SegmentBegun, SegmentLost
from tricklecast.trickle import __version__, errors, wire


def write_much(segment: SegmentWriter) -> None:
    """More, without waiting, than may wait."""
    for _ in range(1000):
        segment.write_nowait(bytes(100_000))


async def write_without_end(segment: SegmentWriter) -> None:
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
    """The preconnect is cut, not ended: that would make an empty segment. The server is told that the place is free."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server:
            async with publisher(server, start=0) as pub:
                await pub.publish(b"x")
                await trickle.seen("POST 1")
                await pub.detach()
                await pub.detach()
            assert trickle.log == ["POST 0", "POST 1", "DELETE 0"]
            assert trickle.heads[2].headers[wire.LEAVE.lower()] == "1"
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


def test_live_media_is_written_without_waiting() -> None:
    """What the connection does not take waits in memory; if that gets too much, the segment is given up."""

    async def main() -> None:
        trickle = Trickle()

        async def stall(peer: Peer, head: Head) -> None:
            await peer.closed()

        trickle.instead = {"POST 1": [stall]}
        async with (
            fake_server(trickle) as server,
            publisher(server, start=0, when_full="drop", buffer_bytes=1 << 20) as pub,
        ):
            segment = await pub.segment(wait=False).__aenter__()
            for chunk in (b"a", b"", b"b"):
                segment.write_nowait(chunk)
            segment.end_nowait()
            with pytest.raises(errors.LocalProtocolError):
                segment.write_nowait(b"late")
            assert (await segment.settled()).sent == 2
            async with pub.segment(wait=False) as stalled:
                with pytest.raises(errors.SegmentDropped):
                    write_much(stalled)
                with pytest.raises(errors.SegmentDropped):
                    stalled.write_nowait(b"more")
            assert pub.statistics().dropped == 1
        assert b"".join(trickle.stored["0"]) == b"ab"

    run(main())


def test_470_moves_the_segment_to_the_head() -> None:
    """The segment is published under the seq that the server has room for."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 50": [reply(470, {wire.LATEST: 7})]}
        trickle.head = 50
        async with fake_server(trickle) as server, publisher(server) as pub:
            await trickle.seen("POST 7")
            assert (await pub.publish(b"x")).seq == 7
            assert (await pub.publish(b"y")).seq == 8
        assert trickle.log[:3] == ["GET next", "POST 50", "POST 7"]

    run(main())


def test_a_number_that_was_chosen_is_where_the_publisher_begins(server: RunningServer) -> None:
    """Beyond the head, those between are skipped; before the head there is no place any more."""

    async def main() -> None:
        url = f"{server.base}/chosen"
        async with Publisher(url) as pub:
            await pub.publish(b"0")
            await pub.detach()
        async with Publisher(url, start=3, takeover=True) as pub:
            assert [(await pub.publish(b"x")).seq for _ in range(2)] == [3, 4]
            await pub.detach()
        async with Publisher(url, start=2, takeover=True) as pub:
            with pytest.raises(errors.Superseded):
                await pub.publish(b"x")

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


@pytest.mark.parametrize("how", ["exception", "cancellation"])
def test_a_crash_is_not_the_end_of_the_channel(how: str) -> None:
    """The open segment is given up, so that readers see the break; the channel stays for a successor."""

    async def main() -> None:
        trickle = Trickle()

        async def work(server: FakeServer) -> None:
            async with publisher(server, start=0) as pub, pub.segment() as segment:
                await segment.write(b"x")
                await trickle.seen("POST 1")
                if how == "exception":
                    raise LookupError
                await anyio.sleep_forever()

        async with fake_server(trickle) as server:
            if how == "exception":
                with pytest.raises(LookupError):
                    await work(server)
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(work, server)
                    await trickle.seen("POST 1")
                    tasks.cancel_scope.cancel()
            assert trickle.log == ["POST 0", "POST 1", "DELETE 0", "DELETE 0"]
        assert trickle.heads[2].headers[wire.TRUNCATED.lower()] == "dropped"
        assert trickle.heads[3].headers[wire.LEAVE.lower()] == "1"

    run(main())


def test_a_publisher_that_was_closed_before_the_exception_has_ended_the_channel() -> None:
    """A program for which an interruption is a normal end calls ``close()``."""

    async def main() -> None:
        trickle = Trickle()

        async def work(server: FakeServer) -> None:
            async with publisher(server, start=0) as pub:
                await pub.publish(b"x")
                try:
                    raise LookupError
                finally:
                    await pub.close()

        async with fake_server(trickle) as server:
            with pytest.raises(LookupError):
                await work(server)
            assert "DELETE" in trickle.log

    run(main())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_publisher_is_closed_by_another_task(server: RunningServer, backend: str) -> None:
    """Fixtures, lifespans and objects with start and stop do that; each method may run in a task of its own."""

    async def main() -> None:
        pub = Publisher(f"{server.base}/tasks-{backend}")

        async def opened() -> None:
            await pub.open()

        async def published() -> None:
            assert (await pub.publish_json({"text": "ü"})).stored == 14

        async def closed() -> None:
            assert await pub.close() == ()

        for step in (opened, published, closed):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(step)
        with pytest.raises(errors.LocalProtocolError):
            await pub.open()

    anyio.run(main, backend=backend)


def test_a_busy_channel_is_not_taken_over(server: RunningServer) -> None:
    """The second publisher is told who publishes and leaves the channel alone; with ``takeover`` it takes it."""

    async def main() -> None:
        url = f"{server.base}/client-busy"
        async with Publisher(url, headers={"Trickle-Client": "studio"}) as first:
            await first.publish(b"x")

            async def second(takeover: bool) -> None:
                async with Publisher(url, takeover=takeover) as pub:
                    await pub.publish(b"y")
                    await pub.detach()

            with pytest.raises(errors.ChannelBusy, match="studio has published") as caught:
                await second(False)
            assert caught.value.publisher == "studio"
            assert (await first.publish(b"x")).seq == 1
            await second(True)

            async def publish_on() -> None:
                while True:
                    await first.publish(b"late")

            with pytest.raises(errors.Superseded):
                await publish_on()

    run(main())


def test_a_channel_that_is_busy_is_known_before_the_first_byte(server: RunningServer) -> None:
    """The preconnect is told; the event comes at once."""

    async def main() -> None:
        failed = asyncio.Event()
        events: list[PublisherEvent] = []

        def on_event(event: PublisherEvent) -> None:
            events.append(event)
            if isinstance(event, Failed):
                failed.set()

        async with Publisher(f"{server.base}/client-busy-2") as first:
            await first.publish(b"x")
            async with Publisher(f"{server.base}/client-busy-2", on_event=on_event) as second:
                await failed.wait()
                assert isinstance(second.error, errors.ChannelBusy)
            assert (await first.publish(b"x")).seq == 1
        # If the machine stands still for seconds, the server takes the first one for silent, and the preconnect waits.
        assert [type(event) for event in events if not isinstance(event, Retrying)] == [Failed, Finished]

    run(main())


def test_a_successor_may_take_the_place_of_one_that_crashed(server: RunningServer) -> None:
    """Its connections are gone: the server says when its place is free, and the successor waits for that."""

    async def main() -> None:
        url = f"{server.base}/client-crashed"
        crashed = Publisher(url)
        await crashed.open()
        await crashed.publish(b"x")
        await crashed.detach()
        async with Publisher(url) as successor:
            assert (await successor.publish(b"y")).seq == 1

    run(main())


def test_events_tell_what_happens() -> None:
    """In order: what begins, what fails and is tried again, what is published, lost and renumbered, and the end."""

    async def main() -> None:
        events: list[PublisherEvent] = []
        trickle = Trickle(head=0, epoch=1)
        trickle.instead = {"POST 0": [cut(after=1)], "POST 1": [reply(413, after=1)]}
        async with (
            fake_server(trickle) as server,
            publisher(server, preconnect=0, on_event=events.append) as pub,
        ):
            await pub.publish(b"x")
            with pytest.raises(errors.SegmentTooLarge):
                await pub.publish(b"y")
        names = [type(event).__name__ for event in events]
        assert names == [
            *["SegmentBegun", "Disconnected", "Retrying", "Reconnected", "SegmentBegun", "SegmentPublished"],
            *["SegmentBegun", "SegmentLost", "Finished"],
        ]
        assert isinstance(events[2], Retrying)
        assert (events[2].delay_s, events[2].attempt, events[2].seq) == (0.05, 2, 0)
        assert events[-1] == Finished(True, ())
        events.clear()
        trickle = Trickle()
        trickle.instead = {"POST 50": [reply(470, {wire.LATEST: 7})] * 2}
        async with fake_server(trickle) as server, publisher(server, start=50, on_event=events.append) as pub:
            assert (await pub.publish(b"x")).seq == 7
        assert Renumbered(50, 7) in events

    run(main())


def test_after_a_failed_enter_every_method_has_an_answer() -> None:
    """The counters, the error and the end: nothing raises an ``AttributeError``."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"GET next": [reply(403, {}, b"no\n")]}
        async with fake_server(trickle) as server:
            pub = publisher(server)
            with pytest.raises(errors.Refused):
                await pub.open()
            assert isinstance(pub.error, errors.Refused)
            assert isinstance(pub.statistics().last_error, errors.Refused)
            assert await pub.close() == await pub.detach() == ()
            with pytest.raises(errors.ClosedHere):
                await pub.publish(b"x")

    run(main())


def test_a_segment_has_one_writer_at_a_time() -> None:
    """A second task is told so, and what the first one writes is not touched; nor may it be ended meanwhile."""

    async def main() -> None:
        trickle = Trickle()
        refused = asyncio.Event()

        async def busy(peer: Peer, head: Head) -> None:
            await reply(503, {"Retry-After": 1})(peer, head)
            refused.set()

        trickle.instead = {"POST 0": [busy]}
        async with fake_server(trickle) as server, publisher(server, start=0, buffer_bytes=0) as pub:
            async with pub.segment() as segment:
                await refused.wait()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(segment.write, b"first")
                    await until(lambda: segment._writing)
                    with pytest.raises(errors.LocalProtocolError, match="one writer"):
                        await segment.write(b"second")
                await segment.write(b"third")
            assert trickle.stored["0"] == [b"first", b"third"]

            async def end_meanwhile() -> None:
                trickle.instead = {"POST 1": [reply(503, {"Retry-After": 1})], "POST 2": []}
                async with pub.segment() as other:
                    other._writing = True

            with pytest.raises(errors.LocalProtocolError, match="one writer"):
                await end_meanwhile()

    run(main())


@pytest.mark.parametrize("when", ["before", "at the end"])
def test_a_lost_segment_that_nobody_asked_for_is_told_at_the_end(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving the block raises its number; a program that has asked for its fate is not told again."""
    monkeypatch.setattr(client, "CONFIRM_S", 0.1)

    async def main() -> None:
        async def silent(peer: Peer, head: Head) -> None:
            await peer.body()
            await peer.closed()

        for asks in (False, True) if when == "before" else (False,):
            trickle = Trickle()
            fault = reply(413, after=1) if when == "before" else silent
            trickle.instead = {"POST 0": [fault]}

            async def work(server: FakeServer, asks: bool = asks) -> None:
                async with publisher(server, start=0, preconnect=0) as pub:
                    async with pub.segment(wait=False) as segment:
                        await segment.write(b"x")
                    if asks:
                        with pytest.raises(errors.SegmentTooLarge):
                            await segment.settled()
                    elif when == "before":
                        await until(lambda: pub.statistics().lost == 1)

            async with fake_server(trickle) as server:
                if asks:
                    await work(server)
                else:
                    with pytest.raises(errors.SegmentsUnconfirmed, match="segment 0") as caught:
                        await work(server)
                    assert caught.value.seqs == (0,)

    run(main())


def test_a_refusal_is_decided_by_its_status() -> None:
    """A body that drips does not hold it up."""

    async def main() -> None:
        done = asyncio.Event()

        async def drip(peer: Peer, head: Head) -> None:
            await peer.send(b"HTTP/1.1 403 No\r\nContent-Length: 100000\r\n\r\nbecause")
            await done.wait()

        trickle = Trickle()
        trickle.instead = {"POST 0": [drip]}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            with anyio.fail_after(client.SILENCE_S / 2), pytest.raises(errors.Refused, match="because"):
                await pub.publish(b"x")
            done.set()

    run(main())


def test_an_error_of_a_foreign_authentication_comes_out() -> None:
    """It is raised where the segment is written, and again at the end; the channel is left alone."""

    async def main() -> None:
        trickle = Trickle()

        def sign(request: httpx.Request) -> httpx.Request:
            raise LookupError("no key")

        async with fake_server(trickle) as server:
            pub = publisher(server, start=0, auth=sign)
            await pub.open()
            with pytest.raises(LookupError, match="no key"):
                await pub.publish(b"x")
            with pytest.raises(LookupError, match="no key"):
                await pub.close()
            assert trickle.log == []

    run(main())


def test_authentication_that_asks_first_sends_the_body_again() -> None:
    """A 401 to a preconnect, then the same request with an answer to the challenge: all bytes arrive once."""

    async def main() -> None:
        trickle = Trickle()
        challenge: dict[str, object] = {"WWW-Authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'}
        trickle.instead = {"POST 0": [reply(401, challenge, after=1)]}
        auth = httpx.DigestAuth("me", "secret")
        async with fake_server(trickle) as server, publisher(server, start=0, preconnect=0, auth=auth) as pub:
            async with pub.segment() as segment:
                await segment.write(b"one")
                await trickle.seen("POST 0", times=2)
                await segment.write(b"two")
            assert segment.receipt.stored == 6
        assert trickle.stored["0"] == [b"one", b"two"]

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
            publisher(server, start=0, buffer_bytes=0) as pub,
            pub.segment() as segment,
        ):
            await refused.wait()
            with anyio.move_on_after(0.1) as waiting:
                await segment.write(b"too late")
            assert waiting.cancelled_caught
            await segment.write(b"in time")
        assert trickle.stored["0"] == [b"in time"]

    run(main())


def test_a_cancelled_publish_tells_whether_anything_was_sent() -> None:
    """The server may have the whole segment, if only its answer is missing. A wait that is cancelled loses nothing."""

    async def main() -> None:
        trickle = Trickle()
        arrived, events = asyncio.Event(), list[PublisherEvent]()

        async def silent(peer: Peer, head: Head) -> None:
            await peer.body()
            arrived.set()
            await peer.closed()

        trickle.instead = {"POST 0": [silent]}
        async with fake_server(trickle) as server, publisher(server, start=0, on_event=events.append) as pub:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pub.publish, b"x")
                await arrived.wait()
                tasks.cancel_scope.cancel()
            assert [str(event) for event in events if isinstance(event, SegmentBegun | SegmentLost)] == [
                "segment 0 begins",
                "segment 0 is lost: the segment was cut off",
            ]
            segment = await pub.begin()
            segment.write_nowait(b"y")
            segment.end_nowait()
            with anyio.CancelScope() as waiting:
                waiting.cancel()
                await segment.settled()
            assert (waiting.cancelled_caught, (await segment.settled()).seq) == (True, 1)

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
            with pytest.raises(errors.RemoteProtocolError, match="a web page"):
                async with publisher(server):
                    raise AssertionError("not reached")
        assert trickle.log == ["GET next"]

    run(main())


def test_ending_is_retried_and_its_failure_reported() -> None:
    """A DELETE that breaks is made again; one that is refused raises."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"DELETE": [cut(), reply(503), reply(403)]}
        async with fake_server(trickle) as server:
            with pytest.raises(errors.Refused):
                async with publisher(server, start=0) as pub:
                    await pub.publish(b"x")
        assert trickle.log.count("DELETE") == 3

    run(main())


def test_ending_takes_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer the DELETE is not waited for without end; the error says what is missing, too."""

    async def main() -> None:
        monkeypatch.setattr(client, "CLOSE_S", 0.05)
        monkeypatch.setattr(client, "CONFIRM_S", 0.05)
        trickle = Trickle()

        async def silent(peer: Peer, head: Head) -> None:
            await peer.closed()

        trickle.instead = {"DELETE": [silent], "POST 1": [silent]}
        async with fake_server(trickle) as server:
            pub = await publisher(server, start=0).open()
            await pub.publish(b"x")
            async with pub.segment(wait=False) as segment:
                await segment.write(b"y")
            with pytest.raises(errors.ConnectionLost, match="no answer to the channel's end") as caught:
                await pub.close()
        assert caught.value.__notes__ == ["not confirmed by the server: segment 1"]

    run(main())


def test_an_endless_refusal_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of an answer is for people: its beginning is enough, and need not be whole."""
    monkeypatch.setattr("tricklecast.trickle.client.exchange.DETAIL_S", 20.0)

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
            for text in ("n" * 200, "first line"):
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
        ("takeover", "yes"),
        ("takeover", None),
        ("start", "x"),
        ("start", True),
        ("buffer_s", 0),
        ("buffer_s", math.inf),
        ("when_full", "explode"),
        ("buffer_bytes", -1),
        ("buffer_bytes", math.nan),
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


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"x": math.nan}, "not JSON: Out of range float values are not JSON compliant"),
        ("\ud800", "not JSON: 'utf-8' codec can't encode character"),
        ("x" * (1 << 20), "a document of 1048579 bytes; the limit is 1048576, for readers, too"),
        (DEEP, "not JSON that readers take: it is nested too deeply"),
    ],
    ids=["nan", "surrogate", "long", "deep"],
)
def test_a_document_that_readers_would_refuse_is_not_sent(document: object, text: str) -> None:
    """Its author is told, and not each reader; a higher limit is possible. Text is no bytes."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server, publisher(server, start=0, preconnect=0) as pub:
            with pytest.raises(errors.InvalidInput) as refused:
                await pub.publish_json(document)
            assert str(refused.value).startswith(text)
            with pytest.raises(TypeError, match="bytes are expected, not str"):
                await pub.publish("text")  # type: ignore[arg-type]
            for limit in (0, "x"):
                with pytest.raises(errors.InvalidInput, match=r"^limit must be a whole number at least 1, not "):
                    await pub.publish_json(1, limit=limit)  # type: ignore[arg-type]
            assert trickle.log == []
            assert (await pub.publish_json("x" * (1 << 20), limit=2 << 20)).stored == (1 << 20) + 3

    run(main())
