"""The journal: every fact with its index; and the frozen statistics."""

from __future__ import annotations

import pytest

from tests.app.core.support import KINDS
from tricklecast.app.core.events import (
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    Journal,
    SegmentClosed,
    SegmentOpened,
)
from tricklecast.app.core.segment import State


def tell(journal: Journal) -> None:
    """One life of a channel."""
    journal.channel_created("a", 1, "video/mp2t")
    journal.segment_opened("a", 1, 0)
    journal.segment_closed("a", 1, 0, State.COMPLETE, 10)
    journal.segment_closed("a", 1, 1, State.COMPLETE, 10)
    journal.segment_closed("a", 1, 2, State.SKIPPED, 0)
    journal.channel_ended("a", 1, 3, EndReason.DELETED)


def test_facts_are_indexed_without_gaps() -> None:
    """Each fact gets the next index, counted from 1, whatever it is about."""
    facts: list[Fact] = []
    journal = Journal()
    journal.subscribe(facts.append, *KINDS)
    tell(journal)
    assert facts == [
        ChannelCreated(1, "a", 1, "video/mp2t"),
        SegmentOpened(2, "a", 1, 0),
        SegmentClosed(3, "a", 1, 0, State.COMPLETE, 10),
        SegmentClosed(4, "a", 1, 1, State.COMPLETE, 10),
        SegmentClosed(5, "a", 1, 2, State.SKIPPED, 0),
        ChannelEnded(6, "a", 1, 3, EndReason.DELETED),
    ]
    assert journal.index == 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_listener_hears_of_what_it_subscribed_to(kind: type[Fact]) -> None:
    """Facts of other kinds count in the index all the same."""
    facts: list[Fact] = []
    journal = Journal()
    journal.subscribe(facts.append, kind)
    tell(journal)
    assert {type(fact) for fact in facts} == {kind}
    assert journal.index == 6


def test_no_fact_is_made_where_nobody_listens() -> None:
    """They count, and closed segments by their state."""
    journal = Journal()
    tell(journal)
    assert journal.index == 6
    expected = {State.COMPLETE: 2, State.EMPTY: 0, State.TRUNCATED: 0, State.SKIPPED: 1, State.TERMINATED: 0}
    assert journal.closed == expected


def test_several_listeners_hear_of_one_fact_in_turn() -> None:
    """In the order in which they subscribed; the journal's index is that of the fact by then."""
    journal = Journal()
    heard: list[tuple[str, int, int]] = []
    for name in ("first", "second"):
        journal.subscribe(
            lambda fact, name=name: heard.append((name, fact.index, journal.index)),  # type: ignore[misc]
            ChannelCreated,
        )
    journal.channel_created("a", 1, "")
    assert heard == [("first", 1, 1), ("second", 1, 1)]


def test_a_listener_that_raises_keeps_no_other_from_hearing() -> None:
    """Its fault is noted until the change is done."""
    facts: list[Fact] = []
    journal = Journal()

    def raises(fact: Fact) -> None:
        raise ValueError("a fault of the listener")

    journal.subscribe(raises, SegmentOpened)
    journal.subscribe(facts.append, SegmentOpened)
    journal.segment_opened("a", 1, 0)
    assert (len(facts), [fault.victim for fault in journal.faults.noted]) == (1, [raises])


def test_there_are_four_kinds() -> None:
    """A listener cannot subscribe to anything else."""
    with pytest.raises(KeyError):
        Journal().subscribe(print, Fact)
