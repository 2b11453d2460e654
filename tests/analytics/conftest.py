"""What all tests of the package share: one Spark session, which takes longer to start than most of them to run."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.analytics.plans import Plan, watched
from tests.analytics.support.chaos import write_chaos
from tests.analytics.support.scenarios import Truth, write_all
from tests.analytics.support.scenes import Story, write_scenes
from tests.analytics.support.writer import LogWriter, write_lines
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import make_report
from tricklecast.analytics.sources import read_logs
from tricklecast.analytics.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tricklecast.analytics.report_old.model import Report


BEHIND_A_PROXY = Path(__file__).parent / "sources" / "data" / "behind-nginx.jsonl.gz"
"""Recorded at a server behind nginx (``sources/test_recorded.py``)."""


QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Plans are run as they are, and nothing notes from which line of Python each part of them comes: compiling plans and
taking notes would be a third of what these tests cost."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session, configured as the command configures it, but for what :data:`QUICK` changes."""
    with spark_session(small=True, conf=QUICK) as session:
        yield session


@pytest.fixture
def log() -> LogWriter:
    """The log of one node, empty."""
    return LogWriter("n1", random.Random(1))


@dataclass(frozen=True, slots=True)
class Known:
    """One log of every storm and look-alike that we know, and the one report on it that many tests look at.

    Attributes:
        truths, scenes: what is true of each node. logs: all its lines, as JSON. lines: how many.
        report: on half of it as JSON and half as Parquet.
        plans: of the report's queries. stages: how many records each stage of them took in.
    """

    truths: dict[str, list[Truth]]
    scenes: dict[str, list[Story]]
    logs: list[Path]
    lines: int
    report: Report
    plans: list[Plan]
    stages: list[int]


@pytest.fixture(scope="session")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Besides storms and look-alikes: a log from behind a proxy, some servers with traffic that nobody would have
    thought of, and some broken lines."""
    lines, truths = write_all(20_251_009)
    more, scenes = write_scenes(4)
    one = next(line for line in lines if '"status":404' in line)
    broken = ["{", "words", '{"ts_us":"now"}', one.replace('"v":1', '"v":7'), one.replace('"ts_us":1', '"ts_us":-1')]
    lines = [*broken, *lines, *more, *write_chaos(1, servers=8)]
    folder, half = tmp_path_factory.mktemp("known"), len(lines) // 2
    logs = [
        write_lines(folder / "first.jsonl", lines[:half]),
        write_lines(folder / "second.jsonl", lines[half:]),
    ]
    proxied = gzip.decompress(BEHIND_A_PROXY.read_bytes()).decode().splitlines()
    logs.append(write_lines(folder / "third.jsonl", proxied))
    second = read_logs(spark, find_logs([str(logs[1])])).drop("_corrupt_record")
    second.coalesce(1).write.parquet(str(folder / "second"))
    reports: list[Report] = []
    files = find_logs([str(logs[0]), str(folder / "second"), str(logs[2])])
    plans, stages = watched(spark, lambda: reports.append(make_report(spark, files)))
    return Known(truths, scenes, logs, len(lines) + len(proxied), reports[0], plans, stages)
