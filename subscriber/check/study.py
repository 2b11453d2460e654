"""The segments that a check received, and comparisons between them: seams, lengths, pace.

Pure: ``probe`` fills :class:`Run`, and the rules ask :class:`Study`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Final

from tricklecast.subscriber.check.media import Media, Track
from tricklecast.subscriber.media.opening import FORMATS
from tricklecast.trickle.media.containers import Container

JUMP_S: Final = 0.5
"""A step of this size or more in the time line is a break; nothing is measured over it."""

ROUNDING_S: Final = 0.002
"""Matroska, FLV and RTMP keep milliseconds, and MPEG-TS has 90 kHz ticks."""

MIN_WAIT_S: Final = 0.05
"""The check waited for a segment if its answer took longer than this, and longer than two round trips."""

FIRST_WAIT_S: Final = 0.25
"""The same for the first segment of a check, whose request has to make a connection."""

MIN_PACE_S: Final = 2.0
"""The pace is measured over at least this time."""

_LOST_FRAME: Final = 0.6
"""A frame of sound is missing, or one too many, if the next one is off by this share of a frame or more."""

_ENOUGH: Final = 3
"""The number of distances from which a usual one is derived."""


@dataclass(frozen=True, slots=True)
class Received:
    """One segment. Times are seconds on one monotonic clock.

    Attributes:
        number: its place in the check, from 0 on.
        seq, epoch, gap, restarted, content_type: as ``subscriber.Segment`` has them.
        skipped: the server says that nobody wrote it; it has no byte.
        truncated, broken: why it is not whole; ``None`` if it is.
        left: the check ended before the segment did.
        requested_s: when the check asked for it.
        answered_s: when its first byte was there.
        taken_s: when reading it began, which is later if the segment before was still being read.
        first_s, last_s: when its first and its last bytes were read.
        wall_us: the wall clock here at ``answered_s``, in microseconds since 1970.
    """

    number: int
    seq: int
    epoch: int | None = None
    gap: int = 0
    restarted: bool = False
    content_type: str = ""
    skipped: bool = False
    truncated: str | None = None
    broken: str | None = None
    left: bool = False
    size: int = 0
    requested_s: float = 0.0
    answered_s: float = 0.0
    taken_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    wall_us: int = 0
    media: Media = field(default_factory=Media)

    @property
    def whole(self) -> bool:
        """All of it was read, and it was not cut short by anyone."""
        return self.truncated is None and self.broken is None and not self.left


@dataclass(frozen=True, slots=True)
class Head:
    """The server's head at some time.

    Attributes:
        at_s: when the answer came.
        head: one past the newest started segment.
        reading: the seq that was being read or waited for.
    """

    at_s: float
    took_s: float
    head: int
    reading: int


class Ended(StrEnum):
    """Why a check ended."""

    TIME = "time"
    CHANNEL = "channel ended"
    INTERRUPTED = "interrupted"
    FULL = "enough segments"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Run:
    """All that a check received.

    Attributes:
        seconds: how long it took.
        error: the failure that ended it, if one did.
        missed_at_end: segments that were missed between the last one and the channel's end.
        resumed: how often a segment was resumed after its connection was cut.
    """

    segments: tuple[Received, ...]
    heads: tuple[Head, ...] = ()
    seconds: float = 0.0
    ended: Ended = Ended.TIME
    error: str = ""
    missed_at_end: int = 0
    resumed: int = 0

    @property
    def round_trip_s(self) -> float:
        """The quickest answer of the server."""
        return min((head.took_s for head in self.heads), default=0.0)


@dataclass(frozen=True, slots=True)
class Seam:
    """Two segments of which the second follows the first; ``between`` are those between them, which are empty."""

    before: Received
    after: Received
    between: tuple[Received, ...] = ()

    def tracks(self) -> Iterator[tuple[Track, Track]]:
        """The tracks that both have, with samples in both."""
        earlier = {track.name: track for track in self.before.media.tracks if track.last_dts is not None}
        for track in self.after.media.tracks:
            if track.first_dts is not None and track.name in earlier and earlier[track.name].hz == track.hz:
                yield earlier[track.name], track


@dataclass(frozen=True, slots=True)
class Jump:
    """A place where a track's times do not go on.

    Attributes:
        seconds: how much is missing; negative: how much comes twice, or runs back.
    """

    track: str
    seam: Seam
    seconds: float


@dataclass(frozen=True, slots=True)
class Point:
    """A segment on the time line; ``media_s`` is its beginning in media time, since the first point."""

    segment: Received
    media_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a check, in seconds. A limit that the user gave fails when it is exceeded; a default only warns.

    Attributes:
        latency_s: end-to-end latency, of 95 % of the segments. 5 s is a tenth of plain HLS's, and still far
            more than a trickled segment needs.
        segment_s: length of a segment. Apple's HLS authoring specification (7.5) recommends 6 s, and x264 makes a
            keyframe every 10 s at 25 fps by default.
        jitter_s: by how much a segment may come later than its time line says: a player has to buffer that.
        skew_s: distance between sound and picture at a segment's start. Broadcast multiplexes have up to 1.5 s.
        given: which of them the user gave.
    """

    latency_s: float = 5.0
    segment_s: float = 10.0
    jitter_s: float = 1.0
    skew_s: float = 2.0
    given: frozenset[str] = frozenset()


class Study:
    """The answers to the rules' questions about a run."""

    def __init__(self, run: Run, limits: Limits) -> None:
        self.run = run
        self.limits = limits
        self.segments = run.segments
        self.filled = [segment for segment in run.segments if segment.size]
        self.media = [segment for segment in self.filled if segment.media.container in FORMATS]

    def has(self, container: Container) -> bool:
        """Whether there are such segments."""
        return any(segment.media.container is container for segment in self.filled)

    def was_awaited(self, segment: Received) -> bool:
        """Whether the check asked for the segment before it began: only then the answer tells when it began."""
        least_s = MIN_WAIT_S if segment.number else FIRST_WAIT_S
        return segment.answered_s - segment.requested_s >= max(least_s, 2 * self.run.round_trip_s)

    @cached_property
    def seams(self) -> list[Seam]:
        """Where one segment follows another; segments without a byte may lie between them."""
        found: list[Seam] = []
        before: Received | None = None
        between: list[Received] = []
        for segment in self.segments:
            if segment.gap or segment.restarted:
                before = None
            if not segment.size and segment.whole:
                between.append(segment)
                continue
            joins = before is not None and before.whole and before.media.ends_whole
            if before is not None and joins and before.media.container is segment.media.container:
                found.append(Seam(before, segment, tuple(between)))
            before, between = (segment if segment.media.container in FORMATS else None), []
        return found

    @cached_property
    def jumps(self) -> list[Jump]:
        """The places where times do not go on, in order; without media that is missing where segments are empty."""
        return [jump for jump in self._all_jumps if jump.seconds < 0 or not jump.seam.between]

    @cached_property
    def dropped(self) -> list[int]:
        """Seqs of empty segments whose media is missing, unless a skipped one beside them explains that."""
        holes = [jump.seam.between for jump in self._all_jumps if jump.seconds > 0]
        unmarked = [hole for hole in holes if not any(segment.skipped for segment in hole)]
        return sorted({segment.seq for hole in unmarked for segment in hole})

    @cached_property
    def _all_jumps(self) -> list[Jump]:
        return [jump for seam in self.seams for jump in self._jumps_at(seam)]

    @cached_property
    def line(self) -> list[Point]:
        """The longest run of segments whose times go on."""
        broken = {jump.seam.after.number for jump in self._all_jumps if abs(jump.seconds) >= JUMP_S}
        runs: list[list[Point]] = []
        for segment in self.media:
            lead = segment.media.lead
            if lead is None or lead.first_dts is None:
                continue
            step = self._step(runs[-1][-1].segment, segment) if runs else None
            if step is None or step <= 0 or segment.restarted or segment.number in broken:
                runs.append([Point(segment, 0.0)])
            else:
                runs[-1].append(Point(segment, runs[-1][-1].media_s + step))
        return max(runs, key=len, default=[])

    @cached_property
    def lengths(self) -> dict[int, float]:
        """How long segments are, in seconds of media, by their number in the check."""
        joined = {(seam.before.number, seam.after.number) for seam in self.seams}
        found = {
            before.segment.number: after.media_s - before.media_s
            for before, after in pairwise(self.line)
            if (before.segment.number, after.segment.number) in joined
        }
        for segment in self.media:
            lead = segment.media.lead
            if (
                segment.whole
                and segment.media.ends_whole
                and lead is not None
                and lead.steps
                and segment.number not in found
            ):
                found[segment.number] = (_span(lead) + middle(lead.steps)) / lead.hz
        return found

    @cached_property
    def speed(self) -> float | None:
        """Seconds of media per second here; ``None`` where the check waited for too few segments to tell.

        The longest pause is left out: a single pause is not slowness, and the rule on jitter reports it.
        """
        points = self.awaited
        wall_s = points[-1].segment.answered_s - points[0].segment.answered_s if points else 0.0
        if len(points) < _ENOUGH or wall_s < MIN_PACE_S:
            return None
        media_s = points[-1].media_s - points[0].media_s
        if media_s >= wall_s:
            return media_s / max(0.001, wall_s)
        pauses = (
            later.segment.answered_s - earlier.segment.answered_s - (later.media_s - earlier.media_s)
            for earlier, later in pairwise(points)
        )
        return min(1.0, media_s / max(0.001, wall_s - max(pauses)))

    @cached_property
    def awaited(self) -> list[Point]:
        """The points of the line for which the check waited."""
        return [point for point in self.line if self.was_awaited(point.segment)]

    def _step(self, before: Received, after: Received) -> float | None:
        earlier, later = before.media.lead, after.media.lead
        assert earlier is not None
        assert later is not None
        if earlier.name != later.name or earlier.hz != later.hz:
            return None
        assert earlier.first_dts is not None
        assert later.first_dts is not None
        return later.since(later.first_dts, earlier.first_dts) / later.hz

    def _jumps_at(self, seam: Seam) -> Iterator[Jump]:
        for before, after in seam.tracks():
            if after.is_timed and (ticks := self._jump(before, after)):
                yield Jump(after.name, seam, ticks / after.hz)

    def _jump(self, before: Track, after: Track) -> float:
        """Ticks that are missing between two parts of a track; 0 if it goes on."""
        assert before.last_dts is not None
        assert after.first_dts is not None
        rounding = ROUNDING_S * after.hz
        if before.due is not None:
            ticks = after.since(after.first_dts, before.due)
            allowed = max(_LOST_FRAME * before.frame, 1.5 * max(before.slack, after.slack), rounding)
            if after.cut_in:  # the frames that the cut divides come out of neither segment
                allowed = JUMP_S * after.hz
            return 0 if abs(ticks) <= allowed else ticks
        step = after.since(after.first_dts, before.last_dts)
        usual, longest = self._usual[after.name]
        if not usual or 0 < step <= longest + rounding:
            return 0
        return step - usual

    @cached_property
    def _usual(self) -> dict[str, tuple[float, float]]:
        """For each track, the usual and the longest distance of its samples; 0 if there are too few."""
        inside: dict[str, Counter[int]] = {}
        across: dict[str, list[int]] = {}
        for segment in self.media:
            for track in segment.media.tracks:
                inside.setdefault(track.name, Counter()).update(track.steps)
        for seam in self.seams:
            for before, after in seam.tracks():
                assert before.last_dts is not None
                assert after.first_dts is not None
                across.setdefault(after.name, []).append(after.since(after.first_dts, before.last_dts))
        return {name: _usual(steps, across.get(name, [])) for name, steps in inside.items()}


def middle(counts: Mapping[int, int]) -> int:
    """The median of counted numbers, of which there is at least one."""
    left = (sum(counts.values()) + 1) // 2
    for number in sorted(counts):
        left -= counts[number]
        if left <= 0:
            return number
    raise ValueError("nothing was counted")


def _span(track: Track) -> int:
    assert track.first_dts is not None
    assert track.last_dts is not None
    return track.since(track.last_dts, track.first_dts)


def _usual(inside: Counter[int], across: list[int]) -> tuple[float, float]:
    if inside.total() >= _ENOUGH:
        return middle(inside), max(1.5 * middle(inside), max(inside))
    # One sample per segment: the usual distance is the one from segment to segment.
    if len(across) >= _ENOUGH and median(across) > 0:
        return median(across), 3 * median(across)
    return 0, 0
