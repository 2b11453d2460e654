"""Runs a plan: starts the worker processes, keeps them in step, and enters what they report into the ledger."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio

from tricklecast.app.stress.ledger import Ledger
from tricklecast.app.stress.plan import Plan
from tricklecast.app.stress.worker import LINE_BYTES, clock
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.stress import Health, Orders, from_line, from_row, to_line

LEAD_S: Final = 0.5
"""From when the last subscriber is ready to the first segment: its first request has to reach the server."""

LEAD_PER_SUBSCRIBER_S: Final = 0.002
"""And as much for each: connections are accepted at about 1000 per second by a server on a slow core."""

START_S: Final = 60.0
"""Longest time for the workers to be ready: imports on a busy machine, then one step per seat."""

END_S: Final = 10.0
"""How long either side may take to end: the publishers to end their channels, the subscribers to leave them."""


class StressFailed(TrickleError):
    """The run could not be carried out: a worker process broke, or did not start."""


class Worker:
    """A worker process, as the command sees it.

    Args:
        name: for people.
        module: the module whose ``work`` it runs.
        orders: what it is to do.

    Attributes:
        process: where it runs; ``None`` before it does, and if it could not be started.
        health: what it said at its end; ``None`` before, and if it broke.
        spawned, ready, finished, ended: it runs; has set itself up; has published all; says nothing more. All are set
            if it broke.
    """

    def __init__(self, name: str, module: str, orders: Orders) -> None:
        self.name = name
        self.orders = orders
        self.process: Process | None = None
        self.health: Health | None = None
        self.spawned, self.ready, self.finished, self.ended = (anyio.Event() for _ in range(4))
        self._module = module

    async def run(self, ledger: Ledger, heard: Callable[[], None]) -> None:
        """Start it, and enter what it says into the ledger until it says no more.

        Args:
            ledger: where records go.
            heard: called after each line.
        """
        try:
            self.process = await _spawn(self._module)
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
        """Say something."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.write(line)

    def close(self) -> None:
        """Say that the run is to end."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    async def end(self) -> None:
        """Make sure that the process is gone."""
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
        plan: what is to be done.

    Attributes:
        ledger: what came of it.
        publishers, subscribers: the processes that did it.
        phase: what goes on, for people.
        interrupted: it was ended early.
        seconds: how long it took, from when the first segment was due until everybody had everything.
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
        self._news = anyio.Event()

    @property
    def workers(self) -> list[Worker]:
        """All processes."""
        return self.publishers + self.subscribers

    async def carry_out(self) -> None:
        """Do it, to the end or until cancelled; either way the channels are ended, and no process is left.

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
                    failure = error  # raised below: the group would wrap it
                except asyncio.CancelledError:
                    self.interrupted = True
                    raise
                finally:
                    # Within the group: what is said at the end is listened to, and after a cancellation, too.
                    with anyio.CancelScope(shield=True):
                        await self._end(END_S if self._began_ns and failure is None else 0.0)
        finally:
            if not self._began_ns:
                self.ledger = _blank(self.plan)  # nobody had anything to do: that somebody stopped is no fault
            self.ledger.close()
        if failure is not None:
            raise failure
        self._check()

    async def _start(self, listeners: asyncio.TaskGroup) -> None:
        plan = self.plan
        for number, orders in enumerate(plan.publishers(), 1):
            self.publishers.append(Worker(f"publishing process {number}", plan.publishing, orders))
        for number, orders in enumerate(plan.readers(), 1):
            self.subscribers.append(Worker(f"subscribing process {number}", plan.subscribing, orders))
        # Each is started by its listener: one that is being started when the run is cancelled is not lost.
        for worker in self.workers:
            listeners.create_task(worker.run(self.ledger, self._heard))
        for worker in self.workers:
            await worker.spawned.wait()
        # The channels have to be there before anybody asks for them, and all who read before anything is published.
        for workers in (self.publishers, self.subscribers):
            for worker in workers:
                worker.tell(to_line(orders=worker.orders.dump()))
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
        """Wait until subscribers have everything, as long as they get on: one that is late is not one that loses."""
        received = self.ledger.received
        with anyio.move_on_after(self.plan.catch_up_s) as patience:
            had = received.segments
            while not self.ledger.caught_up:
                await self._news.wait()
                if received.segments > had:
                    had = received.segments
                    patience.deadline = anyio.current_time() + self.plan.catch_up_s

    async def _end(self, patience_s: float) -> None:
        """End the channels, the subscribers and the processes.

        Args:
            patience_s: how long subscribers may take to come to their channel's end, in seconds.
        """
        self.seconds = max(0.0, (self._now() - self._began_ns) / 1e9) if self._began_ns else 0.0
        self.phase = "ending"
        try:
            for worker in self.workers:
                await worker.spawned.wait()
            for worker in self.publishers:
                worker.close()
            await _all([worker.ended for worker in self.publishers], END_S)
            # The end of its channel is what ends a subscriber. Those who do not hear of it are told.
            await _all([worker.ended for worker in self.subscribers], patience_s)
            for worker in self.subscribers:
                worker.close()
            await _all([worker.ended for worker in self.subscribers], END_S)
        finally:
            for worker in self.workers:
                await worker.end()

    def _heard(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    def _check(self) -> None:
        for worker in self.workers:
            if worker.ended.is_set() and worker.health is None:
                raise StressFailed(f"{worker.name} broke; see what it said above")


def _blank(plan: Plan) -> Ledger:
    names = [plan.channel(number) for number in range(plan.load.channels)]
    return Ledger(names, plan.subscribers, plan.load.segments)


async def _spawn(module: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tricklecast.app.stress.worker", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES,
        # Ctrl-C on a terminal goes to the whole group of processes; here it is the command that says when to end.
        start_new_session=True,
    )


async def _all(events: Sequence[anyio.Event], within_s: float | None) -> bool:
    """Wait for all of them; whether they came in time."""
    with anyio.move_on_after(within_s):
        for event in events:
            await event.wait()
        return True
    return False
