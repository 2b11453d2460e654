"""Which files are the log at this moment: a folder's, or one file's with what it was rotated to."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.positions import identity

SUFFIXES: Final = (".jsonl", ".ndjson", ".log")
_OTHER: Final = (".gz", ".zst", ".tmp", ".part", ".swp")
_ROTATED: Final = r"(-\d{8}T\d{6}-\d+{suffix}|{suffix}\.\d+)"
"""What follows the stem of a rotated log: our server's names, and logrotate's."""

SCAN_SHARE: Final = 50
"""Looking for files takes at most one part in so many of the time, however many folders there are."""


@dataclass(frozen=True, slots=True)
class Found:
    """One file of the log.

    Attributes:
        path: where it is now; identity: what it is known by; size: bytes; changed_ns: when it was last written to.
    """

    path: str
    identity: str
    size: int
    changed_ns: int


@dataclass(slots=True)
class _Known:
    inode: int
    size: int
    identity: str


class Finder:
    """Looks for the log's files, again and again; knows a file again after it was renamed.

    Attributes:
        problems: what cannot be read, by path; emptied with every look.
    """

    def __init__(self, logs: Sequence[str], limits: WatchLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            logs: files, which need not exist yet, and folders.
            clock: seconds, for bounding the time spent on looking.
        """
        self._logs = tuple(logs)
        self._limits = limits
        self._clock = clock
        self._names: list[str] = []
        self._due = float("-inf")
        self._known: dict[str, _Known] = {}
        self.problems: dict[str, str] = {}

    def look(self) -> list[Found]:
        """The log's files, in no particular order."""
        self.problems = {}
        if self._clock() >= self._due:
            began = self._clock()
            self._names = list(dict.fromkeys(name for log in self._logs for name in self._expand(log)))
            self._due = self._clock() + (self._clock() - began) * SCAN_SHARE
            if len(self._names) > self._limits.files:
                self.problems["*"] = f"more than {self._limits.files:,} files; the rest is not followed"
                del self._names[self._limits.files :]
            self._known = {name: known for name in self._names if (known := self._known.get(name)) is not None}
        found = {file.identity: file for name in self._names if (file := self._examine(name)) is not None}
        return list(found.values())

    def _expand(self, log: str) -> Iterator[str]:
        path = Path(log)
        if path.is_dir():
            yield from self._in_folder(log)
            return
        rotated = re.compile(re.escape(path.stem) + _ROTATED.replace("{suffix}", re.escape(path.suffix)))
        try:
            with os.scandir(path.parent) as entries:
                yield from (entry.path for entry in entries if rotated.fullmatch(entry.name))
        except OSError as error:
            self.problems[log] = error.strerror or str(error)
        yield str(path)

    def _in_folder(self, folder: str) -> Iterator[str]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        yield from self._in_folder(entry.path)
                    elif is_log(entry.name):
                        yield entry.path
        except OSError as error:
            self.problems[folder] = error.strerror or str(error)

    def _examine(self, name: str) -> Found | None:
        try:
            status = os.stat(name)
            known = self._known.get(name)
            # The first line is read again only where the file may be another one: a new inode, or cut and begun anew.
            if known is None or known.inode != status.st_ino or status.st_size < known.size:
                known = self._identify(name, status.st_ino)
            if known is None:
                return None
            known.size = status.st_size
        except FileNotFoundError:
            # Renamed a moment ago, or deleted, or not there yet: the next look finds out which.
            self._due = float("-inf")
            self._known.pop(name, None)
            if name in self._logs:
                self.problems[name] = "no such file"
            return None
        except OSError as error:
            self.problems[name] = error.strerror or str(error)
            return None
        self._known[name] = known
        return Found(name, known.identity, status.st_size, status.st_mtime_ns)

    def _identify(self, name: str, inode: int) -> _Known | None:
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            if os.fstat(descriptor).st_ino != inode:
                return None
            found = identity(descriptor, inode)
        finally:
            os.close(descriptor)
        return None if found is None else _Known(inode, 0, found)


def is_log(name: str) -> bool:
    """Whether a file of a folder is called like a log that is, or was, written to."""
    if name.startswith((".", "_")) or name.endswith(_OTHER):
        return False
    stem = re.sub(r"\.\d+$", "", name)
    return stem.endswith(SUFFIXES)
