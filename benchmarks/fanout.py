"""What a delivered chunk, a small segment and a waiting reader cost, beside a floor, nchan, Go and plain FastAPI.

Run it as ``python benchmarks/fanout.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from benchmarks.report import Series, print_series, verdicts
from benchmarks.scenarios import SCENARIOS, Idle, Scenario, quick, to_json
from benchmarks.servers import (
    FASTAPI,
    FLOOR,
    STREAMS,
    BenchmarkError,
    Contender,
    Cores,
    measure,
    raise_file_limit,
    references,
    tricklecast,
)

ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run.

    Attributes:
        scenarios: by name. contenders: in the order in which each round runs them.
        rounds: how often; the idle scenario, whose result hardly varies, runs once.
        cores: who is bound where.
    """

    scenarios: dict[str, Scenario]
    contenders: tuple[Contender, ...]
    rounds: int
    cores: Cores


def run(plan: Plan, console: Console) -> list[Series]:
    """Run everything: in each round every server once, so that a disturbance meets all of them.

    A reference server that cannot keep up with a scenario is noted and has no figures in that round.

    Raises:
        BenchmarkError: a run of tricklecast did not work.
    """
    found = []
    for name, scenario in plan.scenarios.items():
        series = Series(name, scenario)
        rounds = 1 if isinstance(scenario, Idle) else plan.rounds
        for number in range(1, rounds + 1):
            for contender in filter(lambda contender: contender.takes_part(scenario), plan.contenders):
                with console.status(f"{name}: {contender.name}, round {number} of {rounds}"):
                    try:
                        sample = measure(contender, scenario, plan.cores)
                    except BenchmarkError as error:
                        if contender.module == tricklecast().module:
                            raise
                        console.print(f"! {name}: {contender.name} failed in round {number}: {error}", markup=False)
                        sample = {}
                    series.add(contender.name, sample)
        print_series(console, series)
        found.append(series)
    return found


def to_report(plan: Plan, found: list[Series]) -> dict[str, Any]:
    """Everything that was found, as JSON."""
    return {
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
        "cores": {"server": plan.cores.server, "load": plan.cores.load},
        "rounds": plan.rounds,
        "scenarios": {
            series.name: {"scenario": to_json(series.scenario), "samples": series.samples} for series in found
        },
        "verdicts": [
            {"scenario": v.expectation.scenario, "beside": v.expectation.beside, "found": v.found, "met": v.met}
            for v in verdicts(found, "tricklecast")
        ],
    }


def plan_from(arguments: argparse.Namespace, console: Console) -> Plan:
    """What the command line asks for."""
    chosen = {name: SCENARIOS[name] for name in arguments.only or SCENARIOS}
    if arguments.quick:
        chosen = {name: quick(scenario) for name, scenario in chosen.items()}
    others = [other.partition("=") for other in arguments.beside]
    checkouts = [tricklecast(label, Path(root).resolve()) for label, _, root in others]
    contenders = (FLOOR, *references(console), tricklecast(), STREAMS, *checkouts, FASTAPI)
    return Plan(chosen, contenders, 1 if arguments.quick else arguments.rounds, Cores.choose())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, shorter measurements: below a minute")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="run only this scenario; repeatable")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements per server [{ROUNDS}]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to this file")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="LABEL=DIR", help="also run the server of another checkout"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    for other in arguments.beside:
        if not other.partition("=")[2]:
            parser.error(f"--beside takes LABEL=DIR, not {other!r}")
    return arguments


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    arguments = _arguments()
    if sys.platform != "linux":
        sys.stderr.write("fanout: it reads the clocks of other processes, which needs Linux\n")
        return 1
    raise_file_limit()
    # Told to stop, it must still stop the server that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    plan = plan_from(arguments, console)
    cores = plan.cores
    pinned = "nothing is pinned" if cores.server is None else f"server on core {cores.server}, load on {cores.load}"
    console.print(f"{plan.rounds} round(s); {pinned}; load average {os.getloadavg()[0]:.1f} at the start")
    begun = time.monotonic()
    try:
        found = run(plan, console)
    except BenchmarkError as error:
        sys.stderr.write(f"fanout: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    for verdict in verdicts(found, "tricklecast"):
        console.print(str(verdict))
    console.print(f"took {time.monotonic() - begun:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(to_report(plan, found), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
