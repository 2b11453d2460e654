"""Segments of media made by hand: MPEG-TS and fragmented MP4 with the boxes and packets that a playlist is made of.

No decoder can show them. Their times and the places of their pictures are known exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tricklecast.trickle.media.containers import PACKET_BYTES, SYNC, box, crc32, full_box

CLOCK_HZ: Final = 90_000
VIDEO_PID: Final = 0x100
PMT_PID: Final = 0x1000

SYNC_SAMPLE: Final = 0x02000000
OTHER_SAMPLE: Final = 0x01010000


# MPEG-TS.


def ts_packet(pid: int, payload: bytes, *, start: bool = True, key: bool = False) -> bytes:
    """A transport packet with this payload, at most 182 bytes, behind stuffing."""
    room = PACKET_BYTES - 4 - len(payload)
    field = b"" if room < 2 else (bytes([0x40 if key else 0]) + b"\xff" * (room - 2))
    head = bytes([SYNC, (0x40 if start else 0) | pid >> 8, pid & 0xFF, 0x30])
    return head + bytes([len(field)]) + field + payload


def tables(kind: int = 0x1B, told: bytes = b"") -> bytes:
    """PAT and PMT with one stream of this type, and its descriptors."""
    pat = section(0, struct.pack(">HBBBHH", 1, 0xC1, 0, 0, 1, 0xE000 | PMT_PID))
    stream = struct.pack(">BHH", kind, 0xE000 | VIDEO_PID, 0xF000 | len(told)) + told
    pmt = section(2, struct.pack(">HBBBHH", 1, 0xC1, 0, 0, 0xE000 | VIDEO_PID, 0xF000) + stream)
    return ts_packet(0, b"\0" + pat) + ts_packet(PMT_PID, b"\0" + pmt)


def section(table: int, body: bytes) -> bytes:
    """A section with its check sum."""
    head = struct.pack(">BH", table, 0xB000 | (len(body) + 4)) + body
    return head + crc32(head).to_bytes(4)


def pes(ticks: int, payload: bytes = b"") -> bytes:
    """The head of a PES packet of video that is shown at this time."""
    high, middle, low = ticks >> 30 & 7, ticks >> 15 & 0x7FFF, ticks & 0x7FFF
    stamp = struct.pack(">BHH", 0x21 | high << 1, middle << 1 | 1, low << 1 | 1)
    return b"\0\0\1\xe0\0\0\x80\x80\x05" + stamp + payload


def ts_pictures(begin_s: float, pictures: int, duration_s: float = 0.04, *, first: int = 0) -> list[bytes]:
    """Pictures of two packets each, as one piece each; the first one is a key picture, behind tables."""
    found = []
    for number in range(first, pictures):
        ticks = round((begin_s + number * duration_s) * CLOCK_HZ) % (1 << 33)
        picture = ts_packet(VIDEO_PID, pes(ticks, b"%03d" % number), key=not number)
        picture += ts_packet(VIDEO_PID, b"x" * 50, start=False)
        found.append(picture if number else tables() + picture)
    return found


# MP4.


def init_segment(timescale: int = 90_000, marker: bytes = b"") -> bytes:
    """``ftyp`` and ``moov`` with one track of video."""
    header = full_box(b"tkhd", 0, 3, struct.pack(">III", 0, 0, 1), bytes(68))
    media = box(
        b"mdia",
        full_box(b"mdhd", 0, 0, struct.pack(">IIIII", 0, 0, timescale, 0, 0)),
        full_box(b"hdlr", 0, 0, struct.pack(">I4s", 0, b"vide"), bytes(13)),
    )
    extends = box(b"mvex", full_box(b"trex", 0, 0, struct.pack(">IIIII", 1, 1, 3600, 0, OTHER_SAMPLE)))
    return box(b"ftyp", b"iso6\0\0\0\0iso6") + box(b"moov", box(b"trak", header, media), extends, box(b"udta", marker))


def fragment(
    begin: int, durations: Sequence[int] = (3600,), *, key: bool = False, media: bytes = b"media", track: int = 1
) -> bytes:
    """``moof`` and ``mdat`` of one track; times in its time scale."""
    flags = 0x000100 | 0x000004
    run = struct.pack(">II", len(durations), SYNC_SAMPLE if key else OTHER_SAMPLE)
    run += b"".join(struct.pack(">I", duration) for duration in durations)
    traf = box(
        b"traf",
        full_box(b"tfhd", 0, 0x020000, struct.pack(">I", track)),
        full_box(b"tfdt", 1, 0, struct.pack(">Q", begin)),
        full_box(b"trun", 0, flags, run),
    )
    return box(b"moof", full_box(b"mfhd", 0, 0, struct.pack(">I", 1)), traf) + box(b"mdat", media)


def mp4_pictures(begin_s: float, pictures: int, duration_s: float = 0.04, *, marker: bytes = b"") -> list[bytes]:
    """Fragments of a picture each; the first one is a key picture, behind an init segment."""
    length = round(duration_s * CLOCK_HZ)
    begin = round(begin_s * CLOCK_HZ)
    found = [fragment(begin + number * length, (length,), key=not number) for number in range(pictures)]
    return [init_segment(marker=marker) + found[0], *found[1:]]
