"""Time and chance of a subscriber."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import anyio


@dataclass(frozen=True, slots=True)
class Runtime:
    """Time and chance, so that tests can give their own.

    Attributes:
        rng: where jitter comes from.
        now: seconds on a monotonic clock.
        sleep: waits for so many seconds.
    """

    rng: Random = field(default_factory=Random)
    now: Callable[[], float] = anyio.current_time
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
