"""What can be planted: loops of single clients, storms of fleets, look-alikes, and cases near the thresholds."""

from __future__ import annotations

from functools import cache

from tricklecast.analytics.simulate.scene import Script
from tricklecast.analytics.simulate.scenes import fleets, grey, loops, traps
from tricklecast.analytics.simulate.truth import Set


@cache
def scripts(kind: Set) -> tuple[Script, ...]:
    """Every script of a set."""
    everything = (*loops.scripts(), *fleets.scripts(), *traps.scripts(), *grey.scripts())
    return tuple(script for script in everything if script.set is kind)
