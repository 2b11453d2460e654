"""Repeats are told from what is right once per seq and reader, whatever the seqs and connections look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from analytics.params import StormParams
from analytics.repeats import connections, distinct_seqs, stretch_hits_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000
ALL = -1
"""A set of 64 bits that is full."""


def bits(*seqs: int) -> int:
    """The set of seqs as the roll-up keeps it, as a signed 64-bit integer."""
    mask = 0
    for seq in seqs:
        mask |= 1 << seq % 64
    return mask - (1 << 64) if mask >> 63 else mask


@pytest.mark.parametrize(("distinct", "low", "high"), [(1, 1, 1), (2, 1, 2), (20, 14, 26), (2000, 2000, 2000)])
def test_connections_are_estimated(spark: SparkSession, distinct: int, low: int, high: int) -> None:
    """One connection is told from two and from many; more than the sketch can hold count as one per request."""
    lines = spark.range(2000).selectExpr(f"shiftleft(1L, cast(pmod(hash(id % {distinct}), 64) AS int)) AS bit")
    counted = lines.selectExpr("bit_or(bit) AS conn_bits", "count(1) AS n")
    (row,) = counted.select(connections().alias("conns")).collect()
    assert low <= row["conns"] <= high


SEQS: dict[str, tuple[str, int, int | None, int | None, int | None, int]] = {
    "ten, each once": ("served", 10, 0, 9, bits(*range(10)), 10),
    "one, ten times": ("served", 10, 7, 7, bits(7), 1),
    "two in turn": ("served", 60, 5, 6, bits(5, 6), 2),
    "jumping back by ten": ("served", 60, 90, 109, bits(90, 100, 109), 3),
    "a hundred in a row": ("served", 100, 0, 99, ALL, 100),
    "a hundred in a row, and the last one again": ("served", 500, 0, 99, ALL, 100),
    "one again and again, and one far away": ("served", 400, 5, 1000, bits(5, 1000), 4),
    "two far apart": ("served", 2, 5, 1000, bits(5, 1000), 2),
    "seqs at the end of the grammar": ("served", 3, 0, 10**15 - 1, bits(0, 10**15 - 1), 3),
    "unknown seqs of segments": ("served", 10, None, None, None, 10),
    "unknown seqs of empty answers": ("zero_byte", 10, None, None, None, 1),
}


def test_distinct_seqs(spark: SparkSession) -> None:
    """Seqs near each other are counted exactly; else at least as many as there are."""
    schema = "name string, answer string, n long, seq_lo long, seq_hi long, seq_bits long"
    rows = spark.createDataFrame([(name, *case[:-1]) for name, case in SEQS.items()], schema)
    told = {row["name"]: row["seqs"] for row in rows.select("name", distinct_seqs().alias("seqs")).collect()}
    assert told == {name: case[-1] for name, case in SEQS.items()}


HITS: dict[str, tuple[str, int, int, int | None, float, float, int]] = {
    "each once": ("served", 10, 10, 1, 9, 9, 1),
    "one segment, ten times": ("served", 10, 1, 1, 1, 1, 10),
    "two readers behind one key": ("served", 20, 10, 0b11, 9, 9, 1),
    "about fifty readers behind one key": ("served", 1500, 30, (1 << 35) - 1, 59, 59, 0),
    "a crowd on one segment": ("served", 10, 1, ALL, 1, 1, 1),
    "that segment all the time": ("served", 10, 1, ALL, 10, 5, 10),
    "that segment in bursts far apart": ("served", 10, 1, ALL, 60, 6, 1),
    "a publisher's connections do not matter": ("post", 30, 10, ALL, 10, 10, 21),
    "failures count whatever they were about": ("not_found", 7, 0, ALL, 1, 1, 7),
}


def test_stretch_hits(spark: SparkSession) -> None:
    """What exceeds one request per seq and reader counts, with the request that it repeats."""
    schema = "name string, answer string, n long, seqs long, conn_bits long, last_us long, busy_s double, first_us long"
    rows: list[tuple[Any, ...]] = [
        (name, answer, n, seqs, conns, int(length * SECOND), float(busy), 0)
        for name, (answer, n, seqs, conns, length, busy, _) in HITS.items()
    ]
    judged = spark.createDataFrame(rows, schema).selectExpr("name", f"{stretch_hits_sql(StormParams())} AS hits")
    assert {row["name"]: row["hits"] for row in judged.collect()} == {name: case[-1] for name, case in HITS.items()}
