"""The documented limits, and the budget over all windows."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from app.core.limits import Budget, GiB, Limits, MiB


def test_defaults_are_the_documented_ones() -> None:
    """A server that is told nothing holds what the documentation says."""
    limits = Limits()
    assert (limits.segment_bytes, limits.total_bytes) == (64 * MiB, GiB)
    assert (limits.window_segments, limits.window_bytes, limits.window_age_s) == (256, 64 * MiB, 60.0)
    assert (limits.channels, limits.readers) == (10_000, 50_000)
    assert (limits.publisher_grace_s, limits.skip_grace_s, limits.first_byte_timeout_s) == (5.0, 2.0, None)
    assert (limits.channel_drain_s, limits.idle_timeout_s) == (10.0, 300.0)


def test_limits_do_not_change() -> None:
    """Limits are set once, when the server starts."""
    with pytest.raises(FrozenInstanceError):
        Limits().readers = 1  # type: ignore[misc]


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_the_budget_holds_its_limit_and_no_more(size: int, fits: bool) -> None:
    """One below and at the limit fit, one above does not, and what does not fit is not accounted for."""
    asked: list[int] = []
    budget = Budget(10, asked.append)
    assert budget.take(size) is fits
    assert budget.used == (size if fits else 0)
    assert asked == ([] if fits else [1])


def test_room_is_made_by_reclaiming() -> None:
    """When the limit is reached, others are asked for just what is missing; what they free is enough."""
    asked: list[int] = []

    def reclaim(size: int) -> None:
        asked.append(size)
        budget.give_back(size)

    budget = Budget(10, reclaim)
    assert budget.take(8)
    assert budget.take(5)
    assert (asked, budget.used) == ([3], 10)


def test_what_is_given_back_can_be_taken_again() -> None:
    """Bytes that are no longer held make room."""
    budget = Budget(10, lambda size: None)
    assert budget.take(10)
    budget.give_back(4)
    assert budget.used == 6
    assert budget.take(4)
    assert not budget.take(1)
