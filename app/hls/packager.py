"""What HLS makes of a channel: media segments with durations and parts, counted without end.

A *packager* follows a channel that somebody has asked a playlist of, as a reader follows it: a cursor in one segment at
a time. It looks at each byte once (:mod:`app.hls.units`), and keeps numbers only: the media stay where they are,
in the channel's window. It is forgotten when nobody has asked for :data:`IDLE_S`.

Rules kept here (draft-pantos-hls-rfc8216bis, sections 4.4 and 6.2):

- Media sequence numbers never go backwards, over epochs and restarts of the server: a packager begins at the number of
  eighths of a second since 2026, or behind what the name had before if that is more. Segments are longer than that, and
  a server takes longer to start than the number of the backlog lasts. Discontinuity sequence numbers go on over
  epochs; they begin at 1, since players count up to them.
- A part ends at the last unit with which it is no longer than the part target. Only the last one of a segment may be
  short.
- A segment that nobody wrote, that is empty or was evicted is a gap, as long as the time that is missing. The media
  behind it follow in time, or after a discontinuity. So they do after a truncated segment, another init segment, and a
  jump of the times.
- The target duration is half as long again as the longest segment that the first playlist names, and stays. A segment
  that is longer than that becomes several media segments, which follow each other: each ends before a key picture if
  the next one would come too late, or else before the unit that is too much. Only a single unit that is longer than
  the target raises it, to :data:`tricklecast.app.hls.units.MAX_FRAGMENT_S` at most: a fragment cannot be cut,
  and without it the media would be lost.
- The program date of a segment is that of the one before and its duration, as long as the media go on, or its own if
  that differs by less than a tenth of the duration: a film that is published faster than it plays advances as it plays.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from hashlib import blake2b
from itertools import chain
from typing import Final, NamedTuple, Protocol

from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import COMPLETE, SKIPPED, Segment
from tricklecast.app.core.state import Channel, Serve, Wait
from tricklecast.app.hls.units import WRAP_S, Scanner, Unit, duration_of, scanner
from tricklecast.trickle.media.clock import read_prft, read_temi
from tricklecast.trickle.media.containers import SNIFF_BYTES, Container, sniff

IDLE_S: Final = 60.0
"""A packager is forgotten when nobody has asked for so long. A player asks at least once in a target duration."""

BACKLOG: Final = 6
BACKLOG_BYTES: Final = 32 << 20
"""With how many of a channel's closed segments the first playlist begins, at most."""

LISTED: Final = 6
MAX_LISTED: Final = 128
"""A playlist names what lasts so many target durations, and so many segments at most."""

KEPT: Final = 3
"""For so many target durations from the end of the playlist its parts are named, and gone segments as gaps (6.2.2)."""

PART_S: Final = 0.4
"""Longest part. The longest segment is divided into equal parts that are no longer. A player keeps three of them behind
the live edge."""

MAX_PART_S: Final = 1.0
"""Where a unit is longer than this there are no parts."""

COUNTED_FROM_US: Final = 1_767_225_600_000_000
COUNTED_US: Final = 125_000
"""A packager begins to count at the number of these intervals since this time. It has 31 bits until 2034; some players
have no more."""

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

MAX_GAPS: Final = 16
"""A hole of more segments is told as so many gaps."""

HEAD_BYTES: Final = 64 << 10
"""At most so many bytes of a segment are kept until its first unit is found: the time of capture stands among them."""

RUN_BYTES: Final = 16 << 10
"""So many bytes are looked at in one turn of the event loop: a tenth of a millisecond, or 7 if they are nothing but the
smallest boxes."""

ROUNDS: Final = 4
"""States of the playlist for which requests are counted: the players that wait are as many as asked for one of them."""

MAX_POLLS: Final = 10_000
"""Players that do not wait are counted by their requests of one target duration; the newest ones, up to this number."""

PLAYER_TARGETS: Final = 3
"""After this many target durations without any request there is no player."""

WAKE_BATCH: Final = 64
"""So many waiting requests are answered in one turn of the event loop."""

NAMES: Final = 10_000
"""Names whose numbers are remembered when their packagers are forgotten."""

INITS: Final = 8
"""Init segments of a channel that can be had."""


class Waiter(Protocol):
    """A request that waits for something new."""

    def go_on(self) -> None:
        """There is something new."""


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


class Entry:
    """A media segment of the playlist.

    Attributes:
        msn: its media sequence number. seq: of the channel's segment, whose bytes only the channel's window holds.
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

    Args:
        target_s: the part target; infinite if there are no parts: then each part is a media segment.
        limit_s: how long a media segment may be.
    """

    def __init__(self, target_s: float, limit_s: float) -> None:
        self._target_s = target_s + 1e-6
        self._limit_s = limit_s + 1e-6
        self._at: int | None = None
        self._next = self._begin = 0
        self._length = 0.0
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
            elif self._length and self._length + length > self._target_s:
                yield self._part(units, unit.at)
            self._next += 1
            self._length += length
            self._passed += length
            self._since_key += length
            if not (last and size is not None) and self._length + length > self._target_s:
                yield self._part(units, end)
        if size is not None and self._begin < len(units):
            yield self._part(units, size)

    def _part(self, units: list[Unit], end: int, *, is_last: bool = False) -> Part:
        assert self._at is not None, "something was cut"
        part = Part(self._at, end, self._length, units[self._begin].is_key, is_last)
        self._at, self._begin, self._length = end, self._next, 0.0
        return part


class Packager:
    """What HLS makes of one epoch of a channel.

    Args:
        registry: counts it as a reader of the channel.
        name: of this epoch, for URLs: no other one has it.
        msn, discontinuities: the first of both sequence numbers.
        wall_us, clock: the time, in microseconds since 1970, and in seconds of the registry's clock.
        defer: calls a function in a later turn of the event loop.

    Attributes:
        channel, name: see above.
        entries: the media segments that the playlist names; the last one may be open. parts_from: the number of the
            first one of which it names the parts.
        discontinuities: discontinuities before the first of them.
        target_s, part_s: the target duration, in whole seconds, and that of parts; 0: not known yet, or no parts.
        unsuited: why no player of HLS can play the media; empty if there is no reason. ended: nothing more will come.
        version: counts the changes. rendered: the playlist of one of the versions (:mod:`app.hls.playlist`).
        waiting: requests that are called when there is something new.
        inits: init segments by name.
        asked_at: when somebody asked for it last.
    """

    def __init__(
        self,
        channel: Channel,
        registry: Registry,
        name: str,
        *,
        msn: int,
        discontinuities: int,
        wall_us: Callable[[], int],
        clock: Callable[[], float],
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        self.channel, self.name = channel, name
        self.entries: deque[Entry] = deque()
        self.parts_from = 0
        self._left: deque[Entry] = deque(maxlen=MAX_LISTED)
        self.discontinuities = discontinuities
        self.target_s = 0
        self.part_s = 0.0
        self.container: Container | None = None
        self.unsuited = ""
        self.ended = False
        self.version = 0
        self.rendered: tuple[int, str] = -1, ""
        self.waiting: dict[Waiter, None] = {}
        self.inits: OrderedDict[str, bytes] = OrderedDict()
        self.asked_at = clock()
        # How many requests there were for each of the newest states that players waited for, and when others asked.
        self._rounds: OrderedDict[tuple[int, int | None], int] = OrderedDict()
        self._polls: deque[float] = deque(maxlen=MAX_POLLS)
        self._players = 0  # as the channel was told last
        self._registry, self._wall_us, self._clock, self._defer = registry, wall_us, clock, defer
        self._next_msn = msn
        self._init = b""
        self._segment: Segment | None = None
        self._attached = False
        self._scheduled = False
        self._scan: Scanner | None = None
        self._cutter: Cutter | None = None
        self._uncut = False
        self._first = bytearray()  # the beginning of the segment, up to HEAD_BYTES
        # Nothing more of this segment is looked at: it is no media, or its scanner gave up.
        self._over = False
        self._fed = 0
        self._new = bytearray()
        self._missed = 0
        self._expected: float | None = None
        self._breaks = False
        # When the next segment begins if the media go on, and how far off that may be, in microseconds.
        self._due = 0, 0
        # Of the segment that is followed: seconds in media segments that have ended, and in the parts of the open one.
        self._passed_s = self._open_s = 0.0
        self._unit_s = 0.0
        self._is_whole_only = False  # players cannot play parts of these media
        self._told: deque[Waiter] = deque()
        self._go_to(self._first_segment(), 0)

    # Asked from above.

    @property
    def ready(self) -> bool:
        """Whether a playlist can be made."""
        return self.target_s > 0

    @property
    def next_msn(self) -> int:
        """The media sequence number behind all that are there."""
        return self._next_msn

    @property
    def following(self) -> tuple[int, int]:
        """Seq and number of the part that comes next."""
        last = self.entries[-1] if self.entries else None
        if last is not None and last.duration is None:
            return last.seq, last.first + len(last.parts)
        return (0 if self._segment is None else self._segment.seq), 0

    def served(self, msn: int | None, part: int | None) -> None:
        """A player gets the playlist: it has waited for this part, or has just asked."""
        if msn is None:
            self._polls.append(self._clock())
        else:
            self._rounds[msn, part] = self._rounds.get((msn, part), 0) + 1
            if len(self._rounds) > ROUNDS:
                self._rounds.popitem(last=False)
        self.count_players()

    def count_players(self) -> None:
        """Tell the channel how many players there are.

        Each asks once for each state that it waits for, or once in about a target duration.
        """
        now, players = self._clock(), 0
        if not self.ended and now - self.asked_at <= PLAYER_TARGETS * max(1, self.target_s):
            while self._polls and now - self._polls[0] > max(1, self.target_s):
                self._polls.popleft()
            players = max(self._rounds.values(), default=0) + len(self._polls)
        self.channel.players_beside += players - self._players
        self._players = players

    def has(self, msn: int, part: int | None) -> bool:
        """Whether the playlist has this segment, or this part of it; past its last part means the next segment.

        A player that names no part waits for the first one: so Safari asks for a segment that is about to begin.
        """
        if self.ended:
            return True
        for entry in self.entries:
            if entry.msn == msn:
                if part is None and self.part_s:
                    part = 0
                if part is not None and part < len(entry.parts):
                    return True
                return entry.duration is not None and (not part or not self.part_s or self.has(msn + 1, 0))
        return msn < self._next_msn

    def find(self, seq: int, cut: int, part: int | None) -> tuple[Segment, int, int] | None:
        """A media segment that can be had, and where it begins and ends in the channel's segment; or a part of one.

        It may have left the playlist already (6.2.2).
        """
        segment = self.channel.segments.get(seq)
        if segment is None:
            return None
        for entry in chain(reversed(self.entries), self._left):
            if entry.seq != seq or entry.gap:
                continue
            if part is not None and entry.first <= part < entry.first + len(entry.parts):
                found = entry.parts[part - entry.first]
                return segment, found.at, found.end
            if part is None and entry.cut == cut and entry.duration is not None:
                return segment, entry.start, entry.size
        return None

    def close(self) -> None:
        """Forget the channel; requests that wait are called for the last time."""
        self.ended = True
        self.count_players()
        self._detach()
        self._changed()

    # A cursor.

    def wake(self) -> None:
        """There is more to look at."""
        if not self._scheduled:
            self._scheduled = True
            self._defer(self._run)

    def evict(self) -> None:
        """The memory of the segment is needed."""
        self._detach()
        self.wake()

    # Mechanics.

    def _next_segment(self, seq: int) -> tuple[object, int]:
        """The next one in the window, or the one to come, and how many there are between; what only storage keeps is
        old."""
        following = self.channel.following_in_memory(seq)
        return self.channel.resolve(following), following - seq - 1

    def _first_segment(self) -> object:
        """Where the first playlist begins."""
        start, size, number = self.channel.next_seq, 0, 0
        for seq in sorted(self.channel.segments, reverse=True):
            segment = self.channel.segments[seq]
            if number == BACKLOG or size + segment.size > BACKLOG_BYTES:
                break
            if segment.size:
                start, size, number = seq, size + segment.size, number + segment.closed
        return self.channel.resolve(start)

    def _go_to(self, found: object, missed: int) -> None:
        """Follow another segment, or none."""
        self._missed += missed
        self._scan = self._cutter = None
        self._uncut = False
        self._passed_s = self._open_s = 0.0
        self._first, self._fed, self._over = bytearray(), 0, False
        self._new.clear()
        if not isinstance(found, Serve | Wait):
            self.ended = True
            self._settle()
            self._changed()
            return
        self._segment = found.segment
        self.version += 1  # another part follows
        self._registry.attach(self, self.channel, found.segment)
        self.channel.players_beside -= 1
        self._attached = True
        if not found.segment.closed:
            self._settle()
        self.wake()

    def _detach(self) -> None:
        if self._attached and self._segment is not None:
            self._attached = False
            self._registry.detach(self, self.channel, self._segment)
            self.channel.players_beside += 1

    def _run(self) -> None:
        """Look at what is new, and go on to the next segment when this one is over."""
        self._scheduled = False
        segment = self._segment
        if self.ended or segment is None:
            return
        if self._attached:
            self._look(segment)
            if not self._has_seen_all_of(segment):
                self.wake()
                return
            if not segment.closed:
                return
            self._close(segment)
            self._detach()
        else:
            self._lose(segment)
        self._go_to(*self._next_segment(segment.seq))

    def _look(self, segment: Segment) -> None:
        """Scan what is new, as much as one turn allows."""
        if not self._over:
            self._scan_some(segment)
        if self._over:
            self._fed = len(segment.frames)
            self._new.clear()
        if self._scan is not None and self._scan.units:
            self._cut(segment, self._scan)

    def _scan_some(self, segment: Segment) -> None:
        while self._fed < len(segment.frames) and len(self._new) < RUN_BYTES:
            self._new += b"".join(segment.payload(self._fed, self._fed + 1))
            self._fed += 1
        data = bytes(self._new[:RUN_BYTES])
        del self._new[:RUN_BYTES]
        if self._scan is None:
            self._first += data
            if not self._first or (len(self._first) < SNIFF_BYTES and not segment.closed):
                return
            kind = sniff(self._first)
            self._scan = scanner(kind, self._init)
            if self._scan is None:
                self._over = True
                if self.container is None and segment.size and not self.unsuited:
                    self.unsuited = "HLS needs MPEG-TS or fragmented MP4, and this channel has neither"
                    self._changed()
                return
            self.container = kind
            data = bytes(self._first)
        elif len(self._first) < HEAD_BYTES:
            self._first += data
        if data:
            self._scan.feed(data)
        if obstacle := self._scan.obstacle:
            self._scan, self._over, self.unsuited = None, True, obstacle
            self._changed()
            return
        if self._scan.units:
            self.unsuited = ""
        self._over = self._scan.gave_up

    def _has_seen_all_of(self, segment: Segment) -> bool:
        """Whether all that has arrived so far was scanned."""
        return not self._new and self._fed == len(segment.frames)

    def _cut(self, segment: Segment, scan: Scanner) -> None:
        """Begin the entry of a segment, and add the parts that are whole."""
        entry = self.entries[-1] if self.entries else None
        if entry is None or entry.seq != segment.seq:
            entry = self._begin(segment, scan)
            self._changed()
        if not self.target_s:
            return
        self._cutter = self._cutter or Cutter(self.part_s or math.inf, self.target_s + ROUNDING_S)
        ended = segment.closed and self._has_seen_all_of(segment)
        for part in self._cutter.cut(scan, scan.finish(segment.size) if ended else None):
            entry = self.entries[-1]
            self._open_s += part.duration
            if self.part_s and part.end > part.at:
                self._uncut |= part.duration > self.part_s + TOLERANCE_S or len(entry.parts) == MAX_PARTS
                if not self._uncut:
                    entry.parts.append(part)
            if part.is_last:
                following = Entry(self._next_msn, segment.seq, gap=False)
                following.first = entry.first + len(entry.parts) + self._uncut
                following.cut = following.start = part.end
                following.init, following.extension = entry.init, entry.extension
                self._end(entry, self._open_s, part.end)
                following.at_us, _ = self._due
                self._append(following)
            self._changed()

    def _begin(self, segment: Segment, scan: Scanner) -> Entry:
        """The first unit of a segment is known: its place in time, and what is missing before it."""
        time = scan.units[0].time
        discontinuity = self._breaks
        init = self._keep_init(scan.init)
        discontinuity |= bool(self.entries) and init != self.entries[-1].init
        hole = 0.0 if self._expected is None else time - self._expected
        if self.container is Container.MPEGTS:
            hole = (hole + WRAP_S / 2) % WRAP_S - WRAP_S / 2
        if self._expected is not None:
            number = min(self._missed, MAX_GAPS)
            if number and hole > 0.0 and (not self.target_s or hole / number <= self.target_s):
                self._add_gaps(segment.seq, number, hole / number)
            elif number and not -JUMP_S < hole <= JUMP_S:
                self._add_gaps(segment.seq, number, self._usual())
                discontinuity = True
            else:
                discontinuity |= abs(hole) > JUMP_S
        self._missed, self._breaks = 0, False
        entry = self._add(segment.seq)
        entry.discontinuity = discontinuity and len(self.entries) > 1
        entry.init, entry.start = init, scan.start
        if self.container is Container.FMP4:
            # Shaka takes the type of sound from the name, and stops where that changes with its other guesses.
            entry.extension = "m4s" if scan.has_video else "m4a"
        captured_us = (read_prft if self.container is Container.FMP4 else read_temi)(bytes(self._first))
        since_us = int((self._clock() - segment.opened_at) * 1e6)
        entry.at_us = captured_us or self._wall_us() - since_us
        due_us, within_us = self._due
        due_us += int(hole * 1e6)
        if within_us and not discontinuity and abs(entry.at_us - due_us) > within_us:
            entry.at_us = due_us
        return entry

    def _keep_init(self, init: bytes) -> str:
        """A name for an init segment, under which it can be had."""
        if not init:
            return ""
        self._init = init
        name = blake2b(init, digest_size=6).hexdigest()
        self.inits[name] = init
        self.inits.move_to_end(name)
        if len(self.inits) > INITS:
            self.inits.popitem(last=False)
        return name

    def _close(self, segment: Segment) -> None:
        """All of a closed segment is looked at."""
        entry = self.entries[-1] if self.entries else None
        scan, self._scan = self._scan, None
        if scan is None or entry is None or entry.seq != segment.seq:
            if scan is not None and scan.start:
                self._init = scan.init  # it has nothing else
            else:
                self._miss(segment)
            return
        size, units = scan.finish(segment.size), scan.units
        if not units:
            self._lose(segment)
            return
        lengths = [duration_of(units, place) for place in range(len(units))]
        self._expected = units[-1].time + lengths[-1]
        self._breaks = segment.state is not COMPLETE
        self._unit_s = max(self._unit_s, *lengths)
        self._is_whole_only |= scan.is_whole_only
        self._end(entry, sum(lengths) - self._passed_s, size)
        self._changed()

    def _end(self, entry: Entry, duration: float, size: int) -> None:
        """A media segment has ended."""
        entry.duration, entry.size = duration, size
        if self._uncut:  # there would be more, or longer ones
            entry.parts, self._uncut = [], False
        self._passed_s += duration
        self._open_s = 0.0
        self._due = entry.at_us + int(duration * 1e6), int(CLOCK_SHARE * duration * 1e6)
        if self.target_s:
            self.target_s = max(self.target_s, math.floor(duration + 0.5))
        self._trim()

    def _lose(self, segment: Segment) -> None:
        """The segment was evicted before all of it was looked at, or broke off in its first fragment."""
        entry = self.entries[-1] if self.entries else None
        if entry is not None and entry.seq == segment.seq:
            entry.gap, entry.duration, entry.parts = True, self._usual(), []
            self._changed()
        else:
            self._missed += 1
        self._breaks = True

    def _miss(self, segment: Segment) -> None:
        """There is nothing to be had of a segment."""
        self._missed += 1
        self._breaks |= segment.size > 0 and segment.state is not SKIPPED

    def _settle(self) -> None:
        """The live edge is reached for the first time: from what is known now follow the target durations."""
        if self.target_s or not any(entry.duration is not None for entry in self.entries):
            return
        longest = max(entry.duration or 0.0 for entry in self.entries)
        self.target_s = max(1, math.ceil(longest * 1.5 - 1e-6))
        unit_s = self._unit_s
        if 0 < unit_s <= MAX_PART_S and not self._is_whole_only:
            parts = math.ceil(longest / PART_S)
            self.part_s = unit_s * math.ceil(round(longest / unit_s) / parts)
        self._trim()
        self._changed()

    def _usual(self) -> float:
        lengths = [entry.duration for entry in self.entries if entry.duration is not None]
        return min(lengths[-1] if lengths else 1.0, self.target_s or math.inf)

    def _add_gaps(self, seq: int, number: int, duration: float) -> None:
        """Name the segments before this one as gaps."""
        for place in range(number):
            entry = self._add(seq - number + place, gap=True)
            entry.duration = duration
            if len(self.entries) > 1:
                entry.init, entry.extension = self.entries[-2].init, self.entries[-2].extension

    def _add(self, seq: int, *, gap: bool = False) -> Entry:
        return self._append(Entry(self._next_msn, seq, gap=gap))

    def _append(self, entry: Entry) -> Entry:
        self._next_msn += 1
        self.entries.append(entry)
        return entry

    def _trim(self) -> None:
        """Let go of the first entries, as soon as enough others are there; those that have left the window are gaps."""
        entries = self.entries
        for entry in entries:
            if entry.duration is not None:
                entry.gap |= entry.seq not in self.channel.segments
        rest = sum(entry.duration or 0.0 for entry in entries)
        while len(entries) > 1 and self.target_s:
            rest -= entries[0].duration or 0.0
            enough = (KEPT if entries[0].gap else LISTED) * self.target_s
            if rest < enough and len(entries) <= MAX_LISTED:
                break
            gone = entries.popleft()
            self.discontinuities += gone.discontinuity
            gone.parts = []
            self._left.append(gone)
        since = 0.0
        for entry in reversed(entries):
            if since > KEPT * self.target_s:
                break
            self.parts_from = entry.msn
            since += entry.duration or 0.0

    def _changed(self) -> None:
        self.version += 1
        if self.waiting:
            if not self._told:
                self._defer(self._tell)
            self._told += self.waiting
            self.waiting.clear()

    def _tell(self) -> None:
        """Call those that have waited for a change, some at a time; a request that needs another one waits again."""
        for _ in range(min(WAKE_BATCH, len(self._told))):
            self._told.popleft().go_on()
        if self._told:
            self._defer(self._tell)


class Packagers:
    """The packagers of a server.

    Args:
        registry, wall_us, clock, defer: as for :class:`Packager`.
    """

    def __init__(
        self,
        registry: Registry,
        wall_us: Callable[[], int],
        clock: Callable[[], float],
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        self._registry, self._wall_us, self._clock, self._defer = registry, wall_us, clock, defer
        self._packagers: dict[str, Packager] = {}
        self._numbers: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        """Channels that somebody has asked a playlist of lately."""
        return len(self._packagers)

    def of(self, channel: Channel) -> Packager:
        """The packager of a channel; it is made if there is none."""
        found = self._packagers.get(channel.name)
        if found is not None and found.channel is not channel:
            self._forget(found)
            found = None
        if found is None:
            msn, discontinuities = self._numbers.get(channel.name, (0, 0))
            found = self._packagers[channel.name] = Packager(
                channel,
                self._registry,
                f"{self._registry.instance[:8]}.{channel.epoch}".removeprefix("."),
                msn=max(msn, (self._wall_us() - COUNTED_FROM_US) // COUNTED_US),
                discontinuities=discontinuities + 1,
                wall_us=self._wall_us,
                clock=self._clock,
                defer=self._defer,
            )
        found.asked_at = self._clock()
        return found

    def expire(self, now: float) -> None:
        """Forget those that nobody asks any more, and those whose channel is gone."""
        for found in list(self._packagers.values()):
            idle = now - found.asked_at > IDLE_S and not found.waiting
            found.count_players()
            if idle or self._registry.channels.get(found.channel.name) is not found.channel:
                self._forget(found)

    def _forget(self, found: Packager) -> None:
        name = found.channel.name
        del self._packagers[name]
        discontinuities = found.discontinuities + sum(entry.discontinuity for entry in found.entries)
        self._numbers[name] = found.next_msn, discontinuities
        self._numbers.move_to_end(name)
        if len(self._numbers) > NAMES:
            self._numbers.popitem(last=False)
        found.close()
