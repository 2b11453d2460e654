"""MPEG-TS segments (ISO/IEC 13818-1): libavformat's muxer, and what has to go on from segment to segment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from tricklecast.publisher.media.muxer import Muxer, Sink, Times, codec_name
from tricklecast.publisher.media.timestamps import CLOCK_HZ
from tricklecast.trickle import wire
from tricklecast.trickle.media.clock import temi_packet

if TYPE_CHECKING:
    from av import Packet
    from av.bitstream import BitStreamFilterContext
    from av.container import OutputContainer
    from av.stream import Stream

PACKET_BYTES: Final = 188
FIRST_PID: Final = 0x100
"""The PID of the first stream; the others follow. libavformat's own choice, made explicit since the times need it."""

CARRIED: Final = frozenset(
    {"h264", "hevc", "vvc", "mpeg1video", "mpeg2video", "mpeg4", "cavs", "dirac", "vc1", "jpeg2000"}
    | {"aac", "aac_latm", "mp1", "mp2", "mp3", "ac3", "eac3", "dts", "truehd", "opus", "s302m", "pcm_bluray"}
    | {"dvb_subtitle", "dvb_teletext"}
)
"""Codecs with a stream type or descriptor of their own in MPEG-TS. libavformat would write any other one as private
data, which no decoder recognises."""

# MP4 and Matroska keep the parameter sets outside the stream; MPEG-TS has only the stream. libavformat's muxer puts
# them before IDR frames by itself, but a keyframe may also be a recovery point (open GOP), and begin a segment.
_FILTERS: Final = {
    "h264": "h264_mp4toannexb,dump_extra=freq=keyframe",
    "hevc": "hevc_mp4toannexb,dump_extra=freq=keyframe",
    "vvc": "vvc_mp4toannexb,dump_extra=freq=keyframe",
    "mpeg4": "dump_extra=freq=keyframe",
}

_OPTIONS: Final = {
    "mpegts_copyts": "1",  # the time line is ours, and must not be moved in each segment
    "avoid_negative_ts": "disabled",
    "flush_packets": "1",  # trickle: what is muxed leaves
    "pes_payload_size": "0",  # nor hold back sound until there is more of it
}

_SYNC: Final = 0x47
_HAS_PAYLOAD: Final = 0x10
_HAS_ADAPTATION: Final = 0x20
_PCR: Final = 0x10
_PCR_BYTES: Final = 6
_PAT: Final = 0


class MpegTs:
    """MPEG-TS over all segments: continuity counters and the tables' version go on, whatever the muxer."""

    name = "MPEG-TS"
    content_type = wire.MPEG_TS
    turns = False
    carried = CARRIED

    def __init__(self) -> None:
        self._counters = ContinuityCounters()
        self._version = -1

    def muxer(self, streams: Sequence[Stream], lead: Stream) -> Muxer:
        """As :meth:`tricklecast.publisher.media.muxer.Container.muxer`."""
        self._version = (self._version + 1) % 32
        return _TsMuxer(streams, lead, self._counters, self._version)


class _TsMuxer:
    """Gives each stream a writer of its own, and puts tables of all streams in place of the writers' own.

    A muxer of several streams would hold each packet back until the next one, of any stream, to bring them in order;
    they come in order.
    """

    def __init__(self, streams: Sequence[Stream], lead: Stream, counters: ContinuityCounters, version: int) -> None:
        self._streams = streams
        self._pids = {stream.index: FIRST_PID + number for number, stream in enumerate(streams)}
        self._lead_pid = self._pids[lead.index]
        self._counters = counters
        # Receivers read tables again only if they have another version (section 2.4.4.5).
        self._options = {**_OPTIONS, "tables_version": str(version)}
        self._filters = {stream.index: _filter(stream) for stream in streams}
        self._writers: dict[int, _Writer] = {}
        self._tables = b""
        self._needs_tables = True
        self._time: bytes | None = None

    def add(self, packet: Packet[Stream], times: Times) -> bytes:
        if not self._writers:
            self._begin()
        if times.captured_us is not None:
            self._time = temi_packet(self._lead_pid, times.captured_us)
        index = packet.stream_index
        bitstream = self._filters[index]
        data = b""
        for part in [packet] if bitstream is None else bitstream.filter(packet):
            part.time_base = Fraction(1, CLOCK_HZ)
            part.pts, part.dts, part.duration = times.pts, times.dts, 0
            self._tables = self._tables or self._tables_with(index, part)
            data += self._writers[index].write(index, part)
        return self._edited(index, data)

    def end(self) -> bytes:
        data = b"".join(self._edited(index, writer.close()) for index, writer in self._writers.items())
        self._writers = {}
        return data

    def _begin(self) -> None:
        self._writers = {stream.index: _Writer([stream], self._pids, self._options) for stream in self._streams}
        self._needs_tables, self._time = True, None

    def _tables_with(self, index: int, packet: Packet[Stream]) -> bytes:
        """The tables that name all streams, as libavformat writes them in front of a packet."""
        everything = _Writer(self._streams, self._pids, self._options)
        data = everything.write(index, _copy(packet)) + everything.close()
        return b"".join(part for part in _packets(data) if _pid(part, 0) not in self._pids.values())

    def _edited(self, index: int, data: bytes) -> bytes:
        """What a writer wrote, as a part of the whole."""
        is_lead = self._pids[index] == self._lead_pid
        parts = []
        for packet in _packets(data):
            if _pid(packet, 0) != self._pids[index]:
                # The tables are repeated where the leading stream's writer repeats its own.
                self._needs_tables |= is_lead and _pid(packet, 0) == _PAT
                continue
            if self._needs_tables:
                parts.append(self._tables)
                self._needs_tables = False
            if is_lead and self._time is not None:
                parts.append(self._time)
                self._time = None
            parts.append(packet if is_lead else _without_clock(packet))
        return self._counters.renumber(b"".join(parts))


class _Writer:
    """libavformat's muxer, for one segment of some streams."""

    def __init__(self, streams: Sequence[Stream], pids: Mapping[int, int], options: Mapping[str, str]) -> None:
        import av

        self._sink = Sink()
        self._muxer: OutputContainer = av.open(self._sink, mode="w", format="mpegts", container_options=dict(options))
        self._copies = {stream.index: self._muxer.add_stream_from_template(stream) for stream in streams}
        for stream in streams:
            copy = self._copies[stream.index]
            copy.id = pids[stream.index]
            if language := stream.metadata.get("language"):
                copy.metadata["language"] = language

    def write(self, index: int, packet: Packet[Stream]) -> bytes:
        """What can be sent, once a packet of a stream is there; the packet is changed."""
        packet.stream = self._copies[index]
        self._muxer.mux_one(packet)
        return self._sink.take()

    def close(self) -> bytes:
        """The rest."""
        self._muxer.close()
        return self._sink.take()


class ContinuityCounters:
    """Numbers the packets of consecutive segments as those of one stream.

    Every packet with a payload counts up its PID's four-bit counter (section 2.4.3.3). A muxer begins at 0, so that
    joined segments would look like lost packets, and demuxers would mark the frames around each cut as corrupt.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def renumber(self, data: bytes) -> bytes:
        """Number whole packets.

        Args:
            data: a multiple of 188 bytes, as a muxer writes them.
        """
        assert len(data) % PACKET_BYTES == 0, "a muxer writes whole packets"
        packets = bytearray(data)
        for start in range(0, len(packets), PACKET_BYTES):
            assert packets[start] == _SYNC
            flags = packets[start + 3]
            pid = _pid(packets, start)
            counter = self._last.get(pid, -1)
            if flags & _HAS_PAYLOAD:
                counter = self._last[pid] = (counter + 1) & 0x0F
            packets[start + 3] = (flags & 0xF0) | (counter & 0x0F)
        return bytes(packets)


def _packets(data: bytes) -> Iterator[bytes]:
    return (data[start : start + PACKET_BYTES] for start in range(0, len(data), PACKET_BYTES))


def _pid(data: bytes | bytearray, start: int) -> int:
    return (data[start + 1] & 0x1F) << 8 | data[start + 2]


def _copy(packet: Packet[Stream]) -> Packet[Stream]:
    from av import Packet

    copy: Packet[Stream] = Packet(bytes(packet))
    copy.time_base, copy.pts, copy.dts, copy.is_keyframe = packet.time_base, packet.pts, packet.dts, True
    return copy


def _without_clock(packet: bytes) -> bytes:
    """A packet without the clock reference (PCR, section 2.4.3.5) that every muxer writes into its first stream."""
    has_clock = packet[3] & _HAS_ADAPTATION and packet[4] and packet[5] & _PCR
    if not has_clock:
        return packet
    return packet[:5] + bytes([packet[5] & ~_PCR]) + b"\xff" * _PCR_BYTES + packet[6 + _PCR_BYTES :]


def _filter(stream: Stream) -> BitStreamFilterContext | None:
    from av.bitstream import BitStreamFilterContext

    description = _FILTERS.get(codec_name(stream))
    return BitStreamFilterContext(description, stream) if description else None
