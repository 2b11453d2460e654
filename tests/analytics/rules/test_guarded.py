"""Storms on a server whose storm guard is on: it slows each client down, and they are still found and named."""

from __future__ import annotations

import random
from collections.abc import Callable

import orjson
import pytest

from tests.analytics.support.rules import Scenes
from tests.analytics.support.writer import LogWriter
from tricklecast.app.core.storm_guard import ReplyKind, StormGuard

REQUESTS = 120
PAUSE_S = 0.05

Tell = Callable[..., None]

LOOPS: dict[str, tuple[ReplyKind, Tell]] = {
    "zero_byte_loop": (ReplyKind.EMPTY, lambda log, at, **held: log.empty(at, "loop", "film", 7, next_seq=7, **held)),
    "ended_loop": (ReplyKind.ENDED, lambda log, at, **held: log.ended(at, "loop", "film", 7, **held)),
    "not_found_loop": (ReplyKind.MISSING, lambda log, at, **held: log.not_found(at, "loop", "film", **held)),
    "seq_behind_loop": (ReplyKind.GONE, lambda log, at, **held: log.missing(at, "loop", "film", 4, head=300, **held)),
    "seq_ahead_sweep": (ReplyKind.AHEAD, lambda log, at, **held: log.missing(at, "loop", "film", 9, head=5, **held)),
    "server_error_loop": (ReplyKind.REFUSED, lambda log, at, **held: log.refused(at, "loop", "film", 500, **held)),
}


def held_back(storm: str) -> LogWriter:
    """Five viewers, and a client that asks again 50 ms after each answer, which the guard delays by up to a second."""
    answer, tell = LOOPS[storm]
    log, guard, at = LogWriter("n1", random.Random(1)), StormGuard(), 3.0
    for viewer in range(5):
        for seq in range(150):
            log.served(seq + viewer / 10, f"viewer-{viewer}", "other", seq, wait_us=900_000, dur_us=910_000)
    for _ in range(REQUESTS):
        hold_s = guard.hold(0, "film", answer, 4, at, many=False)
        tell(log, at, guard_ms=round(hold_s * 1000))
        at += hold_s + PAUSE_S
    return log


SCENES = Scenes()
HELD = {storm: SCENES.scene(map(orjson.loads, held_back(storm).lines())) for storm in LOOPS}


@pytest.mark.parametrize("storm", LOOPS)
def test_a_loop_that_is_held_back(storm: str) -> None:
    """It is one incident, with all of its requests, and of the class that it has without the guard."""
    (found,) = HELD[storm].incidents()
    assert found.until_us - found.since_us > 60_000_000
    assert (str(found.storm), found.n) == (storm, REQUESTS)
