"""Media time: one 90 kHz time line over all streams, segments and sources, whatever their clocks do. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol, TypeVar

CLOCK_HZ: Final = 90_000
LEAD: Final = CLOCK_HZ
"""The earliest start of the time line. MPEG-TS has no negative times, but B-frames and codec delay begin before 0."""

MAX_JUMP: Final = 10 * CLOCK_HZ
"""A packet that is further ahead of all others shows that its source's clock has jumped. A shorter pause stays in the
media (ffmpeg's ``-dts_delta_threshold`` is 10 s, too)."""

MAX_BACK: Final = CLOCK_HZ // 5
"""A stream that steps further back shows that its source's clock has jumped. This is more than the jitter of receivers,
and less than a clip that is played again."""

MAX_OVERLAP: Final = 2 * CLOCK_HZ
"""A stream may follow the jump of another stream so much later."""

WRAPS: Final = (1 << 33, 1 << 32, (1 << 32) * CLOCK_HZ // 1000)
"""Counters wrap after so many ticks: MPEG-TS (33 bits), RTP (32 bits), FLV (32 bits of milliseconds)."""

ANCHORS: Final = 4
"""The time line remembers so many stretches of the source's time. One packet with a wild timestamp begins a stretch of
its own; the packets behind it return to the stretch before."""

MAX_HELD: Final = 64
"""At most so many packets wait for a first decoding time: more than any codec reorders (H.264 and HEVC: 16 frames)."""


class Stamped(Protocol):
    """The attributes of a packet that are used here."""

    pts: int | None
    dts: int | None
    duration: int | None


P = TypeVar("P", bound=Stamped)


def fill_first_dts(packets: Iterable[tuple[int, P]]) -> Iterator[tuple[int, P]]:
    """Give a decoding time to the packets at the beginning of a stream that have none.

    Containers without decoding times (Matroska) know them only after as many frames as the codec reorders. Those
    packets, and the packets between them, are held back until the first known time shows theirs.

    Args:
        packets: with the numbers of their streams.
    """
    held: list[tuple[int, P]] = []
    known: set[int] = set()
    missing: set[int] = set()
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
    """Number packets without a decoding time backwards from the last one, which has one."""
    for packet, following in zip(packets[-2::-1], packets[:0:-1], strict=True):
        assert following.dts is not None
        packet.dts = following.dts - (packet.duration or 1)


@dataclass(slots=True)
class _Anchor:
    """By how much a stretch of the source's time is moved: the same for all streams, so that they stay in step."""

    shift: int
    packets: int = 0  # one packet alone may have a wild timestamp


@dataclass(slots=True)
class _Track:
    """The state of one stream: its newest decoding time, and the end of the last frame to be shown."""

    anchor: _Anchor | None = None
    last: int = -1
    end: int = 0


class Timeline:
    """Brings the timestamps of all streams onto one continuous 90 kHz time line without negative times.

    A source that begins at :data:`LEAD` or later keeps its times; an earlier one is moved to :data:`LEAD`. Differences
    between timestamps stay as they are, so that segments join without a seam. They change only

    - where a source breaks the rules of containers: decoding times always increase, and no frame is shown before it is
      decoded;
    - where its clock jumps: back, or forward by more than :data:`MAX_JUMP`. The packets behind the jump are moved
      behind the packets before it, by the same amount in all streams. A counter that wraps leaves no trace.

    Args:
        begin: the time of the first packet, in ticks of 90 kHz, instead of its own.
        step: the least distance between the decoding times of a stream, in the same ticks.
    """

    def __init__(self, *, begin: int | None = None, step: int = 1) -> None:
        self._tracks: dict[int, _Track] = {}
        self._anchors: deque[_Anchor] = deque(maxlen=ANCHORS)
        self._step = step
        self._first: int | None = None
        self._newest = self._end = LEAD if begin is None else begin
        self._resume_at = begin

    def stamp(self, number: int, packet: Stamped, time_base: Fraction) -> tuple[int, int]:
        """The presentation and decoding time of a packet, in 90 kHz ticks.

        Args:
            number: of its stream.
            packet: each stream's come in decoding order.
            time_base: seconds per tick of its own timestamps.
        """
        track = self._tracks.setdefault(number, _Track())
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
        """Another source begins: its packets go on behind the present ones, whatever their timestamps are.

        Args:
            gap_s: the pause in front of it, in seconds.
        """
        self._anchors.clear()
        for track in self._tracks.values():
            track.anchor = None
        if self._first is not None:
            self._newest = self._resume_at = self._end + max(0, round(gap_s * CLOCK_HZ))

    def elapsed_s(self, ticks: int) -> float:
        """Seconds of media time from the first packet to ``ticks``."""
        return 0.0 if self._first is None else (ticks - self._first) / CLOCK_HZ

    def _advance(self, track: _Track, shown: int, decoded: int, duration: int) -> None:
        if self._first is None:
            self._first = decoded
        track.end = max(track.end, shown + (duration if duration > 0 or track.last < 0 else decoded - track.last))
        track.last = decoded
        self._newest = max(self._newest, decoded)
        self._end = max(self._end, track.end)

    def _anchor(self, track: _Track, raw: int, shown: int) -> _Anchor:
        """The stretch that a packet belongs to; a new one, where the source's clock jumped."""
        if not self._anchors:
            if self._resume_at is None:
                return self._begin(max(0, LEAD - raw))
            return self._begin(self._resume_at - (raw if self._first is None else shown))
        own, newest = track.anchor, self._anchors[-1]
        fitting = own if own is not None and self._fits(track, raw + own.shift, MAX_BACK) else None
        is_settled = fitting is not None and fitting.packets > 1
        if fitting is not None and (
            raw + fitting.shift <= self._newest + MAX_OVERLAP or (fitting is newest and is_settled)  # after a pause
        ):
            return fitting
        if newest is not own and self._fits(track, raw + newest.shift, MAX_OVERLAP):
            if raw + newest.shift < track.last - MAX_BACK:
                newest.shift = track.end - shown  # this stream had come further than the one that jumped first
            return newest
        for older in () if is_settled else reversed(self._anchors):
            if self._fits(track, raw + older.shift, MAX_BACK) and raw + older.shift <= self._newest + MAX_BACK:
                return older
        if fitting is not None:
            return fitting
        wrapped = (newest.shift + wrap for wrap in WRAPS)
        exact = (shift for shift in wrapped if self._fits(track, raw + shift, MAX_BACK))
        return self._begin(next(exact, self._end - shown))

    def _fits(self, track: _Track, ticks: int, back: int) -> bool:
        return max(0, track.last - back) <= ticks <= self._newest + MAX_JUMP

    def _begin(self, shift: int) -> _Anchor:
        self._anchors.append(_Anchor(shift))
        return self._anchors[-1]


def ticks(time: int, time_base: Fraction) -> int:
    """A time in 90 kHz ticks. It is computed for every packet, and fractions are slow."""
    numerator, denominator = time_base.as_integer_ratio()
    return (2 * CLOCK_HZ * time * numerator + denominator) // (2 * denominator)


def _near(shown: int, decoded: int) -> int:
    """A presentation time on the same side of a wrap as its decoding time."""
    sides = (shown + turn for wrap in (0, *WRAPS) for turn in (wrap, -wrap))
    return next((time for time in sides if abs(time - decoded) <= MAX_JUMP), decoded)
