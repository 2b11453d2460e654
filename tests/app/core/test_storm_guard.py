"""The storm guard: a loop is slowed down to one request a second; a client that advances, or waits, is not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.core.storm_guard import (
    ALWAYS_FRUITLESS,
    FORGOTTEN_S,
    FREE,
    FREE_FOR_MANY,
    LONGEST_HOLD_S,
    ReplyKind,
    StormGuard,
)

ONCE_RIGHT = sorted(set(ReplyKind) - ALWAYS_FRUITLESS, key=lambda answer: answer.name)
FRUITLESS = sorted(ALWAYS_FRUITLESS, key=lambda answer: answer.name)


@dataclass
class Client:
    """A client that asks again as soon as it is answered, unless it waits."""

    guard: StormGuard = field(default_factory=StormGuard)
    number: int = 1
    channel: str = "c"
    many: bool = False
    now: float = 100.0

    def ask(self, answer: ReplyKind, seq: int = 0, *, after_s: float = 0.0) -> float:
        """For how long the answer is held."""
        self.now += after_s
        hold_s = self.guard.hold(self.number, self.channel, answer, seq, self.now, many=self.many)
        assert 0.0 <= hold_s <= LONGEST_HOLD_S, "nobody is refused, or held for longer than a second"
        self.now += hold_s
        return hold_s


@pytest.mark.parametrize(("many", "free"), [(False, FREE), (True, FREE_FOR_MANY)])
@pytest.mark.parametrize("answer", ReplyKind)
def test_a_loop_is_held_twice_as_long_each_time(answer: ReplyKind, many: bool, free: int) -> None:
    """The first answers at once, the next ones 20 ms, 40 ms ... later, and then each one a second later."""
    guard = StormGuard()
    holds = [guard.hold(1, "c", answer, 0, 0.0, many=many) for _ in range(free + 9)]
    assert holds[:free] == [0.0] * free
    assert holds[free:] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0])


@given(answer=st.sampled_from(ReplyKind), many=st.booleans(), own_pause_s=st.floats(0.0, 0.9))
def test_a_loop_ends_at_one_request_a_second(answer: ReplyKind, many: bool, own_pause_s: float) -> None:
    """Beyond its free requests a loop makes at most one request a second, however long it pauses by itself."""
    client = Client(many=many)
    begun = client.now
    asked = 0
    while client.now - begun < 1000.0:
        client.ask(answer, after_s=own_pause_s)
        asked += 1
    free = FREE_FOR_MANY if many else FREE
    assert asked <= 1000.0 + free + 8


@given(
    pauses=st.lists(st.floats(1.0, 30.0), max_size=100),
    answers=st.lists(st.sampled_from(ReplyKind), min_size=1),
    many=st.booleans(),
)
def test_a_client_that_asks_at_most_once_a_second_is_never_delayed(
    pauses: list[float], answers: list[ReplyKind], many: bool
) -> None:
    """The guard never delays a client that pauses for a second or more, for any sequence of answers."""
    client = Client(many=many)
    for number, pause_s in enumerate(pauses):
        assert client.ask(answers[number % len(answers)], after_s=pause_s) == 0.0


@given(steps=st.lists(st.tuples(st.integers(1, 5), st.sampled_from(ONCE_RIGHT)), max_size=300))
def test_a_client_that_advances_is_never_delayed(steps: list[tuple[int, ReplyKind]]) -> None:
    """Each seq once, as fast as it goes."""
    client, seq = Client(), 0
    for step, answer in steps:
        seq += step
        assert client.ask(answer, seq) == 0.0


@pytest.mark.parametrize("answer", FRUITLESS)
def test_counting_upwards_through_what_is_not_there_is_no_progress(answer: ReplyKind) -> None:
    """Answers that are fruitless whichever seq a client asks for share one bucket."""
    client = Client()
    assert [client.ask(answer, seq) > 0 for seq in range(FREE + 2)] == [False] * FREE + [True, True]


def test_fruitless_answers_of_all_kinds_share_a_bucket() -> None:
    """A client that asks in turn for what is missing and for the head repeats itself."""
    client = Client()
    assert [client.ask(FRUITLESS[number % len(FRUITLESS)]) > 0 for number in range(FREE + 1)] == [False] * FREE + [True]


def test_a_client_that_gets_what_it_asked_for_begins_anew() -> None:
    """Its fruitless answers are forgotten; that it has had a segment again and again is not."""
    client = Client()
    for _ in range(FREE):
        client.ask(ReplyKind.AHEAD)
        client.ask(ReplyKind.SAME)
    client.guard.progress(1, "c")
    client.guard.progress(2, "never heard of")
    assert (client.ask(ReplyKind.AHEAD), client.ask(ReplyKind.SAME) > 0) == (0.0, True)


@pytest.mark.parametrize("other", [{"number": 2}, {"channel": "d"}])
def test_clients_and_channels_are_told_apart(other: dict[str, object]) -> None:
    """A loop delays no other client, and its client on no other channel."""
    client = Client()
    for _ in range(3 * FREE):
        client.ask(ReplyKind.MISSING)
    assert Client(client.guard, now=client.now, **other).ask(ReplyKind.MISSING) == 0.0  # type: ignore[arg-type]


def test_a_loop_that_has_stopped_is_soon_forgotten() -> None:
    """However long it went on, after 15 s its client is as free as any other."""
    client = Client()
    for _ in range(1000):
        client.ask(ReplyKind.MISSING)
    client.now += FREE + 7
    assert [client.ask(ReplyKind.MISSING) for _ in range(FREE)] == [0.0] * FREE


def test_memory_is_bounded() -> None:
    """Beyond the limit the bucket that was unused for longest goes; a loop's own one stays."""
    guard = StormGuard(clients=10)
    loop = Client(guard)
    for number in range(100):
        loop.ask(ReplyKind.MISSING)
        guard.hold(number, "made up", ReplyKind.MISSING, 0, loop.now, many=False)
        assert len(guard) <= 10
    assert loop.ask(ReplyKind.MISSING) > 0.9


def test_empty_buckets_expire() -> None:
    """When nothing can be left of them, and not before."""
    guard = StormGuard()
    guard.hold(1, "c", ReplyKind.MISSING, 0, 0.0, many=True)
    guard.hold(2, "c", ReplyKind.MISSING, 0, 1.0, many=True)
    guard.expire(FORGOTTEN_S - 0.1)
    assert len(guard) == 2
    guard.expire(FORGOTTEN_S)
    assert len(guard) == 1
    guard.expire(FORGOTTEN_S + 1.0)
    assert len(guard) == 0
