"""The wall clock: for times that people and other processes read. Deadlines go by :func:`time.monotonic` instead."""

from __future__ import annotations

import time
from typing import Final

UNIX_S: Final = time.time() - time.monotonic()
"""The time 0 of :func:`time.monotonic`, in seconds since 1970. It stays as it is when the wall clock is set: a moment
keeps its microsecond, and another process that is told that, or reads it from the disk, tells the same one."""


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def to_us(at: float) -> int:
    """A time of :func:`time.monotonic` in microseconds since 1970."""
    return round((at + UNIX_S) * 1e6)


def to_time(at_us: int) -> float:
    """The time of :func:`time.monotonic` at this number of microseconds since 1970: :func:`to_us` gives them back."""
    return at_us / 1e6 - UNIX_S
