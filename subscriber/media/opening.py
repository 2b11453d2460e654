"""Opens a segment with PyAV, and tells how its packets are made: for frames, joined files, ``check`` and WebRTC."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, cast

from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.media.containers import Container, nal_units, number
from tricklecast.trickle.pyav import reason

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.stream import Stream

FORMATS: Final = {Container.MPEGTS: "mpegts", Container.FMP4: "mp4"}
"""libavformat's names of the containers."""

MAX_UNITS: Final = 1024
"""Units of a picture; a stream with more is damaged."""

HEADER_BYTES: Final = 64 * 1024
"""The headers of a picture are looked for in its first bytes: no stream of damaged ones takes long."""

_START_CODE: Final = re.compile(rb"\x00\x00\x01")
_RECOVERY_POINT: Final = 6
"""Type of the message that decoding can begin at this picture, which may be no IDR (ITU-T H.264, annex D)."""


class Unit(IntEnum):
    """Types of the units in a packet of H.264 (ITU-T H.264, table 7-1)."""

    SLICE = 1
    IDR = 5
    SEI = 6
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


def is_key_picture(codec: str, data: bytes) -> bool:
    """Whether decoding can begin at a picture of MPEG-TS.

    libavformat's parsers know it, too, but hold each picture back until the next one begins.

    Args:
        codec: its name. Of codecs that are not known here, no picture is a key.
        data: the picture, with start codes; only the headers before its content are read.
    """
    recovers = False
    data = data[:HEADER_BYTES]
    for found in _START_CODE.finditer(data):
        at = found.end()
        head = data[at : at + 3].ljust(3, b"\0")
        match codec:
            case "h264":
                unit = unit_type(head)
                if unit == Unit.SEI:
                    recovers |= _RECOVERY_POINT in _messages(data[at + 1 : data.find(b"\0\0\1", at)])
                elif Unit.SLICE <= unit <= Unit.IDR:
                    return recovers or unit == Unit.IDR
            case "hevc":
                if (unit := head[0] >> 1 & 63) < 32:  # a picture (ITU-T H.265, table 7-1)
                    return 16 <= unit < 24
            case "vvc":
                if (unit := head[1] >> 3) < 12:  # likewise (ITU-T H.266, table 5)
                    return 7 <= unit < 11
            case "mpeg1video" | "mpeg2video":
                if head[0] == 0x00:  # its header; behind a number of ten bits stands its type
                    return head[2] >> 3 & 7 == 1
            case "mpeg4":
                if head[0] == 0xB6:
                    return head[1] >> 6 == 0
    return False


def _messages(unit: bytes) -> Iterator[int]:
    """Yield the types of the messages in a unit of H.264 (section 7.3.2.3)."""
    unit = unit.replace(b"\0\0\3", b"\0\0")
    at = 0
    while at + 2 < len(unit):
        numbers = [0, 0]  # type and size
        for place in range(2):
            while unit[at : at + 1] == b"\xff":
                numbers[place], at = numbers[place] + 255, at + 1
            numbers[place], at = numbers[place] + number(unit, at, 1), at + 1
        yield numbers[0]
        at += numbers[1]
