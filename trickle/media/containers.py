"""Containers as bytes: MP4 boxes, MPEG-TS packets, and which of the two a segment is.

Theory of operation
===================

*The problem.* The server packages HLS and the clients cut, join and check media, without libav in the server and
without trust in the bytes: any client may publish anything as ``video/mp4``.

*The idea.* Small walkers that yield boxes or packets as views of the bytes, and readers on top of them for the few
fields that we need. libavformat reads everything else: codecs, times, frames.

*Invariants.*

- No function raises for any bytes. A walker stops at the first box that makes no sense, and skips bytes that are no
  packet; the caller sees where, by the places that it yields.
- Time is linear in the number of bytes. Boxes, tracks and streams are limited in number (``MAX_…``), and no function
  calls itself. A field beyond the end of the bytes reads as zero.
- The functions against memory bombs (:func:`fragment_samples`, :func:`has_sample_table`, :func:`has_huge_track`) do not
  walk: they search for the boxes' names in all bytes outside of the media. libavformat is lenient, and finds boxes that
  a strict walker does not reach.

Sections are those of ISO/IEC 14496-12 (MP4) and ISO/IEC 13818-1 (MPEG-TS).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import islice
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class Container(StrEnum):
    """The format of a segment's bytes."""

    MPEGTS = "mpegts"
    FMP4 = "fmp4"
    JSON = "json"
    OTHER = "other"


# MP4.

MAX_TRACKS: Final = 64
"""At most this many tracks of an init segment are read."""

MAX_CHILDREN: Final = 128
"""At most this many boxes inside of another box are read. Each track is one of them."""

MAX_BOXES: Final = 1 << 16
"""The walker stops after this number of boxes side by side. No real segment has more."""

FIRST_BOXES: Final = frozenset(
    {b"ftyp", b"styp", b"moov", b"moof", b"sidx", b"prft", b"emsg", b"uuid", b"free", b"mdat"}
)
"""A segment may begin with one of these boxes."""

_TRUN_SIZES: Final = 0x200
"""Flag of ``trun``: each sample has its own size."""

_MEDIA_BOXES: Final = frozenset({b"moof", b"mdat"})


@dataclass(frozen=True, slots=True)
class Box:
    """One box.

    Attributes:
        kind: its four letters.
        start: where its header begins in the bytes that were walked.
        end: just behind its last byte.
        body: its content, without the header.
    """

    kind: bytes
    start: int
    end: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Track:
    """A track as an init segment announces it.

    Attributes:
        timescale: ticks per second of its times; 1 if the header has none.
        kind: the handler type: ``vide``, ``soun`` and others; empty if the track has none.
        codec: the type of its first sample entry, for example ``avc1``; empty if the track has none.
    """

    number: int
    timescale: int
    kind: bytes = b""
    codec: bytes = b""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A ``moof`` box.

    Attributes:
        number: the sequence number of its ``mfhd``, which counts up from fragment to fragment.
        has_time: it has the decoding time of a track's first sample (``tfdt``).
    """

    number: int
    has_time: bool


def boxes(data: Buffer) -> Iterator[Box]:
    """Yield the boxes side by side, up to the first that is cut off or has an impossible size.

    All bytes belonged to boxes if the last ``end`` is ``len(data)``.
    """
    view = memoryview(data)
    at = 0
    for _ in range(MAX_BOXES):
        size, header = number(view, at, 4), 8
        if size == 1:  # the size follows, in 64 bits
            size, header = number(view, at + 8, 8), 16
        elif size == 0:  # up to the end of the file
            size = len(view) - at
        if size < header or at + size > len(view):
            return
        yield Box(bytes(view[at + 4 : at + 8]), at, at + size, view[at + header : at + size])
        at += size


def find_box(data: Buffer, *path: bytes) -> bytes:
    """Return the content of the first box at a path; empty if there is none.

    Args:
        path: names of boxes, each inside of the one before: ``b"moov", b"trak", b"tkhd"``.
    """
    view = memoryview(data)
    limit = MAX_BOXES
    for kind in path:
        view = next((item.body for item in islice(boxes(view), limit) if item.kind == kind), view[:0])
        limit = MAX_CHILDREN
    return bytes(view)


def number(data: Buffer, at: int, size: int) -> int:
    """Read an unsigned number of ``size`` bytes. Bytes beyond the end of ``data`` count as zeros."""
    return int.from_bytes(bytes(data[at : at + size]).ljust(size, b"\0"))


def init_segment(data: Buffer) -> bytes:
    """Return the boxes up to and including ``moov``, if it comes before any media; else nothing."""
    for item in boxes(data):
        if item.kind == b"moov":
            return bytes(data[: item.end])
        if item.kind in _MEDIA_BOXES:
            break
    return b""


def tracks(init: Buffer) -> list[Track]:
    """Return the tracks of an init segment, in their order."""
    found = []
    for item in islice(boxes(find_box(init, b"moov")), MAX_CHILDREN):
        if item.kind == b"trak":
            # Both headers begin with a version. Two times stand before the number: of 32 bits, or of 64 in version 1.
            trak = {part.kind: part.body for part in islice(boxes(item.body), MAX_CHILDREN)}
            mdia = {part.kind: part.body for part in islice(boxes(trak.get(b"mdia", b"")), MAX_CHILDREN)}
            header, media = bytes(trak.get(b"tkhd", b"")), bytes(mdia.get(b"mdhd", b""))
            ident, scale = (number(part, 20 if part[:1] == b"\1" else 12, 4) for part in (header, media))
            kind = bytes(mdia.get(b"hdlr", b"")[8:12])
            codec = find_box(mdia.get(b"minf", b""), b"stbl", b"stsd")[12:16]
            found.append(Track(ident, max(1, scale), kind, codec))
            if len(found) == MAX_TRACKS:
                break
    return found


def leading(found: list[Track]) -> Track:
    """The track by whose fragments a segment is cut: the first one of video, or of sound, or of all (not empty)."""
    return min(found, key=lambda track: {b"vide": 0, b"soun": 1}.get(track.kind, 2))


def fragments(data: Buffer) -> Iterator[Fragment]:
    """Yield the fragments among the boxes of a segment."""
    for item in boxes(data):
        if item.kind == b"moof":
            parts = (part.body for part in boxes(item.body) if part.kind == b"traf")
            has_time = any(len(find_box(part, b"tfdt")) >= 8 for part in parts)
            yield Fragment(number(find_box(item.body, b"mfhd"), 4, 4), has_time)


def damaged_fragments(data: Buffer) -> int:
    """Count the fragments of an MP4 segment that are missing, cut off, or do not agree with their ``mdat``.

    MP4 has no mark for damage, and demuxers skip damaged parts in silence. But fragments are numbered, and they name
    the sizes of their samples.
    """
    damaged, end, before = 0, 0, None
    announced: int | None = None  # bytes of media that the last moof announces; None: it names no sizes
    media = 0  # bytes of media that have come since
    for item in boxes(data):
        end = item.end
        if item.kind == b"moof":
            fragment = number(find_box(item.body, b"mfhd"), 4, 4)
            damaged += announced not in (None, media) or (before is not None and fragment > before + 1)
            announced, media, before = _announced_bytes(item.body), 0, fragment
        elif item.kind == b"mdat":
            media += len(item.body)
    return damaged + (announced not in (None, media) or end < len(data))


def _announced_bytes(moof: Buffer) -> int | None:
    """Return the bytes of all samples of a fragment; ``None`` if its runs do not name each sample's size."""
    total = 0
    for traf in (part.body for part in islice(boxes(moof), MAX_CHILDREN) if part.kind == b"traf"):
        for run in (bytes(part.body) for part in islice(boxes(traf), MAX_CHILDREN) if part.kind == b"trun"):
            flags, samples = number(run, 1, 3), number(run, 4, 4)
            if not flags & _TRUN_SIZES:
                return None
            # Before the samples stand an offset and flags; in each sample, its duration stands before its size.
            begin = 8 + 4 * (flags & 0x05).bit_count() + (4 if flags & 0x100 else 0)
            step = 4 * (flags & 0xF00).bit_count()
            places = range(begin, min(begin + step * samples, len(run) - 3), step)
            total += sum(int.from_bytes(run[at : at + 4]) for at in places)
    return total


def fragment_samples(data: Buffer) -> int:
    """Count the samples that all fragments announce. A demuxer allocates memory for them before it reads any."""
    text = _without_media(data)
    return sum(number(text, at + 8, 4) for at in _places(text, b"trun"))


def has_sample_table(data: Buffer) -> bool:
    """Whether ``moov`` lists samples, as in an ordinary MP4 file, or is compressed, so that nobody can tell."""
    text = _without_media(data)
    tables = ((b"stsz", 12), (b"stz2", 12), (b"stco", 8), (b"co64", 8))
    return b"cmov" in text or any(number(text, at + size, 4) for kind, size in tables for at in _places(text, kind))


def has_huge_track(data: Buffer) -> bool:
    """Whether a track's number has more than 31 bits. libavformat takes seconds to read that header."""
    text = _without_media(data)
    # Two times stand before the number, as in tracks().
    return any(
        number(text, at + (24 if text[at + 4 : at + 5] == b"\1" else 16), 4) >> 31 for at in _places(text, b"tkhd")
    )


def _without_media(data: Buffer) -> bytes:
    """Return the bytes outside of the ``mdat`` boxes, of which the last may be cut off."""
    parts, end = [], 0
    for item in boxes(data):
        parts.append(b"" if item.kind == b"mdat" else data[item.start : item.end])
        end = item.end
    parts.append(b"" if data[end + 4 : end + 8] == b"mdat" else data[end:])
    return b"".join(parts)


def _places(data: bytes, kind: bytes) -> Iterator[int]:
    at = data.find(kind)
    while at >= 0:
        yield at
        at = data.find(kind, at + 4)


def box(kind: bytes, *parts: bytes) -> bytes:
    """Write a box of a kind (four letters) from the parts of its content."""
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def full_box(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    """Write a box that begins with a version and 24 bits of flags (section 4.2)."""
    return box(kind, (version << 24 | flags).to_bytes(4), *parts)


# MPEG-TS.

PACKET_BYTES: Final = 188
SYNC: Final = 0x47
PAT_PID: Final = 0
NULL_PID: Final = 0x1FFF

MAX_SECTION: Final = 1024
"""Longest section of a program table, with its header (section 2.4.4)."""

MAX_STREAMS: Final = 64
"""At most this many programs and streams are read."""

_SYNC_BYTES: Final = 2 * PACKET_BYTES + 1
"""Three sync bytes at the distance of a packet show where packets begin."""


class TsPacket:
    """A transport packet (section 2.4.3.2).

    Attributes:
        data: its 188 bytes.
        start: where it begins in the bytes that were walked.
    """

    __slots__ = ("data", "start")

    def __init__(self, data: bytes, start: int = 0) -> None:
        self.data = data
        self.start = start

    @property
    def pid(self) -> int:
        """The number of its stream or table."""
        return (self.data[1] & 0x1F) << 8 | self.data[2]

    @property
    def is_start(self) -> bool:
        """A PES packet or a section begins in it."""
        return bool(self.data[1] & 0x40)

    @property
    def is_damaged(self) -> bool:
        """An earlier receiver has marked the packet as damaged, or its adaptation field is longer than the packet."""
        return bool(self.data[1] & 0x80) or bool(self.data[3] & 0x20 and self.data[4] > PACKET_BYTES - 5)

    @property
    def is_scrambled(self) -> bool:
        """Its payload is encrypted."""
        return bool(self.data[3] & 0xC0)

    @property
    def has_payload(self) -> bool:
        """It has payload. Only a packet with payload counts up."""
        return bool(self.data[3] & 0x10)

    @property
    def counter(self) -> int:
        """The continuity counter, 0 to 15."""
        return self.data[3] & 0x0F

    @property
    def adaptation(self) -> bytes:
        """The adaptation field without its length; empty if there is none."""
        return self.data[5 : 5 + self.data[4]] if self.data[3] & 0x20 else b""

    @property
    def payload(self) -> bytes:
        """The bytes behind the adaptation field; empty if it has no payload."""
        if not self.has_payload:
            return b""
        return self.data[5 + self.data[4] :] if self.data[3] & 0x20 else self.data[4:]

    @property
    def may_jump(self) -> bool:
        """The discontinuity indicator is set: the counter may jump here (section 2.4.3.5)."""
        return bool(self._flags & 0x80)

    @property
    def has_clock(self) -> bool:
        """It has a program clock reference (PCR), right behind the flags."""
        return bool(self._flags & 0x10) and len(self.adaptation) >= 7

    @property
    def _flags(self) -> int:
        return self.data[5] if self.data[3] & 0x20 and self.data[4] else 0


def ts_packets(data: Buffer) -> Iterator[TsPacket]:
    """Yield the whole packets. Other bytes are skipped, up to the place where packets begin again.

    Bytes were skipped before a packet whose ``start`` is not the end of the packet before it.
    """
    data = data if isinstance(data, bytes) else bytes(data)
    at = 0
    while at + PACKET_BYTES <= len(data):
        if data[at] == SYNC:
            yield TsPacket(data[at : at + PACKET_BYTES], at)
            at += PACKET_BYTES
        else:
            at = find_sync(data, at)


def find_sync(data: bytes, at: int) -> int:
    """Return the first place from ``at`` on where a packet begins; ``len(data)`` if there is none.

    Near the end of the data fewer than three sync bytes are enough.
    """
    while (at := data.find(SYNC, at)) >= 0:
        if all(data[place] == SYNC for place in range(at, min(len(data), at + _SYNC_BYTES), PACKET_BYTES)):
            return at
        at += 1
    return len(data)


class Step(Enum):
    """A packet's continuity counter, compared with that of the packet before it on its PID."""

    NEXT = "next"
    """It goes on."""

    REPEATED = "repeated"
    """The packet is sent twice, as section 2.4.3.3 allows. Its payload counts once."""

    LOST = "lost"
    """It jumped: packets are missing, or the packet belongs to another multiplex."""


class Continuity:
    """Follows the continuity counters of all PIDs, over any number of segments."""

    def __init__(self) -> None:
        # The last packet with payload of each PID: counter, payload, whether it repeated the one before.
        self._last: dict[int, tuple[int, bytes, bool]] = {}

    def feed(self, packet: TsPacket) -> Step:
        """Take the next packet. One without payload, and the first of a PID, is always :attr:`Step.NEXT`."""
        pid, counter = packet.pid, packet.counter
        if packet.may_jump:
            self._last.pop(pid, None)
        if pid == NULL_PID or not packet.has_payload:
            return Step.NEXT
        payload = packet.payload
        last, before, was_repeated = self._last.get(pid, (counter - 1 & 0x0F, b"", False))
        is_repeated = counter == last and payload == before and not was_repeated
        self._last[pid] = counter, payload, is_repeated
        if is_repeated:
            return Step.REPEATED
        return Step.NEXT if counter == last + 1 & 0x0F else Step.LOST

    def reset(self) -> None:
        """Forget all counters: the next segment does not follow the one before."""
        self._last.clear()


@dataclass(slots=True)
class _Sections:
    """Puts the sections of one PID together from packets."""

    data: bytearray = field(default_factory=bytearray)  # the section that has begun; MAX_SECTION bytes and one packet
    is_open: bool = False  # a section may go on in the next packet

    def feed(self, payload: bytes, is_start: bool) -> Iterator[bytes]:
        if is_start and payload:
            begin = 1 + payload[0]  # before it stands the end of a section of earlier packets
            yield from self._add(payload[1:begin])
            self.data, self.is_open = bytearray(), True
            payload = payload[begin:]
        yield from self._add(payload)

    def _add(self, payload: bytes) -> Iterator[bytes]:
        if not self.is_open:
            return
        self.data += payload
        while len(self.data) >= 3 and self.data[0] != 0xFF:  # 0xFF is stuffing, which follows the last section
            size = 3 + (number(self.data, 1, 2) & 0xFFF)
            if size > MAX_SECTION:
                self.is_open = False
                return
            if len(self.data) < size:
                return
            yield bytes(self.data[:size])
            del self.data[:size]
        self.is_open = len(self.data) < 3


class ProgramTables:
    """Reads PAT and PMT (section 2.4.4).

    Attributes:
        streams: the type of each stream of the programs (table 2-34), by PID.
        descriptors: the descriptors of each stream in the tables (section 2.6), by PID.
        damaged: the number of sections whose check sum was wrong.
        is_complete: a PAT has come, and after it a PMT that the PAT names.
    """

    def __init__(self) -> None:
        self.damaged = 0
        self.is_complete = False
        # Types and descriptors of streams by PID, by the PID of the program's PMT.
        self._programs: dict[int, dict[int, tuple[int, bytes]]] = {}
        self._clocks: dict[int, int] = {}  # the PID of each program's clock, by the PID of its PMT
        self._has_pat = False
        self._sections: dict[int, _Sections] = {}  # by PID

    @property
    def streams(self) -> dict[int, int]:
        return {pid: kind for pid, (kind, _) in self._merged()}

    @property
    def descriptors(self) -> dict[int, bytes]:
        return {pid: told for pid, (_, told) in self._merged()}

    def _merged(self) -> list[tuple[int, tuple[int, bytes]]]:
        merged = {pid: found for streams in self._programs.values() for pid, found in streams.items()}
        return list(merged.items())[:MAX_STREAMS]

    def program_of(self, pid: int) -> tuple[int, int] | None:
        """The PIDs of the PMT that names a stream, and of that program's clock; ``None`` if none names it."""
        found = next((table for table, streams in self._programs.items() if pid in streams), None)
        return None if found is None else (found, self._clocks[found])

    def carries(self, pid: int) -> bool:
        """Whether packets of this PID carry a table."""
        return pid == PAT_PID or pid in self._programs

    def feed(self, packet: TsPacket) -> None:
        """Take the next packet. A packet of a stream changes nothing."""
        pid = packet.pid
        if self.carries(pid):
            sections = self._sections.setdefault(pid, _Sections())
            for section in sections.feed(packet.payload, packet.is_start):
                self._take(pid, section)

    def _take(self, pid: int, section: bytes) -> None:
        if len(section) < 12 or crc32(section) != 0:
            self.damaged += 1
        elif pid == PAT_PID:
            self._has_pat = True
            self._programs = {table: self._programs.get(table, {}) for table in _programs(section)}
        elif streams := _streams(section):
            self._programs[pid], self._clocks[pid] = streams, number(section, 8, 2) & 0x1FFF
            self.is_complete = self._has_pat


def _programs(section: bytes) -> list[int]:
    """Return the PIDs of the PMTs that a PAT lists. Its program 0 is the network's table, and is left out."""
    if section[0] != 0x00:
        return []
    entries = [(number(section, at, 2), number(section, at + 2, 2) & 0x1FFF) for at in range(8, len(section) - 7, 4)]
    return [pid for program, pid in entries if program and pid != PAT_PID][:MAX_STREAMS]


def _streams(section: bytes) -> dict[int, tuple[int, bytes]]:
    """Return the stream types that a PMT lists, and their descriptors, by PID."""
    found: dict[int, tuple[int, bytes]] = {}
    if section[0] != 0x02:
        return found
    at, end = 12 + (number(section, 10, 2) & 0xFFF), len(section) - 4
    while at + 5 <= end and len(found) < MAX_STREAMS:
        size = number(section, at + 3, 2) & 0xFFF
        found[number(section, at + 1, 2) & 0x1FFF] = section[at], section[at + 5 : min(at + 5 + size, end)]
        at += 5 + size
    return found


def crc32(data: bytes) -> int:
    """Compute the check sum of a section (annex A). It is 0 for a section together with its own check sum."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value << 8 & 0xFFFFFFFF) ^ _CRC[(value >> 24) ^ byte]
    return value


def _crc_entry(index: int) -> int:
    value = index << 24
    for _ in range(8):
        value = (value << 1 ^ 0x04C11DB7) & 0xFFFFFFFF if value & 0x80000000 else value << 1
    return value


_CRC: Final = tuple(_crc_entry(index) for index in range(256))


def nal_units(data: bytes, most: int = -1) -> list[bytes]:
    """Take H.264 or HEVC with start codes (annex B of both) apart. The last unit may be cut off.

    Args:
        most: the number of units; the bytes behind them are a part of the last one. -1: any number.
    """
    # A unit never ends with a zero byte: such bytes belong to the start code behind it, or pad.
    return [unit for part in data.split(b"\0\0\1", most)[1:] if (unit := part.rstrip(b"\0"))]


# Which container it is.

SNIFF_BYTES: Final = 4 * PACKET_BYTES
"""The first bytes of a segment decide: of MPEG-TS one packet that may be cut, and three whole ones."""

_JSON_STARTS: Final = frozenset(b'{["')


def sniff(data: Buffer) -> Container:
    """Tell the container of a segment.

    Args:
        data: its first :data:`SNIFF_BYTES` or more; of a shorter segment, all bytes.
    """
    head = bytes(data[:SNIFF_BYTES])
    # A size of 0 means "to the end of the file", 1 that the size stands behind the name.
    if head[4:8] in FIRST_BOXES and (number(head, 0, 4) >= 8 or number(head, 0, 4) in (0, 1)):
        return Container.FMP4
    if len(head) >= PACKET_BYTES and find_sync(head, 0) < PACKET_BYTES:
        return Container.MPEGTS
    text = head.lstrip()
    return Container.JSON if text and text[0] in _JSON_STARTS else Container.OTHER
