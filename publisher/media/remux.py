"""Any media that PyAV opens, remuxed without re-encoding into MPEG-TS segments that stand alone.

A segment begins at each keyframe of the first video stream (without video: every :data:`AUDIO_SEGMENT_S` seconds) with
its own program tables and, for H.264, HEVC and MPEG-4, the decoder's parameters, wherever the source keeps them.
Timestamps and continuity counters go on from segment to segment, so that joined segments are one valid stream.

Everything here blocks and runs in a worker thread (:mod:`publisher.worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from publisher.media.mpegts import ContinuityCounters
from publisher.media.source import MediaSource, reason
from publisher.media.timestamps import CLOCK_HZ, Timeline, fill_first_dts
from publisher.steps import Chunk, Cut, Step
from trickle.errors import InvalidInput

if TYPE_CHECKING:
    from av import Packet
    from av.bitstream import BitStreamFilterContext
    from av.container import OutputContainer
    from av.stream import Stream

AUDIO_SEGMENT_S: Final = 2.0
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

_MUXER: Final = {
    "mpegts_copyts": "1",  # the time line is ours, and must not be moved in each segment
    "avoid_negative_ts": "disabled",
    "flush_packets": "1",  # trickle: what is muxed leaves
    "max_interleave_delta": "1",  # packets come interleaved; never wait for a stream that is silent
}


class Remuxer:
    """Turns the packets of a source into the chunks of MPEG-TS segments.

    Args:
        source: it is closed at the end.
        name: what to call it in messages.
        warn: is told, once, about every stream that is left out.

    Raises:
        InvalidInput: MPEG-TS can carry none of its streams.
    """

    def __init__(self, source: MediaSource, name: str, warn: Callable[[str], None]) -> None:
        self._source = source
        self._name = name
        self._streams = [stream for stream in source.streams if _is_carried(stream)]
        if not any(stream.type in ("video", "audio") for stream in self._streams):
            source.close()
            raise InvalidInput(f"{name} has no video or audio that MPEG-TS can carry")
        for stream in source.streams:
            if stream not in self._streams:
                warn(f"left out: stream {stream.index} ({stream.type}, {_codec(stream)})")
        self._lead = min(self._streams, key=lambda stream: (stream.type != "video", stream.type != "audio"))
        self._filters = {stream.index: _filter_for(stream) for stream in self._streams}
        self._timeline = Timeline()
        self._counters = ContinuityCounters()

    def steps(self) -> Iterator[Step]:
        """Read, remux and cut; blocks as the source does.

        Raises:
            InvalidInput: the source broke. What was read before has been handed out.
        """
        from av.error import FFmpegError

        failure: FFmpegError | OSError | None = None
        segment: _Segment | None = None
        with closing(self._source):
            try:
                for packet in fill_first_dts(self._carried()):
                    begins = packet.stream_index == self._lead.index and packet.is_keyframe
                    pts, dts = self._timeline.stamp(packet, packet.time_base)
                    if segment is not None and self._is_over(segment, begins, dts):
                        yield from self._chunk(segment.close(), dts)
                        yield Cut()
                        segment = None
                    if segment is None:
                        segment = _Segment(self._streams, dts)
                    segment.has_lead |= packet.stream_index == self._lead.index
                    for filtered in self._filtered(packet):
                        yield from self._chunk(segment.mux(filtered, packet.stream_index, pts, dts), dts)
            except (FFmpegError, OSError) as error:
                failure = error
            if segment is not None:
                yield from self._chunk(segment.close(), None)
        if failure is not None:
            raise InvalidInput(f"reading {self._name} failed half-way: {reason(failure)}") from failure

    def _carried(self) -> Iterator[Packet[Stream]]:
        return (packet for packet in self._source.packets() if packet.stream_index in self._filters)

    def _is_over(self, segment: _Segment, keyframe: bool, dts: int) -> bool:
        if self._lead.type == "video":
            return keyframe and segment.has_lead
        return keyframe and dts - segment.begun_at >= AUDIO_SEGMENT_S * CLOCK_HZ

    def _filtered(self, packet: Packet[Stream]) -> list[Packet[Stream]]:
        bitstream = self._filters[packet.stream_index]
        return [packet] if bitstream is None else bitstream.filter(packet)

    def _chunk(self, data: bytes, dts: int | None) -> Iterator[Chunk]:
        if data:
            due_s = None if dts is None else self._timeline.elapsed_s(dts)
            yield Chunk(self._counters.renumber(data), due_s)


class _Segment:
    """A muxer that writes one segment into memory."""

    def __init__(self, streams: list[Stream], begun_at: int) -> None:
        import av

        self.begun_at = begun_at
        self.has_lead = False
        self._sink = _Sink()
        self._muxer: OutputContainer = av.open(self._sink, mode="w", format="mpegts", container_options=_MUXER)
        self._streams = {stream.index: _like(self._muxer, stream) for stream in streams}

    def mux(self, packet: Packet[Stream], index: int, pts: int, dts: int) -> bytes:
        """Add a packet; what the muxer has written since."""
        packet.stream = self._streams[index]
        packet.time_base = Fraction(1, CLOCK_HZ)
        packet.pts, packet.dts, packet.duration = pts, dts, 0
        self._muxer.mux_one(packet)
        return self._sink.take()

    def close(self) -> bytes:
        """End the segment; what the muxer still held."""
        self._muxer.close()
        return self._sink.take()


class _Sink:
    """Where a muxer writes to."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _is_carried(stream: Stream) -> bool:
    return stream.type in ("video", "audio", "subtitle") and _codec(stream) in CARRIED


def _codec(stream: Stream) -> str:
    """The codec's own name; a stream's ``name`` is that of the decoder, of which a codec may have several."""
    context = getattr(stream, "codec_context", None)
    return "unknown codec" if context is None else str(context.codec.canonical_name)


def _filter_for(stream: Stream) -> BitStreamFilterContext | None:
    from av.bitstream import BitStreamFilterContext

    description = _FILTERS.get(_codec(stream))
    return BitStreamFilterContext(description, stream) if description else None


def _like(muxer: OutputContainer, stream: Stream) -> Stream:
    copy = muxer.add_stream_from_template(stream)
    if language := stream.metadata.get("language"):
        copy.metadata["language"] = language
    return copy
