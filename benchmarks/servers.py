"""The servers that are compared: how each is started, and which core it gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scenarios import Exchanges, Scenario, to_json

ROOT = Path(__file__).resolve().parent.parent
START_S = 20.0
STOP_S = 20.0
RUN_S = 60.0


class BenchmarkError(Exception):
    """A run did not work; its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A server.

    Attributes:
        name: in the tables. module: run as ``python -m``. arguments: for it.
        root: the checkout that it is started from.
        bare: it is the floor, which knows neither channels nor segments.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    root: Path = ROOT
    bare: bool = False

    def command(self, scenario: Scenario) -> list[str]:
        """How it is started for a scenario."""
        mode: tuple[str, ...] = ()
        if self.bare and isinstance(scenario, Exchanges):
            mode = ("--mode", "exchange", "--body-size", str(scenario.chunk_bytes))
        return [sys.executable, "-m", self.module, *self.arguments, *mode]


def tricklecast(name: str = "tricklecast", root: Path = ROOT) -> Contender:
    """The server of a checkout."""
    return Contender(name, "app", ("serve", "--port", "0"), root)


FLOOR = Contender("floor", "benchmarks.references.floor", bare=True)
FASTAPI = Contender("fastapi", "benchmarks.references.fastapi_streaming")


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


def measure(contender: Contender, scenario: Scenario, cores: Cores) -> dict[str, float]:
    """Start a server, run a scenario against it, and stop it.

    Raises:
        BenchmarkError: one of the two did not work.
    """
    with _running(contender, scenario, cores.server) as (pid, port):
        job = {"pid": pid, "port": port, "endless": contender.bare, "scenario": to_json(scenario)}
        return _load(job, cores.load)


@contextmanager
def _running(contender: Contender, scenario: Scenario, core: int | None) -> Iterator[tuple[int, int]]:
    command = contender.command(scenario)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=contender.root, env=environment, preexec_fn=_bind(core)
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        _, found, address = line.partition("http://127.0.0.1:")
        if not found:
            raise BenchmarkError(f"{contender.name} did not start: {' '.join(command)}")
        yield process.pid, int(address.partition("/")[0])
    finally:
        process.kill()  # Connections are open on purpose: nothing is gained from waiting until they have gone.
        process.wait(STOP_S)
        process.stdout.close()


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
            preexec_fn=_bind(core),
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"no result after {RUN_S:.0f} s") from None
    if done.returncode:
        raise BenchmarkError(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _bind(core: int | None) -> Any:
    return None if core is None else lambda: os.sched_setaffinity(0, {core})
