"""The supervisor with workers that do as a test says, in real processes."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.listener import CannotServe
from tricklecast.app.workers import supervisor as module
from tricklecast.app.workers.shared import Figure
from tricklecast.app.workers.supervisor import READY, Supervisor, Worker


def say(**what: object) -> None:
    """A line for the test. Several processes write to one pipe, a short line of each at once."""
    os.write(1, json.dumps(what).encode() + b"\n")


# Workers.


def obedient(worker: Worker) -> None:
    """Ends when told to, or when the supervisor is gone."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    say(worker=worker.number, pid=os.getpid(), predecessors=worker.predecessors)
    worker.report(READY)
    poll = select.poll()
    for end in (wake, worker.alive):
        poll.register(end, select.POLLIN)
    while True:
        if worker.alive in dict(poll.poll()):
            say(worker=worker.number, orphaned=True)
            return
        got = os.read(wake, 1)[0]
        say(worker=worker.number, signal=signal.Signals(got).name)
        if got != signal.SIGHUP:
            return


def deaf(worker: Worker) -> None:
    """Listens to no signal but SIGINT, which comes when the supervisor is told to end once more."""
    worker.report(READY)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    say(worker=worker.number)
    while True:
        signal.pause()


def second_cannot_begin(worker: Worker) -> None:
    if worker.number == 1:
        raise CannotServe("the port is taken")
    obedient(worker)


def successors_cannot_begin(worker: Worker) -> None:
    if worker.predecessors:
        raise CannotServe("the certificate is gone")
    obedient(worker)


def faulty(worker: Worker) -> None:
    raise ZeroDivisionError


def supervise(work: Callable[[Worker], None], files: int, deadline_s: float) -> int:
    """Run two workers; the exit code."""
    for _ in range(files):
        os.dup(0)
    supervisor = Supervisor(
        2,
        work,
        ready=lambda: say(ready=True),
        stopping=lambda: say(stopping=True),
        reload=lambda: say(reload=True),
        terminal_is_gone=lambda: False,
        deadline_s=lambda: deadline_s,
    )
    try:
        supervisor.run()
    except CannotServe as error:
        say(error=str(error))
        return 1
    return 0


class Running:
    """A supervisor in a process of its own, and the lines that it and its workers say."""

    def __init__(self, pid: int, lines: IO[str]) -> None:
        self.pid, self._lines = pid, lines

    def hears(self, count: int) -> list[dict[str, object]]:
        """The next lines, in the order of the workers' numbers."""
        lines = [json.loads(self._lines.readline()) for _ in range(count)]
        return sorted(lines, key=lambda line: (line.get("worker", -1), str(line)))

    def begins(self) -> list[int]:
        """Wait until both workers are ready; returns their process numbers."""
        ready, *workers = self.hears(3)
        assert ready == {"ready": True}
        return [int(str(worker["pid"])) for worker in workers]

    def gets(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def ends(self, number: int | None = None) -> int:
        """Send it a signal, and wait for its end; the exit code."""
        if number is not None:
            self.gets(number)
        _, status = eventually(lambda: (ended := os.waitpid(self.pid, os.WNOHANG))[0] and ended)  # type: ignore[misc]
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


@contextmanager
def running(work: Callable[[Worker], None], *, files: int = 0, deadline_s: float = WITHIN_S) -> Iterator[Running]:
    """Two workers that do this, beside this many open files; they are killed when they take so long to end."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.dup2(write, 1)
            os.close(write)
            code = supervise(work, files, deadline_s)
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as lines:
        supervisor = Running(pid, lines)
        try:
            yield supervisor
        finally:
            if supervisor.pid:
                supervisor.ends(signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_dies_is_started_again() -> None:
    """With its number, also where more files are open than select() knows; the other one hears nothing of it."""
    with running(obedient, files=1100) as supervisor:
        pids = supervisor.begins()
        os.kill(pids[1], signal.SIGKILL)
        [successor] = supervisor.hears(1)
        assert successor["worker"] == 1
        assert successor["predecessors"] == 1
        assert supervisor.ends(signal.SIGTERM) == 0
        assert supervisor.hears(3) == [
            {"stopping": True},
            {"worker": 0, "signal": "SIGTERM"},
            {"worker": 1, "signal": "SIGTERM"},
        ]


def test_three_deaths_within_a_minute_end_the_server() -> None:
    """In order, with the reason."""
    with running(obedient) as supervisor:
        pids = supervisor.begins()
        os.kill(pids[0], signal.SIGKILL)
        supervisor.hears(1)
        os.kill(pids[1], signal.SIGKILL)
        [last] = supervisor.hears(1)
        os.kill(int(str(last["pid"])), signal.SIGKILL)
        assert supervisor.ends() == 1
        assert supervisor.hears(3) == [
            {"error": "3 workers have died within a minute; the last one: worker 1 was ended by SIGKILL"},
            {"stopping": True},
            {"worker": 0, "signal": "SIGTERM"},
        ]


def test_a_worker_that_cannot_begin_ends_the_server() -> None:
    """At its start, with the worker's reason; the other one is told to end."""
    with running(second_cannot_begin) as supervisor:
        assert supervisor.ends() == 1
        said = supervisor.hears(4)
        assert {"error": "the port is taken"} in said
        assert {"worker": 0, "signal": "SIGTERM"} in said


def test_a_successor_that_cannot_begin_is_a_death() -> None:
    """It is tried again: its reason may be over by then. In the end the server says it."""
    with running(successors_cannot_begin) as supervisor:
        pids = supervisor.begins()
        os.kill(pids[0], signal.SIGKILL)
        assert supervisor.ends() == 1
        error, *_ = supervisor.hears(3)
        assert "3 workers have died within a minute; the last one: the certificate is gone" in str(error)


def test_a_fault_of_a_worker_is_a_death() -> None:
    """Its exit code is told."""
    with running(faulty) as supervisor:
        assert supervisor.ends() == 1
        said = supervisor.hears(2)
        assert "has ended with exit code 1" in str(said)


def test_signals_reach_all_workers() -> None:
    """SIGHUP as well, after the supervisor has read the settings again."""
    with running(obedient) as supervisor:
        supervisor.begins()
        supervisor.gets(signal.SIGHUP)
        assert supervisor.hears(3) == [
            {"reload": True},
            {"worker": 0, "signal": "SIGHUP"},
            {"worker": 1, "signal": "SIGHUP"},
        ]
        assert supervisor.ends(signal.SIGINT) == 0


def test_a_second_signal_ends_the_workers_at_once() -> None:
    """They get another one than before, so that a SIGTERM from somebody else as well does not count as the second."""
    with running(deaf) as supervisor:
        supervisor.hears(3)
        supervisor.gets(signal.SIGTERM)
        assert supervisor.hears(1) == [{"stopping": True}]
        assert supervisor.ends(signal.SIGTERM) == 0


def test_a_worker_that_does_not_end_is_killed() -> None:
    """After the deadline, stopped or not; the server's exit code tells it."""
    with running(deaf, deadline_s=0.1) as supervisor:
        supervisor.hears(3)
        assert supervisor.ends(signal.SIGTERM) == 1
        assert "was ended by SIGKILL" in str(supervisor.hears(2))


def test_the_supervisor_is_killed() -> None:
    """Its workers hear of that, and end."""
    with running(obedient) as supervisor:
        pids = supervisor.begins()
        supervisor.ends(signal.SIGKILL)
        assert supervisor.hears(2) == [{"worker": 0, "orphaned": True}, {"worker": 1, "orphaned": True}]
        eventually(lambda: not any(map(is_running, pids)), what="both end")


def test_no_process_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says so, in one line."""

    def refuse() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    supervisor = Supervisor(
        2,
        obedient,
        ready=lambda: None,
        stopping=lambda: None,
        reload=lambda: None,
        terminal_is_gone=lambda: False,
        deadline_s=lambda: 1.0,
    )
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CannotServe, match="worker 0 cannot be started: Resource temporarily unavailable"):
        supervisor.run()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def second_hangs(worker: Worker) -> None:
    """It beats once, and no more; its successor, and the first worker, do as they are told."""
    if worker.number and not worker.predecessors:
        worker.shared.column(Figure.BEAT_MS)[worker.number] = 1
    obedient(worker)


def test_a_worker_that_hangs_is_killed_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of its channels wait for that. One that has not beaten yet is being started."""
    monkeypatch.setattr(module, "HUNG_S", 0.4)
    with running(second_hangs) as one:
        pids = one.begins()
        [successor] = one.hears(1)
        assert (successor["worker"], successor["predecessors"]) == (1, 1)
        assert successor["pid"] not in pids
        assert one.ends(signal.SIGTERM) == 0
