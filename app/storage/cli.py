"""`tricklecast store`: look into a data directory, check it, take segments out of it, make it smaller.

All but ``prune`` only read, and may do so beside a running server. The directories of all workers
(:mod:`app.storage.settle`) are shown as one.
"""

from __future__ import annotations

import fcntl
import json
import mimetypes
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Final

import typer

from tricklecast.app.storage.database import (
    ASIDE,
    Batch,
    ChannelRow,
    Database,
    SegmentRow,
    StorageError,
    prepare,
    read_contents,
    schema_of,
    segment_path,
)
from tricklecast.app.storage.settle import folder_of, workers_in
from tricklecast.trickle.amounts import count, parse_duration, parse_size, size
from tricklecast.trickle.terminal import checked

EXIT_FINDINGS: Final = 1

_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The server's --data-dir.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Epoch = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Which epoch of the channel.", show_default="the latest"),
]


IDS: Final = 1 << 48
"""Ids of one worker's directory are below this."""


class CannotUse(StorageError):
    """The directory cannot be read, or must not be written now."""

    exit_code: ClassVar[int] = 3


class DataDirectory:
    """The rows of a data directory, as one transaction reads those of each worker.

    Attributes:
        workers: the directory of each worker.
        channels: by their ids, which here are those of the worker's directory plus :data:`IDS` times its number.
        segments: by channel and seq. damaged: one sentence about each thing that is unreadable.

    Raises:
        CannotUse: the folder is no data directory, a later version has written it, or it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers = {number: folder_of(folder, number) for number in workers_in(folder) or [0]}
        self._sql: dict[int, sqlite3.Connection] = {}
        self.channels: dict[int, ChannelRow] = {}
        self.segments: list[SegmentRow] = []
        self.damaged: list[str] = []
        for number, part in self.workers.items():
            self._read(part / "journal.sqlite", number)
        self._leave_out_doubles()

    def _read(self, path: Path, worker: int) -> None:
        if not path.is_file():
            if worker and not any((path.parent / "segments").glob("*/*.seg")):
                return  # the server was killed when it made the directory
            raise CannotUse(f"{str(path.parent)!r} is not a data directory: it has no journal.sqlite")
        try:
            sql = self._sql[worker] = _connected(path)
            sql.execute("BEGIN")
            found = read_contents(sql)
            sql.execute("COMMIT")
        except StorageError as error:
            raise CannotUse(str(error)) from None
        except sqlite3.Error as error:
            raise CannotUse(f"cannot read {str(path)!r}: {error}") from None
        first = worker * IDS
        self.channels |= {first + row.id: row._replace(id=first + row.id) for row in found.channels}
        self.segments += [row._replace(channel=first + row.channel) for row in found.segments]
        self.damaged += [f"{folder_of(Path(), worker)}: {text}" if worker else text for text in found.damaged]

    def _leave_out_doubles(self) -> None:
        """Leave out one of two rows of a channel that was about to move when the server was killed."""
        kept: dict[tuple[str, int, int], int] = {}
        left_out = set()
        for row in list(self.channels.values()):
            other = kept.setdefault((row.name, row.epoch, row.created_us), row.id)
            if other != row.id:
                # The files are in one of the two places.
                out = row.id if self._folder(other).exists() else other
                kept[row.name, row.epoch, row.created_us] = row.id + other - out
                del self.channels[out]
                left_out.add(out)
        self.segments = [segment for segment in self.segments if segment.channel not in left_out]

    def _folder(self, channel: int) -> Path:
        return segment_path(self.workers[channel // IDS], channel % IDS, 0).parent

    def path(self, row: SegmentRow) -> Path:
        """The path of a segment's file."""
        return segment_path(self.workers[row.channel // IDS], row.channel % IDS, row.file)

    def problem(self, row: SegmentRow) -> str | None:
        """The damage of a segment; ``None`` if it is as it was written, or has been removed meanwhile."""
        if row.channel not in self.channels:
            return "its channel is unknown"
        from tricklecast.app.storage.restore import checksum

        try:
            crc = checksum(self.path(row), row.start, row.size) if row.size else row.crc
        except PermissionError:
            return "its file cannot be read: permission denied"
        if crc == row.crc:
            return None
        query = "SELECT size, crc FROM segment WHERE channel = ? AND seq = ?"
        sql = self._sql[row.channel // IDS]
        if sql.execute(query, [row.channel % IDS, row.seq]).fetchone() != (row.size, row.crc):
            return None
        if crc is not None:
            return "its checksum does not match"
        return "its file is too short" if self.path(row).exists() else "its file is missing"

    def channel(self, name: str, epoch: int | None) -> ChannelRow:
        """One epoch of a channel; the latest with ``None``.

        Raises:
            CannotUse: the directory has no such channel.
        """
        found = [row for row in self.channels.values() if row.name == name and epoch in (None, row.epoch)]
        if not found:
            which = f"channel {name!r}" + (f" with epoch {epoch}" if epoch else "")
            raise CannotUse(f"{str(self.folder)!r} has no {which}")
        return max(found, key=lambda row: row.epoch)

    def segments_of(self, channel: ChannelRow) -> list[SegmentRow]:
        """The segments of one epoch of a channel, by seq."""
        return [row for row in self.segments if row.channel == channel.id]

    def set_aside(self) -> list[str]:
        """Names of damaged or unknown files that servers have renamed here."""
        found = [path for part in self.workers.values() for path in part.iterdir() if ASIDE.fullmatch(path.name)]
        return sorted(str(path.relative_to(self.folder)) for path in found)


def _connected(path: Path) -> sqlite3.Connection:
    """Open the database for reading.

    SQLite keeps files beside the database. In a folder that this user may not write, that works only with
    ``immutable``, which is right if no server uses the directory and the log is empty.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    wal = Path(f"{path}-wal")
    if not os.access(path.parent, os.W_OK) and not (wal.exists() and wal.stat().st_size) and not _is_used(path.parent):
        address += "&immutable=1"
    sql = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        prepare(sql)
        schema_of(sql, path)
    except BaseException:
        sql.close()
        raise
    return sql


def _is_used(folder: Path) -> bool:
    """Whether a running server has locked the directory."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


# The commands.


def check(folder: _Folder, as_json: _Json = False) -> None:
    """Read everything in a data directory, and compare it with the checksums.

    A server may use the directory meanwhile.

    Exit codes: 0 everything is as it was written; 1 findings; 2 wrong usage; 3 the directory cannot be read.

    Examples:

    \b
      tricklecast store check /var/lib/tricklecast
      tricklecast store check /var/lib/tricklecast --json | jq .findings
    """
    directory = DataDirectory(folder)
    findings = [{"what": text} for text in directory.damaged]
    with _progress(sum(row.size for row in directory.segments)) as advance:
        for row in directory.segments:
            if (why := directory.problem(row)) is not None:
                findings.append({**_place(directory, row), "what": why})
            advance(row.size)
    total = sum(row.size for row in directory.segments)
    aside = directory.set_aside()
    if as_json:
        channels, segments = len(directory.channels), len(directory.segments)
        document = {"channels": channels, "segments": segments, "bytes": total, "findings": findings}
        typer.echo(json.dumps({**document, "set_aside": aside}, indent=1))
    else:
        for finding in findings:
            where = f"segment {finding['seq']} of {finding['channel']!r}: " if "seq" in finding else ""
            typer.echo(f"{where}{finding['what']}")
        for name in aside:
            typer.echo(f"set aside by the server: {name}")
        channels_said = count(len(directory.channels), "channel")
        said = f"{channels_said}, {count(len(directory.segments), 'segment')}, {size(total)}"
        typer.echo(f"{said}: {count(len(findings), 'finding') if findings else 'no findings'}")
    if findings:
        raise typer.Exit(EXIT_FINDINGS)


def ls(
    folder: _Folder,
    channel: Annotated[
        str | None, typer.Argument(metavar="[CHANNEL]", help="List the segments of this channel.")
    ] = None,
    epoch: _Epoch = None,
    as_json: _Json = False,
) -> None:
    """List the channels in a data directory, or the segments of one.

    Columns are separated by tabs; times are UTC.

    Exit codes: 0 done; 2 wrong usage; 3 the directory cannot be read.

    Examples:

    \b
      tricklecast store ls /var/lib/tricklecast
      tricklecast store ls /var/lib/tricklecast cam
    """
    directory = DataDirectory(folder)
    for text in directory.damaged:
        typer.echo(f"tricklecast: {text}", err=True)
    rows = _channels(directory) if channel is None else _segments(directory, directory.channel(channel, epoch))
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    elif rows:
        typer.echo("\t".join(name.upper() for name in rows[0]))
        for row in rows:
            typer.echo("\t".join("-" if value is None else str(value) for value in row.values()))


def export(
    folder: _Folder,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")],
    out: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE|FOLDER/|-", help="A new file, a folder, or standard output.")
    ],
    epoch: _Epoch = None,
) -> None:
    """Write the segments of a channel: joined in one file, or each in a file of its own in a folder.

    A name that ends with / is a folder. Damaged segments are left out, and listed. A server may use the directory
    meanwhile.

    Exit codes: 0 done; 1 segments were left out or are incomplete; 2 wrong usage; 3 it cannot be done.

    Examples:

    \b
      tricklecast store export /var/lib/tricklecast cam -o cam.ts
      tricklecast store export /var/lib/tricklecast cam -o cam/
    """
    directory = DataDirectory(folder)
    source = directory.channel(channel, epoch)
    rows = [row for row in directory.segments_of(source) if row.size]
    apart = out.endswith("/") or (out != "-" and Path(out).is_dir())
    extension = mimetypes.guess_extension(source.content_type.partition(";")[0].strip()) or ".bin"
    flawed = 0
    try:
        with _progress(sum(row.size for row in rows)) as advance, _opened(None if apart else out) as whole:
            for row in rows:
                why = directory.problem(row)
                if why is None and whole is not None:
                    _copy(directory.path(row), row, whole)
                elif why is None:
                    target = Path(out) / f"{row.seq:08d}{extension}"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with open(target, "xb") as file:
                        _copy(directory.path(row), row, file)
                if why is None and row.state != "complete":
                    why = f"it is {row.state}, because its publisher did not end it"
                if why is not None:
                    flawed += 1
                    typer.echo(f"segment {row.seq}: {why}", err=True)
                advance(row.size)
    except BrokenPipeError:
        raise  # whoever read standard output has seen enough
    except OSError as error:
        where = "standard output" if out == "-" else repr(out)
        raise CannotUse(f"cannot write {where}: {error.strerror or error}") from None
    if flawed:
        raise typer.Exit(EXIT_FINDINGS)


def prune(
    folder: _Folder,
    channel: Annotated[str | None, typer.Option(metavar="CHANNEL", help="Only segments of this channel.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Remove segments that are older: 12h, 7d.")
    ] = None,
    keep_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Remove the oldest segments until this size is left: 10GB.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> None:
    """Remove the oldest segments from a data directory that no server uses.

    Channels keep their epochs and their numbers. A file is removed with the last of its segments.

    Exit codes: 0 done; 2 wrong usage; 3 a server uses the directory, or it cannot be written.

    Examples:

    \b
      tricklecast store prune /var/lib/tricklecast --older-than 7d --dry-run
      tricklecast store prune /var/lib/tricklecast --keep-bytes 10GB
    """
    if older_than is None and keep_bytes is None:
        raise typer.BadParameter("give --older-than or --keep-bytes")
    age_s = None if older_than is None else checked("--older-than", parse_duration, older_than)
    keep = None if keep_bytes is None else checked("--keep-bytes", parse_size, keep_bytes)
    before_us = None if age_s is None else (time.time() - age_s) * 1e6
    directory = DataDirectory(folder)
    if directory.damaged:
        raise CannotUse(f"{str(folder)!r} is damaged; start a server with it to repair it: {directory.damaged[0]}")
    if channel is not None:
        directory.channel(channel, None)
    if dry_run:
        chosen = _oldest(directory, channel, before_us, keep)
    else:
        with _alone(folder) as databases:
            directory = DataDirectory(folder)
            chosen = _oldest(directory, channel, before_us, keep)
            for worker, database in databases.items():
                _remove(database, *(_of_worker(worker, rows) for rows in (directory.segments, chosen)))
    for id, segments in Counter(row.channel for row in chosen).items():
        pruned, total = directory.channels[id], sum(row.size for row in chosen if row.channel == id)
        typer.echo(f"{pruned.name} (epoch {pruned.epoch}): {count(segments, 'segment')}, {size(total)}")
    said = f"{count(len(chosen), 'segment')}, {size(sum(row.size for row in chosen))}"
    typer.echo(f"would remove: {said}" if dry_run else f"removed: {said}")


# Steps of the commands.


def _place(directory: DataDirectory, row: SegmentRow) -> dict[str, Any]:
    channel = directory.channels.get(row.channel)
    name, epoch = (f"#{row.channel}", 0) if channel is None else (channel.name, channel.epoch)
    return {"channel": name, "epoch": epoch, "seq": row.seq}


def _channels(directory: DataDirectory) -> list[dict[str, Any]]:
    found = []
    by_channel: dict[int, list[SegmentRow]] = {}
    for segment in directory.segments:
        by_channel.setdefault(segment.channel, []).append(segment)
    for row in sorted(directory.channels.values(), key=lambda row: (row.name, row.epoch)):
        segments = by_channel.get(row.id, [])
        state = "live" if row.ended_us is None else "ended"
        head = max([row.next_seq, *(segment.seq + 1 for segment in segments)])
        found.append(
            {"channel": row.name, "epoch": row.epoch, "state": state, "next": head, "segments": len(segments)}
            | {"bytes": sum(segment.size for segment in segments), "type": row.content_type}
            | {"created": _time(row.created_us), "ended": _time(row.ended_us)}
            | {"oldest": _time(min((segment.opened_us for segment in segments), default=None))}
        )
    return found


def _segments(directory: DataDirectory, channel: ChannelRow) -> list[dict[str, Any]]:
    return [
        {"seq": row.seq, "state": row.state, "bytes": row.size, "crc32": f"{row.crc:08x}"}
        | {"opened": _time(row.opened_us), "closed": _time(row.closed_us)}
        | {"file": str(directory.path(row).relative_to(directory.folder)) if row.size else None, "at": row.start}
        for row in directory.segments_of(channel)
    ]


def _time(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds")


def _oldest(
    directory: DataDirectory, channel: str | None, before_us: float | None, keep: int | None
) -> list[SegmentRow]:
    """The closed segments to remove: those that are too old, and then the oldest until ``keep`` bytes are left."""
    ids = {row.id for row in directory.channels.values() if channel in (None, row.name)}
    rows = [row for row in directory.segments if row.closed_us is not None and row.channel in ids]
    left = sum(row.size for row in rows)
    chosen = []
    for row in sorted(rows, key=lambda row: (row.closed_us, row.channel, row.seq)):
        assert row.closed_us is not None
        if (before_us is not None and row.closed_us < before_us) or (keep is not None and left > keep):
            chosen.append(row)
            left -= row.size
    return chosen


@contextmanager
def _alone(folder: Path) -> Iterator[dict[int, Database]]:
    """The directories of all workers, locked."""
    try:
        with ExitStack() as stack:
            yield {
                worker: stack.enter_context(closing(Database(folder_of(folder, worker), fsync=True)))
                for worker in workers_in(folder)
            }
    except StorageError as error:
        raise CannotUse(str(error)) from None
    except (OSError, sqlite3.Error) as error:
        raise CannotUse(f"cannot write the data directory {str(folder)!r}: {error}") from None


def _of_worker(worker: int, rows: list[SegmentRow]) -> list[SegmentRow]:
    return [row._replace(channel=row.channel % IDS) for row in rows if row.channel // IDS == worker]


def _remove(database: Database, rows: list[SegmentRow], chosen: list[SegmentRow]) -> None:
    left = Counter((row.channel, row.file) for row in rows if row.size)
    left.subtract((row.channel, row.file) for row in chosen if row.size)
    removed = {(row.channel, row.seq) for row in chosen}
    database.commit(Batch(removed=removed, files=sorted(key for key, segments in left.items() if not segments)))


def _copy(path: Path, row: SegmentRow, to: BinaryIO) -> None:
    left = row.size
    with open(path, "rb") as file:
        file.seek(row.start)
        while left and (data := file.read(min(left, 1 << 20))):
            to.write(data)
            left -= len(data)


@contextmanager
def _opened(out: str | None) -> Iterator[BinaryIO | None]:
    if out is None:
        yield None
    elif out == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with open(out, "xb") as file:
            yield file


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """Show a bar if standard error is a terminal. Yields a function that takes the number of bytes just done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda done: bar.advance(task, done)
