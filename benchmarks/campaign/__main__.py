"""Hundreds of schedules of random faults against a cluster under load: is each promise kept?

Run it as ``python -m benchmarks.campaign``; README.md in the folder above describes the method.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from rich.console import Console

from benchmarks.campaign.cluster import root_of
from benchmarks.campaign.faults import Kind
from benchmarks.campaign.run import Outcome, Plan, campaign
from benchmarks.servers import BenchmarkError


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print figures and violations."""
    console.print(f"{outcome.schedules} schedules, {len(outcome.violations)} violations", markup=False)
    for title, counts in (("faults", outcome.faults), ("counts", outcome.counts)):
        console.print(
            f"{title}: {', '.join(f'{name} {times}' for name, times in sorted(counts.items()))}", markup=False
        )
    if len(took := sorted(outcome.takeovers)) > 1:
        cuts = quantiles(took, n=100, method="inclusive")
        text = f"p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, at most {took[-1]:.2f} s"
        console.print(f"{len(took)} channels of killed nodes could be written again after {text}", markup=False)
    for number, violation in outcome.violations:
        console.print(f"VIOLATION in schedule {number}, {violation.check}: {violation.detail}", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.campaign", description=__doc__)
    parser.add_argument("--schedules", type=int, default=20, help="how many (20)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one: repeats one of a campaign")
    parser.add_argument("--seed", type=int, default=1, help="of all faults (1)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each schedule (4)")
    parser.add_argument("--ack", choices=("memory", "quorum"), default="memory", help="what a 200 promises (memory)")
    parser.add_argument("--lease-s", type=float, default=0.4, help="of the nodes (0.4)")
    parser.add_argument("--nats", type=int, choices=(1, 3), default=1, help="servers of NATS (1)")
    parser.add_argument("--only", action="append", type=Kind, metavar="FAULT", help=f"of: {', '.join(Kind)}")
    parser.add_argument("--beside", default="", metavar="CHECKOUT", help="nodes run this checkout instead")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of nodes here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome here")
    options = parser.parse_args()
    # One server of NATS has one copy of a stream, which is lost for good if it is put back; of three, one has a part.
    kinds = tuple(options.only or (kind for kind in Kind if options.nats == 1 or kind is not Kind.BUCKET_OLDER))
    plan = Plan(
        schedules=range(options.first, options.first + options.schedules),
        seed=options.seed,
        seconds=options.seconds,
        ack=options.ack,
        lease_s=options.lease_s,
        servers=options.nats,
        kinds=kinds,
        root=root_of(options.beside),
    )
    console, begun = Console(), time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begun:6.0f} s  {text}", markup=False, soft_wrap=True, highlight=False)

    with tempfile.TemporaryDirectory(prefix="tricklecast-campaign-") as folder:
        try:
            outcome = asyncio.run(campaign(plan, options.logs or Path(folder), say))
        except BenchmarkError as error:
            console.print(f"the campaign has ended: {error}", markup=False)
            return 2
    print_outcome(console, outcome)
    if options.json is not None:
        about = {"schedules": outcome.schedules, "faults": outcome.faults, "counts": outcome.counts}
        violations = [(number, *violation) for number, violation in outcome.violations]
        options.json.write_text(json.dumps({**about, "takeovers": outcome.takeovers, "violations": violations}))
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
