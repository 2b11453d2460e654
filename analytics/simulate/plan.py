"""How a log is put together: how large it is, which scenes it has, where and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from tricklecast.analytics.simulate.lines import TimedLine, micros
from tricklecast.analytics.simulate.scene import Scene, Script
from tricklecast.analytics.simulate.scenes import scripts
from tricklecast.analytics.simulate.truth import Planted, Set
from tricklecast.trickle.errors import InvalidInput

DEFAULT_LINES: Final = 500_000
DEFAULT_S: Final = 7200.0
SHORTEST_S: Final = 1200.0
MIN_LINES: Final = 100
MAX_LINES: Final = 1_000_000_000

ROUND_LINES: Final = {Set.STANDARD: 185_000, Set.GREY: 9_000, Set.HEALTHY: 0}
"""About what every script of a set once amounts to, lines."""

PLANTED: Final = 0.35
"""Planted scenes may have this share of the lines; but one round of them may have :data:`PLANTED_SMALL`."""

PLANTED_SMALL: Final = 0.85

CADENCES_S: Final = ((0.2, 3), (0.5, 7), (1.0, 20), (2.0, 45), (4.0, 15), (6.0, 10))
"""How often channels begin a segment, and how many of a hundred do."""

_MEAN_RATE: Final = sum(share / every for every, share in CADENCES_S) / 100
"""Lines per second and reader, in the mean."""

PROBES: Final = (
    ("/healthz", 10.0, "kube-probe/1.31"),
    ("/metrics", 15.0, "Prometheus/3.5.0"),
    ("/api/v1/channels", 30.0, "dashboard/2.3"),
)
"""What machines ask each server: path, how often (seconds), user agent."""

MAX_PROBED: Final = 0.05
"""Where they would be a larger share of the lines, no machines ask for the servers' health. A share, 0 to 1."""

APART_US: Final = micros(150)
"""A scene that has a server of its own keeps others so far away: nothing of it can be taken for their trigger."""

TRIES: Final = 40
"""Places that are tried for a scene before it is left out."""

ENOUGH: Final = 25
"""After so many scenes in a row for which there is no room, the log is full."""

LARGEST: Final = 12
"""No scene has more than one in so many of the planted lines: a short log is to have more than one storm ..."""

SMALLEST: Final = 400
"""... and one of so many lines is small enough for any log."""

ALONE: Final = 0.5
"""Scenes that have a server of their own may have this share of all servers' time. A share, 0 to 1."""

SKEW_US: Final = 80_000
"""Servers' clocks are wrong by up to so much, either way. Microseconds."""

MAX_ROUNDS: Final = 50


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a log.

    Attributes:
        lines: about how many. planted: how many of them the scenes may have; probed: how many the probes have.
        duration_us: from its first to its last line.
        nodes: servers. channels: at a time.
    """

    lines: int
    planted: int
    probed: int
    duration_us: int
    nodes: int
    channels: int


def sizes(
    *,
    lines: int | None = None,
    duration_s: float | None = None,
    nodes: int | None = None,
    clients: int | None = None,
    kind: Set = Set.STANDARD,
) -> Sizes:
    """What is not given follows from what is: lines = time x (readers + publishers) x their pace.

    Args:
        clients: readers at a time, in the mean; where ``lines`` is given, it decides.
        kind: the scenes that the log has besides the fleet.

    Raises:
        InvalidInput: it cannot be so large, or so small.
    """
    duration = duration_s or min(DEFAULT_S, max(SHORTEST_S, DEFAULT_S * (lines or DEFAULT_LINES) / 20_000))
    once = ROUND_LINES[kind]
    if lines is None and clients is not None:
        senders = clients + max(1, clients // 10)
        lines = round(senders * _MEAN_RATE * duration / (1 - PLANTED if once else 1))
    lines = lines or DEFAULT_LINES
    if not MIN_LINES <= lines <= MAX_LINES:
        raise InvalidInput(f"a log has {MIN_LINES:,} to {MAX_LINES:,} lines, not {lines:,}")
    nodes = nodes or (2 if lines < 30_000 else 4)
    planted = max(round(PLANTED * lines), min(once, round(PLANTED_SMALL * lines))) if once else 0
    probed = round(nodes * duration * sum(1 / every for _, every, _ in PROBES))
    probed = probed if probed <= MAX_PROBED * lines else 0
    senders_left = max(0.0, (lines - planted - probed) / duration) / _MEAN_RATE
    # One publisher to ten readers; where there is hardly anybody, one channel.
    channels = max(1, min(20_000, round(senders_left / 11)))
    return Sizes(lines, planted, probed, micros(duration), nodes, channels)


@dataclass(frozen=True, slots=True)
class Outage:
    """A server is away, from its drain until it is ready again; microseconds."""

    node: str
    from_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A scene with its place.

    Attributes:
        script, seed, number: how to make it. It is made again when it is written: memory does not grow with the log.
        at_us: when its moment 0 is, microseconds.
        nodes: names of its servers; skews_us: by how much their clocks are ahead, microseconds.
    """

    script: Script
    seed: int
    number: int
    at_us: int
    nodes: tuple[str, ...]
    skews_us: tuple[int, ...]

    def entries(self) -> Iterator[TimedLine]:
        """Its lines, at their place, in the order of writing."""
        for end, line in self.script.scene(self.seed, self.number).entries:
            server = int(line["node"])
            shift = self.at_us + self.skews_us[server]
            line["ts_us"] += shift
            line["node"] = self.nodes[server]
            yield end + shift, line


class Program:
    """All that is planted in a log.

    Attributes:
        placed: scenes; storms, traps: what is true of them; outages: that they cause. Each in the order of time.
        left_out: names of scripts without a scene. lines: of all scenes.
    """

    def __init__(self, seed: int, start_us: int, duration_us: int, nodes: Sequence[str]) -> None:
        """
        Args:
            seed: what everything is drawn from.
            start_us, duration_us: the log's time.
            nodes: names of its servers.
        """
        self.placed: list[Placed] = []
        self.storms: list[Planted] = []
        self.traps: list[Planted] = []
        self.outages: list[Outage] = []
        self.left_out: list[str] = []
        self.lines = 0
        self._seed = seed
        self._start = start_us
        self._duration = duration_us
        self._nodes = tuple(nodes)
        self._rng = random.Random(f"{seed}/places")
        # Per server: (from, until, whether the server is the scene's own).
        self._taken: dict[str, list[tuple[int, int, bool]]] = {node: [] for node in nodes}
        self._skews = {node: self._rng.randrange(-SKEW_US, SKEW_US) for node in nodes}
        self._alone_us = 0

    def fill(self, kind: Set, max_lines: int, progress: Callable[[float], None]) -> None:
        """Places as many scenes of a set as there is room for, each script once before any comes twice.

        Args:
            max_lines: of all scenes together.
            progress: told which share of these there are, 0 to 1.
        """
        for number in range(MAX_ROUNDS):
            order = list(scripts(kind))
            self._rng.shuffle(order)
            # What needs a server of its own is placed first: what can share one finds a place in any case.
            order.sort(key=lambda script: not script.servers)
            in_vain = 0
            left_out: list[str] = []
            for script in _every_class_early(order):
                most = min(max_lines - self.lines, max(SMALLEST, max_lines // LARGEST))
                in_vain = 0 if in_vain < ENOUGH and self._place(script, number, most) else in_vain + 1
                left_out += [script.name] if in_vain else []
                progress(self.lines / max_lines)
            if number == 0:
                self.left_out = sorted(left_out)
            if len(left_out) >= len(order) // 2:
                break
        for found in (self.storms, self.traps):
            found.sort(key=lambda one: (one.start_us, one.name))
        self.outages.sort(key=lambda outage: outage.from_us)
        self.placed.sort(key=lambda placed: (placed.at_us, placed.script.name))

    def _place(self, script: Script, number: int, max_lines: int) -> bool:
        scene = script.scene(self._seed, number)
        length = scene.entries[-1][0] + micros(1)
        full = script.servers and self._alone_us + length > ALONE * self._duration * len(self._nodes)
        if full or len(scene.entries) > max_lines or length > self._duration:
            return False
        spot = self._spot(script, scene, length)
        if spot is None:
            return False
        at, nodes = spot
        for node in nodes:
            self._taken[node].append((at, at + length, script.servers > 0))
            self._alone_us += length + 2 * APART_US if script.servers else 0
        skews = tuple(self._skews[node] for node in nodes)
        self.lines += len(scene.entries)
        self.placed.append(Placed(script, self._seed, number, at, nodes, skews))
        for label in scene.labels:
            found = self.storms if label.storm else self.traps
            found.append(label.planted(f"{script.name}#{number}", at + skews[label.node], nodes))
        for server, since, until in scene.outages:
            self.outages.append(Outage(nodes[server], at + micros(since), at + micros(until)))
        return True

    def _spot(self, script: Script, scene: Scene, length: int) -> tuple[int, tuple[str, ...]] | None:
        """A time and servers for a scene; ``None`` if none of those that are tried is free."""
        latest = self._start + self._duration - length
        for turn in range(TRIES):
            nodes = self._candidates(script, turn)
            at = self._start + int(self._rng.random() * (latest - self._start))
            if nodes and script.border_s:
                first, last = scene.labels[0].span_us
                anchor = self._skews[nodes[0]] + (first if script.border_s == 1 else (first + last) // 2)
                at -= (at + anchor) % micros(script.border_s)
            if nodes and self._start <= at <= latest and all(self._free(script, node, at, length) for node in nodes):
                return at, nodes
        return None

    def _candidates(self, script: Script, turn: int) -> tuple[str, ...]:
        """Servers to try: scenes that want one alone fill up the first ones, the others go anywhere."""
        if not script.servers:
            return (self._rng.choice(self._nodes),)
        if script.servers == 1:
            return (self._nodes[turn * len(self._nodes) // TRIES],)
        enough = len(self._nodes) >= script.servers
        return tuple(self._rng.sample(self._nodes, script.servers)) if enough else ()

    def _free(self, script: Script, node: str, at: int, length: int) -> bool:
        return not any(
            (script.servers or others_own) and at - APART_US < until and since < at + length + APART_US
            for since, until, others_own in self._taken[node]
        )


def _every_class_early(order: Sequence[Script]) -> Iterator[Script]:
    """The same scripts, those of each kind in turn: a short log has some of every class, and of the look-alikes."""
    by_kind: dict[str, list[Script]] = {}
    for script in order:
        by_kind.setdefault(script.kind if script.kind != "trap" else script.name.partition("/")[0], []).append(script)
    for row in zip_longest(*by_kind.values()):
        yield from (script for script in row if script)
