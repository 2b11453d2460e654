"""Media time: one continuous 90 kHz time line over all streams, segments and sources. No I/O.

Theory of operation
===================

*The problem.* A player needs decoding times that always increase, and all streams on one clock. Sources break that: a
camera restarts and counts from 0, a counter of 33 bits wraps, a clip is played in a loop, a relay joins two sources, a
damaged packet has a wild timestamp. Streams are interleaved, so after a jump packets of both clocks alternate.

*The idea.* Never invent a time; add a constant. A stretch of the source's time in which its clock ran evenly is an
:class:`_Anchor`. Its shift brings timestamps onto our line. It is the same for all streams, so that sound and picture
stay in step; with a shift per stream they would drift apart at each jump. For each packet ``_anchor`` takes the first
of these that fits:

1. the stream's own stretch, if the packet is at most ``MAX_BACK`` behind its stream and not far ahead of the others
   (or if the stream pauses in the newest stretch): nearly all packets;
2. the newest stretch: another stream has jumped first, and this one follows;
3. an older stretch: the packet before this one was a single one with a wild timestamp;
4. the stream's own stretch, up to ``MAX_JUMP`` ahead of everything;
5. a new stretch. If a known counter has wrapped, its shift is exact; else the packet follows the last frame.

*Invariants.* Decoding times of a stream increase by at least ``step``. No frame is shown before it is decoded. No time
is negative. Within a stretch, differences between timestamps are those of the source, unless it breaks the first two
rules, so that segments join without a seam.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol, TypeVar

CLOCK_HZ: Final = 90_000
LEAD: Final = CLOCK_HZ
"""The earliest start of the time line. MPEG-TS has no negative times, but B-frames and codec delay begin before 0."""

MAX_JUMP: Final = 10 * CLOCK_HZ
"""If a packet is further ahead of all others, its source's clock has jumped. A shorter pause stays in the media
(ffmpeg's ``-dts_delta_threshold`` is 10 s, too)."""

MAX_BACK: Final = CLOCK_HZ // 5
"""If a stream steps further back, its source's clock has jumped. This is more than the jitter of receivers, and less
than a clip that is played again."""

MAX_OVERLAP: Final = 2 * CLOCK_HZ
"""After one stream has jumped, another one may go on in its own stretch up to this far, before it follows."""

WRAPS: Final = (1 << 33, 1 << 32, (1 << 32) * CLOCK_HZ // 1000)
"""Ticks after which counters wrap: of MPEG-TS (33 bits), RTP (32 bits) and FLV (32 bits of milliseconds)."""

ANCHORS: Final = 4
"""Stretches of the source's time that are remembered. A packet with a wild timestamp begins a stretch of its own; the
packets behind it return to the stretch before."""

MAX_HELD: Final = 64
"""Packets that wait for a first decoding time: more than any codec reorders (H.264 and HEVC: 16 frames)."""


class Stamped(Protocol):
    """A packet of PyAV, as far as this module reads it."""

    pts: int | None
    dts: int | None
    duration: int | None


class Ratio(Protocol):
    """A fraction: Python's, or that of PyAV 19, which is zero where none is known."""

    @property
    def numerator(self) -> int: ...
    @property
    def denominator(self) -> int: ...


P = TypeVar("P", bound=Stamped)


def fill_first_dts(packets: Iterable[tuple[int, P]]) -> Iterator[tuple[int, P]]:
    """Give a decoding time to the packets at the beginning of a stream that have none.

    In a container without decoding times (Matroska) libavformat derives them, but only once it has seen as many frames
    as the codec reorders. The packets before that are held back, with those of other streams between them, until the
    first known time shows theirs.

    Args:
        packets: packets with the number of their stream.
    """
    held: list[tuple[int, P]] = []  # at most MAX_HELD + 1
    known: set[int] = set()  # streams with a decoding time
    missing: set[int] = set()  # streams that have packets, but no decoding time yet
    for track, packet in packets:
        held.append((track, packet))
        if packet.dts is not None and track not in known:
            known.add(track)
            missing.discard(track)
            _count_back([earlier for number, earlier in held if number == track])
        elif track not in known:
            missing.add(track)
        if not missing or len(held) > MAX_HELD:
            known |= missing
            missing.clear()
            yield from held
            held.clear()
    yield from held


def _count_back(packets: list[P]) -> None:
    """Count decoding times back from the last packet, which has one."""
    for packet, following in zip(packets[-2::-1], packets[:0:-1], strict=True):
        assert following.dts is not None
        packet.dts = following.dts - (packet.duration or 1)


@dataclass(slots=True)
class _Anchor:
    """A stretch of the source's time in which its clock ran evenly."""

    shift: int  # added to each timestamp, in ticks
    packets: int = 0  # a stretch of one packet may be a wild timestamp


@dataclass(slots=True)
class _Track:
    """The state of one stream."""

    anchor: _Anchor | None = None  # the stretch of its newest packet
    last: int = -1  # the newest decoding time; -1: no packet has come
    end: int = 0  # the end of the frame that is shown last


class Timeline:
    """Brings the timestamps of all streams onto one continuous 90 kHz time line, as the module's head says.

    A source that begins at :data:`LEAD` or later keeps its times; an earlier one is moved to :data:`LEAD`.

    Args:
        begin: the time of the first packet, in ticks of 90 kHz, instead of its own.
        step: the least distance between the decoding times of a stream, in the same ticks.
    """

    def __init__(self, *, begin: int | None = None, step: int = 1) -> None:
        self._tracks: dict[Hashable, _Track] = {}  # by stream
        self._anchors: deque[_Anchor] = deque(maxlen=ANCHORS)  # the newest is last
        self._step = step
        self._first: int | None = None  # the first decoding time of all
        self._newest = LEAD if begin is None else begin  # the highest decoding time of all streams
        self._end = self._newest  # the end of the frame that is shown last, of all streams
        self._resume_at = begin  # the next source begins here; None: at its own time

    def stamp(self, stream: Hashable, packet: Stamped, time_base: Ratio) -> tuple[int, int]:
        """Return the presentation and decoding time of a packet, in 90 kHz ticks.

        Args:
            stream: the packet's, by any name that stays the same.
            packet: the next packet of its stream, in decoding order.
            time_base: seconds per tick of the packet's own timestamps.
        """
        track = self._tracks.setdefault(stream, _Track())
        time = packet.pts if packet.dts is None else packet.dts
        if time is None:
            shown = decoded = self._newest if track.last < 0 else track.last + self._step
        else:
            raw = ticks(time, time_base)
            raw_shown = raw if packet.pts is None else _near(ticks(packet.pts, time_base), raw)
            track.anchor = self._anchor(track, raw, raw_shown)
            track.anchor.packets += 1
            decoded, shown = raw + track.anchor.shift, raw_shown + track.anchor.shift
        decoded = max(decoded, track.last + self._step if track.last >= 0 else 0)
        shown = max(shown, decoded)
        self._advance(track, shown, decoded, ticks(packet.duration or 0, time_base))
        return shown, decoded

    def rebase(self, gap_s: float = 0.0) -> None:
        """Let another source begin: its packets follow the present ones, at any timestamps.

        Args:
            gap_s: the pause before it, in seconds.
        """
        self._anchors.clear()
        for track in self._tracks.values():
            track.anchor = None
        if self._first is not None:
            self._newest = self._resume_at = self._end + max(0, round(gap_s * CLOCK_HZ))

    @property
    def shift(self) -> int | None:
        """The ticks that are now added to the source's times; ``None`` before the first packet of a source.

        For data that follows the streams and has no say in their time line, such as text.
        """
        return self._anchors[-1].shift if self._anchors else None

    def elapsed_s(self, ticks: int) -> float:
        """Return the seconds of media time from the first packet to ``ticks``."""
        return 0.0 if self._first is None else (ticks - self._first) / CLOCK_HZ

    def _advance(self, track: _Track, shown: int, decoded: int, duration: int) -> None:
        if self._first is None:
            self._first = decoded
        track.end = max(track.end, shown + (duration if duration > 0 or track.last < 0 else decoded - track.last))
        track.last = decoded
        self._newest = max(self._newest, decoded)
        self._end = max(self._end, track.end)

    def _anchor(self, track: _Track, raw: int, shown: int) -> _Anchor:
        """Return the stretch of a packet: an existing one, or a new one if the source's clock has jumped."""
        if not self._anchors:  # the first packet of a source
            if self._resume_at is None:
                return self._begin(max(0, LEAD - raw))
            return self._begin(self._resume_at - (raw if self._first is None else shown))
        # The numbers are those of the module's head.
        own, newest = track.anchor, self._anchors[-1]
        fitting = own if own is not None and self._fits(track, raw + own.shift, MAX_BACK) else None
        is_settled = fitting is not None and fitting.packets > 1
        if fitting is not None and (  # 1.
            raw + fitting.shift <= self._newest + MAX_OVERLAP or (fitting is newest and is_settled)  # after a pause
        ):
            return fitting
        if newest is not own and self._fits(track, raw + newest.shift, MAX_OVERLAP):  # 2.
            if raw + newest.shift < track.last - MAX_BACK:
                newest.shift = track.end - shown  # this stream had come further than the one that jumped first
            return newest
        for older in () if is_settled else reversed(self._anchors):  # 3.
            if self._fits(track, raw + older.shift, MAX_BACK) and raw + older.shift <= self._newest + MAX_BACK:
                return older
        if fitting is not None:  # 4.
            return fitting
        wrapped = (newest.shift + wrap for wrap in WRAPS)  # 5.
        exact = (shift for shift in wrapped if self._fits(track, raw + shift, MAX_BACK))
        return self._begin(next(exact, self._end - shown))

    def _fits(self, track: _Track, ticks: int, back: int) -> bool:
        return max(0, track.last - back) <= ticks <= self._newest + MAX_JUMP

    def _begin(self, shift: int) -> _Anchor:
        self._anchors.append(_Anchor(shift))
        return self._anchors[-1]


def fraction(ratio: Ratio) -> Fraction:
    """Turn any fraction into Python's."""
    return Fraction(ratio.numerator, ratio.denominator)


def ticks(time: int, time_base: Ratio) -> int:
    """Turn a time into 90 kHz ticks."""
    # With integers: this runs for every packet, and fractions are slow.
    numerator, denominator = time_base.numerator, time_base.denominator
    return (2 * CLOCK_HZ * time * numerator + denominator) // (2 * denominator)


def _near(shown: int, decoded: int) -> int:
    """Move a presentation time to the side of a counter's wrap on which its decoding time is."""
    sides = (shown + turn for wrap in (0, *WRAPS) for turn in (wrap, -wrap))
    return next((time for time in sides if abs(time - decoded) <= MAX_JUMP), decoded)
