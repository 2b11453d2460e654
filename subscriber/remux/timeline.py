"""One time line over all segments, whatever their clocks do: they wrap, jump, and begin anew with a publisher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CLOCK_HZ: Final = 705_600_000
"""Ticks per second that every usual clock of media divides into without rest: 90 kHz, 44.1 and 48 kHz, 30000/1001
("flicks", from the film industry). So moving a time never rounds it."""

WRAP: Final = (1 << 33) * (CLOCK_HZ // 90_000)
"""Times in MPEG-TS have 33 bits (ISO/IEC 13818-1, 2.4.3.7): they begin again after 26.5 hours."""

MAX_PAUSE: Final = 30 * CLOCK_HZ
"""Longest silence that stays in the file. A missed segment leaves its time open; a clock that was set does not."""

MAX_OVERLAP: Final = CLOCK_HZ // 10
"""How far a segment may begin before the end of the last one, as rounded times and uneven audio frames do."""

MIN_STEP: Final = CLOCK_HZ // 1000
"""Least distance between two packets of a stream: a tick of the coarsest container, Matroska."""


@dataclass(frozen=True, slots=True)
class Times:
    """When a packet is decoded and shown, and for how long (0: not known), in ticks of :data:`CLOCK_HZ`.

    Attributes:
        stream: number of its stream; the stream whose times are to be trusted most has the lowest.
    """

    stream: int
    dts: int
    pts: int
    duration: int = 0


class Timeline:
    """Moves the times of segments so that they follow one another.

    All streams of a segment are moved alike, so that sound and picture stay together. The file begins at 0.
    """

    def __init__(self) -> None:
        self._shift: int | None = None
        self._last: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._shown: dict[int, int] = {}

    def place(self, packets: Sequence[Times], *, wraps: bool) -> list[Times]:
        """The times of a segment's packets in the file.

        Args:
            packets: at least one; each stream's in decoding order.
            wraps: times have 33 bits.
        """
        self._anchor(packets, wraps)
        return [self._stamp(packet) for packet in packets]

    def _anchor(self, packets: Sequence[Times], wraps: bool) -> None:
        starts: dict[int, int] = {}
        for packet in packets:
            starts.setdefault(packet.stream, packet.dts)
        if self._shift is None:
            self._shift = -min(starts.values())
            return
        common = sorted(starts.keys() & self._ends.keys())
        if not common:
            self._shift = max(self._ends.values()) - min(starts.values())
            return
        jump = starts[common[0]] + self._shift - self._ends[common[0]]
        if wraps:
            turns = round(jump / WRAP)
            self._shift -= turns * WRAP
            jump -= turns * WRAP
        if not -MAX_OVERLAP <= jump <= MAX_PAUSE:
            # Behind what is decoded and behind what is shown: a cut leaves pictures whose predecessors never came.
            shown = {stream: min(packet.pts for packet in packets if packet.stream == stream) for stream in common}
            self._shift = max(
                max(self._ends[stream] - starts[stream], self._shown[stream] - shown[stream]) for stream in common
            )

    def _stamp(self, packet: Times) -> Times:
        assert self._shift is not None
        dts, pts = packet.dts + self._shift, packet.pts + self._shift
        last = self._last.get(packet.stream)
        if last is not None:
            dts = max(dts, last + MIN_STEP)
        duration = packet.duration or (0 if last is None else dts - last)
        self._last[packet.stream] = dts
        self._ends[packet.stream] = dts + duration
        pts = max(pts, dts)
        self._shown[packet.stream] = max(self._shown.get(packet.stream, pts), pts + duration)
        return Times(packet.stream, dts, pts, packet.duration)
