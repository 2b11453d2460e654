"""Guards a demuxer against the bytes of foreign MP4.

libavformat allocates an index of all samples that an MP4 header announces, and a header of some bytes can announce
millions of them: gigabytes for a segment of one kilobyte. :class:`SampleGuard` reads the boxes first and refuses such a
segment. Limiting the process's memory instead would end the program. Since it sees all boxes, it also puts the last
init segment in front of the media of a segment that has none.
"""

from __future__ import annotations

from typing import Final

from tricklecast.trickle.media.containers import fragment_samples, has_huge_track, has_sample_table, number

MAX_SAMPLES: Final = 1 << 20
"""Most samples of an MP4 segment: more than five hours of sound have."""

MAX_BOX: Final = 16 * 1024 * 1024
"""Largest box besides ``mdat``, in bytes: the fragment header of :data:`MAX_SAMPLES` samples fits."""

_TO_THE_END: Final = 1 << 64
"""The size of an ``mdat`` that goes on to the segment's end."""


class UnsafeMedia(ValueError):
    """A demuxer must not read these bytes."""


class SampleGuard:
    """Passes the bytes of an MP4 segment on to a demuxer, after it has checked their boxes.

    A box is held back until it is whole. Only ``mdat``, the media, is passed on as it comes. So at most
    :data:`MAX_BOX` bytes are held. Bytes that are no box end the segment, as they do for libavformat.

    Args:
        init: the init segment of the segments before, for a segment that has none.

    Attributes:
        init: the init segment for the segments behind this one: its own, if it has one.
    """

    def __init__(self, init: bytes = b"") -> None:
        self.init = init
        self._missing = init  # goes in front of the media
        self._brands = b""  # the segment's ftyp
        self._held = bytearray()  # bytes of a box that is not whole
        self._media_left = 0  # bytes left of the present mdat
        self._samples = 0  # samples that the headers have announced

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the segment; return those that a demuxer may read now.

        Raises:
            UnsafeMedia: the headers announce more than :data:`MAX_SAMPLES` samples, or a track over which libavformat
                takes seconds, or the segment is an ordinary MP4 file.
        """
        self._held += data
        passed = []
        while size := min(self._media_left, len(self._held)) or self._next_box():
            passed.append(self._held[:size])
            del self._held[:size]
            self._media_left -= min(size, self._media_left)
        if len(self._held) > MAX_BOX:
            raise UnsafeMedia(f"a box of more than {MAX_BOX >> 20} MiB")
        return b"".join(passed)

    def _next_box(self) -> int:
        """Return how many bytes may be passed on: a whole box, or the bytes of ``mdat`` that are here; 0 for none."""
        if self._missing and bytes(self._held[4:8]) in (b"moof", b"mdat"):
            self._held[:0], self._missing = self._missing, b""
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
            raise UnsafeMedia("an ordinary MP4 file instead of a fragmented one")
        if has_huge_track(box):
            raise UnsafeMedia("a track number of more than 31 bits")
        self._samples += fragment_samples(box)
        if self._samples > MAX_SAMPLES:
            raise UnsafeMedia(f"more than {MAX_SAMPLES} samples")
        if box[4:8] == b"ftyp":
            self._brands = box
        elif box[4:8] == b"moov":
            self.init, self._missing = self._brands + box, b""
