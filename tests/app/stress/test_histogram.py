"""Quantiles in bounded memory."""

from __future__ import annotations

from random import Random

import pytest

from tricklecast.app.stress.histogram import Histogram


def test_quantiles_are_close_to_the_exact_ones() -> None:
    """Over five orders of magnitude no quantile is more than 1 % off, and the maximum is exact."""
    rng = Random(1)
    values = [int(10 ** rng.uniform(4, 9)) for _ in range(20_000)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    values.sort()
    for share in (0.01, 0.5, 0.95, 0.99):
        assert histogram.quantile_ms(share) == pytest.approx(values[int(share * 20_000) - 1] / 1e6, rel=0.01)
    quantiles = histogram.quantiles()
    assert (quantiles.samples, quantiles.max) == (20_000, values[-1] / 1e6)
    assert len(histogram._counts) < 128 * 18


def test_without_samples_all_is_zero() -> None:
    """Nothing was measured: no division by zero."""
    quantiles = Histogram().quantiles()
    assert (quantiles.samples, quantiles.p50, quantiles.max) == (0, 0.0, 0.0)


def test_a_duration_below_zero_counts_as_zero() -> None:
    """Clocks of two processors may differ by some nanoseconds."""
    histogram = Histogram()
    histogram.add(-5)
    assert histogram.quantiles().max == 0.0
