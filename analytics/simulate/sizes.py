"""How large a log is to be: from what was asked for to servers, channels and readers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.catalogue import Set
from tricklecast.analytics.simulate.fleet import CADENCES_S, IDLE_SHARE, PROBES, Show, swing
from tricklecast.analytics.simulate.plan import PLANTED, PLANTED_SMALL, Outage
from tricklecast.trickle.errors import InvalidInput

DEFAULT_LINES: Final = 500_000
DEFAULT_S: Final = 7200.0
SHORTEST_S: Final = 1200.0
ROUND_LINES: Final = {Set.STANDARD: 185_000, Set.GREY: 9_000, Set.HEALTHY: 0}
"""About what every script of a set once amounts to, lines."""

MIN_LINES: Final = 100
MAX_LINES: Final = 1_000_000_000

MAX_PROBED: Final = 0.05
"""Where they would be a larger share of the lines, no machines ask for the servers' health. A share, 0 to 1."""

_MEAN_RATE: Final = sum(share / every for every, share in CADENCES_S) / sum(share for _, share in CADENCES_S)
"""Lines per second and reader, in the mean."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a log.

    Attributes:
        lines: about how many. planted: how many of them the scenes may have.
        duration_us: from its first to its last line.
        nodes: servers. probed: whether machines ask for their health all the time.
        channels: at a time. readers: in the mean, at a time.
    """

    lines: int
    planted: int
    duration_us: int
    nodes: int
    probed: bool
    channels: int
    readers: float


def sizes(
    *,
    lines: int | None = None,
    duration_s: float | None = None,
    nodes: int | None = None,
    clients: int | None = None,
    channels: int | None = None,
    kind: Set = Set.STANDARD,
) -> Sizes:
    """What is not given follows from what is: lines = time x (readers + publishers) x their pace.

    Args:
        kind: the scenes that the log has besides the fleet.

    Raises:
        InvalidInput: it cannot be so large, or so small.
    """
    duration = duration_s or _duration(lines or DEFAULT_LINES)
    if lines is None and clients is not None:
        rate = (clients + (channels or max(1, clients // 10))) * _MEAN_RATE
        lines = round(rate * duration / (1 - PLANTED if ROUND_LINES[kind] else 1))
    lines = lines or DEFAULT_LINES
    if not MIN_LINES <= lines <= MAX_LINES:
        raise InvalidInput(f"a log has {MIN_LINES:,} to {MAX_LINES:,} lines, not {lines:,}")
    nodes = nodes or (2 if lines < 30_000 else 4)
    share = _planted(lines, kind)
    machines = _probed(duration, nodes)
    probed = machines <= MAX_PROBED * lines
    rate = max(0.0, (lines - share - probed * machines) / duration)
    senders = rate / _MEAN_RATE
    # One publisher to ten readers, unless a number was given; where there is hardly anybody, one channel.
    channels = channels or max(1, min(20_000, round(senders / 11)))
    return Sizes(lines, share, micros(duration), nodes, probed, channels, max(0.0, senders - channels))


def _planted(lines: int, kind: Set) -> int:
    once = ROUND_LINES[kind]
    return max(round(PLANTED * lines), min(once, round(PLANTED_SMALL * lines))) if once else 0


def _duration(lines: int) -> float:
    return min(DEFAULT_S, max(SHORTEST_S, DEFAULT_S * lines / 20_000))


def _probed(duration_s: float, nodes: int) -> float:
    return nodes * duration_s * sum(1 / every for _, every, _ in PROBES)


def shows(size: Sizes, seed: int, start_us: int, nodes: list[str], outages: list[Outage], planted: int) -> list[Show]:
    """The fleet's channels, with audiences such that the log gets as many lines as it should.

    Args:
        planted: lines of the scenes.
    """
    lines = size.lines - planted - size.probed * _probed(size.duration_us / 1e6, size.nodes)
    rng = random.Random(f"{seed}/shows")
    cadences = rng.choices([every for every, _ in CADENCES_S], [share for _, share in CADENCES_S], k=size.channels)
    # A few channels have most of the audience.
    weights = [1 / (rank + 1) ** 0.7 for rank in range(size.channels)]
    rng.shuffle(weights)
    idle = [rng.random() < IDLE_SHARE and size.channels > 3 for _ in cadences]
    seconds = size.duration_us / 1e6
    paces = [1 / 20 if still else 1 / every for every, still in zip(cadences, idle, strict=True)]
    posts = sum(pace for pace, still in zip(paces, idle, strict=True) if not still) * seconds
    reads = sum(pace * weight for pace, weight in zip(paces, weights, strict=True)) * seconds
    usual = sum(swing(start_us + size.duration_us * part // 12) for part in range(13)) / 13
    scale = max(0.0, lines - posts) / (reads * usual)
    found = []
    for number, (every, weight, still) in enumerate(zip(cadences, weights, idle, strict=True)):
        node = nodes[number % len(nodes)]
        mine = [outage for outage in outages if outage.node == node]
        own = random.Random(f"{seed}/show/{number}")
        found.append(Show(own, node, mine, weight * scale, micros(every), start_us, idle=still))
    return found
