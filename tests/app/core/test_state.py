"""The state of a channel: what readers are told of it, and the facts that change it."""

from __future__ import annotations

import pytest

from tests.app.core.support import Bench, Shelf, Watcher, content, cost
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
    PlaylistMarked,
    SegmentAwaited,
    SegmentClosed,
    SegmentEvicted,
    SegmentForgotten,
    SegmentOpened,
)
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.results import Ahead, Cause, Ended, Gone
from tricklecast.app.core.segment import Faults, State, encode_frame
from tricklecast.app.core.state import MAX_LIVES, Channel, ChannelStatistics, Lives, Ready, Upcoming
from tricklecast.app.core.window import Budget, Eviction
from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.wire import Life

# Reading (section 4).


@pytest.mark.parametrize(
    ("asked", "resolved"), [(-1, 5), (-2, 4), (-3, 3), (-4, 2), (-5, 2), (-999, 2), (5, 5), (4, 4), (2, 2)]
)
def test_negative_seqs_count_from_the_head(asked: int, resolved: int) -> None:
    """-1 is the head, -2 the newest started segment, -N lies N - 1 before the head but not before what is kept."""
    bench = Bench(window_segments=3)
    for seq in range(5):
        bench.publish(seq)
    resolution = bench.channel.resolve(asked)
    assert isinstance(resolution, Ready | Upcoming)
    assert (resolution.segment.seq, resolution.head) == (resolved, 5)
    assert isinstance(resolution, Upcoming) == (resolved == 5)


@pytest.mark.parametrize("asked", [-1, -2, -3, -50, 0])
def test_before_the_first_byte_all_ways_lead_to_segment_0(asked: int) -> None:
    """Where nothing was written, every negative seq waits for the first segment."""
    resolution = Bench().channel.resolve(asked)
    assert isinstance(resolution, Upcoming)
    assert (resolution.segment.seq, resolution.head) == (0, 0)


@pytest.mark.parametrize(
    ("head", "asked", "answer"),
    [(0, 1, Upcoming), (0, 2, Ahead), (1, 1, Upcoming), (1, 2, Ahead), (3, 4, Ahead), (3, 3, Upcoming)],
)
def test_a_reader_may_wait_for_the_head_only(head: int, asked: int, answer: type) -> None:
    """Beyond the head there is nothing to wait for, but for seq 1 of a new channel."""
    bench = Bench()
    for seq in range(head):
        bench.publish(seq)
    resolution = bench.channel.resolve(asked)
    assert isinstance(resolution, answer)
    if isinstance(resolution, Ahead):
        assert (resolution.seq, resolution.head, resolution.earliest) == (asked, head, 0)


def test_a_preconnected_segment_beyond_the_head_can_be_waited_for() -> None:
    """A preconnect says that the segment will come."""
    bench = Bench()
    bench.publish(0)
    bench.reserve(2)
    watcher = bench.wait(2)
    assert watcher.segment is bench.channel.segments[2]


def test_what_left_the_window_is_gone() -> None:
    """An evicted segment is told from one that is still to come, with the oldest that can be had."""
    bench = Bench(window_segments=2)
    for seq in range(4):
        bench.publish(seq)
    assert bench.channel.resolve(1) == Gone(1, 4, 2, 1, 2)


def test_a_reader_is_told_where_a_hole_ends() -> None:
    """While older segments are kept, the oldest one says nothing about that."""
    bench = Bench()
    bench.publish(0)
    bench.publish(20, reset=True)
    assert bench.channel.resolve(3) == Gone(3, 21, 0, 1, 20)
    bench.channel.end(EndReason.DELETED, 0.0)
    assert bench.channel.resolve(3) == Gone(3, 21, 0, 1, 20)


def test_what_comes_after_a_segment() -> None:
    """The next one that can be read or waited for, and how many are missing before it; or the end."""
    bench = Bench()
    bench.publish(0)
    bench.publish(1)
    bench.publish(20, reset=True)
    found, missed = bench.channel.after(0)
    assert isinstance(found, Ready)
    assert (found.segment.seq, missed) == (1, 0)
    found, missed = bench.channel.after(1)
    assert isinstance(found, Ready)
    assert (found.segment.seq, missed) == (20, 18)
    bench.channel.end(EndReason.DELETED, 0.0)
    found, missed = bench.channel.after(20)
    assert isinstance(found, Ended)
    assert missed == 0


def test_a_hole_is_gone_until_its_writer_comes() -> None:
    """A seq that was passed by is gone for readers; once its publisher has connected it can be waited for."""
    bench = Bench(overtaking_grace_s=0.0)
    bench.publish(1)
    assert bench.channel.resolve(0) == Gone(0, 2, 1, 1, 1)
    bench.reserve(0)
    assert bench.wait(0).segment.seq == 0


def test_an_open_segment_is_served_at_once() -> None:
    """The live edge is read while it is being written."""
    bench = Bench()
    bench.open(0, b"abc")
    assert content(bench.serve(-2)) == b"abc"


def test_the_oldest_open_segment_counts_as_earliest() -> None:
    """An open segment that is older than the window is the channel's earliest seq."""
    bench = Bench()
    bench.open(0)
    assert bench.channel.earliest == 0
    bench.publish(1)
    assert bench.channel.earliest == 0


def test_readers_are_counted_and_forgotten_at_once() -> None:
    """A waiting reader that leaves takes the segment along, unless another one waits."""
    bench = Bench()
    first, second = bench.wait(-1), bench.wait(-1)
    segment = first.segment
    assert bench.channel.reading.used == 2
    bench.channel.detach(first, segment)
    assert bench.states == {0: "waiting"}
    bench.channel.detach(second, segment)
    assert (bench.channel.reading.used, bench.states) == (0, {})


def test_releasing_twice_does_no_harm() -> None:
    """A reader that has left may leave again; the readers that now wait for a new segment of that seq stay."""
    bench = Bench()
    resolution = bench.channel.resolve(-1)
    assert isinstance(resolution, Upcoming)
    bench.channel.release(resolution.segment)
    bench.channel.release(resolution.segment)
    watcher = bench.wait(-1)
    bench.channel.release(resolution.segment)
    assert bench.channel.segments[0] is watcher.segment


def test_the_audience_is_counted_as_people_do() -> None:
    """A client that reads a segment and waits for the next one counts once; players of HLS come on top."""
    bench = Bench()
    assert bench.channel.audience == 0
    writer = bench.reserve(0)
    bench.channel.append(writer, [b"x"], 0.0)
    reading, waiting = bench.channel.resolve(0), bench.channel.resolve(1)
    assert isinstance(reading, Ready)
    assert isinstance(waiting, Upcoming)
    for found, number in ((reading, 3), (waiting, 4)):
        for _ in range(number):
            bench.channel.attach(Watcher(found.segment), found.segment)
    assert (bench.channel.reading.used, bench.channel.audience) == (7, 4)
    bench.channel.players_beside = 2
    assert bench.channel.audience == bench.channel.statistics().readers == 6


def test_a_preconnect_keeps_its_segment_when_readers_leave() -> None:
    """The segment of a writer is not a reader's to forget."""
    bench = Bench()
    bench.reserve(0)
    watcher = bench.wait(0)
    bench.channel.detach(watcher, watcher.segment)
    assert bench.states == {0: "waiting"}


def test_a_reader_is_woken_by_bytes_and_by_the_end() -> None:
    """A waiting reader hears of the first byte, of each arrival and of the end, and of nothing after that."""
    bench = Bench()
    watcher = bench.wait(-1)
    writer = bench.open(0)
    bench.channel.append(writer, [b"y"], 0.0)
    assert (watcher.wakes, watcher.saw_close) == (2, False)
    bench.channel.finish(writer, [b"z"], 0.0)
    assert (watcher.wakes, watcher.saw_close, content(watcher.segment)) == (3, True, b"xyz")


def test_a_reader_of_a_closed_segment_is_not_woken() -> None:
    """There is nothing more to wake it for; it is known as long as it reads, since it keeps the bytes in memory."""
    bench = Bench()
    watcher = bench.attach(bench.publish(0))
    assert (bench.channel.reading.used, list(watcher.segment.cursors), watcher.wakes) == (1, [watcher], 0)
    bench.channel.detach(watcher, watcher.segment)
    assert (bench.channel.reading.used, watcher.segment.cursors) == (0, {})


# Statistics.


def test_a_new_channel_is_empty() -> None:
    """A channel to which nothing was published has a head of 0 and counts nothing."""
    assert Bench("c", "video/mp2t").channel.statistics() == ChannelStatistics(
        name="c",
        epoch=1,
        content_type="video/mp2t",
        ended=False,
        next_seq=0,
        created_at=0.0,
        active_at=0.0,
        segments=0,
        bytes=0,
        earliest=0,
        cost=0,
        evicted=dict.fromkeys(Eviction, 0),
        open_seqs=(),
        writing_seqs=(),
        preconnected_seqs=(),
        readers=0,
        bytes_in=0,
        bytes_out=0,
    )


def test_a_busy_channel_is_counted() -> None:
    """Kept, open, orphaned and preconnected segments are told apart, in ascending order."""
    bench = Bench()
    bench.publish(0, b"abc", now=1.0)
    bench.orphan(1, b"de", now=2.0)
    bench.open(2, b"f", now=3.0)
    bench.reserve(4)
    bench.reserve(3)
    bench.wait(-1)
    bench.channel.bytes_out = 9
    statistics = bench.channel.statistics()
    assert (statistics.segments, statistics.bytes, statistics.earliest, statistics.next_seq) == (1, 3, 0, 3)
    assert statistics.cost == cost(b"abc")
    assert (statistics.open_seqs, statistics.writing_seqs, statistics.preconnected_seqs) == ((1, 2), (2,), (3, 4))
    assert (statistics.readers, statistics.bytes_in, statistics.bytes_out) == (1, 6, 9)
    assert (statistics.created_at, statistics.active_at, statistics.ended) == (0.0, 3.0, False)


def test_a_picture_does_not_change() -> None:
    """A picture stays what it was, whatever the channel does afterwards."""
    bench = Bench(window_segments=1)
    bench.publish(0)
    bench.publish(1)
    statistics = bench.channel.statistics()
    bench.publish(2)
    bench.channel.end(EndReason.DELETED, 1.0)
    assert (statistics.next_seq, statistics.ended) == (2, False)
    assert statistics.evicted == dict.fromkeys(Eviction, 0) | {Eviction.COUNT: 1}
    assert bench.channel.statistics().ended


def test_what_storage_keeps_is_served_below_the_window() -> None:
    """The window comes first; what neither has is gone, with the next seq that one of them has."""
    bench = Bench(window_segments=2)
    for seq in range(8):
        bench.publish(seq, b"w")
    channel = bench.channel
    channel.retained = Shelf(1, 2, 4, 6)
    assert [content(bench.serve(seq)) for seq in (1, 2, 4, 6, 7)] == [b"k", b"k", b"k", b"w", b"w"]
    assert channel.resolve(0) == Gone(0, 8, 1, 1, 1, channel.life)
    assert channel.resolve(3) == Gone(3, 8, 1, 1, 4, channel.life)
    assert channel.resolve(5) == Gone(5, 8, 1, 1, 6, channel.life)
    assert channel.earliest == 1
    assert bench.serve(-8).seq == 1
    channel.retained = Shelf()
    assert channel.earliest == 6
    assert channel.resolve(0) == Gone(0, 8, 6, 1, 6, channel.life)


def test_what_can_be_read_is_listed() -> None:
    """Storage's before the window's, each once, from a seq and a time on; what is being written is last."""
    bench = Bench(window_segments=2)
    for seq in range(5):
        bench.publish(seq, now=float(seq))
    bench.open(5, now=9.0)
    bench.wait(6)
    channel = bench.channel

    def listed(seq: int = 0, since_s: float = 0.0) -> list[int]:
        return [one.seq for one in channel.listed(seq, round(since_s * 1e6), lambda at: round(at * 1e6))]

    assert listed() == [3, 4, 5]
    channel.retained = Shelf(1, 2, 3)
    assert listed() == [1, 2, 3, 4, 5]
    assert [one.crc for one in channel.listed(0, 0, round)] == [1, 2, 3, None, None], "as far as storage knows them"
    assert listed(2) == [2, 3, 4, 5]
    assert listed(since_s=3.5) == [4, 5]
    assert listed(since_s=100.0) == [5]
    (last,) = channel.listed(5, 0, lambda at: round(at * 1e6))
    assert (last.state, last.size, last.opened_us, last.closed_us) == (State.OPEN, 1, 9_000_000, None)


def test_forgetting_frees_all_that_is_kept() -> None:
    """After the drain nothing is held any more."""
    bench = Bench()
    segment = bench.publish(0, b"abc")
    bench.channel.end(EndReason.DELETED, 0.0)
    bench.channel.forget()
    assert (bench.states, bench.budget.used, content(segment)) == ({}, 0, b"abc")


def test_a_channel_shows_what_it_is() -> None:
    """A channel's text names it, its epoch, its head and whether it has ended."""
    bench = Bench("film")
    bench.publish(0)
    assert repr(bench.channel) == "<Channel 'film'.1 head 1>"
    bench.channel.end(EndReason.DELETED, 0.0)
    assert repr(bench.channel) == "<Channel 'film'.1 head 1 ended>"


# A second holder.


@pytest.mark.parametrize(("number", "epoch"), [(3, 1), (1, 1), (2, 2)])
def test_only_the_next_fact_of_the_same_life_is_applied(number: int, epoch: int) -> None:
    """One that is missing, comes twice, or belongs to another epoch changes nothing."""
    bench = Bench("c", "")
    channel = bench.channel
    channel.name_content_type("video/mp2t", 0.0)
    with pytest.raises(LocalProtocolError, match=f"has 1 facts: fact {number} of epoch {epoch} is not the next one"):
        channel.apply(HeadJumped(9, number, 0.0, "c", epoch, 7))
    assert channel.next_seq == 0


def test_a_mark_of_the_playlist_is_kept() -> None:
    """The newest one."""
    channel = Bench("c", "").channel
    for number, mark in enumerate(("one", "two"), 1):
        channel.apply(PlaylistMarked(0, number, 0.0, "c", 1, mark))
        assert channel.playlist == mark


def test_a_fact_about_a_segment_that_is_not_there_is_refused() -> None:
    """Its holder has missed something."""
    bench = Bench("c", "")
    with pytest.raises(LocalProtocolError, match="a fact or bytes are missing"):
        bench.channel.apply(SegmentOpened(1, 1, 0.0, "c", 1, 7))


BEGUN = BodyBegun(0, 1, 0.0, "c", 1, 0, None, 0)
OPENED = SegmentOpened(0, 2, 0.0, "c", 1, 0)
EMPTY = SegmentClosed(0, 1, 0.0, "c", 1, 0, State.EMPTY, 0, None)


@pytest.mark.parametrize(
    ("before", "fact"),
    [
        ([EMPTY], BodyBegun(0, 2, 0.0, "c", 1, 0, None, 0)),
        ([BEGUN, OPENED], SegmentForgotten(0, 3, 0.0, "c", 1, 0)),
        ([BEGUN, OPENED], SegmentClosed(0, 3, 0.0, "c", 1, 0, State.COMPLETE, 1, None)),
        ([BEGUN, OPENED], SegmentEvicted(0, 3, 0.0, "c", 1, 0, Eviction.AGE)),
        ([BEGUN, OPENED], ChannelEnded(0, 3, 0.0, "c", 1, 1, EndReason.IDLE)),
        ([], BodyLeft(0, 1, 0.0, "c", 1, 7)),
        ([], SegmentEvicted(0, 1, 0.0, "c", 1, 7, Eviction.AGE)),
        ([], SegmentClosed(0, 1, 0.0, "c", 1, 7, State.OPEN, 0, None)),
        ([ChannelEnded(0, 1, 0.0, "c", 1, 0, EndReason.IDLE)], BodyBegun(0, 2, 0.0, "c", 1, 0, None, 0)),
    ],
)
def test_a_fact_that_does_not_fit_changes_nothing(before: list[Fact], fact: Fact) -> None:
    """Another one, or bytes, must have come between."""
    faults = Faults()
    holder = Channel("c", 1, "", 0.0, Life("n.1"), Limits(), Budget(10**6, faults), faults)
    for earlier in before:
        holder.apply(earlier)
    statistics, states = holder.statistics(), [(one.state, one.written) for one in holder.segments.values()]
    with pytest.raises(LocalProtocolError, match="a fact or bytes are missing"):
        holder.apply(fact)
    assert (holder.statistics(), [(one.state, one.written) for one in holder.segments.values()]) == (statistics, states)


def test_what_a_snapshot_says_may_have_happened_here() -> None:
    """A reservation that is gone, a segment that is open or evicted already: each is no news."""
    faults = Faults()
    holder = Channel("c", 1, "", 0.0, Life("n.1"), Limits(), Budget(10**6, faults), faults)
    holder.apply(BodyLeft(0, 0, 0.0, "c", 1, 7))
    for _ in range(2):
        holder.apply(BodyBegun(0, 0, 0.0, "c", 1, 3, None, 0))
        holder.apply(SegmentOpened(0, 0, 0.0, "c", 1, 3))
    holder.apply(HeadJumped(0, 0, 0.0, "c", 1, 2))
    holder.apply(SegmentEvicted(0, 0, 0.0, "c", 1, 1, Eviction.AGE))
    for name in ("n.1", "n.2"):
        holder.apply(ChannelCreated(0, 0, 5.0, "c", 1, "", name))
    assert (list(holder.segments), holder.floor, holder.created_at) == ([3], 2, 5.0)
    assert holder.life == Life("n.2")


def test_readers_below_the_head_wait_for_what_the_owner_awaits() -> None:
    """After a snapshot the others are told that their segment was skipped."""
    faults = Faults()
    holder = Channel("c", 1, "", 0.0, Life("n.1"), Limits(), Budget(10**6, faults), faults)
    found = holder.resolve(0)
    assert isinstance(found, Upcoming)
    watcher = Watcher(found.segment)
    holder.attach(watcher, found.segment)
    holder.apply(SegmentClosed(0, 0, 0.0, "c", 1, 4, State.EMPTY, 0, None))
    holder.apply(SegmentAwaited(0, 0, 0.0, "c", 1, 2))
    holder.go_live(9, 0, (2, 0), 1.0)
    assert (sorted(holder.segments), watcher.segment.state) == ([0, 2, 4], State.WAITING)
    holder.go_live(9, 0, (2,), 1.0)
    assert (sorted(holder.segments), watcher.segment.state) == ([2, 4], State.SKIPPED)


def test_a_follower_may_leave_when_it_hears_of_a_fact() -> None:
    """It is told no more, and the others are told of that fact all the same."""
    bench = Bench()
    heard: list[str] = []

    def leaves(fact: Fact) -> None:
        heard.append("left")
        bench.channel.unfollow(leaves)

    bench.channel.follow(leaves)
    bench.channel.follow(lambda fact: heard.append("stayed"))
    bench.publish(0)
    assert heard == ["left", *["stayed"] * len(bench.facts)]


@pytest.mark.interpreted
def test_segments_that_the_owner_awaits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No budget counts them."""
    monkeypatch.setattr(state, "MAX_AWAITED", 2)
    faults = Faults()
    holder = Channel("c", 1, "", 0.0, Life("n.1"), Limits(), Budget(10**6, faults), faults)
    for seq in (1, 2):
        holder.apply(SegmentAwaited(0, seq, 0.0, "c", 1, seq))
    with pytest.raises(LocalProtocolError, match="more than 2 segments wait"):
        holder.apply(SegmentAwaited(0, 3, 0.0, "c", 1, 3))
    assert (len(holder.segments), holder.facts) == (2, 2)


def test_facts_and_bytes_rebuild_a_channel() -> None:
    """Another holder of the channel answers its readers as the owner does, and wakes them as the owner would."""
    owner = Bench("c", "", window_segments=2, overtaking_grace_s=0.2)
    twin = Bench("c", "", window_segments=2).channel
    twin.apply(ChannelCreated(0, 1, 0.0, "c", 1, "", "n.1"))
    twin.facts = 0
    owner.channel.name_content_type("video/mp2t", 0.0)
    owner.publish(0, b"x", key="k")
    owner.channel.abort(owner.reserve(1), 0.0)
    owner.open(2, b"abc")
    owner.channel.expire(0.2)
    owner.publish(9, b"", reset=True)
    owner.open(11, b"eleven")
    owner.open(10, b"ten")
    owner.reserve(12)
    owner.channel.end(EndReason.DELETED, 9.0)
    waiting = twin.resolve(1)
    assert isinstance(waiting, Upcoming)
    watchers = [Watcher(waiting.segment)]
    twin.attach(watchers[0], waiting.segment)
    written = {0: b"x", 2: b"abc", 10: b"ten", 11: b"eleven"}
    for fact in owner.facts:
        twin.apply(fact)
        if type(fact) is SegmentOpened:
            frame = encode_frame([written[fact.seq]])
            assert twin.bytes_stored(twin.segments[fact.seq], frame, len(written[fact.seq]), len(frame))
    assert (twin.next_seq, twin.floor, twin.ended, twin.content_type) == (12, owner.channel.floor, True, "video/mp2t")
    assert {seq: segment.state for seq, segment in twin.segments.items()} == {
        seq: segment.state for seq, segment in owner.channel.segments.items()
    }
    assert [watcher.segment.state for watcher in watchers] == [State.SKIPPED]


def test_bytes_for_which_there_is_no_memory_change_nothing() -> None:
    """The holder is told, and has what it had."""
    bench = Bench(total_bytes=1000)
    segment = bench.reserve(0).segment
    frame = encode_frame([b"x" * 1000])
    assert not bench.channel.bytes_stored(segment, frame, 1000, segment.price(frame))
    assert (segment.size, bench.channel.bytes_in, bench.budget.used) == (0, 0, 0)


def test_a_holder_that_is_not_the_owner_evicts_only_what_is_closed() -> None:
    """Where its memory is short it lets go of what it keeps, and cuts nothing that somebody else decides about."""
    faults = Faults()
    budget = Budget(2000, faults)
    holder = Channel("c", 1, "", 0.0, Life("n.1"), Limits(), budget, faults)
    other = Channel("d", 1, "", 0.0, Life("n.1"), Limits(), budget, faults)
    for number, fact in enumerate(
        (
            BodyBegun(0, 1, 0.0, "c", 1, 0, None, 0),
            SegmentClosed(0, 2, 0.0, "c", 1, 0, State.EMPTY, 0, None),
            NumberingNamed(0, 3, 0.0, "c", 1, "n.1", 0),
            BodyBegun(0, 4, 0.0, "c", 1, 1, None, 0),
            SegmentOpened(0, 5, 0.0, "c", 1, 1),
        ),
        1,
    ):
        holder.apply(fact)
        assert holder.facts == number
    segment, frame = holder.segments[1], encode_frame([b"x" * 600])
    assert holder.life == Life("n.1", 0)
    assert holder.bytes_stored(segment, frame, 600, segment.price(frame))
    assert (sorted(holder.segments), holder.floor, holder.window.evicted[Eviction.BUDGET]) == ([1], 1, 1)
    other.apply(BodyBegun(0, 1, 0.0, "d", 1, 0, None, 0))
    frame = encode_frame([b"x" * 500])
    assert not other.bytes_stored(other.segments[0], frame, 500, other.segments[0].price(frame))
    assert (segment.state, segment.size) == (State.OPEN, 600)


def test_a_channel_comes_back_after_a_restart() -> None:
    """All that lies below its head is final, and it is as old as it is."""
    channel = Bench("c", "").channel
    channel.restored(-100.0, 7, "", ())
    assert (channel.created_at, channel.next_seq, channel.floor, channel.next_deadline()) == (-100.0, 7, 7, None)
    refused = channel.refuse(Cause.CLOSED, 3)
    assert (refused.seq, refused.head, refused.epoch) == (3, 7, 1)


# Its numberings.

LIVES: Lives = (("a", 0), ("b", 5), ("c", 8))


def test_its_numberings_are_remembered_in_order() -> None:
    """The newest 64; one of which a lower segment was written is the same one."""
    channel = Bench("c", "").channel
    for number in range(70):
        channel.numbering_named(f"n{number}", 10 * number)
    assert [name for name, _ in channel.lives] == [f"n{number}" for number in range(6, 70)]
    channel.numbering_named("n69", 688)
    assert (channel.lives[-2:], channel.life) == ((("n68", 680), ("n69", 688)), Life("n69", 688))
    assert len(channel.lives) == MAX_LIVES


def test_after_a_restart_the_newest_numbering_is_known_and_may_not_go_on() -> None:
    """Where it begins is told with its segments. Without any the name is the server's own."""
    channel = Bench("c", "").channel
    channel.restored(-100.0, 9, "", LIVES)
    assert (channel.life, channel.lives) == (Life("c"), LIVES)
    assert [channel.life_of(seq) for seq in (0, 8, 9)] == [Life("c", 8), Life("c", 8), Life("c")]
    channel.numbering_named("d", 10)
    assert [channel.life_of(seq) for seq in (0, 8, 9)] == [Life("d", 10)] * 3
    alone = Bench("c", "").channel
    alone.restored(-100.0, 9, "", ())
    assert (alone.life, alone.life_of(8)) == (Life(""), Life(""))


@pytest.mark.parametrize(
    ("name", "seq", "first"),
    [
        *[("c", 9, None), ("c", 50, None), ("b", 8, None), ("b", 9, 8), ("a", 5, None), ("a", 6, 5), ("a", 50, 5)],
        *[("a", -1, None), ("a", 0, None)],
        *[("other", 9, 8), ("other", 8, 5), ("other", 3, 0), ("other", 0, None), ("other", 10, 8), ("other", 11, None)],
    ],
)
def test_a_reader_is_told_where_its_numbering_was_left(name: str, seq: int, first: int | None) -> None:
    """Of those behind its own, the lowest begins below its position; the name is that of the newest one.

    One that nobody knows was left somewhere. Until something is written, its publisher may send again what was lost.
    """
    channel = Bench("c", "").channel
    channel.restored(-100.0, 10, "", LIVES)
    assert channel.told(Life(name), seq) == (channel.life if first is None else Life("c", first))


@pytest.mark.parametrize(("first", "told"), [(None, 0), (8, 0), (9, None), (12, None)])
def test_a_lost_numbering_of_which_nothing_was_read_was_followed_by_the_present_one(
    first: int | None, told: int | None
) -> None:
    """Its reader has only segments that were kept when it began, so the server does not send them again."""
    channel = Bench("c", "").channel
    channel.restored(-100.0, 9, "", (("a", 0),))
    assert channel.told(Life("other", first), 9) == (channel.life if told is None else Life("a", told))
    channel.numbering_named("b", 9)
    assert channel.told(Life("other", first), 9) == (channel.life if told is None else Life("b", told))


def test_a_reader_is_told_of_the_lowest_numbering_that_followed_its_own() -> None:
    """That need not be the next one, nor the present one."""
    channel = Bench("c", "").channel
    channel.restored(-100.0, 10, "", (("a", 0), ("b", 8), ("c", 5)))
    assert channel.told(Life("a"), 50) == Life("c", 5)
    channel.numbering_named("d", 10)
    assert [channel.told(Life(name), 50) for name in "abcd"] == [
        Life("d", 5),
        Life("d", 5),
        Life("d", 10),
        channel.life,
    ]
    assert channel.told(Life("other"), 50) == channel.life == Life("d", 10)
    assert Bench("c", "").channel.told(Life("other"), 50) == Life("")


def test_a_reader_of_another_epoch_is_told_of_all_numberings() -> None:
    """Also where nothing was written since the restart: nobody sends again what another epoch had."""
    channel = Bench("c", "").channel
    channel.restored(-100.0, 9, "", (("b", 2), ("c", 5)))
    assert [channel.told(Life("a"), 50, epoch) for epoch in (None, 1, 7)] == [Life("c"), Life("c"), Life("c", 2)]
    channel.numbering_named("d", 9)
    assert [channel.told(Life("a"), 50, epoch) for epoch in (None, 1, 7)] == [Life("d", 9), Life("d", 9), Life("d", 2)]
    assert [channel.told(Life("b"), 50, epoch) for epoch in (1, 7)] == [Life("d", 5)] * 2, "it has gone on from there"
    assert channel.told(Life("a"), 2, 7) == channel.life, "what it wants is no later than all of them"


def test_a_reader_whose_numbers_were_written_anew_does_not_get_the_segment() -> None:
    """Nor does it wait for one. If the present numbering is all that followed, what is there says so itself."""
    bench = Bench("c", "")
    channel = bench.channel
    channel.restored(-100.0, 9, "", (("a", 0), ("b", 5)))

    def asks(name: str, seq: int) -> Ahead | None:
        found = channel.resolve(seq)
        assert not isinstance(found, Gone)
        return channel.renumbered(Life(name), seq, found)

    assert [asks("a", seq) for seq in (9, 20)] == [Ahead(seq, 9, 9, 1, Life("b", 5)) for seq in (9, 20)]
    assert not channel.segments, "nobody waits"
    assert [asks("b", 9), asks("b", 20), asks("other", 20), asks("a", -1)] == [None] * 4
    bench.publish(9)
    bench.publish(10)
    channel.numbering_named("c", 9)
    assert [asks("a", seq) for seq in (10, 11)] == [Ahead(seq, 11, 9, 1, Life("c", 5)) for seq in (10, 11)]
    assert [asks("b", seq) for seq in (9, 10, 11)] == [None, None, Ahead(11, 11, 9, 1, Life("c", 9))]


def test_an_owner_that_is_lost_ends_the_channel() -> None:
    """Open segments are cut short and stay readable, and readers that wait are told."""
    faults = Faults()
    holder = Channel("c", 1, "", 0.0, Life("n.1"), Limits(channel_drain_s=10.0), Budget(10**6, faults), faults)
    holder.apply(BodyBegun(0, 0, 0.0, "c", 1, 0, None, 0))
    holder.apply(SegmentOpened(0, 0, 0.0, "c", 1, 0))
    holder.go_live(5, 100, (), 0.0)
    frame = encode_frame([b"abc"])
    opened = holder.segments[0]
    assert holder.bytes_stored(opened, frame, 3, opened.price(frame))
    assert (holder.facts, holder.bytes_in) == (5, 103)
    found = holder.resolve(1)
    assert isinstance(found, Upcoming)
    watcher = Watcher(found.segment)
    holder.attach(watcher, found.segment)
    holder.abandon(1.0)
    assert (opened.state, watcher.segment.state, holder.ended) == (State.TERMINATED, State.TERMINATED, True)
    assert (len(holder.window), holder.next_deadline()) == (1, 11.0)


# The holder becomes the owner.


def test_all_that_a_holder_has_moves_to_the_owner() -> None:
    """Waiting readers leave; one of a closed segment finishes, and its memory is counted until then."""
    bench = Bench("c", "", window_segments=1)
    faults = Faults()
    held = Channel("c", 1, "video/mp2t", 5.0, Life("a.1", 0), bench.limits, bench.budget, faults)
    for fact in (
        BodyBegun(0, 1, 0.0, "c", 1, 0, "k", 0),
        SegmentOpened(0, 2, 6.0, "c", 1, 0),
    ):
        held.apply(fact)
    first, frame = held.segments[0], encode_frame([b"x"])
    assert held.bytes_stored(first, frame, 1, first.price(frame))
    held.apply(SegmentClosed(0, 3, 7.0, "c", 1, 0, State.COMPLETE, 1, "k"))
    held.apply(PlaylistMarked(0, 4, 7.0, "c", 1, "mark"))
    held.lives = LIVES
    finishing = Watcher(first)
    held.attach(finishing, first)
    found = held.resolve(1)
    assert isinstance(found, Upcoming)

    waiting = Watcher(found.segment)
    held.attach(waiting, found.segment)
    owner = bench.channel
    held.move_to(owner)
    assert (owner.next_seq, owner.facts, owner.life, owner.playlist) == (1, 4, Life("a.1", 0), "mark")
    assert owner.lives == LIVES
    assert (owner.content_type, owner.created_at, owner.bytes_in) == ("video/mp2t", 5.0, 1)
    assert (list(owner.segments), owner.segments[0].key, owner.reading.used) == ([0, 1], "k", 2)
    assert isinstance(held.resolve(-1), Ended), "there it is over"
    bench.publish(1)
    owner.detach(waiting, found.segment)
    assert (list(owner.segments), bench.budget.used) == ([1], cost(b"x") * 2), "its window is the owner's"
    held.detach(finishing, first)
    assert (owner.reading.used, bench.budget.used) == (0, cost(b"x"))


def test_a_first_byte_that_was_told_and_has_not_come_is_taken_back() -> None:
    """Its segment waits again; one that has a byte is as open as before."""
    channel = Bench().channel
    for seq in range(2):
        channel.apply(BodyBegun(0, 0, 1.0, channel.name, channel.epoch, seq, None, 0))
        channel.apply(SegmentOpened(0, 0, 1.0, channel.name, channel.epoch, seq))
    told, begun = channel.segments[0], channel.segments[1]
    frame = encode_frame([b"x"])
    assert channel.bytes_stored(begun, frame, 1, begun.price(frame))
    for segment in (told, begun):
        channel.take_back_opening(segment)
    assert (told.state, told.opened_at, begun.state) == (State.WAITING, 0.0, State.OPEN)
    assert told in channel.unclosed
