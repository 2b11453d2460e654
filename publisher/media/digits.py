"""Digits in a picture, for people; this build of libavfilter has no font."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

GLYPH_HEIGHT: Final = 7
ADVANCE: Final = 6
"""A glyph's five columns and the space behind it."""

# Seven lines per glyph, from top to bottom; five bits per line, the leftmost the highest.
_GLYPHS: Final = {
    "0": (0x0E, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0E),
    "1": (0x04, 0x0C, 0x04, 0x04, 0x04, 0x04, 0x0E),
    "2": (0x0E, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1F),
    "3": (0x1F, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0E),
    "4": (0x02, 0x06, 0x0A, 0x12, 0x1F, 0x02, 0x02),
    "5": (0x1F, 0x10, 0x1E, 0x01, 0x01, 0x11, 0x0E),
    "6": (0x06, 0x08, 0x10, 0x1E, 0x11, 0x11, 0x0E),
    "7": (0x1F, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08),
    "8": (0x0E, 0x11, 0x11, 0x0E, 0x11, 0x11, 0x0E),
    "9": (0x0E, 0x11, 0x11, 0x0F, 0x01, 0x02, 0x0C),
    ":": (0x00, 0x04, 0x04, 0x00, 0x04, 0x04, 0x00),
    ".": (0x00, 0x00, 0x00, 0x00, 0x00, 0x0C, 0x0C),
    "#": (0x0A, 0x0A, 0x1F, 0x0A, 0x1F, 0x0A, 0x0A),
    " ": (0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00),
}


class Digits:
    """Text of digits, ``:``, ``.``, ``#`` and spaces, as lines of pixels.

    Args:
        scale: pixels per dot of a glyph, in both directions.
        black: the background's byte.
        white: the text's.
    """

    def __init__(self, scale: int, black: int, white: int) -> None:
        self._scale = scale
        self._margin = bytes([black]) * scale
        dots = (bytes([black]) * scale, bytes([white]) * scale)
        self._lines = {
            character: [
                b"".join(dots[line >> (ADVANCE - 2 - at) & 1] if at < 5 else dots[0] for at in range(ADVANCE))
                for line in glyph
            ]
            for character, glyph in _GLYPHS.items()
        }

    def width(self, characters: int) -> int:
        """How wide a text is, in pixels."""
        return (characters * ADVANCE + 1) * self._scale

    @property
    def height(self) -> int:
        """How high a text is, with a dot's margin above and below."""
        return (GLYPH_HEIGHT + 2) * self._scale

    def lines(self, text: str) -> Iterator[bytes]:
        """The lines of a text's picture, from top to bottom."""
        empty = self._margin * (len(text) * ADVANCE + 1)
        glyphs = [self._lines[character] for character in text]
        rows = [empty, *(self._margin + b"".join(glyph[row] for glyph in glyphs) for row in range(GLYPH_HEIGHT)), empty]
        for row in rows:
            for _ in range(self._scale):
                yield row
