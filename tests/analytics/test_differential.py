"""Spark and DuckDB, each in its own way, find the same storms and count the same lines."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analytics.conftest import Known
from tests.analytics.oracle import ask
from tests.analytics.oracle.murmur import bit_of_number, bit_of_text
from tests.analytics.support.chaos import write_chaos
from tests.analytics.support.guarded import guarded
from tests.analytics.support.writer import write_lines
from tricklecast.analytics.inputs import find_logs
from tricklecast.analytics.job import make_report
from tricklecast.analytics.report_old.json_report import as_dict
from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.evaluate import simulated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tricklecast.analytics.report_old.model import Report

Told = dict[str, Any]

EPISODE = (
    "class",
    "severity",
    "start_us",
    "end_us",
    "n",
    "hits",
    "clients",
    "n_clients",
    "channels",
    "n_channels",
    "node",
    "release",
    "seq_lo",
    "seq_hi",
    "peak_rps",
    "trigger",
)
TOTALS = ("requests", "bytes_in", "bytes_out", "handler_s", "nodes", "by_answer")
QUALITY = ("lines", "events", "unparsable", "anonymous")


def differences(report: Report, logs: list[Path]) -> list[str]:
    """What only one of the two says: ``-`` the oracle, ``+`` the report."""
    told = as_dict(report)
    expected = ask(logs)
    figures = {name: told["totals"][name] for name in TOTALS} | {name: told["quality"][name] for name in QUALITY}
    figures |= told["window"]
    ours = [*map(line, told["episodes"]), *(f"{name}: {value}" for name, value in figures.items())]
    theirs = [*map(line, expected.episodes), *(f"{name}: {value}" for name, value in expected.totals.items())]
    only_theirs, only_ours = ({*theirs} - {*ours}, {*ours} - {*theirs})
    return sorted([*(f"- {text}" for text in only_theirs), *(f"+ {text}" for text in only_ours)], key=lambda x: x[2:])


def line(episode: Told) -> str:
    """An episode as text, the place first."""
    shown = {name: episode[name] for name in EPISODE}
    return json.dumps([shown["node"], shown["class"], shown], sort_keys=True)


def simulated_lines(folder: Path, kind: Set, seed: int) -> list[str]:
    """A simulated fleet's log, with the folder's name in those of its nodes."""
    simulated(folder, seed, kind, 15_000)
    text = "".join(path.read_text() for path in sorted(folder.glob("*.jsonl")))
    return text.replace('"node":"', f'"node":"{folder.name}-').splitlines()


def test_what_is_known(known: Known) -> None:
    """On every storm and look-alike that we know, on some traffic that nobody would have thought of, and with broken
    lines among them."""
    assert differences(known.report, known.logs) == []


@pytest.mark.long
def test_episodes_and_totals(spark: SparkSession, tmp_path: Path) -> None:
    """On simulated fleets with clear storms and with such that are hardly any, with the storm guard on, on more traffic
    that nobody would have thought of."""
    logs = {
        "standard": simulated_lines(tmp_path / "standard", Set.STANDARD, 21),
        "grey": simulated_lines(tmp_path / "grey", Set.GREY, 22),
        "guarded": guarded(simulated_lines(tmp_path / "guarded", Set.STANDARD, 23)).lines,
        "chaos": write_chaos(1, servers=40),
    }
    paths = [write_lines(tmp_path / f"{name}.jsonl", lines) for name, lines in logs.items()]
    assert differences(make_report(spark, find_logs([str(path) for path in paths])), paths) == []


def test_the_oracle_hashes_as_spark_does(spark: SparkSession) -> None:
    """Both choose the same bit for a connection and for a node."""
    rng = random.Random(4)
    numbers = [0, -1, 1, (1 << 63) - 1, -(1 << 63), *(rng.randrange(1 << 40) for _ in range(50))]
    texts = ["", "a", "node-1", "é", "日本語x", "\U0001f600", *("x" * size for size in range(2, 12))]
    frame = spark.createDataFrame(
        [(number, None) for number in numbers] + [(None, text) for text in texts], "n long, t string"
    )
    rows = frame.selectExpr("n", "t", "pmod(hash(n), 64) AS of_n", "pmod(hash(t), 64) AS of_t").collect()
    for row in rows:
        if row["t"] is None:
            assert row["of_n"] == bit_of_number(row["n"])
        else:
            assert row["of_t"] == bit_of_text(row["t"])
