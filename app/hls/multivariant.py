"""The multivariant playlist of a channel as text (draft-pantos-hls-rfc8216bis, section 4.4.6).

It names the media playlist, and tells what a player wants to know before it asks for any media: codecs, size, frame
rate, bit rates. They are those of the media that the media playlist names now. A player asks for it once. That of a
recording is the same (:mod:`~tricklecast.app.hls.recording`).

Captions in the pictures (CEA-608 and 708) are named when one has been seen. Before that nothing is said of captions,
and players look for themselves; ``CLOSED-CAPTIONS=NONE`` would promise that none will come.

``EXT-X-INDEPENDENT-SEGMENTS`` promises something of all segments that will ever come, and a player never hears that it
is no longer true. A publisher of video may send a segment that begins with no key picture at any time. So only sound
alone has it, all of whose packets can be decoded without others. For video, the parts in the media playlist tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from tricklecast.app.hls.codecs import SOUND, VIDEO, Stream, tag_of
from tricklecast.app.hls.packager import Packager
from tricklecast.app.hls.pictures import Entry, has_pictures, spans_of
from tricklecast.app.hls.playlist import VERSION
from tricklecast.app.hls.rendered import MORE, QUERY, Rendered
from tricklecast.app.hls.renditions import Described, renditions, texts
from tricklecast.trickle.media.containers import Container
from tricklecast.trickle.media.ladder import Rung, channel_of
from tricklecast.trickle.wire import MEDIA_PLAYLIST_ROUTE, PICTURE_PLAYLIST_ROUTE

_RATES: Final = (
    24000 / 1001,
    24.0,
    25.0,
    30000 / 1001,
    30.0,
    48.0,
    50.0,
    60000 / 1001,
    60.0,
    100.0,
    120000 / 1001,
    120.0,
)
_NEAR: Final = 0.002
"""Times of media are rounded, so a frame rate that differs from a usual one by less than this share is that."""

_GROUP, _CAPTIONS, _TEXTS = "sound", "captions", "text"

_OPTIONAL: Final = frozenset({"ac-3", "ec-3"})
"""Sound that hls.js leaves out of MPEG-TS where the browser lacks it, and plays the picture. If a playlist names it,
hls.js ends with an error instead. In MP4 it cannot leave it out."""

MAX_RATE: Final = 1000.0

SOUND_BITRATE: Final = 128_000
PEAK: Final = 1.3
"""Of a rung of a ladder: the sound beside its pictures; its highest rate, and the container, against the average."""


class Announced(Described, Protocol):
    """The properties of a channel or a recording that its multivariant playlist names.

    Attributes:
        frame_rate: of the pictures; 0 if it is not known. captions: channels of captions that have been seen.
    """

    frame_rate: float
    captions: set[str]


class Variant(NamedTuple):
    """A channel that is named.

    Attributes:
        rates: its bit rates. pictures: those of its key pictures; nothing if it has none.
        rung: of a ladder. folder: the way to it from here.
    """

    rates: list[str]
    pictures: list[str]
    rung: Rung | None = None
    folder: str = ""


class Timed(Protocol):
    """A media segment, or a picture: its bytes, and its duration in seconds when it has ended."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def duration(self) -> float | None: ...


class Segment(Timed, Entry, Protocol):
    """A media segment, which may have a key picture."""


def multivariant(packager: Packager, ladder: tuple[Rung, ...] = (), *, together: bool = False) -> Rendered:
    """The multivariant playlist of a channel that is ready, as it is now.

    Args:
        ladder: whose highest rung this channel is.
        together: players that can take all tracks at once get them so, since no files of single tracks are made of
            what is not in memory.
    """
    together &= packager.container is Container.MPEGTS
    if ladder:
        lines = _lines(packager, list(_rungs(packager, ladder)), together=together)
        return Rendered(packager.version, "\n".join(lines) + "\n")
    if packager.announced.version == packager.version and not together:
        return packager.announced
    timeline = packager.timeline
    segments = [one for one in timeline.segments if not one.gap]
    found = Rendered(packager.version, announced(packager, segments, timeline.target_s, together=together))
    if not together:
        packager.announced = found
    return found


def announced(found: Announced, segments: Sequence[Segment], target_s: float, *, together: bool = False) -> str:
    """The text of the multivariant playlist of one channel.

    Args:
        segments: those that the media playlist names, without gaps. together: no track is offered apart.
    """
    spans = spans_of(segments)
    pictures = _rates(*bit_rates(spans, target_s)) if spans else []
    one = Variant(_rates(*bit_rates(segments, target_s)), pictures)
    return "\n".join(_lines(found, [one], together=together)) + "\n"


def _lines(found: Announced, variants: Iterable[Variant], *, together: bool) -> Iterator[str]:
    """The playlist.

    Args:
        variants: the channels that are named. together: no track is offered apart.
    """
    streams = [one for one in found.streams if one.kind in (VIDEO, SOUND)]
    picture = next((one for one in streams if one.kind == VIDEO), None)
    codecs = codecs_of(streams, found.container)
    told = [f'CODECS="{codecs}"'] if codecs else []
    more = []
    if picture and 0 < found.frame_rate <= MAX_RATE:
        more.append(f"FRAME-RATE={usual_rate(found.frame_rate):.3f}")
    yield "#EXTM3U"
    yield f"#EXT-X-VERSION:{VERSION}"
    if streams and not picture:
        yield "#EXT-X-INDEPENDENT-SEGMENTS"
    for name in sorted(found.captions):
        yield f'#EXT-X-MEDIA:TYPE=CLOSED-CAPTIONS,GROUP-ID="{_CAPTIONS}",NAME="{name}",INSTREAM-ID="{name}"'
    if found.captions:
        more.append(f'CLOSED-CAPTIONS="{_CAPTIONS}"')
    tracks = [] if together else renditions(found)
    sounds = [one for one in tracks if one.kind == SOUND]
    names = _names(sounds, "Sound")
    for one in sounds:
        yield f"#EXT-X-MEDIA:{_rendition(one, names[one.number], is_default=one.number == next(iter(names)))}"
    sound = next((one for one in streams if one.kind == SOUND), None)
    # Players play the first track of MPEG-TS. In MP4 Shaka gives up a track of sound without a playlist (error 3014).
    if picture and sound and sound.language and found.container is Container.MPEGTS and not tracks:
        yield f"#EXT-X-MEDIA:{_rendition(sound, sound.language, is_default=True, is_apart=False)}"
        more.append(f'AUDIO="{_GROUP}"')
    if tracks:
        more.append(f'AUDIO="{_GROUP}"')
    written = texts(found)
    names = _names(written, "Text")
    for one in written:
        yield f"#EXT-X-MEDIA:{_subtitles(one, names[one.number])}"
    if written:
        more.append(f'SUBTITLES="{_TEXTS}"')
    uri = _track_uri(tracks[0]) if tracks else f"{MEDIA_PLAYLIST_ROUTE}{QUERY}"
    width, height = (picture.width, picture.height) if picture and picture.width else (0, 0)
    sizes: list[list[str]] = []
    variants = list(variants)
    for variant in variants:
        fitted = variant.rung.fitted(width, height) if variant.rung and width else (width, height)
        sizes.append([f"RESOLUTION={fitted[0]}x{fitted[1]}"] if width else [])
        yield f"#EXT-X-STREAM-INF:{','.join([*variant.rates, *told, *sizes[-1], *more])}"
        yield variant.folder + uri
    if not has_pictures(found):
        return
    told = [f'CODECS="{picture.codec}"'] if picture and picture.codec else []
    for variant, size in zip(variants, sizes, strict=True):
        if variant.pictures:
            at = f'URI="{variant.folder}{PICTURE_PLAYLIST_ROUTE}{QUERY}"'
            yield f"#EXT-X-I-FRAME-STREAM-INF:{','.join([*variant.pictures, *told, *size, at])}"


def _rungs(packager: Packager, ladder: tuple[Rung, ...]) -> Iterator[Variant]:
    """The channels of a ladder. Their key pictures have no more bytes than all pictures: how many is not known."""
    for rung in ladder:
        name, rates = channel_of(packager.channel.name, rung, ladder), _rates_of(rung)
        yield Variant(rates, rates, rung, "" if rung == ladder[0] else f"../{quote(name, safe='')}/")


def _rates_of(rung: Rung) -> list[str]:
    """The bit rates of a rung: what its encoder keeps to, since its channel may be at another process or node.

    They are in the right relation to each other, which those of a picture that stands still would not be.
    """
    average = rung.bitrate + SOUND_BITRATE
    return _rates(round(PEAK * average), average)


def _rates(peak: int, average: int) -> list[str]:
    return [f"BANDWIDTH={peak}", f"AVERAGE-BANDWIDTH={average}"]


def _track_uri(one: Stream) -> str:
    return f"{MEDIA_PLAYLIST_ROUTE}?track={one.number}{MORE}"


def _names(tracks: Iterable[Stream], kind: str) -> dict[int, str]:
    """A name for each of these tracks, by its number: all differ.

    Args:
        kind: what one without a language is called.
    """
    names: dict[int, str] = {}
    for place, one in enumerate(tracks, 1):
        name = one.language or kind
        names[one.number] = name if name not in names.values() and one.language else f"{name} {place}"
    return names


def _rendition(one: Stream, name: str, *, is_default: bool, is_apart: bool = True) -> str:
    """The attributes of a track of sound.

    Args:
        is_apart: it has a playlist of its own.
    """
    told = ["TYPE=AUDIO", f'GROUP-ID="{_GROUP}"', f'NAME="{name}"']
    if one.language:
        told.append(f'LANGUAGE="{tag_of(one.language)}"')
    told.append(f"DEFAULT={'YES' if is_default else 'NO'},AUTOSELECT=YES")
    if one.channels:
        told.append(f'CHANNELS="{one.channels}"')
    if is_apart:
        told.append(f'URI="{_track_uri(one)}"')
    return ",".join(told)


def _subtitles(one: Stream, name: str) -> str:
    """The attributes of a track of text."""
    language = [f'LANGUAGE="{tag_of(one.language)}"'] if one.language else []
    told = ["TYPE=SUBTITLES", f'GROUP-ID="{_TEXTS}"', f'NAME="{name}"', *language]
    return ",".join([*told, "DEFAULT=NO,AUTOSELECT=YES,FORCED=NO", f'URI="{_track_uri(one)}"'])


def codecs_of(streams: Iterable[Stream], container: Container | None) -> str:
    """The codecs of these streams, each once; nothing if one is not known, or better not told."""
    codecs = [one.codec for one in streams]
    if not all(codecs) or (container is Container.MPEGTS and not _OPTIONAL.isdisjoint(codecs)):
        return ""
    return ",".join(dict.fromkeys(codecs))


def usual_rate(rate: float) -> float:
    """The usual frame rate that was measured as this one, or else this one."""
    nearest = min(_RATES, key=lambda one: abs(one - rate))
    return nearest if abs(nearest - rate) <= _NEAR * rate else rate


def bit_rates(segments: Iterable[Timed], target_s: float) -> tuple[int, int]:
    """Bits per second of the segments that have ended: the peak and the average (section 4.1).

    The peak is the highest rate of segments that follow each other and last half a target duration to one and a half.
    If none last so long, it is the highest rate of one.
    """
    ended = [(8 * (one.end - one.start), one.duration) for one in segments if one.duration]
    peak = 0.0
    for first in range(len(ended)):
        bits, span_s = 0, 0.0
        for place in range(first, len(ended)):
            bits, span_s = bits + ended[place][0], span_s + ended[place][1]
            if span_s > 1.5 * target_s:
                break
            if span_s >= 0.5 * target_s:
                peak = max(peak, bits / span_s)
    if not peak:
        peak = max((size / duration for size, duration in ended), default=0.0)
    total_s = sum(duration for _, duration in ended)
    average = sum(size for size, _ in ended) / total_s if total_s else 0.0
    return max(1, round(peak), round(average)), max(1, round(average))
