"""What is iterated over once: inside ``async with``, or by ``async for`` alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from enum import Enum
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from tricklecast.trickle.errors import ClosedHere, LocalProtocolError

T = TypeVar("T")


_IN_LOOPS: Final[set[SingleUse[Any]]] = set()
"""What is open by a loop alone. It is held here, since the garbage collector may find an iterator that was dropped
along with all that hangs on it, and would then take sockets apart before they can be closed."""


class _Use(Enum):
    NEW = "new"
    BLOCK = "inside async with"
    LOOP = "by async for alone"
    OVER = "over"


class SingleUse(ABC, Generic[T]):
    """Opened and closed by a block, or by the loop itself.

    ::

        async for item in thing:          # closed with the loop
            ...

        async with thing:                 # closed with the block
            async for item in thing:
                ...

    The loop alone closes also if it is left early, by whatever: its iterator is an async generator, which asyncio
    closes when it is dropped, in a task of its own and so a moment later. Whoever needs to know that everything is
    closed, or wants to iterate in several places, uses the block.
    """

    def __init__(self) -> None:
        self._use = _Use.NEW

    async def __aenter__(self) -> Self:
        await self._begin(_Use.BLOCK)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    def __aiter__(self) -> AsyncIterator[T]:
        # Nothing may hold the generator but the loop: its end is how the loop's end is noticed.
        return self if self._use is _Use.BLOCK else self._alone()

    @abstractmethod
    async def __anext__(self) -> T: ...

    @abstractmethod
    async def _open(self) -> None:
        """Take what is needed. No cancel scope may stay open: :meth:`_close` may come from another task."""

    @abstractmethod
    async def _close(self) -> None:
        """Give everything back, also while being cancelled."""

    def _demand_open(self) -> None:
        """Raise ``ClosedHere`` before and after the use."""
        if self._use not in (_Use.BLOCK, _Use.LOOP):
            raise ClosedHere(f"use 'async for' over, or 'async with' around, a new {type(self).__name__}")

    async def _begin(self, use: _Use) -> None:
        if self._use is not _Use.NEW:
            raise LocalProtocolError(f"a {type(self).__name__} is used once: make another one to begin again")
        self._use = use
        await self._open()

    async def _end(self) -> None:
        self._use = _Use.OVER
        await self._close()

    async def _alone(self) -> AsyncIterator[T]:
        await self._begin(_Use.LOOP)
        _IN_LOOPS.add(self)
        try:
            while True:
                try:
                    item = await anext(self)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            _IN_LOOPS.discard(self)
            await self._end()
