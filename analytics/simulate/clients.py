"""Clients of a simulated fleet: names, addresses, connections, and the pauses between their retries."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from itertools import count
from typing import Final

AGENTS: Final = (
    "go-livepeer/0.8.8 (go1.24; linux/amd64)",
    "go-livepeer/0.8.5 (go1.22; linux/amd64)",
    "pytrickle/0.1.5 aiohttp/3.12.15",
    "pytrickle/0.1.3 aiohttp/3.11.9",
    "livepeer-python-gateway/0.4.1 (Linux x86_64)",
    "tricklecast/0.1.0",
    "Lavf/61.7.100",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/138.0.0.0 Safari/537.36",
)
"""User agents as they are seen in the field (protocol, section 7), with two versions of those that storm."""

LONGEST_S: Final = 4.0
"""No client that retries pauses longer by chance: a storm with a long hole in it would be two."""


@dataclass(slots=True)
class Client:
    """A client.

    Attributes:
        key: what the log calls it; ``None`` where a log does not say.
        ip, ua: its address and user agent.
        says_attempt: whether it sends ``Trickle-Attempt``; attempt: of its next request.
        conns: numbers of its connections, used in turn. reconnects: whether each request opens a connection.
    """

    key: str | None
    ip: str
    ua: str
    says_attempt: bool
    conns: list[int]
    reconnects: bool = False
    attempt: int = 1
    turn: int = 0

    @property
    def release(self) -> str:
        """Product and version, as the server takes them from the user agent."""
        return self.ua.partition(" ")[0]

    def conn(self) -> int:
        """The connection of its next request."""
        if self.reconnects:
            # Others connect in between.
            self.conns[0] += 1 + self.turn % 3
        self.turn += 1
        return self.conns[self.turn % len(self.conns)]


def address(rng: random.Random) -> str:
    """An address out of the ranges for documentation and for carriers' networks; one in ten is an IPv6 one."""
    if rng.random() < 0.1:
        return f"2001:db8:{rng.randrange(1 << 16):x}:{rng.randrange(1 << 16):x}::{rng.randrange(1, 1 << 16):x}"
    return f"100.{rng.randrange(64, 128)}.{rng.randrange(256)}.{rng.randrange(1, 255)}"


def make_client(
    rng: random.Random, *, ua: str | None = None, ip: str | None = None, named: bool | None = None, conns: int = 0
) -> Client:
    """A client; what is not given is drawn.

    Args:
        ua, ip: user agent and address.
        named: whether it sends ``Trickle-Client``; those that do not are known by a hash of address and user agent.
        conns: how many connections it uses.
    """
    ua = ua or rng.choice(AGENTS)
    ip = ip or address(rng)
    named = rng.random() < 0.6 if named is None else named
    key = f"viewer-{rng.getrandbits(32):08x}" if named else blake2b(f"{ip}\0{ua}".encode(), digest_size=8).hexdigest()
    first = rng.randrange(1, 1 << 20)
    return Client(key, ip, ua, rng.random() < 0.4, [first + turn for turn in range(conns or rng.choice((1, 2, 2)))])


def is_name(key: str) -> bool:
    """Whether a key came in the ``Trickle-Client`` header: one that is a hash was made by the server."""
    return not (len(key) == 16 and key.isalnum())


def behind_nat(rng: random.Random, number: int) -> list[Client]:
    """Clients of one address that give no names: the log has one key for all, and a connection or two for each."""
    ip, ua = address(rng), rng.choice(AGENTS)
    return [make_client(rng, ua=ua, ip=ip, named=False) for _ in range(number)]


class Pace(Enum):
    """How a client paces its retries: its usual pause is multiplied by so much, from and to, and may grow up to it."""

    HOT_LOOP = (0.7, 1.3, False)
    FIXED = (0.985, 1.015, False)
    FIXED_JITTER = (0.5, 1.5, False)
    EXPONENTIAL = (0.985, 1.015, True)
    EXPONENTIAL_JITTER = (0.02, 1.0, True)
    IRREGULAR = (0.0, 4.0, False)
    """Most pauses are short, and some are much longer."""


def pauses(rng: random.Random, pace: Pace, gap_s: float) -> Iterator[float]:
    """The pauses of a client that retries, without end, seconds.

    Args:
        gap_s: the usual pause, or the longest one of a pace that grows. Seconds.
    """
    least, most, grows = pace.value
    for turn in count():
        if pace is Pace.IRREGULAR:
            yield min(LONGEST_S, most * gap_s, gap_s * rng.lognormvariate(-0.5, 1.0))
        else:
            usual = min(gap_s, gap_s * 0.05 * 1.6 ** min(turn, 40)) if grows else gap_s
            yield usual * rng.uniform(least, most)


def polite(rng: random.Random, first_s: float, cap_s: float, attempts: int) -> list[float]:
    """The pauses of a client that does it right: exponential, with jitter, never less than it was told.

    Args:
        first_s: what ``Retry-After`` says, and the base of the growth. Seconds.
        cap_s: the longest pause. Seconds.
    """
    return [first_s + rng.uniform(0, min(cap_s, first_s * 2.0**turn)) for turn in range(attempts)]
