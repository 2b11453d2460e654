"""What a container does for segments: where MPEG-TS and fragmented MP4 differ, and the segmenter does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream


@dataclass(frozen=True, slots=True)
class Times:
    """When a packet is shown and decoded, in 90 kHz ticks of the output.

    Attributes:
        pts: when it is shown.
        dts: when it is decoded.
        captured_us: the wall clock as it was captured, in microseconds of Unix time. It is given for the first packet
            of the leading stream in each segment, and written in front of it.
    """

    pts: int
    dts: int
    captured_us: int | None = None


class Muxer(Protocol):
    """Writes segments of one set of streams, one after the other, each of which stands alone."""

    def add(self, packet: Packet[Stream], times: Times) -> bytes:
        """Take a packet; the first one begins a segment.

        Args:
            packet: of one of the streams; it is changed.
            times: of the packet.

        Returns:
            What can be sent now.

        Raises:
            OSError: the packet does not fit (PyAV's ``FFmpegError``, too).
        """

    def end(self) -> bytes:
        """End the segment.

        Returns:
            The rest of it.
        """


class Container(Protocol):
    """A container, over all segments of a publication."""

    @property
    def name(self) -> str:
        """As people call it."""

    @property
    def content_type(self) -> str:
        """Media type of its segments."""

    @property
    def turns(self) -> bool:
        """Whether it can say that a picture is to be turned."""

    @property
    def carried(self) -> frozenset[str]:
        """Codecs that it can carry, by the names that libavcodec gives them."""

    def muxer(self, streams: Sequence[Stream], lead: Stream) -> Muxer:
        """Write segments of these streams from now on; numbering goes on where the muxer before it stopped.

        Args:
            streams: of one source; all of them are carried.
            lead: the one of them at whose packets segments begin.
        """


class Sink:
    """Memory that a muxer of PyAV writes to."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep it."""
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """What was written since."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def codec_name(stream: Stream) -> str:
    """The codec's own name; a stream's ``name`` is that of the decoder, of which a codec may have several."""
    context = getattr(stream, "codec_context", None)
    return "unknown codec" if context is None else str(context.codec.canonical_name)
