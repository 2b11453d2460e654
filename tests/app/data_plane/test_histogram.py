"""Values in fixed buckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.data_plane.histogram import DELAYS_US, Histogram


def test_a_bound_belongs_to_its_bucket() -> None:
    """At the bound is inside, one above is in the next one, beyond the last is in a bucket of its own."""
    histogram = Histogram((10, 20))
    for value in (9, 10, 11, 20, 21):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == 71


@given(st.lists(st.integers(0, 100_000_000)))
def test_every_value_is_in_the_first_bucket_that_takes_it(values: list[int]) -> None:
    """What Prometheus makes of it (counts at or below each bound) is what counting by hand gives."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    below = [sum(value <= bound for value in values) for bound in DELAYS_US]
    assert [sum(histogram.counts[: i + 1]) for i in range(len(DELAYS_US))] == below
    assert sum(histogram.counts) == len(values)
    assert histogram.sum == sum(values)


def test_the_bounds_ascend() -> None:
    """Bisection needs it."""
    assert list(DELAYS_US) == sorted(set(DELAYS_US))
