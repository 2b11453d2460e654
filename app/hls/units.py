"""The places at which a segment can be cut, and how long the media between them last.

**The problem.** A playlist needs durations, and bytes at which a part may end. Both stand inside the media, whose bytes
come from publishers and may be anything.

**The idea.** A scanner is fed the bytes of one segment in their order, in pieces of any size, and looks at each byte
once. It finds *units*: pictures of MPEG-TS, fragments of MP4. They are those of the stream that leads: the video, or
the first stream if there is no video. Bytes of other streams belong to the unit before them. The units are the same
however the bytes were divided, so all that is made of them is, too.

**It decides little.** A scanner never raises for the bytes that it is given; in media that it cannot read it finds
nothing. It keeps less than three packets, or one box of :data:`MAX_BOX` bytes. It gives a segment up after
:data:`MAX_WALKED` boxes, at a size that no box has, after :data:`MAX_TABLES` packets of tables that name no stream, or
after :data:`MAX_SKIPPED` bytes that are no packets.

Numbers of sections refer to ISO/IEC 13818-1 (MPEG-TS) and 14496-12 (MP4).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol

from tricklecast.app.hls.codecs import AVC, HEVC, MAX_OPENING, SOUND, Stream, mp4_streams, private_codec, ts_streams
from tricklecast.app.hls.demuxed import can_move
from tricklecast.trickle.media.containers import (
    MAX_CHILDREN,
    NULL_PID,
    PACKET_BYTES,
    PAT_PID,
    SYNC,
    Container,
    ProgramTables,
    Track,
    TsPacket,
    boxes,
    find_box,
    find_sync,
    leading,
    number,
    tracks,
    ts_packets,
)

MAX_UNITS: Final = 20_000
"""Units of one segment. Bytes behind them belong to the last one. A minute of film has 3,600 pictures."""

MAX_UNIT_S: Final = 10.0
MAX_FRAGMENT_S: Final = 60.0
DEFAULT_UNIT_S: Final = 0.04
"""The times of one segment may jump. If a picture of MPEG-TS would last more than ten seconds, or no time, it gets the
duration of the picture before it, or 0.04 s. A fragment of MP4 says itself how long it lasts, and may be a group of
pictures; a scanner believes up to a minute."""

MIN_STILL_S: Final = 1.0
"""If the sound goes on for longer than this behind the last picture, there is no further picture. Less may come from
interleaving."""

MAX_BOX: Final = 1 << 20
"""The longest box that a scanner keeps and reads. It skips longer ones, and the media."""

MAX_WALKED: Final = 150_000
"""Boxes of a segment that a scanner looks at: those of MAX_UNITS fragments, which take half a second."""

INIT_COST: Final = 4096
"""An init segment counts as this many boxes."""

SYNC_SPAN: Final = 2 * PACKET_BYTES + 1
"""Bytes from the first of three sync bytes to the third."""

MAX_SKIPPED: Final = 1 << 20
"""Bytes of a segment that are no packets of MPEG-TS. A segment with more is no MPEG-TS."""

MAX_TABLES: Final = 4096
"""Packets of program tables that a scanner reads until they name a stream."""

MAX_RUNS: Final = 256
"""Boxes of a fragment, or of a track fragment, that a scanner reads."""

_TIME_BITS: Final = 33
_CLOCK_HZ: Final = 90_000
WRAP_S: Final = (1 << _TIME_BITS) / _CLOCK_HZ
"""The times of MPEG-TS begin anew after this."""

_RANDOM_ACCESS: Final = 0x40
_VIDEO_TYPES: Final = frozenset({0x01, 0x02, 0x10, 0x1B, 0x20, 0x21, 0x24, 0x25, 0x33, 0x42, 0xD1, 0xEA})
"""Stream types of video (section 2.4.4.9, table 2-34)."""

_UNPLAYABLE: Final = {
    0x01: "MPEG-1 video", 0x02: "MPEG-2 video", 0x10: "MPEG-4 video (part 2)", 0xD1: "Dirac", 0xEA: "VC-1",
}  # fmt: skip
_PLAYABLE: Final = {
    b"vide": (b"avc1", b"avc3", b"hvc1", b"hev1", b"dvh1", b"dvhe", b"dva1", b"dvav", b"av01", b"vp08", b"vp09"),
    b"soun": (b"mp4a", b"ac-3", b"ec-3", b"ac-4", b"Opus", b"fLaC", b"alac", b"mha1", b"mhm1"),
}
"""Codecs of video in MPEG-TS that no player of HLS knows, and those in MP4 that some do."""

_PRIVATE: Final = 0x06
_ONLY_MP4: Final = {b"Opus": "Opus", b"AV01": "AV1", b"VP09": "VP9"}
"""Codecs of private data in MPEG-TS, by how they are registered there. hls.js and Apple's players take them in MP4."""

_MPEG_AUDIO: Final = frozenset({0x03, 0x04})
"""Stream types of MP3 and MP2. Of segments with these, hls.js gives browsers the first part only."""

_STARTS: Final = re.compile(rb"[\x40-\x7f\xc0-\xff]")
"""The second bytes of packets in which a payload unit begins."""

_START_CODE: Final = re.compile(rb"\x00\x00\x01(.)", re.DOTALL)


@dataclass(slots=True)
class Unit:
    """A picture, or a fragment. A segment can be cut before and behind it."""

    at: int  # the byte of the segment at which it begins
    time: float  # when it is shown, in seconds of the stream's own clock
    duration: float | None  # in seconds; None until the next unit has begun
    is_key: bool  # decoding can begin here


def duration_of(units: list[Unit], place: int) -> float:
    """The duration of a unit in seconds. If it is not known yet, that of the unit before."""
    own = units[place].duration
    if own is not None:
        return own
    return (units[place - 1].duration if place else None) or DEFAULT_UNIT_S


def _still_s(units: list[Unit], sound_end: float) -> float:
    """Seconds by which the last picture outlasts its unit, because the sound goes on; below 0 if it ends first.

    0 if interleaving may be the reason.
    """
    stands_s = sound_end - units[-1].time
    more_s = stands_s - duration_of(units, len(units) - 1)
    return more_s if stands_s > 0 and MIN_STILL_S < abs(more_s) < MAX_UNIT_S else 0.0


def _sensible(duration: float, units: list[Unit], most: float = MAX_UNIT_S) -> float:
    """A duration that was computed from times of the media, if it is sensible; else that of the unit before."""
    if 0 < duration <= most:
        return duration
    return (units[-1].duration if units else None) or DEFAULT_UNIT_S


class Scanner(Protocol):
    """Finds the units of one segment."""

    units: list[Unit]  # so far
    whole: int  # where the last unit ends of which all bytes have arrived
    start: int  # where the media begin
    init: bytes  # the init segment, which a decoder needs first; nothing in MPEG-TS
    still_s: float  # seconds by which the last picture of a finished segment outlasts its unit
    gave_up: bool  # the rest of the segment is not looked at
    is_whole_only: bool  # players cannot play parts of these media
    tables: tuple[int, int]  # the bytes with the program tables: from, to; a decoder needs them first, as an init

    @property
    def has_video(self) -> bool:
        """Whether the stream that leads is video."""

    @property
    def streams(self) -> list[Stream]:
        """The streams, as far as the bytes so far tell what they are."""

    @property
    def frame_rate(self) -> float:
        """Pictures per second, on average; 0 if there are no pictures, or too few."""

    @property
    def obstacle(self) -> str:
        """Why no player of HLS can play the media; empty if no reason is known."""

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the segment."""

    def finish(self, size: int) -> int:
        """End the segment, which has this size. Returns where the bytes end that a decoder can use."""


def scanner(container: Container, init: bytes) -> Scanner | None:
    """A scanner of a segment; ``None`` if there is none for this container.

    Args:
        init: the init segment of the segment before, for a segment that has none.
    """
    match container:
        case Container.MPEGTS:
            return TsScanner()
        case Container.FMP4:
            return Mp4Scanner(init)
        case _:
            return None


# MPEG-TS.


def tables_of(head: bytes) -> bytes:
    """The first PAT and PMT of a segment, as its init segment (3.1.2 of the draft); nothing if it has none.

    Their counters are 0: a publisher's tables have others in each segment, and mean the same.
    """
    tables, found = ProgramTables(), b""
    for packet in ts_packets(head):
        if tables.carries(packet.pid):
            tables.feed(packet)
            found += packet.data[:3] + bytes([packet.data[3] & 0xF0]) + packet.data[4:]
        if tables.is_complete:
            return found
    return b""


class TsScanner:
    """Finds the transport packets in which a picture begins (of sound alone: an access unit)."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.whole = self.start = 0
        self.init = b""
        self.still_s = 0.0
        self.gave_up = self.is_whole_only = False
        self._tables = ProgramTables()
        self._tables_left = MAX_TABLES  # packets of tables that may come until it gives up
        self._skip_left = MAX_SKIPPED  # bytes that may be no packets until it gives up
        self._lead: int | None = None  # the PID of the stream that leads
        self._kind = 0  # the type of that stream
        self._rest = b""  # the beginning of a packet; or bytes that may be one, if they are not decided about
        self._is_lost = False  # they are not
        self._at = 0  # the place of the rest in the segment
        self._ticks = 0  # the time of the last unit
        self._beside: int | None = None  # the PID of the first stream beside the one that leads
        self._beside_from = 0  # its first time
        self._beside_s = 0.0  # from that to its last time
        self._kinds: dict[int, int] = {}  # the types of streams, by PID
        self._openings: dict[int, bytearray] = {}  # how a packet of each stream begins; of video, a key picture
        self._is_opening = False  # that of the stream that leads goes on in its next packet
        self._refused = ""  # a codec that players of HLS do not take in this container
        self.tables = 0, 0
        self._front: tuple[int, int] = (0, 0)  # the last packets of tables: from, to; a unit behind them begins there

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the segment."""
        if self.gave_up:
            return
        data = self._rest + data
        packets = len(data) // PACKET_BYTES
        size = packets * PACKET_BYTES
        if not self._is_lost and data[:size:PACKET_BYTES] == bytes([SYNC]) * packets:
            self._open(data, 0, size)
            for match in _STARTS.finditer(data[1:size:PACKET_BYTES]):
                at = match.start() * PACKET_BYTES
                self._take(TsPacket(data[at : at + PACKET_BYTES], self._at + at))
                self._open(data, at + PACKET_BYTES, size)
        else:  # damaged: packets begin elsewhere
            size = self._resync(data, is_end=False)
        self._rest = b"" if self.gave_up else data[size:]
        self._at += size

    def _resync(self, data: bytes, *, is_end: bool) -> int:
        """Take the packets between bytes that are none. Returns the end of the bytes about which it has decided.

        Three sync bytes show where packets begin. It waits for them, unless the segment ends.
        """
        at = 0
        while at + PACKET_BYTES <= len(data):
            if not self._is_lost and data[at] == SYNC:
                packet = TsPacket(data[at : at + PACKET_BYTES], self._at + at)
                if packet.is_start:
                    self._take(packet)
                else:
                    self._open(data, at, at + PACKET_BYTES)
                at += PACKET_BYTES
                continue
            self._is_lost = True
            begin, at = at, find_sync(data, at)
            self._skip_left -= at - begin
            if self._skip_left < 0:
                self.gave_up = True
                break
            if not is_end and at + SYNC_SPAN > len(data):
                break
            self._is_lost = False
        return at

    @property
    def has_video(self) -> bool:
        """The stream that leads is video."""
        return self._kind in _VIDEO_TYPES

    @property
    def obstacle(self) -> str:
        """Why no player can play these: a codec that browsers and Apple's players lack."""
        if name := _UNPLAYABLE.get(self._kind):
            return f"no player of HLS can play {name}: publish with --transcode"
        if self._refused:
            return f"hls.js and Apple's players take {self._refused} in MP4 alone: publish with --container fmp4"
        return ""

    @property
    def streams(self) -> list[Stream]:
        """The streams of pictures and sound."""
        openings = {pid: bytes(opening) for pid, opening in self._openings.items()}
        return ts_streams(self._kinds, self._tables.descriptors, openings, _VIDEO_TYPES)

    @property
    def frame_rate(self) -> float:
        """Of the pictures that have a next one."""
        times = len(self.units) - 1
        span_s = sum(unit.duration or 0.0 for unit in self.units[:-1])
        return times / span_s if span_s and self.has_video else 0.0

    def finish(self, size: int) -> int:
        """End the segment, all of whose bytes can be used.

        The last picture stands until the sound ends. The last packet of sound alone is often shorter than the others,
        and lasts as long as its share of bytes.
        """
        rest, self._rest = self._rest, b""
        self._resync(rest, is_end=True)
        if self.units and self._beside is not None:
            still_s = _still_s(self.units, self.units[0].time + self._beside_s)
            self.units[-1].duration = duration_of(self.units, len(self.units) - 1) + still_s
        before, last = self.units[-2:] if len(self.units) > 1 else (None, None)
        if before and last and before.duration and self._kind not in _VIDEO_TYPES:
            last.duration = before.duration * min(1.0, (size - last.at) / (last.at - before.at))
        self.whole = size
        return size

    def _take(self, packet: TsPacket) -> None:
        pid = packet.pid
        front, end = self._front
        begin = front if end == packet.start else packet.start
        if self._tables.carries(pid):
            self._front = begin, packet.start + PACKET_BYTES
            if self._lead is not None or self.gave_up:
                return
            self._tables.feed(packet)
            self.tables = packet.start if pid == PAT_PID else self.tables[0], packet.start + PACKET_BYTES
            self._tables_left -= 1
            self.gave_up = self._tables_left == 0
            if self._tables.is_complete:
                streams = self._tables.streams
                video = (pid for pid, kind in streams.items() if kind in _VIDEO_TYPES)
                self._lead = next(video, min(streams, default=NULL_PID))
                self._kind = streams.get(self._lead, 0)
                self.is_whole_only = not _MPEG_AUDIO.isdisjoint(streams.values())
                self._kinds = streams
                told = self._tables.descriptors
                private = (private_codec(told[pid]) for pid, kind in streams.items() if kind == _PRIVATE)
                self._refused = next((_ONLY_MP4[codec] for codec in private if codec in _ONLY_MP4), "")
        elif pid == self._lead:
            self._is_opening = False
            if (ticks := _ticks(packet.payload)) is not None:
                is_key = self._is_key(packet)
                if is_key and pid not in self._openings:
                    self._openings[pid] = bytearray(_elementary(packet.payload))
                    self._is_opening = True
                self._begin(begin, ticks, is_key)
        else:
            if pid in self._kinds and pid not in self._openings:
                self._openings[pid] = bytearray(_elementary(packet.payload))
            if self._beside in (None, pid) and (ticks := _ticks(packet.payload)) is not None:
                if self._beside is None:
                    self._beside, self._beside_from = pid, ticks
                self._beside_s = (ticks - self._beside_from) % (1 << _TIME_BITS) / _CLOCK_HZ

    def _open(self, data: bytes, begin: int, end: int) -> None:
        """Take what follows of the first key picture from these packets, as much as tells what the stream is."""
        while self._is_opening and begin < end:
            packet = TsPacket(data[begin : begin + PACKET_BYTES])
            begin += PACKET_BYTES
            if packet.pid == self._lead:
                opening = self._openings[self._lead]
                if not packet.is_start:
                    opening += packet.payload
                self._is_opening = not packet.is_start and len(opening) < MAX_OPENING

    def _begin(self, at: int, ticks: int, is_key: bool) -> None:
        units = self.units
        if len(units) >= MAX_UNITS:
            return
        if units:
            wrap = 1 << _TIME_BITS
            ticks = self._ticks + (ticks - self._ticks + wrap // 2) % wrap - wrap // 2
            units[-1].duration = _sensible((ticks - self._ticks) / _CLOCK_HZ, units[-2:-1])
        self._ticks = ticks
        self.whole = at
        units.append(Unit(at, ticks / _CLOCK_HZ, None, is_key))

    def _is_key(self, packet: TsPacket) -> bool:
        """Whether decoding can begin here: the packet says so, or has parameter sets or an IDR picture."""
        if self._kind not in _VIDEO_TYPES or (packet.adaptation[:1] and packet.adaptation[0] & _RANDOM_ACCESS):
            return True
        kinds = [match[1][0] for match in _START_CODE.finditer(packet.payload, 9)]
        if self._kind == AVC:
            return any(kind & 0x1F in (5, 7) for kind in kinds)
        return self._kind == HEVC and any(16 <= kind >> 1 & 0x3F <= 21 or kind >> 1 & 0x3F == 33 for kind in kinds)


def _ticks(payload: bytes) -> int | None:
    """The time at which a PES packet is decoded, or else shown (section 2.4.3.6); ``None`` if it does not say."""
    if len(payload) < 14 or payload[:3] != b"\0\0\1" or not payload[7] & 0x80:
        return None
    at = 14 if payload[7] & 0x40 and len(payload) >= 19 else 9
    high, middle, low = payload[at] >> 1 & 0x07, number(payload, at + 1, 2) >> 1, number(payload, at + 3, 2) >> 1
    return high << 30 | middle << 15 | low


def _elementary(payload: bytes) -> bytes:
    """The bytes of a PES packet behind its head (section 2.4.3.6)."""
    return payload[9 + payload[8] :] if payload[:3] == b"\0\0\1" and len(payload) > 9 else b""


# MP4.


class _Defaults(NamedTuple):
    """The values of samples that have none of their own (``trex``, section 8.8.3; ``tfhd``, 8.8.7)."""

    duration: int
    flags: int


_NOT_SYNC: Final = 0x010000
_BEFORE_FRAGMENT: Final = frozenset({b"styp", b"sidx", b"prft", b"emsg"})


class Mp4Scanner:
    """Finds the fragments: ``moof`` and ``mdat``, with the boxes directly before them.

    Args:
        init: the init segment of the segment before. An init segment in this segment takes its place.
    """

    def __init__(self, init: bytes) -> None:
        self.units: list[Unit] = []
        self.whole = self.start = 0
        self.init = b""
        self.still_s = 0.0
        self.gave_up = self.is_whole_only = False
        self._lead: Track | None = None  # the track that leads
        self._tracks: list[Track] = []
        self._defaults: dict[int, _Defaults] = {}  # by the numbers of tracks
        self.tables = 0, 0
        self._is_fixed = False  # fragments name places of samples that are not their own
        self._pictures = 0  # samples of the track that leads
        self._sound_end = 0.0  # of the tracks beside the one that leads, in seconds of the stream's own clock
        self._rest = bytearray()  # the beginning of a box
        self._at = 0  # the place of the rest in the segment
        self._skip = 0  # bytes of a box that are still to come and are not read
        self._endless = False  # the last box goes on to the end of the segment
        self._walk_left = MAX_WALKED  # boxes that may come until it gives up
        self._front: int | None = None  # where the boxes directly before the next fragment begin
        self._head = b""  # the box ``ftyp``
        self._read_init(init)

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the segment."""
        if self.gave_up:
            return
        rest = self._rest
        passed = min(self._skip, len(data))
        self._skip -= passed
        self._at += passed
        rest += data[passed:]
        if passed and not self._skip:
            self.whole = self._at
        while len(rest) >= 8:
            size, kind = number(rest, 0, 4), bytes(rest[4:8])
            if size == 1:
                if len(rest) < 16:
                    return
                size = number(rest, 8, 8)
            elif size == 0:  # up to the end of the segment, wherever that is
                size, self._endless = 1 << 62, True
            self._walk_left -= 1
            if size < 8 or self._walk_left < 0:  # no box; or too many
                self.gave_up = True
                rest.clear()
                return
            if kind == b"mdat" or size > MAX_BOX:
                passed = min(size, len(rest))
                self._skip = size - passed
                self._at += passed
                del rest[:passed]
                if not self._skip:
                    self.whole = self._at
                continue
            if len(rest) < size:
                return
            self._take(kind, bytes(rest[:size]))
            self._at += size
            del rest[:size]

    @property
    def has_video(self) -> bool:
        """The track that leads is video."""
        return self._lead is not None and self._lead.kind == b"vide"

    @property
    def obstacle(self) -> str:
        """Why no player can play these: a codec that browsers and Apple's players lack, or sound in several tracks.

        Such tracks are offered apart, unless their fragments cannot be divided.
        """
        for track in self._tracks:
            if track.codec and track.codec not in _PLAYABLE.get(track.kind, (track.codec,)):
                name = track.codec.decode("ascii", "backslashreplace").strip()
                return f"no player of HLS can play the codec {name}: publish with --transcode"
        if self._is_fixed and sum(track.kind == SOUND for track in self._tracks) > 1:
            return "tracks of sound cannot be told apart: publish fragments with default-base-is-moof, or one track"
        return ""

    @property
    def streams(self) -> list[Stream]:
        """The tracks."""
        return mp4_streams(self.init)

    @property
    def frame_rate(self) -> float:
        """Of all pictures."""
        span_s = sum(unit.duration or 0.0 for unit in self.units)
        return self._pictures / span_s if span_s and self.has_video else 0.0

    def finish(self, size: int) -> int:
        """End the segment behind its last whole box: a decoder would take the next segment for the rest of a box.

        The last picture stands until the sound ends.
        """
        is_whole = self._endless or not (self._skip or self._rest or self.gave_up)
        if self._endless:
            self.whole = size
        while self.units and self.units[-1].at >= self.whole:
            del self.units[-1]
        if self.units:
            self.still_s = _still_s(self.units, self._sound_end)
        return size if is_whole else self.whole

    def _take(self, kind: bytes, box: bytes) -> None:
        if kind == b"ftyp":
            self._head = box
        elif kind == b"moov" and not self.units:
            self._read_init(self._head + box)
            self.start = self.whole = self._at + len(box)
        elif kind in _BEFORE_FRAGMENT:
            self._front = self._at if self._front is None else self._front
        elif kind == b"moof":
            front, self._front = self._front, None
            self._read_fragment(box[8:], self._at if front is None else front)

    def _read_init(self, init: bytes) -> None:
        self._walk_left -= INIT_COST
        found = tracks(init)
        if not found:
            return
        self.init = init
        self._tracks = found
        self._lead = leading(found)
        extends = find_box(init, b"moov", b"mvex")
        for item in islice(boxes(extends), MAX_CHILDREN):
            if item.kind == b"trex":
                self._defaults[number(item.body, 4, 4)] = _Defaults(number(item.body, 12, 4), number(item.body, 20, 4))

    def _read_fragment(self, moof: bytes, at: int) -> None:
        lead, units = self._lead, self.units
        if lead is None or len(units) >= MAX_UNITS:
            return
        is_found = False
        for item in islice(boxes(moof), MAX_RUNS):
            self._walk_left -= 1
            front = next(boxes(item.body), None) if item.kind == b"traf" else None
            if front is None or front.kind != b"tfhd":
                continue
            track = next((track for track in self._tracks if track.number == number(front.body, 4, 4)), None)
            if track is None or (is_found if track is lead else track.kind != SOUND):
                continue
            self._is_fixed |= not can_move(bytes(front.body))
            parts = [(part.kind, bytes(part.body)) for part in islice(boxes(item.body), MAX_RUNS)]
            self._walk_left -= len(parts)
            first = dict(reversed(parts))
            header, base = bytes(front.body), first.get(b"tfdt", b"")
            time = number(base, 4, 8 if base[:1] == b"\1" else 4) / track.timescale
            defaults = self._defaults.get(track.number, _Defaults(0, 0))
            length, number_of, flags = _samples([body for kind, body in parts if kind == b"trun"], header, defaults)
            if track is not lead:
                self._sound_end = max(self._sound_end, time + length / track.timescale)
                continue
            is_found = True
            self._pictures += number_of
            is_key = lead.kind != b"vide" or (flags is not None and not flags & _NOT_SYNC)
            if units and self.whole < at:
                self.whole = at
            duration = _sensible(length / lead.timescale, units, MAX_FRAGMENT_S)
            units.append(Unit(at, time, duration, is_key))


def _samples(runs: list[bytes], header: bytes, defaults: _Defaults) -> tuple[int, int, int | None]:
    """The samples of a track fragment: duration of all in its time scale, number, flags of the first (8.8.7, 8.8.8).

    Args:
        runs: the contents of each ``trun``. header: the content of ``tfhd``.
    """
    flags, at = number(header, 1, 3), 8
    at += (8 if flags & 0x01 else 0) + (4 if flags & 0x02 else 0)
    usual, usual_flags = defaults
    if flags & 0x08:
        usual, at = number(header, at, 4), at + 4
    at += 4 if flags & 0x10 else 0
    if flags & 0x20:
        usual_flags = number(header, at, 4)
    total, samples, first = 0, 0, None
    for run in runs:
        flags, count = number(run, 1, 3), number(run, 4, 4)
        at = 8 + (4 if flags & 0x01 else 0)
        own_flags = usual_flags
        if flags & 0x04:
            own_flags, at = number(run, at, 4), at + 4
        fields = sum(bool(flags & field) for field in (0x100, 0x200, 0x400, 0x800))
        if fields:
            count = min(count, (len(run) - at) // (4 * fields))
        if count <= 0:  # it may also end before its first sample
            continue
        if first is None:
            before = 4 * sum(bool(flags & field) for field in (0x100, 0x200))
            # The run's first flags are in place of the sample's own.
            first = number(run, at + before, 4) if flags & 0x400 and not flags & 0x04 else own_flags
        samples += count
        if flags & 0x100:
            total += sum(struct.unpack_from(f">{count * fields}I", run, at)[::fields])
        else:
            total += count * usual
    return total, samples, first
