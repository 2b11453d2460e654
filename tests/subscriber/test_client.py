"""The subscriber against servers that behave, and against servers that do not, over real sockets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.subscriber.fake import Exchange, FakeServer, Handler, fake, run, timed
from tests.support.local import local_server
from tests.support.waiting import eventually
from tests.trickle.client.test_connection import unused_port
from tricklecast.subscriber import AnyStart, Segment, Subscriber, TrickleTransport
from tricklecast.subscriber.events import Retrying, SubscriberEvent
from tricklecast.subscriber.segment import CHECK_WAITS, Runtime
from tricklecast.trickle import wire
from tricklecast.trickle.backoff import BUDGET_RESERVE, CAP_S
from tricklecast.trickle.client.retry import RECONNECT_S
from tricklecast.trickle.errors import (
    ChannelEnded,
    ChannelNotFound,
    ClosedHere,
    ConnectionLost,
    InvalidChannelName,
    InvalidInput,
    InvalidURL,
    LocalProtocolError,
    Refused,
    RemoteProtocolError,
    SegmentMissing,
    SegmentTooLarge,
    TrickleError,
)


@dataclass
class Slept:
    """A sleep that only moves the clock, and remembers by how much."""

    delays: list[float] = field(default_factory=list)

    async def __call__(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        await anyio.lowlevel.checkpoint()

    def now(self) -> float:
        return anyio.current_time() + sum(self.delays)

    @property
    def runtime(self) -> Runtime:
        return Runtime(rng=Random(1), sleep=self, clock=lambda: self.now)


@asynccontextmanager
async def subscribed(
    handler: Handler, *, runtime: Runtime | None = None, **options: Any
) -> AsyncIterator[tuple[Subscriber, FakeServer]]:
    """A subscriber to a fake server, which must be left without any connection at the end."""
    async with fake(handler) as server:
        async with timed(runtime or Runtime(), Subscriber, server.url, **options) as subscriber:
            yield subscriber, server
        await server.all_closed()


async def collect(subscriber: Subscriber) -> list[tuple[int, bytes]]:
    return [(segment.seq, await segment.read()) async for segment in subscriber]


async def drain(subscriber: Subscriber) -> None:
    async for segment in subscriber:
        async for _ in segment:
            pass


async def ended(exchange: Exchange) -> None:
    await exchange.empty(seq=exchange.tail, closed="terminated")


def channel(**segments: bytes) -> Handler:
    """A channel of complete segments that then ends: ``s3=b"..."``."""

    async def handler(exchange: Exchange) -> None:
        data = segments.get(f"s{exchange.tail}")
        if data is None:
            await ended(exchange)
        elif data:
            await exchange.segment(int(exchange.tail), data)
        else:
            await exchange.empty(seq=exchange.tail)

    return handler


class TestReading:
    def test_all_segments_until_the_end(self) -> None:
        """The loop yields each segment once, empty ones included, and ends with the channel."""

        async def main() -> None:
            handler = channel(s0=b"zero", s1=b"", s2=b"two")
            async with subscribed(handler, start=0) as (subscriber, server):
                assert await collect(subscriber) == [(0, b"zero"), (1, b""), (2, b"two")]
                assert server.tails == ["0", "1", "2", "3"]
                now = subscriber.statistics()
                assert (now.requests, now.segments, now.empty, now.bytes, now.gaps) == (4, 3, 1, 7, 0)
                with pytest.raises(StopAsyncIteration):
                    await anext(subscriber)
                assert len(server.tails) == 4

        run(main)

    def test_a_segment_tells_what_the_server_said(self) -> None:
        """Seq, epoch, content type and size come from the headers."""

        async def handler(exchange: Exchange) -> None:
            await exchange.segment(6, b"x", epoch=2, size=1, Content_Type="video/mp2t")

        async def main() -> None:
            async with subscribed(handler, start=6) as (subscriber, _):
                segment = await anext(subscriber)
                assert (segment.seq, segment.epoch, segment.content_type) == (6, 2, "video/mp2t")
                assert (segment.size_at_start, segment.gap, segment.truncated) == (1, 0, None)
                assert not segment.complete
                assert await segment.read() == b"x"
                assert segment.complete

        run(main)

    def test_requests_say_who_asks_and_how_often(self) -> None:
        """The key of the client stays the same; the attempt counts up."""

        async def handler(exchange: Exchange) -> None:
            if exchange.headers["trickle-attempt"] == "1" and exchange.tail == "1":
                await exchange.text(503, "busy")
            else:
                await channel(s0=b"x", s1=b"y")(exchange)

        async def main() -> None:
            async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, server):
                await collect(subscriber)
                heads = [exchange.headers for exchange in server.exchanges]
                assert len({head["trickle-client"] for head in heads}) == 1
                assert [head["trickle-attempt"] for head in heads] == ["1", "1", "2", "1"]
                assert {head["accept-encoding"] for head in heads} == {"identity"}
                assert heads[0]["user-agent"].startswith("tricklecast-subscriber/")

        run(main)

    def test_the_query_of_the_url_is_sent_along(self) -> None:
        """An access token in the URL goes with every GET."""

        async def main() -> None:
            async with fake(channel(s0=b"x")) as server:
                async with Subscriber(f"{server.url}?token=t", start=0) as subscriber:
                    await collect(subscriber)
                assert {exchange.target for exchange in server.exchanges} == {
                    "/trickle/cam/0?token=t",
                    "/trickle/cam/1?token=t",
                }

        run(main)

    def test_one_chunk_sent_is_one_chunk_read(self) -> None:
        """Control channels take one chunk for one message."""

        async def handler(exchange: Exchange) -> None:
            await exchange.segment(0, b'{"a":1}', b'{"b":2}')

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _):
                segment = await anext(subscriber)
                assert [chunk async for chunk in segment] == [b'{"a":1}', b'{"b":2}']

        run(main)

    def test_bytes_arrive_while_the_segment_is_being_written(self) -> None:
        """A chunk is handed on before the next one exists."""
        read = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail != "0":
                return await ended(exchange)
            await exchange.begin(0)
            await exchange.chunk(b"first")
            await read.wait()
            await exchange.chunk(b"second")
            await exchange.end()

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _):
                segment = await anext(subscriber)
                assert await anext(segment) == b"first"
                read.set()
                assert await segment.read() == b"second"

        run(main)

    def test_read_has_a_limit(self) -> None:
        """A segment beyond it is an error, and the next one can be read."""

        async def main() -> None:
            async with subscribed(channel(s0=b"x" * 11, s1=b"y" * 10), start=0) as (subscriber, _):
                with pytest.raises(SegmentTooLarge):
                    await (await anext(subscriber)).read(10)
                assert await (await anext(subscriber)).read(10) == b"y" * 10

        run(main)

    def test_a_segment_can_be_left_half_read(self) -> None:
        """The next one is whole, and the one that was left says so when it is read on."""
        waiting = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.begin(0)
                await exchange.chunk(b"half")
                await exchange.closed_by_client()
                waiting.set()
            else:
                await channel(s1=b"one")(exchange)

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _):
                first = await anext(subscriber)
                assert await anext(first) == b"half"
                assert await (await anext(subscriber)).read() == b"one"
                await waiting.wait()
                with pytest.raises(ClosedHere):
                    await anext(first)
                assert not first.complete
                assert subscriber.statistics().broken == 0

        run(main)


class TestPreconnect:
    def test_the_next_get_is_out_while_a_segment_is_read(self) -> None:
        """It leaves as soon as the segment has begun, and only one does."""
        asked = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.begin(0)
                await exchange.chunk(b"a")
                await asked.wait()
                await exchange.end()
            else:
                asked.set()
                await channel(s1=b"b", s2=b"c")(exchange)

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, server):
                segment = await anext(subscriber)
                await asked.wait()
                assert await segment.read() == b"a"
                assert server.tails == ["0", "1"]
                assert await collect(subscriber) == [(1, b"b"), (2, b"c")]

        run(main)

    def test_an_idle_wait_is_refreshed_with_the_same_seq(self) -> None:
        """It is given up, its connection closed, and asked again: nothing that began in between is skipped."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "next":
                await exchange.text(200, "7", latest=7)
            elif exchange.tail == "7" and exchange.connection <= 3:
                await exchange.closed_by_client()
            else:
                await channel(s7=b"x")(exchange)

        async def main() -> None:
            async with subscribed(handler, refresh_s=0.02) as (subscriber, server):
                assert await collect(subscriber) == [(7, b"x")]
                waits = server.tails.count("7")
                assert server.tails == ["next", *["7"] * waits, "8"]
                # A request that is given up before it was sent is none for the server.
                assert 1 < waits <= subscriber.statistics().refreshes + 1
                assert all(exchange.headers["trickle-attempt"] == "1" for exchange in server.exchanges)

        run(main)

    def test_connections_are_used_again(self) -> None:
        """A long channel needs two: one for the segment, one for the preconnect."""

        async def main() -> None:
            segments = {f"s{seq}": b"x" for seq in range(50)}
            async with subscribed(channel(**segments), start=0) as (subscriber, server):
                assert len(await collect(subscriber)) == 50
                assert server.connections <= 3

        run(main)


class TestStarting:
    def test_next_is_resolved_once(self) -> None:
        """One GET for the head, then concrete seqs only."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "next":
                await exchange.text(200, "3", latest=3)
            else:
                await channel(s3=b"x")(exchange)

        async def main() -> None:
            async with subscribed(handler) as (subscriber, server):
                assert await collect(subscriber) == [(3, b"x")]
                assert server.tails == ["next", "3", "4"]

        run(main)

    def test_current_is_resolved_by_its_answer(self) -> None:
        """-2 once, and on from there."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "-2":
                await exchange.segment(9, b"x")
            else:
                await ended(exchange)

        async def main() -> None:
            async with subscribed(handler, start="current") as (subscriber, server):
                assert await collect(subscriber) == [(9, b"x")]
                assert server.tails == ["-2", "10"]

        run(main)

    def test_a_missing_channel_raises(self) -> None:
        """One request, one error, which every further call raises again: a failure does not turn into an end."""

        async def handler(exchange: Exchange) -> None:
            await exchange.text(404, "Stream not found\n")

        async def main() -> None:
            async with subscribed(handler) as (subscriber, server):
                with pytest.raises(ChannelNotFound, match="channel not found") as first:
                    await anext(subscriber)
                for _ in range(2):
                    with pytest.raises(ChannelNotFound) as again:
                        await anext(subscriber)
                    assert again.value is first.value
                assert server.tails == ["next"]

        run(main)

    def test_a_missing_channel_can_be_waited_for(self) -> None:
        """Asked again after pauses, and then read from its first segment."""
        slept = Slept()

        async def handler(exchange: Exchange) -> None:
            if len(slept.delays) < 4:
                await exchange.text(404, "Stream not found\n")
            else:
                await channel(s0=b"born")(exchange)

        async def main() -> None:
            async with subscribed(handler, wait_for_channel_s=60, runtime=slept.runtime) as (subscriber, server):
                assert await collect(subscriber) == [(0, b"born")]
                assert server.tails == ["next", "0", "0", "0", "0", "1"]
                assert all(delay > 0 for delay in slept.delays)

        run(main)

    @pytest.mark.parametrize("wait_s", [0.0, 60.0])
    def test_a_position_at_the_end_of_a_channel_that_has_ended(self, wait_s: float) -> None:
        """That is the end, at once; who waits for a channel waits for its next life, and is told why."""
        slept, errors = Slept(), list[TrickleError]()

        async def handler(exchange: Exchange) -> None:
            if wait_s and len(slept.delays) == 4:
                await exchange.segment(5, b"anew", epoch=2)
            else:
                await exchange.empty(seq=5, latest=5, epoch=1, closed="terminated")

        def on_event(event: SubscriberEvent) -> None:
            if isinstance(event, Retrying):
                errors.append(event.error)

        async def main() -> None:
            async with subscribed(
                handler, start="5@1", wait_for_channel_s=wait_s, on_event=on_event, runtime=slept.runtime
            ) as (subscriber, _):
                if wait_s:
                    assert (await (await anext(subscriber)).read()) == b"anew"
                else:
                    assert await collect(subscriber) == []
            assert [type(error) for error in errors] == [ChannelEnded] * (4 if wait_s else 0)

        run(main)

    def test_nobody_there_raises_at_once(self) -> None:
        """A refused connection says where and why."""

        async def main() -> None:
            port = unused_port()
            async with Subscriber(f"http://127.0.0.1:{port}/trickle/cam") as subscriber:
                with pytest.raises(ConnectionLost, match=rf"http://127.0.0.1:{port}: Connection refused") as caught:
                    await anext(subscriber)
                assert type(caught.value) is ConnectionLost

        run(main)

    @pytest.mark.parametrize("start", [0, "next", "current"])
    def test_a_web_server_is_not_taken_for_a_channel(self, start: AnyStart) -> None:
        """200 and a page for everything is not the protocol."""

        async def handler(exchange: Exchange) -> None:
            await exchange.text(200, "<html>welcome</html>", Content_Type="text/html")

        async def main() -> None:
            async with subscribed(handler, start=start) as (subscriber, server):
                with pytest.raises(RemoteProtocolError):
                    await anext(subscriber)
                assert len(server.tails) == 1

        run(main)

    def test_another_protocol_is_not_retried(self) -> None:
        """Garbage is final."""

        async def handler(exchange: Exchange) -> None:
            await exchange.raw(b"220 smtp.example.org ESMTP\r\n\r\n")

        async def main() -> None:
            async with subscribed(handler) as (subscriber, server):
                with pytest.raises(RemoteProtocolError):
                    await anext(subscriber)
                assert len(server.tails) == 1

        run(main)

    @pytest.mark.parametrize(
        ("url", "error"),
        [
            ("cam", InvalidURL),
            ("ftp://host/trickle/cam", InvalidURL),
            ("http://host", InvalidURL),
            ("http://host:99999/trickle/cam", InvalidURL),
            ("http://999.1.1.1/trickle/cam", InvalidURL),
            ("http://host/trickle/..", InvalidChannelName),
        ],
    )
    def test_a_bad_url_is_refused_before_anything_is_sent(self, url: str, error: type[Exception]) -> None:
        """At construction, with a type that says what is wrong."""
        with pytest.raises(error):
            Subscriber(url)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("start", "last"),
            ("start", 1.5),
            ("on_lag", "never"),
            ("on_broken", "never"),
            ("wait_for_channel_s", -1),
            ("wait_for_channel_s", math.nan),
            ("refresh_s", 0),
            ("refresh_s", math.inf),
            ("stall_timeout_s", 0.0),
            ("stall_timeout_s", math.nan),
            ("client", httpx.AsyncClient(headers={"Content-Length": "3"})),
            ("client", httpx.AsyncClient(headers={"Connection": "close"})),
        ],
    )
    def test_a_wrong_argument_is_refused_at_construction(self, name: str, value: object) -> None:
        """The error is typed, and comes before any request."""
        options: dict[str, Any] = {name: value}
        with pytest.raises(InvalidInput):
            Subscriber("http://host/trickle/cam", **options)


class TestFaults:
    def test_470_goes_to_the_live_edge_and_reports_the_gap(self) -> None:
        """One request more, and the segment says how many were missed."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "1":
                await exchange.text(470, "Entry not found", seq=1, latest=8, earliest=4, Retry_After=1)
            else:
                await channel(s0=b"zero", s7=b"seven")(exchange)

        async def main() -> None:
            slept = Slept()
            async with subscribed(handler, start=0, on_lag="live", runtime=slept.runtime) as (subscriber, server):
                gaps = [(segment.seq, segment.gap) async for segment in subscriber]
                assert gaps == [(0, 0), (7, 6)]
                assert server.tails == ["0", "1", "7", "8"]
                assert (subscriber.statistics().gaps, subscriber.statistics().missed) == (1, 6)
                assert slept.delays == []

        run(main)

    def test_470_can_be_an_error(self) -> None:
        """``on_lag="fail"`` raises what was missing and what there was."""

        async def handler(exchange: Exchange) -> None:
            await exchange.text(470, "Entry not found", latest=8, earliest=4)

        async def main() -> None:
            async with subscribed(handler, start=1, on_lag="fail") as (subscriber, _):
                with pytest.raises(SegmentMissing) as caught:
                    await anext(subscriber)
                assert (caught.value.latest, caught.value.earliest) == (8, 4)

        run(main)

    def test_503_waits_for_what_the_server_says(self) -> None:
        """``Retry-After`` is a floor of the pause."""

        async def handler(exchange: Exchange) -> None:
            if exchange.headers["trickle-attempt"] == "1":
                await exchange.text(503, "draining", Retry_After=3)
            else:
                await ended(exchange)

        async def main() -> None:
            slept = Slept()
            async with subscribed(handler, start=0, runtime=slept.runtime) as (subscriber, _):
                assert await collect(subscriber) == []
                assert len(slept.delays) == 1
                assert slept.delays[0] > 3
                assert isinstance(subscriber.statistics().last_error, Refused)

        run(main)

    def test_503_for_ever_ends_in_its_error(self) -> None:
        """After as much time as a restart takes."""

        async def handler(exchange: Exchange) -> None:
            await exchange.text(503, "no")

        async def main() -> None:
            slept = Slept()
            begun = slept.now()
            async with subscribed(handler, start=0, runtime=slept.runtime) as (subscriber, server):
                with pytest.raises(Refused):
                    await anext(subscriber)
                assert slept.now() - begun >= RECONNECT_S
                assert sum(slept.delays) < RECONNECT_S + CAP_S
                assert len(server.tails) == len(slept.delays) + 1 < 60

        run(main)

    @pytest.mark.parametrize("size", [0, 100, 100_000])
    def test_the_body_of_an_error_is_not_needed(self, size: int) -> None:
        """Short, long, or promised and never sent: the status counts, and a line of text at most."""

        async def handler(exchange: Exchange) -> None:
            await exchange.head(403, Content_Length=200_000 if size else 0)
            await exchange.raw(b"no\n" + b"x" * size if size else b"")
            if size:
                exchange.abort()

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _):
                with pytest.raises(Refused):
                    await anext(subscriber)

        run(main)

    def test_a_lost_preconnect_is_asked_again(self) -> None:
        """A connection that breaks before the head costs a pause and no segment."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "1" and exchange.headers["trickle-attempt"] == "1":
                exchange.abort()
            else:
                await channel(s0=b"a", s1=b"b")(exchange)

        async def main() -> None:
            slept = Slept()
            async with subscribed(handler, start=0, runtime=slept.runtime) as (subscriber, _):
                assert await collect(subscriber) == [(0, b"a"), (1, b"b")]
                assert len(slept.delays) == 1
                assert subscriber.statistics().retries == 1

        run(main)

    def test_a_truncation_in_the_trailer_is_seen(self) -> None:
        """A segment that turns out not to be whole says so at its end."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail != "0":
                return await ended(exchange)
            await exchange.begin(0, Trailer="Lp-Trickle-Truncated")
            await exchange.chunk(b"part")
            await exchange.end(truncated="publisher_lost")

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _):
                segment = await anext(subscriber)
                assert segment.truncated is None
                assert await segment.read() == b"part"
                assert segment.truncated == "publisher_lost"
                assert not segment.complete
                assert subscriber.statistics().truncated == 1

        run(main)

    def test_a_truncation_in_the_header_is_seen_at_once(self) -> None:
        """Also of a segment that holds nothing."""

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0":
                await exchange.segment(0, b"part", truncated="too_large")
            elif exchange.tail == "1":
                await exchange.empty(seq=1, truncated="skipped")
            else:
                await ended(exchange)

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, _):
                assert [segment.truncated async for segment in subscriber] == ["too_large", "skipped"]
                assert subscriber.statistics().truncated == 2

        run(main)


async def cut(exchange: Exchange) -> None:
    """Segment 0 breaks in its middle, segment 1 is whole."""
    if exchange.tail == "0":
        await exchange.begin(0)
        await exchange.chunk(b"half")
        exchange.writer.close()
    else:
        await channel(s1=b"whole")(exchange)


class TestCutSegments:
    def test_iterating_ends_and_the_segment_is_marked(self) -> None:
        """What came is handed on, ``broken`` is set, and the next segment follows."""

        async def main() -> None:
            async with subscribed(cut, start=0, runtime=Slept().runtime) as (subscriber, _):
                first = await anext(subscriber)
                assert [chunk async for chunk in first] == [b"half"]
                assert isinstance(first.broken, ConnectionLost)
                assert first.broken.seq == 0
                assert not first.complete
                assert await collect(subscriber) == [(1, b"whole")]
                assert subscriber.statistics().broken == 1

        run(main)

    def test_reading_it_whole_raises(self) -> None:
        """A part is never returned for the whole, and the next segment can be read."""

        async def main() -> None:
            async with subscribed(cut, start=0, runtime=Slept().runtime) as (subscriber, _):
                with pytest.raises(ConnectionLost):
                    await (await anext(subscriber)).read()
                assert await collect(subscriber) == [(1, b"whole")]

        run(main)

    def test_iterating_can_raise_too(self) -> None:
        """With ``on_broken="raise"``, at every further call, too."""

        async def main() -> None:
            async with subscribed(cut, start=0, on_broken="raise", runtime=Slept().runtime) as (subscriber, _):
                first = await anext(subscriber)
                assert await anext(first) == b"half"
                for _ in range(2):
                    with pytest.raises(ConnectionLost):
                        await anext(first)
                assert await collect(subscriber) == [(1, b"whole")]

        run(main)

    def test_a_server_that_cuts_every_segment_is_left(self) -> None:
        """With pauses between, and in the end with the error."""

        async def handler(exchange: Exchange) -> None:
            await exchange.begin(int(exchange.tail))
            await exchange.chunk(b"half")
            exchange.writer.close()

        async def main() -> None:
            slept = Slept()
            async with subscribed(handler, start=0, runtime=slept.runtime) as (subscriber, server):
                with pytest.raises(ConnectionLost):
                    await drain(subscriber)
                assert len(server.tails) <= 2 * BUDGET_RESERVE + 3
                assert len(slept.delays) >= 8

        run(main)

    def test_a_server_that_has_stopped_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It takes connections and says nothing: the segment breaks, and after one wait it is an outage like others."""
        monkeypatch.setattr("tricklecast.subscriber.segment.ANSWER_S", 0.05)
        monkeypatch.setattr("tricklecast.subscriber.segment.NEXT_S", 0.02)
        slept = Slept()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "0" and exchange.headers["trickle-attempt"] == "1":
                await exchange.begin(0)
                await exchange.chunk(b"half")
            await exchange.closed_by_client()

        async def main() -> None:
            options: dict[str, Any] = {"stall_timeout_s": 0.02, "refresh_s": 0.2, "runtime": slept.runtime}
            async with subscribed(handler, start=0, **options) as (subscriber, server):
                segment = await anext(subscriber)
                with pytest.raises(
                    ConnectionLost, match=r"no byte for 0\.02 s, and the server does not answer"
                ) as broke:
                    await segment.read()
                assert broke.value.resume == segment.position
                assert sorted(server.tails) == ["0", "0", "1"]
                begun = slept.now()
                with pytest.raises(ConnectionLost, match=r"no answer within 0\.02 s"):
                    await anext(subscriber)
                assert slept.now() - begun >= RECONNECT_S
                assert {*server.tails[3:]} == {"next"}

        run(main)

    @pytest.mark.parametrize("start", ["next", "current", "earliest", 7])
    def test_a_server_that_never_answers_is_left(self, start: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the head is, each server says at once: its silence is told, waited for like an outage, and an error."""
        monkeypatch.setattr("tricklecast.subscriber.segment.NEXT_S", 0.02)
        events: list[object] = []

        async def main() -> None:
            slept = Slept()
            options: dict[str, Any] = {"refresh_s": 0.02, "runtime": slept.runtime, "on_event": events.append}
            begun = slept.now()
            async with subscribed(Exchange.closed_by_client, start=start, **options) as (subscriber, server):
                with pytest.raises(ConnectionLost, match=r"no answer within 0\.02 s") as caught:
                    await anext(subscriber)
                assert slept.now() - begun >= RECONNECT_S
                assert len(slept.delays) == sum(isinstance(event, Retrying) for event in events)
                asked = len(server.tails)
                with pytest.raises(ConnectionLost):
                    await anext(subscriber)
                assert len(server.tails) == asked
                assert set(server.tails[1:]) == {"next"}
                assert caught.value.resume == subscriber.position

        run(main)

    def test_a_server_that_answers_late_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that hangs for a while costs a retry, and no segment."""
        monkeypatch.setattr("tricklecast.subscriber.segment.NEXT_S", 0.05)

        async def handler(exchange: Exchange) -> None:
            if exchange.headers["trickle-attempt"] == "1" and exchange.tail == "next":
                await exchange.closed_by_client()
            elif exchange.tail == "next":
                await exchange.text(200, "0", latest=0)
            else:
                await channel(s0=b"zero")(exchange)

        async def main() -> None:
            async with subscribed(handler, start="next", runtime=Slept().runtime) as (subscriber, _):
                assert await collect(subscriber) == [(0, b"zero")]
                assert subscriber.statistics().retries == 1

        run(main)

    def test_a_server_that_hangs_later_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A quiet channel looks the same, so the server is asked after some waits, and not after each."""
        hangs = False

        async def handler(exchange: Exchange) -> None:
            nonlocal hangs
            if exchange.tail == "0":
                await exchange.segment(0, b"zero")
            elif exchange.tail == "next" and not hangs:
                hangs = True
                monkeypatch.setattr("tricklecast.subscriber.segment.NEXT_S", 0.02)
                await exchange.text(200, "1", latest=1)
            else:
                await exchange.closed_by_client()

        async def main() -> None:
            async with subscribed(handler, start=0, refresh_s=0.01, runtime=Slept().runtime) as (subscriber, server):
                assert await (await anext(subscriber)).read() == b"zero"
                with pytest.raises(ConnectionLost, match="no answer within"):
                    await anext(subscriber)
                waits = ["1"] * CHECK_WAITS
                assert server.tails[: 2 * CHECK_WAITS + 3] == ["0", *waits, "next", *waits, "next"]

        run(main)

    def test_a_quiet_segment_is_no_fault(self) -> None:
        """However long it is silent: the server is asked whether it is there, for no token, and reading goes on."""
        quiet = 20

        async def handler(exchange: Exchange) -> None:
            if exchange.tail != "0":
                return await ended(exchange)
            await exchange.begin(0)
            await exchange.chunk(b"half")
            if int(exchange.headers["trickle-attempt"]) <= quiet:
                await exchange.closed_by_client()
            else:
                await exchange.chunk(b"whole")
                await exchange.end()

        async def main() -> None:
            async with subscribed(handler, start=0, stall_timeout_s=0.01) as (subscriber, _):
                assert await collect(subscriber) == [(0, b"halfwhole")]
                now = subscriber.statistics()
                assert (now.refreshes, now.retries, now.broken) == (quiet, 0, 0)

        run(main)


async def stalls(exchange: Exchange) -> None:
    """Segments begin and never end; /next waits as well."""
    if exchange.tail == "0":
        await exchange.begin(0)
        await exchange.chunk(b"x")
    await exchange.closed_by_client()


class TestLifetime:
    @pytest.mark.parametrize("start", ["next", 0, 5])
    def test_cancelling_a_wait_is_clean(self, start: AnyStart) -> None:
        """Wherever the loop stands, a cancelled subscriber closes its connections and raises nothing else."""

        async def main() -> None:
            async with fake(stalls) as server:

                async def consume(scope: anyio.CancelScope) -> None:
                    with scope:
                        async with Subscriber(server.url, start=start) as subscriber:
                            async for segment in subscriber:
                                await segment.read()

                scope = anyio.CancelScope()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consume, scope)
                    await server.asked()
                    scope.cancel()
                assert scope.cancelled_caught
                await server.all_closed()

        run(main)

    @pytest.mark.parametrize("start", ["next", 0])
    def test_cancelling_the_task_is_clean(self, start: AnyStart) -> None:
        """asyncio's own cancel and timeout work, too."""

        async def consume(url: str, ready: asyncio.Event) -> None:
            async with Subscriber(url, start=start) as subscriber:
                ready.set()
                async for segment in subscriber:
                    await segment.read()

        async def main() -> None:
            async with fake(stalls) as server:
                ready = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(consume(server.url, ready))
                    await ready.wait()
                    await server.asked()
                    task.cancel()
                assert task.cancelled()
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await consume(server.url, ready)
                await server.all_closed()

        run(main)

    def test_a_cancelled_wait_for_the_next_segment_can_be_taken_up_again(self) -> None:
        """The preconnect goes on meanwhile."""
        go = asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            await go.wait()
            await channel(s0=b"x")(exchange)

        async def main() -> None:
            async with subscribed(handler, start=0) as (subscriber, server):
                with anyio.move_on_after(0.02):
                    await anext(subscriber)
                go.set()
                assert await collect(subscriber) == [(0, b"x")]
                assert server.tails == ["0", "1"]

        run(main)

    @pytest.mark.parametrize("own", [True, False], ids=["own-transport", "other-transport"])
    @pytest.mark.parametrize("native", [True, False], ids=["task", "scope"])
    @pytest.mark.parametrize("how", ["anext", "read_some", "read"])
    def test_a_cancelled_read_loses_nothing(self, how: str, native: bool, own: bool) -> None:
        """Whatever cancels it, and wherever it stands: the next read goes on with the next byte."""
        data = [bytes([65 + number]) * 10 for number in range(4)]
        released = 0
        changed = asyncio.Condition()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail != "0":
                return await ended(exchange)
            await exchange.begin(0)
            for number, chunk in enumerate(data):
                async with changed:
                    await changed.wait_for(lambda number=number: released > number)  # type: ignore[misc]
                await exchange.chunk(chunk)
            async with changed:
                await changed.wait_for(lambda: released > len(data))
            await exchange.end()

        async def read(segment: Segment) -> bytes:
            match how:
                case "anext":
                    return await anext(segment, b"")
                case "read_some":
                    return await segment.read_some()
            return await segment.read()

        async def read_for(segment: Segment, limit_s: float) -> bytes | None:
            try:
                if native:
                    return await asyncio.wait_for(read(segment), limit_s)
                with anyio.fail_after(limit_s):
                    return await read(segment)
            except TimeoutError:
                return None

        async def main() -> None:
            nonlocal released
            transport = None if own else httpx.AsyncHTTPTransport()
            options: dict[str, Any] = {"start": 0, "transport": transport, "runtime": Slept().runtime}
            async with subscribed(handler, **options) as (subscriber, _):
                segment, got = await anext(subscriber), b""
                for number in range(len(data)):
                    assert await read_for(segment, 0.01) is None
                    async with changed:
                        released += 1
                        changed.notify_all()
                    limit_s = 0.02
                    while segment.bytes_read < 10 * (number + 1):
                        got += await read_for(segment, limit_s) or b""
                        limit_s *= 2
                async with changed:
                    released += 1
                    changed.notify_all()
                got += await read(segment)
                assert got == b"".join(data)
                assert segment.bytes_read == len(got)
                assert subscriber.statistics().retries == 0

        run(main)

    def test_an_error_of_the_user_comes_out_as_it_is(self) -> None:
        """No ExceptionGroup around it."""

        async def fail(subscriber: Subscriber) -> None:
            async with subscriber:
                await anext(subscriber)
                raise KeyError("mine")

        async def main() -> None:
            async with fake(stalls) as server:
                with pytest.raises(KeyError, match="mine"):
                    await fail(Subscriber(server.url, start=0))
                await server.all_closed()

        run(main)

    def test_breaking_off_is_clean(self) -> None:
        """Leaving loop and block in the middle of a segment, with the next one already answered."""

        async def main() -> None:
            async with subscribed(channel(s0=b"x" * 10, s1=b"y" * 10), start=0) as (subscriber, server):
                async for segment in subscriber:
                    assert await anext(segment)
                    await server.asked(2)
                    break

        run(main)

    def test_it_is_used_inside_its_block_once(self) -> None:
        """Before and after, and a second time, it says what is wrong."""

        async def main() -> None:
            async with fake(channel()) as server:
                subscriber = Subscriber(server.url, start=0)
                with pytest.raises(LocalProtocolError, match="is not open: enter its block") as caught:
                    await anext(subscriber)
                assert not isinstance(caught.value, ClosedHere)  # nobody has closed it
                async with subscriber:
                    with pytest.raises(LocalProtocolError):
                        await subscriber.__aenter__()
                with pytest.raises(ClosedHere, match="was closed"):
                    await anext(subscriber)
                with pytest.raises(LocalProtocolError):
                    await subscriber.__aenter__()

        run(main)

    def test_two_at_once_are_refused(self) -> None:
        """One task iterates over a subscriber at a time."""

        async def main() -> None:
            async with subscribed(stalls, start=5) as (subscriber, server), anyio.create_task_group() as group:
                group.start_soon(anext, subscriber)
                await server.asked()
                with pytest.raises(anyio.BusyResourceError):
                    await anext(subscriber)
                group.cancel_scope.cancel()

        run(main)

    @pytest.mark.parametrize("read", [Segment.read, Segment.read_some, Segment.__anext__])
    def test_two_readers_of_one_segment_are_refused(self, read: Callable[[Segment], Awaitable[bytes]]) -> None:
        """The first goes on: it gets all bytes, and the second an error."""
        go_on = anyio.Event()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail != "0":
                return await ended(exchange)
            await exchange.begin(0)
            await go_on.wait()
            await exchange.chunk(b"data")
            await exchange.end()

        async def main() -> None:
            got: list[bytes] = []

            async def first(segment: Segment) -> None:
                got.append(await read(segment))

            async with subscribed(handler, start=0) as (subscriber, _):
                segment = await anext(subscriber)
                async with anyio.create_task_group() as group:
                    group.start_soon(first, segment)
                    await anyio.wait_all_tasks_blocked()
                    for second in (Segment.read, Segment.read_some, Segment.__anext__):
                        with pytest.raises(anyio.BusyResourceError, match="reading"):
                            await second(segment)
                    go_on.set()
            assert got == [b"data"]

        run(main)

    def test_a_client_that_was_given_is_used_and_left_open(self) -> None:
        """With its headers and its transport; httpx's own transport works but for trailers."""

        async def main() -> None:
            async with fake(channel(s0=b"x")) as server:
                for transport in (httpx.AsyncHTTPTransport(), TrickleTransport()):
                    async with httpx.AsyncClient(transport=transport, headers={"Authorization": "Bearer t"}) as http:
                        async with Subscriber(server.url, start=0, client=http) as subscriber:
                            assert await collect(subscriber) == [(0, b"x")]
                        assert not http.is_closed
                assert {exchange.headers["authorization"] for exchange in server.exchanges} == {"Bearer t"}

        run(main)

    def test_a_transport_that_was_given_is_used(self) -> None:
        """Tests of programs need no sockets."""

        def answer(request: httpx.Request) -> httpx.Response:
            seq = request.url.path.rpartition("/")[2]
            if seq == "0":
                return httpx.Response(200, headers={wire.SEQ: seq}, content=b"mock")
            return httpx.Response(200, headers={wire.SEQ: seq, wire.CLOSED: wire.TERMINATED})

        async def main() -> None:
            transport = httpx.MockTransport(answer)
            async with Subscriber("http://host/trickle/cam", start=0, transport=transport) as subscriber:
                assert await collect(subscriber) == [(0, b"mock")]

        run(main)

    @pytest.mark.parametrize("own_client", [True, False])
    def test_auth_is_used_with_and_without_a_client(self, own_client: bool) -> None:
        """With a client that has one of its own, the subscriber's is used."""

        async def main() -> None:
            async with fake(channel(s0=b"x")) as server, httpx.AsyncClient(auth=("other", "one")) as client:
                options: dict[str, Any] = {} if own_client else {"client": client}
                options["headers"] = {"trickle-client": "player 7"}
                async with Subscriber(server.url, start=0, auth="eyJ.x.y", **options) as subscriber:
                    await collect(subscriber)
                sent = {(it.headers["authorization"], it.headers["trickle-client"]) for it in server.exchanges}
                assert sent == {("Bearer eyJ.x.y", "player 7")}

        run(main)

    def test_a_client_has_its_own_transport(self) -> None:
        """A second one would be ignored in silence."""
        with pytest.raises(InvalidInput, match="either client or transport"):
            Subscriber("http://host/trickle/cam", client=httpx.AsyncClient(), transport=TrickleTransport())

    def test_many_tiny_chunks_do_not_stop_the_program(self) -> None:
        """Neither joined nor one by one: other tasks run every few hundred chunks, and no byte is missing."""
        count = 20_000

        async def handler(exchange: Exchange) -> None:
            if exchange.tail != "0":
                return await ended(exchange)
            await exchange.begin(0)
            await exchange.raw(b"1\r\nx\r\n" * count)
            await exchange.end()

        async def main(joined: bool) -> None:
            calls = turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await anyio.lowlevel.checkpoint()

            async with subscribed(handler, start=0) as (subscriber, _), anyio.create_task_group() as group:
                segment = await anext(subscriber)
                group.start_soon(other)
                while await segment.read_some() if joined else await anext(segment, b""):
                    calls += 1
                group.cancel_scope.cancel()
            assert segment.bytes_read == count
            assert turns >= count / 512
            assert calls <= count / 64 if joined else calls == count

        for joined in (True, False):
            run(lambda joined=joined: main(joined))  # type: ignore[misc]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_is_left_in_another_task_than_it_was_entered(backend: str) -> None:
    """As fixtures and start/stop objects do; in the middle of a segment, while the next one is waited for."""
    seen: list[bytes] = []

    async def main(url: str) -> None:
        subscriber = Subscriber(url, start=0)

        async def enter() -> None:
            await subscriber.__aenter__()
            seen.append(await (await anext(subscriber)).read_some())

        async def leave() -> None:
            await subscriber.__aexit__(None, None, None)
            with pytest.raises(ClosedHere):
                await anext(subscriber)

        for step in (enter, leave):
            async with anyio.create_task_group() as group:
                group.start_soon(step)

    with local_server() as server:
        url = f"http://127.0.0.1:{server.port}/trickle/crossing"
        httpx.post(f"{url}/0", content=b"zero").raise_for_status()
        anyio.run(main, url, backend=backend)
        eventually(lambda: httpx.get(f"{url.replace('/trickle/', '/api/v1/channels/')}").json()["readers"] == 0)
    assert seen == [b"zero"]
