"""Timestamps of a remuxed stream: one 90 kHz time line over all streams and segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol, TypeVar

CLOCK_HZ: Final = 90_000
LEAD: Final = CLOCK_HZ
"""Where the time line begins. MPEG-TS has no negative times, but B-frames and codec delay begin before 0."""

MAX_JUMP: Final = 10 * CLOCK_HZ
"""How far a packet may be ahead of all others before its source's clock is taken to have jumped: a pause is kept, what
cannot be one is not (ffmpeg's ``-dts_delta_threshold`` is 10 s, too)."""

MAX_BACK: Final = CLOCK_HZ // 5
"""How far a stream may step back before its source's clock is taken to have jumped: more than the jitter of receivers,
less than a clip that is played again."""

MAX_OVERLAP: Final = 2 * CLOCK_HZ
"""How much later than another stream one may jump, and still be known to take part in the same jump."""

WRAPS: Final = (1 << 33, 1 << 32, (1 << 32) * CLOCK_HZ // 1000)
"""After how many ticks counters wrap: MPEG-TS (33 bits), RTP (32 bits), FLV (32 bits of milliseconds)."""

ANCHORS: Final = 4
"""How many stretches of the source's time are remembered. One packet with a wild timestamp begins one of its own; what
follows goes back to the one before."""

MAX_HELD: Final = 64
"""How many packets wait for a first decoding time: more than any codec reorders (H.264 and HEVC: 16 frames)."""


class Stamped(Protocol):
    """What is used of a packet."""

    stream_index: int
    pts: int | None
    dts: int | None
    duration: int | None


P = TypeVar("P", bound=Stamped)


def fill_first_dts(packets: Iterable[P]) -> Iterator[P]:
    """Give a decoding time to the packets at the beginning of a stream that have none.

    Containers without decoding times (Matroska) know them only after as many frames as the codec reorders. Those
    packets, and what lies between, are held back until the first known time shows what theirs must have been.
    """
    held: list[P] = []
    known: set[int] = set()
    missing: set[int] = set()
    for packet in packets:
        stream = packet.stream_index
        held.append(packet)
        if packet.dts is not None and stream not in known:
            known.add(stream)
            missing.discard(stream)
            _count_back([earlier for earlier in held if earlier.stream_index == stream])
        elif stream not in known:
            missing.add(stream)
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
    """How far a stretch of the source's time is moved: one for all streams, so that they stay in step."""

    shift: int


@dataclass(slots=True)
class _Track:
    """How far one stream has come: its newest decoding time, and when the last frame to be shown ends."""

    anchor: _Anchor | None = None
    last: int = -1
    end: int = 0


class Timeline:
    """Brings the timestamps of all streams onto one continuous 90 kHz time line without negative times.

    Differences between timestamps stay as they are, so that segments join without a seam. They change only

    - where a source breaks the rules of containers: decoding times always increase, and no frame is shown before it is
      decoded;
    - where its clock jumps: back, or forward by more than :data:`MAX_JUMP`. What follows is moved behind what there
      is, by the same amount in all streams, whichever jumps first. A counter that wraps leaves no trace at all.
    """

    def __init__(self) -> None:
        self._tracks: dict[int, _Track] = {}
        self._anchors: deque[_Anchor] = deque(maxlen=ANCHORS)
        self._first: int | None = None
        self._newest = LEAD
        self._end = LEAD
        self._resume_at: int | None = None

    def stamp(self, packet: Stamped, time_base: Fraction) -> tuple[int, int]:
        """The presentation and decoding time of a packet, in 90 kHz ticks.

        Args:
            packet: its stream's packets come in decoding order.
            time_base: seconds per tick of its own timestamps.
        """
        track = self._tracks.setdefault(packet.stream_index, _Track())
        time = packet.pts if packet.dts is None else packet.dts
        if time is None:
            shown = decoded = self._newest if track.last < 0 else track.last + 1
        else:
            raw = _ticks(time, time_base)
            raw_shown = raw if packet.pts is None else _near(_ticks(packet.pts, time_base), raw)
            track.anchor = self._anchor(track, raw, raw_shown)
            decoded, shown = raw + track.anchor.shift, raw_shown + track.anchor.shift
        decoded = max(decoded, track.last + 1)
        shown = max(shown, decoded)
        self._advance(track, shown, decoded, _ticks(packet.duration or 0, time_base))
        return shown, decoded

    def rebase(self, gap_s: float = 0.0) -> None:
        """Another source begins: whatever its timestamps are, it goes on behind what there is.

        Args:
            gap_s: how long nothing came, in seconds.
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
        """Which stretch a packet belongs to; a new one, where its clock jumped."""
        if not self._anchors:
            # What begins late keeps its own time: it may be a channel's.
            return self._begin(LEAD - min(0, raw) if self._resume_at is None else self._resume_at - shown)
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


def _ticks(time: int, time_base: Fraction) -> int:
    return round(time * time_base * CLOCK_HZ)


def _near(shown: int, decoded: int) -> int:
    """A presentation time that may have wrapped earlier than its decoding time, on the same side of the wrap."""
    sides = (shown + turn for wrap in (0, *WRAPS) for turn in (wrap, -wrap))
    return next((time for time in sides if abs(time - decoded) <= MAX_JUMP), decoded)
