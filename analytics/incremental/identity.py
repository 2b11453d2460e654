"""Which log a file is, whatever it is called: rotation renames logs and compresses them, and they grow meanwhile.

A log is its content: size and checksum, decompressed. One that begins with the whole content of a known log is a later
version of it, and takes its place.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tricklecast.analytics.content import open_log
from tricklecast.analytics.errors import BadInput

MAX_FIRST_LINE: Final = 4096
"""Bytes of its first line by which a log that was written again, under the same name, is recognised."""

_BLOCK: Final = 1 << 20
_ID_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the file system says about a file; where it says the same again, the content is taken to be the same.

    Attributes:
        inode, size, mtime_ns: as of ``stat``. Renaming a file changes none of them.
    """

    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Identity:
    """A log's content.

    Attributes:
        id: its checksum, the beginning of a SHA-256 in hexadecimal.
        size: bytes of it, decompressed.
        first_line: checksum of its first line; empty for a file that has no lines.
        begins: checksums of its first bytes, at each size that was asked for and that it has.
    """

    id: str
    size: int
    first_line: str
    begins: frozenset[str]


def stamp_of(name: str) -> Stamp:
    """The stamp of a file.

    Raises:
        BadInput: it is gone, or cannot be read.
    """
    try:
        status = os.stat(name)
    except OSError as error:
        raise BadInput(f"cannot read {name!r}: {error.strerror}") from error
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


def identify(name: str, sizes: Iterable[int] = ()) -> Identity:
    """Reads a file once.

    Args:
        sizes: those of known logs, of which this one may be a later version.

    Raises:
        BadInput: it cannot be read.
    """
    content = hashlib.sha256()
    size = 0
    first = b""
    marks = sorted(set(sizes), reverse=True)
    begins: set[str] = set()
    try:
        for block in _blocks(name):
            first += block[: max(0, MAX_FIRST_LINE - size)]
            done = 0
            while marks and marks[-1] < size + len(block):
                upto = marks.pop() - size
                content.update(block[done:upto])
                begins.add(_digest(content))
                done = upto
            content.update(block[done:])
            size += len(block)
    except OSError as error:
        raise BadInput(f"cannot read {name!r}: {error.strerror or error}") from error
    line = first.split(b"\n", 1)[0]
    first_line = "" if name.endswith(".parquet") or not line else _digest(hashlib.sha256(line))
    return Identity(_digest(content), size, first_line, frozenset(begins))


def _blocks(name: str) -> Iterator[bytes]:
    """The content in pieces; of a cut archive, as much as can be read."""
    packed = name.endswith((".gz", ".bz2"))
    with open_log(name) as stream:
        while True:
            try:
                block = stream.read(_BLOCK)
            except (EOFError, zlib.error):
                return
            except OSError as error:
                if packed and error.errno is None:  # no such archive, or damaged in the middle
                    return
                raise
            if not block:
                return
            yield block


def _digest(content: hashlib._Hash) -> str:
    return content.hexdigest()[:_ID_DIGITS]
