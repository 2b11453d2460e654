"""Busy channels: one with more readers than half a core serves is held by all workers.

**The problem.** A channel is in one worker. With 20,000 readers that worker is full, and the others have nothing to do.

**The idea.** The owner of a channel with :data:`SPREAD_FROM` readers tells the others. Each of them then holds a
replica (:mod:`tricklecast.app.cluster.replica`), fed over a socket, and serves readers that come to it as the owner
would. The owner sends every byte once to each worker, instead of once to each reader. It keeps its equal share of the
readers; one beyond that moves to another worker when its next request begins, and stays there.

**A holder answers only what it answers alike**: what it has, what comes next, and media of HLS that it finds. All else
goes to the owner: POST, DELETE, the head, a seq that is not there, playlists. So a holder that is a moment behind
refuses nobody, and loops that bring nothing new are in one place, at the owner's storm guard. With a data directory the
owner also answers streams that begin at a closed segment, since only the owner goes on from storage when the window has
passed.

**No circle.** A connection that was handed over stays until its request has begun, if this worker may answer
(:data:`~.placement.STAYS`). So it moves twice at most: to a holder that cannot answer, and back.

**The end.** The owner repeats its word each second, with the readers that each worker may have; each holder tells how
many it has. Below :data:`SPREAD_UNTIL` in all, the owner takes the word back. A holder that has not heard it for
:data:`KEEP_S` takes no new reader; without readers its replica ends. A worker that dies loses its readers and nothing
else: its successor tells the others that it has begun, and what they knew of its predecessor is void. Replicas of the
dead owner's channels end, and their readers are told to ask again, since the channel may come back from its directory.

**Pace.** A publisher is read at the pace of its owner's readers (:mod:`app.data_plane.pacing`), which are an equal
share of all. Readers of another worker that is slower fall behind, and are cut off as any slow reader is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from math import inf
from typing import Any, Final

import orjson

from tricklecast.app.clock import to_time, to_us
from tricklecast.app.cluster.replica import Replica
from tricklecast.app.cluster.transport import follow, send_feed
from tricklecast.app.core.limits import UNLIMITED
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.state import Channel, SegmentSummary
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.exchange import Parked
from tricklecast.app.data_plane.players import only_owner_answers
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.workers.mesh import Kind, Mesh, MeshFull
from tricklecast.app.workers.placement import READS, STAYS, Placement
from tricklecast.app.workers.questions import Questions, Stream
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

_LOGGER = logging.getLogger(__name__)

SPREAD_FROM: Final = 2_000
"""Readers of a channel from which on all workers hold it. Then a core is half full: each of them takes 0.25 ms of a
second, with 30 chunks of 8 KiB (benchmarks/workers.py, ``busy``), as with 5 segments of 200 bytes."""

SPREAD_UNTIL: Final = 1_200
"""Readers of a channel, in all workers, below which its owner alone holds it again."""

RECENT: Final = 5
"""The number of a worker's readers is the most that it had in as many looks: between two segments all of them may be
gone for a moment."""

LOOK_S: Final = 1.0
"""How often an owner counts the readers of its channels, and repeats its word."""

STALE_S: Final = 3.0
"""A holder that has not told its readers for so long is left alone; it tells them four times a second."""

KEEP_S: Final = 5.0
"""How long an owner's word holds; and for how long a replica that is not wanted any more waits for a reader."""

ASK_AGAIN: Final = Reply(
    Status.UNAVAILABLE, Reason.REPLICA, body=b"This channel moves: ask again", close=True, retry_after_s=1
)
"""The answer to a reader whose replica is let go."""


class Busy:
    """A worker's part in busy channels: those that it owns, and those that it holds for others.

    Args:
        plane: of this worker.
        placement: is told which channels are read here.
        mesh, questions: the ways to the others.
    """

    def __init__(self, plane: DataPlane, placement: Placement, mesh: Mesh, questions: Questions) -> None:
        self._plane, self._placement, self._mesh, self._questions = plane, placement, mesh, questions
        self._spread: dict[str, _Spread] = {}  # channels of this worker that others hold, too
        self._held: dict[str, _Held] = {}  # channels of others that this worker holds
        self._look_at = 0.0  # when the channels of this worker are looked at next
        self._is_over = False  # nobody is told anything any more

    def begin(self) -> None:
        """This worker listens: what the others knew of its predecessor is void."""
        self._tell_others(begun=True)

    def look(self, now: float) -> None:
        """Do what is due; a few times a second."""
        for held in list(self._held.values()):
            self._look_at_held(held, now)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self._plane.registry.readers >= SPREAD_FROM:
            for name, channel in self._plane.registry.channels.items():
                if isinstance(channel, OwnedChannel) and channel.reading.used >= SPREAD_FROM:
                    self._spread.setdefault(name, _Spread(name, self._plane, self._placement, self._mesh))
        for spread in list(self._spread.values()):
            self._look_at_spread(spread, now)

    def hear(self, sender: int, news: dict[str, Any]) -> None:
        """Another worker tells something about a channel, or that it has begun."""
        now = self._plane.clock()
        match news:
            case {"begun": True}:
                for spread in self._spread.values():
                    spread.elsewhere.pop(sender, None)
                for theirs in self._held.values():
                    if theirs.owner == sender:
                        theirs.task.cancel()
            case {"spread": name, "wanted": wanted, "limit": limit}:
                held = self._held.get(name)
                if held is None:
                    if not wanted:
                        return
                    held = self._held[name] = self._hold(sender, name)
                held.told_at, held.wanted, held.limit = now, wanted, limit
                self._look_at_held(held, now)
            case {"of": name, "readers": count, "limit": limit} if name in self._spread:
                one = self._spread[name].elsewhere.setdefault(sender, _Elsewhere())
                one.tells(count, limit, now)
                channel = self._plane.registry.live(name)
                if channel is not None and channel.epoch == news["epoch"]:
                    channel.bytes_elsewhere += one.has_sent(news["sent"])
                    one.audience = news["audience"]
            case {"left": name} if name in self._spread:
                self._spread[name].elsewhere.pop(sender, None)

    @property
    def spread(self) -> int:
        """Channels of this worker that others hold, too."""
        return len(self._spread)

    @property
    def held(self) -> int:
        """Channels of other workers that this one holds."""
        return len(self._held)

    # The owner's side.

    def readers_elsewhere(self, name: str) -> int:
        """Readers that other workers have of a channel that this one owns."""
        spread = self._spread.get(name)
        return 0 if spread is None else spread.readers_elsewhere

    async def feed(self, to: Stream, channel: str) -> None:
        """Answer the question ``feed``: the facts and bytes of a channel that this worker owns, as long as it lives."""
        owned = self._plane.registry.live(channel)
        if owned is not None:
            await send_feed(owned, to.reader, to.writer, self._plane.registry, to_us)

    def _look_at_spread(self, spread: _Spread, now: float) -> None:
        """Count its readers; tell the others whether they are to serve some, and how many they may."""
        channel, me = self._plane.registry.live(spread.name), self._mesh.me
        elsewhere = spread.elsewhere
        for one in elsewhere.values():
            one.counts.append(one.readers if now - one.told_at <= STALE_S else 0)
        spread.counts.append(0 if channel is None else channel.reading.used)
        own = max(spread.counts)
        total = own + sum(one.level for one in elsewhere.values())
        wanted = channel is not None and total >= SPREAD_UNTIL
        serving = [worker for worker, one in elsewhere.items() if now - one.told_at <= STALE_S]
        spread.others = sorted(serving) if wanted else []
        spread.share = total / (1 + len(spread.others))
        if channel is not None:
            channel.readers_elsewhere = sum(elsewhere[worker].audience for worker in serving)
        limit = self._plane.registry.limits.readers_per_channel
        free = 0 if limit is None or not wanted else max(0, limit - own - spread.given)
        for worker in range(self._mesh.workers):
            if worker != me:
                one = elsewhere.get(worker) or _Elsewhere()
                if limit is not None:
                    one.give(one.level + free // self._mesh.workers)
                    elsewhere[worker] = one
                self._tell(worker, {"spread": spread.name, "wanted": wanted, "limit": one.limit})
        if channel is not None and limit is not None:
            channel.reading.resize(max(0, limit - spread.given))
        if wanted:
            self._placement.hold(spread.name, spread.place)
        else:
            self._placement.spread.pop(spread.name, None)
            if not any(one.level for one in elsewhere.values()):
                del self._spread[spread.name]

    # The holder's side.

    def _hold(self, owner: int, name: str) -> _Held:
        """Begin to follow a channel of another worker."""
        plane = self._plane

        def leave(channel: Channel) -> None:
            self._stop_serving(held)
            self._send_away(channel)

        replica = Replica(
            name,
            plane.registry,
            plane.clock,
            to_time,
            leave=leave,
            retained=None if plane.registry.storage is None else _STORED_ELSEWHERE,
        )

        def over(task: asyncio.Task[None]) -> None:
            self._stop_serving(held)
            del self._held[name]
            if not task.cancelled() and (error := task.exception()) is not None:
                plane.fault("while a channel of another worker was held", error)

        following = follow(replica, lambda: self._questions.connect(owner, "feed", channel=name))
        task = asyncio.get_running_loop().create_task(following)
        task.add_done_callback(over)
        held = _Held(owner, replica, self._placement.me, plane, task)
        return held

    def _look_at_held(self, held: _Held, now: float) -> None:
        """Serve readers, or not any more; tell the owner how many there are; end a replica that nobody needs."""
        channel = held.replica.channel
        readers = 0 if channel is None or channel.ended else channel.reading.used
        held.wanted = held.wanted and now - held.told_at < KEEP_S
        if held.wanted or readers:
            held.needed_at = now
        elif now - held.needed_at > KEEP_S:
            held.task.cancel()
        if channel is None or channel.ended:
            return
        channel.reading.resize(UNLIMITED if held.limit is None else held.limit)
        if not held.wanted:
            self._placement.spread.pop(held.name, None)
        elif held.replica.live:
            self._placement.hold(held.name, held.place)
        if readers or held.name in self._placement.spread:
            figures = {"epoch": channel.epoch, "audience": channel.audience, "sent": channel.bytes_out}
            self._tell(held.owner, {"of": held.name, "readers": readers, "limit": held.limit, **figures})

    def _stop_serving(self, held: _Held) -> None:
        if self._placement.spread.pop(held.name, None) is not None:
            self._tell(held.owner, {"left": held.name})

    def _send_away(self, channel: Channel) -> None:
        """Let the readers of a channel ask again; one that is in the middle of a segment is broken off."""
        for connection in list(self._plane.connections):
            exchange = connection.exchange
            if isinstance(exchange, Parked):
                route = exchange.request.route
                concerned = route is not None and route.op in READS and route.channel == channel.name
            else:
                concerned = isinstance(exchange, Reader) and exchange.channel is channel and exchange.ending is None
            if not concerned:
                continue
            assert isinstance(exchange, Parked | Reader)
            if exchange.answerable:
                exchange.send_away(ASK_AGAIN)
            else:
                connection.abort(Reason.REPLICA)

    # Between workers.

    def _tell_others(self, **news: object) -> None:
        for worker in range(self._mesh.workers):
            if worker != self._mesh.me:
                self._tell(worker, news)

    def _tell(self, worker: int, news: dict[str, Any]) -> None:
        """Tell another worker something. It may be lost: what matters is repeated, and what is not repeated is void."""
        if self._is_over:
            return
        try:
            self._mesh.send(worker, Kind.NEWS, orjson.dumps(news))
        except (MeshFull, OSError) as error:
            _LOGGER.warning("worker %d could not be told of a busy channel: %s", worker, error)

    def end(self) -> None:
        """Let go of all replicas."""
        self._is_over = True
        for held in list(self._held.values()):
            held.task.cancel()


class _Elsewhere:
    """The readers that another worker has of a channel.

    Attributes:
        readers: their number, as it has told last; told_at: when. counts: the numbers at the last looks.
        limit: how many it may have, as it was told last; ``None``: any number.
        most: how many it may have until it tells that it keeps to the limit.
        audience: its readers, as people count them. sent: bytes that they have got.
    """

    def __init__(self) -> None:
        self.audience = self.sent = 0
        self.readers = self.most = 0
        self.counts = deque([0], RECENT)
        self.limit: int | None = None
        self.told_at = -inf  # it serves none yet

    @property
    def level(self) -> int:
        """Its readers, those included that are between two requests."""
        return max(self.readers, *self.counts)

    def give(self, limit: int) -> None:
        """The holder has a new share, and may not have heard of it."""
        self.limit, self.most = limit, max(self.most, limit)

    def has_sent(self, sent: int) -> int:
        """It has sent so many bytes in all; returns how many of them are new. A new replica begins at 0."""
        before, self.sent = self.sent, sent
        return sent - before if sent >= before else sent

    def tells(self, readers: int, limit: int | None, now: float) -> None:
        """It has this number of readers, below this limit."""
        self.readers, self.told_at = readers, now
        if limit is not None and limit == self.limit:
            self.most = limit


class _Spread:
    """A channel of this worker that others hold, too.

    Args:
        name: of the channel. plane, placement, mesh: of this worker.

    Attributes:
        elsewhere: the other workers that have readers, or may have some.
        others: the workers to which readers may move. share: the readers that this worker keeps.
        counts: readers of this worker at the last looks.
    """

    def __init__(self, name: str, plane: DataPlane, placement: Placement, mesh: Mesh) -> None:
        self.name = name
        self._plane, self._placement, self._is_crowded = plane, placement, mesh.is_crowded
        self.elsewhere: dict[int, _Elsewhere] = {}
        self.others: list[int] = []
        self.share = 0.0
        self.counts = deque([0], RECENT)

    @property
    def readers_elsewhere(self) -> int:
        """Readers of other workers."""
        return sum(one.readers for one in self.elsewhere.values())

    @property
    def given(self) -> int:
        """Readers that other workers may have."""
        return sum(max(one.most, one.level) for one in self.elsewhere.values())

    def place(self, route: Route, chance: int) -> int:
        """The worker for a request that reads the channel, and that has come to its owner."""
        me, channel = self._placement.me, self._plane.registry.live(self.name)
        if chance == STAYS or not self.others or channel is None or channel.reading.used < self.share:
            return me
        if route.op is Op.HLS or not _is_alike(channel, route) or self._is_crowded():
            return me
        return self.others[chance // self._placement.workers % len(self.others)]


class _Held:
    """A channel of another worker that this one holds.

    Args:
        owner: the worker that owns the channel. replica: of it.
        me: the number of this worker. plane: of this worker.
        task: follows the owner.

    Attributes:
        wanted: the owner wants readers to be served here. limit: of these. told_at: when it said so last.
        needed_at: when it was wanted last, or there was a reader.
    """

    def __init__(self, owner: int, replica: Replica, me: int, plane: DataPlane, task: asyncio.Task[None]) -> None:
        self.name, self.owner, self.replica, self.task = replica.name, owner, replica, task
        self._me, self._plane = me, plane
        self.wanted = True
        self.limit: int | None = None
        self.told_at = self.needed_at = plane.clock()

    def place(self, route: Route, chance: int) -> int:
        """The worker for a request that reads the channel, and that has come to this one: this one, or the owner."""
        del chance
        channel = self.replica.channel
        if channel is None or channel.ended or channel.reading.full:
            return self.owner
        is_hls = route.op is Op.HLS
        alike = not only_owner_answers(self._plane, route) if is_hls else _is_alike(channel, route)
        return self._me if alike else self.owner


def _is_alike(channel: Channel, route: Route) -> bool:
    """Whether a holder answers a request as the owner does, by what this worker has of the channel."""
    if route.seq is None:
        return False  # the path is wrong
    seq = route.seq if route.seq >= 0 else channel.next_seq + route.seq + 1
    segment = channel.segments.get(seq)
    if segment is None:
        return seq == channel.next_seq
    return channel.retained is None or not segment.closed or route.op is not Op.STREAM


class _StoredElsewhere:
    """Segments beyond the window, of which only the owner has any."""

    def listed(self, seq: int, since_us: int) -> Iterator[SegmentSummary]:
        return iter(())

    def find(self, seq: int) -> Segment | None:
        return None

    def following(self, seq: int) -> int | None:
        return None


_STORED_ELSEWHERE: Final = _StoredElsewhere()
