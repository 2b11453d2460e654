"""``tricklecast logs compact``: access logs to hourly Parquet. What was compacted before is not compacted again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tricklecast.analytics.errors import BadInput, CannotWrite
from tricklecast.analytics.inputs import REMOTE, LogFiles
from tricklecast.analytics.logs.journal import FOLDER, LEDGER, commit
from tricklecast.analytics.logs.ledger import Piece, blocks, load_ledger, new_pieces
from tricklecast.analytics.sources import Reading, read_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Todo:
    """What a run has to do.

    Attributes:
        pieces: what is new.
        known: files of which nothing is; left: damaged ones, which may be in the middle of being copied.
    """

    pieces: tuple[Piece, ...]
    known: int
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a run has done.

    Attributes:
        lines: records written; rejected: lines that are no records.
        hours: files written. bytes_in: bytes of logs read, decompressed.
        bytes_out: size of the files written; lines that were there before included.
    """

    lines: int
    rejected: int
    hours: int
    bytes_in: int
    bytes_out: int


def look_through(files: LogFiles, out: Path) -> Todo:
    """What is new in the files.

    Raises:
        BadInput: a file cannot be read, or is not on this machine, or the ledger is damaged.
    """
    for name in files.names:
        if REMOTE.match(name):
            raise BadInput(f"compact reads files of this machine, and {name!r} is not one")
    names = [name for name in files.names if name not in files.damaged]
    pieces = new_pieces(names, load_ledger(out / FOLDER / LEDGER))
    return Todo(tuple(pieces), len(names) - len(pieces), files.damaged)


def compact(
    spark: SparkSession, files: LogFiles, todo: Todo, out: Path, work: Path, reading: Reading, rejects: Path | None
) -> Compacted:
    """Does it.

    Args:
        out: the folder of the hours; work: one below it for work in progress
            (:func:`analytics.logs.journal.held`).
        rejects: a file to which the lines that are no records are appended.

    Raises:
        BadInput: a file was written to meanwhile; nothing has changed.
        CannotWrite: the result could not be written.
    """
    from tricklecast.analytics.logs.hours import FILE, write_hours

    names = tuple(_copied(todo.pieces, work))
    lines = read_logs(
        spark,
        replace(files, names=names, damaged=(), duplicates=(), unfinished=()),
        replace(reading, keep=rejects is not None),
    )
    written = write_hours(spark, lines, out, work, rejects=rejects is not None)
    for piece in todo.pieces:
        if piece.direct and _stat(piece.name) != piece.stat:
            raise BadInput(f"{piece.name!r} was written to meanwhile; nothing has changed, run it again")
    if rejects is not None:
        _append(written.rejects, rejects)
    ledger = load_ledger(out / FOLDER / LEDGER).with_pieces(todo.pieces)
    size = sum(path.stat().st_size for path in written.hours.values())
    commit(out, {path: out / hour / FILE for hour, path in written.hours.items()}, ledger.as_json())
    read = sum(piece.end - piece.start for piece in todo.pieces)
    return Compacted(written.lines, written.rejected, len(written.hours), read, size)


def _copied(pieces: Sequence[Piece], work: Path) -> Iterable[str]:
    """Files to be read: as they are, or a copy of what is new in them."""
    for number, piece in enumerate(pieces):
        if piece.direct:
            yield piece.name
            continue
        copy = work / f"piece-{number:05}.jsonl"
        try:
            _copy(piece, copy)
        except OSError as error:
            raise CannotWrite(f"cannot copy {piece.name!r} to {str(work)!r}: {error.strerror}") from error
        yield str(copy)


def _copy(piece: Piece, copy: Path) -> None:
    left = piece.end - piece.start
    with copy.open("wb") as file:
        for block in blocks(piece.name, piece.start):
            file.write(block[:left])
            left -= len(block)
            if left <= 0:
                break


def _stat(name: str) -> tuple[int, int]:
    try:
        status = Path(name).stat()
    except OSError:
        return (-1, -1)
    return status.st_size, status.st_mtime_ns


def _append(parts: Iterable[Path], rejects: Path) -> None:
    try:
        with rejects.open("ab") as file:
            for part in parts:
                file.write(part.read_bytes())
    except OSError as error:
        raise CannotWrite(f"cannot write {str(rejects)!r}: {error.strerror}") from error
