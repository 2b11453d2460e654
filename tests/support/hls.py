"""Reads HLS playlists, and checks them against the rules of draft-pantos-hls-rfc8216bis that players rely on.

Numbers in brackets are sections of the draft. :func:`read` checks one media playlist, :class:`Watcher` several of them,
:func:`read_multivariant` a multivariant playlist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

TAGS: Final = {
    "EXTM3U", "EXTINF", "EXT-X-VERSION", "EXT-X-TARGETDURATION", "EXT-X-MEDIA-SEQUENCE", "EXT-X-DISCONTINUITY-SEQUENCE",
    "EXT-X-DISCONTINUITY", "EXT-X-MAP", "EXT-X-PROGRAM-DATE-TIME", "EXT-X-GAP", "EXT-X-PART", "EXT-X-PART-INF",
    "EXT-X-SERVER-CONTROL", "EXT-X-PRELOAD-HINT", "EXT-X-ENDLIST", "EXT-X-INDEPENDENT-SEGMENTS", "EXT-X-SKIP",
    "EXT-X-I-FRAMES-ONLY", "EXT-X-BYTERANGE", "EXT-X-PLAYLIST-TYPE", "EXT-X-RENDITION-REPORT", "EXT-X-START",
}  # fmt: skip
MULTIVARIANT_TAGS: Final = {
    "EXTM3U", "EXT-X-VERSION", "EXT-X-INDEPENDENT-SEGMENTS", "EXT-X-MEDIA", "EXT-X-STREAM-INF",
    "EXT-X-I-FRAME-STREAM-INF",
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
    span: str = ""  # bytes of the URI: LENGTH@OFFSET
    map_span: str = ""  # those of the map, likewise


@dataclass
class Playlist:
    """A media playlist, or an update of one: then its first segments are skipped, and not in the list."""

    target: int
    control: dict[str, str]
    part_target: float | None
    msn: int
    discontinuity: int
    segments: list[Segment]
    hint: str
    ended: bool
    skipped: int = 0
    independent: bool = False
    pictures_only: bool = False

    @property
    def is_text(self) -> bool:
        """Whether its media are WebVTT."""
        return any(segment.uri.partition("?")[0].endswith(".vtt") for segment in self.segments)

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


def _tags(text: str, known: Set[str] = TAGS) -> Iterator[tuple[str, str]]:
    for line in text.removesuffix("\n").split("\n"):
        assert line, "there are no empty lines here"
        assert "\r" not in line
        if line.startswith("#LP-TRICKLE-"):
            continue  # a comment for clients of trickle
        if line.startswith("#EXT"):
            name, _, value = line[1:].partition(":")
            assert name in known, line
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
            "EXT-X-SERVER-CONTROL", "EXT-X-PART-INF", "EXT-X-ENDLIST", "EXT-X-SKIP", "EXT-X-I-FRAMES-ONLY",
            "EXT-X-INDEPENDENT-SEGMENTS", "EXT-X-PLAYLIST-TYPE")  # fmt: skip
    for name in once:
        assert sum(tag == name for tag, _ in tags) <= 1, f"{name} occurs once at most (4.4.3)"
    assert int(single["EXT-X-VERSION"]) >= 9
    target = int(single["EXT-X-TARGETDURATION"])
    msn, discontinuity = int(single["EXT-X-MEDIA-SEQUENCE"]), int(single["EXT-X-DISCONTINUITY-SEQUENCE"])
    skipped = int(_attributes(single["EXT-X-SKIP"])["SKIPPED-SEGMENTS"]) if "EXT-X-SKIP" in single else 0
    segments: list[Segment] = []
    current, map_uri, map_span, has_begun = Segment(msn + skipped, discontinuity), "", "", False
    for name, value in tags:
        match name:
            case "EXT-X-MEDIA-SEQUENCE" | "EXT-X-DISCONTINUITY-SEQUENCE" | "EXT-X-SKIP":
                assert not has_begun, f"{name} comes before the first segment (4.4.3.2, 4.4.3.3, 4.4.5.2)"
            case "EXT-X-BYTERANGE":
                assert re.fullmatch(r"[0-9]+@[0-9]+", value), f"a range has a length and a place here: {value}"
                current.span = value
            case "EXT-X-DISCONTINUITY":
                assert not current.breaks
                current.breaks = True
                discontinuity += 1
                current.discontinuity = discontinuity
            case "EXT-X-MAP":
                told = _attributes(value)
                map_uri, map_span = told["URI"], told.get("BYTERANGE", "")
                assert re.fullmatch(r"(?:[0-9]+@[0-9]+)?", map_span), f"a range has a length and a place here: {value}"
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
                current.uri, current.map, current.map_span = value, map_uri, map_span
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
        "EXT-X-ENDLIST" in single, skipped, "EXT-X-INDEPENDENT-SEGMENTS" in single, "EXT-X-I-FRAMES-ONLY" in single,
    )  # fmt: skip
    _check(found)
    return found


def _check(playlist: Playlist) -> None:
    for segment in playlist.whole:
        assert segment.duration is not None
        assert round(segment.duration) <= playlist.target, "no segment is longer than the target (4.4.3.1)"
    if playlist.pictures_only:
        assert playlist.part_target is None, "pictures have no parts"
        assert not playlist.hint, "pictures have no parts"
        assert all(not one.parts for one in playlist.segments), "pictures have no parts"
        assert all(segment.span for segment in playlist.whole if not segment.gap), "each has its bytes (4.4.3.6)"
    else:
        if playlist.is_text:
            assert playlist.part_target is None, "text has no parts here"
            assert not playlist.hint, "text has no parts here"
            assert not any(one.map for one in playlist.segments), "WebVTT has no init segment (3.1.4)"
            assert all(".vtt" in one.uri for one in playlist.whole), "all media have one format (3.1)"
        assert playlist.control.get("CAN-BLOCK-RELOAD") == "YES" or (playlist.ended and not playlist.control)
    if "CAN-SKIP-UNTIL" in playlist.control:
        assert float(playlist.control["CAN-SKIP-UNTIL"]) >= 6 * playlist.target, "(4.4.3.8)"
    if playlist.skipped:
        assert "CAN-SKIP-UNTIL" in playlist.control, "who skips has said so (4.4.5.2)"
    if "HOLD-BACK" in playlist.control:
        assert float(playlist.control["HOLD-BACK"]) >= 3 * playlist.target, "(4.4.3.8)"
    uris = [segment.uri + segment.span for segment in playlist.whole if not segment.gap or segment.uri]
    uris += [part.uri for one in playlist.segments for part in one.parts]
    assert len(set(uris)) == len(uris), "each URI occurs once"
    if playlist.part_target is None:
        assert not any(segment.parts for segment in playlist.segments), "parts need a PART-TARGET (4.4.3.7)"
        return
    assert float(playlist.control["PART-HOLD-BACK"]) >= 2 * playlist.part_target, "(4.4.3.8)"
    assert bool(playlist.hint) == (not playlist.ended)
    if playlist.ended:
        # No rule of the draft: hls.js waits for the middle of the last part, which may have no sound, for ever.
        assert not any(segment.parts for segment in playlist.segments), "the last playlist has no parts"
    assert playlist.hint not in uris, "what is hinted at is not there yet (4.4.5.3)"
    for segment in playlist.segments:
        for place, part in enumerate(segment.parts):
            assert part.duration <= playlist.part_target + 1e-5, "no part is longer than the part target (4.4.4.9)"
            if place + 1 < len(segment.parts):
                assert part.duration >= 0.85 * playlist.part_target, "only a last part is short (4.4.4.9)"
        if segment.parts and segment.duration is not None:
            # What is left of a picture that is longer than the part target is in no part.
            assert sum(part.duration for part in segment.parts) < segment.duration + 0.001, "parts make up a segment"


@dataclass
class Variant:
    """A rendition with which playback can begin (4.4.6.2), or its key pictures alone (4.4.6.3)."""

    uri: str
    bandwidth: int
    average: int
    codecs: list[str]
    size: tuple[int, int] | None
    rate: float | None
    groups: dict[str, str]  # by type: AUDIO, SUBTITLES, CLOSED-CAPTIONS


@dataclass
class Rendition:
    """One of several renditions of the same content, for example a language (4.4.6.1)."""

    kind: str
    group: str
    name: str
    language: str
    uri: str
    default: bool
    autoselect: bool
    instream: str
    channels: str


@dataclass
class Multivariant:
    """A multivariant playlist."""

    variants: list[Variant]
    pictures: list[Variant]
    renditions: list[Rendition]
    independent: bool


_CODEC = re.compile(
    r"avc[13]\.[0-9a-f]{6}|(?:hvc1|hev1)\.[ABC]?\d+\.[0-9A-F]{1,8}\.[LH]\d+(?:\.[0-9A-F]{1,2}){0,6}"
    r"|av01\.[0-2]\.\d\d[MH]\.(?:08|10|12)|vp09(?:\.\d\d){3}|mp4a\.(?:40\.(?:\d|[1-9]\d)|6[9bB]|40\.34)|Opus|fLaC|alac|ac-3|ec-3"
)
"""Codecs as RFC 6381, and the mappings of each codec to MP4, write them."""


def read_multivariant(text: str) -> Multivariant:
    """Read a multivariant playlist, and check what one must be.

    Raises:
        AssertionError: it breaks a rule.
    """
    tags = list(_tags(text, MULTIVARIANT_TAGS))
    assert tags[0] == ("EXTM3U", ""), "EXTM3U comes first (4.4.1.1)"
    found = Multivariant([], [], [], ("EXT-X-INDEPENDENT-SEGMENTS", "") in tags)
    waiting: dict[str, str] | None = None  # the attributes of a variant whose URI follows
    for name, value in tags[1:]:
        assert (waiting is not None) == (name == ""), "a URI follows its EXT-X-STREAM-INF at once (4.4.6.2)"
        match name:
            case "EXT-X-VERSION":
                assert int(value) >= 7
            case "EXT-X-STREAM-INF":
                waiting = _attributes(value)
                assert "URI" not in waiting
            case "EXT-X-I-FRAME-STREAM-INF":
                found.pictures.append(_variant(_attributes(value), _attributes(value)["URI"]))
            case "EXT-X-MEDIA":
                found.renditions.append(_rendition(_attributes(value)))
            case "":
                assert waiting is not None
                found.variants.append(_variant(waiting, value))
                waiting = None
    assert waiting is None
    assert found.variants, "there is a variant"
    groups: dict[tuple[str, str], list[Rendition]] = {}
    for rendition in found.renditions:
        groups.setdefault((rendition.kind, rendition.group), []).append(rendition)
    for group in groups.values():
        names = [one.name for one in group]
        assert len(set(names)) == len(names), "names differ in a group (4.4.6.1.1)"
        assert sum(one.default for one in group) <= 1, "one default at most (4.4.6.1.1)"
        inside = [one for one in group if one.kind == "AUDIO" and not one.uri]
        assert len(inside) <= 1, "one without a URI at most, which is in the variant itself (4.4.6.2.1)"
    for variant in found.variants:
        for kind, group_id in variant.groups.items():
            assert group_id == "NONE" or (kind, group_id) in groups, "a variant names groups that are there (4.4.6.2)"
    for pictures in found.pictures:
        assert not pictures.groups, "pictures name no groups (4.4.6.3)"
        assert pictures.rate is None, "pictures have no frame rate (4.4.6.3)"
        assert len(pictures.codecs) <= 1, "they are pictures alone"
    uris = [one.uri for one in (*found.variants, *found.pictures)]
    assert len(set(uris)) == len(uris)
    uris = [one.uri for one in found.renditions if one.uri]
    assert len(set(uris)) == len(uris)
    return found


def _variant(told: dict[str, str], uri: str) -> Variant:
    bandwidth = int(told["BANDWIDTH"])  # required
    average = int(told["AVERAGE-BANDWIDTH"])
    assert 0 < average <= bandwidth
    codecs = told["CODECS"].split(",") if "CODECS" in told else []
    assert len(set(codecs)) == len(codecs)
    assert all(_CODEC.fullmatch(codec) for codec in codecs), codecs
    size = told.get("RESOLUTION")
    wide, _, high = (size or "0x0").partition("x")
    rate = told.get("FRAME-RATE")
    assert rate is None or re.fullmatch(r"\d+\.\d{3}", rate), "three decimals (4.4.6.2)"
    kinds = ("AUDIO", "SUBTITLES", "CLOSED-CAPTIONS")
    groups = {kind: told[kind] for kind in kinds if kind in told}
    known = {"BANDWIDTH", "AVERAGE-BANDWIDTH", "CODECS", "RESOLUTION", "FRAME-RATE", "URI", *kinds}
    assert known.issuperset(told), told
    return Variant(
        uri, bandwidth, average, codecs, (int(wide), int(high)) if size else None, float(rate) if rate else None, groups
    )


def _rendition(told: dict[str, str]) -> Rendition:
    kind = told["TYPE"]
    assert kind in ("AUDIO", "SUBTITLES", "CLOSED-CAPTIONS")
    is_default, is_chosen = told.get("DEFAULT") == "YES", told.get("AUTOSELECT") == "YES"
    assert is_chosen or not is_default or "AUTOSELECT" not in told, "a default may be chosen (4.4.6.1)"
    if kind == "CLOSED-CAPTIONS":
        assert "URI" not in told
        assert re.fullmatch(r"CC[1-4]|SERVICE(?:[1-9]|[1-5]\d|6[0-3])", told["INSTREAM-ID"])
    else:
        assert "INSTREAM-ID" not in told
    if kind == "SUBTITLES":
        assert "URI" in told
        assert told.get("FORCED", "NO") in ("YES", "NO")
    else:
        assert "FORCED" not in told, "of subtitles alone (4.4.6.1)"
    return Rendition(
        kind, told["GROUP-ID"], told["NAME"], told.get("LANGUAGE", ""), told.get("URI", ""), is_default, is_chosen,
        told.get("INSTREAM-ID", ""), told.get("CHANNELS", ""),
    )  # fmt: skip


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
        if found.skipped:
            assert before is not None, "an update has a playlist before it"
            last = found.msn + found.skipped
            kept = [segment for segment in before.segments if found.msn <= segment.msn < last]
            assert len(kept) == found.skipped, "what is skipped was told (6.3.7)"
            listed = sum(segment.duration or 0 for segment in found.segments)
            listed += 0 if found.segments[-1].duration else sum(part.duration for part in found.segments[-1].parts)
            assert listed >= float(found.control["CAN-SKIP-UNTIL"]) - 0.001, "only old segments are skipped (4.4.3.8)"
            assert all(segment.duration is not None for segment in kept)
            found.segments[:0] = kept
        if before is not None:
            assert found.msn >= before.msn, "EXT-X-MEDIA-SEQUENCE never decreases (4.4.3.2)"
            assert found.discontinuity >= before.discontinuity, "nor does EXT-X-DISCONTINUITY-SEQUENCE (4.4.3.3)"
            if constant_target:
                assert found.target == before.target, "EXT-X-TARGETDURATION does not change (6.2.1)"
            kept_s = sum(segment.duration or 0 for segment in found.whole)
            is_new = found.msn > before.segments[-1].msn  # another epoch
            removed = [segment for segment in before.whole if segment.msn < found.msn and not segment.gap]
            if removed and constant_target and not is_new:
                assert kept_s >= 3 * found.target - 0.001, "what lasts three target durations stays (6.2.2)"
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
