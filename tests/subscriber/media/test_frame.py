"""A decoded frame has a time and an array; batches hold several frames."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from av.video.frame import VideoFrame

from tricklecast.subscriber.media.frame import Arrays, Clock, Frame, FrameBatch, joined, stacked

TICK = Fraction(1, 25)


def picture(number: int, side: int = 32) -> VideoFrame:
    """A grey one."""
    return VideoFrame.from_ndarray(np.full((side, side, 3), 10 * number, np.uint8), format="rgb24").reformat(
        format="yuv420p"
    )


def shown(array: np.ndarray[Any, Any], **options: Any) -> Frame:
    """A frame that has only an array."""
    data: Any = SimpleNamespace()
    return Frame("video", data, array, None, 0, **options)


@pytest.mark.parametrize("format", ["rgb24", "gray", "yuv420p", "rgba"])
@pytest.mark.parametrize("size", [None, (48, 16)])
def test_an_array_is_what_pyav_makes(format: str, size: tuple[int, int] | None) -> None:
    """Format and size change together, in memory of its own or in that of a batch."""
    width, height = size or (None, None)
    expected = picture(7).to_ndarray(format=format, width=width, height=height)
    for batch in (None, 3):
        assert np.array_equal(Arrays(format, size, batch).of(picture(7)), expected)


@pytest.mark.parametrize(
    ("format", "size", "to"),
    [("rgb24", (20_000, 20_000), r"format='rgb24' and size=\(20000, 20000\)"), ("vaapi", None, "format='vaapi'")],
)
def test_a_conversion_that_fails_names_what_was_asked_for(format: str, size: tuple[int, int] | None, to: str) -> None:
    """It is not the picture's fault. What can be made of a picture depends on its own size, too."""
    with pytest.raises(ValueError, match=f"^a picture of 32x32 in yuv420p cannot be converted to {to}: [A-Z]"):
        Arrays(format, size, None).of(picture(7))


def test_pictures_of_a_block_are_one_array_without_a_copy() -> None:
    """They follow each other; what has a hole, or stands in two blocks, is put together by copying."""
    arrays = Arrays("rgb24", None, 4)
    found = [shown(arrays.of(picture(number))) for number in range(8)]
    for part in (found[:4], found[4:], found[1:3], found[:1]):
        array = joined(part)
        assert array is not None
        assert np.shares_memory(array, part[-1].array)
        assert np.array_equal(array, stacked(part))
    assert joined(found[2:6]) is None
    assert joined([found[0], found[2]]) is None
    assert joined([shown(np.zeros((2, 2, 3), np.uint8))]) is None
    arrays.begin_block()
    after = [shown(arrays.of(picture(number))) for number in range(4)]
    assert joined(after) is not None
    assert [(frame.array[0, 0, 0] + 5) // 10 for frame in found] == [*range(8)]  # a block is not used again


def test_another_size_begins_a_block() -> None:
    """A batch has pictures of one size."""
    arrays = Arrays("rgb24", None, 4)
    small, large = shown(arrays.of(picture(1))), shown(arrays.of(picture(1, side=64)))
    assert large.array.shape == (64, 64, 3)
    assert not small.goes_on_with(large)
    assert small.goes_on_with(small)
    assert not small.goes_on_with(shown(small.array, gap=1))
    assert not small.goes_on_with(shown(small.array, restarted=True))


def test_a_batch_says_what_was_missed_before_it() -> None:
    """It has the times of its pictures."""
    array = np.zeros((1, 2, 2, 3), np.uint8)
    batch = FrameBatch(array, [shown(array[0], time=2.5, gap=3, restarted=True)])
    assert (len(batch), batch.times, batch.gap, batch.restarted) == (1, [2.5], 3, True)


def times(clock: Clock, *begins: float, kind: str = "video", duration: int = 1) -> list[float]:
    """The times of frames."""
    data = SimpleNamespace(duration=duration, time_base=TICK)
    return [clock.time_s(kind, data, Fraction(begin).limit_denominator(1000)) for begin in begins]


def test_a_time_is_the_streams_own() -> None:
    """From 0, too; sound and pictures have one clock."""
    clock = Clock()
    assert times(clock, 0.0, 0.04, 0.08) == [0.0, 0.04, 0.08]
    assert times(clock, 0.02, 0.06, kind="audio") == [0.02, 0.06]


def test_a_time_goes_on_where_an_encoder_begins_anew() -> None:
    """Sound and pictures are moved by the same amount, whichever jumps first."""
    clock = Clock()
    assert times(clock, 100.0, 100.04) == [100.0, 100.04]
    assert times(clock, 100.02, kind="audio") == [100.02]
    assert times(clock, 1.4, 1.44) == [100.08, 100.12]
    assert times(clock, 1.42, 1.46, kind="audio") == [100.1, 100.14]


def test_a_counter_that_wraps_leaves_no_trace() -> None:
    """MPEG-TS counts 33 bits of 90 kHz."""
    wrap = 2**33 / 90_000
    found = times(Clock(), wrap - 0.04, 0.0, 0.04)
    assert all(abs(there - here - 0.04) < 1e-3 for here, there in pairwise(found))


def test_behind_a_gap_the_streams_own_time_is_believed() -> None:
    """However long it was; an earlier time follows those before."""
    clock = Clock()
    assert times(clock, 5.0, 5.04) == [5.0, 5.04]
    clock.begin_anew()
    assert times(clock, 65.0, 65.04) == [65.0, 65.04]
    clock.begin_anew()
    assert times(clock, 64.96, kind="audio") == [64.96]  # sound may be a little behind the pictures
    clock.begin_anew()
    assert times(clock, 1.0, 1.04) == [65.08, 65.12]


@pytest.mark.parametrize("duration", [0, 1])
def test_the_first_frame_of_another_life_is_later_than_all_before(duration: int) -> None:
    """By a picture's time, whether its length is said or not."""
    clock = Clock()
    assert times(clock, 5.0, 5.04, duration=duration) == [5.0, 5.04]
    clock.begin_anew(restarted=True)
    clock.begin_anew()  # the reader was told twice
    assert times(clock, 1.0, 1.04, duration=duration) == [5.08, 5.12]
    clock.begin_anew(restarted=True)
    assert times(clock, 1.04, duration=duration) == [5.16]
    clock.begin_anew(restarted=True)
    assert times(clock, 1.0, duration=duration) == [5.2]
    clock.begin_anew(restarted=True)
    assert times(clock, 0.9, duration=duration) == [5.24]  # which would be 5.1 on the clock before
