"""A server of several processes, as its operator sees it: signals, systemd, its terminal, its logs, its end."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import make_certificate
from tests.support.forked import forked
from tests.support.logs import Record, logged, matching, read_log, so_far
from tests.support.server import QUICK_END, RunningServer, serve
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.workers.placement import owner_of

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds the workers in /proc")

STARTS = ("server_start", "config", "server_ready", "worker_restart")
CHANNELS = ("d", "a")
"""A channel of each worker."""

assert [owner_of(name, 2) for name in CHANNELS] == [0, 1]

WORKERS = ("--workers", "2")
COMMAND = [sys.executable, "-m", "tricklecast", "serve", "--port", "0", *WORKERS, *QUICK_END]


def workers_of(server: int) -> list[int]:
    """The processes that a supervisor has started, in their order."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == server:
                found.append(int(folder.name))
    return sorted(found)


@contextmanager
def started(
    *arguments: object, before: Sequence[str] = (), environment: dict[str, str] | None = None, **options: Any
) -> Iterator[RunningServer]:
    """Run a server with two workers until the block ends.

    Args:
        arguments: of the command. before: a program, which starts the command that follows.
        options: of the process.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    process = subprocess.Popen(
        [*before, *COMMAND, *map(str, arguments)],
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        text=True,
        env=inherited | (environment or {}),
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        assert line.startswith("tricklecast is listening on "), line
        base = line.removeprefix("tricklecast is listening on ")
        yield RunningServer(base, base.removesuffix("/trickle"), process, process.pid, None)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_sigterm_to_all_processes_is_one_sigterm(tmp_path: Path) -> None:
    """A service manager may signal all of them (systemd, KillMode=control-group): what runs may finish all the same."""
    log = tmp_path / "access.jsonl"
    with serve(*WORKERS, "--shutdown-deadline-s", "60", access_log=log) as server, server.client() as client:
        uploads = [client.channel(name).started(0, b"before,")[0] for name in CHANNELS]
        for process in (*workers_of(server.pid), server.pid, *workers_of(server.pid)):
            os.kill(process, signal.SIGTERM)
        logged(log, event="drain", worker=0)
        logged(log, event="drain", worker=1)
        for upload in uploads:
            upload.chunk(b"after").end()
            assert upload.answer().get("Lp-Trickle-Size") == "12"
        assert server.process.wait(WITHIN_S) == 0
    records = read_log(log)
    for worker, name in enumerate(CHANNELS):
        assert matching(records, channel=name, op="publish", status=200)[0]["worker"] == worker
        assert matching(records, worker=worker)[-1]["event"] == "server_stop"


def test_a_worker_that_is_started_again_has_what_was_reloaded(tmp_path: Path) -> None:
    """Settings, the log's file, and numbers of connections; the log says which worker began anew."""
    log, settings = tmp_path / "access.jsonl", tmp_path / "settings.toml"
    renamed = tmp_path / "access.jsonl.1"

    def published() -> list[Record]:
        """A worker's last lines before the reload go to the renamed file."""
        return matching(so_far(renamed) + so_far(log), op="publish")

    settings.write_text("shutdown_restart_s = 1\nmax_channels = 10\n")
    stderr = tmp_path / "stderr"
    with stderr.open("w") as file, serve(*WORKERS, "--config", str(settings), access_log=log, stderr=file) as server:
        # Not reloaded: too large a change for a running server. Changed after the reload: not in force yet.
        settings.write_text("shutdown_restart_s = 4\nmax_channels = 20\n")
        log.rename(renamed)
        server.process.send_signal(signal.SIGHUP)
        told = eventually(lambda: len(lines := stderr.read_text().splitlines(keepends=True)) == 4 and lines)
        assert told
        for worker in range(2):
            mine = [line for line in told if f"(worker {worker})" in line]
            assert [("changed settings: shutdown_restart_s" in line, "need a restart: max_channels" in line)
                    for line in mine] == [(True, False), (False, True)]  # fmt: skip
        settings.write_text("shutdown_restart_s = 5\n")
        with server.client() as client:
            client.channel("a").publish(0, b"x")
        eventually(published)
        os.kill(workers_of(server.pid)[1], signal.SIGKILL)
        logged(log, event="worker_restart")
        with server.client() as client:
            client.channel("a").publish(0, b"x")
        eventually(lambda: len(published()) == 2)
        assert server.stop() == 0
    records = read_log(renamed) + read_log(log)
    (config,) = matching(records, event="worker_restart")
    assert config["worker"] == 1
    assert '"shutdown_restart_s":4.0' in config["detail"]
    assert '"max_channels":10' in config["detail"]
    assert len({record["conn"] for record in published()}) == 2
    started_by = [(one["event"], one["worker"]) for one in records if one.get("event") in STARTS]
    assert started_by == [("server_start", 0), ("config", 0), ("server_ready", 0), ("worker_restart", 1)]


WRAPPER = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid());"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class FakeSystemd:
    """Listens as systemd does: all the time, since the kernel keeps ten messages for it, and the service drops others.

    Args:
        path: of the socket.

    Attributes:
        told: messages so far, with the process that has sent each.
    """

    def __init__(self, path: Path) -> None:
        self.told: list[tuple[str, int]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(str(path))
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        while True:
            text, credentials, _, _ = self._socket.recvmsg(100, socket.CMSG_SPACE(struct.calcsize("3i")))
            if not text:
                return
            self.told.append((text.decode(), struct.unpack("3i", credentials[0][2])[0]))

    def heard(self) -> list[str]:
        """All messages so far."""
        return [text for text, _ in self.told]

    def close(self) -> None:
        """End, with all that has been sent."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())
        self._listening.join()
        self._socket.close()


def test_systemd_hears_of_the_server_and_not_of_its_workers(tmp_path: Path) -> None:
    """It has one socket for all, READY once, a watchdog that a worker's death does not stop, and STOPPING once.

    `--access-log-queue` is one limit for all of them, too.
    """
    notify = tmp_path / "notify"
    systemd = FakeSystemd(notify)
    with contextlib.closing(systemd), socket.create_server(("127.0.0.1", 0)) as given:
        environment = {"NOTIFY_SOCKET": str(notify), "LISTEN_FDS": "1", "WATCHDOG_USEC": "400000"}
        before = [sys.executable, "-c", WRAPPER, str(given.fileno())]
        arguments = ("--access-log", tmp_path / "access.jsonl", "--access-log-queue", 101)
        with started(*arguments, before=before, environment=environment, pass_fds=[given.fileno()]) as server:
            assert server.port == given.getsockname()[1]
            eventually(lambda: systemd.heard().count("READY=1"))
            first = workers_of(server.process.pid)
            os.kill(first[1], signal.SIGKILL)
            eventually(lambda: len(workers_of(server.process.pid)) == 2 and workers_of(server.process.pid) != first)
            eventually(lambda: systemd.heard()[-3:] == ["WATCHDOG=1"] * 3)
            beats = systemd.heard().count("WATCHDOG=1")
            eventually(lambda: systemd.heard().count("WATCHDOG=1") > beats + 3)
            with server.client() as client:
                limit = re.compile(rb'^tricklecast_\w*limit\{.*"access_log_queue".*\} (\d+)', re.MULTILINE)
                # A page is there without the numbers of a worker that does not answer in time.
                eventually(lambda: limit.findall(client.ask("GET", "/metrics").body) == [b"51", b"51"])
            assert server.stop() == 0
    assert [text for text in systemd.heard() if text != "WATCHDOG=1"] == ["READY=1", "STOPPING=1"]
    assert {process for _, process in systemd.told} == {server.process.pid}


AT_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Screen:
    """A terminal with a program in its foreground, which may stop programs in the background that write to it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        modes = termios.tcgetattr(self.slave)
        modes[3] |= termios.TOSTOP
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self._shown = b""

    @property
    def lines(self) -> list[str]:
        """What is to be seen so far, without times."""
        with contextlib.suppress(OSError):  # the last program has closed it
            while select.select([self.master], [], [], 0)[0]:
                self._shown += os.read(self.master, 4096)
        return [re.sub(r"^[0-9:]{8} ", "", line) for line in self._shown.decode().replace("\r", "").splitlines()]

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def close(self) -> None:
        os.close(self.master)


@contextmanager
def at_terminal(*arguments: object) -> Iterator[tuple[RunningServer, Screen]]:
    """Run a server at a terminal, and its standard output beside."""
    screen = Screen()
    before = [sys.executable, "-c", AT_TERMINAL]
    options: dict[str, Any] = {"stdin": screen.slave, "stderr": screen.slave, "start_new_session": True}
    try:
        with started(*arguments, before=before, **options) as server:
            os.close(screen.slave)
            yield server, screen
    finally:
        with contextlib.suppress(OSError):
            screen.close()


def test_a_terminal_shows_the_clients_of_all_workers_and_ctrl_c_ends_them(tmp_path: Path) -> None:
    """One line each, and one for the web pages. The first Ctrl-C drains; the second one cuts what still runs."""
    log = tmp_path / "access.jsonl"
    arguments = ("--access-log", log, "--shutdown-deadline-s", 600)
    with at_terminal(*arguments) as (server, screen), server.client() as client:
        for name in CHANNELS:
            client.channel(name).started(0, b"before,")
        wanted = [f"{name}: {what}" for name in CHANNELS for what in ("created", "publisher 127.0.0.1")]
        eventually(lambda: set(wanted) <= set(screen.lines))
        lines = screen.lines
        assert [lines.count(line) for line in wanted] == [1] * 4
        assert len([line for line in lines if "in a browser" in line]) == 1
        screen.type(b"\x03")
        for worker in range(2):
            logged(log, event="drain", worker=worker)
        screen.type(b"\x03")
        assert server.process.wait(WITHIN_S) == 0
        assert screen.lines[-1] == "^C^C"
    cut = matching(read_log(log), op="publish", reason="shutdown")
    assert sorted(record["worker"] for record in cut) == [0, 1]


def test_a_terminal_that_is_closed_ends_the_server(tmp_path: Path) -> None:
    """It drains, as after SIGTERM, and starts no worker again."""
    log = tmp_path / "access.jsonl"
    with at_terminal("--access-log", log, "--quiet") as (server, screen):
        with server.client() as client:
            client.channel("a").publish(0, b"x")
        logged(log, op="publish")
        assert screen.lines == []
        screen.close()
        assert server.process.wait(WITHIN_S) == 0
    records = read_log(log)
    assert len(matching(records, event="server_stop")) == 2
    assert len(matching(records, event="server_start")) == 1


def test_a_signal_that_comes_as_soon_as_there_are_workers_ends_them_in_order(tmp_path: Path) -> None:
    """They have no handlers yet: the signal waits until they can take it, and the exit code is 0."""
    log = tmp_path / "access.jsonl"
    process = subprocess.Popen(
        [*COMMAND, "--access-log", str(log)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    eventually(lambda: len(workers_of(process.pid)) == 2)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=WITHIN_S)[1]
    assert (process.returncode, said) == (0, "")
    assert [record["worker"] for record in matching(read_log(log), event="server_stop")] in ([0, 1], [1, 0])


def failing(*arguments: object) -> str:
    """The complaint of a server that cannot start."""
    command = forked("serve", "--port", "0", "--workers", "2", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_what_keeps_a_worker_from_starting_is_one_line(tmp_path: Path) -> None:
    """Each worker finds the same fault, and the server tells it once."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    certificate, _ = make_certificate(tmp_path / "one")
    _, key = make_certificate(tmp_path / "two")
    warning, said = failing("--tls-cert", certificate, "--tls-key", key).splitlines()
    assert "(worker 0): every user of this machine can read the secret" in warning
    assert said == f"tricklecast: tls_key: {key} does not belong to {certificate}"
    said = failing("--access-log", tmp_path)
    assert said == f"tricklecast: cannot write the access log {tmp_path} (--access-log): Is a directory\n"
    said = failing("--access-log", certificate, "--log-format", "json")
    assert said.count("\n") == 1
    assert "the file is there, and is no access log" in said
