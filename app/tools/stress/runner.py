"""Runs a stress test: starts the worker processes, keeps them in step, and enters their reports into the ledger.

The command and a worker exchange messages, each a JSON object in one line.

==============  =================================================================================================
to a worker     ``{"plan": {…}}`` first; ``{"go": ns}``, the time at which the first segment is due; the end of
                the input ends the run, so that no worker outlives the command
from a worker   ``{"report": {…}}`` ten times a second; in some of them also ``"ready": true`` (its clients are
                connected), ``"finished": true`` (all is published), and at last ``"health": {…}``
==============  =================================================================================================

Times are those of the monotonic clock, which counts from the machine's start in all processes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, Any, Final

import anyio

from tricklecast.app.tools.stress.ledger import Ledger, WorkerReport
from tricklecast.app.tools.stress.load import Role, StressPlan
from tricklecast.trickle.errors import TrickleError

LEAD_S: Final = 0.5
"""Time from the last subscriber's report to the first segment: the last request has to reach the server."""

LEAD_PER_SUBSCRIBER_S: Final = 0.002
"""Additional time for each subscriber: a server on a slow core accepts about 1000 connections per second."""

START_S: Final = 60.0
"""The deadline for the workers to be ready: imports on a busy machine, then one request per client."""

END_S: Final = 15.0
"""The deadline for the publishers to end their channels, and then for the subscribers to leave them."""

CATCH_UP_S: Final = 10.0
"""After the last segment the run ends when no subscriber has received a byte for this time."""

MAX_CPU: Final = 0.8
"""A process that uses more of a core than this on average is behind in some seconds."""

MAX_LAG_MS: Final = 20.0
"""An event loop that is later than this (99th percentile) adds to every latency. A server on the same network is
quicker than that."""

LINE_BYTES: Final = 64 << 20
"""Limit of a message: a report on a tenth of a second is far smaller."""

WORKER: Final = "tricklecast.app.tools.stress.worker"
"""The module that a worker process runs."""

ROLES: Final[tuple[Role, ...]] = ("publish", "subscribe")


class StressFailed(TrickleError):
    """The run could not be carried out: a worker process broke or did not start, or the server refused a channel."""


async def messages(pipe: IO[bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the messages that come through a pipe, until the other side closes it."""
    lines = asyncio.StreamReader(limit=LINE_BYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    try:
        async for line in lines:
            yield json.loads(line)
    finally:
        transport.close()


def send(pipe: IO[bytes], **message: Any) -> None:
    """Send a message. It is lost if the other side has ended."""
    with suppress(BrokenPipeError):
        pipe.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        pipe.flush()


@dataclass(frozen=True, slots=True)
class Health:
    """The load of a worker process, which shows whether it could keep up.

    Attributes:
        cpu: the share of one core that it used while the schedule ran, 0 to 1.
        lag_ms: delay of its event loop, in milliseconds (99th percentile).
        late_ms: delay with which it woke to write a chunk, in milliseconds (99th percentile); 0 for subscribers.
        samples: number of measurements of the lag.
    """

    cpu: float
    lag_ms: float
    late_ms: float
    samples: int

    def bottlenecks(self, name: str) -> Iterator[str]:
        """One line for each reason why latencies say more about this process than about the server."""
        if self.cpu > MAX_CPU:
            yield f"{name} used {self.cpu:.0%} of a core (more than {MAX_CPU:.0%})"
        if self.lag_ms > MAX_LAG_MS:
            yield f"{name} ran its event loop {self.lag_ms:.0f} ms late (more than {MAX_LAG_MS:.0f} ms, p99)"
        if self.late_ms > MAX_LAG_MS:
            yield f"{name} woke {self.late_ms:.0f} ms late to publish (more than {MAX_LAG_MS:.0f} ms, p99)"


class Worker:
    """A worker process, as the command sees it; its states are ``ready``, ``finished`` and ``ended``."""

    def __init__(self, role: Role, number: int) -> None:
        self.role = role
        self.name = f"{'publishing' if role == 'publish' else 'subscribing'} process {number + 1}"
        self.states: set[str] = set()
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER, role, str(number)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A terminal sends Ctrl-C to a whole session. Here the command tells its workers when to end.
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout


class StressRun:
    """A run and, when it is over, its result.

    Attributes:
        health: of each worker process, by its name; ``None`` until it has ended, and if it broke.
        phase: the present step, for people.
        seconds: its duration, from when the first segment was due until all subscribers had everything.
    """

    def __init__(self, plan: StressPlan) -> None:
        self.plan: Final = plan
        self.ledger = Ledger(plan)
        self.workers: list[Worker] = []
        self.health: dict[str, Health | None] = {}
        self.phase = "starting"
        self.interrupted = False
        self.seconds = 0.0
        self._began_ns = 0  # the time at which the first segment is due; 0 before the start
        self._message = anyio.Event()  # is set, and replaced, with each message of a worker
        self._listeners: list[asyncio.Task[None]] = []  # one for each worker

    @property
    def bottlenecks(self) -> list[str]:
        """Reasons why the latencies say more about this command than about the server."""
        return [line for name, health in self.health.items() if health for line in health.bottlenecks(name)]

    async def carry_out(self) -> None:
        """Run to the end, or until cancelled. In both cases it ends the channels and leaves no process behind.

        Raises:
            StressFailed: a process broke or did not start, or a publisher cannot create its channel.
        """
        try:
            await self._start()
            await self._publish()
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()
        self._check()

    async def _start(self) -> None:
        for role in ROLES:
            for number in range(len(self.plan.clients(role))):
                worker = Worker(role, number)
                self.workers.append(worker)
                self.health[worker.name] = None
                self._listeners.append(asyncio.create_task(self._listen(worker)))
        # Channels must exist before subscribers ask for them, and subscribers must wait before anything is published.
        for role in ROLES:
            await self._connect(role)

    async def _connect(self, role: Role) -> None:
        self._tell(role, plan=asdict(self.plan))
        failures = self.ledger.examples if role == "publish" else {}
        if not await self._until(lambda: failures or self._all(role, "ready"), START_S):
            raise StressFailed(f"the worker processes are not ready after {START_S:.0f} s")
        self._check()
        for examples in failures.values():  # a wrong URL costs one line and not a table of faults
            raise StressFailed(examples[0])

    async def _publish(self) -> None:
        clients, ledger = self.plan.subscribers * self.plan.load.channels, self.ledger
        self._began_ns = time.monotonic_ns() + int((LEAD_S + LEAD_PER_SUBSCRIBER_S * clients) * 1e9)
        for role in ROLES:
            self._tell(role, go=self._began_ns)
        self.phase = "publishing"
        await self._until(lambda: self._all("publish", "finished"), None)
        self._check()
        self.phase = "waiting for subscribers"
        progress = True
        while progress and not ledger.caught_up:
            progress = await self._until(partial(self._has_more, ledger.received.segments), CATCH_UP_S)

    async def _end(self) -> None:
        """End the channels, then the subscribers, then the processes, and the comparison."""
        self.phase = "ending"
        if self._began_ns:
            self.seconds = max(0.0, (time.monotonic_ns() - self._began_ns) / 1e9)
        try:
            for worker in self.workers:
                worker.input.close()
            await self._until(lambda: self._all("publish", "ended"), END_S)
            if not self._broken:  # otherwise subscribers may wait for the end of a channel without a publisher
                await self._until(lambda: self._all("subscribe", "ended"), END_S)
        finally:
            for worker in self.workers:
                if "ended" not in worker.states:
                    worker.process.kill()
                worker.process.wait()
            await asyncio.gather(*self._listeners)
            if not self._began_ns:
                self.ledger = Ledger(self.plan)  # clients that stopped before the start are no fault
            self.ledger.close()

    async def _listen(self, worker: Worker) -> None:
        """Enter a worker's reports into the ledger until it ends."""
        try:
            async for message in messages(worker.output):
                self.ledger.add(worker.name, worker.role, WorkerReport(**message.pop("report")))
                if "health" in message:
                    self.health[worker.name] = Health(**message["health"])
                worker.states.update(message)
                self._wake()
        finally:
            worker.states.update(("ready", "finished", "ended"))
            self._wake()

    def _wake(self) -> None:
        message, self._message = self._message, anyio.Event()
        message.set()

    async def _until(self, holds: Callable[[], object], within_s: float | None) -> bool:
        """Wait until the workers' messages make something true; returns whether they did in time."""
        with anyio.move_on_after(within_s):
            while not holds():
                await self._message.wait()
            return True
        return False

    def _tell(self, role: Role, **message: Any) -> None:
        for worker in self.workers:
            if worker.role == role:
                send(worker.input, **message)

    def _all(self, role: Role, state: str) -> bool:
        return all(worker.role != role or state in worker.states for worker in self.workers)

    def _has_more(self, than: int) -> bool:
        return self.ledger.caught_up or self.ledger.received.segments > than

    @property
    def _broken(self) -> list[str]:
        return [worker.name for worker in self.workers if "ended" in worker.states and not self.health[worker.name]]

    def _check(self) -> None:
        for name in self._broken:
            raise StressFailed(f"{name} broke; see its messages above")
