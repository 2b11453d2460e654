"""What a segment holds, as the parsers of both containers tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAX_STEPS: Final = 256
"""How many different distances between samples are told apart per track and segment."""

MAX_TRACKS: Final = 64
"""How many tracks of a segment are looked at."""


class Container(StrEnum):
    """What the bytes of a segment are."""

    MPEGTS = "mpegts"
    FMP4 = "fmp4"
    JSON = "json"
    OTHER = "other"


class Kind(StrEnum):
    """What a track is for."""

    VIDEO = "video"
    AUDIO = "audio"
    DATA = "data"


class Fault(StrEnum):
    """What is wrong with the bytes themselves."""

    SYNC_LOST = "sync lost"
    """MPEG-TS: no sync byte where a packet should begin."""

    PARTIAL_PACKET = "partial packet"
    """MPEG-TS: the segment does not end with a whole packet."""

    TRANSPORT_ERROR = "transport error"
    """MPEG-TS: a packet is marked as damaged by whoever received it first."""

    BAD_PACKET = "bad packet"
    """MPEG-TS: a packet's adaptation field is longer than the packet."""

    BAD_TABLE = "bad table"
    """MPEG-TS: the check sum of a program table is wrong."""

    SCRAMBLED = "scrambled"
    """MPEG-TS: encrypted packets, into which nobody can look."""

    LOST_INSIDE = "counter jumps inside"
    """MPEG-TS: the continuity counter of a PID jumps within the segment."""

    LOST_AT_SEAM = "counter jumps at the seam"
    """MPEG-TS: the continuity counter of a PID does not go on from the segment before."""

    BAD_BOX = "bad box"
    """MP4: a box makes no sense, or does not end with the segment."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a video track of a segment begins; ``None``: not to be told.

    Attributes:
        key: the first picture can be decoded without any before it.
        parameters: what a decoder needs to know stands before it.
    """

    key: bool | None = None
    parameters: bool | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """One track of one segment. Times are in ticks of ``1 / hz`` seconds.

    Attributes:
        name: the same in all segments.
        kind: what it is for.
        codec: its codec, as the container calls it.
        hz: ticks per second.
        wrap: after how many ticks times begin again at 0; ``None``: never.
        samples: how many samples (MPEG-TS: packets of the elementary stream) begin in the segment.
        first_dts, last_dts: decoding time of the first and the last of them.
        first_pts: presentation time of the first.
        due: when the next sample after the segment's last is due, if the samples themselves say how long they are.
        frame: how long one of its frames is, where ``due`` is known.
        slack: by how much samples inside the segment were off their due time, at most.
        steps: distances between the decoding times inside the segment, and how often each occurred.
        backwards: how often the decoding time did not increase inside the segment.
        opening: how it begins.
        cut_in: the segment begins in the middle of a sample.
    """

    name: str
    kind: Kind
    codec: str
    hz: int
    wrap: int | None = None
    samples: int = 0
    first_dts: int | None = None
    last_dts: int | None = None
    first_pts: int | None = None
    due: int | None = None
    frame: int = 0
    slack: int = 0
    steps: Mapping[int, int] = field(default_factory=dict)
    backwards: int = 0
    opening: Opening = Opening()
    cut_in: bool = False

    def since(self, later: int, earlier: int) -> int:
        """Ticks from one time to another, over a wrap if that is the shorter way."""
        if self.wrap is None:
            return later - earlier
        half = self.wrap // 2
        return (later - earlier + half) % self.wrap - half


@dataclass(frozen=True, slots=True)
class Media:
    """What one segment holds.

    Attributes:
        container: what it is.
        tracks: those that the container announces.
        tables: the container's own tables (PAT and PMT, ``moov``) stand before the first sample.
        faults: what is wrong with the bytes, and how often.
    """

    container: Container
    tracks: tuple[Track, ...] = ()
    tables: bool = False
    faults: Mapping[Fault, int] = field(default_factory=dict)

    @property
    def lead(self) -> Track | None:
        """The track that gives the segment its time: its first video track, else its first audio track."""
        timed = [track for track in self.tracks if track.first_dts is not None and track.kind is not Kind.DATA]
        return min(timed, key=lambda track: track.kind is not Kind.VIDEO, default=None)


class TrackNotes:
    """What a parser writes down about a track while a segment lasts."""

    def __init__(self, name: str, kind: Kind, codec: str, hz: int, wrap: int | None = None) -> None:
        self._track = Track(name, kind, codec, hz, wrap)
        self._steps: Counter[int] = Counter()
        self.samples = 0
        self.first_dts: int | None = None
        self.last_dts: int | None = None
        self.first_pts: int | None = None
        self.due: int | None = None
        self.frame = 0
        self.slack = 0
        self.backwards = 0
        self.opening = Opening()
        self.cut_in = False

    @property
    def kind(self) -> Kind:
        """What the track is for."""
        return self._track.kind

    def sample(self, dts: int, pts: int, count: int = 1, step: int = 0) -> None:
        """So many samples begin: the first at these times, the others ``step`` ticks apart."""
        if self.last_dts is None:
            self.first_dts, self.first_pts = dts, pts
        else:
            self._distance(self._track.since(dts, self.last_dts), 1)
            if self.due is not None:
                self.slack = max(self.slack, abs(self._track.since(dts, self.due)))
        self.samples += count
        self.last_dts = dts + (count - 1) * step
        if count > 1:
            self._distance(step, count - 1)

    def finish(self) -> Track:
        """What is known at the segment's end."""
        known = self._track
        return Track(
            known.name,
            known.kind,
            known.codec,
            known.hz,
            known.wrap,
            self.samples,
            self.first_dts,
            self.last_dts,
            self.first_pts,
            self.due,
            self.frame,
            self.slack,
            dict(self._steps),
            self.backwards,
            self.opening,
            self.cut_in,
        )

    def _distance(self, ticks: int, count: int) -> None:
        if ticks <= 0:
            self.backwards += count
        elif ticks in self._steps or len(self._steps) < MAX_STEPS:
            self._steps[ticks] += count
