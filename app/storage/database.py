"""The data directory: ``journal.sqlite`` beside the files of the segments. One thread makes all calls.

The files hold the segments' bytes, one segment after the other, and nothing else. SQLite holds the journal's facts, the
channels, and the place, size and checksum of each segment. A batch is written in this order:

1. the bytes, at the ends of their files;
2. with ``fsync``, the files and their folders to the disk;
3. one SQLite transaction with facts, channels and segments;
4. removal of files in which no segment is left.

A crash between two steps leaves bytes that no row names. They are overwritten or removed, and never read: a segment
exists as soon as, and only if, SQLite has its row. Bytes that could not be written whole are cut off again, since on a
full disk they would take the room that retention frees.

Each row of a channel or a segment has a checksum of its own: SQLite notices a damaged structure, but not a flipped bit
in a value. A damaged database is read as far as possible, from both ends of each table, and what was read is written to
a new one. The damaged file is renamed and stays. No file of segments is removed then: rows that name it may be lost.

SQLite and this process would both go on writing to a file that somebody has removed or replaced. So the inodes of the
database and of each file are compared with their paths before each transaction.

What was tried and is worse (docs/adr/0022-storage-listens-to-the-core.md): one log for all channels (retention of one
channel would copy the others), and checksums inside the files (they would not be playable media any more).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact, SegmentClosed, SegmentOpened
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.state import Lives
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.wire import Life, parse_life

logger = logging.getLogger("tricklecast.storage")

SCHEMA: Final = 1
"""Version of the tables. A directory of a later version is refused; one of an earlier version would be converted."""

MAX_FACTS: Final = 100_000
"""Only the newest facts are kept. A follower that asks for older ones begins with a snapshot."""

MAX_ENDED: Final = 10_000
"""Ended channels without segments whose last epoch is remembered."""

OPENED: Final = "opened"
"""The kind of the fact that a segment got its first byte."""

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a disk, or of a quota, that is full."""

LOCK_S: Final = 5.0
"""A batch fails if another process locks the database for longer."""

TRIAL_BYTES: Final = 1 << 20
"""Bytes that must find room after a failure, before storage goes on."""

OPEN_FILES: Final = 256
"""Files of segments that stay open between batches."""

_IOV: Final = 1024  # buffers that one pwritev takes (Linux, IOV_MAX)

_DATABASE: Final = "journal.sqlite"
_NEW: Final = "journal.sqlite.new"

_DAMAGE: Final = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}
"""SQLite's error codes for a damaged file or disk. A missing table is ``SQLITE_ERROR``."""

_TABLES: Final = """
CREATE TABLE life (instance TEXT PRIMARY KEY, began_at INTEGER, started_us INTEGER, boot TEXT);
CREATE TABLE channel (
    id INTEGER PRIMARY KEY, name TEXT, epoch INTEGER, content_type TEXT, next_seq INTEGER,
    created_us INTEGER, ended_us INTEGER, reason TEXT, checksum INTEGER, UNIQUE (name, epoch));
CREATE TABLE segment (
    channel INTEGER, seq INTEGER, state TEXT, size INTEGER, crc INTEGER, file INTEGER, start INTEGER,
    opened_us INTEGER, closed_us INTEGER, checksum INTEGER, PRIMARY KEY (channel, seq)) WITHOUT ROWID;
CREATE TABLE fact (
    number INTEGER PRIMARY KEY, at_us INTEGER, kind TEXT, channel TEXT, epoch INTEGER, seq INTEGER, detail TEXT,
    size INTEGER);
"""
"""``life`` has the starts of servers (:class:`ServerStart`). To rename it would take a new version of the tables."""

_PLAYLISTS: Final = "CREATE TABLE IF NOT EXISTS playlist (channel INTEGER PRIMARY KEY, mark TEXT, checksum INTEGER)"
"""How the playlists of channels count (:class:`~app.core.facts.PlaylistMarked`). Earlier versions of the server leave
the table alone, so it is no new version of the tables."""

_NUMBERINGS: Final = "CREATE TABLE IF NOT EXISTS numbering (channel INTEGER PRIMARY KEY, lives TEXT, checksum INTEGER)"
"""The numberings of channels (:data:`~app.core.state.Lives`), as in the header, with spaces between. Earlier versions
of the server leave the table alone, too."""

_COPIES: Final = "CREATE TABLE IF NOT EXISTS copy (channel INTEGER PRIMARY KEY)"
"""The channels that are copies of another server's (:mod:`app.core.copies`). Only a mirror has rows here: it is no new
version of the tables."""

_POSITIONS: Final = """CREATE TABLE IF NOT EXISTS position (
    worker INTEGER PRIMARY KEY, instance TEXT, number INTEGER, checksum INTEGER)"""
"""Only the front of several workers has this table, so it is no new version of the tables."""


class StorageError(TrickleError):
    """The data directory cannot be used."""


class ChannelRow(NamedTuple):
    """One epoch of a channel.

    Attributes:
        created_us, ended_us: when, microseconds since 1970; reason: why it ended.
    """

    id: int
    name: str
    epoch: int
    content_type: str
    next_seq: int
    created_us: int
    ended_us: int | None = None
    reason: str | None = None


class SegmentRow(NamedTuple):
    """One segment.

    Attributes:
        channel: the id of its channel.
        state: as in the core. With ``open``, size and crc are those of the bytes that are written so far.
        size, crc: the number of bytes, and their CRC-32. file, start: the file's number, 0 without bytes, and the place
            of the first byte in it.
        opened_us, closed_us: when, microseconds since 1970.
    """

    channel: int
    seq: int
    state: str
    size: int
    crc: int
    file: int
    start: int
    opened_us: int
    closed_us: int | None = None


class FactRow(NamedTuple):
    """One fact of the journal.

    Attributes:
        number: its index. at_us: when, microseconds since 1970. kind: ``added``, ``removed``, ``opened``, ``closed``.
        detail: the content type, the reason of an end, or the state of a closed segment; size: of that, bytes.
    """

    number: int
    at_us: int
    kind: str
    channel: str
    epoch: int
    seq: int | None = None
    detail: str | None = None
    size: int | None = None

    @classmethod
    def of(cls, fact: Fact, at_us: int) -> Self:
        """The row of an indexed fact."""
        index, channel, epoch = fact.index, fact.channel, fact.epoch
        match fact:
            case SegmentClosed():
                return cls(index, at_us, "closed", channel, epoch, fact.seq, str(fact.state), fact.size)
            case SegmentOpened():
                return cls(index, at_us, OPENED, channel, epoch, fact.seq)
            case ChannelCreated():
                return cls(index, at_us, "added", channel, epoch, detail=fact.content_type)
            case ChannelEnded():
                return cls(index, at_us, "removed", channel, epoch, fact.next_seq, str(fact.reason))
        raise AssertionError(fact)


class ServerStart(NamedTuple):
    """One start of a server.

    Attributes:
        instance: the name of this start. boot: the boot of the machine (:func:`boot_id`).
        began_at: the index of the last fact from before it, or, if facts are missing, of the last one that is missing.
    """

    instance: str
    began_at: int
    started_us: int
    boot: str


class Position(NamedTuple):
    """A place in the log of facts of another worker.

    Attributes:
        instance: the start of the worker that told the index; ``""``: the log is followed from its beginning.
        number: the index up to which its facts have been heard of.
    """

    instance: str
    number: int


BEGINNING: Final = Position("", 0)


@dataclass(slots=True)
class Append:
    """Bytes of one segment that are added at the end of a file.

    Attributes:
        channel, file: the file. at: its size before.
        segment, first, last: the segment's frames from ``first`` on, before ``last``.
        crc: the CRC-32 of the segment's bytes: before the write without these bytes, after it with them.
        size: the number of bytes that were written.
    """

    channel: int
    file: int
    at: int
    segment: Segment
    first: int
    last: int
    crc: int
    size: int = 0


@dataclass(slots=True)
class Batch:
    """Changes that are written together, or not at all.

    Attributes:
        channels: new and changed rows, by id. appends: the bytes.
        segments: rows of segments. The size and checksum of the append beside a row, if any, are added to the row.
        removed: channel and seq of segments that retention has removed. files: files in which no segment is left.
        forgotten: ids of ended channels that are not remembered any more.
        floor: some facts up to this index are missing, so all of them are removed.
        server_start: a server starts on this directory.
        positions: by worker, the place up to which its facts are among these facts, or earlier ones.
        playlists: marks of playlists, by the ids of their channels.
        lives: numberings, by the ids of their channels.
        copies: by the ids of channels, whether they are copies from now on.
    """

    facts: list[FactRow] = field(default_factory=list)
    channels: dict[int, ChannelRow] = field(default_factory=dict)
    appends: list[Append] = field(default_factory=list)
    segments: list[tuple[SegmentRow, Append | None]] = field(default_factory=list)
    removed: set[tuple[int, int]] = field(default_factory=set)
    files: list[tuple[int, int]] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    floor: int = 0
    server_start: ServerStart | None = None
    positions: dict[int, Position] = field(default_factory=dict)
    playlists: dict[int, str] = field(default_factory=dict)
    lives: dict[int, Lives] = field(default_factory=dict)
    copies: dict[int, bool] = field(default_factory=dict)


def unwritten(*batches: Batch) -> Batch:
    """The changes of failed batches that are still to be written: all but bytes, and facts with their positions."""
    rest = Batch()
    for batch in batches:
        rest.channels |= batch.channels
        rest.playlists |= batch.playlists
        rest.lives |= batch.lives
        rest.copies |= batch.copies
        rest.segments += [(row, append) for row, append in batch.segments if append is None]
        rest.removed |= batch.removed
        rest.files += batch.files
        rest.forgotten += batch.forgotten
        rest.server_start = rest.server_start or batch.server_start
    return rest


@dataclass(slots=True)
class Contents:
    """The rows of a data directory, without its facts.

    Attributes:
        index: of the last fact. damaged: one sentence about each thing that could not be read.
        complete: no row is lost, so that a file that no row names can be removed.
    """

    server_starts: list[ServerStart] = field(default_factory=list)
    channels: list[ChannelRow] = field(default_factory=list)
    segments: list[SegmentRow] = field(default_factory=list)
    index: int = 0
    damaged: list[str] = field(default_factory=list)
    complete: bool = True


class Database:
    """The data directory of one server.

    Args:
        folder: made if it is missing.
        fsync: whether a batch is on the disk when :meth:`commit` returns; otherwise the kernel has it.
        lock: a descriptor with the lock, if the directory is locked already; it is closed with the directory.

    Attributes:
        lock: the descriptor with the lock (:func:`locked`).

    Raises:
        StorageError: another server uses the directory, its schema is a later one, or it cannot be read or written.
    """

    def __init__(self, folder: Path, *, fsync: bool = False, lock: int | None = None) -> None:
        self.folder = folder
        self._fsync = fsync
        self._files: OrderedDict[tuple[int, int], int] = OrderedDict()  # open files, the least recently used one first
        self._folders: set[int] = set()  # channels in whose folders files were made since the last fsync
        self._corrupt = False  # SQLite has called the database damaged: checked before storage goes on
        try:
            new = [one for one in (folder / "segments", *folder.absolute().parents, folder) if not one.exists()]
            (folder / "segments").mkdir(parents=True, exist_ok=True)
            for one in new if fsync else []:
                sync_folder(one.parent)
            try:
                _probe(folder / "segments")
            except OSError as error:
                if error.errno not in NO_ROOM:  # the server starts on a full disk, and serves what is there
                    raise
            self.lock = locked(folder) if lock is None else lock
        except OSError as error:
            raise unusable(folder, error) from error
        self._repaired: list[str] = []  # one sentence about each repair that opening the database took
        try:
            self._check_files()
            try:
                self._sql = self._connected()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # it may tell the damage, in damaged words
                if isinstance(error, sqlite3.Error) and not _is_damage(error):
                    raise
                self._repaired.append(f"{_DATABASE} cannot be read ({error}): set aside as {self._set_aside()}")
                self._sql = self._connected()
        except (OSError, sqlite3.Error) as error:
            os.close(self.lock)
            raise unusable(folder, error) from error
        except StorageError:
            os.close(self.lock)
            raise

    def close(self) -> None:
        """Close all files and release the lock. A directory is the same with and without this call."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._sql.close()
        os.close(self.lock)

    def path(self, channel: int, file: int) -> Path:
        return segment_path(self.folder, channel, file)

    def commit(self, batch: Batch) -> None:
        """Write a batch, in the order of this module's head.

        Raises:
            OSError, sqlite3.Error: the batch is not written and takes no room; its segments may be written again.
        """
        self._check_place()
        try:
            synced = {self._write(append): append for append in batch.appends if append.last > append.first}
            if self._fsync:
                for descriptor in synced:
                    os.fdatasync(descriptor)
                for channel in self._folders:
                    sync_folder(self.folder / "segments" / f"{channel:06d}")
                if self._folders:
                    sync_folder(self.folder / "segments")
                self._folders.clear()
            for descriptor, append in synced.items():
                path = self.path(append.channel, append.file)
                if os.stat(path).st_ino != os.fstat(descriptor).st_ino:  # a file without a name cannot be read again
                    raise OSError(errno.ESTALE, "replaced while the server runs", str(path))
        except BaseException:
            self._give_back(batch.appends)
            raise
        while len(self._files) > OPEN_FILES:  # not before: all files of this batch must be open until they are synced
            os.close(self._files.popitem(last=False)[1])
        self._record(batch)
        # Last: a replay that still reads a file has it open, and a file that no row names does no harm.
        for channel, file in batch.files:
            self._remove(channel, file)

    def probe(self, channels: Iterable[int]) -> None:
        """Find out whether files can be made in the folders of these channels.

        Raises:
            OSError: in one of them they cannot.
        """
        for channel in channels:
            with suppress(FileNotFoundError):  # it will be made
                _probe(self.path(channel, 0).parent)

    def recover(self, batch: Batch, channels: Iterable[int]) -> int:
        """After an error: write a batch without bytes and facts, and check that segments can be written again.

        Args:
            channels: those that are published to. Files must be writable in their folders.

        Returns:
            The free bytes of the file system. A quota may leave less.

        Raises:
            OSError, sqlite3.Error: the directory still cannot be written.
        """
        self._check_place()
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        with suppress(sqlite3.Error):
            self._sql.close()
        self._sql = self._connected()
        if self._corrupt and (found := self._sql.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(f"journal.sqlite is damaged; restart the server to repair it: {found}")
        self._corrupt = False
        self.commit(batch)
        (self.folder / "segments").mkdir(exist_ok=True)
        _probe(self.folder / "segments", TRIAL_BYTES, synced=True)
        self.probe(channels)
        self._sql.execute("UPDATE life SET boot = boot WHERE rowid = (SELECT max(rowid) FROM life)")
        free = os.statvfs(self.folder / "segments")
        return free.f_bavail * free.f_frsize

    def contents(self) -> Contents:
        """Read all rows but the facts. If some are damaged, the others are written to a new database.

        Raises:
            StorageError: the database cannot be read now.
        """
        try:
            found = read_contents(self._sql)
            if found.damaged:
                self._rebuild(found)
        except (OSError, sqlite3.Error) as error:
            raise unusable(self.folder, error) from error
        found.damaged[:0] = self._repaired
        # Each start of a server leaves a row: without any the database is new, or was lost.
        found.complete = not found.damaged and bool(found.server_starts)
        return found

    def _check_files(self) -> None:
        """Rename a file that SQLite would not open, or a log that it would remove."""
        path, new = self.folder / _DATABASE, self.folder / _NEW
        wal = Path(f"{path}-wal")
        if new.exists():  # the server ended while it salvaged a damaged database
            if path.exists():
                new.unlink()
            else:
                os.rename(new, path)
        if path.exists() and path.stat().st_size > 0:
            with open(path, "rb") as file:
                if file.read(16) == b"SQLite format 3\0":
                    return
            what = f"{_DATABASE} is not an SQLite database"
        elif wal.exists() and wal.stat().st_size > 0:
            what = f"{_DATABASE} is {'empty' if path.exists() else 'missing'}, and its log is there"
        else:
            return
        self._repaired.append(f"{what}: set aside as {self._set_aside()}")

    def _set_aside(self) -> str:
        """Rename the database's files; returns the new name."""
        name = unused_name(self.folder, f"{_DATABASE}.damaged")
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.rename(self.folder / f"{_DATABASE}{suffix}", self.folder / f"{name}{suffix}")
        return name

    def _rebuild(self, found: Contents) -> None:
        """Write what could be read to a new database, and keep the damaged one."""
        facts = list(_salvaged(self._sql, "fact", Contents(), checked=False))
        lives = list(map(_numbering, self.lives().items()))
        copies = [row for row in _readable(self._sql, "SELECT channel FROM copy", Contents()) if type(row[0]) is int]
        new = self.folder / _NEW
        new.unlink(missing_ok=True)
        with closing(sqlite3.connect(new, isolation_level=None)) as sql:
            sql.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA};")
            _insert(sql, "life", found.server_starts, checked=False)
            _insert(sql, "channel", found.channels)
            _insert(sql, "segment", found.segments)
            _insert(sql, "fact", facts, checked=False)
            sql.execute(_NUMBERINGS)
            _insert(sql, "numbering", lives)
            sql.execute(_COPIES)
            _insert(sql, "copy", copies, checked=False)
            sql.execute("COMMIT")
        self._sql.close()
        name = self._set_aside()
        os.rename(new, self.folder / _DATABASE)
        sync_folder(self.folder)
        self._sql = self._connected()
        counted = f"{len(found.channels)} channels and {len(found.segments)} segments"
        found.damaged.append(f"{_DATABASE} was damaged: set aside as {name}; the new one has {counted}")

    def facts(self, after: int = 0) -> list[FactRow]:
        """The facts that are kept, from behind this index on, in their order."""
        query = "SELECT * FROM fact WHERE number > ? ORDER BY number"
        return [FactRow(*row) for row in self._sql.execute(query, [after])]

    def playlists(self) -> dict[int, str]:
        """The marks of playlists, by the ids of their channels."""
        rows = self._sql.execute("SELECT * FROM playlist")
        return {channel: mark for channel, mark, checksum in rows if checksum == _checksum([channel, mark])}

    def lives(self) -> dict[int, Lives]:
        """The numberings of channels, by the ids of these."""
        found: dict[int, Lives] = {}
        for channel, text, checksum in _readable(self._sql, "SELECT * FROM numbering", Contents()):
            if checksum == _checksum([channel, text]):
                lives = [life for life in map(parse_life, text.split()) if life is not None]
                found[channel] = tuple((life.name, life.first) for life in lives if life.first is not None)
        return found

    def copies(self) -> set[int]:
        """The ids of channels that are copies."""
        return {id for (id,) in self._sql.execute("SELECT channel FROM copy")}

    # For several workers.

    def positions(self) -> dict[int, Position]:
        """The places in the logs of other workers up to which this directory has their facts, by worker."""
        if not self._sql.execute("SELECT 1 FROM sqlite_master WHERE name = 'position'").fetchone():
            return {}
        rows = self._sql.execute("SELECT * FROM position")
        return {worker: Position(*at) for worker, *at, checksum in rows if checksum == _checksum([worker, *at])}

    def facts_behind(self, position: Position | None) -> tuple[list[FactRow] | None, Position]:
        """The facts behind a position in this directory's log, if all are kept, and the position behind them.

        It judges as :meth:`~app.changes.Changes.check` does, where no server runs.
        """
        starts = self._sql.execute("SELECT instance, cast(began_at AS INTEGER) FROM life ORDER BY rowid").fetchall()
        newest = self._sql.execute("SELECT ifnull(max(number), 0) FROM fact").fetchone()[0]
        index = max(newest, *(began_at for _, began_at in starts), 0)
        ends_at = [*(began_at for _, began_at in starts[1:]), index]
        last = {instance: end for (instance, _), end in zip(starts, ends_at, strict=True)} | {BEGINNING.instance: index}
        here = Position(starts[-1][0], index) if starts else BEGINNING
        if position is None or position.number > last.get(position.instance, -1):
            return None, here
        found = self.facts(position.number)
        return (found if len(found) == index - position.number else None), here

    def has_started(self) -> bool:
        """Whether a server has ever started on this directory."""
        return self._sql.execute("SELECT 1 FROM life").fetchone() is not None

    def names(self) -> set[str]:
        """The names of all channels, which is quick."""
        return {name for (name,) in self._sql.execute("SELECT DISTINCT name FROM channel")}

    def find(self, name: str, epoch: int) -> tuple[int, int] | None:
        """The id of an epoch of a channel, and when it was created; ``None`` if it is not here."""
        query = "SELECT id, created_us FROM channel WHERE name = ? AND epoch = ?"
        found: tuple[int, int] | None = self._sql.execute(query, [name, epoch]).fetchone()
        return found

    def unused_id(self) -> int:
        """The lowest id above those of all channels, segments and folders."""
        highest = "SELECT max((SELECT ifnull(max(id), 0) FROM channel), (SELECT ifnull(max(channel), 0) FROM segment))"
        folders = (int(one.name) for one in (self.folder / "segments").iterdir() if one.name.isdecimal())
        return max([int(self._sql.execute(highest).fetchone()[0]), *folders]) + 1

    def _connected(self) -> sqlite3.Connection:
        path = self.folder / _DATABASE
        sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=LOCK_S)
        try:
            prepare(sql)
            version = schema_of(sql, path)
            if not version and sql.execute("SELECT * FROM sqlite_master").fetchone() is not None:
                self._repaired.append(f"{_DATABASE} had lost the version of its tables, which is restored")
                sql.execute(f"PRAGMA user_version = {(version := SCHEMA)}")
            sql.execute("PRAGMA journal_mode = WAL")
            sql.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
            if not version:
                sql.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
            for table in (_PLAYLISTS, _NUMBERINGS, _COPIES):
                sql.execute(table)
            self._restore_definitions(sql)
            self._inode = path.stat().st_ino  # of the open database
        except BaseException:
            sql.close()
            raise
        return sql

    def _restore_definitions(self, sql: sqlite3.Connection) -> None:
        """Write the definitions of tables anew whose columns have got other names by damage.

        Their rows are where they were. But Python reads no row of a column whose name is no UTF-8, and a column more or
        less shifts what a row means.
        """
        columns = "SELECT CAST(name AS BLOB) FROM pragma_table_info(?)"
        with closing(sqlite3.connect(":memory:")) as right:
            right.executescript(f"{_TABLES} {_PLAYLISTS}; {_NUMBERINGS}; {_COPIES};")
            for name, text in right.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
                found = sql.execute(columns, [name]).fetchall()
                if found and found != right.execute(columns, [name]).fetchall():
                    sql.execute("PRAGMA writable_schema = ON")
                    sql.execute("UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?", [text, name])
                    sql.execute("PRAGMA writable_schema = RESET")
                    self._repaired.append(
                        f"{_DATABASE}: the definition of the table {name} was damaged, and is restored"
                    )

    def _write(self, append: Append) -> int:
        """Write bytes to their file, and update the checksum. Returns the file's descriptor."""
        descriptor = self._descriptor(append.channel, append.file)
        views, at = list(append.segment.payload(append.first, append.last)), append.at
        append.size = 0
        for first in range(0, len(views), _IOV):
            some = views[first : first + _IOV]
            left = sum(map(len, some))
            append.size += left
            for view in some:
                append.crc = crc32(view, append.crc)
            while left:
                written = os.pwritev(descriptor, some, at)
                at += written
                left -= written
                if left:
                    some = _without_first(some, written)
        return descriptor

    def _descriptor(self, channel: int, file: int) -> int:
        key = channel, file
        if (descriptor := self._files.get(key)) is not None:
            self._files.move_to_end(key)
            return descriptor
        path = self.path(channel, file)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self._fsync:
            self._folders.add(channel)
        self._files[key] = descriptor
        return descriptor

    def _record(self, batch: Batch) -> None:
        sql = self._sql
        segments = [
            row if append is None else row._replace(size=row.size + append.size, crc=append.crc)
            for row, append in batch.segments
        ]
        sql.execute("BEGIN IMMEDIATE")
        try:
            if batch.server_start is not None:
                _insert(sql, "life", [batch.server_start], checked=False)
                sql.execute("DELETE FROM life WHERE rowid <= (SELECT max(rowid) FROM life) - 1000")
            _insert(sql, "fact", batch.facts, checked=False)
            _insert(sql, "channel", list(batch.channels.values()))
            _insert(sql, "segment", segments)
            _insert(sql, "playlist", list(batch.playlists.items()))
            _insert(sql, "numbering", list(map(_numbering, batch.lives.items())))
            _insert(sql, "copy", [(id,) for id, copied in batch.copies.items() if copied], checked=False)
            ended = [(id,) for id, copied in batch.copies.items() if not copied]
            sql.executemany("DELETE FROM copy WHERE channel = ?", [*ended, *((id,) for id in batch.forgotten)])
            if batch.floor:
                sql.execute("DELETE FROM fact WHERE number <= ?", [batch.floor])
                # There may be no fact beyond it for a while: a crash must not make the index go back.
                sql.execute("UPDATE life SET began_at = ? WHERE rowid = (SELECT max(rowid) FROM life)", [batch.floor])
            if batch.facts:
                sql.execute("DELETE FROM fact WHERE number <= ?", [batch.facts[-1].number - MAX_FACTS])
            if batch.removed:
                sql.executemany("DELETE FROM segment WHERE channel = ? AND seq = ?", batch.removed)
            if batch.positions:
                sql.execute(_POSITIONS)
                _insert(sql, "position", [(worker, *at) for worker, at in batch.positions.items()])
            if batch.forgotten:
                sql.executemany("DELETE FROM channel WHERE id = ?", [(one,) for one in batch.forgotten])
                sql.executemany("DELETE FROM playlist WHERE channel = ?", [(one,) for one in batch.forgotten])
                sql.executemany("DELETE FROM numbering WHERE channel = ?", [(one,) for one in batch.forgotten])
            sql.execute("COMMIT")
        except BaseException as error:
            self._corrupt |= isinstance(error, sqlite3.DatabaseError) and _is_damage(error)
            with suppress(sqlite3.Error):
                sql.execute("ROLLBACK")
            raise

    def _check_place(self) -> None:
        """Raise if the database was removed or replaced: SQLite would go on writing to a file that has no name."""
        path = self.folder / _DATABASE
        try:
            there = path.stat().st_ino == self._inode
        except FileNotFoundError:
            there = False
        if not there:
            raise OSError(errno.ESTALE, "removed while the server runs; restart the server", str(path))

    def _give_back(self, appends: Iterable[Append]) -> None:
        """Cut off the bytes of a batch that failed: on a full disk they would take the room that is freed.

        An append is at the end of its file. If only the transaction failed, the bytes stay: it may turn out to be
        committed after a crash.
        """
        for append in appends:
            if (descriptor := self._files.get((append.channel, append.file))) is not None:
                with suppress(OSError):
                    os.ftruncate(descriptor, append.at)

    def _remove(self, channel: int, file: int) -> None:
        descriptor = self._files.pop((channel, file), None)
        if descriptor is not None:
            os.close(descriptor)
        path = self.path(channel, file)
        try:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # it still holds other files
                path.parent.rmdir()
        except OSError as error:
            logger.warning("cannot remove %s, which is no longer needed: %s", path, error)


def segment_path(folder: Path, channel: int, file: int) -> Path:
    """The path of a file of segments in a data directory."""
    return folder / "segments" / f"{channel:06d}" / f"{file:08d}.seg"


ASIDE: Final = re.compile(r"(.*\.(?:damaged|unknown))-\d+")
"""Names of damaged or unknown files that are set aside."""


def unused_name(folder: Path, stem: str) -> str:
    """The first free name of ``stem-1``, ``stem-2`` ..., for a file that is set aside."""
    return next(name for number in count(1) if not (folder / (name := f"{stem}-{number}")).exists())


def prepare(sql: sqlite3.Connection) -> None:
    """Apply the settings that every connection to the database needs."""
    sql.execute("PRAGMA foreign_keys = OFF")
    sql.execute("PRAGMA cell_size_check = ON")
    # One flipped bit in a text must not end the reading of a table.
    sql.text_factory = lambda text: text.decode("utf-8", "surrogateescape")


def schema_of(sql: sqlite3.Connection, path: Path) -> int:
    """The version of the tables; 0 in a new file.

    Raises:
        StorageError: a later version of tricklecast wrote it.
    """
    ((version,),) = sql.execute("PRAGMA user_version").fetchall()
    if version > SCHEMA:
        raise StorageError(f"{str(path)!r} was written by a later version of tricklecast (schema {version})")
    return int(version)


def read_contents(sql: sqlite3.Connection) -> Contents:
    """Read all rows but the facts: those that a damaged file still yields, without rows whose checksum is wrong.

    Raises:
        sqlite3.Error: the database cannot be read now, for a reason that may pass.
    """
    found = Contents()
    found.damaged += [
        f"{_DATABASE}: {text}" for (text,) in _readable(sql, "PRAGMA quick_check(3)", found) if text != "ok"
    ]
    found.server_starts = [ServerStart(*row) for row in _salvaged(sql, "life", found, checked=False, order="rowid")]
    found.channels = [ChannelRow(*row) for row in _salvaged(sql, "channel", found)]
    damaged = len(found.damaged)
    segments = {row[:2]: row for row in _salvaged(sql, "segment", found)}
    if len(found.damaged) > damaged:  # read around the damage: from both ends of each channel
        for (channel,) in _readable(sql, "SELECT id FROM channel ORDER BY id", Contents()):
            segments |= {
                row[:2]: row for row in _salvaged(sql, "segment", Contents(), where=f"WHERE channel = {channel}")
            }
    found.segments = [SegmentRow(*segments[key]) for key in sorted(segments)]
    if found.damaged:
        found.channels += _channels_by_name(sql, found)
    last = [number for (number,) in _readable(sql, "SELECT max(number) FROM fact", found)]
    found.index = max(
        number for number in (0, *last, *(start.began_at for start in found.server_starts)) if type(number) is int
    )
    return found


def _channels_by_name(sql: sqlite3.Connection, found: Contents) -> list[ChannelRow]:
    """Rebuild damaged rows of channels: the index of names also has name and epoch, and the facts have the rest."""
    known = {row.id for row in found.channels}
    heads: dict[int, int] = {}
    for segment in found.segments:
        heads[segment.channel] = max(heads.get(segment.channel, 0), segment.seq + 1)
    query = "SELECT id, name, epoch FROM channel INDEXED BY sqlite_autoindex_channel_1 ORDER BY name, epoch"
    lost = {(name, epoch): id for id, name, epoch in _readable(sql, query, Contents()) if id not in known}
    rows: dict[int, ChannelRow] = {}
    for (name, epoch), id in lost.items():
        if type(id) is type(epoch) is int and isinstance(name, str) and name.isprintable():
            rows[id] = ChannelRow(id, name, epoch, "", heads.get(id, 0), 0)
    for fact in _salvaged(sql, "fact", Contents(), checked=False) if rows else ():
        _, at_us, kind, name, epoch, seq, detail, _ = fact
        row = rows.get(lost.get((name, epoch), 0))
        if row is None:
            continue
        match kind:
            case "added":
                row = row._replace(content_type=detail or "", created_us=at_us)
            case "removed":
                row = row._replace(next_seq=max(row.next_seq, seq), ended_us=at_us, reason=detail)
            case _:
                row = row._replace(next_seq=max(row.next_seq, seq + 1))
        rows[row.id] = row
    found.damaged += [f"channel {row.name!r} (epoch {row.epoch}): rebuilt from other tables" for row in rows.values()]
    return list(rows.values())


def boot_id() -> str:
    """The name of the machine's present boot, if known. A new boot has lost bytes that the kernel had not written."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _checksum(row: Sequence[object]) -> int:
    return crc32("\0".join(map(str, row)).encode("utf-8", "surrogateescape"))


def _numbering(row: tuple[int, Lives]) -> tuple[int, str]:
    channel, lives = row
    return channel, " ".join(str(Life(*life)) for life in lives)


def _insert(sql: sqlite3.Connection, table: str, rows: Sequence[tuple[object, ...]], *, checked: bool = True) -> None:
    if rows:
        values = [(*row, _checksum(row)) for row in rows] if checked else rows
        marks = ", ".join("?" * len(values[0]))
        sql.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)


def _salvaged(
    sql: sqlite3.Connection, table: str, found: Contents, *, checked: bool = True, where: str = "", order: str = "1"
) -> list[tuple[Any, ...]]:
    """The rows of a table without their checksums; if it cannot be read to its end, also from its end."""
    rows: dict[Any, tuple[Any, ...]] = {}
    wrong: dict[tuple[Any, ...], None] = {}  # by all of it: its key may be that of another row by now
    for direction in ("", " DESC"):
        damaged = len(found.damaged)
        for row in _readable(sql, f"SELECT * FROM {table} {where} ORDER BY {order}{direction}, 2{direction}", found):
            if checked and _checksum(row[:-1]) != row[-1]:
                wrong[row] = None
            else:
                rows[row[:2]] = row
        if len(found.damaged) == damaged:
            break
    found.damaged += [f"table {table}: row {row[:2]} does not match its checksum" for row in wrong]
    return sorted(row[:-1] for row in rows.values()) if checked else list(rows.values())


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged, rather than full, locked or read-only."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF in _DAMAGE


def _readable(sql: sqlite3.Connection, query: str, found: Contents) -> Iterator[tuple[Any, ...]]:
    with closing(sql.cursor()) as cursor:
        try:
            yield from cursor.execute(query)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            found.damaged.append(f"{_DATABASE}: {error}")


def _without_first(views: list[memoryview], written: int) -> list[memoryview]:
    """These views without their first bytes, which are written."""
    while written >= len(views[0]):
        written -= len(views[0])
        views = views[1:]
    return [views[0][written:], *views[1:]]


def _probe(folder: Path, size: int = 1, *, synced: bool = False) -> None:
    """Make a file of this size in a folder, synced if so told, and remove it.

    Raises:
        OSError: it cannot be made.
    """
    trial = folder / "trial"
    try:
        with open(trial, "wb") as file:
            file.write(bytes(size))
            file.flush()
            if synced:
                os.fsync(file.fileno())
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            trial.unlink()


def sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # it has been removed since
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unusable(folder: Path, error: Exception) -> StorageError:
    return StorageError(f"cannot use the data directory {str(folder)!r}: {error}")


def locked(folder: Path) -> int:
    """Lock the directory for this process until the returned descriptor is closed.

    Raises:
        StorageError: another process has it. OSError: the lock file cannot be written.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StorageError(f"another server uses the data directory {str(folder)!r}") from None
    return descriptor
