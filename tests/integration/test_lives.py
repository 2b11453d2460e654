"""A server is killed at random moments: no segment of one life is handed out as another's, and no loss is silent.

Each channel has a publisher whose bytes name its life and the segment's seq, and readers that check what they are
handed out against that. At each kill, dice decide whether the publisher goes on with its numbers on the next server, or
is replaced by a new one (which begins at 0, or, where the server keeps the channel, at its head, or deletes it first);
and whether a reader stays, or goes away and comes back with the text of its position, also after several restarts.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import anyio
import anyio.to_thread
import httpx
import pytest

from tests.support.fixtures import servers_are_forks
from tests.support.waiting import until
from tricklecast.publisher import Publisher
from tricklecast.subscriber import Segment, Subscriber
from tricklecast.testing import TestServer, server
from tricklecast.trickle.client.bridge import TrickleTransport as DuplexTransport
from tricklecast.trickle.errors import TrickleError

CHANNELS: Final = 6
KILLS: Final = 42
"""Of each mode's server: with six channels each, 1,008 moments in all."""

PROGRESS_S: Final = 60.0

MODES: Final = ("none", "memory", "journal", "fsync")
"""Without a data directory, and with one and each ``--ack``."""


@dataclass(eq=False)
class Life:
    """What one publisher has written.

    Attributes:
        name: what its bytes say.
        era: of the channel: another one begins where numbers may come again, by a restart without a data directory,
            or by a DELETE.
        first: the lowest seq that it wrote.
        acked: by seq, the how-many-th start of the server has confirmed it.
        dead: its publisher's process is gone. scope: of what that process does.
    """

    name: str
    era: int
    first: int | None = None
    acked: dict[int, int] = field(default_factory=dict)
    dead: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def end(self) -> None:
        """Kill its publisher."""
        self.dead = True
        self.scope.cancel()


class Mortal(httpx.AsyncBaseTransport):
    """A publisher's connections, which end with its process."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._transport = DuplexTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._life.dead:
            raise httpx.ConnectError("this publisher's process is gone")
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


@dataclass
class Fault:
    """Something that must not be."""

    what: str
    about: str


@dataclass
class World:
    """One server with its clients.

    Attributes:
        running: the server. kept: whether it has a data directory. durable: whether what it confirms outlives it.
        starts: how often it was started. up: whether it runs.
        over: whether the clients are to end.
        counts, faults: what was seen.
    """

    running: TestServer
    rng: Random
    kept: bool
    durable: bool
    starts: int = 1
    up: bool = True
    over: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, what: str, about: str) -> None:
        """Note what must not be."""
        self.faults.append(Fault(what, about))


class Feed:
    """One channel with its publishers, one after the other."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.url = world.running.url(name)
        self.name = name
        self.lives: list[Life] = []
        self.era = 0

    @property
    def life(self) -> Life:
        """The present one."""
        return self.lives[-1]

    def recent(self, count: int) -> bool:
        """Whether the present server has confirmed so many segments of the present publisher."""
        return sum(start == self.world.starts for start in self.life.acked.values()) >= count

    async def publish(self) -> None:
        """Publish in one life after the other."""
        world = self.world
        while not world.over:
            await until(lambda: world.up)
            start: int | Literal["resume"] = 0
            if self.lives and world.kept:
                if world.rng.random() < 0.5:
                    start = "resume"
                elif not await self._delete():
                    continue
            if start == 0:
                self.era += 1
            life = Life(f"{self.name}-{len(self.lives)}", self.era)
            self.lives.append(life)
            with suppress(TrickleError), life.scope:
                await self._live(life, start)

    async def _delete(self) -> bool:
        try:
            async with httpx.AsyncClient() as http:
                return (await http.delete(self.url)).status_code in (200, 400)
        except httpx.TransportError:
            return False

    async def _live(self, life: Life, start: int | Literal["resume"]) -> None:
        world = self.world
        async with Publisher(self.url, content_type="text/plain", start=start, transport=Mortal(life)) as publisher:
            try:
                while not (life.dead or world.over):
                    try:
                        await self._segment(life, publisher)
                    except TrickleError as error:
                        world.counts["segments that were not confirmed"] += 1
                        if publisher.error is not None:
                            if not life.dead:
                                world.fault("a publisher stopped", f"{life.name}: {error!r}")
                            return
            finally:
                with suppress(TrickleError):
                    await publisher.detach()

    async def _segment(self, life: Life, publisher: Publisher) -> None:
        rng = self.world.rng
        async with publisher.segment() as segment:
            line = b""
            for _ in range(rng.randint(1, 4)):
                if not line:
                    line = f"{life.name} {segment.seq}\n".encode()
                    life.first = segment.seq if life.first is None else min(life.first, segment.seq)
                await segment.write(line * rng.randint(1, 50))
                await anyio.sleep(rng.uniform(0, 0.02))
        self.world.counts["segments confirmed"] += 1
        life.acked[segment.receipt.seq] = self.world.starts


class Reader:
    """One reader of a feed, over any number of subscriptions, each of which goes on where the one before stopped."""

    def __init__(self, feed: Feed, on_lag: str) -> None:
        self.feed = feed
        self.on_lag = on_lag
        self.away = False
        self.start = "0"
        self.life: Life | None = None
        self.numbering: str | None = None
        self.last = self.before = -1
        self.restarted = False
        self.began_at = 0

    async def read(self) -> None:
        """Read until it is all over."""
        world = self.feed.world
        while not world.over:
            await until(lambda: not self.away)
            options: dict[str, Any] = {"on_lag": self.on_lag, "wait_for_channel_s": 20, "start": self.start}
            async with Subscriber(self.feed.url, **options) as subscriber:
                try:
                    async for segment in subscriber:
                        await self._take(segment)
                        self.start = str(subscriber.position)
                        if self.away or world.over:
                            break
                except TrickleError as error:
                    world.counts[f"subscriptions that ended with {type(error).__name__}"] += 1
                    self.start = str(error.resume or self.start)
            await anyio.sleep(0.05)

    async def _take(self, segment: Segment) -> None:
        world = self.feed.world
        about = f"{self.feed.name} ({self.on_lag}), start {world.starts}: after {self.last} of {self._name}"
        about += f", {segment.seq} with gap {segment.gap}, restarted {segment.restarted}, life {segment.life}"
        data = b"".join([chunk async for chunk in segment])
        world.counts["segments read"] += 1
        world.counts["restarts told"] += segment.restarted
        if segment.restarted:
            self.began_at, self.restarted = segment.seq - segment.gap, True
        elif segment.seq != self.last + 1 + segment.gap:
            world.fault("a gap is not what was told", about)
        self._check_gap(segment, about)
        self.last = segment.seq
        if b"\n" in data:
            self._check_life(segment, data, about)

    @property
    def _name(self) -> str:
        return "nobody" if self.life is None else self.life.name

    def _check_gap(self, segment: Segment, about: str) -> None:
        """What is told to be missing is not to be had."""
        world = self.feed.world
        if not segment.gap:
            return
        world.counts["gaps told"] += 1
        missed = range(segment.seq - segment.gap, segment.seq)
        if self.on_lag == "live":
            return  # where one is lost, it goes to the newest one
        for life in self.feed.lives:
            if life.era == self.feed.era and any(
                seq in missed and (start == world.starts or world.durable) for seq, start in life.acked.items()
            ):
                world.fault("what was confirmed is told to be missing", about)

    def _check_life(self, segment: Segment, data: bytes, about: str) -> None:
        """What follows in the numbering is of the same life, or of one that follows."""
        world = self.feed.world
        lines = set(data.split(b"\n")[:-1])
        name, _, seq = lines.pop().decode().partition(" ")
        about += f": {name}"
        if lines or int(seq) != segment.seq:
            world.fault("a segment is made of two", f"{about}, {lines}")
        life = next(life for life in self.feed.lives if life.name == name)
        assert life.first is not None
        lives = self.feed.lives
        between = lives[lives.index(self.life) + 1 : lives.index(life)] if self.life in lives else []
        if self.life is not None and life is not self.life and not self.restarted:
            world.counts["lives that followed"] += 1
            if life.era != self.life.era or life.first <= self.before:
                world.fault("a segment of another life is handed out as one that follows", about)
            if world.durable and any(seq <= self.before for one in between for seq in one.acked):
                world.fault("what was confirmed in the place of what was read is passed over", about)
        if self.restarted:
            if life is self.life:
                world.fault("a life is told to have begun again", about)
            elif self.began_at not in [one.first for one in (*between, life) if one.era == life.era]:
                world.fault("a gap of a new life is not what was told", f"{about}, which began at {life.first}")
        self.life, self.before, self.restarted = life, segment.seq, False


async def live_through(world: World, kills: int, channels: int) -> None:
    """Kill the server and start it again, time after time; each time all clients have to get going again."""
    rng = world.rng
    feeds = [Feed(world, f"cam{number}") for number in range(channels)]
    readers = [Reader(feed, on_lag) for feed in feeds for on_lag in ("live", "earliest")]
    async with anyio.create_task_group() as clients:
        for feed in feeds:
            clients.start_soon(feed.publish)
        for reader in readers:
            clients.start_soon(reader.read)
        await _get_going(feeds, readers)
        for _ in range(kills):
            await anyio.sleep(rng.uniform(0, 0.4))
            world.up = False
            await anyio.to_thread.run_sync(world.running.kill)
            for feed in feeds:
                if rng.random() < 0.5:
                    feed.life.end()
                world.counts["lives that ended" if feed.life.dead else "lives that went on"] += 1
            for reader in readers:
                reader.away = reader.away or rng.random() < 0.3
            world.starts += 1
            await anyio.to_thread.run_sync(world.running.restart)
            world.up = True
            await anyio.sleep(rng.uniform(0, 0.5))
            for reader in readers:
                reader.away = world.kept and reader.away and rng.random() < 0.5
                world.counts["readers that stayed away for another start"] += reader.away
            await _get_going(feeds, [reader for reader in readers if not reader.away])
        for reader in readers:
            reader.away = False
        await _get_going(feeds, readers)
        if world.kept:
            for feed in feeds:
                await _check_store(world, feed)
        world.over = True
        clients.cancel_scope.cancel()


async def _get_going(feeds: list[Feed], readers: list[Reader]) -> None:
    with anyio.move_on_after(PROGRESS_S) as limit:
        await until(lambda: all(feed.lives and not feed.life.dead and feed.recent(2) for feed in feeds))
        heads = {feed: max(feed.life.acked) for feed in feeds}
        await until(
            lambda: all(reader.life is reader.feed.life and reader.last >= heads[reader.feed] for reader in readers)
        )
    if limit.cancelled_caught:
        world = feeds[0].world
        stuck = [feed.name for feed in feeds if not feed.lives or feed.life.dead or not feed.recent(2)]
        behind = [f"{reader.feed.name} {reader.on_lag} at {reader.last} of {reader._name}" for reader in readers]
        raise AssertionError(f"stuck: {stuck}, {behind}, {world.faults}, {world.counts}")


async def _check_store(world: World, feed: Feed) -> None:
    """What was confirmed in this era can still be read, if that was promised."""
    acked = {seq: life.name for life in feed.lives if life.era == feed.era for seq in life.acked}
    found: dict[int, str] = {}
    async with Subscriber(feed.url, start="earliest") as subscriber:
        async for segment in subscriber:
            data = b"".join([chunk async for chunk in segment])
            if data:
                found[segment.seq] = data.partition(b" ")[0].decode()
            if segment.seq >= max(acked):
                break
    lost = {seq: name for seq, name in acked.items() if found.get(seq) != name}
    world.counts["confirmed segments read again"] += len(acked) - len(lost)
    world.counts["confirmed segments lost"] += len(lost)
    if lost and world.durable:
        world.fault("what was confirmed is lost", f"{feed.name}: {lost}")


def check(mode: str, folder: Path, seed: int, kills: int, channels: int) -> Counter[str]:
    """Live through so many kills in this mode; returns what was seen."""
    settings: dict[str, Any] = {} if mode == "none" else {"data_dir": folder / "data", "ack": mode}
    with servers_are_forks(), server(**settings) as running:
        world = World(running, Random(seed), mode != "none", mode in ("journal", "fsync"))
        anyio.run(live_through, world, kills, channels)
    print(f"\n{mode}: {kills} kills x {channels} channels, seed {seed}")
    for what, count in sorted(world.counts.items()):
        print(f"  {count:7} {what}")
    for fault in world.faults:
        print(f"  FAULT {fault.what}: {fault.about}")
    assert not world.faults
    return world.counts


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_no_life_is_taken_for_another(mode: str, tmp_path: Path) -> None:
    """At 1,008 random moments over all modes: lives are told apart, gaps are real, what was promised is there."""
    check(mode, tmp_path, 1, KILLS, CHANNELS)


def test_what_was_written_anew_is_told_over_two_restarts(tmp_path: Path) -> None:
    """Readers have segments 3 and 4, which the server loses. Another publisher writes them anew, and the server is
    killed once more before they are back: they are told, and who reads everything reads them."""
    data, stored = tmp_path / "data", tmp_path / "stored"

    async def main(running: TestServer) -> None:
        url = running.url("events")

        async def publish(publisher: Publisher, *events: str) -> None:
            for event in events:
                async with publisher.segment() as segment:
                    await segment.write(event.encode())

        async def restart(put: tuple[Path, Path] | None = None) -> None:
            await anyio.to_thread.run_sync(running.kill)
            if put is not None:
                shutil.rmtree(put[1], ignore_errors=True)
                shutil.copytree(*put)
            await anyio.to_thread.run_sync(running.restart)

        async with Publisher(url) as publisher:
            await publish(publisher, "a0", "a1", "a2")
            await restart((data, stored))
            await publish(publisher, "a3", "a4")
            await publisher.detach()
        async with Subscriber(url, start=0) as subscriber:
            assert [await _event(subscriber) for _ in range(5)] == [(f"a{seq}", 0, False) for seq in range(5)]
            position = subscriber.position
            assert position is not None
        await restart((stored, data))  # as if the server had been killed before it had stored any more
        async with Publisher(url) as publisher:
            await publish(publisher, "b3", "b4", "b5")
            await publisher.detach()
        await restart()
        async with Subscriber(url, start=position, on_lag="live") as subscriber:
            assert await _event(subscriber) == ("b5", 2, True)
        async with Publisher(url) as publisher:
            await publish(publisher, "c6")
            await publisher.detach()
        async with Subscriber(url, start=position, on_lag="earliest") as subscriber:
            told = [await _event(subscriber) for _ in range(4)]
        assert told == [("b3", 0, True), ("b4", 0, False), ("b5", 0, False), ("c6", 0, False)]

    with servers_are_forks(), server(data_dir=data, ack="journal") as running:
        anyio.run(main, running)


async def _event(subscriber: Subscriber) -> tuple[str, int, bool]:
    """The next segment: its text, and what is told about it."""
    segment = await anext(aiter(subscriber))
    return b"".join([chunk async for chunk in segment]).decode(), segment.gap, segment.restarted
