"""Readers that catch up take turns, however many they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from tricklecast.app.data_plane.scheduling import LEAST_BYTES, LOOP_BYTES, CatchingUp

TURN = LOOP_BYTES // 8


class Loop:
    """An event loop that goes round when it is told to."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.call_soon = self.due.append

    def turn(self) -> None:
        """Run what is due now, and not what that schedules."""
        for _ in range(len(self.due)):
            self.due.popleft()()


class Behind:
    """A reader that lacks so many turns, and rejoins the queue as long as it does."""

    def __init__(self, queue: CatchingUp, loop: Loop, turns: int, log: list[Behind], size: int = TURN) -> None:
        self.queued = False
        self.connection: Any = self
        self.loop = loop
        self._queue = queue
        self._turns = turns
        self._log = log
        self._size = size

    def take_turn(self) -> int:
        self._log.append(self)
        self._turns -= 1
        if self._turns > 0:
            self._queue.add(cast(Any, self))
        return self._size


def make(count: int, turns: int) -> tuple[CatchingUp, Loop, list[Behind], list[Behind]]:
    queue, loop, log = CatchingUp(), Loop(), cast(list[Behind], [])
    readers = [Behind(queue, loop, turns, log) for _ in range(count)]
    for reader in readers:
        queue.add(cast(Any, reader))
    return queue, loop, readers, log


def test_a_thousand_readers_that_resume_at_once_hold_nobody_up() -> None:
    """In each turn of the event loop only so much is written, whoever waits."""
    queue, loop, readers, log = make(1000, 3)
    before = 0
    while loop.due:
        assert len(loop.due) == 1
        loop.turn()
        assert len(log) - before == 8
        before = len(log)
    assert len(log) == 3000
    assert len(queue) == 0
    assert not any(reader.queued for reader in readers)


def test_turns_without_a_byte_hold_nobody_up_either() -> None:
    """However many readers are told of the end of a segment, others have their turn after some."""
    queue, loop, log = CatchingUp(), Loop(), cast(list[Behind], [])
    for _ in range(500):
        queue.add(cast(Any, Behind(queue, loop, 1, log, size=0)))
    loop.turn()
    assert len(log) == LOOP_BYTES // LEAST_BYTES
    while loop.due:
        loop.turn()
    assert len(log) == 500


def test_readers_take_turns_in_order() -> None:
    """None has its second turn before all have had their first."""
    _, loop, readers, log = make(20, 2)
    while loop.due:
        loop.turn()
    assert log == [*readers, *readers]


def test_a_reader_waits_for_one_turn_at_a_time() -> None:
    """Being told twice that it may write gives it no second place."""
    queue, loop, readers, log = make(1, 1)
    queue.add(cast(Any, readers[0]))
    assert len(queue) == 1
    loop.turn()
    assert (log, len(queue), list(loop.due)) == (readers, 0, [])


def test_the_queue_begins_anew_after_it_was_empty() -> None:
    """A reader that falls behind later is served, too."""
    queue, loop, readers, log = make(1, 1)
    loop.turn()
    queue.add(cast(Any, readers[0]))
    loop.turn()
    assert log == [*readers, *readers]
