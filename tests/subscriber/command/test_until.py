"""``tricklecast subscribe --since --until`` against a real server: which segments it takes, and when it stops."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import httpx
import pytest

from tests.subscriber.fake import Exchange, fake
from tests.subscriber.fake import run as in_loop
from tests.support.local import LocalServer, local_server
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.tools.conformance.connection import ChunkedPost
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.subscriber.archive import read_index
from tricklecast.subscriber.command.moments import Answer, Listed, Moment, Timetable
from tricklecast.subscriber.command.run import Report, Request, run
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.terminal import Screen


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """One server for all; each test has a channel of its own."""
    with local_server(channel_drain_s=3600) as running:
        yield running


def url(server: LocalServer, name: str) -> str:
    """Of a channel."""
    return f"http://127.0.0.1:{server.port}/trickle/{name}"


def received(at: str, path: Path, **options: Any) -> str:
    """Receive into a file or folder: the last line that people are told."""
    said = io.StringIO()
    in_loop(lambda: run(Request(at, str(path), **options), Report(Screen(said))))
    return said.getvalue().splitlines()[-1]


@contextmanager
def receiving(at: str, path: Path, **options: Any) -> Iterator[Future[str]]:
    """Receive in a thread."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(received, at, path, **options)


def moments(server: LocalServer, name: str, which: str) -> list[Moment]:
    """When the segments of a channel opened or closed."""
    answer = httpx.get(f"http://127.0.0.1:{server.port}/api/v1/channels/{name}/segments").json()
    return [Moment(at=datetime.fromisoformat(one[which]).timestamp()) for one in answer["segments"]]


def test_a_time_that_has_passed(server: LocalServer, tmp_path: Path) -> None:
    """From the segment that was on its way at the begin to that of the end; the channel goes on."""
    with server.client() as target:
        target.channel("past").publish(0, b"a", b"b", b"c", b"d")
        closed = moments(server, "past", "closed_at")
        last = received(url(server, "past"), tmp_path / "x", since=closed[1], until=closed[2])
        assert (tmp_path / "x").read_bytes() == b"bc"
        assert "the next one is 3@1" in last
        received(url(server, "past"), tmp_path / "x", start="earliest", until=Moment())
        assert (tmp_path / "x").read_bytes() == b"abcd"
        with pytest.raises(TrickleError, match="past has nothing of the time before --until"):
            received(url(server, "past"), tmp_path / "x", start="earliest", until=Moment(3600))


def test_a_folder_that_has_it_gets_nothing_more(server: LocalServer, tmp_path: Path) -> None:
    """Though the channel goes on."""
    with server.client() as target:
        channel = target.channel("folder").publish(0, b"a", b"b", b"c")
        closed = moments(server, "folder", "closed_at")
        (tmp_path / "f").mkdir()
        for _ in range(2):
            received(url(server, "folder"), tmp_path / "f", since=closed[0], until=closed[1])
            assert [entry.seq for entry in read_index(tmp_path / "f")] == [0, 1]
        channel.publish(3, b"d")
        received(url(server, "folder"), tmp_path / "f", until=closed[2])
        assert [entry.seq for entry in read_index(tmp_path / "f")] == [0, 1, 2]


@contextmanager
def in_the_middle(
    server: LocalServer, name: str, path: Path
) -> Iterator[tuple[RemoteChannel, ChunkedPost, Future[str]]]:
    """The time of ``--until`` passes while segment 1 is being written and received; 0 was whole."""
    with server.client() as target:
        channel = target.channel(name).publish(0, b"a")
        post, _ = channel.started(1, b"b1 ")
        at = time.time() + 1.0
        with receiving(url(server, name), path, start="earliest", until=Moment(at=at)) as over:
            eventually(lambda: time.time() > at)
            yield channel, post, over


def test_a_time_to_come_ends_with_the_segment_that_is_on_its_way(server: LocalServer, tmp_path: Path) -> None:
    """Which is read to its end; the next one is not."""
    with in_the_middle(server, "open", tmp_path / "x") as (channel, post, over):
        assert not over.done()
        post.chunk(b"b2").end().stored(seq=1)
        channel.publish(2, b"c")
        assert "the next one is 2@1" in over.result(WITHIN_S)
    assert (tmp_path / "x").read_bytes() == b"ab1 b2"


def test_no_segment_is_taken_before_the_server_has_named_the_last_one(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though others come while it is asked."""
    published, last_of = Event(), Timetable.last

    async def last(timetable: Timetable, until: Moment) -> tuple[Listed | None, Answer]:
        await anyio.to_thread.run_sync(published.wait)
        return await last_of(timetable, until)

    monkeypatch.setattr(Timetable, "last", last)
    with in_the_middle(server, "slow", tmp_path / "x") as (channel, post, over):
        post.end().stored(seq=1)
        channel.publish(2, b"c", b"d", b"e")
        published.set()
        assert "the next one is 2@1" in over.result(WITHIN_S)
    assert (tmp_path / "x").read_bytes() == b"ab1 "


@pytest.mark.parametrize("start", ["earliest", "next"])
def test_a_time_to_come_at_which_nothing_is_on_its_way(start: str, server: LocalServer, tmp_path: Path) -> None:
    """The wait for a next segment ends."""
    with server.client() as target:
        target.channel(f"idle-{start}").publish(0, b"a")
        until = Moment(at=time.time() + 0.5)
        last = received(url(server, f"idle-{start}"), tmp_path / "x", start=start, until=until)
        assert last.startswith("received 1 segment" if start == "earliest" else "received 0 segments")


def test_a_server_that_does_not_tell_its_times(tmp_path: Path) -> None:
    """The run ends behind the segment that is being read then."""
    at = time.time() + 0.5

    async def old(exchange: Exchange) -> None:
        match exchange.tail:
            case "segments":
                await exchange.text(404, "page not found")
                asked.append(exchange)
            case "0":
                await exchange.begin(0, epoch=1)
                while not asked:
                    await exchange.chunk(b".")
                    await anyio.sleep(0.01)
                await exchange.end()
            case _:
                await exchange.closed_by_client()

    asked: list[Exchange] = []

    async def main() -> None:
        async with fake(old) as server:
            request = Request(server.url, str(tmp_path / "x"), start=0, until=Moment(at=at))
            totals = await run(request, Report(Screen(io.StringIO())))
            assert totals.statistics.segments == 1

    in_loop(main)
    assert asked
