"""The supervisor: the process that starts the workers of a server, watches them, and ends them.

**The problem.** A worker may crash or hang. The server has to go on, and no client may find its port closed.

**The idea.** The supervisor holds everything that has to outlive a worker (the listening sockets, the sockets of the
mesh, the shared memory) and forks each worker with all of it. It has no thread and no event loop, so it can fork at any
time. A successor runs within a tenth of a second, accepts from the same sockets, and reads the messages that were meant
for its predecessor. The supervisor does nothing that a client sees, since a fault in it would end the whole server.

- *A worker dies*: the supervisor starts it again. Its connections are lost and, without a data directory, its channels.
  If it could not start, and says why, it ends a server that has not been ready yet. Three deaths within a minute also
  end the server: three deaths in a minute have a cause that does not go away by itself.
- *A worker hangs*: the supervisor kills it after 15 s. Until its successor runs, the others accept its new connections.
- *Signals*: the supervisor passes SIGHUP on, and its first SIGTERM or SIGINT as SIGTERM. At the second one it sends
  SIGINT, which ends a worker at once. A worker ignores a second SIGTERM, since systemd may send SIGTERM to every
  process of a service. Each worker has a process group of its own, so Ctrl-C reaches the supervisor alone.
- *The supervisor dies*: each worker reads from a pipe that only the supervisor can write to. When the pipe ends, so
  does the worker.
- *systemd* hears from the supervisor alone: ``READY`` when all workers listen, and the watchdog's sign of life while
  the event loop of each worker turns.
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
from tricklecast.app.workers.mesh import socket_pairs
from tricklecast.app.workers.placement import FRONT
from tricklecast.app.workers.shared import Figure, Shared
from tricklecast.trickle.errors import TrickleError

_LOGGER = logging.getLogger(__name__)

MAX_DEATHS: Final = 3
DEATHS_S: Final = 60.0
"""The server ends when this number of workers have died within this time, in seconds."""

BEATS_S: Final = 2.0
"""systemd's watchdog gets a sign of life while each worker has beaten within this time. A worker beats four times a
second (:meth:`Link.tick() <tricklecast.app.workers.link.Link.tick>`)."""

HANG_UP_S: Final = 2.0
"""A shell that ends may send SIGHUP this long before its terminal is closed."""

HUNG_S: Final = 15.0
"""A worker that has not beaten for this time is killed and started again. Clients of its channels wait until then; the
other workers accept its share of the new connections (:mod:`~tricklecast.app.workers.link`)."""

LOOK_S: Final = 0.25
"""The supervisor looks at its workers this often if nothing wakes it."""

READY: Final = "\n"
"""A worker reports this when it listens. Any other report is the reason why it ends."""

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals to the supervisor that reach the workers."""


@dataclass
class Worker:
    """The supervisor gives this to a worker that it forks.

    Attributes:
        number: from 0. count: the number of workers.
        mesh: the sockets of all workers. shared: the memory of all. log: what the writers of the access log share.
        alive: a pipe that ends when the supervisor does.
        predecessors: how many workers of this number have died.
        status: a pipe to the supervisor, for :meth:`report`.
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
    def logs_start(self) -> bool:
        """Whether this worker writes to the access log that the server starts: only one worker does, and once."""
        return self.number == FRONT and not self.predecessors

    def numbers(self) -> Iterator[int]:
        """Numbers from 1 on for connections or channels. No other worker and no predecessor gives the same."""
        return itertools.count((self.predecessors << 32) * self.count + self.number + 1, self.count)

    def report(self, text: str) -> None:
        """Tell the supervisor that this worker listens (:data:`READY`), or why it ends."""
        with contextlib.suppress(OSError):  # the supervisor is gone, and `alive` says so
            os.write(self.status, text.encode())


@dataclass
class _Process:
    """A worker's process, as the supervisor sees it."""

    pid: int
    status: int  # the pipe on which it reports
    reports: str = ""  # all of them, one behind the other
    beat: int = 0  # the last one that the supervisor has seen
    still_s: float = 0.0  # how long it has not beaten, without time in which the supervisor did not run either

    def read_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.status, 65536):
                self.reports += data.decode()

    @property
    def is_ready(self) -> bool:
        """It listens."""
        return self.reports.startswith(READY)

    @property
    def error(self) -> str:
        """Why it could not start, or go on; empty if it has not said so."""
        return self.reports.removeprefix(READY)


class Supervisor:
    """Runs the workers of a server.

    Args:
        count: of workers.
        work: runs in the process of each worker, until that worker is told to stop.
        ready: called when all workers listen for the first time.
        stopping: called when the server begins to stop.
        reload: called at SIGHUP, before the workers get the signal, so that a worker which starts later has the new
            settings, too.
        terminal_is_gone: whether the server's terminal was closed. That sends SIGHUP as well, and ends the server.
        deadline_s: a worker that has not ended this long after SIGTERM is killed.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[Worker], None],
        *,
        ready: Callable[[], None],
        stopping: Callable[[], None],
        reload: Callable[[], None],
        terminal_is_gone: Callable[[], bool],
        deadline_s: Callable[[], float],
    ) -> None:
        self._count, self._work = count, work
        self._ready, self._stopping, self._reload = ready, stopping, reload
        self._terminal_is_gone, self._deadline_s = terminal_is_gone, deadline_s
        # For all workers.
        self._mesh = socket_pairs(count)
        self._shared = Shared(count)
        self._log = LogShare()
        # Each worker.
        self._processes: dict[int, _Process] = {}  # those that run, by the worker's number
        self._predecessors = [0] * count  # how many have died, by the worker's number
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)  # when the last workers died
        # The server's life.
        self._signals: deque[int] = deque(maxlen=64)  # that have come, and are not handled yet
        self._was_ready = False  # all workers have listened at the same time
        self._kill_at: float | None = None  # workers that have not ended by then are killed; None: the server runs
        self._failure: TrickleError | None = None  # why the server ends; None: it was told to, or runs
        self._terminal_until = 0.0  # until then the terminal of the last SIGHUP may yet be closed
        self._watchdog = Watchdog()  # systemd's
        self._looked_at = 0.0  # when it last looked at the beats

    def run(self) -> None:
        """Return when all workers have ended.

        Raises:
            CannotServe: a worker could not start, or too many have died.
        """
        self._wake_read, self._wake_write = os.pipe()  # Python writes to it at each signal
        self._alive_read, self._alive_write = os.pipe()  # nobody writes; it ends in the workers with this process
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        handlers = {number: signal.signal(number, self._note) for number in (*PASSED_ON, signal.SIGCHLD)}
        wakeup_fd = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            for number in range(self._count):
                self._start(number)
            while self._processes:
                self._wait()
                self._look()
        finally:
            signal.set_wakeup_fd(wakeup_fd)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for process in self._processes.values():
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
            for end in (self._wake_read, self._wake_write, self._alive_read, self._alive_write):
                os.close(end)
            for sock in itertools.chain.from_iterable(self._mesh):
                sock.close()
            self._log.close()
        if self._failure is not None:
            raise self._failure

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Python's handler of a signal. SIGCHLD only has to end :meth:`_wait`."""
        del frame
        if number != signal.SIGCHLD:
            self._signals.append(number)

    def _wait(self) -> None:
        """Wait for a signal, a report or the next look."""
        poll = select.poll()  # select() takes no descriptor from 1024 on
        for end in (self._wake_read, *(process.status for process in self._processes.values())):
            poll.register(end, select.POLLIN)
        poll.poll(LOOK_S * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _look(self) -> None:
        """Do all that is due."""
        while self._signals:
            self._handle(self._signals.popleft())
        for number, process in list(self._processes.items()):
            process.read_reports()
            self._reap(number, process)
        ready = [process.is_ready for process in self._processes.values()]
        if not self._was_ready and self._kill_at is None and ready == [True] * self._count:
            self._was_ready = True
            notify("READY=1")
            self._ready()
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            for process in self._processes.values():
                _LOGGER.critical("worker process %d did not come to its end; it is killed", process.pid)
                os.kill(process.pid, signal.SIGKILL)
            self._kill_at = now + 1.0
        if now < self._terminal_until and self._terminal_is_gone():
            self._terminal_until = 0.0
            self._stop()
        self._look_at_beats(now)

    def _look_at_beats(self, now: float) -> None:
        """Kill a worker that hangs, and tell systemd that all workers beat."""
        beats = self._shared.column(Figure.BEAT_MS)
        # While the machine is suspended, the supervisor stands still as well: that time counts as one look.
        looked_s, self._looked_at = min(now - self._looked_at, LOOK_S), now
        for number, process in self._processes.items():
            is_still = process.is_ready and process.beat == beats[number]
            process.still_s = process.still_s + looked_s if is_still else 0.0
            process.beat = beats[number]
            if process.still_s > HUNG_S and process.beat and self._kill_at is None:
                process.still_s = 0.0
                _LOGGER.critical("worker %d (process %d) has hung for %g s; it is killed", number, process.pid, HUNG_S)
                os.kill(process.pid, signal.SIGKILL)
        # One that is not ready is left out: a successor may read its data directory for long, while the others serve.
        since_ms = (now - BEATS_S) * 1000
        if all(beats[number] > since_ms for number, process in self._processes.items() if process.is_ready):
            self._watchdog.beat()

    def _handle(self, number: int) -> None:
        """Handle a signal that has come."""
        if number != signal.SIGHUP:
            self._stop()
            return
        self._terminal_until = time.monotonic() + HANG_UP_S
        if not self._terminal_is_gone():  # else it is a signal to stop, which _look() sees
            self._reload()
            self._send(signal.SIGHUP)

    def _stop(self) -> None:
        """Tell the workers to drain and end; the second time, to end at once."""
        if self._kill_at is not None:
            self._send(signal.SIGINT)
            return
        self._kill_at = time.monotonic() + self._deadline_s()
        notify("STOPPING=1")
        self._stopping()
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        """Send a signal to all workers."""
        for process in self._processes.values():
            os.kill(process.pid, number)

    def _fail(self, problem: str) -> None:
        """End the server, with the first problem as its reason."""
        if self._failure is None:
            self._failure = CannotServe(problem)
        elif self._was_ready and problem != str(self._failure):
            _LOGGER.critical("%s", problem)
        if self._kill_at is None:
            self._stop()

    def _reap(self, number: int, process: _Process) -> None:
        """If a worker has ended, start it again, unless the server ends."""
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if not pid:
            return
        process.read_reports()  # that came since the last look
        os.close(process.status)
        del self._processes[number]
        code = os.waitstatus_to_exitcode(status)
        killer = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        ending = f"was ended by {killer}" if code < 0 else f"has ended with exit code {code}"
        problem = process.error or f"worker {number} {ending}"
        if self._kill_at is not None or (process.error and not self._was_ready):
            if code:
                self._fail(problem)
            return
        now = time.monotonic()
        self._deaths.append(now)
        if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < DEATHS_S:
            self._fail(f"{MAX_DEATHS} workers have died within a minute; the last one: {problem}")
            return
        _LOGGER.critical("%s (process %d); it is started again", problem, process.pid)
        self._shared.clear(number)
        self._predecessors[number] += 1
        try:
            self._start(number)
        except CannotServe as failed:
            self._fail(str(failed))

    def _start(self, number: int) -> None:
        """Fork a worker. In its process this does not return.

        Raises:
            CannotServe: there can be no further process.
        """
        status_read, status_write = os.pipe()
        os.set_blocking(status_read, False)
        # Else the worker's copies of these buffers would be written a second time.
        sys.stdout.flush()
        sys.stderr.flush()
        # The worker unblocks them when it has handlers.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for end in (status_read, status_write):
                os.close(end)
            raise CannotServe(f"worker {number} cannot be started: {error.strerror}") from None
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(status_write)
            self._processes[number] = _Process(pid, status_read)
            return
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            others = (process.status for process in self._processes.values())
            for end in (status_read, self._wake_read, self._wake_write, self._alive_write, *others):
                os.close(end)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # The worker is in the background of its terminal, where `stty tostop` would stop it when it writes.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            for passed_on in PASSED_ON:  # for signals between the end of `work` and that of the process
                signal.signal(passed_on, lambda *_: None)
            predecessors = self._predecessors[number]
            worker = Worker(
                number, self._count, self._mesh, self._shared, self._log, self._alive_read, predecessors, status_write
            )
            code = _run(self._work, worker)
        finally:
            os._exit(code)


def _run(work: Callable[[Worker], None], worker: Worker) -> int:
    """Run a worker in its own process; returns the exit code."""
    try:
        work(worker)
        return 0
    except TrickleError as error:
        worker.report(str(error))
    except BaseException:
        _LOGGER.critical("a fault of the server has ended worker %d", worker.number, exc_info=True)
    finally:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    return 1
