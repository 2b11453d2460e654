"""Repeats are told from what is right once per seq and reader, whatever the seqs and connections look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tricklecast.analytics.params import StormParams
from tricklecast.analytics.repeats import connections, distinct_seqs, is_own_name, own_name_sql, stretch_hits_sql

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

NAMELESS = "0123456789abcdef"
STRETCH = (
    "name string, answer string, n long, seqs long, conn_bits long, last_us long, busy_s double, first_us long,"
    "client string, named boolean, peak_rps double, waited long"
)


def hits_of(spark: SparkSession, rows: list[tuple[Any, ...]]) -> dict[str, int]:
    """What counts of each stretch, by name."""
    stretches = spark.createDataFrame(rows, STRETCH).selectExpr("*", "(last_us - first_us) / 1e6 AS own_s")
    judged = stretches.selectExpr("name", f"{stretch_hits_sql(StormParams())} AS hits")
    return {row["name"]: row["hits"] for row in judged.collect()}


def test_stretch_hits(spark: SparkSession) -> None:
    """What exceeds one request per seq and reader counts, with the request that it repeats."""
    rows: list[tuple[Any, ...]] = [
        (name, answer, n, seqs, conns, int(length * SECOND), float(busy), 0, NAMELESS, True, 1.0, 0)
        for name, (answer, n, seqs, conns, length, busy, _) in HITS.items()
    ]
    assert hits_of(spark, rows) == {name: case[-1] for name, case in HITS.items()}


NAMED: dict[str, tuple[int, int, float, float, int, str, int]] = {
    "a loop over many connections": (60, 1, 3.0, 20.0, 0, "player-7", 60),
    "without a name it may be a crowd": (60, 1, 3.0, 20.0, 0, NAMELESS, 1),
    "an address is no name": (60, 1, 3.0, 20.0, 0, "2001:db8::7#00c0ffee", 1),
    "an address and a user agent are no name": (60, 1, 3.0, 20.0, 0, "192.0.2.7#00c0ffee", 1),
    "a crowd's rush is short": (60, 1, 1.5, 40.0, 0, "app", 1),
    "some of a crowd are late": (60, 1, 5.0, 57.0, 0, "app", 1),
    "a crowd on three segments in a row": (180, 3, 5.0, 60.0, 180, "app", 0),
    "one waits for its segments, and then repeats the last": (140, 60, 59.0, 40.0, 60, "player-7", 81),
    "a crowd waits for its segments": (2400, 60, 59.0, 40.0, 2200, "app", 0),
    "a crowd that gets old segments": (1200, 60, 59.0, 40.0, 0, "app", 0),
}


def test_names_tell_what_connections_cannot(spark: SparkSession) -> None:
    """Of forty connections that may be a proxy's, one client that names itself is told from a crowd."""
    rows: list[tuple[Any, ...]] = [
        (name, "served", n, seqs, (1 << 31) - 1, int(length * SECOND), length, 0, client, True, peak, waited)
        for name, (n, seqs, length, peak, waited, client, _) in NAMED.items()
    ]
    assert hits_of(spark, rows) == {name: case[-1] for name, case in NAMED.items()}


SHARING: dict[str, tuple[int, int, int, int, int]] = {
    "two readers that share a bit": (200, 100, 0b1, 200, 1),
    "four readers of which two share a bit": (400, 100, 0b111, 400, 1),
    "one reader and its repeats": (200, 100, 0b1, 100, 101),
    "a slow server makes its client wait as well": (500, 20, 0b1, 500, 441),
}


def test_who_waits_asks_for_the_first_time(spark: SparkSession) -> None:
    """Readers whose connections share a bit of 64 are known by their waiting for each segment."""
    rows: list[tuple[Any, ...]] = [
        (name, "served", n, seqs, bits, 99 * SECOND, 99.0, 0, NAMELESS, True, 1.0, waited)
        for name, (n, seqs, bits, waited, _) in SHARING.items()
    ]
    assert hits_of(spark, rows) == {name: case[-1] for name, case in SHARING.items()}


@pytest.mark.parametrize(
    ("client", "own"),
    [
        ("player-7", True),
        ("5f0a66d3-9a49-4dd3-8c3b-3f3b7c3b8d11", True),
        ("studio.example", True),
        (NAMELESS, False),
        (NAMELESS + "0", True),
        ("192.0.2.7", False),
        ("192.0.2.7#00c0ffee", False),
        ("2001:db8::7", False),
        ("::1+agent", False),
    ],
)
def test_own_names(client: str, own: bool, spark: SparkSession) -> None:
    """What a client calls itself is told from what a server or a proxy's log makes of its address; both ways of asking
    agree."""
    frame = spark.createDataFrame([(client, True), (client, False)], "client string, named boolean")
    told = [row["own"] for row in frame.selectExpr(f"{own_name_sql()} AS own").collect()]
    assert told == [own, False]
    assert is_own_name(client) is own
