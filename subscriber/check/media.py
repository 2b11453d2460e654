"""The contents of a segment: its bytes as containers, and tracks, times and first picture as libavformat reads them.

:class:`MediaReader` reads one segment after the other. This module reads packets, boxes and counters itself, since a
demuxer repairs them silently; everything else comes from PyAV, and is missing where PyAV is not installed. All of it
blocks: ``probe`` calls it in a thread. It takes any bytes, and never raises.

Memory: a segment's first :data:`MAX_BYTES`, and libavformat's objects for them. libavformat allocates an index of all
samples that an MP4 file announces, which a few bytes can do for millions. So ordinary files, and fragments of more than
:data:`MAX_SAMPLES` samples, are not demuxed.
"""

from __future__ import annotations

import importlib.util
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from tricklecast.subscriber.media.opening import FORMATS, NotMedia, Unit, h264_units, is_mpegts, open_segment, unit_type
from tricklecast.trickle.errors import needs
from tricklecast.trickle.media.clock import read_clock, read_prft, read_temi
from tricklecast.trickle.media.containers import (
    NULL_PID,
    PACKET_BYTES,
    SNIFF_BYTES,
    SYNC,
    Container,
    Continuity,
    ProgramTables,
    Step,
    boxes,
    fragment_samples,
    fragments,
    has_huge_track,
    has_sample_table,
    init_segment,
    sniff,
    tracks,
    ts_packets,
)
from tricklecast.trickle.media.demux import MAX_SAMPLES
from tricklecast.trickle.pyav import demuxed, reason

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    AnyPacket: TypeAlias = Packet[Stream]

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a segment that the check keeps and looks into: the server's own limit for a segment."""

MAX_TRACKS: Final = 64
"""Tracks of a segment that are measured."""

MAX_STEPS: Final = 256
"""Distances between samples that the check tells apart per track and segment."""

MAX_PICTURE_PACKETS: Final = 64
"""The most packets that a decoder gets for its first picture: more than any codec reorders (H.264 and HEVC: 16)."""

WRAP: Final = 1 << 33
"""Times in MPEG-TS have 33 bits: after 26.5 hours they begin again at 0."""

ENCRYPTED: Final = "encrypted"
NO_INIT: Final = "there was no init segment"
NEEDS_PYAV: Final = needs("PyAV", "media")

_OPTIONS: Final = {
    "probesize": str(MAX_BYTES),  # look for streams in all that is there ...
    "analyzeduration": "0",  # ... but for no longer than it takes to know the codecs
    "correct_ts_overflow": "0",  # times that wrap are the rules' to judge
}
_WITH_PARAMETERS: Final = frozenset({"h264", "hevc", "vvc", "mpeg1video", "mpeg2video", "mpeg4", "vc1", "av1"})
"""Codecs of which libavformat can tell whether a packet carries the decoder's parameters (extract_extradata)."""


class Kind(StrEnum):
    """The kind of a track."""

    VIDEO = "video"
    AUDIO = "audio"
    DATA = "data"


class Fault(StrEnum):
    """A fault of the bytes themselves."""

    SYNC_LOST = "sync lost"
    """MPEG-TS: no sync byte where a packet should begin."""

    PARTIAL_PACKET = "partial packet"
    """MPEG-TS: the segment does not end with a whole packet."""

    DAMAGED_PACKET = "damaged packet"
    """MPEG-TS: a packet is marked as damaged by a receiver before, or its adaptation field is too long."""

    BAD_TABLE = "bad table"
    """MPEG-TS: the check sum of a program table is wrong."""

    SCRAMBLED = "scrambled"
    """MPEG-TS: encrypted packets."""

    LOST_INSIDE = "counter jumps inside"
    """MPEG-TS: a continuity counter jumps within the segment. MP4: fragment numbers do not increase."""

    LOST_AT_SEAM = "counter jumps at the seam"
    """The same, from the segment before to this one."""

    BAD_BOX = "bad box"
    """MP4: a box makes no sense, or does not end with the segment."""

    TOO_MANY_SAMPLES = "too many samples"
    """MP4: the fragments announce more samples than a segment can have."""

    NOT_FRAGMENTED = "not fragmented"
    """MP4: an ordinary file, which nobody can decode while it is being written, or a compressed ``moov``."""

    UNREADABLE = "unreadable"
    """The segment has tables, and libavformat finds no track in it all the same."""

    NO_TIME = "fragment without time"
    """MP4: a fragment without the decoding time of its first sample (tfdt)."""


@dataclass(slots=True)
class Track:
    """One track of one segment, filled while its packets pass. Times are in ticks of ``1 / hz`` seconds.

    Attributes:
        name: the same in all segments.
        wrap: after how many ticks times begin again at 0; ``None``: never.
        samples: how many samples (pictures, frames of sound) begin in the segment.
        first_dts, last_dts: decoding time of the first and the last of them.
        first_pts: presentation time of the first.
        due: when the next sample is due, for sound, whose frames say how long they are.
        frame: how long one of its frames is, where ``due`` is known.
        slack: by how much samples inside the segment were off their due time, at most.
        pause: the longest time without a frame inside the segment, or in which frames come twice.
        steps: distances between the decoding times inside the segment, and how often each occurred.
        backwards: how often the decoding time did not increase inside the segment.
        key: whether the first picture can be decoded without any before it; ``None`` for other kinds.
        parameters: whether a decoder's parameters stand with the first picture; ``None``: not to be told.
        cut_in: the segment begins in the middle of a sample, which no demuxer of this segment alone returns.
    """

    name: str
    kind: Kind
    codec: str
    hz: int
    wrap: int | None = None
    samples: int = 0
    first_dts: int | None = None
    last_dts: int | None = None
    first_pts: int | None = None
    due: int | None = None
    frame: int = 0
    slack: int = 0
    pause: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    backwards: int = 0
    key: bool | None = None
    parameters: bool | None = None
    cut_in: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether its samples follow one another; subtitles and data come when they come."""
        return self.kind is not Kind.DATA

    def since(self, later: int, earlier: int) -> int:
        """Ticks from one time to another, over a wrap if that is the shorter way."""
        if self.wrap is None:
            return later - earlier
        half = self.wrap // 2
        return (later - earlier + half) % self.wrap - half

    def add(self, dts: int, pts: int, duration: int) -> None:
        """Take a sample with a time.

        Args:
            duration: how long it is; 0 if it does not say.
        """
        if self.last_dts is None:
            self.first_dts, self.first_pts = dts, pts
        else:
            step = self.since(dts, self.last_dts)
            self.backwards += step <= 0
            if step > 0 and (step in self.steps or len(self.steps) < MAX_STEPS):
                self.steps[step] += 1
            if self.due is not None:
                self.slack = max(self.slack, abs(self.since(dts, self.due)))
                self.pause = max(self.pause, self.slack)
        self.last_dts, self.due = dts, None
        if self.kind is Kind.AUDIO and duration > 0:
            if self.frame and duration > 2 * self.frame:  # muxers of MP4 stretch the sample before a pause
                self.pause = max(self.pause, duration - self.frame)
            else:
                self.frame = duration
            self.due = dts + duration


@dataclass(frozen=True, slots=True)
class Picture:
    """The result of decoding a segment's first picture from this segment alone.

    Attributes:
        decoded: there is one, without errors.
        late_s: by how many seconds of media it comes after the segment's first packet.
        key: the decoder calls it a keyframe or an intra-coded picture.
        clock_ms: the time that the test source's clock in it shows, in milliseconds since 1970.
        refreshes: there is none, and nothing is wrong with that: pictures are refreshed bit by bit, over more than
            this segment.
    """

    decoded: bool
    error: str = ""
    late_s: float = 0.0
    key: bool = False
    clock_ms: int | None = None
    refreshes: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """The contents of one segment.

    Attributes:
        tracks: those with samples, and of video and sound also those that are only announced.
        tables: the container's own tables (PAT and PMT, ``moov``) stand before the first sample.
        faults: those of the bytes, and how often each occurs.
        picture: the result of decoding the first one; ``None`` if it was not decoded.
        producer_us: when its first frame was captured, according to its publisher, in microseconds since 1970.
        unread: why nothing is known of its tracks; empty if they were read.
        is_part: it is longer than :data:`MAX_BYTES`; only its beginning was looked into.
    """

    container: Container = Container.OTHER
    tracks: tuple[Track, ...] = ()
    tables: bool = False
    faults: Mapping[Fault, int] = field(default_factory=dict)
    picture: Picture | None = None
    producer_us: int | None = None
    unread: str = ""
    is_part: bool = False

    @property
    def ends_whole(self) -> bool:
        """Its bytes were read up to the end, which is that of a packet or box."""
        return not self.is_part and not self.faults.keys() & {Fault.PARTIAL_PACKET, Fault.BAD_BOX}

    @property
    def lead(self) -> Track | None:
        """The track that gives the segment its time: its first video track, else its first audio track."""
        timed = [track for track in self.tracks if track.first_dts is not None and track.is_timed]
        return min(timed, key=lambda track: track.kind is not Kind.VIDEO, default=None)


@cache
def has_pyav() -> bool:
    return importlib.util.find_spec("av") is not None


class SegmentBytes:
    """A segment's bytes as they arrive: its first :data:`MAX_BYTES`, if it is media; of anything else only the size."""

    def __init__(self) -> None:
        self.size = 0
        self._kept = bytearray()
        self._container: Container | None = None

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.size += len(chunk)
        if self._container is None or self._container in FORMATS:
            self._kept += chunk[: MAX_BYTES - len(self._kept)]
        if self._container is None and self.size >= SNIFF_BYTES:
            self._container = sniff(self._kept)
            if self._container not in FORMATS:
                self._kept = bytearray()

    def take(self) -> tuple[Container, bytes]:
        """Return the container and the bytes that were kept. Call it once."""
        kept, self._kept = bytes(self._kept), bytearray()
        return self._container or sniff(kept), kept


@dataclass(slots=True)
class _Scan:
    """The findings of a walk over the packets or boxes of a segment.

    Attributes:
        tables: the segment has tables of its own; of MP4: before the first fragment.
        prefix: the tables of a segment before, for one that has none.
        early: PIDs with packets before the tables.
        cut: PIDs whose first packet continues a sample of the segment before.
        is_readable: it has tables, or a segment before has; without tables of MPEG-TS, a demuxer guesses.
    """

    faults: Counter[Fault]
    tables: bool = False
    prefix: bytes = b""
    is_readable: bool = True
    early: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)


class MediaReader:
    """Reads the segments of one channel, in order: counters and tables go on from segment to segment."""

    def __init__(self) -> None:
        self._continuity = Continuity()
        self._tables = b""
        self._init = b""
        self._number: int | None = None

    def read(self, container: Container, data: bytes, *, follows: bool, whole: bool, decode: bool) -> Media:
        """Look into a segment.

        Args:
            data: its bytes, up to :data:`MAX_BYTES`.
            follows: the whole segment before it was read, and it is the next one.
            whole: it was not cut short; otherwise it may end anywhere, and no picture is decoded.
        """
        if container not in FORMATS:
            return Media(container)
        is_part = len(data) >= MAX_BYTES
        whole = whole and not is_part
        if container is Container.MPEGTS:
            scan, producer_us = self._scan_packets(data, follows=follows, whole=whole), read_temi(data)
        else:
            scan, producer_us = self._scan_boxes(data, follows=follows, whole=whole), read_prft(data)
        unread = _unread(scan)
        found: dict[int, Track] = {}
        picture: Picture | None = None
        if not unread:
            found, picture, unread = _demux(scan.prefix + data, container, decode=decode and whole)
            if picture is not None and scan.prefix and container is Container.FMP4:
                picture = replace(picture, decoded=False, error="it has no init segment", refreshes=False)
            if unread and whole and (container is Container.FMP4 or scan.tables or scan.prefix):
                scan.faults[Fault.UNREADABLE] += 1
        leads = {ident for ident, track in found.items() if track.kind is Kind.VIDEO and track.samples}
        leads = leads or {ident for ident, track in found.items() if track.kind is Kind.AUDIO}
        for ident in scan.cut & found.keys():
            track = found[ident]
            track.cut_in, track.key, track.parameters = True, False, None
        if is_part:
            self._continuity.reset()
            self._number = None
        # A bit of sound may come before the tables.
        tables = scan.tables and not scan.early & leads
        return Media(container, tuple(found.values()), tables, dict(scan.faults), picture, producer_us, unread, is_part)

    def _scan_packets(self, data: bytes, *, follows: bool, whole: bool) -> _Scan:
        if not follows:
            self._continuity.reset()
        scan, tables, own = _Scan(Counter()), ProgramTables(), bytearray()
        met: set[int] = set()
        payloads = end = 0
        for packet in ts_packets(data):
            scan.faults[Fault.SYNC_LOST] += packet.start != end
            end = packet.start + PACKET_BYTES
            pid = packet.pid
            if pid == NULL_PID:
                continue
            if packet.is_damaged:
                scan.faults[Fault.DAMAGED_PACKET] += 1
                continue
            step = self._continuity.feed(packet)
            if step is Step.LOST:
                scan.faults[Fault.LOST_INSIDE if pid in met else Fault.LOST_AT_SEAM] += 1
            if step is Step.REPEATED or not packet.has_payload:
                continue
            payloads += 1
            if packet.is_scrambled:
                scan.faults[Fault.SCRAMBLED] += 1
            elif tables.carries(pid):
                if not tables.is_complete:
                    own += packet.data
                tables.feed(packet)
            else:
                if pid not in met and not packet.is_start:
                    scan.cut.add(pid)
                if not tables.is_complete:
                    scan.early.add(pid)
            met.add(pid)
        if whole and end < len(data):
            scan.faults[Fault.PARTIAL_PACKET if data[end] == SYNC else Fault.SYNC_LOST] += 1
        if 2 * scan.faults[Fault.SCRAMBLED] < payloads:  # a bit is wrong in some of them
            scan.faults[Fault.DAMAGED_PACKET] += scan.faults.pop(Fault.SCRAMBLED, 0)
        scan.faults[Fault.BAD_TABLE] += tables.damaged
        scan.faults = +scan.faults
        scan.tables = tables.is_complete
        if scan.tables:
            self._tables = bytes(own)
        else:
            scan.prefix = self._tables
        return scan

    def _scan_boxes(self, data: bytes, *, follows: bool, whole: bool) -> _Scan:
        faults: Counter[Fault] = Counter()
        ends = [box.end for box in boxes(data) if box.kind.isascii()]
        faults[Fault.BAD_BOX] += whole and ends[-1:] != [len(data)]
        init, parts = init_segment(data), list(fragments(data))
        is_huge = has_huge_track(data)
        faults[Fault.BAD_BOX] += is_huge
        faults[Fault.NOT_FRAGMENTED] += has_sample_table(data)
        faults[Fault.TOO_MANY_SAMPLES] += fragment_samples(data) > MAX_SAMPLES
        numbers = [part.number for part in parts]
        # A segment with an init segment is a file of its own, which may count anew.
        if self._number is not None and follows and not init and numbers and numbers[0] <= self._number:
            faults[Fault.LOST_AT_SEAM] += 1
        faults[Fault.LOST_INSIDE] += sum(later <= earlier for earlier, later in pairwise(numbers))
        faults[Fault.NO_TIME] += sum(not part.has_time for part in parts)
        self._number = numbers[-1] if numbers else self._number
        if not (faults[Fault.NOT_FRAGMENTED] or is_huge):
            self._init = init or self._init
        return _Scan(
            +faults, bool(tracks(init)), b"" if init else self._init, is_readable=bool(self._init) and not is_huge
        )


def _unread(scan: _Scan) -> str:
    """Why a segment is not demuxed; nothing if it can be."""
    if Fault.TOO_MANY_SAMPLES in scan.faults:
        return "too many samples"
    if Fault.NOT_FRAGMENTED in scan.faults:
        return "an ordinary MP4 file"
    if Fault.SCRAMBLED in scan.faults:
        return ENCRYPTED
    if not scan.is_readable:
        return NO_INIT
    return "" if has_pyav() else NEEDS_PYAV


def _demux(data: bytes, container: Container, *, decode: bool) -> tuple[dict[int, Track], Picture | None, str]:
    """The tracks by PID or number, the first picture, and why there are no tracks."""
    from av.error import FFmpegError

    found: dict[int, Track] = {}
    first: _FirstPicture | None = None
    error = "no tracks"
    try:
        with open_segment(io.BytesIO(data), container, _OPTIONS) as source:
            streams = {stream.index: stream for stream in list(source.streams)[:MAX_TRACKS]}
            for stream in streams.values():
                found[stream.id] = _track(stream, WRAP if container is Container.MPEGTS else None)
            if decode and source.streams.video and source.streams.video[0].codec_context is not None:
                first = _FirstPicture(source.streams.video[0])
            for packet in demuxed(source, list(streams.values())):
                if packet.size:
                    _add(found[packet.stream.id], packet)
                if first is not None and packet.stream is first.stream:
                    first.add(packet)
    except (FFmpegError, NotMedia, ValueError) as problem:  # the packets before it count
        error = reason(problem)
    found = {ident: track for ident, track in found.items() if track.samples or track.is_timed}
    return found, None if first is None else first.picture, "" if found else error


def _track(stream: Stream, wrap: int | None) -> Track:
    kind = Kind(stream.type) if stream.type in list(Kind) else Kind.DATA
    context, base = stream.codec_context, stream.time_base
    codec = "unknown" if context is None else context.codec.canonical_name
    name = f"{kind} {stream.id:#x}" if wrap else f"{kind} {stream.id}"
    return Track(name, kind, codec, max(1, round(1 / base)) if base else 1, wrap)


def _add(track: Track, packet: AnyPacket) -> None:
    if not track.samples and track.kind is Kind.VIDEO:
        track.key, track.parameters = packet.is_keyframe, _has_parameters(packet, track.codec)
    track.samples += 1
    dts = packet.pts if packet.dts is None else packet.dts
    if dts is not None:
        pts = dts if packet.pts is None else packet.pts
        if track.wrap is not None:
            dts, pts = dts % track.wrap, pts % track.wrap
        track.add(dts, pts, packet.duration or 0)


def _has_parameters(packet: AnyPacket, codec: str) -> bool | None:
    """Whether a packet carries the decoder's parameters, or they stand in the container."""
    from av import Packet
    from av.bitstream import BitStreamFilterContext

    if codec not in _WITH_PARAMETERS:
        return None
    extradata = packet.stream.codec_context.extradata
    if not is_mpegts(packet.stream):
        return bool(extradata)
    if codec == "h264":
        return {Unit.SPS, Unit.PPS} <= set(map(unit_type, h264_units(packet)))
    parts = BitStreamFilterContext("extract_extradata", packet.stream).filter(Packet(bytes(packet)))
    return any(part.has_sidedata("new_extradata") for part in parts)


class _FirstPicture:
    """Decodes a segment's first picture from its packets."""

    def __init__(self, stream: VideoStream) -> None:
        stream.codec_context.thread_count = 1
        self.stream = stream
        self.picture = Picture(False, "no picture comes out of the decoder")
        self._packets = 0
        self._begins: int | None = None
        self._is_done = False

    def add(self, packet: AnyPacket) -> None:
        """Take the next packet of the stream; an empty one stands for the end."""
        from av.error import FFmpegError

        if self._is_done:
            return
        if self._packets == 0:
            self._begins = packet.pts
            # The decoder holds pictures back until the last strip of them is fresh.
            is_h264 = self.stream.codec_context.name == "h264"
            refreshes = is_h264 and packet.is_keyframe and Unit.IDR not in map(unit_type, h264_units(packet))
            self.picture = replace(self.picture, refreshes=refreshes)
        self._packets += 1
        try:
            frame = next(iter(cast("list[VideoFrame]", packet.decode())), None)
        except (FFmpegError, ValueError) as problem:
            self.picture, self._is_done = Picture(False, reason(problem)), True
            return
        if frame is not None:
            self.picture = self._of(frame)
        self._is_done = frame is not None or self._packets >= MAX_PICTURE_PACKETS

    def _of(self, frame: VideoFrame) -> Picture:
        from av.video.frame import PictureType

        late_s = 0.0
        if self._begins is not None and frame.pts is not None and self.stream.time_base:
            late_s = float((frame.pts - self._begins) * self.stream.time_base)
        key = bool(frame.key_frame) or PictureType(frame.pict_type) is PictureType.I
        if frame.is_corrupt:
            return Picture(False, "the first picture is damaged", late_s, key)
        return Picture(True, "", late_s, key, _clock(frame))


def _clock(frame: VideoFrame) -> int | None:
    """The time that the test source drew into the picture."""
    is_plain = frame.format.name.startswith("yuv") and frame.format.components[0].bits == 8
    plane = (frame if is_plain else frame.reformat(format="gray")).planes[0]
    pixels, width = memoryview(plane), plane.line_size
    return read_clock(lambda x, y: pixels[y * width + x], frame.width, frame.height)
