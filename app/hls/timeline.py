"""The timeline of a channel as HLS tells it: media segments with numbers, durations and parts, and gaps between them.

It is pure: it is told of the units that a scanner has found (:mod:`app.hls.units`), keeps places, times and numbers,
and holds no media. Rules kept here (draft-pantos-hls-rfc8216bis, sections 4.4 and 6.2):

- The media sequence number of a segment is its seq, counted from the channel's *origin*, which follows from when the
  channel was created. So every process that holds the channel gives a segment the same number, and so does a server
  that was restarted with its data directory. Numbers of a playlist have no holes. Where a segment is none (nothing of
  it can be had, and no time is missing), or several (it was cut), the numbers behind it therefore differ from that
  rule by one each; gaps that are told later make up for it. A process that begins behind such a place does not know
  of it.
- A part ends at the last unit with which it is no longer than the part target. Only the last one of a segment may be
  short.
- A segment that nobody wrote, that is empty or is not held any more is a gap, as long as the time that is missing. The
  media behind it follow in time, or after a discontinuity. So they do after a truncated segment, another init segment,
  and a jump of the times.
- The target duration is half as long again as the longest segment that the first playlist names, and stays. A segment
  that is longer than that becomes several media segments, which follow each other: each ends before a key picture if
  the next one would come too late, or else before the unit that is too much. Only a single unit that is longer than
  the target raises it, to :data:`tricklecast.app.hls.units.MAX_FRAGMENT_S` at most: a fragment cannot be cut, and
  without it the media would be lost.
- The program date of a segment is that of the one before and its duration, as long as the media go on, or its own if
  that differs by less than a tenth of the duration: a film that is published faster than it plays advances as it plays.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, count, pairwise
from typing import Final, NamedTuple

from tricklecast.app.hls.units import WRAP_S, Scanner, Unit, duration_of
from tricklecast.trickle.media.containers import Container

LISTED: Final = 6
MAX_LISTED: Final = 128
"""A playlist names the newest segments: as many as last 6 target durations, and at most 128 of them."""

HELD_BACK: Final = 3
"""Target durations from the end of the playlist in which it names parts, and gone segments as gaps (6.2.2)."""

TARGET_SHARE: Final = 1.25
"""The target duration is the first of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... seconds that is so many times the longest
segment: usual segments, of 1, 2, 4 or 6 s, may vary by a fifth, and lead to the same one."""

PART_S: Final = 0.4
"""Longest part: it has as many units as fit into that. A player keeps three parts behind the live edge."""

MAX_PART_S: Final = 1.0
"""Where a unit is longer than this there are no parts."""

JUMP_S: Final = 0.5
"""Media that begin this much earlier or later than they should do not follow those before."""

MAX_PARTS: Final = 256
"""A media segment of more parts than this is named without them, when it has ended."""

ROUNDING_S: Final = 0.49
"""A media segment may be longer than the target by this: its duration is rounded before it is compared (4.4.3.1)."""

CLOCK_SHARE: Final = 0.1
"""A segment was captured when it says so, or when it arrived, if that is no further than this share of the duration of
the one before from where the one before ended."""

TOLERANCE_S: Final = 1e-3
"""A part that is longer than the part target by more than this is none, and its segment is named without parts."""

MAX_TO_CUT: Final = 50_000
"""Units that are kept until the rule is known. It is known at the live edge; behind more units it is made of these."""

MAX_GAPS: Final = 16
"""A hole of more segments is told as so many gaps."""


class Rule(NamedTuple):
    """How segments are cut: it follows from the durations of media, and stays for the life of a playlist.

    It stands in the names of media. So a name means the same bytes at every server, whatever each has seen before.

    Attributes:
        target_s: no media segment is longer, unless it is a single unit. part_ms: of parts, 0 if there are none.
    """

    target_s: int
    part_ms: int

    def __str__(self) -> str:
        return f"{self.target_s}.{self.part_ms}"


def rule_for(longest_s: float, unit_s: float) -> Rule:
    """The rule for media whose longest segment and longest unit last so long; a ``unit_s`` of 0 is for no parts.

    Nearly the same durations lead to the same rule: segments of 1.7 to 2.4 s to targets of 3 s.
    """
    targets = (target for power in count() for target in (1 << power, 3 << power >> 1))
    target_s = next(target for target in targets if target >= TARGET_SHARE * longest_s - 1e-6)
    if not 0 < unit_s <= MAX_PART_S:
        return Rule(target_s, 0)
    units = max(1, math.floor(PART_S / unit_s + 1e-6))
    return Rule(target_s, math.ceil(units * unit_s * 1000 - 1e-3))


class Part(NamedTuple):
    """A part of a segment: bytes, and seconds.

    Attributes:
        independent: decoding can begin here.
        is_last: the media segment ends with it; it is empty if that is known only after the part before was made.
    """

    at: int
    end: int
    duration: float
    independent: bool
    is_last: bool = False


class MediaSegment:
    """A segment of the playlist: one of the channel's segments, or a piece of one.

    Attributes:
        msn: its media sequence number. seq: of the channel's segment, which holds the bytes.
        cut: where it begins in that segment, if others of the same one come before; else 0. first: the number of its
            first part among those of the segment.
        start: where its media begin, behind an init segment; size: where they end, when it has ended.
        duration: in seconds; ``None`` while it is being written.
        parts: those that are whole. gap: it cannot be had. discontinuity: it does not follow the one before.
        init: a name for its init segment, if it has one. at_us: when it was captured, microseconds since 1970; 0 if it
            is a gap. extension: of its URL.
    """

    __slots__ = (
        "at_us", "cut", "discontinuity", "duration", "extension", "first", "gap", "init", "msn", "parts", "seq", "size",
        "start",
    )  # fmt: skip

    def __init__(self, msn: int, seq: int, *, gap: bool) -> None:
        self.msn, self.seq, self.gap = msn, seq, gap
        self.start = self.size = self.at_us = self.cut = self.first = 0
        self.duration: float | None = None
        self.parts: list[Part] = []
        self.discontinuity = False
        self.init = ""
        self.extension = "ts"


class Cutter:
    """Makes parts of units.

    It decides about a unit by that one and those before it. So it makes the same parts of a segment that is read as it
    arrives, and of one that is read at once.

    Args:
        part_s: the part target; infinite if there are no parts: then each part is a media segment.
        limit_s: how long a media segment may be.
    """

    def __init__(self, part_s: float, limit_s: float) -> None:
        self._part_s = part_s + 1e-6
        self._limit_s = limit_s + 1e-6
        self._at: int | None = None  # where the next part begins
        self._next = self._begin = 0  # the unit that is looked at next, and the first one of the next part
        self._length = 0.0  # of the units of the next part so far
        # How long the media segment is already, what has passed since its last key picture, and how far apart the two
        # last key pictures were.
        self._passed = self._since_key = self._between_keys = 0.0

    def cut(self, scan: Scanner, size: int | None) -> Iterable[Part]:
        """The parts that have become whole.

        Args:
            size: of the whole segment, when it has ended.
        """
        units = scan.units
        if self._at is None:
            self._at = scan.start
        while self._next < len(units):
            last = self._next + 1 == len(units)
            length = duration_of(units, self._next)
            end = scan.whole if last else units[self._next + 1].at
            if last and size is None and (units[-1].duration is None or end <= units[-1].at):
                return
            unit = units[self._next]
            if unit.is_key:
                self._between_keys, self._since_key = self._since_key, 0.0
            is_over = self._passed + max(length, self._between_keys if unit.is_key else 0.0) > self._limit_s
            if self._passed and is_over:
                yield self._part(units, unit.at, is_last=True)
                self._passed = 0.0
            elif self._length and self._length + length > self._part_s:
                yield self._part(units, unit.at)
            self._next += 1
            self._length += length
            self._passed += length
            self._since_key += length
            if self._length + length > self._part_s:
                yield self._part(units, end)
        if size is not None and self._begin < len(units):
            yield self._part(units, size)

    def _part(self, units: list[Unit], end: int, *, is_last: bool = False) -> Part:
        assert self._at is not None, "something was cut"
        part = Part(self._at, end, self._length, units[self._begin].is_key, is_last)
        self._at, self._begin, self._length = end, self._next, 0.0
        return part


def _cutter(rule: Rule) -> Cutter:
    return Cutter(rule.part_ms / 1000 or math.inf, rule.target_s + ROUNDING_S)


class Timeline:
    """The media segments and parts of one epoch of a channel, with their numbers, as its playlist names them.

    Args:
        is_held: whether a segment of the channel can still be had.

    Attributes:
        origin: the media sequence number of seq 0.
        segments: the media segments that the playlist names; the last one may be open. parts_from: the number of the
            first one of which it names the parts.
        discontinuities: discontinuities before the first of them.
        rule: by which segments are cut; ``None``: not known yet.
        target_s: the target duration, in whole seconds; 0 until the live edge is reached.
        next_msn: the media sequence number behind all that are there; 0 as long as there are none.
        version: counts the changes.
    """

    def __init__(self, is_held: Callable[[int], bool]) -> None:
        self.origin = 0
        self.segments: deque[MediaSegment] = deque()
        self.parts_from = 0
        self.discontinuities = 0
        self.rule: Rule | None = None
        self.target_s = 0
        self.next_msn = 0
        self.version = 0
        self._is_held = is_held
        self._left: deque[MediaSegment] = deque(maxlen=MAX_LISTED)  # the newest that the playlist names no more
        self._missed = 0  # segments of the channel behind the last one here of which there is nothing
        self._breaks = False  # the next segment does not follow the last one
        self._expected: float | None = None  # the media's time at which the next segment begins, if they go on
        # When the next segment was captured, if the media go on, and how far off that may be, in microseconds.
        self._due = 0, 0
        self._unit_s = 0.0  # the longest unit so far
        # Until the rule is known: the segments that have ended, with their scanners and sizes, and how many units these
        # have together.
        self._to_cut: list[tuple[MediaSegment, Scanner, int]] = []
        self._units_to_cut = 0
        self._is_whole_only = False  # players cannot play parts of these media
        # Of the channel's segment that is open: what makes parts of it, whether its parts are given up, and how many
        # seconds its media segments have that have ended, and the parts of the open one.
        self._cutter: Cutter | None = None
        self._uncut = False
        self._passed_s = self._open_s = 0.0

    # Asked from above.

    @property
    def last(self) -> MediaSegment | None:
        """The newest one."""
        return self.segments[-1] if self.segments else None

    @property
    def part_s(self) -> float:
        """The part target; 0: there are no parts."""
        return 0.0 if self.rule is None else self.rule.part_ms / 1000

    @property
    def following_origin(self) -> int:
        """The origin by which segments behind the last one have the numbers that they will have."""
        last = self.last
        return self.origin if last is None else max(self.origin, self.next_msn - last.seq - 1)

    @property
    def following_discontinuities(self) -> int:
        """The discontinuity sequence number of the last segment."""
        return self.discontinuities + sum(one.discontinuity for one in self.segments)

    def has(self, msn: int, part: int | None) -> bool:
        """Whether the playlist has this segment, or this part of it; past its last part means the next segment.

        A player that names no part waits for the first one: so Safari asks for a segment that is about to begin.
        """
        for one in self.segments:
            if one.msn == msn:
                if part is None and self.part_s:
                    part = 0
                if part is not None and part < len(one.parts):
                    return True
                return one.duration is not None and (not part or not self.part_s or self.has(msn + 1, 0))
        return msn < self.next_msn

    def find(self, seq: int, cut: int, part: int | None) -> tuple[int, int] | None:
        """Where a media segment, or a part of one, begins and ends in the channel's segment; ``None`` if there is none.

        It may have left the playlist already (6.2.2).
        """
        for one in chain(reversed(self.segments), self._left):
            if one.seq != seq or one.gap:
                continue
            if part is not None and one.first <= part < one.first + len(one.parts):
                found = one.parts[part - one.first]
                return found.at, found.end
            if part is None and one.cut == cut and one.duration is not None:
                return one.start, one.size
        return None

    # What happens to the channel, in the order of its segments.

    def count_from(self, origin: int, discontinuities: int, rule: Rule | None) -> None:
        """Media will come: the first one of both sequence numbers is known, and maybe the rule of an earlier time."""
        self.origin, self.discontinuities, self.rule = origin, discontinuities, rule

    def miss(self, segments: int, *, breaks: bool = False) -> None:
        """Note segments without media.

        Args:
            breaks: there were media, so that those behind do not follow.
        """
        self._missed += segments
        self._breaks |= breaks

    def begin(self, seq: int, scan: Scanner, container: Container, init: str, at_us: int) -> None:
        """The first unit of a segment is known: its place in time, and what is missing before it.

        Args:
            init: a name for its init segment, if it has one.
            at_us: when it was captured, as it says, or when it arrived, microseconds since 1970.
        """
        self._cutter, self._uncut = None, False
        self._passed_s = self._open_s = 0.0
        last = self.last
        discontinuity = self._breaks or (last is not None and init != last.init)
        hole = 0.0 if self._expected is None else scan.units[0].time - self._expected
        if container is Container.MPEGTS:
            hole = (hole + WRAP_S / 2) % WRAP_S - WRAP_S / 2
        if self._expected is not None:
            number = self._gaps(seq, hole)
            if number and hole > 0.0 and (not self.target_s or hole / number <= self.target_s):
                self._add_gaps(seq, number, hole / number)
            elif number and not -JUMP_S < hole <= JUMP_S:
                self._add_gaps(seq, number, self._usual())
                discontinuity = True
            else:
                discontinuity |= abs(hole) > JUMP_S
        self._missed, self._breaks = 0, False
        one = self._add(seq)
        one.discontinuity = discontinuity and len(self.segments) > 1
        one.init, one.start = init, scan.start
        if container is Container.FMP4:
            # Shaka takes the type of sound from the name, and stops where that changes with its other guesses.
            one.extension = "m4s" if scan.has_video else "m4a"
        due_us, within_us = self._due
        due_us += int(hole * 1e6)
        one.at_us = due_us if within_us and not discontinuity and abs(at_us - due_us) > within_us else at_us
        self.version += 1

    def cut(self, scan: Scanner, size: int | None) -> None:
        """Add the parts of the open segment that have become whole, and end a media segment that is long enough.

        Args:
            size: of the channel's segment up to where a decoder can use it, when all of it is known.
        """
        if self.rule is None:
            return
        self._cutter = self._cutter or _cutter(self.rule)
        for part in self._cutter.cut(scan, size):
            one = self.segments[-1]
            self._open_s += part.duration
            if self.part_s and part.end > part.at:
                self._uncut |= not self._is_fit(part) or len(one.parts) == MAX_PARTS
                if not self._uncut:
                    one.parts.append(part)
            if part.is_last:
                first = one.first + len(one.parts) + self._uncut
                self._end(one, self._open_s, part.end)
                following = self._add(one.seq)
                following.first, following.cut, following.start = first, part.end, part.end
                following.init, following.extension = one.init, one.extension
                following.at_us, _ = self._due
            self.version += 1

    def close(self, scan: Scanner, size: int, *, complete: bool) -> None:
        """The open segment has ended, and all its units are known.

        Args:
            size: up to where a decoder can use it. complete: its publisher ended it.
        """
        units = scan.units
        lengths = [duration_of(units, place) for place in range(len(units))]
        lengths[-1] += scan.still_s
        self._uncut |= scan.still_s != 0
        self._expected = units[-1].time + lengths[-1]
        self._breaks = not complete
        self._unit_s = max(self._unit_s, *lengths)
        self._is_whole_only |= scan.is_whole_only
        self._end(self.segments[-1], sum(lengths) - self._passed_s, size)
        if self.rule is None:
            self._to_cut.append((self.segments[-1], scan, size))
            self._units_to_cut += len(units)
            if len(self._to_cut) >= MAX_LISTED or self._units_to_cut >= MAX_TO_CUT:
                self.settle()
        self.version += 1

    def lose(self, seq: int) -> None:
        """A segment was evicted before all of it was looked at, or broke off in its first fragment."""
        last = self.last
        if last is not None and last.seq == seq:
            last.gap, last.duration, last.parts = True, self._usual(), []
            self.version += 1
        else:
            self._missed += 1
        self._breaks = True

    def settle(self) -> None:
        """The live edge is reached for the first time: the durations that are known now tell the rule and the target.

        Gaps were told before the target was known. The media behind one that is longer follow after a discontinuity.
        """
        lengths = [one.duration for one in self.segments if one.duration is not None and not one.gap]
        if self.target_s or not lengths:
            return
        longest = max(lengths)
        if self.rule is None:
            self.rule = rule_for(longest, 0.0 if self._is_whole_only else self._unit_s)
            for one, scan, size in self._to_cut:
                parts = list(_cutter(self.rule).cut(scan, size))
                if self.part_s and not scan.still_s and len(parts) <= MAX_PARTS and all(map(self._is_fit, parts)):
                    one.parts = parts
            self._to_cut.clear()
        self.target_s = max(self.rule.target_s, math.floor(longest + 0.5))
        usual = self._usual()
        for one, following in pairwise(self.segments):
            if one.gap and one.duration is not None and one.duration > self.target_s:
                one.duration, following.discontinuity = usual, True
        self._trim()
        self.version += 1

    # Mechanics.

    def _is_fit(self, part: Part) -> bool:
        return part.duration <= self.part_s + TOLERANCE_S

    def _end(self, one: MediaSegment, duration: float, size: int) -> None:
        """A media segment has ended."""
        one.duration, one.size = duration, size
        if self._uncut:  # there would be more, or longer ones
            one.parts, self._uncut = [], False
        self._passed_s += duration
        self._open_s = 0.0
        self._due = one.at_us + int(duration * 1e6), int(CLOCK_SHARE * duration * 1e6)
        if self.target_s:
            self.target_s = max(self.target_s, math.floor(duration + 0.5))
        self._trim()

    def _usual(self) -> float:
        lengths = [one.duration for one in self.segments if one.duration is not None]
        return min(lengths[-1] if lengths else 1.0, self.target_s or math.inf)

    def _gaps(self, seq: int, hole: float) -> int:
        """As how many gaps a hole before this segment is told: so many that the segment has its own number again."""
        if not self._missed:
            return 0
        number = min(max(1, self.origin + seq - self.next_msn), MAX_GAPS)
        return number if not self.target_s or hole / number <= self.target_s else min(self._missed, MAX_GAPS)

    def _add_gaps(self, seq: int, number: int, duration: float) -> None:
        """Name the segments before this one as gaps."""
        for place in range(number):
            before = self.last
            one = self._add(seq - number + place, gap=True)
            one.duration = duration
            if before is not None:
                one.init, one.extension = before.init, before.extension

    def _add(self, seq: int, *, gap: bool = False) -> MediaSegment:
        if not self.segments:
            self.next_msn = self.origin + seq
        one = MediaSegment(self.next_msn, seq, gap=gap)
        self.next_msn += 1
        self.segments.append(one)
        return one

    def _trim(self) -> None:
        """Let go of the first segments, as soon as enough others are there; those that are not held are gaps."""
        segments = self.segments
        for one in segments:
            if one.duration is not None:
                one.gap = one.gap or not self._is_held(one.seq)
        rest = sum(one.duration or 0.0 for one in segments)
        while len(segments) > 1 and self.target_s:
            rest -= segments[0].duration or 0.0
            enough = (HELD_BACK if segments[0].gap else LISTED) * self.target_s
            if rest < enough and len(segments) <= MAX_LISTED:
                break
            gone = segments.popleft()
            self.discontinuities += gone.discontinuity
            gone.parts = []
            self._left.append(gone)
        since = 0.0
        for one in reversed(segments):
            if since > HELD_BACK * self.target_s:
                break
            self.parts_from = one.msn
            since += one.duration or 0.0
