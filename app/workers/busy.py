"""Busy channels: all workers hold a channel that has more readers than half a core serves.

**The problem.** One worker has a channel. With 20,000 readers that worker is full, and the others have nothing to do.

**The idea.** The owner of a channel with :data:`SPREAD_FROM` readers tells the others. Each of them then holds a
replica (:mod:`tricklecast.app.replication.replica`), fed over a socket, and serves readers that come to it as the owner
would. The owner sends every byte once to each worker, instead of once to each reader. It keeps its equal share of the
readers; one beyond that moves to another worker when its next request begins, and stays there.

**A holder answers a request only if its owner would give the same answer** (:mod:`app.data_plane.held`). All other
requests go to the owner.

**No circle.** A connection that was handed over stays until its request has begun, if this worker may answer
(:meth:`~.placement.Placement.worker_for`). So it moves twice at most: to a holder that cannot answer, and back.

**The end.** The owner repeats each second that the channel is spread, while it has :data:`SPREAD_UNTIL` readers in all.
A holder that has not heard it for :data:`KEEP_S` takes no new reader, and its replica ends when no reader is left. A
holder reports to the owner each second; one that has not for :data:`STALE_S` gets no reader from the owner. So nothing
depends on one message, which may be lost. If a holder dies, its readers lose their connections, and nothing else is
lost. If an owner dies, the replicas of its channels end, since its successor is another instance or does not have the
channel. Their readers get 503 and ask again: the channel may come back from its directory.

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
from tricklecast.app.cluster.asking import Asker
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.held import has_answer, holder_answers, send_away
from tricklecast.app.data_plane.routing import Route
from tricklecast.app.replication.records import End, FeedEnd, record
from tricklecast.app.replication.replica import Replica
from tricklecast.app.replication.transport import STALL_S, TURN_BYTES, follow, put, send_feed
from tricklecast.app.workers.mesh import Kind, Mesh, MeshFull
from tricklecast.app.workers.placement import Placement
from tricklecast.app.workers.questions import Questions

_LOGGER = logging.getLogger(__name__)

SPREAD_FROM: Final = 2_000
"""Readers of a channel from which on all workers hold it. Its core is half full then: a reader takes 0.25 ms of it a
second, with 30 chunks of 8 KiB (benchmarks/workers.py, ``busy``) as with 5 segments of 200 bytes."""

SPREAD_UNTIL: Final = 1_200
"""Readers of a channel, in all workers, below which its owner alone holds it again."""

RECENT: Final = 5
"""The most readers at any of the last looks count: between two segments all of them may be gone for a moment."""

LOOK_S: Final = 1.0
"""How often an owner counts the readers of its channels, and how often owner and holders report to each other."""

STALE_S: Final = 3.0
"""A holder that has not reported for this time gets no reader from the owner."""

KEEP_S: Final = 5.0
"""A holder that has not heard for this time that a channel is spread serves nobody new; a replica that cannot reach its
owner for this time ends."""


class _Report(NamedTuple):
    """The last report of a holder.

    Attributes:
        at: when it came. readers: requests that read the channel there.
        audience: its readers as people count them (``Channel.audience``).
    """

    at: float
    readers: int
    audience: int


@dataclass
class _SpreadChannel:
    """A channel of this worker that others hold, too.

    Attributes:
        holders: the numbers of workers to which readers may move, in order. share: how many readers stay here.
        reports: by the number of the holder. counts: readers in all workers at the last looks.
    """

    holders: list[int] = field(default_factory=list)
    share: float = 0.0
    reports: dict[int, _Report] = field(default_factory=dict)
    counts: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))


@dataclass
class _HeldChannel:
    """A channel of another worker that this one holds.

    Attributes:
        owner: the worker that owns the channel. heard_at: when the owner last said that the channel is spread.
        replica: of the channel. following: the task that keeps it up to date.
        sent: bytes to readers here that were reported to the owner.
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
        placement: gets functions that choose the worker for reads of these channels.
        mesh, questions: the ways to the other workers.

    Attributes:
        spread: channels of this worker that others hold, too, by name. held: channels of others, held here, by name.
    """

    def __init__(self, plane: DataPlane, placement: Placement, mesh: Mesh, questions: Questions) -> None:
        self._plane, self._placement, self._mesh, self._questions = plane, placement, mesh, questions
        self.spread: dict[str, _SpreadChannel] = {}
        self.held: dict[str, _HeldChannel] = {}
        self._look_at = 0.0  # when the next look is due
        self._stored = plane.registry.storage is not None

    def look(self, now: float) -> None:
        """Find channels that have become busy or are so no more, and tell the others. Call it a few times a second."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self._plane.registry.readers >= SPREAD_FROM:
            for name, channel in self._plane.registry.channels.items():
                if isinstance(channel, OwnedChannel) and channel.reading.used >= SPREAD_FROM:
                    self.spread.setdefault(name, _SpreadChannel())
        for name, spread in list(self.spread.items()):
            self._look_at_spread(name, spread, now)
        for name, held in list(self.held.items()):
            self._look_at_held(name, held, now)

    def hear(self, sender: int, news: dict[str, Any]) -> None:
        """Take the news that a channel of the sender is spread, or a holder's report about a channel of this worker."""
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
        """End all replicas, and tell the others nothing more."""
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
            await asker.reader.read(TURN_BYTES)  # HELLO: if it stayed unread, the kernel would reset the connection
        put(asker.writer, [record(End(FeedEnd.ENDED))])

    def _look_at_spread(self, name: str, spread: _SpreadChannel, now: float) -> None:
        """Count its readers. While they are many, share them with the holders, and tell all workers to hold it."""
        channel = self._plane.registry.live(name)
        reports = {holder: report for holder, report in spread.reports.items() if now - report.at < STALE_S}
        here = 0 if channel is None else channel.reading.used
        spread.reports = reports
        spread.counts.append(here + sum(report.readers for report in reports.values()))
        readers = max(spread.counts)
        if channel is not None:
            channel.readers_elsewhere = sum(report.audience for report in reports.values())
        if channel is None or readers < SPREAD_UNTIL:
            self._placement.choices.pop(name, None)
            if not reports:
                del self.spread[name]
            return
        spread.holders, spread.share = sorted(reports), readers / (1 + len(reports))
        self._placement.set_choice(name, partial(self._choose_as_owner, name, spread))
        for worker in range(self._mesh.workers):
            if worker != self._mesh.me:
                self._tell(worker, spread=name)

    def _choose_as_owner(self, name: str, spread: _SpreadChannel, route: Route, number: int | None) -> int:
        """The worker for a request that reads a channel of this worker: this one, or a holder."""
        me, channel = self._mesh.me, self._plane.registry.live(name)
        if number is None or not spread.holders or channel is None or channel.reading.used < spread.share:
            return me
        if not has_answer(channel, route, stored=self._stored):  # then no holder can, either
            return me
        holder = spread.holders[number // self._mesh.workers % len(spread.holders)]
        return holder if self._mesh.has_room(holder) else me

    # The holder's side.

    def _hold(self, owner: int, name: str, now: float) -> _HeldChannel:
        """Begin to follow a channel of another worker."""

        def leave(channel: Channel) -> None:
            self._placement.choices.pop(name, None)
            held.sent = 0  # the next channel of the replica counts from 0
            send_away(self._plane, channel)

        def ended(task: asyncio.Task[None]) -> None:
            self._placement.choices.pop(name, None)
            self.held.pop(name, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._plane.fault("while a channel of another worker was held", error)

        replica = Replica(name, self._plane.registry, self._plane.clock, to_time, leave=leave)
        work = follow(replica, lambda: self._questions.connect(owner, "feed", channel=name), lost_s=KEEP_S)
        following = asyncio.get_running_loop().create_task(work)
        following.add_done_callback(ended)
        held = self.held[name] = _HeldChannel(owner, now, replica, following)
        return held

    def _look_at_held(self, name: str, held: _HeldChannel, now: float) -> None:
        """Take new readers only while the owner says so; report to the owner; end a replica that nobody needs."""
        channel = held.replica.channel
        readers = 0 if channel is None or channel.ended else channel.reading.used
        if now - held.heard_at < KEEP_S:
            if held.replica.live:
                self._placement.set_choice(name, partial(self._choose_as_holder, held))
        else:
            self._placement.choices.pop(name, None)
            if not readers:
                held.following.cancel()
        if channel is not None and (readers or name in self._placement.choices):
            sent, held.sent = channel.bytes_out - held.sent, channel.bytes_out
            about = {"epoch": channel.epoch, "readers": readers, "audience": channel.audience, "sent": sent}
            self._tell(held.owner, held=name, **about)

    def _choose_as_holder(self, held: _HeldChannel, route: Route, number: int | None) -> int:
        """The worker for a request that reads a channel of another worker: this one, or the owner."""
        del number
        answers = holder_answers(self._plane, held.replica.channel, route, stored=self._stored)
        return self._mesh.me if answers else held.owner

    def _tell(self, worker: int, **news: object) -> None:
        """Send news to another worker. They may be lost: the next look repeats what matters."""
        try:
            self._mesh.send(worker, Kind.NEWS, orjson.dumps(news))
        except (MeshFull, OSError) as error:
            _LOGGER.warning("worker %d could not be told of a busy channel: %s", worker, error)
