"""A clock in a picture that programs can read: black and white cells across its top, with a check sum.

A test source draws the wall-clock time into every frame; whoever decodes one knows when it was made, whatever encoders,
scalers and containers did on the way. The time takes :data:`TIME_BITS` cells and the check sum :data:`CHECK_BITS`, in
:data:`ROWS` rows of :data:`COLUMNS` from left to right and top to bottom, the highest bit first, a one being white.

The cells are so large that they survive being scaled to a quarter: 16 by 10 pixels of 320 by 180, or of a picture that
size, 4 by 2.5. A damaged clock reads as none, not as a wrong time: CRC-32 finds every error of up to eight cells in a
word of 48 bits (Koopman, "32-bit cyclic redundancy codes for Internet applications", 2002), and of any others all but
one in 2**32.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

COLUMNS: Final = 20
ROWS: Final = 4
TIME_BITS: Final = 48
"""Milliseconds since 1970: enough for 8,900 years."""

CHECK_BITS: Final = 32
HEIGHT_SHARE: Final = (2, 9)
"""The strip's share of the picture's height, as a fraction: 40 of 180 lines."""

MIN_CONTRAST: Final = 48
"""The least difference between black and white cells, of 255: what is flatter is no clock (video has 219)."""

# Where a cell is sampled, in tenths of its width and height: its borders are blurred by coding and scaling.
_SAMPLES: Final = (3, 5, 7)

Luma = Callable[[int, int], int]
"""The brightness of the pixel at column x and line y, 0 to 255."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A rectangle of pixels; ``right`` and ``bottom`` are just outside.

    Attributes:
        white: its colour.
    """

    left: int
    top: int
    right: int
    bottom: int
    white: bool


def strip_height(height: int) -> int:
    """How many lines at the top of a picture of ``height`` lines belong to the clock."""
    return _edge(ROWS, height)


def draw(unix_ms: int, width: int, height: int) -> list[Cell]:
    """The cells that show a time, row by row; together they fill the strip at the picture's top.

    Args:
        unix_ms: milliseconds since 1970-01-01 UTC.
        width: of the picture, in pixels.
        height: likewise.

    Raises:
        ValueError: the time does not fit into :data:`TIME_BITS`.
    """
    if unix_ms < 0 or unix_ms >> TIME_BITS:
        raise ValueError(f"a picture clock cannot show {unix_ms} ms")
    word = unix_ms << CHECK_BITS | _check(unix_ms)
    cells = []
    for index in range(ROWS * COLUMNS):
        row, column = divmod(index, COLUMNS)
        white = bool(word >> (ROWS * COLUMNS - 1 - index) & 1)
        left, right = column * width // COLUMNS, (column + 1) * width // COLUMNS
        cells.append(Cell(left, _edge(row, height), right, _edge(row + 1, height), white))
    return cells


def read(luma: Luma, width: int, height: int) -> int | None:
    """The time that a picture shows.

    Args:
        luma: gives the brightness of a pixel; it is asked for pixels of the picture only.
        width: of the picture, in pixels.
        height: likewise.

    Returns:
        Milliseconds since 1970-01-01 UTC; ``None`` where there is no clock, or it is not readable.
    """
    if width < COLUMNS or strip_height(height) < ROWS:
        return None
    levels = [_level(luma, index, width, height) for index in range(ROWS * COLUMNS)]
    black, white = min(levels), max(levels)
    if white - black < MIN_CONTRAST * len(_SAMPLES) ** 2:
        return None
    word = 0
    for level in levels:
        word = word << 1 | (2 * level > black + white)
    unix_ms = word >> CHECK_BITS
    return unix_ms if word & ((1 << CHECK_BITS) - 1) == _check(unix_ms) else None


def _check(unix_ms: int) -> int:
    return zlib.crc32(unix_ms.to_bytes(TIME_BITS // 8))


def _edge(row: int, height: int) -> int:
    """The line at which a row begins, or the one before it ends."""
    share, of = HEIGHT_SHARE
    return row * height * share // (of * ROWS)


def _level(luma: Luma, index: int, width: int, height: int) -> int:
    """The brightness of a cell's inner part, summed over its samples."""
    row, column = divmod(index, COLUMNS)
    share, of = HEIGHT_SHARE
    total = 0
    for down in _SAMPLES:
        y = (10 * row + down) * height * share // (10 * of * ROWS)
        for across in _SAMPLES:
            total += luma((10 * column + across) * width // (10 * COLUMNS), y)
    return total
