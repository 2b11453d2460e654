"""Segments in MPEG-TS and in fragmented MP4: packets in, bytes out, each segment readable by itself.

libavformat writes the transport packets and the init segments. These things are done here, because they go on from
segment to segment, or because libavformat would hold packets back:

- MPEG-TS: continuity counters, tables at the start of each segment, and the interleaving of streams;
- MP4: the fragments (``moof`` and ``mdat``), and the samples of text (:mod:`tricklecast.publisher.media.texts`).

Numbers of sections refer to ISO/IEC 13818-1 (MPEG-TS) and ISO/IEC 14496-12 (MP4).
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tricklecast.publisher.media.texts import TEXT_CODECS, TextTrack, is_text
from tricklecast.trickle import wire
from tricklecast.trickle.media import containers
from tricklecast.trickle.media.clock import prft_box, temi_packet
from tricklecast.trickle.media.containers import PACKET_BYTES, PAT_PID, SYNC, TsPacket, box, crc32, full_box, ts_packets
from tricklecast.trickle.media.timeline import CLOCK_HZ, ticks
from tricklecast.trickle.pyav import Sink, codec_name, copied, new_decoder, packet_errors

if TYPE_CHECKING:
    from av import Packet
    from av.bitstream import BitStreamFilterContext
    from av.container import OutputContainer
    from av.stream import Stream

    Streams: TypeAlias = Mapping[int, Stream]
    """The streams of one source, by the numbers under which their packets are added."""

ContainerName: TypeAlias = Literal["mpegts", "fmp4"]


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a packet, in 90 kHz ticks of the output.

    Attributes:
        captured_us: the wall clock at its capture, in microseconds of Unix time. It is given for the first packet of
            the leading stream in each segment, and written in front of that packet.
    """

    pts: int
    dts: int
    captured_us: int | None = None


def _filter(stream: Stream, description: str | None) -> BitStreamFilterContext | None:
    from av.bitstream import BitStreamFilterContext

    return None if description is None else BitStreamFilterContext(description, stream)


# MPEG-TS.

FIRST_PID: Final = 0x100
"""The PID of the first stream; the others follow. It is libavformat's own choice, made explicit because the time in
front of the first picture needs it."""

TS_CODECS: Final = frozenset(
    {"h264", "hevc", "vvc", "mpeg1video", "mpeg2video", "mpeg4", "cavs", "dirac", "vc1", "jpeg2000"}
    | {"aac", "aac_latm", "mp1", "mp2", "mp3", "ac3", "eac3", "dts", "truehd", "opus", "s302m", "pcm_bluray"}
    | {"dvb_subtitle", "dvb_teletext", "klv", "timed_id3", "scte_35"}
)
"""Codecs with a stream type or descriptor of their own in MPEG-TS. libavformat would write any other one as private
data, which no decoder recognises."""

UNPLAYABLE_IN_TS: Final = frozenset({"opus"})
"""Codecs that MPEG-TS carries and hardly any player takes there: neither hls.js nor Apple's."""

# MP4 and Matroska keep the parameter sets outside the stream; MPEG-TS has only the stream. libavformat's muxer puts
# them before IDR frames by itself, but a keyframe may also be a recovery point (open GOP), and begin a segment.
_TS_FILTERS: Final = {
    "h264": "h264_mp4toannexb,dump_extra=freq=keyframe",
    "hevc": "hevc_mp4toannexb,dump_extra=freq=keyframe",
    "vvc": "vvc_mp4toannexb,dump_extra=freq=keyframe",
    "mpeg4": "dump_extra=freq=keyframe",
}

_TS_OPTIONS: Final = {
    "mpegts_copyts": "1",  # the time line is made here, and must not be moved
    "avoid_negative_ts": "disabled",
    "flush_packets": "1",  # each packet leaves at once
    "pes_payload_size": "0",  # at most 170 bytes of sound are held back until there is more of it
    "omit_video_pes_length": "0",  # a reader that knows the length of a picture need not wait for the next one
}

_CUES: Final = "scte_35"
"""Cues for the insertion of advertisements: sections (SCTE 35), which libavformat reads, and cannot write."""

TELETEXT: Final = "dvb_teletext"
"""Pages of text and subtitles (EN 300 472). PyAV has no decoder of it, and so makes no copy of such a stream."""

_TELETEXT_HEAD: Final = 31
"""Bytes of stuffing that make the head of each of its packets 45 bytes long, as receivers expect it."""

_PCR: Final = 0x10
_PCR_BYTES: Final = 6
_PTS: Final = (1 << 33) - 1


class MpegTs:
    """MPEG-TS over all segments: continuity counters and the version of the tables go on from muxer to muxer.

    Attributes:
        content_type: media type of its segments.
        carried: codecs that it can carry, by the names that libavcodec gives them.
    """

    name = "MPEG-TS"
    content_type = wire.MPEG_TS
    carried = TS_CODECS

    def __init__(self) -> None:
        self._counters: dict[int, int] = {}
        self._pids: dict[int, int] = {}  # by the numbers of streams; they stay where some streams are left out
        self._version = -1

    def muxer(self, streams: Streams, lead: int) -> Muxer:
        """Write segments of these streams from now on; counters go on from the muxer before.

        Args:
            streams: of one source; the container carries all of them.
            lead: the number of the stream at whose packets segments begin.
        """
        self._version = (self._version + 1) % 32
        for track in streams:
            self._pids.setdefault(track, FIRST_PID + len(self._pids))
        pids = {track: self._pids[track] for track in streams}
        return _TsMuxer(streams, lead, pids, self._counters, self._version)


class _TsMuxer:
    """Gives each stream a writer of its own, and puts tables of all streams in place of the writers' own.

    libavformat's muxer of several streams brings their packets in order: it holds a picture back until later sound has
    come. Measured with 25 pictures a second beside AAC at 48 kHz: 31 ms on average, 40 ms at most. Beside a track that
    is silent, a picture would wait for seconds.
    """

    def __init__(
        self, streams: Streams, lead: int, pids: Mapping[int, int], counters: dict[int, int], version: int
    ) -> None:
        self._streams = streams
        self._lead = lead
        self._counters = counters
        # Receivers read tables again only if they have another version (section 2.4.4.5).
        self._options = {**_TS_OPTIONS, "tables_version": str(version)}
        self._pids = pids
        self._cues = {self._pids[track] for track, stream in streams.items() if codec_name(stream) == _CUES}
        self._texts = {self._pids[track]: _language(s) for track, s in streams.items() if codec_name(s) == TELETEXT}
        self._filters = {
            track: _filter(stream, _TS_FILTERS.get(codec_name(stream))) for track, stream in streams.items()
        }
        self._writers: dict[int, _TsWriter] = {}
        self._tables: list[TsPacket] = []
        self._needs_tables = True
        self._time: bytes | None = None
        self.left_out = 0  # the stream itself describes its packets
        self._damaged: set[int] = set()  # PIDs of which a damaged packet is being written

    def add(self, track: int, packet: Packet[Stream], times: Times) -> bytes:
        """Take a packet, which is changed; the first one begins a segment.

        Args:
            packet: each stream's come in decoding order.

        Returns:
            The bytes that can be sent now.

        Raises:
            OSError: the packet does not fit (PyAV's ``FFmpegError``, too).
        """
        if not self._writers:
            self._writers = {
                number: _TsWriter({number: stream}, self._pids, self._options)
                for number, stream in self._streams.items()
                if self._pids[number] not in self._cues and self._pids[number] not in self._texts
            }
            self._needs_tables, self._time = True, None
        if times.captured_us is not None:
            self._time = temi_packet(self._pids[self._lead], times.captured_us)
        pid, data = self._pids[track], b""
        if pid in self._cues:
            shift = 0 if packet.pts is None else times.pts - ticks(packet.pts, packet.time_base)
            self._tables = self._tables or self._tables_with(track, packet)
            return self._edited(track, _section_packets(pid, _moved_cue(bytes(packet), shift)))
        if packet.is_corrupt:
            self._damaged.add(pid)
        if pid in self._texts:
            self._tables = self._tables or self._tables_with(track, packet)
            return self._edited(track, _text_packets(pid, times.pts, bytes(packet)))
        bitstream = None if _describes_itself(self._streams[track], packet) else self._filters[track]
        for part in [packet] if bitstream is None else bitstream.filter(packet):
            part.time_base = Fraction(1, CLOCK_HZ)
            part.pts, part.dts, part.duration = times.pts, times.dts, 0
            self._tables = self._tables or self._tables_with(track, part)
            data += self._writers[track].write(track, part)
        return self._edited(track, data)

    def end(self, *, last: bool) -> bytes:
        """End the segment; returns the rest of it.

        Args:
            last: no segment of these streams follows, so nothing may be kept for one.
        """
        # A writer keeps sound of less than 170 bytes until there is more of it: the segment's last comes now.
        data = b"".join(self._edited(track, writer.close()) for track, writer in self._writers.items())
        self._writers = {}
        return data

    def _tables_with(self, track: int, packet: Packet[Stream]) -> list[TsPacket]:
        """The tables that name all streams, as libavformat writes them in front of a packet."""
        from av import Packet

        copy: Packet[Stream] = Packet(bytes(packet))
        copy.time_base, copy.pts, copy.dts, copy.is_keyframe = packet.time_base, packet.pts, packet.dts, True
        everything = _TsWriter(self._streams, self._pids, self._options)
        data = everything.write(track, copy) + everything.close()
        tables = [part for part in ts_packets(data) if part.pid not in self._pids.values()]
        return [_announcing(self._cues, self._texts, part) for part in tables]

    def _edited(self, track: int, data: bytes) -> bytes:
        """The bytes of one writer as a part of the whole."""
        is_lead = track == self._lead
        parts: list[TsPacket] = []
        for packet in ts_packets(data):
            if packet.pid != self._pids[track]:
                # The tables are repeated where the leading stream's writer repeats its own.
                self._needs_tables |= is_lead and packet.pid == PAT_PID
                continue
            if self._needs_tables:
                parts += self._tables
                self._needs_tables = False
            if is_lead and self._time is not None:
                parts.append(TsPacket(self._time))
                self._time = None
            parts.append(packet if is_lead else _without_clock(packet))
        data = b"".join(self._counted(packet) for packet in parts)
        self._damaged.clear()
        return data

    def _counted(self, packet: TsPacket) -> bytes:
        """Number a packet behind those before it: each packet with payload counts up its PID (section 2.4.3.3).

        Each writer counts for itself, and the tables are written once. In the middle of a unit that came damaged, the
        writer leaves a number out, so that its readers, too, see that something is missing.
        """
        counter = self._counters.get(packet.pid, -1)
        if packet.has_payload:
            if packet.pid in self._damaged and not packet.is_start:
                self._damaged.remove(packet.pid)
                counter += 1
            counter = self._counters[packet.pid] = (counter + 1) & 0x0F
        return packet.data[:3] + bytes([packet.data[3] & 0xF0 | counter & 0x0F]) + packet.data[4:]


_PARAMETERS: Final = {"h264": 7, "hevc": 33}
"""Types of units that hold the parameters of a sequence (SPS)."""

_PICTURES: Final = {"h264": range(1, 6), "hevc": range(32)}
"""Types of units that hold pictures; parameter sets come before them."""


def _describes_itself(stream: Stream, packet: Packet[Stream]) -> bool:
    """Whether a keyframe of MPEG-TS brings its parameter sets. Those of the stream's beginning may be damaged."""
    codec = codec_name(stream)
    if codec not in _PICTURES or not packet.is_keyframe or (stream.codec_context.extradata or b"")[:1] == b"\1":
        return False
    for found in re.finditer(_START_CODE + b"(?=(.))", bytes(packet), re.DOTALL):
        head = found[1][0]
        unit = head & 0x1F if codec == "h264" else head >> 1 & 0x3F
        if unit == _PARAMETERS[codec] or unit in _PICTURES[codec]:
            return unit == _PARAMETERS[codec]
    return False


class _TsWriter:
    """libavformat's muxer."""

    def __init__(self, streams: Streams, pids: Mapping[int, int], options: Mapping[str, str]) -> None:
        import av

        self._sink = Sink()
        self._muxer: OutputContainer = av.open(self._sink, mode="w", format="mpegts", container_options=dict(options))
        self._copies = {
            # Of teletext, the tables only, in which it is described afterwards.
            track: self._muxer.add_data_stream() if codec_name(stream) == TELETEXT else copied(stream, self._muxer)
            for track, stream in streams.items()
        }
        for track, copy in self._copies.items():
            copy.id = pids[track]
            _name_shape(copy)

    def write(self, track: int, packet: Packet[Stream]) -> bytes:
        """The bytes of a packet, which is changed."""
        packet.stream = self._copies[track]
        self._muxer.mux_one(packet)
        return self._sink.take()

    def close(self) -> bytes:
        """The rest."""
        self._muxer.close()
        return self._sink.take()


def _name_shape(copy: Stream) -> None:
    """Give a shape to a stream that is announced, but has not begun.

    libavformat refuses to write tables without one, though MPEG-TS does not say it: decoders find it in the stream.
    """
    context: Any = copy.codec_context
    if not _has_shape(context):
        if copy.type == "audio":
            context.sample_rate = 48_000
        else:
            context.width = context.height = 16


def _has_shape(context: Any) -> bool:
    """Whether a stream's or decoder's shape is known: sound or a picture of it was seen."""
    match context and context.type:
        case "audio":
            return bool(context.sample_rate and context.channels)
        case "video":
            return bool(context.width and context.height)
    return True


def _take_shape(copy: Stream, decoder: Any) -> None:
    """Describe a stream as its decoder does."""
    context: Any = copy.codec_context
    if copy.type == "audio":
        context.sample_rate, context.layout = decoder.sample_rate, decoder.layout
    else:
        context.width, context.height = decoder.width, decoder.height


def _look(decoder: Any, data: bytes) -> None:
    """Let a decoder find out the shape."""
    import av

    with suppress(*packet_errors()):
        decoder.decode(av.Packet(data))


def _without_clock(packet: TsPacket) -> TsPacket:
    """A packet without the clock reference (PCR, section 2.4.3.5) that every muxer writes into its first stream."""
    if not packet.has_clock:
        return packet
    data = packet.data
    return TsPacket(data[:5] + bytes([data[5] & ~_PCR]) + b"\xff" * _PCR_BYTES + data[6 + _PCR_BYTES :])


def _section_packets(pid: int, section: bytes) -> bytes:
    """A section in packets of its own (section 2.4.4); the counters are set later."""
    parts, data = [], b"\0" + section
    for at in range(0, len(data), PACKET_BYTES - 4):
        head = struct.pack(">BHB", SYNC, pid | (0 if at else 0x4000), 0x10)
        parts.append(head + data[at : at + PACKET_BYTES - 4].ljust(PACKET_BYTES - 4, b"\xff"))
    return b"".join(parts)


def _moved_cue(section: bytes, shift: int) -> bytes:
    """A cue on a time line that is moved by ``shift`` ticks (SCTE 35, pts_adjustment: 33 bits)."""
    if not shift or len(section) < 15 or crc32(section) != 0:
        return section
    field = int.from_bytes(section[4:9])
    moved = field & ~_PTS | field + shift & _PTS
    body = section[:4] + moved.to_bytes(5) + section[9:-4]
    return body + crc32(body).to_bytes(4)


def _language(stream: Stream) -> bytes:
    """The three letters of a stream's first language (ISO 639-2); ``und`` if it names none."""
    name = stream.metadata.get("language", "")[:3].encode("ascii", "replace")
    return name if len(name) == 3 else b"und"


def _text_packets(pid: int, pts: int, data: bytes) -> bytes:
    """A packet of teletext (EN 300 472, 4.2) on a time line; the counters are set later."""
    shown = pts & _PTS
    time = (
        0x21 | shown >> 29 & 0x0E,
        shown >> 22 & 0xFF,
        shown >> 14 & 0xFE | 1,
        shown >> 7 & 0xFF,
        shown << 1 & 0xFE | 1,
    )
    body = b"\x84\x80" + bytes([5 + _TELETEXT_HEAD, *time]) + b"\xff" * _TELETEXT_HEAD + data
    pes, parts, room = b"\0\0\1\xbd" + len(body).to_bytes(2) + body, [], PACKET_BYTES - 4
    for at in range(0, len(pes), room):
        part, start = pes[at : at + room], 0 if at else 0x4000
        if (short := room - len(part)) == 0:
            parts.append(struct.pack(">BHB", SYNC, pid | start, 0x10) + part)
        else:
            stuffing = bytes([short - 1, 0][:short]) + b"\xff" * (short - 2)
            parts.append(struct.pack(">BHB", SYNC, pid | start, 0x30) + stuffing + part)
    return b"".join(parts)


def _announcing(cues: set[int], texts: Mapping[int, bytes], packet: TsPacket) -> TsPacket:
    """A packet of libavformat's tables, whose PMT tells receivers what these PIDs carry.

    Args:
        cues: of advertisements (SCTE 35, 8.1).
        texts: of teletext, with their languages (EN 300 468, 6.2.43).
    """
    section = packet.payload[1 + packet.payload[0] :] if packet.is_start else b""
    if section[:1] != b"\x02" or not (cues or texts):
        return packet
    end = 3 + (int.from_bytes(section[1:3]) & 0xFFF) - 4
    at = 12 + (int.from_bytes(section[10:12]) & 0xFFF)
    info = section[12:at] + (b"\x05\x04CUEI" if cues else b"")
    streams = bytearray()
    while at + 5 <= end:
        pid, length = (
            int.from_bytes(section[at + 1 : at + 3]) & 0x1FFF,
            int.from_bytes(section[at + 3 : at + 5]) & 0xFFF,
        )
        kind, described = section[at], section[at + 5 : at + 5 + length]
        if pid in cues:
            kind = 0x86
        elif pid in texts:
            kind, described = 0x06, b"\x56\x05" + texts[pid] + b"\x09\x00"  # the initial page is 100
        streams += bytes([kind]) + section[at + 1 : at + 3] + (0xF000 | len(described)).to_bytes(2) + described
        at += 5 + length
    rest = section[3:10] + (0xF000 | len(info)).to_bytes(2) + info + bytes(streams)
    body = b"\x02" + (0xB000 | len(rest) + 4).to_bytes(2) + rest
    if len(body) + 5 > PACKET_BYTES - 4:  # a table that needs more packets stays as it is
        return packet
    return TsPacket(_section_packets(packet.pid, body + crc32(body).to_bytes(4)))


# Fragmented MP4.

MP4_CODECS: Final = frozenset(
    {"h264", "hevc", "av1", "vp9", "mpeg1video", "mpeg2video", "mpeg4"}
    | {"aac", "mp2", "mp3", "ac3", "eac3", "opus", "flac", "alac"}
    | TEXT_CODECS
)
"""Codecs that MP4 has a registered description for, and that libavformat can describe from the beginning of a stream.
Text becomes a track in MP4's own form. Subtitles that are pictures are not among them: MP4 has no form for these."""

MAX_FRAGMENT: Final = CLOCK_HZ // 5
"""With video, a fragment is a frame, and the sound since the frame before; without, 200 ms."""

MAX_WAIT: Final = CLOCK_HZ
"""The first segment waits this long, in ticks, for a track that only its first packet can describe (AC-3).

A segment's first fragment waits :data:`MAX_FRAGMENT` at most for packets of each track."""

_MP4_OPTIONS: Final = {
    "movflags": "empty_moov+default_base_moof+delay_moov",
    "use_editlist": "0",  # a reader that joins later must not skip the beginning of its media
    "video_track_timescale": str(CLOCK_HZ),
}

# MP4 needs these codecs in another form than other containers; a filter passes on packets that have it already.
_MP4_FILTERS: Final = {"aac": "aac_adtstoasc", "vp9": "vp9_superframe", "av1": "av1_metadata=td=remove"}
_ANNEX_B: Final = {"h264": "extract_extradata", "hevc": "extract_extradata"}
_NEED_EXTRADATA: Final = frozenset({"h264", "hevc", "av1", "mpeg4", "aac", "opus", "flac", "alac"})
_NEED_PACKET: Final = frozenset({"ac3", "eac3"})
_TAGS: Final = {"hevc": "hvc1"}
"""Names of tracks that differ from libavformat's choice: Apple's players take no ``hev1``."""

_START_CODE: Final = b"\0\0\1"

# Flags of tfhd (section 8.8.7), trun (8.8.8) and of a sample (8.8.3.1).
_BASE_IS_MOOF: Final = 0x020000
_TRUN_FLAGS: Final = 0x000001 | 0x000100 | 0x000200 | 0x000400 | 0x000800  # data offset; then, of each sample, all four
_SYNC: Final = 0x02000000
_NOT_SYNC: Final = 0x01010000


class FragmentedMp4:
    """Fragmented MP4 over all segments, each with its own init segment; fragments are counted from muxer to muxer.

    The first fragment of a segment has something of each track: VLC 3 takes the time of a track that is missing there
    for zero, and then drops all its sound as too late. So the sound behind the last picture of a segment goes into the
    next one, with the picture that begins it, and costs no time; where there was none, the picture waits for it.

    Nothing waits for text: all that a segment shows of it is in a fragment at its end.

    Its attributes are those of :class:`MpegTs`, and its muxers have the same methods.
    """

    name = "MP4"
    content_type = wire.MP4
    carried = MP4_CODECS

    def __init__(self) -> None:
        self._numbers = count(1)
        self._texts: dict[Stream, TextTrack] = {}  # cues outlive a muxer, and no source

    def muxer(self, streams: Streams, lead: int) -> Muxer:
        """As :meth:`MpegTs.muxer`."""
        shown = {track: stream for track, stream in streams.items() if is_text(stream)}
        self._texts = {stream: self._texts.get(stream) or TextTrack.of(stream) for stream in shown.values()}
        media = {track: stream for track, stream in streams.items() if track not in shown}
        texts = {track: self._texts[stream] for track, stream in shown.items()}
        return _Mp4Muxer(media, lead, self._numbers, texts)


class _Mp4Muxer:
    def __init__(self, streams: Streams, lead: int, numbers: Iterator[int], texts: Mapping[int, TextTrack]) -> None:
        self._tracks = {track: _Track(stream) for track, stream in streams.items()}
        self._texts = texts
        self._lead = self._tracks[lead]
        self._leads_video = self._lead.stream.type == "video"
        self._numbers = numbers
        self._init = b""
        self._init_of: list[bytes | None] = []
        self._is_open = False
        self._begun_at: int | None = None
        self._time: Times | None = None
        self._shown: tuple[int, int] | None = None  # begin and end of the leading track in the segment under way

    def add(self, track: int, packet: Packet[Stream], times: Times) -> bytes:
        if (text := self._texts.get(track)) is not None:
            text.add(bytes(packet), times.pts, ticks(packet.duration or 0, packet.time_base))
            return b""
        own = self._tracks[track]
        if own is self._lead:
            begin, end = self._shown or (times.pts, times.pts)
            length = min(ticks(packet.duration or 0, packet.time_base) or 1, CLOCK_HZ)
            self._shown = begin, max(end, times.pts + length)
        if self._begun_at is None:
            self._begun_at = times.dts
        if times.captured_us is not None:
            self._time = times
        own.add(packet, times)
        waited = times.dts - self._begun_at
        if not self._is_open:
            return self._flush() if self._may_open(waited) else b""
        is_whole = own is self._lead and self._leads_video
        return self._flush() if is_whole or waited >= MAX_FRAGMENT else b""

    @property
    def left_out(self) -> int:
        """Packets that came before a description of their track that can be read, and text that was too much."""
        texts = sum(text.left_out for text in self._texts.values())
        return texts + sum(track.left_out for track in self._tracks.values())

    def end(self, *, last: bool) -> bytes:
        is_kept = not last and self._is_open and self._leads_video and not self._lead.holds
        data = (b"" if is_kept else self._flush()) + self._text()
        self._is_open, self._begun_at, self._time, self._shown = False, None, None, None
        for track in self._tracks.values():
            track.end()
        return data

    def _text(self) -> bytes:
        """A fragment with all text that the segment shows."""
        if not self._is_open or self._shown is None:
            return b""
        runs: list[Run] = [
            (text.number, [Sample(data, begin, 0, end - begin, is_keyframe=True) for begin, end, data in samples])
            for text in self._texts.values()
            if (samples := text.take(*self._shown))
        ]
        return fragment(next(self._numbers), runs) if runs else b""

    def _may_open(self, waited: int) -> bool:
        """Whether the first fragment of a segment may be written.

        Args:
            waited: ticks since its first packet.
        """
        if waited >= MAX_WAIT:
            return True
        tracks = self._tracks.values()
        if not all(track.is_described for track in tracks):
            return False
        if waited >= MAX_FRAGMENT:
            return True
        return self._leads_video and all(track.holds or track.is_silent for track in tracks)

    def _flush(self) -> bytes:
        """All packets that are held."""
        parts = [] if self._is_open else [self._init_segment()]
        runs = [run for track in self._tracks.values() if (run := track.take())]
        self._begun_at = None
        if not runs:
            return b""
        if self._time is not None and self._time.captured_us is not None and self._lead.scale:
            shown = self._lead.scaled(self._time.pts)
            parts.append(prft_box(self._lead.number, self._time.captured_us, shown))
            self._time = None
        self._is_open = True
        return b"".join([*parts, *(fragment(next(self._numbers), one) for one in self._divided(runs))])

    def _divided(self, runs: list[Run]) -> list[list[Run]]:
        """The runs of one fragment; of two, if a key picture begins them: a player takes that one alone.

        Not where the times of an input are guessed, so that it lasts no time: libavformat finds fewer pictures then.
        """
        track, pictures = next((run for run in runs if run[0] == self._lead.number), (0, []))
        if not self._leads_video or len(pictures) < 2 or not pictures[0].is_keyframe or not pictures[0].duration:
            return [runs]
        return [[(track, pictures[:1]) if run[0] == track else run for run in runs], [(track, pictures[1:])]]

    def _init_segment(self) -> bytes:
        """The init segment; made anew when the description of a track has changed."""
        if self._described() != self._init_of:
            for track in self._tracks.values():
                track.check()
            described = self._described()
            if described != self._init_of and any(part is not None for part in described):
                known = [track for track in self._tracks.values() if track.is_described]
                self._init, self._init_of = _init_segment(known, self._texts.values()), described
        return self._init

    def _described(self) -> list[bytes | None]:
        return [track.extradata if track.is_described else None for track in self._tracks.values()]


def _init_segment(tracks: Sequence[_Track], texts: Iterable[TextTrack] = ()) -> bytes:
    """Let libavformat write ``ftyp`` and ``moov``, and tell the tracks their numbers: those of text are the last."""
    import av

    sink = Sink()
    with av.open(sink, mode="w", format="mp4", container_options=_MP4_OPTIONS) as muxer:
        copies = [copied(track.stream, muxer) for track in tracks]
        for track, copy in zip(tracks, copies, strict=True):
            copy.codec_context.extradata = track.extradata or None
            if tag := _TAGS.get(codec_name(track.stream)):
                copy.codec_context.codec_tag = tag
            if track.decoder is not None:
                _take_shape(copy, track.decoder)
        for text in texts:
            text.announce(muxer)
        muxer.start_encoding()
        for track, copy in zip(tracks, copies, strict=True):
            if track.first is not None:
                packet = av.Packet(track.first)
                packet.stream, packet.is_keyframe = copy, True
                packet.pts = packet.dts = 0
                muxer.mux_one(packet)
    init = containers.init_segment(sink.take())
    for track, header in zip(tracks, containers.tracks(init), strict=False):
        track.number, track.scale = header.number, header.timescale
    for number, text in enumerate(texts, tracks[-1].number + 1):
        text.number = number
    return init


@dataclass(frozen=True, slots=True)
class Sample:
    """A packet in a fragment; times are in the track's time scale.

    Attributes:
        data: its bytes.
        dts: when it is decoded.
        offset: how much later it is shown.
        duration: until the next one is decoded.
        is_keyframe: decoding can begin here.
    """

    data: bytes
    dts: int
    offset: int
    duration: int
    is_keyframe: bool


Run: TypeAlias = tuple[int, list[Sample]]
"""The number of a track, and consecutive samples of it."""


class _Track:
    """One stream, and its packets that wait to be sent.

    Attributes:
        number: in the init segment; 0 if it does not name the track.
        scale: ticks per second, likewise.
        is_silent: the last segment had nothing of it.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        # Of a stream that has not begun, only its packets tell the shape.
        self.decoder = None if _has_shape(stream.codec_context) else new_decoder(stream)
        self.extradata = stream.codec_context.extradata or b""
        self.first: bytes | None = None
        self.number = self.scale = 0
        self.left_out = 0  # packets that nobody could decode
        self._checked: bytes | None = None  # the newest description that can be read
        self._codec = codec_name(stream)
        self._is_annex_b = self._codec in _ANNEX_B and not self.extradata.startswith(b"\1")
        self._filter = _filter(stream, _ANNEX_B[self._codec] if self._is_annex_b else _MP4_FILTERS.get(self._codec))
        self._held: list[tuple[bytes, Times, bool]] = []
        self.is_silent = False
        self._came = False  # a packet, in the segment under way
        self._duration = 0
        self._last_duration = 1

    def check(self) -> None:
        """Go back to the description before, if a new one is damaged: no reader could open such an init segment."""
        if not self._held or not self.is_described or self.extradata == self._checked:
            return
        import av

        place = self.number, self.scale
        try:
            init = _init_segment([self])
            first = fragment(1, [(self.number, [Sample(self._held[0][0], 0, 0, 1, is_keyframe=True)])])
            av.open(io.BytesIO(init + first), "r", "mp4").close()
            self._checked = self.extradata
        except packet_errors():
            self.extradata, self.first = self._checked or b"", None
        self.number, self.scale = place

    @property
    def is_described(self) -> bool:
        """Whether an init segment can set up a decoder."""
        if self.decoder is not None and not _has_shape(self.decoder):
            return False
        if self._codec in _NEED_PACKET:
            return self.first is not None
        return bool(self.extradata) or self._codec not in _NEED_EXTRADATA

    @property
    def holds(self) -> bool:
        """Whether packets wait to be sent."""
        return bool(self._held)

    def end(self) -> None:
        """A segment ends."""
        self.is_silent, self._came = not self._came, False

    def add(self, packet: Packet[Stream], times: Times) -> None:
        self._came = True
        self._duration = ticks(packet.duration or 0, packet.time_base)
        if self.decoder is not None and not _has_shape(self.decoder):
            _look(self.decoder, bytes(packet))
        for part in [packet] if self._filter is None else self._filter.filter(packet):
            if part.has_sidedata("new_extradata"):
                self.extradata = bytes(part.get_sidedata("new_extradata"))
            data = length_prefixed(bytes(part)) if self._is_annex_b else bytes(part)
            if self.first is None and self._codec in _NEED_PACKET:
                self.first = data
            self._held.append((data, times, part.is_keyframe))

    def take(self) -> Run | None:
        """The waiting packets, as samples; nothing, if there is none or the init segment does not name the track.

        Those of a track that begins in the middle of a segment wait for the next one, whose init segment names it.
        """
        if not self.number:
            if not self.is_described:  # its description is damaged, or did not come
                self.left_out += len(self._held)
                self._held.clear()
            return None
        held, self._held = self._held, []
        if not held:
            return None
        starts = [times.dts for _, times, _ in held]
        if self._duration <= 0:
            self._duration = starts[-1] - starts[-2] if len(starts) > 1 else self._last_duration
        self._last_duration = self._duration
        places = [self.scaled(dts) for dts in (*starts, starts[-1] + self._duration)]
        return self.number, [
            Sample(data, begin, self.scaled(times.pts) - begin, end - begin, is_keyframe)
            for (data, times, is_keyframe), (begin, end) in zip(held, pairwise(places), strict=True)
        ]

    def scaled(self, time: int) -> int:
        return (time * self.scale + CLOCK_HZ // 2) // CLOCK_HZ


def fragment(number: int, runs: Sequence[tuple[int, Sequence[Sample]]]) -> bytes:
    """A ``moof`` box and its ``mdat``.

    Args:
        number: counts the fragments, from 1.
        runs: track numbers, each with consecutive samples, at least one.
    """
    size = len(_moof(number, runs, 0))
    data = [sample.data for _, samples in runs for sample in samples]
    return _moof(number, runs, size + 8) + box(b"mdat", *data)


def _moof(number: int, runs: Sequence[tuple[int, Sequence[Sample]]], data_at: int) -> bytes:
    tracks = []
    for track, samples in runs:
        header = full_box(b"tfhd", 0, _BASE_IS_MOOF, track.to_bytes(4))
        begin = full_box(b"tfdt", 1, 0, samples[0].dts.to_bytes(8))
        tracks.append(box(b"traf", header, begin, _trun(samples, data_at)))
        data_at += sum(len(sample.data) for sample in samples)
    return box(b"moof", full_box(b"mfhd", 0, 0, (number & 0xFFFFFFFF).to_bytes(4)), *tracks)


def _trun(samples: Sequence[Sample], data_at: int) -> bytes:
    # Version 1: offsets have a sign. None is negative here, but readers disagree on version 0 with large ones.
    entries = [
        struct.pack(
            ">IIIi", sample.duration, len(sample.data), _SYNC if sample.is_keyframe else _NOT_SYNC, sample.offset
        )
        for sample in samples
    ]
    return full_box(b"trun", 1, _TRUN_FLAGS, struct.pack(">Ii", len(samples), data_at), *entries)


def length_prefixed(stream: bytes) -> bytes:
    """H.264 or HEVC as in MP4: a length of 32 bits before each unit, instead of Annex B's start codes."""
    return b"".join(len(unit).to_bytes(4) + unit for unit in containers.nal_units(stream))


Container: TypeAlias = MpegTs | FragmentedMp4
Muxer: TypeAlias = _TsMuxer | _Mp4Muxer

CONTAINERS: Final[Mapping[ContainerName, type[Container]]] = {"mpegts": MpegTs, "fmp4": FragmentedMp4}
