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


GRPC: Final = {
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
"""gRPC's statuses from 1 on, and the HTTP status that says the same: a call that fails has 200 on the wire."""


NETWORK: Final = """CASE
                WHEN ip LIKE '%.%' THEN split_part(split_part(ip, ':', -1), '.', 1) || '.'
                    || split_part(ip, '.', 2) || '.' || split_part(ip, '.', 3) || '.0/24'
                WHEN ip LIKE '%:%' THEN rtrim(split_part(split_part(ip, '::', 1), ':', 1) || ':'
                    || split_part(split_part(ip, '::', 1), ':', 2) || ':'
                    || split_part(split_part(ip, '::', 1), ':', 3), ':') || '::/48'
            END"""
"""SQL for the network of an address: ``192.0.2.0/24`` or ``2001:db8:7::/48``."""


def normalise_sql(latest_us: int = MAX_TS_US, more: str = "") -> str:
    """The query over ``line``.

    Args:
        more: further columns of the lines, each with a comma before it.
        latest_us: an arrival after this moment is a clock that is wrong: the line is counted, and judged by no rule.
            Microseconds since the epoch.
    """
    statuses, names = list(GRPC.values()), [f"grpc:{name}" for name in GRPC]
    query = files(__package__).joinpath("normalise.sql").read_text()
    return query.format(latest_us=latest_us, network=NETWORK, more=more, grpc_statuses=statuses, grpc_names=names)


def line_sql(source: str, present: set[str]) -> str:
    """Selects all of :data:`COLUMNS` from a relation that may lack some.

    Args:
        source: name of the relation. present: names of its columns.
    """
    columns = (name if name in present else f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    return f"SELECT {', '.join(columns)} FROM {source}"
