"""The servers that are compared: how each is started, and which core it gets."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.references import go_livepeer, nchan
from benchmarks.scenarios import Dialect, Exchanges, Idle, Scenario, Stream, to_json

ROOT = Path(__file__).resolve().parent.parent
START_S = 20.0
STOP_S = 20.0
RUN_S = 60.0
FILES = 16_384
"""File descriptors that 10,000 connections need in server and load generator, with room to spare."""


class BenchmarkError(Exception):
    """A run did not work; its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A server.

    Attributes:
        name: in the tables. module: run as ``python -m``. arguments: for it.
        root: the checkout that it is started from.
        dialect: what it understands.
        scenarios: the kinds that it can take part in; ``None``: all.
        worker: whether a child of the process that is started does the work.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    root: Path = ROOT
    dialect: Dialect = Dialect.TRICKLE
    scenarios: tuple[type[Scenario], ...] | None = None
    worker: bool = False

    def takes_part(self, scenario: Scenario) -> bool:
        """Whether it can run a scenario."""
        return self.scenarios is None or isinstance(scenario, self.scenarios)

    def command(self, scenario: Scenario | None) -> list[str]:
        """The command that starts the server for a scenario; ``None``: one that needs no options of its own."""
        mode: tuple[str, ...] = ()
        if self.dialect is Dialect.BARE and isinstance(scenario, Exchanges):
            mode = ("--mode", "exchange", "--body-size", str(scenario.chunk_bytes))
        return [sys.executable, "-m", self.module, *self.arguments, *mode]


def tricklecast(name: str = "tricklecast", root: Path = ROOT, settings: tuple[str, ...] = ()) -> Contender:
    """The server of a checkout, with further options of ``serve``."""
    return Contender(name, "tricklecast", ("serve", "--port", "0", *settings), root)


STREAMS = replace(tricklecast("streams"), dialect=Dialect.ONE_RESPONSE, scenarios=(Stream,))
"""Our server, whose readers have one response each over all segments (``GET /{channel}/stream``)."""

FLOOR = Contender("floor", "benchmarks.references.floor", dialect=Dialect.BARE)
NCHAN = Contender("nchan", "benchmarks.references.nchan", dialect=Dialect.NCHAN, scenarios=(Stream, Idle), worker=True)
GO = Contender("go", "benchmarks.references.go_livepeer")
FASTAPI = Contender("fastapi", "benchmarks.references.fastapi_streaming")


def references(console: Console) -> list[Contender]:
    """nchan and Go, where they can be had; of the others the console is told why they cannot."""
    found = []
    for peer, reason in ((NCHAN, nchan.missing()), (GO, go_livepeer.missing())):
        if reason is None:
            found.append(peer)
        else:
            console.print(f"{peer.name} is left out: {reason}", markup=False)
    return found


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core the server and the load generator are bound to; ``None``: the machine decides."""

    server: int | None
    load: int | None

    @classmethod
    def choose(cls) -> Cores:
        """One each, if there are two."""
        available = sorted(os.sched_getaffinity(0))
        return cls(available[0], available[1]) if len(available) > 1 else cls(None, None)

    def others(self) -> set[int]:
        """All cores but the server's, for a load of several processes."""
        return os.sched_getaffinity(0) - {self.server}


def raise_file_limit() -> None:
    """Allow this process, and those that it starts, as many open files as are needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def measure(contender: Contender, scenario: Scenario, cores: Cores) -> dict[str, float]:
    """Start a server, run a scenario against it, and stop it.

    Raises:
        BenchmarkError: one of the two did not work.
    """
    with running(contender, cores.server, scenario) as (pid, port):
        return load(pid, port, scenario, cores.load, contender.dialect)


def load(
    pid: int, port: int, scenario: Scenario, core: int | None, dialect: Dialect = Dialect.TRICKLE
) -> dict[str, float]:
    """Run a scenario against a server that runs.

    Raises:
        BenchmarkError: it did not work.
    """
    return _load({"pid": pid, "port": port, "dialect": dialect, "scenario": to_json(scenario)}, core)


@contextmanager
def running(contender: Contender, core: int | None, scenario: Scenario | None = None) -> Iterator[tuple[int, int]]:
    """Run a server while the block lasts; gives the id of the process that does the work, and its port.

    Args:
        contender: the server. core: that it is bound to; ``None``: any. scenario: that it is started for.

    Raises:
        BenchmarkError: the server does not start.
    """
    command = contender.command(scenario)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    with tempfile.TemporaryDirectory(prefix="tricklecast-benchmark-") as folder:
        Path(folder).chmod(0o755)  # what it holds may be for another user
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=contender.root,
            env={**environment, "TMPDIR": folder},
            start_new_session=True,
            preexec_fn=bind({core} if core is not None else os.sched_getaffinity(0)),
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            _, found, address = line.partition("://127.0.0.1:")
            if not found:
                raise BenchmarkError(f"{contender.name} did not start: {' '.join(command)}")
            pid = _worker(process.pid) if contender.worker else process.pid
            yield pid, int(address.partition("/")[0])
        finally:
            # Connections are open on purpose: nothing is gained from waiting until they have gone.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_S)
            process.stdout.close()


def _worker(parent: int) -> int:
    """The process that does the work, once it is there."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    deadline = time.monotonic() + START_S
    while not (found := children.read_text().split()):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"process {parent} has started no worker")
        time.sleep(0.01)
    return int(found[0])


def _load(job: dict[str, Any], core: int | None) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.load"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(job),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=RUN_S,
            preexec_fn=bind({core} if core is not None else os.sched_getaffinity(0)),
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"no result after {RUN_S:.0f} s") from None
    if done.returncode:
        raise BenchmarkError(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def bind(cores: set[int]) -> Callable[[], None]:
    """What a new process calls to stay on these cores."""
    return lambda: os.sched_setaffinity(0, cores)
