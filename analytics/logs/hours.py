"""Lines to one Parquet file per hour, with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from tricklecast.analytics.answers import Answer
from tricklecast.analytics.durations import DAY_US, HOUR_US
from tricklecast.analytics.normalise import answer_kind
from tricklecast.analytics.schema import CORRUPT
from tricklecast.analytics.sources.native import UNKNOWN_VERSION, WRONG_TYPE
from tricklecast.trickle.records import FIELD_NAMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE: Final = "lines.parquet"
"""One per hour: a new one takes the place of the old in one step."""

_PARTITION: Final = ("dt", "hr")


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the lines.

    Attributes:
        lines: records; rejected: lines that are none.
        hours: where each hour's new file is, by the hour's folder (``dt=2025-10-09/hr=08``).
        rejects: files with the lines that are no records.
    """

    lines: int
    rejected: int
    hours: Mapping[str, Path]
    rejects: tuple[Path, ...]


def write_hours(spark: SparkSession, lines: DataFrame, out: Path, work: Path, *, rejects: bool) -> Written:
    """Writes the lines to a file per hour, together with those that the hour has already.

    Args:
        lines: with the columns of :func:`analytics.schema.log_schema`.
        out: where the hours are; nothing is changed there. work: where the new files are written.
        rejects: keep the lines that are no records, too.
    """
    counts = Observation()
    broken = answer_kind() == Answer.UNPARSABLE.value
    counted = lines.withColumn("_broken", broken).observe(
        counts, F.count_if(~F.col("_broken")).alias("lines"), F.count_if("_broken").alias("rejected")
    )
    _write(_by_hour(counted.where("NOT _broken")), work / "new")
    found = _parts(work / "new")
    old = {hour: out / hour / FILE for hour in found if (out / hour / FILE).exists()}
    if old:
        both = [str(path) for hour in old for path in (found[hour], old[hour])]
        _write(_by_hour(spark.read.option("recursiveFileLookup", "true").parquet(*both)), work / "merged")
        found |= _parts(work / "merged")
    seen = counts.get
    rejected: tuple[Path, ...] = ()
    if rejects and seen["rejected"]:
        record = F.to_json(F.struct(*FIELD_NAMES))
        unsaid = F.col(CORRUPT).isNull() | F.col(CORRUPT).isin(UNKNOWN_VERSION, WRONG_TYPE)
        text = F.when(unsaid, record).otherwise(F.col(CORRUPT))
        lines.where(broken).select(text.alias("value")).write.text(str(work / "rejects"))
        rejected = tuple(sorted((work / "rejects").glob("part-*")))
    return Written(seen["lines"], seen["rejected"], found, rejected)


def _by_hour(lines: DataFrame) -> DataFrame:
    """In hours, UTC, whatever the session's time zone; each in one task, so that it becomes one file; in order."""
    ts = F.col("ts_us")
    day = F.date_from_unix_date(F.floor(ts / DAY_US).cast("int")).cast("string")
    hour = F.lpad(F.floor(F.pmod(ts, F.lit(DAY_US)) / HOUR_US).cast("string"), 2, "0")
    rows = lines.select(*FIELD_NAMES, day.alias("dt"), hour.alias("hr"))
    return rows.repartition(*_PARTITION).sortWithinPartitions(*_PARTITION, "ts_us")


def _write(lines: DataFrame, folder: Path) -> None:
    lines.write.partitionBy(*_PARTITION).option("compression", "zstd").parquet(str(folder))


def _parts(folder: Path) -> dict[str, Path]:
    return {str(path.parent.relative_to(folder)): path for path in folder.glob("dt=*/hr=*/part-*.parquet")}
