"""The segments of a channel as one stream of Matroska, in pieces with the times at which they are due.

Everything here blocks and runs in a worker thread. A stream cannot change its tracks: where the media changes, and
where a connection is made anew, another stream begins, with a head of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from tricklecast.subscriber.media.joiner import LIVE, File, Joiner, Slot, Track
from tricklecast.trickle.media.timeline import CLOCK_HZ
from tricklecast.trickle.pyav import Sink

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream

NAME: Final = Path("the stream.mkv")
"""Decides the container. Nothing of that name is written."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a stream.

    Attributes:
        due_s: when a player decodes its media, in seconds from the stream's begin.
        begins: it is the first one of its stream.
    """

    data: bytes
    due_s: float
    begins: bool


class Outflow(Joiner):
    """Joins segments into streams.

    Args:
        say: gets lines, for people, about media that does not get into a stream.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(NAME, say)
        self._pieces: list[Piece] = []

    def whole(self) -> str:
        """Name the stream."""
        return LIVE

    def made(self, tracks: Mapping[Slot, Track]) -> File:
        """Begin a stream."""
        self.files.clear()  # those before have ended; this one may be the thousandth
        firsts: dict[Slot, bytes] = {}
        for part in self._waiting:
            for slot, packet in part.packets:
                if slot in tracks and slot not in firsts and tracks[slot].codec == "aac":
                    firsts[slot] = bytes(packet)
        parameters = {slot: found for slot, data in firsts.items() if (found := aac_parameters(data))}
        return _Stream(tracks, parameters, self._pieces)

    def changed(self) -> str:
        """Say that another stream follows."""
        return "the media changes: the connection is made anew"

    def take(self) -> list[Piece]:
        """The pieces since the last call; at most those of the segments that were added since."""
        pieces = self._pieces.copy()
        self._pieces.clear()
        return pieces

    def renew(self) -> None:
        """Let another stream begin with the next segment. Pieces that were not taken are dropped."""
        self._end()
        self._pieces.clear()


def aac_parameters(frame: bytes) -> bytes:
    """The parameters of a decoder of AAC (ISO 14496-3, AudioSpecificConfig), from a frame's head in MPEG-TS (ADTS).

    Returns:
        Nothing, if there is no such head: the container has told it already.
    """
    if len(frame) < 7 or frame[0] != 0xFF or frame[1] & 0xF6 != 0xF0:
        return b""
    kind, rate, channels = (frame[2] >> 6) + 1, frame[2] >> 2 & 0x0F, (frame[2] & 1) << 2 | frame[3] >> 6
    return (kind << 11 | rate << 7 | channels << 3).to_bytes(2)


class _Stream(File):
    def __init__(self, tracks: Mapping[Slot, Track], parameters: Mapping[Slot, bytes], pieces: list[Piece]) -> None:
        self._sink = Sink()
        self._pieces = pieces
        self._has_begun = False
        self._due_s = 0.0
        super().__init__(NAME, tracks, self._sink, parameters)

    def _mux(self, slot: Slot, packet: Packet[Stream]) -> None:
        self._due_s = cast(int, packet.dts) / CLOCK_HZ
        super()._mux(slot, packet)
        self._take()

    def close(self) -> bool:
        """End the stream; the bytes that libavformat still held are its last piece."""
        try:
            return super().close()
        finally:
            self._take()

    def _take(self) -> None:
        if data := self._sink.take():
            self._pieces.append(Piece(data, self._due_s, begins=not self._has_begun))
            self._has_begun = True
