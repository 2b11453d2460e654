"""The quorum history: a channel's facts and bytes in NATS JetStream, from which another node goes on after its owner.

**The problem.** With ``--ack quorum`` a publisher is answered when its segment would survive its node. The node that
takes the channel over goes on in the same epoch, so it must have all that was acknowledged, and the node before, which
may be alive and not know that it is deposed, must not be able to acknowledge anything any more.

**The idea.** Each channel has one subject of a stream. Its owner writes the records of a
:class:`~tricklecast.app.replication.feed.Feed` there, as to a replica: a snapshot, then what happens. Every message
names the sequence number of the message that it follows, and JetStream refuses it if another one is the last. So one
message of a channel is on its way at a time, and all that has gathered meanwhile goes into the next one. A publisher
waits for the message with the fact that closes its segment.

**Fence.** A successor, which the directory has given the channel, writes an empty message first. From then on each
write of the node before is refused, and what it has acknowledged is there to be read. It is read after the fence, never
before. Each owner has a *reign*, one more than that of the message before its first one; a writer that meets a higher
one is deposed, and one that meets its own message had only missed the answer.

**Generations.** The history must not grow for ever. When it is twice as long as what the channel holds, the owner
begins another feed in the same subject: a new generation, whose snapshot goes between the messages of the present one.
The header ``Trickle-Live`` names the generation that a reader has to apply, and where it begins. It changes with the
message by which the new generation has all facts that were acknowledged; only then is what lies before purged. So the
history can be read wherever it is cut.

A successor does not write the window again: it goes on with the feed where its own reading has ended, as a replica does
that comes back. Its reign tells the reader that another feed begins.

**Headers.** ``Trickle-Generation: <epoch>.<generation>`` of the records; ``Trickle-Live: <generation>@<sequence>``,
``@0`` for the message itself, ``0@0`` for none; ``Trickle-Writer: <reign>.<number>.<random>``, unique.

**A lost stream**, or one that was emptied or put back to an older copy (:mod:`~tricklecast.app.cluster.streams`), is
written anew by every owner; so is a history that nears the age at which its stream forgets. In a new stream the fence
is gone, but what it refuses is refused all the same: no number of the stream before comes back
(:mod:`~tricklecast.app.cluster.jetstream`), so a deposed owner names a message that is not there. In two cases its
write gets through: numbers come back in an older copy of the same stream, and an owner that has written nothing yet
names no message. Then its publisher is not answered 200 either, since the lease is asked behind the history
(:mod:`~tricklecast.app.cluster.leased`), and the owner, whose next write is refused, writes all anew.

It is as durable as its streams: three replicas survive one server; each of them writes to its disk when it was told to
(``sync_interval`` of NATS, two minutes unless it is set), so all of them at once may lose what was acknowledged last.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from tricklecast.app.cluster.jetstream import Connection
from tricklecast.app.cluster.streams import Streams
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.window import Budget
from tricklecast.app.replication.feed import Feed
from tricklecast.app.replication.records import FeedEnd, HeldSegment, Hello
from tricklecast.trickle.errors import TrickleError

logger = logging.getLogger("tricklecast.cluster")

MESSAGE: Final = 128 << 10
"""Bytes of a message; NATS allows 1 MiB. A longer one would keep the acknowledgements of others waiting."""

ACK_S: Final = 5.0
"""A publisher that waits so long gets 503; the segment stays for its retry."""

GATHER_S: Final = 0.02
"""Bytes for which nobody waits are gathered for this time, so that a segment of many small chunks is few messages."""

MAX_WAITING: Final = 20_000
"""Publishers that wait at a time, as many as a server admits (``Limits.publishers``); further ones get 503."""

SPARE: Final = 1 << 20
"""A generation may be so much longer than twice what the channel holds: small channels are not written again often."""

_INSTANCE: Final = "history"  # stands for the start of the owner: the history goes on over several


class Superseded(TrickleError):
    """The channel belongs to another node, or lives in a higher epoch."""


class _Anew(Exception):
    """The history that was written is not there any more."""


class Stamp(NamedTuple):
    """The headers of a message (see the module's text)."""

    epoch: int
    generation: int
    live: int
    first: int
    reign: int
    number: int
    writer: str

    def headers(self) -> dict[str, str]:
        """As they are sent."""
        return {
            "Trickle-Generation": f"{self.epoch}.{self.generation}",
            "Trickle-Live": f"{self.live}@{self.first}",
            "Trickle-Writer": f"{self.reign}.{self.number}.{self.writer}",
        }

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Stamp | None:
        """Read the headers of a message; ``None`` if it is no message of a history."""
        try:
            epoch, generation = headers["Trickle-Generation"].split(".")
            live, first = headers["Trickle-Live"].split("@")
            reign, number, writer = headers["Trickle-Writer"].split(".")
            return cls(int(epoch), int(generation), int(live), int(first), int(reign), int(number), writer)
        except (KeyError, ValueError):
            return None


class Generation:
    """A feed that goes into the history.

    Attributes:
        first: the sequence number of its first message; 0 before there is one. follows: that of the message before.
        size: bytes stored.
        told: the number of the last fact that is wholly in the messages taken so far.
        began_at: when, on the clock of :func:`time.monotonic`.
    """

    def __init__(self, number: int, feed: Feed, first: int = 0, size: int = 0) -> None:
        self.number, self.feed, self.first, self.size = number, feed, first, size
        self.told: int | None = None
        self.follows = 0
        self.began_at = time.monotonic()
        self._pending: deque[bytes] = deque()  # pulled: a long record takes several messages

    def take(self) -> bytes | None:
        """The payload of the next message."""
        if self.lags:
            return None
        if not self._pending:
            data = b"".join(self.feed.pull(MESSAGE))
            self._pending.extend(data[at : at + MESSAGE] for at in range(0, len(data), MESSAGE))
            if not data:
                return None
        data = self._pending.popleft()
        if not self._pending:
            self.told = self.feed.told
        return data

    @property
    def lags(self) -> bool:
        """Whether it was cut off, since JetStream is too slow."""
        return self.feed.over is FeedEnd.LAG

    @property
    def ended(self) -> bool:
        """Whether the channel has ended, and all of it is taken."""
        return self.feed.over is FeedEnd.ENDED and not self._pending


class Start(NamedTuple):
    """Where a successor goes on: the live generation, and the fence.

    Attributes:
        have: the segments that the history holds; ``None``: it cannot go on, and is written again. size: bytes of it.
    """

    generation: int
    first: int
    reign: int
    last: int
    have: tuple[HeldSegment, ...] | None
    size: int


class _Waiting(NamedTuple):
    number: int  # of the fact that has to be stored
    until: float  # by the event loop's time
    then: Callable[[bool], None]


@dataclass
class Shared:
    """Common to all writers of a node.

    Attributes:
        streams: to which they write. budget: of the server. to_us: turns the registry's time into microseconds since
            1970. confirmed: whether this node owns a channel in an epoch, beyond doubt: the directory's word.
        waiting: publishers that wait.
    """

    streams: Streams
    budget: Budget
    to_us: Callable[[float], int]
    confirmed: Callable[[str, int], Awaitable[bool]]
    waiting: int = 0


class Writer:
    """Writes the history of one channel that this node owns.

    Args:
        channel: of which this is the owner. shared: with the others.
        start: where the history goes on; ``None``: whatever is there belongs to earlier owners.

    Attributes:
        over: it writes nothing more. last: the last message of the subject, as far as it knows.
    """

    def __init__(self, channel: OwnedChannel, shared: Shared, start: Start | None = None) -> None:
        self.channel = channel
        self.stream, self.subject = shared.streams.of(channel.name)
        self.over = False
        self.last = 0 if start is None else start.last
        self._shared, self._streams, self._counters = shared, shared.streams, shared.streams.counters
        self._start = start
        self._begun = start is not None  # this reign has a message
        self._reign = 1 if start is None else start.reign
        self._number = 0  # of its last message
        self._token = secrets.token_hex(6)
        self._generation = 0 if start is None else start.generation  # the highest number
        self._live: Generation | None = None  # the one by which publishers are answered, if it goes on
        self._new: Generation | None = None  # the one that will take its place
        # The live generation as readers are told: its number, and its first message.
        self._at = (0, 0) if start is None else (start.generation, start.first)
        self._acked = -1  # the number of the last fact that a successor would have
        self._snapshot_turn = False
        self._due = True  # what is there is written now, whether or not somebody waits for it
        self._renewal = False  # all is written again
        self._wake = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._waiting: deque[_Waiting] = deque()
        self._expiring: asyncio.TimerHandle | None = None

    # Publishers.

    @property
    def lacks(self) -> bool:
        """Whether the history lacks something of the channel, and is still written."""
        return not self.over and self.channel.facts > self._acked

    def when_stored(self, then: Callable[[bool], None]) -> None:
        """Call back when the history has all of the channel until now; with ``False`` if that takes too long."""
        number, shared = self.channel.facts, self._shared
        if number <= self._acked or self.over:
            then(number <= self._acked)
            return
        if shared.waiting >= MAX_WAITING:
            self._counters["refused"] += 1
            then(False)
            return
        shared.waiting += 1
        loop = asyncio.get_running_loop()
        self._waiting.append(_Waiting(number, loop.time() + ACK_S, then))
        if self._expiring is None:
            self._expiring = loop.call_later(ACK_S, self._expire)
        self._wake.set()

    def _answer(self, stored: bool, until: int | None = None) -> None:
        """Answer those that wait for facts up to this number; ``None``: all of them."""
        while self._waiting and (until is None or self._waiting[0].number <= until):
            one = self._waiting.popleft()
            self._shared.waiting -= 1
            self._counters["acknowledged" if stored else "unacknowledged"] += 1
            try:
                one.then(stored)
            except Exception:
                logger.exception("a fault after a segment of %r was stored", self.channel.name)

    def _expire(self) -> None:
        self._expiring = None
        loop = asyncio.get_running_loop()
        while self._waiting and self._waiting[0].until <= loop.time():
            self._answer(False, self._waiting[0].number)
        if self._waiting:
            self._expiring = loop.call_at(self._waiting[0].until, self._expire)

    # What is written.

    def look(self, oldest: float) -> None:
        """The stream was looked at: there may be room again, or it is not what it was.

        Args:
            oldest: a generation that began before is written again.
        """
        if self._live is not None and self._live.began_at < oldest:
            self._renewal = True
        self._wake.set()

    async def has_last(self, connection: Connection) -> bool:
        """Whether the last message of the channel is the one that it has written last, as far as it knows."""
        seq = self.last
        if (found := await connection.last(self.stream.name, self.subject)) is None:
            return False
        stamp = Stamp.of(found.headers)
        is_next = found.seq > seq and stamp is not None and stamp.writer == self._token  # on its way, or just stored
        return found.seq == seq or is_next

    def _heard(self) -> None:
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._gathered)

    def _gathered(self) -> None:
        self._gathering, self._due = None, True
        self._wake.set()

    def _feed(self, have: tuple[HeldSegment, ...] | None) -> Feed:
        channel, shared = self.channel, self._shared
        known = ("", 0, ()) if have is None else (_INSTANCE, channel.epoch, have)
        return Feed(channel, Hello(channel.name, *known), shared.budget, _INSTANCE, shared.to_us, self._heard)

    async def run(self) -> None:
        """Write until the channel has ended, and all of it is stored; cancel it to stop.

        Raises:
            Superseded: the channel was taken over.
        """
        try:
            if (start := self._start) is not None and start.have is not None:
                self._live = Generation(start.generation, self._feed(start.have), start.first, start.size)
            while not self.over:
                self._wake.clear()
                self._choose()
                if (taken := self._next()) is None:
                    await self._wake.wait()
                    continue
                try:
                    await self._store(*taken)
                except _Anew:
                    self._counters["lost_histories"] += 1
                    logger.warning("the history of %r was lost in NATS, and is written again", self.channel.name)
                    lost = self._live or self._new
                    if lost is not None and lost.began_at > self.stream.lost_at:  # else this loss is known
                        self.stream.lost_at = time.monotonic()
                    self._drop()
                    self._at, self._acked = (0, 0), -1
        finally:
            self.over = True
            for timer in filter(None, (self._gathering, self._expiring)):
                timer.cancel()
            self._drop()
            self._answer(False)

    def _drop(self) -> None:
        for generation in filter(None, (self._live, self._new)):
            generation.feed.end(FeedEnd.SHUTDOWN)
        self._live = self._new = None

    def _choose(self) -> None:
        """Begin a new generation where one is needed."""
        # Where no feed goes on, segments may have left the memory that the history never had: nobody is told that they
        # are stored.
        if self._live is not None and self._live.lags:
            self._live = None
            self._answer(False)
        live = self._live
        if self._new is not None and self._new.lags:
            self._new = None
            if live is None:
                self._answer(False)
        if self._new is None and (live is None or self._renewal or live.size > self._most()):
            self._generation += 1
            self._new, self._renewal = Generation(self._generation, self._feed(None)), False
            self._counters["generations"] += 1

    def _most(self) -> int:
        held = self.channel.window.held
        return held + held // 4 + MESSAGE if self.stream.held else 2 * held + SPARE

    def _next(self) -> tuple[Generation, bytes] | None:
        """The next message. Snapshots go between those for which somebody waits, until they are over."""
        live, new = self._live, self._new
        is_held = self.stream.held and not self.channel.ended
        if is_held or (new is not None and new.feed.told is not None):
            live = None  # until the new one has all that was acknowledged
        self._snapshot_turn = not self._snapshot_turn
        for one in (new, live) if self._snapshot_turn else (live, new):
            if one is None or (one is live and not self._is_due(one)):
                continue
            if (data := one.take()) is not None:
                return one, data
        return None

    def _is_due(self, live: Generation) -> bool:
        told = live.feed.told
        if self._due or told is None or live.told != told or (self._waiting and self._waiting[-1].number > told):
            self._due = False
            return True
        return False

    async def _store(self, generation: Generation, data: bytes) -> None:
        told = generation.told
        switches = generation is self._new and told is not None and told >= self._acked
        await self._publish(generation, data, switches)
        generation.size += len(data)
        self._streams.count(self.stream, len(data))
        if len(data) == MESSAGE:
            self._due = True  # there is probably more
        if switches:
            if self._live is not None:
                self._live.feed.end(FeedEnd.SHUTDOWN)
            self._live, self._new, self._due = generation, None, True
            self._at = generation.number, generation.first
            if generation.follows:
                self._streams.soon(self._streams.purge(self.stream, self.subject, generation.first))
        if generation is self._live and told is not None:
            self._acked = told
            self._answer(True, told)
            if generation.ended:
                self.over = True

    async def _publish(self, generation: Generation, data: bytes, switches: bool) -> None:
        """Store a message behind the last one.

        Args:
            switches: from this message on its generation is the live one.

        Raises:
            Superseded: this node does not own the channel any more.
            _Anew: what was stored before is not there any more.
        """
        self._number += 1
        is_unsure = False  # whether it may have been stored already

        async def attempt(connection: Connection) -> int:
            nonlocal is_unsure
            if is_unsure and (found := await self._find(connection, generation)) is not None:
                return found
            is_unsure = True
            live = (generation.number, generation.first) if switches else self._at
            stamp = Stamp(self.channel.epoch, generation.number, *live, self._reign, self._number, self._token)
            return await connection.publish(self.subject, data, stamp.headers(), self.last)

        stored = await self._streams.persist(self.stream, attempt)
        if not generation.first:
            generation.first, generation.follows = stored, self.last
        self.last, self._begun = stored, True

    async def _find(self, connection: Connection, generation: Generation) -> int | None:
        """Find out whether a message was stored whose answer did not come, or why it was refused."""
        last = await connection.last(self.stream.name, self.subject)
        seq, stamp = (0, None) if last is None else (last.seq, Stamp.of(last.headers))
        epoch = self.channel.epoch
        if stamp is not None and stamp.writer == self._token and stamp.number == self._number:
            return seq
        if seq == self.last:
            return None
        reign = self._reign if self._begun else inf  # another one of the epoch may be before this one
        is_deposed = stamp is not None and stamp.writer != self._token and (stamp.epoch, stamp.reign) >= (epoch, reign)
        # The first message of a reign is a fence, too. And a history that is lost may have held that of a successor.
        if is_deposed or not await self._shared.confirmed(self.channel.name, epoch):
            raise Superseded(f"{self.channel.name!r} has another owner")
        self.last = seq
        if self._begun:
            raise _Anew
        if stamp is not None and stamp.epoch == epoch:
            self._reign, self._generation = stamp.reign + 1, max(stamp.generation, stamp.live) + 1
            if stamp.live and not self._at[0]:  # a successor would apply it until the first one of this reign is whole
                self._at = stamp.live, stamp.first or seq
            generation.number = self._generation
        return None
