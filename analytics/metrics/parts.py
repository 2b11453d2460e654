"""Many small frames in one go: every action costs tenths of a second, however little it has to do."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]


def collect_parts(frames: Mapping[str, DataFrame]) -> dict[str, list[Row]]:
    """The rows of several frames with different columns, with one action.

    Args:
        frames: by name; each of a bounded number of rows.
    """
    parts = deque(_as_text(name, frame) for name, frame in frames.items())
    # Two by two: each union looks at everything below it once more.
    while len(parts) > 1:
        parts.append(parts.popleft().unionAll(parts.popleft()))
    rows = parts.pop().collect()
    found: dict[str, list[Row]] = {name: [] for name in frames}
    for row in rows:
        found[row["part"]].append(json.loads(row["row"]))
    return found


def literal_rows(spark: SparkSession, rows: Sequence[Row], fields: str) -> DataFrame:
    """Rows that are known here, as a frame.

    As JSON in the plan itself: ``createDataFrame`` would start Python on every executor to hand over a list.

    Args:
        fields: their names and types, as in SQL.
    """
    text = F.from_json(F.lit(json.dumps(rows)), f"array<struct<{fields}>>")
    return spark.range(0, 1, 1, 1).select(F.inline(text))


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """A frame that several others are made from: computed once, whichever of its columns they use."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _as_text(name: str, frame: DataFrame) -> DataFrame:
    # Rows of one type, whatever their columns; JSON is the only such text that Spark writes for nested values, too.
    # As one expression in SQL: column by column, building the plan would take longer than running it.
    return frame.selectExpr(f"'{name}' AS part", "to_json(struct(*), map('ignoreNullFields', 'false')) AS row")
