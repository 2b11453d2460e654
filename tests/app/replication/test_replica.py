"""A replica whose owner is broken or hostile: nothing changes that is not the owner's next step, and nothing grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pytest

from tests.app.core.support import Watcher, content, grant, publish
from tricklecast.app.core import state
from tricklecast.app.core.facts import (
    BodyBegun,
    BodyLeft,
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    HeadJumped,
    NumberingNamed,
    SegmentAwaited,
    SegmentClosed,
    SegmentEvicted,
    SegmentForgotten,
    SegmentOpened,
)
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry, Restored
from tricklecast.app.core.results import Gone
from tricklecast.app.core.segment import MAX_FORMER_KEYS, Segment, State
from tricklecast.app.core.state import Upcoming
from tricklecast.app.core.window import Eviction
from tricklecast.app.replication import replica as replicas
from tricklecast.app.replication.feed import Feed
from tricklecast.app.replication.records import (
    Begin,
    FeedEnd,
    FeedError,
    Hello,
    Parser,
    Record,
    SnapshotOver,
    chunk_records,
    fact_record,
    record,
)
from tricklecast.app.replication.replica import OutOfMemory, Replica
from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.wire import Life

BEGIN = record(Begin("x", 1, True))

SNAPSHOT_OVER = record(SnapshotOver(0, 0))


def replica(closed: Callable[[int, int, int], None] | None = None, **limits: Any) -> Replica:
    """One that has sent its hello."""
    registry = Registry(Limits(**limits), autocreate=True)
    found = Replica("c", registry, lambda: 7.0, lambda at_us: at_us / 1e6, closed=closed)
    found.hello()
    return found


def registry_of(held: Replica) -> Registry:
    """Where it is held."""
    return held._registry


def facts(*of: tuple[Any, ...]) -> bytes:
    """Facts with numbers from 1 on: their kind, and their own attributes."""
    return b"".join(_fact(kind, number, *about) for number, (kind, *about) in enumerate(of, 1))


def _fact(kind: type[Fact], number: int, *about: object) -> bytes:
    return fact_record(kind(0, number, 0.0, "c", 1, *about), round)


def chunk(seq: int, data: bytes) -> bytes:
    """Bytes of a segment."""
    return b"".join(chunk_records(seq, memoryview(data)))


OPENED = ((BodyBegun, 0, None, 0), (SegmentOpened, 0))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (SNAPSHOT_OVER, "SnapshotOver before BEGIN"),
        (record(Begin("x", 1, False)), "goes on with a channel that is not here"),
        (BEGIN + record(Hello("c", "", 0, ())), "Hello in the middle of a feed"),
        (BEGIN + SNAPSHOT_OVER + SNAPSHOT_OVER, "the snapshot is over twice"),
        (BEGIN + chunk(7, b"x"), "bytes of segment 7, which is not open"),
        (BEGIN + facts((BodyBegun, 0, None, 0)) + chunk(0, b"x"), "bytes of segment 0, which is not open"),
        (BEGIN + chunk(2**64 - 1, b"x"), "which is not open"),
        (BEGIN + SNAPSHOT_OVER + _fact(HeadJumped, 2, 9), "fact 2 of epoch 1 is not the next one"),
        (BEGIN + facts(*OPENED, (SegmentClosed, 0, State.COMPLETE, 1, None)), "bytes are missing"),
        (BEGIN + facts(*OPENED, (SegmentClosed, 0, State.OPEN, 0, None)), "cannot follow"),
        (BEGIN + facts(*OPENED, (SegmentClosed, 0, State.SKIPPED, 0, None)), "cannot follow"),
        (BEGIN + facts((SegmentClosed, 0, State.COMPLETE, 0, None)), "cannot follow"),
        (BEGIN + facts(*((SegmentClosed, 0, State.EMPTY, 0, None),) * 2), "cannot follow"),
        (BEGIN + facts((SegmentClosed, 0, State.EMPTY, 0, None), (BodyBegun, 0, None, 0)), "cannot follow"),
        (BEGIN + facts((SegmentClosed, 0, State.EMPTY, 0, None), (SegmentOpened, 0)), "cannot follow"),
        (BEGIN + facts((SegmentClosed, 0, State.EMPTY, 0, None), (SegmentForgotten, 0)), "cannot follow"),
        (BEGIN + facts(*OPENED, (SegmentForgotten, 0)), "cannot follow"),
        (BEGIN + facts(*OPENED, (SegmentEvicted, 0, Eviction.AGE)), "cannot follow"),
        (BEGIN + facts((SegmentEvicted, 0, Eviction.AGE)), "cannot follow"),
        (BEGIN + facts((BodyLeft, 0)), "cannot follow"),
        (BEGIN + facts(*OPENED, (ChannelEnded, 1, EndReason.DELETED)), "cannot follow"),
        (BEGIN + facts((ChannelEnded, 0, EndReason.DELETED), (BodyBegun, 0, None, 0)), "cannot follow"),
        (BEGIN + facts(*((BodyBegun, 0, f"k{n}", n) for n in range(MAX_FORMER_KEYS + 3))), "cannot follow"),
    ],
)
def test_a_feed_that_does_not_fit(data: bytes, problem: str) -> None:
    """The replica says why it cannot go on, and the memory of what it has is counted."""
    held = replica()
    with pytest.raises(FeedError, match=problem):
        held.receive(data)
    held.end()
    if held.channel is not None:
        held.channel.forget()
    assert registry_of(held).budget.used == 0


@pytest.mark.interpreted
def test_segments_that_only_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No budget counts them, so an owner cannot make any number of them."""
    monkeypatch.setattr(state, "MAX_AWAITED", 5)
    held = replica()
    with pytest.raises(FeedError, match="more than 5 segments wait"):
        held.receive(BEGIN + facts(*((SegmentAwaited, seq) for seq in range(9))))
    assert held.channel is not None
    assert len(held.channel.segments) == 5


def test_empty_segments_are_bounded_by_the_budget() -> None:
    """Each is counted as what it takes, and the oldest leave."""
    held = replica(total_bytes=10_000)
    held.receive(BEGIN + facts(*((SegmentClosed, seq, State.EMPTY, 0, None) for seq in range(100))))
    assert held.channel is not None
    assert len(held.channel.segments) <= 12
    assert registry_of(held).budget.used <= 10_000


def test_a_huge_seq_takes_no_more_than_a_small_one() -> None:
    """The head is where the owner says that it is."""
    held = replica()
    held.receive(BEGIN + facts((HeadJumped, 2**62), (BodyBegun, 2**62, None, 0), (SegmentOpened, 2**62)))
    assert held.channel is not None
    assert (held.channel.next_seq, list(held.channel.segments)) == (2**62 + 1, [2**62])
    assert isinstance(held.channel.resolve(2**61), Gone)


def test_many_chunks_at_once_wake_a_reader_once() -> None:
    """They are one frame, in their order; a fact among them comes after the bytes before it."""
    held = replica()
    held.receive(BEGIN + facts(*OPENED))
    assert held.channel is not None
    segment = held.channel.segments[0]
    watcher = Watcher(segment)
    registry_of(held).attach(watcher, held.channel, segment)
    held.receive(b"".join(chunk(0, b"%d" % (n % 10)) for n in range(5000)))
    assert (watcher.wakes, len(segment.frames), content(segment)) == (1, 1, b"0123456789" * 500)
    held.receive(chunk(0, b"x") + _fact(SegmentClosed, 3, 0, State.COMPLETE, 5001, None))
    assert (watcher.wakes, watcher.saw_close, content(segment)[-1:]) == (2, True, b"x")


def test_bytes_before_a_wrong_record_reach_the_readers() -> None:
    """The replica wakes its readers for the bytes before a wrong record, although it cannot read the rest."""
    held = replica()
    held.receive(BEGIN + facts(*OPENED))
    assert held.channel is not None
    watcher = Watcher(held.channel.segments[0])
    registry_of(held).attach(watcher, held.channel, watcher.segment)
    with pytest.raises(FeedError):
        held.receive(chunk(0, b"x") + SNAPSHOT_OVER + chunk(9, b"x"))
    assert (watcher.wakes, watcher.segment.size) == (1, 1)


def test_a_segment_that_memory_here_has_evicted_before_the_owner() -> None:
    """The owner's eviction of it is no missing fact, and the feed goes on."""
    held = replica(total_bytes=3000)
    feed = BEGIN + facts(*OPENED) + chunk(0, b"x" * 1000) + _fact(SegmentClosed, 3, 0, State.COMPLETE, 1000, None)
    held.receive(feed + _fact(BodyBegun, 4, 1, None, 0) + _fact(SegmentOpened, 5, 1) + chunk(1, b"x" * 1000))
    assert held.channel is not None
    assert (list(held.channel.segments), held.channel.floor) == ([1], 1)
    held.receive(_fact(SegmentEvicted, 6, 0, Eviction.COUNT))
    assert held.channel.facts == 6


def test_a_channel_of_this_server_is_not_replaced() -> None:
    """Its readers and writers would be lost; the feed is refused as long as it lasts."""
    held = replica()
    writer = grant(registry_of(held), "c", 0)
    with pytest.raises(FeedError, match="is here, and has not ended"):
        held.receive(BEGIN)
    assert registry_of(held).channels["c"] is writer.channel


def test_two_replicas_of_one_channel_in_one_server() -> None:
    """The second is refused, and its end leaves the first as it is."""
    held = replica()
    held.receive(BEGIN + SNAPSHOT_OVER)
    other = Replica("c", registry_of(held), lambda: 7.0, float)
    other.hello()
    with pytest.raises(FeedError, match="is here, and has not ended"):
        other.receive(BEGIN)
    other.end()
    assert held.channel is not None
    assert (registry_of(held).channels["c"], held.channel.ended) == (held.channel, False)


def test_facts_after_the_end_leave_the_next_channel_of_the_name() -> None:
    """A drain that is over at the replica buries its own channel, and no other."""
    held = replica(channel_drain_s=1.0)
    gone = (SegmentClosed, 0, State.EMPTY, 0, None), (SegmentEvicted, 0, Eviction.AGE)
    held.receive(BEGIN + facts(*gone, (ChannelEnded, 1, EndReason.DELETED)))
    publish(registry_of(held), "c", 0, b"of this server")
    held.receive(_fact(SegmentEvicted, 4, 0, Eviction.AGE))
    registry_of(held).expire(200.0)
    assert not registry_of(held).channels["c"].ended


def test_more_segments_than_a_hello_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica begins anew; the owner would refuse what it says otherwise, for ever."""
    monkeypatch.setattr(replicas, "MAX_HELLO", 150)
    held = replica()
    held.receive(BEGIN + facts(*((SegmentClosed, seq, State.EMPTY, 0, None) for seq in range(9))) + SNAPSHOT_OVER)
    assert list(Parser("", float).feed(held.hello())) == [Hello("c", "", 0, ())]


def test_no_memory_is_told_as_such() -> None:
    """It is no fault of the feed."""
    held = replica(total_bytes=2000)
    with pytest.raises(OutOfMemory):
        held.receive(BEGIN + facts(*OPENED) + chunk(0, b"x" * 2000))


# Coming back.


@dataclass
class Pair:
    """An owner's channel ``c``, and a replica of it."""

    owner: Registry
    held: Replica
    feed: Feed | None = None

    def hello(self) -> Hello:
        """The connection has broken, and the replica begins again."""
        if self.feed is not None:
            self.feed.end(FeedEnd.SHUTDOWN)
        hello: list[Record] = list(Parser("", float).feed(self.held.hello()))
        assert isinstance(hello[0], Hello)
        return hello[0]

    def connect(self, hello: Hello | None = None) -> None:
        """A new feed, from what the replica has said."""
        channel = self.owner.channels["c"]
        hello = hello or self.hello()
        self.feed = Feed(channel, hello, self.owner.budget, "x", lambda at: round(at * 1e6), lambda: None)

    def carry(self, most: int = 1 << 20, *, times: int | None = None) -> None:
        """Carry the owner's records to the replica, `times` pulls at most."""
        assert self.feed is not None
        while times != 0 and (records := self.feed.pull(most)):
            self.held.receive(b"".join(records))
            times = None if times is None else times - 1


def pair(closed: Callable[[int, int, int], None] | None = None) -> Pair:
    """The two, with segment 0."""
    both = Pair(Registry(Limits(overtaking_grace_s=0.2), autocreate=True), replica(closed))
    publish(both.owner, "c", 0, b"zero")
    both.connect()
    both.carry()
    return both


def wait(both: Pair, seq: int) -> Watcher:
    """A reader that waits at the replica."""
    channel = both.held.channel
    assert channel is not None
    found = channel.resolve(seq)
    assert isinstance(found, Upcoming)
    watcher = Watcher(found.segment)
    registry_of(both.held).attach(watcher, channel, found.segment)
    return watcher


def test_a_reader_that_waits_for_the_head_stays() -> None:
    """A broken connection ends no wait: the owner has no such segment yet, and does not say that it is gone."""
    both = pair()
    watcher = wait(both, 1)
    both.connect()
    both.carry()
    assert (watcher.segment.state, watcher.wakes) == (State.WAITING, 0)
    publish(both.owner, "c", 1, b"one")
    both.carry()
    assert content(watcher.segment) == b"one"


def test_a_replica_that_is_of_no_start_begins_anew() -> None:
    """What it has may be wrong, though the owner has as many bytes."""
    both = pair()
    both.held.instance = ""
    both.connect()
    assert both.feed is not None
    (begin, *_) = Parser("", float).feed(b"".join(both.feed.pull(1)))
    assert isinstance(begin, Begin)
    assert begin.fresh


def test_a_copy_is_followed_as_long_as_it_is_settled() -> None:
    """When its owner begins anew its followers must, too; what it does not know for sure is told to nobody."""
    both = Pair(Registry(Limits(), autocreate=True), replica())
    copy = both.owner.replicate("c", 1, 0.0, copied=True)
    source = replica()
    source.channel = copy
    both.connect()
    assert both.feed is not None
    assert both.feed.over is FeedEnd.LAG
    source.receive(record(Begin("x", 1, False)) + SNAPSHOT_OVER)
    both.connect()
    both.carry()
    source.receive(facts(*OPENED) + chunk(0, b"zero"))
    both.carry()
    source.receive(_fact(SegmentClosed, 3, 0, State.COMPLETE, 4, None))
    both.carry()
    held = both.held.channel
    assert held is not None
    assert (held.facts, held.segments[0].state, content(held.segments[0])) == (3, State.COMPLETE, b"zero")
    source.hello()
    source.receive(record(Begin("x", 1, False)) + _fact(HeadJumped, 0, 1))
    assert both.feed.over is FeedEnd.LAG


def test_a_reader_that_leaves_while_the_snapshot_comes() -> None:
    """The segment that it waited for is gone here before the owner says so."""
    both = pair()
    watcher = wait(both, 1)
    hello = both.hello()
    channel = both.held.channel
    assert channel is not None
    registry_of(both.held).detach(watcher, channel, watcher.segment)
    both.connect(hello)
    both.carry()
    assert both.held.live


def test_a_reader_that_comes_while_the_snapshot_comes() -> None:
    """It waits for a segment that the owner has let go of meanwhile, which nothing in the snapshot names."""
    both = pair()
    hello = both.hello()
    watcher = wait(both, 1)
    publish(both.owner, "c", 2, b"two")
    both.owner.expire(10.0)
    both.connect(hello)
    both.carry()
    assert watcher.segment.state is State.SKIPPED


def test_a_segment_that_is_awaited_below_the_head() -> None:
    """Its readers wait on, and get it if its publisher comes."""
    both = pair()
    watcher = wait(both, 1)
    hello = both.hello()
    publish(both.owner, "c", 2, b"two")
    both.connect(hello)
    both.carry()
    assert watcher.segment.state is State.WAITING
    publish(both.owner, "c", 1, b"one")
    both.carry()
    assert content(watcher.segment) == b"one"


def test_a_snapshot_of_a_large_window_takes_no_turn_for_long() -> None:
    """The facts about closed segments are made when the replica takes them, about 64 kB at a time."""
    both = Pair(Registry(Limits(window_segments=2000), autocreate=True), replica())
    for seq in range(2000):
        publish(both.owner, "c", seq, b"x")
    made = 0
    facts_about = Feed._facts_about

    def count(feed: Feed, segment: Segment) -> Iterator[Fact]:
        nonlocal made
        made += 1
        return facts_about(feed, segment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feed, "_facts_about", count)
        both.connect()
        assert made == 0
        both.carry(64 << 10, times=1)
        assert 0 < made < 300
    both.carry(64 << 10)
    channel = both.held.channel
    assert channel is not None
    assert (len(channel.segments), both.held.live) == (2000, True)


def test_the_connection_breaks_between_the_opening_and_the_first_byte() -> None:
    """The segment is open here without a byte; the owner opens it again, or says that it is gone."""
    both = pair()
    writer = grant(both.owner, "c", 1)
    writer.channel.append(writer, [b"abc"], 1.0)
    both.carry(1, times=2)  # the two facts, and none of the bytes
    channel = both.held.channel
    assert channel is not None
    opened = channel.segments[1]
    assert (opened.state, opened.size) == (State.OPEN, 0)
    both.connect()
    both.carry()
    assert content(opened) == b"abc"


def test_an_open_segment_without_a_byte_that_is_gone() -> None:
    """It is closed here, so that no reader waits for it, and leaves."""
    both = pair()
    writer = grant(both.owner, "c", 1)
    writer.channel.append(writer, [b"abc"], 1.0)
    both.carry(1, times=2)
    channel = both.held.channel
    assert channel is not None
    opened = channel.segments[1]
    hello = both.hello()
    writer.channel.finish(writer, (), 1.0)
    both.owner.limits = Limits(window_segments=1)
    writer.channel.window._limits = both.owner.limits
    publish(both.owner, "c", 2, b"two")
    both.connect(hello)
    both.carry()
    assert (opened.state, list(channel.segments)) == (State.TRUNCATED, [2])


def test_a_publisher_that_has_left_meanwhile() -> None:
    """A reservation is no more at the replica, either."""
    both = pair()
    writer = grant(both.owner, "c", 1)
    both.carry()
    hello = both.hello()
    writer.channel.abort(writer, 1.0)
    both.connect(hello)
    both.carry()
    assert both.held.channel is not None
    assert both.held.channel.statistics().preconnected_seqs == ()


def test_a_body_without_a_byte_whose_successor_had_no_key() -> None:
    """The replica forgets the key of the body that left nothing, as the owner has."""
    both = pair()
    first = grant(both.owner, "c", 1, key="left nothing")
    both.carry()
    hello = both.hello()
    first.channel.abort(first, 1.0)
    second = grant(both.owner, "c", 1)
    second.channel.append(second, [b"x"], 1.0)
    second.channel.abort(second, 1.0)
    grant(both.owner, "c", 1, key="goes on")
    both.connect(hello)
    both.carry()
    assert both.held.channel is not None
    segment = both.held.channel.segments[1]
    assert (segment.key, segment.body_at, segment.former_keys) == ("goes on", 1, ())


@pytest.mark.parametrize("size", [1, 100])
def test_a_replica_with_other_bytes_begins_anew(size: int) -> None:
    """The owner sends the channel anew to a replica that claims bytes which the owner does not have."""
    both = pair()
    hello = both.hello()
    wrong = hello._replace(have=(hello.have[0]._replace(size=size),))
    before = both.held.channel
    both.connect(wrong)
    both.carry()
    assert both.held.channel is not before
    assert both.held.channel is not None
    assert content(both.held.channel.segments[0]) == b"zero"


def test_a_channel_that_is_here_keeps_its_numbering_and_times() -> None:
    """A second snapshot says them again, and readers meanwhile are told what they know."""
    both = pair()
    channel = both.held.channel
    assert channel is not None
    life, active_at = channel.life, channel.active_at
    both.connect()
    both.carry(1, times=2)  # BEGIN and ChannelCreated
    assert (channel.life, channel.active_at) == (life, active_at)


def test_a_replica_knows_the_numberings_before_anything_else() -> None:
    """All at once, so that no reader is told of a part of them; also without a byte since the owner's restart."""
    registry = Registry(Limits(), autocreate=True, instance="now")
    lives = (("a", 0), ("b", 5), ("c", 7))
    restored = registry.restore(Restored("c", 1, "", 9, 0.0, "", lives), 0.0)
    both = Pair(registry, replica())
    both.connect()
    both.carry(1, times=1)  # BEGIN
    channel = both.held.channel
    assert channel is not None
    assert (channel.lives, channel.told(Life("a"), 9)) == (lives, Life("c", 5))
    both.carry()
    assert (channel.life, channel.lives, channel.life_of(8)) == (Life("c"), lives, Life("c", 7))
    publish(registry, "c", 9)
    both.carry()
    assert (channel.life, channel.lives) == (Life("now.1", 9), (*lives, ("now.1", 9)))
    assert (restored.life, restored.lives) == (channel.life, channel.lives)


def test_an_owner_that_names_no_numberings_leaves_those_that_are_known() -> None:
    """It does not know this, and tells the present one as a fact."""
    held = replica()
    held.receive(record(Begin("x", 1, True, (("a", 0),))) + _fact(ChannelCreated, 0, "", "a"))
    held.receive(_fact(NumberingNamed, 0, "b", 5))
    held.hello()
    held.receive(record(Begin("x", 1, False)))
    assert held.channel is not None
    assert held.channel.lives == (("a", 0), ("b", 5))


def test_a_fact_of_another_kind_is_told_to_the_replica_as_such() -> None:
    """The core's error is the feed's: those who follow have one to ask for."""
    held = replica()
    held.receive(BEGIN)
    assert held.channel is not None
    with pytest.raises(LocalProtocolError):
        held.channel.apply(BodyLeft(0, 1, 0.0, "c", 1, 3))
    with pytest.raises(FeedError):
        held.receive(facts((BodyLeft, 3)))


def test_a_feed_that_ends_while_others_are_told_of_a_fact() -> None:
    """It takes the fact no more, and leaves no cursor in the segment."""
    both = pair()
    assert both.feed is not None
    both.owner.journal.subscribe(lambda fact: both.feed.evict() if both.feed else None, SegmentOpened)
    writer = grant(both.owner, "c", 1)
    writer.channel.append(writer, [b"x"], 1.0)
    assert (both.feed.over, writer.segment.taps, writer.channel.followers) == (FeedEnd.LAG, (), ())


def test_a_replica_that_is_let_go_where_its_channel_goes_on_tells_nobody_of_an_end() -> None:
    """Its readers are sent away first, and nothing is left of it; another epoch at the owner is such a case, too."""
    left: list[object] = []
    registry = Registry(Limits(), autocreate=True)
    held = Replica("c", registry, lambda: 7.0, lambda at_us: at_us / 1e6, leave=left.append)
    held.hello()
    held.receive(BEGIN + SNAPSHOT_OVER)
    first = held.channel
    held.hello()
    held.receive(record(Begin("x", 2, True)))
    assert (left, registry.channels) == ([first], {"c": held.channel})
    held.end()
    held.end()
    assert (left[1:], registry.channels) == ([held.channel], {})


# Checksums.


def test_each_closed_segment_is_checked_and_told() -> None:
    """Also those whose bytes come by several feeds, and those without a byte."""
    told: list[tuple[int, int, int]] = []
    both = pair(lambda *about: told.append(about))
    assert both.hello().checksums
    both.connect()
    writer = grant(both.owner, "c", 1)
    writer.channel.append(writer, [b"o", b"n"], 1.0)
    both.carry()
    writer.channel.append(writer, [b"e " * 9], 1.0)
    both.connect()
    both.carry(8)
    writer.channel.finish(writer, [b"!"], 2.0)
    both.connect()
    both.carry(8)
    publish(both.owner, "c", 2, b"")
    both.carry()
    whole = b"on" + b"e " * 9 + b"!"
    assert told == [(0, 4, crc32(b"zero")), (1, len(whole), crc32(whole)), (2, 0, 0)]


def test_no_checksums_for_those_who_do_not_ask() -> None:
    """Neither side counts."""
    both = pair()
    assert not both.hello().checksums
    both.connect()
    publish(both.owner, "c", 1, b"one")
    assert both.feed is not None
    assert b"crc" not in b"".join(map(bytes, both.feed.pull(1 << 20)))


def test_other_bytes_are_a_wrong_feed() -> None:
    """The segment does not close here, and nobody is told of it."""
    told: list[object] = []
    held = replica(lambda *about: told.append(about))
    opened = BEGIN + SNAPSHOT_OVER + facts(*OPENED) + chunk(0, b"x")
    fact = SegmentClosed(0, 3, 0.0, "c", 1, 0, State.COMPLETE, 1, None)
    with pytest.raises(FeedError, match="segment 0 has other bytes here than at its owner"):
        held.receive(opened + fact_record(fact, round, crc32(b"y")))
    assert held.channel is not None
    assert (told, held.channel.segments[0].state) == ([], State.OPEN)


def test_an_owner_that_sends_no_checksums_is_believed() -> None:
    """Those who ask are told the checksum of what is here."""
    told: list[object] = []
    held = replica(lambda *about: told.append(about))
    opened = BEGIN + SNAPSHOT_OVER + facts(*OPENED) + chunk(0, b"x")
    held.receive(opened + _fact(SegmentClosed, 3, 0, State.COMPLETE, 1, None))
    assert told == [(0, 1, crc32(b"x"))]


def test_a_segment_that_was_here_before_is_checked_as_a_whole() -> None:
    """A channel that this server has owned, and has handed over, has bytes that no feed has brought."""
    told: list[object] = []
    before = pair()
    writer = grant(before.owner, "c", 1)
    writer.channel.append(writer, [b"o"], 1.0)
    silent = grant(before.owner, "c", 2)
    silent.channel.append(silent, [b"t"], 1.0)
    before.carry()
    registry, channel = registry_of(before.held), before.held.channel
    assert channel is not None
    held = Replica("c", registry, lambda: 7.0, lambda at: at / 1e6, closed=lambda *about: told.append(about))
    held.take(channel, "x")
    both = Pair(before.owner, held, before.feed)
    both.connect()
    both.carry()
    writer.channel.finish(writer, [b"ne"], 2.0)
    silent.channel.finish(silent, [], 2.0)
    both.carry()
    assert told == [(1, 3, crc32(b"one")), (2, 1, crc32(b"t"))]


def test_a_segment_that_the_owner_has_lost_has_no_checksum() -> None:
    """It was open here, and has left the owner's window meanwhile: it closes here as it is."""
    told: list[object] = []
    both = pair(lambda *about: told.append(about))
    writer = grant(both.owner, "c", 1)
    writer.channel.append(writer, [b"one"], 1.0)
    both.carry()
    hello = both.hello()
    writer.channel.append(writer, [b" more"], 1.0)
    writer.channel.finish(writer, [], 2.0)
    writer.channel.window.clear()
    del writer.channel.segments[1]
    both.connect(hello)
    both.carry()
    assert told[1:] == [(1, 3, crc32(b"one"))]
