"""What the storm report costs: its one scan beside a bare one, all that follows, many clients, cores, the start.

Run it as ``python benchmarks/storms.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from benchmarks.storm.sections import SECTIONS, Run, WorkerFailed

LINES = (0.7, 3.0, 5.0, 10.0)
"""Millions."""

ROUNDS = 3
QUICK_LINES = (0.1, 0.2, 0.3)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=float, nargs="+", default=LINES, metavar="M", help="sizes, millions of lines")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="run only this section; repeatable")
    parser.add_argument("--quick", action="store_true", help="small logs, one round: that it works, not what it costs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"warm measurements [{ROUNDS}]")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs here, and use those that are there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to this file")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or min(arguments.lines) <= 0:
        parser.error("--rounds must be at least 1, and --lines above 0")
    return arguments


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    arguments = _arguments()
    if sys.platform != "linux":
        sys.stderr.write("storms: it reads the clocks of other processes, which needs Linux\n")
        return 1
    millions = QUICK_LINES if arguments.quick else arguments.lines
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="tricklecast-storms-"))
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    console.print(f"{os.cpu_count()} core(s); load average {os.getloadavg()[0]:.1f} at the start; logs in {folder}")
    sizes = sorted(round(million * 1_000_000) for million in millions)
    run = Run(folder, sizes, 1 if arguments.quick else arguments.rounds, console)
    try:
        return _run(run, arguments)
    except WorkerFailed as error:
        sys.stderr.write(f"storms: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run(run: Run, arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    found = [verdict for name in arguments.only or SECTIONS for verdict in SECTIONS[name](run)]
    for verdict in found:
        run.console.print(str(verdict))
    run.console.print(f"took {time.monotonic() - begun:.0f} s")
    if arguments.json:
        report = {
            "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()},
            "rounds": run.rounds,
            "sections": run.found,
            "verdicts": [{"what": one.what, "found": one.found, "bound": one.bound, "met": one.met} for one in found],
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
