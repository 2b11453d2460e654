"""One outage costs as much however it looks: the same time, nothing after a segment, and no byte of it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.subscriber.fake import Exchange, fake, run, timed
from tests.subscriber.test_client import Slept, collect, subscribed
from tests.support.certificates import make_certificate
from tests.support.streams import serve_streams
from tricklecast.subscriber import Subscriber
from tricklecast.subscriber.client import HELD_S
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
