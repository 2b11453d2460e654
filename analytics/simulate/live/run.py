"""Plays acts against a server: what can go on side by side does, the others one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import anyio

from tricklecast.analytics.simulate.live.acts import ACTS, Act
from tricklecast.analytics.simulate.live.stage import ActImpossible, Loop, Stage, first_of

REQUESTS: Final = 60
"""Requests that a client makes unless told otherwise: critical by number (``StormParams.critical_hits_alone``)."""

RATE: Final = 20.0
"""Requests per second and client unless told otherwise: twice what is critical (``StormParams.critical_rps``)."""


APART_S: Final = 12.0
"""Between acts that the whole server is concerned with, seconds: with less they would be one storm in its log
(``StormParams.herd_gap_s``)."""


@dataclass(frozen=True, slots=True)
class Performance:
    """What became of an act.

    Attributes:
        name: the act's; act: the act.
        loops: what its clients did; empty if it could not be played.
        impossible: why it could not.
    """

    name: str
    act: Act
    loops: tuple[Loop, ...] = ()
    impossible: str | None = None


async def perform(
    base: str,
    names: Iterable[str],
    prefix: str,
    *,
    requests: int = REQUESTS,
    rate: float = RATE,
    tell: Callable[[Performance], None] = lambda performance: None,
) -> list[Performance]:
    """Play these acts.

    Args:
        base: URL below which the server's channels are. names: keys of
            :data:`~analytics.simulate.live.acts.ACTS`.
        prefix: what all channels and clients made for this begin with.
        requests, rate: of each client, at most, and per second.
        tell: called with each act's performance when it is over.

    Raises:
        ServerUnreachable: nobody answers at ``base``.
    """
    performances: list[Performance] = []

    async def play(name: str) -> None:
        act = ACTS[name]
        try:
            loops = await act.play(Stage(base, name, prefix, requests, rate))
            performance = Performance(name, act, tuple(loops))
        except* ActImpossible as group:
            performance = Performance(name, act, impossible=str(first_of(group)))
        performances.append(performance)
        tell(performance)

    chosen = list(names)
    async with anyio.create_task_group() as together:
        for name in chosen:
            if not ACTS[name].alone:
                together.start_soon(play, name)
    for name in chosen:
        if ACTS[name].alone:
            if performances:
                await anyio.sleep(APART_S)
            await play(name)
    return sorted(performances, key=lambda performance: chosen.index(performance.name))
