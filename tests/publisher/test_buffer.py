"""What a publisher keeps while the server is away or slow: programs lose nothing, live media only the oldest, told."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import anyio
import pytest

from tests.publisher.fakes import Trickle, publisher, reply
from tests.support.local import local_server
from tests.support.peers import Head, Peer, fake_server, run
from tests.support.waiting import until
from tricklecast import Publisher, Subscriber
from tricklecast.publisher import client, segments, uploads
from tricklecast.trickle import errors


class Away(Trickle):
    """A server that keeps every POST waiting until it is back."""

    def __init__(self) -> None:
        super().__init__()
        self.back = asyncio.Event()

    async def _serve(self, peer: Peer, head: Head) -> bool:
        if head.method == "POST":
            await self.back.wait()
        return await super()._serve(peer, head)


def test_tasks_that_share_a_publisher_lose_nothing() -> None:
    """Twenty tasks publish five documents each, all at once: by default each waits until its own is confirmed."""

    async def main() -> None:
        with local_server() as server:
            url = f"http://127.0.0.1:{server.port}/trickle/events"

            async def work(publisher: Publisher, task: int) -> None:
                for number in range(5):
                    await publisher.publish_json([task, number])

            async with Publisher(url) as shared:
                async with anyio.create_task_group() as tasks:
                    for task in range(20):
                        tasks.start_soon(work, shared, task)
                assert shared.statistics().segments == 100
                found = []
                async with Subscriber(url, start="earliest") as subscriber:
                    async for segment in subscriber:
                        found.append(tuple(json.loads(await segment.read())))
                        if len(found) == 100:
                            break
        assert sorted(found) == [(task, number) for task in range(20) for number in range(5)]

    run(main())


def test_another_event_loop_is_refused() -> None:
    """By a clear error, and the publisher goes on in its own."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server, publisher(server) as pub:
            for call in (partial(pub.publish, b"x"), pub.detach, pub.close):
                with pytest.raises(errors.LocalProtocolError, match="another event loop"):
                    await anyio.to_thread.run_sync(anyio.run, call)
            assert (await pub.publish(b"y")).seq == 0

    run(main())


def test_many_segments_without_waiting_are_all_published() -> None:
    """The end of the block waits as long as the server goes on confirming."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server:
            async with publisher(server, start=0) as pub:
                for number in range(200):
                    async with pub.segment(wait=False) as segment:
                        await segment.write(b"%d" % number)
            assert pub.statistics().segments == 200
        assert [b"".join(trickle.stored[str(seq)]) for seq in range(200)] == [b"%d" % seq for seq in range(200)]

    run(main())


def test_a_dropped_segment_is_an_unconfirmed_one() -> None:
    """Without `wait`, and without anybody who asks, the end of the block names it."""

    async def main() -> None:
        trickle = Away()

        async def publish() -> None:
            async with fake_server(trickle) as server, publisher(server, start=0, when_full="drop", most=2) as pub:
                for number in range(5):
                    async with pub.segment(wait=False) as segment:
                        await segment.write(b"%d" % number)
                trickle.back.set()

        with pytest.raises(errors.SegmentsUnconfirmed) as caught:
            await publish()
        assert len(caught.value.seqs) + caught.value.more == 3  # the number of some is used again
        assert 4 not in caught.value.seqs

    run(main())


def test_an_outage_loses_nothing_that_the_buffer_holds() -> None:
    """Segments that were published meanwhile follow in order when the server is back; the requests stay few."""

    async def main() -> None:
        trickle = Trickle(head=0, epoch=1)
        async with fake_server(trickle) as server, publisher(server, when_full="drop") as pub:
            await pub.publish(b"before")
            trickle.instead = {f"POST {seq}": [reply(503, {"Retry-After": 1})] for seq in (1, 2)}
            before = len(trickle.log)
            entered = []
            for number in range(100):
                async with pub.segment(wait=False) as segment:
                    await segment.write(b"%d" % number)
                entered.append(segment)
            assert pub.statistics().buffered_bytes > 100
            for segment in entered:
                await segment.settled()
            statistics = pub.statistics()
            assert (statistics.segments, statistics.dropped, statistics.buffered_bytes) == (101, 0, 0)
            assert len([line for line in trickle.log[before:] if line.startswith("POST")]) <= 105
        assert [b"".join(trickle.stored[str(seq + 1)]) for seq in range(100)] == [b"%d" % seq for seq in range(100)]

    run(main())


def test_a_full_buffer_gives_the_oldest_segments_up() -> None:
    """Live media goes on: what is dropped is told, and the newest segments are published."""

    async def main() -> None:
        trickle = Away()
        async with fake_server(trickle) as server, publisher(server, when_full="drop", buffer_bytes=10_000) as pub:
            made = []
            for _ in range(30):
                segment = await pub.segment(wait=False).__aenter__()
                segment.write_nowait(bytes(1000))
                segment.end_nowait()
                made.append(segment)
                assert pub.statistics().buffered_bytes <= 10_000
            trickle.back.set()
            fates = []
            for segment in made:
                try:
                    await segment.settled()
                    fates.append("published")
                except errors.SegmentDropped:
                    fates.append("dropped")
            assert fates == ["dropped"] * 21 + ["published"] * 9
            assert pub.statistics().dropped == 21

    run(main())


def test_segments_that_a_connection_carries_are_given_up_last() -> None:
    """On a slow network each would be cut when most of it had been sent."""

    async def main() -> None:
        trickle = Away()
        async with fake_server(trickle) as server, publisher(server, start=0, when_full="drop", most=6) as pub:
            made = []
            for number in range(10):
                segment = await pub.segment(wait=False).__aenter__()
                segment.write_nowait(b"%d" % number)
                segment.end_nowait()
                made.append(segment)
                if number == 3:
                    await trickle.seen("POST 3")
                    await until(lambda: all((upload := one._entered().upload) and upload.is_begun for one in made))
            dropped = [
                number for number, one in enumerate(made) if isinstance(one._entered().result, errors.SegmentDropped)
            ]
            assert dropped == [4, 5, 6, 7]
            trickle.back.set()
            for number in (0, 1, 2, 3, 8, 9):
                await made[number].settled()
            for number in dropped:
                with pytest.raises(errors.SegmentDropped):
                    await made[number].settled()

    run(main())


def test_live_media_that_has_waited_for_too_long_is_given_up() -> None:
    """However few bytes it has: a segment that ended longer than `buffer_s` ago is dropped for the next one."""

    async def main() -> None:
        trickle = Away()
        async with fake_server(trickle) as server, publisher(server, when_full="drop", buffer_s=10.0) as pub:
            now = pub._segments.now()
            pub._segments.now = lambda: now
            first, second = [await pub.segment(wait=False).__aenter__() for _ in range(2)]
            first.write_nowait(b"old")
            first.end_nowait()
            second.write_nowait(b"long, and not over")
            now += 11.0
            third = await pub.segment(wait=False).__aenter__()
            with pytest.raises(errors.SegmentDropped):
                await first.settled()
            second.write_nowait(b"!")
            second.end_nowait()
            third.write_nowait(b"new")
            third.end_nowait()
            trickle.back.set()
            await second.settled()
            await third.settled()

    run(main())


def test_a_program_waits_for_room_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it gets a typed error that says how much waits; nothing was sent of its segment."""

    async def main() -> None:
        trickle = Away()
        async with fake_server(trickle) as server, publisher(server, most=1, buffer_s=0.05) as pub:
            async with pub.segment(wait=False) as first:
                await first.write(b"x")
            with pytest.raises(errors.PublisherFull, match=r"within 0\.05 s: 1 wait to be confirmed") as caught:
                await pub.publish(b"y")
            assert (caught.value.waiting, caught.value.waited_s) == (1, 0.05)
            trickle.back.set()
            await first.settled()
            assert (await pub.publish(b"z")).seq == 1

    run(main())


def test_segments_larger_than_the_buffer_wait_for_the_connection() -> None:
    """A program publishes as fast as the server takes it, and no faster, whoever else waits for room."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(503, {"Retry-After": 1})]}
        async with fake_server(trickle) as server, publisher(server, start=0, buffer_bytes=50_000) as pub:

            async def write() -> None:
                async with pub.segment() as segment:
                    for _ in range(40):
                        await segment.write(bytes(5000))

            await until(lambda: pub.statistics().retries == 1)
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(write)
                await until(lambda: len(pub._segments._buffer.waiting) == 3)
                assert 45_000 < pub.statistics().buffered_bytes <= 50_000
            assert (pub.statistics().segments, pub.statistics().buffered_bytes) == (3, 0)
        assert [len(b"".join(trickle.stored[str(seq)])) for seq in range(3)] == [200_000] * 3

    run(main())


def test_closing_waits_while_segments_are_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One confirmation after the other, each within the time for one; a server that confirms none is given up."""
    monkeypatch.setattr(client, "CONFIRM_S", 0.2)

    async def main() -> None:
        trickle = Away()
        async with fake_server(trickle) as server:
            pub = await publisher(server, start=0).open()
            for _ in range(3):
                async with pub.segment(wait=False) as segment:
                    await segment.write(b"x")
            assert await pub.close() == (0, 1, 2)
            trickle.back.set()

    run(main())


def test_the_number_of_segments_that_wait_is_bounded() -> None:
    """However small they are: a thousand wait, four of them with a request of their own; older ones are dropped."""

    async def main() -> None:
        trickle = Away()
        async with fake_server(trickle) as server, publisher(server, when_full="drop", start=0) as pub:
            made = []
            for _ in range(segments.MAX_IN_FLIGHT + 10):
                segment = await pub.segment(wait=False).__aenter__()
                segment.write_nowait(b"x")
                segment.end_nowait()
                made.append(segment)
            statistics = pub.statistics()
            assert (statistics.in_flight, statistics.dropped) == (segments.MAX_IN_FLIGHT, 10)
            await until(lambda: len(pub._segments._carriers.carrying) <= uploads.MAX_REQUESTS)
            trickle.back.set()
            dropped = 0
            for segment in made:
                try:
                    await segment.settled()
                except errors.SegmentDropped:
                    dropped += 1
            assert dropped == 10

    run(main())
