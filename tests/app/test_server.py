"""The composition root: signals that come before the server is ready for them, or have nothing else to do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.logs import read_log
from tricklecast.app.access_log import AccessLog
from tricklecast.app.server import serve
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
