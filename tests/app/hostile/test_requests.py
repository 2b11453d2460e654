"""A hundred thousand requests, good, strange and damaged, and 24 million random bytes: the server is as it was.

All of it follows from a seed, which is in a failure's message. Of four seeds, three are long.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.hostile.support import Watched, exchange, healthy, received, statuses, watched
from tests.fuzz.requests import Requests
from tests.support.local import LocalServer
from tests.support.resets import reset_when_closed
from tests.support.waiting import WITHIN_S

CONNECTIONS = 800
PER_CONNECTION = 125
"""Requests in one connection's first packets: 100,000 over all seeds."""

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))]


@pytest.fixture(scope="module")
def attacked() -> Iterator[Watched]:
    """A server with little room, so that limits are reached."""
    with watched(max_channels=64, max_total_bytes=1 << 20, max_segment_bytes=1 << 16, channel_drain_s=0) as server:
        yield server


def send(server: LocalServer, packets: list[bytes], end: str) -> bytes:
    """Send packets on a connection of their own, and end it in one of several ways; what came back."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for packet in packets:
                sock.sendall(packet)
            if end == "half close":
                sock.shutdown(socket.SHUT_WR)
                return received(sock)
        except OSError:
            return received(sock)  # The server has closed: what it said before can still be read.
        if end == "reset":
            reset_when_closed(sock)
    return b""


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    good=st.integers(0, 5),
    bad=st.integers(1, 3),
    end=st.sampled_from(["half close", "close", "reset"]),
)
def test_after_any_request_the_server_is_as_it_was(attacked: Watched, seed: int, good: int, bad: int, end: str) -> None:
    """Healthy, consistent, with no exchange left over, no descriptor lost, and the control channel unchanged."""
    requests = Requests(random.Random(seed))
    data = b"".join([*(requests.valid() for _ in range(good)), *(requests.any() for _ in range(bad))])
    send(attacked.server, requests.packets(data), end)
    attacked.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hundred_thousand_requests(attacked: Watched, seed: int) -> None:
    """In pipelines that end with a damaged one: each of the others is answered, by a status that exists."""
    rng = random.Random(seed)
    requests = Requests(rng)
    seen: set[int] = set()
    for number in range(CONNECTIONS // len(SEEDS)):
        data = b"".join([requests.valid() for _ in range(PER_CONNECTION - 1)]) + requests.any()
        answers = send(attacked.server, requests.packets(data), "half close")
        got = statuses(answers)
        seen.update(got)
        assert len(got) >= PER_CONNECTION - 1, f"seed {seed}, connection {number}"
        assert answers.count(b"HTTP/1.1 500 ") == 0, f"seed {seed}, connection {number}"
    assert {200, 204, 400, 404} <= seen, f"seed {seed}: {seen}"
    assert seen <= {
        *(
            200,
            201,
            204,
            206,
            304,
            400,
            403,
            404,
            405,
            408,
            409,
            413,
            414,
            415,
            416,
            421,
            422,
            429,
            431,
            470,
            501,
            503,
            505,
        )
    }, f"seed {seed}: {seen}"
    attacked.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_strange_requests(attacked: Watched, seed: int) -> None:
    """One on each connection: none of them is an error of the server's."""
    rng = random.Random(seed)
    requests = Requests(rng)
    for number in range(1000):
        answers = send(attacked.server, requests.packets(requests.any()), rng.choice(("half close", "close", "reset")))
        assert b"HTTP/1.1 500 " not in answers, f"seed {seed}, connection {number}"
    assert healthy(attacked.server), f"seed {seed}"
    attacked.check()


FRAMES = {
    "nothing": b"",
    "a method": b"GET ",
    "a path": b"GET /trickle/",
    "a header": b"GET /trickle/control/0 HTTP/1.1\r\nHost: x\r\nA: ",
    "a chunked body": b"POST /trickle/scratch/-1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    "an extension": b"POST /trickle/scratch/-1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;",
    "a chunk": b"POST /trickle/scratch/-1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n",
    "a body": b"POST /trickle/scratch/-1 HTTP/1.1\r\nHost: x\r\nContent-Length: 8192\r\n\r\n",
    "a body for the control plane": b"POST /api/v1/channels HTTP/1.1\r\nHost: x\r\nContent-Length: 8192\r\n\r\n",
    "an unread body": b"GET /trickle/control/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 8192\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030102000100"),
    "an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}
PIECE_BYTES = 20_000
REPEAT = 100
"""Twelve frames, a hundred times 20,000 bytes: 24 million."""


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_random_bytes(attacked: Watched, frame: bytes) -> None:
    """Instead of a request, or in any part of one."""
    rng = random.Random(frame)
    for _ in range(REPEAT):
        exchange(attacked.server, frame + rng.randbytes(PIECE_BYTES))
    attacked.check()
