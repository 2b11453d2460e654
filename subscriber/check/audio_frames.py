"""How long the frames of a sound track are: so a single lost one shows at a seam, however they are packed.

AAC in ADTS (ISO/IEC 13818-7, 6.2), MPEG audio (ISO/IEC 11172-3, 2.4.1.3) and Opus in MPEG-TS (RFC 6716, 3.1 for the
packets). Other codecs are not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeAlias

HEADER_BYTES: Final = 16
"""More than any header here; what is shorter waits for more."""

_AAC_HZ: Final = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
_MPEG_HZ: Final = (44100, 48000, 32000)
_MPEG1_KBITS: Final[dict[int, tuple[int, ...]]] = {
    2: (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
}
_MPEG2_KBITS: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_OPUS_MS: Final = (10, 20, 40, 60)
_OPUS_CELT_MS: Final = (Fraction(5, 2), Fraction(5), Fraction(10), Fraction(20))

Header: TypeAlias = tuple[int, Fraction]
"""A frame's length in bytes and in seconds."""


class FrameCounter:
    """Adds up the length of the frames that begin in the bytes it is given.

    Attributes:
        seconds: so far.
        lost: the bytes are not what they should be; nothing is counted any more.
    """

    def __init__(self, header: Callable[[bytes], Header | None]) -> None:
        self.seconds = Fraction(0)
        self.frame_s = Fraction(0)
        self.lost = False
        self._header = header
        self._skip = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take more bytes of the elementary stream."""
        if self.lost:
            return
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        data = self._rest + data[self._skip :]
        self._skip = at = 0
        while len(data) - at >= HEADER_BYTES:
            if not self._step(data[at : at + HEADER_BYTES]):
                return
            at += self._skip
        self._skip = max(0, at - len(data))
        self._rest = data[at:]

    def end_of_packet(self) -> None:
        """No frame continues in what follows, so a short rest is whole."""
        if self._rest and not self.lost:
            if self._step(self._rest.ljust(HEADER_BYTES, b"\0")):
                self._skip = max(0, self._skip - len(self._rest))
            self._rest = b""

    def _step(self, header: bytes) -> bool:
        found = self._header(header)
        if found is None or found[0] <= 0:
            self.lost = True
            return False
        self._skip, self.frame_s = found
        self.seconds += self.frame_s
        return True


def counter_for(codec: str) -> FrameCounter | None:
    """A counter for a codec, if its frames can be measured."""
    header = _HEADERS.get(codec)
    return None if header is None else FrameCounter(header)


def _adts(data: bytes) -> Header | None:
    rate = data[2] >> 2 & 0xF
    if data[0] != 0xFF or data[1] & 0xF6 != 0xF0 or rate >= len(_AAC_HZ):
        return None
    length = (data[3] & 3) << 11 | data[4] << 3 | data[5] >> 5
    return (length, Fraction(1024 * (1 + (data[6] & 3)), _AAC_HZ[rate])) if length >= 7 else None


def _mpeg(data: bytes) -> Header | None:
    version, layer = data[1] >> 3 & 3, 4 - (data[1] >> 1 & 3)
    rate, kbits, padding = data[2] >> 2 & 3, data[2] >> 4, data[2] >> 1 & 1
    if data[0] != 0xFF or data[1] & 0xE0 != 0xE0 or version == 1 or layer not in (2, 3) or rate == 3:
        return None
    if kbits in (0, 15):
        return None
    hz = _MPEG_HZ[rate] >> (0 if version == 3 else 1 if version == 2 else 2)
    samples = 576 if layer == 3 and version != 3 else 1152
    table = _MPEG1_KBITS[layer] if version == 3 else _MPEG2_KBITS
    return samples // 8 * table[kbits] * 1000 // hz + padding, Fraction(samples, hz)


def _opus(data: bytes) -> Header | None:
    if data[0] != 0x7F or data[1] & 0xE0 != 0xE0:
        return None
    at, size = 2, 0
    while at < len(data) and data[at] == 0xFF:
        size, at = size + 255, at + 1
    if at >= len(data):
        return None
    size, at = size + data[at], at + 1
    at += 2 * bool(data[1] & 0x10) + 2 * bool(data[1] & 0x08)  # trimmed samples at the start and end
    if data[1] & 0x04 and at < len(data):
        at += 1 + data[at]
    return None if at + 1 >= len(data) else (at + size, _opus_s(data[at], data[at + 1]))


def _opus_s(toc: int, count: int) -> Fraction:
    config, frames = toc >> 3, (1, 2, 2, count & 0x3F)[toc & 3]
    if config < 12:
        ms = Fraction(_OPUS_MS[config & 3])
    else:
        ms = Fraction(10 if config % 2 == 0 else 20) if config < 16 else _OPUS_CELT_MS[config & 3]
    return frames * ms / 1000


_HEADERS: Final[dict[str, Callable[[bytes], Header | None]]] = {"aac": _adts, "mpegaudio": _mpeg, "opus": _opus}
