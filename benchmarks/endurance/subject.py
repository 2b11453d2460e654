"""The server that is watched: started, sampled, stopped in every way, and started again on its port."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load.meter import cpu_clock, family, rss_bytes
from benchmarks.servers import ROOT, START_S, STOP_S, BenchmarkError

GONE = (ProcessLookupError, FileNotFoundError, OSError)
"""What is raised where a process that has ended is looked at."""

SUSPENDED = "T"
"""The state of a process that was stopped (proc(5))."""


@dataclass(slots=True)
class Life:
    """From one start to the next end; samples once a second.

    Attributes:
        ended_by: how it ended. code: its exit code. took_s: how long the end took.
        seconds, rss_kb, files, busy: when (since the start), memory, descriptors, share of a core; with its workers.
        suspended: samples that found the process stopped by somebody (SIGSTOP): what was measured is worth nothing.
    """

    ended_by: str = "end"
    code: int | None = None
    took_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    rss_kb: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    suspended: int = 0


class Subject:
    """The server.

    Args:
        settings: further options of ``serve``. core: where it is bound to; ``None``: anywhere.

    Attributes:
        port: the same for all its lives; 0 before the first. lives: all of them; the last one may be going on.
    """

    def __init__(self, settings: tuple[str, ...], core: int | None) -> None:
        self.port = 0
        self.lives: list[Life] = []
        self._settings = settings
        self._core = core
        self._process: Process | None = None
        self._starting: Process | None = None
        self._begun = 0.0
        self._before = (0, 0)

    async def start(self) -> None:
        """Begin a life.

        Raises:
            BenchmarkError: it does not start.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
        command = [sys.executable, "-m", "tricklecast", "serve", "--port", str(self.port), *self._settings]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=ROOT, env=environment)
        if self._core is not None:
            os.sched_setaffinity(process.pid, {self._core})
        assert process.stdout is not None
        self._starting = process
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode()
        _, found, address = line.partition("http://127.0.0.1:")
        if not found:
            raise BenchmarkError("the server did not start")
        self.port = int(address.partition("/")[0])
        self._begun = time.monotonic()
        self._before = (time.monotonic_ns(), cpu_ns(family(process.pid)))
        self.lives.append(Life())
        self._process, self._starting = process, None

    def sample(self) -> Life | None:
        """Take a sample; ``None`` if there is no server at the moment."""
        process = self._process
        if process is None:
            return None
        life = self.lives[-1]
        try:
            pids = family(process.pid)
            now = (time.monotonic_ns(), cpu_ns(pids))
            rss = rss_bytes(process.pid)
            files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
            states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
        except GONE:
            return None
        life.seconds.append(time.monotonic() - self._begun)
        life.rss_kb.append(rss / 1000)
        life.files.append(files)
        life.suspended += SUSPENDED in states
        life.busy.append((now[1] - self._before[1]) / (now[0] - self._before[0]))
        self._before = now
        return life

    async def end(self, number: signal.Signals, name: str) -> None:
        """End the present life with a signal.

        Raises:
            BenchmarkError: it does not end.
        """
        process, self._process = self._process, None
        if process is None:
            return
        life, begun = self.lives[-1], time.monotonic()
        life.ended_by = name
        # SIGTERM is for the supervisor, which passes it on; SIGKILL is for all: as a machine ends.
        for pid in family(process.pid) if number == signal.SIGKILL else [process.pid]:
            os.kill(pid, number)
        try:
            async with asyncio.timeout(STOP_S):
                life.code = await process.wait()
        except TimeoutError:
            raise BenchmarkError(f"the server does not end after {name}") from None
        finally:
            if process.returncode is None:  # also where the benchmark itself is told to stop meanwhile
                process.kill()
        life.took_s = time.monotonic() - begun

    async def give_up(self) -> None:
        """Make sure that it is gone."""
        for process in filter(None, (self._process, self._starting)):
            process.kill()
            await process.wait()


def cpu_ns(pids: list[int]) -> int:
    """The CPU time of processes."""
    return sum(time.clock_gettime_ns(cpu_clock(pid)) for pid in pids)


def log_files(path: Path) -> list[Path]:
    """The access log and its rotated files."""
    return sorted(path.parent.glob(f"{path.stem}*{path.suffix}"))
