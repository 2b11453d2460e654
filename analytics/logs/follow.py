"""Lines of files: the last ones, and those that are added, across rotations."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Final

from tricklecast.analytics.content import PACKED, open_log

MAX_LINE: Final = 1 << 20
"""Bytes; of a longer line only the beginning is kept."""

POLL_S: Final = 0.2
"""How often files are looked at for what is new."""

_BLOCK: Final = 1 << 16


def last_lines(name: str, count: int, wanted: Callable[[bytes], bool]) -> tuple[list[bytes], int]:
    """The last lines of a file that are wanted, in order, and where to go on reading.

    Args:
        name: the file; compressed ones are read from their beginning.
        count: how many.

    Raises:
        OSError: the file cannot be read.
    """
    with open_log(name) as file:
        if name.endswith(PACKED):
            kept = [line for line in _whole(file) if wanted(line)]
            return (kept[-count:] if count else []), 0
        end = _end_of_last_line(file)
        found: list[bytes] = []
        for line in _backwards(file, end):
            if len(found) >= count:
                break
            if line.strip() and wanted(line):
                found.append(line)
        return found[::-1], end


def _whole(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE):
        if line.strip():
            yield line.rstrip(b"\r\n")


def _end_of_last_line(file: IO[bytes]) -> int:
    at = file.seek(0, os.SEEK_END)
    while at > 0:
        step = min(at, _BLOCK)
        file.seek(at - step)
        if (end := file.read(step).rfind(b"\n")) >= 0:
            return at - step + end + 1
        at -= step
    return 0


def _backwards(file: IO[bytes], end: int) -> Iterator[bytes]:
    """The lines before a place, the last first."""
    tail = b""
    at = end
    while at > 0:
        step = min(at, _BLOCK)
        at -= step
        file.seek(at)
        lines = (file.read(step) + tail).split(b"\n")
        tail = lines[0][:MAX_LINE]
        for line in reversed(lines[1:]):
            yield line.rstrip(b"\r")
    yield tail.rstrip(b"\r")


@dataclass(slots=True)
class Follower:
    """Reads what is added to a file; goes on with the new one when it is renamed, and from the start when it is cut.

    Attributes:
        name: the file; at: where to go on.
    """

    name: str
    at: int = 0
    _file: IO[bytes] | None = None
    _rest: bytes = b""

    def read(self) -> list[bytes]:
        """The lines that have been completed since the last call."""
        lines = self._more()
        if self._moved():
            # The last of the old file; what is left without an end will never get one.
            lines += self._more()
            if self._rest.strip():
                lines.append(self._rest)
            self.close()
            self.at = 0
            lines += self._more()
        return lines

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._rest = b""

    def _more(self) -> list[bytes]:
        if self._file is None:
            try:
                self._file = open(self.name, "rb")  # noqa: SIM115  # kept open: a renamed file is read to its end
            except FileNotFoundError:
                return []  # between the renaming of the old one and the beginning of the new one
            self._file.seek(self.at)
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        lines: list[bytes] = []
        while block := self._file.read(_BLOCK):
            *whole, self._rest = (self._rest + block).split(b"\n")
            self._rest = self._rest[:MAX_LINE]
            lines += [line.rstrip(b"\r") for line in whole if line.strip()]
        self.at = self._file.tell()
        return lines

    def _moved(self) -> bool:
        if self._file is None:
            return False
        try:
            there = os.stat(self.name)
        except FileNotFoundError:
            return False  # a new one will come; until then the old one may still grow
        mine = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)


def follow(followers: Iterable[Follower], sleep: Callable[[float], None] = time.sleep) -> Iterator[bytes]:
    """The lines that are added to files, for ever."""
    followers = list(followers)
    while True:
        found = False
        for follower in followers:
            for line in follower.read():
                found = True
                yield line
        if not found:
            sleep(POLL_S)
