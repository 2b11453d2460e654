"""When a segment was made: wall-clock times inside media, written by publishers and read by whoever measures latency.

- MPEG-TS: a TEMI timeline descriptor (ISO/IEC 13818-1, Annex U) with an NTP time, in the adaptation field of a
  transport packet without payload. Demuxers that do not know it skip it.
- fragmented MP4: a ``prft`` box (ISO/IEC 14496-12, 8.16.5) before the segment's first ``moof``.

Both stand at the beginning of a segment and give the time at which its first frame was captured, in microseconds since
1970-01-01 UTC. Readers take the first bytes of a segment, whatever they are, and never raise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

Buffer = bytes | bytearray | memoryview

PACKET_BYTES: Final = 188
MAX_PACKETS: Final = 64
"""How many packets of a segment are searched. Publishers put the time right behind the program tables."""

MAX_BOXES: Final = 64
"""How many boxes of a segment are searched: more than any init segment has at its top level."""

CAPTURED: Final = 24
"""What the time in a ``prft`` box means: that it is at a constant distance, ideally none, from what the frame shows."""

_NTP_EPOCH_S: Final = 2_208_988_800
"""From 1900-01-01, where NTP begins to count, to 1970-01-01 (RFC 5905, figure 4)."""

_SYNC: Final = 0x47
_MAX_PID: Final = 0x1FFE
"""0x1FFF are null packets."""

_ADAPTATION: Final = 0x20
"""In a packet's fourth byte: there is an adaptation field."""

_EXTENSION: Final = 0x01
"""In the adaptation field's flags: there is an extension."""

# What precedes the extension in an adaptation field, by its flag: PCR and OPCR, six bytes each, and a splice countdown.
_BEFORE_EXTENSION: Final = ((0x10, 6), (0x08, 6), (0x04, 1))
_PRIVATE_DATA: Final = 0x02

# What precedes the descriptors in the extension: legal time window, piecewise rate, seamless splice.
_BEFORE_DESCRIPTORS: Final = ((0x80, 2), (0x40, 3), (0x20, 5))
_NO_DESCRIPTORS: Final = 0x10
_RESERVED: Final = 0x0F

_TIMELINE_TAG: Final = 0x04
_HAS_NTP: Final = 0x20
_TIMESTAMP_BYTES: Final = (0, 8, 12)
"""A media time of 32 or 64 bits with its time scale, by the descriptor's ``has_timestamp``."""

_PRFT: Final = struct.Struct(">I4sIIQQ")


def temi_packet(pid: int, unix_us: int, *, timeline_id: int = 0) -> bytes:
    """A transport packet that gives the time of the next frame on its PID.

    It has no payload, so it repeats the continuity counter of the packet before it on its PID: here that is 0, and
    whoever joins packets must set it.

    Args:
        pid: of the stream that the time belongs to.
        unix_us: microseconds since 1970-01-01 UTC.
        timeline_id: tells several time lines on one PID apart.

    Raises:
        ValueError: no stream can have that PID.
    """
    if not 0 <= pid <= _MAX_PID:
        raise ValueError(f"not the PID of a stream: {pid}")
    # Has an NTP time and nothing else; not paused, no discontinuity; reserved bits are ones.
    timeline = struct.pack(">BBBQ", _HAS_NTP, 0x7F, timeline_id, _ntp(unix_us))
    descriptor = bytes([_TIMELINE_TAG, len(timeline)]) + timeline
    extension = bytes([1 + len(descriptor), _RESERVED]) + descriptor
    field = (bytes([_EXTENSION]) + extension).ljust(PACKET_BYTES - 5, b"\xff")
    return bytes([_SYNC, pid >> 8, pid & 0xFF, _ADAPTATION, len(field)]) + field


def read_temi(segment: Buffer) -> int | None:
    """The time in the first packets of an MPEG-TS segment.

    Args:
        segment: its beginning, from the first byte on.

    Returns:
        Microseconds since 1970-01-01 UTC; ``None`` where there is none.
    """
    view = memoryview(segment)[: MAX_PACKETS * PACKET_BYTES]
    for start in range(0, len(view) - PACKET_BYTES + 1, PACKET_BYTES):
        packet = view[start : start + PACKET_BYTES]
        if packet[0] != _SYNC:
            break
        if packet[3] & _ADAPTATION:
            for tag, descriptor in _descriptors(packet[5 : 5 + packet[4]]):
                if tag == _TIMELINE_TAG and (unix_us := _timeline_time(descriptor)) is not None:
                    return unix_us
    return None


def prft_box(track_id: int, unix_us: int, media_time: int, *, meaning: int = CAPTURED) -> bytes:
    """A box that gives the time of a frame in the ``moof`` that follows it.

    Args:
        track_id: of the track that the frame belongs to.
        unix_us: microseconds since 1970-01-01 UTC.
        media_time: the frame's presentation time, in the track's time scale.
        meaning: what happened then, as the standard numbers it in the box's flags.
    """
    return _PRFT.pack(_PRFT.size, b"prft", 1 << 24 | meaning, track_id, _ntp(unix_us), media_time)


def read_prft(segment: Buffer) -> int | None:
    """The time in front of the first fragment of an MP4 segment.

    Args:
        segment: its beginning, from the first byte on; with or without an init segment.

    Returns:
        Microseconds since 1970-01-01 UTC; ``None`` where there is none.
    """
    for kind, body in _boxes(memoryview(segment)):
        if kind == b"moof":
            break
        if kind == b"prft" and len(body) >= 20:  # version 0 ends with a media time of 32 bits
            return _unix_us(int.from_bytes(body[8:16]))
    return None


def _ntp(unix_us: int) -> int:
    """NTP's 64 bits: seconds, which wrap every 136 years, and a binary fraction."""
    seconds, us = divmod(unix_us, 1_000_000)
    fraction = ((us << 32) + 500_000) // 1_000_000
    return ((seconds + _NTP_EPOCH_S) & 0xFFFF_FFFF) << 32 | fraction


def _unix_us(ntp: int) -> int:
    """The time between 1968 and 2104 that an NTP time stands for (RFC 4330, section 3)."""
    seconds, fraction = ntp >> 32, ntp & 0xFFFF_FFFF
    if seconds < 1 << 31:
        seconds += 1 << 32
    return (seconds - _NTP_EPOCH_S) * 1_000_000 + (fraction * 1_000_000 + (1 << 31) >> 32)


def _descriptors(field: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The descriptors of an adaptation field; as many as are whole."""
    if not field or not field[0] & _EXTENSION:
        return
    at = 1 + sum(size for flag, size in _BEFORE_EXTENSION if field[0] & flag)
    if field[0] & _PRIVATE_DATA:
        at += 1 + int.from_bytes(field[at : at + 1])
    extension = field[at + 1 : at + 1 + int.from_bytes(field[at : at + 1])]
    if not extension or extension[0] & _NO_DESCRIPTORS:
        return
    at = 1 + sum(size for flag, size in _BEFORE_DESCRIPTORS if extension[0] & flag)
    while at + 2 <= len(extension):
        tag, size = extension[at], extension[at + 1]
        yield tag, extension[at + 2 : at + 2 + size]
        at += 2 + size


def _timeline_time(descriptor: memoryview) -> int | None:
    """The NTP time of a TEMI timeline descriptor."""
    if len(descriptor) < 3 or not descriptor[0] & _HAS_NTP:
        return None
    kind = descriptor[0] >> 6
    at = 3 + (_TIMESTAMP_BYTES[kind] if kind < len(_TIMESTAMP_BYTES) else len(descriptor))
    ntp = descriptor[at : at + 8]
    return _unix_us(int.from_bytes(ntp)) if len(ntp) == 8 else None


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """The boxes at the top level, up to the first that is not whole or makes no sense."""
    at = 0
    for _ in range(MAX_BOXES):
        header = 8
        size = int.from_bytes(data[at : at + 4])
        if size == 1:  # the size follows, in 64 bits
            header, size = 16, int.from_bytes(data[at + 8 : at + 16])
        if size < header or at + header > len(data):
            break
        yield bytes(data[at + 4 : at + 8]), data[at + header : at + size]
        at += size
