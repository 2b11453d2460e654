"""What a server delivers that is offered as much as it takes, beside go-livepeer: goodput, losses, and its neighbours.

Run it as ``python benchmarks/saturation.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks.load.saturation import READY, ROLES, Attack, Load, Times
from benchmarks.references import go_livepeer
from benchmarks.report import BUSY
from benchmarks.servers import (
    GO,
    ROOT,
    BenchmarkError,
    Contender,
    Cores,
    bind,
    raise_file_limit,
    running,
    tricklecast,
)

Sample = dict[str, float]

WARM_UP_S: Final = 0.4
GRACE_S: Final = 1.0
"""How long chunks that were published may still arrive before they count as lost."""

SETTLE_S: Final = 0.2
ROLE_S: Final = 60.0
"""Longest time for a role to connect, and for it to end after the run."""

DELIVERED: Final = 0.95
"""The share of the published chunks that has to arrive, whatever is offered."""

OF_BEST: Final = 0.9
"""The share of its best goodput that a server keeps at any higher offered load."""


@dataclass(frozen=True, slots=True)
class Family:
    """A load at several rates.

    Attributes:
        load: without a rate: as fast as it goes. rates: chunks per second and channel of the paced points.
    """

    load: Load
    rates: tuple[float, ...] = ()

    def points(self, name: str) -> Iterator[tuple[str, Load]]:
        """The points by name, the lowest rate first, the unpaced point last."""
        for rate in self.rates:
            yield f"{name} @{rate:g}/s", replace(self.load, rate=rate)
        yield name, self.load


KIB: Final = 1024
FAMILIES: Final = {
    "bulk": Family(Load(channels=1, readers=20), (250, 500, 1000)),
    "bulk-1": Family(Load(channels=1, readers=1), (1000,)),
    "small": Family(Load(channels=100, readers=1, chunk_bytes=200, chunks_per_segment=1), (10, 20)),
    "small-50": Family(Load(channels=10, readers=50, chunk_bytes=200, chunks_per_segment=1), (5,)),
    "wide": Family(Load(channels=1, readers=500, chunk_bytes=8 * KIB, chunks_per_segment=30), (30,)),
    "many": Family(Load(channels=100, readers=5, chunk_bytes=8 * KIB, chunks_per_segment=30), (20,)),
    "large": Family(Load(channels=4, readers=20, chunk_bytes=256 * KIB, chunks_per_segment=16), (20,)),
    "grains": Family(Load(channels=1, readers=100, chunk_bytes=200, chunks_per_segment=100), (100,)),
    "publishers": Family(Load(channels=8)),
    "tiny-publisher": Family(Load(attack=Attack.TINY_PUBLISHER)),
    "tiny-bodies": Family(Load(attack=Attack.TINY_BODIES)),
    "tiny-segment": Family(Load(attack=Attack.TINY_SEGMENT)),
}


def measure(contender: Contender, load: Load, cores: Cores, seconds: float) -> Sample:
    """Start a server, run a load against it for so many seconds, and stop it.

    Raises:
        BenchmarkError: the server did not start, or a client met what no client may meet.
    """
    with running(contender, cores.server) as (pid, port), ExitStack() as stack:
        wanted = [role for role in ROLES if role != "slow readers" or load.stalled + load.drip]
        roles = [stack.enter_context(_Role(role, cores)) for role in wanted]
        for role in roles:
            role.connect({"pid": pid, "port": port, "load": asdict(load)})
        start = time.monotonic() + SETTLE_S
        begin = start + WARM_UP_S
        times = Times(start, begin, begin + seconds, begin + seconds + GRACE_S)
        for role in roles:
            role.run(times)
        found: Sample = {}
        for role in roles:
            found |= role.result(times.over + ROLE_S)
    expected = found["published"] * load.readers
    found["share"] = found["delivered"] / expected if expected else math.nan
    if not found["rate"]:
        found["cpu_us"] = math.nan
    chunk_bytes = 1 if load.attack else load.chunk_bytes
    found["goodput_mb_s"] = found["rate"] * chunk_bytes / 1e6
    return found


class _Role:
    """A process of clients; leaving the context ends it."""

    def __init__(self, role: str, cores: Cores) -> None:
        self._role = role
        self._error = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load.saturation"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            preexec_fn=bind(cores.others()),
        )

    def __enter__(self) -> _Role:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def connect(self, job: dict[str, Any]) -> None:
        """Tell the process what it has to do, and wait until it has connected.

        Raises:
            BenchmarkError: the process did not connect.
        """
        self._tell({**job, "role": self._role})
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            raise self._failure()

    def run(self, times: Times) -> None:
        """Tell the process when it has to do what."""
        self._tell(asdict(times))

    def result(self, until: float) -> Sample:
        """The figures of the process, which must come until then (``time.monotonic``).

        Raises:
            BenchmarkError: they do not come.
        """
        try:
            out, self._error = self._process.communicate(timeout=until - time.monotonic())
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"{self._role}: no result") from None
        if not out:
            raise self._failure()
        found: Sample = json.loads(out)
        return found

    def _tell(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def _failure(self) -> BenchmarkError:
        error = self._error or self._process.communicate()[1]
        last = error.strip().rpartition("\n")[2]
        return BenchmarkError(f"{self._role}: {last or 'the process ended without a message'}")


COLUMNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("delivered", "share", ".1%"),
    ("MB/s", "goodput_mb_s", ".1f"),
    ("chunks/s", "rate", ".0f"),
    ("CPU us/chunk", "cpu_us", ".1f"),
    ("470", "refused", ".0f"),
    ("cut off", "cut_off", ".0f"),
    ("p50 ms", "p50_ms", ".1f"),
    ("p99 ms", "p99_ms", ".1f"),
    ("beside p50", "neighbour_p50_ms", ".1f"),
    ("p99", "neighbour_p99_ms", ".1f"),
    ("GET p50", "probe_p50_ms", ".1f"),
    ("p99", "probe_p99_ms", ".1f"),
    ("server", "server_busy", ".0%"),
    ("readers", "load_busy", ".0%"),
    ("publ.", "publishers_busy", ".0%"),
)
"""Title, figure and format of each column."""


def describe(name: str, family: Family) -> str:
    """A family of loads in one line."""
    load = family.load
    if load.attack:
        return f"{name}: {load.attack}"
    kind = f"chunks of {load.chunk_bytes} B, segments of {load.chunk_bytes * load.chunks_per_segment / KIB:.4g} KiB"
    slow = f", {load.stalled} stalled, {load.drip} dripping" if load.stalled or load.drip else ""
    return f"{name}: {load.channels} publisher(s) x {load.readers} reader(s), {kind}{slow}"


def print_family(console: Console, name: str, family: Family, samples: dict[str, dict[str, Sample | str]]) -> None:
    """Print the table of a family, a row for each rate and server.

    Args:
        samples: by point and server; text where a run failed.
    """
    table = Table(title=describe(name, family), title_justify="left", title_style="bold")
    table.add_column("load")
    table.add_column("server")
    for title, _, _ in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    notes = []
    for point, by_server in samples.items():
        for server, sample in by_server.items():
            if isinstance(sample, str):
                notes.append(f"{point}: {server} failed: {sample}")
                continue
            table.add_row(point, server, *[_cell(sample[figure], form) for _, figure, form in COLUMNS])
            if max(sample["load_busy"], sample["publishers_busy"]) > BUSY:
                notes.append(f"{point}: the clients of {server} were the bottleneck (more than {BUSY:.0%} of a core)")
    console.print(table)
    for note in notes:
        console.print(f"! {note}", markup=False)


def _cell(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def complaints(server: str, samples: dict[str, dict[str, Sample | str]]) -> Iterator[str]:
    """What a server promises and has not kept, over the points of one family.

    Args:
        samples: by point, the lowest rate first, and by server.
    """
    best = 0.0
    for point, by_server in samples.items():
        sample = by_server[server]
        if isinstance(sample, str):
            yield f"{point}: {sample}"
            continue
        if sample["share"] < DELIVERED:
            yield f"{point}: {sample['share']:.1%} delivered (at least {DELIVERED:.0%})"
        if sample["cut_off"]:
            yield f"{point}: {sample['cut_off']:.0f} readers that read were cut off"
        if not math.isnan(sample["share"]):
            if sample["goodput_mb_s"] < OF_BEST * best:
                yield f"{point}: {sample['goodput_mb_s']:.1f} MB/s, {best:.1f} at a lower rate"
            best = max(best, sample["goodput_mb_s"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=FAMILIES, help="run only this load; repeatable")
    parser.add_argument("--seconds", type=float, default=1.5, help="measured time of each point [1.5]")
    parser.add_argument("--stalled", type=int, default=0, metavar="N", help="readers in addition that never read")
    parser.add_argument("--drip", type=int, default=0, metavar="N", help="readers in addition that take 160 kB/s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="LABEL=DIR", help="also run the server of another checkout"
    )
    arguments = parser.parse_args()
    for other in arguments.beside:
        if not other.partition("=")[2]:
            parser.error(f"--beside takes LABEL=DIR, not {other!r}")
    return arguments


def main() -> int:
    """Run what the command line asks for; returns the exit code: 1 if tricklecast has not kept a promise."""
    arguments = _arguments()
    if sys.platform != "linux":
        sys.stderr.write("saturation: it reads the clocks of other processes, which needs Linux\n")
        return 1
    raise_file_limit()
    # A terminated benchmark must still stop the server that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    contenders = [tricklecast()]
    for other in arguments.beside:
        label, _, root = other.partition("=")
        contenders.append(tricklecast(label, Path(root).resolve()))
    if (reason := go_livepeer.missing()) is None:
        contenders.append(GO)
    else:
        console.print(f"go is left out: {reason}", markup=False)
    cores = Cores.choose()
    console.print(f"server on core {cores.server}; load average {os.getloadavg()[0]:.1f} at the start")
    found: dict[str, dict[str, Sample | str]] = {}
    broken: list[str] = []
    for name in arguments.only or FAMILIES:
        family = FAMILIES[name]
        if family.load.readers:
            family = replace(family, load=replace(family.load, stalled=arguments.stalled, drip=arguments.drip))
        samples = run(name, family, contenders, cores, arguments.seconds, console)
        print_family(console, name, family, samples)
        broken += complaints(contenders[0].name, samples)
        found |= samples
    for complaint in broken:
        console.print(f"MISSED {complaint}", markup=False)
    if arguments.json:
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
        report = {"machine": machine, "points": found, "missed": broken}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if broken else 0


def run(
    name: str, family: Family, contenders: list[Contender], cores: Cores, seconds: float, console: Console
) -> dict[str, dict[str, Sample | str]]:
    """Run all points of a family, each with every server in turn; returns figures, or why there are none."""
    samples: dict[str, dict[str, Sample | str]] = {}
    for point, load in family.points(name):
        samples[point] = {}
        for contender in contenders:
            with console.status(f"{point}: {contender.name}"):
                try:
                    samples[point][contender.name] = measure(contender, load, cores, seconds)
                except BenchmarkError as error:
                    samples[point][contender.name] = str(error)
    return samples


if __name__ == "__main__":
    sys.exit(main())
