"""Lines that are there twice are counted once, and said; lines that only look alike are left alone."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.duplicates import suspected, traces_in
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import counted, rolled_up
from tricklecast.analytics.rollup import BITS
from tricklecast.trickle.records import Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def written() -> list[str]:
    """A healthy reader, and a storm."""
    log = LogWriter("n1", random.Random(1))
    for seq in range(300):
        log.served(seq * 0.5, "reader", "film", seq, wait_us=400 + seq)
    for turn in range(200):
        log.not_found(20 + turn * 0.05, "loop", "gone", dur_us=700 + turn % 7)
    log.event(1.0, Event.CHANNEL_CREATE, "film")
    return log.lines()


def counted_once(spark: SparkSession, folder: Path) -> tuple[int, list[str]]:
    """How many lines of these logs were there already, and what the roll-up of the others says."""
    files = find_logs([str(folder)])
    again = partial(rolled_up, spark, files, each_once=True)
    with counted(rolled_up(spark, files), files, again=again) as found:
        return found.duplicates, sorted(map(repr, found.rollup.select(*sorted(found.rollup.columns)).collect()))


def test_shipped_twice(spark: SparkSession, tmp_path: Path) -> None:
    """With a stretch of the log there twice, in a file of its own, the roll-up is that of the lines once."""
    lines = written()
    write_lines(tmp_path / "a.jsonl", lines)
    nothing, whole = counted_once(spark, tmp_path)
    write_lines(tmp_path / "b.jsonl", lines[100:300])
    assert nothing == 0
    assert counted_once(spark, tmp_path) == (200, whole)


def test_a_single_line_twice(spark: SparkSession, tmp_path: Path) -> None:
    """In a log that can be looked through in no time, even one line more is found; in Parquet it is not looked for."""
    lines = written()
    write_lines(tmp_path / "a.jsonl", [*lines, lines[7]])
    assert counted_once(spark, tmp_path)[0] == 1


def test_three_lines_that_look_like_one_by_chance(spark: SparkSession) -> None:
    """Of thousands of threes, the ids of a few fall into one of 64 bits: no reason to read the log once more."""
    bits = f"bit_or(shiftleft(1L, cast(id & {BITS - 1} AS int))) AS id_bits"
    lines = spark.range(90_000).selectExpr("id DIV 3 AS row", "xxhash64(id) AS id")
    sums = ("count(*) AS n", "bit_xor(id) AS id_xor", bits, "1L AS conn_bits")
    found = traces_in(lines.groupBy("row").agg(*map(F.expr, sums)))
    assert found.piled > 0
    assert not suspected(found)


def test_one_line_three_times(spark: SparkSession, tmp_path: Path) -> None:
    """Copies that do not cancel each other out are suspected where they are more than chance makes of other lines."""
    log = LogWriter("n1", random.Random(1))
    for turn in range(40):
        log.not_found(turn * 20, "client", "gone")
    write_lines(tmp_path / "a.jsonl", log.lines() * 3)
    found = traces_in(rolled_up(spark, find_logs([str(tmp_path)])))
    assert (found.certain, found.piled) == (0, 40)
    assert suspected(found)


def test_what_only_looks_alike(spark: SparkSession, tmp_path: Path) -> None:
    """Requests in the same microsecond, pipelined ones, equal events and lines without a connection are no copies."""
    log = LogWriter("n1", random.Random(1))
    for turn in range(50):
        for number in range(4):
            log.not_found(turn * 0.1, "loop", "gone", turn, dur_us=500 + number)
        log.served(turn * 0.1, "coarse", "film", 7, conn=None)
        log.served(turn * 0.1, "coarse", "film", 7, conn=None)
        log.event(turn * 0.1, Event.CHANNEL_CREATE, "film")
        log.event(turn * 0.1, Event.CHANNEL_CREATE, "film")
    write_lines(tmp_path / "a.jsonl", log.lines())
    assert not suspected(traces_in(rolled_up(spark, find_logs([str(tmp_path)]))))
