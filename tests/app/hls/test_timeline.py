"""Numbers, durations, parts and gaps of a timeline, whatever happens to the segments of its channel."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.media import fragment, init_segment, mp4_pictures, ts_pictures
from tricklecast.app.hls import timeline as module
from tricklecast.app.hls.timeline import (
    MAX_GAPS,
    MAX_LISTED,
    ROUNDING_S,
    Cutter,
    MediaSegment,
    Part,
    Rule,
    Timeline,
    lengths_of,
)
from tricklecast.app.hls.units import Mp4Scanner, TsScanner
from tricklecast.trickle.media.containers import Container

ORIGIN = 1000
PICTURE_S = 0.04
PICTURES = {number: b"".join(ts_pictures(0.0, number)) for number in (12, 25, 50, 100)}


class Sent(NamedTuple):
    """One segment of a channel, and its fate.

    Attributes:
        pictures: of its media; 0: it has none. pause: how many pictures are missing before it.
        complete: its publisher ended it. lost: it is evicted before all of it was looked at.
    """

    pictures: int
    pause: int = 0
    complete: bool = True
    lost: bool = False


class Channel:
    """Tells a timeline of segments that follow each other from a time on."""

    def __init__(self, seq: int = 0, at_s: float = 0.0) -> None:
        self.gone: set[int] = set()
        self.timeline = Timeline(lambda seq: seq not in self.gone)
        self.timeline.count_from(ORIGIN, 1, None)
        self.seq, self.at_s = seq, at_s

    def send(self, sent: Sent, *, settle: bool = True) -> None:
        """One segment; ``settle``: it is the newest one."""
        timeline, seq = self.timeline, self.seq
        self.seq += 1
        self.at_s += sent.pause * PICTURE_S
        if settle:
            timeline.settle()
        if not sent.pictures:
            timeline.miss(1)
            return
        data = b"".join(ts_pictures(self.at_s, sent.pictures))
        scan = TsScanner()
        scan.feed(data)
        self.at_s += sent.pictures * PICTURE_S
        timeline.begin(seq, scan, Container.MPEGTS, "", 0)
        timeline.cut(scan, None)
        if sent.lost:
            timeline.lose(seq)
            return
        size = scan.finish(len(data))
        timeline.cut(scan, size)
        timeline.close(scan, size, complete=sent.complete)


def numbers(timeline: Timeline) -> dict[tuple[int, int], int]:
    """The number of each media segment that can be had, by its segment and the byte at which it begins there."""
    return {(one.seq, one.at): one.msn for one in timeline.segments if not one.gap}


EVENTS = st.lists(
    st.builds(Sent, st.sampled_from([0, *PICTURES]), st.sampled_from([0, 0, 0, 25, 500]), st.booleans(), st.booleans()),
    max_size=40,
)


@given(events=EVENTS, evicted=st.integers(0, 40))
def test_a_playlist_is_sound_whatever_happens(events: list[Sent], evicted: int) -> None:
    """Numbers have no hole and never change, parts fill their segment, nothing exceeds its target or bound."""
    channel, before = Channel(), dict[tuple[int, int], int]()
    for place, event in enumerate(events):
        if place == evicted:
            channel.gone |= set(range(channel.seq))
        target = channel.timeline.target_s
        channel.send(event)
        timeline = channel.timeline
        assert target in (0, timeline.target_s)
        assert [after.msn - one.msn for one, after in pairwise(timeline.segments)] == [1] * (len(timeline.segments) - 1)
        assert not timeline.segments or timeline.next_msn == timeline.segments[-1].msn + 1
        now = numbers(timeline)
        assert {key: number for key, number in now.items() if key in before} == {
            key: number for key, number in before.items() if key in now
        }
        before = now
        assert len(timeline.segments) <= MAX_LISTED + MAX_GAPS + 1
        for one in timeline.segments:
            check(timeline, one)


def check(timeline: Timeline, one: MediaSegment) -> None:
    """Check the rules that hold for each media segment."""
    if one.duration is None or not timeline.target_s:
        return
    assert one.duration <= timeline.target_s + ROUNDING_S
    assert all(part.duration <= timeline.part_s + 1e-3 for part in one.parts)
    if one.parts:
        assert math.isclose(sum(part.duration for part in one.parts), one.duration, abs_tol=1e-6)
        assert one.parts[0].at == one.start
        assert [part.end for part in one.parts] == [*(part.at for part in one.parts[1:]), one.end]
        for number, part in enumerate(one.parts):
            assert timeline.find(one.seq, one.at, one.first_part + number) == (part.at, part.end)
    assert one.gap or timeline.find(one.seq, one.at, None) == (one.start, one.end)


@given(
    pictures=st.sampled_from([12, 25, 50]),
    events=st.lists(st.sampled_from([Sent(1), Sent(1, complete=False), Sent(0, pause=1)]), max_size=20),
    late=st.integers(1, 20),
)
def test_a_timeline_that_begins_later_gives_the_same_numbers(pictures: int, events: list[Sent], late: int) -> None:
    """As long as each segment is one media segment, or a gap: by its seq alone."""
    first, second = Channel(), None
    first.send(Sent(pictures), settle=False)
    for event in [*events, Sent(1)]:
        if first.seq == late:
            second = Channel(first.seq, first.at_s)
            second.timeline.count_from(ORIGIN, 1, None)
        sent = event._replace(pictures=event.pictures * pictures, pause=event.pause * pictures)
        first.send(sent)
        if second is not None:
            second.send(sent)
    if second is not None:
        first.timeline.settle()
        second.timeline.settle()
        both = numbers(first.timeline).keys() & numbers(second.timeline).keys()
        assert both
        assert all(numbers(first.timeline)[key] == numbers(second.timeline)[key] == ORIGIN + key[0] for key in both)


def test_the_last_part_has_the_sound_behind_the_last_picture() -> None:
    """Also when the last picture fills it; until the segment has ended nobody knows that no bytes follow."""
    sound = fragment(0, (960,), track=2)
    pictures = mp4_pictures(0.0, 50)
    scan, cutter, parts = Mp4Scanner(b""), Cutter(0.4, 2.49), list[Part]()
    data = b""
    for piece in (*pictures, sound, sound):
        scan.feed(piece)
        data += piece
        parts += cutter.cut(scan, None)
    assert len(parts) == 4
    parts += cutter.cut(scan, scan.finish(len(data)))
    assert [round(part.duration, 5) for part in parts] == [0.4] * 5
    assert [parts[0].at, *(part.end for part in parts)] == [
        len(init_segment()),
        *(part.at for part in parts[1:]),
        len(data),
    ]


@pytest.mark.parametrize(("long_s", "left"), [(0.44, [0.4] * 3), (1.0, [0.4] * 4 + [0.16])])
def test_a_picture_that_is_longer_than_the_part_target_is_a_part(long_s: float, left: list[float]) -> None:
    """Of no more than that: none is left out, whose media a player would lack, and together they are the segment."""
    before = ts_pictures(0.0, 11)
    after = ts_pictures(0.36 + long_s, 20, first=1)
    scan, cutter = TsScanner(), Cutter(0.4, 4.49)
    data = b"".join([*before, *after])
    scan.feed(data)
    parts = list(cutter.cut(scan, scan.finish(len(data))))
    assert [part.end for part in parts] == [*(part.at for part in parts[1:]), len(data)]
    assert [part.duration for part in parts] == pytest.approx([0.4, *left], abs=0.001)
    assert sum(part.duration for part in parts) == pytest.approx(sum(lengths_of(scan)), abs=0.001)


def test_a_long_picture_at_the_end_leaves_time_that_is_in_no_part() -> None:
    """The media segment has it, also where a longer segment is cut."""
    channel = Channel()
    channel.send(Sent(25))
    scan, timeline = TsScanner(), channel.timeline
    timeline.settle()
    pieces = [*ts_pictures(1.0, 26), *ts_pictures(3.0, 50, first=1), *ts_pictures(6.0, 2, first=1)]
    data = b"".join(pieces)
    scan.feed(data)
    timeline.begin(1, scan, Container.MPEGTS, "", 0)
    timeline.cut(scan, None)
    size = scan.finish(len(data))
    timeline.cut(scan, size)
    timeline.close(scan, size, complete=True)
    ended = [one for one in timeline.segments if one.seq == 1]
    assert sum(one.duration or 0.0 for one in ended) == pytest.approx(sum(lengths_of(scan)))
    assert all(one.parts and one.parts[-1].end == one.end for one in ended)
    assert all(sum(part.duration for part in one.parts) <= (one.duration or 0.0) + 1e-6 for one in ended)
    assert all(part.duration <= 0.401 for one in ended for part in one.parts)


def test_gaps_make_up_for_segments_without_time() -> None:
    """An empty segment behind which the media go on has no number, until a gap is told."""
    channel = Channel()
    for sent in (Sent(25), Sent(0), Sent(25), Sent(0), Sent(25, pause=25)):
        channel.send(sent)
    assert [(one.seq, one.msn - ORIGIN, one.gap) for one in channel.timeline.segments] == [
        (0, 0, False), (2, 1, False), (2, 2, True), (3, 3, True), (4, 4, False),
    ]  # fmt: skip


def test_gaps_make_up_for_segments_that_were_cut() -> None:
    """A segment of four seconds was two media segments, and the hole behind it is one gap instead of two."""
    channel = Channel()
    for sent in (Sent(25), Sent(25), Sent(100), Sent(0), Sent(0), Sent(25, pause=30)):
        channel.send(sent)
    found = [(one.seq, one.msn - ORIGIN, one.gap) for one in channel.timeline.segments]
    assert found == [(0, 0, False), (1, 1, False), (2, 2, False), (2, 3, False), (4, 4, True), (5, 5, False)]


def test_few_units_are_kept_until_the_rule_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that is always ahead has a rule made of its first 50,000 pictures; they have parts like the later."""
    monkeypatch.setattr(module, "MAX_EARLY_UNITS", 60)
    channel = Channel()
    for ended in range(1, 5):
        channel.send(Sent(25), settle=False)
        assert channel.timeline.rule == (Rule(2, 400) if ended >= 3 else None)
    assert channel.timeline._early == []
    assert [len(one.parts) for one in channel.timeline.segments] == [3] * 4


def test_a_gap_that_was_told_before_the_target_is_no_longer_than_that() -> None:
    """A hole of 20 s before the first playlist: it neither makes the target, nor exceeds it."""
    channel = Channel()
    for sent in (Sent(25), Sent(25), Sent(0), Sent(25, pause=500)):
        channel.send(sent, settle=False)
    channel.timeline.settle()
    assert channel.timeline.target_s == 2
    assert [(round(one.duration or 0, 6), one.gap, one.discontinuity) for one in channel.timeline.segments] == [
        (1.0, False, False), (1.0, False, False), (1.0, True, False), (1.0, False, True),
    ]  # fmt: skip


@pytest.mark.parametrize("missing", [MAX_GAPS, 500])
def test_a_long_hole_is_told_in_few_gaps(missing: int) -> None:
    """As long as the time that is missing where the target allows that, and behind a discontinuity elsewhere."""
    channel = Channel()
    for sent in (Sent(25), Sent(25), *[Sent(0)] * missing, Sent(25, pause=25 * missing)):
        channel.send(sent)
    gaps = [one for one in channel.timeline.segments if one.gap]
    assert len(gaps) <= MAX_GAPS
    assert channel.timeline.segments[-1].discontinuity == (missing > MAX_GAPS * channel.timeline.target_s)
