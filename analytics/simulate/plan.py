"""How a log is put together: how large its fleet is, which scenes it has, where and when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tricklecast.analytics.durations import micros
from tricklecast.analytics.simulate.catalogue import Needs, Script, Set, scripts
from tricklecast.analytics.simulate.entries import Entry
from tricklecast.analytics.simulate.scene import Scene
from tricklecast.analytics.simulate.truth import Storm, Trap, moved, moved_trap

APART_S: Final = 150.0
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

KEPT_LINES: Final = 150_000
"""Lines of scenes that are kept from planning to writing; beyond that, scenes are made twice to save memory."""

MAX_ROUNDS: Final = 50
PLANTED: Final = 0.35
"""Planted scenes may have this share of the lines; but one round of them may have :data:`PLANTED_SMALL`."""

PLANTED_SMALL: Final = 0.85


@dataclass(frozen=True, slots=True)
class Placed:
    """A scene with its place.

    Attributes:
        script, number: how to make it.
        at_us: when its moment 0 is, microseconds.
        nodes: names of its servers; skews_us: by how much their clocks are ahead, microseconds.
        lines: how many it has.
    """

    script: Script
    number: int
    seed: int
    at_us: int
    nodes: tuple[str, ...]
    skews_us: tuple[int, ...]
    lines: int
    kept: Scene | None = field(default=None, compare=False, repr=False)

    def entries(self) -> list[Entry]:
        """Its lines, at their place, in the order of writing."""
        scene = self.kept or self.script.scene(self.seed, self.number)
        found = []
        for end, line in scene.entries:
            server = int(line["node"])
            shift = self.at_us + self.skews_us[server]
            line["ts_us"] += shift
            line["node"] = self.nodes[server]
            found.append((end + shift, line))
        return found


@dataclass(frozen=True, slots=True)
class Outage:
    """A server is away.

    Attributes:
        node: which; from_us, until_us: from its drain until it is ready again.
    """

    node: str
    from_us: int
    until_us: int


@dataclass(slots=True)
class Program:
    """All that is planted in a log."""

    placed: list[Placed] = field(default_factory=list)
    storms: list[Storm] = field(default_factory=list)
    traps: list[Trap] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """Lines of all scenes."""
        return sum(placed.lines for placed in self.placed)


class Planner:
    """Finds places for scenes.

    Args:
        seed: what everything is drawn from.
        start_us, duration_us: the log's time.
        nodes: names of its servers.
    """

    def __init__(self, seed: int, start_us: int, duration_us: int, nodes: Sequence[str]) -> None:
        self._seed = seed
        self._start = start_us
        self._duration = duration_us
        self._nodes = tuple(nodes)
        self._rng = random.Random(f"{seed}/places")
        # Per server: (from, until, whether the server is the scene's own).
        self._taken: dict[str, list[tuple[int, int, bool]]] = {node: [] for node in nodes}
        self._skews = {node: self._rng.randrange(-SKEW_US, SKEW_US) for node in nodes}
        self._alone_us = 0
        self._kept = 0
        self.program = Program()

    def plan(self, kind: Set, max_lines: int) -> Program:
        """Places as many scenes of a set as there is room for, each script once before any comes twice.

        Args:
            max_lines: of all scenes together.
        """
        for number in range(MAX_ROUNDS):
            if not self._round(kind, number, max_lines):
                break
        for found in (self.program.storms, self.program.traps):
            found.sort(key=lambda one: (one.start_us, one.name))
        self.program.outages.sort(key=lambda outage: outage.from_us)
        self.program.placed.sort(key=lambda placed: (placed.at_us, placed.script.name))
        return self.program

    def _round(self, kind: Set, number: int, max_lines: int) -> bool:
        """Every script once; whether there may be room for more."""
        order = list(scripts(kind))
        self._rng.shuffle(order)
        # Of each kind, what needs a server of its own is placed first: what can share one finds a place in any case.
        order.sort(key=lambda script: script.needs is Needs.COMPANY)
        in_vain = 0
        left_out: list[str] = []
        for script in _every_class_early(order):
            left = max_lines - self.program.lines
            most = min(left, max(SMALLEST, max_lines // LARGEST))
            in_vain = 0 if in_vain < ENOUGH and self._place(script, number, most) else in_vain + 1
            left_out += [script.name] if in_vain else []
        self.program.left_out += left_out if number == 0 else []
        return len(left_out) < len(order) // 2

    def _place(self, script: Script, number: int, max_lines: int) -> bool:
        scene = script.scene(self._seed, number)
        length = scene.entries[-1][0] + micros(1)
        if len(scene.entries) > max_lines or length > self._duration:
            return False
        spot = self._spot(script, scene, length)
        if spot is None:
            return False
        at, nodes = spot
        kept = self._kept + len(scene.entries) <= KEPT_LINES
        self._kept += len(scene.entries) if kept else 0
        self._book(script, nodes, at, length)
        program = self.program
        skews = tuple(self._skews[node] for node in nodes)
        size, kept_scene = len(scene.entries), scene if kept else None
        program.placed.append(Placed(script, number, self._seed, at, nodes, skews, size, kept_scene))
        for tally in scene.tallies:
            shift = at + skews[int(tally.node)]
            if tally.storm:
                program.storms.append(moved(tally.as_storm(), shift, nodes))
            elif tally.n:
                program.traps.append(moved_trap(tally.as_trap(), shift, nodes))
        for node, since, until in scene.outages:
            program.outages.append(Outage(nodes[int(node)], at + micros(since), at + micros(until)))
        return True

    def _spot(self, script: Script, scene: Scene, length: int) -> tuple[int, tuple[str, ...]] | None:
        if self._crowded(script, length):
            return None
        for turn in range(TRIES):
            nodes = self._candidates(script, turn)
            at = self._start + int(self._rng.random() * (self._duration - length))
            at = self._at_border(script, scene, at, nodes)
            inside = self._start <= at <= self._start + self._duration - length
            if inside and nodes and all(self._free(script, node, at, length) for node in nodes):
                return at, nodes
        return None

    def _crowded(self, script: Script, length: int) -> bool:
        if script.needs is Needs.COMPANY:
            return False
        return self._alone_us + length > ALONE * self._duration * len(self._nodes)

    def _at_border(self, script: Script, scene: Scene, at: int, nodes: Sequence[str]) -> int:
        if not script.border_s:
            return at
        first = scene.tallies[0]
        anchor = self._skews[nodes[0]]
        anchor += first.start_us if script.border_s == 1 else (first.start_us + first.end_us) // 2
        return at - (at + anchor) % micros(script.border_s)

    def _candidates(self, script: Script, turn: int) -> tuple[str, ...]:
        """Servers to try: scenes that want one alone fill up the first ones, the others go anywhere."""
        match script.needs:
            case Needs.COMPANY:
                return (self._rng.choice(self._nodes),)
            case Needs.SERVER:
                return (self._nodes[min(turn * len(self._nodes) // TRIES, len(self._nodes) - 1)],)
            case Needs.TWO_SERVERS:
                return tuple(self._rng.sample(self._nodes, 2)) if len(self._nodes) > 1 else ()

    def _free(self, script: Script, node: str, at: int, length: int) -> bool:
        own, apart = script.needs is not Needs.COMPANY, micros(APART_S)
        return not any(
            (own or others_own) and at - apart < until and since < at + length + apart
            for since, until, others_own in self._taken[node]
        )

    def _book(self, script: Script, nodes: tuple[str, ...], at: int, length: int) -> None:
        alone = script.needs is not Needs.COMPANY
        for node in nodes:
            self._taken[node].append((at, at + length, alone))
            self._alone_us += length + 2 * micros(APART_S) if alone else 0


def _every_class_early(order: Sequence[Script]) -> Iterator[Script]:
    """The same scripts, those of each kind in turn: a short log has some of every class, and of the look-alikes."""
    by_kind: dict[str, list[Script]] = {}
    for script in order:
        by_kind.setdefault(script.kind if script.kind != "trap" else script.name.partition("/")[0], []).append(script)
    queues = list(by_kind.values())
    while queues:
        for queue in queues:
            yield queue.pop(0)
        queues = [queue for queue in queues if queue]
