"""Rate ratios with intervals that know that storms come in clusters."""

from __future__ import annotations

import random

import pytest

from tricklecast.analytics.compare import MAX_BLOCKS, Block, Side, compare, rate_ratio, student


def blocks(*counts: float, requests: int = 1000) -> list[Block]:
    """Blocks of equal traffic, in which something happened so often."""
    return [Block(requests, {"x": count}) for count in counts]


def test_a_ratio_of_rates() -> None:
    """Twice as often in half as many requests is four times the rate."""
    found = rate_ratio("x", blocks(*[5] * 20), blocks(*[10] * 20, requests=500))
    assert (found.before, found.before_of, found.after, found.after_of) == (100, 20_000, 200, 10_000)
    assert found.ratio == pytest.approx(4)
    # Blocks that are all alike: no narrower than independent events would be.
    assert found.lo == pytest.approx(4 / 1.284, rel=0.01)
    assert found.hi == pytest.approx(4 * 1.284, rel=0.01)


def test_one_storm_is_one_event() -> None:
    """A thousand repeats in one block prove nothing; the same thousand all over the time prove much."""
    calm = blocks(*[2] * 30)
    burst = rate_ratio("x", calm, blocks(*[0] * 15, 1000, *[0] * 14))
    steady = rate_ratio("x", calm, blocks(*[33] * 30))
    assert burst.lo is not None
    assert steady.lo is not None
    assert burst.lo < 3
    assert steady.lo > 10


def storms(random_: random.Random, rate: float) -> list[Block]:
    """A day of clustered repeats: storms begin at random and have anything from 10 to 1000 repeats each."""
    counts = [float(sum(random_.randint(10, 1000) for _ in range(_poisson(random_, rate)))) for _ in range(MAX_BLOCKS)]
    return [Block(random_.randint(800, 1200) * 100, {"x": count}) for count in counts]


def _poisson(random_: random.Random, mean: float) -> int:
    count, time = 0, random_.expovariate(1)
    while time < mean:
        count, time = count + 1, time + random_.expovariate(1)
    return count


def test_intervals_cover_the_truth() -> None:
    """Over 400 pairs of days with twice the storms, the truth is inside in about 95 of 100; Poisson's would fail."""
    random_ = random.Random(7)
    inside = poisson = 0
    for _ in range(400):
        found = rate_ratio("x", storms(random_, 1.0), storms(random_, 2.0))
        assert found.ratio is not None
        assert found.lo is not None
        assert found.hi is not None
        inside += found.lo <= 2 <= found.hi
        naive = 1.96 * (1 / found.before + 1 / found.after) ** 0.5
        poisson += abs(found.ratio / 2 - 1) <= naive
    assert 0.92 <= inside / 400 <= 0.98
    assert poisson / 400 < 0.4


def test_what_was_never_there_before() -> None:
    """There is no ratio, but a lower end; and the other way round an upper one."""
    new = rate_ratio("x", blocks(*[0] * 20), blocks(*[50] * 20))
    assert (new.ratio, new.hi) == (None, None)
    assert new.lo is not None
    assert 200 < new.lo < 1000 / 3.7
    gone = rate_ratio("x", blocks(*[50] * 20), blocks(*[0] * 20))
    assert (gone.ratio, gone.lo) == (0.0, 0.0)
    assert gone.hi == pytest.approx(1 / new.lo)


@pytest.mark.parametrize(
    ("before", "after", "ratio"),
    [
        (blocks(1, 2, 3, 4), blocks(*[5] * 20), 2.0),
        (blocks(), blocks(*[5] * 20), None),
        (blocks(0, 0), blocks(0, 0), None),
        (blocks(0, 0), blocks(1, 1), None),
        (blocks(*[1] * 9, requests=0), blocks(*[1] * 9), None),
        ([*blocks(*[5] * 9), Block(1_000_000, {"x": 5000})], blocks(*[5] * 20), 1.0),
    ],
)
def test_too_little_to_say(before: list[Block], after: list[Block], ratio: float | None) -> None:
    """Few blocks, no requests, or nothing on either side: no interval, and no division by zero."""
    found = rate_ratio("x", before, after)
    assert found.ratio == ratio
    assert (found.lo, found.hi) == (None, None)


def test_the_surest_increase_comes_first() -> None:
    """A large ratio that may be chance comes after a smaller one that is not; what has no interval comes last."""
    before = [Block(1000, {"sure": 5, "chance": number == 3, "less": 9, "new": 0}) for number in range(20)]
    after = [
        Block(1000, {"sure": 50, "chance": 30 * (number == 3), "less": 3, "new": 40, "odd": 0}) for number in range(20)
    ]
    found = compare("date", Side("old", before), Side("new", after), ["less", "chance", "odd", "sure", "new"])
    assert [ratio.name for ratio in found.ratios] == ["new", "sure", "chance", "less", "odd"]
    assert (found.by, found.before, found.after) == ("date", "old", "new")


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(4, 2.776), (5, 2.571), (10, 2.228), (29, 2.045), (58, 2.002), (1e9, 1.960)]
)
def test_students_quantiles(degrees: float, quantile: float) -> None:
    """As in the tables, to three digits."""
    assert student(degrees) == pytest.approx(quantile, abs=0.001)
