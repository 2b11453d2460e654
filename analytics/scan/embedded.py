"""DuckDB reads lines, adds them up and reduces them: for a file on a laptop and for the live watch, without Java.

A log may be larger than the memory. Its lines come in blocks, and DuckDB holds them, and whatever it makes of them, in
:data:`MEMORY` bytes; the rest goes to files in a temporary folder, and comes back when it is needed. So one pass over
the log is enough, requests that stand in several files are told exactly, and a log that fits never touches the disk.
The folder goes with the process. One that was killed leaves it, unlocked, and the next run removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tricklecast.analytics.scan.normalise import MAX_TS_US, line_sql, normalise_sql
from tricklecast.analytics.scan.reduce import QUERIES
from tricklecast.analytics.scan.rollup import roll_up_sql

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    from duckdb import DuckDBPyConnection


SMALL: Final = 1 << 20
"""Bytes of logs below which more than one thread costs a fifth more CPU and saves no time, and DuckDB's optimizer takes
longer than what it saves."""


MEMORY: Final = 640 << 20
"""Bytes that DuckDB holds in memory. With Python, Arrow and the blocks that are read, a process stays below 1 GiB."""

LEAST_MEMORY: Final = 256 << 20
"""Bytes with which DuckDB can still do it, where the machine has less to give."""

HELD: Final = 4
"""Bytes of memory and disk that a byte of log takes at most; 3.5 were measured with nginx's short lines."""

LEAST_HELD: Final = 1
"""And at least; 0.9 were measured with our own long ones."""

FOLDER: Final = "tricklecast-duckdb-"
"""The beginning of the name of a folder with what did not fit into memory."""


def connect(size: int | None = None) -> DuckDBPyConnection:
    """A database in memory that nobody else shares.

    Args:
        size: bytes of the logs that it reads; one thread reads few of them, without the optimizer. ``None``: many.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
    if size is not None and size < SMALL:
        connection.execute("SET threads = 1")
        connection.execute("PRAGMA disable_optimizer")
    connection.execute("SET preserve_insertion_order = false")
    return connection


class Feed:
    """A table of DuckDB's that is other batches each time it is read: what reads it stays prepared."""

    def __init__(self, schema: pa.Schema) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._schema = schema

    def __arrow_c_schema__(self) -> Any:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._schema, self.batches).__arrow_c_stream__(requested_schema)


def int64s(values: Sequence[int]) -> pa.Array:
    """Numbers as an array of Arrow's, which would import pandas to make one of a list: half a second, and 40 MB."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values))])


@contextmanager
def bounded(size: int | None = None, memory: int | None = None) -> Iterator[DuckDBPyConnection]:
    """The same for logs of any size: what does not fit into memory goes to a temporary folder, as long as it is open.

    Args:
        memory: bytes that it holds; ``None`` for :data:`MEMORY`, or half of what the machine has left.
    """
    if size is not None and size < SMALL:
        with connect(size) as connection:
            yield connection
        return
    memory = memory or max(LEAST_MEMORY, min(MEMORY, free_memory() // 2))
    with _folder() as folder, connect(size) as connection:
        connection.execute(f"SET memory_limit = '{memory // 1024}KiB'")
        connection.execute(f"SET temp_directory = '{folder.replace(chr(39), chr(39) * 2)}'")
        yield connection


@contextmanager
def _folder() -> Iterator[str]:
    """A temporary folder that this process has locked; those of processes that were killed are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    named = Path(tempfile.gettempdir(), FOLDER + secrets.token_hex(8))
    folder = hidden = named.with_name(f".{named.name}")
    try:  # Ctrl-C may come at any line: both names are known before there is a folder
        hidden.mkdir(0o700)
        with ExitStack() as held:
            # Where nothing can be locked, as in some network folders, it keeps the name that no other run looks for.
            with suppress(OSError):
                held.enter_context(_locked(hidden))
                folder = hidden.rename(named)
            yield str(folder)
    finally:
        for left in (hidden, named):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds a folder.

    Raises:
        OSError: somebody else does, or it is not ours.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def free_memory() -> int:
    """Bytes of memory that this process may still take."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    with suppress(OSError, ValueError):  # "max" where a container has no limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        found = min(found, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return found


def missing_room(size: int, *, least: bool = False) -> int:
    """Bytes that the disk with temporary files lacks for logs of a size; 0 or less if they fit.

    Args:
        least: what they take at least, in place of at most.
    """
    held = LEAST_HELD if least else HELD
    return held * size - MEMORY - shutil.disk_usage(tempfile.gettempdir()).free


def any_server(connection: DuckDBPyConnection) -> str:
    """Makes a view of ``line`` in which all lines are those of any web server; returns its name."""
    connection.execute("""CREATE OR REPLACE TEMP VIEW line_generic AS
        SELECT * REPLACE (NULL::VARCHAR AS op, NULL::VARCHAR AS channel) FROM line""")
    return "line_generic"


def roll_up(connection: DuckDBPyConnection, line: str = "line", *, latest_us: int = MAX_TS_US) -> None:
    """Makes the table ``rollup`` of a relation of lines.

    Args:
        line: the relation; columns that it lacks are null.
        latest_us: the last moment at which a line can have arrived (:func:`~analytics.scan.normalise.normalise_sql`).
    """
    present = {row[0] for row in connection.execute(f"DESCRIBE {line}").fetchall()}
    rows = normalise_sql(latest_us).replace("FROM line\n", f"FROM ({line_sql(line, present)}) line\n")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE rollup AS {roll_up_sql(f'({rows}) rows_')}")


def reduce(connection: DuckDBPyConnection) -> None:
    """Makes the tables of :data:`~analytics.scan.reduce.QUERIES` of the table ``rollup``."""
    for name, query in QUERIES.items():
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")
