"""Opens a segment with PyAV, and tells how its packets are made: for frames, joined files, ``check`` and WebRTC."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.media.containers import Container, nal_units
from tricklecast.trickle.pyav import reason

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.stream import Stream

FORMATS: Final = {Container.MPEGTS: "mpegts", Container.FMP4: "mp4"}
"""libavformat's names of the containers."""

MAX_UNITS: Final = 1024
"""Units of a picture; a stream with more is damaged."""


class Unit(IntEnum):
    """Types of the units in a packet of H.264 (ITU-T H.264, table 7-1)."""

    SLICE = 1
    IDR = 5
    SPS = 7
    PPS = 8
    DELIMITER = 9
    FILLER = 12


class NotMedia(TrickleError):
    """A segment's bytes are no media that can be read."""


def open_segment(file: object, kind: Container, options: Mapping[str, str] | None = None) -> InputContainer:
    """Open a segment.

    Args:
        file: its bytes, for libavformat to ``read``. Those of MP4 have passed a
            :class:`~tricklecast.trickle.media.demux.SampleGuard`, which also knows the last init segment.

    Raises:
        NotMedia: it is neither MPEG-TS nor MP4, or cannot be opened.
    """
    import av
    from av.error import FFmpegError

    if kind not in FORMATS:
        raise NotMedia("it is neither MPEG-TS nor MP4")
    try:
        # libavformat asks for types only: ``read`` is all that it needs of a file.
        return cast("InputContainer", av.open(cast(Any, file), "r", format=FORMATS[kind], options=dict(options or {})))
    except (FFmpegError, OSError, ValueError) as error:
        raise NotMedia(reason(error)) from error


def is_mpegts(stream: Stream) -> bool:
    """Whether the decoder's parameters come within the stream, where decoders expect them to change."""
    return stream.container.format.name == "mpegts"


def unit_type(unit: bytes) -> int:
    """Return the type of a unit, which may be one of :class:`Unit`."""
    return unit[0] & 31


def h264_units(packet: Packet[Any]) -> list[bytes]:
    """Take a packet of H.264 apart (NAL units). A key picture of MP4 gets the parameter sets of its init segment.

    Raises:
        FFmpegError: it is damaged.
    """
    from av import Packet
    from av.bitstream import BitStreamFilterContext

    start_codes = BitStreamFilterContext("h264_mp4toannexb", packet.stream)
    data = b"".join(map(bytes, start_codes.filter(Packet(bytes(packet)))))
    return nal_units(data, MAX_UNITS)
