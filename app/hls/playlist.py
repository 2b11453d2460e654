"""HLS playlists as text (draft-pantos-hls-rfc8216bis, section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from tricklecast.app.hls.packager import KEPT, Packager
from tricklecast.trickle.wire import HLS_ROUTE

CONTENT_TYPE: Final = "application/vnd.apple.mpegurl"
VERSION: Final = 9

_QUERY: Final = "\0"
"""In place of the query, in a playlist that is kept."""


def playlist(packager: Packager, query: str) -> str:
    """The playlist of a channel as it is now. Only the first one who asks after a change waits until it is made.

    Args:
        query: what each URL in it ends with: ``?token=...``, or nothing.
    """
    version, text = packager.rendered
    if version != packager.version:
        text = "\n".join(_lines(packager, _QUERY)) + "\n"
        packager.rendered = packager.version, text
    return text.replace(_QUERY, query)


def _lines(packager: Packager, query: str) -> Iterator[str]:
    entries = packager.entries
    control = f"HOLD-BACK={KEPT * packager.target_s:.1f}"
    if packager.part_s:
        part_s = math.ceil(packager.part_s * 1000) / 1000
        control = f"CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK={3 * part_s:.3f},{control}"
    else:
        control = f"CAN-BLOCK-RELOAD=YES,{control}"
    yield "#EXTM3U"
    yield f"#EXT-X-VERSION:{VERSION}"
    yield f"#EXT-X-TARGETDURATION:{packager.target_s}"
    yield f"#EXT-X-SERVER-CONTROL:{control}"
    if packager.part_s:
        yield f"#EXT-X-PART-INF:PART-TARGET={part_s:.3f}"
    yield f"#EXT-X-MEDIA-SEQUENCE:{entries[0].msn if entries else packager.next_msn}"
    yield f"#EXT-X-DISCONTINUITY-SEQUENCE:{packager.discontinuities}"
    init = ""
    for entry in entries:
        if entry.discontinuity:
            yield "#EXT-X-DISCONTINUITY"
        if entry.init != init:
            init = entry.init
            yield f'#EXT-X-MAP:URI="{HLS_ROUTE}/{packager.name}-init-{init}.mp4{query}"'
        if entry.at_us:
            yield f"#EXT-X-PROGRAM-DATE-TIME:{_date(entry.at_us)}"
        if entry.gap:
            yield "#EXT-X-GAP"
        if packager.part_s and not entry.gap and entry.msn >= packager.parts_from:
            for number, part in enumerate(entry.parts):
                independent = ",INDEPENDENT=YES" if part.independent else ""
                uri = _uri(packager, f"{entry.seq}.{entry.first + number}.{entry.extension}", query)
                yield f'#EXT-X-PART:DURATION={part.duration:.5f},URI="{uri}"{independent}'
        if entry.duration is not None:
            yield f"#EXTINF:{entry.duration:.5f},"
            cut = f"-{entry.cut}" if entry.cut else ""
            yield _uri(packager, f"{entry.seq}{cut}.{entry.extension}", query)
    if packager.ended:
        yield "#EXT-X-ENDLIST"
    elif packager.part_s:
        seq, number = packager.following
        name = f"{seq}.{number}.{entries[-1].extension if entries else 'ts'}"
        yield f'#EXT-X-PRELOAD-HINT:TYPE=PART,URI="{_uri(packager, name, query)}"'


def _uri(packager: Packager, name: str, query: str) -> str:
    return f"{HLS_ROUTE}/{packager.name}-{name}{query}"


def _date(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
