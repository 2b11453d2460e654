"""What durability costs: publishers that wait for storage, a restart with much on the disk, replay beside live readers.

Run it as ``python benchmarks/durable.py``; README.md in this folder describes the method.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks.pressure.bounds import Bound, Sample, Verdict, figure, ratio
from benchmarks.scenarios import Exchanges, Scenario, Stream
from benchmarks.servers import BenchmarkError, Cores, bind, load, raise_file_limit, running, tricklecast
from tricklecast.app.core.segment import Segment, encode_frame
from tricklecast.app.storage.database import Append, Batch, ChannelRow, Database, SegmentRow

ROUNDS = 3
MODES = ("memory", "journal", "fsync")
OLD_SEGMENTS = 200
OLD_BYTES = 1 << 20
REPLAYING = 50
REPLAY_RATE = 1 << 20
MANY_SEGMENTS = 100_000

# What is published: small segments as fast as they go, and the chunks of a hundred cameras of 2 Mbit/s.
SMALL = Exchanges(channels=100, chunk_bytes=200)
FILM = Exchanges(channels=20, chunk_bytes=256 << 10)
LIVE = Stream(readers=100, chunk_bytes=8 << 10, chunks_per_segment=30, rate=30, warm_up_s=2.0, measure_s=8.0)

Case = Callable[[Cores, float], Sample]


def published(scenario: Scenario, *mode: str) -> Case:
    """A server in some mode, on a new data directory, is published to.

    Args:
        mode: ``--ack``; nothing for a server without a data directory.
    """

    def case(cores: Cores, share: float) -> Sample:
        with tempfile.TemporaryDirectory(prefix="tricklecast-benchmark-") as folder:
            settings = ("--data-dir", folder, "--ack", *mode) if mode else ()
            with running(tricklecast(settings=settings), cores.server) as (pid, port):
                return load(pid, port, scenario, cores.load)

    return case


def recovered(cores: Cores, share: float) -> Sample:
    """How long a server takes to listen, with nothing and with many segments on the disk."""
    with tempfile.TemporaryDirectory(prefix="tricklecast-benchmark-") as folder:
        contender = tricklecast(settings=("--data-dir", folder))
        empty_s = _start_s(lambda: running(contender, cores.server))
        _fill(Path(folder), round(MANY_SEGMENTS * share))
        return {"empty_s": empty_s, "full_s": _start_s(lambda: running(contender, cores.server)) - empty_s}


def beside_replay(readers: int, rate: float, window: int = 4) -> Case:
    """Live readers of one channel while others read another one from its beginning.

    Args:
        window: segments of it that are in memory; all others are read from the disk.
    """

    def case(cores: Cores, share: float) -> Sample:
        with tempfile.TemporaryDirectory(prefix="tricklecast-benchmark-") as folder:
            settings = ("--data-dir", folder, "--window-segments", str(window))
            with running(tricklecast(settings=settings), cores.server) as (pid, port):
                for seq in range(OLD_SEGMENTS):
                    url = f"http://127.0.0.1:{port}/trickle/old/{seq}"
                    urllib.request.urlopen(urllib.request.Request(url, os.urandom(OLD_BYTES), method="POST")).close()
                with _replaying(port, readers, rate, cores):
                    return load(pid, port, LIVE, cores.load)

    return case


SECTIONS: dict[str, tuple[dict[str, Case], tuple[str, ...], tuple[Bound, ...]]] = {
    "small": (
        {"off": published(SMALL), **{mode: published(SMALL, mode) for mode in MODES}},
        ("cpu_us", "publish_p50_ms", "publish_p99_ms", "rate"),
        (
            Bound("200 bytes, memory / off, CPU", ratio("cpu_us", "memory", "off")),
            Bound("200 bytes, journal / memory, CPU", ratio("cpu_us", "journal", "memory"), 1.5),
            Bound("200 bytes, journal / off, CPU", ratio("cpu_us", "journal", "off")),
            Bound("200 bytes, fsync, publish p99, ms", figure("publish_p99_ms", "fsync")),
        ),
    ),
    "film": (
        {"off": published(FILM), **{mode: published(FILM, mode) for mode in MODES}},
        ("cpu_us", "publish_p50_ms", "publish_p99_ms", "rate"),
        (
            Bound("256 KiB, journal / memory, CPU", ratio("cpu_us", "journal", "memory"), 1.5),
            Bound("256 KiB, journal / off, CPU", ratio("cpu_us", "journal", "off")),
        ),
    ),
    "recovery": (
        {"restart": recovered},
        ("empty_s", "full_s"),
        (Bound("100,000 segments come back, s", figure("full_s", "restart"), 2.0),),
    ),
    "replay": (
        {
            "alone": beside_replay(0, 0),
            "50 at 1 MB/s": beside_replay(REPLAYING, REPLAY_RATE),
            "… in memory": beside_replay(REPLAYING, REPLAY_RATE, OLD_SEGMENTS),
            "50 unpaced": beside_replay(REPLAYING, 0),
        },
        ("p50_ms", "p99_ms", "cpu_us", "server_busy"),
        (
            Bound("live p99 beside 50 that replay at 1 MB/s", ratio("p99_ms", "50 at 1 MB/s", "alone"), 1.5),
            Bound("… / beside 50 that read as much from memory", ratio("p99_ms", "50 at 1 MB/s", "… in memory")),
            Bound("live p99 beside 50 that replay as fast as they can", ratio("p99_ms", "50 unpaced", "alone")),
        ),
    ),
}


def _start_s(start: Callable[[], object]) -> float:
    began = time.monotonic()
    with start():  # type: ignore[attr-defined]
        return time.monotonic() - began


def _fill(folder: Path, segments: int) -> None:
    """Put segments of a kilobyte, of a hundred channels, into a data directory."""
    database = Database(folder)
    now_us = time.time_ns() // 1000
    body = bytes(1000)
    segment = Segment(0)
    segment.store(encode_frame([body]), len(body))
    channels = 100
    for number in range(1, channels + 1):
        batch = Batch()
        each = segments // channels
        batch.channels[number + 1000] = ChannelRow(number + 1000, f"c{number}", 1, "", each, now_us)
        for seq in range(each):
            append = Append(number + 1000, number + 1000, seq * len(body), segment, 0, 1, 0)
            row = SegmentRow(number + 1000, seq, "complete", 0, 0, number + 1000, seq * len(body), now_us, now_us)
            batch.appends.append(append)
            batch.segments.append((row, append))
        database.commit(batch)
    database.close()


@contextmanager
def _replaying(port: int, readers: int, rate: float, cores: Cores) -> Iterator[None]:
    if not readers:
        yield
        return
    options = {"port": port, "readers": readers, "segments": OLD_SEGMENTS - 8, "rate": rate, "path": "/trickle/old"}
    command = [sys.executable, "-m", "benchmarks.load.replay"]
    command += [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(command, preexec_fn=bind(cores.others()), stderr=subprocess.PIPE, text=True)
    try:
        yield
        if process.poll() is not None:
            assert process.stderr is not None
            raise BenchmarkError(f"the replaying readers ended: {process.stderr.read().strip()}")
    finally:
        process.kill()
        process.wait()


def run(name: str, rounds: int, share: float, cores: Cores, console: Console) -> list[Verdict]:
    """Run a section: in each round every case once. Prints a table, and returns its bounds with what was found.

    Args:
        share: of the usual sizes.

    Raises:
        BenchmarkError: a run did not work.
    """
    cases, figures, bounds = SECTIONS[name]
    found: list[dict[str, Sample]] = []
    for number in range(1, rounds + 1):
        samples = {}
        for label, case in cases.items():
            with console.status(f"{name}: {label}, round {number}"):
                samples[label] = case(cores, share)
        found.append(samples)
    table = Table("case", *figures, title=name, title_justify="left")
    for label in cases:
        values = [[samples[label][one] for samples in found] for one in figures]
        table.add_row(label, *(f"{sorted(one)[len(one) // 2]:.3g} ({min(one):.3g}-{max(one):.3g})" for one in values))
    console.print(table)
    return [Verdict(bound, tuple(bound.found(samples) for samples in found)) for bound in bounds]


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, small sizes: that it works, not what it costs")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="run only this section; repeatable")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements of each [{ROUNDS}]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found to this file")
    asked = parser.parse_args()
    raise_file_limit()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    cores = Cores.choose()
    console.print(f"load average {os.getloadavg()[0]:.1f} at the start; {platform.platform()}")
    rounds, share = (1, 0.02) if asked.quick else (asked.rounds, 1.0)
    try:
        verdicts = [one for name in asked.only or SECTIONS for one in run(name, rounds, share, cores, console)]
    except BenchmarkError as error:
        sys.stderr.write(f"durable: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    for verdict in verdicts:
        console.print(str(verdict))
    if asked.json:
        told = [{"what": one.bound.what, "at_most": one.bound.at_most, "rounds": one.rounds} for one in verdicts]
        asked.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
