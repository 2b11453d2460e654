"""Waiting for facts: tests ask until something is true, and fail if it never gets true."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

WITHIN_S: Final = 120.0
"""How long anything may take, starting a process included, on a machine that is busy with other things, or stands still
for a while; only a fault reaches it."""

_PAUSE_S: Final = 0.005
_LONGEST_S: Final = 0.1


def eventually(fact: Callable[[], T], *, within_s: float = WITHIN_S, what: str = "") -> T:
    """Ask until the answer is true; returns that answer.

    A question may cost much, as a page of a server's metrics does. So the pauses get longer: each is a twentieth of the
    time so far, and at least three times what the question took.

    Raises:
        AssertionError: it stayed untrue for ``within_s`` seconds.
    """
    begun = asked = time.monotonic()
    while not (answer := fact()):
        now = time.monotonic()
        assert now < begun + within_s, f"never happened: {what or fact}; last answer: {answer!r}"
        time.sleep(max(_PAUSE_S, min(_LONGEST_S, max((now - begun) / 20, 3 * (now - asked)))))
        asked = time.monotonic()
    return answer


async def until(fact: Callable[[], object]) -> None:
    """Let the event loop run until something is true; the caller bounds it."""
    while not fact():  # noqa: ASYNC110 - what is waited for has no event to wait on
        await asyncio.sleep(_PAUSE_S)
