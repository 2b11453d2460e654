"""What uvicorn keeps for each connection, made small: an idle reader is to cost little."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Final


class LeanFlowControl:
    """Takes the place of uvicorn's flow control, with an event that is made when somebody waits for it.

    Most connections never write through FastAPI, and an ``asyncio.Event`` holds 0.6 kB of empty queue: a fifth of
    what an idle reader costs altogether.
    """

    __slots__ = ("_is_writable_event", "_transport", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False

    async def drain(self) -> None:
        """Wait until the transport takes more."""
        if self.write_paused:
            await self._is_writable_event.wait()

    def pause_reading(self) -> None:
        """Nothing more is to come in for now."""
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """More may come in."""
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The transport is full."""
        if not self.write_paused:
            self.write_paused = True
            self._is_writable_event = asyncio.Event()

    def resume_writing(self) -> None:
        """The transport takes more."""
        if self.write_paused:
            self.write_paused = False
            self._is_writable_event.set()


class LeanPipeline(list[Any]):
    """The few methods of a deque that uvicorn uses for pipelined requests; an empty deque holds 0.6 kB."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        """Add at the left end."""
        self.insert(0, item)


NOTHING: Final = LeanPipeline()
NO_FIELDS: Final[list[tuple[bytes, bytes]]] = []
"""What connections share that have nothing in line, and no header fields: these are never added to."""


@lru_cache(maxsize=64)
def shared(address: tuple[str, int | None] | None) -> tuple[str, int | None] | None:
    """The same address as an object that all connections share: there are few at which a server listens."""
    return address
