"""Where the traffic was wasted, by node, channel and release; and who wasted it, in a Pareto order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tricklecast.analytics.report_old.figures import Offender, Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tricklecast.analytics.metrics.parts import Row


def shares(rows: Iterable[Row]) -> tuple[Share, ...]:
    """Rows of the cube about nodes, channels or releases: the most repeats first, then the most requests."""
    found = [
        Share(
            name=row["name"],
            requests=row["requests"],
            repeats=row["repeats"],
            bytes_out=round(row["bytes_out"]),
            wasted_bytes=round(row["wasted_bytes"]),
            clients=row["clients"],
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda share: (-share.repeats, -share.requests, share.name or "")))


def offenders(
    rows: Iterable[Row], repeats: int, episodes: Mapping[str | None, int], limit: int
) -> tuple[Offender, ...]:
    """Rows of the cube about clients, releases or networks, as shares of all repeats; those without any are left out.

    Args:
        repeats: all repeats of the log.
        episodes: how many episodes a name is found in.
        limit: how many are listed.
    """
    found: list[Offender] = []
    so_far = 0
    ranked = sorted((row for row in rows if row["repeats"]), key=lambda row: (-row["repeats"], row["name"] or ""))
    for row in ranked[:limit]:
        so_far += row["repeats"]
        found.append(
            Offender(
                name=row["name"],
                repeats=row["repeats"],
                share=row["repeats"] / repeats,
                cumulative=so_far / repeats,
                episodes=episodes.get(row["name"], 0),
            )
        )
    return tuple(found)
