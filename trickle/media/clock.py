"""Wall-clock times inside media: publishers write them, and clients read them to measure latency.

Theory of operation
===================

Latency from camera to screen can only be measured if the media carry the time of capture. There are two places for it.

*In the container*, at the beginning of a segment: the time at which its first frame was captured, in microseconds since
1970-01-01 UTC. Players ignore it. The readers take the first bytes of a segment in any format, and never raise.

- MPEG-TS: a TEMI timeline descriptor (ISO/IEC 13818-1, Annex U) with an NTP time, in the adaptation field of a
  transport packet without payload. A demuxer that does not know the descriptor skips it.
- fragmented MP4: a ``prft`` box (ISO/IEC 14496-12, 8.16.5) before the segment's first ``moof``.

*In the picture*: a clock of black and white cells across the top of each frame. The test source draws it. It survives
every encoder, scaler and container, so a client that decodes a frame learns when that frame was made.

- The time takes :data:`TIME_BITS` cells and a check sum :data:`CHECK_BITS`, in :data:`ROWS` rows of :data:`COLUMNS`,
  from left to right and top to bottom, the highest bit first. A white cell is a one.
- The cells survive scaling to a quarter: they are 16 by 10 pixels in a picture of 320 by 180, and 4 by 2.5 after it.
- A damaged clock reads as no clock, never as a wrong time. CRC-32 finds every error of up to eight cells in a word of
  48 bits (Koopman, "32-bit cyclic redundancy codes for Internet applications", 2002), and all but one in 2**32 of the
  others.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tricklecast.trickle.media.containers import NULL_PID, PACKET_BYTES, SYNC, Buffer, boxes, full_box, ts_packets

# Times in the container.

MAX_PACKETS: Final = 64
"""Packets that are searched for a time. Publishers put the time right behind the program tables."""

_PTS_AT: Final = 9
"""Where the timestamp stands in a packet of a stream (PES, ISO/IEC 13818-1, 2.4.3.6): behind the header's length."""

MAX_BOXES: Final = 64
"""Boxes that are searched for a time: more than any init segment has at its top level."""

CAPTURED: Final = 24
"""Flags of a ``prft`` box: the distance between its time and the frame's capture is constant, ideally zero."""

_NTP_EPOCH_S: Final = 2_208_988_800
"""Seconds from 1900-01-01, where NTP begins to count, to 1970-01-01 (RFC 5905, figure 4)."""

UNIX_S: Final = range((1 << 31) - _NTP_EPOCH_S, (3 << 31) - _NTP_EPOCH_S)
"""Seconds of Unix time that can be told: from 1968 to 2104 (RFC 4330, section 3)."""

_ADAPTATION: Final = 0x20
"""Flag in a packet's fourth byte: the packet has an adaptation field."""

_EXTENSION: Final = 0x01
"""Flag in the adaptation field: the field has an extension."""

# Fields before the extension, by flag and size in bytes: PCR, OPCR, splice countdown.
_BEFORE_EXTENSION: Final = ((0x10, 6), (0x08, 6), (0x04, 1))
_PRIVATE_DATA: Final = 0x02

# Fields before the extension's descriptors, likewise: legal time window, piecewise rate, seamless splice.
_BEFORE_DESCRIPTORS: Final = ((0x80, 2), (0x40, 3), (0x20, 5))
_NO_DESCRIPTORS: Final = 0x10
_RESERVED: Final = 0x0F

_TIMELINE_TAG: Final = 0x04
_HAS_NTP: Final = 0x20
_TIMESTAMP_BYTES: Final = (0, 8, 12)
"""A media time of 32 or 64 bits with its time scale, by the descriptor's ``has_timestamp``."""


@dataclass(frozen=True, slots=True)
class ProducerTime:
    """When a frame was captured.

    Attributes:
        unix_us: microseconds since 1970-01-01 UTC.
        stream: the frame's stream: PID in MPEG-TS, number of the track in MP4.
        pts: the frame's presentation time, in ticks of its stream; ``None`` if the bytes end before it.
    """

    unix_us: int
    stream: int
    pts: int | None


def read_time(segment: Buffer) -> ProducerTime | None:
    """Read the time in the first bytes of a segment of either format, and which frame it belongs to.

    Returns:
        ``None`` if the segment holds no time.
    """
    return _temi(segment) or _prft(segment)


def temi_packet(pid: int, unix_us: int) -> bytes:
    """Make a transport packet that gives the time of the next frame on its PID.

    The caller must set the packet's continuity counter, which is 0 here, to that of the packet before it on its PID: a
    packet without payload does not count up.

    Args:
        pid: PID of the stream with the frame.
        unix_us: microseconds since 1970-01-01 UTC.

    Raises:
        ValueError: a stream cannot have that PID.
    """
    if not 0 <= pid < NULL_PID:
        raise ValueError(f"not the PID of a stream: {pid}")
    # Has an NTP time and nothing else; not paused, no discontinuity; reserved bits are ones; it is time line 0.
    timeline = struct.pack(">BBBQ", _HAS_NTP, 0x7F, 0, _ntp(unix_us))
    descriptor = bytes([_TIMELINE_TAG, len(timeline)]) + timeline
    extension = bytes([1 + len(descriptor), _RESERVED]) + descriptor
    field = (bytes([_EXTENSION]) + extension).ljust(PACKET_BYTES - 5, b"\xff")
    return bytes([SYNC, pid >> 8, pid & 0xFF, _ADAPTATION, len(field)]) + field


def read_temi(segment: Buffer) -> int | None:
    """Read the time in the first packets of an MPEG-TS segment.

    Args:
        segment: the first bytes of the segment.

    Returns:
        Microseconds since 1970-01-01 UTC; ``None`` if the segment holds no time.
    """
    told = _temi(segment)
    return None if told is None else told.unix_us


def _temi(segment: Buffer) -> ProducerTime | None:
    told: ProducerTime | None = None
    for number, packet in enumerate(ts_packets(bytes(segment[: MAX_PACKETS * PACKET_BYTES]))):
        if packet.start != number * PACKET_BYTES:
            break
        if told is None:
            descriptors = (body for tag, body in _descriptors(packet.adaptation) if tag == _TIMELINE_TAG)
            unix_us = next((time for body in descriptors if (time := _timeline_time(body)) is not None), None)
            if unix_us is not None:
                told = ProducerTime(unix_us, packet.pid, None)
        if told is not None and packet.pid == told.stream and packet.is_start and packet.has_payload:
            return ProducerTime(told.unix_us, told.stream, _pes_pts(packet.payload))
    return told


def _pes_pts(payload: bytes) -> int | None:
    """The presentation time in the header of a packet of a stream; ``None`` if it has none."""
    field = payload[_PTS_AT : _PTS_AT + 5]
    if payload[:3] != b"\0\0\1" or not payload[7:8] >= b"\x80" or len(field) < 5:
        return None
    return (field[0] & 0x0E) << 29 | field[1] << 22 | (field[2] & 0xFE) << 14 | field[3] << 7 | field[4] >> 1


def prft_box(track_id: int, unix_us: int, media_time: int) -> bytes:
    """Make a box that gives the time of a frame in the ``moof`` that follows it.

    Args:
        track_id: the frame's track.
        unix_us: microseconds since 1970-01-01 UTC.
        media_time: the frame's presentation time, in the track's time scale.
    """
    return full_box(b"prft", 1, CAPTURED, struct.pack(">IQQ", track_id, _ntp(unix_us), media_time))


def read_prft(segment: Buffer) -> int | None:
    """Read the time before the first fragment of an MP4 segment.

    Args:
        segment: the first bytes of the segment, with or without an init segment.

    Returns:
        Microseconds since 1970-01-01 UTC; ``None`` if the segment holds no time.
    """
    told = _prft(segment)
    return None if told is None else told.unix_us


def _prft(segment: Buffer) -> ProducerTime | None:
    for item in islice(boxes(segment), MAX_BOXES):
        if item.kind == b"moof":
            break
        if item.kind == b"prft" and len(item.body) >= 20:  # version 0 ends with a media time of 32 bits
            track, ntp = int.from_bytes(item.body[4:8]), int.from_bytes(item.body[8:16])
            return ProducerTime(_unix_us(ntp), track, int.from_bytes(item.body[16 : 24 if item.body[0] else 20]))
    return None


def _ntp(unix_us: int) -> int:
    """Turn a time into NTP's 64 bits: seconds, which wrap every 136 years, and a binary fraction."""
    seconds, us = divmod(unix_us, 1_000_000)
    fraction = ((us << 32) + 500_000) // 1_000_000
    return ((seconds + _NTP_EPOCH_S) & 0xFFFF_FFFF) << 32 | fraction


def _unix_us(ntp: int) -> int:
    """Turn an NTP time into the time between 1968 and 2104 that it stands for (RFC 4330, section 3)."""
    seconds, fraction = ntp >> 32, ntp & 0xFFFF_FFFF
    if seconds < 1 << 31:
        seconds += 1 << 32
    return (seconds - _NTP_EPOCH_S) * 1_000_000 + (fraction * 1_000_000 + (1 << 31) >> 32)


def _descriptors(field: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the whole descriptors of an adaptation field."""
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


def _timeline_time(descriptor: bytes) -> int | None:
    """Return the time of a TEMI timeline descriptor; ``None`` if it has none."""
    if len(descriptor) < 3 or not descriptor[0] & _HAS_NTP:
        return None
    kind = descriptor[0] >> 6
    at = 3 + (_TIMESTAMP_BYTES[kind] if kind < len(_TIMESTAMP_BYTES) else len(descriptor))
    ntp = descriptor[at : at + 8]
    return _unix_us(int.from_bytes(ntp)) if len(ntp) == 8 else None


# The clock in the picture.

COLUMNS: Final = 20
ROWS: Final = 4
TIME_BITS: Final = 48
"""The time is in milliseconds since 1970: enough for 8,900 years."""

CHECK_BITS: Final = 32
HEIGHT_SHARE: Final = (2, 9)
"""The clock's share of the picture's height, as a fraction: 40 of 180 lines."""

MIN_CONTRAST: Final = 48
"""The least difference in brightness between black and white cells, of 255. Video has 219."""

# A cell is sampled at these points, in tenths of its width and height: coding and scaling blur its borders.
_SAMPLES: Final = (3, 5, 7)

Luma = Callable[[int, int], int]
"""Returns the brightness of the pixel at column x and line y, 0 to 255."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A rectangle of white or black pixels. ``right`` and ``bottom`` are just outside."""

    left: int
    top: int
    right: int
    bottom: int
    white: bool


def strip_height(height: int) -> int:
    """Return the number of lines that the clock takes at the top of a picture of ``height`` lines."""
    return _edge(ROWS, height)


def draw_clock(unix_ms: int, width: int, height: int) -> list[Cell]:
    """Return the cells that show a time, row by row. Together they fill the strip at the picture's top.

    Args:
        unix_ms: milliseconds since 1970-01-01 UTC.
        width: width of the picture, in pixels.
        height: height of the picture, in pixels.

    Raises:
        ValueError: the time does not fit into :data:`TIME_BITS`.
    """
    if unix_ms < 0 or unix_ms >> TIME_BITS:
        raise ValueError(f"a picture clock cannot show {unix_ms} ms")
    word = unix_ms << CHECK_BITS | _clock_check(unix_ms)
    cells = []
    for index in range(ROWS * COLUMNS):
        row, column = divmod(index, COLUMNS)
        white = bool(word >> (ROWS * COLUMNS - 1 - index) & 1)
        left, right = column * width // COLUMNS, (column + 1) * width // COLUMNS
        cells.append(Cell(left, _edge(row, height), right, _edge(row + 1, height), white))
    return cells


def read_clock(luma: Luma, width: int, height: int) -> int | None:
    """Read the time that a picture shows.

    Args:
        luma: returns the brightness of a pixel; called for pixels inside the picture only.
        width: width of the picture, in pixels.
        height: height of the picture, in pixels.

    Returns:
        Milliseconds since 1970-01-01 UTC; ``None`` if the picture has no clock, or a damaged one.
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
    return unix_ms if word & ((1 << CHECK_BITS) - 1) == _clock_check(unix_ms) else None


def _clock_check(unix_ms: int) -> int:
    return zlib.crc32(unix_ms.to_bytes(TIME_BITS // 8))


def _edge(row: int, height: int) -> int:
    """Return the first line of a row of cells."""
    share, of = HEIGHT_SHARE
    return row * height * share // (of * ROWS)


def _level(luma: Luma, index: int, width: int, height: int) -> int:
    """Return the brightness of a cell's inner part, summed over its samples."""
    row, column = divmod(index, COLUMNS)
    share, of = HEIGHT_SHARE
    total = 0
    for down in _SAMPLES:
        y = (10 * row + down) * height * share // (10 * of * ROWS)
        for across in _SAMPLES:
            total += luma((10 * column + across) * width // (10 * COLUMNS), y)
    return total
