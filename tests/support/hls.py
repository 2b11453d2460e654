"""Reads HLS playlists, and checks them against the rules of draft-pantos-hls-rfc8216bis that players rely on.

Numbers in brackets are sections of the draft. :func:`read` checks one playlist, :class:`Watcher` a series of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

TAGS: Final = {
    "EXTM3U", "EXTINF", "EXT-X-VERSION", "EXT-X-TARGETDURATION", "EXT-X-MEDIA-SEQUENCE", "EXT-X-DISCONTINUITY-SEQUENCE",
    "EXT-X-DISCONTINUITY", "EXT-X-MAP", "EXT-X-PROGRAM-DATE-TIME", "EXT-X-GAP", "EXT-X-PART", "EXT-X-PART-INF",
    "EXT-X-SERVER-CONTROL", "EXT-X-PRELOAD-HINT", "EXT-X-ENDLIST",
}  # fmt: skip
_ATTRIBUTE = re.compile(r'([A-Z0-9-]+)=("[^"\r\n]*"|[^",\s]+)(?:,|$)')


@dataclass
class Part:
    """A partial segment (4.4.4.9)."""

    uri: str
    duration: float
    independent: bool


@dataclass
class Segment:
    """A media segment, or the beginning of one: then it has no duration and no URI."""

    msn: int
    discontinuity: int
    uri: str = ""
    duration: float | None = None
    gap: bool = False
    breaks: bool = False
    map: str = ""
    date: datetime | None = None
    parts: list[Part] = field(default_factory=list)


@dataclass
class Playlist:
    """A media playlist."""

    target: int
    control: dict[str, str]
    part_target: float | None
    msn: int
    discontinuity: int
    segments: list[Segment]
    hint: str
    ended: bool

    @property
    def whole(self) -> list[Segment]:
        """The segments that have ended."""
        return [segment for segment in self.segments if segment.duration is not None]


def _attributes(text: str) -> dict[str, str]:
    """An attribute list (4.2)."""
    found = list(_ATTRIBUTE.finditer(text))
    assert "".join(match[0] for match in found) == text, f"not an attribute list: {text}"
    names = [match[1] for match in found]
    assert len(set(names)) == len(names), f"an attribute occurs twice: {text}"
    return {match[1]: match[2].strip('"') for match in found}


def _tags(text: str) -> Iterator[tuple[str, str]]:
    for line in text.removesuffix("\n").split("\n"):
        assert line, "there are no empty lines here"
        assert "\r" not in line
        if line.startswith("#EXT"):
            name, _, value = line[1:].partition(":")
            assert name in TAGS, line
            yield name, value
        else:
            assert not line.startswith("#"), line
            yield "", line


def read(text: str) -> Playlist:
    """Read a playlist, and check what one playlist must be.

    Raises:
        AssertionError: it breaks a rule.
    """
    tags = list(_tags(text))
    assert tags[0] == ("EXTM3U", ""), "EXTM3U comes first (4.4.1.1)"
    single = {name: value for name, value in tags if name not in ("", "EXTINF", "EXT-X-PART")}
    once = ("EXT-X-VERSION", "EXT-X-TARGETDURATION", "EXT-X-MEDIA-SEQUENCE", "EXT-X-DISCONTINUITY-SEQUENCE",
            "EXT-X-SERVER-CONTROL", "EXT-X-PART-INF", "EXT-X-ENDLIST")  # fmt: skip
    for name in once:
        assert sum(tag == name for tag, _ in tags) <= 1, f"{name} occurs once at most (4.4.3)"
    assert int(single["EXT-X-VERSION"]) >= 9
    target = int(single["EXT-X-TARGETDURATION"])
    msn, discontinuity = int(single["EXT-X-MEDIA-SEQUENCE"]), int(single["EXT-X-DISCONTINUITY-SEQUENCE"])
    segments: list[Segment] = []
    current, map_uri, has_begun = Segment(msn, discontinuity), "", False
    for name, value in tags:
        match name:
            case "EXT-X-MEDIA-SEQUENCE" | "EXT-X-DISCONTINUITY-SEQUENCE":
                assert not has_begun, f"{name} comes before the first segment (4.4.3.2, 4.4.3.3)"
            case "EXT-X-DISCONTINUITY":
                assert not current.breaks
                current.breaks = True
                discontinuity += 1
                current.discontinuity = discontinuity
            case "EXT-X-MAP":
                map_uri = _attributes(value)["URI"]
            case "EXT-X-PROGRAM-DATE-TIME":
                current.date = datetime.fromisoformat(value.replace("Z", "+00:00"))
            case "EXT-X-GAP":
                current.gap = True
            case "EXT-X-PART":
                part = _attributes(value)
                current.parts.append(Part(part["URI"], float(part["DURATION"]), part.get("INDEPENDENT") == "YES"))
            case "EXTINF":
                assert value.endswith(","), value
                current.duration = float(value[:-1])
            case "":
                assert current.duration is not None, "EXTINF is required for each segment (4.4.4.1)"
                current.uri, current.map = value, map_uri
                segments.append(current)
                current = Segment(current.msn + 1, discontinuity)
        has_begun |= name in ("EXTINF", "EXT-X-PART")
    hints = [_attributes(value) for name, value in tags if name == "EXT-X-PRELOAD-HINT"]
    if current.parts:
        current.map = map_uri
        segments.append(current)
    inf = single.get("EXT-X-PART-INF")
    found = Playlist(
        target, _attributes(single.get("EXT-X-SERVER-CONTROL", "")),
        float(_attributes(inf)["PART-TARGET"]) if inf else None,
        msn, int(single["EXT-X-DISCONTINUITY-SEQUENCE"]), segments, hints[0]["URI"] if hints else "",
        "EXT-X-ENDLIST" in single,
    )  # fmt: skip
    _check(found)
    return found


def _check(playlist: Playlist) -> None:
    for segment in playlist.whole:
        assert segment.duration is not None
        assert round(segment.duration) <= playlist.target, "no segment is longer than the target (4.4.3.1)"
    assert playlist.control.get("CAN-BLOCK-RELOAD") == "YES"
    if "HOLD-BACK" in playlist.control:
        assert float(playlist.control["HOLD-BACK"]) >= 3 * playlist.target, "(4.4.3.8)"
    uris = [segment.uri for segment in playlist.whole] + [part.uri for one in playlist.segments for part in one.parts]
    assert len(set(uris)) == len(uris), "each URI occurs once"
    if playlist.part_target is None:
        assert not any(segment.parts for segment in playlist.segments), "parts need a PART-TARGET (4.4.3.7)"
        return
    assert float(playlist.control["PART-HOLD-BACK"]) >= 2 * playlist.part_target, "(4.4.3.8)"
    assert bool(playlist.hint) == (not playlist.ended)
    assert playlist.hint not in uris, "what is hinted at is not there yet (4.4.5.3)"
    for segment in playlist.segments:
        for place, part in enumerate(segment.parts):
            assert part.duration <= playlist.part_target + 1e-5, "no part is longer than the part target (4.4.4.9)"
            if place + 1 < len(segment.parts):
                assert part.duration >= 0.85 * playlist.part_target, "only a last part is short (4.4.4.9)"
        if segment.parts and segment.duration is not None:
            assert abs(sum(part.duration for part in segment.parts) - segment.duration) < 0.001, (
                "parts make up a segment"
            )


class Watcher:
    """Follows the playlists of one channel, and checks that only what may change does (6.2.1, 6.2.2).

    Attributes:
        seen: all segments so far, by media sequence number.
    """

    def __init__(self) -> None:
        self.seen: dict[int, Segment] = {}
        self.last: Playlist | None = None

    def see(self, text: str, *, constant_target: bool = True) -> Playlist:
        """The next playlist.

        Raises:
            AssertionError: it breaks a rule.
        """
        found, before = read(text), self.last
        if before is not None:
            assert found.msn >= before.msn, "EXT-X-MEDIA-SEQUENCE never decreases (4.4.3.2)"
            assert found.discontinuity >= before.discontinuity, "nor does EXT-X-DISCONTINUITY-SEQUENCE (4.4.3.3)"
            if constant_target:
                assert found.target == before.target, "EXT-X-TARGETDURATION does not change (6.2.1)"
            kept = sum(segment.duration or 0 for segment in found.whole)
            is_new = found.msn > before.segments[-1].msn  # another epoch
            removed = [segment for segment in before.whole if segment.msn < found.msn and not segment.gap]
            if removed and constant_target and not is_new:
                assert kept >= 3 * found.target - 0.001, "what lasts three target durations stays (6.2.2)"
        for segment in found.segments:
            known = self.seen.setdefault(segment.msn, segment)
            assert segment.discontinuity == known.discontinuity, "a discontinuity number stays with its segment (6.2.1)"
            assert segment.breaks == known.breaks or known.duration is None
            if known.uri:
                assert (segment.uri, segment.duration, segment.map) == (known.uri, known.duration, known.map), "(6.2.1)"
            elif segment.uri:
                assert segment.parts[: len(known.parts)] == known.parts or not segment.parts, "parts stay (6.2.1)"
            self.seen[segment.msn] = segment
        self.last = found
        return found
