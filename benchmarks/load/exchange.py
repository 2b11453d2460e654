"""Many channels with one reader each: a segment is one POST and one GET, and the next begins when both are over.

A closed loop: each channel has one segment under way, so that a slow server is asked for less instead of being
swamped, and the cost per segment can be compared between servers that differ by a factor of ten.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from benchmarks.load.http import STAMP, Connection, stamped
from benchmarks.load.loop import Loop
from benchmarks.load.meter import Meter, Result, quantile
from benchmarks.load.stream import DRAIN_S, SETTLE_S, create, turn_until
from benchmarks.scenarios import Dialect, Exchanges


@dataclass(frozen=True, slots=True)
class ExchangeResult(Result):
    """What one run found.

    Attributes:
        publish_p50_ms, publish_p99_ms: from sending a segment to having the answer.
    """

    publish_p50_ms: float
    publish_p99_ms: float


class Pair:
    """A publisher and a reader of one channel, each on a keep-alive connection."""

    def __init__(self, loop: Loop, path: str, size: int, meter: Meter) -> None:
        self.published = self.stored = self.read = 0
        self.stored_ns: list[int] = []
        self._published_at = 0
        self.stopped = False
        self._path = path
        self._fields = f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
        self._filler = bytes(size - STAMP.size)
        self._reader = Connection(loop, size, meter.chunk)
        self._publisher = Connection(loop, 0)
        self._reader.on_end = self._has_read
        self._publisher.on_end = self._has_stored
        self._reader.request("GET", f"{path}/0")

    def publish(self) -> None:
        """Publish the next segment, if the previous one is over on both sides."""
        if self.stored == self.read == self.published and not self.stopped:
            seq = self.published
            self.published += 1
            self._published_at = time.monotonic_ns()
            self._publisher.request("POST", f"{self._path}/{seq}", self._fields, stamped(self._filler))

    def _has_read(self) -> None:
        self.read += 1
        self._reader.request("GET", f"{self._path}/{self.read}")
        self.publish()

    def _has_stored(self) -> None:
        self.stored += 1
        self.stored_ns.append(time.monotonic_ns() - self._published_at)
        self.publish()


def run(loop: Loop, scenario: Exchanges, pid: int, dialect: Dialect) -> ExchangeResult:
    """Run a scenario against a server.

    Args:
        pid: of the server. dialect: what it understands.
    """
    meter = Meter(pid)
    paths = [f"/trickle/bench{number}" for number in range(scenario.channels)]
    if dialect is Dialect.TRICKLE:
        for path in paths:
            create(loop, path)
    pairs = [Pair(loop, path, scenario.chunk_bytes, meter) for path in paths]
    turn_until(loop, time.monotonic() + SETTLE_S)
    for pair in pairs:
        pair.publish()
    turn_until(loop, time.monotonic() + scenario.warm_up_s)
    meter.begin()
    for pair in pairs:
        pair.stored_ns.clear()
    turn_until(loop, time.monotonic() + scenario.measure_s)
    meter.end()
    for pair in pairs:
        pair.stopped = True
    expected = sum(pair.published for pair in pairs)
    deadline = time.monotonic() + DRAIN_S
    while meter.delivered < expected and time.monotonic() < deadline:
        loop.turn(deadline)
    stored = sorted(took for pair in pairs for took in pair.stored_ns)
    result = asdict(meter.result(expected))
    return ExchangeResult(
        **result, publish_p50_ms=quantile(stored, 0.50) / 1e6, publish_p99_ms=quantile(stored, 0.99) / 1e6
    )
