"""Fragmented MP4 (ISO/IEC 14496-12), as far as a check needs it: boxes, tracks, and the times of samples.

It takes any bytes: what makes no sense is counted, and never an error. Only boxes with tables are kept, one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tricklecast.subscriber.check.media import MAX_TRACKS, Container, Fault, Kind, Media, Opening, TrackNotes

MAX_TABLE: Final = 4 * 1024 * 1024
"""Longest box that is looked into, in bytes: a fragment of hours."""

MAX_SAMPLES: Final = 1 << 20
"""Most samples of one run that are counted."""

FIRST_BOXES: Final = frozenset(
    {b"ftyp", b"styp", b"moov", b"moof", b"sidx", b"prft", b"emsg", b"uuid", b"free", b"mdat"}
)
_TABLES: Final = frozenset({b"moov", b"moof"})
_KINDS: Final = {b"vide": Kind.VIDEO, b"soun": Kind.AUDIO}
_NOT_SYNC: Final = 0x10000
"""In a sample's flags: it is no sync sample (8.8.3.1)."""


def looks_like_mp4(data: bytes) -> bool:
    """Whether a box that may come first does."""
    return data[4:8] in FIRST_BOXES and (int.from_bytes(data[:4]) >= 8 or data[:4] in (b"\0\0\0\1", b"\0\0\0\0"))


@dataclass(frozen=True, slots=True)
class Announced:
    """A track as ``moov`` describes it.

    Attributes:
        kind, codec: what it is.
        hz: its time scale.
        shift: what an edit list adds to its presentation times, in its ticks.
        duration, flags: of samples that say nothing else.
        parameters: there is a description of its samples.
    """

    kind: Kind = Kind.DATA
    codec: str = "unknown"
    hz: int = 1
    shift: int = 0
    duration: int = 0
    flags: int = 0
    parameters: bool = False


@dataclass(slots=True)
class Init:
    """What goes on from segment to segment: the tracks of the newest init segment."""

    tracks: dict[int, Announced] = field(default_factory=dict)


class Fmp4Reader:
    """Reads one segment.

    Args:
        init: of the channel.
    """

    def __init__(self, init: Init) -> None:
        self._init = init
        self._data = bytearray()
        self._skip = 0
        self._lost = False
        self._faults: Counter[Fault] = Counter()
        self._has_init = False
        self._early = False
        self._notes: dict[int, TrackNotes] = {}

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the segment."""
        while data and not self._lost:
            if self._skip:
                skipped = min(self._skip, len(data))
                self._skip, data = self._skip - skipped, data[skipped:]
                continue
            self._data += data
            data = self._take_boxes()

    def finish(self) -> Media:
        """What the segment holds."""
        if (self._data or self._skip) and not self._lost:
            self._faults[Fault.BAD_BOX] += 1
        tracks = tuple(notes.finish() for _, notes in sorted(self._notes.items()))
        return Media(Container.FMP4, tracks, self._has_init and not self._early, dict(self._faults))

    def _take_boxes(self) -> bytes:
        """Read the boxes that are whole; returns bytes that belong to one that is skipped, if it has begun."""
        while len(self._data) >= 8:
            size, kind, head = int.from_bytes(self._data[:4]), bytes(self._data[4:8]), 8
            if size == 1:
                if len(self._data) < 16:
                    break
                size, head = int.from_bytes(self._data[8:16]), 16
            if size == 0:  # to the end of the file
                self._lost = True
                break
            if size < head or not kind.isascii() or (kind in _TABLES and size > MAX_TABLE):
                self._faults[Fault.BAD_BOX] += 1
                self._lost = True
                break
            if kind not in _TABLES:
                rest = bytes(self._data)
                self._data.clear()
                self._skip = size
                return rest
            if len(self._data) < size:
                break
            self._table(kind, bytes(self._data[head:size]))
            del self._data[:size]
        return b""

    def _table(self, kind: bytes, body: bytes) -> None:
        if kind == b"moov":
            self._init.tracks = _tracks(body)
            self._has_init = bool(self._init.tracks)
            return
        self._early |= not self._has_init
        for child, content in boxes(body):
            if child == b"traf":
                self._fragment(content)

    def _fragment(self, body: bytes) -> None:
        parts = list(boxes(body))
        head = next((content for kind, content in parts if kind == b"tfhd"), b"")
        number = _number(head, 4, 4)
        track = self._init.tracks.get(number)
        if track is None:
            return
        duration, flags = _defaults(head, track)
        notes = self._notes_of(number, track)
        time = next((_base_time(content) for kind, content in parts if kind == b"tfdt"), None)
        if time is None:
            return
        for kind, content in parts:
            if kind == b"trun":
                time = self._run(content, time, duration, flags, track, notes)

    def _run(self, run: bytes, time: int, duration: int, flags: int, track: Announced, notes: TrackNotes) -> int:
        """The samples of a run; the time at which the next one begins."""
        has, count = _number(run, 1, 3), min(_number(run, 4, 4), MAX_SAMPLES)
        at = 8 + 4 * bool(has & 0x1)
        first_flags = _number(run, at, 4) if has & 0x4 else None
        at += 4 * bool(has & 0x4)
        width = 4 * sum(bool(has & flag) for flag in (0x100, 0x200, 0x400, 0x800))
        if width:
            count = min(count, max(0, len(run) - at) // width)
        if not count:
            return time
        if first_flags is None:
            first_flags = _number(run, at + 4 * bool(has & 0x100) + 4 * bool(has & 0x200), 4) if has & 0x400 else flags
        if not notes.samples and track.kind is Kind.VIDEO:
            notes.opening = Opening(not first_flags & _NOT_SYNC, track.parameters)
        if not has & 0x900:  # all alike
            notes.sample(time, time + track.shift, count, duration)
            return time + count * duration
        for start in range(at, at + count * width, width):
            shown = time + track.shift + (_offset(run, start + width - 4) if has & 0x800 else 0)
            notes.sample(time, shown)
            time += _number(run, start, 4) if has & 0x100 else duration
        return time

    def _notes_of(self, number: int, track: Announced) -> TrackNotes:
        notes = self._notes.get(number)
        if notes is None:
            notes = self._notes[number] = TrackNotes(f"{track.kind} {number}", track.kind, track.codec, track.hz)
        return notes


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The boxes within another, up to the first that makes no sense."""
    at = 0
    while at + 8 <= len(data):
        size, head = _number(data, at, 4), 8
        if size == 1:
            size, head = _number(data, at + 8, 8), 16
        size = size or len(data) - at
        if size < head or at + size > len(data):
            return
        yield data[at + 4 : at + 8], data[at + head : at + size]
        at += size


def _tracks(moov: bytes) -> dict[int, Announced]:
    defaults: dict[int, tuple[int, int]] = {}
    for kind, mvex in boxes(moov):
        if kind == b"mvex":
            for child, trex in boxes(mvex):
                if child == b"trex":
                    defaults[_number(trex, 4, 4)] = _number(trex, 12, 4), _number(trex, 20, 4)
    scale = next((_scale(mvhd) for kind, mvhd in boxes(moov) if kind == b"mvhd"), 1)
    found: dict[int, Announced] = {}
    for kind, trak in boxes(moov):
        if kind == b"trak" and len(found) < MAX_TRACKS:
            number = _number(_within(trak, b"tkhd"), 20 if _within(trak, b"tkhd")[:1] == b"\1" else 12, 4)
            found[number] = _track(trak, scale, *defaults.get(number, (0, 0)))
    return found


def _track(trak: bytes, scale: int, duration: int, flags: int) -> Announced:
    hz = _scale(_within(trak, b"mdia", b"mdhd"))
    kind = _KINDS.get(_within(trak, b"mdia", b"hdlr")[8:12], Kind.DATA)
    entry = _within(trak, b"mdia", b"minf", b"stbl", b"stsd")[8:]
    codec = entry[4:8].decode("ascii", "replace") if len(entry) >= 8 else "unknown"
    shift = _shift(_within(trak, b"edts", b"elst"), scale, hz)
    return Announced(kind, codec, hz, shift, duration, flags, len(entry) > 8)


def _within(data: bytes, *path: bytes) -> bytes:
    """The content of a box inside others; nothing where there is none."""
    for name in path:
        data = next((content for kind, content in boxes(data) if kind == name), b"")
    return data


def _scale(header: bytes) -> int:
    """The time scale of ``mvhd`` or ``mdhd``."""
    return max(1, _number(header, 20 if header[:1] == b"\1" else 12, 4))


def _shift(edits: bytes, scale: int, hz: int) -> int:
    """What an edit list does to presentation times: empty edits at its start move them back, its first edit forward."""
    size = 8 if edits[:1] == b"\1" else 4
    shift = 0
    for at in range(8, len(edits) - 2 * size + 1, 2 * size + 4):
        start = int.from_bytes(edits[at + size : at + 2 * size], signed=True)
        if start >= 0:
            return shift - start
        shift += _number(edits, at, size) * hz // scale
    return shift


def _defaults(head: bytes, track: Announced) -> tuple[int, int]:
    """Duration and flags of the samples of a fragment that say nothing themselves (``tfhd``, 8.8.7)."""
    has, at = _number(head, 1, 3), 8
    at += 8 * bool(has & 0x1) + 4 * bool(has & 0x2)
    duration = _number(head, at, 4) if has & 0x8 else track.duration
    at += 4 * bool(has & 0x8) + 4 * bool(has & 0x10)
    return duration, _number(head, at, 4) if has & 0x20 else track.flags


def _base_time(body: bytes) -> int:
    return _number(body, 4, 8 if body[:1] == b"\1" else 4)


def _number(data: bytes, at: int, size: int) -> int:
    """An unsigned number; what is missing counts as 0."""
    return int.from_bytes(data[at : at + size].ljust(size, b"\0"))


def _offset(data: bytes, at: int) -> int:
    """A composition offset: signed, whatever the version says, since writers differ and none is above 2**31."""
    return int.from_bytes(data[at : at + 4], signed=True)
