"""One channel: the rules of docs/reference/protocol.md, sections 3 to 5, as far as the core decides them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.core.support import Bench, Told, Watcher, content, cost, refusal
from tricklecast.app.core.facts import (
    BodyBegun,
    BodyLeft,
    ChannelEnded,
    ContentTypeNamed,
    EndReason,
    Fact,
    NumberingNamed,
    PlaylistMarked,
    SegmentAwaited,
    SegmentClosed,
    SegmentOpened,
)
from tricklecast.app.core.invariants import check_channel
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.payers import Payer
from tricklecast.app.core.publishers import Identity
from tricklecast.app.core.registry import Registry, Restored
from tricklecast.app.core.results import Ahead, AlreadyStored, Cause, Ended, Ending, Gone, Outcome, Refusal
from tricklecast.app.core.rules import STALE_TIMES, Agenda, OwnedChannel
from tricklecast.app.core.segment import FRAME_COST, SEGMENT_COST, Faults, Segment, State, Writer, encode_frame
from tricklecast.app.core.state import Channel, Upcoming
from tricklecast.app.core.window import Window
from tricklecast.trickle.wire import LAST_SEQ, Life

# The head.


def test_the_head_is_one_past_the_newest_started_segment() -> None:
    """The first byte moves the head, not the preconnect before it and not the end after it."""
    bench = Bench()
    writer = bench.reserve(0)
    assert bench.channel.next_seq == 0
    bench.channel.append(writer, [b"x"], 1.0)
    assert bench.channel.next_seq == 1
    bench.channel.finish(writer, [], 2.0)
    assert bench.channel.next_seq == 1


def test_the_head_never_goes_back() -> None:
    """An older segment that begins or ends later leaves the head where it is."""
    bench = Bench()
    older, newer = bench.reserve(0), bench.reserve(1)
    bench.channel.append(newer, [b"n"], 0.0)
    bench.channel.append(older, [b"o"], 0.0)
    bench.channel.finish(older, [], 0.0)
    assert bench.channel.next_seq == 2


def test_an_empty_segment_moves_the_head() -> None:
    """A body without a byte closes its segment as empty, and readers of the next seq wait for the next one."""
    bench = Bench()
    writer = bench.reserve(0)
    assert bench.channel.finish(writer, [], 0.0) == Outcome(Ending.EMPTY, 0)
    assert (bench.channel.next_seq, bench.states) == (1, {0: "empty"})


def test_a_content_type_is_named_once() -> None:
    """The first one that somebody names stays."""
    bench = Bench("c", "")
    for content_type in ("", "video/mp2t", "text/plain"):
        bench.channel.name_content_type(content_type, 5.0)
    assert bench.facts == [ContentTypeNamed(0, 1, 5.0, "c", 1, "video/mp2t")]
    assert bench.channel.content_type == "video/mp2t"


def test_a_playlist_is_marked_until_the_channel_ends() -> None:
    """A mark that says nothing new is no fact."""
    bench = Bench()
    for mark in ("one", "one", "two"):
        bench.channel.mark_playlist(mark, 5.0)
    told = [PlaylistMarked(0, 1, 5.0, "c", 1, "one"), PlaylistMarked(0, 2, 5.0, "c", 1, "two")]
    assert bench.facts == told
    bench.channel.end(EndReason.DELETED, 6.0)
    bench.channel.mark_playlist("three", 7.0)
    assert (bench.channel.playlist, bench.facts[:-1]) == ("two", told)


# Reserving (section 3).


@pytest.mark.parametrize(
    ("seq", "why"),
    [
        (0, Cause.CLOSED),
        (2, Cause.CLOSED),
        (3, None),
        (4, None),
        (5, Cause.AHEAD),
        (999, Cause.AHEAD),
    ],
)
def test_a_publisher_may_be_one_ahead(seq: int, why: Cause | None) -> None:
    """The head and the seq after it are granted, what is closed or lies beyond is refused, and nothing changes."""
    bench = Bench()
    for kept in range(3):
        bench.publish(kept)
    before = bench.states
    answer = bench.ask(seq)
    if why is None:
        assert isinstance(answer, Writer)
        assert answer.segment.seq == seq
    else:
        assert answer == bench.channel.refuse(why, seq)._replace(overtaking=seq == 5)
        assert bench.states == before


def test_a_resuming_publisher_may_begin_anywhere() -> None:
    """Where nothing was written in this epoch, any seq is granted, and what lies below is settled by its first byte."""
    bench = Bench()
    bench.open(50)
    assert (bench.channel.next_seq, bench.channel.floor) == (51, 50)
    assert refusal(bench.ask(49)).why is Cause.CLOSED
    assert isinstance(bench.channel.resolve(10), Gone)


def test_a_jump_by_one_leaves_a_hole_that_can_be_filled() -> None:
    """Two connections may overtake each other: seq 1 may begin before seq 0, on a new channel and later."""
    bench = Bench()
    bench.open(1)
    assert (bench.channel.next_seq, bench.channel.floor) == (2, 0)
    assert content(bench.publish(0, b"late")) == b"late"
    bench.open(3)
    assert content(bench.publish(2, b"late")) == b"late"


def test_a_reset_allows_a_jump() -> None:
    """With a reset any seq at or after the head is granted; the head moves with the first byte only."""
    bench = Bench()
    bench.publish(0)
    writer = bench.reserve(40, reset=True)
    assert bench.channel.next_seq == 1
    bench.channel.append(writer, [b"x"], 0.0)
    assert bench.channel.next_seq == 41


def test_a_reset_closes_lower_open_segments() -> None:
    """A reset truncates the open segments below it and tells their writers; higher segments and preconnects stay."""
    bench = Bench()
    old, other, newer, preconnect = bench.open(0), bench.open(1), bench.open(3), bench.reserve(4)
    watcher = bench.attach(old.segment)
    bench.reserve(2, reset=True)
    assert bench.states == {0: "truncated", 1: "truncated", 2: "waiting", 3: "open", 4: "waiting"}
    assert bench.verdicts(old) == bench.verdicts(other) == [Ending.CLOSED_BY_OTHER]
    assert bench.verdicts(preconnect) == bench.verdicts(newer) == []
    assert watcher.saw_close
    assert bench.channel.next_seq == 4


def test_a_refused_reset_closes_nothing() -> None:
    """A reset of a closed segment is a conflict and changes nothing."""
    bench = Bench()
    bench.open(0)
    bench.publish(1)
    assert refusal(bench.ask(1, reset=True)).why is Cause.CLOSED
    assert bench.states == {0: "open", 1: "complete"}


def test_next_is_resolved_and_reserved_in_one_step() -> None:
    """Concurrent POSTs of -1 never share a seq: each gets the first one at or after the head that is free."""
    bench = Bench()
    assert [bench.reserve(-1).segment.seq for _ in range(3)] == [0, 1, 2]
    bench = Bench()
    bench.publish(0)
    waiting = bench.wait(-1)
    assert bench.reserve(-1).segment is waiting.segment
    assert bench.reserve(-1).segment.seq == 2
    assert refusal(bench.ask(-1)) == Refusal(Cause.AHEAD, 3, bench.channel.next_seq, 1, overtaking=True)


def test_nothing_follows_the_last_seq() -> None:
    """Once the last seq is taken, a POST of the next one is a conflict and opens no segment."""
    bench = Bench()
    bench.publish(LAST_SEQ - 1)
    assert bench.reserve(-1).segment.seq == LAST_SEQ
    assert refusal(bench.ask(-1)) == Refusal(Cause.CLOSED, LAST_SEQ, bench.channel.next_seq, 1)
    bench.publish(LAST_SEQ)
    assert refusal(bench.ask(-1)) == Refusal(Cause.CLOSED, LAST_SEQ, bench.channel.next_seq, 1)
    assert set(bench.states) <= {LAST_SEQ - 1, LAST_SEQ}


def test_an_evicted_segment_is_closed_for_good() -> None:
    """A late POST of a seq that has left the window is a conflict, and begins nothing."""
    bench = Bench(window_segments=1)
    for seq in range(3):
        bench.publish(seq)
    assert refusal(bench.ask(1)) == Refusal(Cause.CLOSED, 1, bench.channel.next_seq, 1)


@pytest.mark.parametrize(
    ("first", "second", "stored"), [("k", "k", True), ("k", "other", False), ("k", None, False), (None, "k", False)]
)
def test_a_retry_with_the_same_key_is_stored_already(first: str | None, second: str | None, stored: bool) -> None:
    """A complete segment answers the key that wrote it; every other POST of it is a conflict."""
    bench = Bench()
    segment = bench.publish(0, b"abc", key=first)
    answer = bench.ask(0, key=second)
    refused = Refusal(Cause.CLOSED, 0, bench.channel.next_seq, 1)
    assert answer == (AlreadyStored(segment.seq, segment.size, 1) if stored else refused)


def test_only_a_finished_segment_is_stored() -> None:
    """A body that came to its end, with bytes or without, is a success for its retry; one that was cut is not."""
    bench = Bench(segment_bytes=2)
    assert bench.publish(0, b"abc", key="k").state is State.TRUNCATED
    empty = bench.publish(1, b"", key="k")
    bench.open(2, b"ab", key="k")
    bench.channel.close_segment(2, 0.0)
    assert bench.states == {0: "truncated", 1: "empty", 2: "complete"}
    assert [refusal(bench.ask(seq, key="k")).why for seq in (0, 2)] == [Cause.CLOSED, Cause.CLOSED]
    assert bench.ask(1, key="k") == AlreadyStored(empty.seq, empty.size, 1)


def test_a_retry_goes_on_where_its_body_broke_off() -> None:
    """The segment passes over the bytes that it has of a body with the same key, across chunks, and stores the rest."""
    bench = Bench()
    first = bench.open(0, b"abc", key="k")
    retry = bench.reserve(0, key="k", attempt=2)
    assert bench.verdicts(first) == [Ending.SUPERSEDED]
    assert bench.channel.append(first, [b"late"], 0.0) == Outcome(Ending.SUPERSEDED, 3)
    assert bench.channel.append(retry, [b"a"], 0.0) is None
    assert bench.channel.append(retry, [b"bcd", b"e"], 0.0) is None
    assert bench.channel.finish(retry, [b"f"], 0.0) == Outcome(Ending.COMPLETE, 6)
    assert content(retry.segment) == b"abcdef"
    assert list(retry.segment.payload(1, 2)) == [b"d", b"e"]


def test_a_retry_that_comes_in_one_piece_is_passed_over_too() -> None:
    """The end of a body that repeats all that is there, and adds nothing, completes the segment."""
    bench = Bench(segment_bytes=3)
    bench.open(0, b"abc", key="k")
    assert bench.channel.finish(bench.reserve(0, key="k"), [b"abc"], 0.0) == Outcome(Ending.COMPLETE, 3)


def test_a_retry_counts_from_the_start_of_its_own_body() -> None:
    """Bytes that an earlier publisher left in the segment stay before the body and do not count as the body's own."""
    bench = Bench()
    bench.orphan(0, b"other:")
    bench.open(0, b"ab", key="k")
    retry = bench.reserve(0, key="k")
    assert bench.channel.finish(retry, [b"abc"], 0.0) == Outcome(Ending.COMPLETE, 9)
    assert content(retry.segment) == b"other:abc"


def test_a_body_behind_which_another_one_lies_cannot_be_sent_again() -> None:
    """Its bytes would be doubled: 409, as for a segment that is closed."""
    bench = Bench()
    bench.open(0, b"a", key="k")
    bench.open(0, b"b")
    assert refusal(bench.ask(0, key="k")) == Refusal(Cause.CLOSED, 0, bench.channel.next_seq, 1)
    bench.open(0, b"c", key="other")
    assert refusal(bench.ask(0, key="k")) == Refusal(Cause.CLOSED, 0, bench.channel.next_seq, 1)
    assert content(bench.channel.segments[0]) == b"abc"


def test_a_key_that_has_left_no_byte_leaves_nothing_behind() -> None:
    """A writer that took over and has stored no byte loses the segment to the next key, also to the first one."""
    bench = Bench()
    bench.reserve(0, key="k")
    bench.reserve(0, key="other")
    writer = bench.open(0, b"a", key="k")
    bench.reserve(1, key="k")
    assert writer.segment.key == "k"


def test_an_attempt_that_was_overtaken_is_refused() -> None:
    """A first attempt that arrives after the second changes nothing while that one is being written."""
    bench = Bench()
    retry = bench.open(0, b"ab", key="k", attempt=2)
    assert refusal(bench.ask(0, key="k", attempt=1)) == Refusal(Cause.CLOSED, 0, bench.channel.next_seq, 1)
    assert bench.verdicts(retry) == []
    bench.channel.abort(retry, 0.0)
    assert bench.reserve(0, key="k", attempt=1).repeated == 2


@pytest.mark.parametrize("chunks", [[], [b"a"]])
def test_a_retry_that_ends_too_early_is_not_the_same_body(chunks: list[bytes]) -> None:
    """The segment stays as it is, for its grace: nobody takes the wrong body's end for its own."""
    bench = Bench(publisher_grace_s=5.0)
    bench.open(0, b"abc", key="k")
    retry = bench.reserve(0, key="k")
    assert bench.channel.finish(retry, chunks, 1.0) == Outcome(Ending.NOT_THE_SAME, 3)
    assert bench.states == {0: "open"}
    bench.channel.expire(6.0)
    assert bench.states == {0: "truncated"}
    assert refusal(bench.ask(0, key="k")).why is Cause.CLOSED


def test_a_key_is_of_one_segment() -> None:
    """The same key under another seq is another body."""
    bench = Bench()
    bench.publish(0, b"abc", key="k")
    assert bench.publish(1, b"abc", key="k").size == 3


def test_an_orphan_with_a_key_keeps_its_grace() -> None:
    """Its publisher will come back: a later complete segment does not end it, its grace does."""
    bench = Bench(publisher_grace_s=5.0)
    for key, state in (("k", "open"), (None, "truncated")):
        before = bench.channel.next_seq
        early, late = (bench.open(seq, key=key) for seq in (before, before + 1))
        bench.channel.abort(early, 0.0)
        bench.publish(before + 2)
        bench.channel.abort(late, 0.0)
        assert [bench.states[seq] for seq in (before, before + 1)] == [state, state]
    bench.channel.expire(5.0)
    assert set(bench.states.values()) == {"truncated", "complete"}


# Writing: takeover, end, abort.


def test_a_second_writer_continues_the_segment() -> None:
    """Bytes follow what is there; the earlier writer is told once and its later bytes are dropped."""
    bench = Bench()
    first = bench.open(0, b"one")
    second = bench.reserve(0)
    assert bench.told[first].outcomes == [Outcome(Ending.SUPERSEDED, 3)]
    assert bench.channel.append(first, [b"late"], 0.0) == Outcome(Ending.SUPERSEDED, 3)
    bench.channel.append(second, [b"two"], 0.0)
    assert content(second.segment) == b"onetwo"
    assert second.serial > first.serial


@pytest.mark.parametrize("act", ["append", "finish", "abort"])
def test_a_stale_writer_changes_nothing(act: str) -> None:
    """Late bytes, a late end and a late abort of the earlier writer leave the new writer's segment alone."""
    bench = Bench()
    first = bench.open(0, b"one")
    second = bench.reserve(0)
    match act:
        case "append":
            bench.channel.append(first, [b"late"], 1.0)
        case "finish":
            bench.channel.finish(first, [b"late"], 1.0)
        case _:
            bench.channel.abort(first, 1.0)
    assert (second.outcome, second.segment.state, content(second.segment)) == (None, State.OPEN, b"one")
    assert (bench.channel.active_at, bench.channel.deadline(second.segment)) == (0.0, None)
    assert len(bench.told[first].outcomes) == 1


def test_the_end_counts_what_is_stored() -> None:
    """A finished body is complete, with its last chunks, and answered with the size."""
    bench = Bench()
    writer = bench.open(0, b"abc")
    assert bench.channel.finish(writer, [b"d", b"ef"], 3.0) == Outcome(Ending.COMPLETE, 6)
    assert (bench.states, bench.channel.bytes_in, bench.channel.active_at) == ({0: "complete"}, 6, 3.0)
    assert bench.verdicts(writer) == []


def test_each_arrival_is_one_frame() -> None:
    """Chunks that arrived together are relayed together, each as a chunk of its own."""
    bench = Bench()
    writer = bench.reserve(0)
    bench.channel.append(writer, [b"a", b"b"], 0.0)
    bench.channel.append(writer, [b"c"], 0.0)
    assert writer.segment.frames == [b"1\r\na\r\n1\r\nb\r\n", b"1\r\nc\r\n"]


def test_an_arrival_without_bytes_is_no_first_byte() -> None:
    """Nothing stored, nothing begun."""
    bench = Bench()
    writer = bench.reserve(0)
    assert bench.channel.append(writer, [], 0.0) is None
    assert (bench.states, bench.channel.next_seq) == ({0: "waiting"}, 0)


def test_an_aborted_segment_can_be_resumed() -> None:
    """A publisher that disconnects has its grace to come back, and then no deadline any more."""
    bench = Bench(publisher_grace_s=5.0)
    writer = bench.orphan(0, b"one", now=1.0)
    assert writer.outcome == Outcome(Ending.ABORTED, 3)
    assert (bench.channel.deadline(writer.segment), bench.channel.next_deadline()) == (6.0, 6.0)
    bench.channel.expire(5.999)
    again = bench.reserve(0, now=5.999)
    bench.channel.expire(100.0)
    assert (again.segment.state, bench.channel.deadline(again.segment), again.outcome) == (State.OPEN, None, None)


def test_an_orphan_is_truncated_when_its_grace_ends() -> None:
    """Readers get the end of a segment whose publisher did not come back."""
    bench = Bench(publisher_grace_s=5.0)
    writer = bench.orphan(0, now=1.0)
    watcher = bench.attach(writer.segment)
    bench.channel.expire(6.0)
    assert (bench.states, watcher.saw_close) == ({0: "truncated"}, True)


def test_a_later_complete_segment_truncates_orphans() -> None:
    """The publisher has gone on: who reads the orphan need not wait for the grace. Live writers keep theirs."""
    bench = Bench()
    bench.orphan(0)
    bench.open(1)
    bench.publish(2)
    assert bench.states == {0: "truncated", 1: "open", 2: "complete"}


def test_a_later_empty_segment_truncates_no_orphan() -> None:
    """A preconnect that ends without a byte says nothing about the older segment."""
    bench = Bench()
    bench.orphan(0)
    bench.publish(1, b"")
    assert bench.states == {0: "open", 1: "empty"}


def test_a_segment_closed_by_request_truncates_orphans() -> None:
    """A later segment completes by DELETE as it does by its publisher's end."""
    bench = Bench()
    bench.orphan(0)
    bench.open(1)
    bench.channel.close_segment(1, 0.0)
    assert bench.states == {0: "truncated", 1: "complete"}


def test_an_older_orphan_does_not_wait() -> None:
    """Where a later segment is complete already, the grace would hold up readers for nothing."""
    bench = Bench()
    writer = bench.open(0)
    bench.publish(1)
    bench.channel.abort(writer, 0.0)
    assert bench.states == {0: "truncated", 1: "complete"}


def test_an_aborted_preconnect_is_forgotten() -> None:
    """Without a byte and without a reader nothing is left of it; the head has not moved."""
    bench = Bench()
    writer = bench.reserve(0)
    bench.channel.abort(writer, 0.0)
    assert (bench.states, bench.channel.next_seq, writer.outcome) == ({}, 0, Outcome(Ending.ABORTED, 0))


def test_readers_of_an_aborted_preconnect_wait_on() -> None:
    """The next publisher of the head serves them."""
    bench = Bench()
    writer = bench.reserve(0)
    watcher = bench.wait(0)
    bench.channel.abort(writer, 0.0)
    assert (bench.states, watcher.wakes) == ({0: "waiting"}, 0)
    bench.publish(0)
    assert watcher.saw_close


# Order among segments.


def test_the_first_byte_skips_older_waiting_segments_at_once() -> None:
    """Readers of a passed-by seq get the empty answer and move on."""
    bench = Bench()
    watchers = [bench.wait(0), bench.wait(1)]
    bench.open(2)
    assert bench.states == {0: "skipped", 1: "skipped", 2: "open"}
    assert [(watcher.wakes, watcher.saw_close) for watcher in watchers] == [(1, True), (1, True)]


def test_an_overtaken_preconnect_may_still_begin() -> None:
    """Within its grace it begins like any other segment, and the head stays."""
    bench = Bench(skip_grace_s=2.0)
    late = bench.reserve(0)
    bench.open(1, now=1.0)
    assert (late.segment.state, bench.channel.deadline(late.segment)) == (State.WAITING, 3.0)
    bench.channel.expire(2.999)
    bench.channel.append(late, [b"late"], 2.999)
    bench.channel.expire(100.0)
    assert (bench.states, bench.channel.next_seq) == ({0: "open", 1: "open"}, 2)
    assert bench.channel.deadline(late.segment) is None


def test_an_overtaken_preconnect_is_skipped_in_the_end() -> None:
    """After its grace its readers move on and its publisher is told, with nothing stored."""
    bench = Bench(skip_grace_s=2.0)
    late = bench.reserve(0)
    watcher = bench.wait(0)
    bench.open(1, now=1.0)
    bench.open(2, now=2.5)
    bench.channel.expire(3.0)
    assert bench.states == {0: "skipped", 1: "open", 2: "open"}
    assert bench.told[late].outcomes == [Outcome(Ending.CLOSED_BY_OTHER, 0)]
    assert watcher.saw_close


def test_a_preconnect_that_comes_late_has_its_grace() -> None:
    """A POST of a hole below the head has the same time to begin, and a takeover does not prolong it."""
    bench = Bench(skip_grace_s=2.0)
    bench.open(1)
    bench.reserve(0, now=5.0)
    again = bench.reserve(0, now=6.0)
    assert bench.channel.deadline(again.segment) == 7.0


def test_a_reader_waits_a_moment_for_what_was_overtaken() -> None:
    """The POST may only be late: it is still taken within the grace, and only then is its segment skipped."""
    bench = Bench(overtaking_grace_s=0.2, skip_grace_s=2.0)
    late, lost = bench.wait(0), bench.wait(1)
    bench.open(1, now=1.0)
    assert (bench.states, bench.channel.deadline(late.segment)) == ({0: "waiting", 1: "open"}, 1.2)
    writer = bench.reserve(0, now=1.1)
    assert bench.channel.deadline(late.segment) == 3.1
    bench.channel.append(writer, [b"late"], 1.3)
    assert (content(late.segment), lost.saw_close) == (b"late", False)


def test_what_does_not_come_is_skipped() -> None:
    """After the grace its readers move on, those that have left meanwhile included."""
    bench = Bench(overtaking_grace_s=0.2)
    watcher, leaver = bench.wait(0), bench.wait(0)
    bench.open(1, now=1.0)
    bench.channel.detach(leaver, leaver.segment)
    bench.channel.expire(1.2)
    assert (bench.states, watcher.saw_close) == ({0: "skipped", 1: "open"}, True)


def test_what_nobody_waits_for_any_more_is_forgotten() -> None:
    """After the grace; whoever comes with it even later may still publish it."""
    bench = Bench(overtaking_grace_s=0.2)
    watcher = bench.wait(0)
    bench.open(1, now=1.0)
    bench.channel.detach(watcher, watcher.segment)
    assert bench.states == {0: "waiting", 1: "open"}
    bench.channel.expire(1.2)
    assert bench.states == {1: "open"}
    assert bench.reserve(0, now=9.0).segment.seq == 0


def test_who_asks_for_what_was_overtaken_waits_a_moment() -> None:
    """Its publisher may only be late: the reader gets the bytes, or moves on after the grace."""
    bench = Bench(overtaking_grace_s=0.2)
    bench.publish(0)
    bench.open(2, now=1.0)
    watcher = bench.wait(1)
    bench.channel.append(bench.reserve(1, now=1.1), [b"late"], 1.1)
    assert content(watcher.segment) == b"late"
    strict = Bench(overtaking_grace_s=0.0)
    strict.open(1)
    assert strict.states == {1: "open"}


def test_what_was_jumped_over_is_skipped_at_once() -> None:
    """A publisher that resumes its numbering leaves nothing on its way."""
    bench = Bench(overtaking_grace_s=0.2)
    watcher = bench.wait(0)
    bench.open(50)
    assert (bench.states, watcher.saw_close) == ({0: "skipped", 50: "open"}, True)


def test_only_what_is_close_may_have_overtaken() -> None:
    """A refused seq is marked if no more than may overtake lie between it and the head."""
    bench = Bench(overtaking_segments=8)
    bench.publish(0)
    answers = {seq: bench.ask(seq) for seq in (3, 9, 10)}
    marked = [seq for seq, answer in answers.items() if isinstance(answer, Refusal) and answer.overtaking]
    assert marked == [3, 9]


def test_an_overtaken_preconnect_that_breaks_is_skipped() -> None:
    """Nobody will begin it any more, so its readers need not wait for the grace."""
    bench = Bench()
    late = bench.reserve(0)
    watcher = bench.wait(0)
    bench.open(1)
    bench.channel.abort(late, 0.0)
    assert (bench.states, watcher.saw_close) == ({0: "skipped", 1: "open"}, True)


def test_an_older_open_segment_stays_open() -> None:
    """Segments may overlap: the older one ends when its own publisher ends it."""
    bench = Bench()
    older = bench.open(0, b"a")
    bench.publish(1)
    bench.channel.append(older, [b"b"], 0.0)
    bench.channel.finish(older, [b"c"], 0.0)
    assert (content(older.segment), bench.states) == (b"abc", {0: "complete", 1: "complete"})


def test_there_is_no_first_byte_deadline_by_default() -> None:
    """A preconnect may be idle for as long as it likes."""
    bench = Bench()
    bench.reserve(0)
    assert bench.channel.next_deadline() is None


def test_a_first_byte_deadline_skips_the_preconnect() -> None:
    """Where it is set, an idle preconnect is closed, its readers move on, and it does so at the time and not before."""
    bench = Bench(first_byte_timeout_s=3.0)
    writer = bench.reserve(0, now=1.0)
    watcher = bench.wait(0)
    bench.channel.expire(3.999)
    assert bench.states == {0: "waiting"}
    bench.channel.expire(4.0)
    assert (bench.states, bench.channel.next_seq) == ({0: "skipped"}, 1)
    assert (bench.verdicts(writer), watcher.saw_close) == ([Ending.CLOSED_BY_OTHER], True)


def test_a_takeover_has_the_whole_first_byte_time() -> None:
    """The deadline of the earlier preconnect is not the new one's."""
    bench = Bench(first_byte_timeout_s=3.0)
    bench.reserve(0, now=0.0)
    assert bench.channel.deadline(bench.reserve(0, now=2.0).segment) == 5.0


def test_all_that_is_due_is_done_in_one_step() -> None:
    """An orphan and two preconnects whose times end together are all settled."""
    bench = Bench(publisher_grace_s=5.0, first_byte_timeout_s=5.0)
    bench.orphan(0, now=0.0)
    bench.reserve(1, now=0.0)
    bench.reserve(2, now=0.0)
    bench.channel.expire(5.0)
    assert bench.states == {0: "truncated", 1: "skipped", 2: "skipped"}
    check_channel(bench.channel)


# Limits.


@pytest.mark.parametrize(("size", "ending"), [(9, None), (10, None), (11, Ending.TOO_LARGE), (25, Ending.TOO_LARGE)])
def test_a_segment_holds_its_limit_and_no_more(size: int, ending: Ending | None) -> None:
    """One below and at the limit are stored; one above, what fits is kept and marked as truncated."""
    bench = Bench(segment_bytes=10)
    writer = bench.open(0, b"abc")
    outcome = bench.channel.append(writer, [b"d" * (size - 3)], 0.0)
    assert outcome == (None if ending is None else Outcome(ending, 10))
    frames = (b"abc", b"d" * (min(size, 10) - 3))
    assert (writer.segment.size, bench.budget.used) == (min(size, 10), cost(*frames))
    assert bench.states == {0: "open" if ending is None else "truncated"}
    assert bench.verdicts(writer) == []


def test_the_limit_may_lie_within_the_last_chunks() -> None:
    """An end whose chunks do not fit is too large, too, and a first chunk may be."""
    bench = Bench(segment_bytes=4)
    writer = bench.reserve(0)
    watcher = bench.wait(0)
    assert bench.channel.finish(writer, [b"abc", b"def"], 0.0) == Outcome(Ending.TOO_LARGE, 4)
    assert (content(writer.segment), bench.states, watcher.saw_close) == (b"abcd", {0: "truncated"}, True)


def test_a_full_segment_takes_no_byte() -> None:
    """At the limit every further byte ends the segment."""
    bench = Bench(segment_bytes=3)
    writer = bench.open(0, b"abc")
    assert bench.channel.append(writer, [b"d"], 0.0) == Outcome(Ending.TOO_LARGE, 3)
    assert bench.channel.append(writer, [b"e"], 0.0) == Outcome(Ending.TOO_LARGE, 3)


def test_a_full_server_truncates_what_it_cannot_store() -> None:
    """Where no room can be made nothing of the arrival is stored; what is there is truncated."""
    bench = Bench(total_bytes=cost(b"abc", b"de"))
    writer = bench.open(0, b"abc")
    assert bench.channel.append(writer, [b"def"], 0.0) == Outcome(Ending.OVER_BUDGET, 3)
    assert (bench.states, bench.budget.used) == ({0: "truncated"}, cost(b"abc"))


def test_a_full_server_leaves_no_trace_of_what_it_refused() -> None:
    """A first byte that cannot be stored leaves the head and the readers where they are."""
    bench = Bench(total_bytes=cost(b"ab"))
    writer = bench.reserve(0)
    watcher = bench.wait(0)
    assert bench.channel.append(writer, [b"abc"], 9.0) == Outcome(Ending.OVER_BUDGET, 0)
    assert (bench.states, bench.channel.next_seq, watcher.wakes) == ({0: "waiting"}, 0, 0)
    assert (bench.channel.active_at, bench.channel.bytes_in) == (0.0, 0)


def test_what_is_being_written_to_the_largest_channel_is_cut_when_memory_is_short() -> None:
    """Its largest open segment closes as truncated and goes; its publisher and its readers are told."""
    bench = Bench(total_bytes=10_000)
    small, large = bench.open(0, b"ab"), bench.open(1, bytes(5000), now=7.0)

    class Leaving(Watcher):
        def evict(self) -> None:
            bench.channel.detach(self, self.segment)

    watcher = Leaving(large.segment)
    bench.channel.attach(watcher, large.segment)
    other = Window(bench.limits, bench.budget)
    assert bench.budget.take(other, 4000)
    assert (bench.states, watcher.saw_close) == ({0: "open"}, True)
    assert bench.told[large].outcomes == [Outcome(Ending.OVER_BUDGET, 5000)]
    assert (large.segment.state, large.segment.closed_at, small.outcome) == (State.TRUNCATED, 7.0, None)
    assert (bench.channel.window.open, bench.channel.window.held) == (cost(b"ab"), cost(b"ab"))
    assert not bench.budget.take(other, 8000)
    assert bench.states == {0: "open"}
    assert not Bench().channel.window.give(Faults(), short=True, cut=True)


@pytest.mark.parametrize(
    ("limits", "ending"),
    [({"channel_bytes": cost(b"abc", b"de")}, Ending.OVER_CHANNEL_QUOTA), ({}, Ending.OVER_PUBLISHER_QUOTA)],
)
def test_unfinished_segments_have_a_quota(limits: dict[str, Any], ending: Ending) -> None:
    """Of a channel and of a publisher: up to it they are stored, then truncated; finished ones do not count."""
    bench, payer = Bench(**limits), Payer(cost(b"abc", b"de"))
    writer = bench.open(1, b"abc", payer=payer)
    assert bench.channel.append(writer, [b"de"], 0.0) is None
    assert (bench.channel.window.open, payer.open) == (cost(b"abc", b"de"), cost(b"abc", b"de"))
    other = bench.reserve(2, payer=payer)
    assert bench.channel.append(other, [b"f"], 0.0) == Outcome(ending, 0)
    assert bench.channel.append(writer, [b"f"], 0.0) == Outcome(ending, 5)
    assert (writer.segment.state, bench.channel.window.open, payer.open) == (State.TRUNCATED, 0, 0)
    assert bench.open(3, b"abcd", payer=payer)


def test_who_takes_a_segment_over_pays_for_it() -> None:
    """Its memory counts for the publisher that writes it, and no more for the one that did; the server pays nothing."""
    bench, first, second = Bench(), Payer(10**6), Payer(10**6)
    bench.orphan(0, b"abc")
    writer = bench.reserve(0, payer=first)
    bench.channel.append(writer, [b"de"], 0.0)
    assert (first.open, second.open) == (cost(b"abc", b"de"), 0)
    bench.reserve(0, payer=second)
    assert (first.open, second.open) == (0, cost(b"abc", b"de"))
    bench.channel.close_segment(0, 0.0)
    bench.reserve(1, payer=first)
    assert (first.open, second.open) == (0, 0)


def test_an_orphan_that_a_later_segment_closes_is_paid_for_no_more() -> None:
    """As one that is closed in any other way."""
    bench, payer = Bench(), Payer(10**6)
    writer = bench.open(0, b"abc", payer=payer)
    bench.channel.abort(writer, 0.0)
    assert payer.open == cost(b"abc")
    bench.publish(1)
    assert (bench.states[0], payer.open, bench.channel.window.open) == ("truncated", 0, 0)


def test_the_window_is_kept_small() -> None:
    """As segments close the oldest leave, and their bytes are free again."""
    bench = Bench(window_segments=2)
    for seq in range(5):
        bench.publish(seq, b"abc")
    assert (sorted(bench.channel.segments), bench.budget.used, bench.channel.floor) == ([3, 4], 2 * cost(b"abc"), 3)


def test_a_segment_leaves_because_of_its_age() -> None:
    """The channel asks to be looked at then, and lets go of it then."""
    bench = Bench(window_age_s=60.0)
    bench.publish(0, now=0.0)
    assert bench.channel.next_deadline() is None
    bench.publish(1, now=5.0)
    assert (bench.channel.next_deadline(), bench.appointments[-1]) == (60.0, 60.0)
    bench.channel.expire(60.0)
    assert (bench.states, bench.channel.next_deadline()) == ({1: "complete"}, None)


def test_an_eviction_brings_the_next_age_forward() -> None:
    """Where segments closed out of order, what becomes the oldest may be older than what has left."""
    bench = Bench(window_age_s=60.0)
    late = bench.open(0)
    bench.publish(1, now=1.0)
    bench.publish(2, now=2.0)
    bench.channel.finish(late, [], 50.0)
    bench.appointments.clear()
    bench.channel.window.give(Faults(), short=True, cut=False)
    assert bench.appointments == [bench.channel.next_deadline()] == [61.0]


def test_many_tiny_chunks_are_counted_for_what_they_are() -> None:
    """Each chunk of one byte takes 78: its own frame, and what Python adds."""
    bench = Bench()
    writer = bench.reserve(0)
    for _ in range(1000):
        bench.channel.append(writer, [b"x"], 0.0)
    assert (writer.segment.size, bench.budget.used) == (1000, SEGMENT_COST + 1000 * (6 + FRAME_COST))


def test_a_segment_without_a_byte_is_counted_when_it_closes() -> None:
    """Waiting ones are not: there are no more of them than readers and publishers."""
    bench = Bench()
    writer = bench.reserve(0)
    assert bench.budget.used == 0
    bench.channel.finish(writer, [], 1.0)
    assert bench.budget.used == SEGMENT_COST


def test_a_reader_that_left_frees_what_it_read_from() -> None:
    """An evicted segment is counted until the last one who reads it has gone."""
    bench = Bench(window_segments=1)
    watcher = bench.attach(bench.publish(0, b"abc"))
    bench.publish(1, b"d")
    assert (bench.states, bench.budget.used) == ({1: "complete"}, cost(b"abc") + cost(b"d"))
    bench.channel.detach(watcher, watcher.segment)
    assert bench.budget.used == cost(b"d")


def test_a_reader_keeps_what_it_reads_from() -> None:
    """Eviction takes a segment out of the window, not out of a reader's hands."""
    bench = Bench(window_segments=1)
    segment = bench.publish(0, b"abc")
    bench.publish(1)
    assert 0 not in bench.channel.segments
    assert content(segment) == b"abc"


def test_making_room_may_evict_from_the_same_channel() -> None:
    """The oldest kept segment gives way to the live edge."""
    limit = cost(b"efg") + cost(b"d")
    bench = Bench(total_bytes=limit)
    bench.publish(0, b"abc")
    bench.publish(1, b"d")
    bench.publish(2, b"efg")
    assert (sorted(bench.channel.segments), bench.budget.used) == ([1, 2], limit)
    assert (bench.channel.earliest, bench.channel.floor) == (1, 1)


# Closing by request, and the end of the channel (section 5).


@pytest.mark.parametrize(("data", "state"), [(b"abc", "complete"), (b"", "empty")])
def test_one_segment_is_closed_by_request(data: bytes, state: str) -> None:
    """Its writer is told what is stored, its readers hear of the end, and the head is past it. Nothing is published."""
    bench = Bench()
    writer = bench.open(0, data) if data else bench.reserve(0)
    watcher = bench.attach(writer.segment)
    assert bench.channel.close_segment(0, 7.0) is None
    assert (bench.states, bench.channel.next_seq, bench.channel.active_at) == ({0: state}, 1, 0.0)
    assert bench.told[writer].outcomes == [Outcome(Ending.CLOSED_BY_OTHER, len(data))]
    assert watcher.saw_close


def test_closing_a_closed_segment_changes_nothing() -> None:
    """It is no error either."""
    bench = Bench()
    bench.publish(0)
    facts = len(bench.facts)
    assert bench.channel.close_segment(0, 7.0) is None
    assert (len(bench.facts), bench.channel.active_at) == (facts, 0.0)


def test_closing_a_missing_segment_is_refused() -> None:
    """A segment that nobody reads or writes cannot be closed, and is not created."""
    bench = Bench()
    assert bench.channel.close_segment(0, 0.0) == Refusal(Cause.NO_SEGMENT, 0, bench.channel.next_seq, 1)
    assert bench.states == {}


def test_the_end_tells_everybody() -> None:
    """Every POST in flight and every waiting GET hears that the channel is over; the head does not move."""
    bench = Bench(channel_drain_s=10.0)
    bench.publish(0)
    writing, preconnect = bench.open(1, b"ab"), bench.reserve(2)
    watchers = [bench.attach(writing.segment), bench.wait(2)]
    bench.channel.end(EndReason.DELETED, 5.0)
    assert bench.told[writing].outcomes == [Outcome(Ending.TERMINATED, 2)]
    assert bench.told[preconnect].outcomes == [Outcome(Ending.TERMINATED, 0)]
    assert [(watcher.wakes, watcher.saw_close) for watcher in watchers] == [(1, True), (1, True)]
    assert watchers[1].segment.state is State.TERMINATED
    assert (bench.states, bench.channel.next_seq) == ({0: "complete", 1: "terminated"}, 2)
    assert (bench.channel.drain_until, bench.channel.next_deadline(), bench.appointments[-1]) == (15.0, 15.0, 15.0)


def test_what_is_kept_stays_readable_during_the_drain() -> None:
    """A reader one segment behind loses nothing; at or past the head there will be nothing more."""
    bench = Bench()
    bench.publish(1, b"abc")
    bench.channel.end(EndReason.DELETED, 0.0)
    assert content(bench.serve(1)) == content(bench.serve(-2)) == b"abc"
    assert bench.channel.resolve(-1) == bench.channel.resolve(2) == Ended(2, 2, 1, "video/mp2t")
    assert bench.channel.resolve(9) == Ended(9, 2, 1, "video/mp2t")
    assert bench.channel.resolve(0) == Gone(0, 2, 1, 1, 1)


def test_an_ended_channel_that_was_never_written_has_nothing() -> None:
    """Every GET of it hears that it is over, and none creates a segment."""
    bench = Bench()
    bench.channel.end(EndReason.IDLE, 0.0)
    assert [type(bench.channel.resolve(seq)) for seq in (-1, -2, 0, 1)] == [Ended] * 4
    assert bench.states == {}


@pytest.mark.parametrize("act", ["finish", "abort"])
def test_the_end_and_a_closing_preconnect_may_come_in_either_order(act: str) -> None:
    """A preconnect that closes after the end changes nothing: a reader of -1 hears of the end, not of a segment."""
    bench = Bench()
    bench.publish(0)
    preconnect = bench.reserve(1)
    bench.channel.end(EndReason.DELETED, 0.0)
    if act == "finish":
        assert bench.channel.finish(preconnect, [], 1.0) == Outcome(Ending.TERMINATED, 0)
    else:
        bench.channel.abort(preconnect, 1.0)
    assert (bench.channel.next_seq, bench.states) == (1, {0: "complete"})
    assert isinstance(bench.channel.resolve(-1), Ended)


def test_everybody_is_told_when_the_change_is_done() -> None:
    """A reader that is woken and a writer that is told see the state after the change, never the middle of it."""
    bench = Bench(overtaking_grace_s=0.0)
    seen: list[tuple[int, dict[int, str]]] = []

    class Looker:
        def wake(self) -> None:
            seen.append((bench.channel.next_seq, bench.states))

        def evict(self) -> None:
            self.wake()

        def preempted(self, outcome: Outcome) -> None:
            self.wake()

    writer = bench.open(0)
    writer.owner = Looker()
    bench.channel.attach(Looker(), writer.segment)
    waiting = bench.wait(1).segment
    bench.channel.attach(Looker(), waiting)
    bench.open(2)
    bench.reserve(3, reset=True)
    after_skip = (3, {0: "open", 1: "skipped", 2: "open"})
    after_reset = (3, {0: "truncated", 1: "skipped", 2: "truncated", 3: "waiting"})
    assert seen == [after_skip, after_reset, after_reset]


def test_facts_tell_the_story() -> None:
    """Opened, closed and ended: each once, in order, with the sizes; a waiting segment that ends is no fact."""
    bench = Bench()
    bench.publish(0, b"abc")
    bench.wait(1)
    bench.channel.end(EndReason.DELETED, 0.0)
    expected: list[Fact] = [
        BodyBegun(0, 1, 0.0, "c", 1, 0, None, 0),
        NumberingNamed(0, 2, 0.0, "c", 1, "", 0),
        SegmentOpened(1, 3, 0.0, "c", 1, 0),
        SegmentClosed(2, 4, 0.0, "c", 1, 0, State.COMPLETE, 3, None),
        ChannelEnded(3, 5, 0.0, "c", 1, 1, EndReason.DELETED),
    ]
    assert bench.facts == expected


def test_facts_are_counted_when_nobody_follows() -> None:
    """A follower that comes later is told the numbers that it would have been told if it had been there."""
    alone, followed = Bench(window_segments=2), Bench(window_segments=2)
    alone.channel.unfollow(alone.facts.append)
    heard: list[Fact] = []
    alone.journal.subscribe(heard.append, SegmentClosed)
    for bench in (alone, followed):
        for seq in range(4):
            bench.publish(seq)
        bench.channel.abort(bench.reserve(4), 0.0)
    assert alone.channel.facts == followed.channel.facts == len(followed.facts)
    assert alone.journal.index == followed.journal.index
    assert (heard, alone.facts) == ([fact for fact in followed.facts if isinstance(fact, SegmentClosed)], [])


# A change is whole, whatever its size, and whatever a callback does.


def test_segments_that_are_due_together_are_each_closed_once() -> None:
    """A segment near the limit evicts those below what was overtaken; all holes end together, and the channel goes on.

    GET 0, POST 1 and 3 of one byte, POST 5 of 64 MiB: the holes 0, 2 and 4 have their deadlines at one time.
    """
    bench = Bench(window_bytes=100, segment_bytes=100)
    waiting = bench.wait(0)
    bench.publish(1)
    bench.publish(3)
    bench.publish(5, b"x" * 100)
    for seq in (2, 4):
        bench.attach(bench.channel.segments[seq])
    bench.channel.expire(0.2)
    assert waiting.saw_close
    closings = [fact.seq for fact in bench.facts if isinstance(fact, SegmentClosed)]
    assert sorted(closings) == [0, 1, 2, 3, 4, 5]
    check_channel(bench.channel)


@pytest.mark.parametrize("how", ["jump", "complete", "end", "expire"])
def test_thousands_of_segments_close_in_one_change(how: str) -> None:
    """Preconnects with a reader each, all abandoned: every reader is told, and the last publisher is answered."""
    bench = Bench(overtaking_grace_s=0.0, skip_grace_s=2.0)
    writers = [bench.reserve(-1) for _ in range(3000)]
    watchers = [bench.attach(writer.segment) for writer in writers]
    for writer in [] if how == "expire" else writers:
        bench.channel.abort(writer, 0.0)
    match how:
        case "jump":
            assert bench.publish(5000).complete
        case "complete":
            orphans = [bench.orphan(seq) for seq in range(0, 3000, 2)]
            assert bench.publish(3000).complete
            assert all(orphan.segment.closed for orphan in orphans)
        case "end":
            bench.channel.end(EndReason.DELETED, 0.0)
        case _:
            bench.publish(5000)
            assert not watchers[0].saw_close
            bench.channel.expire(2.0)
            assert {bench.verdicts(writer)[0] for writer in writers} == {Ending.CLOSED_BY_OTHER}
    assert all(watcher.saw_close for watcher in watchers)
    check_channel(bench.channel)


class Raiser(Watcher):
    """A cursor that raises when it is woken."""

    def wake(self) -> None:
        super().wake()
        raise ValueError("a fault of the reader")


@pytest.mark.parametrize("end", [False, True])
def test_a_reader_that_raises_starves_no_other(end: bool) -> None:
    """Every other reader is woken and the publisher goes on; then the fault is handed over, once."""
    faults: list[tuple[object, str]] = []
    bench = Bench(on_fault=lambda victim, error: faults.append((victim, str(error))))
    writer = bench.open(0)
    raiser = Raiser(writer.segment)
    bench.channel.attach(raiser, writer.segment)
    others = [bench.attach(writer.segment) for _ in range(2)]
    if end:
        assert bench.channel.finish(writer, [b"y"], 0.0) == Outcome(Ending.COMPLETE, 2)
    else:
        assert bench.channel.append(writer, [b"y"], 0.0) is None
    assert [watcher.wakes for watcher in (raiser, *others)] == [1, 1, 1]
    assert faults == [(raiser, "a fault of the reader")]
    check_channel(bench.channel)


def test_a_publisher_that_raises_starves_no_other() -> None:
    """The owner of a preempted writer raises: the next owner is told all the same, and so are the readers."""
    faults: list[object] = []
    bench = Bench(on_fault=lambda victim, error: faults.append(victim))

    class Raises(Told):
        def preempted(self, outcome: Outcome) -> None:
            super().preempted(outcome)
            raise ValueError("a fault of the publisher")

    raises, told = Raises(), Told()
    for seq, owner in enumerate((raises, told)):
        writer = bench.channel.reserve(seq, owner, seq, 0.0)
        assert isinstance(writer, Writer)
        bench.channel.append(writer, [b"x"], 0.0)
    bench.channel.end(EndReason.DELETED, 0.0)
    bench.faults.deliver()
    assert (raises.verdicts, told.verdicts, faults) == ([Ending.TERMINATED], [Ending.TERMINATED], [raises])


def test_a_fault_that_nobody_takes_is_raised_when_the_change_is_done() -> None:
    """Where nobody takes faults an exception is not lost, and the channel is whole when it comes."""
    bench = Bench()
    writer = bench.open(0)
    bench.channel.attach(Raiser(writer.segment), writer.segment)
    other = bench.attach(writer.segment)
    with pytest.raises(ValueError, match="a fault of the reader"):
        bench.channel.finish(writer, [b"y"], 0.0)
    assert other.saw_close
    assert writer.outcome == Outcome(Ending.COMPLETE, 2)
    check_channel(bench.channel)


# The first free seq, and deadlines.


def test_idle_publishers_cost_the_next_one_nothing() -> None:
    """However many seqs are reserved, the first free one is not looked for among them."""
    bench = Bench()

    class Counting(dict[int, Segment]):
        looked = 0

        def get(self, *args: Any) -> Any:
            self.looked += 1
            return super().get(*args)

    segments = bench.channel.segments = Counting()
    for seq in range(2000):
        assert bench.reserve(-1).segment.seq == seq
    assert segments.looked < 10 * 2000


def test_the_lowest_free_seq_comes_first() -> None:
    """Seqs that publishers have given up are given out again, lowest first; those that others took are not."""
    bench = Bench()
    writers = [bench.reserve(-1) for _ in range(6)]
    for writer in (writers[4], writers[1], writers[2], writers[0]):
        bench.channel.abort(writer, 0.0)
    bench.reserve(1)
    assert bench.channel.first_free() == 0
    bench.publish(0)
    assert [bench.reserve(-1).segment.seq, bench.channel.first_free()] == [2, 4]
    bench.publish(1)
    bench.publish(2)
    assert [bench.reserve(-1).segment.seq, bench.channel.first_free()] == [4, 6]
    check_channel(bench.channel)


def test_a_free_seq_that_the_head_has_passed_is_not_given_out() -> None:
    """A seq that its publisher gave up, and that a later segment overtook, is settled."""
    bench = Bench()
    writers = [bench.reserve(-1) for _ in range(3)]
    bench.channel.abort(writers[1], 0.0)
    bench.channel.finish(writers[2], [b"x"], 0.0)
    assert bench.channel.first_free() == 3


def test_a_later_empty_segment_skips_what_is_not_spared() -> None:
    """A segment that closes without a byte moves the head, and the reader of the one below is told at once."""
    bench = Bench(overtaking_grace_s=0.0)
    waiting = bench.wait(0)
    bench.publish(1, b"")
    assert (waiting.saw_close, bench.states) == (True, {0: "skipped", 1: "empty"})


def test_an_agenda_gives_out_what_is_due_earliest_first() -> None:
    """A key has one time: setting replaces it, clearing removes it, taking it out does so too."""
    agenda: Agenda[str] = Agenda()
    assert (agenda.next, agenda.pop(1e9)) == (None, None)
    for key, when in (("b", 2.0), ("a", 5.0), ("c", 3.0), ("a", 1.0), ("d", 2.0)):
        agenda.set(key, when)
    agenda.clear("c")
    agenda.clear("never there")
    assert (agenda.next, agenda.pop(0.9)) == (1.0, None)
    assert [agenda.pop(4.0) for _ in range(4)] == ["a", "b", "d", None]
    assert agenda.times == {}


def test_an_agenda_drops_outdated_times() -> None:
    """However often a key gets a new time, and whatever was cleared, what is remembered is what is set."""
    agenda: Agenda[str] = Agenda()
    for number in range(1000):
        agenda.set("again and again", 1000.0 - number)
        agenda.set(f"cleared {number}", 5.0)
        agenda.clear(f"cleared {number}")
    assert len(agenda._heap) <= 2 + STALE_TIMES
    assert agenda.next == 1.0


# How its numbering is called, and from which seq on (section 5).


def named(instance: str = "abc") -> Registry:
    """A server that has just been started."""
    return Registry(Limits(), autocreate=True, instance=instance)


def granted(registry: Registry, seq: int, claim: Life | None = None) -> tuple[OwnedChannel, Writer[OwnedChannel]]:
    """A POST that must be granted."""
    writer = registry.reserve("c", seq, Told(), 0.0, claim=claim)
    assert isinstance(writer, Writer)
    return writer.channel, writer


def write(registry: Registry, seq: int, claim: Life | None = None, data: bytes = b"x") -> OwnedChannel:
    """A segment from beginning to end."""
    channel, writer = granted(registry, seq, claim)
    channel.finish(writer, [data] if data else [], 0.0)
    return channel


def test_a_numbering_is_called_after_the_start_of_the_server_and_the_epoch() -> None:
    """A restart of the server gives its channels a new numbering's name, and so does a channel's next epoch."""
    registry = named()
    assert write(registry, 5).life == Life("abc.1", 5)
    registry.end("c", 0.0)
    assert write(registry, 0).life == Life("abc.2", 0)


def test_until_something_is_written_nobody_can_say_where_it_begins() -> None:
    """Neither a channel without a segment nor a preconnect decides; a byte does, and so does an empty segment."""
    registry = named()
    channel, writer = granted(registry, 3, Life("mine", 3))
    assert channel.life == Life("abc.1")
    channel.append(writer, [b"x"], 0.0)
    assert channel.life == Life("mine", 3)
    assert write(named(), 3, data=b"").life == Life("abc.1", 3)


def test_it_begins_at_the_lowest_seq_that_was_written() -> None:
    """A late one counts, one that nobody wrote does not."""
    registry = named()
    _, late = granted(registry, 0)
    channel = write(registry, 1)
    assert channel.life == Life("abc.1", 1)
    channel.finish(late, [b"late"], 0.0)
    assert channel.life == Life("abc.1", 0)


def test_the_first_publisher_that_writes_may_go_on_with_a_numbering() -> None:
    """Its readers are told the name that they know; what it sends again does not begin anything."""
    assert write(named(), 98, Life("mine", 0)).life == Life("mine", 0)


def test_later_publishers_join_it() -> None:
    """They are readers' publishers, too: one memory, one numbering."""
    registry = named()
    write(registry, 0)
    assert write(registry, 1, Life("mine", 0)).life == Life("abc.1", 0)


def test_a_claim_cannot_be_wrong_about_what_is_written() -> None:
    """One that begins above what is written begins there; one without a beginning is none."""
    assert write(named(), 3, Life("mine", 7)).life == Life("mine", 3)
    assert write(named(), 3, Life("mine")).life == Life("abc.1", 3)


def test_a_channel_that_was_kept_is_numbered_anew_from_what_is_written_next() -> None:
    """The numbering begins at the first seq written after the restart; seqs below it belong to the one before."""
    registry = named()
    channel = registry.restore(Restored("c", 4, "", 98, 1.0), 0.0)
    assert channel.life == Life("abc.4")
    assert write(registry, 98).life == Life("abc.4", 98)


@pytest.mark.parametrize(
    ("claim", "life"),
    [
        (Life("b", 5), Life("b", 5)),
        (Life("b", 7), Life("b", 5)),
        (Life("b", 3), Life("b", 3)),
        (Life("new", 9), Life("new", 9)),
        (Life("new", 10), Life("new", 9)),
        (Life("new", 8), Life("abc.1", 9)),
        (Life("a", 0), Life("abc.1", 9)),
        (None, Life("abc.1", 9)),
    ],
)
def test_who_goes_on_with_a_channel_that_was_kept(claim: Life | None, life: Life) -> None:
    """The newest numbering goes on, or another one begins; one whose numbers others have written since does not.

    Nor does one that has begun below what was kept, and of which nothing was kept: it is as if others had.
    """
    registry = named()
    channel = registry.restore(Restored("c", 1, "", 9, 1.0, "", (("a", 0), ("b", 5))), 0.0)
    assert channel.life == Life("b")
    assert write(registry, 9, claim).life == life
    begun = ((life.name, life.first),)
    assert channel.lives == (("a", 0), *begun) if life.name == "b" else (("a", 0), ("b", 5), *begun)


def test_a_lower_segment_belongs_to_the_same_numbering() -> None:
    """Also if it is the server's own, which is not the newest that it had."""
    registry = named()
    registry.restore(Restored("c", 1, "", 9, 1.0, "", (("a", 0),)), 0.0)
    _, late = granted(registry, 9)
    channel = write(registry, 10)
    channel.finish(late, [b"late"], 0.0)
    assert (channel.life, channel.lives) == (Life("abc.1", 9), (("a", 0), ("abc.1", 9)))


def test_the_publisher_of_a_channel_that_was_kept_may_be_further_on() -> None:
    """One that counts on while the server is away, as Go's does, is taken where it is by then; but only once."""
    registry = named()
    channel = registry.restore(Restored("c", 1, "", 46, 1.0), 0.0)
    waiting = channel.resolve(46)
    assert isinstance(waiting, Upcoming)
    watcher = Watcher(waiting.segment)
    registry.attach(watcher, channel, waiting.segment)
    assert write(registry, 400).next_seq == 401
    assert watcher.saw_close
    assert isinstance(registry.reserve("c", 800, Told(), 0.0), Refusal)


def test_a_registry_without_a_name_gives_none() -> None:
    """The caller names it; a publisher's own name does without."""
    assert not write(named(""), 0).life.name
    assert write(named(""), 0, Life("mine", 0)).life == Life("mine", 0)


def test_every_answer_about_seqs_has_it() -> None:
    """Whether a segment is ahead, gone or after the end, and where a publisher is refused for its seq."""
    registry = named()
    write(registry, 5)
    life = Life("abc.1", 5)
    assert registry.resolve("c", 9) == Ahead(9, 6, 5, 1, life)
    assert registry.resolve("c", 0) == Gone(0, 6, 5, 1, 5, life)
    refused = registry.reserve("c", 500, Told(), 0.0)
    assert isinstance(refused, Refusal)
    assert (refused.why, refused.life) == (Cause.AHEAD, life)
    registry.end("c", 0.0)
    assert registry.resolve("c", 6) == Ended(6, 6, 1, "", life)


# Beside another publisher.

A, B = Identity("a"), Identity("b")


def test_a_post_beside_another_client_is_refused() -> None:
    """It is told who publishes, and where the head is; nothing changes. Without ``if_idle`` it is let in."""
    bench = Bench()
    bench.open(0, now=1.0, client=A)
    refused = refusal(bench.ask(1, 4.0, client=B, if_idle=True))
    assert (refused.why, refused.seq, refused.head, refused.occupied) == (Cause.OCCUPIED, 1, 1, (A, 3.0, None))
    assert bench.states == {0: "open"}
    bench.reserve(1, 4.0, client=B)
    check_channel(bench.channel)


def test_a_clients_own_posts_do_not_refuse_it() -> None:
    """Neither a preconnect, nor taking over its own segment."""
    bench = Bench()
    bench.open(0, client=A)
    bench.reserve(1, client=A, if_idle=True)
    bench.reserve(0, client=A, if_idle=True)
    check_channel(bench.channel)


def test_a_retry_of_the_stored_body_is_not_refused() -> None:
    """Another name of the client does not matter then; a body with another key is refused."""
    bench = Bench()
    bench.publish(0, client=A, key="k")
    assert isinstance(bench.ask(0, client=B, key="k", if_idle=True), AlreadyStored)
    assert refusal(bench.ask(0, client=B, key="other", if_idle=True)).why is Cause.OCCUPIED
    assert refusal(bench.ask(1, client=B, key="k", if_idle=True)).why is Cause.OCCUPIED


def test_an_idle_channel_takes_another_client() -> None:
    """A publisher that has gone is waited for as long as its segment is; to close that by request changes nothing."""
    bench = Bench(publisher_grace_s=5.0)
    bench.channel.abort(bench.open(0, now=1.0, client=A), 2.0)
    refused = refusal(bench.ask(1, 3.0, client=B, if_idle=True))
    assert refused.occupied == (A, 2.0, 3.0)
    bench.channel.close_segment(0, 5.0)
    bench.reserve(1, 6.0, client=B, if_idle=True)
    check_channel(bench.channel)


# A channel whose last owner is gone.


def inherited(*facts: tuple[Any, ...], bodies: dict[int, bytes], **limits: Any) -> Bench:
    """A channel that had these facts (a kind and what it is about) and bytes at its last owner, and goes on at 10 s."""
    bench = Bench(**limits)
    held = Channel("c", 1, "", 0.0, Life("a.1"), bench.limits, bench.budget, bench.faults)
    for number, (kind, *about) in enumerate(facts, 1):
        held.apply(kind(0, number, 1.0, "c", 1, *about))
        if kind is SegmentOpened and (body := bodies.get(about[0])):
            segment, frame = held.segments[about[0]], encode_frame([body])
            assert held.bytes_stored(segment, frame, len(body), segment.price(frame))
    held.move_to(bench.channel)
    bench.channel.resume(10.0)
    check_channel(bench.channel)
    return bench


def opened(seq: int, key: str | None = None) -> list[tuple[Any, ...]]:
    """A segment has its first byte."""
    return [(BodyBegun, seq, key, 0), (SegmentOpened, seq)]


def test_bytes_wait_for_a_retry_where_the_owner_changes() -> None:
    """As long as after a broken connection; then the segment is truncated. A retry with the key brings the rest."""
    bench = inherited(*opened(0, "k"), bodies={0: b"ab"}, publisher_grace_s=5.0)
    segment = bench.channel.segments[0]
    assert (segment.written, bench.channel.deadline(segment)) == (False, 15.0)
    assert bench.facts == [BodyLeft(0, 3, 10.0, "c", 1, 0)]
    retry = bench.reserve(0, 11.0, key="k", attempt=2)
    bench.channel.finish(retry, [b"abc"], 12.0)
    assert (content(segment), segment.state) == (b"abc", State.COMPLETE)
    other = inherited(*opened(0), (BodyLeft, 0), bodies={0: b"ab"}, publisher_grace_s=5.0)
    assert other.facts == [], "its publisher had left before"
    other.channel.expire(15.0)
    assert other.states == {0: "truncated"}


def test_a_publisher_that_sends_nothing_again_goes_on_where_the_owner_changes() -> None:
    """It has lost the segments that were under way, and counts on. Whoever sends them again has time to."""
    bench = inherited(*opened(0, "k"), bodies={0: b"ab"}, overtaking_grace_s=0.2)
    assert refusal(bench.ask(3, 11.0)).why is Cause.AHEAD
    assert refusal(bench.ask(4, 11.1)).why is Cause.AHEAD
    again = inherited(*opened(0, "k"), bodies={0: b"ab"}, overtaking_grace_s=0.2)
    bench.publish(4, now=11.25)
    assert refusal(bench.ask(7, 12.0)).why is Cause.AHEAD, "the head has moved"
    assert (bench.channel.next_seq, bench.states[4]) == (5, "complete")
    assert refusal(again.ask(3, 11.0)).why is Cause.AHEAD
    again.publish(1, now=11.1)
    assert refusal(again.ask(5, 11.3)).why is Cause.AHEAD, "the segments between have come"
    check_channel(bench.channel)


def test_a_change_that_the_last_owner_left_half_done_is_done() -> None:
    """A body without a key that its publisher has gone on without is truncated, as the end of the next one would do."""
    closed = (SegmentClosed, 1, State.COMPLETE, 1, None)
    bench = inherited(*opened(0), *opened(1), closed, bodies={0: b"a", 1: b"b"})
    assert bench.states == {0: "truncated", 1: "complete"}


def test_a_segment_without_a_byte_is_awaited_below_the_head_only() -> None:
    """Also one whose first byte was announced and has not come; above the head it is not there until a POST comes."""
    before = [*opened(0), (BodyBegun, 1, None, 0), (SegmentAwaited, 2), *opened(3, "k"), (BodyBegun, 4, None, 0)]
    bench = inherited(*before, (SegmentAwaited, 5), bodies={0: b"a"}, overtaking_grace_s=2.0)
    assert bench.states == {0: "open", 1: "waiting", 2: "waiting", 3: "waiting"}
    assert [bench.channel.deadline(bench.channel.segments[seq]) for seq in (1, 2, 3)] == [12.0] * 3
    assert bench.channel.next_seq == 4
    assert bench.channel.first_free() == 4
    bench.publish(3, b"z", 11.0, key="k")
    bench.channel.expire(12.0)
    assert bench.states == {0: "truncated", 3: "complete"}


def test_a_segment_that_nobody_is_waited_for_is_skipped_where_the_owner_changes() -> None:
    """As everywhere, where publishers do not overtake each other."""
    bench = inherited((BodyBegun, 0, None, 0), *opened(1), bodies={1: b"a"}, overtaking_grace_s=0.0)
    assert bench.states == {0: "skipped", 1: "open"}


def test_a_window_that_is_too_large_here_is_cut_where_the_owner_changes() -> None:
    """Its last owner may have had more room."""
    facts = [one for seq in range(3) for one in (*opened(seq), (SegmentClosed, seq, State.COMPLETE, 1, None))]
    bench = inherited(*facts, bodies=dict.fromkeys(range(3), b"a"), window_segments=2, window_age_s=50.0)
    assert (bench.states, bench.channel.floor) == ({1: "complete", 2: "complete"}, 1)
    assert bench.appointments[-1] == 51.0
