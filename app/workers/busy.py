"""Busy channels: one with more readers than half a core serves is held by all workers.

**The problem.** A channel is in one worker. With 20,000 readers that worker is full, and the others have nothing to do.

**The idea.** The owner of a channel with :data:`SPREAD_FROM` readers tells the others. Each of them then holds a
replica (:mod:`tricklecast.app.cluster.replica`), fed over a socket, and serves readers that come to it as the owner
would. The owner sends every byte once to each worker, instead of once to each reader. It keeps its equal share of the
readers; one beyond that moves to another worker when its next request begins, and stays there.

**A holder answers only what it answers alike**: what it has, what comes next, and of HLS media that it finds and
playlists that agree with the owner's. All else goes to the owner: POST, DELETE, the head, a seq that is not there. So a
holder that is a moment behind refuses nobody, and loops that bring nothing new are in one place, at the owner's storm
guard. With a data directory the owner also answers streams that begin at a closed segment, since only the owner goes on
from storage when the window has passed.

**No circle.** A connection that was handed over stays until its request has begun, if this worker may answer
(:meth:`~.placement.Placement.worker_for`). So it moves twice at most: to a holder that cannot answer, and back.

**The end.** The owner repeats each second that the channel is spread, while it has :data:`SPREAD_UNTIL` readers in all.
A holder that has not heard it for :data:`KEEP_S` takes no new reader, and its replica ends when no reader is left. A
holder tells the owner each second what it has; one that has not for :data:`STALE_S` gets no reader from the owner. So
nothing depends on a message that may be lost. A worker that dies loses its readers and nothing else. The replicas of a
dead owner's channels end, since its successor is another instance or does not have the channel. Their readers are told
to ask again: it may come back from its directory.

**Pace.** A publisher is read at the pace of its owner's readers (:mod:`app.data_plane.pacing`), which are an equal
share of all. Readers of another worker that is slower fall behind, and are cut off as any slow reader is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from tricklecast.app.clock import to_time, to_us
from tricklecast.app.cluster.records import End, FeedEnd, record
from tricklecast.app.cluster.replica import Replica
from tricklecast.app.cluster.transport import STALL_S, TURN_BYTES, follow, put, send_feed
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.exchange import Parked
from tricklecast.app.data_plane.players import only_owner_answers
from tricklecast.app.data_plane.reader import Reader
from tricklecast.app.data_plane.responses import Reply
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.workers.mesh import Kind, Mesh, MeshFull
from tricklecast.app.workers.placement import READS, Placement
from tricklecast.app.workers.questions import Asker, Questions
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

_LOGGER = logging.getLogger(__name__)

SPREAD_FROM: Final = 2_000
"""Readers of a channel from which on all workers hold it. Then a core is half full: each of them takes 0.25 ms of a
second, with 30 chunks of 8 KiB (benchmarks/workers.py, ``busy``), as with 5 segments of 200 bytes."""

SPREAD_UNTIL: Final = 1_200
"""Readers of a channel, in all workers, below which its owner alone holds it again."""

RECENT: Final = 5
"""Looks of which the one with the most readers counts: between two segments all of them may be gone for a moment."""

LOOK_S: Final = 1.0
"""How often an owner counts the readers of its channels, and owner and holders tell each other."""

STALE_S: Final = 3.0
"""A holder that has told nothing for this time gets no reader from the owner."""

KEEP_S: Final = 5.0
"""A holder that has not heard for this time that a channel is spread serves nobody new; a replica that cannot reach its
owner for this time ends."""

ASK_AGAIN: Final = Reply(
    Status.UNAVAILABLE, Reason.REPLICA, body=b"This channel moves: ask again", close=True, retry_after_s=1
)
"""The answer to a reader whose replica is let go."""


class _Report(NamedTuple):
    """The last word of a holder, and when it came. Its audience is the number of its readers as people count them."""

    at: float
    readers: int
    audience: int


@dataclass
class _Spread:
    """A channel of this worker that others hold, too.

    Attributes:
        holders: workers to which readers may move, in the order of their numbers. share: the readers that stay here.
        reports: of each holder. counts: readers in all workers at the last looks.
    """

    holders: list[int] = field(default_factory=list)
    share: float = 0.0
    reports: dict[int, _Report] = field(default_factory=dict)
    counts: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))


@dataclass
class _Held:
    """A channel of another worker that this one holds.

    Attributes:
        owner: the worker that owns the channel. heard_at: when it said last that the channel is spread.
        replica: of the channel. following: keeps it up to date.
        sent: bytes to readers that the owner was told of.
    """

    owner: int
    heard_at: float
    replica: Replica
    following: asyncio.Task[None]
    sent: int = 0


class Busy:
    """A worker's part in busy channels: those that it owns, and those that it holds for others.

    Args:
        plane: of this worker.
        placement: is told which channels are read here.
        mesh, questions: the ways to the others.

    Attributes:
        spread: channels of this worker that others hold, too, by name. held: channels of others, held here.
    """

    def __init__(self, plane: DataPlane, placement: Placement, mesh: Mesh, questions: Questions) -> None:
        self._plane, self._placement, self._mesh, self._questions = plane, placement, mesh, questions
        self.spread: dict[str, _Spread] = {}
        self.held: dict[str, _Held] = {}
        self._look_at = 0.0  # when there is something to do again

    def look(self, now: float) -> None:
        """Find channels that have become busy, or are no more, and tell the others; called a few times a second."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self._plane.registry.readers >= SPREAD_FROM:
            for name, channel in self._plane.registry.channels.items():
                if isinstance(channel, OwnedChannel) and channel.reading.used >= SPREAD_FROM:
                    self.spread.setdefault(name, _Spread())
        for name, spread in list(self.spread.items()):
            self._look_at_spread(name, spread, now)
        for name, held in list(self.held.items()):
            self._look_at_held(name, held, now)

    def hear(self, sender: int, news: dict[str, Any]) -> None:
        """The owner of a channel says that it is spread, or a holder how many readers it has."""
        now = self._plane.clock()
        match news:
            case {"spread": name}:
                held = self.held.get(name) or self._hold(sender, name, now)
                held.heard_at = now
            case {"held": name, "epoch": epoch, "readers": readers, "audience": audience, "sent": sent}:
                if (spread := self.spread.get(name)) is not None:
                    spread.reports[sender] = _Report(now, readers, audience)
                channel = self._plane.registry.live(name)
                if channel is not None and channel.epoch == epoch:
                    channel.bytes_elsewhere += sent

    def end(self) -> None:
        """Let go of all replicas, and tell nobody anything any more."""
        for held in self.held.values():
            held.following.cancel()
        self.held.clear()
        self.spread.clear()

    # The owner's side.

    async def feed(self, asker: Asker, channel: str) -> None:
        """Answer the question ``feed``: the facts and bytes of a channel that this worker owns, as long as it lives."""
        owned = self._plane.registry.live(channel)
        if owned is not None:
            await send_feed(owned, asker.reader, asker.writer, self._plane.registry, to_us)
            return
        async with asyncio.timeout(STALL_S):
            await asker.reader.read(TURN_BYTES)  # HELLO: unread, it would make the kernel reset the connection
        put(asker.writer, [record(End(FeedEnd.ENDED))])

    def _look_at_spread(self, name: str, spread: _Spread, now: float) -> None:
        """Count its readers; while they are many, let other workers serve some, and ask all of these to hold it."""
        channel = self._plane.registry.live(name)
        reports = {holder: report for holder, report in spread.reports.items() if now - report.at < STALE_S}
        here = 0 if channel is None else channel.reading.used
        spread.reports = reports
        spread.counts.append(here + sum(report.readers for report in reports.values()))
        readers = max(spread.counts)
        if channel is not None:
            channel.readers_elsewhere = sum(report.audience for report in reports.values())
        if channel is None or readers < SPREAD_UNTIL:
            self._placement.spread.pop(name, None)
            if not reports:
                del self.spread[name]
            return
        spread.holders, spread.share = sorted(reports), readers / (1 + len(reports))
        self._placement.hold(name, partial(self._place_at_owner, name, spread))
        for worker in range(self._mesh.workers):
            if worker != self._mesh.me:
                self._tell(worker, spread=name)

    def _place_at_owner(self, name: str, spread: _Spread, route: Route, number: int | None) -> int:
        """The worker for a request that reads a channel of this worker: this one, or a holder."""
        me, channel = self._mesh.me, self._plane.registry.live(name)
        if number is None or not spread.holders or channel is None or channel.reading.used < spread.share:
            return me
        if not self._is_alike(channel, route):
            return me
        holder = spread.holders[number // self._mesh.workers % len(spread.holders)]
        return holder if self._mesh.has_room(holder) else me

    # The holder's side.

    def _hold(self, owner: int, name: str, now: float) -> _Held:
        """Begin to follow a channel of another worker."""

        def leave(channel: Channel) -> None:
            self._placement.spread.pop(name, None)
            held.sent = 0  # the next channel of the replica counts from 0
            self._send_away(channel)

        def ended(task: asyncio.Task[None]) -> None:
            self._placement.spread.pop(name, None)
            self.held.pop(name, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._plane.fault("while a channel of another worker was held", error)

        replica = Replica(name, self._plane.registry, self._plane.clock, to_time, leave=leave)
        work = follow(replica, lambda: self._questions.connect(owner, "feed", channel=name), lost_s=KEEP_S)
        following = asyncio.get_running_loop().create_task(work)
        following.add_done_callback(ended)
        held = self.held[name] = _Held(owner, now, replica, following)
        return held

    def _look_at_held(self, name: str, held: _Held, now: float) -> None:
        """Serve readers, or no new ones any more; tell the owner of them; end a replica that nobody needs."""
        channel = held.replica.channel
        readers = 0 if channel is None or channel.ended else channel.reading.used
        if now - held.heard_at < KEEP_S:
            if held.replica.live:
                self._placement.hold(name, partial(self._place_at_holder, held))
        else:
            self._placement.spread.pop(name, None)
            if not readers:
                held.following.cancel()
        if channel is not None and (readers or name in self._placement.spread):
            sent, held.sent = channel.bytes_out - held.sent, channel.bytes_out
            about = {"epoch": channel.epoch, "readers": readers, "audience": channel.audience, "sent": sent}
            self._tell(held.owner, held=name, **about)

    def _place_at_holder(self, held: _Held, route: Route, number: int | None) -> int:
        """The worker for a request that reads a channel of another one, and has come here: this one, or the owner."""
        del number
        channel = held.replica.channel
        if channel is None or channel.ended or channel.reading.full:
            return held.owner
        is_hls = route.op in (Op.PLAYLIST, Op.HLS)
        alike = not only_owner_answers(self._plane, route) if is_hls else self._is_alike(channel, route)
        return self._mesh.me if alike else held.owner

    def _is_alike(self, channel: Channel, route: Route) -> bool:
        """Whether a holder answers a request as the owner does, by what this worker has of the channel."""
        if route.seq is None:
            return False  # the path is wrong
        seq = route.seq if route.seq >= 0 else channel.next_seq + route.seq + 1
        segment = channel.segments.get(seq)
        if segment is None:
            return seq == channel.next_seq
        return self._plane.registry.storage is None or not segment.closed or route.op is not Op.STREAM

    def _send_away(self, channel: Channel) -> None:
        """Let the readers of a channel ask again; one that is in the middle of a segment is broken off."""
        for connection in list(self._plane.connections):
            match connection.exchange:
                case Reader(ending=None) as exchange if exchange.channel is channel:
                    pass
                case Parked() as exchange if _waits_for(exchange, channel):
                    pass
                case _:
                    continue
            if exchange.answerable:
                exchange.send_away(ASK_AGAIN)
            else:
                connection.abort(Reason.REPLICA)

    def _tell(self, worker: int, **news: object) -> None:
        """Tell another worker something. It may be lost: what matters is repeated, and what is not repeated is void."""
        try:
            self._mesh.send(worker, Kind.NEWS, orjson.dumps(news))
        except (MeshFull, OSError) as error:
            _LOGGER.warning("worker %d could not be told of a busy channel: %s", worker, error)


def _waits_for(parked: Parked, channel: Channel) -> bool:
    """Whether a request that waits is to read this channel."""
    route = parked.request.route
    return route is not None and route.op in READS and route.channel == channel.name
