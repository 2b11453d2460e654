"""Fragments of MP4: what is written is what the standard's reader finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.publisher.media.boxes import (
    Sample,
    TrackHeader,
    boxes,
    display_matrix,
    fragment,
    init_segment,
    length_prefixed,
    track_headers,
)


def box(kind: bytes, body: bytes = b"") -> bytes:
    """A box."""
    return (8 + len(body)).to_bytes(4) + kind + body


def numbers(body: memoryview, at: int, count: int) -> list[int]:
    """Consecutive 32-bit numbers."""
    return [int.from_bytes(body[at + 4 * number : at + 4 * number + 4]) for number in range(count)]


def test_a_fragment_says_where_its_samples_are() -> None:
    """Per track the time of the first one, and for each its length, size, kind and offset; data lies behind."""
    video = [Sample(b"key", 1 << 33, 7200, 3600, True), Sample(b"b", (1 << 33) + 3600, 0, 3601, False)]
    sound = [Sample(b"sound", 96_000, 0, 1024, True)]
    data = fragment(7, [(1, video), (2, sound)])
    (moof, header), (mdat, media) = boxes(memoryview(data))
    assert (moof, mdat) == (b"moof", b"mdat")
    assert bytes(media) == b"keybsound"
    (mfhd, number), (_, first), (_, second) = boxes(header)
    assert (mfhd, numbers(number, 4, 1)) == (b"mfhd", [7])
    found = [dict(boxes(track)) for track in (first, second)]
    assert [numbers(track[b"tfhd"], 0, 2) for track in found] == [[0x020000, 1], [0x020000, 2]]
    assert [int.from_bytes(track[b"tfdt"][4:12]) for track in found] == [1 << 33, 96_000]
    at = len(header) + 16
    assert numbers(found[0][b"trun"], 0, 11) == [
        *(0x01000F01, 2, at),
        *(3600, 3, 0x02000000, 7200),
        *(3601, 1, 0x01010000, 0),
    ]
    assert numbers(found[1][b"trun"], 0, 7) == [0x01000F01, 1, at + 4, 1024, 5, 0x02000000, 0]
    assert data[at : at + 3] == b"key"


def test_an_init_segment_is_cut_off() -> None:
    """It ends with the description of the tracks, whatever follows."""
    init = box(b"ftyp", b"iso5") + box(b"moov", b"tracks")
    assert init_segment(init + box(b"mfra")) == init
    with pytest.raises(ValueError, match="no moov"):
        init_segment(box(b"ftyp"))


def test_tracks_are_read() -> None:
    """Their numbers and time scales, in both versions of the boxes."""

    def track(version: int, number: int, timescale: int) -> bytes:
        lead = bytes([version]) + bytes(19 if version else 11)
        media = box(b"mdia", box(b"mdhd", lead + timescale.to_bytes(4) + bytes(8)))
        return box(b"trak", box(b"tkhd", lead + number.to_bytes(4) + bytes(60)) + media)

    init = box(b"ftyp") + box(b"moov", box(b"mvhd") + track(0, 1, 90_000) + track(1, 2, 48_000) + box(b"mvex"))
    assert track_headers(init) == [TrackHeader(1, 90_000), TrackHeader(2, 48_000)]


def test_a_display_matrix_is_read() -> None:
    """That of the first track, in both versions of the box; without a track there is none."""
    for version in (0, 1):
        matrix = b"".join(number.to_bytes(4, signed=True) for number in (1, -2, 0, 3, 4, 0, 0, 0, 9))
        header = box(b"tkhd", bytes([version]) + bytes(51 if version else 39) + matrix + bytes(8))
        assert display_matrix(box(b"moov", box(b"mvhd") + box(b"trak", header))) == (1, -2, 3, 4)
    with pytest.raises(ValueError, match="no track"):
        display_matrix(box(b"moov", box(b"mvhd")))


def test_start_codes_become_lengths() -> None:
    """Those of three and of four bytes, with padding between units, and none before or behind them."""
    units = b"\0\0\0\1\x67abc\0\0\0\0\1\x68\0\0\3d\0\0\1\x65e\0\0"
    assert length_prefixed(units) == b"\0\0\0\4\x67abc\0\0\0\5\x68\0\0\3d\0\0\0\2\x65e"
    assert length_prefixed(b"nothing") == b""
    assert length_prefixed(b"\0\0\1\0\0\1\x09") == b"\0\0\0\1\x09"


@given(st.lists(st.binary(min_size=1).filter(lambda unit: b"\0\0" not in unit and not unit.endswith(b"\0"))))
def test_no_unit_is_lost(units: list[bytes]) -> None:
    """Whatever the units hold, they come out one by one."""
    stream = b"".join(b"\0\0\0\1" + unit for unit in units)
    assert length_prefixed(stream) == b"".join(len(unit).to_bytes(4) + unit for unit in units)
