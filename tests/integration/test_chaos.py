"""Our clients and our server in bad weather: what was confirmed arrives, byte by byte, or its loss is told.

The weather is seeded, but connections race each other, so that no two runs are the same. The verdict is: it is about
what must hold in every run.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final
from unittest.mock import patch

import anyio
import pytest

from tests.integration.weather import Weather, weather
from tests.subscriber.fake import timed
from tests.support.fixtures import servers_are_forks
from tests.support.waiting import until
from tricklecast.publisher import Publisher, SegmentWriter
from tricklecast.subscriber import Position, Subscriber
from tricklecast.subscriber.segment import Runtime
from tricklecast.testing import TestServer, server
from tricklecast.trickle.errors import BrokenByPeer, TrickleError

SEED: Final = "storm 1"
CALM: Final = 3
"""Segments of each publisher after the storm."""

FAULTS_OF_PUBLISHER: Final = 16
FAULTS_OF_SUBSCRIBER: Final = 5
"""Few enough for the budget of retries, which then has to last."""

OUTAGE_S: Final = 1.2
"""Long enough for more dropped segments than a server lets overtake."""

LIMIT_S: Final = 180.0
"""A run takes 5 s; this is for machines that stand still now and then."""

OPTIONS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"preconnect": 0},
    {"preconnect": 2, "when_full": "drop"},
    {"buffer_bytes": 20_000},
)


class Short(Random):
    """Dice that keep retries short."""

    def uniform(self, a: float, b: float) -> float:
        """The tenth of what it would have been."""
        return super().uniform(a, b) / 10


@dataclass
class Channel:
    """One channel: what its publisher and its subscribers know of it.

    Attributes:
        name: its name. options: of its publisher.
        bodies: what was written, by seq, whatever became of it. confirmed: of which seqs there are receipts.
        failed: how many were dropped or lost.
        calm: seqs that were published after the storm.
        readers: what each subscriber had.
    """

    name: str
    options: dict[str, Any]
    bodies: dict[int, set[bytes]] = field(default_factory=dict)
    confirmed: dict[int, bytes] = field(default_factory=dict)
    failed: int = 0
    calm: list[int] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)

    async def publish(self, url: str, over: anyio.Event) -> None:
        """Publish through a storm, and then once more in fine weather."""
        rng = Random(f"{SEED} {self.name}")
        with patch("tricklecast.publisher.client.Random", lambda: Short(1)):
            publisher = Publisher(url, outage_s=None, **self.options)
        async with publisher:
            async with anyio.create_task_group() as tasks:
                while not over.is_set():
                    segment = publisher.segment(wait=False)
                    tasks.start_soon(self._write, segment, rng.randbytes(rng.choice([10, 3000, 60_000])))
                    await anyio.sleep(rng.uniform(0.05, 0.15))
            for _ in range(CALM):
                receipt = await publisher.publish(body := rng.randbytes(1000))
                self._confirm(receipt.seq, receipt.stored, body)
                self.calm.append(receipt.seq)
            statistics = publisher.statistics()
            assert (publisher.error, statistics.in_flight) == (None, 0)
            assert statistics.segments == len(self.confirmed)
            assert statistics.dropped + statistics.lost == self.failed

    async def _write(self, segment: SegmentWriter, body: bytes) -> None:
        third = len(body) // 3
        try:
            async with segment:
                for part in (body[:third], body[third : 2 * third], body[2 * third :]):
                    await segment.write(part)
                    await anyio.sleep(0.02)
            receipt = await segment.settled()
            self._confirm(receipt.seq, receipt.stored, body)
        except TrickleError:
            self.failed += 1
            self.bodies.setdefault(segment.seq, set()).add(body)

    def _confirm(self, seq: int, stored: int | None, body: bytes) -> None:
        assert seq not in self.confirmed, "a number is given once"
        assert stored == len(body)
        self.confirmed[seq] = body
        self.bodies.setdefault(seq, set()).add(body)


@dataclass
class Reader:
    """What one subscriber had of a channel.

    Attributes:
        whole: segments that came to their end. parts: those that did not, and said so.
        told: seqs of which it was said that they are missed.
        last: the newest seq. before: the newest one before the server died.
    """

    whole: dict[int, bytes] = field(default_factory=dict)
    parts: dict[int, bytes] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    last: int = -1
    before: int = -1

    async def read(self, url: str) -> None:
        """Read until the channel ends; whoever gives up says where to go on."""
        start: int | Position = 0
        while True:
            options: dict[str, Any] = {"on_lag": "earliest", "wait_for_channel_s": 20, "stall_timeout_s": 5}
            subscriber = timed(Runtime(rng=Short(2)), Subscriber, url, start=start, **options)
            try:
                async with subscriber:
                    await self._read(subscriber)
            except BrokenByPeer as error:
                start = error.resume or start
                self.last = min(self.last, (start.seq if isinstance(start, Position) else start) - 1)
                continue
            self.told |= set(range(self.last + 1, self.last + 1 + subscriber.missed_at_end))
            return

    async def _read(self, subscriber: Subscriber) -> None:
        async for segment in subscriber:
            body = b"".join([chunk async for chunk in segment])
            seq, first = segment.seq, segment.seq - segment.gap
            if segment.restarted:  # the numbers may begin again; a publisher that goes on counts from here
                self.before, self.last = max(self.before, self.last), min(self.last, first - 1)
            assert seq > self.last, "nothing comes twice, and nothing too late"
            assert segment.restarted or first in (self.last + 1, self.before + 1), "a gap is as large as it is said"
            self.told |= set(range(self.last + 1, seq))
            (self.whole if segment.complete else self.parts)[seq] = body
            self.last = seq


def judge(channel: Channel, reader: Reader) -> None:
    """What must hold of every reader in any weather."""
    for seq, body in reader.whole.items():
        assert not body or body in channel.bodies[seq], f"segment {seq} is not what was written"
    # What a server had only a part of when it died may get another number from its successor.
    written = set[bytes]().union(*channel.bodies.values())
    for seq, body in reader.parts.items():
        assert any(one.startswith(body) for one in written), f"segment {seq} is no part of what was written"
    silent = set(channel.confirmed) - set(reader.whole) - set(reader.parts) - reader.told
    assert not silent, "what was confirmed arrives, or is said to be missed"
    assert {seq: reader.whole.get(seq) for seq in channel.calm} == {seq: channel.confirmed[seq] for seq in channel.calm}


@pytest.fixture(scope="module")
def real() -> Iterator[TestServer]:
    """A server that keeps an ended channel long enough for whoever is late."""
    with servers_are_forks(), server(channel_drain_s=60) as running:
        yield running


async def confirmed_more(channels: list[Channel]) -> None:
    """Wait until each publisher has another receipt."""
    before = {channel.name: len(channel.confirmed) for channel in channels}
    await until(lambda: all(len(channel.confirmed) > before[channel.name] for channel in channels))


async def storm(real: TestServer, skies: list[Weather], channels: list[Channel]) -> None:
    """The server dies, and then nobody gets through for a while."""
    await confirmed_more(channels)
    await anyio.to_thread.run_sync(real.kill)
    await anyio.to_thread.run_sync(real.restart)
    await confirmed_more(channels)
    for sky in skies:
        sky.closed = True
        sky.strike()
    await anyio.sleep(OUTAGE_S)
    for sky in skies:
        sky.closed = False
    await confirmed_more(channels)
    for sky in skies:
        sky.faults = 0


def test_in_any_weather_nothing_is_lost_in_silence(real: TestServer) -> None:
    """Resets, cuts, stalls, a dying server: each segment arrives as it was written, or its loss is told."""
    complaints: list[Any] = []
    channels = [Channel(f"storm{number}", options) for number, options in enumerate(OPTIONS)]

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        over = anyio.Event()
        jobs: list[Callable[[], Coroutine[Any, Any, None]]] = []
        skies: list[Weather] = []
        with anyio.fail_after(LIMIT_S):
            async with AsyncExitStack() as stack:
                for channel in channels:
                    up = await stack.enter_async_context(
                        weather(f"{SEED} {channel.name}", real.port, FAULTS_OF_PUBLISHER)
                    )
                    down = await stack.enter_async_context(
                        weather(f"{SEED} to {channel.name}", real.port, FAULTS_OF_SUBSCRIBER)
                    )
                    skies += [up, down]
                    urls = real.url(channel.name), down.url(channel.name)
                    channel.readers = [Reader() for _ in urls]
                    jobs += [partial(reader.read, url) for reader, url in zip(channel.readers, urls, strict=True)]
                    jobs.append(partial(channel.publish, up.url(channel.name), over))
                async with anyio.create_task_group() as tasks:
                    for job in jobs:
                        tasks.start_soon(job)
                    await storm(real, skies, channels)
                    over.set()
            await until(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(main())
    gc.collect()
    assert complaints == []
    for channel in channels:
        for reader in channel.readers:
            judge(channel, reader)
