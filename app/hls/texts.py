"""Subtitles: one track of text of a channel in fragmented MP4, as WebVTT, a file for each media segment.

**The problem.** Players of HLS take text as WebVTT in files of its own. The text of a channel stands among its pictures
and sound: samples of 3GPP timed text (``tx3g``, 3GPP TS 26.245) on the channel's time line.

**The idea.** As with tracks of sound (:mod:`~tricklecast.app.hls.demuxed`) a file is made of the segment's bytes when
somebody asks, and follows from these and the init segment alone. Its times count from the first fragment of the track
that leads. ``X-TIMESTAMP-MAP`` tells when that is on the media's time line (draft-pantos-hls-rfc8216bis, section
3.1.4), so cues stand beside their pictures wherever a player puts these. The clock there has 33 bits, also for MP4:
players add the days that have passed.

A sample lasts until the next one, and an empty one shows nothing. A text that goes on is in each segment again, so
players that begin in the middle have it. Nothing here raises for any bytes, and a file has :data:`MAX_SAMPLES` samples
and :data:`MAX_BYTES` of text at most, wherever the boxes say that they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import islice
from typing import Final, NamedTuple

from tricklecast.app.hls.demuxed import MAX_BOXES, MAX_RUNS, can_move
from tricklecast.trickle.media.containers import MAX_CHILDREN, Box, Track, boxes, find_box, leading, number, tracks

TX3G: Final = b"tx3g"

MAX_SAMPLES: Final = 2_000
"""Samples of a track in one media segment that are read, empty ones included."""

MAX_TEXT: Final = 4 << 10
MAX_BYTES: Final = 256 << 10
"""Bytes of one text, and of all in one media segment. What is longer is cut."""

MAX_CUE_S: Final = 3600
"""No text is shown for longer, or begins later, behind the beginning of its media segment."""

_CLOCK_HZ: Final = 90_000
_CLOCK_BITS: Final = 33
_DATA_OFFSET, _DURATIONS, _SIZES = 0x01, 0x100, 0x200
_NO_CONTROLS: Final = {at: None for at in (*range(9), *range(10, 32), *range(127, 160))}


class Sample(NamedTuple):
    """A text as it stands in the media; times in the time scale of its track."""

    time: int
    duration: int
    data: bytes


class _Usual(NamedTuple):
    """The values of samples that have none of their own (ISO/IEC 14496-12, section 8.8.3)."""

    duration: int = 0
    size: int = 0


def text_file(data: bytes, init: bytes, track: int) -> bytes | None:
    """The texts of a media segment as WebVTT; ``None`` if the track has none, or its samples cannot be found.

    Args:
        data: whole fragments, of all tracks. init: their init segment. track: the number of the track.
    """
    known = tracks(init)
    own = next((one for one in known if one.number == track), None)
    if own is None or own.codec != TX3G:
        return None
    lead, begin, usual = leading(known), None, _usual(init, track)
    samples: list[Sample] = []
    for number_of, item in enumerate(boxes(data)):
        if number_of == MAX_BOXES:
            return None
        for part in islice(boxes(item.body), MAX_CHILDREN) if item.kind == b"moof" else ():
            head = find_box(part.body, b"tfhd") if part.kind == b"traf" else b""
            ident = number(head, 4, 4)
            if ident == lead.number and begin is None:
                begin = _clock(_time(part), lead)
            if head and ident == track:
                if not can_move(head):
                    return None
                samples += islice(_samples(data, item, part, usual), MAX_SAMPLES - len(samples))
    if begin is None:
        begin = _clock(samples[0].time, own) if samples else 0
    stamp = f"X-TIMESTAMP-MAP=MPEGTS:{begin % (1 << _CLOCK_BITS)},LOCAL:{_written(0)}"
    return "\n\n".join([f"WEBVTT\n{stamp}", *_cues(samples, own, begin), ""]).encode()


def _usual(init: bytes, track: int) -> _Usual:
    for one in islice(boxes(find_box(init, b"moov", b"mvex")), MAX_CHILDREN):
        if one.kind == b"trex" and number(one.body, 4, 4) == track:
            return _Usual(number(one.body, 12, 4), number(one.body, 16, 4))
    return _Usual()


def _clock(time: int, track: Track) -> int:
    """A time of a track in ticks of 90 kHz."""
    return time * _CLOCK_HZ // track.timescale


def _time(traf: Box) -> int:
    """When the first sample of a track fragment begins."""
    base = find_box(traf.body, b"tfdt")
    return number(base, 4, 8 if base[:1] == b"\1" else 4)


def _samples(data: bytes, moof: Box, traf: Box, usual: _Usual) -> Iterator[Sample]:
    """The samples of a track fragment; bytes that are said to be outside of ``data`` are missing."""
    head, time, place = find_box(traf.body, b"tfhd"), _time(traf), moof.start
    flags, at = number(head, 1, 3), 8
    at += 4 if flags & 0x02 else 0
    duration, size = usual
    if flags & 0x08:
        duration, at = number(head, at, 4), at + 4
    if flags & 0x10:
        size = number(head, at, 4)
    for part in islice(boxes(traf.body), MAX_CHILDREN + MAX_RUNS):
        if part.kind != b"trun":
            continue
        run = bytes(part.body)
        flags, count = number(run, 1, 3), number(run, 4, 4)
        if flags & _DATA_OFFSET:
            place = max(0, moof.start + int.from_bytes(run[8:12], signed=True))
        begin = 8 + 4 * (flags & 0x05).bit_count()
        step = 4 * (flags & 0xF00).bit_count()
        room = (len(run) - begin) // step if step else MAX_SAMPLES
        for at in (begin + step * nth for nth in range(min(count, room))):
            lasts = number(run, at, 4) if flags & _DURATIONS else duration
            takes = number(run, at + (4 if flags & _DURATIONS else 0), 4) if flags & _SIZES else size
            yield Sample(time, lasts, data[place : place + min(takes, 2 + MAX_TEXT)])
            time, place = time + lasts, place + takes


def _cues(samples: list[Sample], track: Track, begin: int) -> Iterator[str]:
    """The texts with their times, which count from ``begin``, a time in ticks of 90 kHz."""
    left = MAX_BYTES
    for time, duration, data in samples:
        from_ms, to_ms = (
            min(max(0, round((_clock(at, track) - begin) * 1000 / _CLOCK_HZ)), MAX_CUE_S * 1000)
            for at in (time, time + duration)
        )
        text = _text(data[: 2 + max(0, left)])
        if text and from_ms < to_ms:
            left -= len(data)
            yield f"{_written(from_ms)} --> {_written(to_ms)}\n{text}"


def _text(data: bytes) -> str:
    """The text of a sample, without boxes of styles, as WebVTT writes it: an empty line would end it."""
    raw = data[2 : 2 + number(data, 0, 2)]
    text = raw[2:].decode("utf-16-be", "replace") if raw[:2] == b"\xfe\xff" else raw.decode("utf-8", "replace")
    lines = (line.translate(_NO_CONTROLS).strip() for line in text.splitlines())
    return escape("\n".join(line for line in lines if line), quote=False)


def _written(ms: int) -> str:
    """A time as WebVTT writes it."""
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}.{ms % 1000:03}"
