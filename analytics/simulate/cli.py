"""``tricklecast simulate``: logs with known truth, and a judge of reports about them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer

from tricklecast.analytics.cli.interrupts import interruptible
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.simulate.formats import FormatName
from tricklecast.analytics.simulate.plan import sizes
from tricklecast.analytics.simulate.run import Progress, simulate_logs
from tricklecast.analytics.simulate.score import LIMITS, score
from tricklecast.analytics.simulate.truth import Set, Truth
from tricklecast.trickle.amounts import parse_duration
from tricklecast.trickle.errors import InvalidInput

NOT_GOOD_ENOUGH: Final = 1

_FLEET: Final = "Fleet"
_SCORE: Final = "Score"


def simulate(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Folder for the logs and truth.json.", show_default=False),
    ] = None,
    kind: Annotated[
        Set, typer.Option("--scenes", help="Storms: clear cases, cases near the thresholds, or none.")
    ] = Set.STANDARD,
    lines: Annotated[
        int | None, typer.Option(metavar="N", help="Write about this many lines.", show_default="500000")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time that the logs cover: 90min, 6h.", show_default="2h")
    ] = None,
    form: Annotated[
        FormatName,
        typer.Option("--format", help="Format of the logs; proxies' formats have no lifecycle events."),
    ] = FormatName.JSONL,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier simulation.")] = False,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=100, help="Servers.", show_default="4", rich_help_panel=_FLEET),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Mean number of readers at a time; instead of --lines.",
            show_default="follows from --lines",
            rich_help_panel=_FLEET,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="The same seed makes the same bytes.", rich_help_panel=_FLEET),
    ] = 0,
    report: Annotated[
        Path | None,
        typer.Option(
            "--score",
            metavar="REPORT",
            help="Compare this report with the truth, and write no logs.",
            show_default=False,
            rich_help_panel=_SCORE,
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="The truth for --score.",
            show_default="truth.json in DIR",
            rich_help_panel=_SCORE,
        ),
    ] = None,
) -> None:
    """Write access logs of a simulated fleet, with retry storms whose place, class and cause are known (truth.json).

    With --score, compare a report (`tricklecast storms --json-file`) with this truth.

    Exit codes: 0 written, or the report is good; 1 the report is not good enough; 2 wrong usage; 3 bad input;
    130 Ctrl-C: nothing was written.

    Examples:

    \b
      tricklecast simulate logs/
      tricklecast storms logs/ --json-file report.json
      tricklecast simulate logs/ --score report.json
    """
    if lines is not None and clients is not None:
        raise typer.BadParameter("give --lines or --clients, not both", param_hint="--lines")
    if report is not None:
        with interruptible():
            _judge(report, truth or folder or report.parent)
        return
    if truth is not None:
        raise typer.BadParameter("it needs --score REPORT", param_hint="--truth")
    if folder is None:
        raise typer.BadParameter("give the folder for the logs", param_hint="DIR")
    wrong = "--duration"
    try:
        duration_s = None if duration is None else parse_duration(duration)
        wrong = "--lines" if clients is None else "--clients"
        size = sizes(lines=lines, duration_s=duration_s, nodes=nodes, clients=clients, kind=kind)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint=wrong) from None
    with interruptible(), _progress() as progress:
        made = simulate_logs(folder, seed, kind, size, form, force=force, progress=progress)
    typer.echo(f"{made.lines:,} lines, {len(made.storms):,} storms, {len(made.traps):,} look-alikes in {folder}")
    if made.left_out:
        typer.echo(f"{len(made.left_out):,} scenes were left out: use more lines, more time or more servers")


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda doing, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda doing, done: bar.update(task, completed=done, description=doing)


def _judge(report: Path, place: Path) -> None:
    truth = Truth.read(place)
    try:
        found = score(orjson.loads(report.read_bytes()), truth)
    except OSError as error:
        raise BadInput(f"cannot read {str(report)!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"{str(report)!r} is not JSON: {error}") from error
    for text in (*found.table(LIMITS[truth.kind]), *found.details()):
        typer.echo(text)
    if not found.meets(LIMITS[truth.kind]):
        raise typer.Exit(NOT_GOOD_ENOUGH)
