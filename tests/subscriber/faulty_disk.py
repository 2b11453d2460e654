"""A disk on which a program dies, or an operation fails, at a step that the test names."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

from tricklecast.subscriber.archive import Disk


class Crashed(BaseException):
    """The program died here: no handler of ours may see it as an error."""


class FaultyDisk(Disk):
    """The real file system up to a step, and a fault there. Nothing survives a crash but what was done before.

    Args:
        fails_at: the step, counted from 0; ``None``: never.
        error: what fails there, instead of the program's death.
        torn: how much of a write is done before its fault, from 0 to 1.
    """

    def __init__(self, fails_at: int | None = None, *, error: int | None = None, torn: float = 0.5) -> None:
        self.steps = 0
        self.synced: list[Path] = []
        self._fails_at = fails_at
        self._error = error
        self._torn = torn
        self._dead = False

    def _step(self) -> bool:
        """Count; whether this is the step at which something happens."""
        if self._dead:
            raise Crashed
        self.steps += 1
        return self.steps - 1 == self._fails_at

    def _fault(self) -> None:
        if self._error is not None:
            raise OSError(self._error, os.strerror(self._error))
        self._dead = True
        raise Crashed

    def make(self, folder: Path) -> None:
        if self._step():
            self._fault()
        super().make(folder)

    def create(self, path: Path) -> BinaryIO:
        if self._step():
            self._fault()
        return super().create(path)

    def extend(self, path: Path) -> BinaryIO:
        if self._step():
            self._fault()
        return super().extend(path)

    def write(self, file: BinaryIO, data: bytes | bytearray) -> None:
        if self._step():
            super().write(file, bytes(data[: int(len(data) * self._torn)]))
            self._fault()
        super().write(file, data)

    def sync(self, file: BinaryIO) -> None:
        if self._step():
            self._fault()  # no real sync either: it says nothing in a test, and takes its time

    def truncate(self, file: BinaryIO, size: int) -> None:
        if self._step():
            self._fault()
        super().truncate(file, size)

    def rename(self, path: Path, to: Path) -> None:
        if self._step():
            self._fault()
        super().rename(path, to)

    def sync_folder(self, path: Path) -> None:
        self.synced.append(path)
        if self._step():
            self._fault()

    def remove(self, path: Path) -> None:
        if self._step():
            self._fault()
        super().remove(path)


FULL = errno.ENOSPC
