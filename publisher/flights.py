"""Segments between their entering and their fate, and how many of them there may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

import anyio

from tricklecast.publisher.verdicts import Receipt
from tricklecast.trickle.errors import LocalProtocolError, TrickleError

if TYPE_CHECKING:
    from tricklecast.publisher.post import Post


class WhenFull(StrEnum):
    """What happens when a segment is entered and as many as allowed are in flight."""

    DROP = "drop"
    """The oldest is given up: for live media, of which the newest counts."""

    WAIT = "wait"
    """It is waited for: for files, of which everything counts."""


class Flight:
    """One segment as its writer sees it.

    Attributes:
        post: the request that carries it; ``None`` until there is something to be sent.
        done: set when its fate is known.
        fate: its receipt, or why there is none.
    """

    def __init__(self) -> None:
        self.post: Post | None = None
        self.done = anyio.Event()
        self.fate: Receipt | TrickleError | None = None
        self._entered_at = anyio.current_time()
        self._first_byte_s: float | None = None

    @property
    def handed(self) -> int:
        """Bytes that its writer has handed over."""
        return 0 if self.post is None else self.post.body.handed

    @property
    def begun_as(self) -> int | None:
        """The seq under which some of it was handed to a connection; until then, another segment may get its number."""
        return self.post.ticket.seq if self.post is not None and self.post.touched else None

    def begun(self) -> None:
        """Its first chunk was handed to a connection."""
        self._first_byte_s = anyio.current_time() - self._entered_at

    def settle(self, fate: Receipt | TrickleError) -> bool:
        """Its fate is known; ``False`` if it was known before."""
        if self.fate is not None:
            return False
        if isinstance(fate, Receipt):
            first_byte_s = self._first_byte_s if fate.sent else None
            fate = replace(fate, first_byte_s=first_byte_s, answered_s=anyio.current_time() - self._entered_at)
        self.fate = fate
        self.done.set()
        return True

    def receipt(self) -> Receipt:
        """What the server said about the segment.

        Raises:
            TrickleError: it failed, or was cut off or dropped here.
            LocalProtocolError: its fate is not known yet.
        """
        match self.fate:
            case Receipt():
                return self.fate
            case None:
                raise LocalProtocolError("the segment is not over yet")
            case _:
                raise self.fate


class Flights:
    """Those whose fate is not known, the oldest first.

    Args:
        limit: how many there may be.
        when_full: what happens when there is one more.
        drop: gives one up; it must be settled when this returns.
    """

    def __init__(self, limit: int, when_full: WhenFull, drop: Callable[[Flight], None]) -> None:
        self._limit = limit
        self._when_full = when_full
        self._drop = drop
        self._flights: list[Flight] = []
        self._changed = anyio.Event()

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._flights))

    @property
    def sending(self) -> bool:
        """Whether there is something to send for one of them."""
        return any(flight.post is not None for flight in self._flights)

    async def enter(self, check: Callable[[], None]) -> Flight:
        """One more, once there is room for it.

        Args:
            check: raises if there must not be one; asked again after each wait.
        """
        check()
        while len(self._flights) >= self._limit:
            match self._when_full:
                case WhenFull.DROP:
                    self._drop(self._flights[0])
                case WhenFull.WAIT:
                    await self._changed.wait()
                    check()
                case _:
                    assert_never(self._when_full)
        flight = Flight()
        self._flights.append(flight)
        return flight

    def leave(self, flight: Flight) -> None:
        """The fate of one of them is known."""
        if flight in self._flights:
            self._flights.remove(flight)
            self.notify()

    async def empty(self) -> None:
        """Wait until the fate of all is known."""
        while self._flights:
            await self._changed.wait()

    async def changed(self) -> None:
        """Wait for the next change, of whatever kind."""
        await self._changed.wait()

    def notify(self) -> None:
        """Something has changed: wake whoever waits for it."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
