"""The access log of a server that is killed, rotated and told to reopen it, under load."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from random import Random
from threading import Event, Thread

from tests.support.logs import Record, logged, matching
from tests.support.server import RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.tools.conformance.response import Failure
from tricklecast.app.tools.conformance.target import Target


def publish_until_it_breaks(target: Target, answered: list[int], over: Event) -> None:
    """Publish small segments one after another, and note which were answered."""
    connection = target.open()
    try:
        while not over.is_set():
            connection.request("POST", f"/trickle/c/{len(answered)}", body=b"x")
            if connection.response().status != 200:
                return
            answered.append(len(answered))
    except Failure:
        return
    finally:
        connection.close()


class Load:
    """A publisher in a thread of its own."""

    def __init__(self, server: RunningServer) -> None:
        self.answered: list[int] = []
        self._over = Event()
        arguments = (server.target(), self.answered, self._over)
        self._thread = Thread(target=publish_until_it_breaks, args=arguments, daemon=True)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        """Until so many segments are answered."""
        eventually(lambda: len(self.answered) >= count)

    def end(self) -> list[int]:
        """Stop, or wait for the break that has come; what was answered."""
        self._over.set()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        return self.answered


def lines_of(folder: Path) -> list[bytes]:
    """All lines of a log, those of rotated files first."""
    files = [*sorted(folder.glob("access-*.jsonl")), folder / "access.jsonl"]
    return [line for path in files if path.exists() for line in path.read_bytes().splitlines()]


def parsed(line: bytes) -> Record | None:
    """The record in a line; none in one that is torn."""
    try:
        record: Record = json.loads(line)
    except ValueError:
        return None
    return record


def published(records: list[Record]) -> list[int]:
    """The seqs that were stored, in the order of the log."""
    return [record["rseq"] for record in matching(records, op="publish", reason="complete")]


def test_a_kill_costs_the_queue_and_a_restart_goes_on(tmp_path: Path) -> None:
    """Killed at a random moment, rotating all the time: a gap-free beginning is there, and at most one torn line."""
    log, rng = tmp_path / "access.jsonl", Random(7)
    options = ("--access-log-max-bytes", "8kB", "--access-log-files", "10000")
    with serve(*options, access_log=log) as server:
        load = Load(server)
        load.wait_for(200 + rng.randrange(300))
        eventually(lambda: list(tmp_path.glob("access-*.jsonl")))
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait(WITHIN_S)
        answered = load.end()
    lines = [parsed(line) for line in lines_of(tmp_path)]
    assert None not in lines[:-1], "at most the last line is torn"
    seqs = published([line for line in lines if line is not None])
    assert seqs == list(range(len(seqs))), "what is missing is the end"
    assert 1 <= len(seqs) <= len(answered) + 1, "one may be stored that nobody was told of any more"
    # Torn in any case, then (a line that the kill has torn only gets longer): nothing may be glued to it.
    with log.open("ab") as file:
        file.write(b'{"v":1,"ts')
    with serve(*options, access_log=log) as server:
        load = Load(server)
        load.wait_for(50)
        again = load.end()
        assert server.stop() == 0
    lines = [parsed(line) for line in lines_of(tmp_path)]
    records = [line for line in lines if line is not None]
    assert lines.count(None) == 1
    assert published(records) == seqs + again, "after SIGTERM nothing is missing"
    assert [record["event"] for record in matching(records, event="server_start")] == ["server_start"] * 2
    assert records[-1]["event"] == "server_stop"


def test_sighup_reopens_the_log_under_load(tmp_path: Path) -> None:
    """A tool renames the file and sends SIGHUP: the server goes on in a new one, and the two are the whole."""
    log, renamed = tmp_path / "access.jsonl", tmp_path / "renamed.jsonl"
    with serve(access_log=log) as server:
        load = Load(server)
        load.wait_for(100)
        log.rename(renamed)
        server.process.send_signal(signal.SIGHUP)
        eventually(log.exists)
        load.wait_for(len(load.answered) + 100)
        logged(log, op="publish")
        answered = load.end()
        assert server.stop() == 0
    lines = [*renamed.read_bytes().splitlines(), *log.read_bytes().splitlines()]
    assert published([json.loads(line) for line in lines]) == answered
