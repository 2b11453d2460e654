"""One SQLite file that says how far the logs were read, what was found in them, and who has not been told yet.

All of what one batch of lines changes is one transaction: a process that is killed at any moment has either read a
batch, judged it and put its alerts in the outbox, or it has done nothing of that and reads the lines again.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import IO, Any, Final, Self

import orjson

from tricklecast.analytics.errors import BadInput, Busy

FILE: Final = "store.sqlite"
LOCK: Final = "lock"
VERSION: Final = 2
"""Of the tables below."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (
    inode INTEGER, head TEXT, at INTEGER NOT NULL, tail TEXT NOT NULL, skipping INTEGER NOT NULL, path TEXT NOT NULL,
    seen_us INTEGER NOT NULL, PRIMARY KEY (inode, head)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, version TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS incident (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, receiver TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS outbox_receiver ON outbox (receiver, id);
"""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a log was read.

    Attributes:
        inode: of the file. head: hash of its first line: a file is known by both, not by its name.
        at: so many bytes were read. tail: hash of the last of them, by which a copy of the file is known.
        skipping: what follows is the rest of a line that is too long to be one.
        path: where the file was. seen_us: when it was last there, microseconds since the epoch.
    """

    inode: int
    head: str
    at: int
    tail: str
    skipping: bool
    path: str
    seen_us: int


class Store:
    """The file. Its methods may be called from any thread.

    Attributes:
        folder: where it is.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        """Opens the store of a folder, or begins one; one process at a time may.

        Args:
            folder: made if it is not there; only its owner may read what is made.
            durable: wait for the disk, since somebody else notes as well how far was read.

        Raises:
            BadInput: it cannot be used, or was written by another version. Busy: another process uses it.
        """
        self._lock = RLock()
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._held = _held(folder / LOCK)
        except OSError as error:
            raise BadInput(f"cannot use {str(folder)!r} for the state: {error.strerror}") from error
        try:
            self._db = sqlite3.connect(folder / FILE, isolation_level=None, check_same_thread=False)
            # Survives a kill of the process without a wait for the disk; a power cut may undo the last moments.
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.executescript(_TABLES)
            known = self.fact("version")
            if known is None:
                self.set_fact("version", VERSION)
        except sqlite3.Error as error:
            self._held.close()
            raise BadInput(f"cannot use {str(folder / FILE)!r}: {error}") from error
        if known not in (None, VERSION):
            self.close()
            raise BadInput(f"{str(folder)!r} was written by another version: use another folder, or remove it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the use of the folder."""
        with self._lock:
            self._db.close()
            self._held.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything that is written inside is written at once, or not at all."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def _write(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._lock:
            self._db.executemany(sql, rows)

    # --- facts --------------------------------------------------------------------------------------------------------

    def fact(self, name: str) -> Any:
        """A value by its name; ``None`` if there is none."""
        found = self._all("SELECT value FROM fact WHERE name = ?", [name])
        return orjson.loads(found[0][0]) if found else None

    def set_fact(self, name: str, value: Any) -> None:
        """Keeps a value of JSON's types."""
        self._write("INSERT OR REPLACE INTO fact VALUES (?, ?)", [(name, orjson.dumps(value).decode())])

    def belong(self, logs: Iterable[str]) -> None:
        """Notes which logs the state is of.

        Raises:
            BadInput: it is of others.
        """
        names = sorted(logs)
        if self.fact("logs") not in (None, names):
            raise BadInput(f"{str(self.folder)!r} is the state of another watch: use another --state, or remove it")
        self.set_fact("logs", names)

    # --- positions ----------------------------------------------------------------------------------------------------

    def positions(self) -> list[Position]:
        """How far every log was read."""
        found = self._all("SELECT inode, head, at, tail, skipping, path, seen_us FROM position")
        return [
            Position(inode, head, at, tail, bool(skip), path, seen) for inode, head, at, tail, skip, path, seen in found
        ]

    def put_positions(self, positions: Iterable[Position]) -> None:
        """Keeps how far these logs were read."""
        self._write(
            "INSERT OR REPLACE INTO position VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(p.inode, p.head, p.at, p.tail, p.skipping, p.path, p.seen_us) for p in positions],
        )

    def forget_positions(self, files: Iterable[tuple[int, str]]) -> None:
        """Forgets logs that have gone: inode and hash of the first line of each."""
        self._write("DELETE FROM position WHERE inode = ? AND head = ?", files)

    # --- rows of the roll-up ------------------------------------------------------------------------------------------

    def add_rows(self, version: str, body: bytes) -> None:
        """Keeps some rows; version: of their shape."""
        self._write("INSERT INTO rows (version, body) VALUES (?, ?)", [(version, body)])

    def rows(self, version: str) -> Iterator[bytes]:
        """The rows of a version as they were added; those of others are left out."""
        for (name,) in self._all("SELECT id FROM rows WHERE version = ? ORDER BY id", [version]):
            yield self._all("SELECT body FROM rows WHERE id = ?", [name])[0][0]

    def clear_rows(self) -> None:
        """Forgets all rows."""
        self._write("DELETE FROM rows", [()])

    # --- incidents ----------------------------------------------------------------------------------------------------

    def incidents(self) -> dict[str, Any]:
        """What is known of each incident, by its id."""
        return {name: orjson.loads(body) for name, body in self._all("SELECT id, body FROM incident")}

    def put_incidents(self, incidents: Iterable[tuple[str, Any]]) -> None:
        """Keeps what is known of incidents: id, and values of JSON's types."""
        rows = [(name, orjson.dumps(body).decode()) for name, body in incidents]
        self._write("INSERT OR REPLACE INTO incident VALUES (?, ?)", rows)

    def forget_incidents(self, names: Iterable[str]) -> None:
        """Forgets incidents."""
        self._write("DELETE FROM incident WHERE id = ?", [(name,) for name in names])

    # --- outbox -------------------------------------------------------------------------------------------------------

    def post(self, receivers: Iterable[str], alerts: Sequence[tuple[str, Any]]) -> None:
        """Puts alerts in the outbox.

        Args:
            receivers: names of those who are to be told. alerts: key and values of JSON's types.
        """
        bodies = [(key, orjson.dumps(body).decode()) for key, body in alerts]
        rows = [(receiver, key, body) for receiver in receivers for key, body in bodies]
        self._write("INSERT INTO outbox (receiver, key, body) VALUES (?, ?, ?)", rows)

    def waiting(self, receiver: str, limit: int) -> list[tuple[int, str, Any]]:
        """The oldest of what a receiver has not got: number, key, alert."""
        found = self._all("SELECT id, key, body FROM outbox WHERE receiver = ? ORDER BY id LIMIT ?", [receiver, limit])
        return [(number, key, orjson.loads(body)) for number, key, body in found]

    def delivered(self, numbers: Iterable[int]) -> None:
        """Takes alerts out of the outbox."""
        self._write("DELETE FROM outbox WHERE id = ?", [(number,) for number in numbers])

    def undelivered(self) -> int:
        """How many alerts are in the outbox, counted once for each receiver."""
        return int(self._all("SELECT count(*) FROM outbox")[0][0])


def fingerprints(folder: Path) -> dict[str, str]:
    """Those of a state's incidents by their ids, also while another process uses it.

    Raises:
        BadInput: it cannot be read.
    """
    file = folder.absolute() / FILE
    if not file.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as db:
            return dict(db.execute("SELECT id, body ->> '$.incident.fingerprint' FROM incident").fetchall())
    except sqlite3.Error as error:
        raise BadInput(f"cannot read {str(file)!r}: {error}") from error


def _held(path: Path) -> IO[str]:
    """An open lock of a folder, which ends with the process that holds it."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise Busy(f"{str(path.parent)!r} is in use by another process") from None
    return file
