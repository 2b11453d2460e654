"""Text subtitles as a track of fragmented MP4 (``tx3g``, 3GPP TS 26.245): cues in, samples out.

The problem: a cue comes when it begins and may last over several segments, while each segment stands alone; and often
nothing is said for minutes. So no picture ever waits for text. Cues are held. When a segment ends, all that was shown
during it is known: its samples cover its time without a gap, with empty ones where nothing is shown. A cue that goes on
behind the end is held for the next segment, which begins with the rest of it. Cues that are shown together become one
sample with a line each, since a track shows one sample at a time.

The text is plain: tags and styles are left out.
"""

from __future__ import annotations

import html
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from tricklecast.trickle.media.containers import box
from tricklecast.trickle.media.timeline import CLOCK_HZ, MAX_JUMP
from tricklecast.trickle.pyav import codec_name, copied

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.stream import Stream

TEXT_CODECS: Final = frozenset({"mov_text", "subrip", "webvtt", "ass", "ssa"})
"""Codecs of plain text, or of text that is readable without its styles."""

MAX_CUES: Final = 1000
"""Cues that are held: those of one segment, and those that come ahead. Further ones are left out, and counted."""

MAX_TEXT: Final = 4096
"""Letters of a cue; the rest is left out. That is a page, and many times more than anybody can read."""

MAX_SAMPLE: Final = (1 << 16) - 1
"""Bytes of a sample's text: its length has two bytes."""

UNTOLD: Final = 5 * CLOCK_HZ
"""A cue without a duration ends after this many ticks of 90 kHz (5 s), or when the next cue begins."""

_TAG: Final = re.compile(r"</?[A-Za-z0-9][^<>]*>|</>")
_OVERRIDE: Final = re.compile(r"\{\\[^{}]*\}")
_BLOCK: Final = re.compile(r"\{[^{}]*\}")
_DRAWING: Final = re.compile(r"\{[^{}]*\\p[1-9]")
_ASS_FIELDS: Final = 8
"""Fields in front of the text of an event: ReadOrder, Layer, Style, Name, three margins, Effect."""


def is_text(stream: Stream) -> bool:
    """Whether a stream becomes a track of text."""
    return stream.type == "subtitle" and codec_name(stream) in TEXT_CODECS


def plain_text(codec: str, data: bytes) -> str:
    """Return the text that a packet shows, without tags and styles; empty if it shows nothing.

    Args:
        codec: one of :data:`TEXT_CODECS`.
        data: the packet's bytes, as libavformat gives them.
    """
    if codec == "mov_text":
        data = data[2 : 2 + int.from_bytes(data[:2])]  # styles follow
        if data[:2] in (b"\xfe\xff", b"\xff\xfe"):  # text may be UTF-16 if it says so
            return _trimmed(data.decode("utf-16", "replace"))
    text = data.decode("utf-8", "replace")
    if codec in ("ass", "ssa"):
        text = text.split(",", _ASS_FIELDS)[-1] if text.count(",") >= _ASS_FIELDS else ""
        if _DRAWING.search(text):  # lines and curves as letters
            return ""
        text = _BLOCK.sub("", text).replace("\\N", "\n").replace("\\n", " ").replace("\\h", " ")
    elif codec == "subrip":
        text = _OVERRIDE.sub("", _TAG.sub("", text))
    elif codec == "webvtt":
        text = html.unescape(_TAG.sub("", text))
    return _trimmed(text)


def _trimmed(text: str) -> str:
    """The text with plain ends of lines, without empty lines."""
    lines = (line.strip() for line in text.replace("\0", "").splitlines())
    return "\n".join(line for line in lines if line)[:MAX_TEXT]


class TextSample(NamedTuple):
    """A sample; its times are in ticks of 90 kHz."""

    begin: int
    end: int
    data: bytes


@dataclass(slots=True)
class _Cue:
    begin: int
    end: int
    text: str
    is_open: bool  # it does not say when it ends


class TextTrack:
    """The cues of one stream.

    Attributes:
        number: of its track in the init segment; 0 if there is none yet.
        left_out: cues that were too many.
    """

    def __init__(self, codec: str, language: str, *, is_default: bool) -> None:
        self._codec = codec
        self._language = language
        self._is_default = is_default
        self._cues: list[_Cue] = []
        self._at: int | None = None  # the end of the last segment
        self.number = 0
        self.left_out = 0

    @classmethod
    def of(cls, stream: Stream) -> TextTrack:
        """Describe a stream that :func:`is_text`."""
        from av.stream import Disposition

        is_default = bool(stream.disposition & Disposition.default)
        return cls(codec_name(stream), stream.metadata.get("language", ""), is_default=is_default)

    def add(self, data: bytes, begin: int, duration: int) -> None:
        """Take a packet.

        Args:
            begin: when it is shown, in ticks of 90 kHz on the time line of the output.
            duration: for how long, in the same ticks; 0: it does not say.
        """
        for cue in self._cues:
            if cue.is_open and cue.begin < begin:
                cue.end, cue.is_open = min(cue.end, begin), False
        text = plain_text(self._codec, data)
        if not text:
            return
        if len(self._cues) >= MAX_CUES:
            self.left_out += 1
            return
        self._cues.append(_Cue(begin, begin + (duration if duration > 0 else UNTOLD), text, duration <= 0))

    def take(self, begin: int, end: int) -> list[TextSample]:
        """Return the samples of a segment: without a gap, and behind those of the segment before.

        Args:
            begin: when its first picture is shown, in ticks of 90 kHz.
            end: when its last one ends.
        """
        is_first = self._at is None
        if self._at is not None and begin - self._at < MAX_JUMP:
            begin = self._at
        if end <= begin:
            return []
        for cue in self._cues:
            if cue.end <= begin and not is_first:  # it came too late, and is shown late
                cue.begin, cue.end = begin, begin + cue.end - cue.begin
        shown = [cue for cue in self._cues if cue.begin < end and cue.end > begin]
        self._cues = [cue for cue in self._cues if cue.end > end]
        self._at = end
        return _samples(shown, begin, end)

    def announce(self, muxer: OutputContainer) -> None:
        """Add a stream for it to the muxer of an init segment."""
        import av
        from av.stream import Disposition

        # A copy of a stream needs no encoder, which would want a header of ASS.
        with av.open(os.devnull, "w", format="null") as nowhere:
            stream = copied(nowhere.add_stream("mov_text"), muxer)
        stream.codec_context.extradata, stream.time_base = _STYLE, Fraction(1, CLOCK_HZ)
        language = self._language.lower()
        stream.metadata["language"] = language if re.fullmatch("[a-z]{3}", language) else "und"
        if self._is_default:
            stream.disposition = Disposition.default


_STYLE: Final = b"".join(
    (
        struct.pack(">IbB4x8x", 0, 1, 0xFF),  # in the middle, at the bottom, in a box of the player's choice
        struct.pack(">HHHBBI", 0, 0, 1, 0, 18, 0xFFFFFFFF),  # the first font, 18 points, white
        box(b"ftab", struct.pack(">HHB", 1, 1, 10), b"Sans-Serif"),
    )
)
"""How text looks, unless the player decides it."""


def _samples(cues: Sequence[_Cue], begin: int, end: int) -> list[TextSample]:
    """The text that a player shows from one time to another."""
    edges = {begin, end} | {time for cue in cues for time in (cue.begin, cue.end) if begin < time < end}
    samples: list[TextSample] = []
    for start, stop in pairwise(sorted(edges)):
        lines = dict.fromkeys(cue.text for cue in cues if cue.begin <= start and cue.end >= stop)
        text = "\n".join(lines).encode()[:MAX_SAMPLE].decode(errors="ignore").encode()
        data = len(text).to_bytes(2) + text
        if samples and samples[-1].data == data:
            start = samples.pop().begin
        samples.append(TextSample(start, stop, data))
    return samples
