"""Which files are the log: arguments to paths that Spark can read, checked before Spark is started.

Spark takes every path for a glob, skips names that begin with ``.`` or ``_`` without a word, and its local file system
fails on a colon in a name. So a path that is not plainly safe is read through a link with a plain name.
"""

from __future__ import annotations

import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from analytics.errors import BadInput

LOG_SUFFIXES: Final = frozenset({".jsonl", ".ndjson", ".log"})
"""What a log in a directory is called (before ``.gz`` or a rotation's suffix)."""

_UNFINISHED: Final = frozenset({".tmp", ".part", ".swp"})
_SAFE: Final = re.compile(r"(/[A-Za-z0-9 .+=@~-][A-Za-z0-9 ._+=@~-]*)*/[A-Za-z0-9][A-Za-z0-9 ._+=@~-]*")
_REMOTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of one report.

    Attributes:
        names: the files as they were found, in order, each once; a remote URI stands for itself.
        size: bytes of the local ones.
        damaged: those whose compressed data ends early or is no gzip; they are read as far as they go.
    """

    names: tuple[str, ...]
    size: int
    damaged: tuple[str, ...]


def find_logs(arguments: Sequence[str]) -> LogFiles:
    """The files that the arguments mean: files, directories (searched for logs), globs, or URIs that Spark knows.

    Raises:
        BadInput: an argument matches nothing, or a file cannot be read.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        for name in _expand(argument):
            found.setdefault(name if _REMOTE.match(name) else os.path.realpath(name), name)
    names = tuple(found.values())
    local = [name for name in names if not _REMOTE.match(name)]
    for name in local:
        if not os.access(name, os.R_OK):
            raise BadInput(f"cannot read {name!r}: permission denied")
    return LogFiles(names, sum(os.path.getsize(name) for name in local), tuple(filter(is_damaged, local)))


def _expand(argument: str) -> list[str]:
    if _REMOTE.match(argument):
        return [argument]
    try:
        if os.path.isdir(argument):
            names = sorted(str(path) for path in Path(argument).rglob("*") if _looks_like_log(path))
        elif os.path.exists(argument):
            names = [argument]
        else:
            names = sorted(name for name in glob.glob(argument, recursive=True) if os.path.isfile(name))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {argument!r}: {error}") from error
    if not names:
        what = "no logs (*.jsonl, *.log, also .gz) in" if os.path.isdir(argument) else "no such log:"
        raise BadInput(f"{what} {argument!r}")
    return names


def _looks_like_log(path: Path) -> bool:
    suffixes = set(path.suffixes)
    return bool(suffixes & LOG_SUFFIXES) and not suffixes & _UNFINISHED and path.name[0] != "." and path.is_file()


def is_damaged(name: str) -> bool:
    """Whether a ``.gz`` file is cut or no gzip at all. Reads it once; decompressing is cheap beside parsing JSON."""
    if not name.endswith(".gz"):
        return False
    try:
        with gzip.open(name) as stream:
            while stream.read(_BLOCK):
                pass
    except (EOFError, OSError, zlib.error):
        return True
    return False


@contextmanager
def readable_paths(files: LogFiles) -> Iterator[list[str]]:
    """Paths under which Spark can read the files, for as long as the context is open."""
    with TemporaryDirectory(prefix="tricklecast-storms-") as links:
        yield [_readable(name, Path(links), number) for number, name in enumerate(files.names)]


def _readable(name: str, links: Path, number: int) -> str:
    if _REMOTE.match(name):
        return name
    absolute = os.path.abspath(name)
    if _SAFE.fullmatch(absolute):
        return absolute
    link = links / f"log-{number:05}.jsonl{'.gz' if name.endswith('.gz') else ''}"
    link.symlink_to(absolute)
    return str(link)
