"""Media time: one 90 kHz time line over all streams and segments, and its relation to the wall clock. No I/O.

- :class:`Timeline` gives every packet a time on one continuous line, whatever the clocks of the sources do.
- :class:`Pace` holds packets back until they are due, and tells the wall-clock time of a media time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
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
    """

    def __init__(self) -> None:
        self._tracks: dict[int, _Track] = {}
        self._anchors: deque[_Anchor] = deque(maxlen=ANCHORS)
        self._first: int | None = None
        self._newest = LEAD
        self._end = LEAD
        self._resume_at: int | None = None

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
            shown = decoded = self._newest if track.last < 0 else track.last + 1
        else:
            raw = ticks(time, time_base)
            raw_shown = raw if packet.pts is None else _near(ticks(packet.pts, time_base), raw)
            track.anchor = self._anchor(track, raw, raw_shown)
            decoded, shown = raw + track.anchor.shift, raw_shown + track.anchor.shift
        decoded = max(decoded, track.last + 1)
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
            return self._begin(max(0, LEAD - raw) if self._resume_at is None else self._resume_at - shown)
        own, newest = track.anchor, self._anchors[-1]
        fits_own = own is not None and self._fits(track, raw + own.shift, MAX_BACK)
        if own is not None and fits_own and (own is newest or raw + own.shift <= self._newest + MAX_OVERLAP):
            return own
        if newest is not own and self._fits(track, raw + newest.shift, MAX_OVERLAP):
            if raw + newest.shift < track.last - MAX_BACK:
                newest.shift = track.end - shown  # this stream had come further than the one that jumped first
            return newest
        if own is not None and fits_own:
            return own
        for older in reversed(self._anchors):
            if self._fits(track, raw + older.shift, MAX_BACK) and raw + older.shift <= self._newest + MAX_BACK:
                return older
        wrapped = (newest.shift + wrap for wrap in WRAPS)
        exact = (shift for shift in wrapped if self._fits(track, raw + shift, MAX_BACK))
        return self._begin(next(exact, self._end - shown))

    def _fits(self, track: _Track, ticks: int, back: int) -> bool:
        return max(0, track.last - back) <= ticks <= self._newest + MAX_JUMP

    def _begin(self, shift: int) -> _Anchor:
        self._anchors.append(_Anchor(shift))
        return self._anchors[-1]


def ticks(time: int, time_base: Fraction) -> int:
    """A time in 90 kHz ticks."""
    return round(time * time_base * CLOCK_HZ)


def _near(shown: int, decoded: int) -> int:
    """A presentation time on the same side of a wrap as its decoding time."""
    sides = (shown + turn for wrap in (0, *WRAPS) for turn in (wrap, -wrap))
    return next((time for time in sides if abs(time - decoded) <= MAX_JUMP), decoded)


# The wall clock.

POLL_S: Final = 0.2
"""A source that waits notices within so many seconds that it was stopped."""


class Clock(Protocol):
    """Time, and a way to let it pass."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def unix_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's :class:`Clock`."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    @staticmethod
    def unix_us() -> int:
        return time.time_ns() // 1000


class Pace:
    """Maps media time onto the clock: from a moment on, at a constant speed.

    A late packet does not move the packets behind it: a source that was held up catches up, so that it keeps its rate
    over hours.

    Args:
        speed: seconds of media per second; ``None``: as fast as possible.
        is_stopped: whether to give up waiting.
        clock: the source of time.
        begun_at: when the media begins, in the clock's seconds; ``None``: now.
    """

    def __init__(
        self,
        speed: float | None,
        is_stopped: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        *,
        begun_at: float | None = None,
    ) -> None:
        self._speed = speed
        self._is_stopped = is_stopped
        self._clock = SystemClock() if clock is None else clock
        now = self._clock.monotonic()
        self._begun_at = now if begun_at is None else begun_at
        self._begun_us = self._clock.unix_us() - round((now - self._begun_at) * 1e6)

    def wait(self, media_s: float) -> bool:
        """Wait until a media time is due.

        Returns:
            ``True`` when it is due, ``False`` once the source is stopped.
        """
        while not self._is_stopped():
            left = self._late_s(media_s)
            if left >= 0:
                return True
            self._clock.sleep(min(-left, POLL_S))
        return False

    def unix_us(self, media_s: float) -> int:
        """The wall-clock time of a media time, in microseconds.

        It follows the wall clock when that is set anew. Without pacing, it runs with the media from the start.
        """
        if self._speed is None:
            return self._begun_us + round(media_s * 1e6)
        return self._clock.unix_us() - round(self._late_s(media_s) * 1e6)

    def _late_s(self, media_s: float) -> float:
        """How many seconds ago a media time was due."""
        if self._speed is None:
            return 0.0
        return self._clock.monotonic() - self._begun_at - media_s / self._speed
