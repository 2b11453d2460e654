"""The server's wiring and its one timer."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import cast

import pytest

import tricklecast.app.server
from tests.support.local import local_server
from tests.support.logs import read_log
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.access_log import AccessLog
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.latency import Histogram
from tricklecast.app.server import serve, sweep
from tricklecast.app.settings import Settings


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A supervisor that changes its mind at once need not kill: the server starts, and ends in order."""
    check = AccessLog.check

    async def interrupted(log: AccessLog) -> None:
        os.kill(os.getpid(), number)
        await check(log)

    monkeypatch.setattr(AccessLog, "check", interrupted)
    handler = signal.getsignal(number)
    path = tmp_path / "access.jsonl"
    serve(Settings.model_validate({"port": 0, "access_log": path}), lambda _: None)
    events = [record["event"] for record in read_log(path) if record.get("channel") is None]
    assert events == ["server_start", "config", "server_ready", "drain", "server_stop"]
    assert signal.getsignal(number) is handler


def test_sighup_without_a_log_drains() -> None:
    """A terminal that closes ends its server in order."""
    announced: list[str] = []
    handler = signal.getsignal(signal.SIGHUP)

    def hang_up(address: str) -> None:
        announced.append(address)
        os.kill(os.getpid(), signal.SIGHUP)

    serve(Settings.model_validate({"port": 0}), hang_up)
    assert announced
    assert signal.getsignal(signal.SIGHUP) is handler


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_user_signals_do_not_end_the_server(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    """By default they would kill the process without a drain; the server logs them and goes on."""
    announced: list[str] = []

    def signals(address: str) -> None:
        announced.append(address)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)

    serve(Settings.model_validate({"port": 0}), signals)
    assert announced
    assert caplog.messages == [f"{number.name} is ignored; SIGTERM ends the server"]
    assert signal.getsignal(number) is signal.SIG_DFL


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
    monkeypatch.setattr(tricklecast.app.server, "SWEEP_S", 0.001)
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
    monkeypatch.setattr(tricklecast.app.server, "SWEEP_S", 0.001)
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
