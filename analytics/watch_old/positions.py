"""Where a followed log stands: what Spark's checkpoint keeps, and what a batch can be read again from.

A file is known by its inode and its first line, not by its name: rotation renames it, and the inode of a deleted file
is soon another's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

HEAD: Final = 4096
"""Bytes of the first line that tell files apart."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far one file has been read.

    Attributes:
        at: bytes. skipping: this is inside a line that is too long to be one.
    """

    at: int
    skipping: bool = False


@dataclass(frozen=True, slots=True)
class Positions:
    """How far all files have been read.

    Attributes:
        read_us: when the last bytes were read, microseconds since the epoch; never goes back.
        files: by identity. A file that is not here has not been read at all.
    """

    read_us: int = 0
    files: Mapping[str, Place] = field(default_factory=dict)

    def of(self, identity: str) -> Place:
        """How far that file has been read."""
        return self.files.get(identity, Place(0))

    def as_json(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        places = {name: [place.at, int(place.skipping)] for name, place in self.files.items()}
        return {"read_us": self.read_us, "files": places}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Positions:
        """What :meth:`as_json` gave."""
        places = {name: Place(at, bool(skipping)) for name, (at, skipping) in offset["files"].items()}
        return cls(offset["read_us"], places)


def identity(descriptor: int, inode: int) -> str | None:
    """What an open file is known by; ``None`` before it has a first line."""
    head = os.pread(descriptor, HEAD, 0)
    line, newline, _ = head.partition(b"\n")
    if not newline and len(head) < HEAD:
        return None
    return f"{inode:x}-{hashlib.sha256(line).hexdigest()[:12]}"
