"""A worker's messages to the command, and its measurement of itself."""

from __future__ import annotations

import asyncio
import io
import operator
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio
import pytest

from tests.support.waiting import until
from tricklecast.app.tools.stress import worker
from tricklecast.app.tools.stress.load import Load
from tricklecast.app.tools.stress.messages import Client, Left, Orders, Sent, from_line, to_line
from tricklecast.app.tools.stress.worker import Command, Watch, serve

LOAD = Load(seed=1, channels=1, segments=2, every_s=0.02, smallest=20, largest=20, chunk_bytes=20)
ORDERS = Orders((Client(0, "http://host/trickle/a"),), LOAD)


def talk(work: worker.Work, *lines: bytes) -> list[dict[str, Any]]:
    """Run a worker that receives these lines; returns its messages."""

    async def main() -> list[dict[str, Any]]:
        heard, said = asyncio.StreamReader(), io.BytesIO()
        heard.feed_data(b"".join(lines))
        heard.feed_eof()
        await serve(work, heard, said)
        return [from_line(line) for line in said.getvalue().splitlines()]

    return asyncio.run(main())


def test_the_messages_of_a_run() -> None:
    """A worker reports that it is ready, learns the start, reports its records, and ends with its health."""
    left = Left("publisher", 0, 0, 0, "", {})

    async def work(orders: Orders, command: Command) -> None:
        assert orders == ORDERS
        assert await command.ready() == 17
        command.watch.woke(5_000_000)
        await command.closed.wait()
        await command.record(left)
        command.finished()

    said = talk(work, to_line(orders=asdict(ORDERS)), to_line(go=17))
    assert [next(iter(line)) for line in said] == ["ready", "rows", "finished", "health"]
    assert said[1]["rows"] == [["left", *left]]
    assert said[3]["health"]["late_ms"] == pytest.approx(5, rel=0.01)


def test_the_end_of_the_input_is_the_end_of_the_run() -> None:
    """A worker does not wait for a command that exited before the start, or before it gave orders."""

    async def work(orders: Orders, command: Command) -> None:
        await command.ready()
        assert command.closed.is_set()

    assert [next(iter(line)) for line in talk(work, to_line(orders=asdict(ORDERS)))] == ["ready", "health"]
    assert talk(work) == []


def test_a_command_that_reads_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher or subscriber waits while too many records are unwritten, so that memory is bounded."""
    monkeypatch.setattr(worker, "MAX_UNWRITTEN", 10)
    monkeypatch.setattr(worker, "BATCH", 4)

    async def main() -> None:
        out = io.BytesIO()
        command = Command(out)
        recorded: list[int] = []

        async def record_all() -> None:
            for ordinal in range(25):
                await command.record(Sent(0, ordinal, ordinal, 1, "#", 0, 0, 0))
                recorded.append(ordinal)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(record_all)
            for expected in (10, 20, 25):
                await until(partial(operator.eq, list(range(expected)), recorded))
                await command.flush()
        lines = [from_line(line) for line in out.getvalue().splitlines()]
        assert [len(line["rows"]) for line in lines] == [4, 4, 2, 4, 4, 2, 4, 1]
        assert [row[2] for line in lines for row in line["rows"]] == list(range(25))

    asyncio.run(main())


def test_the_watch_measures_lag_and_processor_time() -> None:
    """An event loop that is always 10 ms late, and a process that uses half a core, are measured as that."""

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
    """A run that ended before its start has no figures, and causes no division by zero."""
    health = Watch(lambda: 0).health()
    assert (health.cpu, health.samples) == (0.0, 0)
