"""A run, and what a person sees of it: a live line, and a summary."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator

import pytest

from tests.publisher.fakes import Trickle
from tests.support.local import local_server
from tests.support.peers import Head, Peer, fake_server
from tests.support.peers import run as run_in_loop
from tests.support.ports import free_port
from tests.support.waiting import until
from tricklecast.publisher.events import PublisherStatistics
from tricklecast.publisher.feed import Totals
from tricklecast.publisher.run import Status, _other_publisher, run
from tricklecast.publisher.steps import Chunk, IsStopped, Report, SegmentEnd, Step
from tricklecast.trickle import wire
from tricklecast.trickle.errors import Superseded, TrickleError, error_for
from tricklecast.trickle.terminal import Screen


def status() -> Status:
    """One that tells nobody."""
    return Status("http://h/c", lambda _: None)


def test_the_line_says_what_is_going_on() -> None:
    """Before the first segment it waits; troubles come first, and only if there are any."""
    shown = status()
    line = shown.line(Totals(), PublisherStatistics())
    assert line == "waiting for the input · 0 kbit/s · 0 in flight · 0 B · 0 s · http://h/c"
    shown.source("reconnecting, attempt 2")
    totals = Totals(segments=1, bytes=5 << 30, lost=2, dropped=3, seq=4)
    line = shown.line(totals, PublisherStatistics(in_flight=1, retries=6))
    assert line.startswith("segment 4 · retries 6 · dropped 3 · lost 2 · reconnecting, attempt 2 · ")
    assert line.endswith("1 in flight · 5.4 GB · 0 s · http://h/c")
    shown.source("")
    assert "reconnecting" not in shown.line(Totals(), PublisherStatistics())


def test_the_summary_is_one_line() -> None:
    """What was published, what went wrong, and how it ended."""
    shown = status()
    assert shown.summary(Totals(), PublisherStatistics(), "over") == "published 0 segments (0 B) in 0.0 s; over"
    one = shown.summary(
        Totals(segments=1, bytes=2048, lost=3, dropped=2, seq=0), PublisherStatistics(retries=1), "over"
    )
    assert one == "published 1 segment (2.0 kB) in 0.0 s, the last one 0, 1 retry, 2 dropped, 3 lost; over"


class OneSegment:
    """A source of one segment, which then ends, or is silent until the test is over."""

    drops = False
    content_type = "application/octet-stream"

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self.over = threading.Event()

    def shorten(self, size: int) -> None:
        """It has one length."""

    def open(self, report: Report, is_stopped: IsStopped) -> Iterator[Step]:
        return self._steps()

    def _steps(self) -> Iterator[Step]:
        yield Chunk(b"x")
        yield SegmentEnd()
        if not self._ends:
            self.over.wait()


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        (False, "interrupted twice: the channel stays open"),
        (True, "interrupted before the end of the channel"),
    ],
)
def test_an_interrupted_end_is_not_called_an_error(ends: bool, how: str) -> None:
    """Whoever does not want to wait for a server that has stopped is told what that means."""

    async def main() -> None:
        trickle, asked, said = Trickle(), asyncio.Event(), io.StringIO()

        async def silent(peer: Peer, head: Head) -> None:
            asked.set()
            await peer.closed()

        trickle.instead = {"DELETE": [silent]}
        source = OneSegment(ends=ends)
        async with fake_server(trickle) as server:
            task = asyncio.ensure_future(run(f"{server.base}/c", source, screen=Screen(said)))
            if not ends:
                await until(lambda: "0" in trickle.stored)
                task.cancel()
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            source.over.set()
        assert said.getvalue().endswith(f"the last one 0; {how}\n")

    run_in_loop(main())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Superseded(seq=3), "another publisher has taken over this channel (HTTP 409, segment 3)"),
        (
            error_for(409, {wire.EPOCH: "2", wire.LATEST: "1"}, seq=3, detail="The channel is in epoch 2"),
            "another client has begun the channel anew: it is in epoch 2 (HTTP 409, segment 3)",
        ),
    ],
)
def test_who_else_publishes_is_said(error: Exception, said: str) -> None:
    """Whether another publisher went on with the channel, or began it anew."""
    assert isinstance(error, Superseded)
    assert _other_publisher(error) == said


def test_interrupted_without_a_server_it_says_what_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment without an answer is not left out of the summary, and a channel whose end had none is not ended."""
    monkeypatch.setattr("tricklecast.publisher.feed.INTERRUPTED_S", 0.01)
    monkeypatch.setattr("tricklecast.publisher.client.CONFIRM_S", 0.01)
    monkeypatch.setattr("tricklecast.publisher.run.CLOSE_S", 0.5)

    async def main() -> None:
        trickle, asked, said = Trickle(), asyncio.Event(), io.StringIO()

        async def silent(peer: Peer, head: Head) -> None:
            asked.set()
            await peer.closed()

        trickle.instead = {"POST 0": [silent], "DELETE": [silent]}
        source = OneSegment(ends=False)
        async with fake_server(trickle) as server:
            task = asyncio.ensure_future(run(f"{server.base}/c", source, screen=Screen(said)))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            source.over.set()
        assert "published 0 segments" in said.getvalue()
        assert "1 not confirmed; interrupted, and the channel is not ended: " in said.getvalue()

    run_in_loop(main())


def test_segments_that_a_failed_publisher_still_had_are_counted() -> None:
    """A server that comes back with another publisher's channel takes none of them: the last line says how many."""

    async def main() -> None:
        trickle, said = Trickle(), io.StringIO()

        async def taken(peer: Peer, head: Head) -> None:
            while await peer.chunk():
                pass
            trickle.head, trickle.epoch = 100, 1  # what the server says from now on
            # the connection ends without an answer

        trickle.instead = {"POST 0": [taken]}
        source = OneSegment(ends=False)
        async with fake_server(trickle) as server:
            with pytest.raises(TrickleError, match="another publisher has taken over"):
                await run(f"{server.base}/c", source, screen=Screen(said))
            source.over.set()
        assert "published 0 segments" in said.getvalue()
        assert "1 not confirmed; stopped by an error\n" in said.getvalue()

    run_in_loop(main())


def test_a_segment_that_is_confirmed_after_a_takeover_is_counted() -> None:
    """The preconnect is refused while the answer to the last segment is on its way."""

    async def main() -> None:
        trickle, said, refused = Trickle(), io.StringIO(), asyncio.Event()

        async def late(peer: Peer, head: Head) -> None:
            while await peer.chunk():
                pass
            await refused.wait()
            await peer.answer(200, {"Lp-Trickle-Size": "1"})

        async def taken(peer: Peer, head: Head) -> None:
            await peer.answer(409, {"Lp-Trickle-Seq": "1", "Connection": "close"})
            refused.set()

        trickle.instead = {"POST 0": [late], "POST 1": [taken]}
        source = OneSegment(ends=False)
        async with fake_server(trickle) as server:
            with pytest.raises(TrickleError, match="another publisher has taken over"):
                await run(f"{server.base}/c", source, screen=Screen(said))
            source.over.set()
        assert "published 1 segment (1 B)" in said.getvalue()
        assert "not confirmed" not in said.getvalue()

    run_in_loop(main())


def test_a_server_that_refuses_for_a_while_is_told_at_once() -> None:
    """A proxy answers 502 while its server is away: the user hears of it at the first answer, not after a minute."""

    async def main() -> None:
        trickle, said = Trickle(), io.StringIO()

        async def bad_gateway(peer: Peer, head: Head) -> None:
            await peer.answer(502, {"Connection": "close"})

        trickle.instead = {"GET next": [bad_gateway]}
        async with fake_server(trickle) as server:
            await run(f"{server.base}/c", OneSegment(ends=True), screen=Screen(said))
        assert said.getvalue().startswith("warning: refused by the server (HTTP 502); trying again\n")
        assert said.getvalue().endswith("the channel is ended\n")

    run_in_loop(main())


def test_a_refusal_of_a_segment_is_told_once() -> None:
    """A full server refuses for some seconds: the user hears of it at the first refusal, and not of each one."""

    async def main() -> None:
        trickle, said = Trickle(), io.StringIO()

        async def full(peer: Peer, head: Head) -> None:
            await peer.answer(503, {"Connection": "close"}, b"Limit reached: channels")

        trickle.instead = {"POST 0": [full, full]}
        async with fake_server(trickle) as server:
            await run(f"{server.base}/c", OneSegment(ends=True), screen=Screen(said))
        assert said.getvalue().count("warning: ") == 1
        assert "Limit reached: channels (HTTP 503, segment 0); trying again\n" in said.getvalue()
        assert said.getvalue().endswith("the channel is ended\n")

    run_in_loop(main())


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.parametrize("has_pages", [True, False])
def test_a_person_is_told_where_to_watch(has_pages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the page is there: a server whose control plane has a port of its own has it elsewhere."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "500")
    said, source = Terminal(), OneSegment(ends=False)
    source.content_type = wire.MPEG_TS
    with local_server(control_port=None if has_pages else free_port()) as server:
        root = f"http://127.0.0.1:{server.port}"

        async def main() -> None:
            task = asyncio.ensure_future(run(f"{root}/trickle/my cam", source, screen=Screen(said)))
            try:
                await until(
                    lambda: "watch it at" in said.getvalue() or any("watch" in str(r.path) for r in server.records)
                )
            finally:
                source.over.set()
            await task

        asyncio.run(main())
    assert (f"watch it at {root}/watch/my%20cam\n" in said.getvalue()) is has_pages
