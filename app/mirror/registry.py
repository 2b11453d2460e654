"""What a mirror knows: a row for each channel and each stored segment, in SQLite.

**The problem.** A copy takes long. Meanwhile its channel ends, or begins anew, or its operator does not want it any
more; another copy of the same thing begins, or the process is killed. Whatever a copy does last must not undo that.

**The idea.** A row has a version. Whoever marks a row as dirty, and whoever begins to work on it, gives it a new one.
What the work has learned is written by a compare-and-set: ``UPDATE … WHERE version = ? AND state = 'started'``. If that
changes no row, what was learned is old, and the caller drops it. The caller shows a copy to readers in the same step of
the event loop, so nothing can come between.

Versions come from one counter for all rows. So a row that was removed and made again never has a version that an
earlier work has seen. The counter need not outlive the process, since its works do not.

States: ``pending`` → ``started`` → ``synced`` or ``failed``; a row that has failed is ``pending`` again at ``next_at``,
or stays as it is if it has none. A channel that has ended is ``deleted`` for :data:`TOMBSTONE_S`. A segment that the
destination would not keep is ``beyond``: it is counted, not copied, and not missing.

All calls are synchronous. What is written within :data:`COMMIT_S` is one transaction: a crash loses it, and the work is
done again. Triggers count the rows of each state, so that a status costs the same with ten rows and with ten million.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from tricklecast.app.core.segment import State
from tricklecast.app.mirror.sides import HeldCopy, SourceChannel, SourceSegment
from tricklecast.trickle.errors import TrickleError

SCHEMA: Final = 1
"""Version of the tables."""

COMMIT_S: Final = 0.05
"""The longest time, in seconds, for which what is written waits for its commit."""

TOMBSTONE_S: Final = 7 * 86400.0
"""A channel that has ended is remembered for so long: longer than the longest copy takes."""

MAX_TOMBSTONES: Final = 100_000
"""Channels that have ended; of more of them the oldest ones are forgotten."""

MAX_PAUSE_S: Final = 3600.0
"""No row waits for longer. One that seems to was written before the clock was set back."""

CONTACT: Final = "contact"
"""The setting that says when the source was heard last."""

_KEY: Final = "name = ? AND epoch = ? AND seq = ?"
_TOLD: Final = "name, epoch, created_us, seq, ending, size, crc, opened_us, closed_us, state, version, at"
_NOT_HERE: Final = "state <> 'synced'"  # as the index says it, or SQLite would not use that


class RowState(StrEnum):
    """How a row stands to the source."""

    PENDING = "pending"
    STARTED = "started"
    SYNCED = "synced"
    FAILED = "failed"
    BEYOND = "beyond"
    DELETED = "deleted"


class RegistryError(TrickleError):
    """The registry of the mirror cannot be read or written."""


class RegistryUnusable(RegistryError):
    """The file is damaged, or of another version."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{str(path)!r} {why}: remove it (with -wal and -shm) and set the mirror again; then all channels are"
            " looked at anew, and what is here already is not copied again"
        )


class ChannelRow(NamedTuple):
    """A channel.

    Attributes:
        epoch, created_us, instance: the truth that was learned last, and the start of the source that told it.
        attempts: in a row, that failed.
        dirty_at: since when it may differ from the source, seconds since 1970.
        at: since when it is in its state. next_at: when it is tried again.
        whole: whether its window was here to the last byte when the source was last heard, and nothing has happened to
            it since, as far as is known.
    """

    name: str
    epoch: int
    created_us: int
    instance: str
    state: str
    version: int
    attempts: int
    dirty_at: float
    at: float
    next_at: float | None
    error: str
    whole: int


class SegmentRow(NamedTuple):
    """A closed segment of a channel.

    Attributes:
        created_us: of the channel: a source may count epochs anew.
        ending, size, crc, opened_us, closed_us: as the source tells, in :class:`SourceSegment`.
        attempts, next_at: as of a channel.
        at: since when it is in its state; of a synced one, when its bytes were checked last.
        verified: whether they were read again here, and were right.
    """

    name: str
    epoch: int
    seq: int
    created_us: int
    ending: str
    size: int
    crc: int | None
    opened_us: int
    closed_us: int
    state: str
    version: int
    attempts: int
    at: float
    next_at: float | None
    error: str
    verified: int

    @property
    def told(self) -> SourceSegment:
        """What the source has told of it."""
        return SourceSegment(self.seq, State(self.ending), self.size, self.crc, self.opened_us, self.closed_us)


_TABLES: Final = """
CREATE TABLE setting (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE channel (
    name TEXT PRIMARY KEY, epoch INTEGER DEFAULT 0, created_us INTEGER DEFAULT 0, instance TEXT DEFAULT '',
    state TEXT, version INTEGER, attempts INTEGER DEFAULT 0, dirty_at REAL, at REAL, next_at REAL,
    error TEXT DEFAULT '', whole INTEGER DEFAULT 0) WITHOUT ROWID;
CREATE INDEX channel_dirty ON channel (state, dirty_at);
CREATE INDEX channel_waits ON channel (next_at) WHERE next_at NOT NULL;
CREATE INDEX channel_deleted ON channel (at) WHERE state = 'deleted';
CREATE TABLE segment (
    name TEXT, epoch INTEGER, seq INTEGER, created_us INTEGER, ending TEXT, size INTEGER, crc INTEGER,
    opened_us INTEGER, closed_us INTEGER, state TEXT, version INTEGER, attempts INTEGER DEFAULT 0, at REAL,
    next_at REAL, error TEXT DEFAULT '', verified INTEGER DEFAULT 0, PRIMARY KEY (name, epoch, seq)) WITHOUT ROWID;
CREATE INDEX segment_dirty ON segment (state, closed_us) WHERE state <> 'synced';
CREATE INDEX segment_due ON segment (closed_us) WHERE state = 'pending' AND next_at IS NULL;
CREATE INDEX segment_waits ON segment (next_at) WHERE next_at NOT NULL;
CREATE INDEX segment_synced ON segment (at) WHERE state = 'synced';
CREATE TABLE count (kind TEXT, state TEXT, rows INTEGER, bytes INTEGER, PRIMARY KEY (kind, state)) WITHOUT ROWID;
"""

_STATES: Final = ", ".join(f"('{state}')" for state in RowState)
_KINDS: Final = (("channel", "channel", "1", "0"), ("segment", "segment", "1", "%s.size"),
                 ("verified", "segment", "%s.verified", "%s.size"))  # fmt: skip
"""What is counted of which table: the rows for which this is true, and the sum of that."""


def _triggers() -> Iterator[str]:
    """Keep ``count`` as it is in the tables."""
    for kind, table, which, size in _KINDS:
        less, more = (
            f"UPDATE count SET rows = rows {sign} 1, bytes = bytes {sign} {size.replace('%s', row)}"
            f" WHERE kind = '{kind}' AND state = {row}.state AND {which.replace('%s', row)};"
            for sign, row in (("-", "old"), ("+", "new"))
        )
        yield f"CREATE TRIGGER {kind}_in AFTER INSERT ON {table} BEGIN {more} END;"
        yield f"CREATE TRIGGER {kind}_out AFTER DELETE ON {table} BEGIN {less} END;"
        of = "state" if table == "channel" else "state, size, verified"
        yield f"CREATE TRIGGER {kind}_to AFTER UPDATE OF {of} ON {table} BEGIN {less} {more} END;"


def _at(row: ChannelRow | SegmentRow) -> tuple[str, str, tuple[object, ...]]:
    """Where a row is: its table, and its key."""
    return ("channel", "name = ?", row[:1]) if isinstance(row, ChannelRow) else ("segment", _KEY, row[:3])


class MirrorRegistry:
    """The rows of a mirror, and its settings. Each method raises :class:`RegistryError` if the disk fails.

    Args:
        path: of the file; ``None``: it lasts as long as the process.

    Attributes:
        path: as given.
        begun: called when something waits for :meth:`commit`.

    Raises:
        RegistryUnusable: the file is damaged, or of another version.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.begun: Callable[[], None] = lambda: None
        self.path, self._versions = path, count(1)
        try:
            if path is not None:
                # It may hold a token. SQLite gives its log the same mode.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
                os.chmod(path, 0o600)
            self._sql = sqlite3.connect(path or ":memory:", isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise RegistryError(f"cannot open the registry of the mirror, {str(path)!r}: {error}") from error
        try:
            self._open()
        except BaseException as error:
            self._sql.close()
            if path is not None and isinstance(error, sqlite3.DatabaseError):
                raise RegistryUnusable(path, f"cannot be read ({error})") from error
            raise

    def _open(self) -> None:
        (version,) = self._sql.execute("PRAGMA user_version").fetchone()
        (tables,) = self._sql.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if self.path is not None and tables and version != SCHEMA:
            raise RegistryUnusable(self.path, f"is of version {version}, and this release writes version {SCHEMA}")
        # A checkpoint would wait for the disk in a turn of the event loop.
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 0"):
            self._sql.execute(f"PRAGMA {pragma}")
        if not tables:
            self._sql.executescript(f"BEGIN; {_TABLES} {''.join(_triggers())} PRAGMA user_version = {SCHEMA}; COMMIT;")
        for table in ("setting", "channel", "segment", "count"):
            self._sql.execute(f"SELECT * FROM {table} LIMIT 1")
        # Also in a file of a release that had fewer states.
        for kind, *_ in _KINDS:
            values = f"SELECT '{kind}', column1, 0, 0 FROM (VALUES {_STATES})"
            self._sql.execute(f"INSERT OR IGNORE INTO count {values}")

    def close(self) -> None:
        """Commit, and close the file."""
        self.commit()
        self._sql.close()

    def commit(self) -> None:
        """End the transaction that gathers what was written. If it fails, all of that must be found out anew."""
        if self._sql.in_transaction:
            try:
                self._sql.execute("COMMIT")
            except sqlite3.Error as error:
                self.roll_back()
                raise RegistryError(f"the registry of the mirror cannot be written: {error}") from error

    def roll_back(self) -> None:
        """Forget what was written since the last commit, as a crash does."""
        if self._sql.in_transaction:
            self._sql.execute("ROLLBACK")

    def checkpoint(self) -> None:
        """Move what is in the log into the file. It waits for the disk: call it in a thread."""
        if self.path is not None:
            with suppress(sqlite3.Error), closing(sqlite3.connect(self.path)) as sql:  # the next one will do it
                sql.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def sync(self) -> None:
        """Let the disk have the log: then :meth:`change_settings` waits for little. Call it in a thread."""
        with suppress(OSError):  # of none, or one that fails again when it matters
            log = os.open(f"{self.path}-wal", os.O_RDONLY)
            try:
                os.fsync(log)
            finally:
                os.close(log)

    def _ask(self, query: str, *values: Any) -> list[Any]:
        try:
            return self._sql.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise RegistryError(f"the registry of the mirror cannot be read: {error}") from error

    def _write(self, change: str, *values: Any) -> int:
        """Change rows; how many were changed."""
        return self._write_all(change, (values,))

    def _write_all(self, change: str, rows: Iterable[Sequence[Any]]) -> int:
        try:
            if not self._sql.in_transaction:
                self._sql.execute("BEGIN")
                self.begun()
            return self._sql.executemany(change, rows).rowcount
        except sqlite3.Error as error:
            raise RegistryError(f"the registry of the mirror cannot be written: {error}") from error

    # Settings.

    def settings(self) -> dict[str, str]:
        """All settings."""
        return dict(self._ask("SELECT key, value FROM setting"))

    def change_settings(self, settings: Mapping[str, str | None]) -> None:
        """Change settings, durably; ``None`` removes one."""
        self.commit()
        self._sql.execute("PRAGMA synchronous = FULL")
        try:
            self._write_all("DELETE FROM setting WHERE key = ?", ((key,) for key in settings))
            kept = ((key, value) for key, value in settings.items() if value is not None)
            self._write_all("INSERT INTO setting VALUES (?, ?)", kept)
            self.commit()
        finally:
            self.roll_back()
            self._sql.execute("PRAGMA synchronous = NORMAL")

    def heard(self, at: float) -> None:
        """The source was heard at this time, seconds since 1970. A crash may lose it."""
        self._write("INSERT OR REPLACE INTO setting VALUES (?, ?)", CONTACT, repr(at))

    def contact(self) -> float | None:
        """When the source was heard last, as far as was kept; ``None``: never."""
        return next((float(at) for (at,) in self._ask("SELECT value FROM setting WHERE key = ?", CONTACT)), None)

    # What work does to its row.

    def _settle(
        self, row: ChannelRow | SegmentRow, now: float, state: RowState, *, next_at: float | None = None,
        error: str | None = None, of: str = "'started'", also: str = "",
    ) -> bool:  # fmt: skip
        """The compare-and-set: whether nothing has happened to a row since the work on it began."""
        table, where, key = _at(row)
        attempts = 0 if error is None else row.attempts + 1
        change = f"UPDATE {table} SET state = ?, at = ?, attempts = ?, next_at = ?, error = ? WHERE {where}"
        change += f" AND version = ? AND state IN ({of}) {also}"
        return bool(self._write(change, state, now, attempts, next_at, error or "", *key, row.version))

    # Channels.

    def channels(self) -> dict[str, ChannelRow]:
        """All rows of channels."""
        return {row[0]: ChannelRow(*row) for row in self._ask("SELECT * FROM channel")}

    def channel(self, name: str) -> ChannelRow | None:
        """The row of a channel."""
        return next((ChannelRow(*row) for row in self._ask("SELECT * FROM channel WHERE name = ?", name)), None)

    def mark(self, names: Iterable[str], now: float) -> None:
        """Something may have happened to these channels: whatever is being learned of them is old."""
        version = next(self._versions)
        self._write_all(
            "INSERT INTO channel (name, state, version, dirty_at, at) VALUES (?1, 'pending', ?2, ?3, ?3)"
            " ON CONFLICT (name) DO UPDATE SET state = 'pending', version = excluded.version, at = excluded.at,"
            " whole = 0, next_at = NULL, dirty_at = iif(state IN ('synced', 'deleted'), excluded.dirty_at, dirty_at)",
            ((name, version, now) for name in names),
        )

    def lost(self, name: str, now: float, next_at: float, attempts: int, error: str) -> None:
        """A channel is not followed any more, and is looked at again then, or when something happens to it.

        Work on it that is under way counts on the follower: it is for nothing, and waits as well.
        """
        self._write(
            "UPDATE channel SET state = 'failed', version = ?1, dirty_at = ?2, at = ?2, next_at = ?3, attempts = ?4,"
            " error = ?5 WHERE name = ?6 AND state IN ('synced', 'started')",
            *(next(self._versions), now, next_at, attempts, error, name),
        )

    def take_channels(self, now: float, most: int) -> list[ChannelRow]:
        """Begin to work on channels that are pending, those first that have been dirty for longest."""
        query = "SELECT * FROM channel WHERE state = 'pending' ORDER BY dirty_at LIMIT ?"
        version = next(self._versions)
        pending = (ChannelRow(*row) for row in self._ask(query, most))
        rows = [row._replace(state=RowState.STARTED, version=version, at=now) for row in pending]
        change = "UPDATE channel SET state = ?, version = ?, at = ? WHERE name = ?"
        self._write_all(change, ((row.state, row.version, now, row.name) for row in rows))
        return rows

    def is_current(self, row: ChannelRow | SegmentRow) -> bool:
        """Whether nothing has happened to a row since it was read."""
        table, where, key = _at(row)
        return bool(self._ask(f"SELECT 1 FROM {table} WHERE {where} AND version = ?", *key, row.version))

    def learn(self, row: ChannelRow, truth: SourceChannel, instance: str) -> bool:
        """The channel lives; the work on it goes on. Copies of another epoch that are under way are for nothing."""
        change = "UPDATE channel SET epoch = ?, created_us = ?, instance = ? WHERE name = ? AND version = ?"
        done = self._write(change, truth.epoch, truth.created_us, instance, row.name, row.version)
        if done:
            where = f"name = ? AND (epoch <> ? OR created_us <> ?) AND {_NOT_HERE}"
            self._write(f"DELETE FROM segment WHERE {where}", *truth)
        return bool(done)

    def finish_channel(self, row: ChannelRow, now: float) -> bool:
        """The channel is followed, and its history has its rows."""
        return self._settle(row, now, RowState.SYNCED)

    def lacking(self, name: str, below: float) -> int:
        """How many segments of a channel, of the epochs below one, are not here and should be."""
        where = f"name = ? AND epoch < ? AND {_NOT_HERE} AND state <> 'beyond'"
        ((found,),) = self._ask(f"SELECT count(*) FROM segment WHERE {where}", name, below)
        return int(found)

    def bury(self, row: ChannelRow, now: float) -> bool:
        """The channel has ended: a tombstone stays."""
        done = self._settle(row, now, RowState.DELETED)
        if done:
            self._write("DELETE FROM segment WHERE name = ? AND state <> 'synced'", row.name)
        return done

    def fail_channel(self, row: ChannelRow, now: float, next_at: float, error: str) -> bool:
        """The work on a channel has failed; it is tried again then."""
        return self._settle(row, now, RowState.FAILED, next_at=next_at, error=error)

    def let_go(self, names: Iterable[str]) -> None:
        """Channels are not mirrored any more. The rows of segments that are here stay."""
        gone = [(name,) for name in names]
        self._write_all("DELETE FROM channel WHERE name = ?", gone)
        self._write_all(f"DELETE FROM segment WHERE name = ? AND {_NOT_HERE}", gone)

    # Segments.

    def add(
        self, channel: SourceChannel, segments: Iterable[SourceSegment], now: float, next_at: float | None = None
    ) -> None:
        """Segments are at the source and not here. Those that are not known, or were given up, are pending.

        Args:
            next_at: until then they may come by the feed.
        """
        version = next(self._versions)
        self._write_all(
            f"INSERT INTO segment ({_TOLD}, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET created_us = excluded.created_us, ending = excluded.ending,"
            " size = excluded.size, crc = excluded.crc, opened_us = excluded.opened_us, closed_us = excluded.closed_us,"
            " state = 'pending', version = excluded.version, at = excluded.at, next_at = excluded.next_at, error = '',"
            " attempts = 0, verified = 0 WHERE (state = 'failed' AND next_at IS NULL) OR state = 'beyond'"
            " OR (state IN ('pending', 'failed') AND (size, crc) IS NOT (excluded.size, excluded.crc))",
            ((*channel, *told, version, now, next_at) for told in segments),
        )

    def leave_out(self, channel: SourceChannel, segments: Iterable[SourceSegment], now: float) -> None:
        """Segments are at the source, and would not be kept here."""
        version = next(self._versions)
        self._write_all(
            f"INSERT INTO segment ({_TOLD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'beyond', ?, ?)"
            " ON CONFLICT DO UPDATE SET created_us = excluded.created_us, size = excluded.size, state = 'beyond',"
            " version = excluded.version, at = excluded.at, next_at = NULL, error = ''"
            " WHERE state IN ('pending', 'failed', 'beyond')",
            ((*channel, *told, version, now) for told in segments),
        )

    def left_out(self, row: SegmentRow, now: float) -> bool:
        """A segment would not be kept here after all."""
        return self._settle(row, now, RowState.BEYOND, of="'pending', 'started', 'synced'")

    def forget_left_out(self, name: str, epoch: int, before: float) -> None:
        """Those that were left out before a time, and not since, are not at the source any more."""
        self._write(
            "DELETE FROM segment WHERE name = ? AND epoch = ? AND state = 'beyond' AND at < ?", name, epoch, before
        )

    def arrived(self, channel: SourceChannel, copies: Iterable[HeldCopy], now: float, *, late: bool = False) -> None:
        """Segments have come by the feed. A copy of one that is under way is for nothing.

        Args:
            late: nobody knows how they came, so those that have a row keep it.
        """
        version = next(self._versions)
        self._write_all(
            f"INSERT INTO segment ({_TOLD}) VALUES (?, ?, ?, ?, '', ?, ?, 0, 0, 'synced', ?, ?)"
            " ON CONFLICT DO UPDATE SET state = 'synced', created_us = excluded.created_us, size = excluded.size,"
            " crc = ifnull(excluded.crc, crc), version = excluded.version, at = excluded.at, next_at = NULL, error = ''"
            f" WHERE state <> 'synced' AND {not late}",
            ((*channel, copy.seq, copy.size, copy.crc, version, now) for copy in copies),
        )

    def has_others(self, channel: SourceChannel) -> bool:
        """Whether segments are here of another channel of that epoch, from before the source counted anew."""
        query = "SELECT 1 FROM segment WHERE name = ? AND epoch = ? AND created_us NOT IN (?, 0) LIMIT 1"
        return bool(channel.created_us and self._ask(query, *channel))

    def synced(self, name: str, epoch: int) -> dict[int, int | None]:
        """The segments of a channel that are here, with their checksums, as the rows say."""
        query = "SELECT seq, crc FROM segment WHERE name = ? AND epoch = ? AND state = 'synced'"
        return dict(self._ask(query, name, epoch))

    def forget(self, name: str, epoch: int, seqs: Iterable[int]) -> None:
        """These segments are not here any more, and nobody copies them."""
        self._write_all(f"DELETE FROM segment WHERE {_KEY}", ((name, epoch, seq) for seq in seqs))

    def next_segment(self, *, newest: bool) -> SegmentRow | None:
        """The segment that is to be copied next."""
        order = "DESC" if newest else "ASC"
        query = f"SELECT * FROM segment WHERE state = 'pending' AND next_at IS NULL ORDER BY closed_us {order} LIMIT 1"
        return next((SegmentRow(*row) for row in self._ask(query)), None)

    def start_segment(self, row: SegmentRow, now: float) -> SegmentRow:
        """Begin to copy a segment that is pending."""
        row = row._replace(state=RowState.STARTED, version=next(self._versions), at=now)
        self._write(
            f"UPDATE segment SET state = 'started', version = ?, at = ? WHERE {_KEY}", row.version, now, *row[:3]
        )
        return row

    def finish_segment(self, row: SegmentRow, crc: int, now: float) -> bool:
        """Whether a segment may be shown: nothing has happened to it, and its channel goes on in its epoch."""
        same = " AND ".join(f"c.{column} = segment.{column}" for column in ("name", "epoch", "created_us"))
        lives = f"AND EXISTS (SELECT 1 FROM channel AS c WHERE {same} AND c.state <> 'deleted')"
        done = self._settle(row, now, RowState.SYNCED, also=lives)
        if done and row.crc is None:
            self._write(f"UPDATE segment SET crc = ? WHERE {_KEY}", crc, *row[:3])
        return done

    def fail_segment(self, row: SegmentRow, now: float, next_at: float | None, error: str) -> bool:
        """A segment is not here after all; it is tried again then, or not before it is added again."""
        return self._settle(row, now, RowState.FAILED, next_at=next_at, error=error, of="'started', 'synced'")

    # Care.

    def unverified(self, before: float, most: int) -> list[SegmentRow]:
        """Segments whose bytes were checked before a time, in that order."""
        query = "SELECT * FROM segment WHERE state = 'synced' AND at < ? ORDER BY at LIMIT ?"
        return [SegmentRow(*row) for row in self._ask(query, before, most)]

    def verified(self, row: SegmentRow, crc: int, now: float) -> None:
        """The bytes of a segment were read again, and are right."""
        where = f"{_KEY} AND version = ? AND state = 'synced'"
        self._write(f"UPDATE segment SET verified = 1, at = ?, crc = ? WHERE {where}", now, crc, *row[:3], row.version)

    def failed_names(self) -> set[str]:
        """The channels of which something has failed."""
        queries = ("SELECT name FROM channel WHERE state = 'failed'",
                   f"SELECT DISTINCT name FROM segment WHERE state = 'failed' AND {_NOT_HERE}")  # fmt: skip
        return {name for query in queries for (name,) in self._ask(query)}

    def resync(self, names: Sequence[str], now: float) -> None:
        """Look at these channels anew, and try at once all that has failed."""
        self.mark(names, now)
        self._revive("segment", "state = 'failed' AND name = ?", [(name,) for name in names])

    def reverify(self, names: Iterable[str]) -> None:
        """Check the bytes of these channels anew."""
        self._write_all("UPDATE segment SET at = 0 WHERE name = ? AND state = 'synced'", ((name,) for name in names))

    def try_now(self, now: float) -> None:
        """Try at once what has failed and waits, as if for the first time: the cause has gone."""
        for table in ("channel", "segment"):
            self._write(f"UPDATE {table} SET attempts = 0, next_at = ?1 WHERE next_at > ?1", now)

    def revive(self, now: float) -> None:
        """What has waited for its time is due."""
        for table in ("channel", "segment"):
            if self._ask(f"SELECT 1 FROM {table} WHERE next_at <= ? LIMIT 1", now):
                self._revive(table, "next_at <= ?", [(now,)])

    def _revive(self, table: str, where: str, rows: Iterable[Sequence[Any]]) -> None:
        change = f"UPDATE {table} SET state = 'pending', version = {next(self._versions)}, next_at = NULL"
        self._write_all(f"{change} WHERE {where}", rows)

    def next_due(self) -> float | None:
        """When :meth:`revive` has something to do."""
        queries = (f"SELECT min(next_at) FROM {table} WHERE next_at NOT NULL" for table in ("channel", "segment"))
        return min((at for query in queries for (at,) in self._ask(query) if at is not None), default=None)

    def sweep(self, now: float, started_before: float) -> int:
        """Works that began before a time will not end; old tombstones go. How many works there were."""
        swept = 0
        for table, where in (("channel", "state = 'started'"), ("segment", f"state = 'started' AND {_NOT_HERE}")):
            change = f"UPDATE {table} SET state = 'pending', version = {next(self._versions)} WHERE {where} AND at <= ?"
            swept += self._write(change, started_before)
            back = f"UPDATE {table} SET next_at = ?1 WHERE next_at > ?1 + ?2"
            self._write(back, now, MAX_PAUSE_S)  # the clock was set back
        self._write("DELETE FROM channel WHERE state = 'deleted' AND at <= ?", now - TOMBSTONE_S)
        oldest = "SELECT name FROM channel WHERE state = 'deleted' ORDER BY at LIMIT ?"
        if (more := self.counts()["channel", "deleted"][0] - MAX_TOMBSTONES) > 0:
            self._write(f"DELETE FROM channel WHERE name IN ({oldest})", more)
        return swept

    # Seeing it.

    def counts(self) -> dict[tuple[str, str], tuple[int, int]]:
        """How many rows, and bytes of segments, by kind (``channel``, ``segment``, ``verified``) and state."""
        return {(kind, state): (rows, size) for kind, state, rows, size in self._ask("SELECT * FROM count")}

    def behind(self) -> tuple[int, int]:
        """How many segments of the source are not here and should be, as far as is known, and their bytes."""
        counts = self.counts()
        rows = [counts["segment", state] for state in (RowState.PENDING, RowState.STARTED, RowState.FAILED)]
        return sum(n for n, _ in rows), sum(size for _, size in rows)

    def oldest_dirty(self, *, segments: bool = True) -> tuple[str, float] | None:
        """The channel of what has been at the source for longest and is not here, and since when.

        Args:
            segments: whether the history of channels counts.
        """
        queries = ["SELECT name, dirty_at FROM channel WHERE state = ? ORDER BY dirty_at LIMIT 1"]
        if segments:
            older = "SELECT name, closed_us / 1e6 FROM segment WHERE state = ?"
            queries.append(f"{older} AND {_NOT_HERE} ORDER BY closed_us LIMIT 1")
        states = (RowState.PENDING, RowState.STARTED, RowState.FAILED)
        found = (row for state in states for query in queries for row in self._ask(query, state))
        return min(found, key=lambda row: row[1], default=None)

    def set_whole(self, name: str, whole: bool) -> None:
        """The window of a channel is here, or is on its way."""
        self._write("UPDATE channel SET whole = ? WHERE name = ?", int(whole), name)

    def missing(self, *, reachable: bool) -> tuple[list[ChannelRow], list[SegmentRow]]:
        """All channels and segments that are not here as at the source and should be, as far as is known.

        Args:
            reachable: whether the source answers. If not, a channel whose feed has broken off was whole until then.
        """
        where = "state NOT IN ('synced', 'deleted') AND (? OR NOT whole)"
        channels = self._ask(f"SELECT * FROM channel WHERE {where} ORDER BY name", int(reachable))
        where = f"{_NOT_HERE} AND state <> 'beyond'"
        segments = self._ask(f"SELECT * FROM segment WHERE {where} ORDER BY name, epoch, seq")
        return [ChannelRow(*row) for row in channels], [SegmentRow(*row) for row in segments]
