"""What ``tricklecast stress`` publishes: reproducible payload on a schedule.

A segment begins with a :class:`Marker`, which says where it belongs, so that a segment that comes twice or in the wrong
place can be told from one that was altered. The rest is pseudo-random and follows from the seed.
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
"""Payload is cut out of a block of this size at varying places: making it costs next to nothing then."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is published on each channel.

    Attributes:
        seed: all sizes and bytes follow from it.
        channels: how many channels there are. They begin one after another within ``every_s``, which evens the load.
        segments: how many segments a channel gets.
        every_s: a segment begins this often, in seconds. Its chunks are spread evenly over that time.
        smallest, largest: the size of a segment is drawn evenly between these, in bytes.
        chunk_bytes: it is written in chunks of this size.
    """

    seed: int
    channels: int
    segments: int
    every_s: float
    smallest: int
    largest: int
    chunk_bytes: int

    def size(self, channel: int, ordinal: int) -> int:
        """How large the segment with this ordinal is, in bytes."""
        return self.smallest + self._draw(channel, ordinal) % (self.largest - self.smallest + 1)

    def begins_ns(self, channel: int, ordinal: int) -> int:
        """When a segment is due, in nanoseconds after the start."""
        return int((ordinal + channel / self.channels) * self.every_s * 1e9)

    @property
    def ends_ns(self) -> int:
        """When the last segment is due to be whole, in nanoseconds after the start."""
        return self.begins_ns(self.channels, self.segments)

    def block(self) -> bytes:
        """The bytes that payload is cut out of."""
        return hashlib.shake_128(f"{self.seed}".encode()).digest(BLOCK_BYTES)

    def chunks(self, block: bytes, channel: int, ordinal: int) -> Iterator[bytes]:
        """The chunks of a segment; the first begins with its marker.

        Args:
            block: what :meth:`block` returned.
            channel, ordinal: which segment.
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
    """The first bytes of a segment: where it belongs. ``ordinal`` counts the segments of a channel from 0."""

    channel: int
    ordinal: int

    def pack(self) -> bytes:
        """The marker, with a check sum."""
        packed = _MARKER.pack(_MAGIC, self.channel, self.ordinal)
        return packed + _CHECK.pack(zlib.crc32(packed))

    @classmethod
    def read(cls, head: bytes) -> Marker | None:
        """The marker at the beginning of a segment; ``None`` if there is none that is whole."""
        packed, check = head[: _MARKER.size], head[_MARKER.size : MARKER_BYTES]
        if len(check) < _CHECK.size or _CHECK.pack(zlib.crc32(packed)) != check or not packed.startswith(_MAGIC):
            return None
        _, channel, ordinal = _MARKER.unpack(packed)
        return cls(channel, ordinal)
