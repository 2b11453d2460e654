"""What the subscriber promises, against the real server: bounded requests, clean cancelling, and no loss in silence."""

from __future__ import annotations

import asyncio
import os
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import httpx
import pytest

import tricklecast.testing
from tests.app.core.support import owned
from tests.subscriber.fake import run, timed
from tests.support.fixtures import servers_are_forks
from tests.support.local import LocalServer, local_server
from tests.support.streams import serve_streams
from tests.support.waiting import eventually, until
from tricklecast.subscriber import AnyStart, OnLag, Position, Segment, Subscriber
from tricklecast.subscriber.segment import Runtime
from tricklecast.trickle.client import connecting
from tricklecast.trickle.client.connecting import connect_tcp as really_connect
from tricklecast.trickle.client.sockets import SocketStream
from tricklecast.trickle.errors import ConnectionLost, SegmentMissing
from tricklecast.trickle.records import AccessRecord, Op, Reason

T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """One server for all; each test has a channel of its own."""
    with local_server(window_segments=4, channel_drain_s=60) as running:
        yield running


@pytest.fixture(scope="module")
def mortal() -> Iterator[tricklecast.testing.TestServer]:
    """A server in a process of its own, which a test may kill and start again."""
    with servers_are_forks(), tricklecast.testing.server() as running:
        yield running


@pytest.fixture
def url(server: LocalServer, request: pytest.FixtureRequest) -> str:
    """A channel's URL."""
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)
    return f"http://127.0.0.1:{server.port}/trickle/{name}"


async def publish(http: httpx.AsyncClient, url: str, seq: int, data: bytes) -> None:
    answer = await http.post(f"{url}/{seq}", content=data)
    assert answer.status_code == 200


def quick(seed: int = 1) -> Runtime:
    """Pauses take no time; the clock is the real one."""

    async def sleep(_: float) -> None:
        await anyio.lowlevel.checkpoint()

    return Runtime(rng=Random(seed), sleep=sleep)


def requests(server: LocalServer, url: str) -> list[AccessRecord]:
    """Every GET of that channel that has ended."""
    channel = url.rpartition("/")[2]
    return [record for record in list(server.records) if record.channel == channel and record.op in (Op.READ, Op.NEXT)]


class TestRequests:
    @pytest.mark.parametrize("start", ["next", "current", "earliest", 0, -3, "1@1"])
    def test_their_number_is_bounded(self, server: LocalServer, url: str, start: AnyStart) -> None:
        """As counted by the server: segments + reconnects + waited / refresh + 2, and 2 more for a seek."""

        async def main() -> None:
            refresh_s = 0.1
            began = anyio.current_time()
            async with httpx.AsyncClient() as http, Subscriber(url, start=start, refresh_s=refresh_s) as subscriber:
                for seq in range(8):
                    await publish(http, url, seq, b"x")
                await anyio.lowlevel.checkpoint()
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(_read_all(subscriber))
                    await until(lambda: subscriber.statistics().refreshes >= 3)
                    for seq in range(8, 16):
                        await publish(http, url, seq, b"y")
                    await until(lambda: subscriber.position is not None and subscriber.position.seq == 16)
                    await subscriber.seek(14)
                    await until(lambda: subscriber.statistics().refreshes >= 5)
                    await http.delete(url)
                waited_s = anyio.current_time() - began
            now = subscriber.statistics()
            assert reading.result()[-2:] == [14, 15]
            assert now.missed + len(set(reading.result())) >= 8
            bound = now.segments + now.retries + waited_s / refresh_s + 2 * (1 + now.seeks)
            assert now.requests <= bound
            # A request that was given up before it was sent is none for the server.
            eventually(lambda: any(record.seq == 16 for record in requests(server, url)))
            assert len(requests(server, url)) <= now.requests

        run(main)

    def test_a_refreshed_wait_skips_nothing(self, url: str) -> None:
        """Segments begin at any moment of a wait that is given up again and again; each is read once and whole."""
        rng = Random(7)
        data = {seq: os.urandom(1 + seq) for seq in range(15)}

        async def main() -> None:
            async with httpx.AsyncClient() as http, Subscriber(url, start="next", refresh_s=0.1) as subscriber:
                assert (await http.post(url)).status_code == 200
                got = []
                async with asyncio.TaskGroup() as group:

                    async def read() -> None:
                        async for segment in subscriber:
                            assert segment.gap == 0
                            got.append((segment.seq, await segment.read()))

                    group.create_task(read())
                    await until(lambda: subscriber.statistics().refreshes)
                    for seq, body in data.items():
                        await publish(http, url, seq, body)
                        # The window holds four, so that nobody may be further ahead.
                        await until(lambda seq=seq: len(got) > seq)  # type: ignore[misc]
                        await anyio.sleep(rng.uniform(0, 0.2))
                    await http.delete(url)
                assert got == list(data.items())
                assert subscriber.statistics().refreshes >= 3

        run(main)


async def _read_all(subscriber: Subscriber) -> list[int]:
    seqs = []
    async for segment in subscriber:
        await segment.read()
        seqs.append(segment.seq)
    return seqs


class TestStarts:
    @pytest.mark.parametrize(
        ("start", "seqs", "gap"),
        [
            ("earliest", [4, 5, 6, 7], 0),
            (-3, [6, 7], 0),
            (-100, [4, 5, 6, 7], 0),
            ("current", [7], 0),
            (5, [5, 6, 7], 0),
            ("5@1", [5, 6, 7], 0),
        ],
    )
    def test_each_start_begins_where_it_says(self, url: str, start: AnyStart, seqs: list[int], gap: int) -> None:
        """With eight segments published and four kept; at most two requests more than that takes."""

        async def main() -> None:
            async with httpx.AsyncClient() as http:
                for seq in range(8):
                    await publish(http, url, seq, b"x")
                await http.delete(url)
            async with Subscriber(url, start=start) as subscriber:
                first = await anext(subscriber)
                assert first.gap == gap
                assert [first.seq, *await _read_all(subscriber)] == seqs
                now = subscriber.statistics()
                assert now.requests <= len(seqs) + now.retries + 2

        run(main)

    @pytest.mark.parametrize("start", ["earliest", -3, "next", "current"])
    def test_a_channel_without_segments_begins_with_its_first(
        self, url: str, server: LocalServer, start: AnyStart
    ) -> None:
        """Nothing to go back to."""

        async def main() -> None:
            async with httpx.AsyncClient() as http, Subscriber(url, start=start) as subscriber:
                await http.post(url)
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(subscriber.__anext__())
                    channel = owned(server.plane.registry, url.rpartition("/")[2])
                    await until(lambda: channel.reading.used)  # or "next" is the one after it
                    await publish(http, url, 0, b"x")
                assert (reading.result().seq, reading.result().gap) == (0, 0)

        run(main)

    def test_a_new_life_of_the_channel_is_told_to_who_resumes(self, url: str) -> None:
        """By its epoch, and with ``earliest`` it is read from its beginning."""

        async def main() -> None:
            async with httpx.AsyncClient() as http:
                for seq in range(3):
                    await publish(http, url, seq, b"old")
                async with Subscriber(url, start=1) as subscriber:
                    await anext(subscriber)
                    position = subscriber.position
                assert position is not None
                assert str(position).startswith("2@1:")
                await http.delete(url)
                for seq in range(4):
                    await publish(http, url, seq, b"new")
                for on_lag, seq in ((OnLag.LIVE, 2), (OnLag.EARLIEST, 0)):
                    async with Subscriber(url, start=position, on_lag=on_lag) as subscriber:
                        segment = await anext(subscriber)
                        assert (segment.seq, segment.epoch, segment.restarted) == (seq, 2, True)
                        assert not (await anext(subscriber)).restarted

        run(main)

    def test_a_new_life_that_has_ended_too_is_told_to_who_resumes(self, url: str) -> None:
        """Also if it was so short that the wanted seq lies beyond its end; it can be read while it drains."""

        async def main() -> None:
            async with httpx.AsyncClient() as http:
                await publish(http, url, 0, b"old")
                await http.delete(url)
                await publish(http, url, 0, b"new")
                await http.delete(url)
            reader = Subscriber(url, start=Position(4, 1), on_lag="earliest")
            got = [(segment.seq, segment.epoch, segment.restarted, await segment.read()) async for segment in reader]
            assert got == [(0, 2, True, b"new")]
            live = Subscriber(url, start=Position(4, 1))
            assert [segment.seq async for segment in live] == []
            assert live.missed_at_end == 1
            with pytest.raises(SegmentMissing, match="another life: epoch 2 instead of 1"):
                await _read_all(Subscriber(url, start=Position(4, 1), on_lag="fail"))

        run(main)


def test_a_server_that_was_restarted_is_told_to_who_resumes(mortal: tricklecast.testing.TestServer) -> None:
    """Its epochs begin at 1 again, but its head is behind the position."""

    async def main() -> None:
        url = mortal.url("restarted")
        async with httpx.AsyncClient() as http:
            for seq in range(5):
                await publish(http, url, seq, b"old")
            async with Subscriber(url, start=3) as reader:
                await anext(reader)
                await (await anext(reader)).read()
                position = reader.position
            assert position is not None
            assert (position.seq, position.epoch) == (5, 1)
            await anyio.to_thread.run_sync(mortal.kill)
            async with Subscriber(url, start=position) as reader:
                with pytest.raises(ConnectionLost) as caught:
                    await anext(reader)
            assert caught.value.resume == position
        await anyio.to_thread.run_sync(mortal.restart)
        async with httpx.AsyncClient() as http:
            for seq in range(2):
                await publish(http, url, seq, b"new")
            async with Subscriber(url, start=caught.value.resume, on_lag="earliest") as reader:
                segment = await anext(reader)
                assert (segment.seq, segment.restarted, segment.gap) == (0, True, 0)
                assert segment.life != position.life
                assert await segment.read() == b"new"

    run(main)


def test_a_new_numbering_that_has_passed_the_position_is_told(mortal: tricklecast.testing.TestServer) -> None:
    """Another publisher has begun on a restarted server, in epoch 1 again, and is further on than the reader was."""

    async def main() -> None:
        url = mortal.url("passed")
        async with httpx.AsyncClient() as http:
            for seq in range(5):
                await publish(http, url, seq, b"A%d" % seq)
            async with Subscriber(url, start=0) as reader:
                assert [await (await anext(reader)).read() for _ in range(5)] == [b"A%d" % seq for seq in range(5)]
                position = reader.position
                assert position is not None
        await anyio.to_thread.run_sync(mortal.kill)
        await anyio.to_thread.run_sync(mortal.restart)
        async with httpx.AsyncClient() as http:
            for seq in range(8):
                await publish(http, url, seq, b"B%d" % seq)
        for on_lag, begun in ((OnLag.LIVE, (5, 5, True)), (OnLag.EARLIEST, (0, 0, True))):
            async with Subscriber(url, start=position, on_lag=on_lag) as reader:
                first, second = await anext(reader), await anext(reader)
                assert (first.seq, first.gap, first.restarted) == begun
                assert (second.seq, second.gap, second.restarted) == (begun[0] + 1, 0, False)
        async with Subscriber(url, start=position, on_lag="fail") as reader:
            with pytest.raises(SegmentMissing, match="another life"):
                await anext(reader)

    run(main)


@pytest.mark.parametrize("published", [3, 5, 8])
def test_a_reader_of_everything_begins_a_new_numbering_at_its_first_segment(
    mortal: tricklecast.testing.TestServer, published: int
) -> None:
    """Its server restarts while it waits for segment 5; another publisher is behind it, exactly there, or beyond."""

    async def main() -> None:
        url = mortal.url(f"begun-{published}")
        async with httpx.AsyncClient() as http, Subscriber(url, start=0) as reader:
            for seq in range(5):
                await publish(http, url, seq, b"A%d" % seq)
            assert [await (await anext(reader)).read() for _ in range(5)] == [b"A%d" % seq for seq in range(5)]
            await anyio.to_thread.run_sync(mortal.kill)
            await anyio.to_thread.run_sync(mortal.restart)
            for seq in range(published):
                await publish(http, url, seq, b"B%d" % seq)
            first = await anext(reader)
            assert (first.seq, first.gap, first.restarted, await first.read()) == (0, 0, True, b"B0")
            assert [await (await anext(reader)).read() for _ in range(published - 1)] == [
                b"B%d" % seq for seq in range(1, published)
            ]

    run(main)


def test_a_reader_at_the_head_of_a_new_numbering_is_told_at_once(mortal: tricklecast.testing.TestServer) -> None:
    """The next segment need not have begun: a live reader has the newest one, one of everything the first."""

    async def main() -> None:
        url = mortal.url("told")
        async with httpx.AsyncClient() as http:
            await publish(http, url, 0, b"A0")
            async with Subscriber(url, start=0) as reader:
                await (await anext(reader)).read()
                position = reader.position
            await anyio.to_thread.run_sync(mortal.kill)
            await anyio.to_thread.run_sync(mortal.restart)
            await publish(http, url, 0, b"B0")
            assert position is not None
            assert position.seq == 1
            async with Subscriber(url, start=position) as reader:
                first = await anext(reader)
                assert (first.seq, first.gap, first.restarted, await first.read()) == (0, 0, True, b"B0")
            async with Subscriber(url, start=position, on_lag="fail") as reader:
                with pytest.raises(SegmentMissing):
                    await anext(reader)

    run(main)


@dataclass
class Cutter:
    """A proxy that cuts answers off after so many bytes, for as long as there are numbers left."""

    port: int
    after: list[int]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.TaskGroup() as group:
                upwards = group.create_task(self._up(reader, up_writer))
                await self._down(up_reader, writer)
                upwards.cancel()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            up_writer.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.after.pop(0) if self.after else None
        while data := await reader.read(65536):
            writer.write(data if left is None else data[:left])
            await writer.drain()
            if left is not None:
                left -= len(data)
                if left <= 0:
                    # The reader gets what was sent before the cut, as it does in most networks.
                    writer.write_eof()
                    return


@asynccontextmanager
async def cutting(url: str, after: list[int]) -> AsyncIterator[str]:
    """The same channel behind a proxy that cuts."""
    parts = httpx.URL(url)
    cutter = Cutter(parts.port or 0, after)
    listener = await serve_streams(cutter.serve)
    try:
        yield str(parts.copy_with(port=listener.port))
    finally:
        await listener.cancel()


class TestCuts:
    @pytest.mark.parametrize("seed", range(5))
    def test_a_bad_network_costs_no_byte(self, url: str, seed: int) -> None:
        """SocketStreams that break anywhere: every segment arrives, whole and once."""
        rng = Random(seed)
        data = [rng.randbytes(size) for size in (200_000, 1, 50_000, 300_000)]

        async def main() -> None:
            async with httpx.AsyncClient() as http:
                for seq, body in enumerate(data):
                    await publish(http, url, seq, body)
                await http.delete(url)
            cuts = [rng.randrange(1, 250_000) for _ in range(7)]
            async with (
                cutting(url, cuts) as through,
                timed(quick(seed), Subscriber, through, start=0) as subscriber,
            ):
                # The first answer of all is not cut in its head: a server that was never met is not tried again.
                cuts.insert(0, 5_000)
                got = [(segment.seq, await segment.read()) async for segment in subscriber]
                assert got == list(enumerate(data))
                now = subscriber.statistics()
                assert (now.broken, now.missed) == (0, 0)
                assert now.resumed >= 1
                assert now.bytes == sum(map(len, data))

        run(main)

    def test_a_reader_that_was_too_slow_reads_on(self) -> None:
        """The server cuts it off; what is still kept is read to its end."""
        body = os.urandom(24_000_000)

        async def main(running: LocalServer) -> None:
            url = f"http://127.0.0.1:{running.port}/trickle/slow"
            async with httpx.AsyncClient() as http, timed(quick(), Subscriber, url, start=0) as subscriber:
                await publish(http, url, 0, body)
                await http.delete(url)
                segment = await anext(subscriber)
                first = await anext(segment)
                evicted: Callable[[], AccessRecord] = lambda: running.record(channel="slow", reason=Reason.EVICTED)  # noqa: E731
                await anyio.to_thread.run_sync(evicted)
                assert first + await segment.read() == body
                assert segment.complete
                assert subscriber.statistics().resumed == 1

        with local_server(reader_lag_s=0.3, channel_drain_s=60) as running:
            run(lambda: main(running))


class Cancelled:
    """Runs a coroutine, and cancels it when it suspends for the n-th time."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.suspended = 0

    @types.coroutine
    def run(self, coroutine: Coroutine[Any, Any, T], cancel: Callable[[], object]) -> Generator[Any, Any, T]:
        """Pass on all that the coroutine waits for, and count."""
        inner = coroutine.__await__()
        send: Callable[[], Any] = lambda: next(inner)  # noqa: E731
        while True:
            try:
                waits_for = send()
            except StopIteration as stop:
                value: T = stop.value
                return value
            self.suspended += 1
            if self.suspended == self.at:
                cancel()
            try:
                yield waits_for
            except BaseException as error:
                send = lambda error=error: inner.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                send = lambda: next(inner)  # noqa: E731


@dataclass
class Received:
    """What a reader has got, kept outside of it."""

    whole: list[tuple[int, bytes]] = field(default_factory=list)
    subscriber: Subscriber | None = None
    segment: Segment | None = None

    @property
    def position(self) -> Position:
        """Where to go on: with the segment that was not read to its end, else with the next one."""
        if self.segment is not None and not self.segment.complete:
            return self.segment.position
        if self.subscriber is not None and self.subscriber.position is not None:
            return self.subscriber.position
        return Position(0)

    async def read(self, url: str, start: Position, *, seek: bool = False, block: bool = True) -> None:
        """Read until the end of the channel, inside a block or by a loop alone."""
        self.subscriber = Subscriber(url, start=start)
        async with self.subscriber if block else nullcontext():
            async for segment in self.subscriber:
                self.segment, data = segment, b""
                async for chunk in segment:
                    data += chunk
                assert segment.complete
                self.whole.append((segment.seq, data))
                if seek and segment.seq == 1:
                    await self.subscriber.seek(2, leave=True)


class TestCancelling:
    @pytest.fixture
    def connections(self, monkeypatch: pytest.MonkeyPatch) -> list[SocketStream]:
        """Every connection that is opened."""
        opened: list[SocketStream] = []

        async def connect(*args: Any) -> SocketStream:
            opened.append(await really_connect(*args))
            return opened[-1]

        monkeypatch.setattr(connecting, "connect_tcp", connect)
        return opened

    @pytest.mark.parametrize("native", [False, True], ids=["scope", "task"])
    @pytest.mark.parametrize(
        ("block", "seek"), [(True, False), (True, True), (False, True)], ids=["block", "block-seek", "loop-seek"]
    )
    def test_it_is_clean_at_every_await(
        self, url: str, connections: list[SocketStream], native: bool, block: bool, seek: bool
    ) -> None:
        """Wherever a reader is cancelled, no task and no connection stays, and another one goes on without loss."""
        data = [(0, os.urandom(100_000)), (1, b""), (2, os.urandom(70_000)), (3, b"x")]

        async def once(at: int) -> bool:
            """Cancel at the n-th await; whether the reader was done before."""
            received, cancelled = Received(), Cancelled(at)

            async def reader() -> None:
                with anyio.CancelScope() as scope:
                    task = asyncio.current_task()
                    assert task is not None
                    reading = received.read(url, Position(0), seek=seek, block=block)
                    await cancelled.run(reading, task.cancel if native else scope.cancel)

            task = asyncio.ensure_future(reader())
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
            if not block:  # the loop's iterator is closed by a task of its own
                await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await until(lambda: all(_is_closed(connection) for connection in connections))
            connections.clear()
            before = received.whole
            after = Received()
            if before[-1:] != data[-1:]:
                await after.read(url, received.position)
            assert before + after.whole == data
            await until(lambda: all(_is_closed(connection) for connection in connections))
            connections.clear()
            return cancelled.suspended < at

        async def main() -> None:
            async with httpx.AsyncClient() as http:
                for seq, body in data:
                    await publish(http, url, seq, body)
                await http.delete(url)
            at = 1
            while not await once(at):
                at += 1
            assert at > 5

        run(main)


def _is_closed(connection: SocketStream) -> bool:
    return connection._socket.fileno() == -1
