"""A real cluster: a standalone master and two workers, of which one is killed while it works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.analytics.support.scenarios import write_all
from tests.analytics.support.writer import write_lines

ROOT = Path(__file__).parents[3]
DEADLINE_S = 180

HOLD_THE_FIRST = """
import os, signal, sys
if "pyspark.daemon" in sys.orig_argv:
    from tricklecast.analytics.spark import scan as spark
    work = spark._roll_up

    def _roll_up(batches, parse, **options):
        try:
            os.close(os.open({folder!r} + "/held", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            open({folder!r} + "/worked", "a").close()
            yield from work(batches, parse, **options)
        else:
            next(batches)
            with open({folder!r} + "/daemon", "w") as told:
                told.write(f"{{os.getppid()}} ")
            signal.pause()

    spark._roll_up = _roll_up
"""
"""Run by each Python of an executor as it starts: the first one that is given lines says so, and never goes on."""


class Cluster:
    """A master and two workers on this machine, each with one core."""

    def __init__(self, folder: Path) -> None:
        """Start the master."""
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        self.workers: list[int] = []
        self.master = self._start("master.Master", "--port", "0", says=r"Starting Spark master at (spark://\S+)")

    def add_worker(self) -> None:
        """Start a worker, and wait until the master knows it."""
        work = str(self.folder / f"work-{len(self.workers)}")
        self._start("worker.Worker", "-c", "1", "-m", "1g", "-d", work, self.master, says="(Successfully registered)")
        self.workers.append(self.started[-1].pid)

    def _start(self, name: str, *options: str, says: str) -> str:
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *options],
            env=os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(says, line):
                return found[1]
        raise AssertionError(f"{name} ended with {process.wait()}")

    def stop(self) -> None:
        """Ends all of it."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With two workers."""
    started = Cluster(tmp_path)
    try:
        started.add_worker()
        started.add_worker()
        yield started
    finally:
        started.stop()


def parent(process: int) -> int:
    """The process that started another one."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for(path: Path, driver: subprocess.Popen[str]) -> None:
    """Until a file is there that somebody writes."""
    until = time.monotonic() + DEADLINE_S
    while not (path.exists() and path.read_text()):
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def storms(*options: str) -> subprocess.Popen[str]:
    """The command, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tricklecast", "storms", "--json-file", "-", *options],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(driver: subprocess.Popen[str]) -> dict[str, Any]:
    """Its report, without what the engines tell in their own way."""
    out, err = driver.communicate(timeout=DEADLINE_S)
    assert driver.returncode == 1, err
    report: dict[str, Any] = json.loads(out)
    for incident in report["incidents"]:
        incident.pop("lines", None)
    return {name: value for name, value in report.items() if name not in ("engine", "made_us", "generated", "took_s")}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the worker of a process in /proc")
def test_a_worker_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """The report is that of the embedded engine, also where a worker is killed with lines in its hands."""
    lines = write_all(5)[0]
    half = len(lines) // 2
    logs = [
        str(write_lines(tmp_path / "a.jsonl", lines[:half])),
        str(write_lines(tmp_path / "b.jsonl", lines[half:])),
    ]
    here = told(storms("--engine", "embedded", *logs))
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(HOLD_THE_FIRST.format(folder=str(tmp_path)))
    settings = {
        "spark.executorEnv.PYTHONPATH": f"{tmp_path / 'start'}:{ROOT}",
        "spark.executor.memory": "512m",
        "spark.sql.files.maxPartitionBytes": "200k",
        "spark.driver.host": "127.0.0.1",
    }
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    there = storms("--master", cluster.master, *confs, *logs)
    wait_for(tmp_path / "daemon", there)
    executor = parent(int((tmp_path / "daemon").read_text()))
    worker = parent(executor)
    assert worker in cluster.workers
    for process in (worker, executor):
        os.kill(process, signal.SIGKILL)
    assert told(there) == here
    assert (tmp_path / "worked").exists()
