"""Our publisher and subscriber against a server with the habits of the reference implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import anyio
import httpx
import pytest

from tests.interop.reference import Reference, reference_server
from tests.subscriber.fake import run
from tests.support.waiting import until
from tricklecast.publisher import Publisher
from tricklecast.subscriber import AnyStart, Subscriber
from tricklecast.trickle.errors import ChannelNotFound

Read = list[tuple[int, bytes]]


@pytest.fixture
def reference() -> Iterator[Reference]:
    """A fresh server."""
    with reference_server() as running:
        yield running


async def arrived(reference: Reference, got: Read, count: int) -> None:
    """Wait until so many segments were read, and the next one is waited for."""
    await until(lambda: len(got) >= count and f"GET cam/{count}" in reference.requests)


async def receive(subscriber: Subscriber, got: Read) -> None:
    """Read to the end of the channel."""
    async with subscriber:
        async for segment in subscriber:
            got.append((segment.seq, await segment.read(1 << 20)))


def watch(reference: Reference, got: Read, use: Callable[[str], Awaitable[None]], *, start: AnyStart = 0) -> Subscriber:
    """Subscribe, publish with `use` when the first GET has arrived, and read until the channel ends."""
    url = reference.url("cam")
    subscriber = Subscriber(url, start=start, refresh_s=60)

    async def main() -> None:
        async with httpx.AsyncClient() as http, anyio.create_task_group() as tasks:
            await http.post(url)
            tasks.start_soon(receive, subscriber, got)
            await until(lambda: any(request.startswith("GET cam/0") for request in reference.requests))
            await use(url)

    run(main)
    return subscriber


def test_both_directions_and_the_end(reference: Reference) -> None:
    """Every segment arrives once, in order, and the end is the end; no request is made that is not needed."""
    got: Read = []

    async def publish(url: str) -> None:
        async with Publisher(url, content_type="video/mp2t") as publisher:
            for number in range(12):
                receipt = await publisher.publish(b"segment %d" % number)
                assert (receipt.seq, receipt.stored, receipt.attempts) == (number, None, 1)
                await arrived(reference, got, number + 1)

    subscriber = watch(reference, got, publish)
    assert got == [(number, b"segment %d" % number) for number in range(12)]
    assert subscriber.statistics().missed == 0
    methods = Counter(request.split()[0] for request in reference.requests)
    assert methods["GET"] == 12 + 1 + 1  # each segment, the wait for the next one, and the publisher's place
    assert methods["POST"] == 1 + 12 + 1  # the channel, each segment, and the preconnect
    assert methods["DELETE"] == 1


def test_empty_segments_are_passed(reference: Reference) -> None:
    """An empty answer is followed by the next seq, asked for once."""
    got: Read = []

    async def publish(url: str) -> None:
        async with httpx.AsyncClient() as http:
            for seq, body in enumerate([b"one", b"", b"", b"two"]):
                await http.post(f"{url}/{seq}", content=body)
                await arrived(reference, got, seq + 1)
            await http.delete(url)

    watch(reference, got, publish)
    assert got == [(0, b"one"), (1, b""), (2, b""), (3, b"two")]
    assert max(Counter(reference.requests).values()) == 1


def test_a_preconnect_closed_before_the_channel_is_no_storm(reference: Reference) -> None:
    """Its empty segment is read once; then the subscriber waits for the next until the DELETE answers it."""
    got: Read = []

    async def publish(url: str) -> None:
        async with httpx.AsyncClient() as http:
            await http.post(f"{url}/0", content=b"only")
            await http.post(f"{url}/1", content=b"")
            await until(lambda: "GET cam/2" in reference.requests)
            await http.delete(url)

    watch(reference, got, publish)
    assert got == [(0, b"only"), (1, b"")]
    assert [request for request in reference.requests if request.startswith("GET")] == [
        f"GET cam/{n}" for n in range(3)
    ]


@pytest.mark.parametrize(("start", "first"), [("earliest", 3), ("current", 7), (-3, 6), (5, 5)])
def test_every_start(reference: Reference, start: AnyStart, first: int) -> None:
    """A server that knows no -N, and keeps five segments, is joined where it was asked for all the same."""
    got: Read = []

    async def main() -> None:
        url = reference.url("cam")
        async with httpx.AsyncClient() as http, anyio.create_task_group() as tasks:
            for seq in range(8):
                await http.post(f"{url}/{seq}", content=b"%d" % seq)
            tasks.start_soon(receive, Subscriber(url, start=start), got)
            await until(lambda: len(got) == 8 - first and "GET cam/8" in reference.requests)
            await http.delete(url)

    run(main)
    assert got == [(seq, b"%d" % seq) for seq in range(first, 8)]


def test_a_reader_behind_the_ring_goes_on_and_says_what_it_missed(reference: Reference) -> None:
    """The 470 without `Earliest` leads to the live edge; the segments between are reported as a gap."""
    gaps = []

    async def main() -> None:
        url = reference.url("cam")
        async with httpx.AsyncClient() as http, Subscriber(url, start=0) as subscriber:
            await http.post(f"{url}/0", content=b"0")
            async for segment in subscriber:
                gaps.append((segment.seq, segment.gap))
                if segment.seq == 0:
                    await until(lambda: "GET cam/1" in reference.requests)
                    for seq in range(1, 20):
                        await http.post(f"{url}/{seq}", content=b"x")
                if segment.seq == 19:
                    break

    run(main)
    assert gaps[0] == (0, 0)
    assert sum(gap for _, gap in gaps) + len(gaps) == 20
    assert len(reference.requests) - 20 <= len(gaps) + 3


def test_a_channel_forgotten_at_once_is_an_error_for_who_was_behind(reference: Reference) -> None:
    """Who has no request waiting when the DELETE comes hears 404: that is told, and not taken for the end."""

    async def main() -> None:
        url = reference.url("cam")
        async with httpx.AsyncClient() as http, Subscriber(url, start=0) as subscriber:
            for seq in range(3):
                await http.post(f"{url}/{seq}", content=b"x")
            segment = await anext(subscriber)
            await until(lambda: "GET cam/1" in reference.requests)
            await http.delete(url)
            assert await segment.read() == b"x"
            assert (await anext(subscriber)).seq == 1
            with pytest.raises(ChannelNotFound) as caught:
                await anext(subscriber)
            assert caught.value.resume is not None
            assert caught.value.resume.seq == 2

    run(main)


def test_a_head_that_goes_back_for_a_moment_is_waited_for(reference: Reference) -> None:
    """An empty segment that ends late puts the head back: the next seq is asked for again, nothing is read twice."""
    got: Read = []

    async def publish(url: str) -> None:
        async with httpx.AsyncClient() as http:
            reference.heads[3] = 2
            for seq in range(4):
                await http.post(f"{url}/{seq}", content=b"%d" % seq)
                await arrived(reference, got, seq + 1)
            await http.post(f"{url}/4", content=b"4")
            await arrived(reference, got, 5)
            await http.delete(url)

    watch(reference, got, publish)
    assert got == [(seq, b"%d" % seq) for seq in range(5)]


def test_a_restart_is_survived(reference: Reference) -> None:
    """The channel is gone without a word: the publisher goes on with its numbers, and the subscriber follows."""
    got: Read = []

    async def publish(url: str) -> None:
        async with Publisher(url) as publisher:
            for number in range(10):
                await publisher.publish(b"%d" % number)
                await arrived(reference, got, number + 1)
                if number == 4:
                    await until(lambda: "POST cam/5" in reference.requests)
                    reference.restart()

    watch(reference, got, publish)
    # Who is back before the publisher waits at the new life's beginning, which is then closed without a byte.
    assert [item for item in got if item != (0, b"")] == [(number, b"%d" % number) for number in range(10)]
