"""Publishers and readers that go on whatever happens, and write down what they sent and what they were told.

- A **film** has one publisher, which names each seq, announces the next segment ahead, pins the epoch, and sends a
  segment again, with its key, at another node until it is confirmed.
- **Rivals** are two publishers of one channel at different nodes, which let the server choose the seq and send nothing
  twice. If two nodes own the channel in one epoch, both give the same seq away.

Each body names itself in each of its lines, so a part of one tells where it comes from.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from benchmarks.campaign.cluster import Cluster
from benchmarks.campaign.http import Answer, Wire

EXCHANGE_S: Final = 1.5
"""A client gives a node up after this time, and goes to another one."""

READ_S: Final = 1.0
"""A reader that waits for a segment asks again after this time."""

PAUSE_S: Final = 0.04
"""After a refusal. What a node says of when to come back is not heeded: the time that a takeover takes is measured."""

BASE: Final = "/trickle"


@dataclass(slots=True)
class Write:
    """A segment that was sent.

    Attributes:
        channel, node, body: which body, to which node. pinned: the epoch that it was sent for, if it named one.
        begun: when its first byte was sent. answer: what came. epoch, seq, size: what was confirmed, of a 200.
        owner: the node that has confirmed it.
    """

    channel: str
    node: int
    body: str
    pinned: int | None
    begun: float
    answer: Answer
    epoch: int | None = None
    seq: int = -1
    size: int = 0
    owner: int = -1

    @property
    def acknowledged(self) -> bool:
        """Whether the server has said that it has it."""
        return self.answer.status == 200 and self.size > 0

    @property
    def promise(self) -> str:
        """How safe the server has said that it is."""
        weaker = " (degraded)" if "lp-trickle-degraded" in self.answer.fields else ""
        return self.answer.fields.get("lp-trickle-durability", "memory") + weaker


@dataclass(slots=True)
class Read:
    """A segment, or the word that there is none, as one reader got it."""

    channel: str
    reader: str
    begun: float
    answer: Answer

    @property
    def epoch(self) -> int | None:
        """The epoch of the answer."""
        return self.answer.number("lp-trickle-epoch")


@dataclass(slots=True)
class Delete:
    """A channel was ended in this epoch, or not, as the answer says."""

    channel: str
    epoch: int
    begun: float
    answer: Answer


@dataclass
class Record:
    """All that clients have seen.

    Attributes:
        bodies: all that was sent, by its name. hops: nodes that a request has passed before it was answered, at most.
    """

    bodies: dict[str, bytes] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    deletes: list[Delete] = field(default_factory=list)
    hops: int = 0


class Load:
    """The clients of one schedule.

    Args:
        cluster: that they come to. channels: names of films and of channels with rivals. dice: for pauses and sizes.

    Attributes:
        record: what they have seen. late_s: how late this process was at most: its times mean nothing if it was.
    """

    def __init__(self, cluster: Cluster, films: tuple[str, ...], rivals: tuple[str, ...], dice: random.Random) -> None:
        self.record = Record()
        self.channels = (*films, *rivals)
        self.late_s = 0.0
        self._ports = [node.for_clients.port for node in cluster.nodes]
        self._owners = {f"http://127.0.0.1:{one.to_it.port}{BASE}": at for at, one in enumerate(cluster.nodes)}
        self._dice, self._over, self._numbers = dice, asyncio.Event(), count()
        self._acknowledged: dict[str, float] = {}  # by publisher: when its newest confirmed segment was begun
        clients: list[Coroutine[Any, Any, None]] = [self._film(name, at) for at, name in enumerate(films)]
        clients += [self._rival(name, one, at + one) for at, name in enumerate(rivals, 1) for one in (0, 1)]
        clients += [self._read(name, node) for name in self.channels for node in range(len(self._ports))]
        self._clients = [asyncio.create_task(client) for client in (*clients, self._watch())]
        self._publishers = len(films) + 2 * len(rivals)

    async def published(self, since: float, within_s: float) -> bool:
        """Wait until each publisher has a segment confirmed that it began later than this; whether that has come."""
        deadline = time.monotonic() + within_s
        while sum(begun > since for begun in self._acknowledged.values()) < self._publishers:
            await asyncio.sleep(0.02)
            if time.monotonic() > deadline:
                return False
        return True

    async def end(self) -> None:
        """Publish and read no more.

        Raises:
            Exception: a client has a fault.
        """
        self._over.set()
        await asyncio.gather(*self._clients)

    async def delete(self, channel: str, node: int) -> None:
        """End a channel, in the epoch of its newest confirmed segment."""
        epochs = [one.epoch for one in self.record.writes if one.channel == channel and one.epoch is not None]
        if epochs:
            wire, begun = await Wire.open(self._ports[node], EXCHANGE_S), time.monotonic()
            pin = f"Lp-Trickle-Epoch: {epochs[-1]}"
            answer = await wire.ask(f"DELETE {BASE}/{channel}", pin, within_s=2 * EXCHANGE_S)
            self.record.deletes.append(Delete(channel, epochs[-1], begun, answer))
            wire.close()

    # Publishers.

    def _body(self, name: str) -> bytes:
        if (body := self.record.bodies.get(name)) is None:
            line = f"{name} ".ljust(self._dice.choice((40, 200, 1500)), ".") + "\n"
            body = self.record.bodies[name] = (line * self._dice.choice((1, 3, 6))).encode()
        return body

    async def _send(
        self, wire: Wire, answer: asyncio.Future[Answer], write: Write, publisher: str, life: str = ""
    ) -> Write:
        """Send a body in chunks, and wait for the answer."""
        body = self._body(write.body)
        step = len(body) // self._dice.choice((1, 2, 3)) + 1
        write.begun = time.monotonic()
        for at in range(0, len(body), step):
            wire.write(body[at : at + step])
            await asyncio.wait((answer,), timeout=self._dice.uniform(0, 0.02))
            if answer.done():
                break
        else:
            wire.write(b"")
        write.answer = found = await wire.end(answer, EXCHANGE_S)
        if found.status == 200:
            write.epoch = write.pinned if write.pinned is not None else found.number("lp-trickle-epoch")
            write.seq, write.size = found.number("lp-trickle-seq") or 0, found.number("lp-trickle-size") or 0
            write.owner = self._owners.get(found.fields.get("lp-trickle-node", ""), write.node)
            if write.acknowledged:
                self._acknowledged[publisher] = write.begun
        self.record.writes.append(write)
        return write

    async def _post(
        self, channel: str, seq: int, body: str, node: int, pinned: int | None, *fields: str
    ) -> tuple[Wire, asyncio.Future[Answer], Write]:
        """Send the head of a POST."""
        wire = await Wire.open(self._ports[node], EXCHANGE_S)
        pin = f"Lp-Trickle-Life: {channel}:0" if pinned is None else f"Lp-Trickle-Epoch: {pinned}"
        key = f"Idempotency-Key: {body}"
        answer = wire.begin(f"POST {BASE}/{channel}/{seq}", "Transfer-Encoding: chunked", pin, key, *fields)
        return wire, answer, Write(channel, node, body, pinned, time.monotonic(), Answer())

    async def _film(self, channel: str, node: int) -> None:
        seq, epoch = 0, None
        ahead = None
        while not self._over.is_set():
            body = f"{channel}/{seq}@{epoch}"
            if ahead is None or ahead[2].body != body or ahead[1].done():
                if ahead is not None:
                    ahead[0].close()
                ahead = await self._post(channel, seq, body, node, epoch)
            wire, answer, write = ahead
            ahead = None
            if epoch is not None:
                ahead = await self._post(channel, seq + 1, f"{channel}/{seq + 1}@{epoch}", node, epoch)
            found = (await self._send(wire, answer, write, channel)).answer
            wire.close()
            latest, ended = found.number("lp-trickle-latest"), "lp-trickle-closed" in found.fields
            if found.status == 200:
                seq, epoch = seq + 1, write.epoch
                if ended:
                    seq, epoch = 0, None
                await asyncio.sleep(self._dice.uniform(0, 0.03))
                continue
            if found.status == 404:
                seq, epoch = 0 if ended else seq, None
            elif found.status == 409 and "lp-trickle-epoch" in found.fields:
                epoch, seq = found.number("lp-trickle-epoch"), latest or 0
            elif found.status == 409:
                seq = max(seq + 1, latest or 0)
            elif found.status == 470:
                seq = latest or 0
            else:
                node = (node + 1) % len(self._ports)
            await asyncio.sleep(PAUSE_S)
        if ahead is not None:
            ahead[0].close()

    async def _rival(self, channel: str, which: int, node: int) -> None:
        node %= len(self._ports)
        begins = False
        while not self._over.is_set():
            body = f"{channel}:{which}/{next(self._numbers)}"
            fields = ("Lp-Trickle-Reset: 1",) if begins else ()
            wire, answer, write = await self._post(channel, -1, body, node, None, *fields)
            found = (await self._send(wire, answer, write, f"{channel}:{which}")).answer
            wire.close()
            begins = found.status == 404 and "lp-trickle-closed" in found.fields
            if found.status != 200:
                node = (node + self._dice.choice((0, 1))) % len(self._ports)
            await asyncio.sleep(PAUSE_S if found.status != 200 else self._dice.uniform(0.01, 0.06))

    # Readers.

    async def _read(self, channel: str, node: int) -> None:
        reader, seq = f"{channel} at {node}", 0
        wire = await Wire.open(self._ports[node], EXCHANGE_S)
        while not self._over.is_set():
            if not wire.usable:
                wire = await Wire.open(self._ports[node], EXCHANGE_S)
            begun = time.monotonic()
            found = await wire.ask(f"GET {BASE}/{channel}/{seq}", within_s=READ_S)
            self.record.reads.append(Read(channel, reader, begun, found))
            if found.status == 200 and found.whole and "lp-trickle-closed" not in found.fields:
                seq += 1
                continue
            if found.status == 470:
                seq = found.number("lp-trickle-next") or found.number("lp-trickle-latest") or 0
            elif "lp-trickle-closed" in found.fields:
                seq = 0
            await asyncio.sleep(PAUSE_S)
        wire.close()

    async def _watch(self) -> None:
        """See how late this process is."""
        while not self._over.is_set():
            due = time.monotonic() + 0.05
            await asyncio.sleep(0.05)
            self.late_s = max(self.late_s, time.monotonic() - due)


@dataclass
class Found:
    """A channel at one node, when all is healed.

    Attributes:
        epoch: `None`: there is no such channel. head: of it. segments: what it holds, by seq.
    """

    epoch: int | None
    head: int = 0
    segments: dict[int, bytes] = field(default_factory=dict)


async def look(port: int, channel: str, *, at_segments: bool) -> Found | None:
    """A channel as a node has it; ``None``: it does not say."""
    wire = await Wire.open(port, EXCHANGE_S)
    try:
        answer = await wire.ask(f"GET {BASE}/{channel}/next", within_s=2 * EXCHANGE_S)
        if answer.status == 404 or "lp-trickle-closed" in answer.fields:
            return Found(None)
        if answer.status != 200:
            return None
        found = Found(answer.number("lp-trickle-epoch"), answer.number("lp-trickle-latest") or 0)
        seq = 0
        while at_segments and seq < found.head:
            if not wire.usable:
                wire = await Wire.open(port, EXCHANGE_S)
            answer = await wire.ask(f"GET {BASE}/{channel}/{seq}", within_s=2 * EXCHANGE_S)
            if answer.status == 470:
                seq = max(seq + 1, answer.number("lp-trickle-next") or 0)
                continue
            if answer.status != 200 or not answer.whole:
                return None
            found.segments[seq] = answer.body
            seq += 1
        return found
    finally:
        wire.close()
