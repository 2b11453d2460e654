"""Memory that was freed goes back to the system."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from itertools import count

import pytest

import tricklecast.app.allocator
from tests.app.test_memory import metric, post, rss
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.allocator import LEAST_BYTES, Trimmer, resident_bytes, trim

MiB = 1 << 20
BUDGET = 48 * MiB
WARM = 8200
"""So many paths are remembered: what that takes is no segment's."""

SIZES = (20_000,) * 3000 + (2000,) * 4000 + (10, 8192, 65_536, 250_000) * 700
"""Small segments between large ones, and then others: what fragments a heap."""


class Process:
    """One that takes so much memory, a part of which can be given back."""

    def __init__(self, resident: int) -> None:
        self.resident = resident
        self.least = resident
        self.trimmed = 0

    def trim(self) -> None:
        self.trimmed += 1
        self.resident = min(self.resident, self.least)


@pytest.mark.parametrize("size", [50 * MiB, 1000 * MiB])
def test_what_has_grown_is_trimmed_once(size: int) -> None:
    """A sixteenth, or 8 MiB, more than there was at least: what turns out to be needed is the new measure."""
    process = Process(size)
    trimmer = Trimmer(lambda: process.resident, process.trim)
    more = max(size // 16, LEAST_BYTES)
    process.resident = size + more
    trimmer.look()
    assert process.trimmed == 0
    process.resident += 1
    process.least = process.resident
    for _ in range(3):
        trimmer.look()
    assert process.trimmed == 1
    process.resident = size
    trimmer.look()
    process.resident = process.least = size + more + 1
    trimmer.look()
    assert process.trimmed == 2


def test_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is cancelled."""
    monkeypatch.setattr(tricklecast.app.allocator, "EVERY_S", 0.001)
    looks = count()
    seen: list[int] = []

    def resident() -> int:
        seen.append(next(looks))
        return 0

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S):
            task = asyncio.ensure_future(Trimmer(resident, lambda: None).run())
            await until(lambda: len(seen) >= 5)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No glibc, no /proc: nothing is done, and nothing fails."""
    trim()
    assert resident_bytes() > 0
    monkeypatch.setattr(tricklecast.app.allocator, "_glibc", lambda name: None)
    trim()
    tricklecast.app.allocator.keep_large_blocks_apart()

    def missing(path: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr("pathlib.Path.read_text", missing)
    assert resident_bytes() == 0


class Publishers:
    """Publish one segment after the other, each to a channel drawn from a few."""

    def __init__(self, server: RunningServer, sock: socket.socket) -> None:
        self._sock = sock
        self._rng = random.Random(1)
        self._seqs = [count() for _ in range(20)]

    def publish(self, size: int) -> None:
        channel = self._rng.randrange(len(self._seqs))
        length = f"Content-Length: {size}\r\n".encode()
        self._sock.sendall(post(f"c{channel}", next(self._seqs[channel]), length) + b"x" * size)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._sock.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200"), answer


def test_what_churn_leaves_behind_is_given_back() -> None:
    """A full server whose segments change all the time takes little more than the segments that it holds."""
    limits = (f"--max-total-bytes={BUDGET}", "--window-segments=100000", "--window-age-s=10000")
    with (
        serve(*limits) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S) as sock,
    ):
        publishers = Publishers(server, sock)
        for _ in range(WARM):
            publishers.publish(1)
        before = rss(server) - metric(server, "held_bytes")
        for size in SIZES:
            publishers.publish(size)
        held = metric(server, "held_bytes")
        assert held >= 0.8 * BUDGET
        eventually(lambda: rss(server) - before <= 1.2 * held, what="memory is given back")
