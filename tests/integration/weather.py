"""A TCP proxy with bad weather: every connection may be reset, cut, held up or dribbled, as a seed has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final

from tests.support.resets import reset
from tests.support.streams import serve_streams


class Fault(Enum):
    """What happens to a connection."""

    REFUSED = "refused"
    """It is reset as soon as it is there."""

    RESET = "reset"
    """It is reset behind a byte, in one of its directions."""

    ENDED = "ended"
    """One direction ends behind a byte as if that were all."""

    STALLED = "stalled"
    """One direction stands still for a while, behind a byte."""

    DRIBBLED = "dribbled"
    """One direction goes byte by byte for a while."""


Fate = tuple[Fault, int] | None
"""A fault, and behind how many bytes of one direction; ``None``: there is none."""

LIKELY: Final = 0.7
"""How likely a fault is while there are some left."""

UPWARDS: Final = (0, 1, 40, 300, 350, 420, 800, 5000, 30_000)
DOWNWARDS: Final = (0, 1, 20, 60, 100, 150, 400, 5000)
"""Behind which byte it happens, more or less: in heads, in chunk sizes, in chunks, in later ones."""

GONE: Final = (OSError, RuntimeError)
"""The errors of a write to an end that is gone: uvloop raises RuntimeError if it has noticed that before."""

STALL_S: Final = 0.3
DRIBBLED_BYTES: Final = 300


@dataclass
class Weather:
    """A proxy to a server on this machine.

    Attributes:
        rng: decides.
        upstream: the server's port.
        faults: how many there will be; the weather is fine after that.
        closed: nobody gets through, and nobody new gets in.
        port: where it listens.
        connections: how many there were.
    """

    rng: Random
    upstream: int
    faults: int
    closed: bool = False
    port: int = 0
    connections: int = 0
    _ends: set[asyncio.StreamWriter] = field(default_factory=set)

    def url(self, channel: str) -> str:
        """A channel of the server, through the proxy."""
        return f"http://127.0.0.1:{self.port}/trickle/{channel}"

    def strike(self) -> None:
        """Reset all connections at once."""
        for end in list(self._ends):
            reset(end)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on, as far as its fault lets it."""
        self.connections += 1
        up: Fate = None
        down: Fate = None
        if self.faults > 0 and self.rng.random() < LIKELY:
            self.faults -= 1
            fault = self.rng.choice(list(Fault))
            if self.rng.random() < 0.5:
                up = fault, self.rng.choice(UPWARDS) + self.rng.randrange(30)
            else:
                down = fault, self.rng.choice(DOWNWARDS) + self.rng.randrange(30)
        self._ends.add(writer)
        try:
            if not self.closed and Fault.REFUSED not in (up or down or ()):
                await self._pass_on(reader, writer, up, down)
        except GONE:
            pass  # one end is gone, and so must be the other
        finally:
            self._ends.discard(writer)
            reset(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: Fate, down: Fate) -> None:
        source, target = await asyncio.open_connection("127.0.0.1", self.upstream)
        self._ends.add(target)
        pipes = [asyncio.ensure_future(_pipe(reader, target, up)), asyncio.ensure_future(_pipe(source, writer, down))]
        try:
            await asyncio.gather(*pipes)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            self._ends.discard(target)
            reset(target)


async def _pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter, fate: Fate) -> None:
    """Copy one direction; what happens to it happens once."""
    fault, left = fate or (None, 0)
    while data := await source.read(65536):
        if fault is not None and len(data) > left:
            target.write(data[:left])
            await target.drain()
            data = await _befall(fault, data[left:], target)
            fault = None
        left -= len(data)
        target.write(data)
        await target.drain()
    with contextlib.suppress(*GONE):
        target.write_eof()


async def _befall(fault: Fault, data: bytes, target: asyncio.StreamWriter) -> bytes:
    """Let a fault happen; returns what is then to be passed on of the data.

    Raises:
        ConnectionResetError: nothing is, ever.
    """
    match fault:
        case Fault.STALLED:
            await asyncio.sleep(STALL_S)
        case Fault.DRIBBLED:
            for at in range(min(DRIBBLED_BYTES, len(data))):
                target.write(data[at : at + 1])
                await target.drain()
                await asyncio.sleep(0)
            data = data[DRIBBLED_BYTES:]
        case Fault.ENDED:
            target.write_eof()
            await asyncio.sleep(STALL_S)
            raise ConnectionResetError
        case _:
            raise ConnectionResetError
    return data


@contextlib.asynccontextmanager
async def weather(seed: str, upstream: int, faults: int) -> AsyncIterator[Weather]:
    """Run a proxy until the block ends.

    Args:
        seed: decides what happens, together with the order of the connections.
        upstream: the server's port.
        faults: how many there will be.
    """
    made = Weather(Random(seed), upstream, faults)
    server = await serve_streams(made.serve)
    made.port = server.port
    try:
        yield made
    finally:
        await server.close()
        made.strike()
        await asyncio.gather(*server.serving, return_exceptions=True)
