"""Busy channels: one with more readers than a core can serve is held by all workers.

**The problem.** A channel is in one worker. With 20,000 readers that worker is full, and the others have nothing to do.

**The idea.** The owner tells the others when a channel has :data:`SPREAD_FROM` readers. Each of them then holds a
replica (:mod:`tricklecast.app.cluster.replica`), fed over a socket, and serves readers that come to it as the owner
would. The owner keeps its share of the readers that are connected to it: the others move to the next worker when they
begin their next request. So the owner sends every byte once to each worker, instead of once to each reader.

Only what a reader asks for is answered by a replica. Everything else goes to the owner, which alone decides.

**Back.** Each holder tells the owner how many readers it has. When all of them together are fewer than
:data:`SPREAD_UNTIL`, the owner takes the word back: new requests go to it, and a replica that has had no reader for
:data:`KEEP_S` ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import orjson

from tricklecast.app.cluster.replica import Replica
from tricklecast.app.cluster.transport import follow, send_feed
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.workers.mesh import Kind, Mesh, MeshFull
from tricklecast.app.workers.placement import Placement
from tricklecast.app.workers.questions import Questions, Stream

_LOGGER = logging.getLogger(__name__)

SPREAD_FROM: Final = 500
"""Readers of a channel from which on all workers hold it (benchmarks/workers.py says where a core is half full)."""

SPREAD_UNTIL: Final = 300
"""Readers of a channel, in all workers, below which its owner alone holds it again."""

KEEP_S: Final = 5.0
"""A replica that is not wanted any more ends when it has had no reader for so long."""


class Busy:
    """A worker's part in busy channels: those that it owns, and those that it holds for others.

    Args:
        registry: of this worker.
        placement: is told which channels are read here.
        mesh, questions: the ways to the others.
        clock: the registry's time, seconds. wall_us: microseconds since 1970.
    """

    def __init__(
        self,
        registry: Registry,
        placement: Placement,
        mesh: Mesh,
        questions: Questions,
        clock: Callable[[], float],
        wall_us: Callable[[], int],
    ) -> None:
        self._registry, self._placement, self._mesh, self._questions = registry, placement, mesh, questions
        self._clock, self._wall_us = clock, wall_us
        # Readers that other workers have of channels that this one owns, by channel and worker.
        self._elsewhere: dict[str, dict[int, int]] = {}
        self._held: dict[str, _Held] = {}

    # The owner's side.

    def look(self) -> None:
        """Spread the channels that have become busy, and take back those that are not any more; once a second."""
        for name, channel in self._registry.channels.items():
            if (
                isinstance(channel, OwnedChannel)
                and name not in self._elsewhere
                and channel.reading.used >= SPREAD_FROM
            ):
                self._elsewhere[name] = {}
                self._tell_others(spread=name)
        for name, counts in list(self._elsewhere.items()):
            owned = self._registry.live(name)
            if owned is None or owned.reading.used + sum(counts.values()) < SPREAD_UNTIL:
                del self._elsewhere[name]
                self._placement.spread.pop(name, None)
                self._tell_others(gather=name)
        now = self._clock()
        for name, held in list(self._held.items()):
            self._report(name, held, now)

    def readers_elsewhere(self, name: str) -> int:
        """Readers that other workers have of a channel that this one owns."""
        return sum(self._elsewhere.get(name, {}).values())

    async def feed(self, to: Stream, channel: str) -> None:
        """Answer the question ``feed``: the facts and bytes of a channel that this worker owns, as long as it lives."""
        owned = self._registry.live(channel)
        if owned is not None:
            began_us = self._wall_us() - round(self._clock() * 1e6)
            await send_feed(owned, to.reader, to.writer, self._registry, lambda at: began_us + round(at * 1e6))

    # The other workers' side.

    def hear(self, sender: int, news: dict[str, Any]) -> None:
        """Another worker tells something about a channel."""
        match news:
            case {"spread": name}:
                held = self._held.get(name)
                if held is None:
                    held = self._held[name] = self._hold(sender, name)
                held.wanted = True
            case {"gather": name}:
                if (held := self._held.get(name)) is not None:
                    held.wanted = False
                    self._placement.spread.pop(name, None)
            case {"readers": count, "of": name}:
                if (counts := self._elsewhere.get(name)) is not None:
                    counts[sender] = count
                    self._placement.spread[name] = sorted({self._mesh.me, *counts})

    def _hold(self, owner: int, name: str) -> _Held:
        to_time_us = self._wall_us() - round(self._clock() * 1e6)
        replica = Replica(name, self._registry, self._clock, lambda at_us: (at_us - to_time_us) / 1e6)
        held = _Held(owner, replica)

        async def run() -> None:
            try:
                await follow(replica, lambda: self._questions.connect(owner, "feed", channel=name))
            finally:
                self._placement.spread.pop(name, None)
                self._held.pop(name, None)

        held.task = asyncio.get_running_loop().create_task(run())
        return held

    def _report(self, name: str, held: _Held, now: float) -> None:
        """Tell the owner how many readers a replica has, and end one that nobody needs."""
        channel = held.replica.channel
        readers = 0 if channel is None else channel.reading.used
        if held.wanted and held.replica.live:
            self._placement.spread[name] = [self._mesh.me]
        if held.wanted or readers:
            held.needed_at = now
        elif now - held.needed_at > KEEP_S and held.task is not None:
            held.task.cancel()
        if held.replica.live:
            self._tell(held.owner, {"readers": readers, "of": name})

    def _tell_others(self, **news: str) -> None:
        for worker in range(self._mesh.workers):
            if worker != self._mesh.me:
                self._tell(worker, news)

    def _tell(self, worker: int, news: dict[str, Any]) -> None:
        try:
            self._mesh.send(worker, Kind.NEWS, orjson.dumps(news))
        except (MeshFull, OSError) as error:
            _LOGGER.warning("worker %d could not be told of a busy channel: %s", worker, error)

    def end(self) -> None:
        """Let go of all replicas."""
        for held in list(self._held.values()):
            if held.task is not None:
                held.task.cancel()


class _Held:
    """A replica that this worker holds.

    Args:
        owner: the worker that owns the channel. replica: of it.

    Attributes:
        wanted: the owner wants readers to be served here. needed_at: when that was so last, or there was a reader.
        task: follows the owner.
    """

    def __init__(self, owner: int, replica: Replica) -> None:
        self.owner, self.replica = owner, replica
        self.wanted = True
        self.needed_at = 0.0
        self.task: asyncio.Task[None] | None = None
