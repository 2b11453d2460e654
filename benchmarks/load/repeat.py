"""Clients that send the same request again and again, each as soon as it is answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

from benchmarks.load.http import Connection
from benchmarks.load.loop import Loop, address
from benchmarks.load.meter import Meter
from benchmarks.load.stream import CHANNEL, SETTLE_S, STUCK_S, ask, create, turn_until
from benchmarks.scenarios import Ask, Repeat

PATHS = {Ask.MISSING: "/trickle/missing/5", Ask.AHEAD: f"{CHANNEL}/500", Ask.ENDED: f"{CHANNEL}/1"}
"""What is asked for; otherwise it is segment 0."""

STATUSES = {Ask.MISSING: (404,), Ask.AHEAD: (470,), Ask.FULL: (503,), Ask.CHANNEL_FULL: (429,)}
"""What the answer must be; otherwise it is 200."""


@dataclass(frozen=True, slots=True)
class RepeatResult:
    """What one run found.

    Attributes:
        cpu_us: server CPU per answer, microseconds.
        rate: answers per second.
        server_busy, load_busy: CPU time of a wall second of the server, and of the load generator.
    """

    cpu_us: float
    rate: float
    server_busy: float
    load_busy: float


class Client:
    """One of them.

    Args:
        number: which; each has an address of its own.
        answered: told of every answer.
    """

    def __init__(self, loop: Loop, scenario: Repeat, number: int, answered: Callable[[], None]) -> None:
        self._loop = loop
        paths = [PATHS.get(scenario.ask, f"{path}/0") for path in _channels(scenario)]
        self._paths = cycle(paths[number % len(paths) :] + paths[: number % len(paths)])
        self._expected = STATUSES.get(scenario.ask, (200,))
        self._keep_alive = scenario.keep_alive
        self._source = address(number)
        self._answered = answered
        self._connect()

    def _connect(self) -> None:
        self._connection = Connection(self._loop, 0, expected=self._expected, source=self._source)
        self._connection.on_end = self._again
        self._connection.on_close = self._reconnect
        self._connection.request("GET", next(self._paths))

    def _again(self) -> None:
        self._answered()
        if self._keep_alive:
            self._connection.request("GET", next(self._paths))
        else:
            self._reconnect()

    def _reconnect(self) -> None:
        self._connection.close()
        self._connect()


def run(loop: Loop, scenario: Repeat, pid: int) -> RepeatResult:
    """Run a scenario against a server.

    Args:
        pid: of the server.
    """
    _prepare(loop, scenario)
    meter = Meter(pid)
    clients = [Client(loop, scenario, number, lambda: meter.chunk(0)) for number in range(scenario.clients)]
    _turn(loop, meter, scenario.warm_up_s)
    meter.begin()
    _turn(loop, meter, scenario.measure_s)
    meter.end()
    found = meter.result(meter.delivered)
    assert clients, "they live until here"
    return RepeatResult(found.cpu_us, found.rate, found.server_busy, found.load_busy)


def _channels(scenario: Repeat) -> list[str]:
    return [CHANNEL, *(f"{CHANNEL}.{number}" for number in range(1, scenario.channels))]


def _turn(loop: Loop, meter: Meter, seconds: float) -> None:
    """For so long, and until there is another answer: on a slow machine the first ones take their time."""
    before, stuck_at = meter.delivered, time.monotonic() + STUCK_S
    turn_until(loop, time.monotonic() + seconds)
    while meter.delivered == before:
        if time.monotonic() > stuck_at:
            raise TimeoutError("the server does not answer")
        loop.turn(stuck_at)


def _prepare(loop: Loop, scenario: Repeat) -> None:
    """Make what will be asked for."""
    if scenario.ask is Ask.MISSING:
        return
    create(loop, CHANNEL)
    if scenario.ask in (Ask.FULL, Ask.CHANNEL_FULL):
        Connection(loop, 0).request("GET", f"{CHANNEL}/0")
        turn_until(loop, time.monotonic() + SETTLE_S)
    elif scenario.ask is not Ask.AHEAD:
        size = 0 if scenario.ask is Ask.EMPTY else scenario.body_bytes
        for path in _channels(scenario):
            ask(loop, "POST", f"{path}/0", f"Content-Length: {size}\r\n", bytes(size))
    if scenario.ask is Ask.ENDED:
        ask(loop, "DELETE", CHANNEL)
