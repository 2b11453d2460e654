"""What is measured: the CPU time of both processes, the memory of the server, and what arrived when."""

from __future__ import annotations

import os
import socket
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_clock(pid: int) -> int:
    """The clock of another process's CPU time, all threads, user and system (``clock_getcpuclockid(3)`` on Linux)."""
    return (~pid << 3) | 2


def family(pid: int) -> list[int]:
    """A process and its children: a server and its workers."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its children; pages that they share count in each."""
    return sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(pid)) * PAGE


def pss_bytes(pid: int) -> int:
    """Memory of a process and its children, each with its part of the pages that they share."""
    rollups = (Path(f"/proc/{one}/smaps_rollup").read_text().splitlines() for one in family(pid))
    return sum(int(line.split()[1]) << 10 for lines in rollups for line in lines if line.startswith("Pss:"))


def servers_of(pid: int) -> dict[tuple[str, int], int]:
    """Of a process and its children the one that has each connection, by the client's address (IPv4) and port."""
    clients: dict[str, tuple[str, int]] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, peer, *_, inode = line.split()[:10]
        address, _, port = peer.partition(":")
        clients[f"socket:[{inode}]"] = socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)
    found = {}
    for one in family(pid):
        for descriptor in Path(f"/proc/{one}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if (client := clients.get(os.readlink(descriptor))) is not None:
                    found[client] = one
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of all counters at one moment; nanoseconds."""

    wall: int
    server_cpu: int
    own_cpu: int
    delivered: int


@dataclass(frozen=True, slots=True)
class Result:
    """What one run found.

    Attributes:
        cpu_us: server CPU per delivered chunk, microseconds.
        p50_ms, p99_ms: from publishing a chunk to having received all of it.
        share: delivered chunks of those that should have been, over the whole run.
        rate: delivered chunks per second.
        server_busy, load_busy: CPU time of a wall second of the server, and of the load generator.
    """

    cpu_us: float
    p50_ms: float
    p99_ms: float
    share: float
    rate: float
    server_busy: float
    load_busy: float


class Meter:
    """Counts deliveries, and reads the clocks at the ends of the measured phase.

    Args:
        pid: of the server; its workers count with it.

    Attributes:
        delivered: chunks that have arrived, in all.
    """

    def __init__(self, pid: int) -> None:
        self._clocks = [cpu_clock(one) for one in family(pid)]
        self._latencies = array("q")
        self._first: Reading | None = None
        self._last: Reading | None = None
        self.delivered = 0

    def chunk(self, latency: int) -> None:
        """A chunk has arrived, so many nanoseconds after it was published."""
        self.delivered += 1
        self._latencies.append(latency)

    def begin(self) -> None:
        """The warm-up is over."""
        del self._latencies[:]
        self._first = self._read()

    def end(self) -> None:
        """The measured phase is over."""
        self._last = self._read()

    def result(self, expected: int) -> Result:
        """What the measured phase has shown.

        Args:
            expected: chunks that should have arrived in the whole run.
        """
        first, last = self._first, self._last
        assert first is not None, "begin() comes first"
        assert last is not None, "end() comes before the result"
        delivered = last.delivered - first.delivered
        wall = last.wall - first.wall
        latencies = sorted(self._latencies[:delivered])
        cpu = last.server_cpu - first.server_cpu
        return Result(
            cpu_us=cpu / max(delivered, 1) / 1e3,
            p50_ms=quantile(latencies, 0.50) / 1e6,
            p99_ms=quantile(latencies, 0.99) / 1e6,
            share=self.delivered / max(expected, 1),
            rate=delivered / wall * 1e9,
            server_busy=cpu / wall,
            load_busy=(last.own_cpu - first.own_cpu) / wall,
        )

    def _read(self) -> Reading:
        server = sum(map(time.clock_gettime_ns, self._clocks))
        return Reading(time.monotonic_ns(), server, time.process_time_ns(), self.delivered)


def quantile(ordered: list[int], q: float) -> float:
    """A quantile of values in ascending order; not a number where there are none."""
    return float(ordered[min(int(len(ordered) * q), len(ordered) - 1)]) if ordered else float("nan")
