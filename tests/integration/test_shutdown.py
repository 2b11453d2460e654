"""Signals to a real process: exit codes, and a complete access log; tests/app/test_shutdown.py has the rest."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.integration.conftest import Serve
from tests.support.logs import logged, matching, read_log
from tests.support.server import RunningServer
from tests.support.waiting import WITHIN_S, eventually

WAITING = 10


def log_of(server: RunningServer) -> Path:
    assert server.access_log is not None
    return server.access_log


def terminate(server: RunningServer) -> None:
    """Send SIGTERM, and wait until the server has begun to drain."""
    server.process.send_signal(signal.SIGTERM)
    logged(log_of(server), event="drain")


def test_sigterm_drains(quiet_serve: Serve) -> None:
    """Waiting reads and idle preconnects get 503 + Retry-After, an active segment finishes, the exit code is 0."""
    with quiet_serve("--shutdown-drain-s", "1") as server, server.client() as target:
        active, waited, idle = target.channel("active"), target.channel("waited"), target.channel("idle")
        waited.create()
        upload, reader = active.started(0, b"before,")
        waiting = [waited.read(0) for _ in range(WAITING)]
        preconnect = idle.preconnect(0)
        eventually(lambda: b'"readers":%d' % (WAITING + 1) in target.ask("GET", "/api/v1/channels").body)
        terminate(server)
        for connection in [*waiting, preconnect.connection]:
            response = connection.response()
            assert response.status == 503
            # The rest of the drain, or of the deadline, and the restart, and over 5 s.
            assert 2 <= int(response.get("Retry-After") or 0) <= 8 + 2 + 5
        upload.chunk(b"after").end()
        assert upload.answer().get("Lp-Trickle-Size") == "12"
        assert reader.rest() == b"after"
        assert server.process.wait(WITHIN_S) == 0
    records = read_log(log_of(server))
    assert len(matching(records, channel="waited", op="read", status=503, reason="shutdown")) == WAITING
    assert len(matching(records, channel="idle", op="publish", status=503, reason="shutdown")) == 1
    assert matching(records, channel="active", op="publish", status=200)[0]["bytes_in"] == 12
    assert matching(records, channel="active", op="read", status=200)[0]["bytes_out"] == 12
    events = [record for record in records if record["kind"] == "event"]
    assert [(event["event"], event.get("detail")) for event in events[-2:]] == [
        ("drain", f"{WAITING + 1} waiting"),
        ("server_stop", None),
    ]
    assert [r["event"] for r in records[:3]] == ["server_start", "config", "channel_create"]


def test_ctrl_c_is_a_success_and_the_access_log_complete_to_the_last_exchange(quiet_serve: Serve) -> None:
    """SIGINT drains like SIGTERM; every exchange has its line, also those that ended in the moment of the stop."""
    count = 300
    with quiet_serve() as server, server.client() as target:
        channel = target.channel("c")
        connection = target.open()
        for seq in range(count):
            connection.request("POST", channel.at(seq), body=b"%d" % seq)
        for _ in range(count):
            assert connection.response().status == 200
        connection.close()
        assert server.stop(signal.SIGINT) == 0
    records = read_log(log_of(server))
    assert [record["rseq"] for record in matching(records, op="publish")] == list(range(count))
    assert {record["reason"] for record in matching(records, op="publish")} == {"complete"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(quiet_serve: Serve, number: signal.Signals) -> None:
    """Whoever insists does not wait for the deadline; log and exit code are in order."""
    with quiet_serve("--shutdown-drain-s", "60", "--shutdown-deadline-s", "60") as server, server.client() as target:
        channel = target.channel("c")
        channel.started(0, b"body")
        waiting = channel.waiting(1)
        terminate(server)
        begun = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - begun < 10
        waiting.closed()
    records = read_log(log_of(server))
    assert len(matching(records, reason="shutdown")) == 3
    assert records[-1]["event"] == "server_stop"
