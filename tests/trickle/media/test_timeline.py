"""One time line for all streams and segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tricklecast.trickle.media.timeline import CLOCK_HZ, LEAD, MAX_HELD, MAX_JUMP, Timeline, fill_first_dts, fraction

MS = Fraction(1, 1000)
TICK = Fraction(1, CLOCK_HZ)
FRAME = 3600


@dataclass
class Packet:
    """A packet as the time line reads it."""

    pts: int | None
    dts: int | None
    stream_index: int = 0
    duration: int | None = 40


def stamp(line: Timeline, packet: Packet, time_base: Fraction) -> tuple[int, int]:
    """The times of a packet on the line."""
    return line.stamp(packet.stream_index, packet, time_base)


def filled(packets: Iterable[Packet]) -> Iterator[Packet]:
    """The packets with decoding times."""
    return (packet for _, packet in fill_first_dts((packet.stream_index, packet) for packet in packets))


def test_fractions_of_pyav_become_pythons() -> None:
    """They have only a numerator and a denominator."""
    assert fraction(SimpleNamespace(numerator=1, denominator=1000)) == MS


def test_first_decoding_times_are_counted_back() -> None:
    """Packets before a stream's first decoding time get theirs from it."""
    packets = [
        Packet(0, None),
        Packet(5, 5, stream_index=1),
        Packet(120, None),
        Packet(40, 0),
        Packet(80, 40),
    ]
    assert [packet.dts for packet in filled(packets)] == [-80, 5, -40, 0, 40]


def test_packets_with_decoding_times_are_not_held() -> None:
    """They pass at once."""
    seen: list[Packet] = []
    source = iter([Packet(0, 0), Packet(1, 1)])
    for packet in filled(source):
        seen.append(packet)
        if len(seen) == 1:
            assert next(source).dts == 1


def test_a_later_gap_is_left_to_the_timeline() -> None:
    """Only the beginning of a stream is filled."""
    assert [packet.dts for packet in filled([Packet(0, 0), Packet(1, None)])] == [0, None]


def test_holding_is_bounded() -> None:
    """A stream without decoding times passes after 64 packets, and at its end."""
    packets = [Packet(number, None, duration=None) for number in range(MAX_HELD + 10)]
    assert [packet.pts for packet in filled(packets)] == list(range(MAX_HELD + 10))
    assert len(list(filled(packets[:3]))) == 3
    short = [Packet(0, None, duration=None), Packet(9, 7)]
    assert [packet.dts for packet in filled(short)] == [6, 7]


def test_differences_are_kept_and_nothing_is_negative() -> None:
    """All streams are moved by the same amount."""
    line = Timeline()
    assert stamp(line, Packet(0, -80), MS) == (LEAD + 80 * 90, LEAD)
    assert stamp(line, Packet(-100, -100, stream_index=1), MS) == (LEAD - 20 * 90, LEAD - 20 * 90)
    assert stamp(line, Packet(40, -40), MS) == (LEAD + 120 * 90, LEAD + 40 * 90)
    assert line.elapsed_s(LEAD + CLOCK_HZ) == 1.0


def test_a_source_that_begins_late_is_not_moved_to_zero() -> None:
    """A live source keeps its own times."""
    assert stamp(Timeline(), Packet(3_600_000, 3_600_000), MS) == (3600 * CLOCK_HZ,) * 2


def test_missing_times_are_made_up() -> None:
    """The presentation time serves for the decoding time; without both, a packet follows the one before it."""
    line = Timeline()
    assert stamp(line, Packet(None, None), MS) == (LEAD, LEAD)
    assert stamp(line, Packet(None, None), MS) == (LEAD + 1, LEAD + 1)
    assert stamp(line, Packet(None, None, stream_index=1), MS) == (LEAD + 1, LEAD + 1)
    assert stamp(line, Packet(2000, None), MS) == (2 * CLOCK_HZ,) * 2
    assert stamp(line, Packet(None, 2100), MS) == (2 * CLOCK_HZ + 9000,) * 2


def stamped(line: Timeline, times: list[int], stream: int = 0, duration: int = FRAME) -> list[int]:
    """The decoding times of packets on the time line."""
    return [stamp(line, Packet(time, time, stream, duration), TICK)[1] for time in times]


def test_a_clock_that_goes_back_to_zero_is_continued() -> None:
    """The next packet follows the last one; all streams are moved by the same amount."""
    line = Timeline()
    assert stamped(line, [900_000, 903_600]) == [900_000, 903_600]
    assert stamped(line, [901_000, 903_000], stream=1, duration=2000) == [901_000, 903_000]
    assert stamped(line, [0, 3600]) == [907_200, 910_800]
    # The other stream was a bit behind: it jumps by as much, and stays in step.
    assert stamped(line, [905_000], stream=1, duration=2000) == [905_000]
    assert stamped(line, [1000, 3000], stream=1, duration=2000) == [908_200, 910_200]


def test_a_stream_that_had_come_further_moves_all() -> None:
    """If sound was ahead when the picture jumped, the picture waits for it."""
    line = Timeline()
    stamped(line, [900_000, 903_600])
    stamped(line, [900_000, 903_600], stream=1)
    assert stamped(line, [0]) == [907_200]
    stamped(line, list(range(907_200, 980_000, 3600)), stream=1)
    assert stamped(line, [0], stream=1) == [982_800]
    assert stamped(line, [3600]) == [986_400]


def test_a_wrapped_counter_leaves_no_trace() -> None:
    """Differences are the same before and after the wrap of 33 bits (MPEG-TS) and 32 bits (RTP)."""
    for wrap in (1 << 33, 1 << 32):
        line = Timeline()
        before = stamped(line, [wrap - 7200, wrap - 3600])
        assert stamped(line, [wrap - 5000], stream=1) == [before[0] + 2200]
        assert stamped(line, [0, 3600]) == [before[1] + 3600, before[1] + 7200]
        assert stamped(line, [1000], stream=1) == [before[1] + 4600]


def test_a_presentation_time_may_wrap_first() -> None:
    """With B-frames it wraps before the decoding time."""
    line = Timeline()
    shown, decoded = stamp(line, Packet(100, (1 << 33) - 7100, duration=FRAME), TICK)
    assert shown - decoded == 7200
    assert stamp(line, Packet(1 << 50, (1 << 33) - 3500, duration=FRAME), TICK) == (decoded + 3600,) * 2


def test_a_wild_timestamp_harms_one_packet() -> None:
    """The next packets return to their times; the other stream is not touched."""
    line = Timeline()
    before = stamped(line, [0, 3600])
    wild = stamped(line, [50_000_000])
    assert wild == [before[1] + 3600]
    after = stamped(line, [10_800, 14_400])
    assert after == [before[0] + 10_800, before[0] + 14_400]
    assert stamped(line, [10_800], stream=1) == [before[0] + 10_800]


def test_an_old_timestamp_harms_one_packet() -> None:
    """The next packets return to their times, also after a pause."""
    line = Timeline()
    before = stamped(line, [number * 3600 for number in range(100)])
    assert stamped(line, [7200]) == [before[-1] + 3600]
    after = [number * 3600 for number in range(101, 110)]
    assert stamped(line, after) == [before[0] + time for time in after]


def test_a_pause_is_kept_and_a_jump_is_not() -> None:
    """Seconds without a packet stay a pause; more than ten count as a jump of the clock."""
    line = Timeline()
    assert stamped(line, [0, MAX_JUMP]) == [LEAD, LEAD + MAX_JUMP]
    assert stamped(line, [3 * MAX_JUMP]) == [LEAD + MAX_JUMP + FRAME]


def test_a_late_stream_begins_where_it_belongs() -> None:
    """Subtitles may begin minutes after the picture; in a badly interleaved file, sound minutes before it."""
    line = Timeline()
    stamped(line, list(range(0, 10_000_000, 450_000)))
    assert stamped(line, [9_900_000], stream=1) == [LEAD + 9_900_000]
    assert stamped(line, [0], stream=2) == [LEAD]
    assert stamped(line, [20_000_000], stream=3) == [LEAD + 9_903_600]


def test_a_stream_that_pauses_keeps_its_time_though_another_one_jumped() -> None:
    """It follows the jump only if its time fits there."""
    line = Timeline()
    stamped(line, [0, FRAME])
    stamped(line, [0, FRAME, 3600 * CLOCK_HZ], stream=1)
    assert stamped(line, [5 * CLOCK_HZ]) == [LEAD + 5 * CLOCK_HZ]


def test_another_source_goes_on_behind_what_there_is() -> None:
    """Its timestamps may be any; the pause before it is kept."""
    line = Timeline()
    line.rebase(5.0)  # nothing yet
    assert stamped(line, [0, 3600]) == [LEAD, LEAD + 3600]
    stamped(line, [1000], stream=1)
    line.rebase(2.0)
    begin = LEAD + 7200 + 2 * CLOCK_HZ
    assert stamped(line, [77_000_000, 77_003_600]) == [begin, begin + 3600]
    assert stamped(line, [77_000_500], stream=1) == [begin + 500]
    line.rebase()
    # Shown in the order 0, 2, 1: the first one shown begins where the last frame ends.
    assert stamp(line, Packet(0, -7200, duration=FRAME), TICK) == (begin + 7200, begin + 3601)
    assert line.elapsed_s(begin) == (begin - LEAD) / CLOCK_HZ


def test_what_follows_the_streams_gets_the_newest_shift() -> None:
    """It is known from the first packet of each source on."""
    line = Timeline()
    assert line.shift is None
    stamped(line, [0])
    assert line.shift == LEAD
    line.rebase()
    assert line.shift is None


@given(st.lists(st.integers(0, 1 << 33), min_size=1, max_size=5), st.integers(0, 20))
def test_streams_stay_in_step_over_any_jumps(jumps: list[int], lag: int) -> None:
    """Frames that the source shows together are shown together, also if one stream comes later."""
    line = Timeline()
    frames = 30
    times = [base + FRAME * number for base in jumps for number in range(frames)]
    first = stamped(line, times[:lag])
    second = []
    for early, late in zip_longest(times[lag:], times):
        first += stamped(line, [] if early is None else [early])
        second += stamped(line, [late], stream=1)
    for number, (here, there) in enumerate(zip(first, second, strict=True)):
        if number % frames > lag:  # the first ones may have been placed before the other stream said where it was
            assert abs(here - there) <= 2


@given(st.lists(st.tuples(st.none() | st.integers(-500, 500), st.none() | st.integers(-500, 500), st.integers(0, 1))))
def test_the_rules_of_mpegts_hold_for_any_source(times: list[tuple[int | None, int | None, int]]) -> None:
    """Decoding times increase in each stream, and no frame is shown before it is decoded, or before 0."""
    line = Timeline()
    last: dict[int, int] = {}
    for pts, dts, stream in times:
        shown, decoded = stamp(line, Packet(pts, dts, stream), MS)
        assert 0 <= decoded <= shown
        assert decoded > last.get(stream, -1)
        last[stream] = decoded


def test_a_line_may_begin_at_nought() -> None:
    """All streams are moved by the same amount, from any beginning of the source."""
    for begin in (0, 77 * CLOCK_HZ, -5 * CLOCK_HZ):
        line = Timeline(begin=0)
        assert stamp(line, Packet(begin + 2 * FRAME, begin), TICK) == (2 * FRAME, 0)
        assert stamp(line, Packet(begin + 100, begin + 100, 1), TICK) == (100, 100)
        assert stamp(line, Packet(begin + FRAME, begin + FRAME), TICK) == (FRAME, FRAME)


@given(st.lists(st.tuples(st.integers(-(10**15), 10**15), st.integers(-(10**15), 10**15), st.integers(0, 2))))
def test_decoding_times_may_need_a_distance(times: list[tuple[int, int, int]]) -> None:
    """In a file with a clock of milliseconds, two packets of a stream need different ones."""
    line = Timeline(begin=0, step=90)
    last: dict[int, int] = {}
    for pts, dts, stream in times:
        shown, decoded = stamp(line, Packet(pts, dts, stream), TICK)
        assert 0 <= decoded <= shown
        assert decoded >= last.get(stream, -90) + 90
        last[stream] = decoded
