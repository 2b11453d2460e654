"""The documented limits."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from tricklecast.app.core.limits import GiB, Limits, MiB


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


@pytest.mark.parametrize("limit", ["client_connections", "client_exchanges", "client_requests_per_s"])
def test_clients_are_told_apart_where_each_has_a_limit(limit: str) -> None:
    """Any of the three is reason enough to know them."""
    assert not Limits().tells_clients_apart
    assert replace(Limits(), **{limit: 1}).tells_clients_apart
