"""Lines to normalised rows: the kind of answer of each line, its key and its measures (``normalise.sql``)."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

COLUMNS: Final[dict[str, str]] = {
    "ts_us": "BIGINT",
    "node": "VARCHAR",
    "kind": "VARCHAR",
    "event": "VARCHAR",
    "op": "VARCHAR",
    "method": "VARCHAR",
    "path": "VARCHAR",
    "status": "INTEGER",
    "grpc": "INTEGER",
    "channel": "VARCHAR",
    "epoch": "BIGINT",
    "seq": "BIGINT",
    "rseq": "BIGINT",
    "next_seq": "BIGINT",
    "reason": "VARCHAR",
    "bytes_in": "BIGINT",
    "bytes_out": "BIGINT",
    "wait_us": "BIGINT",
    "dur_us": "BIGINT",
    "eos": "BOOLEAN",
    "client": "VARCHAR",
    "conn": "BIGINT",
    "ip": "VARCHAR",
    "ua": "VARCHAR",
    "release": "VARCHAR",
    "attempt": "INTEGER",
    "retry_after_ms": "BIGINT",
    "guard_ms": "BIGINT",
    "request": "VARCHAR",
    "blind": "VARCHAR",
}
"""Columns of the view ``line`` with their types in DuckDB; a view that lacks one is read as if it were null."""

MAX_TS_US: Final = 4_102_444_800_000_000
"""2100-01-01, microseconds."""

AHEAD_US: Final = 600_000_000
"""A line that is later than now by more than this has a clock that is wrong. Microseconds."""


def normalise_sql(latest_us: int = MAX_TS_US) -> str:
    """The query over ``line``.

    Args:
        latest_us: an arrival after this moment is a clock that is wrong: the line is counted, and judged by no rule.
            Microseconds since the epoch.
    """
    return files(__package__).joinpath("normalise.sql").read_text().format(latest_us=latest_us)


def line_sql(source: str, present: set[str]) -> str:
    """Selects all of :data:`COLUMNS` from a relation that may lack some.

    Args:
        source: name of the relation. present: names of its columns.
    """
    columns = (name if name in present else f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    return f"SELECT {', '.join(columns)} FROM {source}"
