"""A worker process of ``tricklecast stress``: ``python -m tricklecast.app.tools.stress.worker publish|subscribe N``.

It runs publishers or subscribers, compares each received byte, tells the command what has happened
(:mod:`tricklecast.app.tools.stress.runner`), and measures whether it keeps up itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any, Final

import anyio
import httpx
import uvloop

import tricklecast.publisher.client
import tricklecast.subscriber.segment
from tricklecast.app.tools.stress.ledger import Durations, FaultKind, FoundFault, SubscriberCheck, WorkerReport
from tricklecast.app.tools.stress.load import CONTENT_TYPE, Comparison, Load, PlannedSegment, Role, StressPlan
from tricklecast.app.tools.stress.runner import Health, messages, send
from tricklecast.publisher.client import Publisher
from tricklecast.subscriber.client import Subscriber
from tricklecast.trickle import wire
from tricklecast.trickle.client.bridge import TrickleTransport
from tricklecast.trickle.errors import ConnectionLost, TrickleError, error_for
from tricklecast.trickle.terminal import client_tls

EARLY_NS: Final = 1_000_000
"""A timer of the event loop is set in whole milliseconds: a publisher may write a millisecond early."""

REPORT_S: Final = 0.1
"""Time between two reports: few enough messages, and the command's progress line is still current."""

LEAVE_S: Final = 10.0
"""The deadline of subscribers for the end of their channels, which the publishers end with the run."""

TICK_S: Final = 0.01
"""Time between two measurements of the event loop's lag."""


class ParentCommand:
    """The command that started this process, as publishers and subscribers see it.

    Attributes:
        report: of this process; a new one begins each time it is sent.
        late: delays of chunks that only this process delayed.
        go: is set when the command has named the time of the first segment, ``go_ns``.
        closed: is set when the run has to end.
    """

    def __init__(self, plan: StressPlan, out: IO[bytes]) -> None:
        self.plan = plan
        self.report = WorkerReport()
        self.late = Durations()
        self.tls = client_tls(Path(plan.ca_file) if plan.ca_file else None)
        self.http = httpx.AsyncClient(transport=TrickleTransport(self.tls or True))  # which knows Unix sockets
        self.go = anyio.Event()
        self.go_ns = 0
        self.closed = anyio.Event()
        self._out = out
        self._lag = Durations()  # of the event loop
        self._cpu = 0.0  # the share of a core that this process has used
        self._clients: Sequence[_Publisher | _Subscriber] = ()

    def found(self, finding: FoundFault) -> None:
        self.report.faults.append(finding)

    def add_counts(self, statistics: Any) -> None:
        """Report the numbers among a library's statistics."""
        numbers = {f.name: n for f in fields(statistics) if type(n := getattr(statistics, f.name)) is int}
        self.report.counts.update(numbers)

    async def run(self, role: Role, process: int, orders: AsyncIterator[dict[str, Any]]) -> None:
        """Run the clients of this process, and report until all of them have ended."""
        kind = _Publisher if role == "publish" else _Subscriber
        self._clients = [kind(self, channel, number) for channel, number in self.plan.clients(role)[process]]
        async with self.http, anyio.create_task_group() as background:
            background.start_soon(self._listen, orders)
            background.start_soon(self.measure)
            background.start_soon(self._report_often)
            async with anyio.create_task_group() as tasks:
                for client in self._clients:
                    tasks.start_soon(client.run)
                    await client.ready.wait()
                self._report(ready=True)
                for client in self._clients:
                    await client.finished.wait()
                self._report(finished=True)
            background.cancel_scope.cancel()
        self._report(health=asdict(self.health()))

    async def _listen(self, orders: AsyncIterator[dict[str, Any]]) -> None:
        async for message in orders:
            self.go_ns = message["go"]
            self.go.set()
        self.closed.set()
        self.go.set()  # no client may wait for a start that does not come

    async def measure(self) -> None:
        """Measure the share of a core and the lag of the event loop while the schedule runs."""
        await self.go.wait()
        await anyio.sleep(max(0, self.go_ns - time.monotonic_ns()) / 1e9)
        began_ns, used_ns = time.monotonic_ns(), time.process_time_ns()
        while (before := time.monotonic_ns()) < self.go_ns + self.plan.load.ends_ns:
            await anyio.sleep(TICK_S)
            now = time.monotonic_ns()
            self._lag.add((now - before) // 1000 - int(TICK_S * 1e6))
            self._cpu = (time.process_time_ns() - used_ns) / (now - began_ns)

    def health(self) -> Health:
        lag = self._lag.quantiles()
        return Health(self._cpu, lag["p99"], self.late.quantiles()["p99"], int(lag["samples"]))

    async def _report_often(self) -> None:
        while True:
            self._report()
            await anyio.sleep(REPORT_S)

    def _report(self, **message: Any) -> None:
        """Send the report with a message, and begin a new one."""
        report, self.report = self.report, WorkerReport()
        report.waiting = sum(client.waiting for client in self._clients)
        send(self._out, report=vars(report), **message)


class _Client:
    """A publisher or a subscriber of one channel.

    Attributes:
        ready, finished: events: it is connected, or cannot be; it is done.
        waiting: number of segments that it waits for.
    """

    def __init__(self, command: ParentCommand, channel: int, number: int) -> None:
        self.ready, self.finished = anyio.Event(), anyio.Event()
        self.waiting = 0
        self._command = command
        self._plan = command.plan
        self._channel = channel
        self._number = number
        self._url = command.plan.url(channel)


class _Publisher(_Client):
    """The publisher of one channel. It keeps to the schedule, also if the server is slow or refuses it.

    A chunk that is late is written at once, and its latency counts from the time at which it was due.
    """

    async def run(self) -> None:
        """Create the channel, publish after the start, and end the channel with the run."""
        command, verify = self._command, self._command.tls or True
        # A publisher with start=0 does not ask for the head first, and ends no channel before the server has answered.
        publisher = Publisher(self._url, content_type=CONTENT_TYPE, start="resume", when_full="wait", verify=verify)
        try:
            await self._create()
            async with publisher:
                self.ready.set()
                await command.go.wait()
                await self._publish(publisher)
                self.finished.set()
                await command.closed.wait()
        except TrickleError as error:
            where = f"publisher of {self._plan.channel(self._channel)}: {error}"
            command.found(FoundFault(FaultKind.PUBLISHER_FAILED, self._channel, 0, where))
        self.ready.set()
        self.finished.set()
        command.add_counts(publisher.statistics())

    async def _create(self) -> None:
        base = wire.redacted(self._plan.base)
        try:
            answer = await self._command.http.post(self._url, headers={wire.EXPECT_CONTENT: CONTENT_TYPE})
        except httpx.HTTPError as error:
            raise ConnectionLost(detail=f"{base} cannot be reached: {error or type(error).__name__}") from None
        if not answer.is_success:
            detail = f"{base} creates no channels. Is that a trickle server, and its base path?"
            raise error_for(answer.status_code, answer.headers, detail=detail)

    async def _publish(self, publisher: Publisher) -> None:
        published = 0
        async with anyio.create_task_group() as confirmations:
            for ordinal in range(self._plan.load.segments):
                segment = PlannedSegment(self._plan.load, self._channel, ordinal)
                await self._until(segment.due_ns(0))
                if self._command.closed.is_set() or publisher.error is not None:
                    break
                # A server that confirms a segment late must not delay the next one.
                sending = publisher.segment(wait=False)
                error = await self._write(sending, segment)
                confirmations.start_soon(self._confirm, sending, segment, error)
                published += 1
        self._command.report.published.append((self._channel, published))
        if publisher.error is not None:
            raise publisher.error

    async def _write(self, sending: tricklecast.publisher.client.SegmentWriter, segment: PlannedSegment) -> str:
        """Write a segment on time; returns the error that prevented it, or an empty text."""
        behind_ns, error = 0, ""
        try:
            async with sending:
                for number in range(segment.chunks):
                    due_ns = await self._until(segment.due_ns(number))
                    behind_ns = max(behind_ns, time.monotonic_ns() - due_ns)
                    await sending.write(segment.chunk(number))
        except TrickleError as failure:
            error = str(failure)
        self._command.report.samples["behind"].append(behind_ns // 1000)
        return error

    async def _confirm(
        self, sending: tricklecast.publisher.client.SegmentWriter, segment: PlannedSegment, error: str
    ) -> None:
        """Report a segment when the server has stored or refused it."""
        try:
            await sending.settled()
            self._command.report.segments += 1
            self._command.report.bytes += segment.size
        except TrickleError as failure:
            which = "a segment"
            with suppress(TrickleError):  # it may have no seq
                which = f"segment {sending.seq}"
            where = f"{which} of {self._plan.channel(self._channel)}: {error or failure}"
            self._command.found(FoundFault(FaultKind.UNPUBLISHED, self._channel, segment.ordinal, where))
        self._command.report.wanted += 1

    async def _until(self, due_ns: int) -> int:
        """Wait until a chunk is due; returns when it was. At the end of the run every chunk is due at once.

        Args:
            due_ns: the time at which it is due, in nanoseconds after the start.
        """
        due_ns += self._command.go_ns
        now_ns = time.monotonic_ns()
        if now_ns < due_ns:
            with anyio.move_on_after((due_ns - now_ns) / 1e9):
                await self._command.closed.wait()
                return min(due_ns, time.monotonic_ns())
            self._command.late.add((time.monotonic_ns() - due_ns) // 1000)
        return due_ns


class _Subscriber(_Client):
    async def run(self) -> None:
        """Read until the channel ends, or until the run does if that is earlier."""
        command, error = self._command, "it was still reading when the run ended"
        reader = SubscriberCheck(self._plan, self._channel, self._number, command.found)
        subscriber = Subscriber(self._url, start=0, verify=command.tls or True)
        reported, self.waiting = 0, self._plan.load.segments
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_the_end, tasks.cancel_scope)
            try:
                async with subscriber:
                    self.ready.set()
                    async for segment in subscriber:
                        reported += segment.gap
                        await self._read(segment, reader)
                        self.waiting = self._plan.load.segments - reader.expected
                error = ""
            except TrickleError as failure:
                error = str(failure)
            tasks.cancel_scope.cancel()
        self.waiting = 0
        self.ready.set()
        if error:
            command.found(FoundFault(FaultKind.SUBSCRIBER_FAILED, self._channel, -1, f"{reader.name}: {error}"))
        await command.closed.wait()  # all that is published later is missing, too
        missed = subscriber.statistics().missed - reported
        reader.leave(missed, time.monotonic_ns() - command.go_ns, failed=bool(error))
        command.add_counts(subscriber.statistics())
        self.finished.set()

    async def _cancel_at_the_end(self, scope: anyio.CancelScope) -> None:
        await self._command.closed.wait()
        await anyio.sleep(LEAVE_S)
        scope.cancel()

    async def _read(self, segment: tricklecast.subscriber.segment.Segment, reader: SubscriberCheck) -> None:
        compared, first_ns = Comparison(self._plan.load, self._channel), 0
        async for chunk in segment:
            first_ns = first_ns or time.monotonic_ns()
            compared.add(chunk)
        last_ns = time.monotonic_ns()
        flaw = FaultKind.BROKEN if segment.broken else FaultKind.TRUNCATED if segment.truncated is not None else None
        published = compared.segment
        if reader.received(segment.seq, segment.gap, compared, flaw) and published is not None:
            report, go_ns = self._command.report, self._command.go_ns
            report.segments += 1
            report.bytes += compared.size
            whole_ns = last_ns - go_ns - published.due_ns(-1)
            if whole_ns > -EARLY_NS:  # after Ctrl-C publishers write the last segment ahead of the schedule
                report.samples["first_byte"].append(max(0, first_ns - go_ns - published.due_ns(0)) // 1000)
                report.samples["whole"].append(max(0, whole_ns) // 1000)


async def serve(role: Role, process: int, source: IO[bytes], out: IO[bytes]) -> None:
    """Carry out the command's plan, and report.

    Args:
        role, process: the clients that it runs, and its number among the processes with this role.
        source, out: the pipes from the command, and to it.
    """
    async with aclosing(messages(source)) as orders:
        async for message in orders:
            plan = message["plan"]
            command = ParentCommand(StressPlan(**{**plan, "load": Load(**plan["load"])}), out)
            await command.run(role, process, orders)


if __name__ == "__main__":
    own_role: Role = "publish" if sys.argv[1] == "publish" else "subscribe"
    uvloop.run(serve(own_role, int(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer))
