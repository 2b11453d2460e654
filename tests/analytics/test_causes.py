"""Every class has a cause and an advice, sharpened by what is known of the episode."""

from __future__ import annotations

import pytest

from tricklecast.analytics.causes import likely_cause
from tricklecast.analytics.classes import StormClass


@pytest.mark.parametrize("storm", StormClass)
def test_every_class_has_words(storm: StormClass) -> None:
    """No class is without a likely cause and an advice."""
    why = likely_cause(storm, None)
    assert why.cause
    assert why.advice


def test_the_channel_had_ended() -> None:
    """A 404 loop after a channel's end says that the end was ignored; an empty loop, that the end came last."""
    assert "has ended" in likely_cause(StormClass.NOT_FOUND_LOOP, "channel_end").cause
    assert "has ended" not in likely_cause(StormClass.NOT_FOUND_LOOP, None).cause
    assert "only after that" in likely_cause(StormClass.ZERO_BYTE_LOOP, "channel_end").cause
    assert "Lp-Trickle-Closed" in likely_cause(StormClass.ENDED_LOOP, "channel_end").cause


def test_whose_fault_an_empty_loop_is() -> None:
    """Where the head has moved past the empty segment the client is at fault; where it has not, the server."""
    assert likely_cause(StormClass.ZERO_BYTE_LOOP, "channel_end", passed=True).cause.startswith("the client")
    assert likely_cause(StormClass.ZERO_BYTE_LOOP, "channel_end").cause.startswith("the server")


def test_retry_after_ignored() -> None:
    """That Retry-After was ignored is part of the cause."""
    assert "Retry-After is ignored" in likely_cause(StormClass.OVERLOAD_CLIENT, None, retry_after="ignored").cause
    assert "is ignored" not in likely_cause(StormClass.OVERLOAD_CLIENT, None, retry_after="honoured").cause
