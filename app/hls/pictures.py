"""The playlist of key pictures (draft-pantos-hls-rfc8216bis, section 4.4.3.6), with which players scrub and wind.

It has one entry for each media segment that has ended: the bytes of its first key picture, as a range of the file that
the media playlist names. So it has the same numbers, dates, durations and discontinuities, and no state of its own
(docs/adr/0065). A media segment without a key picture is a gap. A picture stands for the time of its media segment.

The range begins with what a decoder needs first: in MP4 with ``moof``, and ``EXT-X-MAP`` names the init segment; in
MPEG-TS with the program tables. If the tables are elsewhere in the segment, ``EXT-X-MAP`` names their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from tricklecast.app.hls.codecs import VIDEO
from tricklecast.app.hls.packager import Packager
from tricklecast.app.hls.playlist import VERSION, date_of, init_name
from tricklecast.app.hls.rendered import QUERY, Rendered
from tricklecast.app.hls.renditions import Described, renditions
from tricklecast.app.hls.timeline import Picture
from tricklecast.trickle.wire import HLS_ROUTE

LIVE: Final = ""
EVENT: Final = "EVENT"
VOD: Final = "VOD"
"""Types of playlists."""


class Entry(Protocol):
    """A media segment that has ended, of a live channel or of a recording."""

    @property
    def seq(self) -> int: ...
    @property
    def at(self) -> int: ...
    @property
    def extension(self) -> str: ...
    @property
    def duration(self) -> float | None: ...
    @property
    def gap(self) -> bool: ...
    @property
    def discontinuity(self) -> bool: ...
    @property
    def init(self) -> str: ...
    @property
    def captured_us(self) -> int: ...
    @property
    def picture(self) -> Picture | None: ...


class Head(NamedTuple):
    """The lines before the first entry of a playlist, and behind its last one.

    Attributes:
        target_s: the target duration. kind: the type of the playlist. msn, discontinuities: of the first entry.
        ended: no further entry will come.
    """

    target_s: int
    kind: str
    msn: int
    discontinuities: int
    ended: bool


class Span(NamedTuple):
    """The bytes of a picture, and the time for which it stands, as :class:`~.multivariant.Timed` has them."""

    start: int
    end: int
    duration: float | None


def has_pictures(found: Described) -> bool:
    """Whether there is a playlist of key pictures.

    Not if tracks of sound are offered apart: the ranges have all of them, and players take one (renditions.py).
    """
    return any(one.kind == VIDEO for one in found.streams) and not renditions(found)


def pictures(packager: Packager) -> Rendered:
    """The playlist of key pictures of a channel that is ready, as it is now."""
    if packager.pictures.version != packager.version:
        timeline = packager.timeline
        segments = timeline.segments
        kind = EVENT if packager.is_event else LIVE
        head = Head(timeline.target_s, kind, segments[0].msn, timeline.discontinuities, packager.ended)
        text = picture_playlist(packager.prefix, head, (one for one in segments if one.duration is not None))
        packager.pictures = Rendered(packager.version, text)
    return packager.pictures


def picture_playlist(prefix: str, head: Head, entries: Iterable[Entry]) -> str:
    """The text of a playlist of key pictures.

    Args:
        prefix: of the names of files.
    """
    return "\n".join(_lines(f"{HLS_ROUTE}/{prefix}", head, entries)) + "\n"


def _lines(prefix: str, head: Head, entries: Iterable[Entry]) -> Iterator[str]:
    yield "#EXTM3U"
    yield f"#EXT-X-VERSION:{VERSION}"
    yield f"#EXT-X-TARGETDURATION:{head.target_s}"
    if head.kind:
        yield f"#EXT-X-PLAYLIST-TYPE:{head.kind}"
    yield f"#EXT-X-MEDIA-SEQUENCE:{head.msn}"
    yield f"#EXT-X-DISCONTINUITY-SEQUENCE:{head.discontinuities}"
    yield "#EXT-X-I-FRAMES-ONLY"
    before = ""
    for one in entries:
        picture = None if one.gap else one.picture
        if one.discontinuity:
            yield "#EXT-X-DISCONTINUITY"
        needs = f'"{prefix}-{init_name(one)}{QUERY}"' if one.init else ""
        if picture and picture.tables:
            begin, end = picture.tables
            needs = f'"{prefix}-{one.seq}.{one.extension}{QUERY}",BYTERANGE="{end - begin}@{begin}"'
        if needs not in ("", before):
            before = needs
            yield f"#EXT-X-MAP:URI={needs}"
        if one.captured_us:
            yield f"#EXT-X-PROGRAM-DATE-TIME:{date_of(one.captured_us)}"
        yield f"#EXTINF:{one.duration:.5f},"
        yield f"#EXT-X-BYTERANGE:{picture.end - picture.at}@{picture.at}" if picture else "#EXT-X-GAP"
        at = f"-{one.at}" if one.at else ""
        yield f"{prefix}-{one.seq}{at}.{one.extension}{QUERY}"
    if head.ended:
        yield "#EXT-X-ENDLIST"


def spans_of(entries: Iterable[Entry]) -> list[Span]:
    """The bytes of the pictures, each with the time for which it stands; nothing if there is none."""
    found = ((one, one.picture) for one in entries if not one.gap)
    return [Span(picture.at, picture.end, one.duration) for one, picture in found if picture]
