"""What was played, as the truth that a report of the server's log is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tricklecast.analytics.simulate.live.run import Performance
from tricklecast.analytics.simulate.live.stage import Loop
from tricklecast.analytics.simulate.truth import LIVE, Storm, Truth

ANY_NODE: Final = ""
"""A client does not know what its server calls itself in the log."""


def truth_of(performances: Iterable[Performance]) -> Truth:
    """The storms of these acts, by the clients' clock.

    Returns:
        a truth without seed and lines; acts that could not be played are ``left_out``.
    """
    played = list(performances)
    storms = [storm for performance in played if performance.loops for storm in _storms(performance)]
    return Truth(
        seed=0,
        kind=LIVE,
        lines=0,
        storms=tuple(sorted(storms, key=lambda storm: storm.start_us)),
        traps=(),
        left_out=tuple(performance.name for performance in played if performance.impossible is not None),
    )


def _storms(performance: Performance) -> list[Storm]:
    if performance.act.as_one:
        return [_storm(performance, performance.loops)]
    return [_storm(performance, (loop,)) for loop in performance.loops]


def _storm(performance: Performance, loops: tuple[Loop, ...]) -> Storm:
    seqs = [seq for loop in loops for seq in loop.seqs]
    return Storm(
        name=performance.name,
        storm=performance.act.storm,
        start_us=min(loop.first_us for loop in loops),
        end_us=max(loop.last_us for loop in loops),
        n=sum(len(loop.statuses) for loop in loops),
        clients=tuple(loop.client for loop in loops),
        channels=tuple(sorted({loop.channel for loop in loops})),
        node=ANY_NODE,
        release=f"simulated-{performance.name}/1",
        seq_lo=min(seqs),
        seq_hi=max(seqs),
        trigger=performance.act.trigger,
    )
