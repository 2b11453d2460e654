"""What is done to a cluster: schedules are drawn from a seed, so the same seed gives the same faults at the same times.

The clocks of a machine are not among them: to set one takes a right that a test has not, and a node counts on a clock
that nobody sets.
"""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """A fault."""

    KILL = "node killed"
    TERM = "node restarted"
    FREEZE = "node frozen"
    CUT_NATS = "node cut off from NATS"
    RESET_NATS = "connections of a node to NATS reset"
    CUT_NODES = "node cut off from nodes"
    CUT_CLIENTS = "node cut off from clients"
    MOVE = "channels moved"
    NATS_KILL = "NATS killed"
    NATS_FREEZE = "NATS frozen"
    BUCKET_DELETED = "bucket deleted"
    BUCKET_OLDER = "bucket put back to an older copy"


OF_NATS: Final = frozenset({Kind.NATS_KILL, Kind.NATS_FREEZE, Kind.BUCKET_DELETED, Kind.BUCKET_OLDER})
BUCKET: Final = frozenset({Kind.BUCKET_DELETED, Kind.BUCKET_OLDER})
"""These lose what the directory knew."""

HARMLESS: Final = frozenset({Kind.TERM, Kind.CUT_NODES, Kind.CUT_CLIENTS, Kind.MOVE})
"""No epoch ends by these, and nothing is lost: a node that is restarted gives its channels away first."""

PROCESS: Final = frozenset({Kind.KILL, Kind.TERM, Kind.FREEZE})

NODES: Final = 3


class Fault(NamedTuple):
    """One fault.

    Attributes:
        at, lasts: seconds. target: the number of the node, or of the server of NATS (the leader: 0).
    """

    at: float
    kind: Kind
    target: int
    lasts: float

    @property
    def part(self) -> tuple[str, int]:
        """What it is done to: one fault at a time."""
        if self.kind in OF_NATS:
            return "nats", 0
        return "process" if self.kind in PROCESS else self.kind.value, self.target

    def __str__(self) -> str:
        return f"{self.at:.2f} s: {self.kind} ({self.target}, {self.lasts:.2f} s)"


def draw(seed: int, number: int, seconds: float, lease_s: float, kinds: tuple[Kind, ...]) -> tuple[Fault, ...]:
    """The faults of one schedule: one to four, which may overlap if they are not of the same part."""
    dice = random.Random(f"{seed}/{number}")
    faults = []
    for _ in range(dice.choice((1, 2, 2, 3, 3, 4))):
        at, lasts = dice.uniform(0.1, seconds * 0.6), dice.uniform(0.5, 4) * lease_s
        faults.append(Fault(at, dice.choice(kinds), dice.randrange(NODES), lasts))
    return tuple(sorted(faults))
