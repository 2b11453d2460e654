"""Where the readers of one account stand, as far as the storm guard hears of them: who gets on, and who does not.

Readers behind one address that give no name cannot be told apart, and nobody can know how many they are. But however
many they are: whoever reads a seq stood shortly before it, or is one more. So readers that get on are as many as they
are, whatever the order in which they ask, and one that repeats itself is one more each time.
"""

from __future__ import annotations

from array import array
from typing import Final

CROWD: Final = 64
"""So many readers are known, and may come to the same segment before one of them has gone on: a class, an office. A
loop that opens a connection for each request cannot be told from them before."""

STRIDE: Final = 8
"""A step is at most so long: a reader may skip what is empty, and requests on several connections overtake each other.
(Counting from any place below, a loop would pass for a step of each reader that is behind it.)"""


class Crowd:
    """The places of at most :data:`CROWD` readers; of more, the one that has stood still for longest is forgotten."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        # In the order in which they were taken; an array, since there may be many thousand crowds.
        self._places = array("q")

    def __len__(self) -> int:
        return len(self._places)

    def step(self, seq: int) -> bool:
        """Somebody asks for a seq: whether that may be a step of one who stood before it. Otherwise it is one more."""
        places = self._places
        before = max((place for place in places if seq - STRIDE <= place < seq), default=None)
        if before is not None:
            places.remove(before)
        elif len(places) == CROWD:
            del places[0]
        places.append(seq)
        return before is not None
