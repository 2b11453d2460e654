"""The tracks of a channel as renditions of their own, if it has several of sound.

Players of HLS take one track of sound in MP4, and play the first one of MPEG-TS. Such a channel is offered as pictures
and as one rendition for each track of sound (:mod:`~tricklecast.app.hls.demuxed`). Each has the playlist of the
channel, with other names: the prefix of its media ends with ``.t`` and the number of the track (of MPEG-TS, its PID).
All have the same numbers, durations and parts. Tracks of text are offered likewise, whatever the sound is, as WebVTT of
whole media segments (:mod:`~tricklecast.app.hls.texts`).

The files are made in memory when somebody asks: of a live channel from segments that are in memory, of a recording by
storage's thread. The newest are kept, so that many viewers of one rendition cost what one does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, Protocol

from tricklecast.app.core.segment import Segment
from tricklecast.app.hls.codecs import SOUND, TEXT, VIDEO, Stream
from tricklecast.app.hls.demuxed import OPENING_BYTES, default_size, track_init, track_media, track_packets
from tricklecast.app.hls.packager import Packager
from tricklecast.app.hls.texts import text_file
from tricklecast.trickle.media.containers import Container, init_segment

MARK: Final = ".t"
"""Between the prefix of a channel's media and the number of a track."""

MAX_FILE: Final = 32 << 20
"""The longest media segment of which a rendition is made, with all its tracks. Longer ones cannot be had (404)."""


class Described(Protocol):
    """A packager, or a recording: it knows the streams of its media.

    Attributes:
        streams: of the newest segment that has ended. container: of the media. prefix: of the names of files.
    """

    streams: list[Stream]
    container: Container | None

    @property
    def prefix(self) -> str: ...


def renditions(found: Described) -> list[Stream]:
    """The tracks that are offered apart, pictures first; none if there is nothing to choose."""
    streams = [one for one in found.streams if one.kind in (VIDEO, SOUND)]
    if sum(one.kind == SOUND for one in streams) < 2:
        return []
    return sorted(streams, key=lambda one: one.kind != VIDEO)


def texts(found: Described) -> list[Stream]:
    """The tracks of text, which are subtitles."""
    return [one for one in found.streams if one.kind == TEXT]


def track_of(found: Described, prefix: str) -> int | None:
    """The track that the prefix of a file's name means; ``None`` if it means no rendition of this channel."""
    name, mark, track = prefix.rpartition(MARK)
    return int(track) if mark and name == found.prefix and track.isdigit() and len(track) < 11 else None


def track_file(
    packager: Packager, name: str, track: int, there: bytes | tuple[Segment, int, int], *, is_text: bool = False
) -> bytes | None:
    """A file of a rendition; ``None`` if it cannot be made.

    Args:
        name: of the file, for those that are kept.
        there: the init segment of all tracks; or the segment with the media of all tracks, from and to where.
        is_text: it is a file of subtitles.
    """
    if (kept := packager.kept.get(name)) is not None:
        return kept
    if isinstance(there, bytes):
        made: bytes | None = track_init(there, track)
    else:
        segment, begin, end = there
        if end - begin > MAX_FILE or segment.offsets[-1] < end or packager.channel.segments.get(segment.seq) is None:
            return None
        if is_text:
            init = _init_of(packager, segment) or init_segment(_bytes(segment, 0, min(end, OPENING_BYTES)))
            made = text_file(_bytes(segment, begin, end), init, track)
        elif packager.container is Container.MPEGTS:
            opening = _bytes(segment, 0, min(end, OPENING_BYTES))
            made = track_packets(opening, _bytes(segment, begin, end), track)
        else:
            made = _fragments(packager, segment, begin, end, track)
    if made is not None:
        packager.kept.add(name, made)
    return made


def _fragments(packager: Packager, segment: Segment, begin: int, end: int, track: int) -> bytes | None:
    init = _init_of(packager, segment)
    return track_media(_bytes(segment, begin, end), track, default_size(init, track) if init else None)


def _init_of(packager: Packager, segment: Segment) -> bytes:
    """The init segment of a segment; nothing if the playlist names the segment no more."""
    name = next((one.init for one in packager.timeline.segments if one.seq == segment.seq), "")
    return packager.inits.get(name, b"")


def _bytes(segment: Segment, begin: int, end: int) -> bytes:
    """These bytes of a segment, all of which are in memory."""
    offsets = segment.offsets
    first, last = bisect_right(offsets, begin) - 1, bisect_left(offsets, end)
    data = b"".join(segment.payload(first, last))
    return data[begin - offsets[first] : end - offsets[first]]
