"""DuckDB reads lines, adds them up and reduces them: for a file on a laptop and for the live watch, without Java."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.scan.normalise import COLUMNS, MAX_TS_US, line_sql, normalise_sql
from tricklecast.analytics.scan.reduce import QUERIES
from tricklecast.analytics.scan.rollup import roll_up_sql

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


SMALL: Final = 1 << 20
"""Bytes of logs below which more than one thread costs a fifth more CPU and saves no time."""


def connect(size: int | None = None) -> DuckDBPyConnection:
    """A database in memory that nobody else shares.

    Args:
        size: bytes of the logs that it reads; one thread reads few of them. ``None``: many.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
    if size is not None and size < SMALL:
        connection.execute("SET threads = 1")
    connection.execute("SET preserve_insertion_order = false")
    return connection


def read_jsonl(connection: DuckDBPyConnection, paths: Sequence[Path]) -> None:
    """Makes the view ``line`` of our own access logs; what is no record is a row of nulls.

    Args:
        paths: files of JSON lines, plain or compressed.
    """
    shape = ", ".join(f"'{name}': '{kind}'" for name, kind in COLUMNS.items() if name not in ("request", "blind"))
    names = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    read = f"read_json([{names}], format = 'newline_delimited', columns = {{{shape}}}, ignore_errors = true)"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW line AS SELECT *, '' AS blind FROM {read}")


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
