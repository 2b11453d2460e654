"""The clients of ``benchmarks/saturation.py``, each role in a process of its own.

A process (``python -m benchmarks.load.saturation``) reads its job as one line of JSON, connects, and prints ``ready``.
Then it reads the times of the run as a second line, does its part, and prints its result. Times are those of
``time.monotonic``, which all processes share.
"""

from __future__ import annotations

import gc
import json
import re
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import cycle
from typing import Any, Final

from benchmarks.load.http import RECEIVE, Connection
from benchmarks.load.loop import Loop, address
from benchmarks.load.meter import Meter, quantile
from benchmarks.load.stalled import connect_slow
from benchmarks.load.stream import Publisher, ask, create, turn_until

READY: Final = "ready"
NEIGHBOUR: Final = "/trickle/neighbour"
NEIGHBOUR_RATE: Final = 30
"""Chunks per second, and per segment, of the channel beside the load."""

NEIGHBOUR_BYTES: Final = 1024
PROBES: Final = tuple(f"/trickle/probe{number}" for number in range(32))
"""Channels with a segment of one byte. A cheap GET asks for that of each channel in turn, since a server may delay a
client that asks for the same one again and again."""

PROBE_S: Final = 0.02
"""Time from one cheap GET to the next, unless its answer takes longer."""

BURST: Final = 8
"""Chunks that one unpaced publisher sends before the next one has its turn."""

TICK_S: Final = 0.001
"""How often a paced publisher looks whether a chunk is due."""

RETURN_S: Final = 1.0
"""How long a slow reader that was cut off stays away."""

DRIP_S: Final = 0.025
DRIP_BYTES: Final = 4096
"""A dripping reader takes so many bytes each time."""

TINY: Final = b"1\r\nx\r\n"
TINY_BLOCK: Final = TINY * (256_000 // len(TINY))
TINY_CHUNKS: Final = 1_000_000
"""HTTP chunks of one byte in the segment that readers catch up with."""

_LATEST: Final = re.compile(rb"(?i)\r\nlp-trickle-latest: *(\d+)")


class Attack(StrEnum):
    """A load that costs a client little and may cost the server much."""

    TINY_PUBLISHER = "a publisher of 1-byte chunks"
    TINY_BODIES = "two readers whose GET has a body of 1-byte chunks"
    TINY_SEGMENT = "20 readers of one segment of 1-byte chunks"


FLOODS: Final = {Attack.TINY_PUBLISHER: ("POST", 1), Attack.TINY_BODIES: ("GET", 2)}
"""Method and number of the clients that send 1-byte chunks without an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a server is offered.

    Attributes:
        channels: each has one publisher. readers: of each channel.
        chunk_bytes: of one published chunk. chunks_per_segment: after so many a new segment begins.
        rate: chunks per second of each publisher; 0 for as fast as the server takes them.
        attack: further clients, or ``None``.
        stalled: readers, over all channels, that never read. drip: readers that take 160 kB/s.
    """

    channels: int = 0
    readers: int = 0
    chunk_bytes: int = 64 << 10
    chunks_per_segment: int = 64
    rate: float = 0.0
    attack: Attack | None = None
    stalled: int = 0
    drip: int = 0


@dataclass(frozen=True, slots=True)
class Times:
    """When publishers start, when the measured phase begins and ends, and until when chunks may still arrive."""

    start: float
    begin: float
    end: float
    over: float


class Reader:
    """A reader on one keep-alive connection: after segment N it requests N + 1, after a 470 the latest.

    Attributes:
        refused: answers with 470. cut_off: responses that the server broke off.
    """

    def __init__(
        self, loop: Loop, path: str, chunk_bytes: int, chunk: Callable[[int], None], source: str | None = None
    ) -> None:
        self.refused = self.cut_off = 0
        self._loop = loop
        self._path = path
        self._chunk_bytes = chunk_bytes
        self._chunk = chunk
        self._source = source
        self._seq = 0
        self._connect()

    def _connect(self) -> None:
        self._connection = Connection(
            self._loop, self._chunk_bytes, self._chunk, expected=(200, 470), source=self._source
        )
        self._connection.on_end = self._ended
        self._connection.on_close = self._closed
        self._ask()

    def _ask(self) -> None:
        self._connection.request("GET", f"{self._path}/{self._seq}")

    def _ended(self) -> None:
        if self._connection.status == 470:
            self.refused += 1
            latest = _LATEST.search(self._connection.head)
            self._seq = int(latest[1]) if latest else self._seq + 1
        else:
            self._seq += 1
        self._ask()

    def _closed(self) -> None:
        if self._connection.receiving:
            self.cut_off += 1
            self._seq += 1
        self._connection.close()
        self._connect()


class TinyReader:
    """Reads segment 0 once. It does not parse HTTP chunks, which would take it longer than the server: it counts ``x``.

    Attributes:
        over: whether the whole segment has arrived.
    """

    def __init__(self, loop: Loop, path: str, source: str, meter: Meter) -> None:
        self.over = False
        self._received = 0
        self._meter = meter
        self._buffer = bytearray(RECEIVE)
        self._loop = loop
        self._socket = loop.connect(self._ready, source)
        self._socket.send(f"GET {path}/0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def _ready(self, _events: int) -> None:
        size = self._socket.recv_into(self._buffer)
        found = self._buffer.count(b"x", self._buffer.find(b"\r\n\r\n") if not self._received else 0, size)
        self._received += found
        self._meter.delivered += found
        self.over = self._received >= TINY_CHUNKS or not size
        if self.over:
            self._loop.forget(self._socket)


class Flood:
    """Sends a request whose body never ends, as fast as the server takes it; when closed, again on a new connection."""

    def __init__(self, loop: Loop, method: str, path: str) -> None:
        head = f"{method} {path}/-1 HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._loop = loop
        self._head = head.encode()
        self._connect()

    def _connect(self) -> None:
        self._socket = self._loop.connect(self._ready)
        self._rest = memoryview(self._head + TINY_BLOCK)
        self._loop.want_write(self._socket, True)

    def _ready(self, events: int) -> None:
        try:
            if events & ~select.EPOLLOUT and not self._socket.recv(RECEIVE):
                raise ConnectionResetError
            if events & select.EPOLLOUT:
                self._rest = self._rest[self._socket.send(self._rest) :] or memoryview(TINY_BLOCK)
        except BlockingIOError:
            pass
        except ConnectionError:
            self._loop.forget(self._socket)
            self._connect()


class SlowReaders:
    """Readers that never read, or only a little; one that is cut off comes back after :data:`RETURN_S`.

    Args:
        paths: of the channels, over which the readers are spread.
    """

    def __init__(self, port: int, paths: list[str], stalled: int, drip: int) -> None:
        self._port = port
        self._epoll = select.epoll()
        self._dripping: dict[int, socket.socket] = {}
        self._stalled: dict[int, socket.socket] = {}
        self._paths: dict[int, str] = {}
        self._returning: deque[tuple[float, str, bool]] = deque()
        self.cut_off = 0
        for number in range(stalled + drip):
            self._connect(paths[number % len(paths)], drips=number >= stalled)

    def _connect(self, path: str, *, drips: bool) -> None:
        sock = connect_slow(self._port, f"{path}/-1")
        sock.setblocking(False)
        (self._dripping if drips else self._stalled)[sock.fileno()] = sock
        self._paths[sock.fileno()] = path
        # Not EPOLLIN: a stalled reader would be reported without an end.
        self._epoll.register(sock, select.EPOLLRDHUP)

    def run(self, until: float) -> None:
        """Drip and come back until then (``time.monotonic``)."""
        while (now := time.monotonic()) < until:
            while self._returning and self._returning[0][0] <= now:
                _, path, drips = self._returning.popleft()
                self._connect(path, drips=drips)
            for fd in list(self._dripping):
                self._take(fd)
            for fd, _ in self._epoll.poll(DRIP_S):
                self._lost(fd)
            time.sleep(max(0.0, now + DRIP_S - time.monotonic()))

    def _take(self, fd: int) -> None:
        try:
            self._dripping[fd].recv(DRIP_BYTES)
        except BlockingIOError:
            pass
        except ConnectionError:
            self._lost(fd)

    def _lost(self, fd: int) -> None:
        drips = fd in self._dripping
        sock = (self._dripping if drips else self._stalled).pop(fd)
        self._epoll.unregister(fd)
        sock.close()
        self.cut_off += 1
        self._returning.append((time.monotonic() + RETURN_S, self._paths.pop(fd), drips))


class Neighbours:
    """A paced channel with one reader, and a cheap GET again and again: neither shares anything with the load."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        create(loop, NEIGHBOUR)
        for path in PROBES:
            create(loop, path)
            ask(loop, "POST", f"{path}/0", "Content-Length: 1\r\n", b"x")
        self._probe_paths = cycle(PROBES)
        self._chunks_ns: list[int] = []
        self._publisher = Publisher(loop, NEIGHBOUR, NEIGHBOUR_BYTES, NEIGHBOUR_RATE)
        self._reader = Reader(loop, NEIGHBOUR, NEIGHBOUR_BYTES, self._chunks_ns.append)
        self._probes_ns: list[int] = []
        self._asked_ns = 0
        self._probe = Connection(loop, 0)
        self._probe.on_end = lambda: self._probes_ns.append(time.monotonic_ns() - self._asked_ns)

    def run(self, times: Times) -> dict[str, float]:
        """Publish and ask until the end; what has not been answered by then counts with its age."""
        turn_until(self._loop, times.begin)
        due, sent_ns = times.begin, list[int]()
        while (now := time.monotonic()) < times.over:
            if now >= times.end and len(self._chunks_ns) >= len(sent_ns) and not self._probe.busy:
                break
            if due <= min(now, times.end) and self._publisher.ready:
                sent_ns.append(int(due * 1e9))
                self._publisher.publish(sent_ns[-1])
                due += 1 / NEIGHBOUR_RATE
            if now < times.end and not self._probe.busy and now >= self._asked_ns / 1e9 + PROBE_S:
                self._asked_ns = time.monotonic_ns()
                self._probe.request("GET", f"{next(self._probe_paths)}/0")
            self._loop.turn(now + TICK_S)
        while due < times.end:  # chunks for which the server has left the publisher no room
            sent_ns.append(int(due * 1e9))
            due += 1 / NEIGHBOUR_RATE
        now_ns = time.monotonic_ns()
        chunks_ns = sorted(self._chunks_ns + [now_ns - due_ns for due_ns in sent_ns[len(self._chunks_ns) :]])
        probes_ns = sorted(self._probes_ns + [now_ns - self._asked_ns] * self._probe.busy)
        return {
            f"{name}_p{percent}_ms": quantile(ordered, percent / 100) / 1e6
            for name, ordered in (("neighbour", chunks_ns), ("probe", probes_ns))
            for percent in (50, 99)
        }


class _Process:
    """One role: connects when it is made, and runs when it knows the times."""

    def __init__(self, job: dict[str, Any]) -> None:
        fields = job["load"]
        self.load = Load(**{**fields, "attack": fields["attack"] and Attack(fields["attack"])})
        self.loop = Loop(job["port"])
        self.paths = [f"/trickle/bench{number}" for number in range(self.load.channels)]
        self.connect(job)

    def connect(self, job: dict[str, Any]) -> None:
        """Open the connections."""
        raise NotImplementedError

    def run(self, times: Times) -> dict[str, float]:
        """Do the role's part, and return its figures."""
        raise NotImplementedError


class _Publishers(_Process):
    def connect(self, job: dict[str, Any]) -> None:
        for path in self.paths:
            create(self.loop, path)
        self.publishers = [
            Publisher(self.loop, path, self.load.chunk_bytes, self.load.chunks_per_segment) for path in self.paths
        ]
        self.floods: list[Flood] = []
        if self.load.attack is not None:
            create(self.loop, "/trickle/flood")
        if self.load.attack is Attack.TINY_SEGMENT:
            body = TINY * TINY_CHUNKS + b"0\r\n\r\n"
            ask(self.loop, "POST", "/trickle/flood/0", "Transfer-Encoding: chunked\r\n", body)

    def run(self, times: Times) -> dict[str, float]:
        turn_until(self.loop, times.start)
        cpu = time.process_time()
        if self.load.attack in FLOODS:
            method, count = FLOODS[self.load.attack]
            self.floods = [Flood(self.loop, method, "/trickle/flood") for _ in range(count)]
        while (now := time.monotonic()) < times.end:
            if self._publish(now - times.start, times.start):
                self.loop.turn(now)
            else:
                self.loop.turn(min(times.end, now + TICK_S) if self.load.rate else times.end)
        busy = (time.process_time() - cpu) / (times.end - times.start)
        turn_until(self.loop, times.over)
        return {"published": sum(publisher.published for publisher in self.publishers), "publishers_busy": busy}

    def _publish(self, elapsed_s: float, start: float) -> bool:
        """Let every publisher send what it may; whether any of them has sent something."""
        rate, count, any_sent = self.load.rate, len(self.publishers), False
        for number, publisher in enumerate(self.publishers):
            # Paced publishers start one after the other within the first interval, as strangers would.
            offset = number / count
            for _ in range(BURST):
                if not publisher.ready or (rate and publisher.published + offset > elapsed_s * rate):
                    break
                due = start + (publisher.published + offset) / rate if rate else 0
                publisher.publish(int(due * 1e9) if rate else None)
                any_sent = True
        return any_sent


class _Readers(_Process):
    def connect(self, job: dict[str, Any]) -> None:
        self.meter = Meter(job["pid"])
        load = self.load
        self.readers = [
            Reader(self.loop, path, load.chunk_bytes, self.meter.chunk, address(channel * load.readers + number))
            for channel, path in enumerate(self.paths)
            for number in range(load.readers)
        ]

    def run(self, times: Times) -> dict[str, float]:
        turn_until(self.loop, times.begin)
        self.meter.begin()
        if self.load.attack is Attack.TINY_SEGMENT:
            tiny = [TinyReader(self.loop, "/trickle/flood", address(number), self.meter) for number in range(20)]
            while not all(reader.over for reader in tiny) and time.monotonic() < times.end:
                self.loop.turn(times.end)
        else:
            turn_until(self.loop, times.end)
        self.meter.end()
        turn_until(self.loop, times.over)
        found = asdict(self.meter.result(1))
        del found["share"]
        return {
            **found,
            "delivered": self.meter.delivered,
            "refused": sum(reader.refused for reader in self.readers),
            "cut_off": sum(reader.cut_off for reader in self.readers),
        }


class _SlowReaders(_Process):
    def connect(self, job: dict[str, Any]) -> None:
        self.readers = SlowReaders(self.loop.port, self.paths, self.load.stalled, self.load.drip)

    def run(self, times: Times) -> dict[str, float]:
        self.readers.run(times.over)
        return {"slow_cut_off": self.readers.cut_off}


class _Neighbours(_Process):
    def connect(self, job: dict[str, Any]) -> None:
        self.neighbours = Neighbours(self.loop)

    def run(self, times: Times) -> dict[str, float]:
        return self.neighbours.run(times)


ROLES: Final = {
    "publishers": _Publishers,
    "readers": _Readers,
    "slow readers": _SlowReaders,
    "neighbours": _Neighbours,
}
"""In the order in which they connect: a channel must be there before its readers."""


def main() -> None:
    """Read the job, connect, read the times, run, print the result."""
    gc.disable()  # It would only add its pauses to the latencies; a run makes few cycles and is short.
    job = json.loads(sys.stdin.readline())
    process = ROLES[job["role"]](job)
    print(READY, flush=True)
    print(json.dumps(process.run(Times(**json.loads(sys.stdin.readline())))), flush=True)


if __name__ == "__main__":
    main()
