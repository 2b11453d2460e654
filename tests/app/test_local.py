"""Publishing and subscribing in the server's process: the core, its limits and its errors, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.bus import Bus, OutOfCapacity, ServerClosed
from tricklecast.app.data_plane.scheduling import READERS
from tricklecast.app.local import LocalPublisher, LocalSubscriber
from tricklecast.trickle.errors import (
    ChannelBusy,
    ChannelEnded,
    ChannelNotFound,
    InvalidChannelName,
    LocalProtocolError,
    Refused,
    SegmentTooLarge,
    Superseded,
    TrickleError,
)

T = TypeVar("T")
Program = Callable[[Bus], Coroutine[Any, Any, T]]


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalServer]:
    with local_server(max_segment_bytes=1000) as server:
        yield server


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A channel that no other test uses."""
    return str(request.node.name)


def run(server: LocalServer, program: Program[T]) -> T:
    """Run a program as one that the server was given."""
    assert server.bus is not None
    return asyncio.run_coroutine_threadsafe(program(server.bus), server.loop).result(WITHIN_S)


def test_what_is_published_here_is_read_over_http(shared: LocalServer, name: str) -> None:
    """With its media type, chunk by chunk; leaving the block ends the channel."""
    with shared.client() as target:
        channel = target.channel(name)

        async def program(bus: Bus) -> list[int]:
            async with LocalPublisher(bus, name, content_type="text/plain") as publisher:
                async with publisher.segment() as segment:
                    await segment.write(b"one ")
                    await segment.write(b"")
                    await segment.write(b"two")
                async with publisher.segment():
                    pass
                return [segment.seq, segment.size, await publisher.publish(b"x")]

        assert run(shared, program) == [0, 7, 2]
        first = channel.get(0).segment(0, b"one two")
        assert first.get("content-type") == "text/plain"
        channel.get(1).empty(1)
        channel.get(3).ended()


def test_what_clients_publish_is_read_here(shared: LocalServer, name: str) -> None:
    """Segment by segment, each as it arrived; the end of the channel is the end of the iteration."""
    with shared.client() as target:
        channel = target.channel(name).publish(0, b"abc", b"", b"d")

        async def program(bus: Bus) -> list[object]:
            found: list[object] = []
            async with LocalSubscriber(bus, name, start=0) as subscriber:
                async for segment in subscriber:
                    found.append((segment.seq, segment.epoch, await segment.read(), segment.complete))
                    if segment.seq == 2:
                        shared.plane.registry.end(name, shared.plane.clock())
            return found

        assert run(shared, program) == [(0, 1, b"abc", True), (1, 1, b"", True), (2, 1, b"d", True)]
        channel.get(3).ended()


def test_bytes_are_here_while_they_are_written(shared: LocalServer, name: str) -> None:
    """A segment can be left in the middle; one that is cut short says so."""

    async def program(bus: Bus) -> list[object]:
        publisher = LocalPublisher(bus, name)
        async with publisher.segment() as first:
            await first.write(b"a")
            async with LocalSubscriber(bus, name, start=-2) as subscriber:
                segment = await anext(subscriber)
                found: list[object] = [await anext(segment)]
                await first.write(b"b")
                found.append(await anext(segment))
                with pytest.raises(ValueError, match="mine"):  # noqa: PT012 - the block's end raises
                    async with publisher.segment() as second:
                        await second.write(b"part")
                        raise ValueError("mine")
                following = await anext(subscriber)
                with pytest.raises(LocalProtocolError, match="was left"):
                    await anext(segment)
                found += [await following.read(), following.truncated, following.complete, segment.complete]
        return found

    assert run(shared, program) == [b"a", b"b", b"part", "truncated", False, False]


def test_an_empty_segment_may_be_left(shared: LocalServer, name: str) -> None:
    """It has ended already, so that the one behind it is next."""
    with shared.client() as target:
        target.channel(name).publish(0, b"", b"x")

        async def program(bus: Bus) -> list[int]:
            async with LocalSubscriber(bus, name, start=0) as subscriber:
                return [(await anext(subscriber)).seq, (await anext(subscriber)).seq]

        assert run(shared, program) == [0, 1]


def test_a_subscriber_waits_for_its_channel(shared: LocalServer, name: str) -> None:
    """As long as it is told to; it begins with the first segment then."""

    async def program(bus: Bus) -> bytes:
        with pytest.raises(ChannelNotFound):
            await LocalSubscriber(bus, name, wait_for_channel_s=0.01).__aenter__()
        with pytest.raises(ChannelNotFound):
            await LocalSubscriber(bus, name).__aenter__()

        async def first() -> bytes:
            async with LocalSubscriber(bus, name, wait_for_channel_s=WITHIN_S) as subscriber:
                return await (await anext(subscriber)).read()

        waiting = asyncio.create_task(first())
        await until(lambda: bus.used.used)
        await LocalPublisher(bus, "other").publish(b"x")
        await LocalPublisher(bus, name).publish(b"first")
        return await waiting

    assert run(shared, program) == b"first"
    assert shared.bus is not None
    assert shared.bus.used.used == 0


def test_limits_and_the_end_are_the_errors_of_the_clients(shared: LocalServer, name: str) -> None:
    """The server's limit of a segment, the reader's own, a name that is the server's, and a channel that was ended."""

    async def program(bus: Bus) -> list[TrickleError]:
        errors: list[TrickleError] = []

        async def fails(step: Coroutine[Any, Any, object]) -> None:
            with pytest.raises(TrickleError) as raised:
                await step
            errors.append(raised.value)

        publisher = LocalPublisher(bus, name)
        await fails(publisher.publish(bytes(1001)))
        async with LocalSubscriber(bus, name, start=0) as subscriber:
            await fails((await anext(subscriber)).read(limit=10))
        await fails(LocalPublisher(bus, "_mine").publish(b"x"))
        with pytest.raises(ChannelEnded):  # noqa: PT012 - the block's end raises
            async with publisher.segment() as segment:
                await segment.write(b"x")
                shared.plane.registry.end(name, shared.plane.clock())
        await fails(segment.write(b"late"))
        await fails(publisher.publish(b"x"))
        await publisher.end()
        assert await LocalPublisher(bus, name).publish(b"a new life") == 0
        await fails(anext(LocalSubscriber(bus, name)))
        return errors

    kinds = [SegmentTooLarge, SegmentTooLarge, Refused, LocalProtocolError, ChannelEnded, LocalProtocolError]
    errors = run(shared, program)
    assert [type(error) for error in errors] == kinds
    assert errors[2].status == 403  # type: ignore[attr-defined]


def test_text_and_numbers_are_not_published(shared: LocalServer, name: str) -> None:
    """As by a client: 5 is not five zeros."""

    async def program(bus: Bus) -> int:
        publisher = LocalPublisher(bus, name)
        with pytest.raises(TypeError, match="bytes are expected, not str"):
            await publisher.publish("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="bytes are expected, not int"):
            await publisher.publish(5)  # type: ignore[arg-type]
        return await publisher.publish(bytearray(b"x"))  # type: ignore[arg-type]

    assert run(shared, program) == 0


def test_another_publisher_is_not_disturbed(shared: LocalServer, name: str) -> None:
    """Unless it is to be taken over. Whose segment is closed by somebody else is told."""

    async def program(bus: Bus) -> str | None:
        first = LocalPublisher(bus, name, client="cam-1")
        with pytest.raises(Superseded):  # noqa: PT012 - the block's end raises
            async with first.segment() as segment:
                with pytest.raises(ChannelBusy) as refused:
                    await LocalPublisher(bus, name, client="cam-2").publish(b"x")
                assert await LocalPublisher(bus, name, client="cam-2", takeover=True).publish(b"y") == 1
                shared.plane.registry.close_segment(name, segment.seq, shared.plane.clock())
                await segment.write(b"x")
        return refused.value.publisher

    assert run(shared, program) == "cam-1"


def test_an_error_leaves_the_channel_to_a_successor(shared: LocalServer, name: str) -> None:
    """It is not ended, a segment without a byte leaves nothing behind, and the successor need not wait."""

    async def program(bus: Bus) -> int:
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012 - the block's end raises
            async with LocalPublisher(bus, name) as publisher:
                await publisher.publish(b"x")
                async with publisher.segment():
                    raise ValueError("mine")
        return await LocalPublisher(bus, name, client="another").publish(b"y")

    assert run(shared, program) == 1


def test_a_publisher_waits_for_readers_that_are_behind(shared: LocalServer, name: str) -> None:
    """Like a client's connection that the server does not read; the end of its part ends the wait."""

    async def program(bus: Bus) -> None:
        with pytest.raises(ChannelEnded):  # noqa: PT012 - the block's end raises
            async with LocalPublisher(bus, name).segment() as segment:
                segment.pause(READERS)
                writing = asyncio.create_task(segment.write(b"x"))
                await until(lambda: segment.size)
                assert not writing.done()
                segment.resume(READERS)
                segment.read_less(1)
                await writing
                segment.pause(READERS)
                writing = asyncio.create_task(segment.write(b"y"))
                await until(lambda: segment.size == 2)
                shared.plane.registry.end(name, shared.plane.clock())
                await writing

    run(shared, program)


@pytest.mark.interpreted
def test_the_schedulers_hold_it(shared: LocalServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held where a client's connection is: for readers that are queued, and for readers that are late."""
    held: list[object] = []

    async def program(bus: Bus) -> None:
        async with LocalPublisher(bus, name).segment() as segment:
            await segment.write(b"x")
            channel = shared.plane.registry.channels[name]
            monkeypatch.setitem(shared.plane.turns.flows, channel, SimpleNamespace(hold=held.append))
            monkeypatch.setattr(shared.plane.pacing, "published", lambda pace, peer: held.append(peer))
            pace = shared.plane.pacing.of(channel)
            assert pace is not None
            pace.look_at = 0
            await segment.write(b"y")
            monkeypatch.undo()
        assert held == [segment, segment]

    run(shared, program)


def test_a_subscriber_that_is_too_far_behind_is_told(
    shared: LocalServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where to go on."""
    monkeypatch.setattr("tricklecast.app.bus.CAPACITY", 1)

    async def program(bus: Bus) -> int:
        publisher = LocalPublisher(bus, name)
        await publisher.publish(b"x")
        async with LocalSubscriber(bus, name, start=0) as subscriber:
            for _ in range(5):
                await publisher.publish(b"x")
            with pytest.raises(OutOfCapacity) as raised:
                await anext(subscriber)
        return raised.value.index

    assert run(shared, program) == 0


def test_a_name_that_no_url_can_have(shared: LocalServer) -> None:
    """It is refused at once, as an HTTP client refuses it."""
    assert shared.bus is not None
    with pytest.raises(InvalidChannelName):
        LocalPublisher(shared.bus, "a/b")


def test_storage_is_waited_for(tmp_path: Path) -> None:
    """With ``ack``, a segment is published when storage has it; a storage that has failed refuses it."""
    with local_server(data_dir=tmp_path, ack="journal", on_disk_full="refuse") as server:

        async def program(bus: Bus) -> int:
            publisher = LocalPublisher(bus, "c")
            await publisher.publish(b"x")
            kept = server.plane.durability

            async def fails() -> bool:
                return False

            kept.flush = fails  # type: ignore[union-attr, method-assign]
            with pytest.raises(Refused, match="Storage has failed") as refused:
                await publisher.publish(b"y")
            del kept.flush  # type: ignore[union-attr]
            return refused.value.status or 0

        assert run(server, program) == 503


def test_the_server_stops() -> None:
    """A subscriber is told, and nothing new begins."""
    with local_server() as server:

        async def program(bus: Bus) -> Refused:
            publisher = LocalPublisher(bus, "c")
            await publisher.publish(b"x")
            async with LocalSubscriber(bus, "c") as subscriber:
                server.stop()
                with pytest.raises(ServerClosed):
                    await anext(subscriber)
            with pytest.raises(Refused) as refused:
                await publisher.publish(b"y")
            return refused.value

        assert run(server, program).status == 503
