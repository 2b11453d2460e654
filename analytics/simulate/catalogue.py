"""The list of all scripts: what can be planted, in which set, and what it needs of its place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from tricklecast.analytics.simulate.scene import Scene


class Set(StrEnum):
    """Which logs a script belongs into."""

    STANDARD = "standard"
    """Clear cases: storms far above the thresholds, look-alikes as they come."""
    GREY = "grey"
    """Cases just above the thresholds, and near misses just below."""
    HEALTHY = "healthy"
    """A fleet with nothing planted."""


class Needs(StrEnum):
    """What a script needs of its place."""

    COMPANY = "company"
    """Nothing: other scenes may go on at the same time."""
    SERVER = "server"
    """A server of its own, since what it does is seen on all of it: no other scene there, shortly before or after."""
    TWO_SERVERS = "two_servers"
    """The same for two servers at once."""


@dataclass(frozen=True, slots=True)
class Script:
    """How to plant something.

    Attributes:
        name: what it is called in the truth; kind: its class, or ``trap``.
        play: writes it into a scene.
        set: where it belongs; needs: of its place.
        border_s: put the middle of its first storm on a multiple of so many seconds; for 1 its beginning; 0: anywhere.
    """

    name: str
    kind: str
    play: Callable[[Scene], None]
    set: Set
    needs: Needs = Needs.COMPANY
    border_s: int = 0

    def scene(self, seed: int, number: int) -> Scene:
        """The scene of that number: the same for the same seed, whatever else is in the log."""
        scene = Scene(f"{self.name}#{number}", random.Random(f"{seed}/{self.name}/{number}"))
        self.play(scene)
        scene.entries.sort(key=lambda entry: entry[0])
        return scene


@cache
def scripts(kind: Set) -> tuple[Script, ...]:
    """Every script of a set."""
    from tricklecast.analytics.simulate.scenes import fleets, grey, loops, repeats, traps, traps_many

    everything: list[Iterable[Script]] = [
        loops.scripts(),
        repeats.scripts(),
        fleets.scripts(),
        traps.scripts(),
        traps_many.scripts(),
        grey.scripts(),
    ]
    found = tuple(script for some in everything for script in some if script.set is kind)
    assert len({script.name for script in found}) == len(found), "two scripts have the same name"
    return found
