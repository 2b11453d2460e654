"""A worker's conversation with the command, and its watch over itself."""

from __future__ import annotations

import asyncio
import io
import operator
import sys
from functools import partial
from typing import Any

import anyio
import pytest

from tests.support.waiting import until
from tricklecast.app.stress import worker
from tricklecast.app.stress.worker import Post, Watch, serve
from tricklecast.trickle.load import Load
from tricklecast.trickle.stress import Desk, Left, Orders, Seat, Sent, from_line, to_line

LOAD = Load(seed=1, channels=1, segments=2, every_s=0.02, smallest=20, largest=20, chunk_bytes=20)
ORDERS = Orders((Seat(0, "http://host/trickle/a"),), LOAD)


def talk(work: worker.Work, *lines: bytes) -> list[dict[str, Any]]:
    """Run a worker that hears these lines; returns what it says."""

    async def main() -> list[dict[str, Any]]:
        heard, said = asyncio.StreamReader(), io.BytesIO()
        heard.feed_data(b"".join(lines))
        heard.feed_eof()
        await serve(work, heard, said)
        return [from_line(line) for line in said.getvalue().splitlines()]

    return asyncio.run(main())


def test_a_conversation() -> None:
    """It is ready, hears the start, reports, and its last line is its health."""
    left = Left("publisher", 0, 0, 0, "", {})

    async def work(orders: Orders, desk: Desk) -> None:
        assert orders == ORDERS
        assert await desk.ready() == 17
        desk.woke(5_000_000)
        await desk.closed()
        assert desk.is_closed
        await desk.record(left)
        desk.finished()

    said = talk(work, to_line(orders=ORDERS.dump()), to_line(go=17))
    assert [next(iter(line)) for line in said] == ["ready", "rows", "finished", "health"]
    assert said[1]["rows"] == [["left", *left]]
    assert said[3]["health"]["late_ms"] == pytest.approx(5, rel=0.01)


def test_the_end_of_the_conversation_is_the_end_of_the_run() -> None:
    """A command that is gone before the start leaves nobody waiting for it; nor does one that never gave orders."""

    async def work(orders: Orders, desk: Desk) -> None:
        await desk.ready()
        assert desk.is_closed

    assert [next(iter(line)) for line in talk(work, to_line(orders=ORDERS.dump()))] == ["ready", "health"]
    assert talk(work) == []


def test_a_command_that_reads_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records wait in bounded memory: when there is no room, whoever reports waits."""
    monkeypatch.setattr(worker, "ROOM", 10)
    monkeypatch.setattr(worker, "BATCH", 4)

    async def main() -> None:
        out = io.BytesIO()
        post = Post(out)
        recorded: list[int] = []

        async def record_all() -> None:
            for ordinal in range(25):
                await post.record(Sent(0, ordinal, ordinal, 1, "#", 0, 0, 0))
                recorded.append(ordinal)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(record_all)
            for expected in (10, 20, 25):
                await until(partial(operator.eq, list(range(expected)), recorded))
                await post.flush()
        lines = [from_line(line) for line in out.getvalue().splitlines()]
        assert [len(line["rows"]) for line in lines] == [4, 4, 2, 4, 4, 2, 4, 1]
        assert [row[2] for line in lines for row in line["rows"]] == list(range(25))

    asyncio.run(main())


def test_the_watch_measures_lag_and_processor_time() -> None:
    """An event loop that is always 30 ms late is seen as that, and so is a process that uses half a core."""

    async def main() -> None:
        now = 0

        def clock() -> int:
            # Every look at the clock is 20 ms after the one before: two looks frame each wait, so that it took
            # 20 ms, which is 10 ms more than it should have.
            nonlocal now
            now += 20_000_000
            return now

        watch = Watch(clock, cpu=lambda: now // 2)
        await watch.run(0, 2_000_000_000)
        watch.woke(7_000_000)
        health = watch.health()
        assert health.cpu == pytest.approx(0.5)
        assert health.lag_ms == pytest.approx(10, rel=0.01)
        assert health.late_ms == pytest.approx(7, rel=0.01)
        assert health.samples > 10

    asyncio.run(main())


def test_a_watch_that_never_began_has_seen_nothing() -> None:
    """A run that was called off has no figures, and no division by zero."""
    health = Watch(lambda: 0).health()
    assert (health.cpu, health.samples) == (0.0, 0)


def test_the_clock_is_the_machines_where_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monotonic clocks of two processes are the same on Linux; elsewhere only the wall clock is."""
    monkeypatch.setattr(sys, "platform", "linux")
    assert worker.clock() is worker.time.monotonic_ns  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "platform", "plan9")
    assert worker.clock() is worker.time.time_ns  # type: ignore[attr-defined]
