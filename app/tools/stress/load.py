"""The load of ``tricklecast stress``: reproducible payload on a schedule.

A segment begins with a :class:`Marker` that names its place, so that the comparison can tell a segment that comes twice
or in the wrong place from one with altered bytes. The rest is pseudo-random and follows from the seed.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "application/x-tricklecast-stress"

_MARKER: Final = struct.Struct(">4sIQ")
_CHECK: Final = struct.Struct(">I")
_MAGIC: Final = b"tcs1"

MARKER_BYTES: Final = _MARKER.size + _CHECK.size
"""No segment is smaller than its marker."""

BLOCK_BYTES: Final = 1 << 20
"""Payload is cut out of a block of this size at varying offsets, which costs little processor time."""


@dataclass(frozen=True, slots=True)
class Load:
    """The segments of all channels.

    Attributes:
        seed: all sizes and bytes follow from it.
        channels: number of channels. They begin one after another within ``every_s``, which evens the load.
        segments: number of segments of each channel.
        every_s: time between the beginnings of two segments, in seconds. The chunks are spread evenly over it.
        smallest, largest: limits between which the size of a segment is drawn, in bytes.
        chunk_bytes: size of the chunks of a segment.
    """

    seed: int
    channels: int
    segments: int
    every_s: float
    smallest: int
    largest: int
    chunk_bytes: int

    def size(self, channel: int, ordinal: int) -> int:
        """The size of the segment with this ordinal, in bytes."""
        return self.smallest + self._draw(channel, ordinal) % (self.largest - self.smallest + 1)

    def begins_ns(self, channel: int, ordinal: int) -> int:
        """The time at which a segment begins, in nanoseconds after the start."""
        return int((ordinal + channel / self.channels) * self.every_s * 1e9)

    @property
    def ends_ns(self) -> int:
        """The time at which the last segment is whole, in nanoseconds after the start."""
        return self.begins_ns(self.channels, self.segments)

    def block(self) -> bytes:
        """The block that payload is cut out of."""
        return hashlib.shake_128(f"{self.seed}".encode()).digest(BLOCK_BYTES)

    def chunks(self, block: bytes, channel: int, ordinal: int) -> Iterator[bytes]:
        """The chunks of a segment; the first begins with its marker.

        Args:
            block: the result of :meth:`block`.
            channel, ordinal: of the segment.
        """
        at = self._draw(channel, ordinal) % len(block)
        left = self.size(channel, ordinal)
        head = Marker(channel, ordinal).pack()
        while left:
            wanted = min(self.chunk_bytes, left)
            chunk = head[:wanted]
            head = head[wanted:]
            while len(chunk) < wanted:
                part = block[at : at + wanted - len(chunk)]
                chunk += part
                at = (at + len(part)) % len(block)
            left -= wanted
            yield chunk

    def _draw(self, channel: int, ordinal: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{channel}/{ordinal}".encode()).digest()[:8])


class Marker(NamedTuple):
    """The first bytes of a segment: its channel, and its number in the channel, from 0."""

    channel: int
    ordinal: int

    def pack(self) -> bytes:
        """The bytes of the marker, with a check sum."""
        packed = _MARKER.pack(_MAGIC, self.channel, self.ordinal)
        return packed + _CHECK.pack(zlib.crc32(packed))

    @classmethod
    def read(cls, head: bytes) -> Marker | None:
        """The marker at the beginning of a segment; ``None`` if it is missing or damaged."""
        packed, check = head[: _MARKER.size], head[_MARKER.size : MARKER_BYTES]
        if len(check) < _CHECK.size or _CHECK.pack(zlib.crc32(packed)) != check or not packed.startswith(_MAGIC):
            return None
        _, channel, ordinal = _MARKER.unpack(packed)
        return cls(channel, ordinal)
