"""The interface of everything that gives packets: files, devices, networks, the test picture, and an encoder of these.

It stands alone, since some of them are made of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream

    Packets: TypeAlias = Iterator[tuple[int, Packet[Stream]]]


class MediaSource(Protocol):
    """Streams, and their packets as they come. Each source is used once, in one thread."""

    @property
    def streams(self) -> Mapping[int, Stream]:
        """Templates for the streams of a muxer, by number."""

    @property
    def strays(self) -> int:
        """Bytes that came so far and belong to no packet of its container, where that can be told."""

    def packets(self) -> Packets:
        """The packets of all streams with the numbers of their streams, interleaved, each stream's in decoding order.

        It blocks until there is one. None is empty, and each belongs to the caller. A source that knows the wall clock
        at the capture of a packet, in microseconds of Unix time, puts it into ``packet.opaque``.

        Raises:
            OSError: the source broke (PyAV's ``FFmpegError``, too).
        """

    def late(self) -> Mapping[int, str]:
        """Streams that began after it was opened, whose packets do not come, as in ``audio: aac``, by number."""

    def close(self) -> None:
        """Free it; no packets are taken after this."""
