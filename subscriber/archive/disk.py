"""What a recording does to the file system, each step of it by itself, so that tests can fail any of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from tricklecast.trickle.errors import TrickleError


class DirectoryInUse(TrickleError):
    """Another process is recording into that folder."""


class Disk:
    """The file system. Every method blocks, and raises ``OSError`` as the system does."""

    def make(self, folder: Path) -> None:
        """Make a folder, and those above it, unless it is there."""
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> BinaryIO:
        """A new file, or an old one emptied, without a buffer of its own."""
        return path.open("wb", buffering=0)

    def extend(self, path: Path) -> BinaryIO:
        """A file to append to, without a buffer of its own."""
        return path.open("ab", buffering=0)

    def write(self, file: BinaryIO, data: bytes | bytearray) -> None:
        """Write all of it; a full disk may take a part."""
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += file.write(view[done:])

    def sync(self, file: BinaryIO) -> None:
        """Have what was written survive the machine."""
        os.fsync(file.fileno())

    def truncate(self, file: BinaryIO, size: int) -> None:
        """Cut a file off."""
        file.truncate(size)

    def rename(self, path: Path, to: Path) -> None:
        """Give a file its name, in one step; a file that had that name is replaced."""
        path.replace(to)

    def remove(self, path: Path) -> None:
        """Remove a file, unless it is gone."""
        path.unlink(missing_ok=True)

    def lock(self, path: Path) -> BinaryIO:
        """A file that nobody else can lock until it is closed, be it by the end of this process.

        Raises:
            DirectoryInUse: somebody else has locked it.
        """
        import fcntl  # POSIX only, like the rest of what is promised about crashes

        file = path.open("wb", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise DirectoryInUse(f"another process is recording into {path.parent}") from None
        except BaseException:
            file.close()
            raise
        return file
