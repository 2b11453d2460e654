"""The one timer."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

import tricklecast.app.sweeper
from tests.support.local import local_server
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.latency import Histogram
from tricklecast.app.sweeper import TICK_S, sweep


class Plane:
    """Notes when it was ticked."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self.loop_lag = Histogram((100_000, 10_000_000))

    def clock(self) -> float:
        return 42.0 + len(self.ticks)

    def tick(self, now: float) -> None:
        self.ticks.append(now)


def test_the_sweeper_ticks_with_the_planes_clock_until_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again; cancelling ends it."""
    monkeypatch.setattr(tricklecast.app.sweeper, "TICK_S", 0.001)
    plane = Plane()

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S):
            task = asyncio.ensure_future(sweep(cast(DataPlane, plane)))
            await until(lambda: len(plane.ticks) >= 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert plane.ticks[:3] == [42.0, 43.0, 44.0]


def test_its_lateness_is_the_event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tick is compared with when it was due; one that is early counts as on time."""
    monkeypatch.setattr(tricklecast.app.sweeper, "TICK_S", 0.001)
    plane = Plane()
    clocks = iter([10.0, 12.001, 20.0, 20.0])
    monkeypatch.setattr(plane, "clock", lambda: next(clocks))

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S):
            with pytest.raises(RuntimeError):  # the clock has no more to say
                await sweep(cast(DataPlane, plane))

    asyncio.run(main())
    assert plane.loop_lag.counts == [1, 1, 0]
    assert plane.loop_lag.sum in (1_999_999, 2_000_000)


def test_the_precision_fits_the_graces() -> None:
    """A quarter of a second is small against the shortest grace (skip_grace, 2 s)."""
    assert 0.05 <= TICK_S <= 0.5


def test_an_idle_channel_ends_by_itself() -> None:
    """What expires, expires without any request: the channel ends, and is then forgotten."""
    with local_server(idle_timeout_s=0.2, channel_drain_s=0.2) as server, server.client() as target:
        channel = target.channel("idle")
        channel.publish(0)
        waiting = channel.read(1)
        assert waiting.response().get("Lp-Trickle-Closed") == "terminated"
        eventually(lambda: "idle" not in server.plane.registry.channels)
        gone = channel.get(0)
        assert (gone.status, gone.get("Lp-Trickle-Closed")) == (404, "terminated")
        assert "_changes" in server.plane.registry.channels


def test_old_segments_leave_the_window_by_age() -> None:
    """All but the newest closed one go, although nobody publishes."""
    with local_server(window_age_s=0.2) as server, server.client() as target:
        channel = target.channel("aged")
        channel.publish(0, b"a", b"b")
        eventually(lambda: list(server.plane.registry.channels["aged"].segments) == [1])
        assert channel.get(1).body == b"b"
        assert channel.get(0).status == 470
