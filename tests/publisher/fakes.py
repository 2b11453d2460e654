"""A fake trickle server that stores what is published, and answers as it should or as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any
from unittest.mock import patch

from tests.support.peers import FakeServer, Head, Peer
from tricklecast.publisher import Publisher
from tricklecast.trickle import wire


class NoWait(Random):
    """Dice that keep retries short."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


Answer = Callable[[Peer, Head], Awaitable[None]]


class Trickle:
    """A fake trickle server: stores what is published, except where a test answers a request in its own way.

    Attributes:
        log: all requests, as ``METHOD path``, in the order of their heads.
        heads: the same, with headers.
        stored: the chunks of each complete segment.
        instead: answers for the first requests with that method and path, in order.

    Args:
        head: of the channel; ``None`` if there is no channel yet.
        epoch: told with the head by a server that stores a body that is sent again only once.
    """

    def __init__(self, head: int | None = None, epoch: int | None = None) -> None:
        self.head = head
        self.epoch = epoch
        self.log: list[str] = []
        self.heads: list[Head] = []
        self.stored: dict[str, list[bytes]] = {}
        self.instead: dict[str, list[Answer]] = {}
        self.changed = asyncio.Condition()
        self.ended = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        while True:
            try:
                head = await peer.head()
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            await self._note(head)
            queue = self.instead.get(self.log[-1], [])
            if queue:
                await queue.pop(0)(peer, head)
                return
            if not await self._serve(peer, head):
                return

    async def _note(self, head: Head) -> None:
        async with self.changed:
            self.heads.append(head)
            self.log.append(f"{head.method} {head.path.removeprefix('/trickle/c').removeprefix('/')}".strip())
            self.changed.notify_all()

    async def seen(self, request: str, times: int = 1) -> None:
        """Wait until a request has arrived."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.log.count(request) >= times)

    async def _serve(self, peer: Peer, head: Head) -> bool:
        if head.method == "DELETE":
            if self.log[-1] == "DELETE":
                self.ended.set()
            await peer.answer(200)
            return True
        if head.method == "GET":
            told: dict[str, object] = {wire.LATEST: self.head}
            if self.epoch is not None:
                told[wire.EPOCH] = self.epoch
            await (peer.answer(404) if self.head is None else peer.answer(200, told))
            return True
        body = asyncio.ensure_future(peer.body())
        ended = asyncio.ensure_future(self.ended.wait())
        await asyncio.wait([body, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        # A publisher that has heard of the end gives up what it has sent ahead, perhaps before this task runs.
        if not body.done() or (self.ended.is_set() and body.exception() is None and not body.result()):
            body.cancel()
            await peer.answer(200, {wire.CLOSED: wire.TERMINATED, "Connection": "close"})
            return False
        if body.exception() is not None:
            return False
        seq = head.path.rsplit("/", 1)[1]
        self.stored[seq] = body.result()
        self.head = max(self.head or 0, int(seq) + 1)
        size = sum(map(len, body.result()))
        await peer.answer(200, {wire.SEQ: seq, wire.SIZE: size} | ({} if size else {"Connection": "close"}))
        return bool(size)


def reply(status: int, headers: dict[str, object] | None = None, body: bytes = b"", *, after: int = 0) -> Answer:
    """Answer at once, or after so many chunks of the body, whether or not more is to come."""

    async def answer(peer: Peer, head: Head) -> None:
        for _ in range(after):
            await peer.chunk()
        await peer.answer(status, {"Connection": "close", **(headers or {})}, body)
        await peer.closed()

    return answer


def cut(*, after: int = 0) -> Answer:
    """Break the connection, after so many chunks of the body."""

    async def answer(peer: Peer, head: Head) -> None:
        for _ in range(after):
            await peer.chunk()
        peer.reset()

    return answer


def publisher(at: FakeServer | str, *, most: int | None = None, **options: Any) -> Publisher:
    """A publisher whose retries do not wait, and whose buffer has room for at most ``most`` segments.

    Args:
        at: a fake server, or the URL of a channel.
    """
    with patch("tricklecast.publisher.client.Random", NoWait):
        made = Publisher(at if isinstance(at, str) else f"{at.base}/c", **options)
    made._segments.most = most or made._segments.most
    return made
