"""The subscriber against the real server: every way in which a segment and a channel can end."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.subscriber.fake import run, timed
from tests.support.forked import forked
from tests.support.ports import free_port
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S
from tricklecast.subscriber import AnyStart, OnLag, Subscriber
from tricklecast.subscriber.segment import Runtime
from tricklecast.trickle import wire
from tricklecast.trickle.client.bridge import TrickleTransport
from tricklecast.trickle.errors import ChannelNotFound


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One server for all; each test has a channel of its own."""
    with serve() as running:
        yield running


@pytest.fixture
def url(server: RunningServer, request: pytest.FixtureRequest) -> str:
    """A channel's URL."""
    return f"{server.base}/{request.node.name}"


async def publish(http: httpx.AsyncClient, url: str, seq: int, data: bytes) -> None:
    answer = await http.post(f"{url}/{seq}", content=data, headers={"Content-Type": "video/mp2t"})
    assert answer.status_code == 200


async def receive(reading: Subscriber, began: asyncio.Event) -> list[tuple[int, int, str]]:
    """Seq, gap and digest of each segment until the end."""
    got = []
    async with reading as subscriber:
        async for segment in subscriber:
            began.set()
            got.append((segment.seq, segment.gap, hashlib.sha256(await segment.read()).hexdigest()))
            assert segment.complete
    return got


def test_nothing_is_lost_from_the_first_byte_to_the_end(url: str) -> None:
    """A subscriber who waits for the channel gets each segment once, whole and in order, and then the end."""
    data = {seq: os.urandom(1 + seq * 7001) for seq in range(30)}

    async def main() -> None:
        async with httpx.AsyncClient() as http, asyncio.TaskGroup() as group:
            began, missing = asyncio.Event(), asyncio.Event()

            async def sleep(delay_s: float) -> None:
                missing.set()
                await anyio.sleep(delay_s)

            reading = timed(Runtime(sleep=sleep), Subscriber, url, wait_for_channel_s=10)
            task = group.create_task(receive(reading, began))
            await missing.wait()
            await publish(http, url, 0, data[0])
            await began.wait()
            for seq in range(1, 30):
                await publish(http, url, seq, data[seq])
            assert (await http.delete(url)).status_code == 200
        assert task.result() == [(seq, 0, hashlib.sha256(data[seq]).hexdigest()) for seq in range(30)]

    run(main)


def test_empty_segments_and_late_joins(url: str) -> None:
    """``current`` is the newest segment, N is that segment, -N counts from the head; empty ones are passed on."""

    async def first(start: AnyStart) -> tuple[int, bytes]:
        async with Subscriber(url, start=start) as subscriber:
            segment = await anext(subscriber)
            return segment.seq, await segment.read()

    async def main() -> None:
        async with httpx.AsyncClient() as http:
            for seq, data in enumerate([b"zero", b"", b"two", b"three"]):
                await publish(http, url, seq, data)
        assert await first("current") == (3, b"three")
        assert await first(-3) == (2, b"two")
        assert await first(1) == (1, b"")
        assert await first(-100) == (0, b"zero")
        assert await first(0) == (0, b"zero")

    run(main)


def test_chunks_arrive_while_they_are_published(url: str) -> None:
    """Each as it was sent, before the next one is, with the next GET waiting already."""

    async def main() -> None:
        read = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            for chunk in (b"one", b"two", b"three"):
                read.clear()
                yield chunk
                await read.wait()

        async with httpx.AsyncClient() as http, asyncio.TaskGroup() as group:
            post = group.create_task(http.post(f"{url}/0", content=body()))
            async with Subscriber(url, start=0, wait_for_channel_s=5) as subscriber:
                segment = await anext(subscriber)
                got = []
                async for chunk in segment:
                    got.append(chunk)
                    read.set()
                assert got == [b"one", b"two", b"three"]
                assert (await post).status_code == 200
                await http.delete(url)
                with pytest.raises(StopAsyncIteration):
                    await anext(subscriber)
                assert subscriber.statistics().requests <= 4

    run(main)


def test_the_end_costs_few_requests(tmp_path: Path) -> None:
    """Between a zero-byte close and the channel's end, a subscriber makes at most two requests."""
    log = tmp_path / "access.jsonl"

    async def main(base: str) -> None:
        url = f"{base}/ending"
        async with httpx.AsyncClient() as http, asyncio.TaskGroup() as group:
            began = asyncio.Event()
            await publish(http, url, 0, b"x")
            task = group.create_task(receive(Subscriber(url, start=0), began))
            await began.wait()
            await publish(http, url, 1, b"")
            await http.delete(url)
        assert [seq for seq, _, _ in task.result()] == [0, 1]

    with serve(access_log=log) as running:
        run(lambda: main(running.base))
        assert running.stop() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    reads = [line for line in lines if line.get("op") == "read" and line["channel"] == "ending"]
    assert [line["seq"] for line in reads] == [0, 1, 2]
    assert len({line["client"] for line in reads}) == 1
    assert {line["attempt"] for line in reads} == {1}


def test_falling_behind_the_window_is_a_gap() -> None:
    """What left the window is counted, and the newest segment is next."""

    async def main(base: str) -> None:
        url = f"{base}/lagging"
        async with httpx.AsyncClient() as http:
            for seq in range(10):
                await publish(http, url, seq, b"x")
            for on_lag, (seq, gap) in {OnLag.LIVE: (9, 8), OnLag.EARLIEST: (7, 6), None: (7, 6)}.items():
                async with Subscriber(url, start=1, on_lag=on_lag) as subscriber:
                    segment = await anext(subscriber)
                    assert (segment.seq, segment.gap) == (seq, gap)

    with serve("--window-segments", "3") as running:
        run(lambda: main(running.base))


def test_a_window_that_moves_faster_than_requests_take_is_read() -> None:
    """Its reader is late for every second request, gets a segment each time, and is told what it missed."""

    async def main(url: str) -> None:
        seqs, requests, read = itertools.count(), list[str](), [(-1, 0)]

        class AfterOthers(TrickleTransport):
            """Each request of the reader comes when more segments have begun than the window holds."""

            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                for _ in range(4):
                    await publish(http, url, next(seqs), b"x")
                requests.append(request.url.path)
                return await super().handle_async_request(request)

        runtime = Runtime(clock=lambda: lambda: 0.0, sleep=lambda _: anyio.lowlevel.checkpoint())
        async with (
            httpx.AsyncClient() as http,
            timed(runtime, Subscriber, url, start=0, transport=AfterOthers()) as subscriber,
        ):
            while len(read) <= 20:
                segment = await anext(subscriber)
                read.append((segment.seq, segment.gap))
                assert await segment.read() == b"x"
        assert all(seq == before + 1 + gap for (before, _), (seq, gap) in itertools.pairwise(read))
        assert len(requests) <= 2 * len(read)

    with serve("--window-segments", "3") as running:
        run(lambda: main(f"{running.base}/fast"))


def test_a_publisher_who_is_gone_truncates_its_segment(url: str) -> None:
    """What the server knows only in the middle of the answer comes as a trailer, and is seen."""

    async def main() -> None:
        port = int(httpx.URL(url).port or 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        path = httpx.URL(url).path
        writer.write(f"POST {path}/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n".encode())
        async with httpx.AsyncClient() as http, Subscriber(url, start=0, wait_for_channel_s=5) as subscriber:
            segment = await anext(subscriber)
            assert await anext(segment) == b"half"
            writer.close()
            await writer.wait_closed()
            await publish(http, url, 1, b"whole")
            assert await segment.read() == b""
            assert segment.truncated
            assert not segment.complete
            following = await anext(subscriber)
            assert (following.seq, following.gap) == (1, 0)
            assert await following.read() == b"whole"
            assert following.complete

    run(main)


def test_a_new_life_of_the_channel_is_another_subscription(url: str) -> None:
    """The end of one epoch ends the loop; the next subscription sees the next epoch."""

    async def main() -> None:
        async with httpx.AsyncClient() as http:
            await publish(http, url, 0, b"first")
            async with Subscriber(url, start=0) as subscriber:
                assert (await anext(subscriber)).epoch == 1
                await http.delete(url)
                with pytest.raises(StopAsyncIteration):
                    await anext(subscriber)
            await publish(http, url, 0, b"second")
            async with Subscriber(url, start=0) as subscriber:
                segment = await anext(subscriber)
                assert segment.epoch == 2
                assert await segment.read() == b"second"

    run(main)


def test_a_missing_channel_is_said_so(url: str) -> None:
    """At once."""

    async def main() -> None:
        async with Subscriber(url) as subscriber:
            with pytest.raises(ChannelNotFound, match="channel not found"):
                await anext(subscriber)

    run(main)


def test_a_server_that_restarts_is_found_again() -> None:
    """The connection is lost, the numbering begins anew, and the subscriber goes on with the newest that there is."""

    async def main(first: RunningServer) -> None:
        url = f"{first.base}/restarted"
        async with httpx.AsyncClient() as http:
            await publish(http, url, 0, b"before")
            await publish(http, url, 1, b"before")
            async with Subscriber(url, start=0) as subscriber:
                for _ in range(2):
                    assert await (await anext(subscriber)).read() == b"before"
                os.kill(first.pid, signal.SIGKILL)
                await anyio.to_thread.run_sync(first.process.wait)
                with serve("--port", port):
                    await publish(http, url, 0, b"after")
                    segment = await anext(subscriber)
                    assert (segment.seq, segment.gap, segment.restarted) == (0, 0, True)
                    assert await segment.read() == b"after"

    port = str(free_port())  # nobody else gets it meanwhile
    with serve("--port", port) as first:
        run(lambda: main(first))


@contextmanager
def tricklecast(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process of its own, which does not outlive the block."""
    # Unbuffered, since communicate() would not see what was buffered by a read before it.
    with subprocess.Popen(forked(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_writes_what_was_published(url: str, tmp_path: Path) -> None:
    """Into a file and into a pipe, with a summary on standard error and exit code 0."""
    data = [os.urandom(50_000) for _ in range(5)]
    path = tmp_path / "out.ts"
    with httpx.Client() as http:
        http.post(f"{url}/0", content=data[0])
        with (
            tricklecast("subscribe", url, "--start", "0") as into_pipe,
            tricklecast("subscribe", url, "--start", "0", "-o", str(path)) as into_file,
        ):
            for seq in range(1, 5):
                http.post(f"{url}/{seq}", content=data[seq])
            assert into_pipe.stdout is not None
            # Then it has begun; the other one can still read all that is kept, for as long as the channel drains.
            first = into_pipe.stdout.read(1)
            deadline = time.monotonic() + WITHIN_S
            while not path.exists():
                assert into_file.poll() is None
                assert time.monotonic() < deadline
            http.delete(url)
            piped, said = into_pipe.communicate(timeout=WITHIN_S)
            assert (first or b"") + piped == b"".join(data)
            assert b"received 5 segments (250.0 kB)" in said
            assert into_pipe.returncode == 0
            assert into_file.communicate(timeout=WITHIN_S)[0] == b""
            assert path.read_bytes() == b"".join(data)


def test_the_command_ends_with_its_reader(url: str) -> None:
    """``| head -c 10`` ends it quietly, with exit code 0."""
    with httpx.Client() as http:
        http.post(f"{url}/0", content=b"x" * 1000)
        with tricklecast("subscribe", url, "--start", "0") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(1) == b"x"
            process.stdout.close()
            http.post(f"{url}/1", content=b"x" * 1000)
            said = process.stderr.read()
            assert process.wait(WITHIN_S) == 0
    assert b"Traceback" not in said
    assert b"received 2 segments" in said


def test_the_command_can_be_interrupted(url: str, tmp_path: Path) -> None:
    """Ctrl-C: what came is in the file and summed up, and the exit code says so."""
    path = tmp_path / "out.ts"
    httpx.post(f"{url}/0", content=b"x" * 1000)
    with tricklecast("subscribe", url, "--start", "0", "-o", str(path)) as process:
        deadline = time.monotonic() + WITHIN_S
        while not (path.exists() and path.stat().st_size):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WITHIN_S)
    assert path.read_bytes() == b"x" * 1000
    assert b"received 1 segment (1.0 kB)" in said
    assert b"Traceback" not in said
    assert process.returncode == 130


def test_the_command_lists_channels(server: RunningServer, url: str) -> None:
    """As JSON and as columns."""
    name = url.rpartition("/")[2]
    httpx.post(f"{url}/0", content=b"x" * 1000, headers={"Content-Type": wire.MPEG_TS})
    with tricklecast("channels", url, "--json") as process:
        as_json, _ = process.communicate(timeout=WITHIN_S)
    assert name in [channel["name"] for channel in json.loads(as_json)["channels"]]
    with tricklecast("channels", server.url) as process:
        columns, _ = process.communicate(timeout=WITHIN_S)
    rows = {line.split("\t")[0]: line.split("\t") for line in columns.decode().splitlines()}
    assert rows[name][1:6] == ["live", "1", "1", "1.0 kB", "0"]


def test_a_segment_that_nobody_wrote_is_told_from_an_empty_one(url: str) -> None:
    """Neither has a byte; only the one that was published as that is complete."""

    async def main() -> None:
        async with httpx.AsyncClient() as http, Subscriber(url, start=0, refresh_s=60) as subscriber:
            await http.post(url)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(anext(subscriber))
                await publish(http, url, 1, b"one")
                skipped = await waiting
            await publish(http, url, 2, b"")
            one, empty = await anext(subscriber), await anext(subscriber)
            assert [segment.seq for segment in (skipped, one, empty)] == [0, 1, 2]
            assert (await skipped.read(), skipped.truncated, skipped.complete) == (b"", "skipped", False)
            assert (await empty.read(), empty.truncated, empty.complete) == (b"", None, True)
            assert subscriber.statistics().truncated == 1

    run(main)
