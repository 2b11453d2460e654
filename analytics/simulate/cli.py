"""``tricklecast simulate``: logs with known truth, and a judge of reports about them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tricklecast.analytics.cli.interrupts import interruptible
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.formats import FormatName
from tricklecast.analytics.simulate.output import ROTATE_BYTES
from tricklecast.analytics.simulate.sizes import Sizes, sizes
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.terminal import parse_duration, parse_size

if TYPE_CHECKING:
    from tricklecast.analytics.simulate.run import Progress, Request

NOT_GOOD_ENOUGH: Final = 1

_CLIENTS = "Readers at a time, in the mean; the number of lines follows from it."


def simulate(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for the logs and truth.json.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="What everything is drawn from: same seed, same bytes.")] = 0,
    kind: Annotated[Set, typer.Option("--set", help="Clear cases, cases near the thresholds, or none.")] = Set.STANDARD,
    lines: Annotated[int | None, typer.Option(metavar="N", help="About so many lines.", show_default="500000")] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time that the log covers: 90min, 6h.", show_default="2h")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, max=100, help="Servers.", show_default="4")] = None,
    clients: Annotated[int | None, typer.Option(min=0, help=_CLIENTS, show_default="follows")] = None,
    channels: Annotated[int | None, typer.Option(min=1, help="Channels at a time.", show_default="follows")] = None,
    form: Annotated[
        FormatName, typer.Option("--format", help="Form of the lines; proxies' forms have no lifecycle events.")
    ] = FormatName.JSONL,
    packed: Annotated[bool, typer.Option("--gzip", help="Compress the files.")] = False,
    duplicates: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=0.5, help="Write so many lines twice, as log shipping may.")
    ] = 0.0,
    rotate: Annotated[
        str, typer.Option(metavar="SIZE", help="Begin the next file at this size; or after an hour.")
    ] = f"{ROTATE_BYTES >> 20}MiB",
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier simulation.")] = False,
    live: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Misbehave at a real server in place of writing logs.",
            show_default=False,
        ),
    ] = None,
    acts: Annotated[
        list[str] | None,
        typer.Option("--act", metavar="NAME", help="With --live: only this act; may be given again."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="With --live: requests per client, at most.", show_default="60"),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.1, max=1000, help="With --live: and per second.", show_default="20")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--score", metavar="REPORT", help="Judge a report.json in place of writing logs.", show_default=False
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR", help="What --score judges by.", show_default="truth.json beside the report, or in --out"
        ),
    ] = None,
) -> None:
    """Write access logs of a made-up fleet, with storms whose place, class and cause are known (truth.json).

    With --live, let clients of every class of storm misbehave at a real server, bounded, so that its log has real ones.
    With --score, compare a report (`tricklecast storms --json`) with that truth. Exit codes: 0 written, or a good
    report; 1 a report that is not good enough, or nothing that could be played; 2 usage; 3 bad input.
    """
    with interruptible():
        if report is not None:
            _judge(report, truth or out or report.parent)
            return
        if out is None:
            raise typer.BadParameter("where is the result to be written?", param_hint="--out")
        if live is not None:
            from tricklecast.analytics.simulate.live.command import play

            if not play(live, out, acts or (), requests, rate, force=force):
                raise typer.Exit(NOT_GOOD_ENOUGH)
            return
        size = _sizes(lines, duration, nodes, clients, channels, kind)
        from tricklecast.analytics.simulate.run import Request

        rotate_bytes = _checked_size(rotate)
        _write(Request(out, seed, kind, size, form, packed, force, duplicates, rotate_bytes))


def _sizes(
    lines: int | None,
    duration: str | None,
    nodes: int | None,
    clients: int | None,
    channels: int | None,
    kind: Set,
) -> Sizes:
    try:
        seconds = None if duration is None else parse_duration(duration)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint="--duration") from None
    try:
        return sizes(lines=lines, duration_s=seconds, nodes=nodes, clients=clients, channels=channels, kind=kind)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint="--lines") from None


def _checked_size(text: str) -> int:
    try:
        return parse_size(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint="--rotate") from None


def _write(request: Request) -> None:
    from tricklecast.analytics.simulate.run import simulate_logs

    with _progress(request.size.duration_us) as progress:
        truth = simulate_logs(request, progress)
    typer.echo(
        f"{truth.lines:,} lines, {len(truth.storms):,} storms, {len(truth.traps):,} look-alikes in {request.out}"
    )
    if truth.left_out:
        typer.echo(f"{len(truth.left_out):,} scenes found no room: more lines, more time or more servers would give it")


@contextmanager
def _progress(total_us: int) -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done_us, lines: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("choosing scenes", total=total_us)
        yield lambda done_us, lines: bar.update(task, completed=done_us, description=f"{lines:,} lines")


def _judge(report: Path, place: Path) -> None:
    import orjson

    from tricklecast.analytics.simulate.score import LIMITS, score
    from tricklecast.analytics.simulate.table import details, table
    from tricklecast.analytics.simulate.truth import Truth

    truth = Truth.read(place)
    try:
        document = orjson.loads(report.read_bytes())
        found = score(document, truth)
    except OSError as error:
        raise BadInput(f"cannot read {str(report)!r}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{str(report)!r} is no report.json: {error}") from error
    if truth.kind not in LIMITS:
        raise BadInput(f"truth.json is of an unknown set: {truth.kind!r}")
    typer.echo(table(found, truth.kind), nl=False)
    for text in details(found):
        typer.echo(text)
    if not found.meets(LIMITS[truth.kind]):
        raise typer.Exit(NOT_GOOD_ENOUGH)
