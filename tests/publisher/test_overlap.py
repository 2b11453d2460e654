"""Segments that overlap, preconnects ahead of them, and what is left of them at the end; against fake servers."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from tests.publisher.fakes import Answer, Trickle, cut, publisher, reply
from tests.support.peers import FakeServer, Head, Peer, fake_server, run
from tests.support.waiting import until
from tricklecast.publisher import Closed, Publisher, Receipt, client, segments
from tricklecast.trickle import errors, wire


class Slow(Trickle):
    """Answers a segment only when the test says so.

    Attributes:
        answer: set for each seq that may be answered.
    """

    def __init__(self, *seqs: int, epoch: int | None = None) -> None:
        super().__init__(0, epoch)
        self.answer = {seq: asyncio.Event() for seq in seqs}
        self.instead = {f"POST {seq}": [self._hold(seq)] for seq in seqs}

    def _hold(self, seq: int) -> Answer:
        async def hold(peer: Peer, head: Head) -> None:
            chunks = await peer.body()
            self.stored[str(seq)] = chunks
            waiting = asyncio.ensure_future(self.answer[seq].wait())
            gone = asyncio.ensure_future(peer.closed())
            await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not gone.done():
                await peer.answer(200, {wire.SEQ: seq, wire.SIZE: sum(map(len, chunks)), "Connection": "close"})
            gone.cancel()

        return hold


def test_a_segment_need_not_be_waited_for() -> None:
    """Its block is left before its answer comes, the next one begins, and its receipt can still be had."""

    async def main() -> None:
        trickle = Slow(0)
        async with fake_server(trickle) as server, publisher(server) as pub:
            async with pub.segment(wait=False) as first:
                await first.write(b"one")
            with pytest.raises(errors.LocalProtocolError):
                await first.write(b"late")
            assert (await pub.publish(b"two")).seq == 1
            assert pub.statistics().in_flight == 1
            with pytest.raises(errors.LocalProtocolError):
                _ = first.receipt
            trickle.answer[0].set()
            receipt = await first.settled()
            assert receipt == Receipt(0, 3, 3, Closed.COMPLETE)
            assert receipt.first_byte_s is not None
            assert receipt.answered_s is not None
            assert 0 <= receipt.first_byte_s <= receipt.answered_s
            assert first.receipt is receipt
            assert (pub.statistics().segments, pub.statistics().bytes) == (2, 6)

    run(main())


def test_the_oldest_is_dropped_when_too_many_are_in_flight() -> None:
    """Its request is cut, the server is told so at once, its writer gets a typed error, and it is counted."""

    async def main() -> None:
        trickle = Slow(0, 1)
        async with fake_server(trickle) as server, publisher(server, most=2, when_full="drop") as pub:
            async with pub.segment(wait=False) as first:
                await first.write(b"one")
            async with pub.segment(wait=False) as second:
                await second.write(b"two")
            async with pub.segment(wait=False) as third:
                await trickle.seen("DELETE 0")
                with pytest.raises(errors.SegmentDropped) as caught:
                    await first.settled()
                assert caught.value.seq == 0
                await third.write(b"three")
            assert (await third.settled()).seq == 2
            trickle.answer[1].set()
            assert (await second.settled()).seq == 1
            statistics = pub.statistics()
            assert (statistics.dropped, statistics.segments, statistics.in_flight) == (1, 2, 0)
            assert statistics.last_error is caught.value
        delete = next(head for head in trickle.heads if head.method == "DELETE")
        assert delete.headers[wire.TRUNCATED.lower()] == "dropped"

    run(main())


def test_a_writer_in_the_middle_of_a_dropped_segment_is_told() -> None:
    """Its next chunk raises; one that had nothing to send yet has no number, and leaves none behind."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server, publisher(server, most=1, when_full="drop") as pub:
            async with pub.segment(wait=False) as idle, pub.segment(wait=False) as other:
                with pytest.raises(errors.SegmentDropped) as caught:
                    await idle.write(b"x")
                assert caught.value.seq is None
                await other.write(b"y")
                await pub.publish(b"z")
                with pytest.raises(errors.SegmentDropped) as caught:
                    await other.write(b"y")
                assert caught.value.seq == 0
            assert trickle.stored == {"1": [b"z"]}
            assert pub.statistics().dropped == 2

    run(main())


def test_a_dropped_writer_adds_nothing_to_the_segment_that_gets_its_request() -> None:
    """It waited for room, since its request has to be made again; a newer segment is published with that instead."""

    async def main() -> None:
        trickle = Trickle()
        trickle.instead = {"POST 0": [reply(503, {"Retry-After": 1})]}
        async with fake_server(trickle) as server, publisher(server, most=1, when_full="drop", buffer_bytes=0) as pub:
            await until(lambda: pub.statistics().retries == 1)

            async def lose() -> None:
                with pytest.raises(errors.SegmentDropped) as caught:
                    await pub.publish(b"old")
                assert caught.value.seq is None

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lose)
                await until(lambda: pub.statistics().in_flight == 1)
                receipt = await pub.publish(b"new")
            assert (receipt.seq, receipt.sent, receipt.stored) == (0, 3, 3)
            assert trickle.stored == {"0": [b"new"]}

    run(main())


def test_files_wait_instead() -> None:
    """By default nothing is dropped: entering a segment waits until another one's fate is known."""

    async def main() -> None:
        trickle = Slow(0)
        async with fake_server(trickle) as server, publisher(server, most=1) as pub:
            async with pub.segment(wait=False) as first:
                await first.write(b"one")
            entered = anyio.Event()

            async def enter() -> None:
                async with pub.segment(wait=False) as second:
                    entered.set()
                    await second.write(b"two")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(enter)
                await until(lambda: "0" in trickle.stored)
                assert not entered.is_set()
                trickle.answer[0].set()
            assert (await first.settled()).seq == 0
            assert pub.statistics().dropped == 0
        assert trickle.stored["1"] == [b"two"]

    run(main())


def test_whoever_waits_for_room_hears_of_the_end() -> None:
    """A publisher that gives up, or is closed, lets nobody wait for its segments."""

    async def main() -> None:
        trickle = Slow(0)
        trickle.instead["POST 1"] = [reply(403)]
        async with fake_server(trickle) as server, publisher(server, most=1) as pub:
            async with pub.segment(wait=False) as first:
                await first.write(b"one")
            with pytest.raises(errors.Refused):
                await pub.publish(b"two")
            trickle.answer[0].set()

    run(main())


def test_segments_of_several_tasks_begin_in_the_order_of_their_seqs() -> None:
    """Whoever writes first gets the first number, whoever entered first; each is whole."""

    async def main() -> None:
        trickle = Trickle()
        receipts: dict[str, Receipt] = {}

        async with fake_server(trickle) as server, publisher(server, start=0, preconnect=0) as pub:
            turn = [asyncio.Event() for _ in range(3)]

            async def write(name: str, number: int) -> None:
                async with pub.segment() as segment:
                    await turn[number].wait()
                    await segment.write(name.encode())
                    turn[number - 1].set()
                    await segment.write(b"!")
                receipts[name] = segment.receipt

            async with anyio.create_task_group() as tasks:
                for number, name in enumerate("abc"):
                    tasks.start_soon(write, name, number)
                await until(lambda: pub.statistics().in_flight == 3)
                turn[2].set()
        assert [receipts[name].seq for name in "cba"] == [0, 1, 2]
        assert trickle.stored == {"0": [b"c", b"!"], "1": [b"b", b"!"], "2": [b"a", b"!"]}

    run(main())


def test_two_preconnects_are_ahead_of_what_is_confirmed() -> None:
    """The second one is opened when the server's head is known to allow it, so that it is never 470."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server, publisher(server, start=0, preconnect=2) as pub:
            async with pub.segment() as segment:
                await segment.write(b"x")
                await trickle.seen("POST 1")
                await segment.write(b"y")
                assert "POST 2" not in trickle.log
            await trickle.seen("POST 2")
            await pub.publish(b"z")
            await trickle.seen("POST 3")
            assert trickle.log == ["POST 0", "POST 1", "POST 2", "POST 3"]

    run(main())


def test_a_preconnect_that_was_closed_renumbers_all_that_has_not_begun() -> None:
    """Both are opened again, behind each other, and no seq is used twice."""

    async def main() -> None:
        trickle = Trickle(head=7)
        trickle.instead = {"POST 7": [reply(200, {wire.SIZE: 0})]}
        async with fake_server(trickle) as server, publisher(server, preconnect=2) as pub:
            await trickle.seen("POST 9")
            assert [(await pub.publish(b"x")).seq for _ in range(3)] == [8, 9, 10]
        assert set(trickle.stored) >= {"8", "9", "10"}

    run(main())


def test_a_refusal_after_the_first_chunk_loses_nothing() -> None:
    """503, 429 and a broken connection: the bytes that were sent are sent again, under the same key."""

    async def main() -> None:
        trickle = Trickle(head=0, epoch=1)
        trickle.instead = {"POST 0": [reply(503, after=1), cut(after=2), reply(429, after=1)]}
        async with fake_server(trickle) as server, publisher(server) as pub:
            async with pub.segment() as segment:
                for number in range(4):
                    await segment.write(b"%d" % number)
                    await trickle.seen("POST 0", times=min(number + 2, 4))
            assert segment.receipt == Receipt(0, 4, 4, Closed.COMPLETE, attempts=4)
        assert trickle.stored["0"] == [b"0", b"1", b"2", b"3"]
        keys = {head.headers["idempotency-key"] for head in trickle.heads if head.path.endswith("/0")}
        assert len(keys) == 1

    run(main())


def test_what_cannot_be_sent_again_is_lost_visibly() -> None:
    """A segment that has outgrown ``buffer_bytes`` is given up when its connection breaks; the next one is not."""

    async def main() -> None:
        trickle = Trickle(head=0, epoch=1)
        trickle.instead = {"POST 0": [cut(after=3)]}
        async with fake_server(trickle) as server, publisher(server, buffer_bytes=1000) as pub:

            async def write_too_much() -> None:
                async with pub.segment() as segment:
                    while True:
                        await segment.write(b"x" * 600)

            with pytest.raises(errors.ConnectionLost):
                await write_too_much()
            await trickle.seen("DELETE 0")
            assert (await pub.publish(b"y")).seq == 1
            assert (pub.statistics().lost, pub.error) == (1, None)

    run(main())


def test_an_idle_publisher_shows_life() -> None:
    """With ``idle_rotation_s`` the preconnect becomes an empty segment now and then; its successor is in place."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server, publisher(server, start=0, idle_rotation_s=0.05) as pub:
            await trickle.seen("POST 2")
            await until(lambda: pub.statistics().empty >= 2)
            assert (trickle.stored["0"], trickle.stored["1"]) == ([], [])
            async with pub.segment() as segment:
                await segment.write(b"x")
                await anyio.sleep(0.2)
                stored = set(trickle.stored)
            assert segment.receipt.stored == 1
            assert str(segment.receipt.seq + 1) not in stored, "the one behind it is not idle"

    run(main())


@pytest.mark.parametrize("detach", [True, False])
def test_what_was_not_confirmed_is_reported(detach: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended segments are waited for, within a limit; those in the middle are cut off; both are named."""

    async def main() -> None:
        monkeypatch.setattr(client, "CONFIRM_S", 0.3)
        trickle = Slow(0, 1)
        async with fake_server(trickle) as server, publisher(server) as pub:
            async with pub.segment(wait=False) as confirmed:
                await confirmed.write(b"one")
            async with pub.segment(wait=False) as silent:
                await silent.write(b"two")
            open_one = await pub.segment().__aenter__()
            await open_one.write(b"three")
            trickle.answer[0].set()
            assert await (pub.detach() if detach else pub.close()) == (1, 2)
            with pytest.raises(errors.ClosedHere):
                await open_one.write(b"late")
            assert (await confirmed.settled()).seq == 0
            with pytest.raises(errors.ConnectionLost, match="closed"):
                await silent.settled()
            assert pub.statistics().lost == 1
            assert ("DELETE" in trickle.log) != detach
            assert ("DELETE 2" in trickle.log) == detach

    run(main())


def test_tasks_get_room_in_the_order_in_which_they_asked() -> None:
    """However many wait: only the next one is woken by an answer, so that thousands do not hold each other up."""

    async def main() -> None:
        trickle = Slow(0, 1)
        seqs: dict[int, int] = {}
        async with fake_server(trickle) as server, publisher(server, start=0) as pub:
            pub._segments.most = 2

            async def publish(number: int) -> None:
                seqs[number] = (await pub.publish(b"%d" % number)).seq

            async with anyio.create_task_group() as tasks:
                for number in range(300):
                    tasks.start_soon(publish, number)
                await until(lambda: len(pub._segments._entering) == 298)
                for answer in trickle.answer.values():
                    answer.set()
        assert seqs == {number: number for number in range(300)}

    run(main())


def test_a_segment_that_was_open_at_the_end_is_told() -> None:
    """Nobody ended it: its readers have a part, and leaving the block says so."""

    async def main() -> None:
        trickle = Trickle()
        async with fake_server(trickle) as server:
            with pytest.raises(errors.SegmentsUnconfirmed) as caught:
                async with publisher(server, start=0) as pub:
                    await (await pub.segment().__aenter__()).write(b"half")
            assert caught.value.seqs == (0,)

    run(main())


def test_a_question_that_was_cancelled_is_no_knowledge() -> None:
    """A program that stopped waiting for a segment's fate is told at the end, as one that never asked."""

    async def main() -> None:
        trickle = Slow(0)

        async def publish(server: FakeServer) -> None:
            async with publisher(server, start=0, when_full="drop") as pub:
                pub._segments.most = 1
                async with pub.segment(wait=False) as segment:
                    await segment.write(b"old")
                with anyio.move_on_after(0):
                    await segment.settled()
                await pub.publish(b"new")

        async with fake_server(trickle) as server:
            with pytest.raises(errors.SegmentsUnconfirmed) as caught:
                await publish(server)
            assert caught.value.seqs == (0,)

    run(main())


def test_a_thousand_lost_segments_are_listed_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is bounded, and says how much it leaves out."""
    monkeypatch.setattr(segments, "MAX_UNSEEN", 3)

    async def main() -> None:
        trickle = Slow(0)

        async def publish(server: FakeServer) -> int:
            pub = publisher(server, start=0, preconnect=0, when_full="drop")
            with pytest.raises(errors.SegmentsUnconfirmed) as caught:
                await lose(pub)
            assert len(caught.value.seqs) == 3
            return pub.statistics().dropped - caught.value.more

        async def lose(pub: Publisher) -> None:
            async with pub:
                pub._segments.most = 1
                for _ in range(10):
                    segment = await pub.begin()  # the one before is dropped, before there is a request for it
                    segment.write_nowait(b"x")
                    segment.end_nowait()

        async with fake_server(trickle) as server:
            assert await publish(server) == 3

    run(main())
