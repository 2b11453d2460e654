"""What can be told from the bytes of local files: damage, doubles, and a last line that is still being written."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import IO, Final, cast

PACKED: Final = (".gz", ".bz2")
"""Endings of compressed files that can be looked into here."""

OPAQUE: Final = (".zst", ".parquet")
"""Endings of files whose bytes are not lines, and that only Spark can look into."""

_BLOCK: Final = 1 << 20
_ENDS: Final = 1 << 16
"""Bytes at both ends that are compared before whole files are."""

MAX_COMPARED: Final = 64 << 20
"""Bytes, decompressed, up to which the lines of all files are compared: less than half a second."""

MAX_COMPARED_LINES: Final = 500_000
"""And so many lines: their hashes take some 50 MB."""

MAX_UNFINISHED: Final = 16 << 20
"""Bytes; an unfinished line that is longer is none."""


def open_log(name: str) -> IO[bytes]:
    """A file's bytes, decompressed if its name says that it is compressed."""
    if name.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(name))
    return cast("IO[bytes]", bz2.open(name)) if name.endswith(".bz2") else open(name, "rb")


def is_damaged(name: str) -> bool:
    """Whether a compressed file is cut or none at all. Reads it once; decompressing is cheap beside parsing JSON."""
    if not name.endswith(PACKED):
        return False
    try:
        with open_log(name) as stream:
            while stream.read(_BLOCK):
                pass
    except (EOFError, OSError, zlib.error):
        return True
    return False


def duplicates_among(names: Iterable[str]) -> tuple[str, ...]:
    """Files with the same bytes as an earlier one; empty ones are nobody's double."""
    same = [[name for name in names if os.path.getsize(name)]]
    by: Callable[[str], Hashable]
    # Files of one size are rare, and such with the same ends rarer still: few are read whole.
    for by in (os.path.getsize, _ends, _digest):
        same = [group for groups in same for group in _split(groups, by)]
    found = {name for group in same for name in group[1:]}
    return tuple(name for name in names if name in found)


def _split(names: list[str], by: Callable[[str], Hashable]) -> list[list[str]]:
    groups = defaultdict(list)
    for name in names:
        groups[by(name)].append(name)
    return [group for group in groups.values() if len(group) > 1]


def _ends(name: str) -> bytes:
    with open(name, "rb") as file:
        head = file.read(_ENDS)
        file.seek(max(0, os.path.getsize(name) - _ENDS))
        return head + file.read(_ENDS)


def _digest(name: str) -> bytes:
    with open(name, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def has_repeated_line(names: Iterable[str]) -> bool:
    """Whether a line is there more than once, to the byte, in one file or in several; blank ones do not count.

    ``False`` also where there is too much to compare, or nothing: no files of this machine, or none of lines.
    """
    looked_into = [name for name in names if not name.endswith(OPAQUE) and os.path.isfile(name)]
    if sum(map(os.path.getsize, looked_into)) > MAX_COMPARED:  # no need to begin
        return False
    seen: set[int] = set()
    size = 0
    for name in looked_into:
        for line in _lines_of(name):
            size += len(line)
            if size > MAX_COMPARED or len(seen) >= MAX_COMPARED_LINES:
                return False
            text = line.strip()
            # Of two lines with one hash by chance, only time is lost.
            if text and (key := hash(text)) in seen:
                return True
            elif text:
                seen.add(key)
    return False


def _lines_of(name: str) -> Iterator[bytes]:
    """The lines of a file, in pieces where they are very long; of a cut archive, those that can be read."""
    with open_log(name) as stream:
        while True:
            try:
                line = stream.readline(_BLOCK)
            except (EOFError, OSError, zlib.error):
                return
            if not line:
                return
            yield line


def unfinished_line(name: str) -> str | None:
    """The SHA-256 of what follows the last line's end, in hex; ``None`` if nothing does.

    It may be a whole record of which only the line's end is missing; whoever cannot read it knows why.
    """
    if name.endswith((*PACKED, *OPAQUE)):
        return None
    tail = last_piece(name)
    return hashlib.sha256(tail).hexdigest() if tail is not None and tail.strip() else None


def last_piece(name: str) -> bytes | None:
    """What follows the last line's end in a plain file; ``None`` if that is too long to be a line."""
    with open(name, "rb") as file:
        size = at = file.seek(0, os.SEEK_END)
        tail = b""
        while at > 0 and size - at <= MAX_UNFINISHED:
            step = min(at, _ENDS)
            at -= step
            file.seek(at)
            block = file.read(step)
            if (end := block.rfind(b"\n")) >= 0:
                return block[end + 1 :] + tail
            tail = block + tail
    return tail if at == 0 else None
