"""The supervisor: the process that starts the workers of a server, watches them, and ends them.

It holds what has to outlive a worker: the listening sockets, the sockets of the mesh, and the counters that all share.
It forks each worker from a process that has no thread and no event loop, so a successor is there within a tenth of a
second, has the same sockets, and reads what was meant for its predecessor. For the same reason the supervisor does
nothing that a client could see: a fault in it would be a fault of all.

- *A worker that dies* is started again. It takes its connections with it and, without a data directory, its channels.
  One that cannot begin ends the server at its start, with the reason; later that is a death like any other.
  Three deaths within a minute end the server: what kills a worker that often will not stop by itself.
- *A worker that hangs* is killed after 15 s. Until it has a successor, the others accept its new connections.
- *Signals*: the supervisor passes SIGHUP on, and SIGTERM when it is told to end. Told once more, it sends SIGINT, which
  ends a worker at once: systemd may send SIGTERM to all processes, so a second SIGTERM says nothing new to a worker. A
  terminal's Ctrl-C reaches the supervisor alone, since each worker has a process group of its own.
- *The supervisor dies*: each worker reads from a pipe that only the supervisor can write to, and its end stops them.
- *systemd* listens to the supervisor alone, which says ``READY`` when all workers listen, and keeps the watchdog
  quiet while all of them beat.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

from tricklecast.app.access_log import LogShare
from tricklecast.app.listener import CannotServe
from tricklecast.app.systemd import Watchdog, notify
from tricklecast.app.workers.mesh import pairs
from tricklecast.app.workers.placement import FRONT
from tricklecast.app.workers.shared import Figure, Shared
from tricklecast.trickle.errors import TrickleError

_LOGGER = logging.getLogger(__name__)

MAX_DEATHS: Final = 3
DEATHS_S: Final = 60.0
"""The server ends when this number of workers have died within this time, in seconds."""

BEATS_S: Final = 2.0
"""A worker whose event loop has not turned for so long is silent to systemd's watchdog; each turns
four times a second."""

HANG_UP_S: Final = 2.0
"""After SIGHUP a terminal may still be open for this time, although its shell is ending."""

HUNG_S: Final = 15.0
"""A worker whose event loop has not turned for so long is killed and started again. Clients of its channels wait for
that; the other workers accept its share of the new connections (:mod:`~tricklecast.app.workers.link`)."""

LOOK_S: Final = 0.25
"""How often the supervisor looks at its workers without being woken."""

READY: Final = "\n"
"""A worker says this when it listens. Everything else that it says is the reason of its end."""

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Worker:
    """A worker, as it knows itself.

    Attributes:
        number: from 0. count: of all workers. predecessors: those of this number that have died.
        mesh: the sockets of all. shared: figures of all. log: what the writers of the access log share.
        alive: a pipe that ends when the supervisor does. status: a pipe to the supervisor.
    """

    number: int
    count: int
    mesh: list[tuple[socket.socket, socket.socket]]
    shared: Shared
    log: LogShare
    alive: int
    predecessors: int
    status: int

    @property
    def tells_start(self) -> bool:
        """Whether its log says that the server starts: one does for all."""
        return self.number == FRONT and not self.predecessors

    def numbers(self) -> Iterator[int]:
        """Numbers from 1 on, which no other worker and no predecessor gives: for connections, for channels."""
        return itertools.count((self.predecessors << 32) * self.count + self.number + 1, self.count)

    def tell(self, what: str) -> None:
        """Tell the supervisor that this worker listens (:data:`READY`), or why it cannot."""
        with contextlib.suppress(OSError):  # it is gone, and this worker will hear of that
            os.write(self.status, what.encode())


@dataclass
class _Running:
    """A worker, as the supervisor knows it.

    Attributes:
        status: what it tells comes here. told: all of it.
        beat: its last one, as the supervisor has seen it; still_s: the time since then in which the supervisor looked.
    """

    pid: int
    status: int
    told: str = ""
    beat: int = 0
    still_s: float = 0.0

    def hear(self) -> None:
        """Read what it has told."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.status, 65536):
                self.told += data.decode()

    @property
    def ready(self) -> bool:
        """It listens."""
        return self.told.startswith(READY)

    @property
    def error(self) -> str:
        """Why it could not start, or go on; empty if it has not said so."""
        return self.told.removeprefix(READY)


class Supervisor:
    """Runs the workers of a server.

    Args:
        count: of workers.
        work: is a worker, in a process of its own, until it is told to stop.
        ready: called when all workers listen for the first time.
        stopping: called when the server begins to stop.
        reload: called at SIGHUP, before the workers have it: a successor has the settings of then.
        is_left: whether the terminal of the server was closed, which sends SIGHUP as well: then the server ends.
        deadline_s: a worker that has not ended so long after SIGTERM is killed.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[Worker], None],
        *,
        ready: Callable[[], None],
        stopping: Callable[[], None],
        reload: Callable[[], None],
        is_left: Callable[[], bool],
        deadline_s: Callable[[], float],
    ) -> None:
        self._count, self._work = count, work
        self._ready, self._stopping, self._reload = ready, stopping, reload
        self._is_left, self._deadline_s = is_left, deadline_s
        self._may_be_left_until = 0.0  # a shell that ends may send SIGHUP before its terminal is closed
        self._mesh = pairs(count)
        self._shared = Shared(count)
        self._log = LogShare()
        self._running: dict[int, _Running] = {}
        self._starts = [0] * count  # how often each worker was started again
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._signals: deque[int] = deque(maxlen=64)
        self._told_ready = False
        self._stops_until: float | None = None  # when those that have not ended are killed; None: the server runs
        self._failure: TrickleError | None = None
        self._watchdog = Watchdog()
        self._looked_at = 0.0  # when it looked at the beats last

    def run(self) -> None:
        """Return when all workers have ended.

        Raises:
            CannotServe: a worker could not start, or too many have died.
        """
        self._wake, self._waker = os.pipe()
        self._alive, self._life = os.pipe()  # ends in the workers when the supervisor does
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        before = {number: signal.signal(number, self._note) for number in (*PASSED_ON, signal.SIGCHLD)}
        fd_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            for number in range(self._count):
                self._start(number)
            while self._running:
                poll = select.poll()  # select() takes no descriptor from 1024 on
                for end in (self._wake, *(one.status for one in self._running.values())):
                    poll.register(end, select.POLLIN)
                poll.poll(LOOK_S * 1000)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._look()
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            for one in self._running.values():
                os.kill(one.pid, signal.SIGKILL)
                os.waitpid(one.pid, 0)
            for end in (self._wake, self._waker, self._alive, self._life):
                os.close(end)
            for sock in itertools.chain.from_iterable(self._mesh):
                sock.close()
            self._log.close()
        if self._failure is not None:
            raise self._failure

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGCHLD:
            self._signals.append(number)

    def _look(self) -> None:
        while self._signals:
            self._pass_on(self._signals.popleft())
        for number, one in list(self._running.items()):
            one.hear()
            self._reap(number, one)
        ready = [one.ready for one in self._running.values()]
        if not self._told_ready and self._stops_until is None and ready == [True] * self._count:
            self._told_ready = True
            notify("READY=1")
            self._ready()
        now = time.monotonic()
        if self._stops_until is not None and now >= self._stops_until:
            for one in self._running.values():
                _LOGGER.critical("worker process %d did not come to its end; it is killed", one.pid)
                os.kill(one.pid, signal.SIGKILL)
            self._stops_until = now + 1.0
        if now < self._may_be_left_until and self._is_left():
            self._may_be_left_until = 0.0
            self._pass_on(signal.SIGTERM)
        self._look_at_beats(now)

    def _look_at_beats(self, now: float) -> None:
        """Tell systemd that all workers beat, and kill one that has not for long."""
        beats = self._shared.column(Figure.BEAT_MS)
        # If the machine was suspended, the supervisor stood still as well, and has looked once.
        looked_s, self._looked_at = min(now - self._looked_at, LOOK_S), now
        for number, one in self._running.items():
            one.still_s = one.still_s + looked_s if one.ready and one.beat == beats[number] else 0.0
            one.beat = beats[number]
            if one.still_s > HUNG_S and one.beat and self._stops_until is None:
                one.still_s = 0.0
                _LOGGER.critical("worker %d (process %d) has hung for %g s; it is killed", number, one.pid, HUNG_S)
                os.kill(one.pid, signal.SIGKILL)
        # A successor may take long to read its data directory, and the others serve.
        if all(beats[number] > (now - BEATS_S) * 1000 for number, one in self._running.items() if one.ready):
            self._watchdog.beat()

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._may_be_left_until = time.monotonic() + HANG_UP_S
            if self._is_left():
                return
            self._reload()
        elif self._stops_until is None:
            number = signal.SIGTERM
            self._stops_until = time.monotonic() + self._deadline_s()
            notify("STOPPING=1")
            self._stopping()
        else:
            number = signal.SIGINT
        for one in self._running.values():
            os.kill(one.pid, number)

    def _fail(self, problem: str) -> None:
        """End the server, with the first problem as its reason."""
        if self._failure is None:
            self._failure = CannotServe(problem)
        elif self._told_ready and problem != str(self._failure):
            _LOGGER.critical("%s", problem)
        if self._stops_until is None:
            self._pass_on(signal.SIGTERM)

    def _reap(self, number: int, one: _Running) -> None:
        """See whether a worker has ended, and start it again if it had no reason to."""
        pid, status = os.waitpid(one.pid, os.WNOHANG)
        if not pid:
            return
        one.hear()  # its last words
        os.close(one.status)
        del self._running[number]
        code = os.waitstatus_to_exitcode(status)
        killer = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        ending = f"was ended by {killer}" if code < 0 else f"has ended with exit code {code}"
        problem = one.error or f"worker {number} {ending}"
        if self._stops_until is not None or (one.error and not self._told_ready):
            if code:
                self._fail(problem)
            return
        now = time.monotonic()
        self._deaths.append(now)
        if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < DEATHS_S:
            self._fail(f"{MAX_DEATHS} workers have died within a minute; the last one: {problem}")
            return
        _LOGGER.critical("%s (process %d); it is started again", problem, one.pid)
        self._shared.clear(number)
        self._starts[number] += 1
        try:
            self._start(number)
        except CannotServe as failed:
            self._fail(str(failed))

    def _start(self, number: int) -> None:
        status, told = os.pipe()
        os.set_blocking(status, False)
        sys.stdout.flush()
        sys.stderr.flush()
        # Signals wait until the worker can take them.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for end in (status, told):
                os.close(end)
            raise CannotServe(f"worker {number} cannot be started: {error.strerror}") from None
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(told)
            self._running[number] = _Running(pid, status)
            return
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for end in (status, self._wake, self._waker, self._life, *(one.status for one in self._running.values())):
                os.close(end)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # It is in the background of its terminal, where `stty tostop` would stop it at its first word.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            for signal_number in PASSED_ON:  # these come when the worker has ended, and its process has not
                signal.signal(signal_number, lambda *_: None)
            worker = Worker(
                number, self._count, self._mesh, self._shared, self._log, self._alive, self._starts[number], told
            )
            code = _run(self._work, worker)
        finally:
            os._exit(code)


def _run(work: Callable[[Worker], None], worker: Worker) -> int:
    """Be a worker; the exit code."""
    try:
        work(worker)
        return 0
    except TrickleError as error:
        worker.tell(str(error))
    except BaseException:
        _LOGGER.critical("a fault of the server has ended worker %d", worker.number, exc_info=True)
    finally:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    return 1
