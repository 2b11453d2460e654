"""Every figure of a report, from the cached roll-up and the episodes that were found in it: two actions.

The first needs no episodes, and runs while they are looked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tricklecast.analytics.metrics import blast, clocks, gaps, minutes, outcomes, sparklines, timeline
from tricklecast.analytics.metrics.cube import Kind, cube
from tricklecast.analytics.metrics.members import members as members_of
from tricklecast.analytics.metrics.members import networks
from tricklecast.analytics.metrics.parts import collect_parts, persisted
from tricklecast.analytics.metrics.shares import offenders, shares
from tricklecast.analytics.metrics.success import success
from tricklecast.analytics.metrics.wanted import judged
from tricklecast.analytics.report_old.figures import (
    BudgetBreak,
    NodeMinute,
    Offender,
    Quality,
    Share,
    Success,
    Timeline,
    Totals,
)

if TYPE_CHECKING:
    from tricklecast.analytics.divided import Divided
    from tricklecast.analytics.metrics.parts import Row
    from tricklecast.analytics.metrics.totals import Overview
    from tricklecast.analytics.params import StormParams
    from tricklecast.analytics.report_old.model import Episode

    Parts = dict[str, list[Row]]


_OF_EPISODES: Final = ("arrivals", "served", "waits", "networks")
"""What is asked only if there are episodes."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a report says besides what was found; the attributes are those of
    :class:`analytics.report_old.model.Report`.

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


def of_traffic(parts: Divided, seen: Overview, params: StormParams) -> Parts:
    """What is to be known whether there are storms or not: the rows behind most figures.

    Args:
        parts: of a roll-up; seen: :func:`analytics.metrics.totals.overview` of it.
    """
    with persisted(judged(parts.telling.where("NOT quiet"), params)) as rows:
        return collect_parts(
            {
                "cube": cube(rows, parts, params),
                "markers": timeline.markers(parts.telling, params),
                "gaps": gaps.cells(parts.arrivals(), seen),
                "clocks": clocks.scattered(parts.rollup),
            }
        )


def of_episodes(parts: Divided, episodes: Sequence[Episode], params: StormParams) -> Parts:
    """What is to be known of each storm.

    Args:
        parts: as of :func:`of_traffic`; episodes: the worst ones found in it, the worst first.
    """
    if not episodes:
        return {name: [] for name in _OF_EPISODES}
    steps = [sparklines.step_width(episode.start_us, episode.end_us) for episode in episodes]
    with persisted(members_of(parts.telling, episodes, steps)) as members:
        return collect_parts(
            {
                "arrivals": sparklines.arrivals(members),
                "served": outcomes.served_again(parts.answered(), members),
                "waits": blast.healthy_waits(parts.rollup, members, episodes, params),
                "networks": networks(members),
            }
        )


def figures(found: Parts, seen: Overview, episodes: Sequence[Episode], params: StormParams) -> Figures:
    """All figures.

    Args:
        found: of the traffic and of the episodes.
    """
    episodes = _filled(episodes, found, seen, params)
    of: dict[str, list[Row]] = {kind: [] for kind in Kind}
    for row in found["cube"]:
        of[row["kind"]].append(row)
    repeats = sum(row["repeats"] for row in of[Kind.ALL])
    named: Counter[str | None] = Counter(name for episode in episodes for name in episode.clients)
    releases = Counter(episode.release for episode in episodes)
    lines = [episode.sparkline for episode in episodes if episode.sparkline is not None]
    breaks = minutes.budget_breaks(of[Kind.NODE_BREAK], of[Kind.CLIENT_BREAK])
    networked = {row["net"]: row["episodes"] for row in found["networks"]}
    most = params.max_offenders
    return Figures(
        totals=seen.totals(repeats),
        quality=replace(
            seen.quality(), gaps=gaps.log_gaps(found["gaps"], params), clock_steps=clocks.clock_steps(found["clocks"])
        ),
        success=success(of[Kind.ALL]),
        episodes=episodes,
        worst_minute=minutes.worst_minute(of[Kind.BUSY_MINUTE]),
        by_node=shares(of[Kind.NODE]),
        by_channel=shares(of[Kind.CHANNEL]),
        by_release=shares(of[Kind.RELEASE]),
        offending_clients=offenders(of[Kind.CLIENT], repeats, named, most),
        offending_releases=offenders(of[Kind.RELEASE], repeats, releases, most),
        offending_networks=offenders(of[Kind.NET], repeats, networked, most),
        budget_breaks=breaks[: params.max_budget_breaks],
        n_budget_breaks=len(breaks),
        timeline=timeline.timeline(seen, of[Kind.STEPS], found["markers"], lines),
    )


def _filled(episodes: Sequence[Episode], found: Parts, seen: Overview, params: StormParams) -> tuple[Episode, ...]:
    lines = sparklines.sparklines(episodes, found["arrivals"])
    ends = outcomes.outcomes(episodes, found["served"], seen.to_us, params)
    blasts = blast.blasts(episodes, found["waits"])
    return tuple(
        replace(episode, sparkline=line, outcome=end.value, blast=hit)
        for episode, line, end, hit in zip(episodes, lines, ends, blasts, strict=True)
    )
