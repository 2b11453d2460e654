"""MP4 before the demuxer: what announces too many samples is refused, and a missing init segment is put in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.trickle.media import demux
from tricklecast.trickle.media.containers import box, full_box
from tricklecast.trickle.media.demux import MAX_SAMPLES, SampleGuard, UnsafeMedia


def moof(samples: int) -> bytes:
    """A fragment header that announces a number of samples."""
    return box(b"moof", box(b"traf", full_box(b"trun", 0, 0, samples.to_bytes(4))))


SEGMENT = box(b"ftyp", b"isom") + box(b"moov", bytes(50)) + (moof(3) + box(b"mdat", b"media" * 9)) * 2


@given(st.lists(st.integers(0, len(SEGMENT))))
def test_a_segment_passes_whole(cuts: list[int]) -> None:
    """It passes unchanged, in any pieces."""
    guard, places = SampleGuard(), [0, *sorted(cuts), len(SEGMENT)]
    parts = [guard.feed(SEGMENT[begin:end]) for begin, end in pairwise(places)]
    assert b"".join(parts) == SEGMENT


def test_media_passes_as_it_comes() -> None:
    """Bytes of ``mdat`` pass at once, with any form of size; other boxes pass when they are whole."""
    for head in (b"\0\0\0\x64mdat", b"\0\0\0\0mdat", b"\0\0\0\1mdat" + (100).to_bytes(8)):
        guard = SampleGuard()
        assert guard.feed(moof(1)[:-1]) == b""
        assert guard.feed(moof(1)[-1:] + head + b"a") == moof(1) + head + b"a"
        assert guard.feed(b"trun" * 5) == b"trun" * 5
    assert SampleGuard().feed(b"\0\0\0\1mdat\0\0") == b""


def test_the_init_segment_goes_on_to_segments_without_one() -> None:
    """It is put in front of their media. An own one takes its place; one that is refused does not."""
    first = SampleGuard()
    first.feed(SEGMENT)
    init = box(b"ftyp", b"isom") + box(b"moov", bytes(50))
    assert first.init == init
    second, media = SampleGuard(first.init), moof(3) + box(b"mdat", b"media")
    assert second.feed(box(b"styp") + media[:5]) == box(b"styp")
    assert second.feed(media[5:] + media) == init + media + media
    assert second.init == init
    third = SampleGuard(second.init)
    assert third.feed(box(b"moov", b"other") + media) == box(b"moov", b"other") + media
    assert third.init == box(b"moov", b"other")
    fourth = SampleGuard(init)
    with pytest.raises(UnsafeMedia):
        fourth.feed(box(b"moov", b"cmov"))
    assert fourth.init == init


@pytest.mark.parametrize("end", [b"\0\0\0\7free", b"\0\0\0\0free", b"\0\0\0\1free" + bytes(8), b"\0\0\0\7mdat"])
def test_what_is_no_box_ends_the_segment(end: bytes) -> None:
    """Nothing passes behind bytes that are no box."""
    guard = SampleGuard()
    assert guard.feed(SEGMENT + end + SEGMENT) == SEGMENT
    assert guard.feed(SEGMENT) == b""


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_pass_in_order_or_are_refused(parts: list[bytes]) -> None:
    """No byte is changed or added."""
    guard, passed = SampleGuard(), b""
    for part in parts:
        passed += guard.feed(part)
    assert b"".join(parts).startswith(passed)


def test_too_many_samples_are_refused() -> None:
    """The limit holds for one fragment and for the whole segment."""
    with pytest.raises(UnsafeMedia, match="more than 1048576 samples"):
        SampleGuard().feed(moof(MAX_SAMPLES + 1))
    guard = SampleGuard()
    assert guard.feed(moof(MAX_SAMPLES)) == moof(MAX_SAMPLES)
    with pytest.raises(UnsafeMedia, match="samples"):
        guard.feed(moof(1))


def test_an_ordinary_file_is_refused() -> None:
    """An index of samples may announce any number of them."""
    table = full_box(b"stsz", 0, 0, (1).to_bytes(4), (5).to_bytes(4))
    with pytest.raises(UnsafeMedia, match="ordinary MP4 file"):
        SampleGuard().feed(box(b"moov", table))


@pytest.mark.parametrize("version", [0, 1])
def test_a_track_number_that_costs_seconds_is_refused(version: int) -> None:
    """libavformat counts up to it; the number is found at any place of its header."""
    times = bytes(16 if version else 8)
    guard = SampleGuard()
    track = box(b"trak", full_box(b"tkhd", version, 3, times, (0x7FFFFFFF).to_bytes(4)))
    assert guard.feed(box(b"moov", track)) == box(b"moov", track)
    with pytest.raises(UnsafeMedia, match="track number"):
        guard.feed(box(b"free", full_box(b"tkhd", version, 3, times, (1 << 31).to_bytes(4))))


def test_little_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box that is too long is refused when the limit is reached."""
    monkeypatch.setattr(demux, "MAX_BOX", 1 << 20)
    guard = SampleGuard()
    assert guard.feed(b"\x7f\0\0\0moof" + bytes((1 << 20) - 8)) == b""
    with pytest.raises(UnsafeMedia, match="a box of more than 1 MiB"):
        guard.feed(b"\0")
