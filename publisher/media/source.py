"""Where packets come from: a file, a URL, a pipe or a device that PyAV opens, or whatever else has streams.

Everything here blocks and runs in a worker thread (:mod:`publisher.worker`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from trickle.errors import InvalidInput

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.stream import Stream

OPEN_S: Final = 15.0
"""How long a source on the network may take to open, in seconds."""


class MediaSource(Protocol):
    """Streams, and their packets as they come. Each is used once, in one thread."""

    @property
    def streams(self) -> Sequence[Stream]:
        """Templates for the streams of a muxer; ``packet.stream_index`` is the ``index`` of one of them."""

    def packets(self) -> Iterator[Packet[Stream]]:
        """The packets of all streams, interleaved, each stream's in decoding order; it blocks until there is one.

        None is empty, and each belongs to whoever takes it. A source that knows when the wall clock was what as the
        packet was captured, in microseconds of Unix time, says so in ``packet.opaque``; otherwise the time at which
        the packet leaves the source counts.

        Raises:
            OSError: the source broke (PyAV's ``FFmpegError``, too).
        """

    def close(self) -> None:
        """Free what it holds; no packets are taken after it."""


class ByteReader(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""


class ContainerSource:
    """The packets of an open container, unchanged.

    Args:
        container: is closed with the source.
    """

    def __init__(self, container: InputContainer) -> None:
        self._container = container

    @property
    def streams(self) -> Sequence[Stream]:
        """All streams of the container."""
        return list(self._container.streams)

    def packets(self) -> Iterator[Packet[Stream]]:
        """What the container holds, in its order."""
        # An empty packet at the end asks decoders for what they hold back; it is none of the container's.
        return (packet for packet in self._container.demux() if packet.size)

    def close(self) -> None:
        """Close the container."""
        self._container.close()


def open_media(source: str | ByteReader, name: str) -> ContainerSource:
    """Open a file, a URL or a stream of bytes.

    Args:
        source: a path or URL, or a stream of bytes.
        name: what to call it in an error message.

    Raises:
        InvalidInput: PyAV is not installed, or it cannot read this.
    """
    try:
        import av
    except ImportError as error:
        raise InvalidInput('reading media needs PyAV: pip install "tricklecast[media]"') from error
    remote = isinstance(source, str) and "://" in source
    try:
        return ContainerSource(av.open(source, mode="r", timeout=(OPEN_S, None) if remote else None))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {name}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Why a source failed, in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0]
