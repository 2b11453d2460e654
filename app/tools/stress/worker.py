"""A worker process of ``tricklecast stress``: ``python -m tricklecast.app.tools.stress.worker publish|subscribe``.

It runs publishers or subscribers, hashes each segment, reports each one to the command
(:mod:`tricklecast.app.tools.stress.messages`), and measures whether it keeps up itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any, BinaryIO, Final

import anyio
import anyio.to_thread
import httpx
from anyio.abc import TaskStatus

import tricklecast.publisher.client
import tricklecast.subscriber.segment
from tricklecast.app.tools.stress.ledger import Latencies
from tricklecast.app.tools.stress.load import CONTENT_TYPE, MARKER_BYTES, Marker
from tricklecast.app.tools.stress.messages import (
    LINE_BYTES,
    Client,
    Health,
    Left,
    Orders,
    Received,
    Record,
    Sent,
    clock,
    from_line,
    to_line,
    to_row,
)
from tricklecast.publisher.client import Publisher
from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.transport import TrailerTransport
from tricklecast.trickle import wire
from tricklecast.trickle.errors import ConnectionLost, TrickleError, error_for

FLUSH_S: Final = 0.1
"""Time between two writes of records: few enough writes, and the command's progress line is still current."""

BATCH: Final = 500
"""Limit of records in one line, which keeps a line below 256 KiB."""

MAX_UNWRITTEN: Final = 20_000
"""Limit of records in memory (about 10 MB). Beyond it the publishers and subscribers wait."""

TICK_S: Final = 0.01
"""Time between two measurements of the event loop's lag."""


class Watch:
    """Measures the share of a core that this process uses, and the lag of its event loop.

    Args:
        now: the clock of the run, in nanoseconds.
        cpu: processor time of this process, in nanoseconds.
    """

    def __init__(self, now: Callable[[], int], cpu: Callable[[], int] = time.process_time_ns) -> None:
        self._now = now
        self._cpu = cpu
        self._lag, self._late = Latencies(), Latencies()
        self._began: tuple[int, int] | None = None
        self._ended = (0, 0)

    async def run(self, begins_ns: int, ends_ns: int) -> None:
        """Measure between these two times of the run's clock. It may be cancelled."""
        await anyio.sleep(max(0, begins_ns - self._now()) / 1e9)
        self._began = self._ended = (self._now(), self._cpu())
        while (before := self._now()) < ends_ns:
            await anyio.sleep(TICK_S)
            self._lag.add(self._now() - before - int(TICK_S * 1e9))
            self._ended = (self._now(), self._cpu())

    def woke(self, late_ns: int) -> None:
        """Note the delay of a chunk that only this process delayed."""
        self._late.add(late_ns)

    def health(self) -> Health:
        """The result so far."""
        began, ended = self._began or (0, 0), self._ended
        cpu = (ended[1] - began[1]) / max(1, ended[0] - began[0])
        lag = self._lag.quantiles()
        return Health(cpu, lag.p99, self._late.quantiles().p99, lag.samples)


class Command:
    """The command that started this process, as publishers and subscribers see it.

    Args:
        out: messages to the command go there.

    Attributes:
        now: the clock of the run, in nanoseconds.
        watch: measures this process.
        go: is set when the command has named the time of the first segment.
        go_ns: that time.
        closed: is set when the run has to end.
    """

    def __init__(self, out: BinaryIO) -> None:
        self.now = clock()
        self.watch = Watch(self.now)
        self.go = anyio.Event()
        self.go_ns = 0
        self.closed = anyio.Event()
        self._out = out
        self._rows: list[list[Any]] = []
        self._written = anyio.Event()
        self._messages: list[bytes] = []

    async def listen(self, lines: asyncio.StreamReader) -> None:
        """Take the command's messages until they end."""
        while line := await lines.readline():
            self._start(from_line(line)["go"])
        self.closed.set()
        if not self.go.is_set():
            self._start(self.now())  # nobody may wait for a start that does not come

    def _start(self, ns: int) -> None:
        self.go_ns = ns
        self.go.set()

    async def ready(self) -> int:
        """Report that all clients are connected, and wait for the start; returns when the first segment is due."""
        self._messages.append(to_line(ready=True))
        await self.go.wait()
        return self.go_ns

    async def record(self, record: Record) -> None:
        """Report a record; waits while :data:`MAX_UNWRITTEN` records are unwritten."""
        while len(self._rows) >= MAX_UNWRITTEN:
            await self._written.wait()
        self._rows.append(to_row(record))

    def finished(self) -> None:
        """Report that everything is published, after the records of it."""
        self._messages.append(to_line(finished=True))

    async def flush(self) -> None:
        """Write all reports. A thread does it, so that a slow command does not stop the event loop."""
        rows, self._rows = self._rows, []
        messages, self._messages = self._messages, []
        lines = [to_line(rows=rows[at : at + BATCH]) for at in range(0, len(rows), BATCH)]
        data = b"".join([*lines, *messages])
        if data:
            with anyio.CancelScope(shield=True):  # the records are nowhere else
                await anyio.to_thread.run_sync(self._write, data)
        written, self._written = self._written, anyio.Event()
        written.set()

    async def flush_often(self) -> None:
        """Write reports every :data:`FLUSH_S` seconds."""
        while True:
            await self.flush()
            await anyio.sleep(FLUSH_S)

    async def end(self) -> None:
        """Write the last reports, and the health as the last line."""
        self._messages.append(to_line(health=asdict(self.watch.health())))
        await self.flush()

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._out.flush()


# Publishing


async def publish(orders: Orders, command: Command) -> None:
    """Publish the load on every client's channel, and end the channels when the run ends.

    All channels exist before ``command.ready()``. Otherwise a subscriber could find its channel missing.
    """
    block = orders.load.block()
    verify = _certificates(orders) or True
    publishers = [_Publisher(client, orders, block, command) for client in orders.clients]
    async with anyio.create_task_group() as tasks:
        async with httpx.AsyncClient(verify=verify) as http:
            for publisher in publishers:
                await tasks.start(publisher.run, verify, http)
        await command.ready()
        for publisher in publishers:
            await publisher.finished.wait()
        command.finished()


class _Publisher:
    """The publisher of one channel. It keeps to the schedule, whatever the server does.

    A chunk that is late is written at once, and its latency counts from the time at which it was due.

    Attributes:
        finished: is set when it has published all.
    """

    def __init__(self, client: Client, orders: Orders, block: bytes, command: Command) -> None:
        self.finished = anyio.Event()
        self._client = client
        self._load = orders.load
        self._block = block
        self._command = command

    async def run(
        self, verify: ssl.SSLContext | bool, http: httpx.AsyncClient, *, task_status: TaskStatus[None]
    ) -> None:
        """Create the channel, report that it exists, publish after the start, and end the channel with the run."""
        error, entered, url = "", False, self._client.url
        # A publisher with start=0 does not ask for the head first, and ends no channel before the server has answered.
        publisher = Publisher(url, content_type=CONTENT_TYPE, start="resume", when_full="wait", verify=verify)
        try:
            await _create(http, url)
            async with publisher:
                task_status.started()
                entered = True
                await self._command.go.wait()
                await self._publish(publisher)
                self.finished.set()
                await self._command.closed.wait()
        except TrickleError as failure:
            error = str(failure)
        if not entered:
            task_status.started()
        self.finished.set()
        counts = _counts(publisher.statistics())
        await self._command.record(Left("publisher", self._client.channel, 0, 0, error, counts))

    async def _publish(self, publisher: Publisher) -> None:
        async with anyio.create_task_group() as confirmations:
            for ordinal in range(self._load.segments):
                await self._until(self._command.go_ns + self._load.begins_ns(self._client.channel, ordinal))
                if self._command.closed.is_set() or publisher.error is not None:
                    break
                # A server that confirms a segment late must not delay the next one.
                segment = publisher.segment(wait=False)
                sent = await self._write(segment, ordinal)
                confirmations.start_soon(self._confirm, segment, sent)
        if publisher.error is not None:
            raise publisher.error

    async def _write(self, segment: tricklecast.publisher.client.Segment, ordinal: int) -> Sent:
        channel, load = self._client.channel, self._load
        begins_ns = self._command.go_ns + load.begins_ns(channel, ordinal)
        pieces = -(-load.size(channel, ordinal) // load.chunk_bytes)
        step_ns = load.every_s * 1e9 / pieces
        digest, size, behind_ns, due_ns, error = hashlib.sha256(), 0, 0, begins_ns, ""
        try:
            async with segment:
                for number, chunk in enumerate(load.chunks(self._block, channel, ordinal)):
                    due_ns = await self._until(begins_ns + int(number * step_ns))
                    behind_ns = max(behind_ns, self._command.now() - due_ns)
                    await segment.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
        except TrickleError as failure:
            error = str(failure)
        return Sent(channel, ordinal, -1, size, digest.hexdigest(), min(begins_ns, due_ns), due_ns, behind_ns, error)

    async def _confirm(self, segment: tricklecast.publisher.client.Segment, sent: Sent) -> None:
        """Report a segment when the server has stored or refused it."""
        seq, error = -1, ""
        try:
            seq = (await segment.settled()).seq
        except TrickleError as failure:
            error = sent.error or str(failure)
            with suppress(TrickleError):  # it may have no seq
                seq = segment.seq
        await self._command.record(sent._replace(seq=seq, error=error))

    async def _until(self, due_ns: int) -> int:
        """Wait until a chunk is due; returns when it was. At the end of the run every chunk is due at once."""
        now_ns = self._command.now()
        if now_ns < due_ns:
            with anyio.move_on_after((due_ns - now_ns) / 1e9):
                await self._command.closed.wait()
                return min(due_ns, self._command.now())
            self._command.watch.woke(self._command.now() - due_ns)
        return due_ns


async def _create(http: httpx.AsyncClient, url: str) -> None:
    """Create a channel.

    Raises:
        ConnectionLost: the server does not answer.
        TrickleError: the server refuses it.
    """
    try:
        answer = await http.post(url, headers={wire.EXPECT_CONTENT: CONTENT_TYPE})
    except httpx.HTTPError as error:
        raise ConnectionLost(detail=f"the channel cannot be created: {error or type(error).__name__}") from None
    if not answer.is_success:
        raise error_for(answer.status_code, answer.headers, detail=answer.text.partition("\n")[0])


# Subscribing


async def subscribe(orders: Orders, command: Command) -> None:
    """Read every client's channel to its end. All subscribers send their first request before ``command.ready()``."""
    context = _certificates(orders)
    async with anyio.create_task_group() as tasks:
        for client in orders.clients:
            subscriber = Subscriber(client.url, start=orders.start, transport=TrailerTransport(context))
            await tasks.start(_Subscriber(client, subscriber, command).run)
        await command.ready()


class _Subscriber:
    """One subscriber of a channel."""

    def __init__(self, client: Client, subscriber: Subscriber, command: Command) -> None:
        self._client = client
        self._subscriber = subscriber
        self._command = command
        self._reported = 0

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Read until the channel ends, or until the run does if that is earlier."""
        error, entered = "it was still reading when the run ended", False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_the_end, tasks.cancel_scope)
            try:
                async with self._subscriber:
                    task_status.started()
                    entered = True
                    async for segment in self._subscriber:
                        self._reported += segment.gap
                        await self._command.record(await self._read(segment))
                error = ""
            except TrickleError as failure:
                error = str(failure)
            tasks.cancel_scope.cancel()
        if not entered:
            task_status.started()
        statistics = self._subscriber.statistics()
        missed = statistics.missed - self._reported
        client, counts = self._client, _counts(statistics)
        await self._command.record(Left("subscriber", client.channel, client.number, missed, error, counts))

    async def _cancel_at_the_end(self, scope: anyio.CancelScope) -> None:
        await self._command.closed.wait()
        scope.cancel()

    async def _read(self, segment: tricklecast.subscriber.segment.Segment) -> Received:
        digest, head, first_ns = hashlib.sha256(), b"", 0
        async for chunk in segment:
            if not first_ns:
                first_ns = self._command.now()
            if len(head) < MARKER_BYTES:
                head += chunk[:MARKER_BYTES]
            digest.update(chunk)
        last_ns = self._command.now()
        marker = Marker.read(head)
        return Received(
            channel=self._client.channel,
            number=self._client.number,
            seq=segment.seq,
            ordinal=marker.ordinal if marker is not None and marker.channel == self._client.channel else -1,
            size=segment.bytes_read,
            digest=digest.hexdigest(),
            first_ns=first_ns or last_ns,
            last_ns=last_ns,
            gap=segment.gap,
            flaw="broken" if segment.broken is not None else "truncated" if segment.truncated is not None else "",
        )


def _certificates(orders: Orders) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=orders.ca_file) if orders.ca_file else None


def _counts(statistics: Any) -> dict[str, int]:
    """The numbers among a library's statistics."""
    return {f.name: n for f in fields(statistics) if type(n := getattr(statistics, f.name)) is int}


# The process

Work = Callable[[Orders, Command], Awaitable[None]]


async def serve(work: Work, lines: asyncio.StreamReader, out: BinaryIO) -> None:
    """Carry out the orders, and report.

    Args:
        work: :func:`publish` or :func:`subscribe`.
        lines: messages from the command.
        out: messages to the command.
    """
    line = await lines.readline()
    if not line:
        return  # the command ended before it gave orders
    orders = Orders.read(from_line(line)["orders"])
    command = Command(out)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(command.listen, lines)
        tasks.start_soon(command.flush_often)
        tasks.start_soon(_measure, command, orders)
        await work(orders, command)
        tasks.cancel_scope.cancel()
    await command.end()


async def _measure(command: Command, orders: Orders) -> None:
    await command.go.wait()
    await command.watch.run(command.go_ns, command.go_ns + orders.load.ends_ns)


async def _main(work: Work) -> None:
    lines = asyncio.StreamReader(limit=LINE_BYTES)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    try:
        await serve(work, lines, sys.stdout.buffer)
    finally:
        pipe.close()


def main(work: Work) -> None:
    """Run a worker process."""
    if sys.platform == "win32":  # uvloop does not exist for it
        asyncio.run(_main(work))
    else:
        import uvloop

        uvloop.run(_main(work))


if __name__ == "__main__":
    main({"publish": publish, "subscribe": subscribe}[sys.argv[1]])
