"""The plan of a stress run: its channels and subscribers, and reproducible segments on a schedule.

A segment begins with a marker that names its place: its channel, and its number in the channel from 0 (its ordinal). So
a segment that comes twice or in the wrong place differs from one with altered bytes. All other bytes, the size and the
time of a segment follow from the seed: a subscriber compares each byte without hearing from the publisher.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final, Literal

CONTENT_TYPE: Final = "application/x-tricklecast-stress"

Role = Literal["publish", "subscribe"]

_MARKER: Final = struct.Struct(">4sIQ")
_MAGIC: Final = b"tcs1"

MARKER_BYTES: Final = _MARKER.size + 4
"""The marker ends with a CRC-32. No segment is smaller than its marker."""

_BLOCK_BYTES: Final = 1 << 20
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

    def begins_ns(self, channel: int, ordinal: int) -> int:
        """The time at which a segment begins, in nanoseconds after the start."""
        return int((ordinal + channel / self.channels) * self.every_s * 1e9)

    @property
    def ends_ns(self) -> int:
        """The time at which the last segment is whole, in nanoseconds after the start."""
        return self.begins_ns(self.channels, self.segments)


class PlannedSegment:
    """A segment as it is published.

    Attributes:
        ordinal: its number in the channel.
        size: in bytes.
        chunks: number of chunks.
    """

    def __init__(self, load: Load, channel: int, ordinal: int) -> None:
        drawn = int.from_bytes(hashlib.sha256(f"{load.seed}/{channel}/{ordinal}".encode()).digest()[:8])
        marker = _MARKER.pack(_MAGIC, channel, ordinal)
        self.ordinal = ordinal
        self.size = load.smallest + drawn % (load.largest - load.smallest + 1)
        self.chunks = -(-self.size // load.chunk_bytes)
        self._load = load
        self._begins_ns = load.begins_ns(channel, ordinal)
        self._marker = marker + zlib.crc32(marker).to_bytes(4)
        self._offset = drawn % _BLOCK_BYTES  # of the payload in the block

    def due_ns(self, chunk: int) -> int:
        """The time at which a chunk is due, in nanoseconds after the start; -1 is the last chunk."""
        return self._begins_ns + int(chunk % self.chunks * self._load.every_s * 1e9 / self.chunks)

    def chunk(self, number: int) -> bytes:
        return self.bytes(number * self._load.chunk_bytes, (number + 1) * self._load.chunk_bytes)

    def bytes(self, first: int, end: int) -> bytes:
        """The bytes from one position to another, or to the end of the segment."""
        end = min(end, self.size)
        data, block = self._marker[first:end], _block(self._load.seed)
        while first + len(data) < end:
            at = (self._offset + first + len(data)) % _BLOCK_BYTES
            data += block[at : at + end - first - len(data)]
        return data


@cache
def _block(seed: int) -> bytes:
    return hashlib.shake_128(f"{seed}".encode()).digest(_BLOCK_BYTES)


class Comparison:
    """The comparison of a received segment with the published one, chunk by chunk.

    Attributes:
        segment: the published segment, by the marker; ``None`` without a marker, or with one of another channel.
        size: number of received bytes.
    """

    def __init__(self, load: Load, channel: int) -> None:
        self.segment: PlannedSegment | None = None
        self.size = 0
        self._load = load
        self._channel = channel
        self._head = b""  # the first bytes, up to the end of the marker
        self._same = False  # no byte differs so far

    def add(self, chunk: bytes) -> None:
        at, self.size = self.size, self.size + len(chunk)
        if at < MARKER_BYTES:  # the marker may come in pieces
            self._head += chunk
            self.segment = self._find()
            self._same = self.segment is not None and self._head == self.segment.bytes(0, self.size)
        elif self._same and self.segment is not None:
            self._same = chunk == self.segment.bytes(at, self.size)

    @property
    def same(self) -> bool:
        """Whether exactly the published bytes have come."""
        return self._same and self.segment is not None and self.size == self.segment.size

    def _find(self) -> PlannedSegment | None:
        packed, check = self._head[: _MARKER.size], self._head[_MARKER.size : MARKER_BYTES]
        if len(check) < 4 or int.from_bytes(check) != zlib.crc32(packed):
            return None
        magic, channel, ordinal = _MARKER.unpack(packed)
        return PlannedSegment(self._load, channel, ordinal) if (magic, channel) == (_MAGIC, self._channel) else None


@dataclass(frozen=True, slots=True)
class StressPlan:
    """One run.

    Attributes:
        base: the URL below which the channels live.
        run: a random part of the channels' names.
        load: the published segments; each channel has one publisher.
        subscribers: number of subscribers of each channel.
        processes: number of processes that publish, and of those that subscribe.
        ca_file: certificates to trust with https; empty for the system's.
    """

    base: str
    run: str
    load: Load
    subscribers: int
    processes: int = 1
    ca_file: str = ""

    def channel(self, number: int | str) -> str:
        """The name of a publisher's channel, or of another channel of this run."""
        return f"stress-{self.run}-{number}"

    def url(self, number: int | str) -> str:
        return f"{self.base}/{self.channel(number)}"

    def clients(self, role: Role) -> list[list[tuple[int, int]]]:
        """The clients of each process: their channels, and their numbers among the subscribers of the channel."""
        readers = product(range(self.subscribers if role == "subscribe" else 1), range(self.load.channels))
        clients = [(channel, number) for number, channel in readers]
        return [share for first in range(self.processes) if (share := clients[first :: self.processes])]
