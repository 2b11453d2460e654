"""One run of ``tricklecast storms``, from a checked request to its exit code."""

from __future__ import annotations

import sys
import traceback
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING

import typer

from tricklecast.analytics.cli.interrupts import interruptible
from tricklecast.analytics.command.baseline import Kind
from tricklecast.analytics.command.request import FailOn, Request, described
from tricklecast.analytics.errors import AnalyticsError, BadInput, CannotWrite
from tricklecast.analytics.inputs import ALWAYS, LogFiles, find_logs
from tricklecast.analytics.progress import Watched, on_stderr, silent
from tricklecast.analytics.sources import recognise
from tricklecast.analytics.spark import SMALL_INPUT, check_installed, failures_as_one_line, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tricklecast.analytics.incremental.update import State
    from tricklecast.analytics.progress import Stage
    from tricklecast.analytics.report_old.model import Report


def run(request: Request) -> None:
    """Makes the report, or explains an episode, and exits.

    Raises:
        typer.Exit: with the exit code, unless it is 0.
    """
    try:
        with interruptible():
            report = _done(request)
    except AnalyticsError as error:
        if request.verbose:
            traceback.print_exc()
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    if report is not None and request.fail_on is not FailOn.NEVER and report.has(request.fail_on.value):
        raise typer.Exit(1)


def _done(request: Request) -> Report | None:
    """The report; ``None`` if an episode was explained instead."""
    # A state takes in whole logs; what time the report is about is a question for later.
    window = ALWAYS if request.state is not None else request.reading.window
    files = find_logs(request.logs, window) if request.logs else LogFiles((), 0, ())
    other = _other_logs(request)
    recognise(files, request.reading)
    with ExitStack() as held:
        check_installed()
        state = held.enter_context(_state(request, files))
        watched = Watched()
        stage = silent if request.quiet else held.enter_context(on_stderr(watched))
        with stage("starting Spark"):
            small = (files.size if state is None else state.unread) <= SMALL_INPUT
            session = spark_session(request.master, small=small, verbose=request.verbose, conf=request.conf)
            spark = held.enter_context(session)
        watched.follow(spark)
        with failures_as_one_line():
            return _with_spark(spark, request, files, other, state, stage)


def _with_spark(
    spark: SparkSession,
    request: Request,
    files: LogFiles,
    other: LogFiles | None,
    state: State | None,
    stage: Stage,
) -> Report | None:
    from tricklecast.analytics.command.pipeline import explained, report_on_logs, report_on_state  # imports pyspark

    if state is not None:
        return _shown(report_on_state(spark, request, state, other, stage), request)
    report = report_on_logs(spark, request, files, other, stage)
    if request.explain is None:
        return _shown(report, request)
    with stage("gathering evidence"):
        found = explained(spark, report, request.explain, files, request.reading)
    from tricklecast.analytics.command.explaining import show

    show(found, request.params, request.outputs.json, quiet=request.quiet)
    return None


def _other_logs(request: Request) -> LogFiles | None:
    if request.baseline is None or request.baseline.kind is not Kind.LOGS:
        return None
    other = find_logs([request.baseline.text])
    recognise(other, request.reading)
    return other


def _state(request: Request, files: LogFiles) -> AbstractContextManager[State | None]:
    if request.state is None:
        return nullcontext()
    from tricklecast.analytics.incremental.update import opened

    return opened(request.state, files, described(request.reading))


def _shown(report: Report, request: Request) -> Report:
    """Writes the report to its files, and prints it unless standard output is one of them.

    Raises:
        BadInput: the log is not to be trusted; it is shown all the same. CannotWrite: there is no room for it.
    """
    request.outputs.write(report)
    if not (request.outputs.uses_stdout or request.quiet):
        _print(report)
    _check_trustworthy(report)
    return report


def _print(report: Report) -> None:
    from rich.console import Console

    from tricklecast.analytics.report_old.terminal import PLAIN_WIDTH, print_report

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    try:
        print_report(report, Console(file=sys.stdout, width=width, markup=False, emoji=False, highlight=False))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has read enough
        raise
    except OSError as error:
        sys.stdout = None  # the interpreter would try again at its end
        raise CannotWrite(f"cannot write the report: {error.strerror}") from error


def _check_trustworthy(report: Report) -> None:
    quality, limit = report.quality, report.params.max_bad_share
    if quality.lines == 0:
        raise BadInput("the logs have no lines")
    if quality.unparsable_share > limit:
        share = f"{quality.unparsable:,} of {quality.lines:,} lines ({quality.unparsable_share:.1%})"
        raise BadInput(f"{share} are no access records; above {limit:.0%} the report is not to be trusted")
