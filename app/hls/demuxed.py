"""One track of a channel: its media, cut out of those of all tracks, and of MP4 its init segment.

**The problem.** Players of HLS take one track of sound in MP4, and play the first one of MPEG-TS. A channel with three
languages has to be offered as one rendition of pictures and three of sound, and its segments hold all four.

**The idea.** Each rendition is made of the same bytes when somebody asks for it. Of MP4 the fragments stay, with the
one track and its samples alone. Of MPEG-TS the track's packets stay as they are, behind tables that name this track
alone. What comes out follows from the bytes that go in, so a name means the same bytes at every server
(docs/adr/0029). It is work for each request, as long as nobody keeps it, and only such channels need it.

Fragments cannot be moved if they name places of a file, or of another track's samples, instead of their own
(:func:`can_move`, section 8.8.7 of ISO/IEC 14496-12). Nothing here raises for any bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count, islice
from typing import Final, NamedTuple

from tricklecast.trickle.media.containers import (
    MAX_CHILDREN,
    PACKET_BYTES,
    PAT_PID,
    SYNC,
    Box,
    ProgramTables,
    TsPacket,
    box,
    boxes,
    crc32,
    find_box,
    number,
    ts_packets,
)

MAX_RUNS: Final = 256
"""Runs of samples of a track in a fragment that are read."""

MAX_BOXES: Final = 8_000
"""Boxes side by side that a file may have: more than 2,000 fragments. Of more, nothing is made."""

_BASE_IS_MOOF: Final = 0x020000
_DATA_OFFSET: Final = 0x000001
_SIZES: Final = 0x000200
_DEFAULT_SIZE: Final = 0x000010
_LEFT_OUT: Final = frozenset({b"sidx", b"saio", b"saiz"})
"""Boxes that name places of bytes, or sizes of other tracks' samples."""


OPENING_BYTES: Final = 64 << 10
"""The tables of a segment of MPEG-TS are looked for in this many bytes at its beginning."""

MAX_TOLD: Final = 128
"""Bytes of descriptors of a track. A table with more would need several packets, and leaves them out."""

_PCR_BYTES: Final = 6


# MP4.


class _Run(NamedTuple):
    """A ``trun``.

    Attributes:
        content: its content. size: of its samples, in bytes.
        place: where its samples begin, behind the beginning of ``moof``; ``None``: behind those of the run before.
    """

    content: bytes
    place: int | None
    size: int


def track_init(init: bytes, track: int) -> bytes:
    """The init segment of one track.

    Args:
        init: that of all tracks. track: its number.
    """
    return b"".join(
        _header(item, track) if item.kind == b"moov" else init[item.start : item.end] for item in boxes(init)
    )


def _header(moov: Box, track: int) -> bytes:
    parts = []
    for part in islice(boxes(moov.body), MAX_CHILDREN):
        whole = bytes(moov.body[part.start : part.end])
        if part.kind == b"trak":
            header = find_box(part.body, b"tkhd")
            if number(header, 20 if header[:1] == b"\1" else 12, 4) == track:
                parts.append(whole)
        elif part.kind == b"mvex":
            kept = [
                bytes(part.body[one.start : one.end])
                for one in islice(boxes(part.body), MAX_CHILDREN)
                if one.kind not in (b"trex", b"trep") or number(one.body, 4, 4) == track
            ]
            parts.append(box(b"mvex", *kept))
        else:
            parts.append(whole)
    return box(b"moov", *parts)


def default_size(init: bytes, track: int) -> int:
    """The size of samples that have none of their own (``trex``, section 8.8.3)."""
    for one in islice(boxes(find_box(init, b"moov", b"mvex")), MAX_CHILDREN):
        if one.kind == b"trex" and number(one.body, 4, 4) == track:
            return number(one.body, 16, 4)
    return 0


def track_media(data: bytes, track: int, usual: int | None) -> bytes | None:
    """The fragments of one track among those of all; ``None`` if they cannot be moved, or are too many.

    Args:
        data: whole fragments. track: its number.
        usual: the size of samples that have none of their own; ``None`` if it is not known.
    """
    found: list[bytes] = []
    front: list[bytes] = []  # boxes directly before a fragment
    for number_of, item in enumerate(boxes(data)):
        if number_of == MAX_BOXES:
            return None
        if item.kind == b"moof":
            fragment = _fragment(data, item, track, usual)
            if fragment is None:
                return None
            if fragment:
                found += [*front, fragment]
            front = []
        elif item.kind == b"mdat":
            front = []
        elif item.kind not in _LEFT_OUT:
            front.append(data[item.start : item.end])
    return b"".join(found)


def can_move(head: bytes) -> bool:
    """Whether the places of samples are counted from their own ``moof``; ``head``: the content of ``tfhd``."""
    return bool(number(head, 1, 3) & _BASE_IS_MOOF)


def _fragment(data: bytes, moof: Box, track: int, usual: int | None) -> bytes | None:
    """``moof`` and ``mdat`` of the track; nothing if it has no samples there, ``None`` if they cannot be moved."""
    others: list[bytes] = []
    pieces: list[bytes] = []  # the track's boxes, and a hole for each run
    runs: list[_Run] = []
    header = b""
    for part in islice(boxes(moof.body), MAX_CHILDREN):
        if part.kind != b"traf":
            others.append(bytes(moof.body[part.start : part.end]))
            continue
        head = find_box(part.body, b"tfhd")
        if number(head, 4, 4) != track or header:
            continue
        if not can_move(head):
            return None
        header = head
        for one in islice(boxes(part.body), MAX_CHILDREN + MAX_RUNS):
            if one.kind == b"trun":
                run = _run(bytes(one.body), head, usual)
                if run is None:
                    return None
                runs.append(run)
            elif one.kind not in (b"tfhd", *_LEFT_OUT):
                pieces.append(bytes(part.body[one.start : one.end]))
    if not runs:
        return b""
    if runs[0].place is None:
        return None
    samples = list(_samples(data, moof, runs))
    flags = number(header, 1, 3) | _BASE_IS_MOOF
    head = box(b"tfhd", header[:1] + flags.to_bytes(3) + header[4:])
    size = 8 + sum(map(len, others)) + 8 + len(head) + sum(map(len, pieces))
    size += sum(8 + len(run.content) + (0 if run.place is not None else 4) for run in runs)
    at, written = size + 8, []
    for run, media in zip(runs, samples, strict=True):
        written.append(_moved(run, at))
        at += len(media)
    traf = box(b"traf", head, *pieces, *written)
    return box(b"moof", *others, traf) + box(b"mdat", *samples)


def _run(content: bytes, head: bytes, usual: int | None) -> _Run | None:
    flags, count = number(content, 1, 3), number(content, 4, 4)
    place = int.from_bytes(content[8:12], signed=True) if flags & _DATA_OFFSET else None
    begin = 8 + 4 * (flags & 0x05).bit_count()
    fields = (flags & 0xF00).bit_count()
    if flags & _SIZES:
        before = begin + (4 if flags & 0x100 else 0)
        step = 4 * fields
        places = range(before, min(begin + step * count, len(content) - 3), step)
        return _Run(content, place, sum(int.from_bytes(content[at : at + 4]) for at in places))
    own = number(head, 1, 3)
    if own & _DEFAULT_SIZE:
        usual = number(head, 8 + (4 if own & 0x02 else 0) + (4 if own & 0x08 else 0), 4)
    return None if usual is None else _Run(content, place, count * usual)


def _samples(data: bytes, moof: Box, runs: list[_Run]) -> Iterator[bytes]:
    """The samples of each run. What is said to be outside of the bytes is left out."""
    at = 0
    for run in runs:
        at = at if run.place is None else max(0, moof.start + run.place)
        yield data[at : at + run.size]
        at += run.size


def _moved(run: _Run, place: int) -> bytes:
    """A ``trun`` whose samples begin at this place of its fragment."""
    flags = number(run.content, 1, 3) | _DATA_OFFSET
    rest = run.content[8 if run.place is None else 12 :]
    return box(b"trun", run.content[:1] + flags.to_bytes(3) + run.content[4:8] + place.to_bytes(4) + rest)


# MPEG-TS (sections of ISO/IEC 13818-1).


def track_packets(opening: bytes, data: bytes, track: int) -> bytes | None:
    """The packets of one track among those of all, behind tables of its own; ``None`` if no table names it.

    Packets keep their counters. Tables say that theirs jump (2.4.3.5), since nobody counts them over several files.
    The clock of a program (PCR) is in the packets of one stream, mostly the pictures. Before a packet of another track
    the newest clock that has passed is sent, without the media.

    Args:
        opening: the beginning of the segment. data: the bytes that are wanted of it. track: the PID.
    """
    tables = ProgramTables()
    for packet in ts_packets(opening):
        tables.feed(packet)
        if tables.program_of(track) is not None:
            break
    program = tables.program_of(track)
    if program is None:
        return None
    table, clock = program
    if data[::PACKET_BYTES] != bytes([SYNC]) * -(-len(data) // PACKET_BYTES) or len(data) % PACKET_BYTES:
        data = b"".join(packet.data for packet in ts_packets(data))
    made = [_table(PAT_PID, 0, struct.pack(">HH", 1, 0xE000 | table))]
    told = tables.descriptors[track]
    told = told if len(told) <= MAX_TOLD else b""
    stream = struct.pack(">BHH", tables.streams[track], 0xE000 | track, 0xF000 | len(told)) + told
    made.append(_table(table, 2, struct.pack(">HH", 0xE000 | clock, 0xF000) + stream))
    due = b""
    for at, high, low in zip(count(0, PACKET_BYTES), data[1::PACKET_BYTES], data[2::PACKET_BYTES], strict=False):
        pid = (high & 0x1F) << 8 | low
        if pid == track:
            made += (due, data[at : at + PACKET_BYTES])
            due = b""
        elif pid == clock and data[at + 3] & 0x20:
            packet = TsPacket(data[at : at + PACKET_BYTES])
            due = _clock(packet) if packet.has_clock else due
    return b"".join(made)


def _table(pid: int, kind: int, body: bytes) -> bytes:
    """A table of one section in one packet (2.4.4): of program 1, or of the one transport stream."""
    body = struct.pack(">BHHBBB", kind, 0xB000 | len(body) + 9, 1, 0xC1, 0, 0) + body
    data = b"\0" + body + crc32(body).to_bytes(4)
    stuffing = PACKET_BYTES - 6 - len(data)
    return struct.pack(">BHBBB", SYNC, 0x4000 | pid, 0x30, stuffing + 1, 0x80) + b"\xff" * stuffing + data


def _clock(packet: TsPacket) -> bytes:
    """The clock of a packet in a packet of its own, which has no payload, and so does not count (2.4.3.3)."""
    head = struct.pack(">BHBBB", SYNC, packet.pid, 0x20, PACKET_BYTES - 5, 0x10)
    return (head + packet.adaptation[1 : 1 + _PCR_BYTES]).ljust(PACKET_BYTES, b"\xff")
