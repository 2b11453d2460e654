"""Clients: what they are called, where they come from, and how they use connections."""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import blake2b
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


@dataclass(slots=True)
class Client:
    """Somebody who sends requests.

    Attributes:
        key: what the log calls it; ``None`` where a log does not say.
        ip, ua: its address and user agent.
        says_attempt: whether it sends ``Trickle-Attempt``.
        conns: numbers of its connections, used in turn.
        reconnects: whether each request opens a connection.
    """

    key: str | None
    ip: str
    ua: str
    says_attempt: bool
    conns: list[int]
    reconnects: bool = False
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
    """An address out of the ranges for documentation and for carriers' networks; now and then an IPv6 one."""
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
    key = f"viewer-{rng.getrandbits(32):08x}" if named else hashed_key(ip, ua)
    first = rng.randrange(1, 1 << 20)
    return Client(key, ip, ua, rng.random() < 0.4, [first + turn for turn in range(conns or rng.choice((1, 2, 2)))])


def hashed_key(ip: str, ua: str) -> str:
    """The key of a client that gave none."""
    return blake2b(f"{ip}\0{ua}".encode(), digest_size=8).hexdigest()


def behind_nat(rng: random.Random, count: int) -> list[Client]:
    """Clients of one address that give no names: the log has one key for all, and a connection or two for each."""
    ip, ua = address(rng), rng.choice(AGENTS)
    return [make_client(rng, ua=ua, ip=ip, named=False) for _ in range(count)]
