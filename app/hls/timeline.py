"""The timeline of a channel as HLS tells it: media segments with numbers, durations and parts, and gaps between them.

**The problem.** A playlist says how long each segment lasts before a player has seen it, counts without holes, and must
never contradict an earlier playlist. The channel's segments come in any length, may be missing, empty or truncated, and
their times may jump.

**The idea.** The timeline is told of the channel's segments in their order, and of the units that a scanner has found
in them (:mod:`~tricklecast.app.hls.units`). It keeps places, times and numbers, holds no media, and does no input or
output. Each segment of the channel becomes one media segment, several, a gap, or nothing.

**The cut follows from the segment alone.** A :class:`Rule` of two numbers says how long a media segment and a part may
be; it is fixed when the first playlist is made, and stands in the name of each file. Segments that ended before that
are kept as units, and named when the rule is known, as if they came only then. A :class:`Cutter` decides about a unit
by that unit and those before it. So every process that holds a segment finds the same bytes under a name, whether
it read the segment as it arrived, or an hour later from storage.

**The rest follows from what is listed.** Numbers, dates and discontinuities count from the segment with which the
playlist begins. A :class:`Mark` says how that one is counted. A timeline that begins there with the mark becomes the
same as the one that made it, from the bytes alone (docs/adr/0029).

The rules (draft-pantos-hls-rfc8216bis, sections 4.4 and 6.2):

- *Numbers.* A segment's media sequence number is its seq plus the *origin*, which follows from when the channel was
  created. A playlist's numbers have no holes. Where a segment becomes two media segments, all later numbers are one
  higher; where it becomes nothing (it is empty, and no time is missing), one lower. A later hole makes up for that with
  more or fewer gaps.
- *Parts.* A part ends where the first unit begins with which it would be longer than the part target. Only the last
  part of a media segment may be short. A picture that lasts longer than the target is a part as long as the target, and
  the rest of its time counts for the parts behind it: players go from part to part, so none may be left out.
- *Long segments.* A segment that is longer than the target becomes several media segments. Each ends before a key
  picture if the next key picture would come too late, or else before the unit that is too much. A single unit that is
  longer than the target raises the target, to :data:`~tricklecast.app.hls.units.MAX_FRAGMENT_S` at most: nobody can cut
  it, and without it the media would be lost.
- *Gaps.* A segment that no publisher wrote, that is empty, or that is not held any more is a gap as long as the time
  that is missing.
- *Discontinuities.* Media follow after a discontinuity if the segment before was truncated or lost, if their init
  segment is another one, or if their times jump by more than :data:`JUMP_S`.
- *Dates.* While the media go on, a segment's date is the date and duration of the segment before. If its own time of
  capture differs from that by less than a tenth of the duration, its own time is its date. So the dates of a film that
  is published faster than it plays advance as it plays, and a live channel follows its clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Final, NamedTuple

import orjson

from tricklecast.app.hls.units import WRAP_S, Scanner, Unit, duration_of
from tricklecast.trickle.media.containers import Container

LISTED_TARGETS: Final = 6
MAX_LISTED: Final = 128
"""A playlist names the newest segments: as many as last 6 target durations, and at most 128 of them."""

MAX_KEPT: Final = 4096
"""A timeline that keeps its segments has at most this many: two hours of those of 2 s."""

HELD_BACK_TARGETS: Final = 3
"""Target durations at the end of the playlist in which it names parts, and names lost segments as gaps (6.2.2)."""

VARIATION: Final = 1.2
"""Segments of 1, 2, 4 or 6 s may vary by a fifth and lead to the same target duration, and none of them is cut."""

PART_S: Final = 0.4
"""A part has as many units as fit into this time. A player stays three parts behind the live edge."""

MAX_PART_S: Final = 1.0
"""If a unit is longer than this, there are no parts."""

JUMP_S: Final = 0.5
"""Media that begin this much earlier or later than the media before have ended are behind a discontinuity."""

MAX_PARTS: Final = 256
"""A media segment of more parts than this is named without parts when it has ended."""

ROUNDING_S: Final = 0.49
"""A media segment may be longer than the target by this: its duration is rounded before it is compared (4.4.3.1)."""

CLOCK_SHARE: Final = 0.1
"""A segment's own time of capture is its date if it is this share of the duration of the segment before, or less, from
the time at which that one ended."""

TOLERANCE_S: Final = 1e-3
"""A part may be longer than the part target by this."""

MAX_EARLY_UNITS: Final = 50_000
"""Units that are kept until the live edge is reached and the rule is made. If there are more, it is made of these."""

MAX_GAPS: Final = 16
"""A hole of more segments than this is told as this many gaps."""


class Rule(NamedTuple):
    """How segments are cut into media segments and parts; as text it is a piece of each file's name: ``2.400``.

    Attributes:
        target_s: the target duration. part_ms: the part target in milliseconds; 0: there are no parts.
    """

    target_s: int
    part_ms: int

    def __str__(self) -> str:
        return f"{self.target_s}.{self.part_ms}"


def rule_for(longest_s: float, unit_s: float) -> Rule:
    """The rule for media with these longest durations.

    The target duration is the first of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... s with room for a segment that is longer by
    :data:`VARIATION`: 2 s for segments of 1 s and of 2 s, 3 s for those of 2.2 s, 6 s for those of 4 s. A target of 1 s
    is for shorter ones only, since it leaves a player without low latency 3 s to make up for a late segment.

    Args:
        longest_s: of the segments. unit_s: of the units; 0 if players cannot play parts of these media.
    """
    targets = (target for power in count() for target in (1 << power, 3 << power >> 1))
    target_s = next(one for one in targets if one + (one > 1) * ROUNDING_S >= VARIATION * longest_s - 1e-6)
    if not 0 < unit_s <= MAX_PART_S:
        return Rule(target_s, 0)
    units = max(1, math.floor(PART_S / unit_s + 1e-6))
    return Rule(target_s, math.ceil(units * unit_s * 1000 - 1e-3))


class Begun(NamedTuple):
    """How a segment of the channel is counted.

    Attributes:
        target_s: the target duration when it began. seq: of it. msn: the number of its first media segment.
        discontinuities: before it. breaks: 1 if it does not follow the one before, else 0.
        captured_us: its date. init: the name of an init segment that an earlier segment has brought; empty if none.
    """

    target_s: int
    seq: int
    msn: int
    discontinuities: int
    breaks: int
    captured_us: int
    init: str


class Mark(NamedTuple):
    """All that another timeline needs to go on, beside the bytes of the channel.

    Attributes:
        prefix: of the names of media, without the rule. init: the init segment of the first segment, in hexadecimal, if
            it has none of its own.
        rule_s, part_ms: the rule. origin: the media sequence number of seq 0.
        target_s, seq, msn, discontinuities, breaks, captured_us: of the first segment, as in :class:`Begun`.
        next_seq, next_msn, next_discontinuities: behind all segments that have ended.
    """

    prefix: str
    init: str
    rule_s: int
    part_ms: int
    origin: int
    target_s: int
    seq: int
    msn: int
    discontinuities: int
    breaks: int
    captured_us: int
    next_seq: int
    next_msn: int
    next_discontinuities: int

    @property
    def rule(self) -> Rule:
        """How segments are cut."""
        return Rule(self.rule_s, self.part_ms)

    @classmethod
    def read(cls, text: str) -> Mark | None:
        """The mark that :meth:`__str__` has written; ``None`` if there is none, or it cannot be read."""
        try:
            prefix, init, *numbers = orjson.loads(text)
            bytes.fromhex(init)
            is_sound = type(prefix) is str and all(type(one) is int and 0 <= one < 1 << 53 for one in numbers)
            return cls(prefix, init, *numbers) if is_sound else None
        except (ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return orjson.dumps(list(self)).decode()


class Part(NamedTuple):
    """An HLS part (partial segment).

    Attributes:
        at, end: its bytes in the channel's segment. duration: in seconds.
        independent: decoding can begin here.
        is_last: a media segment ends here, and the next one of the same segment begins. The part is empty if the cutter
            learns this only after it has made the part before.
        left_s: of a last part: seconds of its media segment that are in none of the parts.
    """

    at: int
    end: int
    duration: float
    independent: bool
    is_last: bool = False
    left_s: float = 0.0


class Picture(NamedTuple):
    """The first key picture of a media segment.

    Attributes:
        at, end: its bytes in the media segment, with all that a decoder needs but an init segment, or :attr:`tables`.
        tables: bytes of the channel's segment that a decoder needs before it, if it does not begin with such.
    """

    at: int
    end: int
    tables: tuple[int, int] | None = None


class MediaSegment:
    """A segment of the playlist: one of the channel's segments, a piece of one, or a gap."""

    __slots__ = (
        "at", "captured_us", "discontinuity", "duration", "end", "extension", "first_part", "gap", "init", "msn",
        "parts", "picture", "seq", "start",
    )  # fmt: skip

    def __init__(self, msn: int, seq: int, *, gap: bool) -> None:
        self.msn = msn  # its media sequence number
        self.seq = seq  # of the channel's segment, which holds the bytes
        self.gap = gap  # it cannot be had
        self.at = 0  # the byte in its name: 0, or where a later piece of the channel's segment begins
        self.start = self.end = (
            0  # its bytes in the channel's segment, without an init segment; the end when it has one
        )
        self.duration: float | None = None  # in seconds; None while it is being written
        self.parts: list[Part] = []  # those that are whole
        self.first_part = 0  # the number of the first one among all parts of the channel's segment
        self.discontinuity = False  # it does not follow the media segment before
        self.init = ""  # the name of its init segment, if it has one
        self.captured_us = 0  # its date, microseconds since 1970; 0 if it is a gap
        self.extension = "ts"  # of its URL
        self.picture: Picture | None = None  # its first key picture, when it has ended; None if it has none


class Cutter:
    """Joins the units of one segment of the channel to parts, and ends media segments.

    It decides about a unit by that unit and those before it. So it makes the same parts of a segment that it reads as
    the bytes arrive, and of one that it reads at once. The time of a unit that is longer than the part target goes on
    in the parts behind it. What is left of it at the end of the segment is in no part.

    Args:
        part_s: the part target; infinite if there are no parts: then each part is a media segment.
        limit_s: the longest media segment.
    """

    def __init__(self, part_s: float, limit_s: float) -> None:
        self._target_s, self._part_s = part_s, part_s + 1e-6
        self._limit_s = limit_s + 1e-6
        self._at: int | None = None  # where the next part begins
        self._next = self._begin = 0  # the unit that is looked at next, and the first one of the next part
        self._length = 0.0  # of the next part so far, in seconds, as all that follow
        self._passed = 0.0  # of the media segment so far
        self._since_key = self._between_keys = 0.0  # since the last key picture, and between the last two

    def cut(self, scan: Scanner, size: int | None) -> Iterable[Part]:
        """The parts that have become whole since the last call.

        Args:
            size: of the channel's segment when all of it has arrived, else ``None``.
        """
        units = scan.units
        if self._at is None:
            self._at = scan.start
        while self._next < len(units):
            if self._next + 1 < len(units):
                end = units[self._next + 1].at
            elif size is None:
                return  # sound may follow the last picture, and belongs to its part
            else:
                end = size
            length = duration_of(units, self._next)
            unit = units[self._next]
            if unit.is_key:
                self._between_keys, self._since_key = self._since_key, 0.0
            is_over = self._passed + max(length, self._between_keys if unit.is_key else 0.0) > self._limit_s
            if self._passed and is_over:
                yield self._part(units, unit.at, is_last=True)
                self._passed = 0.0
            elif self._begin < self._next and self._length + length > self._part_s:
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
        duration = self._length if self._length <= self._target_s + TOLERANCE_S else self._target_s
        left_s = self._length - duration
        part = Part(self._at, end, duration, units[self._begin].is_key, is_last, left_s if is_last else 0.0)
        self._at, self._begin, self._length = end, self._next, 0.0 if is_last else left_s
        return part


def lengths_of(scan: Scanner) -> list[float]:
    """The durations of the units of a finished segment."""
    lengths = [duration_of(scan.units, place) for place in range(len(scan.units))]
    lengths[-1] += scan.still_s
    return lengths


def picture_of(scan: Scanner, begin: int, end: int) -> Picture | None:
    """The first key picture between two bytes of a segment at which media segments begin and end."""
    units = scan.units
    first = bisect_left(units, begin, key=lambda unit: unit.at)
    for place in range(first, len(units)):
        unit = units[place]
        if unit.at >= end:
            break
        if unit.is_key:
            at = begin if place == first else unit.at
            stop = min(end, units[place + 1].at if place + 1 < len(units) else end)
            has_tables = at <= scan.tables[0] and scan.tables[1] <= stop
            return Picture(at - begin, stop - begin, None if has_tables or not scan.tables[1] else scan.tables)
    return None


def _cutter(rule: Rule) -> Cutter:
    return Cutter(rule.part_ms / 1000 or math.inf, rule.target_s + ROUNDING_S)


@dataclass(slots=True)
class EarlySegment:
    """A segment that begins before the rule is known. It is named when the rule is known, as if it came only then."""

    missed: int  # Timeline._missed before it
    breaks: bool  # Timeline._breaks before it
    begin: Callable[[], None]  # calls Timeline.begin() once more
    scan: Scanner
    size: int = 0
    complete: bool = False


class Timeline:
    """The media segments and parts of one epoch of a channel, with their numbers, as its playlist names them.

    Args:
        is_held: whether a segment of the channel can still be had.
        keeps: no segment leaves the playlist, which has no parts.
    """

    def __init__(self, is_held: Callable[[int], bool], *, keeps: bool = False) -> None:
        self.segments: deque[MediaSegment] = deque()  # that the playlist names; the last one may be open
        self.rule: Rule | None = None  # None until the first playlist can be made
        self.target_s = 0  # the target duration; 0 until the live edge is reached
        self.origin = 0  # the media sequence number of seq 0
        self.next_msn = 0  # the number behind all media segments; 0 while there are none
        self.parts_from = 0  # the number of the first media segment whose parts the playlist names
        self.discontinuities = 0  # before the first of the segments
        self.version = 0  # counts the changes
        self._is_held, self._keeps = is_held, keeps
        # The segments of the channel from the one on with which the playlist begins.
        self.begun: deque[Begun] = deque()
        self._left: deque[MediaSegment] = deque(maxlen=MAX_LISTED)  # the newest that the playlist no longer names
        self._mark: Mark | None = None  # with which it begins, until its first segment has begun
        # Between the last media segment and the next one.
        self._missed = 0  # segments of the channel that have nothing
        self._breaks = False  # the media do not go on
        self._expected: float | None = None  # the media's own time at which they go on
        self._due = 0, 0  # the date at which they go on, and by how much a time of capture may differ, in microseconds
        # For the rule.
        self._unit_s = 0.0  # the longest unit so far
        self._is_whole_only = False  # players cannot play parts of these media
        self.earlier: Rule | None = None  # of an earlier timeline of the channel
        self._longest_s = 0.0  # of the segments so far
        self._early: list[EarlySegment] = []  # that ended before the rule was known
        self._early_units = 0  # of all of these
        self._opened: EarlySegment | None = None  # that has begun, and has not ended
        # Of the channel's segment that is open.
        self._cutter: Cutter | None = None
        self._is_partless = False  # its open media segment will be named without parts
        self._passed_s = 0.0  # of its media segments that have ended
        self._open_s = 0.0  # of the parts of the open one

    # Asked from above.

    @property
    def last(self) -> MediaSegment | None:
        """The newest media segment."""
        return self.segments[-1] if self.segments else None

    @property
    def part_s(self) -> float:
        """The part target; 0: there are no parts."""
        return 0.0 if self.rule is None or self._keeps else self.rule.part_ms / 1000

    @property
    def next_discontinuities(self) -> int:
        """The discontinuity sequence number of the last segment."""
        return self.discontinuities + sum(one.discontinuity for one in self.segments)

    def has(self, msn: int, part: int | None) -> bool:
        """Whether the playlist has this media segment, or this part of it; behind its last part comes the next segment.

        A player that names no part waits for the first one. Safari asks so for a segment that is about to begin.
        """
        for one in reversed(self.segments):
            if one.msn == msn:
                if part is None and self.part_s:
                    part = 0
                if part is not None and part < len(one.parts):
                    return True
                return one.duration is not None and (not part or not self.part_s or self.has(msn + 1, 0))
        return msn < self.next_msn

    def find(self, seq: int, at: int, part: int | None) -> tuple[int, int] | None:
        """The bytes of a media segment or part in the channel's segment: from, to; ``None`` if there is none.

        A media segment can be found for a time after it has left the playlist (6.2.2).
        """
        for one in chain(reversed(self.segments), self._left):
            if one.seq != seq or one.gap:
                continue
            if part is not None and one.first_part <= part < one.first_part + len(one.parts):
                found = one.parts[part - one.first_part]
                return found.at, found.end
            if part is None and one.at == at and one.duration is not None:
                return one.start, one.end
        return None

    # What happens to the channel, in the order of its segments.

    def count_from(self, origin: int, discontinuities: int, earlier: Rule | None) -> None:
        """Set where both sequence numbers begin, before the first media.

        Args:
            earlier: the rule of an earlier timeline of the channel. It stays unless a segment is too long for it.
        """
        self.origin, self.discontinuities, self.earlier = origin, discontinuities, earlier

    def resume(self, mark: Mark) -> None:
        """Go on as the timeline that made this mark: the next segment that begins is the one that it names."""
        self.rule, self.target_s, self.origin, self._mark = mark.rule, mark.target_s, mark.origin, mark

    def adopt(self, other: Timeline) -> None:
        """Cut and count as another timeline of the channel does, which has its rule."""
        assert other.rule is not None, "the other one is ready"
        self.rule, self.target_s, self.origin = other.rule, other.target_s, other.origin

    def miss(self, segments: int, *, breaks: bool = False) -> None:
        """Note that the next segments of the channel have no media to name.

        Args:
            breaks: media are lost with them, so that the next ones do not follow.
        """
        self._missed += segments
        self._breaks |= breaks

    def begin(self, seq: int, scan: Scanner, container: Container, init: str, captured_us: int) -> None:
        """Begin a segment, whose first unit is known, behind gaps for the time that is missing before it.

        Args:
            init: the name of its init segment, if it has one.
            captured_us: when it was captured, or else when it arrived, microseconds since 1970.
        """
        if self.rule is None:
            again = partial(self.begin, seq, scan, container, init, captured_us)
            self._opened = EarlySegment(self._missed, self._breaks, again, scan)
            self._missed, self._breaks = 0, False
            return
        self._cutter, self._is_partless = None, False
        self._passed_s = self._open_s = 0.0
        last = self.last
        discontinuity = self._breaks or (last is not None and init != last.init)
        hole = 0.0 if self._expected is None else scan.units[0].time - self._expected
        if container is Container.MPEGTS:
            hole = (hole + WRAP_S / 2) % WRAP_S - WRAP_S / 2
        if self._expected is not None:
            number = self._gaps(seq, hole)
            if number and hole > 0.0 and hole / number <= self.target_s:
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
        is_film = within_us and not discontinuity and abs(captured_us - due_us) > within_us
        one.captured_us = due_us if is_film else captured_us
        if (mark := self._mark) is not None:
            self._mark = None
            one.msn, one.discontinuity, one.captured_us = mark.msn, bool(mark.breaks), mark.captured_us
            self.next_msn, self.discontinuities = mark.msn + 1, mark.discontinuities
        before = self.next_discontinuities - one.discontinuity
        counted = seq, one.msn, before, int(one.discontinuity), one.captured_us
        self.begun.append(Begun(self.target_s, *counted, "" if scan.start else init))
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
            self._open_s += part.duration + part.left_s
            if self.part_s and part.end > part.at:
                self._is_partless |= len(one.parts) == MAX_PARTS
                if not self._is_partless:
                    one.parts.append(part)
            if part.is_last:
                first = one.first_part + len(one.parts) + self._is_partless
                self._end(one, self._open_s, part.end, scan)
                following = self._add(one.seq)
                following.first_part, following.at, following.start = first, part.end, part.end
                following.init, following.extension = one.init, one.extension
                following.captured_us, _ = self._due
            self.version += 1

    def close(self, scan: Scanner, size: int, *, complete: bool) -> None:
        """The open segment has ended, and all its units are known.

        Args:
            size: up to where a decoder can use it. complete: its publisher ended it.
        """
        if self.rule is None:
            self._close_early(scan, size, complete=complete)
        else:
            self._close(scan, size, complete=complete)

    def lose(self, seq: int) -> None:
        """Note that a segment was evicted before all of it was scanned, or broke off in its first fragment."""
        if self._opened is not None:
            self._missed, self._opened = self._opened.missed, None
        last = self.last
        if last is not None and last.seq == seq:
            last.gap, last.duration, last.parts = True, self._usual(), []
            self.version += 1
        else:
            self._missed += 1
        self._breaks = True

    def settle(self) -> None:
        """Make the rule and the target, when the live edge is reached at first, and name the segments until there."""
        if self.rule is not None or not self._early:
            return
        rule = self.earlier
        if rule is None or self._longest_s > rule.target_s + ROUNDING_S:
            rule = rule_for(self._longest_s, 0.0 if self._is_whole_only else self._unit_s)
        self.rule, self.target_s = rule, rule.target_s
        missed, breaks, self._missed, self._breaks = self._missed, self._breaks, 0, False
        for one in self._early:
            self._missed, self._breaks = one.missed, self._breaks or one.breaks
            one.begin()
            self.cut(one.scan, one.size)
            self._close(one.scan, one.size, complete=one.complete)
        self._missed, self._breaks = missed, self._breaks or breaks
        self._early.clear()
        self.version += 1

    # Mechanics.

    def _close(self, scan: Scanner, size: int, *, complete: bool) -> None:
        lengths = lengths_of(scan)
        self._is_partless |= scan.still_s < 0
        self._expected = scan.units[-1].time + lengths[-1]
        self._breaks = not complete
        self._end(self.segments[-1], sum(lengths) - self._passed_s, size, scan)
        self.version += 1

    def _close_early(self, scan: Scanner, size: int, *, complete: bool) -> None:
        assert self._opened is not None, "a segment begins before it ends"
        one, self._opened = self._opened, None
        one.size, one.complete = size, complete
        self._early.append(one)
        self._early_units += len(scan.units)
        lengths = lengths_of(scan)
        self._longest_s, self._unit_s = max(self._longest_s, sum(lengths)), max(self._unit_s, *lengths)
        self._is_whole_only |= scan.is_whole_only
        if len(self._early) >= MAX_LISTED or self._early_units >= MAX_EARLY_UNITS:
            self.settle()

    def _end(self, one: MediaSegment, duration: float, end: int, scan: Scanner) -> None:
        """A media segment has ended."""
        one.duration, one.end, one.picture = duration, end, picture_of(scan, one.start, end)
        if self._is_partless:  # its parts are too many, or longer together than it is
            one.parts, self._is_partless = [], False
        self._passed_s += duration
        self._open_s = 0.0
        self._due = one.captured_us + int(duration * 1e6), int(CLOCK_SHARE * duration * 1e6)
        self.target_s = max(self.target_s, math.floor(duration + 0.5))
        self._trim()

    def _usual(self) -> float:
        lengths = [one.duration for one in self.segments if one.duration is not None]
        return min(lengths[-1] if lengths else 1.0, self.target_s)

    def _gaps(self, seq: int, hole: float) -> int:
        """The number of gaps for a hole before this segment. With them, its number is its seq plus the origin."""
        if not self._missed:
            return 0
        number = min(max(1, self.origin + seq - self.next_msn), MAX_GAPS)
        return number if hole / number <= self.target_s else min(self._missed, MAX_GAPS)

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
        if self._keeps:
            self._trim_kept()
            return
        for one in segments:
            if one.duration is not None and not one.gap and not self._is_held(one.seq):
                one.gap, one.parts = True, []
        rest = sum(one.duration or 0.0 for one in segments)
        while len(segments) > 1:
            rest -= segments[0].duration or 0.0
            enough = (HELD_BACK_TARGETS if segments[0].gap else LISTED_TARGETS) * self.target_s
            if rest < enough and len(segments) <= MAX_LISTED:
                break
            gone = segments.popleft()
            self.discontinuities += gone.discontinuity
            gone.parts = []
            self._left.append(gone)
        while len(self.begun) > 1 and self.begun[1].msn <= segments[0].msn:
            self.begun.popleft()
        since = 0.0
        for one in reversed(segments):
            if since > HELD_BACK_TARGETS * self.target_s:
                break
            self.parts_from = one.msn
            since += one.duration or 0.0

    def _trim_kept(self) -> None:
        """Let go of what is too much, and of marks; the first segments are gaps if they are not held any more."""
        segments = self.segments
        self.begun.clear()
        while len(segments) > MAX_KEPT:
            self.discontinuities += segments.popleft().discontinuity
        for one in segments:  # storage lets go of the oldest first
            if one.duration is None or (not one.gap and self._is_held(one.seq)):
                break
            one.gap = True
