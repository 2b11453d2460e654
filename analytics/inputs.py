"""Which files are the log: arguments to files, checked before Spark is started.

Spark takes every path for a glob, skips names that begin with ``.`` or ``_`` without a word, and its local file system
fails on a colon in a name. So a path that is not plainly safe is read through a link with a plain name.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tricklecast.analytics.content import duplicates_among, is_damaged, unfinished_line
from tricklecast.analytics.errors import BadInput

LOG_SUFFIXES: Final = frozenset({".jsonl", ".ndjson", ".log", ".parquet"})
"""What a log in a directory is called (before ``.gz`` or a rotation's suffix)."""

COMPRESSED: Final = (".gz", ".bz2", ".zst")
"""Endings of compressed files that Spark reads; one such file is read by one core."""

REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
"""What is left to Spark."""

_UNFINISHED: Final = frozenset({".tmp", ".part", ".swp", ".crc"})
_SAFE: Final = re.compile(r"(/[A-Za-z0-9 .+=@~-][A-Za-z0-9 ._+=@~-]*)*/[A-Za-z0-9][A-Za-z0-9 ._+=@~-]*")
_PARTITION: Final = re.compile(r"(?:^|/)dt=(\d{4}-\d\d-\d\d)(?:/(?:hr|hour)=(\d\d?))?/")


@dataclass(frozen=True, slots=True)
class Window:
    """A time span, microseconds since the epoch; ``None`` for no bound.

    Attributes:
        from_us: its first moment; to_us: the first one after it.
    """

    from_us: int | None = None
    to_us: int | None = None


ALWAYS: Final = Window()


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of one report.

    Attributes:
        names: the files as they were found, in order, each once; a remote URI stands for itself.
        size: bytes of the local ones.
        damaged: those whose data ends early or is not what their name says; they are read as far as they go.
        duplicates: files with the bytes of another one; they are not among the names, and not read.
        unfinished: SHA-256, in hex, of last lines without an end: still being written, or cut.
        searched: those of the names that nobody gave, but that were found in a folder: they may be something else.
        other_hours: how many files were left out because their partition is of another time.
    """

    names: tuple[str, ...]
    size: int
    damaged: tuple[str, ...]
    duplicates: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    other_hours: int = 0
    searched: frozenset[str] = frozenset()


def find_logs(arguments: Sequence[str], window: Window = ALWAYS) -> LogFiles:
    """The files that the arguments mean: files, directories (searched for logs), globs, or URIs that Spark knows.

    Args:
        window: files in partitions (``dt=2025-10-09/hr=08``) of another time are left out.

    Raises:
        BadInput: an argument matches nothing, or a file cannot be read.
    """
    found: dict[str, str] = {}
    given: set[str] = set()
    for argument in arguments:
        for name in _expand(argument):
            identity = name if REMOTE.match(name) else os.path.realpath(name)
            found.setdefault(identity, name)
            if not os.path.isdir(argument):
                given.add(identity)
    searched = frozenset(name for identity, name in found.items() if identity not in given)
    wanted = [name for name in found.values() if in_window(os.path.abspath(name), window)]
    if not wanted:
        raise BadInput("all logs are of another time: no partition between --from and --to")
    local = [name for name in wanted if not REMOTE.match(name)]
    for name in local:
        if not os.access(name, os.R_OK):
            raise BadInput(f"cannot read {name!r}: permission denied")
    try:
        return replace(_looked_into(wanted, local), searched=searched, other_hours=len(found) - len(wanted))
    except OSError as error:
        raise BadInput(f"cannot read {error.filename!r}: {error.strerror}") from error


def _looked_into(wanted: list[str], local: list[str]) -> LogFiles:
    doubles = duplicates_among(local)
    local = [name for name in local if name not in set(doubles)]
    return LogFiles(
        names=tuple(name for name in wanted if name not in set(doubles)),
        size=sum(os.path.getsize(name) for name in local),
        damaged=tuple(filter(is_damaged, local)),
        duplicates=doubles,
        unfinished=tuple(tail for name in local if (tail := unfinished_line(name)) is not None),
    )


def in_window(path: str, window: Window) -> bool:
    """Whether the file may hold lines of that time, as far as its partition says; one without partition may."""
    found = _PARTITION.search(path)
    if found is None or window == ALWAYS:
        return True
    try:
        start = datetime.strptime(found[1], "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(hours=int(found[2] or 0))
    except ValueError:
        return True
    start_us = round(start.timestamp()) * 1_000_000
    end_us = start_us + (3600 if found[2] else 86_400) * 1_000_000
    after = window.from_us is not None and end_us <= window.from_us
    return not (after or (window.to_us is not None and start_us >= window.to_us))


def _expand(argument: str) -> list[str]:
    if REMOTE.match(argument):
        return [argument]
    try:
        if os.path.isdir(argument):
            names = _searched(Path(argument))
        elif os.path.exists(argument):
            names = [argument]
        else:
            names = _matching(argument)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {argument!r}: {error}") from error
    if not names:
        what = "no logs (*.jsonl, *.log, *.parquet, also compressed) in" if os.path.isdir(argument) else "no such log:"
        raise BadInput(f"{what} {argument!r}")
    return names


def _searched(folder: Path) -> list[str]:
    """The logs below a folder; not those below hidden ones, where work in progress is kept."""
    hidden = (".", "_")
    return sorted(
        str(path)
        for path in folder.rglob("*")
        if looks_like_log(path.name)
        and not any(part.startswith(hidden) for part in path.relative_to(folder).parts[:-1])
        and path.is_file()
    )


def _matching(pattern: str) -> list[str]:
    """The files that a glob matches, or, if there are only folders, the logs in them."""
    matches = sorted(glob.glob(pattern, recursive=True))
    names = [name for name in matches if os.path.isfile(name)]
    return names or [found for name in matches if os.path.isdir(name) for found in _expand(name)]


def looks_like_log(name: str) -> bool:
    """Whether a file that was found in a directory is a log, by its name."""
    endings = suffixes(name)
    base = os.path.basename(name)
    return bool(endings & LOG_SUFFIXES) and not endings & _UNFINISHED and base[0] != "."


def suffixes(name: str) -> frozenset[str]:
    """All the endings of a file's name: ``access.jsonl.1.gz`` has three."""
    return frozenset(Path(name).suffixes)


def link_readable(name: str, folder: str, number: int) -> str:
    """The path under which Spark can read a file: its own, or that of a link, which is made.

    Args:
        folder: where links are made; number: makes their names differ.
    """
    if REMOTE.match(name):
        return name
    absolute = os.path.abspath(name)
    if _SAFE.fullmatch(absolute):
        return absolute
    ending = next((ending for ending in COMPRESSED if name.endswith(ending)), "")
    link = Path(folder) / f"log-{number:05}.jsonl{ending}"
    link.symlink_to(absolute)
    return str(link)
