"""The result of a stress run, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tricklecast.app.tools.stress.ledger import Fault, Latencies, Traffic
from tricklecast.app.tools.stress.runner import BOTTLENECK_ADVICE, Run
from tricklecast.trickle.terminal import count, size
from tricklecast.trickle.wire import redacted

if TYPE_CHECKING:
    from rich.console import Console

VERSION: Final = 1
"""Of the JSON document."""

_REFRESH_HZ: Final = 4

_ACTIVITY: Final = ("requests", "retries", "resumed", "dropped", "lost", "missed", "truncated", "broken", "refreshes")
"""The numbers among the libraries' statistics that the report shows. The JSON has all of them."""


@contextmanager
def progress(out: Console, run: Run) -> Iterator[None]:
    """Show a line with the progress while the block runs, on a terminal only."""
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
    """The progress of a run in one line."""
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
            "void": run.bottlenecks,
            "first_byte": _quantiles(ledger.first_byte),
            "whole": _quantiles(ledger.whole),
        },
        "behind_schedule_ms": _quantiles(ledger.behind),
        "workers": {worker.name: None if worker.health is None else asdict(worker.health) for worker in run.workers},
        "ok": not ledger.faults,
    }


def _traffic(traffic: Traffic, seconds: float) -> dict[str, Any]:
    per_s = traffic.bytes / seconds if seconds else 0.0
    return {**asdict(traffic), "bytes_per_s": round(per_s)}


def _quantiles(latencies: Latencies) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(latencies.quantiles()).items()}


def print_report(out: Console, run: Run) -> None:
    """Print the result for people."""
    plan, ledger, load = run.plan, run.ledger, run.plan.load
    publishers, subscribers = count(load.channels, "publisher"), count(plan.subscribers, "subscriber")
    out.print(
        f"{publishers}, {'each ' if load.channels > 1 else ''}with {subscribers} on {plan.base},"
        f" {run.seconds:.1f} s{', interrupted' if run.interrupted else ''} (seed {load.seed})",
        style="bold",
    )
    out.print(f"published   {_sums(ledger.published, run.seconds)}")
    out.print(f"received    {_sums(ledger.received, run.seconds)}")
    _print_latency(out, "first byte", ledger.first_byte, "from when a segment's first chunk was due to its arrival")
    _print_latency(out, "whole", ledger.whole, "from when its last chunk was due to the arrival of its end")
    _print_latency(out, "behind", ledger.behind, "delay of writing behind the schedule")
    _print_workers(out, run)
    _print_faults(out, run)


def _sums(traffic: Traffic, seconds: float) -> str:
    words = [f"{traffic.segments} of {count(traffic.wanted, 'segment')}", size(traffic.bytes)]
    words += [f"{size(traffic.bytes / seconds)}/s"] if seconds else []
    words += [f"{traffic.counts[name]} {name}" for name in _ACTIVITY if traffic.counts.get(name)]
    return ", ".join(words)


def _print_latency(out: Console, name: str, latencies: Latencies, meaning: str) -> None:
    q = latencies.quantiles()
    if not q.samples:
        out.print(f"{name:<11} no segment to tell by")
        return
    out.print(f"{name:<11} p50 {q.p50:.1f}  p95 {q.p95:.1f}  p99 {q.p99:.1f}  max {q.max:.1f} ms", end="  ")
    out.print(meaning, style="dim")


def _print_workers(out: Console, run: Run) -> None:
    for worker in run.workers:
        if (health := worker.health) is not None:
            lag = f"event loop {health.lag_ms:.1f} ms late (p99)"
            out.print(f"{worker.name}: {health.cpu:.0%} of a core, {lag}", style="dim")
    if reasons := run.bottlenecks:
        out.print("THE TOOL WAS THE BOTTLENECK: the latencies above say nothing about the server", style="bold yellow")
        for reason in [*reasons, BOTTLENECK_ADVICE]:
            out.print(f"  {reason}", style="yellow")


def _print_faults(out: Console, run: Run) -> None:
    faults = run.ledger.faults
    if not faults:
        out.print(
            "no faults: every segment reached every subscriber once, in order, with the same bytes", style="green"
        )
    for fault in Fault:
        if number := faults.counts[fault]:
            out.print(f"{fault}: {number}", style="bold red", end=" ")
            out.print(f"— {fault.meaning}")
            for where in faults.examples[fault]:
                out.print(f"    {where}", style="dim")
