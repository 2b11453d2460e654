"""A reader with a URL of each node: a node that breaks, is silent or refuses, in the middle of a segment or before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.subscriber.fake import Exchange, FakeServer, Handler, fake, run, timed
from tests.subscriber.test_client import Slept, collect
from tricklecast.subscriber import Subscriber, events


@asynccontextmanager
async def reading(
    one: Handler, other: Handler, **options: Any
) -> AsyncIterator[tuple[Subscriber, FakeServer, FakeServer]]:
    """A subscriber that stands at the first of two nodes."""
    async with fake(one) as first, fake(other) as second:
        runtime = Slept().runtime
        async with timed(runtime, Subscriber, [first.url, second.url], **{"start": 0, **options}) as subscriber:
            yield subscriber, first, second


async def holds(exchange: Exchange) -> None:
    """A node that has segment 0, and after it the end of the channel."""
    if exchange.tail == "0":
        await exchange.segment(0, b"one, ", b"two", epoch=1)
    elif exchange.tail == "next":
        await exchange.text(200, "1", latest=1, epoch=1)
    else:
        await exchange.empty(200, seq=exchange.tail, latest=1, epoch=1, closed="terminated")


async def hangs(exchange: Exchange) -> None:
    """A node that takes requests, and answers none."""
    await exchange.closed_by_client()


@pytest.mark.parametrize("later", ["cut", "hangs"])
def test_a_segment_goes_on_at_another_node(later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last byte that was read, whether its node breaks every connection or is silent."""
    monkeypatch.setattr("tricklecast.subscriber.segment.ANSWER_S", 0.05)

    async def dies(exchange: Exchange) -> None:
        if exchange.tail == "0" and len(first_asked) == 0:
            first_asked.append(exchange)
            await exchange.begin(0, epoch=1)
            await exchange.chunk(b"one, ")
            if later == "hangs":
                await anyio.sleep_forever()
            exchange.abort()
        elif later == "hangs":
            await hangs(exchange)
        else:
            exchange.abort()

    first_asked: list[Exchange] = []
    noted: list[events.SubscriberEvent] = []

    async def main() -> None:
        options = {"stall_timeout_s": 0.05, "refresh_s": 0.05, "on_event": noted.append}
        async with reading(dies, holds, **options) as (subscriber, _, _):
            segment = await anext(subscriber)
            assert await segment.read() == b"one, two"
            assert segment.broken is None
            assert await collect(subscriber) == []

    run(main)
    resumed = [event.bytes_read for event in noted if isinstance(event, events.SegmentResumed)]
    assert resumed == [5] * (later == "cut")  # silence is no cut


@pytest.mark.parametrize("cuts", [2, 3])
def test_a_replica_that_ends_is_no_end_of_the_segment(cuts: int) -> None:
    """It had no more than the reader, and was cut off when another node took the channel over. That is not for ever."""
    left = [cuts]

    async def gone(exchange: Exchange) -> None:
        if not exchange.connection > 1 and exchange.tail == "0":
            await exchange.begin(0, epoch=1)
            await exchange.chunk(b"one, ")
        exchange.abort()

    async def replica(exchange: Exchange) -> None:
        if exchange.tail != "0" or not left[0]:
            return await holds(exchange)
        left[0] -= 1
        await exchange.begin(0, epoch=1)
        await exchange.chunk(b"one, ")
        exchange.abort()
        return None

    async def main() -> None:
        async with reading(gone, replica) as (subscriber, _, _):
            segment = await anext(subscriber)
            assert b"".join([chunk async for chunk in segment]) == b"one, " + b"two" * (cuts == 2)
            assert (segment.broken is None) == (cuts == 2)

    run(main)


def test_a_node_that_takes_the_channel_over_may_not_have_it_yet() -> None:
    """The publisher sends the segment again, and the reader goes on; unless the channel has ended."""
    said = [{}, {}, {"closed": "terminated"}]

    async def gone(exchange: Exchange) -> None:
        if exchange.connection == 1 and exchange.tail == "0":
            await exchange.begin(0, epoch=1)
            await exchange.chunk(b"one, ")
        exchange.abort()

    async def heir(exchange: Exchange) -> None:
        if exchange.tail == "0" and left:
            await exchange.text(404, "Stream not found", **left.pop())
        else:
            await holds(exchange)

    async def main(whole: bytes) -> None:
        async with reading(gone, heir) as (subscriber, _, _):
            segment = await anext(subscriber)
            assert b"".join([chunk async for chunk in segment]) == whole

    left = said[:2]
    run(lambda: main(b"one, two"))
    left = said[2:]
    run(lambda: main(b"one, "))


def test_a_node_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """To let a reader wait is no failure; but a node that does not say where its head is, either, has failed."""
    monkeypatch.setattr("tricklecast.subscriber.segment.NEXT_S", 0.05)

    async def main() -> None:
        async with reading(hangs, holds, refresh_s=0.05) as (subscriber, first, second):
            assert await collect(subscriber) == [(0, b"one, two")]
            assert first.tails == ["0", "next"]
            assert second.tails[:2] == ["next", "0"]

    run(main)


def test_a_reader_that_is_sent_away_reads_on_at_another_node() -> None:
    """Each GET counts as a request, and the change of the node is told."""

    async def drains(exchange: Exchange) -> None:
        await exchange.text(503, "Draining", Retry_After=300)

    noted: list[events.SubscriberEvent] = []

    async def main() -> None:
        async with reading(drains, holds, on_event=noted.append) as (subscriber, first, second):
            assert len(await collect(subscriber)) == 1
            assert subscriber.statistics().requests == len(first.exchanges) + len(second.exchanges) == 3
            assert subscriber.statistics().retries == 1

    run(main)
    (moved,) = [event for event in noted if isinstance(event, events.Retrying)]
    assert "Draining" in str(moved.error)
    assert moved.delay_s < 1
