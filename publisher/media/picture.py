"""What the test source draws over its picture: the clocks, one for programs and one for people, and a flash per second.

The picture is planar 4:2:0 with 8 bits (``yuv420p``); what is drawn is grey.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from tricklecast.publisher.media.digits import Digits
from tricklecast.trickle.media.clock import draw_clock, strip_height

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

BLACK: Final = 16
WHITE: Final = 235
_GREY: Final = b"\x80"

_CLOCK: Final = "00:00:00.000"
_COUNT: Final = "#0000000"


class Painter:
    """Draws into pictures of one size.

    Args:
        width: in pixels; even.
        height: likewise.
    """

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._digits = Digits(max(1, width // 160), BLACK, WHITE)
        self._strip = strip_height(height)
        # Each line of text is grey as a whole, so that it can be read whatever moves below it.
        self._left = 2 * (width // 80)
        self._first = self._strip + self._strip % 2 + 2 * (height // 90)
        self._second = self._first + self._digits.height + self._digits.height % 2

    def paint(self, frame: VideoFrame, number: int, unix_us: int, *, flash: bool) -> None:
        """Draw the time at which a frame is made.

        Args:
            frame: is drawn into.
            number: the frame's, from 0 on.
            unix_us: microseconds since 1970-01-01 UTC.
            flash: a white square stands beside the clock.
        """
        planes = [(memoryview(plane), plane.line_size) for plane in frame.planes]
        luma, stride = planes[0]
        self._paint_strip(luma, stride, unix_us // 1000)
        clock, count = _time_of_day(unix_us), f"#{number % 10**7:07}"
        _blit(luma, stride, self._left, self._first, self._digits.lines(clock))
        _blit(luma, stride, self._left, self._second, self._digits.lines(count))
        side = self._digits.height
        square = [bytes([WHITE if flash else BLACK]) * side] * side
        _blit(luma, stride, self._left + self._digits.width(len(_CLOCK)), self._first, square)
        for chroma, chroma_stride in planes[1:]:
            self._make_grey(chroma, chroma_stride)

    def _paint_strip(self, luma: memoryview, stride: int, unix_ms: int) -> None:
        row, at = b"", 0
        for cell in draw_clock(unix_ms, self._width, self._height):
            row += bytes([WHITE if cell.white else BLACK]) * (cell.right - cell.left)
            if cell.right == self._width:
                size = (cell.bottom - cell.top) * stride
                luma[at : at + size] = row.ljust(stride, b"\0") * (cell.bottom - cell.top)
                row, at = b"", at + size

    def _make_grey(self, chroma: memoryview, stride: int) -> None:
        strip = (self._strip + 1) // 2 * stride
        chroma[:strip] = _GREY * strip
        height = (self._digits.height + 1) // 2
        clock = (self._digits.width(len(_CLOCK)) + self._digits.height + 1) // 2
        count = (self._digits.width(len(_COUNT)) + 1) // 2
        _blit(chroma, stride, self._left // 2, self._first // 2, [_GREY * clock] * height)
        _blit(chroma, stride, self._left // 2, self._second // 2, [_GREY * count] * height)


def _blit(plane: memoryview, stride: int, left: int, top: int, lines: Iterable[bytes]) -> None:
    for y, line in enumerate(lines, top):
        plane[y * stride + left : y * stride + left + len(line)] = line


def _time_of_day(unix_us: int) -> str:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=unix_us)
    return f"{time:%H:%M:%S}.{time.microsecond // 1000:03}"
