"""One time line for all streams and segments."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from publisher.media.timestamps import CLOCK_HZ, LEAD, MAX_HELD, Timeline, fill_first_dts

MS = Fraction(1, 1000)


@dataclass
class Packet:
    """What is used of a packet."""

    pts: int | None
    dts: int | None
    stream_index: int = 0
    duration: int | None = 40


def test_first_decoding_times_are_counted_back() -> None:
    """Packets before the first known decoding time get theirs from it, in their own stream."""
    packets = [
        Packet(0, None),
        Packet(5, 5, stream_index=1),
        Packet(120, None),
        Packet(40, 0),
        Packet(80, 40),
    ]
    assert [packet.dts for packet in fill_first_dts(packets)] == [-80, 5, -40, 0, 40]


def test_packets_with_decoding_times_are_not_held() -> None:
    """What is complete goes on at once."""
    seen: list[Packet] = []
    source = iter([Packet(0, 0), Packet(1, 1)])
    for packet in fill_first_dts(source):
        seen.append(packet)
        if len(seen) == 1:
            assert next(source).dts == 1


def test_a_later_gap_is_left_to_the_timeline() -> None:
    """Only the beginning of a stream is filled."""
    assert [packet.dts for packet in fill_first_dts([Packet(0, 0), Packet(1, None)])] == [0, None]


def test_holding_is_bounded() -> None:
    """A stream that never has decoding times is passed on after all, and so is a short one at its end."""
    packets = [Packet(number, None, duration=None) for number in range(MAX_HELD + 10)]
    assert [packet.pts for packet in fill_first_dts(packets)] == list(range(MAX_HELD + 10))
    assert len(list(fill_first_dts(packets[:3]))) == 3
    short = [Packet(0, None, duration=None), Packet(9, 7)]
    assert [packet.dts for packet in fill_first_dts(short)] == [6, 7]


def test_differences_are_kept_and_nothing_is_negative() -> None:
    """All streams are moved by the same amount."""
    line = Timeline()
    assert line.stamp(Packet(0, -80), MS) == (LEAD + 80 * 90, LEAD)
    assert line.stamp(Packet(-100, -100, stream_index=1), MS) == (LEAD - 20 * 90, LEAD - 20 * 90)
    assert line.stamp(Packet(40, -40), MS) == (LEAD + 120 * 90, LEAD + 40 * 90)
    assert line.elapsed_s(LEAD + CLOCK_HZ) == 1.0


def test_a_source_that_begins_late_is_not_moved_to_zero() -> None:
    """A live source keeps its own time."""
    assert Timeline().stamp(Packet(3_600_000, 3_600_000), MS) == (LEAD + 3600 * CLOCK_HZ,) * 2


def test_missing_times_are_made_up() -> None:
    """Without a decoding time the presentation time serves; without both, a packet follows its predecessor."""
    line = Timeline()
    assert line.stamp(Packet(None, None), MS) == (LEAD, LEAD)
    assert line.stamp(Packet(None, None), MS) == (LEAD + 1, LEAD + 1)
    assert line.stamp(Packet(None, None, stream_index=1), MS) == (LEAD + 1, LEAD + 1)
    assert line.stamp(Packet(100, None), MS) == (LEAD + 9000, LEAD + 9000)
    assert line.stamp(Packet(None, 200), MS) == (LEAD + 18000, LEAD + 18000)


@given(st.lists(st.tuples(st.none() | st.integers(-500, 500), st.none() | st.integers(-500, 500), st.integers(0, 1))))
def test_the_rules_of_mpegts_hold_for_any_source(times: list[tuple[int | None, int | None, int]]) -> None:
    """Decoding times increase in each stream, and no frame is shown before it is decoded, or before 0."""
    line = Timeline()
    last: dict[int, int] = {}
    for pts, dts, stream in times:
        shown, decoded = line.stamp(Packet(pts, dts, stream), MS)
        assert 0 <= decoded <= shown
        assert decoded > last.get(stream, -1)
        last[stream] = decoded
