"""The result of a stress run, for people and for programs. Colours appear on a terminal only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tricklecast.app.stress.bottleneck import CURE, bottlenecks
from tricklecast.app.stress.faults import MEANING, Fault
from tricklecast.app.stress.histogram import Quantiles
from tricklecast.app.stress.ledger import Traffic
from tricklecast.app.stress.runner import Run
from tricklecast.trickle.terminal import count, size
from tricklecast.trickle.wire import redacted

if TYPE_CHECKING:
    from rich.console import Console

VERSION: Final = 1
"""Of the JSON document."""

_REFRESH_HZ: Final = 4

_ACTIVITY: Final = ("requests", "retries", "resumed", "dropped", "lost", "missed", "truncated", "broken", "refreshes")
"""Which of the libraries' own figures people are shown; the JSON has all of them."""


def console(*, stderr: bool = False) -> Console:
    """Where to print: lines stay whole, so that they can be searched when they go into a file."""
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)


@contextmanager
def progress(out: Console, run: Run) -> Iterator[None]:
    """Keep a line up to date while the block runs; on a terminal only."""
    if not out.is_terminal:
        yield
        return
    from rich.live import Live

    class Line:
        def __rich__(self) -> str:
            return progress_line(run)

    with Live(Line(), console=out, refresh_per_second=_REFRESH_HZ, transient=True):
        yield


def progress_line(run: Run) -> str:
    """How a run stands, in one line."""
    ledger, load = run.ledger, run.plan.load
    total = load.segments * load.channels
    faults = sum(ledger.faults.counts.values())
    return (
        f"{run.phase}: {ledger.published.wanted} of {total} segments published, {ledger.received.segments} of"
        f" {total * run.plan.subscribers} received, {count(faults, 'fault')}"
    )


def as_document(run: Run) -> dict[str, Any]:
    """The result as JSON holds it; docs/reference/stress.md describes it."""
    plan, ledger = run.plan, run.ledger
    void = bottlenecks({worker.name: worker.health for worker in run.workers})
    return {
        "version": VERSION,
        "url": redacted(plan.base),
        "publishers": plan.load.channels,
        "subscribers": plan.subscribers,
        "processes": plan.processes,
        "start": plan.start,
        "load": asdict(plan.load),
        "interrupted": run.interrupted,
        "seconds": round(run.seconds, 3),
        "published": _traffic(ledger.published, run.seconds),
        "received": _traffic(ledger.received, run.seconds),
        "faults": {fault.name.lower(): ledger.faults.counts[fault] for fault in Fault},
        "examples": {fault.name.lower(): where for fault, where in ledger.faults.examples.items()},
        "latency_ms": {
            "void": void,
            "first_byte": _rounded(ledger.first_byte.quantiles()),
            "whole": _rounded(ledger.whole.quantiles()),
        },
        "behind_schedule_ms": _rounded(ledger.behind.quantiles()),
        "workers": {worker.name: None if worker.health is None else asdict(worker.health) for worker in run.workers},
        "ok": not ledger.faults,
    }


def _traffic(traffic: Traffic, seconds: float) -> dict[str, Any]:
    per_s = traffic.bytes / seconds if seconds else 0.0
    return {**asdict(traffic), "bytes_per_s": round(per_s)}


def _rounded(quantiles: Quantiles) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(quantiles).items()}


def print_report(out: Console, run: Run) -> None:
    """Print the result for people."""
    plan, ledger = run.plan, run.ledger
    load = plan.load
    early = ", interrupted" if run.interrupted else ""
    publishers, subscribers = count(load.channels, "publisher"), count(plan.subscribers, "subscriber")
    out.print(
        f"{publishers}, {'each ' if load.channels > 1 else ''}with {subscribers} on {plan.base},"
        f" {run.seconds:.1f} s{early} (seed {load.seed})",
        style="bold",
    )
    out.print(f"published   {_line(ledger.published, run.seconds)}")
    out.print(f"received    {_line(ledger.received, run.seconds)}")
    _print_latency(out, run)
    _print_workers(out, run)
    _print_faults(out, run)


def _line(traffic: Traffic, seconds: float) -> str:
    words = [f"{traffic.segments} of {count(traffic.wanted, 'segment')}", size(traffic.bytes)]
    words += [f"{size(traffic.bytes / seconds)}/s"] if seconds else []
    words += [f"{traffic.counts[name]} {name}" for name in _ACTIVITY if traffic.counts.get(name)]
    return ", ".join(words)


def _print_latency(out: Console, run: Run) -> None:
    ledger = run.ledger
    figures = {"first byte": ledger.first_byte, "whole": ledger.whole, "behind": ledger.behind}
    meaning = {
        "first byte": "from when a segment's first chunk was due to when a subscriber had it",
        "whole": "from when its last chunk was due to when a subscriber had its end",
        "behind": "how far behind the schedule segments were written",
    }
    for name, histogram in figures.items():
        q = histogram.quantiles()
        if not q.samples:
            out.print(f"{name:<11} no segment to tell by")
            continue
        out.print(f"{name:<11} p50 {q.p50:.1f}  p95 {q.p95:.1f}  p99 {q.p99:.1f}  max {q.max:.1f} ms", end="  ")
        out.print(meaning[name], style="dim")


def _print_workers(out: Console, run: Run) -> None:
    for worker in run.workers:
        if (health := worker.health) is not None:
            lag = f"event loop {health.lag_ms:.1f} ms late (p99)"
            out.print(f"{worker.name}: {health.cpu:.0%} of a core, {lag}", style="dim")
    if reasons := bottlenecks({worker.name: worker.health for worker in run.workers}):
        out.print("THE TOOL WAS THE BOTTLENECK: the latencies above say nothing about the server", style="bold yellow")
        for reason in reasons:
            out.print(f"  {reason}", style="yellow")
        out.print(f"  {CURE}", style="yellow")


def _print_faults(out: Console, run: Run) -> None:
    faults = run.ledger.faults
    if not faults:
        out.print(
            "no faults: every segment reached every subscriber once, in order, with the same bytes", style="green"
        )
    for fault in Fault:
        if number := faults.counts[fault]:
            out.print(f"{fault}: {number}", style="bold red", end=" ")
            out.print(f"— {MEANING[fault]}")
            for where in faults.examples[fault]:
                out.print(f"    {where}", style="dim")
