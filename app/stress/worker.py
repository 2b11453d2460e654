"""A worker process: ``python -m tricklecast.app.stress.worker MODULE`` runs ``MODULE.work(orders, desk)``.

This is all that publishing and subscribing workers have in common: the conversation with the command over standard
input and output (see :mod:`trickle.stress`), and the watch over their own health.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, BinaryIO, Final

import anyio
import anyio.to_thread

from tricklecast.app.stress.histogram import Histogram
from tricklecast.trickle.stress import Desk, Health, Orders, Record, from_line, to_line, to_row

FLUSH_S: Final = 0.1
"""Records are written together this often: few enough writes, and the command's progress line is still current."""

BATCH: Final = 500
"""Most records in one line, which keeps it below 256 KiB."""

ROOM: Final = 20_000
"""Most records that wait to be written (about 10 MB). Beyond that whoever records waits, and the health suffers."""

TICK_S: Final = 0.01
"""The loop's lag is measured this often."""

LINE_BYTES: Final = 64 << 20
"""Longest line either way: the orders of half a million subscribers."""

Work = Callable[[Orders, Desk], Awaitable[None]]


def clock() -> Callable[[], int]:
    """Nanoseconds on a clock that all processes of this machine share.

    On Linux and macOS that is the monotonic clock, which counts from the machine's start. Elsewhere Python does not
    promise it, and the wall clock is used, which may be set during a run.
    """
    return time.monotonic_ns if sys.platform in ("linux", "darwin") else time.time_ns


class Watch:
    """Measures whether this process keeps up: its share of a core, and how late its event loop is.

    Args:
        now: nanoseconds, the clock of the run.
        cpu: nanoseconds of processor time that this process has used.
    """

    def __init__(self, now: Callable[[], int], cpu: Callable[[], int] = time.process_time_ns) -> None:
        self._now = now
        self._cpu = cpu
        self._lag, self._late = Histogram(), Histogram()
        self._began: tuple[int, int] | None = None
        self._ended = (0, 0)

    async def run(self, begins_ns: int, ends_ns: int) -> None:
        """Measure between these two times of the run's clock; may be cancelled."""
        await anyio.sleep(max(0, begins_ns - self._now()) / 1e9)
        self._began = self._ended = (self._now(), self._cpu())
        while (before := self._now()) < ends_ns:
            await anyio.sleep(TICK_S)
            self._lag.add(self._now() - before - int(TICK_S * 1e9))
            self._ended = (self._now(), self._cpu())

    def woke(self, late_ns: int) -> None:
        """Something that was due was done so much later, through no fault but this process's."""
        self._late.add(late_ns)

    def health(self) -> Health:
        """The result so far."""
        began, ended = self._began or (0, 0), self._ended
        cpu = (ended[1] - began[1]) / max(1, ended[0] - began[0])
        lag = self._lag.quantiles()
        return Health(cpu, lag.p99, self._late.quantile_ms(0.99), lag.samples)


class Post:
    """The desk of a worker: lets it speak with the command.

    Args:
        out: where lines go.
    """

    def __init__(self, out: BinaryIO) -> None:
        self.now = clock()
        self.watch = Watch(self.now)
        self.go = anyio.Event()
        self.go_ns = 0
        self._out = out
        self._rows: list[list[Any]] = []
        self._written = anyio.Event()
        self._messages: list[bytes] = []
        self._over = anyio.Event()

    async def ready(self) -> int:
        """Say that all is set up, and wait for the start."""
        self._messages.append(to_line(ready=True))
        await self.go.wait()
        return self.go_ns

    async def record(self, record: Record) -> None:
        """Report; waits while there is no room."""
        while len(self._rows) >= ROOM:
            await self._written.wait()
        self._rows.append(to_row(record))

    def woke(self, late_ns: int) -> None:
        """Note how late a chunk was written through this process's own fault."""
        self.watch.woke(late_ns)

    def finished(self) -> None:
        """Say that everything is published; the records of it are written before."""
        self._messages.append(to_line(finished=True))

    async def closed(self) -> None:
        """Wait until the run is to end."""
        await self._over.wait()

    @property
    def is_closed(self) -> bool:
        """Whether the run is to end."""
        return self._over.is_set()

    def start(self, ns: int) -> None:
        """The first segment is due then."""
        self.go_ns = ns
        self.go.set()

    def close(self) -> None:
        """The run is to end, even if it has not begun."""
        self._over.set()
        if not self.go.is_set():
            self.start(self.now())

    async def flush(self) -> None:
        """Write what waits. In a thread: a command that is slow to read must not stop the event loop."""
        rows, self._rows = self._rows, []
        messages, self._messages = self._messages, []
        lines = [to_line(rows=rows[at : at + BATCH]) for at in range(0, len(rows), BATCH)]
        data = b"".join([*lines, *messages])
        if data:
            with anyio.CancelScope(shield=True):  # what was taken out has to be written
                await anyio.to_thread.run_sync(self._write, data)
        written, self._written = self._written, anyio.Event()
        written.set()

    async def flush_often(self) -> None:
        """Write what waits, again and again."""
        while True:
            await self.flush()
            await anyio.sleep(FLUSH_S)

    async def report(self, health: Health) -> None:
        """Write all that is left, and the last line."""
        self._messages.append(to_line(health=asdict(health)))
        await self.flush()

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._out.flush()


async def serve(work: Work, lines: asyncio.StreamReader, out: BinaryIO) -> None:
    """Do what the orders say, and report.

    Args:
        work: the role.
        lines: what the command says.
        out: what is said to it.
    """
    line = await lines.readline()
    if not line:
        return  # it was called off before it began
    orders = Orders.read(from_line(line)["orders"])
    post = Post(out)
    async with anyio.create_task_group() as helpers:
        helpers.start_soon(_listen, lines, post)
        helpers.start_soon(post.flush_often)
        helpers.start_soon(_watch, post, orders)
        await work(orders, post)
        helpers.cancel_scope.cancel()
    await post.report(post.watch.health())


async def _listen(lines: asyncio.StreamReader, post: Post) -> None:
    while line := await lines.readline():
        post.start(from_line(line)["go"])
    post.close()


async def _watch(post: Post, orders: Orders) -> None:
    await post.go.wait()
    await post.watch.run(post.go_ns, post.go_ns + orders.load.ends_ns)


async def _main(work: Work) -> None:
    lines = asyncio.StreamReader(limit=LINE_BYTES)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    try:
        await serve(work, lines, sys.stdout.buffer)
    finally:
        pipe.close()


def main(module: str) -> None:
    """Run the worker whose role is in ``module``."""
    work: Work = importlib.import_module(module).work
    if sys.platform == "win32":  # uvloop is not made for it
        asyncio.run(_main(work))
    else:
        import uvloop

        uvloop.run(_main(work))


if __name__ == "__main__":
    main(sys.argv[1])
