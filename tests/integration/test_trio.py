"""Both clients under trio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S
from tricklecast import ChannelNotFound, ClosedHere, Publisher, Subscriber
from tricklecast.trickle.client.tasks import BackgroundTask


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A real server; each test uses channels of its own."""
    with serve() as running:
        yield running


def test_a_channel_from_a_publisher_to_a_subscriber(server: RunningServer) -> None:
    """All segments arrive while the channel lives, and the loop ends with the channel."""
    url = f"{server.base}/trio"
    received: list[bytes] = []

    async def subscribe() -> None:
        async with Subscriber(url, start=0, wait_for_channel_s=WITHIN_S) as subscriber:
            async for segment in subscriber:
                data = await segment.read()
                received.append(data)

    async def main() -> None:
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(subscribe)
                async with Publisher(url) as publisher:
                    for number in range(3):
                        await publisher.publish(b"segment %d" % number)
                    while len(received) < 3:
                        await trio.lowlevel.checkpoint()

    trio.run(main)
    assert received == [b"segment 0", b"segment 1", b"segment 2"]


def test_an_error_reaches_the_loop(server: RunningServer) -> None:
    """The subscriber raises it; trio goes on."""

    async def main() -> None:
        with trio.fail_after(WITHIN_S), pytest.raises(ChannelNotFound):
            async for _ in Subscriber(f"{server.base}/nowhere"):
                pass

    trio.run(main)


def test_a_block_that_is_cancelled_closes_the_subscriber(server: RunningServer) -> None:
    """The request for the next segment ends with the block."""
    url = f"{server.base}/cancelled"

    async def main() -> None:
        with trio.fail_after(WITHIN_S):
            async with Publisher(url) as publisher:
                await publisher.publish(b"0")
                with trio.CancelScope() as scope:
                    async with Subscriber(url, start=0) as subscriber:
                        async for segment in subscriber:
                            assert await segment.read() == b"0"
                            scope.cancel()
                assert scope.cancelled_caught

    trio.run(main)


def test_an_error_of_background_work_is_raised_by_check() -> None:
    """An error out of a system task would end the whole program."""

    async def fail() -> None:
        raise KeyError("mine")

    async def main() -> None:
        background = BackgroundTask(fail)
        await background.over()
        with pytest.raises(KeyError, match="mine"):
            background.check()

    trio.run(main)


def test_work_that_outlives_the_program_is_closed() -> None:
    """At its end, trio cancels all system tasks."""
    left: list[BackgroundTask] = []

    async def main() -> None:
        left.append(BackgroundTask(trio.sleep_forever))

    trio.run(main)
    with pytest.raises(ClosedHere):
        left[0].check()
