"""What is drawn into a generated picture."""

from __future__ import annotations

from fractions import Fraction

import pytest
from av.video.frame import VideoFrame

from tests.publisher.media.generated import clock_of, flashes, luma
from tricklecast.publisher.media.testsrc import BLACK, WHITE, Digits, Painter
from tricklecast.trickle.media.clock import strip_height

NOW_US = 1_785_000_000_123_456  # 17:20:00.123 UTC


def picture(width: int, height: int) -> VideoFrame:
    """A picture that is neither black nor white nor grey."""
    frame = VideoFrame(width, height, "yuv420p")
    for plane in frame.planes:
        plane.update(b"\x50" * plane.buffer_size)
    frame.pts = 0
    frame.time_base = Fraction(1)
    return frame


def text_at(frame: VideoFrame, line: int, characters: int) -> str:
    """Read the digits back, dot by dot."""
    digits = Digits(1, 0, 1)
    known = {tuple(digits.lines(character)): character for character in "0123456789:.# "}
    scale = max(1, frame.width // 160)
    pixel, left = luma(frame), 2 * (frame.width // 80)
    strip = strip_height(frame.height)
    top = strip + strip % 2 + 2 * (frame.height // 90) + line * (digits.height * scale + digits.height * scale % 2)
    text = ""
    for at in range(characters):
        rows = []
        for row in range(digits.height):
            x = left + at * 6 * scale
            dots = (pixel(x + dot * scale, top + row * scale) for dot in range(7))
            rows.append(bytes(int(level == WHITE) for level in dots))
        text += known[tuple(rows)]
    return text


def test_digits_look_like_digits() -> None:
    """Seven by five dots, each of several pixels, with a margin around the text."""
    lines = ["".join(" #"[dot] for dot in line) for line in Digits(1, 0, 1).lines("1:")]
    assert lines == [
        "             ",
        "   #         ",
        "  ##     #   ",
        "   #     #   ",
        "   #         ",
        "   #     #   ",
        "   #     #   ",
        "  ###        ",
        "             ",
    ]
    digits = Digits(3, BLACK, WHITE)
    large = list(digits.lines("1:"))
    assert len(large) == digits.height == 27
    assert {len(line) for line in large} == {digits.width(2)} == {39}
    assert large[3] == large[5] == bytes([BLACK] * 9 + [WHITE] * 3 + [BLACK] * 27)


@pytest.mark.parametrize(("width", "height"), [(160, 90), (320, 180), (166, 102), (640, 362), (1920, 1080)])
def test_the_time_is_there_for_programs_and_for_people(width: int, height: int) -> None:
    """The same, with the frame's number; whatever the picture's size and the padding of its lines."""
    frame = picture(width, height)
    Painter(width, height).paint(frame, 12_345_678, NOW_US, flash=False)
    assert clock_of(frame) == NOW_US // 1000
    assert text_at(frame, 0, 12) == "17:20:00.123"
    assert text_at(frame, 1, 8) == "#2345678"


def test_what_is_drawn_is_grey_and_the_rest_is_untouched() -> None:
    """Colours would blur the cells, and the picture is not the clock's."""
    frame = picture(320, 180)
    Painter(320, 180).paint(frame, 0, NOW_US, flash=True)
    for plane in frame.planes[1:]:
        rows = [bytes(plane)[y * plane.line_size : y * plane.line_size + 160] for y in range(90)]
        assert set(b"".join(rows[:20])) == {128}
        assert set(rows[22][4:80]) == {128}
        assert rows[60] == b"\x50" * 160
    assert luma(frame)(10, 170) == luma(frame)(310, 60) == 0x50


def test_the_flash_is_a_white_square() -> None:
    """Black otherwise."""
    frame = picture(320, 180)
    painter = Painter(320, 180)
    painter.paint(frame, 0, NOW_US, flash=True)
    assert flashes([frame]) == [0]
    painter.paint(frame, 1, NOW_US, flash=False)
    assert flashes([frame]) == []
