"""One publisher and many readers of one channel, paced or as fast as the server takes it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Protocol

from benchmarks.load.http import STAMP, Connection, StampedChunk, stamped
from benchmarks.load.loop import Loop, address
from benchmarks.load.meter import Meter, Result, family, quantile, rss_bytes, servers_of
from benchmarks.load.stalled import Stalled
from benchmarks.scenarios import Dialect, Stream
from tricklecast.app.workers.placement import owner_of

CHANNEL = "/trickle/bench"
READER_FIELDS = {
    Dialect.TRICKLE: "",
    Dialect.ONE_RESPONSE: "",
    Dialect.BARE: "",
    # Without it nchan sends every message in a response of its own.
    Dialect.NCHAN: "TE: chunked\r\n",
}
SEGMENTED = (Dialect.TRICKLE, Dialect.ONE_RESPONSE)
STORED = (200, 201, 202)
"""What a publisher is answered; nchan tells by it whether there are readers."""

SETTLE_S = 0.3
"""How long the server has for its new connections before the first chunk."""

JOIN, JOIN_S = 50, 0.05
"""So many readers come in this time, in seconds, where there are thousands of them for several workers."""

DRAIN_S = 3.0
"""How long chunks that were published may still arrive before they count as lost."""

STUCK_S = 10.0
"""How long the server may take nothing from the publisher, or not answer, before the run is given up."""


@dataclass(frozen=True, slots=True)
class StreamResult(Result):
    """What one run found.

    Attributes:
        pace: published chunks per second. blocked: the share of the time in which a chunk was due, but the server did
            not take it.
        rss_kb: resident memory of the server at the end of the measured phase, in units of 1000 bytes.
        stalled: readers that never read, and are still connected then.
    """

    pace: float
    blocked: float
    rss_kb: float
    stalled: int


@dataclass(frozen=True, slots=True)
class SpreadResult(StreamResult):
    """The same where readers of a channel are at several workers; not a number where there are none.

    Attributes:
        owner_first_ms, holder_first_ms: the median time from publishing the first chunk of a segment to having received
            it, at the owner of the channel, and at other workers. owner_p99_ms, holder_p99_ms: of all chunks.
    """

    owner_first_ms: float
    holder_first_ms: float
    owner_p99_ms: float
    holder_p99_ms: float


class Reader:
    """A subscriber on two connections: as soon as a segment begins, the next one is asked for on the other.

    Where there are no segments it has one connection, and one request.

    Args:
        number: which; it has an address of its own, as real ones do.

    Attributes:
        latencies: of the chunks of each connection, if the scenario tells workers apart.
    """

    def __init__(self, loop: Loop, scenario: Stream, meter: Meter, dialect: Dialect, number: int) -> None:
        follow = dialect is Dialect.TRICKLE
        self.received = 0
        self._meter = meter
        self._fields = READER_FIELDS[dialect]
        self._path = f"{CHANNEL}/stream?start=next" if dialect is Dialect.ONE_RESPONSE else ""
        self._seq = 0
        self._pending = False
        source = None if scenario.one_address else address(number)
        self.latencies = [array("q") for _ in range(1 + follow)]
        noted = [partial(self._note, found) if scenario.by_worker else self._chunk for found in self.latencies]
        self._connections = [Connection(loop, scenario.chunk_bytes, note, source=source) for note in noted]
        if follow:
            for connection in self._connections:
                connection.on_head = self._preconnect
                connection.on_end = self._ended
        self._ask()

    def _ask(self) -> None:
        path = self._path or f"{CHANNEL}/{self._seq}"
        self._connections[self._seq % len(self._connections)].request("GET", path, self._fields)

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

    def _note(self, found: array[int], latency: int) -> None:
        found.append(latency)
        self._chunk(latency)

    def latencies_by_address(self) -> Iterator[tuple[tuple[str, int], array[int]]]:
        """Those of each connection, with its address."""
        for connection, found in zip(self._connections, self.latencies, strict=True):
            yield connection.address, found


class AnyPublisher(Protocol):
    """What publishes."""

    @property
    def published(self) -> int:
        """How many chunks have been sent."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the next chunk can be sent at once."""
        ...

    def publish(self) -> None:
        """Send a chunk."""
        ...


class Publisher:
    """Publishes segments on two connections that take turns, each segment announced one ahead.

    Args:
        path: of the channel. chunk_bytes: of each chunk.
        chunks_per_segment: after so many a new segment begins; 0 for one segment without an end, on one connection.
    """

    def __init__(self, loop: Loop, path: str, chunk_bytes: int, chunks_per_segment: int) -> None:
        self.published = 0
        self._path = path
        self._chunks = chunks_per_segment
        self._chunk = StampedChunk(chunk_bytes)
        self._connections = [Connection(loop, 0) for _ in range(2 if chunks_per_segment else 1)]
        self._seq = 0
        self._announced = -1
        for connection in self._connections:
            connection.on_end = self._announce
            self._announce()

    def _announce(self) -> None:
        """Send the head of the next segment's POST; the connection whose turn it is has just been answered."""
        self._announced += 1
        fields = "Content-Type: video/mp2t\r\nTransfer-Encoding: chunked\r\n"
        self._connection(self._announced).request("POST", f"{self._path}/{self._announced}", fields)

    def _connection(self, seq: int) -> Connection:
        return self._connections[seq % len(self._connections)]

    @property
    def _at_end(self) -> bool:
        return bool(self._chunks) and self.published == (self._seq + 1) * self._chunks

    @property
    def ready(self) -> bool:
        """Whether the next chunk can be sent at once."""
        return not self._connection(self._seq).blocked and self._announced >= self._seq + self._at_end

    def publish(self, stamp_ns: int | None = None) -> None:
        """Send a chunk. A segment ends when the next one begins, as it does where a picture group ends.

        Args:
            stamp_ns: when the chunk was due (``time.monotonic_ns``); ``None``: now.
        """
        if self._at_end:
            self._connection(self._seq).send(b"0\r\n\r\n")
            self._seq += 1
        self._connection(self._seq).send(self._chunk.stamped(stamp_ns or time.monotonic_ns()))
        self.published += 1


class RequestPublisher:
    """Publishes each chunk in a request of its own, the next one when the present one is answered."""

    def __init__(self, loop: Loop, scenario: Stream) -> None:
        self.published = 0
        self._filler = bytes(scenario.chunk_bytes - STAMP.size)
        self._fields = f"Content-Type: video/mp2t\r\nContent-Length: {scenario.chunk_bytes}\r\n"
        self._connection = Connection(loop, 0, expected=STORED)

    @property
    def ready(self) -> bool:
        """Whether the next chunk can be sent at once."""
        return not self._connection.busy

    def publish(self) -> None:
        """Send a chunk."""
        self._connection.request("POST", f"{CHANNEL}/publish", self._fields, stamped(self._filler))
        self.published += 1


def create(loop: Loop, path: str) -> None:
    """Create a channel, and wait until it is there."""
    ask(loop, "POST", path, "Expect-Content: video/mp2t\r\nContent-Length: 0\r\n")


def ask(loop: Loop, method: str, path: str, fields: str = "", body: bytes = b"") -> None:
    """Make one request on a connection of its own, and wait for the answer.

    Raises:
        TimeoutError: there is none for :data:`STUCK_S`.
    """
    connection = Connection(loop, 0)
    connection.request(method, path, fields, body)
    deadline = time.monotonic() + STUCK_S
    while connection.busy:
        if time.monotonic() > deadline:
            raise TimeoutError("the server does not answer")
        loop.turn(deadline)
    connection.close()


def run(loop: Loop, scenario: Stream, pid: int, dialect: Dialect) -> StreamResult:
    """Run a scenario against a server.

    Args:
        pid: of the server. dialect: what it understands.
    """
    if dialect in SEGMENTED:
        create(loop, CHANNEL)
    meter = Meter(pid)
    stalled = Stalled(loop.port, f"{CHANNEL}/0", scenario.stalled)
    readers = []
    for number in range(scenario.readers):
        readers.append(Reader(loop, scenario, meter, dialect, number))
        if scenario.by_worker and number % JOIN == 0:
            turn_until(loop, time.monotonic() + JOIN_S)
    turn_until(loop, time.monotonic() + SETTLE_S)
    publisher = _publisher(loop, scenario, dialect)
    turn_until(loop, time.monotonic() + SETTLE_S)
    pace = Pace(loop, publisher, scenario.rate) if scenario.rate else None
    publish = pace.publish if pace else _unpaced(loop, publisher, readers, scenario)
    publish(time.monotonic() + scenario.warm_up_s)
    published, blocked = publisher.published, pace.blocked_s if pace else 0.0
    meter.begin()
    publish(time.monotonic() + scenario.measure_s)
    meter.end()
    published, blocked = publisher.published - published, (pace.blocked_s if pace else 0.0) - blocked
    rss, still_stalled = rss_bytes(pid), stalled.connected()
    expected = publisher.published * scenario.readers
    deadline = time.monotonic() + DRAIN_S
    while meter.delivered < expected and time.monotonic() < deadline:
        loop.turn(deadline)
    result = StreamResult(
        **asdict(meter.result(expected)),
        pace=published / scenario.measure_s,
        blocked=blocked / scenario.measure_s,
        rss_kb=rss / 1000,
        stalled=still_stalled,
    )
    return _by_worker(result, scenario, pid, readers) if scenario.by_worker else result


def _by_worker(result: StreamResult, scenario: Stream, pid: int, readers: list[Reader]) -> SpreadResult:
    """Tell the readers of the owner from those of other workers. Of each connection the last half is taken: it is
    where it stays.
    """
    processes, servers = family(pid)[1:] or [pid], servers_of(pid)
    owner = processes[owner_of(CHANNEL.rpartition("/")[2], len(processes))]
    firsts: dict[bool, list[int]] = {True: [], False: []}
    everything: dict[bool, list[int]] = {True: [], False: []}
    for reader in readers:
        for client, found in reader.latencies_by_address():
            segments = len(found) // scenario.chunks_per_segment
            begin = segments // 2 * scenario.chunks_per_segment
            is_owner = servers.get(client) == owner
            firsts[is_owner] += found[begin :: scenario.chunks_per_segment]
            everything[is_owner] += found[begin:]
    return SpreadResult(
        **asdict(result),
        owner_first_ms=quantile(sorted(firsts[True]), 0.5) / 1e6,
        holder_first_ms=quantile(sorted(firsts[False]), 0.5) / 1e6,
        owner_p99_ms=quantile(sorted(everything[True]), 0.99) / 1e6,
        holder_p99_ms=quantile(sorted(everything[False]), 0.99) / 1e6,
    )


def _publisher(loop: Loop, scenario: Stream, dialect: Dialect) -> AnyPublisher:
    if dialect is Dialect.NCHAN:
        return RequestPublisher(loop, scenario)
    chunks_per_segment = scenario.chunks_per_segment if dialect in SEGMENTED else 0
    return Publisher(loop, CHANNEL, scenario.chunk_bytes, chunks_per_segment)


def turn_until(loop: Loop, until: float) -> None:
    """Handle what comes until then (``time.monotonic``)."""
    while time.monotonic() < until:
        loop.turn(until)


class Pace:
    """Publishes at a fixed rate; a publisher that came late catches up, so that the number of chunks is the same.

    Attributes:
        blocked_s: how long chunks were due that the server did not take.
    """

    def __init__(self, loop: Loop, publisher: AnyPublisher, rate: float) -> None:
        self.blocked_s = 0.0
        self._loop = loop
        self._publisher = publisher
        self._rate = rate

    def publish(self, until: float) -> None:
        """Publish until then (``time.monotonic``)."""
        begun = time.monotonic()
        chunks = 0
        while (due := begun + chunks / self._rate) < until:
            turn_until(self._loop, due)
            if not self._publisher.ready:
                self._wait()
            self._publisher.publish()
            chunks += 1
        turn_until(self._loop, until)

    def _wait(self) -> None:
        begun = time.monotonic()
        stuck_at = begun + STUCK_S
        while not self._publisher.ready:
            if time.monotonic() > stuck_at:
                raise TimeoutError("the server takes nothing more from the publisher")
            self._loop.turn(stuck_at)
        self.blocked_s += time.monotonic() - begun


def _unpaced(loop: Loop, publisher: AnyPublisher, readers: list[Reader], scenario: Stream) -> Callable[[float], None]:
    """Publish whenever the server takes data, but never further ahead of the slowest reader than the lead."""

    def publish(until: float) -> None:
        slowest = min(reader.received for reader in readers)
        while time.monotonic() < until:
            while publisher.ready and publisher.published - slowest < scenario.lead:
                publisher.publish()
            loop.turn(until)
            slowest = min(reader.received for reader in readers)

    return publish
