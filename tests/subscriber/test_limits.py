"""A subscriber at a server that has enough: when it comes back, and what it has lost by then."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel
import httpx
import pytest

from tests.subscriber.fake import run, timed
from tests.support.local import local_server
from tricklecast.publisher import Publisher
from tricklecast.subscriber import Subscriber
from tricklecast.subscriber.segment import Runtime
from tricklecast.trickle.errors import Refused, TrickleError


@pytest.mark.parametrize(
    ("limit", "status"),
    [({"max_readers_per_channel": 1}, 429), ({"max_readers": 1}, 503), ({"per_ip_limit": 2}, 429)],
    ids=["channel", "server", "address"],
)
def test_a_refused_reader_comes_back_when_it_was_told_to(limit: dict[str, Any], status: int) -> None:
    """Not before, and then it gets all that was published meanwhile."""

    async def main(url: str) -> None:
        pauses: list[float] = []
        errors: list[TrickleError | None] = []

        # Without a preconnect, which might come to the server earlier or later than the reader that is refused.
        publishing = Publisher(url, preconnect=0)
        async with publishing as publisher, httpx.AsyncClient() as http, publisher.segment() as segment:
            await segment.write(b"one ")
            async with http.stream("GET", f"{url}/0") as first:
                reading = first.aiter_raw()  # that nobody holds on to would be closed, and the response with it
                await anext(reading)

                async def leave(delay_s: float) -> None:
                    pauses.append(delay_s)
                    errors.append(subscriber.statistics().last_error)
                    await first.aclose()
                    await anyio.lowlevel.checkpoint()

                async with timed(Runtime(sleep=leave), Subscriber, url, start=0) as subscriber:
                    received = await anext(subscriber)
                    await segment.write(b"two")
                    assert await anext(received) == b"one "
                    assert await anext(received) == b"two"
        assert min(pauses) >= 1
        refused = errors[0]
        assert isinstance(refused, Refused)
        assert (refused.status, refused.retry_after is not None) == (status, True)

    with local_server(**limit) as server:
        run(lambda: main(f"http://127.0.0.1:{server.port}/trickle/full"))
