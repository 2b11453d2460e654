"""MPEG-TS segments (ISO/IEC 13818-1): libavformat's muxer, and what has to go on from segment to segment."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from publisher.media.muxer import Muxer, Sink, Times, codec_name
from publisher.media.timestamps import CLOCK_HZ
from trickle import wire
from trickle.producer_time import temi_packet

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
    "max_interleave_delta": "1",  # packets come interleaved; never wait for a stream that is silent
}

_SYNC: Final = 0x47
_HAS_PAYLOAD: Final = 0x10


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
        """As :meth:`publisher.media.muxer.Container.muxer`."""
        self._version = (self._version + 1) % 32
        return _TsMuxer(streams, lead, self._counters, self._version)


class _TsMuxer:
    def __init__(self, streams: Sequence[Stream], lead: Stream, counters: ContinuityCounters, version: int) -> None:
        self._streams = streams
        self._lead_pid = FIRST_PID + streams.index(lead)
        self._counters = counters
        # Receivers read tables again only if they have another version (section 2.4.4.5).
        self._options = {**_OPTIONS, "tables_version": str(version)}
        self._filters = {stream.index: _filter(stream) for stream in streams}
        self._sink = Sink()
        self._muxer: OutputContainer | None = None
        self._copies: dict[int, Stream] = {}
        self._time: bytes | None = None

    def add(self, packet: Packet[Stream], times: Times) -> bytes:
        if self._muxer is None:
            self._muxer = self._begin()
        if times.captured_us is not None:
            self._time = temi_packet(self._lead_pid, times.captured_us)
        index = packet.stream_index
        bitstream = self._filters[index]
        for filtered in [packet] if bitstream is None else bitstream.filter(packet):
            filtered.stream = self._copies[index]
            filtered.time_base = Fraction(1, CLOCK_HZ)
            filtered.pts, filtered.dts, filtered.duration = times.pts, times.dts, 0
            self._muxer.mux_one(filtered)
        return self._written()

    def end(self) -> bytes:
        if self._muxer is None:
            return b""
        self._muxer.close()
        self._muxer = None
        return self._written()

    def _begin(self) -> OutputContainer:
        import av

        muxer: OutputContainer = av.open(self._sink, mode="w", format="mpegts", container_options=self._options)
        self._time = None
        for number, stream in enumerate(self._streams):
            copy = muxer.add_stream_from_template(stream)
            copy.id = FIRST_PID + number
            if language := stream.metadata.get("language"):
                copy.metadata["language"] = language
            self._copies[stream.index] = copy
        return muxer

    def _written(self) -> bytes:
        data = self._sink.take()
        if self._time is not None and (at := _find(data, self._lead_pid)) is not None:
            data = data[:at] + self._time + data[at:]
            self._time = None
        return self._counters.renumber(data)


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


def _find(data: bytes, pid: int) -> int | None:
    """Where the first packet with that PID begins."""
    return next((start for start in range(0, len(data), PACKET_BYTES) if _pid(data, start) == pid), None)


def _pid(data: bytes | bytearray, start: int) -> int:
    return (data[start + 1] & 0x1F) << 8 | data[start + 2]


def _filter(stream: Stream) -> BitStreamFilterContext | None:
    from av.bitstream import BitStreamFilterContext

    description = _FILTERS.get(codec_name(stream))
    return BitStreamFilterContext(description, stream) if description else None
