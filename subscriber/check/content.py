"""What the bytes of a segment are, and the parser for them."""

from __future__ import annotations

from typing import Final

from tricklecast.subscriber.check.fmp4 import Fmp4Reader, Init, looks_like_mp4
from tricklecast.subscriber.check.media import Container, Media
from tricklecast.subscriber.check.mpegts import PACKET_BYTES, MpegtsReader, Multiplex, looks_like_mpegts
from tricklecast.trickle.media.clock import read_prft, read_temi

SNIFF_BYTES: Final = 4 * PACKET_BYTES
"""From so many bytes on, a segment's container is decided: one packet that may be cut, and three whole ones."""

HEAD_BYTES: Final = 4 * 1024 * 1024
"""How much of a segment's beginning is kept for the decoder: a keyframe of 2160p has less than half of it."""

_JSON_STARTS: Final = frozenset(b'{["')


class Channel:
    """What the parsers carry from segment to segment."""

    def __init__(self) -> None:
        self._multiplex = Multiplex()
        self._init = Init()

    def segment(self, *, follows: bool) -> Content:
        """Begin a segment.

        Args:
            follows: the whole segment before it was read, and it is the next one.
        """
        if not follows:
            self._multiplex.interrupt()
        return Content(self._multiplex, self._init)


class Content:
    """One segment's bytes.

    Attributes:
        head: its beginning, up to :data:`HEAD_BYTES`.
        size: bytes so far.
    """

    def __init__(self, multiplex: Multiplex, init: Init) -> None:
        self.head = bytearray()
        self.size = 0
        self._multiplex = multiplex
        self._init = init
        self._reader: MpegtsReader | Fmp4Reader | None = None
        self._container: Container | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self.size += len(chunk)
        if len(self.head) < HEAD_BYTES:
            self.head += chunk[: HEAD_BYTES - len(self.head)]
        if self._container is not None:
            self._read(chunk)
        elif self.size >= SNIFF_BYTES:
            self._decide(chunk)

    def finish(self) -> Media:
        """What the segment holds."""
        if self._container is None:
            self._decide(b"")
        assert self._container is not None
        return Media(self._container) if self._reader is None else self._reader.finish()

    def producer_us(self) -> int | None:
        """The time of its first frame, as its publisher has it, in microseconds since 1970."""
        if isinstance(self._reader, MpegtsReader):
            return read_temi(self.head)
        return read_prft(self.head) if isinstance(self._reader, Fmp4Reader) else None

    def _decide(self, chunk: bytes) -> None:
        """Choose the parser, and give it what came so far."""
        self._container = sniff(bytes(self.head[:SNIFF_BYTES]))
        if self._container is Container.MPEGTS:
            self._reader = MpegtsReader(self._multiplex)
        elif self._container is Container.FMP4:
            self._reader = Fmp4Reader(self._init)
        # A chunk may be longer than what is kept of it.
        self._read(bytes(self.head[: self.size - len(chunk)]))
        self._read(chunk)

    def _read(self, chunk: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(chunk)


def sniff(data: bytes) -> Container:
    """What a segment that begins like this is.

    Args:
        data: its first :data:`SNIFF_BYTES`, or all of it.
    """
    if looks_like_mp4(data):
        return Container.FMP4
    if looks_like_mpegts(data):
        return Container.MPEGTS
    return Container.JSON if data.lstrip()[:1] and data.lstrip()[0] in _JSON_STARTS else Container.OTHER
