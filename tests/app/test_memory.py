"""The memory that a server takes stays within what its settings say."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.app.memory_bound import CACHES_BYTES, Load, bound
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.settings import Settings, load

MiB = 1 << 20
BUDGET = 48 * MiB
STALLED, WAITING, PRECONNECTED, PUBLISHING, BEGINNING, PIPELINING, OVERTAKING = 150, 100, 100, 60, 40, 20, 30
TOLERANCE = 1.2
"""The allocator's share: what is free in pages that are in use."""

SETTINGS: dict[str, Any] = {
    "max_total_bytes": BUDGET,
    "window_bytes": 64 * MiB,
    "window_segments": 100_000,
    "max_channels": 1000,
    "access_log_queue": 2000,
    "overtaking_grace_s": 60.0,
    "head_timeout_s": 120.0,
    "reader_lag_s": 120.0,
}


def rss(server: RunningServer) -> int:
    """Resident memory of the server's process, in bytes."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def metric(server: RunningServer, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics") as response:
        lines = response.read().decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(f"tricklecast_{name} ")))


class Crowd:
    """Connections that stay open, and are left as they are."""

    def __init__(self, server: RunningServer, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack
        self.connections = 0

    def connect(self, data: bytes, *, buffer: int | None = None) -> socket.socket:
        """A connection on which this was sent."""
        sock = self._stack.enter_context(closing(socket.socket()))
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.settimeout(WITHIN_S)
        sock.connect(("127.0.0.1", self._server.port))
        sock.sendall(data)
        self.connections += 1
        return sock

    def publish(self, sock: socket.socket, channel: str, seq: int, body: bytes) -> None:
        """Publish a segment, and wait until it is stored."""
        sock.sendall(post(channel, seq, f"Content-Length: {len(body)}\r\n".encode()) + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200"), answer


def post(channel: str, seq: int, headers: bytes) -> bytes:
    return f"POST /trickle/{channel}/{seq} HTTP/1.1\r\nHost: localhost\r\n".encode() + headers + b"\r\n"


def get(channel: str, seq: int, headers: bytes = b"") -> bytes:
    return f"GET /trickle/{channel}/{seq} HTTP/1.1\r\nHost: localhost\r\n".encode() + headers + b"\r\n"


CHUNKED = b"Transfer-Encoding: chunked\r\n"


def fill(server: RunningServer, crowd: Crowd) -> None:
    """Bring each kind of buffer to its limit."""
    publisher = crowd.connect(b"")
    for number in range(600):
        crowd.publish(publisher, f"{'n' * 200}{number}", 0, b"x" * 200)
    for seq in range(1000):
        crowd.publish(publisher, "tiny", seq, b"1")
    crowd.publish(publisher, "slow", 0, b"s" * 4 * MiB)
    for _ in range(STALLED):
        crowd.connect(get("slow", 0), buffer=4096)
    eventually(lambda: metric(server, "stalled_connections") >= STALLED)
    chunks = crowd.connect(post("chunks", 0, CHUNKED))
    chunks.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(3000):
        chunks.sendall(b"1\r\nx\r\n")
    seq = 0
    while metric(server, 'segments_evicted_total{reason="budget"}') < 3:
        for _ in range(10):
            crowd.publish(publisher, "large", seq, b"l" * 300_000)
            seq += 1
    for _ in range(WAITING):
        crowd.connect(get("tiny", 1000))
    for number in range(PRECONNECTED):
        crowd.connect(post(f"pre{number // 2}", number % 2, CHUNKED))
    for number in range(PUBLISHING):
        crowd.connect(post("part", number % 2, CHUNKED) + b"8000\r\n" + b"p" * 32_000)
    for _ in range(BEGINNING):
        crowd.connect(b"GET /trickle/x/0 HTTP/1.1\r\nHost: localhost\r\nA: " + b"h" * 60_000)
    for _ in range(PIPELINING):
        crowd.connect(get("tiny", 1000) + get("tiny", 0, b"A: " + b"q" * 900 + b"\r\n") * 200)
    for number in range(OVERTAKING):
        crowd.connect(post("tiny", 1002 + number % 40, CHUNKED) + b"8000\r\n" + b"h" * 32_000)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Load, Settings]]:
    """How much a server has grown by being filled, what was done to it, and its settings."""
    log = tmp_path_factory.mktemp("log") / "access.jsonl"
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    with ExitStack() as stack:
        server = stack.enter_context(serve(*arguments, access_log=log, fork=False))
        crowd = Crowd(server, stack)
        metric(server, "held_bytes")
        before = rss(server)
        fill(server, crowd)
        eventually(lambda: metric(server, "connections") >= crowd.connections)
        present = Load(
            connections=crowd.connections,
            publishing=PUBLISHING + OVERTAKING,
            beginning=BEGINNING,
            pipelining=PIPELINING,
            parked=OVERTAKING,
        )
        held = metric(server, "held_bytes")
        assert 0.9 * BUDGET <= held <= BUDGET
        yield rss(server) - before, present, load({**SETTINGS, "access_log": log}).settings


def test_a_server_filled_to_its_limits_stays_within_its_bound(filled: tuple[int, Load, Settings]) -> None:
    """Every buffer at its limit at once takes no more than was computed, and a fifth for the allocator."""
    grown, present, settings = filled
    computed = bound(settings, present)
    assert grown <= TOLERANCE * sum(computed.values()), (grown, computed)


def test_stalled_readers_hold_no_copies(filled: tuple[int, Load, Settings]) -> None:
    """The fill level is known here, so that the bound can be closer: a turn for each stalled reader would break
    it.
    """
    grown, present, settings = filled
    computed = bound(settings, present)
    tight = sum(computed.values()) - CACHES_BYTES - computed["access log"] - computed["tombstones"]
    tight -= computed["storm guard"]
    assert 0.9 * BUDGET <= grown <= tight, json.dumps({"grown": grown, "tight": tight, **computed})
