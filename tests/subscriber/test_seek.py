"""Going elsewhere: seeks from anywhere and at any time; positions, and where errors say to go on."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import httpx
import pytest

from tests.subscriber.fake import Exchange, FakeServer, fake, run
from tests.subscriber.test_client import Slept, channel, collect, ended, subscribed
from tricklecast.subscriber import AnyStart, Position, Subscriber
from tricklecast.trickle.errors import (
    ChannelNotFound,
    ClosedHere,
    ConnectionLost,
    InvalidInput,
    LocalProtocolError,
    SegmentMissing,
    SegmentTooLarge,
    TrickleError,
)

TEN = channel(**{f"s{seq}": b"%d" % seq for seq in range(10)})


async def seqs(subscriber: Subscriber) -> list[int]:
    return [segment.seq async for segment in subscriber]


class TestSeeking:
    def test_the_next_segment_is_the_one_that_was_named(self) -> None:
        """Forward and back, by number and by word; there is no gap."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "next":
                await exchange.text(200, "8", latest=8)
            else:
                await TEN(exchange)

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _):
                assert (await anext(subscriber)).seq == 0
                starts: list[tuple[AnyStart, int]] = [(7, 7), (Position(3, 1), 3), ("next", 8), (Position(1), 1)]
                for start, seq in starts:
                    await subscriber.seek(start)
                    segment = await anext(subscriber)
                    assert (segment.seq, segment.gap, segment.restarted) == (seq, 0, False)
                assert await seqs(subscriber) == list(range(2, 10))
                assert subscriber.statistics().seeks == 4

        run(main)

    def test_the_segment_that_is_being_read_goes_on(self) -> None:
        """Only what comes next has changed."""

        async def main() -> None:
            async with subscribed(TEN, start=0) as (subscriber, _):
                segment = await anext(subscriber)
                await subscriber.seek(5)
                assert await segment.read() == b"0"
                assert segment.complete
                assert (await anext(subscriber)).seq == 5

        run(main)

    def test_the_segment_can_be_left_while_another_task_reads_it(self) -> None:
        """There the loop ends; read() does not take the part for the whole."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail in ("0", "1"):
                await exchange.begin(int(exchange.tail))
                await exchange.chunk(b"half")
                await exchange.closed_by_client()
            else:
                await TEN(exchange)

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _), anyio.create_task_group() as group:
                got: list[object] = []
                half = anyio.Event()

                async def consume() -> None:
                    segment = await anext(subscriber)
                    async for chunk in segment:
                        got.append(chunk)
                        half.set()
                    assert not segment.complete
                    with pytest.raises(StopAsyncIteration):
                        await anext(segment)
                    with pytest.raises(ClosedHere, match="left by a seek"):
                        await (await anext(subscriber)).read()
                    got.extend(await collect(subscriber))

                group.start_soon(consume)
                await half.wait()
                await subscriber.seek(1, leave=True)
                while subscriber.statistics().bytes < 8:  # noqa: ASYNC110 - nothing tells when a chunk was taken
                    await asyncio.sleep(0.001)
                await subscriber.seek(8, leave=True)
            assert got == [b"half", (8, b"8"), (9, b"9")]

        run(main)

    def test_a_segment_that_nobody_is_reading_can_be_left(self) -> None:
        """Its loop, when it goes on, ends."""

        async def main() -> None:
            async with subscribed(TEN, start=0) as (subscriber, _):
                segment = await anext(subscriber)
                await subscriber.seek(5, leave=True)
                assert [chunk async for chunk in segment] == []
                assert not segment.complete
                assert (await anext(subscriber)).seq == 5

        run(main)

    def test_a_wait_in_another_task_ends_with_the_new_segment(self) -> None:
        """The GET that waited is given up, and its connection closed."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "99":
                await exchange.closed_by_client()
            else:
                await TEN(exchange)

        async def main() -> None:
            async with subscribed(handler, start=99) as (subscriber, server):
                async with asyncio.TaskGroup() as group:
                    waiting = group.create_task(subscriber.__anext__())
                    await server.asked()
                    await subscriber.seek(4)
                assert waiting.result().seq == 4
                assert server.tails[:2] == ["99", "4"]

        run(main)

    def test_a_pause_before_a_retry_ends_with_a_seek(self) -> None:
        """Nobody waits for a server's ``Retry-After`` to read something else; but a failure is not forgotten."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "99":
                await exchange.text(503, "busy", Retry_After=200)
            else:
                await TEN(exchange)

        async def main() -> None:
            async with subscribed(handler, start=99) as (subscriber, _):
                async with asyncio.TaskGroup() as group:
                    waiting = group.create_task(subscriber.__anext__())
                    while subscriber.statistics().retries == 0:  # noqa: ASYNC110 - as above
                        await asyncio.sleep(0.001)
                    await subscriber.seek(4)
                assert waiting.result().seq == 4

        run(main)

    def test_an_answer_that_is_there_already_is_dropped(self) -> None:
        """The preconnect's response is closed, not kept."""

        async def main() -> None:
            async with subscribed(TEN, start=0) as (subscriber, server):
                await anext(subscriber)
                await server.asked(2)
                for _ in range(20):
                    await asyncio.sleep(0)
                await subscriber.seek(0)
                assert await seqs(subscriber) == list(range(10))
                assert server.tails[:3] == ["0", "1", "0"]

        run(main)

    def test_reading_can_be_taken_up_after_the_end(self) -> None:
        """While an ended channel drains, it can be read again."""

        async def main() -> None:
            async with subscribed(TEN, start=8) as (subscriber, _):
                assert await seqs(subscriber) == [8, 9]
                await subscriber.seek(7)
                assert await seqs(subscriber) == [7, 8, 9]

        run(main)

    def test_reading_can_be_taken_up_after_an_error(self) -> None:
        """After a delay: a seek is no way to send requests without delays."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "2":
                await exchange.text(470, "gone", latest=9, earliest=7)
            else:
                await TEN(exchange)

        async def main() -> None:
            slept = Slept()
            async with subscribed(handler, start=2, on_lag="fail", runtime=slept.runtime) as (subscriber, _):
                with pytest.raises(SegmentMissing) as caught:
                    await anext(subscriber)
                assert caught.value.earliest == 7
                await subscriber.seek(caught.value.earliest)
                assert len(slept.delays) == 0
                assert await seqs(subscriber) == [7, 8, 9]
                assert len(slept.delays) == 1

        run(main)

    def test_it_says_what_is_wrong(self) -> None:
        """A bad target changes nothing; outside the block there is nothing to seek in."""

        async def main() -> None:
            async with fake(TEN) as server:
                subscriber = Subscriber(server.url, start=0)
                with pytest.raises(LocalProtocolError, match="is not open: enter its block"):
                    await subscriber.seek(1)
                async with subscriber:
                    await anext(subscriber)
                    with pytest.raises(InvalidInput):
                        await subscriber.seek("later")  # type: ignore[arg-type]
                    assert (await anext(subscriber)).seq == 1
                with pytest.raises(ClosedHere):
                    await subscriber.seek(1)

        run(main)

    def test_seeks_without_reading_make_no_requests(self) -> None:
        """A GET is made when somebody waits for its segment."""

        async def main() -> None:
            async with subscribed(TEN, start=0) as (subscriber, server):
                for seq in range(10):
                    await subscriber.seek(seq)
                assert server.tails == []
                assert (await anext(subscriber)).seq == 9

        run(main)


class TestPositions:
    def test_a_position_is_the_next_segment_to_be_handed_out(self) -> None:
        """However far the preconnect is ahead; with the epoch as soon as the server has told it."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "next":
                await exchange.text(200, "5", latest=5)
            elif exchange.tail in ("5", "6"):
                await exchange.segment(int(exchange.tail), b"x", epoch=3)
            else:
                await ended(exchange)

        async def main() -> None:
            async with subscribed(handler) as (subscriber, _):
                assert subscriber.position is None
                segment = await anext(subscriber)
                assert segment.position == Position(5, 3)
                assert subscriber.position == Position(6, 3)
                assert await seqs(subscriber) == [6]
                assert subscriber.position == Position(7, 3)
                await subscriber.seek("current")
                assert subscriber.position is None
                await subscriber.seek(Position(4, 2))
                assert subscriber.position == Position(4, 2)

        run(main)

    def test_next_has_a_position_as_soon_as_it_is_resolved(self) -> None:
        """Who is interrupted then has lost nothing."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "next":
                await exchange.text(200, "5", latest=5)
            else:
                exchange.abort()

        async def main() -> None:
            async with subscribed(handler, runtime=Slept().runtime) as (subscriber, _):
                with pytest.raises(ConnectionLost) as caught:
                    await anext(subscriber)
                assert caught.value.resume == subscriber.position == Position(5)

        run(main)

    def test_segments_missed_at_the_end_are_told(self) -> None:
        """There is no segment after them that could say so."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "2":
                await exchange.empty(latest=6, closed="terminated")
            else:
                await TEN(exchange)

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _):
                assert subscriber.missed_at_end == 0
                assert await seqs(subscriber) == [0, 1]
                assert subscriber.missed_at_end == 4
                assert (subscriber.statistics().gaps, subscriber.statistics().missed) == (1, 4)
                await subscriber.seek(7)
                assert await seqs(subscriber) == [7, 8, 9]
                assert subscriber.missed_at_end == 0

        run(main)

    def test_a_segment_says_when_it_was_asked_for_and_answered(self) -> None:
        """On the clock that the subscriber was given."""

        async def main() -> None:
            async with subscribed(TEN, start=0) as (subscriber, _):
                before = anyio.current_time()
                first = await anext(subscriber)
                second = await anext(subscriber)
                assert before <= first.requested_at <= first.answered_at <= second.requested_at
                assert second.requested_at <= second.answered_at <= anyio.current_time()

        run(main)


class TestResume:
    @pytest.mark.parametrize(
        ("answer", "helps"),
        [
            ({"status": 404, "body": "Stream not found"}, True),
            ({"status": 429, "body": "later", "Retry_After": 1000}, True),
            ({"status": 401, "body": "who are you?"}, False),
            ({"status": 403, "body": "no"}, False),
            ({"status": 400, "body": "what?"}, False),
            ({"status": 204, "body": ""}, False),
        ],
        ids=lambda value: str(value["status"]) if isinstance(value, dict) else "",
    )
    def test_an_error_says_where_to_go_on_if_that_can_help(self, answer: dict[str, Any], helps: bool) -> None:
        """With the segment that was wanted, in the life that was read; not if the server will refuse that, too."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "4":
                await exchange.segment(4, b"x", epoch=2)
            else:
                await exchange.text(**answer)

        async def main() -> None:
            async with subscribed(handler, start=4, runtime=Slept().runtime) as (subscriber, _):
                assert (await anext(subscriber)).seq == 4
                with pytest.raises(TrickleError) as caught:
                    await anext(subscriber)
                assert subscriber.position == Position(5, 2)
                assert caught.value.resume == (subscriber.position if helps else None)

        run(main)

    def test_an_error_before_anything_is_known_says_nothing(self) -> None:
        """Then begin as before."""

        async def handler(exchange: Exchange) -> None:
            await exchange.text(404, "Stream not found")

        async def main() -> None:
            async with subscribed(handler) as (subscriber, _):
                with pytest.raises(ChannelNotFound) as caught:
                    await anext(subscriber)
                assert caught.value.resume is None

        run(main)

    def test_a_segment_that_was_not_had_whole_is_read_again(self) -> None:
        """Cut, or longer than the reader's limit: its own position, since it was not delivered."""

        async def cut(exchange: Exchange) -> None:
            await exchange.begin(3, epoch=1)
            await exchange.chunk(b"half")
            exchange.writer.close()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "3":
                await cut(exchange)
            else:
                await TEN(exchange)

        async def main() -> None:
            async with subscribed(handler, start=2, runtime=Slept().runtime) as (subscriber, _):
                with pytest.raises(SegmentTooLarge) as too_large:
                    await (await anext(subscriber)).read(0)
                assert too_large.value.resume == Position(2)
                with pytest.raises(ConnectionLost) as lost:
                    await (await anext(subscriber)).read()
                assert lost.value.resume == Position(3, 1)

        run(main)

    def test_going_on_loses_nothing(self) -> None:
        """A failed subscription and the next one together have each segment once."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "6" and exchange.headers.get("x-second") is None:
                await exchange.text(404, "not yet")
            else:
                await TEN(exchange)

        async def main(server: FakeServer) -> None:
            got = []
            async with Subscriber(server.url, start=3) as subscriber:
                got += [(await anext(subscriber)).seq for _ in range(3)]
                with pytest.raises(TrickleError) as caught:
                    await anext(subscriber)
            assert caught.value.resume is not None
            async with (
                httpx.AsyncClient(headers={"x-second": "1"}) as client,
                Subscriber(server.url, start=caught.value.resume, client=client) as subscriber,
            ):
                async for segment in subscriber:
                    assert (segment.gap, segment.restarted) == (0, False)
                    got.append(segment.seq)
            assert got == list(range(3, 10))

        async def both() -> None:
            async with fake(handler) as server:
                await main(server)

        run(both)
