"""Boxes of fragmented MP4 (ISO/IEC 14496-12), read and written; pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_HEADER: Final = 8

# Flags of trun (8.8.8) and tfhd (8.8.7).
_DATA_OFFSET: Final = 0x000001
_DURATIONS: Final = 0x000100
_SIZES: Final = 0x000200
_FLAGS: Final = 0x000400
_OFFSETS: Final = 0x000800
_BASE_IS_MOOF: Final = 0x020000

# Flags of a sample (8.8.3.1): what it depends on, and whether decoding can begin there.
_SYNC: Final = 0x02000000
_NOT_SYNC: Final = 0x01010000

_START_CODE: Final = b"\0\0\1"


@dataclass(frozen=True, slots=True)
class Sample:
    """A packet in a fragment; times are in the track's time scale.

    Attributes:
        data: its bytes.
        dts: when it is decoded.
        offset: how much later it is shown.
        duration: until the next one is decoded.
        keyframe: whether decoding can begin here.
    """

    data: bytes
    dts: int
    offset: int
    duration: int
    keyframe: bool


@dataclass(frozen=True, slots=True)
class TrackHeader:
    """What an init segment says of a track.

    Attributes:
        track_id: its number.
        timescale: ticks per second of its times.
    """

    track_id: int
    timescale: int


def fragment(number: int, runs: Sequence[tuple[int, Sequence[Sample]]]) -> bytes:
    """A ``moof`` box and its ``mdat``.

    Args:
        number: counts the fragments, from 1.
        runs: track numbers, each with consecutive samples, at least one.
    """
    size = len(_moof(number, runs, 0))
    data = [sample.data for _, samples in runs for sample in samples]
    return _moof(number, runs, size + _HEADER) + _box(b"mdat", *data)


def init_segment(file: bytes) -> bytes:
    """The ``ftyp`` and ``moov`` boxes at the beginning of a file.

    Raises:
        ValueError: they are not there.
    """
    end = 0
    for kind, body in boxes(memoryview(file)):
        end += _HEADER + len(body)
        if kind == b"moov":
            return file[:end]
    raise ValueError("no moov box")


def track_headers(init: bytes) -> list[TrackHeader]:
    """The tracks of an init segment, in order."""
    headers = []
    for kind, track in boxes(_first(memoryview(init), b"moov")):
        if kind == b"trak":
            header, media = _first(track, b"tkhd"), _first(_first(track, b"mdia"), b"mdhd")
            # Both begin with a version, on which the width of two times before the number depends.
            headers.append(TrackHeader(*(_u32(box, 20 if box[0] == 1 else 12) for box in (header, media))))
    return headers


def display_matrix(file: bytes) -> tuple[int, ...]:
    """How the picture of a file's first track is turned: a, b, c and d of its matrix (8.3.2), as 16.16 numbers.

    Raises:
        ValueError: there is no track.
    """
    for kind, track in boxes(_first(memoryview(init_segment(file)), b"moov")):
        if kind == b"trak":
            header = _first(track, b"tkhd")
            parts = struct.unpack_from(">9i", header, 52 if header[0] == 1 else 40)
            return parts[0], parts[1], parts[3], parts[4]
    raise ValueError("no track")


def boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """The boxes side by side in ``data``, which libavformat wrote: whole, and with sizes of 32 bits."""
    at = 0
    while at < len(data):
        size = _u32(data, at)
        yield bytes(data[at + 4 : at + _HEADER]), data[at + _HEADER : at + size]
        at += size


def length_prefixed(stream: bytes) -> bytes:
    """H.264 or HEVC as in MP4: a length of 32 bits before each unit, instead of Annex B's start codes."""
    parts = []
    start = stream.find(_START_CODE)
    while start >= 0:
        end = stream.find(_START_CODE, start + 3)
        # Zeros before a start code belong to it, or pad; a unit itself never ends with one.
        unit = stream[start + 3 : end if end >= 0 else len(stream)].rstrip(b"\0")
        if unit:
            parts += [len(unit).to_bytes(4), unit]
        start = end
    return b"".join(parts)


def _moof(number: int, runs: Sequence[tuple[int, Sequence[Sample]]], data_at: int) -> bytes:
    tracks = []
    for track_id, samples in runs:
        header = _full_box(b"tfhd", 0, _BASE_IS_MOOF, track_id.to_bytes(4))
        begin = _full_box(b"tfdt", 1, 0, samples[0].dts.to_bytes(8))
        tracks.append(_box(b"traf", header, begin, _trun(samples, data_at)))
        data_at += sum(len(sample.data) for sample in samples)
    return _box(b"moof", _full_box(b"mfhd", 0, 0, (number & 0xFFFFFFFF).to_bytes(4)), *tracks)


def _trun(samples: Sequence[Sample], data_at: int) -> bytes:
    # Version 1: offsets have a sign. None of ours is negative, but readers disagree on version 0 with large ones.
    entries = [
        struct.pack(">IIIi", sample.duration, len(sample.data), _SYNC if sample.keyframe else _NOT_SYNC, sample.offset)
        for sample in samples
    ]
    flags = _DATA_OFFSET | _DURATIONS | _SIZES | _FLAGS | _OFFSETS
    return _full_box(b"trun", 1, flags, struct.pack(">Ii", len(samples), data_at), *entries)


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", _HEADER + len(body), kind) + body


def _full_box(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return _box(kind, (version << 24 | flags).to_bytes(4), *parts)


def _first(data: memoryview, wanted: bytes) -> memoryview:
    return next(body for kind, body in boxes(data) if kind == wanted)


def _u32(data: memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 4])
