"""Readers that are behind take turns, so that however many catch up at once, the others hardly wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tricklecast.app.data_plane.reader import Reader

LOOP_BYTES: Final = 1 << 20
"""What all of them together are written in one turn of the event loop: about half a millisecond."""

LEAST_BYTES: Final = LOOP_BYTES >> 6
"""What each counts for at least, since it takes its time whatever is written: that of 64 readers' ends."""


class CatchingUp:
    """A queue of readers that have something to be sent, be it only the end, and a connection that takes it."""

    __slots__ = ("_readers", "_scheduled")

    def __init__(self) -> None:
        self._readers: deque[Reader] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._readers)

    def __iter__(self) -> Iterator[Reader]:
        return iter(self._readers)

    def add(self, reader: Reader) -> None:
        """Let a reader have a turn, behind those that wait for theirs already."""
        if reader.queued:
            return
        reader.queued = True
        self._readers.append(reader)
        if not self._scheduled:
            self._scheduled = True
            reader.connection.loop.call_soon(self._run)

    def _run(self) -> None:
        room = LOOP_BYTES
        reader = None
        while self._readers and room > 0:
            reader = self._readers.popleft()
            reader.queued = False
            room -= max(LEAST_BYTES, reader.take_turn())
        self._scheduled = bool(self._readers)
        if reader is not None and self._scheduled:
            reader.connection.loop.call_soon(self._run)
