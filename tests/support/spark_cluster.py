"""A standalone Spark cluster on this machine: a master and a worker, from what pip installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.support.waiting import eventually

HOME = Path(pyspark.__file__).parent
WITHIN_S = 120
HOST = "127.0.0.1"


def environment() -> dict[str, str]:
    """For Spark's own scripts: this Python, this package, one address, and a Java that starts fast."""
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """Run a master and a worker with two cores until the block ends; gives the master's URL.

    Args:
        folder: for their logs and the worker's files.
    """
    with ExitStack() as running:
        options = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        log = running.enter_context(_daemon(folder / "master.log", "master.Master", *options))
        (master,) = _said(log, r"Starting Spark master at (spark://\S+)").groups()
        options += ["--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), master]
        log = running.enter_context(_daemon(folder / "worker.log", "worker.Worker", *options))
        _said(log, "Successfully registered with master")
        yield master


@contextmanager
def _daemon(log: Path, name: str, *options: str) -> Iterator[Path]:
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment())
        try:
            yield log
        finally:
            process.terminate()
            process.wait(WITHIN_S)


def _said(log: Path, pattern: str) -> re.Match[str]:
    eventually(lambda: re.search(pattern, log.read_text()), within_s=WITHIN_S, what=f"{pattern!r} in {log}")
    found = re.search(pattern, log.read_text())
    assert found is not None
    return found
