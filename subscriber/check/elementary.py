"""One elementary stream of MPEG-TS within a segment: the heads of its PES packets (ISO/IEC 13818-1, 2.4.3.6)."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from tricklecast.subscriber.check.audio_frames import counter_for
from tricklecast.subscriber.check.media import Kind, Track, TrackNotes
from tricklecast.subscriber.check.openings import SCAN_BYTES, opening

CLOCK_HZ: Final = 90_000

_START: Final = b"\0\0\1"

_WITHOUT_HEAD: Final = frozenset({0xBC, 0xBE, 0xBF, 0xF0, 0xF1, 0xF2, 0xF8, 0xFF})
"""Stream ids whose packets have no times: padding, private data, key messages and directories (table 2-22)."""


class Elementary:
    """Takes the payloads of one PID.

    Args:
        notes: where it writes what it finds.
        codec: as the program table has it.
    """

    def __init__(self, notes: TrackNotes, codec: str) -> None:
        self._notes = notes
        self._codec = codec
        self._head: bytearray | None = None
        self._is_first = True
        self._is_ours = True
        self._scan: bytearray | None = bytearray() if notes.kind is Kind.VIDEO else None
        self._frames = counter_for(codec) if notes.kind is Kind.AUDIO else None
        self._begun_at: int | None = None
        self._counted = Fraction(0)

    def feed(self, payload: bytes, starts: bool) -> None:
        """Take a packet's payload.

        Args:
            payload: of one transport packet.
            starts: a PES packet begins with it.
        """
        if starts:
            self._end_packet()
            self._head, self._is_ours = bytearray(), True
        elif self._is_first:
            self._notes.cut_in = True
        self._is_first = False
        if self._head is not None:
            self._head += payload
            payload = self._read_head()
        if payload and self._is_ours:
            self._body(payload)

    def finish(self) -> Track:
        """What is known at the segment's end."""
        self._end_packet()
        return self._notes.finish()

    def _read_head(self) -> bytes:
        """Take the times out of a PES packet's head; the payload behind it, once it is whole."""
        head = self._head
        assert head is not None
        if len(head) < 9:
            return b""
        if head[:3] != _START or head[3] in _WITHOUT_HEAD:
            self._head, self._is_ours = None, False
            return b""
        size = 9 + head[8]
        if len(head) < size:
            return b""
        self._head = None
        self._begun_at = self._notes.due
        if head[7] & 0x80 and head[8] >= 5:
            pts = _time(head[9:14])
            dts = _time(head[14:19]) if head[7] & 0x40 and head[8] >= 10 else pts
            self._notes.sample(dts, pts)
            self._begun_at = pts
        return bytes(head[size:])

    def _body(self, payload: bytes) -> None:
        if self._frames is not None:
            self._frames.feed(payload)
        if self._scan is not None and not self._notes.cut_in:
            self._scan += payload
            if len(self._scan) >= SCAN_BYTES:
                self._look()

    def _end_packet(self) -> None:
        if self._scan:
            self._look()
        if self._frames is None:
            return
        self._frames.end_of_packet()
        length = self._frames.seconds - self._counted
        self._counted = self._frames.seconds
        if self._frames.lost or self._begun_at is None:
            self._notes.due = None
        else:
            self._notes.due = self._begun_at = self._begun_at + round(length * CLOCK_HZ)
            self._notes.frame = round(self._frames.frame_s * CLOCK_HZ)

    def _look(self) -> None:
        assert self._scan is not None
        self._notes.opening = opening(self._codec, bytes(self._scan))
        self._scan = None


def _time(field: bytes | bytearray) -> int:
    """A time of 33 bits, spread over five bytes with marker bits between."""
    return (field[0] >> 1 & 7) << 30 | field[1] << 22 | (field[2] >> 1) << 15 | field[3] << 7 | field[4] >> 1
