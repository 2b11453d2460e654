"""Signals to a real process: exit codes, and a complete access log; tests/app/test_shutdown.py has the rest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.conftest import Serve
from tests.support.logs import logged, matching, read_log
from tests.support.server import RunningServer, serve
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


def fill(descriptor: int) -> None:
    """Write to a pipe until it takes no further byte."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(descriptor, bytes(4096))
    os.set_blocking(descriptor, True)


def test_a_server_whose_standard_error_nobody_reads_goes_on_and_ends() -> None:
    """Its own log is a pipe that is full: requests are answered, lines are counted as lost, SIGTERM ends it with 0."""
    reading, writing = os.pipe()
    fill(writing)
    with os.fdopen(writing, "w") as stderr, serve(stderr=stderr, fork=False) as server, server.client() as target:
        for _ in range(3):
            server.process.send_signal(signal.SIGUSR1)
            assert target.ask("GET", "/healthz").status == 200
        assert server.stop() == 0
    os.close(reading)


def test_sigterm_ends_a_server_whose_access_log_nobody_reads(tmp_path: Path) -> None:
    """The reader of a pipe has stopped: the server is degraded, and ends in time, with the number of lost records."""
    fifo, errors = tmp_path / "access.fifo", tmp_path / "stderr"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with (
        errors.open("w") as stderr,
        serve(access_log=fifo, stderr=stderr, fork=False) as server,
        server.client() as target,
    ):
        capacity = fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ)
        connection, channel = target.open(), target.channel("c")
        for seq in range(capacity // 100):
            connection.request("POST", channel.at(seq), body=b"x")
            assert connection.response().status == 200
        eventually(lambda: b"access_log" in target.ask("GET", "/readyz").body)
        assert re.search(rb"tricklecast_log_stalled_seconds ([5-9]|\d\d+)\.", target.ask("GET", "/metrics").body)
        assert server.stop() == 1
    os.close(reading)
    assert re.search(r"cannot write the access log .*: nobody reads it.*; \d+ records are lost", errors.read_text())


def test_a_program_that_ignores_its_cancellation_does_not_keep_the_process(tmp_path: Path) -> None:
    """Past all deadlines the process ends with 1, and says where it waits."""
    code = """
import asyncio, sys
from tricklecast.app import node, server
from tricklecast.app.settings import Settings

server.LAST_S, node.PROGRAM_S = 0.2, 0.1

async def stubborn(bus):
    while True:
        try:
            await asyncio.Event().wait()
        except (asyncio.CancelledError, Exception):
            pass

settings = Settings.model_validate({"port": 0, "shutdown_drain_s": 0, "shutdown_deadline_s": 0.1})
server.serve(settings, lambda address: print(address, flush=True), stubborn)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://")
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert "did not come to its end" in told
    assert "MainThread" in told
