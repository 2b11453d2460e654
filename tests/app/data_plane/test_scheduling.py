"""Turns and deadlines: the event loop and the clock go on when a test says so."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from math import ceil
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.compiled import needs_interpreter
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.slow_readers import PACE_BYTES, Cut
from tricklecast.app.data_plane import deadlines, scheduling
from tricklecast.app.data_plane.deadlines import HALF_CLOSED, SlowPeers, Timeouts, due, gone
from tricklecast.app.data_plane.scheduling import (
    CHANNEL,
    COST,
    EXPECTED_TURNS,
    HOLD_S,
    LONGEST_REST_S,
    REST_FACTOR,
    TURN,
    WRITE_S,
    Peer,
    SlowReader,
    Turns,
)

COST_S = 2**-12
PER_TURN = ceil(WRITE_S / COST_S)
"""The cost of a reader's turn, and the number of turns that fit into one turn of the loop."""


class Loop:
    """An event loop that goes round when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: deque[Callable[[], None]] = deque()
        self.later: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []
        self.call_soon = self.soon.append

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: object) -> None:
        self.later.append((delay_s, callback, arguments))

    def turn(self, turns: int = 1) -> None:
        """Run the callbacks that are due now, and not those that they schedule."""
        for _ in range(turns):
            for _ in range(len(self.soon)):
                self.soon.popleft()()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """The loop and the clock of the schedulers."""
    needs_interpreter()
    loop = Loop()
    monkeypatch.setattr(scheduling, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    monkeypatch.setattr(scheduling, "perf_counter", lambda: loop.now)
    return loop


class Reader:
    """A reader that lacks so many turns, each of which costs the same, and queues again as long as it does."""

    def __init__(
        self,
        turns: Turns,
        loop: Loop,
        log: list[Reader],
        *,
        lacks: int = 1,
        channel: object = "c",
        cost_s: float = COST_S,
    ) -> None:
        self.queued = False
        self.channel = channel
        self.faults: list[Exception] = []
        self.error: Exception | None = None
        self.lacks = lacks
        self._turns, self._loop, self._log, self._cost_s = turns, loop, log, cost_s

    def take_turn(self) -> None:
        self._log.append(self)
        self._loop.now += self._cost_s
        if self.error is not None:
            raise self.error
        self.lacks -= 1
        if self.lacks > 0:
            self._turns.add_reader(cast(SlowReader, self))

    def failed(self, error: Exception) -> None:
        self.faults.append(error)


class Line:
    """A connection that notes why it is not read from."""

    def __init__(self) -> None:
        self.pauses = 0

    def pause(self, reason: int) -> None:
        self.pauses |= reason

    def resume(self, reason: int) -> None:
        self.pauses &= ~reason


def readers(turns: Turns, loop: Loop, count: int, **fields: Any) -> tuple[list[Reader], list[Reader]]:
    """Make queued readers, and record the order of their turns."""
    log: list[Reader] = []
    made = [Reader(turns, loop, log, **fields) for _ in range(count)]
    for reader in made:
        turns.add_reader(cast(SlowReader, reader))
    return made, log


def unexpected(what: str, error: Exception) -> None:
    """A fault that no test means."""
    raise AssertionError(what) from error


def peer(line: Line) -> Peer:
    return cast(Peer, line)


# Writing.


def test_a_thousand_readers_that_are_behind_do_not_take_the_loop(loop: Loop) -> None:
    """One turn of the loop serves readers for WRITE_S; each has its turn before any has its second."""
    turns = Turns(unexpected)
    made, log = readers(turns, loop, 1000, lacks=3)
    while loop.soon:
        before = len(log)
        loop.turn()
        assert len(log) - before <= PER_TURN
    assert [log[:1000], log[1000:2000], log[2000:]] == [made] * 3
    assert not list(turns)


def test_a_reader_waits_for_one_turn_at_a_time(loop: Loop) -> None:
    """A reader that queues twice has one place in the queue."""
    turns = Turns(unexpected)
    (reader,), log = readers(turns, loop, 1)
    turns.add_reader(cast(SlowReader, reader))
    assert [cast(object, queued) for queued in turns] == [reader]
    loop.turn()
    assert (log, list(turns), list(loop.soon)) == ([reader], [], [])


def test_the_queue_begins_anew_after_it_was_empty(loop: Loop) -> None:
    """A reader that falls behind later is served, too."""
    turns = Turns(unexpected)
    (reader,), log = readers(turns, loop, 1)
    loop.turn()
    turns.add_reader(cast(SlowReader, reader))
    loop.turn()
    assert log == [reader, reader]


def test_the_end_of_a_segment_waits_for_bytes(loop: Loop) -> None:
    """A reader that lacks only the end is served after those that lack bytes, and holds no publisher."""
    turns = Turns(unexpected)
    log: list[Reader] = []
    end, behind = (Reader(turns, loop, log, channel=name) for name in "ab")
    for _ in range(2):
        turns.add_end(cast(SlowReader, end))
    turns.add_reader(cast(SlowReader, behind))
    assert list(turns.flows) == ["b"]
    loop.turn()
    assert log == [behind, end]


def test_a_reader_whose_turn_raises_costs_only_itself(loop: Loop) -> None:
    """The reader is told of its fault; the others have their turns, and the channel's publishers are released."""
    turns, line = Turns(unexpected), Line()
    (first, faulty, last), log = readers(turns, loop, 3)
    faulty.error = ZeroDivisionError()
    turns.flows["c"].hold(peer(line))
    loop.turn()
    assert log == [first, faulty, last]
    assert faulty.faults == [faulty.error]
    assert not first.faults
    assert (line.pauses, turns.flows, list(loop.soon)) == (0, {}, [])


@pytest.mark.parametrize("queue", [Turns.add_reader, Turns.add_end])
def test_a_reader_that_cannot_be_told_of_its_fault_costs_only_itself(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, queue: Callable[[Turns, SlowReader], None]
) -> None:
    """Both faults are kept from the other readers, and the publishers are released."""
    faults: list[tuple[str, Exception]] = []
    turns, line, log = Turns(lambda *fault: faults.append(fault)), Line(), list[Reader]()
    faulty, last = Reader(turns, loop, log), Reader(turns, loop, log, lacks=2)
    faulty.error, again = ZeroDivisionError(), RuntimeError()

    def failed(error: Exception) -> None:
        raise again

    monkeypatch.setattr(faulty, "failed", failed)
    for reader in (faulty, last):
        queue(turns, cast(SlowReader, reader))
    turns.had_turn(peer(line))
    turns.expect_request("c")
    turns.flows["c"].hold(peer(line))
    loop.turn(EXPECTED_TURNS)
    assert log == [faulty, last, last]
    assert faults == [("while a reader was told of a fault", again)]
    assert (line.pauses, turns.flows, list(loop.soon)) == (0, {}, [])


# Reading.


def test_a_connection_that_cannot_be_read_again_costs_only_itself(loop: Loop) -> None:
    """Those that had their turn with it are read again."""
    faults: list[tuple[str, Exception]] = []
    turns, line, broken = Turns(lambda *fault: faults.append(fault)), Line(), Line()
    error = RuntimeError()

    def resume(reason: int) -> None:
        raise error

    broken.resume = resume  # type: ignore[method-assign]
    for each in (broken, line):
        turns.had_turn(peer(each))
    loop.turn()
    assert (line.pauses, list(loop.soon)) == (0, [])
    assert faults == [("while a connection was read again", error)]


def test_a_connection_that_had_its_turn_is_read_in_the_next_one(loop: Loop) -> None:
    """It is paused until the readers that are behind have been served once."""
    turns, line = Turns(unexpected), Line()
    (reader,), _ = readers(turns, loop, 1)
    turns.had_turn(peer(line))
    assert line.pauses == TURN
    loop.turn()
    assert (line.pauses, reader.lacks) == (0, 0)


@pytest.mark.parametrize(
    ("cost_s", "rest_s"), [(0.002, REST_FACTOR * 0.002), (1.0, LONGEST_REST_S)], ids=["dear", "very dear"]
)
def test_a_dear_connection_rests_for_a_multiple_of_its_cost(loop: Loop, cost_s: float, rest_s: float) -> None:
    """The rest has a limit, and ends only the pause for this reason."""
    turns, line = Turns(unexpected), Line()
    turns.had_turn(peer(line))
    turns.was_dear(peer(line), cost_s)
    ((delay_s, callback, arguments),) = loop.later
    assert (delay_s, line.pauses) == (rest_s, TURN | COST)
    callback(*arguments)
    assert line.pauses == TURN


# Publishers and their readers.


def test_a_publisher_is_held_while_its_readers_wait(loop: Loop) -> None:
    """It is released when all of them are served, and another channel's publisher is not held at all."""
    turns, line = Turns(unexpected), Line()
    readers(turns, loop, PER_TURN + 1)
    turns.flows["c"].hold(peer(line))
    turns.flows["c"].hold(peer(line))
    assert "other" not in turns.flows
    loop.turn()
    assert line.pauses == CHANNEL, "the last reader waits for the next turn"
    loop.turn()
    assert (line.pauses, turns.flows) == (0, {})


def test_a_publisher_is_held_for_a_limited_time(loop: Loop) -> None:
    """A reader that is never done delays its publishers by HOLD_S at a stretch; then they are read once."""
    turns, line, other = Turns(unexpected), Line(), Line()
    (reader,), _ = readers(turns, loop, 1, lacks=10**6)
    for _ in range(3):
        since = loop.now
        for held in (line, other):
            turns.flows["c"].hold(peer(held))
        while line.pauses:
            assert loop.now - since < HOLD_S
            loop.turn()
        assert loop.now - since >= HOLD_S - COST_S
        assert (other.pauses, reader.queued) == (0, True)


def test_the_next_request_of_a_reader_is_waited_for(loop: Loop) -> None:
    """The publishers of its channel are held for EXPECTED_TURNS, though nothing else goes on."""
    turns, line = Turns(unexpected), Line()
    turns.expect_request("c")
    turns.flows["c"].hold(peer(line))
    loop.turn(EXPECTED_TURNS - 1)
    assert line.pauses == CHANNEL
    loop.turn()
    assert (line.pauses, turns.flows, list(loop.soon)) == (0, {}, [])


def test_a_request_that_came_is_not_waited_for(loop: Loop) -> None:
    """The publishers are released in the next turn; where nothing is expected, a request changes nothing."""
    turns, line = Turns(unexpected), Line()
    turns.request_came("c")
    turns.expect_request("c")
    turns.flows["c"].hold(peer(line))
    turns.request_came("c")
    loop.turn()
    assert (line.pauses, turns.flows) == (0, {})


# Deadlines.


class Timed:
    """A connection, or a preconnect, that notes what becomes of it."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def close(self) -> None:
        self.log.append("closed")

    def too_slow(self) -> None:
        self.log.append("too slow")

    def let_go(self) -> None:
        self.log.append("let go")


def test_the_first_of_a_dict_are_due() -> None:
    """Times at and before now are due, in their order."""
    assert due({"a": 1.0, "b": 2.0, "c": 2.5}, 2.0) == ["a", "b"]


def test_each_state_of_a_connection_has_its_end() -> None:
    """A connection that rests is closed, one that owes a request is answered, a half-closed one is let go."""
    timeouts = Timeouts(rest_s=75, owed_s=10, half_closed_s=5)
    resting, owing, half_closed, kept = (Timed() for _ in range(4))
    timeouts.resting[cast(Any, resting)] = 2.0
    timeouts.resting[cast(Any, kept)] = 3.0
    timeouts.owing[cast(Any, owing)] = 2.0
    timeouts.closed_half(cast(Any, half_closed), -3.0)
    timeouts.closed_half(cast(Any, half_closed), 0.0)
    timeouts.expire(1.9)
    assert (resting.log, owing.log, half_closed.log) == ([], [], [])
    timeouts.expire(2.0)
    assert (resting.log, owing.log, half_closed.log) == (["closed"], ["too slow"], ["let go"])
    assert list(timeouts.resting) == [cast(Any, kept)]
    assert not timeouts.owing
    assert timeouts.half_closed == {cast(Any, half_closed): 7.0}, "in case that it has been sent something already"


@pytest.mark.interpreted
def test_half_closed_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the limit, and the one that has waited longest is let go."""
    monkeypatch.setattr(deadlines, "MAX_HALF_CLOSED", 2)
    timeouts = Timeouts(rest_s=75, owed_s=10)
    first, second, third = (Timed() for _ in range(3))
    for number, connection in enumerate((first, second, third)):
        timeouts.closed_half(cast(Any, connection), float(number))
    assert (first.log, second.log, third.log) == (["let go"], [], [])


def test_a_connection_that_is_gone_is_forgotten() -> None:
    """No time of its ends anything any more."""
    timeouts, connection = Timeouts(rest_s=75, owed_s=10), Timed()
    timeouts.resting[cast(Any, connection)] = timeouts.owing[cast(Any, connection)] = 1.0
    timeouts.half_closed[cast(Any, connection)] = 1.0
    timeouts.forget(cast(Any, connection))
    timeouts.expire(2.0)
    assert connection.log == []


# Slow peers.

LAG_S, LAG_BYTES = 10.0, 1000


class Stalled:
    """A connection whose peer has not taken all, with or without a reader on it."""

    def __init__(self, unsent: int, segment: Segment | None = None, has: int = 0) -> None:
        self.left = unsent
        self.segment = segment
        self.have = has
        self.cut: Cut | None = None

    def unsent(self) -> int:
        return self.left

    def reader(self) -> Stalled | None:
        return None if self.segment is None else self

    def lag(self) -> int:
        assert self.segment is not None
        return self.segment.size - self.have

    def has(self) -> int:
        return self.have

    def cut_off(self, why: Cut) -> None:
        self.cut = why


class Peers:
    """Slow peers, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slow = SlowPeers(lambda: self.now, lag_bytes=LAG_BYTES, lag_s=LAG_S)

    def stall(self, peer: Stalled) -> Stalled:
        self.slow.stall(cast(Peer, peer))
        return peer

    def at(self, now: float) -> None:
        self.now = now
        self.slow.expire(now, ())


def segment(size: int) -> Segment:
    """A segment of one frame."""
    made = Segment(0)
    made.store(bytes(size), size)
    return made


def test_a_peer_that_takes_nothing_stands_still() -> None:
    """It is cut off when the time is over, and not if it keeps the pace or has taken all meanwhile."""
    peers = Peers()
    still, slow, done = (peers.stall(Stalled(3 * PACE_BYTES)) for _ in range(3))
    peers.slow.flowing(cast(Peer, done))
    peers.at(LAG_S - 1)
    slow.left -= PACE_BYTES
    peers.at(LAG_S - 1)
    still.left -= PACE_BYTES - 1
    peers.at(LAG_S)
    assert (still.cut, slow.cut, done.cut) == (Cut.STILL, None, None)
    assert peers.slow.cut_offs[Cut.STILL] == 1


@pytest.mark.parametrize(("beyond", "cut"), [(-1, None), (0, None), (1, Cut.BYTES)])
def test_the_lag_in_bytes_ends_at_its_limit(beyond: int, cut: Cut | None) -> None:
    """A reader may lack LAG_BYTES of what was published while it was there, and not one byte more."""
    peers = Peers()
    reader = peers.stall(Stalled(1, segment(LAG_BYTES + beyond)))
    peers.at(0)
    assert reader.cut is cut


def test_a_reader_may_not_lack_old_bytes() -> None:
    """A reader that takes something all the time, and lacks bytes of LAG_S ago, is cut off; one that has them stays."""
    peers, read = Peers(), segment(LAG_BYTES)
    late, prompt = (peers.stall(Stalled(9 * PACE_BYTES, read, has=has)) for has in (LAG_BYTES - 1, LAG_BYTES))
    peers.at(0)
    read.store(b"x", 1)
    for reader in (late, prompt):
        reader.left -= PACE_BYTES
    peers.at(LAG_S / 2)
    assert peers.slow.lag_s(cast(SlowReader, late)) == LAG_S / 2
    for reader in (late, prompt):
        reader.left -= PACE_BYTES
    peers.at(LAG_S)
    assert (late.cut, prompt.cut) == (Cut.AGE, None)


def test_a_reader_that_waits_for_its_turn_is_followed() -> None:
    """How old the bytes are that it lacks is known as well, though its socket takes data."""
    peers = Peers()
    queued = cast(SlowReader, Stalled(0, segment(5)))
    peers.slow.expire(0, [queued])
    peers.now = 3.0
    assert peers.slow.lag_s(queued) == 3.0


# Peers that are not read from.


class Wired:
    """A connection with a socket of its own."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.fileno = self.ours.fileno

    def __enter__(self) -> Wired:
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.close()
        self.theirs.close()


def half_close(sock: socket.socket) -> None:
    """Send no more, and listen."""
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [socket.socket.close, half_close])
def test_a_peer_that_has_gone_is_seen_without_reading(leave: Callable[[socket.socket], None]) -> None:
    """A peer that has closed, also by half, is found though its input was not read; a closed socket is passed over.

    Without asking for that event, a peer that has closed by half is not.
    """
    with Wired() as stays, Wired() as left, Wired() as closed:
        left.theirs.sendall(b"unread")
        leave(left.theirs)
        closed.ours.close()
        assert gone(cast(Any, [stays, left, closed]), HALF_CLOSED) == [cast(Any, left)]
        assert gone(cast(Any, [stays, left, closed])) == [cast(Any, left)] * (leave is not half_close)
    assert gone([]) == []
