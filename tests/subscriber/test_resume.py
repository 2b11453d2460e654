"""Segments whose connection was cut go on where they stopped, if it is still the same segment that goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.subscriber.fake import Exchange, Handler, run
from tests.subscriber.test_client import Slept, collect, ended, subscribed
from tricklecast.subscriber import Retrying, Segment, Subscriber, TrickleTransport
from tricklecast.subscriber.core import NextSegment
from tricklecast.subscriber.segment import Runtime, is_same
from tricklecast.trickle.client.exchange import Answer
from tricklecast.trickle.errors import ConnectionLost, Position

Attempt = Callable[[Exchange], Awaitable[None]]


def attempts(*parts: Attempt, after: Attempt = ended) -> Handler:
    """Segment 0 is answered by each of these in turn, and everything else by the last."""

    async def handler(exchange: Exchange) -> None:
        attempt = int(exchange.headers["trickle-attempt"])
        if exchange.tail == "0" and attempt <= len(parts):
            await parts[attempt - 1](exchange)
        else:
            await after(exchange)

    return handler


def cut(*chunks: bytes, **headers: object) -> Attempt:
    """The connection breaks behind these chunks."""

    async def part(exchange: Exchange) -> None:
        await exchange.begin(0, **{"epoch": 1} | headers)
        for chunk in chunks:
            await exchange.chunk(chunk)
        exchange.writer.close()

    return part


def whole(*chunks: bytes, **headers: object) -> Attempt:
    """The segment ends behind these chunks."""

    async def part(exchange: Exchange) -> None:
        await exchange.segment(0, *chunks, **{"epoch": 1} | headers)

    return part


def says(status: int, **headers: object) -> Attempt:
    """An answer without a segment."""

    async def part(exchange: Exchange) -> None:
        await exchange.text(status, "no", **headers)

    return part


async def aborts(exchange: Exchange) -> None:
    exchange.abort()


async def one(subscriber: Subscriber) -> tuple[Segment, list[bytes]]:
    segment = await anext(subscriber)
    return segment, [chunk async for chunk in segment]


class TestGoingOn:
    @pytest.mark.parametrize(
        ("parts", "chunks"),
        [
            ((cut(b"one", b"two"), whole(b"one", b"two", b"three")), [b"one", b"two", b"three"]),
            ((cut(b"one", b"two"), whole(b"onetwothree")), [b"one", b"two", b"three"]),
            ((cut(b"one"), cut(b"one", b"two"), whole(b"one", b"two", b"three")), [b"one", b"two", b"three"]),
            ((cut(b"one"), whole(b"one")), [b"one"]),
            ((cut(), whole(b"one")), [b"one"]),
            ((cut(b"one"), cut(b"one"), cut(b"one"), whole(b"one", b"two")), [b"one", b"two"]),
            ((cut(b"one"), whole(b"one", b"two", size=3)), [b"one", b"two"]),
            ((cut(b"one", epoch=""), whole(b"one", b"two", epoch="")), [b"one", b"two"]),
        ],
    )
    def test_it_goes_on_where_it_stopped(self, parts: tuple[Attempt, ...], chunks: list[bytes]) -> None:
        """However often it is cut and however its chunks lie: no byte is missing, none comes twice."""

        async def main() -> None:
            slept = Slept()
            async with subscribed(attempts(*parts), start=0, runtime=slept.runtime) as (subscriber, _):
                segment, got = await one(subscriber)
                assert got == chunks
                assert segment.complete
                assert segment.broken is None
                assert await collect(subscriber) == []
                now = subscriber.statistics()
                assert (now.broken, now.resumed, now.bytes) == (0, len(parts) - 1, len(b"".join(chunks)))
                assert now.retries == len(parts) - 1
                assert len(slept.delays) == len(parts) - 1
                assert all(slept.delays)

        run(main)

    def test_reading_it_whole_goes_on_too(self) -> None:
        """``read`` knows nothing of it."""

        async def main() -> None:
            handler = attempts(cut(b"one"), whole(b"one", b"two"))
            async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, _):
                assert await (await anext(subscriber)).read() == b"onetwo"

        run(main)

    @pytest.mark.parametrize(
        "failure",
        [aborts, says(503), says(429, Retry_After=1), says(404), says(470, latest=0), cut(b"on"), cut()],
    )
    def test_what_may_pass_is_tried_again(self, failure: Attempt) -> None:
        """Lost connections, servers that are busy, and those that were restarted and have nothing of the segment."""

        async def main() -> None:
            handler = attempts(cut(b"one"), failure, whole(b"one", b"two"))
            async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, _):
                segment, got = await one(subscriber)
                assert got == [b"one", b"two"]
                assert segment.complete

        run(main)

    def test_a_segment_that_grows_again_on_a_restarted_server_goes_on(self) -> None:
        """Its publisher is about to send all of it again."""

        async def main() -> None:
            handler = attempts(cut(b"one"), says(404), cut(b"on", size=2), whole(b"one", b"two"))
            async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, _):
                segment, got = await one(subscriber)
                assert got == [b"one", b"two"]
                assert segment.complete

        run(main)

    def test_a_truncation_that_is_known_meanwhile_is_told(self) -> None:
        """As if it had been read a little later."""

        async def main() -> None:
            handler = attempts(cut(b"one"), whole(b"one", truncated="publisher_lost"))
            async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, _):
                segment, _ = await one(subscriber)
                assert segment.truncated == "publisher_lost"
                assert not segment.complete

        run(main)

    def test_a_stalled_segment_goes_on(self) -> None:
        """Silence for ``stall_timeout_s`` is a cut."""

        async def stall(exchange: Exchange) -> None:
            await exchange.begin(0, epoch=1)
            await exchange.chunk(b"one")
            await exchange.closed_by_client()

        async def main() -> None:
            handler = attempts(stall, whole(b"one", b"two"))
            options: dict[str, Any] = {"stall_timeout_s": 0.05, "runtime": Slept().runtime}
            async with subscribed(handler, start=0, **options) as (subscriber, _):
                segment, got = await one(subscriber)
                assert got == [b"one", b"two"]
                assert segment.complete

        run(main)


class TestGivingUp:
    @pytest.mark.parametrize(
        "other",
        [
            whole(b"two", b"three"),
            whole(b"on"),
            whole(b"one", b"two", epoch=2),
            whole(b"one", b"two", epoch=""),
            whole(b"one", b"two", size=2),
            says(470, latest=5, earliest=3),
            says(470, latest=0, epoch=2),
            says(404, closed="terminated"),
            says(503, Retry_After=60),
            says(200, seq=0, closed="terminated"),
            says(204),
        ],
    )
    def test_another_segment_is_not_taken_for_the_rest(self, other: Attempt) -> None:
        """Neither by its head, nor by its first bytes; it is asked for once."""

        async def main() -> None:
            async with subscribed(attempts(cut(b"one"), other), start=0, runtime=Slept().runtime) as (
                subscriber,
                server,
            ):
                segment, got = await one(subscriber)
                assert got == [b"one"]
                assert isinstance(segment.broken, ConnectionLost)
                assert segment.broken.resume == segment.position == Position(0, 1)
                assert await collect(subscriber) == []
                assert server.tails.count("0") == 2
                assert (subscriber.statistics().broken, subscriber.statistics().resumed) == (1, 0)

        run(main)

    @pytest.mark.parametrize("is_back", [True, False])
    def test_a_server_that_is_gone_for_a_moment_may_have_the_rest(self, is_back: bool) -> None:
        """On its disk. It is waited for as long as for any rest."""

        class Down(TrickleTransport):
            asked = 0

            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if request.url.path.endswith("/0"):
                    self.asked += 1
                    if self.asked > 1 and not (is_back and self.asked == 4):
                        raise httpx.ConnectError("refused", request=request)
                    request.headers["trickle-attempt"] = str(min(self.asked, 2))
                return await super().handle_async_request(request)

        async def main() -> None:
            down = Down()
            options: dict[str, Any] = {"transport": down, "runtime": Slept().runtime}
            parts = cut(b"one"), whole(b"one", b"two")
            async with subscribed(attempts(*parts), start=0, **options) as (subscriber, _):
                segment, got = await one(subscriber)
                assert got == ([b"one", b"two"] if is_back else [b"one"])
                assert isinstance(segment.broken, ConnectionLost) is not is_back
                assert await collect(subscriber) == []
                assert down.asked == 4 if is_back else 4 < down.asked < 20

        run(main)

    def test_garbage_is_not_the_rest(self) -> None:
        """Nor is it asked for again."""

        async def garbage(exchange: Exchange) -> None:
            await exchange.raw(b"220 smtp.example.org ESMTP\r\n\r\n")

        async def main() -> None:
            async with subscribed(attempts(cut(b"one"), garbage), start=0, runtime=Slept().runtime) as (subscriber, _):
                assert (await one(subscriber))[0].broken

        run(main)

    def test_without_any_progress_it_is_given_up(self) -> None:
        """A server that cuts at the same byte each time has a reason; twice may be bad luck."""

        async def main() -> None:
            handler = attempts(*[cut(b"one")] * 9)
            async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, server):
                segment, got = await one(subscriber)
                assert got == [b"one"]
                assert segment.broken
                assert server.tails.count("0") == 4

        run(main)

    def test_the_retry_budget_ends_it(self) -> None:
        """A server that gives a byte more each time is left, too."""

        async def main() -> None:
            handler = attempts(*[cut(b"x" * size) for size in range(1, 40)])
            async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, server):
                segment, _ = await one(subscriber)
                assert segment.broken
                assert server.tails.count("0") == 11
                with pytest.raises(ConnectionLost) as caught:
                    await anext(subscriber)
                assert caught.value.resume == Position(0, 1)

        run(main)

    def test_a_server_that_makes_us_wait_has_another_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was there already comes at once, and so does its head."""
        monkeypatch.setattr("tricklecast.subscriber.segment.ANSWER_S", 0.05)

        async def silent(exchange: Exchange) -> None:
            await exchange.closed_by_client()

        async def hesitates(exchange: Exchange) -> None:
            await exchange.begin(0, epoch=1)
            await exchange.chunk(b"o")
            await exchange.closed_by_client()

        async def main(part: Attempt) -> None:
            async with subscribed(attempts(cut(b"one"), part), start=0, runtime=Slept().runtime) as (subscriber, _):
                assert (await one(subscriber))[0].broken

        for part in (silent, hesitates):
            run(lambda part=part: main(part))  # type: ignore[misc]


class TestCancelledCalls:
    @pytest.mark.parametrize("how", ["anext", "read_some", "read"])
    def test_they_neither_lengthen_the_pause_nor_repeat_the_request(self, how: str) -> None:
        """However short the calls are, the segment goes on, with one pause and one request."""
        pause_over, answer_due = anyio.Event(), anyio.Event()
        events: list[object] = []

        async def late(exchange: Exchange) -> None:
            await answer_due.wait()
            await exchange.segment(0, b"one", b"two", epoch=1)

        async def read(segment: Segment) -> bytes:
            match how:
                case "anext":
                    return await anext(segment)
                case "read_some":
                    return await segment.read_some()
            return await segment.read()

        async def main() -> None:
            pauses: list[float] = []
            pausing = anyio.Event()

            async def pause(delay_s: float) -> None:
                pauses.append(delay_s)
                pausing.set()
                await pause_over.wait()

            async def cancelled_while(segment: Segment, waits: Callable[[], Awaitable[object]]) -> None:
                for _ in range(20):
                    async with anyio.create_task_group() as group:
                        group.start_soon(read, segment)
                        await anyio.wait_all_tasks_blocked()
                        await waits()
                        group.cancel_scope.cancel()

            handler = attempts(cut(b"one"), late)
            options: dict[str, Any] = {"runtime": Runtime(sleep=pause), "on_event": events.append}
            async with subscribed(handler, start=0, **options) as (subscriber, server):
                segment = await anext(subscriber)
                assert await segment.read_some() == b"one"
                await cancelled_while(segment, pausing.wait)
                pause_over.set()
                await cancelled_while(segment, lambda: server.asked(3))
                answer_due.set()
                assert await read(segment) == b"two"
                assert await segment.read_some() == b""
                assert segment.complete
                assert server.tails.count("0") == 2
                assert len(pauses) == 1
                assert [type(event) for event in events].count(Retrying) == 1
                assert (subscriber.statistics().retries, subscriber.statistics().resumed) == (1, 1)

        run(main)


class TestLeaving:
    def test_cancelling_while_it_is_asked_for_is_clean(self) -> None:
        """The segment is given up, and no connection stays."""

        async def silent(exchange: Exchange) -> None:
            await exchange.closed_by_client()

        async def main() -> None:
            async with subscribed(attempts(cut(b"one"), silent), start=0, runtime=Slept().runtime) as (
                subscriber,
                server,
            ):
                segment = await anext(subscriber)
                assert await anext(segment) == b"one"
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(anext, segment)
                        await server.asked(3)
                        scope.cancel()
                assert not segment.complete

        run(main)

    def test_a_rest_that_nobody_took_is_dropped(self) -> None:
        """A cancelled call asked for it, and then the segment was left: its connection is closed."""

        answer_due = anyio.Event()

        async def endless(exchange: Exchange) -> None:
            await answer_due.wait()
            await exchange.begin(0, epoch=1)
            await exchange.chunk(b"one")
            await exchange.closed_by_client()

        async def main() -> None:
            handler = attempts(cut(b"one"), endless)
            async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, server):
                segment = await anext(subscriber)
                assert await segment.read_some() == b"one"
                async with anyio.create_task_group() as group:
                    group.start_soon(segment.read_some)
                    await server.asked(3)
                    group.cancel_scope.cancel()
                answer_due.set()
                while segment._rest is None:
                    await anyio.lowlevel.checkpoint()
                await segment.aclose()
                assert not segment.complete
                assert subscriber.statistics().resumed == 0

        run(main)


def test_a_segment_is_the_same_by_its_head() -> None:
    """Same seq, same epoch, a body."""
    begun = NextSegment(4, 2)

    def may_be(**headers: object) -> bool:
        names = {f"Lp-Trickle-{name.capitalize()}": str(value) for name, value in headers.items()}
        return is_same(Answer.read(200, httpx.Headers(names).raw), begun)

    assert may_be(seq=4, epoch=2)
    assert not may_be(seq=5, epoch=2)
    assert not may_be(epoch=2)
    assert not may_be(seq=4)
    assert not is_same(
        Answer.read(200, [(b"lp-trickle-seq", b"4"), (b"lp-trickle-epoch", b"2"), (b"content-length", b"0")]), begun
    )
