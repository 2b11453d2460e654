"""The journal: each fact has its index and its number, and listeners hear of their kinds."""

from __future__ import annotations

import pytest

from tests.app.core.support import Bench
from tricklecast.app.core.facts import (
    KINDS,
    BodyBegun,
    ChannelEnded,
    EndReason,
    Fact,
    SegmentClosed,
    SegmentOpened,
)
from tricklecast.app.core.segment import State


def live(bench: Bench) -> None:
    """One life of a channel, in which each kind of fact but its creation happens."""
    channel = bench.channel
    channel.name_content_type("video/mp2t", 0.0)
    bench.publish(0, b"x")
    channel.abort(bench.reserve(1), 0.0)
    bench.open(2)
    channel.expire(bench.limits.overtaking_grace_s)
    bench.publish(9, b"x", reset=True)
    channel.end(EndReason.DELETED, 9.0)


def test_facts_are_numbered_without_gaps() -> None:
    """Each fact gets the next number, counted from 1, whatever it is about."""
    bench = Bench("c", "", window_segments=2)
    live(bench)
    assert [fact.number for fact in bench.facts] == [*range(1, len(bench.facts) + 1)]
    assert [fact.index for fact in bench.facts if fact.indexed] == [*range(1, bench.journal.index + 1)]
    assert bench.channel.facts == len(bench.facts)


@pytest.mark.parametrize("kind", [SegmentOpened, SegmentClosed, ChannelEnded])
def test_a_listener_hears_of_what_it_subscribed_to(kind: type[Fact]) -> None:
    """Facts of other kinds count all the same."""
    bench = Bench("c", "", window_segments=2)
    facts: list[Fact] = []
    bench.journal.subscribe(facts.append, kind)
    live(bench)
    assert {type(fact) for fact in facts} == {kind}
    assert facts == [fact for fact in bench.facts if type(fact) is kind]


def test_closed_segments_are_counted_by_their_state() -> None:
    """Whether or not anybody listens."""
    bench = Bench()
    bench.publish(0, b"x")
    bench.publish(1, b"")
    bench.open(2)
    bench.channel.end(EndReason.DELETED, 9.0)
    expected = {State.COMPLETE: 1, State.EMPTY: 1, State.TRUNCATED: 0, State.SKIPPED: 0, State.TERMINATED: 1}
    assert bench.journal.closed == expected


def test_who_follows_a_channel_hears_of_all_its_facts() -> None:
    """In the order in which they happen, after those who subscribed to a kind."""
    bench = Bench()
    heard: list[tuple[str, type[Fact]]] = []
    bench.journal.subscribe(lambda fact: heard.append(("kind", type(fact))), SegmentOpened)
    bench.channel.follow(lambda fact: heard.append(("channel", type(fact))))
    bench.publish(0, b"x")
    bench.publish(1)
    kinds = [kind for who, kind in heard if who == "channel"]
    assert kinds == [type(fact) for fact in bench.facts]
    assert heard.index(("kind", SegmentOpened)) == heard.index(("channel", SegmentOpened)) - 1
    assert {BodyBegun, SegmentClosed} < set(kinds)


def test_a_listener_that_raises_keeps_no_other_from_hearing() -> None:
    """Its fault is noted until the change is done."""
    bench = Bench()
    facts: list[Fact] = []

    def raises(fact: Fact) -> None:
        raise ValueError("a fault of the listener")

    bench.journal.subscribe(raises, ChannelEnded)
    bench.journal.subscribe(facts.append, ChannelEnded)
    bench.channel.end(EndReason.DELETED, 0.0)
    assert (len(facts), [victim for victim, _ in bench.journal.faults.noted]) == (1, [raises])


@pytest.mark.parametrize("kind", [Fact, *(kind for kind in KINDS if not kind.indexed)])
def test_the_journal_tells_only_of_what_concerns_the_server(kind: type[Fact]) -> None:
    """Nobody can subscribe to a kind that has no index: such facts are told to those who follow the channel."""
    with pytest.raises(KeyError):
        Bench().journal.subscribe(print, kind)
