"""``tricklecast storms``: the retry-storm report."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analytics.errors import AnalyticsError, BadInput
from analytics.inputs import find_logs, readable_paths
from analytics.params import StormParams
from analytics.progress import on_stderr
from analytics.spark import LOCAL, SMALL_INPUT, failures_as_one_line, spark_session

if TYPE_CHECKING:
    from analytics.report.model import Report


class FailOn(StrEnum):
    """From which severity on a storm makes the command fail."""

    WARN = "warn"
    CRITICAL = "critical"
    NEVER = "never"


def storms(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG...", help="Access logs: files (also .gz), folders, globs, URIs."),
    ],
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the report as JSON."),
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit with 1 from this severity on.")] = FailOn.WARN,
    master: Annotated[str, typer.Option(help="Where Spark runs: local[*], spark://host:7077, ...")] = LOCAL,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show Spark's log and whole errors.")] = False,
) -> None:
    """Find retry storms in access logs: what looped, since when, what triggered it, and what to do.

    Exit codes: 0 no storm, 1 storms from --fail-on upwards, 2 usage, 3 bad input (no logs, or more than 1 % of the
    lines unparsable), 4 Spark or Java missing.
    """
    _check_writable(json_file)
    try:
        report = _run(logs, master, verbose=verbose)
        _write(report, json_file)
        _check_trustworthy(report)
    except AnalyticsError as error:
        if verbose:
            traceback.print_exc()
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    if fail_on is not FailOn.NEVER and report.has(fail_on.value):
        raise typer.Exit(1)


def _run(logs: list[str], master: str, *, verbose: bool) -> Report:
    files = find_logs(logs)
    with ExitStack() as held:
        stage = held.enter_context(on_stderr())
        with stage("starting Spark"):
            spark = held.enter_context(spark_session(master, small=files.size <= SMALL_INPUT, verbose=verbose))
        from analytics.job import make_report  # imports pyspark, which the line above has found to be there

        held.enter_context(failures_as_one_line())
        return make_report(spark, files, held.enter_context(readable_paths(files)), StormParams(), stage)


def _check_writable(json_file: str | None) -> None:
    """Finds out before the work, rather than after it, that its result has nowhere to go."""
    if json_file is None or json_file == "-":
        return
    folder = Path(json_file).absolute().parent
    if Path(json_file).is_dir() or not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"cannot write {json_file!r}", param_hint="--json")


def _write(report: Report, json_file: str | None) -> None:
    from rich.console import Console

    from analytics.report.json_report import as_json
    from analytics.report.terminal import PLAIN_WIDTH, print_report

    if json_file == "-":
        sys.stdout.write(as_json(report))
        return
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    print_report(report, Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False))
    if json_file is not None:
        # Whoever reads the file sees the old report or the new one, never half of it.
        unfinished = Path(f"{json_file}.tmp")
        unfinished.write_text(as_json(report), encoding="ascii")
        unfinished.replace(json_file)


def _check_trustworthy(report: Report) -> None:
    quality, limit = report.quality, report.params.max_bad_share
    if quality.lines == 0:
        raise BadInput("the logs have no lines")
    if quality.unparsable_share > limit:
        share = f"{quality.unparsable:,} of {quality.lines:,} lines ({quality.unparsable_share:.1%})"
        raise BadInput(f"{share} are no access records; above {limit:.0%} the report is not to be trusted")
