"""HLS playlists as text (draft-pantos-hls-rfc8216bis, section 4.4).

**The last playlist names no parts.** hls.js takes a stream for ended when the middle of the last part is buffered. It
never is if the sound ends before the picture, or the times in the playlist differ a little from those in the media:
the player then stands still in front of the end. Without parts it waits for the last segment, which it has. The part
target stays in the playlist: Shaka gives up an update that has it no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Protocol

from tricklecast.app.hls.codecs import SOUND, TEXT
from tricklecast.app.hls.packager import Packager
from tricklecast.app.hls.rendered import NOTHING, QUERY, Rendered
from tricklecast.app.hls.renditions import MARK
from tricklecast.app.hls.timeline import HELD_BACK_TARGETS
from tricklecast.trickle.media.containers import Container
from tricklecast.trickle.wire import HLS_ROUTE

CONTENT_TYPE: Final = "application/vnd.apple.mpegurl"
VERSION: Final = 9


def playlist(packager: Packager, track: int | None = None) -> Rendered:
    """The playlist of a channel that is ready, as it is now. Only the first one who asks after a change pays for it.

    Args:
        track: the number of the one track that its media have, one of the channel's renditions; ``None``: all tracks.
    """
    kept = packager.rendered if track is None else packager.track_playlists.get(track, NOTHING)
    if kept.version != packager.version:
        kept = Rendered(packager.version, "\n".join(_lines(packager, QUERY, track)) + "\n")
        if track is None:
            packager.rendered = kept
        else:
            packager.track_playlists[track] = kept
    return kept


def _lines(packager: Packager, query: str, track: int | None) -> Iterator[str]:
    timeline = packager.timeline
    segments, part_s = [*timeline.segments], timeline.part_s
    prefix, only = f"{HLS_ROUTE}/{packager.prefix}", ""
    if track is not None:
        prefix += f"{MARK}{track}"
        only = _ending(packager, track)
    if is_text := only == "vtt":
        segments, part_s = [one for one in segments if one.duration is not None], 0.0  # whole ones only
    has_parts = part_s > 0 and not packager.ended
    control = f"HOLD-BACK={HELD_BACK_TARGETS * timeline.target_s:.1f}"
    if part_s:
        control = f"CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK={3 * part_s:.3f},{control}"
    else:
        control = f"CAN-BLOCK-RELOAD=YES,{control}"
    yield "#EXTM3U"
    yield f"#EXT-X-VERSION:{VERSION}"
    yield f"#EXT-X-TARGETDURATION:{timeline.target_s}"
    yield f"#EXT-X-SERVER-CONTROL:{control}"
    if part_s:
        yield f"#EXT-X-PART-INF:PART-TARGET={part_s:.3f}"
    if packager.is_event:
        yield "#EXT-X-PLAYLIST-TYPE:EVENT"
        yield "#EXT-X-START:TIME-OFFSET=0"
    yield f"#EXT-X-MEDIA-SEQUENCE:{timeline.segments[0].msn}"
    yield f"#EXT-X-DISCONTINUITY-SEQUENCE:{timeline.discontinuities}"
    init = ""
    for one in segments:
        gap = one.gap or bool(only and one.seq not in packager.channel.segments)  # tracks are made in memory
        extension = only or one.extension
        if one.discontinuity:
            yield "#EXT-X-DISCONTINUITY"
        if one.init not in ("", init) and not is_text:
            init = one.init
            yield f'#EXT-X-MAP:URI="{prefix}-{init_name(one)}{query}"'
        if one.captured_us:
            yield f"#EXT-X-PROGRAM-DATE-TIME:{date_of(one.captured_us)}"
        if gap:
            yield "#EXT-X-GAP"
        if has_parts and not gap and one.msn >= timeline.parts_from:
            for number, part in enumerate(one.parts):
                independent = ",INDEPENDENT=YES" if part.independent else ""
                uri = f"{prefix}-{one.seq}.{one.first_part + number}.{extension}{query}"
                yield f'#EXT-X-PART:DURATION={part.duration:.5f},URI="{uri}"{independent}'
        if one.duration is not None:
            yield f"#EXTINF:{one.duration:.5f},"
            at = f"-{one.at}" if one.at else ""
            yield f"{prefix}-{one.seq}{at}.{extension}{query}"
    if packager.ended:
        yield "#EXT-X-ENDLIST"
    elif has_parts:
        seq, number = packager.next_part
        uri = f"{prefix}-{seq}.{number}.{only or segments[-1].extension}{query}"
        yield f'#EXT-X-PRELOAD-HINT:TYPE=PART,URI="{uri}"'


def _ending(packager: Packager, track: int) -> str:
    """The ending of the names of a track's files."""
    if packager.container is Container.MPEGTS:
        return "ts"
    kind = next((one.kind for one in packager.streams if one.number == track), b"")
    return {SOUND: "m4a", TEXT: "vtt"}.get(kind, "m4s")


class Mapped(Protocol):
    """A media segment that may have an init segment."""

    @property
    def init(self) -> str: ...
    @property
    def extension(self) -> str: ...


def init_name(one: Mapped) -> str:
    """The end of the name of its init segment's file: of MPEG-TS behind MP4, these are program tables."""
    return f"init-{one.init}.{'ts' if one.extension == 'ts' else 'mp4'}"


def date_of(at_us: int) -> str:
    """A time as playlists have it; microseconds since 1970."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
