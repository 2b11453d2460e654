"""The file that is written: readable at any moment, and an ordinary, seekable one when it is closed in order."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tricklecast.subscriber.remux.source import Slot, Track
from tricklecast.subscriber.remux.timeline import CLOCK_HZ, Times
from tricklecast.trickle.errors import TrickleError

if TYPE_CHECKING:
    from av import Packet
    from av.bitstream import BitStreamFilterContext
    from av.container import OutputContainer
    from av.stream import Stream


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.

    Attributes:
        muxer: libavformat's name for it. kinds: the streams that it is for.
        options: of the muxer.
    """

    muxer: str
    kinds: tuple[str, ...]
    options: Mapping[str, str]


_COMMON: Final = {
    "flush_packets": "1",  # what is muxed is in the file
    "max_interleave_delta": "1",  # packets come in order; never wait for a stream that is silent
}

# Written as a fragmented file, which can be read wherever it breaks off. A fragment is a second at most: what a kill
# may cost. The streams' starts are kept apart by edit lists, which are written with the first fragment, in ticks of
# the movie's clock.
_MP4: Final = {
    **_COMMON,
    "movflags": "+delay_moov",
    "frag_duration": "1000000",
    "movie_timescale": "90000",
}

_HYBRID: Final = "+hybrid_fragmented+delay_moov"
"""The last write turns it into an ordinary file, whose index comes at its end."""

_HYBRID_SINCE: Final = (62, 12)
"""The libavformat of FFmpeg 8.1. That of 7.1 and 8.0 overwrites the file's beginning if both flags are set; there the
file stays a fragmented one."""

_MATROSKA: Final = {**_COMMON, "cluster_time_limit": "1000"}

_FILTERS: Final = {"aac": "aac_adtstoasc"}
"""What makes of packets that carry their own parameters the kind that these files hold. Muxers know the others."""

FORMATS: Final[Mapping[str, Format]] = {
    ".mp4": Format("mp4", ("video", "audio", "subtitle"), _MP4),
    ".m4v": Format("mp4", ("video", "audio", "subtitle"), _MP4),
    ".m4a": Format("mp4", ("audio",), _MP4),
    ".mov": Format("mov", ("video", "audio", "subtitle"), _MP4),
    ".mkv": Format("matroska", ("video", "audio", "subtitle"), _MATROSKA),
    ".mka": Format("matroska", ("audio",), _MATROSKA),
}
"""By the ending of the file's name."""


class File:
    """A file being written.

    Args:
        path: it is replaced.
        format_: what kind it is to be.
        tracks: its streams; those that it cannot hold are left out.

    Raises:
        NothingToWrite: it can hold none of them.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, format_: Format, tracks: Mapping[Slot, Track]) -> None:
        import av
        from av.bitstream import BitStreamFilterContext

        self.path: Final = path
        self.tracks: dict[Slot, Track] = {}
        self.left_out: dict[Slot, str] = {}
        self._streams: dict[Slot, Stream] = {}
        self._filters: dict[Slot, BitStreamFilterContext] = {}
        self._written = False
        carried = _carried(format_, tracks)
        if not carried:
            codecs = ", ".join(track.codec for track in tracks.values())
            raise NothingToWrite(f"a {path.suffix} file holds none of this channel's streams: {codecs or 'none'}")
        options = dict(format_.options)
        if "movflags" in options and av.library_versions["libavformat"] >= _HYBRID_SINCE:
            options["movflags"] = _HYBRID
        self._muxer: OutputContainer = av.open(str(path), mode="w", format=format_.muxer, container_options=options)
        for slot, track in tracks.items():
            if slot in carried:
                self.tracks[slot] = track
                self._streams[slot] = _like(self._muxer, track.stream)
                if track.in_band and (name := _FILTERS.get(track.codec)):
                    self._filters[slot] = BitStreamFilterContext(name, track.stream)
            else:
                self.left_out[slot] = track.codec

    def fits(self, slot: Slot, track: Track) -> bool:
        """Whether a later segment's stream can go on in this file."""
        if slot in self.left_out:
            return True
        mine = self.tracks.get(slot)
        if mine is None:
            return track.shape is None
        return mine.codec == track.codec and track.shape in (None, mine.shape)

    def write(self, slot: Slot, packet: Packet[Stream], times: Times) -> None:
        """Add a packet; one of a stream that was left out is passed over.

        Raises:
            OSError: the disk is full, ... (PyAV's ``FFmpegError`` included).
        """
        stream = self._streams.get(slot)
        if stream is None:
            return
        bitstream = self._filters.get(slot)
        for filtered in [packet] if bitstream is None else bitstream.filter(packet):
            filtered.stream = stream
            filtered.time_base = Fraction(1, CLOCK_HZ)
            filtered.pts, filtered.dts, filtered.duration = times.pts, times.dts, times.duration
            self._muxer.mux_one(filtered)
            self._written = True

    def close(self) -> bool:
        """Turn it into an ordinary file.

        Returns:
            Whether there is one: nothing is left behind if nothing was written.

        Raises:
            OSError: the disk is full, ...
        """
        self._muxer.close()
        if not self._written:
            self.path.unlink(missing_ok=True)
        return self._written


class NothingToWrite(TrickleError):
    """A file of that kind can hold none of the streams."""


def _carried(format_: Format, tracks: Mapping[Slot, Track]) -> set[Slot]:
    import av

    # A muxer knows its codecs before anything is written; by their decoders' names, too, where these differ.
    with av.open(io.BytesIO(), mode="w", format=format_.muxer) as muxer:
        codecs = muxer.supported_codecs
    return {
        slot
        for slot, track in tracks.items()
        if slot[0] in format_.kinds and not codecs.isdisjoint((track.codec, track.stream.codec_context.name))
    }


def _like(muxer: OutputContainer, stream: Stream) -> Stream:
    copy = muxer.add_stream_from_template(stream)
    if language := stream.metadata.get("language"):
        copy.metadata["language"] = language
    return copy
