"""A server that is killed while it is published to, and what it must still know afterwards."""

from __future__ import annotations

import fcntl
import http.client
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.app.storage.power import Disk
from tests.support.forked import forked
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.serve_cli import ANNOUNCEMENT
from tricklecast.app.storage.settle import folder_of

HERE: Final = Path(__file__).parent

KEPT: Final = 12
"""Segments that the server keeps of each channel: retention removes some in each round."""

Chunks = list[bytes]
Publisher = Callable[[http.client.HTTPConnection, "History", random.Random], None]


@cache
def library() -> str:
    """The compiled ``seams.c``; without a C compiler the test is skipped."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: crash tests stand between the server and its files with a library of their own")
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"tricklecast-seams-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    path = folder / "seams.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, HERE / "seams.c", "-ldl", "-lpthread"], check=True)
    return str(path)


@dataclass
class Life:
    """One epoch of a channel, as its publisher knows it.

    Attributes:
        sent: the bytes of each segment, by seq. begun: how much of the newest one was sent.
        acked: the seqs that were answered with 200. ended: whether its end was answered.
        cut: the seqs that came back truncated from an earlier crash, with what was there of them as ``sent``.
    """

    sent: list[bytes] = field(default_factory=list)
    acked: set[int] = field(default_factory=set)
    ended: bool = False
    cut: set[int] = field(default_factory=set)


@dataclass
class History:
    """A channel, as its publisher knows it; the last life is at the end, and the first has epoch 1."""

    name: str
    lives: list[Life] = field(default_factory=list)
    created: int = 0
    """The highest epoch whose creation was answered."""


class Server:
    """A server on a folder.

    Args:
        folder: the data directory. ack: when it answers publishers.
        seams: variables of ``seams.c``. more: options.
    """

    def __init__(self, folder: Path, ack: str, *more: str, **seams: str) -> None:
        self.folder = folder
        options = ["serve", "--port", "0", "--data-dir", str(folder), "--ack", ack]
        options += ["--retain-channel-segments", str(KEPT), "--shutdown-drain-s", "0", "--storm-guard", "off"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
        self.errors = folder.parent / "stderr"
        with open(self.errors, "a") as errors:
            self.process = subprocess.Popen(
                forked(*options, *more, module="tests.app.storage.nursery", preload=library()),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**environment, "SEAM_FOLDER": str(folder), **seams},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        self.port = int(line.rpartition(":")[2].partition("/")[0]) if line.startswith(ANNOUNCEMENT) else 0

    def is_dead(self) -> bool:
        """Whether it does not answer any more; its process may take a moment longer."""
        try:
            self.ask("GET", "small/next")
        except (OSError, http.client.HTTPException):
            return True
        return False

    def kill(self) -> None:
        """Kill it, if it still lives, and wait until it is over."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(WITHIN_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        eventually(self._let_go, what="the server's lock is free")

    def worker(self, number: int) -> int:
        """The process of a worker: it has its database open."""
        database = str(folder_of(self.folder, number) / "journal.sqlite")

        def found() -> int | None:
            for pid in filter(str.isdecimal, os.listdir("/proc")):
                with suppress(OSError):  # it has ended meanwhile
                    for descriptor in os.listdir(f"/proc/{pid}/fd"):
                        if os.readlink(f"/proc/{pid}/fd/{descriptor}") == database:
                            return int(pid)
            return None

        return eventually(found, what=f"worker {number} is there") or 0

    def _let_go(self) -> bool:
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def ask(self, method: str, path: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request, and its whole answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S / 10)
        try:
            connection.request(method, f"/trickle/{path}")
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


@contextmanager
def served(folder: Path, ack: str, *more: str, **seams: str) -> Iterator[Server]:
    """A server that is killed at the end of the block."""
    server = Server(folder, ack, *more, **seams)
    try:
        yield server
    finally:
        server.kill()


class Load:
    """Publishers that go on until the server is dead, or they have done their share.

    Args:
        server: to be published to. histories: what was published so far; it is continued.
        rng: for sizes. share: segments of each channel.
    """

    def __init__(self, server: Server, histories: dict[str, History], rng: random.Random, share: int) -> None:
        self._port = server.port
        self._share = share
        self.faults: list[BaseException] = []
        publishers: dict[str, Publisher] = {
            "small": self._segments(200, 4_000),
            "large": self._segments(60_000, 700_000),
            "short": self._lives,
        }
        self._threads = [
            threading.Thread(
                target=self._run, args=(run, histories.setdefault(name, History(name)), random.Random(rng.random()))
            )
            for name, run in publishers.items()
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Until all publishers are through, or have lost the server."""
        for thread in self._threads:
            thread.join(WITHIN_S)
        assert self.faults == []

    def _run(self, run: Publisher, history: History, rng: random.Random) -> None:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=WITHIN_S)) as connection:
                run(connection, history, rng)
        except (OSError, http.client.HTTPException):
            pass  # the server is dead
        except BaseException as fault:
            self.faults.append(fault)

    def _ask(self, connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> int:
        connection.request(method, f"/trickle/{path}", body=body, encode_chunked=body is not None)  # type: ignore[arg-type]
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def _begin(self, connection: http.client.HTTPConnection, history: History) -> Life:
        """Go on in the present life, or begin another one."""
        if history.lives and not history.lives[-1].ended:
            return history.lives[-1]
        life = Life()
        history.lives.append(life)
        assert self._ask(connection, "POST", history.name) == 200
        history.created = len(history.lives)
        return life

    def _publish(self, connection: http.client.HTTPConnection, history: History, life: Life, chunks: Chunks) -> None:
        seq = len(life.sent)
        life.sent.append(b"".join(chunks))
        connection.putrequest("POST", f"/trickle/{history.name}/{seq}")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        for chunk in chunks:
            connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        connection.send(b"0\r\n\r\n")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, (history.name, seq, answer.status, answer.headers.items())
        life.acked.add(seq)

    def _segments(self, least: int, most: int) -> Publisher:
        def run(connection: http.client.HTTPConnection, history: History, rng: random.Random) -> None:
            life = self._begin(connection, history)
            for _ in range(self._share):
                size = rng.randint(least, most)
                parts = [rng.randbytes(min(32_000, size - at)) for at in range(0, size, 32_000)]
                self._publish(connection, history, life, parts)

        return run

    def _lives(self, connection: http.client.HTTPConnection, history: History, rng: random.Random) -> None:
        """Channels that end soon, with segments that are empty now and then."""
        for number in range(self._share):
            life = self._begin(connection, history)
            if number % 5 == 3:
                assert self._ask(connection, "DELETE", history.name) == 200
                life.ended = True
                continue
            empty = rng.random() < 0.3
            self._publish(connection, history, life, [] if empty else [rng.randbytes(rng.randint(1, 900))])
            if empty:
                connection.close()


@dataclass
class Promise:
    """The segments that a restarted server must have.

    Attributes:
        acked: everything that was answered with 200.
        sound: no hole in what is served, and the server has no damage to report.
    """

    acked: bool
    sound: bool = True


def check(server: Server, histories: dict[str, History], promise: Promise) -> None:
    """Compare what is served with what was published, and take over what is served as what has happened."""
    assert server.port, f"the server did not start: {server.errors.read_text()[-2000:]}"
    for history in histories.values():
        if history.lives:
            _check_channel(server, history, promise)
    assert "ERROR" not in server.errors.read_text() or not promise.sound, server.errors.read_text()[-2000:]


def _check_channel(server: Server, history: History, promise: Promise) -> None:
    name = history.name
    status, headers, text = server.ask("GET", f"{name}/next")
    if status == 404:
        epoch = int(headers.get("Lp-Trickle-Epoch") or 0)
        if promise.acked:
            assert history.created == 0 or epoch >= history.created, (name, epoch, history.created)
            assert not history.created or history.lives[history.created - 1].ended or epoch > history.created
        _forget(history, epoch)
        if epoch:
            history.lives[-1].ended = True
        return
    assert status == 200
    epoch, head = int(headers["Lp-Trickle-Epoch"]), int(text)
    ended = headers.get("Lp-Trickle-Closed") is not None
    assert 1 <= epoch <= len(history.lives), (name, epoch, len(history.lives))
    if promise.acked:
        assert epoch >= history.created, (name, epoch, history.created)
    _forget(history, epoch)
    life = history.lives[-1]
    assert head <= len(life.sent), f"{name}: head {head}, {len(life.sent)} segments were sent"
    if promise.acked:
        assert head > max(life.acked, default=-1), (name, epoch, head, max(life.acked, default=-1))
        assert not (life.ended and len(history.lives) == history.created) or ended, f"{name}: its end was answered"
    served: dict[int, bytes] = {}
    earliest = 0
    for seq in range(head):
        status, headers, body = server.ask("GET", f"{name}/{seq}")
        if status == 470:
            assert not (promise.acked and seq in life.acked and seq > len(life.sent) - KEPT), f"{name}/{seq} is lost"
            assert not (served and promise.sound), f"{name}: {seq} is missing behind {max(served)}"
            earliest = seq + 1
            continue
        assert status == 200, (name, seq, status)
        sent, cut = life.sent[seq], headers.get("Lp-Trickle-Truncated") is not None
        if cut and seq not in life.cut:
            life.cut.add(seq)
            assert sent.startswith(body), f"{name}/{seq}: {len(body)} wrong bytes"
            assert seq not in life.acked or not promise.acked, f"{name}/{seq} was answered, and is cut"
        else:
            assert cut == (seq in life.cut)
            assert body == sent, f"{name}/{seq}: {len(body)} bytes instead of {len(sent)}"
        served[seq] = body
    assert earliest <= head
    life.cut &= set(served)
    life.sent = [served.get(seq, life.sent[seq]) for seq in range(head)]
    life.acked = set(served)
    life.ended = ended


def _forget(history: History, epoch: int) -> None:
    """A restart has begun in this epoch: later ones never were."""
    del history.lives[epoch:]
    while len(history.lives) < epoch:
        history.lives.append(Life(ended=True))
    history.created = epoch


def crash_round(
    folder: Path, ack: str, histories: dict[str, History], rng: random.Random, *, seam: str = "", share: int = 20
) -> bool:
    """One life of a server: it is killed at a seam, or at a random moment; returns whether it came to that."""
    with served(folder, ack, **({"SEAM_KILL": seam} if seam else {})) as server:
        if not server.port:
            return True  # it was killed while it started
        load = Load(server, histories, rng, share)
        if not seam:
            threading.Event().wait(rng.uniform(0, 0.3))
            server.kill()
        load.wait()
        return server.is_dead()


def worker_round(server: Server, histories: dict[str, History], rng: random.Random, share: int = 20) -> int:
    """A worker of a running server is killed under load, at a random moment; returns which one."""
    pids = [server.worker(number) for number in range(2)]
    load = Load(server, histories, rng, share)
    threading.Event().wait(rng.uniform(0, 0.3))
    killed = rng.randrange(2)
    os.kill(pids[killed], signal.SIGKILL)
    load.wait()
    eventually(lambda: server.worker(killed) != pids[killed], what=f"worker {killed} has a successor")
    return killed


def power_round(
    folder: Path,
    ack: str,
    histories: dict[str, History],
    rng: random.Random,
    *more: str,
    how: str,
    seam: str,
    share: int = 20,
) -> bool:
    """The same, and then everything is lost that was not synced; see :meth:`~tests.app.storage.power.Disk.leave`.

    Returns:
        Whether the server was killed while it started.
    """
    before, log = folder.parent / "before", folder.parent / "log"
    shutil.rmtree(before, ignore_errors=True)
    log.unlink(missing_ok=True)
    if folder.exists():
        shutil.copytree(folder, before)
    with served(folder, ack, *more, SEAM_KILL=seam, SEAM_LOG=str(log), SEAM_BOOT=str(rng.random())) as server:
        early = not server.port
        if not early:
            Load(server, histories, rng, share).wait()
    disk = Disk(before)
    disk.replay(log)
    disk.leave(folder, how, rng)
    return early
