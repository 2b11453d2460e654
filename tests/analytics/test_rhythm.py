"""A pace is told from the roll-up's slots as it would be from the arrivals themselves, as far as slots can tell."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tricklecast.analytics.rhythm import Backoff, Seen, tempo
from tricklecast.app.core.storm_guard import Answer, StormGuard

SECOND = 1_000_000
START = 1_760_000_000_123_456


def rows_of(times: Sequence[int], width_us: int = SECOND, holds_ms: Sequence[int] = ()) -> list[Seen]:
    """The roll-up's rows about these arrivals, and how long each was held."""
    buckets: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, hold_ms in zip_longest(times, holds_ms, fillvalue=0):
        buckets[at - at % width_us].append((at, hold_ms))
    found = []
    for bucket, inside in buckets.items():
        slots = 0
        for at, _ in inside:
            slots |= 1 << (at - bucket) * 64 // width_us
        held_ms = sum(hold_ms for _, hold_ms in inside)
        found.append(Seen(bucket, width_us, slots, len(inside), min(inside)[0], max(inside)[0], held_ms))
    return found


def arrivals(gaps: Sequence[float]) -> list[int]:
    """Moments with these pauses between them, seconds."""
    times = [START]
    for gap in gaps:
        times.append(times[-1] + round(gap * SECOND))
    return times


def held(gaps: Sequence[float]) -> tuple[list[int], list[int]]:
    """When a client with these pauses of its own arrives whom the storm guard holds, and for how long, milliseconds."""
    guard, times, holds = StormGuard(), [START], list[float]()
    for gap in (*gaps, 0.0):
        holds.append(guard.hold(1, "c", Answer.MISSING, 0, times[-1] / SECOND, many=False))
        times.append(times[-1] + round((holds[-1] + gap) * SECOND))
    return times[:-1], [int(1000 * hold) for hold in holds]


Law = Callable[[random.Random, float, int], float]

LAWS: dict[Backoff, tuple[Law, float, float]] = {
    Backoff.HOT_LOOP: (lambda rng, scale, turn: scale * rng.uniform(0.7, 1.3), 0.005, 0.07),
    Backoff.FIXED: (lambda rng, scale, turn: scale * rng.uniform(0.98, 1.02), 0.13, 4.0),
    Backoff.FIXED_JITTER: (lambda rng, scale, turn: scale * rng.uniform(0.5, 1.5), 0.2, 3.0),
    Backoff.EXPONENTIAL: (lambda rng, scale, turn: scale * min(1.0, 0.05 * 1.6**turn), 0.5, 4.0),
    Backoff.EXPONENTIAL_JITTER: (lambda rng, scale, turn: scale * min(1, 0.05 * 1.6**turn) * rng.random(), 1.5, 4.0),
    Backoff.IRREGULAR: (lambda rng, scale, turn: scale * rng.lognormvariate(0, 1.2), 0.3, 2.0),
}


@pytest.mark.parametrize("law", LAWS)
def test_accuracy(law: Backoff) -> None:
    """Of a hundred clients of each law at least eighty-five are named right; of those without chance, all but two."""
    make, low, high = LAWS[law]
    right = 0
    for seed in range(100):
        rng = random.Random(seed)
        scale = rng.uniform(low, high)
        told = tempo(rows_of(arrivals([make(rng, scale, turn) for turn in range(60)])))
        right += told.backoff is law
    assert right >= (98 if law in (Backoff.HOT_LOOP, Backoff.FIXED) else 85)


@pytest.mark.parametrize("law", LAWS)
def test_accuracy_of_clients_that_are_held(law: Backoff) -> None:
    """Their pauses are those of their own, without the holds: they are named as well as the others."""
    make, low, high = LAWS[law]
    right = 0
    for seed in range(100):
        rng = random.Random(seed)
        scale = rng.uniform(low, min(high, 1.0))
        times, holds_ms = held([make(rng, scale, turn) for turn in range(100)])
        right += tempo(rows_of(times, holds_ms=holds_ms)).backoff is law
    assert right >= 85


def test_two_clients_that_are_held_under_one_name() -> None:
    """While one is held, the other goes on: what holds take of their time is divided."""
    one, holds_ms = held([0.5] * 60)
    times = sorted([(at, hold_ms) for at, hold_ms in zip(one, holds_ms, strict=True)] * 2)
    told = tempo(rows_of([at for at, _ in times], holds_ms=[hold_ms for _, hold_ms in times]))
    assert told.gap_ms is not None
    assert told.gap_ms < 500


@given(
    st.lists(st.integers(0, 5 * SECOND), min_size=0, max_size=80),
    st.sampled_from([SECOND, 10 * SECOND]),
    st.lists(st.integers(0, 1000), max_size=80),
)
@settings(max_examples=100)
def test_any_arrivals(gaps: list[int], width_us: int, holds_ms: list[int]) -> None:
    """Whatever arrives has a pace or none, figures within their bounds, and no order of the rows changes it."""
    rows = rows_of(arrivals([gap / SECOND for gap in gaps]), width_us, holds_ms[: len(gaps) + 1])
    told = tempo(rows)
    assert told == tempo(rows[::-1])
    if told.rhythm is not None:
        assert told.rhythm.median_ms >= 0
        assert told.rhythm.cv >= 0
        assert told.rhythm.growth >= 1
    if told.gap_ms is not None:
        assert 0 <= told.gap_ms <= 5000


def test_too_few() -> None:
    """Nothing, one request, or a few pauses have no name."""
    assert tempo([]).backoff is None
    assert tempo(rows_of([START])).gap_ms is None
    few = tempo(rows_of(arrivals([1.0, 1.0])))
    assert (few.backoff, few.gap_ms) == (None, 1000.0)


def test_slots_that_are_too_wide() -> None:
    """Five requests a second in buckets of a minute: their mean is known, their law is not, and none is made up."""
    told = tempo(rows_of(arrivals([0.2] * 300), 60 * SECOND))
    assert told.backoff is None
    assert told.gap_ms == pytest.approx(200, rel=0.01)
    assert tempo(rows_of(arrivals([0.02] * 300), 60 * SECOND)).backoff is Backoff.HOT_LOOP


@pytest.mark.parametrize("gap", [0.02, 0.4, 1.0, 7.0])
def test_whole_seconds(gap: float) -> None:
    """A log whose times are whole seconds shows how many came, and so their mean pause, but never their law."""
    times = [at - at % SECOND for at in arrivals([gap] * 100)]
    told = tempo(rows_of(times))
    assert (told.backoff, told.rhythm) == (None, None)
    assert told.gap_ms == pytest.approx(gap * 1000, abs=10)
    assert tempo(rows_of(times[:1] * 50)).gap_ms is None
