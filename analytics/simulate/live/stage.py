"""What an act has to work with: channels of its own, a well-behaved publisher, and clients with names."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.wire import CLIENT, SEQ

if TYPE_CHECKING:
    import httpx

ANSWER_S: Final = 10.0
"""Longest wait for an answer, seconds. A misbehaving client is answered at once; who waits longer is being held."""

MAX_CROWD: Final = 600
"""Most connections that an act opens to reach a server's limit of readers: a laptop allows 1,024 descriptors."""

SEGMENT: Final = b"s" * 1024


class ActImpossible(TrickleError):
    """This server does not give the answer that this act loops on; the message says why, and what to change."""


class ServerUnreachable(TrickleError):
    """There is no server to misbehave at."""


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group: clients that fail together fail for one reason."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


@dataclass(slots=True)
class Loop:
    """What one client did, as it saw it itself.

    Attributes:
        client: its name. channel: what it asked.
        statuses: of its answers, in order. seqs: what they were about.
        first_us, last_us: when it made its first and its last request, microseconds since the epoch.
    """

    client: str
    channel: str
    statuses: list[int] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    first_us: int = 0
    last_us: int = 0

    def note(self, seq: int, status: int, asked_us: int) -> None:
        """One more answer."""
        self.first_us = self.first_us or asked_us
        self.last_us = asked_us
        self.seqs.append(seq)
        self.statuses.append(status)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got: its status, the size of its body in bytes, and its headers."""

    status: int
    size: int
    headers: httpx.Headers


@dataclass(slots=True)
class Stage:
    """One act's part of the server.

    Attributes:
        base: URL below which channels are. name: the act's; its channels and clients begin with ``prefix``.
        requests: how many requests a client makes at most. rate: and how many per second.
    """

    base: str
    name: str
    prefix: str
    requests: int
    rate: float

    def channel(self, number: int = 0) -> str:
        """A channel of the act's own."""
        return f"{self.prefix}-{self.name}" + (f"-{number}" if number else "")

    def client(self, number: int = 0) -> str:
        """The name of a client of the act's own."""
        return f"{self.prefix}-{self.name}-client-{number}"

    @asynccontextmanager
    async def connected(self, client: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client that says who it is; its release is ``simulated-<act>/1``."""
        import httpx

        headers = {CLIENT: client, "User-Agent": f"simulated-{self.name}/1"}
        limits = httpx.Limits(max_connections=MAX_CROWD, max_keepalive_connections=MAX_CROWD)
        async with httpx.AsyncClient(headers=headers, timeout=ANSWER_S, limits=limits, trust_env=False) as session:
            yield session

    async def ask(self, session: httpx.AsyncClient, method: str, path: str, body: bytes | None = None) -> Answer:
        """One request below the base.

        Raises:
            ActImpossible: the server holds the request. ServerUnreachable: nobody answers there.
        """
        import httpx

        try:
            response = await session.request(method, f"{self.base}/{path}", content=body)
        except (httpx.ReadTimeout, httpx.PoolTimeout) as error:
            raise ActImpossible(f"the server does not answer {method} {path} within {ANSWER_S:g} s") from error
        except httpx.HTTPError as error:
            raise ServerUnreachable(f"{method} {self.base}/{path}: {error or type(error).__name__}") from error
        return Answer(response.status_code, len(response.content), response.headers)

    async def give_up(self, session: httpx.AsyncClient, path: str, after_s: float) -> None:
        """One GET that is not answered within so many seconds, and is broken off.

        Raises:
            ActImpossible: it is answered. ServerUnreachable: nobody is there.
        """
        import httpx

        limit = httpx.Timeout(ANSWER_S, read=after_s)
        try:
            # Only the head: what of the body came would have been given up with it.
            async with session.stream("GET", f"{self.base}/{path}", timeout=limit) as response:
                raise ActImpossible(f"GET {path} is answered {response.status_code} within {after_s:g} s")
        except httpx.ReadTimeout:
            return
        except httpx.HTTPError as error:
            raise ServerUnreachable(f"GET {self.base}/{path}: {error or type(error).__name__}") from error

    @asynccontextmanager
    async def published(self, segments: int, channel: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
        """A channel with so many segments, that ends with the block at the latest."""
        name = channel or self.channel()
        async with self.connected(f"{self.prefix}-publisher") as publisher:
            try:
                for seq in range(segments):
                    await self.ask(publisher, "POST", f"{name}/{seq}", SEGMENT)
                yield publisher
            finally:
                with anyio.CancelScope(shield=True):
                    await self.ask(publisher, "DELETE", name)

    async def loop(
        self,
        session: httpx.AsyncClient,
        loop: Loop,
        seqs: list[int],
        statuses: tuple[int, ...],
        *,
        method: str = "GET",
        rate: float | None = None,
    ) -> Loop:
        """Make these requests, as long as the answers are such, and pause equally long after each answer.

        Args:
            seqs: what to ask for, in order. statuses: what the act loops on; another answer ends it.
            rate: requests per second if answers take no time, if other than the act's.

        Raises:
            ActImpossible: the first answer is another.
        """
        pause = 1 / (rate or self.rate)
        for turn, seq in enumerate(seqs):
            if turn:
                # Whoever made up for the time that a server has held him back would not pause at all.
                await anyio.sleep(pause)
            asked_us = time.time_ns() // 1000
            path = f"{loop.channel}/{seq}"
            answer = await self.ask(session, method, path, SEGMENT if method == "POST" else None)
            if answer.status not in statuses:
                if not loop.statuses:
                    expected = " or ".join(map(str, statuses))
                    raise ActImpossible(f"{method} {path} is answered {answer.status}, not {expected}")
                break
            said = answer.headers.get(SEQ, "")
            loop.note(int(said) if said.isdecimal() else seq, answer.status, asked_us)
        return loop
