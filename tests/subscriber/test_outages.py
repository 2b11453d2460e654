"""One outage costs as much however it looks: the same time, nothing after a segment, and no byte of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.subscriber.fake import Exchange, fake, run, timed
from tests.subscriber.test_client import Slept, collect, subscribed
from tests.support.certificates import make_certificate
from tests.support.streams import serve_streams
from tricklecast.subscriber import Subscriber
from tricklecast.subscriber.client import HELD_S
from tricklecast.subscriber.segment import Runtime
from tricklecast.trickle.backoff import BUDGET_RESERVE, CAP_S
from tricklecast.trickle.client.retry import RECONNECT_S
from tricklecast.trickle.errors import ConnectionLost, Refused

Look = Callable[[Exchange], Awaitable[None]]

FAILURES = 4
"""So many requests meet an outage before it is over."""


async def reset(exchange: Exchange) -> None:
    """The connection is cut instead of an answer."""
    exchange.abort()


async def half_closed(exchange: Exchange) -> None:
    """The server has nothing more to say, and goes on listening."""
    exchange.writer.write_eof()
    await exchange.closed_by_client()


async def half_a_head(exchange: Exchange) -> None:
    """It is cut in the middle of the answer's head."""
    await exchange.raw(b"HTTP/1.1 200 OK\r\nLp-Tri")
    exchange.abort()


async def cut(exchange: Exchange) -> None:
    """It is cut in the middle of the segment."""
    await exchange.begin(int(exchange.tail))
    await exchange.chunk(b"whole")
    exchange.abort()


def says(status: int) -> Look:
    """A proxy's answer, without a word on when to come back."""

    async def answer(exchange: Exchange) -> None:
        await exchange.text(status, "<html>Bad Gateway</html>")

    answer.__name__ = str(status)
    return answer


LOOKS = [reset, half_closed, half_a_head, says(500), says(502), says(503), says(504)]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
@pytest.mark.parametrize("in_segment", [False, True], ids=["waiting", "reading"])
def test_an_outage_after_a_segment_costs_nothing(look: Look, in_segment: bool) -> None:
    """Between segments or within one, with however many requests it is waited for: every byte comes, once."""
    failed = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal failed
        if exchange.tail == "0":
            await exchange.segment(0, b"zero")
        elif exchange.tail == "2":
            await exchange.empty(404, closed="terminated", latest=2)
        elif failed < FAILURES:
            failed += 1
            await (cut if in_segment and failed == 1 else look)(exchange)
        else:
            await exchange.segment(1, b"whole", b" again")

    async def main() -> None:
        async with subscribed(handler, start=0, runtime=Slept().runtime) as (subscriber, _):
            assert await collect(subscriber) == [(0, b"zero"), (1, b"whole again")]
            assert subscriber.statistics().broken == 0
            assert subscriber._cursor._retries._budget.tokens == BUDGET_RESERVE

    run(main)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_an_outage_is_waited_for_as_long(look: Look) -> None:
    """A minute, with few requests; then it is an error, which says where to go on."""

    async def handler(exchange: Exchange) -> None:
        await (exchange.segment(0, b"zero") if exchange.tail == "0" else look(exchange))

    async def main() -> None:
        slept = Slept()
        async with fake(handler) as server:
            begun = slept.now()
            async with timed(slept.runtime, Subscriber, server.url, start=0) as subscriber:
                with pytest.raises((ConnectionLost, Refused)) as caught:
                    await collect(subscriber)
                assert str(caught.value.resume) == "1"
            assert slept.now() - begun >= RECONNECT_S
            assert sum(slept.delays) < RECONNECT_S + CAP_S
            assert len(server.tails) < 60

    run(main)


@pytest.mark.parametrize("look", [reset, half_closed], ids=lambda look: look.__name__)
def test_a_server_that_held_the_first_request_is_waited_for(look: Look) -> None:
    """It is killed while the subscriber waits for its first segment. One that closes at once is no server."""

    async def main() -> None:
        slept = Slept()

        async def handler(exchange: Exchange) -> None:
            if exchange.tail == "1":
                await exchange.empty(404, closed="terminated", latest=1)
            elif exchange.headers["trickle-attempt"] == "1":
                slept.delays.append(held_s)
                await look(exchange)
            else:
                await exchange.segment(0, b"zero")

        held_s = HELD_S
        async with subscribed(handler, start=0, runtime=slept.runtime) as (subscriber, _):
            assert await collect(subscriber) == [(0, b"zero")]
        held_s = 0.0
        async with subscribed(handler, start=0, runtime=slept.runtime) as (subscriber, _):
            with pytest.raises(ConnectionLost):
                await collect(subscriber)

    run(main)


@pytest.mark.parametrize("garbage", [b"", b"nobody is here\r\n"], ids=["closed", "garbage"])
def test_a_handshake_that_breaks_is_no_other_outage(tmp_path: Path, garbage: bytes) -> None:
    """What stands before the server takes connections, and has nobody to pass them on to."""
    certificate, key = make_certificate(tmp_path)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificate, key)
    ours = ssl.create_default_context(cafile=str(certificate))
    taken = 0

    async def handler(exchange: Exchange) -> None:
        if exchange.tail == "2":
            await exchange.empty(404, closed="terminated", latest=2)
        else:
            await exchange.segment(int(exchange.tail), b"bytes", Connection="close")

    async def main() -> None:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal taken
            taken += 1
            if 1 < taken <= 1 + FAILURES:
                writer.write(garbage)
                writer.close()
                return
            upstream, towards = await asyncio.open_connection("127.0.0.1", server.port)
            await asyncio.gather(pump(reader, towards), pump(upstream, writer))

        async with fake(handler, theirs) as server:
            gateway = await serve_streams(pass_on)
            url = f"https://127.0.0.1:{gateway.port}/trickle/cam"
            async with timed(Slept().runtime, Subscriber, url, start=0, verify=ours) as subscriber:
                assert await collect(subscriber) == [(0, b"bytes"), (1, b"bytes")]
                assert subscriber._cursor._retries._budget.tokens == BUDGET_RESERVE
            await gateway.cancel()
        assert taken > 1 + FAILURES

    run(main)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes."""
    try:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
    finally:
        writer.close()


# Two GETs wait for one server: the one for the rest of the segment that is read, and the one for the next segment.


class Held:
    """The first pause lasts until it is let go; later ones take no time."""

    def __init__(self) -> None:
        self.begun, self.over = anyio.Event(), anyio.Event()
        self.ended_early = False
        self._count = 0

    async def __call__(self, delay_s: float) -> None:
        self._count += 1
        if self._count > 1:
            await anyio.lowlevel.checkpoint()
            return
        self.begun.set()
        try:
            await self.over.wait()
        finally:
            self.ended_early = not self.over.is_set()


async def cut_zero(exchange: Exchange, when: anyio.Event | None = None) -> None:
    await exchange.begin(0, epoch=1, life="a:0")
    await exchange.chunk(b"one")
    if when is not None:
        await when.wait()
    exchange.abort()


async def whole_zero(exchange: Exchange) -> None:
    await exchange.segment(0, b"one", b"two", epoch=1, life="a:0")


async def behind(exchange: Exchange) -> None:
    """The server was restarted, and the segment is not there yet: its publisher is not back."""
    await exchange.text(470, "no", latest=0, earliest=0, epoch=1, life="a:0")


async def absent(exchange: Exchange) -> None:
    """Nor is the channel."""
    await exchange.text(404, "no")


async def next_begins(exchange: Exchange) -> None:
    await exchange.segment(1, b"next", epoch=1, life="a:0")


def comes_back(cut: Look, first: Look, then: Look = next_begins) -> Look:
    """A server that is away while segment 0 is read, and has all of it later.

    Args:
        cut: answers the first GET of segment 0. first, then: answer the first GET of segment 1, and the later ones.
    """

    async def handler(exchange: Exchange) -> None:
        is_first = exchange.headers["trickle-attempt"] == "1"
        match exchange.tail:
            case "0":
                await (cut if is_first else whole_zero)(exchange)
            case "1":
                await (first if is_first else then)(exchange)
            case _:
                await exchange.empty(404, closed="terminated", latest=2)

    return handler


@pytest.mark.parametrize("failure", [reset, absent, says(502), behind], ids=lambda look: look.__name__)
def test_the_rest_of_a_segment_ends_the_pause_before_the_next_one(failure: Look) -> None:
    """It shows that the server is back, and the user would otherwise wait for both."""

    async def main() -> None:
        held = Held()
        handler = comes_back(lambda exchange: cut_zero(exchange, held.begun), failure)
        async with subscribed(handler, start=0, runtime=Runtime(sleep=held)) as (subscriber, _):
            assert await collect(subscriber) == [(0, b"onetwo"), (1, b"next")]
        assert held.ended_early

    run(main)


@pytest.mark.parametrize("answer", [next_begins, behind], ids=lambda look: look.__name__)
def test_an_answer_about_the_next_segment_ends_the_pause_before_the_rest(answer: Look) -> None:
    """A 470 shows it, too."""

    async def main() -> None:
        held = Held()

        async def later(exchange: Exchange) -> None:
            await held.begun.wait()
            await answer(exchange)

        async with subscribed(comes_back(cut_zero, later), start=0, runtime=Runtime(sleep=held)) as (subscriber, _):
            assert await collect(subscriber) == [(0, b"onetwo"), (1, b"next")]
        assert held.ended_early

    run(main)


@pytest.mark.parametrize(
    ("status", "headers"), [(429, {}), (503, {"Retry_After": 3}), (470, {"latest": 1, "Retry_After": 3})]
)
def test_a_pause_that_the_server_asks_for_lasts_its_time(status: int, headers: dict[str, int]) -> None:
    """Whatever the other GET is answered."""

    async def main() -> None:
        held = Held()
        handler = comes_back(
            lambda exchange: cut_zero(exchange, held.begun),
            lambda exchange: exchange.text(status, "no", **headers),
            lambda exchange: exchange.empty(404, closed="terminated", latest=1),
        )
        async with subscribed(handler, start=0, runtime=Runtime(sleep=held)) as (subscriber, server):
            assert await (await anext(subscriber)).read() == b"onetwo"
            await anyio.wait_all_tasks_blocked()
            assert server.tails.count("1") == 1
            held.over.set()
            assert await collect(subscriber) == []
        assert not held.ended_early

    run(main)


async def shorter(exchange: Exchange) -> None:
    """The server has lost what the reader has of the segment."""
    await exchange.begin(0, epoch=1, life="a:0", size=1)
    await exchange.closed_by_client()


async def cut_again(exchange: Exchange) -> None:
    """The segment breaks before it has come to what is new."""
    await exchange.begin(0, epoch=1, life="a:0")
    await exchange.chunk(b"o")
    exchange.abort()


@pytest.mark.parametrize("rest", [(behind,), (absent,), (shorter,), (cut_again,), (behind, reset), (cut_again, behind)])
@pytest.mark.parametrize("following", [(behind,), (absent,), (behind, reset), (reset, reset, behind)])
def test_two_gets_do_not_end_each_others_pauses_for_ever(rest: tuple[Look, ...], following: tuple[Look, ...]) -> None:
    """A pause that lasts its time lets the other GET go earlier, at most: a server that stays as it is sees few."""
    speed = 50
    lasted: list[float] = []
    ended_early = 0

    async def sleep(delay_s: float) -> None:
        nonlocal ended_early
        is_over = False
        try:
            await anyio.sleep(delay_s / speed)
            is_over = True
            lasted.append(delay_s)
        finally:
            ended_early += not is_over

    async def main() -> None:
        looks = {"0": itertools.cycle(rest), "1": itertools.cycle(following)}
        is_asked = anyio.Event()

        async def handler(exchange: Exchange) -> None:
            if exchange.headers["trickle-attempt"] != "1":
                await next(looks[exchange.tail])(exchange)
            elif exchange.tail == "0":
                await cut_zero(exchange, is_asked)
            else:
                is_asked.set()
                await reset(exchange)

        runtime = Runtime(sleep=sleep, clock=lambda: lambda: anyio.current_time() * speed)
        async with subscribed(handler, start=0, runtime=runtime) as (subscriber, _):
            segment = await anext(subscriber)
            assert await segment.read_some() == b"one"
            assert await segment.read_some() == b""
            assert segment.broken is not None
            # Behind each pause that ended early there is a short one.
            assert ended_early <= len(lasted) - ended_early + 2

    run(main)
