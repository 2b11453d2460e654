"""``tricklecast stress``: publishes and subscribes at once, compares both sides, and reports."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from secrets import randbelow, token_hex
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from tricklecast.app.tools import console
from tricklecast.app.tools.stress.ledger import LATENCIES, FaultKind, Traffic
from tricklecast.app.tools.stress.load import MARKER_BYTES, Load, StressPlan
from tricklecast.trickle import wire
from tricklecast.trickle.amounts import count, parse_duration, parse_size, size
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.paths import normalize_base_path, parse_server_url
from tricklecast.trickle.terminal import CaFile, checked, client_tls

if TYPE_CHECKING:
    from rich.console import Console

    from tricklecast.app.tools.stress.runner import StressRun

EXIT_FAULTS: Final = 1

_SEGMENTS: Final = "Segments"

VERSION: Final = 1
"""Of the JSON document."""

_ACTIVITY: Final = ("requests", "retries", "resumed", "dropped", "lost", "missed", "truncated", "broken", "refreshes")
"""The numbers among the libraries' statistics that the report shows. The JSON has all of them."""


async def stress(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The server: http://HOST:PORT or http://HOST:PORT/trickle, or http+unix://…."
        ),
    ],
    publishers: Annotated[
        int, typer.Option("--publishers", "-p", metavar="N", min=1, help="Publishers, each with a channel.")
    ] = 4,
    subscribers: Annotated[
        int, typer.Option("--subscribers", "-s", metavar="N", min=1, help="Subscribers of each channel.")
    ] = 4,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="Publish for this time: 30s, 2m.")] = "30s",
    processes: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=256, help="Processes that publish, and as many again that subscribe."),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    segment_every: Annotated[
        str, typer.Option(metavar="TIME", help="Time between the segments of a channel.", rich_help_panel=_SEGMENTS)
    ] = "500ms",
    segment_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of a segment, or a range of sizes.", rich_help_panel=_SEGMENTS)
    ] = "1KiB-128KiB",
    chunk_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Size of a chunk.", rich_help_panel=_SEGMENTS)
    ] = "8KiB",
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="The same seed makes the same sizes and bytes.",
            show_default="another one each time",
            rich_help_panel=_SEGMENTS,
        ),
    ] = None,
    ca_file: CaFile = None,
) -> None:
    """Load a server with publishers and subscribers, and compare every byte received.

    Each publisher has a channel of its own (stress-...), which is ended after the run, and on Ctrl-C. The report shows
    segments that are missing, duplicated, reordered or different, latencies, and whether the command itself was the
    bottleneck.

    Exit codes: 0 no fault; 1 faults; 2 wrong usage; 130 Ctrl-C.

    Examples:

    \b
      tricklecast stress http://localhost:2939
      tricklecast stress http://localhost:2939 -p 20 -s 10 --for 2min --processes 4
    """
    every_s = checked("--segment-every", parse_duration, segment_every)
    smallest, largest = checked("--segment-bytes", parse_sizes, segment_bytes)
    load = Load(
        seed=randbelow(1 << 32) if seed is None else seed,
        channels=publishers,
        segments=segments_in(checked("--for", parse_duration, for_), every_s),
        every_s=every_s,
        smallest=smallest,
        largest=largest,
        chunk_bytes=checked("--chunk-bytes", parse_size, chunk_bytes),
    )
    client_tls(ca_file)  # it is loaded by the workers; a mistake is told here
    import anyio

    from tricklecast.app.tools.stress.runner import StressRun

    base = checked("URL", base_url, url)
    run = StressRun(StressPlan(base, token_hex(3), load, subscribers, processes, str(ca_file or "")))
    try:
        with progress(console(stderr=True), run):
            await run.carry_out()
    except anyio.get_cancelled_exc_class():
        _show(run, as_json=as_json)
        raise
    _show(run, as_json=as_json)
    if run.ledger.faults:
        raise typer.Exit(EXIT_FAULTS)


def parse_sizes(text: str) -> tuple[int, int]:
    """Read one size or a range of sizes: ``64KiB``, ``1KiB-128KiB``.

    Raises:
        InvalidInput: it is neither, or the range is empty.
    """
    low, _, high = text.partition("-")
    smallest, largest = parse_size(low), parse_size(high or low)
    if smallest > largest:
        raise InvalidInput(f"{text!r} is an empty range")
    if smallest < MARKER_BYTES:
        raise InvalidInput(f"a segment has at least {MARKER_BYTES} bytes, which name its place")
    return smallest, largest


def base_url(url: str) -> str:
    """The URL below which channels live. A URL without a path means the usual base path.

    Raises:
        InvalidURL: it is not the URL of a server.
    """
    return parse_server_url(url) + normalize_base_path(urlsplit(url).path or wire.DEFAULT_BASE_PATH)


def segments_in(for_s: float, every_s: float) -> int:
    """The number of segments that begin within ``for_s`` seconds: at least one."""
    return max(1, math.ceil(for_s / every_s - 1e-9))


@contextmanager
def progress(out: Console, run: StressRun) -> Iterator[None]:
    """Show a line with the progress while the block runs, on a terminal only."""
    if not out.is_terminal:
        yield
        return
    from rich.live import Live

    with Live(get_renderable=lambda: progress_line(run), console=out, transient=True):
        yield


def progress_line(run: StressRun) -> str:
    ledger, load = run.ledger, run.plan.load
    total = load.segments * load.channels
    return (
        f"{run.phase}: {ledger.published.wanted} of {total} segments published, {ledger.received.segments} of"
        f" {total * run.plan.subscribers} received, {count(ledger.faults.total(), 'fault')}"
    )


def _show(run: StressRun, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(as_document(run), indent=1))
    else:
        print_report(console(), run)


def as_document(run: StressRun) -> dict[str, Any]:
    """The result as JSON holds it; docs/reference/stress.md describes it."""
    plan, ledger = run.plan, run.ledger

    def traffic(side: Traffic) -> dict[str, Any]:
        return {**vars(side), "bytes_per_s": round(side.bytes / run.seconds) if run.seconds else 0}

    return {
        "version": VERSION,
        "url": wire.redacted(plan.base),
        "publishers": plan.load.channels,
        "subscribers": plan.subscribers,
        "processes": plan.processes,
        "load": asdict(plan.load),
        "interrupted": run.interrupted,
        "seconds": round(run.seconds, 3),
        "published": traffic(ledger.published),
        "received": traffic(ledger.received),
        "faults": {fault.name.lower(): ledger.faults[fault] for fault in FaultKind},
        "examples": {fault.name.lower(): ledger.examples[fault] for fault in FaultKind if fault in ledger.examples},
        "latency_ms": {
            "void": run.bottlenecks,
            "first_byte": ledger.latencies["first_byte"].quantiles(),
            "whole": ledger.latencies["whole"].quantiles(),
        },
        "behind_schedule_ms": ledger.latencies["behind"].quantiles(),
        "workers": {name: None if health is None else asdict(health) for name, health in run.health.items()},
        "ok": not ledger.faults,
    }


def print_report(out: Console, run: StressRun) -> None:
    plan, ledger, load = run.plan, run.ledger, run.plan.load
    publishers, subscribers = count(load.channels, "publisher"), count(plan.subscribers, "subscriber")
    out.print(
        f"{publishers}, {'each ' if load.channels > 1 else ''}with {subscribers} on {plan.base},"
        f" {run.seconds:.1f} s{', interrupted' if run.interrupted else ''} (seed {load.seed})",
        style="bold",
    )
    for name, side in (("published", ledger.published), ("received", ledger.received)):
        words = [f"{side.segments} of {count(side.wanted, 'segment')}", size(side.bytes)]
        words += [f"{size(side.bytes / run.seconds)}/s"] if run.seconds else []
        words += [f"{side.counts[name]} {name}" for name in _ACTIVITY if side.counts[name]]
        out.print(f"{name:<11} {', '.join(words)}")
    for name, latencies in ledger.latencies.items():
        q = latencies.quantiles()
        if q["samples"]:
            figures = f"p50 {q['p50']:.1f}  p95 {q['p95']:.1f}  p99 {q['p99']:.1f}  max {q['max']:.1f} ms"
            out.print(f"{name.replace('_', ' '):<11} {figures}", end="  ")
            out.print(LATENCIES[name], style="dim")
        else:
            out.print(f"{name.replace('_', ' '):<11} no segment to tell by")
    for name, health in run.health.items():
        if health is not None:
            out.print(f"{name}: {health.cpu:.0%} of a core, event loop {health.lag_ms:.1f} ms late (p99)", style="dim")
    if reasons := run.bottlenecks:
        out.print("THE TOOL WAS THE BOTTLENECK: the latencies above say nothing about the server", style="bold yellow")
        for reason in [*reasons, "use more --processes, another machine, or a smaller load"]:
            out.print(f"  {reason}", style="yellow")
    if not ledger.faults:
        out.print(
            "no faults: every segment reached every subscriber once, in order, with the same bytes", style="green"
        )
    for fault in FaultKind:
        if number := ledger.faults[fault]:
            out.print(f"{fault}: {number}", style="bold red", end=" ")
            out.print(f"— {fault.meaning}")
            for where in ledger.examples[fault]:
                out.print(f"    {where}", style="dim")
