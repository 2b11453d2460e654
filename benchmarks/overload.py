"""What a server does that is asked too much: stalled readers, naive loops, crowds, refusals.

Run it as ``python benchmarks/overload.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from benchmarks.pressure.bounds import Sample
from benchmarks.pressure.report import Found, print_found
from benchmarks.pressure.sections import QUICK, SECTIONS, Section, Size
from benchmarks.servers import (
    FLOOR,
    BenchmarkError,
    Contender,
    Cores,
    measure,
    raise_file_limit,
    references,
    tricklecast,
)

ROUNDS = 3


def run(
    name: str, section: Section, rounds: int, cores: Cores, console: Console, others: Sequence[Contender] = ()
) -> Found:
    """Run a section: in each round every case once, so that a disturbance meets all of them.

    Args:
        others: servers that are measured, too, where the section compares them. One that fails is noted.

    Raises:
        BenchmarkError: a run of tricklecast did not work.
    """
    found = Found(name, section)
    for number in range(1, 1 + min(rounds, section.rounds or rounds)):
        samples: dict[str, Sample] = {}
        for label, case in section.cases.items():
            with console.status(f"{name}: {label}, round {number}"):
                samples[label] = measure(tricklecast(settings=case.settings), case.scenario, cores)
            for other in others if section.compared else ():
                with console.status(f"{name}: {label}, {other.name}, round {number}"):
                    try:
                        samples[f"{label}, {other.name}"] = measure(other, case.scenario, cores)
                    except BenchmarkError as error:
                        console.print(f"! {label}: {other.name} failed in round {number}: {error}", markup=False)
        found.rounds.append(samples)
    print_found(console, found)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, shorter measurements")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="run only this section; repeatable")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements per case [{ROUNDS}]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to this file")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    arguments = _arguments()
    if sys.platform != "linux":
        sys.stderr.write("overload: it reads the clocks of other processes, which needs Linux\n")
        return 1
    raise_file_limit()
    # Told to stop, it must still stop the server that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"load average {os.getloadavg()[0]:.1f} at the start")
    begun = time.monotonic()
    others = [FLOOR, *references(console)]
    rounds = 1 if arguments.quick else arguments.rounds
    size = QUICK if arguments.quick else Size()
    try:
        names, cores = arguments.only or SECTIONS, Cores.choose()
        found = [run(name, SECTIONS[name](size), rounds, cores, console, others) for name in names]
    except BenchmarkError as error:
        sys.stderr.write(f"overload: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    console.print(f"took {time.monotonic() - begun:.0f} s")
    if arguments.json:
        document = {one.name: one.to_json() for one in found}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
