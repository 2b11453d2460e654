"""Directories for tests: on a real NATS server, or on the model of one, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.app.cluster.model import ModelNats, Way
from tests.support.nats import NatsServer, Relay
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.cluster.bucket import AnyBucket, Bucket
from tricklecast.app.cluster.directory import Claimed, Directory, NodeFacts
from tricklecast.app.cluster.jetstream import NatsOptions
from tricklecast.app.cluster.view import Place

LEASE_S = 0.5


class Heard:
    """What a directory has told."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, Place | None]] = []
        self.losses: list[tuple[str, int]] = []
        self.gifts: list[tuple[str, int]] = []
        self.takes = True

    def moved(self, channel: str, place: Place | None) -> None:
        self.moves.append((channel, place))

    def lost(self, channel: str, epoch: int) -> None:
        self.losses.append((channel, epoch))

    def given(self, channel: str, epoch: int) -> bool:
        self.gifts.append((channel, epoch))
        return self.takes


def make(
    name: str,
    at: NatsServer | Relay | NatsOptions | ModelNats,
    heard: Heard | None = None,
    *,
    lease_s: float = LEASE_S,
    tombstone_s: float = 300.0,
    way: Way | None = None,
    servers: str = "NATS",
) -> Directory:
    """A directory that is not started yet.

    Args:
        way: from this node to the model.
    """
    times: dict[str, Any] = {"lease_s": lease_s, "tombstone_s": tombstone_s, "servers": servers}
    if isinstance(at, ModelNats):
        nats, towards = at, way or open_way(at)
        times |= {"clock": nats.now, "wall": lambda: round(nats.now() * 1e6)}

        async def open_bucket() -> AnyBucket:
            return await nats.open(towards)
    else:
        options = at if isinstance(at, NatsOptions) else NatsOptions((at.url,))

        async def open_bucket() -> AnyBucket:
            return await Bucket.open(options, name)

    facts, told = NodeFacts(name, f"http://{name}:2939/trickle", "1.0"), heard or Heard()
    return Directory(open_bucket, facts, told, **times)


def open_way(nats: ModelNats) -> Way:
    """A way to the model that is not cut."""
    way = Way(nats.dice)
    way.open.set()
    return way


@asynccontextmanager
async def running(*made: Directory, owned: dict[str, int] | None = None) -> AsyncIterator[None]:
    """Start directories, and wait until they decide; stop them at the end."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(one.start(owned or {}, WITHIN_S) for one in made))
            await until(lambda: not any(one.degraded for one in made))
            yield
    finally:
        await asyncio.gather(*(one.stop() for one in made))


async def claimed(directory: Directory, channel: str, at_least: int = 0) -> int:
    """Claim until it succeeds; returns the epoch."""
    while True:
        if isinstance(result := await directory.claim(channel, at_least), Claimed):
            return result.epoch
        await asyncio.sleep(0.02)


def crash(directory: Directory) -> None:
    """As a process that is killed: its connection ends, and nothing more is said."""
    for task in (directory._running, directory._writing):
        if task is not None:
            task.cancel()
