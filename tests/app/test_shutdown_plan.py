"""How a server goes away: spread out, told when to come back, and bounded."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.restart import WINDOW_S, busiest
from tricklecast.app import access_log, bus, node, shutdown
from tricklecast.app.core.results import COME_BACK_S
from tricklecast.app.shutdown import Drain
from tricklecast.app.storage import archive

SECONDS: Final = st.floats(0.0, 3600.0)
BEGUN: Final = 100.0


def make(spread_s: float = 10.0, deadline_s: float = 15.0, restart_s: float = 2.0) -> Drain:
    """One that began at 100."""
    return Drain(begun_at=BEGUN, spread_s=spread_s, deadline_s=deadline_s, restart_s=restart_s)


@pytest.mark.parametrize(("share", "after_s"), [(0.0, 0.0), (0.25, 2.5), (1.0, 10.0)])
def test_the_waiting_are_sent_away_over_the_spread(share: float, after_s: float) -> None:
    """A share of it, which is drawn for each."""
    assert make().send_away_after(share) == after_s


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (BEGUN, (12, 21)),
        (BEGUN + 0.5, (12, 21)),
        (BEGUN + 9.5, (3, 12)),
        (BEGUN + 10.0, (7, 16)),
        (BEGUN + 14.9, (3, 12)),
        (BEGUN + 20.0, (2, 11)),
    ],
)
def test_all_come_back_when_the_successor_is_there(now: float, told: tuple[int, int]) -> None:
    """After the spread, or, once that is over, after the deadline; and the restart; over as long as the spread."""
    assert make().come_back_s(now) == told


def test_a_short_drain_is_no_reason_to_come_back_together() -> None:
    """Over a few seconds at least."""
    assert make(spread_s=0.0, restart_s=0.5).come_back_s(BEGUN) == (16, 20)
    assert make(spread_s=0.1, restart_s=0.5).come_back_s(BEGUN) == (1, 5)


def test_where_others_answer_nobody_waits_for_a_successor() -> None:
    """Behind a load balancer the next attempt goes to another server."""
    assert make(restart_s=0.0).come_back_s(BEGUN) == COME_BACK_S


@given(SECONDS, SECONDS, st.floats(0.001, 3600.0), st.floats(0.0, 7200.0))
def test_nobody_is_told_to_come_before_the_end(spread_s: float, more_s: float, restart_s: float, at: float) -> None:
    """With any settings, the earliest time is after the foreseeable end, and the range has a length."""
    drain = make(spread_s, spread_s + more_s, restart_s)
    now = BEGUN + at
    shortest, longest = drain.come_back_s(now)
    end = BEGUN + (spread_s if now < BEGUN + spread_s else spread_s + more_s)
    assert now + shortest >= max(now, end) + restart_s - 1e-6
    assert longest - shortest >= 4


@pytest.mark.parametrize(
    ("at_s", "connected", "busy", "over"),
    [
        (0.0, False, False, True),
        (0.0, True, True, False),
        (9.999, True, False, False),
        (10.0, True, False, True),
        (10.001, True, False, True),
        (10.0, True, True, False),
        (14.999, True, True, False),
        (15.0, True, True, True),
        (15.001, True, True, True),
    ],
)
def test_when_it_is_over(at_s: float, connected: bool, busy: bool, over: bool) -> None:
    """At once without connections; after the spread if nothing runs; at the deadline in any case."""
    assert make().is_over(BEGUN + at_s, connected=connected, busy=busy) is over


@pytest.mark.parametrize("clients", [300, 2000])
@pytest.mark.parametrize("spread_s", [5.0, 10.0])
def test_the_successor_is_not_run_over(clients: int, spread_s: float) -> None:
    """Neither leave nor come back more clients in any second than twice the mean rate of the spread."""
    rng = Random(f"{clients} {spread_s}")
    drain = make(spread_s, spread_s + 3.0)
    left = [BEGUN + drain.send_away_after(rng.random()) for _ in range(clients)]
    back = [at + rng.randint(*drain.come_back_s(at)) for at in left]
    assert min(back) >= BEGUN + spread_s + drain.restart_s
    assert max(back) <= BEGUN + 2 * spread_s + drain.restart_s + 1
    assert max(busiest(left, WINDOW_S), busiest(back, WINDOW_S)) < 2 * clients / spread_s


def test_who_keeps_asking_is_sent_to_the_same_seconds() -> None:
    """One who joins all the time during the drain, and is refused, comes back no earlier than the others."""
    drain, rng = make(), Random(1)
    times = [BEGUN + step / 10 for step in range(100)]
    assert min(at + rng.randint(*drain.come_back_s(at)) for at in times) >= BEGUN + 12.0


def test_the_last_resort_comes_after_all_steps() -> None:
    """Each of them may use up its deadline; only a step that keeps to none ends the process."""
    connections_s = shutdown.TICK_S + 4 * shutdown.CLEAN_UP_S
    program_s = node.PROGRAM_S + node.CANCELLED_S
    assert connections_s + bus.CLOSE_S + program_s + archive.END_S + access_log.END_S + 2.0 < shutdown.LAST_S


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = BEGUN

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("how", "left_s", "said"),
    [
        ("given", 14.0, ""),
        ("fails", 14.0, "could not be given away"),
        ("hangs", 2.0, "not all channels have moved"),
        ("hurry", 13.0, "not all channels have moved"),
    ],
)
def test_a_node_gives_its_channels_away_in_a_part_of_its_time(
    how: str, left_s: float, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The drain of its connections has the rest, whatever comes of it."""
    monkeypatch.setattr(shutdown, "TICK_S", 0.001)

    async def give() -> None:
        if how == "fails":
            raise OSError("a fault")
        if how != "given":
            await asyncio.get_running_loop().create_future()

    async def hurry() -> bool:
        return how == "hurry"

    async def run() -> Drain:
        giving = asyncio.ensure_future(give())
        if how in ("given", "fails"):
            await asyncio.wait((giving,))
        return await shutdown.give_away(giving, make(), Clock(), hurry)

    plan = asyncio.run(run())
    assert (plan.begun_at + plan.deadline_s, plan.deadline_s) == (BEGUN + 15.0, left_s)
    assert said in caplog.text
    assert bool(said) == bool(caplog.records)
