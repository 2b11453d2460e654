"""H.264 in the form that browsers take over WebRTC."""

from __future__ import annotations

import struct
from itertools import islice
from pathlib import Path

import av
import pytest

from tests.publisher.media.clips import make_clip
from tricklecast.subscriber.gateway.pictures import LOOKED_AT, MAX_UNITS, START, CannotPass, Pictures

SPS = b"\x67\x42\x00\x1f\x01"
PPS = b"\x68\xce\x01"
KEY = b"\x65\x88\x80\x10"  # first_mb 0, slice_type 7
P = b"\x41\x9a\x10"  # first_mb 0, slice_type 5
B = b"\x01\x9e\x10"  # first_mb 0, slice_type 6


def annex_b(*units: bytes) -> bytes:
    """Units as MPEG-TS has them."""
    return b"".join(START + unit for unit in units)


def lengths(*units: bytes) -> bytes:
    """Units as MP4 has them."""
    return b"".join(struct.pack(">I", len(unit)) + unit for unit in units)


AVCC = b"\x01\x42\x00\x1f\xff\xe1" + struct.pack(">H", len(SPS)) + SPS + b"\x01" + struct.pack(">H", len(PPS)) + PPS


def test_a_key_picture_of_mp4_gets_start_codes_and_the_parameter_sets_of_the_header() -> None:
    """Other pictures get start codes alone."""
    pictures = Pictures()
    first = pictures.convert(lengths(KEY), AVCC)
    assert first is not None
    assert (first.data, first.is_key) == (annex_b(SPS, PPS, KEY), True)
    second = pictures.convert(lengths(P), AVCC)
    assert second is not None
    assert (second.data, second.is_key) == (annex_b(P), False)


def test_a_key_picture_without_parameter_sets_gets_those_that_came_last() -> None:
    """In MPEG-TS they come with the stream; delimiters and padding are left out."""
    pictures = Pictures()
    assert pictures.convert(annex_b(b"\x09\xf0", SPS, PPS, KEY, b"\x0c\xff\x80"), None) is not None
    again = pictures.convert(annex_b(KEY), b"")
    assert again is not None
    assert again.data == annex_b(SPS, PPS, KEY)


def test_nobody_can_begin_without_parameter_sets() -> None:
    """A key picture without them is passed on, and is no beginning."""
    picture = Pictures().convert(annex_b(KEY), None)
    assert picture is not None
    assert not picture.is_key


@pytest.mark.parametrize("data", [b"", b"\x00", annex_b(SPS, PPS), annex_b(b"\x06\x01"), START * 10])
def test_what_has_no_picture_is_none(data: bytes) -> None:
    """Parameter sets alone, remarks (SEI) alone, and nothing."""
    assert Pictures().convert(data, None) is None


@pytest.mark.parametrize("header", [AVCC[:7], AVCC[:12], AVCC, b"\x01" * 8])
@pytest.mark.parametrize("data", [b"\xff" * 20, lengths(KEY)[:-2], b"\x00" * 9, lengths(*[b"\x06\x01"] * MAX_UNITS, P)])
def test_damaged_lengths_are_no_pictures(data: bytes, header: bytes) -> None:
    """What cannot be taken apart is left out, and takes no time."""
    assert Pictures().convert(data, header) is None


def test_a_picture_whose_slice_is_cut_off_is_passed_on() -> None:
    """It is damaged, and a decoder conceals that."""
    picture = Pictures().convert(annex_b(b"\x41", P), None)
    assert picture is not None
    assert picture.data == annex_b(b"\x41", P)


def test_b_pictures_are_refused() -> None:
    """The line says what to do."""
    with pytest.raises(CannotPass, match=r"B-pictures.*--transcode"):
        Pictures().convert(annex_b(B), None)


def test_profiles_that_browsers_lack_are_refused() -> None:
    """High 10 (110) has ten bits."""
    with pytest.raises(CannotPass, match="profile 110"):
        Pictures().convert(annex_b(b"\x67\x6e\x00\x1f", PPS, KEY), None)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.ts"])
def test_an_encoders_b_pictures_are_seen(tmp_path: Path, name: str) -> None:
    """Within the first eight pictures of a clip that has two of them between others."""
    pictures = Pictures()
    with av.open(str(make_clip(tmp_path / name, audio=None))) as clip:
        first = [
            (bytes(packet), packet.stream.codec_context.extradata) for packet in islice(clip.demux(video=0), LOOKED_AT)
        ]
    assert pictures.convert(*first[0]) is not None
    with pytest.raises(CannotPass, match="B-pictures"):
        any(pictures.convert(*picture) is None for picture in first)
