"""A NATS bucket in one process, on virtual time: the same rules of compare-and-set, and a network as bad as can be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from tricklecast.app.cluster.bucket import Take
from tricklecast.app.cluster.jetstream import ANSWER_S, OPEN_S, Conflict, Unreachable

T = TypeVar("T")

Message = tuple[bytes | None, int, float]
"""A value (None: deleted), its revision, and when the server removes it."""


@dataclass
class ModelNats:
    """The server. What it holds can be emptied, deleted, and put back to what it was before.

    Attributes:
        instance: of the bucket; None: there is none. up: whether connections can be made.
        deaf: so many answers from now on get lost.
    """

    dice: Random
    loop: asyncio.AbstractEventLoop
    instance: int | None = None
    made_at: float = 0.0
    up: bool = True
    deaf: int = 0
    messages: dict[str, Message] = field(default_factory=dict)
    last: int = 0
    starts: int = 0
    faults: list[BaseException] = field(default_factory=list)
    connections: dict[ModelBucket, None] = field(default_factory=dict)
    _instances: int = 0

    def now(self) -> float:
        return self.loop.time()

    def put(self, key: str, value: bytes | None, last: int | None, ttl_s: float) -> int:
        """As JetStream does with the header Nats-Expected-Last-Subject-Sequence."""
        if last is not None and self.get(key)[1] != last:
            raise Conflict("wrong last sequence")
        self.last += 1
        self.messages[key] = value, self.last, self.now() + (ttl_s or 1e12)
        for connection in self.connections:
            connection.news.put_nowait((key, value, self.last))
        return self.last

    def get(self, key: str) -> tuple[bytes | None, int]:
        value, revision, until = self.messages.get(key, (None, 0, 1e12))
        if until <= self.now():
            del self.messages[key]
            return None, 0
        return value, revision

    def purge(self) -> None:
        """As ``nats stream purge``: no watcher hears of it, and revisions go on."""
        self.messages.clear()

    def delete(self) -> None:
        """As ``nats kv rm``: the consumers are gone, too."""
        self.messages.clear()
        self.instance = None
        for connection in self.connections:
            connection.stop_watching()

    def roll_back(self, messages: dict[str, Message], last: int) -> None:
        """Restart with an older copy of the store."""
        self.messages, self.last = dict(messages), last
        self.restart()

    def restart(self) -> None:
        self.starts += 1
        self.break_all()

    def break_all(self) -> None:
        for connection in list(self.connections):
            connection.break_off("reset")

    async def open(self, way: Way) -> ModelBucket:
        async with asyncio.timeout(OPEN_S):
            await way.travel()
        if not self.up:
            raise Unreachable("refused")
        if self.instance is None:
            self._instances += 1
            self.instance, self.made_at, self.last = self._instances, self.now(), 0
        return ModelBucket(self, way)


@dataclass
class Way:
    """Between a node and the server. While it is cut, all that is on it waits, and arrives late."""

    dice: Random
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def travel(self) -> None:
        await asyncio.sleep(self.dice.choice((0.0001, 0.001, 0.03)))
        await self.open.wait()


@dataclass(eq=False)
class ModelBucket:
    """One connection; see :class:`~tricklecast.app.cluster.bucket.AnyBucket`."""

    nats: ModelNats
    way: Way
    instance: str = ""
    young_s: float = 0.0
    closed: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    news: asyncio.Queue[tuple[str, bytes | None, int]] = field(default_factory=asyncio.Queue)
    watching: asyncio.Task[None] | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.instance, self.young_s = f"{self.nats.instance} {self.nats.starts}", self.nats.now() - self.nats.made_at
        self.nats.connections[self] = None

    def break_off(self, why: str) -> None:
        if not self.closed.done():
            self.closed.set_result(why)
        self.nats.connections.pop(self, None)

    async def put(self, key: str, value: bytes, last: int, *, ttl_s: float = 0) -> int:
        return await self._ask(lambda: self.nats.put(key, value, last, ttl_s))

    async def get(self, key: str) -> tuple[bytes | None, int]:
        return await self._ask(lambda: self.nats.get(key))

    async def watch(self, after: int | None, take: Take, synced: Callable[[], None]) -> None:
        self.stop_watching()
        await self._ask(lambda: 0)
        self.news = asyncio.Queue()
        there = [
            (key, value, revision)
            for key, (value, revision, until) in self.nats.messages.items()
            if (after is None or revision > after) and until > self.nats.now()
        ]
        self.watching = self._spawn(self._deliver(sorted(there, key=lambda message: message[2]), take, synced))

    async def close(self) -> None:
        self.break_off("closed")
        self.stop_watching()

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and not isinstance(error := task.exception(), None | Conflict | Unreachable):
            self.nats.faults.append(error)

    def stop_watching(self) -> None:
        if self.watching is not None:
            self.watching.cancel()

    async def _deliver(
        self, there: list[tuple[str, bytes | None, int]], take: Take, synced: Callable[[], None]
    ) -> None:
        await self.way.travel()
        for key, value, revision in there:
            take(key, value, revision)
        synced()
        while not self.closed.done():
            key, value, revision = await self.news.get()
            await self.way.travel()
            take(key, value, revision)

    async def _ask(self, do: Callable[[], T]) -> T:
        task = self._spawn(self._request(do))
        first = await asyncio.wait((task, self.closed), timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if task not in first[0]:
            raise Unreachable("no answer")
        return task.result()

    async def _request(self, do: Callable[[], T]) -> T:
        """A request that is on its way arrives, although its sender may not wait for it any more."""
        await self.way.travel()
        if f"{self.nats.instance} {self.nats.starts}" != self.instance or not self.nats.up:
            raise Unreachable("no response from stream")
        if self.closed.done() and self.nats.dice.random() < 0.5:
            raise Unreachable("lost on its way")
        answer = do()
        if self.nats.deaf:
            self.nats.deaf -= 1
            await asyncio.Event().wait()
        await self.way.travel()
        return answer

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task
