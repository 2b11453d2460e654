"""Timestamps of a remuxed stream: one 90 kHz time line over all streams and segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final, Protocol, TypeVar

CLOCK_HZ: Final = 90_000
LEAD: Final = CLOCK_HZ
"""Where the time line begins. MPEG-TS has no negative times, but B-frames and codec delay begin before 0."""

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


class Timeline:
    """Brings the timestamps of all streams onto one 90 kHz time line without negative times.

    Differences between timestamps stay as they are, so that segments join without a seam. Only where a source breaks
    the rules of MPEG-TS are they changed: decoding times always increase, and no frame is shown before it is decoded.
    """

    def __init__(self) -> None:
        self._shift: int | None = None
        self._first = 0
        self._last: dict[int, int] = {}

    def stamp(self, packet: Stamped, time_base: Fraction) -> tuple[int, int]:
        """The presentation and decoding time of a packet, in 90 kHz ticks.

        Args:
            packet: its stream's packets come in decoding order.
            time_base: seconds per tick of its own timestamps.
        """
        last = self._last.get(packet.stream_index)
        dts = packet.pts if packet.dts is None else packet.dts
        if dts is None:
            ticks = max(self._last.values(), default=LEAD) if last is None else last + 1
        else:
            ticks = self._shifted(dts, time_base)
        if last is not None:
            ticks = max(ticks, last + 1)
        if not self._last:
            self._first = ticks
        self._last[packet.stream_index] = ticks
        shown = ticks if packet.pts is None else max(ticks, self._shifted(packet.pts, time_base))
        return shown, ticks

    def elapsed_s(self, ticks: int) -> float:
        """Seconds of media time from the first packet to ``ticks``."""
        return (ticks - self._first) / CLOCK_HZ

    def _shifted(self, time: int, time_base: Fraction) -> int:
        ticks = round(time * time_base * CLOCK_HZ)
        if self._shift is None:
            self._shift = LEAD - min(0, ticks)
        return max(0, ticks + self._shift)
