"""How video and audio are encoded: settings, without an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

from tricklecast.trickle.errors import InvalidInput

PRESETS: Final = (
    "ultrafast",
    "superfast",
    "veryfast",
    "faster",
    "fast",
    "medium",
    "slow",
    "slower",
    "veryslow",
)
MAX_BITRATE: Final = (1 << 31) - 1
"""In bits per second: what libavcodec's limits can hold."""

QUALITY: Final = 23
"""x264's constant rate factor where no bitrate is wanted: its default."""


class AudioCodec(Enum):
    """What sound is encoded as, and by which encoder."""

    AAC = "aac"
    OPUS = "libopus"

    @property
    def rates(self) -> tuple[int, ...]:
        """The sample rates that it is given, in Hz."""
        return _RATES[self]

    @classmethod
    def parse(cls, text: str) -> AudioCodec:
        """Read ``aac`` or ``opus``.

        Raises:
            InvalidInput: it is another word.
        """
        if (name := text.strip().upper()) in cls.__members__:
            return cls[name]
        raise InvalidInput(f"not an audio codec: {text!r} (aac or opus)")


# AAC knows more, but these are those that every player knows.
_RATES: Final = {AudioCodec.AAC: (16_000, 22_050, 24_000, 32_000, 44_100, 48_000), AudioCodec.OPUS: (48_000,)}


@dataclass(frozen=True, slots=True)
class VideoShape:
    """What a picture is like.

    Attributes:
        width: in pixels; even.
        height: likewise.
        rate: frames per second, as far as it is known.
        time_base: seconds per tick of the packets' timestamps.
        is_full_range: its values lie between 0 and 255, and not between 16 and 235.
        pixel_aspect: a pixel's width divided by its height.
        colors: range, space, primaries and transfer, numbered as in ISO/IEC 23091-2 (libavutil's constants).
    """

    width: int
    height: int
    rate: Fraction
    time_base: Fraction
    is_full_range: bool = False
    pixel_aspect: Fraction | None = None
    colors: tuple[int, int, int, int] | None = None

    @property
    def pixel_format(self) -> str:
        """Planar 4:2:0 with 8 bits: what every decoder of H.264 takes."""
        return "yuvj420p" if self.is_full_range else "yuv420p"


@dataclass(frozen=True, slots=True)
class VideoCoding:
    """How a picture is encoded.

    Attributes:
        bitrate: bits per second, kept over every second; ``None``: constant quality.
        gop_s: from keyframe to keyframe, in seconds.
        preset: one of :data:`PRESETS`: the slower, the better.
        threads: how many encode one picture; 0: one per processor.

    Raises:
        InvalidInput: the bitrate is beyond :data:`MAX_BITRATE`.
    """

    bitrate: int | None
    gop_s: float
    preset: str
    threads: int = 0

    def __post_init__(self) -> None:
        _check_bitrate(self.bitrate)


@dataclass(frozen=True, slots=True)
class AudioCoding:
    """How sound is encoded.

    Attributes:
        codec: AAC or Opus.
        bitrate: bits per second.

    Raises:
        InvalidInput: the bitrate is beyond :data:`MAX_BITRATE`.
    """

    codec: AudioCodec
    bitrate: int

    def __post_init__(self) -> None:
        _check_bitrate(self.bitrate)


def _check_bitrate(bitrate: int | None) -> None:
    if bitrate is not None and bitrate > MAX_BITRATE:
        raise InvalidInput(f"no encoder takes {bitrate} bit/s")
