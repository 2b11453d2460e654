"""Half an hour of load with churn, a restart and a kill: does anything grow, and is anything lost?

Run it as ``python benchmarks/soak.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import mean

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from benchmarks.endurance.run import Outcome, Plan, soak
from benchmarks.endurance.slope import Growth, growth
from benchmarks.endurance.subject import Life
from benchmarks.servers import BenchmarkError, Cores, raise_file_limit
from tricklecast.trickle.records import Event

WARM_UP = 0.5
"""The share of each life that is not judged: what the window, caches and above all the allocator take until they are
full. The last of these rises with each new peak of what is held, which on a busy machine takes five minutes."""

RSS_SHARE, RSS_KB = 0.05, 2000.0
"""By so much of itself, or so many kB, resident memory may rise: what the allocator may leave behind is not a leak."""

FILES_SHARE, FILES = 0.1, 20.0
"""By so much of their number, or so many, descriptors may rise: the crowd's is a matter of chance."""

MAY_BE_LOST = 2
"""Messages of a witness that were confirmed, and are missing without a gap that says so: those that a killed server
took with it before its subscriber had them, at the end of what it had."""


def growths(lives: list[Life]) -> Iterator[Growth]:
    """What a line through each life's samples says."""
    for number, life in enumerate(lives, 1):
        warm = WARM_UP * life.seconds[-1] if life.seconds else 0.0
        first = next((at for at, second in enumerate(life.seconds) if second >= warm), 0)
        seconds = life.seconds[first:]
        yield growth(f"life {number}, kB resident", seconds, life.rss_kb[first:], RSS_SHARE, RSS_KB)
        yield growth(f"life {number}, descriptors", seconds, life.files[first:], FILES_SHARE, FILES)


def checks(outcome: Outcome, workers: int) -> Iterator[tuple[str, bool]]:
    """What else is expected: in words, and whether it holds."""
    lives, accounts, log = outcome.subject.lives, outcome.accounts, outcome.log
    stops = (len(lives) - 1) * workers  # each worker tells of its own; one life is killed
    yield f"exit codes after SIGTERM: {lives[0].code}, {lives[-1].code}", lives[0].code == lives[-1].code == 0
    for number, account in enumerate(accounts):
        silent = max(len(account.lost) - account.gaps, 0)
        yield (
            f"witness {number}: {len(account.confirmed)} confirmed, {len(account.lost)} of them lost "
            f"({account.gaps} told as gaps), {account.doubled} received twice",
            bool(account.confirmed) and not account.doubled and silent <= MAY_BE_LOST,
        )
    suspended = sum(life.suspended for life in lives)
    yield f"somebody had the server suspended in {suspended} of the samples", not suspended
    yield (
        f"access log: {log.lines} lines, {log.torn} torn (at most one per killed process)",
        log.torn <= workers,
    )
    yield (
        f"access log: {log.count(Event.SERVER_START)} starts, {log.count(Event.SERVER_STOP)} stops",
        log.count(Event.SERVER_START) == len(lives) and log.count(Event.SERVER_STOP) == stops,
    )


def print_outcome(console: Console, outcome: Outcome, workers: int) -> bool:
    """Print what has been found; returns whether all of it is as expected."""
    for number, life in enumerate(outcome.subject.lives, 1):
        if life.busy:
            console.print(
                f"life {number}: {life.seconds[-1]:.0f} s at {mean(life.busy):.0%} of a core, ended by {life.ended_by} "
                f"(code {life.code}, {life.took_s:.1f} s)"
            )
    console.print(f"crowd: {', '.join(f'{count} {what}' for what, count in sorted(outcome.crowd.items()))}")
    for number, account in enumerate(outcome.accounts):
        if account.errors:
            console.print(f"witness {number}: {', '.join(f'{n} {what}' for what, n in account.errors.items())}")
    met = True
    for line in growths(outcome.subject.lives):
        console.print(str(line), markup=False)
        met = met and line.met
    for text, holds in checks(outcome, workers):
        console.print(f"{'met   ' if holds else 'MISSED'} {text}", markup=False)
        met = met and holds
    return met


def to_json(plan: Plan, outcome: Outcome) -> dict[str, object]:
    """Everything, as JSON."""
    return {
        "plan": asdict(plan),
        "lives": [asdict(life) for life in outcome.subject.lives],
        "rates": outcome.rates,
        "crowd": outcome.crowd,
        "witnesses": [
            {
                "confirmed": len(account.confirmed),
                "lost": sorted(account.lost),
                "doubled": account.doubled,
                "gaps": account.gaps,
                "doubtful": sorted(account.doubtful),
                "errors": account.errors,
            }
            for account in outcome.accounts
        ],
        "log": asdict(outcome.log),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long in all [30]")
    parser.add_argument("--busy", type=float, default=0.6, metavar="SHARE", help="of a core, for the server [0.6]")
    parser.add_argument("--readers", type=int, default=800, help="of the crowd, at any time [800]")
    parser.add_argument("--publishers", type=int, default=8, help="of the crowd, at any time [8]")
    parser.add_argument("--seed", type=int, default=1, help="of all that the crowd draws [1]")
    parser.add_argument("--workers", type=int, default=1, help="of the server [1]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to this file")
    arguments = parser.parse_args()
    if arguments.minutes <= 0 or not 0 < arguments.busy < 1 or min(arguments.readers, arguments.publishers) < 1:
        parser.error("--minutes, --readers and --publishers must be above 0, --busy between 0 and 1")
    return arguments


def main() -> int:
    """Run what the command line asks for; returns the exit code: 1 if something is not as expected."""
    arguments = _arguments()
    if sys.platform != "linux":
        sys.stderr.write("soak: it reads the clocks of other processes, which needs Linux\n")
        return 1
    raise_file_limit()
    # Told to stop, it must still stop the processes that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    plan = Plan(
        seconds=arguments.minutes * 60,
        busy=arguments.busy,
        readers=arguments.readers,
        publishers=arguments.publishers,
        seed=arguments.seed,
        settings=("--workers", str(arguments.workers)) if arguments.workers > 1 else (),
    )
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"load average {os.getloadavg()[0]:.1f} at the start")
    begun = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begun:6.0f} s  {text}", markup=False)

    try:
        with tempfile.TemporaryDirectory(prefix="tricklecast-soak-") as folder:
            outcome = asyncio.run(soak(plan, Path(folder), Cores.choose(), say))
    except BenchmarkError as error:
        sys.stderr.write(f"soak: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    met = print_outcome(console, outcome, arguments.workers)
    if arguments.json:
        arguments.json.write_text(json.dumps(to_json(plan, outcome), indent=1) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
