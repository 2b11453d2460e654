"""Where the pictures of a segment begin, and when they are shown."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.media import (
    VIDEO_PID,
    fragment,
    init_segment,
    mp4_pictures,
    pes,
    tables,
    ts_packet,
    ts_pictures,
)
from tricklecast.app.hls import units
from tricklecast.app.hls.units import Mp4Scanner, Scanner, TsScanner, scanner, tables_of
from tricklecast.trickle.media.containers import PACKET_BYTES, Container, box, find_sync, full_box

AnyScanner = TypeVar("AnyScanner", bound=Scanner)


def scanned(found: AnyScanner, data: bytes, cuts: list[int] | None = None) -> AnyScanner:
    """Feed a scanner, cut at these places."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})
    for begin, end in pairwise(places):
        found.feed(data[begin:end])
    return found


CONTAINERS = {
    Container.MPEGTS: ts_pictures(10.0, 6),
    Container.FMP4: mp4_pictures(10.0, 6),
}


@pytest.mark.parametrize("container", CONTAINERS)
@given(cuts=st.lists(st.integers(0, 4000), max_size=12))
def test_each_picture_is_found_however_the_bytes_arrive(container: Container, cuts: list[int]) -> None:
    """Its place, its time, its duration, and whether decoding can begin there."""
    pictures = CONTAINERS[container]
    found = scanner(container, b"")
    assert found is not None
    scanned(found, b"".join(pictures), cuts)
    assert [unit.time for unit in found.units] == pytest.approx([10.0 + 0.04 * number for number in range(6)])
    assert [unit.is_key for unit in found.units] == [True] + [False] * 5
    durations = [unit.duration for unit in found.units]
    assert durations[:-1] == pytest.approx([0.04] * 5)
    start = found.start
    assert start == (len(init_segment()) if container is Container.FMP4 else 0)
    places = [start] + [sum(map(len, pictures[:number])) for number in range(1, 6)]
    assert [unit.at for unit in found.units] == places
    if container is Container.FMP4:
        assert durations[-1] == pytest.approx(0.04)
        assert (found.whole, found.init) == (len(b"".join(pictures)), init_segment())
    else:
        assert (found.whole, durations[-1]) == (places[-1], None)


@pytest.mark.parametrize("make", [TsScanner, lambda: Mp4Scanner(b""), lambda: Mp4Scanner(init_segment())])
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=300),
            st.sampled_from([*ts_pictures(0, 3), *mp4_pictures(0, 3), tables(), b"\x47", b"\0\0\0\1mdat", b"moof"]),
            st.builds(
                lambda size, kind: struct.pack(">I4s", size, kind),
                st.integers(0, 2**32 - 1),
                st.binary(min_size=4, max_size=4),
            ),
        ),
        max_size=12,
    )
)
def test_no_bytes_make_a_scanner_fail(make: type[TsScanner], pieces: list[bytes]) -> None:
    """It finds what it can, and places are within what it was fed."""
    found = make()
    fed = 0
    for piece in pieces:
        found.feed(piece)
        fed += len(piece)
        places = [unit.at for unit in found.units]
        assert places == sorted(places)
        assert all(0 <= place <= fed for place in places)
        assert 0 <= found.whole <= fed


TS = ts_pictures(0, 6)


@pytest.mark.parametrize("make", [TsScanner, lambda: Mp4Scanner(b"")])
@given(
    pieces=st.lists(
        st.one_of(
            st.sampled_from([*TS, *TS, *mp4_pictures(0, 6), b"G" * 189, bytes(100), b"GA", tables()]),
            st.binary(max_size=20),
        ),
        max_size=20,
    ),
    cuts=st.lists(st.integers(0, 8000), max_size=20),
)
def test_units_are_the_same_however_the_bytes_arrive(
    make: Callable[[], Scanner], pieces: list[bytes], cuts: list[int]
) -> None:
    """Damaged bytes, too: a process that reads a segment as it arrives cuts it as one that reads it at once."""
    data = b"".join(pieces)
    whole, cut = scanned(make(), data), scanned(make(), data, cuts)
    ends = [found.finish(len(data)) for found in (whole, cut)]
    assert (cut.units, cut.start, cut.init, cut.still_s) == (whole.units, whole.start, whole.init, whole.still_s)
    assert (cut.gave_up, cut.obstacle, ends[0]) == (whole.gave_up, whole.obstacle, ends[1])


def test_times_of_mpegts_go_on_over_their_end() -> None:
    """They have 33 bits, and begin again after 26.5 hours."""
    found = scanned(TsScanner(), b"".join(ts_pictures((1 << 33) / 90_000 - 0.08, 4)))
    assert [unit.duration for unit in found.units[:-1]] == pytest.approx([0.04] * 3)


@pytest.mark.parametrize(
    ("kind", "payload", "is_key"),
    [
        (0x1B, b"\0\0\1\x09\xf0\0\0\1\x67", True),
        (0x1B, b"\0\0\1\x65", True),
        (0x1B, b"\0\0\1\x41", False),
        (0x24, b"\0\0\1\x46\0\0\1\x42\1", True),
        (0x24, b"\0\0\1\x26\1", True),
        (0x24, b"\0\0\1\x02\1", False),
        (0x02, b"\0\0\1\xb3", False),
        (0x0F, b"\xff\xf1", True),
    ],
)
def test_a_key_picture_without_the_muxers_word(kind: int, payload: bytes, is_key: bool) -> None:
    """The NAL units show it: an IDR picture or parameter sets; sound can always begin."""
    data = tables(kind) + ts_packet(VIDEO_PID, pes(900, payload))
    assert [unit.is_key for unit in scanned(TsScanner(), data).units] == [is_key]


def test_damaged_bytes_between_packets_are_passed_over() -> None:
    """Packets begin again behind them."""
    pictures = ts_pictures(0, 6)
    data = b"".join(pictures[:2]) + b"damage" + b"".join(pictures[2:])
    assert len(scanned(TsScanner(), data).units) == 6


def test_bytes_that_are_no_packets_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they arrive: the scanner keeps none of them, and gives the segment up after a mebibyte."""
    looked = 0
    find = find_sync

    def counted(data: bytes, at: int) -> int:
        nonlocal looked
        found = find(data, at)
        looked += found - at
        return found

    monkeypatch.setattr(units, "find_sync", counted)
    pictures = b"".join(ts_pictures(0, 6))
    found = scanned(TsScanner(), pictures)
    for _ in range(3 * units.MAX_SKIPPED // 1000):
        found.feed(bytes(1000))
        assert len(found._rest) < units.SYNC_SPAN
    assert found.gave_up
    assert units.MAX_SKIPPED < looked <= units.MAX_SKIPPED + 1000 + PACKET_BYTES
    scanned(found, pictures)
    assert (len(found.units), found.finish(9_000_000)) == (6, 9_000_000)


@pytest.mark.parametrize(
    "data", [box(b"free") * 500, full_box(b"styp", 0, 0) * 500, init_segment() * 500, fragment(0) * 500]
)
def test_few_boxes_are_looked_at(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind them the segment is given up, and ends with what was whole until then."""
    monkeypatch.setattr(units, "MAX_WALKED", 400)
    monkeypatch.setattr(units, "INIT_COST", 40)
    found = scanned(Mp4Scanner(b""), init_segment() + fragment(0) + data, list(range(0, 1 << 20, 100)))
    assert found.gave_up
    assert len(found._rest) == 0
    end = found.finish(1 << 20)
    assert len(init_segment() + fragment(0)) <= end < 1 << 20
    assert found.units[0].time == 0


def test_what_is_no_box_ends_the_search() -> None:
    """A size of 2 to 7 bytes."""
    found = scanned(Mp4Scanner(b""), init_segment() + fragment(0) + b"\0\0\0\7mdat" + fragment(3600))
    assert (found.gave_up, len(found.units)) == (True, 1)
    assert found.finish(1000) == len(init_segment() + fragment(0))


def test_a_fragment_of_many_empty_tracks_is_read_in_part() -> None:
    """Boxes inside of boxes are counted, too."""
    traf = box(b"traf", box(b"free") * 500) * 500
    found = scanned(Mp4Scanner(init_segment()), box(b"moof", traf) + fragment(0))
    assert len(found.units) == 1


def test_tables_that_name_no_stream_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read until they name one, and so often at most."""
    monkeypatch.setattr(units, "MAX_TABLES", 100)
    pat = tables()[:PACKET_BYTES]
    assert scanned(TsScanner(), pat * 101 + tables()).gave_up
    again = scanned(TsScanner(), tables() * 101 + ts_pictures(0, 1)[0])
    assert (again.gave_up, len(again.units)) == (False, 1)


def test_tables_in_front_of_a_picture_belong_to_it() -> None:
    """A player that begins with that part needs them."""
    pictures = ts_pictures(0, 2)
    found = scanned(TsScanner(), pictures[0] + tables() + pictures[1])
    assert found.units[1].at == len(pictures[0])


def test_boxes_in_front_of_a_fragment_belong_to_it() -> None:
    """The time of capture, for example."""
    found = scanned(Mp4Scanner(b""), init_segment() + fragment(0) + full_box(b"prft", 1, 0, bytes(20)) + fragment(3600))
    assert found.units[1].at == len(init_segment() + fragment(0))


def test_a_segment_without_an_init_segment_has_that_of_the_one_before() -> None:
    """Its times cannot be read without."""
    assert scanned(Mp4Scanner(b""), fragment(90_000)).units == []
    found = scanned(Mp4Scanner(init_segment()), fragment(90_000, key=True))
    assert [(unit.time, unit.is_key) for unit in found.units] == [(1.0, True)]
    assert found.start == 0


def test_defaults_of_samples() -> None:
    """Duration and flags come from the run, else from the fragment, else from the init segment."""
    run = full_box(b"trun", 0, 0x000001, struct.pack(">II", 2, 0))
    plain = full_box(b"tfhd", 0, 0, struct.pack(">I", 1))
    own = full_box(b"tfhd", 0, 0x3B, struct.pack(">IQIIII", 1, 0, 1, 900, 7, 0x02000000))
    base = full_box(b"tfdt", 0, 0, struct.pack(">I", 90))
    for header, duration, is_key in ((plain, 7200, False), (own, 1800, True)):
        moof = box(b"moof", box(b"traf", header, base, run))
        (unit,) = scanned(Mp4Scanner(init_segment()), moof).units
        assert (unit.time, unit.duration, unit.is_key) == (0.001, duration / 90_000, is_key)
    assert scanner(Container.JSON, b"") is None


def test_a_run_that_claims_billions_of_samples_is_not_believed() -> None:
    """A time that makes no sense is that of the unit before; what is claimed costs nothing."""
    run = full_box(b"trun", 0, 0, struct.pack(">I", 2**32 - 1))
    header = full_box(b"tfhd", 0, 0, struct.pack(">I", 1))
    claims = box(b"moof", box(b"traf", header, full_box(b"tfdt", 0, 0, bytes(4)), run))
    short = full_box(b"trun", 0, 0x000F05, struct.pack(">I", 7))  # it ends before its first sample
    ends = box(b"moof", box(b"traf", header, full_box(b"tfdt", 0, 0, bytes(4)), short))
    empty = fragment(7200, ())
    found = scanned(Mp4Scanner(init_segment()), fragment(0, (9000, 9000)) + claims + empty + claims + ends)
    assert [unit.duration for unit in found.units] == [0.2, 0.2, 0.2, 0.2, 0.2]
    backwards = scanned(TsScanner(), b"".join(ts_pictures(at, 1)[0] for at in (5.0, 4.0, 4.5, 90.0, 90.1)))
    assert [unit.duration for unit in backwards.units] == pytest.approx([0.04, 0.5, 0.5, 0.1, None])


def test_a_large_size_is_a_large_box() -> None:
    """64 bits of size, and media up to the end of the segment."""
    media = b"media" * 10
    large = struct.pack(">I4sQ", 1, b"mdat", 16 + len(media)) + media
    moof = fragment(0)[: -len(box(b"mdat", b"media"))]
    data = (
        init_segment() + moof + large + fragment(3600)[: -len(box(b"mdat", b"media"))] + struct.pack(">I4s", 0, b"mdat")
    )
    found = scanned(Mp4Scanner(b""), data + media, [len(init_segment()) + len(moof) + 12])
    assert len(found.units) == 2
    assert found.units[1].at == len(init_segment() + moof + large)


def test_a_fragment_that_is_cut_off_is_left_out() -> None:
    """Whole boxes behind the last fragment stay; MPEG-TS is used up to its last byte."""
    first, second = fragment(0), fragment(3600, media=bytes(90))
    found = scanned(Mp4Scanner(init_segment()), first + second[:-50])
    assert found.finish(len(first + second) - 50) == len(first)
    assert [unit.at for unit in found.units] == [0]
    for tail in (b"", box(b"mfra")):
        found = scanned(Mp4Scanner(init_segment()), first + second + tail)
        assert found.finish(len(first + second + tail)) == len(first + second + tail)
        assert len(found.units) == 2
    open_ended = fragment(0)[: -len(box(b"mdat", b"media"))] + struct.pack(">I4s", 0, b"mdat") + b"media"
    found = scanned(Mp4Scanner(init_segment()), open_ended)
    assert (found.finish(len(open_ended)), len(found.units)) == (len(open_ended), 1)
    found = scanned(Mp4Scanner(init_segment()), second[:-50])
    assert (found.finish(len(second) - 50), found.units) == (0, [])
    packets = scanned(TsScanner(), ts_pictures(0.0, 1)[0][:-100])
    assert (packets.finish(700), len(packets.units)) == (700, 1)


def test_the_last_packet_of_audio_lasts_as_long_as_it_has_bytes() -> None:
    """A muxer packs as much sound as fits into each packet, and what is left into the last one of a segment."""
    more = ts_packet(VIDEO_PID, b"x" * 100, start=False)
    packets = [ts_packet(VIDEO_PID, pes(9000 * number)) + more * 9 for number in range(3)]
    data = tables(0x0F) + b"".join(packets)[: -5 * len(more)]
    found = scanned(TsScanner(), data)
    assert found.finish(len(data)) == len(data)
    assert [unit.duration for unit in found.units] == pytest.approx([0.1, 0.1, 0.05])


def test_tables_are_an_init_segment() -> None:
    """The first PAT and PMT, whatever their counters; nothing if they do not come."""
    pat, pmt = tables()[:PACKET_BYTES], tables()[PACKET_BYTES:]
    counted = b"".join(packet[:3] + bytes([packet[3] | 7]) + packet[4:] for packet in (pat, pmt))
    assert tables_of(counted + b"".join(ts_pictures(1.0, 3))) == tables()
    assert tables_of(pat + ts_packet(VIDEO_PID, pes(0))) == tables_of(b"") == b""
