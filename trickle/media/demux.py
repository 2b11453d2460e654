"""What every reader of media needs around PyAV's demuxer, whose container the caller opens.

- :func:`demuxed` yields packets, also of a container with a stream that begins later.
- :class:`SampleGuard` keeps MP4 from libavformat that would make it allocate gigabytes: libavformat allocates an index
  of all samples that a file announces, which a few bytes can do for millions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeVar

from tricklecast.trickle.media.containers import (
    Container,
    fragment_samples,
    has_huge_track,
    has_sample_table,
    number,
)

FORMATS: Final = {Container.MPEGTS: "mpegts", Container.FMP4: "mp4"}
"""libavformat's names of the containers."""

MAX_SAMPLES: Final = 1 << 20
"""Most samples of an MP4 segment: five hours of sound."""

MAX_BOX: Final = 16 * 1024 * 1024
"""Largest box besides ``mdat``: more than the fragment header of :data:`MAX_SAMPLES` samples."""

_TO_THE_END: Final = 1 << 64
"""The size of a last box without a size."""

P_co = TypeVar("P_co", covariant=True)


class Demuxer(Protocol[P_co]):
    """An input container of PyAV."""

    def demux(self, streams: Sequence[object], /) -> Iterator[P_co]:
        """Yield the packets of these streams, and an empty one of each at the end."""


def demuxed(container: Demuxer[P_co], streams: Sequence[object]) -> Iterator[P_co]:
    """Yield the packets of some streams of a container, and an empty one of each at the end.

    Packets of streams that begin later, and that the container did not have when it was opened, are left out.

    Raises:
        OSError: the container broke (PyAV's ``FFmpegError``, too).
    """
    while True:
        try:
            yield from container.demux(streams)
            return
        except IndexError:  # PyAV met a stream that began later; the next call knows it
            continue


class Refused(ValueError):
    """These bytes must not be demuxed."""


class SampleGuard:
    """Passes on the bytes of an MP4 segment, whose boxes it reads before a demuxer does.

    Boxes are passed on whole, since a demuxer can do nothing with a part of them. Only ``mdat``, the media, is passed
    on as it comes. So at most :data:`MAX_BOX` bytes are held back. What is no box ends the segment, as it does for
    libavformat.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._media_left = 0
        self._samples = 0

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns those that a demuxer may have now.

        Raises:
            Refused: they announce more than :data:`MAX_SAMPLES` samples or a track that costs seconds, or belong to an
                ordinary MP4 file.
        """
        self._held += data
        passed = []
        while size := min(self._media_left, len(self._held)) or self._next_box():
            passed.append(self._held[:size])
            del self._held[:size]
            self._media_left -= min(size, self._media_left)
        if len(self._held) > MAX_BOX:
            raise Refused(f"a box of more than {MAX_BOX >> 20} MiB")
        return b"".join(passed)

    def _next_box(self) -> int:
        """The size of the next box, ``mdat`` counting as far as it is there; 0: there is no whole one."""
        size, header = number(self._held, 0, 4), 8
        if size == 1:  # the size follows, in 64 bits
            size, header = number(self._held, 8, 8), 16
        is_media = self._held[4:8] == b"mdat"
        if is_media and size == 0:
            size = _TO_THE_END
        if size < header or len(self._held) < (header if is_media else size):
            return 0
        if is_media:
            self._media_left = size
            return min(size, len(self._held))
        self._check(bytes(self._held[:size]))
        return size

    def _check(self, box: bytes) -> None:
        if has_sample_table(box):
            raise Refused("an ordinary MP4 file instead of a fragmented one")
        if has_huge_track(box):
            raise Refused("a track number of more than 31 bits")
        self._samples += fragment_samples(box)
        if self._samples > MAX_SAMPLES:
            raise Refused(f"more than {MAX_SAMPLES} samples")
