"""The roll-up: one ``GROUP BY`` over all lines. A row is what one client got of one kind in one bucket of time.

A bucket is a second; 10 s for posts and a minute for what is served and for all else. The table :data:`MEASURES` is
the only place that knows what is added up: the ``GROUP BY``, the merge of partial roll-ups and the schema's version
follow from it. Every measure's aggregate is also how two of its values are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KEY: Final = ("answer", "node", "channel", "client", "named", "event", "bucket_us")


@dataclass(frozen=True, slots=True)
class Measure:
    """One column of the roll-up.

    Attributes:
        name: of the column. way: the aggregate, of lines and of partial roll-ups.
        of: what it aggregates, SQL over ``normalise.sql``.
        type: of the result.
    """

    name: str
    way: Literal["sum", "min", "max", "bit_or"]
    of: str
    type: str = "BIGINT"


BITS: Final = 62
"""Bits of a set: a signed 64-bit integer holds them in both engines without an overflow."""


def _bit(value: str) -> str:
    return f"CAST(1 AS BIGINT) << CAST(({value}) % {BITS} AS INT)"


MEASURES: Final = (
    Measure("n", "sum", "1"),
    Measure("first_us", "min", "ts_us"),
    Measure("last_us", "max", "ts_us"),
    Measure("seq_lo", "min", "seq"),
    Measure("seq_hi", "max", "seq"),
    # One bit of 62 for each seq, and for each connection: a union says how many there were (linear counting).
    Measure("seq_bits", "bit_or", _bit("seq")),
    Measure("conn_bits", "bit_or", _bit("conn & 4611686018427387903")),
    Measure("head_lo", "min", "head"),
    Measure("head_hi", "max", "head"),
    # In which seconds of its minute something arrived.
    Measure("slots", "bit_or", _bit("ts_us // 1000000 % 60")),
    Measure("bytes_in", "sum", "bytes_in"),
    Measure("bytes_out", "sum", "bytes_out"),
    Measure("dur_us", "sum", "dur_us"),
    Measure("guard_ms", "sum", "guard_ms"),
    Measure("retry_after_ms", "max", "retry_after_ms"),
    Measure("retried", "sum", "retried"),
    Measure("closed", "sum", "closed"),
    # A request that waited for its segment asked for it for the first time.
    Measure("waited", "sum", "CASE WHEN wait_us >= 256000 THEN 1 ELSE 0 END"),
    Measure("kept", "sum", "kept"),
    Measure("kept_slow", "sum", "CASE WHEN kept = 1 AND wait_us >= 256000 THEN 1 ELSE 0 END"),
    Measure("status_lo", "min", "status"),
    Measure("status_hi", "max", "status"),
    Measure("reason", "max", "reason", "VARCHAR"),
    Measure("release_lo", "min", "release", "VARCHAR"),
    Measure("release_hi", "max", "release", "VARCHAR"),
    Measure("ua", "max", "ua", "VARCHAR"),
    Measure("request", "min", "request", "VARCHAR"),
    Measure("network", "min", "network", "VARCHAR"),
    Measure("blind", "max", "blind", "VARCHAR"),
)
"""All measures, in the order of the columns."""

VERSION: Final = sha256(repr((KEY, MEASURES, "grpc")).encode()).hexdigest()[:12]
"""Stored with a roll-up: one of another version cannot be merged and is made anew."""

FAST: Final = 3
"""Good answers to one client on one path in a second from which it may be a loop, if it asks for little else."""

_COLUMNS: Final = ", ".join((*KEY, *(one.name for one in MEASURES)))


def roll_up_sql(rows: str) -> str:
    """Adds up the rows of a relation with the columns of ``normalise.sql``.

    Most good answers of a web server (``fine``) say nothing about storms: they are added up per server and minute, as
    ``ok``. Two kinds are kept: ``again`` is what one client gets many times in a second and asks for little else, by
    the whole URL (a redirect may lead to another one, and each range of a file is another answer); ``cured`` says how
    often a client got a good answer on a path on which it also failed, under the name of that failure. A ``cured`` row
    is a copy: it counts in no sum of requests.
    """
    measures = ", ".join(f"CAST({one.way}({one.of}) AS {one.type}) AS {one.name}" for one in MEASURES)
    copied = _COLUMNS.replace("channel, client", "failed.channel, paths.client").replace("answer, ", "")
    of_all = "sum({}) OVER (PARTITION BY client, node, bucket_us)"
    alone = f"n >= {FAST} AND n >= 0.8 * {of_all.format('n')} AND coalesce(seq_lo = seq_hi, true)"
    redirects = of_all.format(f"CASE WHEN {_REDIRECT} THEN n ELSE 0 END")
    return f"""
WITH rolled AS MATERIALIZED (SELECT {", ".join(KEY)}, {measures} FROM {rows} GROUP BY {", ".join(KEY)}),
paths AS (
    SELECT *, left(channel, length(channel) - 4) AS bare,
        (left(channel, 4) = 'GET ' OR left(channel, 5) = 'HEAD ') AND status_lo <> 206 AND ({alone}
            OR {_REDIRECT} AND {redirects} >= greatest({FAST}, 0.8 * {of_all.format("n")})) AS again
    FROM rolled WHERE answer IN ('fine', 'web', 'overload', 'server_error')
),
failed AS (
    SELECT DISTINCT client, channel, bare FROM paths WHERE answer <> 'fine' AND instr(channel, ' /') > 0
)
SELECT {_COLUMNS} FROM rolled WHERE answer <> 'fine'
UNION ALL
SELECT {_COLUMNS.replace("answer", "'again' AS answer", 1)} FROM paths WHERE again AND answer = 'fine'
UNION ALL
SELECT 'cured', {copied} FROM paths JOIN failed ON failed.client = paths.client AND failed.bare = paths.bare
WHERE answer = 'fine'
UNION ALL
SELECT 'ok', node, NULL, NULL, false, NULL, bucket_us - bucket_us % 60000000, {merged_measures()}
FROM paths WHERE NOT again AND answer = 'fine' GROUP BY node, bucket_us - bucket_us % 60000000"""


_REDIRECT: Final = "(status_lo BETWEEN 300 AND 399 AND status_lo <> 304)"


def merge_sql(rollups: str) -> str:
    """Adds up the rows of several roll-ups."""
    return f"SELECT {', '.join(KEY)}, {merged_measures()} FROM {rollups} GROUP BY {', '.join(KEY)}"


def merged_measures() -> str:
    """The columns of :data:`MEASURES`, each added up over rows of a roll-up."""
    return ", ".join(f"CAST({one.way}({one.name}) AS {one.type}) AS {one.name}" for one in MEASURES)


SKETCH: Final = 256
"""Ids of requests that are kept of a log: those with the smallest hashes. Two logs that share many of their ids share
some of these."""

IDS: Final = """SELECT DISTINCT md5_number_lower(request) AS id FROM parsed_line
    WHERE bad IS NULL AND request IS NOT NULL"""
"""Hashes of ids, the same in every version of DuckDB."""


def sketch_of(connection: DuckDBPyConnection, ids: str = IDS) -> tuple[int, ...]:
    """The smallest of some hashes of ids."""
    return tuple(row[0] for row in connection.execute(f"SELECT id FROM ({ids}) ORDER BY id LIMIT {SKETCH}").fetchall())
