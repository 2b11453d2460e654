"""The server's wiring and its one timer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import cast

import httpx
import pytest

from tests.support.forked import forked, python
from tests.support.local import local_server
from tests.support.logs import read_log
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app import node as node_module
from tricklecast.app import server as server_module
from tricklecast.app.access.authorizer import Access
from tricklecast.app.access_log import AccessLog, AccessLogError
from tricklecast.app.bus import Bus, ServerClosed
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.latency import Histogram
from tricklecast.app.local import LocalPublisher
from tricklecast.app.node import LOOK_S, sweep
from tricklecast.app.reload import Terminal
from tricklecast.app.server import serve
from tricklecast.app.settings import Settings
from tricklecast.app.storage.archive import Archive
from tricklecast.app.storage.database import Database


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


def test_signals_that_come_while_a_server_exits_change_nothing() -> None:
    """An impatient Ctrl-C, or a reload in the last moment: the exit code is that of the first signal."""
    started = forked("serve", "--port", "0")
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in cycle([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]):
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
                break
    assert process.returncode == 0


def test_a_server_whose_event_loop_stands_still_ends(tmp_path: Path) -> None:
    """A program in the process that never returns: the log says where it hangs, and the exit code is 1."""
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    with subprocess.Popen(
        forked(script=script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, said = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert "the server did not come to its end" in said
    assert "hangs.py" in said


HANGS = """
import threading
from tricklecast.app import server
from tricklecast.app.settings import Settings

server.LAST_S = 0.1

async def program(bus):
    print("hangs", flush=True)
    while True:
        threading.Event().wait(0.01)  # in the event loop, and not awaited

server.serve(Settings(port=0, shutdown_drain_s=0, shutdown_deadline_s=0), lambda address: None, program)
"""


def test_a_log_on_a_full_disk_stops_the_start() -> None:
    """Not the first request: nobody is told that the server listens."""
    announced: list[str] = []
    with pytest.raises(AccessLogError, match=r"/dev/full \(--access-log\): No space left on device$"):
        serve(Settings.model_validate({"port": 0, "access_log": Path("/dev/full")}), announced.append)
    assert not announced


@pytest.mark.parametrize("has_log", [True, False])
def test_sighup_ends_no_server(has_log: bool, tmp_path: Path) -> None:
    """It reloads, with and without an access log, and the former handler comes back in the end."""
    settings: list[Settings] = []
    handler = signal.getsignal(signal.SIGHUP)
    given = Settings.model_validate({"port": 0, "access_log": tmp_path / "log"} if has_log else {"port": 0})

    def reread() -> Settings:
        settings.append(given)
        os.kill(os.getpid(), signal.SIGTERM)
        return given

    serve(given, lambda _: os.kill(os.getpid(), signal.SIGHUP), reread=reread)
    assert settings == [given]
    assert signal.getsignal(signal.SIGHUP) is handler


@pytest.mark.parametrize("closes_later", [False, True])
def test_a_terminal_that_closes_ends_its_server(closes_later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the signal tells, since an operator sends the same one, but the terminal that has hung up: now, or soon."""
    master, slave = os.openpty()
    monkeypatch.setattr(server_module, "Terminal", partial(Terminal, slave))
    monkeypatch.setattr(server_module, "HANG_UP_S", 0.01)
    reloads: list[None] = []

    def hang_up(address: str) -> None:
        if not closes_later:
            os.close(master)
        os.kill(os.getpid(), signal.SIGHUP)

    def reread() -> Settings:
        reloads.append(None)
        os.close(master)
        return given

    given = Settings.model_validate({"port": 0})
    try:
        serve(given, hang_up, reread=reread)
    finally:
        os.close(slave)
    assert len(reloads) == closes_later


def test_an_open_terminal_and_none() -> None:
    """A server at an open terminal goes on, and one without a terminal cannot lose it."""
    master, slave = os.openpty()
    terminal = Terminal(slave)
    assert (terminal.is_one, terminal.is_gone()) == (True, False)
    os.close(master)
    assert terminal.is_gone()
    os.close(slave)
    reading, writing = os.pipe()
    os.close(writing)
    assert (Terminal(reading).is_one, Terminal(reading).is_gone()) == (False, False)
    os.close(reading)
    assert not Terminal(reading).is_one


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


class Registry:
    """Has one deadline, and notes when it is asked to expire."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.expired: list[float] = []

    def next_deadline(self) -> float | None:
        return self.deadline

    def expire(self, now: float) -> None:
        self.expired.append(round(now, 6))
        self.deadline = None


class Plane:
    """A plane whose clock goes on by what the sweeper sleeps, and ``late_s`` beyond."""

    def __init__(self, deadline: float | None = None, *, late_s: float = 0.0) -> None:
        self.registry = Registry(deadline)
        self.loop_lag = Histogram((100_000, 10_000_000))
        self.now = 0.0
        self.late_s = late_s
        self.connections = {"a client's"}
        self.slept: list[float] = []
        self.ticks: list[float] = []

    def clock(self) -> float:
        return self.now

    def tick(self, now: float) -> None:
        self.ticks.append(round(now, 6))

    def expire(self, now: float) -> None:
        self.registry.expire(now)

    async def sleep(self, seconds: float) -> None:
        if self.now > 1.0:
            raise asyncio.CancelledError
        self.slept.append(round(seconds, 6))
        self.now += seconds + self.late_s


def run(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep for a second of the plane's clock."""
    monkeypatch.setattr("tricklecast.app.node.asyncio.sleep", plane.sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(sweep(cast(DataPlane, plane)))


def test_the_plane_is_ticked_four_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own clock, and nothing expires in between where nothing is due."""
    plane = Plane()
    run(plane, monkeypatch)
    assert plane.ticks == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=0.03)
    assert plane.registry.expired == []


def test_what_is_due_expires_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grace of 0.2 s takes 0.2 s, not as long as until the next tick."""
    plane = Plane(0.2)
    run(plane, monkeypatch)
    assert plane.registry.expired == [0.2]


def test_deadlines_that_follow_each_other_do_not_keep_it_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps for 10 ms at least, and asks for a new deadline every 50 ms at least."""
    plane = Plane(0.001)
    run(plane, monkeypatch)
    assert plane.registry.expired == [0.01]
    assert (plane.slept[0], max(plane.slept)) == (0.01, LOOK_S)


def test_without_a_connection_it_sleeps_until_something_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can set a deadline that it does not know, so an idle process wakes up four times a second."""
    plane = Plane(0.2)
    plane.connections = set()
    run(plane, monkeypatch)
    assert plane.slept == [0.2, 0.05, 0.25, 0.25, 0.25, 0.25]


def test_its_lateness_is_the_event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wake-up is compared with when it was due; one that is early counts as on time."""
    late, early = Plane(late_s=2.0), Plane(late_s=-0.0001)
    run(late, monkeypatch)
    assert (late.loop_lag.counts, late.ticks) == ([0, 1, 0], [2.05])
    run(early, monkeypatch)
    assert early.loop_lag.counts == [len(early.slept), 0, 0]


def test_an_idle_channel_ends_by_itself() -> None:
    """An idle channel expires without any request: it ends, and is then forgotten."""
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


PROGRAM = """
import asyncio, sys
from pathlib import Path
from tricklecast.app.bus import ServerClosed
from tricklecast.app.server import serve
from tricklecast.app.settings import Settings

async def program(bus):
    {body}

serve(Settings(port=0, shutdown_drain_s=0.1, shutdown_deadline_s=1), lambda base: print(base, flush=True), program)
"""


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("async for fact in bus.subscribe(): print(fact.kind, fact.channel, flush=True)", 0, ""),
        ("await bus.subscribe().__anext__(); raise ValueError('no more')", 1, "ValueError: no more"),
        ("return", 0, ""),
    ],
)
def test_a_program_beside_the_server(body: str, code: int, said: str) -> None:
    """It hears of what happens. What it raises stops the server, and is raised; its end stops nothing."""
    command = [python(), "-c", PROGRAM.format(body=body)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    base = process.stdout.readline().strip()
    assert httpx.post(f"{base}/a", trust_env=False).status_code == 200
    if "print" in body:
        assert process.stdout.readline() == "added a\n"
    if not said:
        assert httpx.get(f"{base}/a/next", trust_env=False).status_code == 200
        process.terminate()
    _, error = process.communicate(timeout=WITHIN_S)
    assert process.returncode == code
    assert error.splitlines()[-1:] == ([said] if said else [])


@pytest.mark.parametrize(
    ("error", "raised"),
    [(SystemExit(7), SystemExit), (KeyboardInterrupt(), KeyboardInterrupt), (asyncio.CancelledError(), RuntimeError)],
)
def test_a_program_that_leaves_ends_the_server_in_order(
    tmp_path: Path, error: BaseException, raised: type[BaseException]
) -> None:
    """``sys.exit()``, or a task that it awaits and that was cancelled: the server drains and its log is complete."""

    async def program(bus: Bus) -> None:
        raise error

    log = tmp_path / "access.jsonl"
    with pytest.raises(raised):
        serve(Settings.model_validate({"port": 0, "access_log": log}), lambda base: None, program)
    assert [line["event"] for line in read_log(log)][-2:] == ["drain", "server_stop"]


@pytest.mark.parametrize("ack", ["memory", "journal", "fsync"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_what_a_program_publishes_at_the_end_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ack: str, cancelled: bool
) -> None:
    """A segment that it finishes when its subscriptions have ended, or when it is cancelled, is whole in storage."""
    monkeypatch.setattr(node_module, "PROGRAM_S", 0.05 if cancelled else WITHIN_S)
    monkeypatch.setattr(node_module, "CANCELLED_S", WITHIN_S)

    async def program(bus: Bus) -> None:
        facts = bus.subscribe("kind = 'removed'")
        async with LocalPublisher(bus, "film").segment() as segment:
            await segment.write(b"begun, ")
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                with pytest.raises(ServerClosed):
                    await anext(facts)
                if cancelled:
                    await asyncio.Event().wait()
            finally:
                await segment.write(b"and ended")
                if cancelled:
                    await segment.__aexit__(None, None, None)

    settings = {"port": 0, "shutdown_drain_s": 0.05, "shutdown_deadline_s": 1, "data_dir": tmp_path, "ack": ack}
    serve(Settings.model_validate(settings), lambda base: None, program)
    with closing(Database(tmp_path)) as database:
        rows = database.contents().segments
    assert [(row.state, row.size) for row in rows if row.seq == 0] == [("complete", 16)]


def test_a_program_that_does_not_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its subscriptions end when the server stops; then it has some time, and no more."""
    monkeypatch.setattr(node_module, "PROGRAM_S", 0.05)
    ends: list[str] = []

    async def program(bus: Bus) -> None:
        facts = bus.subscribe()
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            async for _ in facts:
                pass
        except ServerClosed:
            ends.append("closed")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    settings = Settings.model_validate({"port": 0, "shutdown_drain_s": 0.05, "shutdown_deadline_s": 1})
    serve(settings, lambda base: None, program)
    assert ends == ["closed", "cancelled"]


@pytest.mark.parametrize("part", [AccessLog, Access])
def test_a_server_of_which_a_part_fails_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type[AccessLog | Access]
) -> None:
    """It drains, ends subscriptions, and completes its data directory; then the error is raised."""
    failing = asyncio.Event()
    ends: list[str] = []

    async def run(_: object) -> None:
        await failing.wait()
        raise AccessLogError("the disk is gone")

    async def program(bus: Bus) -> None:
        try:
            async with bus.subscribe() as facts:
                failing.set()
                await anext(facts)
        except ServerClosed:
            ends.append("closed")

    close = Archive.close

    async def closing(archive: Archive) -> None:
        await close(archive)
        ends.append("archive")

    monkeypatch.setattr(part, "run", run)
    monkeypatch.setattr(Archive, "close", closing)
    values = {"port": 0, "shutdown_drain_s": 0.05, "shutdown_deadline_s": 1}
    settings = Settings.model_validate({**values, "access_log": tmp_path / "log", "data_dir": tmp_path / "data"})
    with pytest.raises(AccessLogError, match="the disk is gone"):
        serve(settings, lambda base: None, program)
    assert ends == ["closed", "archive"]


def test_a_server_beside_duckdb_leaves_nothing_behind() -> None:
    """The program's objects are freed when it ends; its last words would be thirty lines about leaked ones."""
    code = "import duckdb\nfrom tests.support.local import local_server\nwith local_server(): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WITHIN_S, check=True)
    assert done.stderr == ""
