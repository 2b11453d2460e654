"""Fragmented MP4 segments, each with its own init segment, so that each stands alone.

libavformat writes the init segments: it knows how every codec is described. The fragments are written here, since its
own muxer adds up durations where the time of each fragment must be exact, and holds every frame back until the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tricklecast.publisher.media.boxes import (
    Sample,
    TrackHeader,
    fragment,
    init_segment,
    length_prefixed,
    track_headers,
)
from tricklecast.publisher.media.muxer import Muxer, Sink, Times, codec_name
from tricklecast.publisher.media.timestamps import CLOCK_HZ
from tricklecast.trickle import wire
from tricklecast.trickle.media.clock import prft_box

if TYPE_CHECKING:
    from av import Packet
    from av.bitstream import BitStreamFilterContext
    from av.stream import Stream

CARRIED: Final = frozenset(
    {"h264", "hevc", "av1", "vp9", "mpeg1video", "mpeg2video", "mpeg4"}
    | {"aac", "mp2", "mp3", "ac3", "eac3", "opus", "flac", "alac"}
)
"""Codecs that MP4 has a registered description for, and that libavformat can describe from the beginning of a stream.
Subtitles are not among them: MP4 has only forms of its own, which no live source sends."""

MAX_FRAGMENT: Final = CLOCK_HZ // 5
"""With video, a fragment is a frame, and the sound since the frame before; without, 200 ms."""

MAX_HELD: Final = CLOCK_HZ
"""How long a track's first packet is waited for, if it alone tells what the init segment must say, in ticks."""

_VIDEO_TIMESCALE: Final = 90_000

_OPTIONS: Final = {
    "movflags": "empty_moov+default_base_moof+delay_moov",
    "use_editlist": "0",  # a reader that joins later must not skip the beginning of what it gets
    "video_track_timescale": str(_VIDEO_TIMESCALE),
}

# What MP4 wants otherwise than other containers; a filter passes on what is right already.
_FILTERS: Final = {
    "aac": "aac_adtstoasc",
    "vp9": "vp9_superframe",
    "av1": "av1_metadata=td=remove",
}
_ANNEX_B: Final = {"h264": "extract_extradata", "hevc": "extract_extradata"}
_NEED_EXTRADATA: Final = frozenset({"h264", "hevc", "av1", "mpeg4", "aac", "opus", "flac", "alac"})
_TAGS: Final = {"hevc": "hvc1"}
"""What tracks are called where libavformat would choose another name: Apple's players take no ``hev1``."""

_NEED_PACKET: Final = frozenset({"ac3", "eac3"})


class FragmentedMp4:
    """Fragmented MP4 over all segments: fragments are counted on, whatever the muxer."""

    name = "MP4"
    content_type = wire.MP4
    turns = True
    carried = CARRIED

    def __init__(self) -> None:
        self._number = 0

    def muxer(self, streams: Sequence[Stream], lead: Stream) -> Muxer:
        """As :meth:`tricklecast.publisher.media.muxer.Container.muxer`."""
        return _Mp4Muxer(streams, lead, self._next_number)

    def _next_number(self) -> int:
        self._number += 1
        return self._number


class _Mp4Muxer:
    def __init__(self, streams: Sequence[Stream], lead: Stream, next_number: Callable[[], int]) -> None:
        self._tracks = {stream.index: _Track(stream) for stream in streams}
        self._lead = self._tracks[lead.index]
        self._next_number = next_number
        self._init = _InitSegment(list(self._tracks.values()))
        self._is_open = False
        self._begun_at: int | None = None
        self._time: Times | None = None

    def add(self, packet: Packet[Stream], times: Times) -> bytes:
        track = self._tracks[packet.stream_index]
        if self._begun_at is None:
            self._begun_at = times.dts
        if times.captured_us is not None:
            self._time = times
        track.add(packet, times)
        whole = track is self._lead and track.stream.type == "video"
        if not whole and times.dts - self._begun_at < MAX_FRAGMENT:
            return b""
        return self._flush(wait=times.dts - self._begun_at < MAX_HELD)

    def end(self) -> bytes:
        data = self._flush(wait=False)
        self._is_open, self._time = False, None
        return data

    def _flush(self, *, wait: bool) -> bytes:
        """All packets that are held, as one fragment; none yet, while a track must be waited for."""
        if not self._is_open and wait and not all(track.is_described for track in self._tracks.values()):
            return b""
        parts = []
        if not self._is_open:
            parts.append(self._init.make())
        runs = [run for track in self._tracks.values() if (run := track.take())]
        self._begun_at = None
        if not runs:
            return b""
        if self._time is not None and self._lead.header is not None:
            parts.append(self._lead.time_box(self._time))
            self._time = None
        self._is_open = True
        return b"".join([*parts, fragment(self._next_number(), runs)])


@dataclass(slots=True)
class _Held:
    """A packet that waits to be sent; its times are in 90 kHz ticks."""

    data: bytes
    pts: int
    dts: int
    duration: int
    keyframe: bool


class _Track:
    """One stream, and what of it waits to be sent."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.extradata = stream.codec_context.extradata or b""
        self.first: bytes | None = None
        self.header: TrackHeader | None = None
        self._codec = codec_name(stream)
        self._is_annex_b = self._codec in _ANNEX_B and not self.extradata.startswith(b"\1")
        self._filter = _filter(stream, _ANNEX_B[self._codec] if self._is_annex_b else _FILTERS.get(self._codec))
        self._held: list[_Held] = []
        self._last_duration = 1

    @property
    def is_described(self) -> bool:
        """Whether an init segment can say what decoders must know."""
        if self._codec in _NEED_PACKET:
            return self.first is not None
        return bool(self.extradata) or self._codec not in _NEED_EXTRADATA

    def add(self, packet: Packet[Stream], times: Times) -> None:
        duration = round((packet.duration or 0) * packet.time_base * CLOCK_HZ)
        for part in [packet] if self._filter is None else self._filter.filter(packet):
            if part.has_sidedata("new_extradata"):
                self.extradata = bytes(part.get_sidedata("new_extradata"))
            data = length_prefixed(bytes(part)) if self._is_annex_b else bytes(part)
            if self.first is None and self._codec in _NEED_PACKET:
                self.first = data
            self._held.append(_Held(data, times.pts, times.dts, duration, part.is_keyframe))

    def take(self) -> tuple[int, list[Sample]] | None:
        """What waits, as samples; nothing, if there is none or the init segment does not know the track."""
        held, self._held = self._held, []
        if self.header is None or not held:
            return None
        ends = [following.dts for following in held[1:]]
        last = held[-1]
        if last.duration <= 0:
            last.duration = last.dts - held[-2].dts if len(held) > 1 else self._last_duration
        self._last_duration = last.duration
        ends.append(last.dts + last.duration)
        return self.header.track_id, [self._sample(packet, end) for packet, end in zip(held, ends, strict=True)]

    def time_box(self, times: Times) -> bytes:
        assert self.header is not None
        assert times.captured_us is not None
        return prft_box(self.header.track_id, times.captured_us, self._scale(times.pts))

    def _sample(self, packet: _Held, end: int) -> Sample:
        dts = self._scale(packet.dts)
        return Sample(
            packet.data,
            dts=dts,
            offset=self._scale(packet.pts) - dts,
            duration=self._scale(end) - dts,
            keyframe=packet.keyframe,
        )

    def _scale(self, ticks: int) -> int:
        assert self.header is not None
        return (ticks * self.header.timescale + CLOCK_HZ // 2) // CLOCK_HZ


class _InitSegment:
    """The init segment of some tracks; made anew when what it says has changed."""

    def __init__(self, tracks: list[_Track]) -> None:
        self._tracks = tracks
        self._made_of: list[tuple[bool, bytes]] = []
        self._data = b""

    def make(self) -> bytes:
        made_of = [(track.is_described, track.extradata) for track in self._tracks]
        if made_of != self._made_of:
            self._data, self._made_of = self._write(), made_of
        return self._data

    def _write(self) -> bytes:
        """Write it, and tell the tracks their numbers."""
        import av

        described = [track for track in self._tracks if track.is_described]
        sink = Sink()
        with av.open(sink, mode="w", format="mp4", container_options=_OPTIONS) as muxer:
            copies = [muxer.add_stream_from_template(track.stream, opaque=True) for track in described]
            for track, copy in zip(described, copies, strict=True):
                copy.codec_context.extradata = track.extradata or None
                if tag := _TAGS.get(codec_name(track.stream)):
                    copy.codec_context.codec_tag = tag
                if language := track.stream.metadata.get("language"):
                    copy.metadata["language"] = language
            muxer.start_encoding()
            for track, copy in zip(described, copies, strict=True):
                if track.first is not None:
                    muxer.mux_one(_first_packet(track.first, copy))
        init = init_segment(sink.take())
        for track, header in zip(described, track_headers(init), strict=True):
            track.header = header
        return init


def _first_packet(data: bytes, stream: Stream) -> Packet[Stream]:
    from av import Packet

    packet = Packet(data)
    packet.stream = stream
    packet.pts = packet.dts = 0
    packet.is_keyframe = True
    return packet


def _filter(stream: Stream, description: str | None) -> BitStreamFilterContext | None:
    from av.bitstream import BitStreamFilterContext

    return None if description is None else BitStreamFilterContext(description, stream)
