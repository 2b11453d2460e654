"""The changes of a cluster: one log at each node, of the facts of all nodes, from the first client on that asks for it.

**The idea.** A node follows the logs of all nodes, its own included, as the front of several workers does
(:mod:`tricklecast.app.workers.facts`), and appends what it hears to a log in memory. Its indexes mean nothing at
another node, and the log has a name of its own (``instance``). So a client that goes on at another node is told to take
the list of channels again (410), and neither misses a fact nor gets one twice.

**One order per channel.** The epochs of a channel follow each other, and each has one owner at a time:

- A channel that moves is one for which the next node goes on in the same epoch. Neither the ``removed`` of the one node
  nor the ``added`` of the other is told. What the next owner tells before the one before has told that it has given the
  channel away waits for that, :data:`MAX_HELD` facts at most.
- What a node tells of an epoch when another one has begun the next is left out: clients have been told of that one.

**A node that does not answer** delays a request by at most :data:`WAIT_S`, and is named in the answer. Its channels
stay in the list until it tells that they are gone, or another node has them.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tricklecast.app.changes import Changes, LiveChannel, Snapshot
from tricklecast.app.cluster.asking import Answerer, Asking, NoAnswer
from tricklecast.app.cluster.peers import NodePlace
from tricklecast.app.cluster.questions import NodeQuestions
from tricklecast.app.core.facts import EndReason
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.storage.database import FactRow, Position
from tricklecast.app.workers.facts import LOST, LogFollower

MAX_HELD: Final = 10_000
"""Facts that wait until the owner before has told that it has given their channel away."""

WAIT_S: Final = 1.0
"""A request waits so long for nodes that have not told yet which channels live there."""

LOOK_S: Final = 1.0
"""How often the nodes of the directory are looked at."""


@dataclass(slots=True)
class _Epoch:
    """The newest epoch of a channel, as the log tells it.

    Attributes:
        node: the number of its owner. left: the owner has given the channel away, or is not heard any more.
        heirs: nodes that have told that they go on with it. held: their facts, which wait, with their numbers.
    """

    epoch: int
    node: int
    left: bool = False
    heirs: set[int] = field(default_factory=set)
    held: list[tuple[FactRow, int]] = field(default_factory=list)


class ClusterChanges(Changes):
    """The log of all nodes.

    Args:
        me: the name of this node. questions: to other nodes.
        peers: returns the other nodes by name, to be asked. answer: answers this node's own question for its log.
    """

    of_cluster = True

    def __init__(
        self,
        me: str,
        questions: NodeQuestions,
        peers: Callable[[], Mapping[str, NodePlace]],
        answer: Answerer,
    ) -> None:
        # It hears of nothing by itself: no channel is in this registry.
        registry = Registry(Limits(), autocreate=False, instance=secrets.token_hex(8))
        super().__init__(registry, defer=asyncio.get_running_loop().call_soon)
        self._me, self._questions, self._peers = me, questions, peers
        self._own = _OwnQuestions()
        self._own.start({"facts": answer})
        self._numbers: dict[str, int] = {}  # of the nodes that are followed, by name; none is used again
        self._count = 0  # of numbers so far
        self._followers: dict[str, LogFollower] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._heard: set[int] = set()  # nodes that are connected
        self._epochs: dict[str, _Epoch] = {}
        self._held = 0  # facts that wait
        self._asked = asyncio.Event()  # a client has asked for changes
        self._begun = asyncio.Event()  # the nodes of that time are followed

    @property
    def missing(self) -> list[str]:
        """The nodes that do not answer, by name."""
        found = self._followers.items()
        return sorted(name for name, one in found if one.hangs or self._numbers[name] not in self._heard)

    async def run(self) -> None:
        """Follow all nodes, from the first request on, until cancelled."""
        await self._asked.wait()
        try:
            while True:
                self._look()
                self._begun.set()
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._following.values():
                task.cancel()

    def _look(self) -> None:
        """Follow the nodes that are there."""
        for task in self._following.values():
            if task.done():
                task.result()  # a fault, of which the server has to hear
        names = {self._me, *self._peers()}
        for name in names - self._following.keys():
            self._count += 1
            number = self._numbers[name] = self._count
            follower = self._followers[name] = LogFollower(
                number, _Way(partial(self._frames, name, number)), self, None, stored=False
            )
            self._following[name] = asyncio.create_task(follower.run())
        for name in self._following.keys() - names:  # it was stopped, or is forgotten
            self._following.pop(name).cancel()
            del self._followers[name]
            number, now_us = self._numbers.pop(name), time.time_ns() // 1000
            self._others.pop(number)
            self._unheard_of(number)
            lost = [(name, one.epoch) for name, one in self._epochs.items() if one.left and one.node == number]
            self._append([FactRow(0, now_us, "removed", name, epoch, None, LOST) for name, epoch in lost], number)

    async def _frames(
        self, name: str, number: int, question: str, begun: Callable[[asyncio.StreamWriter], None], **about: Any
    ) -> AsyncGenerator[bytes]:
        """The frames of a node's answer."""
        peer = self._peers().get(name)
        if name == self._me:
            frames = self._own.follow(name, question, begun=begun, **about)
        elif peer is not None:
            frames = self._questions.follow(peer, question, begun=begun, **about)
        else:
            return
        try:
            async for frame in frames:
                self._heard.add(number)
                yield frame
        except NoAnswer:
            pass
        finally:
            self._unheard_of(number)
        await asyncio.sleep(LOOK_S)

    def _unheard_of(self, number: int) -> None:
        """A node is not connected: nobody waits for it, and other nodes may tell of its channels."""
        self._heard.discard(number)
        self._unknown.discard(number)
        if not self._unknown:
            self._known.set()
        for known in self._epochs.values():
            if known.node == number and not known.left:
                known.left = True
                for row, node in self._released(known):
                    self._append([row], node)

    async def catch_up(self) -> None:
        """Have the facts that can be told now of all nodes, and follow them."""
        self._asked.set()
        await self._begun.wait()
        await self.known(WAIT_S)
        await super().catch_up()

    async def known(self, within_s: float) -> None:
        """Wait until it is known which channels live at each node, :data:`WAIT_S` at most."""
        await super().known(min(within_s, WAIT_S))

    def snapshot(self) -> Snapshot:
        """The live channels of the nodes that have told theirs."""
        return Snapshot(self.index, list(self._live.values()))

    # One order per channel.

    def add(self, rows: Iterable[FactRow], worker: int, position: Position, *, gap: bool = False) -> None:
        """Take facts of a node, in their order: see the module's text."""
        taken: list[FactRow] = []
        waiting = deque((row, worker) for row in rows)
        while waiting:
            row, node = waiting.popleft()
            known = self._epochs.get(row.channel)
            if known is None or row.epoch > known.epoch:
                if row.kind == "removed":
                    continue  # nobody was told that it was there
                if known is not None:
                    self._released(known)
                self._epochs[row.channel] = _Epoch(row.epoch, node)
                taken.append(row)
            elif row.epoch < known.epoch:
                continue
            elif node != known.node and not known.left:
                if row.kind == "added":
                    known.heirs.add(node)
                if node in known.heirs and self._held < MAX_HELD:
                    known.held.append((row, node))
                    self._held += 1
            elif row.kind == "removed" and row.detail == EndReason.MOVED:
                known.left = True
                waiting.extendleft(reversed(self._released(known)))
            elif row.kind == "removed":
                del self._epochs[row.channel]
                taken.append(row)
            else:
                known.node, known.left = node, False
                if row.kind != "added":
                    taken.append(row)
        super().add(taken, worker, position, gap=gap)

    def _append(self, rows: Iterable[FactRow], node: int) -> None:
        self.add(rows, node, Position("", 0))

    def _released(self, known: _Epoch) -> list[tuple[FactRow, int]]:
        """The facts that have waited, and wait no more."""
        held, known.held = known.held, []
        known.heirs.clear()
        self._held -= len(held)
        return held

    async def know(self, worker: int, live: Iterable[LiveChannel]) -> None:
        """Learn that a node has told which of its channels live: :meth:`add` has heard of them."""
        await super().know(worker, [])


class _OwnQuestions(Asking[str]):
    """This node's questions to itself."""

    def __init__(self) -> None:
        super().__init__()
        self._answering: set[asyncio.Task[None]] = set()

    def named(self, whom: str) -> str:
        """How an error names it."""
        return f"node {whom}"

    async def connect(
        self, whom: str, question: str, /, **about: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Answer over a pair of sockets."""
        mine, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        task = asyncio.create_task(self.answer(self.named(whom), question, about, reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        return await asyncio.open_connection(sock=mine)


class _Way:
    """The way to the log of one node, for its follower.

    Args:
        frames: of its answer to a question.
    """

    def __init__(self, frames: Callable[..., AsyncGenerator[bytes]]) -> None:
        self._frames = frames

    def follow(
        self, whom: int, question: str, /, *, begun: Callable[[asyncio.StreamWriter], None] | None = None, **about: Any
    ) -> AsyncGenerator[bytes]:
        """The frames of its answer to a question; ``whom`` is its number."""
        del whom
        return self._frames(question, begun, **about)
