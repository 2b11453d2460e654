"""Many small frames in one go: every action costs tenths of a second, however little it has to do."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
