"""Whether the tool itself was the bottleneck, so that its figures say more about it than about the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tricklecast.trickle.stress import Health

CPU_SHARE: Final = 0.8
"""A process that uses more of a core than this, on average, has seconds in which it is behind."""

LAG_MS: Final = 20.0
"""An event loop that is late by more than this (99th percentile) adds to every latency what it is meant to measure;
latencies of a server on the same network are below it."""

CURE: Final = "use more --processes, another machine, or a smaller load"


def bottlenecks(health: Mapping[str, Health | None]) -> list[str]:
    """Why the latencies are void: one line per process that could not keep up.

    Args:
        health: of each process, by its name; ``None`` for one that has not reported.
    """
    return [f"{name} {reason}" for name, state in health.items() if state is not None for reason in _reasons(state)]


def _reasons(health: Health) -> Iterable[str]:
    if health.cpu > CPU_SHARE:
        yield f"used {health.cpu:.0%} of a core (more than {CPU_SHARE:.0%})"
    if health.lag_ms > LAG_MS:
        yield f"ran its event loop {health.lag_ms:.0f} ms late (more than {LAG_MS:.0f} ms, p99)"
    if health.late_ms > LAG_MS:
        yield f"woke {health.late_ms:.0f} ms late to publish (more than {LAG_MS:.0f} ms, p99)"
