"""H.264 in the form that browsers take over WebRTC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import av
import pytest
from av.error import FFmpegError

from tests.publisher.media.clips import make_clip
from tricklecast.subscriber.gateway.pictures import LOOKED_AT, START, CannotPass, Pictures
from tricklecast.subscriber.media.opening import MAX_UNITS, h264_units

SPS = b"\x67\x42\x00\x1f\x01"
PPS = b"\x68\xce\x01"
KEY = b"\x65\x88\x80\x10"  # first_mb 0, slice_type 7
P = b"\x41\x9a\x10"  # first_mb 0, slice_type 5
B = b"\x01\x9e\x10"  # first_mb 0, slice_type 6


def annex_b(*units: bytes) -> bytes:
    """Units as MPEG-TS has them."""
    return b"".join(START + unit for unit in units)


@pytest.fixture(scope="module", params=["clip.mp4", "clip.ts"])
def packets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """The first pictures of a clip, which has two B-pictures between others."""
    with av.open(str(make_clip(tmp_path_factory.mktemp("clip") / request.param, audio=None))) as clip:
        yield list(islice(clip.demux(video=0), LOOKED_AT))


def test_a_key_picture_has_its_parameter_sets_in_any_container(packets: list[Any]) -> None:
    """Other pictures have theirs alone."""
    first, second = (h264_units(packet) for packet in packets[:2])
    assert {7, 8, 5} <= {unit[0] & 31 for unit in first}
    assert not {7, 8} & {unit[0] & 31 for unit in second}
    picture = Pictures().convert(first)
    assert picture is not None
    assert picture.is_key
    assert sum(map(len, second)) <= packets[1].size


@pytest.mark.parametrize("damage", [b"\xff" * 20, b"\x00" * 9, (START + b"\x06\x01") * 2 * MAX_UNITS])
def test_damaged_packets_are_refused_or_have_few_units(packets: list[Any], damage: bytes) -> None:
    """What cannot be taken apart takes no time."""
    packet: av.Packet[Any] = av.Packet(damage)
    packet.stream = packets[0].stream
    with suppress(FFmpegError):
        assert len(h264_units(packet)) <= MAX_UNITS


def test_a_key_picture_without_parameter_sets_gets_those_that_came_last() -> None:
    """In MPEG-TS they come with the stream; delimiters and padding are left out."""
    pictures = Pictures()
    assert pictures.convert([b"\x09\xf0", SPS, PPS, KEY, b"\x0c\xff\x80"]) is not None
    again = pictures.convert([KEY])
    assert again is not None
    assert again.data == annex_b(SPS, PPS, KEY)


def test_nobody_can_begin_without_parameter_sets() -> None:
    """A key picture without them is passed on, and is no beginning."""
    picture = Pictures().convert([KEY])
    assert picture is not None
    assert not picture.is_key


@pytest.mark.parametrize("units", [[], [SPS, PPS], [b"\x06\x01"]])
def test_what_has_no_picture_is_none(units: list[bytes]) -> None:
    """Parameter sets alone, remarks (SEI) alone, and nothing."""
    assert Pictures().convert(units) is None


def test_a_picture_whose_slice_is_cut_off_is_passed_on() -> None:
    """It is damaged, and a decoder conceals that."""
    picture = Pictures().convert([b"\x41", P])
    assert picture is not None
    assert picture.data == annex_b(b"\x41", P)


def test_b_pictures_are_refused() -> None:
    """The line says what to do."""
    with pytest.raises(CannotPass, match=r"B-pictures.*--transcode"):
        Pictures().convert([B])


def test_profiles_that_browsers_lack_are_refused() -> None:
    """High 10 (110) has ten bits."""
    with pytest.raises(CannotPass, match="profile 110"):
        Pictures().convert([b"\x67\x6e\x00\x1f", PPS, KEY])


def test_an_encoders_b_pictures_are_seen(packets: list[Any]) -> None:
    """Within the first eight pictures."""
    pictures = Pictures()
    assert pictures.convert(h264_units(packets[0])) is not None
    with pytest.raises(CannotPass, match="B-pictures"):
        any(pictures.convert(h264_units(packet)) is None for packet in packets)
