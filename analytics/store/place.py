"""Places of tables: the small files and the Parquet files that they hold, and the records of commits in them.

The format of a table is told in :mod:`analytics.store.table`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tricklecast.analytics.errors import CannotWrite
from tricklecast.analytics.lines import Counts

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

IN_USE_S: Final = 3600
"""Replaced rows stay this long, for runs that may be reading them. Seconds."""

HOUR_US: Final = 3_600_000_000
_PATH: Final = re.compile(r"dt=(\d{4}-\d\d-\d\d)/hr=(\d\d)/([0-9a-f]{32})[^/]*$")


# --- commits


@dataclass(frozen=True, slots=True)
class Form:
    """The format of a log: its name, and whether its times are whole seconds."""

    name: str = ""
    coarse: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """A log as it was when it was read.

    Attributes:
        name: of its file. stat: what changes when somebody writes to the file.
        head: hash of its first line. size, digest: of all of it, decompressed; none if it is damaged.
        marks: hashes of its beginnings, by their sizes. form: its format. damaged: whether it ends early.
        good, bad: number of such lines.
    """

    name: str
    stat: str
    head: str = ""
    size: int = 0
    digest: str = ""
    marks: dict[int, str] = field(default_factory=dict)
    form: Form = Form()
    damaged: bool = False
    good: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """Some rows of the table.

    Attributes:
        id: what the column ``source`` says. logs: what it was read from. how: hash of the way in which it was read.
        counts: of its lines; in the samples a log's name is its place. hours: number of its rows by hour; those without
            a time are of hour 0.
        replaces: ids of sources that it takes the place of. sketch: hashes of some of its requests' ids.
    """

    id: str
    logs: tuple[Log, ...]
    how: str
    counts: Counts
    hours: dict[int, int]
    replaces: tuple[str, ...] = ()
    sketch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """A file whose content is that of a log in the table, or its beginning."""

    stat: str
    source: str
    name: str


@dataclass(frozen=True, slots=True)
class Commit:
    """The additions of one run: when, sources, checksums of its files on a local disk, and files that were known."""

    at: float
    sources: tuple[Source, ...]
    files: dict[str, str]
    seen: tuple[Seen, ...] = ()


def living(commits: Mapping[str, Commit]) -> dict[str, Source]:
    """The sources of commits that count, by id."""
    every = [source for commit in commits.values() for source in commit.sources]
    gone = set(chain.from_iterable(source.replaces for source in every))
    found: dict[tuple[str, ...], Source] = {}
    for source in every:
        if source.id not in gone:
            found.setdefault(tuple(f"{log.name} {log.stat}" for log in source.logs), source)
    return {source.id: source for source in found.values()}


def missing(sources: Mapping[str, Source], there: Mapping[str, int], hours: range) -> set[str]:
    """The ids of sources of which there are other numbers of rows than there should be."""

    def wanted(source: Source) -> int:
        return sum(n for hour, n in source.hours.items() if is_in(hour, hours))

    return {id_ for id_, source in sources.items() if there.get(id_, 0) != wanted(source)}


# --- places


class Place(Protocol):
    """Where a table is: :class:`Folder`, or a URL that Spark alone can read."""

    @property
    def root(self) -> Path | str: ...

    def texts(self, kind: str) -> dict[str, str]:
        """All small files of a kind, by name."""

    def put(self, kind: str, name: str, text: str) -> None:
        """Writes a small file at once."""

    def remove(self, kind: str, names: Iterable[str]) -> None:
        """Removes small files, where that is possible."""

    def tables(self, kind: str) -> tuple[list[pa.Table], int]:
        """All Parquet files of a kind; and how many are damaged, and left out."""

    def add(self, kind: str, rows: pa.Table, most: int, every: pa.Table) -> None:
        """Adds a Parquet file at once; if there are more than ``most``, one of ``every`` row may take their place."""

    def locked(self, name: str = "lock") -> AbstractContextManager[None]:
        """Waits until no other run writes to the table, or to another part of it that has a lock of its own."""

    def intact(self, commits: Mapping[str, Commit], hours: range) -> tuple[list[str], set[str]]:
        """The files with rows of some hours, and the ids of the sources of which rows are damaged or missing."""

    def clean(self, commits: dict[str, Commit], oldest: int) -> None:
        """Removes what does not count any more before an hour: nobody else writes meanwhile."""


class Folder:
    """A table on a local disk."""

    def __init__(self, root: str) -> None:
        """Args: root: made when something is written."""
        self.root = Path(root)

    def texts(self, kind: str) -> dict[str, str]:
        found = {}
        for path in (self.root / kind).glob("*.json"):
            with suppress(FileNotFoundError):  # another run has removed it
                found[path.stem] = path.read_text("utf-8", "replace")
        return found

    def put(self, kind: str, name: str, text: str) -> None:
        with self.writing():
            path = self.root / kind / f"{name}.new"
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            path.write_text(text)
            path.replace(path.with_suffix(".json"))

    def remove(self, kind: str, names: Iterable[str]) -> None:
        for name in names:
            (self.root / kind / f"{name}.json").unlink(missing_ok=True)

    def tables(self, kind: str) -> tuple[list[pa.Table], int]:
        import pyarrow as pa
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        found, damaged = [], 0
        for path in sorted((self.root / kind).glob("*.parquet")):
            try:
                found.append(pq.read_table(path))
            except FileNotFoundError:
                continue  # made one with others meanwhile
            except (pa.ArrowException, OSError):
                damaged += 1
        return found, damaged

    def add(self, kind: str, rows: pa.Table, most: int, every: pa.Table) -> None:
        import pyarrow.parquet as pq

        with self.writing():
            path = self.root / kind / f"{uuid.uuid4().hex}.new"
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            former = list(path.parent.glob("*.parquet"))
            merged = len(former) >= most
            pq.write_table(every if merged else rows, path, compression="zstd")
            path.replace(path.with_suffix(".parquet"))
            for old in former if merged else ():
                old.unlink(missing_ok=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Says it in one line if the table cannot be written to."""
        try:
            yield
        except OSError as error:
            raise CannotWrite(f"cannot write to the table {str(self.root)!r}: {error.strerror or error}") from error

    @contextmanager
    def locked(self, name: str = "lock") -> Iterator[None]:
        with self.writing():
            self.root.mkdir(parents=True, exist_ok=True, mode=0o750)
            lock = os.open(self.root / name, os.O_WRONLY | os.O_CREAT, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def intact(self, commits: Mapping[str, Commit], hours: range) -> tuple[list[str], set[str]]:
        paths, broken, live = list[str](), set[str](), living(commits)
        for commit in commits.values():
            for name, digest in commit.files.items():
                hour = hour_of(name)
                those = {one.id for one in commit.sources if one.id in live and hour in one.hours}
                if those and is_in(hour, hours):
                    whole = digest_of(self.root / name) == digest
                    paths += [str(self.root / name)] if whole else []
                    broken |= set() if whole else those
        return paths, broken

    def clean(self, commits: dict[str, Commit], oldest: int) -> None:
        """Removes what does not count any more, and what killed runs have left: nobody else writes meanwhile.

        Args: oldest: the first hour that is kept.
        """
        live = living(commits)
        every = [(commit, source) for commit in commits.values() for source in commit.sources]
        replaced = {id_: commit.at for commit, source in every for id_ in source.replaces}
        there = {source.id for _, source in every}

        def needed(source: Source) -> bool:
            if source.id not in live:
                return time.time() - replaced.get(source.id, 0) < IN_USE_S
            # A log that is forgotten while it is there would be read at every run.
            return max(source.hours, default=oldest) >= oldest or any(os.path.exists(log.name) for log in source.logs)

        for name, commit in list(commits.items()):
            # What it replaces would count again.
            last = any(needed(one) or there.intersection(one.replaces) for one in commit.sources)
            if not last and not any(one.source in live for one in commit.seen):
                self.remove("sources", [name])
                del commits[name]
                there -= {one.id for one in commit.sources}
        hours = {
            name: {hour for one in commit.sources if needed(one) for hour in one.hours if hour == 0 or hour >= oldest}
            for name, commit in commits.items()
        }
        for path in (self.root / "rollup").glob("dt=*/hr=*/*"):
            found = _PATH.search(str(path))
            if found is None or hour_of(str(path)) not in hours.get(found[3], ()):
                path.unlink(missing_ok=True)
                with suppress(OSError):
                    path.parent.rmdir()
                    path.parent.parent.rmdir()
        for path in self.root.glob(".new-*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.root.glob("*/*.new"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > IN_USE_S:
                    path.unlink()


# --- hours and hashes


def is_in(hour: int, hours: range) -> bool:
    """Whether rows of an hour are wanted; those without a time always are."""
    return hour == 0 or hour in hours


def text_of(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%d %H:00}"


def folder_of(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour * 3600, UTC):dt=%Y-%m-%d/hr=%H}"


def hour_of(path: str) -> int:
    found = _PATH.search(path)
    assert found is not None
    return int(datetime.fromisoformat(f"{found[1]}T{found[2]}:00+00:00").timestamp()) // 3600


def hash_of(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def digest_of(path: Path) -> str:
    try:
        return hash_of(path.read_bytes())
    except OSError:
        return ""
