"""``tricklecast storms``: its options, and one run."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tricklecast.analytics.cli.interrupts import interruptible, load_duckdb
from tricklecast.analytics.cli.options import FORMAT, ClientKey, LogFormat, ParamsFile, PathPrefix, Settings
from tricklecast.analytics.cli.outputs import STDOUT, check_outputs, write_at_once, write_rows
from tricklecast.analytics.cli.thresholds import thresholds
from tricklecast.analytics.errors import AnalyticsError, BadInput
from tricklecast.analytics.maintenance import parse_maintenance
from tricklecast.analytics.times import parse_duration, parse_time

if TYPE_CHECKING:
    from tricklecast.analytics.lines import LogFiles, Window
    from tricklecast.analytics.pipeline.request import Advance, ReportRequest, ReportResult

_REPORT: Final = "Report"
_ENGINE: Final = "Engine"
_TABLE: Final = "Table"


class EngineName(StrEnum):
    """The engine that reads the lines."""

    AUTO = "auto"
    EMBEDDED = "embedded"
    SPARK = "spark"


class FailOn(StrEnum):
    """From which severity on an incident makes the command fail."""

    MINOR = "minor"
    WARN = "warn"
    CRITICAL = "critical"
    NEVER = "never"


def storms(
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG...",
            help="Access logs: files (also compressed, pipes, Parquet), folders, globs, URIs; - is standard input.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Leave out earlier requests: 2025-10-09T14:30Z, or 2h ago."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Leave out later requests.")] = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE|-", help="Write the report as one HTML page.")
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="ID", help="Say why one incident is one: figures, thresholds, rows.")
    ] = None,
    lines: Annotated[
        str | None, typer.Option(metavar="ID", help="Write all log lines of one incident to --output; no report.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE|-",
            help="File for --lines: FILE.parquet, or JSON lines; - is standard output, and the default.",
        ),
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit with 1 from this severity on.")] = FailOn.WARN,
    json_file: Annotated[
        str | None,
        typer.Option("--json-file", metavar="FILE|-", help="Write the report as JSON.", rich_help_panel=_REPORT),
    ] = None,
    prom: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="Write gauges for Prometheus (textfile collector).",
            rich_help_panel=_REPORT,
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOG|TIME..TIME",
            help="Compare rates with those of these logs (may be repeated), or of a time in the table.",
            rich_help_panel=_REPORT,
        ),
    ] = None,
    maintenance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WINDOW",
            help="Mute incidents within such a time: 02:00-04:00 (UTC), 'sun 22:00-06:00 Europe/Berlin', TIME/TIME, or"
            " FILE.toml. May be repeated.",
            rich_help_panel=_REPORT,
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Print no progress, and no report.", rich_help_panel=_REPORT),
    ] = False,
    log_format: LogFormat = "auto",
    client_key: ClientKey = None,
    path_prefix: PathPrefix = None,
    generic: Annotated[
        bool,
        typer.Option(
            "--generic",
            help="The log of any web server: storms are found by client, method, path and status.",
            rich_help_panel=FORMAT,
        ),
    ] = False,
    params: ParamsFile = None,
    settings: Settings = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            help="Add the logs to this table of hourly roll-ups, and report on it. Without LOG: on the table alone.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Remove hours of the table that are so much older than its newest one.",
            show_default="400d",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="embedded (DuckDB, no Java), or spark. auto takes embedded for local logs that fit on the disk.",
            rich_help_panel=_ENGINE,
        ),
    ] = EngineName.AUTO,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where Spark runs: local[*], spark://HOST:7077, sc://HOST:15002, yarn, k8s://https://HOST.",
            show_default="local[*]",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf", metavar="KEY=VALUE", help="A setting of Spark. May be repeated.", rich_help_panel=_ENGINE
        ),
    ] = None,
    scratch: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            help="A folder for the roll-up that all executors share; without it, it stays on their disks.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show Spark's log, and complete errors.", rich_help_panel=_ENGINE)
    ] = False,
) -> None:
    """Find retry storms in access logs: who repeats which requests, since when, why, at what cost, and the fix.

    Exit codes: 0 no incident; 1 incidents (see --fail-on); 2 wrong usage; 3 bad input: no logs, or more than 1 % of the
    lines cannot be read; 4 Spark or Java is missing or failed; 130 Ctrl-C.

    Examples:

    \b
      tricklecast storms access.jsonl
      tricklecast storms /var/log/nginx/*.log* --since 24h --html storms.html
      tricklecast storms access.jsonl --explain 1
      tricklecast storms access.jsonl --lines 1 -o lines.parquet

    See also: storms check, storms mute, storms unmute, storms watch, storms stream.
    """
    outputs = {
        option: file
        for option, file in (("--html", html), ("--json-file", json_file), ("--prom", prom), ("-o", output))
        if file is not None
    }
    try:
        with interruptible():
            try:
                _check(logs, {"--explain": explain, "--lines": lines}, outputs, table, keep)
                if verbose and quiet:
                    raise ValueError("-v and -q contradict each other")
                load_duckdb()  # it takes longer than these errors
                from tricklecast.analytics.lines import LogFiles, Reading, Window
                from tricklecast.analytics.pipeline.request import ReportRequest, SparkOptions
                from tricklecast.analytics.rules.incidents import Severity

                window = Window(_moment(since), _moment(until))
                if window.from_us is not None and window.to_us is not None and window.from_us >= window.to_us:
                    raise ValueError("--since is not before --until")
                reading = Reading(log_format, client_key, path_prefix, window)
                reading.check()
                request = ReportRequest(
                    LogFiles(()),
                    reading,
                    thresholds(params, settings or ()),
                    _span(baseline or (), table),
                    generic,
                    explain,
                    SparkOptions(master, spark_conf(conf or ()), scratch, verbose),
                    parse_maintenance(maintenance or ()),
                    table,
                    None if keep is None else parse_duration(keep),
                )
                request, why = _with_logs(request, logs or (), baseline or (), engine)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
            if why and not quiet:
                print(f"storms: {why}", file=sys.stderr)
            from tricklecast.analytics.pipeline.run import make, write_lines

            if lines is not None:
                count = write_lines(request, lines, _silent if quiet else _stage, partial(write_rows, output or STDOUT))
                if not quiet:
                    print(f"storms: {count:,} lines", file=sys.stderr)
                return
            made = make(request, _silent if quiet else _stage)
            for note in () if quiet else made.notes:
                print(f"storms: {note}", file=sys.stderr)
            _show(made, outputs, quiet=quiet)
    except AnalyticsError as error:
        if verbose:
            traceback.print_exc()
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    if explain is None and not made.report.trusted:
        print(f"tricklecast: {made.report.verdict.warning}", file=sys.stderr)
        raise typer.Exit(BadInput.exit_code)
    if explain is None and fail_on is not FailOn.NEVER and made.report.fails(Severity(fail_on.value)):
        raise typer.Exit(1)


def _check(
    logs: list[str] | None, ids: dict[str, str | None], outputs: dict[str, str], table: str | None, keep: str | None
) -> None:
    if not logs and table is None:
        raise ValueError("no logs were given")
    if table is None and keep is not None:
        raise ValueError("--keep is for a table: --table PLACE")
    given = {option: wanted for option, wanted in ids.items() if wanted is not None}
    for option, wanted in given.items():
        if not re.fullmatch(r"[0-9a-f]{1,64}(-[0-9]{1,9})?", wanted):
            raise ValueError(f"{option} takes an incident's id or number from a report, not {wanted!r}")
        allowed = {"--explain": "--json-file", "--lines": "-o"}[option]
        others = [other for other in (*given, *outputs) if other not in (option, allowed)]
        if others:
            raise ValueError(f"{option} is about one incident; it cannot be combined with {others[0]}")
    if "-o" in outputs and "--lines" not in given:
        raise ValueError("-o is where --lines writes to; the report goes to --html FILE, --json-file FILE, --prom FILE")
    check_outputs(outputs)


def _with_logs(
    request: ReportRequest, logs: Sequence[str], baseline: Sequence[str], engine: EngineName
) -> tuple[ReportRequest, str]:
    """The request with the logs and the engine, and the reason for the engine if it was chosen here.

    Raises:
        ValueError: an option is wrong. BadInput: there is no such log.
    """
    from tricklecast.analytics.lines import LogFiles, find_logs

    files = find_logs(logs, request.reading.window) if logs else LogFiles(())
    others = find_logs(baseline) if baseline and request.baseline is None else None
    if request.table is not None and (files.pipes or (others and others.pipes)):
        raise ValueError("--table is for files; it cannot be combined with standard input or pipes")
    assert request.spark is not None
    spark, conf = request.spark, dict(request.spark.conf)
    master = spark.master or conf.pop("spark.master", None)
    if engine is EngineName.EMBEDDED:
        for option, value in (("--master", master), ("--conf", conf), ("--scratch", spark.scratch)):
            if value:
                raise ValueError(f"{option} is for Spark; it cannot be combined with --engine embedded")
    chosen, why = choose_engine(engine, files, others, master, request.table)
    options = replace(spark, master=master or default_master(), conf=conf) if chosen is EngineName.SPARK else None
    return replace(request, files=files, baseline=request.baseline or others, spark=options), why


def _span(baseline: Sequence[str], table: str | None) -> Window | None:
    """The time that a baseline is, if it is not logs.

    Raises:
        ValueError: it is one, and there is no table, or it is not the only one.
    """
    from tricklecast.analytics.lines import Window

    texts = [text for text in baseline if ".." in text and not os.path.exists(text) and "/" not in text]
    if not texts:
        return None
    if table is None or len(baseline) > 1:
        raise ValueError(f"--baseline {texts[0]} is a time of a table: pass --table PLACE, and no other --baseline")
    first, _, last = texts[0].partition("..")
    window = Window(_moment(first), _moment(last))
    if window.from_us is None or window.to_us is None or window.from_us >= window.to_us:
        raise ValueError(f"--baseline {texts[0]} does not end after it begins")
    return window


def choose_engine(
    engine: EngineName, files: LogFiles, baseline: LogFiles | None, master: str | None, table: str | None = None
) -> tuple[EngineName, str]:
    """The engine to use, and, where it was chosen here, one line that says so and how to choose otherwise.

    Raises:
        ValueError: the engine that was asked for cannot do this.
    """
    from tricklecast.analytics.lines.files import REMOTE, unpacked
    from tricklecast.analytics.report.formats import size
    from tricklecast.analytics.scan.embedded import missing_room

    remote = [*files.remote, *(baseline.remote if baseline else ())]
    if table is not None and REMOTE.match(table):
        remote.append(table)
    if engine is EngineName.EMBEDDED and remote:
        raise ValueError(f"only Spark reads {remote[0]!r}; it cannot be combined with --engine embedded")
    if engine is not EngineName.AUTO:
        return engine, ""
    if remote or master is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return EngineName.SPARK, ""
    if not files.names:
        return EngineName.EMBEDDED, ""
    if files.pipes:
        return EngineName.EMBEDDED, "standard input or a pipe: embedded engine (Spark reads files: --engine spark FILE)"
    # One after the other is read, and then forgotten.
    amount = max(unpacked(one.names) for one in (files, baseline) if one is not None)
    logs = f"{size(amount)} of local logs"
    if missing_room(amount) <= 0:
        return EngineName.EMBEDDED, f"{logs}: embedded engine; --engine spark reads them with Spark"
    logs += f" may not fit into {tempfile.gettempdir()}"
    if why := _spark_is_missing():
        return EngineName.EMBEDDED, f"{logs}, but {why}: embedded engine"
    return EngineName.SPARK, f"{logs}: Spark; --engine embedded reads them without it"


def _spark_is_missing() -> str:
    """Why Spark cannot run here, if it cannot."""
    from importlib.util import find_spec

    from tricklecast.analytics.spark import java

    if find_spec("pyspark") is None:
        return "Spark is not installed"
    version = java.java_version()
    if version is None or version < java.JAVA_VERSION:
        return f"Spark needs Java {java.JAVA_VERSION}"
    return ""


def spark_conf(settings: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` each, as Spark has them.

    Raises:
        ValueError: one is not of this form, or no setting of Spark's.
    """
    conf: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise ValueError(f"--conf takes spark.KEY=VALUE, not {setting!r}")
        conf[key] = value
    return conf


def default_master() -> str | None:
    """This machine, unless ``spark-submit`` has started us: it has chosen already."""
    from tricklecast.analytics.spark.session import LOCAL

    return None if "PYSPARK_GATEWAY_PORT" in os.environ else LOCAL


def _moment(text: str | None) -> int | None:
    return None if text is None else parse_time(text, time.time_ns() // 1000)


# --- what is shown


@contextmanager
def _silent(name: str, total: int = 0) -> Iterator[Advance]:
    yield lambda taken: None


@contextmanager
def _stage(name: str, total: int = 0) -> Iterator[Advance]:
    """Progress on a terminal's standard error, with amounts where the total is known; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda taken: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    amounts = (BarColumn(), DownloadColumn()) if total else ()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *amounts, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=total or None)
        yield lambda taken: progress.advance(task, taken)


def _show(made: ReportResult, outputs: dict[str, str], *, quiet: bool) -> None:
    """Writes the report to its files, and prints it unless standard output is one of them."""
    report, explained = made.report, made.explained
    for option, file in outputs.items():
        if explained is not None:
            from tricklecast.analytics.report.explain import explanation_json

            write_at_once(file, explanation_json(report, explained, made.steps))
        elif option == "--html":
            from tricklecast.analytics.report.html import as_html

            write_at_once(file, as_html(report))
        elif option == "--json-file":
            from tricklecast.analytics.report.json import as_json

            write_at_once(file, as_json(report))
        else:
            from tricklecast.analytics.report.prometheus import as_prometheus

            write_at_once(file, as_prometheus(report))
    if quiet or STDOUT in outputs.values():
        return
    if explained is not None:
        from tricklecast.analytics.report.explain import explanation

        sys.stdout.write("".join(f"{line}\n" for line in explanation(report, explained, made.steps)))
    else:
        from tricklecast.analytics.report.text import print_report

        print_report(report)
    sys.stdout.flush()
