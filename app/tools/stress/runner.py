"""Runs a stress test: starts the worker processes, keeps them in step, and enters their reports into the ledger."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final

import anyio

from tricklecast.app.tools.stress.ledger import Ledger
from tricklecast.app.tools.stress.load import Load
from tricklecast.app.tools.stress.messages import (
    LINE_BYTES,
    Client,
    Health,
    Orders,
    clock,
    from_line,
    from_row,
    to_line,
)
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.paths import ChannelURL

LEAD_S: Final = 0.5
"""Time from the last subscriber's report to the first segment: the last request has to reach the server."""

LEAD_PER_SUBSCRIBER_S: Final = 0.002
"""Additional time for each subscriber: a server on a slow core accepts about 1000 connections per second."""

START_S: Final = 60.0
"""How long the workers may take to be ready: imports on a busy machine, then one request per client."""

END_S: Final = 10.0
"""How long the publishers may take to end their channels, and the subscribers to leave them."""

CATCH_UP_S: Final = 10.0

MAX_CPU: Final = 0.8
"""A process that uses more of a core than this on average is behind in some seconds."""

MAX_LAG_MS: Final = 20.0
"""An event loop that is later than this (99th percentile) adds to every latency. A server on the same network is
quicker than that."""

BOTTLENECK_ADVICE: Final = "use more --processes, another machine, or a smaller load"


class StressFailed(TrickleError):
    """The run could not be carried out: a worker process broke or did not start, or the server refused a channel."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    Attributes:
        base: the URL below which the channels live.
        run: a random part of the channels' names.
        load: the published segments; each channel has one publisher.
        subscribers: number of subscribers of each channel.
        processes: number of processes that publish, and of those that subscribe.
        start: where subscribers begin.
        ca_file: certificates to trust; empty for the system's.
        catch_up_s: after the last segment the run ends when no subscriber has received anything for so many seconds.
        worker: the module that runs as a worker process.
    """

    base: str
    run: str
    load: Load
    subscribers: int
    processes: int = 1
    start: str = "0"
    ca_file: str = ""
    catch_up_s: float = CATCH_UP_S
    worker: str = "tricklecast.app.tools.stress.worker"

    def channel(self, number: int | str) -> str:
        """The name of a publisher's channel, or of another channel of this run."""
        return f"stress-{self.run}-{number}"

    def publishers(self) -> list[Orders]:
        """The orders of each process that publishes."""
        return self._share([self._client(channel) for channel in range(self.load.channels)])

    def readers(self) -> list[Orders]:
        """The orders of each process that subscribes. Each process has subscribers of all channels."""
        pairs = product(range(self.subscribers), range(self.load.channels))
        return self._share([self._client(channel, number) for number, channel in pairs])

    def _client(self, channel: int, number: int = 0) -> Client:
        return Client(channel, str(ChannelURL.parse(f"{self.base}/{self.channel(channel)}")), number)

    def _share(self, clients: list[Client]) -> list[Orders]:
        shares = [tuple(clients[first :: self.processes]) for first in range(self.processes)]
        return [Orders(share, self.load, self.start, self.ca_file) for share in shares if share]


class Worker:
    """A worker process, as the command sees it.

    Args:
        name: for people.
        role: ``publish`` or ``subscribe``.
        orders: its task.

    Attributes:
        process: ``None`` before it starts, and if it could not be started.
        health: its last report; ``None`` before that, and if it broke.
        spawned, ready, finished, ended: events: it runs; its clients are connected; it has published all; it has sent
            its last report. All are set if it broke.
    """

    def __init__(self, name: str, role: str, orders: Orders) -> None:
        self.name = name
        self.role = role
        self.orders = orders
        self.process: Process | None = None
        self.health: Health | None = None
        self.spawned, self.ready, self.finished, self.ended = (anyio.Event() for _ in range(4))

    async def run(self, module: str, ledger: Ledger, heard: Callable[[], None]) -> None:
        """Start the process, and enter its reports into the ledger until it ends.

        Args:
            module: runs as the process.
            ledger: for its records.
            heard: is called after each message.
        """
        try:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, self.role),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES,
                # A terminal sends Ctrl-C to a whole session. Here the command tells its workers when to end.
                start_new_session=True,
            )
            self.spawned.set()
            assert self.process.stdout is not None
            async for line in self.process.stdout:
                self._take(from_line(line), ledger)
                heard()
        finally:
            for event in (self.spawned, self.ready, self.finished, self.ended):
                event.set()

    def _take(self, message: dict[str, Any], ledger: Ledger) -> None:
        for row in message.get("rows", ()):
            ledger.add(from_row(row))
        if "ready" in message:
            self.ready.set()
        if "finished" in message:
            self.finished.set()
        if "health" in message:
            self.health = Health(**message["health"])

    def tell(self, line: bytes) -> None:
        """Send a message."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.write(line)

    def close(self) -> None:
        """Tell the process that the run ends."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    async def end(self) -> None:
        """Make sure that the process has ended."""
        if self.process is None:
            return
        self.close()
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()


class Run:
    """A run and, when it is over, its result.

    Args:
        plan: the run's parameters.

    Attributes:
        ledger: the comparison.
        publishers, subscribers: the worker processes.
        phase: the present step, for people.
        interrupted: it was ended early.
        seconds: its duration, from when the first segment was due until all subscribers had everything.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan: Final = plan
        self.ledger = _blank(plan)
        self.publishers: list[Worker] = []
        self.subscribers: list[Worker] = []
        self.phase = "starting"
        self.interrupted = False
        self.seconds = 0.0
        self._now = clock()
        self._began_ns = 0
        self._message = anyio.Event()

    @property
    def workers(self) -> list[Worker]:
        """All processes."""
        return self.publishers + self.subscribers

    @property
    def bottlenecks(self) -> list[str]:
        """Reasons why the latencies say more about this command than about the server."""
        return list(bottlenecks({worker.name: worker.health for worker in self.workers}))

    async def carry_out(self) -> None:
        """Run to the end, or until cancelled. In both cases it ends the channels and leaves no process behind.

        Raises:
            StressFailed: a process broke, or did not start.
        """
        failure: StressFailed | None = None
        try:
            async with asyncio.TaskGroup() as listeners:
                try:
                    await self._start(listeners)
                    await self._publish()
                except StressFailed as error:
                    failure = error  # raised below, since the group would wrap it
                except asyncio.CancelledError:
                    self.interrupted = True
                    raise
                finally:
                    # Inside of the group, so that the last reports are entered also after a cancellation.
                    with anyio.CancelScope(shield=True):
                        await self._end(END_S if self._began_ns and failure is None else 0.0)
        finally:
            if not self._began_ns:
                self.ledger = _blank(self.plan)  # clients that stopped before the start are no fault
            self.ledger.close()
        if failure is not None:
            raise failure
        self._check()

    async def _start(self, listeners: asyncio.TaskGroup) -> None:
        plan = self.plan
        for number, orders in enumerate(plan.publishers(), 1):
            self.publishers.append(Worker(f"publishing process {number}", "publish", orders))
        for number, orders in enumerate(plan.readers(), 1):
            self.subscribers.append(Worker(f"subscribing process {number}", "subscribe", orders))
        # Its listener starts each process, so that a cancelled run does not lose a process that is just starting.
        for worker in self.workers:
            listeners.create_task(worker.run(plan.worker, self.ledger, self._heard))
        for worker in self.workers:
            await worker.spawned.wait()
        # Channels must exist before subscribers ask for them, and subscribers must wait before anything is published.
        for workers in (self.publishers, self.subscribers):
            for worker in workers:
                worker.tell(to_line(orders=asdict(worker.orders)))
            if not await _all([worker.ready for worker in workers], START_S):
                raise StressFailed(f"the worker processes are not ready after {START_S:.0f} s")
            self._check()

    async def _publish(self) -> None:
        plan = self.plan
        lead_s = LEAD_S + LEAD_PER_SUBSCRIBER_S * plan.subscribers * plan.load.channels
        self._began_ns = self._now() + int(lead_s * 1e9)
        for worker in self.workers:
            worker.tell(to_line(go=self._began_ns))
        self.phase = "publishing"
        await _all([worker.finished for worker in self.publishers], None)
        self._check()
        self.phase = "waiting for subscribers"
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Wait until the subscribers have everything, as long as some of them make progress."""
        received = self.ledger.received
        with anyio.move_on_after(self.plan.catch_up_s) as limit:
            had = received.segments
            while not self.ledger.caught_up:
                await self._message.wait()
                if received.segments > had:
                    had = received.segments
                    limit.deadline = anyio.current_time() + self.plan.catch_up_s

    async def _end(self, leave_s: float) -> None:
        """End the channels, the subscribers and the processes.

        Args:
            leave_s: how long subscribers may take to reach the end of their channels, in seconds.
        """
        self.seconds = max(0.0, (self._now() - self._began_ns) / 1e9) if self._began_ns else 0.0
        self.phase = "ending"
        try:
            for worker in self.workers:
                await worker.spawned.wait()
            for worker in self.publishers:
                worker.close()
            await _all([worker.ended for worker in self.publishers], END_S)
            # A subscriber ends with its channel. One that does not learn of that end is told here.
            await _all([worker.ended for worker in self.subscribers], leave_s)
            for worker in self.subscribers:
                worker.close()
            await _all([worker.ended for worker in self.subscribers], END_S)
        finally:
            for worker in self.workers:
                await worker.end()

    def _heard(self) -> None:
        message, self._message = self._message, anyio.Event()
        message.set()

    def _check(self) -> None:
        for worker in self.workers:
            if worker.ended.is_set() and worker.health is None:
                raise StressFailed(f"{worker.name} broke; see its messages above")


def bottlenecks(health: Mapping[str, Health | None]) -> Iterator[str]:
    """One line for each way in which a process could not keep up.

    Args:
        health: of each process, by its name; ``None`` for one that broke.
    """
    for name, state in health.items():
        if state is None:
            continue
        if state.cpu > MAX_CPU:
            yield f"{name} used {state.cpu:.0%} of a core (more than {MAX_CPU:.0%})"
        if state.lag_ms > MAX_LAG_MS:
            yield f"{name} ran its event loop {state.lag_ms:.0f} ms late (more than {MAX_LAG_MS:.0f} ms, p99)"
        if state.late_ms > MAX_LAG_MS:
            yield f"{name} woke {state.late_ms:.0f} ms late to publish (more than {MAX_LAG_MS:.0f} ms, p99)"


def _blank(plan: Plan) -> Ledger:
    names = [plan.channel(number) for number in range(plan.load.channels)]
    return Ledger(names, plan.subscribers, plan.load.segments)


async def _all(events: Sequence[anyio.Event], within_s: float | None) -> bool:
    """Wait for all events; returns whether they came in time."""
    with anyio.move_on_after(within_s):
        for event in events:
            await event.wait()
        return True
    return False
