"""The server's cost of three kinds of clients, beside plain readers of a live channel: viewers of low-latency HLS, open
dashboards, and readers that replay closed segments, from memory and from the data directory.

Run it as ``python benchmarks/audience.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks import dashboard
from benchmarks.load.audience import pictures
from benchmarks.report import BUSY, spread
from benchmarks.scenarios import Audience, Way
from benchmarks.servers import BenchmarkError, Cores, load, raise_file_limit, running, tricklecast

Sample = dict[str, float]

ROUNDS: Final = 3
DELIVERED: Final = 0.9
"""The share of the film that has to arrive: a run may end up to a part of HLS before the next one is there."""

IN_MEMORY: Final = ("--window-age-s", "600")
ON_DISK: Final = ("--window-segments", "1")


@dataclass(frozen=True, slots=True)
class Size:
    """How large everything is; tests make it tiny.

    Attributes:
        readers: of the film. dashboards, channels: that are open, and that the server has then.
        replaying, segments, rate: readers of segments that are over, how many these are, and read per second.
        window_s: how long the windows of these channels take to fill. warm_up_s, measure_s: of everything.
    """

    readers: int = 200
    dashboards: int = 150
    channels: int = dashboard.CHANNELS
    replaying: int = 20
    segments: int = 40
    rate: float = 400.0
    window_s: float = dashboard.WINDOW_S
    warm_up_s: float = 2.0
    measure_s: float = 4.0

    def audience(self, way: Way, readers: int, channel: str = "") -> Audience:
        """The scenario."""
        return Audience(
            way=way,
            readers=readers,
            channel=channel,
            segments=self.segments,
            rate=self.rate,
            warm_up_s=self.warm_up_s,
            measure_s=self.measure_s,
        )


QUICK: Final = Size(window_s=2.0, warm_up_s=1.0, measure_s=2.0)


@dataclass(frozen=True, slots=True)
class Row:
    """Clients that are compared with plain readers: the case in which they come, and the one without them.

    Attributes:
        what: in the table. count: of the clients by which ``case`` and ``beside`` differ.
    """

    what: str
    case: str
    beside: str
    count: int


def film(size: Size, cores: Cores) -> dict[str, Sample]:
    """Nobody, plain readers, one viewer of HLS, and as many as there were readers; each with a film of its own."""
    ways = {"film": (Way.NOT, 0), "readers": (Way.SEGMENTS, size.readers)}
    ways |= {"viewer": (Way.HLS, 1), "viewers": (Way.HLS, size.readers)}
    with running(tricklecast(), cores.server) as (pid, port):
        return {
            name: load(pid, port, size.audience(way, readers, name), cores.load)
            for name, (way, readers) in ways.items()
        }


def dashboards(size: Size, cores: Cores) -> dict[str, Sample]:
    """No dashboard, one, and many, on a server whose channels have a segment per second each."""
    with dashboard.running(size.channels, cores.server) as (pid, port):
        time.sleep(size.window_s)
        return {
            f"{count} dashboards": load(pid, port, size.audience(Way.DASHBOARD, count), cores.load)
            for count in (0, 1, size.dashboards)
        }


def replays(size: Size, cores: Cores) -> dict[str, Sample]:
    """Segments that are over, from memory, and from the data directory after a restart of the server."""
    scenario = size.audience(Way.REPLAY, size.replaying, "film")
    with tempfile.TemporaryDirectory(prefix="tricklecast-benchmark-") as folder:
        stored = "--data-dir", folder, "--ack", "journal"
        with running(tricklecast(settings=(*stored, *IN_MEMORY)), cores.server) as (pid, port):
            _fill(port, size.segments)
            memory = load(pid, port, scenario, cores.load)
        with running(tricklecast(settings=(*stored, *ON_DISK)), cores.server) as (pid, port):
            return {"memory": memory, "disk": load(pid, port, scenario, cores.load)}


def _fill(port: int, segments: int) -> None:
    """Publish segments of the film."""
    for seq in range(segments):
        url = f"http://127.0.0.1:{port}/trickle/film/{seq}"
        headers = {"Content-Type": "video/mp4"}
        urllib.request.urlopen(urllib.request.Request(url, b"".join(pictures(seq)), headers, method="POST")).close()


SECTIONS: Final[dict[str, Callable[[Size, Cores], dict[str, Sample]]]] = {
    "hls": film,
    "dashboards": dashboards,
    "replays": replays,
}
"""``hls`` has the plain readers, too, and always runs."""


def rows(size: Size) -> list[Row]:
    """The lines of the table; the plain reader comes first."""
    few, many = "1 dashboards", f"{size.dashboards} dashboards"
    return [
        Row("a plain reader", "readers", "film", size.readers),
        Row("the first viewer of LL-HLS", "viewer", "film", 1),
        Row("each further viewer", "viewers", "viewer", size.readers - 1),
        Row(f"the first dashboard, {size.channels} channels", few, "0 dashboards", 1),
        Row("each further dashboard", many, few, size.dashboards - 1),
        Row("replay from memory", "memory", "", size.replaying),
        Row("replay from the data directory, after a restart", "disk", "", size.replaying),
    ]


def cost(row: Row, samples: dict[str, Sample]) -> tuple[float, float]:
    """CPU of the server for one client, as a share of a core, and the MB a second that it gets."""

    def each(figure: str) -> float:
        return (samples[row.case][figure] - (samples[row.beside][figure] if row.beside else 0.0)) / row.count

    return each("server_busy"), each("mb_s")


def run(names: list[str], size: Size, cores: Cores, console: Console) -> dict[str, Sample]:
    """A round: every case of these sections once, and the plain readers. Tells what makes figures doubtful.

    Raises:
        BenchmarkError: a run did not work.
    """
    samples: dict[str, Sample] = {}
    for name in SECTIONS:
        if name == "hls" or name in names:
            with console.status(name):
                samples |= SECTIONS[name](size, cores)
    for name, sample in samples.items():
        if sample["share"] < DELIVERED:
            console.print(f"! {name}: only {sample['share']:.0%} of the film arrived in time")
        if sample["load_busy"] > BUSY:
            console.print(f"! {name}: the load generator was the bottleneck (more than {BUSY:.0%} of its core)")
    return samples


def report(size: Size, rounds: list[dict[str, Sample]], console: Console) -> None:
    """Print the table."""
    plain, *others = [row for row in rows(size) if row.case in rounds[0]]
    table = Table(title="CPU of the server for each client", title_justify="left", title_style="bold")
    for title in ("", "kB/s", "% of a core", "ms per MB", "x plain", "x plain, same bytes"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for row in (plain, *others):
        costs = [cost(row, samples) for samples in rounds]
        plains = [cost(plain, samples) for samples in rounds]
        table.add_row(
            row.what,
            f"{1000 * median(mb_s for _, mb_s in costs):.0f}",
            f"{100 * median(busy for busy, _ in costs):.3g}",
            spread([1000 * _ratio(busy, mb_s) for busy, mb_s in costs]),
            spread([_ratio(one, other) for (one, _), (other, _) in zip(costs, plains, strict=True)]),
            spread([_ratio(one * b, other * a) for (one, a), (other, b) in zip(costs, plains, strict=True)]),
        )
    console.print(table)


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.nan


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, shorter measurements: below a minute")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="run only this and plain readers; repeatable")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements of each [{ROUNDS}]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples to this file")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error("--rounds must be at least 1")
    if sys.platform != "linux":
        sys.stderr.write("audience: it reads the clocks of other processes, which needs Linux\n")
        return 1
    raise_file_limit()
    # Told to stop, it must still stop the server that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"load average {os.getloadavg()[0]:.1f} at the start")
    begun, size = time.monotonic(), QUICK if asked.quick else Size()
    try:
        count = 1 if asked.quick else asked.rounds
        rounds = [run(asked.only or list(SECTIONS), size, Cores.choose(), console) for _ in range(count)]
    except BenchmarkError as error:
        sys.stderr.write(f"audience: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    report(size, rounds, console)
    console.print(f"took {time.monotonic() - begun:.0f} s")
    if asked.json:
        asked.json.write_text(json.dumps(rounds, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
