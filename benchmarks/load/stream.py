"""One publisher and many readers of one channel, paced or as fast as the server takes it."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.load.http import STAMP, Connection, http_chunk, stamped
from benchmarks.load.loop import Loop
from benchmarks.load.meter import Meter, Result
from benchmarks.scenarios import Stream

CHANNEL = "/trickle/bench"
SETTLE_S = 0.3
"""How long the server has for its new connections before the first chunk."""

DRAIN_S = 3.0
"""How long chunks that were published may still arrive before they count as lost."""

STUCK_S = 10.0
"""How long the server may take nothing from the publisher, or not answer, before the run is given up."""


class Reader:
    """A subscriber on two connections: as soon as a segment begins, the next one is asked for on the other."""

    def __init__(self, loop: Loop, scenario: Stream, meter: Meter, *, follow: bool) -> None:
        self.received = 0
        self._meter = meter
        self._seq = 0
        self._pending = False
        self._connections = [Connection(loop, scenario.chunk_bytes, self._chunk) for _ in range(1 + follow)]
        if follow:
            for connection in self._connections:
                connection.on_head = self._preconnect
                connection.on_end = self._ended
        self._ask()

    def _ask(self) -> None:
        self._connections[self._seq % len(self._connections)].request("GET", f"{CHANNEL}/{self._seq}")

    def _preconnect(self) -> None:
        self._seq += 1
        if self._connections[self._seq % 2].busy:
            self._pending = True
        else:
            self._ask()

    def _ended(self) -> None:
        if self._pending:
            self._pending = False
            self._ask()

    def _chunk(self, latency: int) -> None:
        self.received += 1
        self._meter.chunk(latency)


class Publisher:
    """Publishes segments on connections that take turns, each segment announced one ahead."""

    def __init__(self, loop: Loop, scenario: Stream, *, segmented: bool) -> None:
        self.published = 0
        self._chunks = scenario.chunks_per_segment if segmented else 0
        self._filler = bytes(scenario.chunk_bytes - STAMP.size)
        self._connections = [Connection(loop, 0, lambda _: None) for _ in range(1 + segmented)]
        self._seq = 0
        self._announced = -1
        for connection in self._connections:
            connection.on_end = self._announce
            self._announce()

    def _announce(self) -> None:
        """Send the head of the next segment's POST; the connection whose turn it is has just been answered."""
        self._announced += 1
        fields = "Content-Type: video/mp2t\r\nTransfer-Encoding: chunked\r\n"
        self._connection(self._announced).request("POST", f"{CHANNEL}/{self._announced}", fields)

    def _connection(self, seq: int) -> Connection:
        return self._connections[seq % len(self._connections)]

    @property
    def _at_end(self) -> bool:
        return bool(self._chunks) and self.published == (self._seq + 1) * self._chunks

    @property
    def ready(self) -> bool:
        """Whether the next chunk can be sent at once."""
        return not self._connection(self._seq).blocked and self._announced >= self._seq + self._at_end

    def publish(self) -> None:
        """Send a chunk. A segment ends when the next one begins, as it does where a picture group ends."""
        if self._at_end:
            self._connection(self._seq).send(b"0\r\n\r\n")
            self._seq += 1
        self._connection(self._seq).send(http_chunk(stamped(self._filler)))
        self.published += 1


def create(loop: Loop, path: str) -> None:
    """Create a channel, and wait until it is there."""
    connection = Connection(loop, 0, lambda _: None)
    connection.request("POST", path, "Expect-Content: video/mp2t\r\nContent-Length: 0\r\n")
    deadline = time.monotonic() + STUCK_S
    while connection.busy:
        if time.monotonic() > deadline:
            raise TimeoutError("the server does not answer")
        loop.turn(deadline)
    connection.close()


def run(loop: Loop, scenario: Stream, pid: int, *, endless: bool) -> Result:
    """Run a scenario against a server.

    Args:
        pid: of the server. endless: it knows no segments: everybody gets one that never ends.
    """
    if not endless:
        create(loop, CHANNEL)
    meter = Meter(pid)
    readers = [Reader(loop, scenario, meter, follow=not endless) for _ in range(scenario.readers)]
    turn_until(loop, time.monotonic() + SETTLE_S)
    publisher = Publisher(loop, scenario, segmented=not endless)
    turn_until(loop, time.monotonic() + SETTLE_S)
    publish = _paced(loop, publisher, scenario.rate) if scenario.rate else _unpaced(loop, publisher, readers, scenario)
    publish(time.monotonic() + scenario.warm_up_s)
    meter.begin()
    publish(time.monotonic() + scenario.measure_s)
    meter.end()
    expected = publisher.published * scenario.readers
    deadline = time.monotonic() + DRAIN_S
    while meter.delivered < expected and time.monotonic() < deadline:
        loop.turn(deadline)
    return meter.result(expected)


def turn_until(loop: Loop, until: float) -> None:
    """Handle what comes until then (``time.monotonic``)."""
    while time.monotonic() < until:
        loop.turn(until)


def _paced(loop: Loop, publisher: Publisher, rate: float) -> Callable[[float], None]:
    """Publish at a fixed rate; a publisher that came late catches up, so that the number of chunks is the same."""

    def publish(until: float) -> None:
        begun = time.monotonic()
        chunks = 0
        while (due := begun + chunks / rate) < until:
            turn_until(loop, due)
            stuck_at = due + STUCK_S
            while not publisher.ready:
                if time.monotonic() > stuck_at:
                    raise TimeoutError("the server takes nothing more from the publisher")
                loop.turn(stuck_at)
            publisher.publish()
            chunks += 1
        turn_until(loop, until)

    return publish


def _unpaced(loop: Loop, publisher: Publisher, readers: list[Reader], scenario: Stream) -> Callable[[float], None]:
    """Publish whenever the server takes data, but never further ahead of the slowest reader than the lead."""

    def publish(until: float) -> None:
        slowest = min(reader.received for reader in readers)
        while time.monotonic() < until:
            while publisher.ready and publisher.published - slowest < scenario.lead:
                publisher.publish()
            loop.turn(until)
            slowest = min(reader.received for reader in readers)

    return publish
