"""The streaming query: blocks of lines to changed rows of the roll-up, natively, with state, in update mode.

A row is kept in Spark's state by the time at which its lines were *read*, not by the time in them: a server whose clock
is a day ahead must not make the lines of all others too late to be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tricklecast.analytics.answers import CODES, ONCE_PER_SEQ, REPEATABLE, WATCHED, Answer, among
from tricklecast.analytics.normalise import normalise
from tricklecast.analytics.repeats import distinct_seqs, waited_sql
from tricklecast.analytics.rollup import roll_up
from tricklecast.analytics.schema import CORRUPT, log_schema
from tricklecast.analytics.watch_old.limits import WatchLimits
from tricklecast.analytics.watch_old.signals import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STREAMING: Final = {
    # A batch has few rows. One partition has one state to write down; a second one costs a quarter of the CPU time.
    "spark.sql.shuffle.partitions": "1",
    # Looking for new lines is waited for in the source, which answers as soon as there are some.
    "spark.sql.streaming.pollingDelay": "5ms",
    # Without lines there is nothing to judge: the command's own clock ends storms.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
}


def records(blocks: DataFrame) -> DataFrame:
    """Blocks of lines to records: the columns of :func:`analytics.schema.log_schema`, and ``read_us``."""
    lines = blocks.select(F.explode(F.split("block", "\n")).alias("line"), "read_us").where(F.trim("line") != "")
    parsing = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = lines.select(F.from_json("line", log_schema(), parsing).alias("record"), "read_us")
    # What is valid JSON but no object has no fields at all; as of anything else that is no record, it is counted.
    return parsed.select("record.*", "read_us")


def live_rollup(lines: DataFrame, limits: WatchLimits) -> DataFrame:
    """The roll-up of a stream, with ``window_us``: when the stretch of reading began that a row was added up in."""
    read = F.timestamp_micros(F.col("read_us"))
    stamped = lines.withColumn("read_at", read).withWatermark("read_at", "0 seconds")
    window = F.window("read_at", f"{limits.window_s} seconds")
    rows = normalise(stamped.withColumn("reading", window), keep=["reading"])
    rolled = roll_up(rows, also=["reading"])
    return rolled.withColumn("window_us", F.unix_micros(F.col("reading.start")))


def state_schema(spark: SparkSession) -> str:
    """What Spark's state is made of: a checkpoint with another cannot be gone on from."""
    nothing = spark.createDataFrame([], "block string, read_us long")
    columns = signals(live_rollup(records(nothing), WatchLimits())).schema.simpleString()
    # It is kept by their numbers.
    return f"{columns}, {' '.join(CODES)}"


def signals(rollup: DataFrame) -> DataFrame:
    """Of the rows that a batch changed, those that could be part of a storm, with the columns of a ``Signal``."""
    counted = rollup.withColumn("seqs", F.when(among(ONCE_PER_SEQ), distinct_seqs()).otherwise(0).cast("long"))
    counted = counted.withColumn("waited", F.expr(waited_sql()))
    known = F.coalesce("client", "net").isNotNull()
    # What is right once per seq is no signal, and healthy subscribers make nearly all of the rows.
    repeated = among(WATCHED) & known & (~among(REPEATABLE) | (F.col("n") > F.col("seqs")))
    telling = counted.where(repeated | among((Answer.EVENT, Answer.UNPARSABLE)))
    return telling.select(*COLUMNS)


def start(
    spark: SparkSession,
    blocks: DataFrame,
    judge: Callable[[DataFrame, int], None],
    checkpoint: Path,
    limits: WatchLimits,
) -> StreamingQuery:
    """Starts the query.

    Args:
        judge: gets the :func:`signals` of each batch and its number; the same batch again after a restart.
        checkpoint: folder for Spark's offsets and state.
    """
    for name, value in STREAMING.items():
        spark.conf.set(name, value)
    # What nobody asks of the roll-up is not computed: the selection is part of the query, rather than of each batch.
    changed = signals(live_rollup(records(blocks), limits))
    writer = changed.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="0 seconds").foreachBatch(judge).start()
