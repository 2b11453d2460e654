"""Readers that only wait: what each of them costs in memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.load.http import STAMP, Connection, http_chunk, stamped
from benchmarks.load.loop import Loop
from benchmarks.load.meter import cpu_clock, rss_bytes
from benchmarks.load.stream import CHANNEL, DRAIN_S, READER_FIELDS, STORED, create
from benchmarks.scenarios import Dialect, Idle

CHUNK_BYTES = 64
QUIET_S = 0.3
QUIET_CPU_NS = 10_000_000
SETTLE_S = 15.0


@dataclass(frozen=True, slots=True)
class IdleResult:
    """What one run found.

    Attributes:
        kb: resident memory of the server per waiting reader, in units of 1000 bytes.
        share: readers that got the segment when it came at last.
    """

    kb: float
    share: float


class _Readers:
    def __init__(self, loop: Loop, pid: int, fields: str) -> None:
        self.received = 0
        self._fields = fields
        self._loop = loop
        self._pid = pid
        self._connections: list[Connection] = []

    def add(self, count: int) -> int:
        """Let so many more wait; returns the server's memory then, in bytes."""
        for _ in range(count):
            connection = Connection(self._loop, CHUNK_BYTES, self._chunk)
            connection.request("GET", f"{CHANNEL}/0", self._fields)
            self._connections.append(connection)
        return self._settled()

    def _chunk(self, _latency: int) -> None:
        self.received += 1

    def _settled(self) -> int:
        """The server's memory when it has done all that there is to do."""
        clock = cpu_clock(self._pid)
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            before = time.clock_gettime_ns(clock)
            until = time.monotonic() + QUIET_S
            while time.monotonic() < until:
                self._loop.turn(until)
            if time.clock_gettime_ns(clock) - before < QUIET_CPU_NS:
                break
        return rss_bytes(self._pid)


def run(loop: Loop, scenario: Idle, pid: int, dialect: Dialect) -> IdleResult:
    """Run a scenario against a server.

    Args:
        pid: of the server. dialect: what it understands.
    """
    if dialect is Dialect.TRICKLE:
        create(loop, CHANNEL)
    readers = _Readers(loop, pid, READER_FIELDS[dialect])
    before = readers.add(scenario.warm_up)
    after = readers.add(scenario.readers)
    chunk = stamped(bytes(CHUNK_BYTES - STAMP.size))
    publisher = Connection(loop, 0, expected=STORED)
    if dialect is Dialect.NCHAN:
        publisher.request("POST", f"{CHANNEL}/publish", f"Content-Length: {CHUNK_BYTES}\r\n", chunk)
    else:
        publisher.request("POST", f"{CHANNEL}/0", "Content-Type: video/mp2t\r\nTransfer-Encoding: chunked\r\n")
        publisher.send(http_chunk(chunk))
    everybody = scenario.warm_up + scenario.readers
    deadline = time.monotonic() + DRAIN_S
    while readers.received < everybody and time.monotonic() < deadline:
        loop.turn(deadline)
    return IdleResult(kb=(after - before) / scenario.readers / 1000, share=readers.received / everybody)
