"""The storm guard's rule: who owes what, and how long it is held for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.core.crowd import CROWD
from tricklecast.app.core.guard import (
    CLIENTS,
    DOUBLED,
    FIRST_HOLD_S,
    FORGOTTEN_S,
    FREE,
    FRUITLESS,
    LONGEST_HOLD_S,
    Answer,
    Guard,
)
from tricklecast.app.core.limits import Limits

LOOPS = [*Answer]
ABOUT_A_SEQ = [answer for answer in Answer if answer not in FRUITLESS]


MANY = [False, True]
"""Whether who asks has a name, and so is one client, or may be many behind one address."""


def loop(
    guard: Guard, answer: Answer, count: int, *, now: float = 0.0, pause_s: float = 0.0, many: bool = False
) -> list[float]:
    """The holds of a client that repeats one request, each time so long after the answer.

    Args:
        many: it has no name, and makes a new connection for each request.
    """
    holds = []
    for number in range(count):
        holds.append(guard.hold(1, "c", 7, answer, now, connection=number if many else None))
        guard.left(number)
        now += holds[-1] + pause_s
    return holds


def free(many: bool) -> int:
    """So many answers are free."""
    return CROWD if many else FREE


@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("answer", LOOPS)
def test_the_first_few_are_free(answer: Answer, many: bool) -> None:
    """Up to the limit nothing is held; the next one is, shortly."""
    holds = loop(Guard(), answer, free(many) + 1, many=many)
    assert holds == [0.0] * free(many) + [FIRST_HOLD_S]


@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("answer", LOOPS)
def test_the_hold_doubles_up_to_a_second(answer: Answer, many: bool) -> None:
    """A client without a pause of its own ends at one request a second, and never below."""
    holds = loop(Guard(), answer, free(many) + 60, many=many)[free(many) :]
    assert all(earlier <= later + 1e-9 for earlier, later in pairwise(holds))
    # While it is held, it pays back a little: nearly doubled.
    assert holds[1] == pytest.approx(2 * FIRST_HOLD_S, rel=0.05)
    assert holds[-1] == pytest.approx(LONGEST_HOLD_S)
    assert max(holds) <= LONGEST_HOLD_S
    assert sum(holds) > 50


@pytest.mark.parametrize(
    ("pause_s", "held"), [(LONGEST_HOLD_S - 0.01, True), (LONGEST_HOLD_S, False), (LONGEST_HOLD_S + 0.01, False)]
)
@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("answer", LOOPS)
def test_once_a_second_is_never_held(answer: Answer, many: bool, pause_s: float, held: bool) -> None:
    """The least Retry-After is a second: whoever waits so long owes nothing; slightly less adds up in the end."""
    assert any(loop(Guard(), answer, 100 * free(many) + 100, pause_s=pause_s, many=many)) is held


@given(st.lists(st.tuples(st.floats(1.0, 5.0), st.sampled_from(Answer), st.integers(0, 3)), max_size=60))
def test_a_client_that_waits_as_told_is_never_held(asked: list[tuple[float, Answer, int]]) -> None:
    """Whatever it is answered, with a second or more in between."""
    guard, now = Guard(), 0.0
    for pause_s, answer, seq in asked:
        now += pause_s
        assert guard.hold(1, "c", seq, answer, now) == 0.0


class Reader:
    """A healthy reader: forward, from somewhere to somewhere, each segment once or a few times."""

    def __init__(self, first: int, count: int, times: int) -> None:
        self.times = times
        self.todo = [seq for seq in range(first, first + count) for _ in range(times)]


READERS = st.lists(st.builds(Reader, st.integers(0, 9), st.integers(1, 12), st.integers(1, 3)), min_size=1)


def interleaved(readers: list[Reader], data: st.DataObject) -> Iterator[int]:
    """Their requests in any order, each reader's in its own."""
    turns = [one for one in readers for _ in one.todo]
    for reader in data.draw(st.permutations(turns)):
        yield reader.todo.pop(0)


@given(READERS, st.sampled_from([Answer.SAME, Answer.EMPTY, Answer.GONE]), st.data())
def test_healthy_readers_behind_one_address_are_never_held(
    readers: list[Reader], answer: Answer, data: st.DataObject
) -> None:
    """Without names, with a new connection for each request, all in one moment, in any order, reading twice or more."""
    while sum(reader.times for reader in readers) > CROWD:
        readers.pop()
    guard = Guard()
    connections = count()
    holds = [guard.hold(1, "c", seq, answer, 0.0, connection=next(connections)) for seq in interleaved(readers, data)]
    assert not any(holds)


@given(READERS, st.integers(0, 20), st.integers(0, 5), st.data())
def test_a_loop_among_healthy_readers_is_held(
    readers: list[Reader], at: int, repeats: int, data: st.DataObject
) -> None:
    """After no more requests than would be free if it were alone, and one for each that the others make meanwhile."""
    guard = Guard()
    connections = count()

    def read(seq: int) -> float:
        return guard.hold(1, "c", seq, Answer.SAME, 0.0, connection=next(connections))

    others, loops = 0, 0
    for seq in interleaved(readers, data):
        others += 1
        read(seq)
        for _ in range(repeats):
            loops += 1
            if read(at):
                assert loops <= CROWD + others + 1
                return
    while not read(at):
        loops += 1
        assert loops <= CROWD + others + 1


@st.composite
def polite(draw: st.DrawFn) -> list[tuple[float, int]]:
    """When each of a crowd asks, on a connection of its own that stays: none sooner than a second after its answer."""
    asked = []
    for connection in range(draw(st.integers(1, CROWD))):
        now = draw(st.floats(0.0, 3.0))
        for pause_s in draw(st.lists(st.floats(1.0, 3.0), max_size=6)):
            asked.append((now, connection))
            now += pause_s
    return sorted(asked)


@given(polite(), st.sampled_from(sorted(FRUITLESS, key=str)))
def test_a_crowd_that_waits_as_told_is_never_held(asked: list[tuple[float, int]], answer: Answer) -> None:
    """Behind one address, without names, all for the same missing channel; also when some leave on the way."""
    guard = Guard()
    last = {connection: now for now, connection in asked}
    for now, connection in asked:
        assert guard.hold(1, "c", 0, answer, now, connection=connection) == 0.0
        if last[connection] == now:
            guard.left(connection)
    assert guard.connections == 0


@pytest.mark.parametrize(("clients", "held"), [(CROWD - 1, False), (CROWD, False), (CROWD + 1, True)])
@pytest.mark.parametrize("stay", [True, False])
def test_a_crowd_that_asks_once(clients: int, held: bool, stay: bool) -> None:
    """One below and at the limit nobody is held, whether the connections stay or not; one above, the last is."""
    guard = Guard()
    holds = []
    for connection in range(clients):
        holds.append(guard.hold(1, "c", 0, Answer.MISSING, 0.0, connection=connection))
        if not stay:
            guard.left(connection)
    assert holds[:CROWD] == [0.0] * min(clients, CROWD)
    assert any(holds) is held


def test_a_loop_over_one_connection_is_one_client() -> None:
    """A name is not needed to see that: it is held as soon as one with a name, but for its first request."""
    guard = Guard()
    holds = [guard.hold(1, "c", 0, Answer.MISSING, 0.0, connection=1) for _ in range(FREE + 2)]
    assert holds == [0.0] * (FREE + 1) + [FIRST_HOLD_S]
    assert guard.hold(1, "c", 0, Answer.MISSING, 0.0, connection=2) == 0.0, "who else comes is another client"


@pytest.mark.parametrize("loops", [1, 5, CROWD, 4 * CROWD])
def test_each_of_several_loops_ends_at_one_request_a_second(loops: int) -> None:
    """Together they are paid back no more than that: 64 connections are as good as 64 names, and more are no better."""
    guard = Guard()
    due = [(0.0, connection) for connection in range(loops)]
    asked = 0
    while due[0][0] < 40.0:
        now, connection = heappop(due)
        asked += now >= 20.0
        heappush(due, (now + guard.hold(1, "c", 0, Answer.MISSING, now, connection=connection), connection))
    assert asked == pytest.approx(20 * loops, rel=0.05)


def test_a_connection_counts_where_it_asked_last() -> None:
    """Over one connection of a proxy many clients ask, one after the other; each client has its own account."""
    guard = Guard()
    for client in (1, 2, 1):
        assert guard.hold(client, "c", 0, Answer.MISSING, 0.0, connection=1) == 0.0
    assert guard.connections == 1
    holds = [guard.hold(1, "c", 0, Answer.MISSING, 0.0, connection=1) for _ in range(FREE + 1)]
    assert holds == [0.0] * FREE + [FIRST_HOLD_S], "two that had come in all would have paid half for each"


@given(
    st.lists(
        st.tuples(st.floats(0.0, 3.0), st.sampled_from(Answer), st.integers(0, 9), st.integers(0, 3), st.booleans()),
        max_size=200,
    )
)
def test_no_hold_is_longer_than_a_second(asked: list[tuple[float, Answer, int, int, bool]]) -> None:
    """Many clients, kinds and seqs, served in between or not: each hold is 0, or from 10 ms to a second."""
    guard, now = Guard(3), 0.0
    for pause_s, answer, seq, client, served in asked:
        now += pause_s
        if served:
            guard.served(client, "c", fewer=seq > 5)
        hold = guard.hold(client, "c", seq, answer, now, connection=seq or None)
        assert hold == 0.0 or FIRST_HOLD_S / 2 <= hold <= LONGEST_HOLD_S
        guard.expire(now)
        assert len(guard) <= 3


@pytest.mark.parametrize("answer", sorted(FRUITLESS, key=str))
def test_a_sweep_over_seqs_is_held(answer: Answer) -> None:
    """Rising seqs are no progress where there is nothing to come to."""
    guard = Guard()
    assert [guard.hold(1, "c", seq, answer, 0.0) > 0 for seq in range(FREE + 2)] == [False] * FREE + [True] * 2


@pytest.mark.parametrize("answer", ABOUT_A_SEQ)
def test_walking_on_is_not_held(answer: Answer) -> None:
    """Through a run of empty segments, of ones that are gone, or behind the head, at any speed."""
    guard = Guard()
    assert not any(guard.hold(1, "c", seq, answer, 0.0) for seq in range(500))


@pytest.mark.parametrize("answer", ABOUT_A_SEQ)
@pytest.mark.parametrize("seqs", [1, 2, 5, 64, 300])
def test_a_loop_over_any_number_of_seqs_in_turn_is_held(answer: Answer, seqs: int) -> None:
    """Each time it begins anew counts one."""
    guard = Guard()
    turns = 0
    while not any(guard.hold(1, "c", seq, answer, 0.0) for seq in range(seqs)):
        turns += 1
    assert turns == FREE


def test_a_step_is_not_held_whatever_the_client_owes() -> None:
    """Whoever asks for the next seq at last is answered at once; to ask for it again is no step."""
    guard = Guard()
    loop(guard, Answer.EMPTY, 3 * CROWD)
    assert guard.hold(1, "c", 8, Answer.EMPTY, 60.0) == 0.0
    assert guard.hold(1, "c", 7, Answer.EMPTY, 60.0) > 0.0


def test_kinds_of_answers_add_up() -> None:
    """A channel that begins to be refused: the loop goes on, and so does the count; likewise what is about a seq."""
    guard = Guard()
    loop(guard, Answer.REFUSED, FREE)
    assert guard.hold(1, "c", 7, Answer.MISSING, 0.0) == FIRST_HOLD_S
    loop(guard, Answer.SAME, FREE)
    assert guard.hold(1, "c", 7, Answer.EMPTY, 0.0) == FIRST_HOLD_S


def test_being_served_pays_everything_back() -> None:
    """A client that gets on is not known any more; one that nobody knows may be served, too."""
    guard = Guard()
    loop(guard, Answer.AHEAD, 60)
    guard.served(1, "c")
    guard.served(2, "c")
    assert len(guard) == 0
    assert loop(guard, Answer.AHEAD, FREE, now=60.0) == [0.0] * FREE


@pytest.mark.parametrize("served", [True, False])
def test_being_served_pays_back_for_a_crowd(served: bool) -> None:
    """When the channel begins, those who have looked for it in vain begin anew."""
    guard = Guard()
    loop(guard, Answer.SAME, 1)  # so that the account is kept
    loop(guard, Answer.MISSING, CROWD, many=True)
    if served:
        guard.served(1, "c")
    assert any(loop(guard, Answer.MISSING, CROWD, many=True)) is not served


def test_being_served_forgives_no_repetition() -> None:
    """Others behind the same address are served all the time: a loop among them is held all the same."""
    guard = Guard()
    loop(guard, Answer.SAME, FREE)
    loop(guard, Answer.AHEAD, FREE)
    guard.served(1, "c")
    assert guard.hold(1, "c", 0, Answer.AHEAD, 0.0) == 0.0
    assert guard.hold(1, "c", 7, Answer.SAME, 0.0) == FIRST_HOLD_S


@pytest.mark.parametrize("readers", [CROWD, 10 * CROWD])
def test_a_reader_that_is_seen_to_go_on_is_no_repetition(readers: int) -> None:
    """On one connection that shows: any number may come to a segment one after the other."""
    guard = Guard()
    for _ in range(readers):
        assert guard.hold(1, "c", 7, Answer.SAME, 0.0) == 0.0
        guard.served(1, "c", fewer=True)
    assert loop(guard, Answer.SAME, FREE) == [0.0] * FREE


def test_clients_and_channels_count_for_themselves() -> None:
    """What one owes on a channel neither another one nor another channel has to pay."""
    guard = Guard()
    now = sum(loop(guard, Answer.MISSING, 60))
    assert guard.hold(2, "c", 7, Answer.MISSING, now) == 0.0
    assert guard.hold(1, "d", 7, Answer.MISSING, now) == 0.0
    assert guard.hold(1, "c", 7, Answer.MISSING, now) == LONGEST_HOLD_S


def test_two_polite_readers_that_share_a_name_are_held_for_a_second_at_most() -> None:
    """Each polls once a second: together they owe, are held, and so come to what both together may."""
    guard, due = Guard(), [0.0, 0.5]
    for _ in range(200):
        reader = due.index(min(due))
        now = due[reader]
        hold = guard.hold(1, "c", 0, Answer.MISSING, now)
        assert hold <= LONGEST_HOLD_S
        due[reader] = now + hold + 1.0
    # When one of them has left, the other is held less and less.
    left = loop(guard, Answer.MISSING, 20, now=max(due), pause_s=1.0)
    assert all(earlier > later for earlier, later in pairwise(left))
    assert left[-1] < LONGEST_HOLD_S / 10


@pytest.mark.parametrize(("after_s", "kept"), [(FORGOTTEN_S - 0.1, 1), (FORGOTTEN_S, 0), (FORGOTTEN_S + 0.1, 0)])
def test_what_is_paid_back_is_forgotten(after_s: float, kept: int) -> None:
    """As long as it takes to pay back the most that anybody can owe; and what comes later is kept longer."""
    guard = Guard()
    guard.expire(0.0)
    loop(guard, Answer.REFUSED, 3)
    guard.expire(after_s)
    assert len(guard) == kept
    guard.hold(2, "c", 0, Answer.REFUSED, after_s)
    guard.expire(after_s + 1)
    assert len(guard) == 1


def test_the_most_that_is_owed_is_paid_back_in_seconds() -> None:
    """However long a loop has lasted: seven seconds later it begins to be free."""
    guard = Guard()
    loop(guard, Answer.MISSING, 1000)
    assert guard.hold(1, "c", 0, Answer.MISSING, 1000.0 + DOUBLED) == 0.0


@pytest.mark.parametrize(("clients", "known"), [(9, True), (10, True), (11, False)])
def test_of_too_many_clients_the_longest_silent_one_is_forgotten(clients: int, known: bool) -> None:
    """One below and at the limit all are known; one above, the first begins anew."""
    guard = Guard(10)
    for client in range(clients):
        for _ in range(FREE):
            guard.hold(client, "c", 0, Answer.MISSING, 0.0)
    assert len(guard) == min(clients, 10)
    assert (guard.hold(0, "c", 0, Answer.MISSING, 0.0) > 0.0) is known


def test_made_up_names_cost_no_more_than_the_limit() -> None:
    """Any number of them: half a kilobyte for each that is known, whatever else there was."""
    guard = Guard(1000)
    channels = [f"channel-{number}" * 10 for number in range(50)]
    tracemalloc.start()
    for client in range(30_000):
        guard.hold(client << 40, channels[client % 50], client, Answer.EMPTY, client / 1e6)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(guard) == 1000
    assert size < 1000 * 512


def test_all_readers_may_loop_at_once() -> None:
    """None of them pushes another out of the table: more are known than may read."""
    assert Limits().readers < CLIENTS
