"""A world for a mirror: a source, a destination and the network between them, in virtual time.

The engine, its registry in SQLite, the channels, the feeds and the replicas are the real ones. The source answers late,
breaks off, forgets its news, is started again; the destination loses what it had not yet on its disk. Everything that
happens is drawn from one seed.

What must never happen is looked at in the moment when it would happen, in the callbacks of the destination and at each
row that is called clean:

- A channel is held, or a segment is shown, of a :class:`Life` that has ended here, or whose name is not selected.
- A byte is shown that is not the source's, of this life, at this place.
- A copy ends whose channel goes on at the source, and whose name is selected.
- A row is clean although news were heard that it does not know (:meth:`World.is_clean`).
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple
from zlib import crc32

from tests.support.virtual_time import VirtualLoop
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact, Journal, SegmentClosed
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry, Restored
from tricklecast.app.core.segment import COMPLETE, EMPTY, OPEN, TRUNCATED, Writer
from tricklecast.app.core.state import Channel
from tricklecast.app.mirror.engine import Mirror
from tricklecast.app.mirror.registry import ChannelRow, MirrorRegistry
from tricklecast.app.mirror.sides import (
    GoneThere,
    HeldCopy,
    IndexTooOld,
    Listing,
    News,
    SourceAway,
    SourceChannel,
    SourceError,
    SourceSegment,
)
from tricklecast.app.replication.feed import Feed
from tricklecast.app.replication.records import Begin, FeedEnd, FeedError, Hello, Parser, Record
from tricklecast.app.replication.replica import Replica
from tricklecast.trickle.errors import TrickleError

NAMES: Final = ("a", "b", "tv.1")
WIDE: Final = ("*",)
NARROW: Final = ("tv.*", "b")
LIMITS: Final = Limits(window_segments=2, window_age_s=1e9, idle_timeout_s=1e9, tombstone_s=1e9, channel_drain_s=1e9)
BASE_S: Final = 1_000_000.0
"""The wall clock at the beginning: no time is 0."""

PAUSES: Final = (0.0, 0.0, 0.0, 0.001, 0.01, 0.1, 1.0, 4.0)
STEPS: Final = (1e-5, 1e-5, 0.001, 0.02, 0.3, 2.0)


class Violation(AssertionError):
    """Something has happened that must never happen."""


class Life(NamedTuple):
    """A channel of the source, from its beginning to its end. A source that forgets its epochs has several of one."""

    name: str
    epoch: int
    created_us: int


class Noted(str):
    """A name in the news, with what has happened: nobody may act on that."""

    life: Life | None


def to_us(at: float) -> int:
    return round((at + BASE_S) * 1e6)


def to_time(us: int) -> float:
    return us / 1e6 - BASE_S


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class _Nobody:
    def preempted(self, outcome: object) -> None: ...


class ModelSource:
    """A source over a network.

    Attributes:
        life: of each name, what lives now.
        lives: by name, from which index on what lived.
        closed: by life and seq: the closed segments. bytes: all bytes that ever were at a place.
        lies: how many answers will be wrong. asked: how often what was asked for.
    """

    def __init__(self, world: World) -> None:
        self.world, self.dice, self.loop = world, world.dice, world.loop
        self.up = True
        self.lies = self.starts = self.index = self.floor = 0
        self.asked: Counter[str] = Counter()
        self.log: list[tuple[int, Noted]] = []
        self.lives: dict[str, list[tuple[int, Life | None]]] = defaultdict(lambda: [(0, None)])
        self.closed: dict[Life, dict[int, SourceSegment]] = defaultdict(dict)
        self.bytes: dict[Life, dict[int, bytes]] = defaultdict(dict)
        self.writers: dict[str, list[Writer[Any]]] = defaultdict(list)
        # Dicts for their order: the same seed does the same.
        self._waits: dict[asyncio.Future[None], None] = {}
        self._news: dict[asyncio.Future[None], None] = {}
        self._feeds: list[Feed] = []
        self._begin()

    def _begin(self) -> None:
        self.starts += 1
        self.instance = f"start{self.starts}"
        self.registry = Registry(LIMITS, autocreate=True, instance=self.instance, journal=Journal())
        self.registry.journal.subscribe(self._heard, ChannelCreated, ChannelEnded, SegmentClosed)

    def life(self, name: str) -> Life | None:
        return self.lives[name][-1][1]

    def _heard(self, fact: Fact) -> None:
        match fact:
            case ChannelCreated():
                self._lives(fact.channel, Life(fact.channel, fact.epoch, to_us(fact.at)))
            case ChannelEnded():
                self._lives(fact.channel, None)
            case SegmentClosed():
                life = self.life(fact.channel)
                segment = self.registry.channels[fact.channel].segments.get(fact.seq)
                if life is not None and segment is not None:
                    body = self.bytes[life][fact.seq] = b"".join(segment.payload())
                    opened_us = to_us(segment.opened_at or fact.at)
                    told = SourceSegment(fact.seq, fact.state, fact.size, crc32(body), opened_us, to_us(fact.at))
                    if fact.state in (COMPLETE, EMPTY, TRUNCATED):
                        self.closed[life][fact.seq] = told

    def _lives(self, name: str, life: Life | None) -> None:
        self.index += 1
        self.lives[name].append((self.index, life))
        noted = Noted(name)
        noted.life = life
        self.log.append((self.index, noted))
        for waiting in self._news:
            _wake(waiting)

    def content(self, life: Life, seq: int) -> bytes:
        """All bytes that were published there so far."""
        channel = self.registry.channels.get(life.name)
        if self.life(life.name) == life and channel is not None and (segment := channel.segments.get(seq)) is not None:
            return b"".join(segment.payload())
        return self.bytes[life].get(seq, b"")

    # What publishers and the operator do.

    def write(self, name: str, *, whole: bool) -> None:
        """Publish a segment, or go on with one that is open, or begin one."""
        now, data = self.loop.time(), self.dice.randbytes(self.dice.choice((1, 10, 50)))
        if self.writers[name] and self.dice.random() < 0.6:
            writer = self.writers[name].pop(self.dice.randrange(len(self.writers[name])))
            if whole:
                writer.channel.finish(writer, (data,), now)
            elif writer.channel.append(writer, (data,), now) is None:
                self.writers[name].append(writer)
            return
        channel = self.registry.live(name)
        found = self.registry.reserve(name, 0 if channel is None else channel.next_seq, _Nobody(), now)
        assert isinstance(found, Writer), found
        if whole:
            found.channel.finish(found, (data,) if self.dice.random() < 0.9 else (), now)
        elif found.channel.append(found, (data,), now) is None:
            self.writers[name].append(found)

    def delete(self, name: str) -> None:
        self.writers[name].clear()
        self.registry.end(name, self.loop.time())

    def go_down(self) -> None:
        self.up = False
        self._break()

    def _break(self) -> None:
        for feed in self._feeds:
            feed.end(FeedEnd.SHUTDOWN)
        self._feeds.clear()
        for waiting in [*self._waits, *self._news]:
            if not waiting.done():
                waiting.set_exception(SourceError("the source is down"))

    def restart(self, *, stored: bool) -> None:
        """With a data directory channels go on in their epochs; without, all is new, and epochs count from 1."""
        now, before = self.loop.time(), self.registry
        for channel in before.channels.values():
            life = self.life(channel.name)
            for segment in channel.segments.values():
                if life is not None and segment.size:
                    self.bytes[life].setdefault(segment.seq, b"".join(segment.payload()))
        self._break()
        self.writers.clear()
        self._begin()
        for name in [*self.lives]:
            life, was = self.life(name), before.channels.get(name)
            if stored and was is not None:
                if life is None:
                    self.registry.remember_ended(name, was.epoch, was.next_seq, 1e12)
                else:
                    created = to_time(life.created_us)
                    self.registry.restore(Restored(name, life.epoch, "", was.next_seq, created), now)
            elif life is not None:
                self._lives(name, None)
        if not stored:
            self.forget_news()

    def forget_news(self) -> None:
        self.floor = self.index
        self.log.clear()

    def forget_history(self, name: str) -> None:
        """Retention."""
        if (life := self.life(name)) is not None and (closed := self.closed[life]):
            window = self.registry.channels[name].segments
            for seq in [seq for seq in sorted(closed) if seq not in window][: self.dice.randint(1, 2)]:
                del closed[seq]

    # The network.

    async def _pause(self, seconds: float | None = None) -> None:
        if not self.up:
            raise SourceAway("the source is down")
        seconds = self.dice.choice(PAUSES) if seconds is None else seconds
        if not self.world.calm and self.dice.random() < 0.01:
            seconds = 100.0  # longer than anybody waits
        if seconds:
            waiting = self.loop.create_future()
            self._waits[waiting] = None
            timer = self.loop.call_later(seconds, _wake, waiting)
            try:
                await waiting
            finally:
                timer.cancel()
                del self._waits[waiting]
        if not self.world.calm and self.dice.random() < 0.02:
            raise SourceError("the connection broke")

    async def look(self) -> Listing:
        self.asked["look"] += 1
        await self._pause()
        lives = [life for name in self.lives if (life := self.life(name)) is not None]
        listing = Listing(self.instance, self.index, [SourceChannel(*life) for life in lives])
        await self._pause(self.dice.choice((0.001, 1.0, 4.0)))
        if listing.instance != self.instance:
            raise SourceError("the connection broke")
        self.world.delivered.update(dict.fromkeys(NAMES, listing.index))
        return listing

    async def news(self, after: int, instance: str) -> News:
        await self._pause()
        if instance == self.instance and after == self.index:
            waiting = self.loop.create_future()
            self._news[waiting] = None
            timer = self.loop.call_later(20.0, _wake, waiting)
            try:
                await waiting
            finally:
                timer.cancel()
                del self._news[waiting]
        if instance != self.instance or after < self.floor:
            raise IndexTooOld("begin with a look")
        upto = self.dice.randint(min(after + 1, self.index), self.index)
        names = [noted for index, noted in self.log if after < index <= upto]
        if self.log and not self.world.calm and self.dice.random() < 0.3:  # once more, and in another order
            names += [self.dice.choice(self.log)[1] for _ in range(2)]
            self.dice.shuffle(names)
        await self._pause()
        if instance != self.instance:
            raise SourceError("the connection broke")
        for index, noted in self.log:
            if after < index <= upto:
                self.world.delivered[noted] = index
        return News(upto, names)

    async def channel(self, name: str) -> SourceChannel | None:
        self.asked["channel"] += 1
        await self._pause()
        life, instance = self.life(name), self.instance
        await self._pause()
        if instance != self.instance:
            raise SourceError("the connection broke")
        return None if life is None else SourceChannel(*life)

    async def segments(self, name: str, epoch: int, after: int) -> Sequence[SourceSegment]:
        self.asked["segments"] += 1
        await self._pause()
        life = self.life(name)
        if life is None or life.epoch != epoch:
            raise GoneThere(f"{name!r} is not of epoch {epoch} any more")
        page = [told for seq, told in sorted(self.closed[life].items()) if seq > after][:3]
        await self._pause()
        return page

    async def read(self, name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
        self.asked["read"] += 1
        await self._pause()
        life = self.life(name)
        if life is None or life.epoch != epoch or segment.seq not in self.closed[life]:
            raise GoneThere(f"segment {segment.seq} of {name!r} is gone")
        body = self.bytes[life][segment.seq]
        if self.lies:
            self.lies -= 1
            body = self.dice.choice((body[:-1], body + b"x", bytes(len(body))))
        for at in range(0, len(body), 20):
            await self._pause(self.dice.choice((0.001, 0.1, 1.0, 4.0)))
            yield body[at : at + 20]

    @asynccontextmanager
    async def follow(self, name: str) -> AsyncIterator[_Stream]:
        self.asked["follow"] += 1
        await self._pause()
        if self.life(name) is None:
            raise GoneThere(f"{name!r} is gone")
        stream = _Stream(self, name)
        try:
            yield stream
        finally:
            stream.close()

    def opened(self, feed: Feed) -> None:
        self._feeds.append(feed)

    def ended(self, feed: Feed) -> None:
        with suppress(ValueError):
            self._feeds.remove(feed)
        feed.end(FeedEnd.SHUTDOWN)

    pause = _pause


class _Stream:
    def __init__(self, source: ModelSource, name: str) -> None:
        self._source, self._name, self._instance = source, name, source.instance
        self._feed: Feed | None = None
        self._news = asyncio.Event()

    async def send(self, data: bytes) -> None:
        source = self._source
        (hello,) = Parser("", to_time).feed(data)
        assert isinstance(hello, Hello)
        await source.pause()
        channel = source.registry.channels.get(self._name)
        if channel is None:
            raise GoneThere(f"{self._name!r} is gone")
        registry = source.registry
        self._feed = Feed(channel, hello, registry.budget, registry.instance, to_us, self._news.set)
        source.opened(self._feed)

    async def receive(self) -> bytes:
        feed, dice = self._feed, self._source.dice
        assert feed is not None
        while True:
            self._news.clear()
            if self._source.instance != self._instance:
                raise SourceError("the connection broke")
            records = feed.pull(dice.choice((1, 100, 10_000)))
            if records:
                await self._source.pause()
                return b"".join(records)
            if feed.over is not None:
                return b""
            try:
                async with asyncio.timeout(5.0):
                    await self._news.wait()
            except TimeoutError:
                return b"\x06\x00\x00\x00\x00"

    def close(self) -> None:
        if self._feed is not None:
            self._source.ended(self._feed)


class _Replica(Replica):
    expected = 0
    body = b""

    def _begin(self, begin: Begin) -> None:
        if begin.epoch != self.expected:
            raise FeedError(f"it is of epoch {begin.epoch} by now")
        super()._begin(begin)

    def _apply(self, channel: Channel, message: Record) -> None:
        if isinstance(message, SegmentClosed):  # it may leave the window with that
            segment = channel.segments.get(message.seq)
            self.body = b"" if segment is None else b"".join(segment.payload())
        super()._apply(channel, message)


class _Held:
    def __init__(self, destination: ModelDestination, life: Life) -> None:
        self.life, self.destination = life, destination
        self.told: Callable[[HeldCopy], None] = lambda copy: None
        registry, clock = destination.registry, destination.loop.time
        self.replica = _Replica(life.name, registry, clock, to_time, closed=self._closed)
        self.replica.expected = life.epoch

    @property
    def live(self) -> bool:
        return self.replica.live

    @property
    def channel(self) -> Channel | None:
        return self.replica.channel

    def hello(self) -> bytes:
        return self.replica.hello()

    def receive(self, data: bytes) -> FeedEnd | None:
        if self.destination.held.get(self.life.name) is not self:
            raise Violation(f"bytes for {self.life}, which is not held any more")
        try:
            return self.replica.receive(data)
        except TrickleError:
            self.replica.end()
            raise
        finally:
            self.destination.world.look_at_window(self)

    def _closed(self, seq: int, size: int, crc: int) -> None:
        # One that has left the source's window meanwhile is truncated here, until its history is compared.
        self.destination.keep(self.life, seq, self.replica.body, whole=self.live)
        self.told(HeldCopy(seq, size, crc))


class ModelDestination:
    """The destination. held: the copies that live. archive: by name and epoch, what it has stored, and shows.

    Attributes:
        ended: lives whose end has been applied here. full: whether the disk is.
        lowest: seqs below this one are not kept, but for those that come by the feed.
    """

    def __init__(self, world: World, *, stores: bool) -> None:
        self.world, self.dice, self.loop, self.stores = world, world.dice, world.loop, stores
        self.archive: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
        self.ended: set[Life] = set()
        self.full, self.lowest = False, 0
        self._unflushed: list[tuple[float, tuple[str, int], int]] = []
        self._begin()

    def _begin(self) -> None:
        self.registry = Registry(LIMITS, autocreate=True)
        self.held: dict[str, _Held] = {}

    def crash(self) -> None:
        """What was written lately may not be on the disk."""
        for at, key, seq in self._unflushed:
            if at > self.loop.time() - 0.1 and self.dice.random() < 0.5:
                self.archive[key].pop(seq, None)
        self._unflushed.clear()
        self._begin()

    def keep(self, life: Life, seq: int, body: bytes, *, whole: bool = True) -> None:
        self.world.may_show(life, seq, body, whole=whole)
        if self.stores:
            key = life.name, life.epoch
            self.archive[key][seq] = body
            self._unflushed = [one for one in self._unflushed if one[0] > self.loop.time() - 0.1]
            self._unflushed.append((self.loop.time(), key, seq))

    def channels(self) -> Mapping[str, int]:
        lives = (one.life for one in self.held.values() if one.channel is None or not one.channel.ended)
        return {life.name: life.epoch for life in lives}

    def hold(self, name: str, epoch: int, closed: Callable[[HeldCopy], None]) -> _Held:
        life = self.world.life_of(name, epoch)
        self.world.may_hold(life)
        if self.registry.live(name) is not None:
            raise TrickleError(f"{name!r} is a channel of this server")
        held = self.held.get(name)
        if held is None or held.life != life:
            if held is not None:
                self._end(held)
            held = self.held[name] = _Held(self, life)
        held.told = closed
        return held

    def copies(self, name: str, epoch: int) -> Iterable[HeldCopy]:
        known = self.dice.random() < 0.5
        archive = self.archive[name, epoch].items()
        return [HeldCopy(seq, len(body), crc32(body) if known else None) for seq, body in archive]

    def keeps(self, name: str, epoch: int, segment: SourceSegment) -> bool:
        return segment.seq >= self.lowest or segment.seq in self.archive[name, epoch]

    def insert(self, name: str, epoch: int, segment: SourceSegment, body: Sequence[bytes]) -> bool:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")
        if segment.seq < self.lowest:
            return False
        if segment.seq in self.archive[name, epoch]:
            return False
        self.keep(self.world.life_of(name, epoch), segment.seq, b"".join(body))
        return True

    def end(self, name: str) -> None:
        if (held := self.held.pop(name, None)) is not None:
            self.world.may_end(held.life)
            self._end(held)

    def _end(self, held: _Held) -> None:
        if self.world.source.life(held.life.name) != held.life:
            self.ended.add(held.life)
        held.replica.end()

    async def checksum(self, name: str, epoch: int, seq: int) -> int | None:
        await asyncio.sleep(self.dice.choice((0.0, 0.1)))
        body = self.archive[name, epoch].get(seq)
        return None if body is None else crc32(body)

    def remove(self, name: str, epoch: int, seq: int) -> None:
        self.archive[name, epoch].pop(seq, None)


class World:
    """All of it.

    Args:
        seed: of all dice.
        mirror: of the engine; registry: of its rows. A test may put others here.

    Attributes:
        calm: whether the network behaves. delivered: by name, the index of the last news that the mirror has heard.
        interleavings: how often all has come to rest, and was compared.
    """

    def __init__(
        self,
        seed: int,
        loop: asyncio.AbstractEventLoop,
        mirror: type[Mirror] = Mirror,
        registry: type[MirrorRegistry] = MirrorRegistry,
    ) -> None:
        self.loop, self.dice, self.calm = loop, Random(seed), True
        self.selected: Sequence[str] = WIDE
        self.delivered: dict[str, int] = {}
        self.interleavings = 0
        self._mirror_class, self._registry_class = mirror, type("Watched", (_Watched, registry), {})
        self.source = ModelSource(self)
        self.destination = ModelDestination(self, stores=self.dice.random() < 0.8)
        self.registry = self._new_registry()
        self.mirror: Mirror | None = None
        self._running: asyncio.Task[None] | None = None
        self.violations: list[Violation] = []

    def _new_registry(self) -> MirrorRegistry:
        registry: MirrorRegistry = self._registry_class()
        registry.world = self  # type: ignore[attr-defined]
        return registry

    # What must never happen.

    def never(self, text: str) -> None:
        violation = Violation(f"{self.loop.time():.3f}: {text}")
        self.violations.append(violation)
        raise violation

    def life_of(self, name: str, epoch: int) -> Life:
        """What the mirror believes to be the channel of a name."""
        row = self.registry.channel(name)
        if row is None or row.epoch != epoch:
            self.never(f"{name!r} is shown in epoch {epoch}, and its row is {row}")
        assert row is not None
        return Life(name, epoch, row.created_us)

    def is_selected(self, name: str) -> bool:
        assert self.mirror is not None
        return self.mirror.selected(name)

    def may_hold(self, life: Life) -> None:
        if life in self.destination.ended:
            self.never(f"{life} has ended here, and comes back")
        if not self.is_selected(life.name):
            self.never(f"{life} begins, and is not selected")

    def may_show(self, life: Life, seq: int, body: bytes, *, whole: bool) -> None:
        self.may_hold(life)
        truth = self.source.content(life, seq)
        if body != (truth if whole else truth[: len(body)]):
            self.never(f"segment {seq} of {life} is {body.hex()}, not {truth.hex()}")

    def look_at_window(self, held: _Held) -> None:
        channel = held.channel
        if channel is not None and self.destination.held.get(held.life.name) is held:
            if channel.epoch != held.life.epoch:
                self.never(f"{channel} is shown as {held.life}")
            for segment in channel.segments.values():
                if segment.state is OPEN:
                    self.may_show(held.life, segment.seq, b"".join(segment.payload()), whole=False)

    def may_end(self, life: Life) -> None:
        if self.source.life(life.name) == life and self.is_selected(life.name):
            self.never(f"{life} ends here, and lives at the source")

    def is_clean(self, name: str, life: Life | None) -> None:
        """A row says that this is the truth: it must have been so after the last news of it that were heard."""
        heard, lives = self.delivered.get(name, 0), self.source.lives[name]
        untils = [*(began for began, _ in lives[1:]), None]
        for (_, what), until in zip(lives, untils, strict=True):
            if what == life and (until is None or until > heard):
                return
        self.never(f"the row of {name!r} is clean with {life}, and news up to {heard} were heard: {lives}")

    # What happens.

    def start(self) -> None:
        self.delivered.clear()
        self.mirror = self._mirror_class(
            self.registry,
            self.source,
            self.destination,
            self.selected,
            newest_first=self.dice.random() < 0.5,
            wall=lambda: self.loop.time() + BASE_S,
            dice=self.dice,
            reverify_s=50.0,
        )
        self._running = asyncio.ensure_future(self.mirror.run())

    async def stop(self) -> None:
        """Gently; the destination goes on."""
        if self.mirror is not None and self._running is not None:
            await self.mirror.stop()
            self._fail()
            await self._running
        self.mirror = None

    async def kill(self, *, stored: bool) -> None:
        """The process of the mirror and the destination."""
        if self._running is not None and self.mirror is not None:
            self.registry.roll_back()
            self._running.cancel()
            await asyncio.wait((self._running,))
            self._fail()
            self.registry.roll_back()
            self.registry._versions = count(1)
        self.mirror = None
        if stored and self.destination.stores:
            self.destination.crash()
        else:
            self.registry.close()
            self.registry = self._new_registry()
            ended, stores = self.destination.ended, self.destination.stores
            self.destination = ModelDestination(self, stores=stores)
            self.destination.ended = ended

    def _fail(self) -> None:
        """A fault of the engine ends the world."""
        if self.violations:
            raise self.violations[0]
        if self._running is not None and self._running.done() and not self._running.cancelled():
            self._running.result()

    async def step(self) -> None:
        """Something happens."""
        source, dice, destination = self.source, self.dice, self.destination
        name = dice.choice(NAMES)
        match dice.choices(_WHAT, _WEIGHTS)[0]:
            case "write":
                for _ in range(dice.choice((1, 1, 8))):
                    source.write(name, whole=dice.random() < 0.7)
            case "delete":
                # Rather one of which copies are under way.
                source.delete(dice.choice([row.name for row in self.registry.missing(reachable=True)[1]] or [name]))
            case "begin anew":
                source.delete(name)
                if self.mirror is not None and dice.random() < 0.5:
                    self.mirror.look_again()  # the list may say what is in between
                await self.passes(dice.choice(STEPS))
                for _ in range(dice.choice((1, 8))):
                    source.write(name, whole=True)
            case "source restarts":
                source.restart(stored=dice.random() < 0.6)
            case "source goes":
                source.go_down()
            case "source comes":
                source.up = True
            case "news are forgotten":
                source.forget_news()
            case "history is forgotten":
                source.forget_history(name)
            case "lies":
                source.lies += 1
            case "select":
                self.selected = dice.choice((WIDE, NARROW))
                if self.mirror is not None:
                    self.mirror.select(self.selected)
            case "own":
                if destination.registry.live(name) is None and name not in destination.held:
                    destination.registry.create(name, "", self.loop.time())
                else:
                    destination.registry.end(name, self.loop.time())
            case "restart":
                await self.stop()
                self.start()
            case "kill":
                await self.kill(stored=dice.random() < 0.7)
                await self.passes(dice.choice(STEPS))
                self.start()
            case "disk":
                destination.full = not destination.full
            case "retention":
                destination.lowest = dice.choice((0, 2, 5))
                if self.mirror is not None:
                    self.mirror.resync(self.mirror.matching(["*"]))
            case "look" if self.mirror is not None:
                self.mirror.look_again()
            case "resync" if self.mirror is not None:
                self.mirror.resync(
                    self.mirror.matching(["*" if (failed := dice.random() < 0.5) else name]), failed=failed
                )
        await self.passes(dice.choice(STEPS))

    async def passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._fail()

    async def rest(self) -> None:
        """All is well for a while: then all is as at the source."""
        self.calm, self.source.up, self.destination.full, self.source.lies = True, True, False, 0
        for name in NAMES:
            self.destination.registry.end(name, self.loop.time())
        for pause in (0.1, 1.0, 5.0, 20.0, 60.0, 100.0, 200.0):
            await self.passes(pause)
            if not (difference := self.difference()):
                break
        else:
            raise Violation(f"{self.loop.time():.3f}: at rest, {difference}")
        self.interleavings += 1
        self.calm = False

    def difference(self) -> str:
        """Where source, registry and destination do not agree."""
        source, destination, registry = self.source, self.destination, self.registry
        rows = registry.channels()
        assert self.mirror is not None
        for name in NAMES:
            life = source.life(name) if self.is_selected(name) else None
            row, held = rows.get(name), destination.held.get(name)
            if life is None:
                if held is not None or (row is not None and row.state != "deleted"):
                    return f"{name!r} is not there, and here are {row} and {held}"
                continue
            if row is None or (row.state, row.epoch, row.created_us) != ("synced", life.epoch, life.created_us):
                return f"{life} is there, and its row is {row}"
            if held is None or held.life != life or not held.live or held.channel is None or held.channel.ended:
                return f"{life} is there, and not live here"
            for seq, segment in source.registry.channels[name].segments.items():
                here = held.channel.segments.get(seq)
                if b"".join(segment.payload()) != (b"" if here is None else b"".join(here.payload())):
                    return f"segment {seq} of {life} is not here as there"
            stored = destination.archive[name, life.epoch]
            for seq in source.closed[life] if destination.stores else ():
                if seq >= destination.lowest and stored.get(seq) != source.bytes[life][seq]:
                    return f"segment {seq} of {life} is {stored.get(seq)!r:.50} here"
            for seq, body in stored.items():
                # One that is not there any more may be truncated here: nobody has the rest.
                truth = source.bytes[life].get(seq, b"")
                if body != (truth if seq in source.closed[life] else truth[: len(body)]):
                    return f"segment {seq} of {life} is stale"
            if destination.stores and registry.synced(name, life.epoch).keys() != stored.keys():
                return f"{life} has the rows {registry.synced(name, life.epoch)}, and {stored.keys()} are here"
        _, missing = registry.missing(reachable=True)
        for late in missing:
            life = source.life(late.name)
            if life is None or late.state != "failed" or late.next_at is not None or late.seq in source.closed[life]:
                return f"{late} is not done"
        if self.mirror.status().state != "following" or not (missing or self.mirror.status().complete):
            return f"{self.mirror.status()}"
        return ""

    async def end(self) -> None:
        """Also after a violation."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self.registry.close()


class _Watched(MirrorRegistry):
    """Tells the world of each row that is called clean."""

    world: World

    def finish_channel(self, row: ChannelRow, now: float) -> bool:
        done = super().finish_channel(row, now)
        if done:
            found = self.channel(row.name)
            assert found is not None
            self.world.is_clean(row.name, Life(row.name, found.epoch, found.created_us))
        return done

    def bury(self, row: ChannelRow, now: float) -> bool:
        done = super().bury(row, now)
        if done:
            self.world.is_clean(row.name, None)
        return done


_CHANCES: Final = {
    "write": 12, "delete": 8, "begin anew": 4, "source restarts": 1, "source goes": 1, "source comes": 2,
    "news are forgotten": 2, "history is forgotten": 1, "lies": 1, "select": 2, "own": 1, "restart": 1, "kill": 1,
    "disk": 0.5, "retention": 0.5, "look": 1, "resync": 1,
}  # fmt: skip
_WHAT, _WEIGHTS = [*_CHANCES], [*_CHANCES.values()]


def run(
    seed: int,
    rounds: int,
    mirror: type[Mirror] = Mirror,
    registry: type[MirrorRegistry] = MirrorRegistry,
) -> World:
    """Let a world go its way, and rest after each few steps."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        world = World(seed, loop, mirror, registry)

        async def go() -> None:
            world.start()
            try:
                await world.rest()
                for _ in range(rounds):
                    for _ in range(world.dice.randint(2, 8)):
                        await world.step()
                    await world.rest()
            finally:
                await world.end()

        runner.run(go())
    return world
