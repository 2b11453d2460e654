"""Counts the bytes of MPEG-TS that belong to no packet: garbage in a file, or another format in the middle of it.

libavformat looks for the next packet in silence, and forgets the counters, so that no packet behind it is marked as
damaged. So this module looks at the bytes beside it. Of whole packets it looks at the first byte only, which is fast.
"""

from __future__ import annotations

import os
import re
from typing import Final

from tricklecast.trickle.media.containers import SYNC

SIZES: Final = (188, 192, 204)
"""Bytes of a packet: alone, behind a time of arrival (M2TS), and with a check sum of 16 bytes behind it."""

IN_A_ROW: Final = 5
"""This many packets in a row are MPEG-TS. At the end of the bytes fewer are enough."""

PART_BYTES: Final = 64 * 1024
"""A file is looked at in parts of this size."""

_SYNC: Final = bytes([SYNC])
_SPAN: Final = IN_A_ROW * max(SIZES)
_ROWS: Final = b"|".join(b"(?=(.{%d}%b){%d})" % (size - 1, _SYNC, IN_A_ROW - 1) for size in SIZES)
_BEGIN: Final = re.compile(_SYNC + b"(?:" + _ROWS + b")", re.DOTALL)
"""Where packets begin; the number of the group tells their size."""


class Strays:
    """Counts, of bytes in their order, those that belong to no packet.

    The rest of a packet in front of the first one, and the begin of one at the end, are no damage: somebody cut there.
    """

    def __init__(self) -> None:
        self._size = 0  # of the packets; 0: they are looked for
        self._skipped = 0
        self._before: int | None = 0  # of these, in front of the first packet; None: more than a part of one
        self._has_begun = False
        self._rest = b""  # bytes of which nothing is known yet: less than a packet, or too few to find one

    @property
    def count(self) -> int:
        """So far; those of the last bytes are counted by :meth:`end`."""
        return self._skipped

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._look(self._rest + data, is_last=False)

    def end(self) -> None:
        """No bytes follow."""
        self._look(self._rest, is_last=True)

    def _look(self, data: bytes, *, is_last: bool) -> None:
        at = 0
        while True:
            if not self._size:
                begin = self._begin(data, at, is_last=is_last)
                self._skip(begin - at)
                at = begin
                if not self._size:
                    break
                self._has_begun = True
            whole = (len(data) - at) // self._size
            firsts = data[at : at + whole * self._size : self._size]
            good = whole - len(firsts.lstrip(_SYNC))
            at += good * self._size
            if good == whole and data[at : at + 1] in (b"", _SYNC):
                break
            self._size = 0
        self._rest = b"" if is_last else data[at:]

    def _begin(self, data: bytes, at: int, *, is_last: bool) -> int:
        """Where packets begin, whose size is kept; else up to where there are none."""
        if not is_last:
            if (found := _BEGIN.search(data, at)) is None:
                return max(at, len(data) - _SPAN)
            self._size = SIZES[(found.lastindex or 1) - 1]
            return found.start()
        for place in range(at, len(data)):
            for size in SIZES:
                if data[place::size] == _SYNC * len(data[place::size]):
                    self._size = size
                    return place
        return len(data)

    def _skip(self, size: int) -> None:
        """These bytes belong to no packet."""
        if self._has_begun or self._before is None:
            self._skipped += size
            return
        self._before += size
        if self._before >= max(SIZES):
            self._skipped, self._before = self._before, None


class FileStrays(Strays):
    """The same for a file that something else reads.

    Args:
        path: of a file; one that cannot be opened has no strays.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._at = 0
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError:
            self._file = -1

    def look(self, up_to: int | None) -> None:
        """Look at the file up to a place, or to its end."""
        while self._file >= 0 and (up_to is None or up_to - self._at >= PART_BYTES):
            try:
                data = os.pread(self._file, PART_BYTES, self._at)  # the place of a redirected standard input stays
            except OSError:  # libavformat tells that it cannot be read
                data = b""
            self._at += len(data)
            if data:
                self.feed(data)
            else:
                self.end()
                self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
