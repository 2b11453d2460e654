"""Every figure of a report, from the cached roll-up and the episodes that were found in it: two actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analytics.metrics import clocks, gaps, minutes, shares, success, timeline
from analytics.metrics.parts import collect_parts
from analytics.metrics.wanted import judged
from analytics.report.figures import BudgetBreak, NodeMinute, Offender, Quality, Share, Success, Timeline, Totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from analytics.metrics.parts import Row
    from analytics.metrics.totals import Overview
    from analytics.params import StormParams
    from analytics.report.model import Episode


@dataclass(frozen=True, slots=True)
class Figures:
    """What a report says besides what was found; the attributes are those of :class:`analytics.report.model.Report`.

    ``episodes`` are those that were given, with ``sparkline``, ``outcome`` and ``blast`` filled in. ``quality`` lacks
    what only the reader of the files knows: damaged files and duplicates.
    """

    totals: Totals
    quality: Quality
    success: Success
    episodes: tuple[Episode, ...]
    worst_minute: NodeMinute | None
    by_node: tuple[Share, ...]
    by_channel: tuple[Share, ...]
    by_release: tuple[Share, ...]
    offending_clients: tuple[Offender, ...]
    offending_releases: tuple[Offender, ...]
    offending_networks: tuple[Offender, ...]
    budget_breaks: tuple[BudgetBreak, ...]
    n_budget_breaks: int
    timeline: Timeline | None


def measure(rollup: DataFrame, seen: Overview, episodes: Sequence[Episode], params: StormParams) -> Figures:
    """All figures.

    Args:
        rollup: persisted, or it is computed once per figure.
        seen: :func:`analytics.metrics.totals.overview` of it.
        episodes: the worst ones found in it, the worst first.
    """
    rows = judged(rollup, params).persist()
    try:
        found = collect_parts(_frames(rollup, rows, seen, params))
    finally:
        rows.unpersist()
    return _figures(found, seen, tuple(episodes))


def _frames(rollup: DataFrame, rows: DataFrame, seen: Overview, params: StormParams) -> dict[str, DataFrame]:
    by_minute = minutes.node_minutes(rows)
    breaks = minutes.node_breaks(by_minute, params).unionAll(minutes.client_breaks(rows, params))
    frames = {
        "outcomes": success.outcomes(rows),
        "recoveries": success.recoveries(rows),
        "worst_minute": minutes.worst_minutes(by_minute, params),
        "breaks": minutes.listed(breaks, params),
        "n_breaks": minutes.counted(breaks),
        "markers": timeline.markers(rollup, params),
        "gaps": gaps.silences(rollup, params),
        "clocks": clocks.overlaps(rollup),
    }
    frames |= {f"by_{name}": shares.by(rows, name, params) for name in ("node", "channel", "release")}
    frames |= {f"worst_{name}": shares.worst(rows, name, params) for name in ("client", "release", "net")}
    if seen.from_us is not None:
        frames["traffic"] = timeline.traffic(rollup, seen)
    return frames


def _figures(found: dict[str, list[Row]], seen: Overview, episodes: tuple[Episode, ...]) -> Figures:
    repeats = sum(row["n"] - row["wanted"] for row in found["outcomes"])
    recovered = sum(row["recovered"] for row in found["recoveries"])
    named = Counter(name for episode in episodes for name in episode.clients)
    releases = Counter(episode.release for episode in episodes if episode.release is not None)
    lines = [episode.sparkline for episode in episodes if episode.sparkline is not None]
    return Figures(
        totals=seen.totals(repeats),
        quality=replace(
            seen.quality(), gaps=gaps.log_gaps(found["gaps"]), clock_steps=clocks.clock_steps(found["clocks"])
        ),
        success=success.success(found["outcomes"], recovered),
        episodes=episodes,
        worst_minute=minutes.worst_minute(found["worst_minute"]),
        by_node=shares.shares(found["by_node"]),
        by_channel=shares.shares(found["by_channel"]),
        by_release=shares.shares(found["by_release"]),
        offending_clients=shares.offenders(found["worst_client"], repeats, named),
        offending_releases=shares.offenders(found["worst_release"], repeats, releases),
        offending_networks=shares.offenders(found["worst_net"], repeats, {}),
        budget_breaks=minutes.budget_breaks(found["breaks"]),
        n_budget_breaks=sum(row["count"] for row in found["n_breaks"]),
        timeline=timeline.timeline(seen, found.get("traffic", []), found["markers"], lines),
    )
