"""Many small frames in one go: every action costs tenths of a second, however little it has to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Row = dict[str, Any]


def collect_parts(frames: Mapping[str, DataFrame]) -> dict[str, list[Row]]:
    """The rows of several frames with different columns, with one action.

    Args:
        frames: by name; each of a bounded number of rows.
    """
    parts = [_as_text(name, frame) for name, frame in frames.items()]
    rows = reduce(lambda left, right: left.unionAll(right), parts).collect()
    found: dict[str, list[Row]] = {name: [] for name in frames}
    for row in rows:
        found[row["part"]].append(json.loads(row["row"]))
    return found


def _as_text(name: str, frame: DataFrame) -> DataFrame:
    # Rows of one type, whatever their columns; JSON is the only such text that Spark writes for nested values, too.
    row = F.to_json(F.struct(*(F.col(column) for column in frame.columns)), {"ignoreNullFields": "false"})
    return frame.select(F.lit(name).alias("part"), row.alias("row"))
