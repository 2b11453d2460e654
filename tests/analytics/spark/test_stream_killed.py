"""The stream as a process, and its executors in a cluster, killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.analytics.watch.made import NOW_US, loop
from tests.analytics.watch.test_process import Process
from tests.support.spark_cluster import spark_cluster
from tricklecast.analytics.spark.stream import END_S
from tricklecast.analytics.watch.run import FAREWELL_S

pytestmark = pytest.mark.long
KILLS = int(os.environ.get("TRICKLECAST_KILLS", "100"))
INTERVAL_S = 2.0
ROOT = Path(__file__).parents[3]


class Streaming(Process):
    """The stream of a folder, whose alerts go to a file."""

    wait_s = 300.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.logs = folder / "logs"
        self.logs.mkdir()
        state = ["--state", str(folder / "state"), "--interval", f"{INTERVAL_S}", "--start", "earliest", "--json"]
        self.command = self._command = [sys.executable, "-m", "tricklecast", "storms", "stream", str(self.logs), *state]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """It is no fork."""
        process.kill()

    def put(self, name: str, lines: list[str]) -> None:
        """Adds a file, whole."""
        (self.logs / f"{name}.tmp").write_text("".join(f"{each}\n" for each in lines))
        (self.logs / f"{name}.tmp").rename(self.logs / name)

    def storm(self, number: int, part: int) -> None:
        """Adds one of the two halves of a storm; neither is one by itself."""
        begin_s = 10.0 * number + 0.3 * part
        who = f"client-{number}"
        self.put(f"{number}-{part}.jsonl", loop(6, begin_s, client=who, channel=f"channel-{number}"))

    def told(self, storms: int) -> None:
        """Waits until all were told, and that each was under one key, and with all of its lines."""
        # The last one is over when there are later lines of its server.
        self.put("end.jsonl", loop(9, 10.0 * storms + 60, 2.0, client="end", status=200))
        self.wait(lambda: sum(each["status"] == "resolved" for each in self.news()) >= storms)
        assert set(self.firing().values()) == {f"client-{number}" for number in range(storms)}
        assert len(self.firing()) == storms, "the same storm was told under another key"
        totals = {each["incident"]["clients"][0]: each["incident"]["n"] for each in self.news()}
        assert set(totals.values()) == {12}, "a line was lost or counted twice"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Streaming]:
    """A stream of an empty folder, not started yet, which is gone at the end."""
    made = Streaming(tmp_path)
    try:
        yield made
    finally:
        made.end(signal.SIGKILL)


def sleep_until(moment: float) -> None:
    """Waits for a moment of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))


def test_a_driver_that_is_killed_at_random_moments(process: Streaming) -> None:
    """Every storm is told: while Spark starts, reads, judges, writes down and tells."""
    rng = random.Random(41)
    for number in range(KILLS):
        process.storm(number, 0)
        process.start()
        if number % 4:
            process.ready()
        began = time.monotonic()
        sleep_until(began + rng.uniform(0.0, 4.0))
        process.storm(number, 1)
        sleep_until(began + rng.uniform(0.0, 8.0))
        process.end(signal.SIGKILL)
    process.start()
    process.told(KILLS)
    assert process.end() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks for executors in /proc")
def test_executors_that_are_killed_at_random_moments(
    tmp_path: Path, process: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every storm is told; the driver goes on."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    kills = KILLS // 4
    rng = random.Random(14)
    with spark_cluster(tmp_path) as master:
        settings = {"spark.executorEnv.PYTHONPATH": str(ROOT), "spark.driver.host": "127.0.0.1"}
        settings |= {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
        confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        process.command += ["--master", master, *confs]
        process.start()
        process.ready()
        for number in range(kills):
            process.storm(number, 0)
            time.sleep(rng.uniform(0.0, 2 * INTERVAL_S))
            process.storm(number, 1)
            time.sleep(rng.uniform(0.0, 2 * INTERVAL_S))
            if executors := running(tmp_path / "work"):
                os.kill(rng.choice(executors), signal.SIGKILL)
        process.told(kills)
        assert process.end() == 0


def running(folder: Path) -> list[int]:
    """The processes below a folder: executors, and their Pythons."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def test_an_alert_comes_two_seconds_after_the_trigger_at_the_latest(process: Streaming) -> None:
    """From the moment when the file is whole, while there is other traffic."""
    process.start()
    process.ready()
    took = []
    for number in range(25):
        now_s = time.time() - NOW_US / 1e6
        viewers = [
            each
            for viewer in range(100)
            for each in loop(10, now_s - 1, client=f"viewer-{viewer}", status=200, rseq=number, next_seq=number + 1)
        ]
        process.put(f"v{number}.jsonl", viewers)
        began = time.monotonic()
        process.put(f"{number}.jsonl", loop(20, now_s - 1, client=f"client-{number}", channel=f"channel-{number}"))
        process.wait(lambda number=number: f"client-{number}" in process.firing().values())  # type: ignore[misc]
        took.append(time.monotonic() - began)
        time.sleep(random.uniform(0.0, 1.0))
    assert process.end() == 0
    print(f"latency: median {statistics.median(took):.2f} s, worst {max(took):.2f} s, interval {INTERVAL_S} s")
    # The first batches start Python, and compile.
    assert max(took[5:]) <= INTERVAL_S + 2.0


def test_sigterm_ends_it_in_time(process: Streaming) -> None:
    """Also while Spark works."""
    process.start()
    process.ready()
    process.storm(0, 0)
    began = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - began < 2 * END_S + FAREWELL_S
