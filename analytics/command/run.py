"""One run of ``tricklecast storms``, from a checked request to its exit code."""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING

import typer

from analytics.command.interrupts import interruptible
from analytics.command.request import FailOn, Request
from analytics.errors import AnalyticsError, BadInput
from analytics.inputs import find_logs
from analytics.progress import Watched, on_stderr, silent
from analytics.spark import SMALL_INPUT, failures_as_one_line, spark_session

if TYPE_CHECKING:
    from analytics.report.model import Report


def run(request: Request) -> None:
    """Makes the report, or explains an episode, and exits.

    Raises:
        typer.Exit: with the exit code, unless it is 0.
    """
    try:
        with interruptible():
            report = _report(request)
    except AnalyticsError as error:
        if request.verbose:
            traceback.print_exc()
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    if request.fail_on is not FailOn.NEVER and report.has(request.fail_on.value):
        raise typer.Exit(1)


def _report(request: Request) -> Report:
    files = find_logs(request.logs)
    with ExitStack() as held:
        watched = Watched()
        stage = silent if request.quiet else held.enter_context(on_stderr(watched))
        with stage("starting Spark"):
            small = files.size <= SMALL_INPUT
            session = spark_session(request.master, small=small, verbose=request.verbose, conf=request.conf)
            spark = held.enter_context(session)
        watched.follow(spark)
        from analytics.job import make_report  # imports pyspark, which the line above has found to be there

        with failures_as_one_line():
            report = make_report(spark, files, request.params, stage, request.reading)
    show(report, request)
    return report


def show(report: Report, request: Request) -> None:
    """Writes the report to its files, and prints it unless standard output is one of them.

    Raises:
        BadInput: the log is not to be trusted; it is shown all the same.
    """
    request.outputs.write(report)
    if not (request.outputs.uses_stdout or request.quiet):
        _print(report)
    _check_trustworthy(report)


def _print(report: Report) -> None:
    from rich.console import Console

    from analytics.report.terminal import PLAIN_WIDTH, print_report

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    print_report(report, Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False))


def _check_trustworthy(report: Report) -> None:
    quality, limit = report.quality, report.params.max_bad_share
    if quality.lines == 0:
        raise BadInput("the logs have no lines")
    if quality.unparsable_share > limit:
        share = f"{quality.unparsable:,} of {quality.lines:,} lines ({quality.unparsable_share:.1%})"
        raise BadInput(f"{share} are no access records; above {limit:.0%} the report is not to be trusted")
