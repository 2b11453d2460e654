"""Hand-made logs as roll-ups."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.analytics.support.writer import write_lines
from tricklecast.analytics.normalise import normalise
from tricklecast.analytics.rollup import roll_up
from tricklecast.analytics.sources import read_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rolled_up(spark: SparkSession, lines: Iterable[str], folder: Path) -> DataFrame:
    """The roll-up of these lines, computed."""
    return planned(spark, lines, folder).localCheckpoint()


def planned(spark: SparkSession, lines: Iterable[str], folder: Path) -> DataFrame:
    """The roll-up of these lines, with the plan that leads to it."""
    return roll_up(normalise(read_lines(spark, [str(write_lines(folder / "access.jsonl", lines))])))
