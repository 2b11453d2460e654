"""Where packets come from: a file, a URL, a pipe or a device that PyAV opens, or whatever else has streams.

Everything here blocks and runs in a worker thread (:mod:`tricklecast.publisher.worker`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tricklecast.trickle.errors import InvalidInput

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.stream import Stream

_CLEARER: Final = {
    "Immediate exit requested": "nothing came in time",  # a time-out interrupted libavformat
    "Protocol not found": "PyAV was built without this protocol",
}

_NO_TIMESTAMPS: Final = 0x0080
"""libavformat's ``AVFMT_NOTIMESTAMPS``; PyAV's own name for it is no number."""


class MediaSource(Protocol):
    """Streams, and their packets as they come. Each is used once, in one thread."""

    @property
    def streams(self) -> Sequence[Stream]:
        """Templates for the streams of a muxer; ``packet.stream_index`` is the ``index`` of one of them."""

    def packets(self) -> Iterator[Packet[Stream]]:
        """The packets of all streams, interleaved, each stream's in decoding order; it blocks until there is one.

        None is empty, and each belongs to whoever takes it. A source that knows what the wall clock was as a packet
        was captured, in microseconds of Unix time, says so in ``packet.opaque``.

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
    """The packets of an open container, unchanged; what arrives now counts as captured now.

    Args:
        container: is closed with the source.
    """

    def __init__(self, container: InputContainer) -> None:
        self._container = container

    @property
    def streams(self) -> Sequence[Stream]:
        """All streams of the container."""
        return list(self._container.streams)

    @property
    def is_endless(self) -> bool:
        """Whether nobody knows how long it is: most likely it is live."""
        return self._container.duration is None

    def packets(self) -> Iterator[Packet[Stream]]:
        """What the container holds, in its order; what is no container but a bare stream, at its frame rate."""
        counted = _has_no_times(self._container)
        next_dts = 0
        for packet in self._container.demux():
            if not packet.size:  # at the end, it asks decoders for what they hold back
                continue
            if counted and packet.dts is None:
                packet.dts, next_dts = next_dts, next_dts + (packet.duration or 1)
            packet.opaque = time.time_ns() // 1000
            yield packet

    def close(self) -> None:
        """Close the container."""
        self._container.close()


def open_media(
    source: str | ByteReader,
    name: str,
    *,
    format: str | None = None,
    options: Mapping[str, str] | None = None,
    timeouts_s: tuple[float | None, float | None] = (None, None),
) -> ContainerSource:
    """Open a file, a URL, a device or a stream of bytes.

    Args:
        source: a path, a URL, a device's name or a stream of bytes.
        name: what to call it in an error message.
        format: what it is; found out, if it is not given. Devices need it.
        options: libavformat's, for the protocol and the format.
        timeouts_s: how long opening it, and every read, may take.

    Raises:
        InvalidInput: PyAV is not installed, or it cannot read this.
    """
    try:
        import av
    except ImportError as error:
        raise InvalidInput('reading media needs PyAV: pip install "tricklecast[media]"') from error
    timeout = None if timeouts_s == (None, None) else timeouts_s
    try:
        container = av.open(source, mode="r", format=format, options=dict(options or {}), timeout=timeout)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {name}: {reason(error)}") from error
    return ContainerSource(container)


def _has_no_times(container: InputContainer) -> bool:
    """Whether it is nothing but the coded frames of one stream, as cameras without a muxer send them."""
    return bool(container.format.flags & _NO_TIMESTAMPS)


def reason(error: Exception) -> str:
    """Why a source failed, in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _CLEARER.get(text, text.splitlines()[0])
