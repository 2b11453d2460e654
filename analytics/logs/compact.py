"""``tricklecast logs compact``: access logs to hourly Parquet, with each line in it once.

A log is known by its content, decompressed, and not by its name: rotation renames it, something else compresses it, and
it grows meanwhile. A log that begins with the whole content of a known log is that log, grown; only what follows is
read. The store of the output folder says which logs are known. A run writes new hours to a work folder. Then one
transaction notes what they contain and where they go, and only then are they moved. A run that finds moves which were
noted and not made makes them, so a process may be killed at any moment.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.errors import BadInput, CannotWrite
from tricklecast.analytics.lines import BadLine, LogFiles, Reading
from tricklecast.analytics.lines.dialect import text
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.lines.files import MARKS, REMOTE, hash_with, is_parquet, open_log, packed, piece_of
from tricklecast.analytics.lines.reading import check_understood, recognise_files
from tricklecast.analytics.lines.records import DETAILS, LINE, MAX_LINE
from tricklecast.analytics.report.formats import counted
from tricklecast.analytics.scan import embedded
from tricklecast.analytics.store.store import FILE as DATABASE
from tricklecast.analytics.store.store import Store
from tricklecast.trickle.records import VERSION

if TYPE_CHECKING:
    import duckdb

FOLDER: Final = "_compacted"
"""The store and the work in progress; whatever searches a folder for logs passes over it."""

FILE: Final = "lines.parquet"
"""One per hour: a new one takes the place of the old in one step."""

BATCH: Final = 256 << 20
"""Bytes of logs, decompressed, that are read and moved to their places at a time."""

_HOUR_US: Final = 3_600_000_000
_WORK: Final = "work"


@dataclass(slots=True)
class Compacted:
    """The outcome of a run.

    Attributes:
        lines: records written. bad: lines that could not be read; samples: a few of them.
        doubled: lines left out, because another file has the same requests.
        hours: files written, one of them twice if later lines of its hour followed.
        bytes_in: bytes of logs read, decompressed; bytes_out: bytes of Parquet written.
        known: files of which nothing was new. left: damaged files, which may be in the middle of being copied.
        strange: files found in a folder that are of no known format.
    """

    lines: int = 0
    bad: int = 0
    doubled: int = 0
    samples: tuple[BadLine, ...] = ()
    hours: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    known: int = 0
    left: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some new bytes of a file.

    Attributes:
        name: the file; start, end: from which byte to which, decompressed.
        id: hash of all bytes up to the end; marks: of all up to some sizes; grown_from: of all up to the start.
        stat: by which the file is known as long as nothing is written to it. last: nothing new follows in the file.
    """

    name: str
    start: int
    end: int
    id: str
    marks: dict[str, str]
    grown_from: str
    stat: list[int]
    last: bool

    def is_cut(self) -> bool:
        """Whether the file has become another one, or shorter, since it was looked at."""
        try:
            status = os.stat(self.name)
        except OSError:
            return True
        return status.st_ino != self.stat[1] or status.st_size < self.stat[2]


def compact(files: LogFiles, out: Path, reading: Reading, tell: Callable[[str], None]) -> Compacted:
    """Adds what is new in some logs to the hours of a folder.

    Args:
        files: on this machine. out: where the hours are, ``dt=2025-10-09/hr=08/lines.parquet``; UTC.
        reading: how the logs are read. tell: is told of each stage.

    Raises:
        BadInput: a file is not on this machine, or cannot be read; nothing of a file could be understood; a file was
            cut while it was read. What was done before is kept.
        Busy: another run writes to the folder. CannotWrite: the folder cannot be written to.
    """
    for name in files.names:
        if REMOTE.match(name) or name in files.pipes:
            raise BadInput(f"compact reads files of this machine, and {name!r} is not one")
    with _opened(out) as store:
        recognised = recognise_files(files, reading)
        done = Compacted(strange=recognised.strange, left=recognised.unreadable)
        tell(f"looking for new lines in {counted(len(recognised.names), 'file')}")
        run = _Run(files, out, reading, store, done)
        batch: list[_Piece] = []
        hours = os.path.realpath(out)
        for name in recognised.names:
            if os.path.basename(name) == FILE and os.path.realpath(name).startswith(f"{hours}{os.sep}"):
                continue
            pieces = run.new_pieces(name)
            for piece in pieces:
                # A file is in a batch with one piece at most.
                if batch and (batch[-1].name == name or sum(one.end - one.start for one in batch) >= BATCH):
                    run.take(batch, tell)
                    batch = []
                batch.append(piece)
            done.known += not pieces and name not in done.left
        if batch:
            run.take(batch, tell)
    return done


class _Run:
    """The new records of some logs, on their way into the hours.

    The store has a fact on each log by the hash of its content: its size, its marks, and the ``stat`` of its file.
    """

    def __init__(self, files: LogFiles, out: Path, reading: Reading, store: Store, done: Compacted) -> None:
        self._files, self._out, self._reading, self._store, self._done = files, out, reading, store, done
        self._logs: dict[str, Any] = store.fact("logs") or {}

    def new_pieces(self, name: str) -> list[_Piece]:
        """The new records of a file, in pieces of about :data:`BATCH` bytes."""
        try:
            status = os.stat(name)
            stat = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
            if any(log["stat"] == stat for log in self._logs.values()):
                return []
            found = _hashes(name, {log["size"] for log in self._logs.values()})
        except OSError as error:
            raise BadInput(f"cannot read {name!r}: {error.strerror or error}") from error
        if found is None:
            self._done.left += (name,)
            return []
        hashes, cuts = found
        if not cuts:
            return []
        start = max((log["size"] for id_, log in self._logs.items() if hashes.get(log["size"]) == id_), default=0)
        marks = {str(size): hashes[size] for size in MARKS if size in hashes}
        if start == 0 and any(_begins(log, cuts[-1], marks) for log in self._logs.values()):
            return []
        if start >= cuts[-1]:
            self._logs[hashes[start]]["stat"] = stat
        pieces = []
        for cut in [cut for cut in cuts if cut > start]:
            own = {size: mark for size, mark in marks.items() if int(size) <= cut}
            grown_from, last = hashes.get(start, ""), cut == cuts[-1]
            pieces.append(_Piece(name, start, cut, hashes[cut], own, grown_from, stat, last))
            start = cut
        return pieces

    def take(self, batch: Sequence[_Piece], tell: Callable[[str], None]) -> None:
        """Reads pieces, and puts their lines into the hours."""
        size = sum(piece.end - piece.start for piece in batch)
        tell(f"writing {size / 1e6:,.1f} MB of logs into hours")
        spans = {piece.name: (piece.start, piece.end) for piece in batch}
        some = replace(self._files, names=tuple(spans), copies=())
        work = self._out / FOLDER / _WORK
        with embedded.connect(size) as con:
            con.execute(f"SET temp_directory = {text(str(work / 'spill'))}")
            read = read_lines(con, some, replace(self._reading, details=True), part=True, spans=spans)
            begun = {number for number, name in enumerate(read.recognised.names) if spans[name][0]}
            # Of what follows a part that was understood, one torn line may be all.
            good = read.good | dict.fromkeys(begun, 1)
            check_understood(read.recognised, self._files.searched, good, read.bad)
            for piece in batch:
                if piece.is_cut():
                    raise BadInput(f"{piece.name!r} was cut while it was read: run it again")
            hours = _write_hours(con, self._out, work)
        for piece in batch:
            self._logs.pop(piece.grown_from, None)
            self._logs[piece.id] = {"size": piece.end, "marks": piece.marks, "stat": piece.stat if piece.last else []}
        moves = [[str(path.relative_to(self._out)), f"{hour}/{FILE}"] for hour, path in hours.items()]
        with self._store.transaction():
            self._store.set_fact("logs", self._logs)
            self._store.set_fact("moves", moves)
        # The note must be on the disk before what it says is done.
        _synced(self._out / FOLDER / f"{DATABASE}-wal")
        done = self._done
        done.bytes_out += sum(path.stat().st_size for path in hours.values())
        _make_moves(self._out, self._store)
        done.lines += read.counts.lines - read.counts.bad - read.counts.other
        done.doubled += read.counts.doubled
        done.bad += read.counts.bad
        done.samples = done.samples or read.counts.samples
        done.hours += len(hours)
        done.bytes_in += size


# --- what is new ------------------------------------------------------------------------------------------------------


def _begins(log: dict[str, Any], end: int, marks: dict[str, str]) -> bool:
    """Whether a file of some marks is an early copy of a log: the largest of the marks is the log's, too."""
    largest = max(marks, key=int, default="")
    return bool(largest) and log["size"] >= end and log["marks"].get(largest) == marks[largest]


def _hashes(name: str, sizes: set[int]) -> tuple[dict[int, str], list[int]] | None:
    """Hashes of a file's beginnings, of these sizes and some more; and where batches end, at ends of lines.

    The last end is that of the last whole line; a record without its line's end is whole. ``None``: it is damaged.
    """
    hashes: dict[int, str] = {}
    cuts = [0]
    wanted = sorted({*sizes, *MARKS} - {0}, reverse=True)
    whole_file = is_parquet(name)
    content, at, tail, last_end, end_hash = blake2b(digest_size=16), 0, b"", 0, ""
    with open_log(name) as file:
        while True:
            block, damaged = piece_of(file)
            if damaged:
                return None
            if not block:
                break
            while wanted and wanted[-1] <= at + len(block):
                size = wanted.pop()
                hashes[size] = hash_with(content, block[: size - at])
            newline = block.rfind(b"\n") + 1
            tail = block[newline:] if newline else (tail + block)[: MAX_LINE + 1]
            if newline:
                last_end, end_hash = at + newline, hash_with(content, block[:newline])
                if not whole_file and last_end - cuts[-1] >= BATCH:
                    cuts.append(last_end)
                    hashes[last_end] = end_hash
            content.update(block)
            at += len(block)
    if whole_file or packed(name) or _is_record(tail):
        last_end, end_hash = at, content.hexdigest()
    if last_end > cuts[-1]:
        cuts.append(last_end)
        hashes[last_end] = end_hash
    return hashes, cuts[1:]


def _is_record(tail: bytes) -> bool:
    try:
        return isinstance(json.loads(tail), dict)
    except (ValueError, RecursionError):
        return False


# --- hours ------------------------------------------------------------------------------------------------------------


def _write_hours(con: duckdb.DuckDBPyConnection, out: Path, work: Path) -> dict[str, Path]:
    """A file for each hour that has lines, with those that the hour had already, by the hour's folder."""
    names = ", ".join(f'"{name}"' for name, _ in (*LINE, *DETAILS))
    found = con.execute(f"SELECT DISTINCT ts_us // {_HOUR_US} FROM parsed_line WHERE bad IS NULL ORDER BY 1").fetchall()
    hours = {}
    for number, (hour,) in enumerate(found):
        folder = datetime.fromtimestamp(hour * 3600, UTC).strftime("dt=%Y-%m-%d/hr=%H")
        rows = f"""SELECT {VERSION}::SMALLINT AS v, {names} FROM parsed_line
            WHERE bad IS NULL AND ts_us >= {hour * _HOUR_US} AND ts_us < {(hour + 1) * _HOUR_US}"""
        old = out / folder / FILE
        if old.exists():
            rows = f"SELECT * FROM read_parquet({text(str(old))}, hive_partitioning = false) UNION ALL BY NAME {rows}"
        path = work / f"{number:06}.parquet"
        con.execute(f"COPY (FROM ({rows}) ORDER BY ts_us) TO {text(str(path))} (FORMAT parquet, COMPRESSION zstd)")
        _synced(path)
        hours[folder] = path
    return hours


@contextmanager
def _opened(out: Path) -> Iterator[Store]:
    """The store of a folder; what the last run noted is done, and the work folder is empty."""
    work = out / FOLDER / _WORK
    try:
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
        with Store(out / FOLDER) as store:
            try:
                _make_moves(out, store)
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir()
                yield store
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise CannotWrite(f"cannot write to {str(out)!r}: {error.strerror or error}") from error


def _make_moves(out: Path, store: Store) -> None:
    """Moves the files that the store says are to be moved; those that are there already were moved by a former run."""
    moves = store.fact("moves") or []
    for source, target in moves:
        (out / target).parent.mkdir(parents=True, exist_ok=True)
        if (out / source).exists():
            (out / source).replace(out / target)
    for _, target in moves:
        _synced((out / target).parent)
    if moves:
        store.set_fact("moves", [])


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
