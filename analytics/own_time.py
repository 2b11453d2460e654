"""A client's own time: how long a stretch would have taken had the storm guard not held anything back.

A held client asks later than it would have: its next request comes when it has its answer, and its own pause after
that. So rates, pauses and classes are judged by the time without the holds (``guard_ms``). Each rule is there as SQL
and as a function, which do the same arithmetic.
"""

from __future__ import annotations

import math
from typing import Final

LONGEST_HOLD_US: Final = 1_000_000
"""No answer is held longer (docs/explanation/storm-guard.md)."""

LEAST: Final = 0.1
"""Of clients that share a key it is not known how many they are, and so not how long each was held: at least so large
a share of the time (0 to 1) is taken to be their own."""


def own_us_sql(length_us: str, guard_ms: str, n: str) -> str:
    """The own time of a stretch, microseconds.

    Args:
        length_us: from its first to its last arrival. guard_ms: all holds together, may be null. n: requests.
    """
    held_us = f"coalesce({guard_ms}, 0L) * 1000D"
    clients = f"greatest(1D, ceil(({held_us} - {LONGEST_HOLD_US}) / greatest(1D, {length_us})))"
    own = f"{length_us} - {held_us} * ({n} - 1) / {n} / {clients}"
    return f"greatest(IF({clients} > 1, {LEAST}D * {length_us}, 0D), {own})"


def own_us(length_us: int, guard_ms: int, n: int) -> float:
    """:func:`own_us_sql` of figures that are known."""
    clients = at_once(length_us, guard_ms)
    # The last request's hold comes after the stretch.
    own = length_us - guard_ms * 1000.0 * (n - 1) / max(1, n) / clients
    return max(least(clients) * length_us, own)


def at_once(length_us: int, guard_ms: int) -> int:
    """How many clients share a key, at least: if more was held than there was time, several were at the same time."""
    return max(1, math.ceil((guard_ms * 1000.0 - LONGEST_HOLD_US) / max(1.0, length_us)))


def least(clients: int) -> float:
    """The smallest share of the time that so many clients have for themselves."""
    return LEAST if clients > 1 else 0.0
