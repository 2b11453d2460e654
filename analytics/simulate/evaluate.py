"""Simulates logs, has reports made of them, and judges the reports: ``python -m
tricklecast.analytics.simulate.evaluate``.

One Spark session for all of it. What is missed, made up or misnamed is listed with its seed, so that one can look.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.run import Request, simulate_logs
from tricklecast.analytics.simulate.score import Score, score, together
from tricklecast.analytics.simulate.sizes import sizes
from tricklecast.analytics.simulate.table import details, table
from tricklecast.analytics.simulate.truth import Truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def simulated(out: Path, seed: int, kind: Set, lines: int, **more: Any) -> Truth:
    """Write a log of about so many lines."""
    size = sizes(lines=lines, kind=kind)
    return simulate_logs(Request(out, seed, kind, size, **more))


def reported(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The document of report.json about a folder's logs."""
    from tricklecast.analytics.inputs import find_logs
    from tricklecast.analytics.job import make_report
    from tricklecast.analytics.report_old.json_report import as_json

    document: dict[str, Any] = json.loads(as_json(make_report(spark, find_logs([str(folder)]))))
    return document


def judged(spark: SparkSession, seed: int, kind: Set, lines: int) -> Score:
    """Simulate, report, and judge."""
    with TemporaryDirectory(prefix="tricklecast-judged-") as folder:
        truth = simulated(Path(folder) / "log", seed, kind, lines)
        return score(reported(spark, Path(folder) / "log"), truth)


def _range(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main(
    seeds: Annotated[str, typer.Option(help="Seeds: 1-5,9.")] = "1-3",
    kinds: Annotated[list[Set] | None, typer.Option("--set", help="Sets, by default all.")] = None,
    lines: Annotated[int, typer.Option(help="Lines per log.")] = 200_000,
) -> None:
    """Judge the reports on simulated logs."""
    from tricklecast.analytics.spark import spark_session

    with spark_session(small=True) as spark:
        for kind in kinds or list(Set):
            scores: list[Score] = []
            for seed in _range(seeds):
                found = judged(spark, seed, kind, lines)
                sys.stdout.writelines(f"{kind} {seed}: {text}\n" for text in details(found))
                sys.stdout.flush()
                scores.append(found)
            sys.stdout.write(f"\n{kind}, {len(scores)} logs\n{table(together(scores), kind)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
