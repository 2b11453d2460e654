"""The wall clock: for times that people and other processes read. Deadlines go by :func:`time.monotonic` instead."""

from __future__ import annotations

import time


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
