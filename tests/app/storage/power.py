"""The state of a folder after a loss of power, worked out from a log of the calls that changed it (``seams.c``).

A file has the bytes of its last sync, and of what was written since any part, or none; the last write that is there
may be torn. A name in a folder is as it was at the last sync of that folder, or as it was in the end. What was renamed
has one of its two names, as in every file system with a journal: it keeps the new one after a sync of either folder,
and nothing is renamed back that was renamed before something that is not.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Operation(NamedTuple):
    """A line of the log: ``what`` was done to ``path``; see :func:`Disk.replay`."""

    what: str
    at: int
    data: bytes
    path: str


class Write(NamedTuple):
    """Bytes that were not synced yet; ``None``: the file was cut there."""

    at: int
    data: bytes | None


@dataclass
class File:
    """Its bytes as of its last sync, and what happened to it since."""

    synced: bytes = b""
    since: list[Write] = field(default_factory=list)

    def sync(self) -> None:
        """Keep all changes so far."""
        self.synced, self.since = _after(self.synced, self.since), []


Folder = dict[str, "File | None"]
"""Paths of a disk, each relative to its top; ``None`` is a folder."""


class Disk:
    """A folder that was lost with the power.

    Args:
        before: a copy of the folder as it was when the log began; all of that is on the disk.
    """

    def __init__(self, before: Path) -> None:
        self.now: Folder = {}
        for path in sorted(before.rglob("*")) if before.exists() else ():
            name = path.relative_to(before).as_posix()
            if not name.endswith("-shm"):
                self.now[name] = None if path.is_dir() else File(path.read_bytes())
        self.synced: Folder = dict(self.now)
        self._renamed: list[tuple[str, str]] = []  # from and to, since the last sync of either folder

    def replay(self, log: Path) -> None:
        """Do what the log says."""
        for what, at, data, path in _operations(log):
            file = self.now.get(path)
            match what:
                case "C":
                    self.now[path] = File()
                case "M" if path != ".":
                    self.now[path] = None
                case "W" if file is not None:
                    file.since.append(Write(at, data))
                case "T" if file is not None:
                    file.since.append(Write(at, None))
                case "S" if file is not None:
                    file.sync()
                case "S":
                    self._sync_names(path)
                case "U" | "X":
                    self.now.pop(path, None)
                case "R":
                    self._renamed.append((path, data.decode()))
                    _rename(self.now, path, data.decode())

    def leave(self, folder: Path, how: str, rng: random.Random) -> None:
        """Write what is left.

        Args:
            folder: what is in it goes.
            how: ``drop``: nothing but what was synced; ``tear``: all but the second half of each file's last write;
                ``random``: any part of what was not synced.
            rng: for that part.
        """
        shutil.rmtree(folder)
        folder.mkdir()
        names = {"drop": self.synced, "tear": self.now}.get(how) or self._any_names(rng)
        for name in sorted(names, key=lambda name: name.count("/")):
            path = folder / name
            if not path.parent.is_dir():
                continue  # the name of its folder was lost
            if (file := names[name]) is None:
                path.mkdir()
            else:
                path.write_bytes(_after(file.synced, _left(file.since, how, rng)))

    def _sync_names(self, folder: str) -> None:
        for old, new in [one for one in self._renamed if folder in map(_parent, one)]:
            _rename(self.synced, old, new)
            self._renamed.remove((old, new))
        for name in {*self.now, *self.synced}:
            if _parent(name) == folder:
                if name in self.now:
                    self.synced[name] = self.now[name]
                else:
                    self.synced.pop(name, None)

    def _any_names(self, rng: random.Random) -> Folder:
        now, synced = dict(self.now), dict(self.synced)
        kept = rng.randint(0, len(self._renamed))
        for old, new in self._renamed[:kept]:
            _rename(synced, old, new)
        for old, new in reversed(self._renamed[kept:]):
            _rename(now, new, old)
        chosen = {name: rng.choice([now, synced]) for name in sorted({*now, *synced})}
        return {name: names[name] for name, names in chosen.items() if name in names}


def _rename(names: Folder, old: str, new: str) -> None:
    for name in [name for name in names if f"{name}/".startswith(f"{old}/")]:
        names[new + name[len(old) :]] = names.pop(name)


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "."


def _left(since: list[Write], how: str, rng: random.Random) -> list[Write]:
    if not since or how == "drop":
        return []
    if how == "random":
        since = [one for one in since if rng.random() < 0.5]
        if not since or rng.random() < 0.5:
            return since
    last = since[-1]
    return since if last.data is None else [*since[:-1], Write(last.at, last.data[: len(last.data) // 2])]


def _after(data: bytes, writes: list[Write]) -> bytes:
    found = bytearray(data)
    for at, written in writes:
        if written is None:
            del found[at:]
            found.extend(bytes(max(0, at - len(found))))
        else:
            found.extend(bytes(max(0, at - len(found))))
            found[at : at + len(written)] = written
    return bytes(found)


def _operations(log: Path) -> Iterator[Operation]:
    if not log.exists():
        return
    text = log.read_bytes()
    at = 0
    while (end := text.find(b"\n", at)) >= 0:
        what, offset, size, path = text[at:end].decode().split(" ", 3)
        at = end + 1 + int(size)
        if at <= len(text):  # else the process was killed in the middle of it
            yield Operation(what, int(offset), text[end + 1 : at], path)
