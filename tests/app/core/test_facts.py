"""The journal: every fact with its index."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tricklecast.app.core.facts import (
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    Journal,
    SegmentClosed,
    SegmentOpened,
)
from tricklecast.app.core.segment import State


def test_facts_are_indexed_without_gaps() -> None:
    """Each fact gets the next index, counted from 1, whatever it is about."""
    facts: list[Fact] = []
    journal = Journal(facts.append, facts.append)
    journal.channel_created("a", 1, "video/mp2t")
    journal.segment_opened("a", 1, 0)
    journal.segment_closed("a", 1, 0, State.COMPLETE, 10)
    journal.channel_ended("a", 1, 1, EndReason.DELETED)
    assert facts == [
        ChannelCreated(1, "a", 1, "video/mp2t"),
        SegmentOpened(2, "a", 1, 0),
        SegmentClosed(3, "a", 1, 0, State.COMPLETE, 10),
        ChannelEnded(4, "a", 1, 1, EndReason.DELETED),
    ]
    assert journal.index == 4


def test_the_index_is_set_when_the_listener_hears_of_it() -> None:
    """A listener sees the journal at the fact that it is told."""
    seen: list[tuple[int, int]] = []
    journal = Journal(lambda fact: seen.append((fact.index, journal.index)))
    journal.channel_created("a", 1, "")
    journal.channel_created("b", 1, "")
    assert seen == [(1, 1), (2, 2)]


def test_segment_facts_count_even_if_nobody_hears_them() -> None:
    """Without a listener for segments their facts take an index all the same."""
    facts: list[Fact] = []
    journal = Journal(facts.append)
    journal.segment_opened("a", 1, 0)
    journal.segment_closed("a", 1, 0, State.COMPLETE, 10)
    journal.channel_ended("a", 1, 1, EndReason.DELETED)
    assert facts == [ChannelEnded(3, "a", 1, 1, EndReason.DELETED)]


def test_facts_do_not_change() -> None:
    """What happened stays as it happened."""
    fact = SegmentOpened(1, "a", 1, 0)
    with pytest.raises(FrozenInstanceError):
        fact.seq = 1  # type: ignore[misc]
