"""How a program of yours is tested against a real server: pytest examples/test_own_code.py"""

from collections.abc import Iterator

import anyio
import pytest

from tricklecast import Publisher, Subscriber
from tricklecast.testing import TestServer, server


@pytest.fixture(scope="session")
def trickle() -> Iterator[TestServer]:
    """A server on a free port, for all tests."""
    with server() as running:
        yield running


async def shout(source: str, target: str) -> None:
    """The program under test: it publishes in capitals the small letters that it reads."""
    async with Subscriber(source, start=0, wait_for_channel_s=5) as heard, Publisher(target) as publisher:
        async for segment in heard:
            await publisher.publish((await segment.read()).upper())


def test_shouting(trickle: TestServer) -> None:
    """Every segment arrives, in capitals."""

    async def scenario() -> bytes:
        async with (
            anyio.create_task_group() as tasks,
            Subscriber(trickle.url("out"), start=0, wait_for_channel_s=5) as out,
        ):
            tasks.start_soon(shout, trickle.url("in"), trickle.url("out"))
            async with Publisher(trickle.url("in")) as publisher:
                await publisher.publish(b"hello")
            word = await (await anext(out)).read()
        return word

    assert anyio.run(scenario) == b"HELLO"
