"""The same plan in DuckDB, on the same files: lines, roll-up, islands. What one machine could do without Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.answers import GRAINS, REPEATABLE, WATCHED, Answer
from tricklecast.analytics.durations import micros
from tricklecast.analytics.params import StormParams
from tricklecast.trickle.records import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duckdb import DuckDBPyConnection

_TYPES: Final = {"int": "INTEGER", "long": "BIGINT", "string": "VARCHAR", "boolean": "BOOLEAN"}

_ANSWER: Final = f"""CASE WHEN kind = 'event' THEN '{Answer.EVENT}' WHEN status IN (429, 503) THEN '{Answer.OVERLOAD}'
    WHEN status >= 500 THEN '{Answer.SERVER_ERROR}' WHEN status = 404 THEN '{Answer.NOT_FOUND}'
    WHEN status = 470 THEN '{Answer.SEQ_MISSING}' WHEN op = 'publish' THEN '{Answer.POST}'
    WHEN op = 'read' AND status = 200 AND bytes_out > 0 THEN '{Answer.SERVED}'
    WHEN op = 'read' AND status = 200 AND eos THEN '{Answer.ENDED}'
    WHEN op = 'read' AND status = 200 THEN '{Answer.ZERO_BYTE}' ELSE '{Answer.OK}' END"""

_KEY: Final = "answer, node, channel, release, client, net, event, bucket_us"


@dataclass(frozen=True, slots=True)
class Compared:
    """What DuckDB took.

    Attributes:
        rollup_s, rest_s: the roll-up, and the islands with their thresholds; seconds.
        rows: of the roll-up; storms: islands above a threshold.
    """

    rollup_s: float
    rest_s: float
    rows: int
    storms: int


def compare(folder: Path, *, threads: int) -> Compared:
    """Rolls up a log and finds its islands.

    Args:
        folder: as :func:`benchmarks.storm.made.make` wrote it.
        threads: on how many cores.
    """
    import duckdb

    with duckdb.connect(config={"threads": threads}) as connection:
        begun = time.perf_counter()
        connection.execute(f"CREATE TEMP TABLE rollup AS {_rollup(_lines(folder))}")
        rolled = time.perf_counter()
        storms = _one(connection, _storms())
        done = time.perf_counter()
        return Compared(rolled - begun, done - rolled, _one(connection, "SELECT count(*) FROM rollup"), storms)


def _one(connection: DuckDBPyConnection, query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _lines(folder: Path) -> str:
    if folder.name.endswith("parquet"):
        return f"read_parquet('{folder}/*.parquet')"
    columns = ", ".join(f"{name}: '{_TYPES[kind]}'" for name, kind in SCHEMA)
    return f"read_json('{folder}/*.jsonl', format = 'newline_delimited', columns = {{{columns}}})"


def _rollup(lines: str) -> str:
    widths = " ".join(f"WHEN '{answer}' THEN {micros(grain.bucket_s)}" for answer, grain in GRAINS.items())
    by_client = _quoted(answer for answer, grain in GRAINS.items() if grain.by_client)
    return f"""
    SELECT {_KEY}, count(*) AS n, min(ts_us) AS first_us, max(ts_us) AS last_us, min(seq_of) AS seq_lo,
        max(seq_of) AS seq_hi, bit_or(1::UBIGINT << (greatest(seq_of, 0) % 64)) AS seq_bits, min(next_seq) AS head_lo,
        max(next_seq) AS head_hi, bit_or(1::UBIGINT << (hash(conn) % 64)) AS conn_bits,
        bit_or(1::UBIGINT << ((ts_us - bucket_us) * 64 // width)) AS slots, sum(bytes_in) AS bytes_in,
        sum(bytes_out) AS bytes_out, sum(wait_us) AS wait_us, sum(dur_us) AS dur_us,
        max(retry_after_ms) AS retry_after_ms, sum(guard_ms) AS guard_ms, count(*) FILTER (attempt > 1) AS retried,
        count(*) FILTER (owner IS NULL) AS anonymous
    FROM (SELECT *, ts_us - ts_us % width AS bucket_us, coalesce(rseq, seq) AS seq_of, owner_of AS client
        FROM (SELECT * EXCLUDE (client), client AS owner, {_ANSWER} AS answer,
                CASE WHEN answer IN ({by_client}) THEN client END AS owner_of,
                CASE WHEN status >= 400 THEN regexp_extract(ip, '^\\d+\\.\\d+\\.\\d+') END AS net,
                CASE answer {widths} END AS width
            FROM {lines}))
    GROUP BY ALL"""


def _storms() -> str:
    """How many islands are above a threshold."""
    params = StormParams()
    hits = f"CASE WHEN answer IN ({_quoted(REPEATABLE)}) THEN n - bit_count(seq_bits) ELSE n END"
    return f"""
    WITH signals AS (SELECT *, {hits} AS hits FROM rollup
            WHERE answer IN ({_quoted(WATCHED)}) AND client IS NOT NULL AND ({hits}) > 0),
        started AS (SELECT *, first_us - lag(last_us) OVER w > {micros(params.gap_s)} AS starts FROM signals
            WINDOW w AS (PARTITION BY answer, client, channel, node ORDER BY bucket_us)),
        numbered AS (SELECT *, sum(coalesce(starts, true)::INTEGER) OVER w AS island FROM started
            WINDOW w AS (PARTITION BY answer, client, channel, node ORDER BY bucket_us)),
        islands AS (SELECT answer, client, channel, node, sum(hits) AS hits,
                (max(last_us) - min(first_us)) / 1e6 AS seconds
            FROM numbered GROUP BY answer, client, channel, node, island)
    SELECT count(*) FROM islands WHERE hits >= {params.warn_hits_alone}
        OR hits >= {params.warn_hits} AND hits / greatest(1, seconds) >= {params.warn_rps}"""


def _quoted(answers: Iterable[Answer]) -> str:
    return ", ".join(f"'{answer}'" for answer in answers)
