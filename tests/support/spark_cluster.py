"""A standalone Spark cluster on this machine: a master and a worker, from what pip installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
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
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=true -Dspark.master.rest.port=0",
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
        options += ["--cores", "2", "--memory", "2g", "--work-dir", str(folder / "work"), master]
        log = running.enter_context(_daemon(folder / "worker.log", "worker.Worker", *options))
        _said(log, "Successfully registered with master")
        yield master


def run_in_cluster(folder: Path, master: str, *arguments: str) -> str:
    """Runs a job in Python whose driver is a process of a worker's, as --deploy-mode cluster does; gives its output.

    spark-submit refuses that for Python on a standalone cluster; the master's REST interface does not.

    Args:
        folder: of the cluster. arguments: of spark-submit.
    """
    (port,) = _said(folder / "master.log", r"Started REST server .* with port (\d+)").groups()
    job = {
        "action": "CreateSubmissionRequest",
        "clientSparkVersion": pyspark.__version__,
        "appResource": "",
        "mainClass": "org.apache.spark.deploy.SparkSubmit",
        "appArgs": ["--master", master, *arguments],
        "environmentVariables": {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST},
        "sparkProperties": {"spark.app.name": "job", "spark.master": master, "spark.submit.deployMode": "cluster"},
    }
    rest = f"http://{HOST}:{port}/v1/submissions"
    name = str(httpx.post(f"{rest}/create", json=job).raise_for_status().json()["submissionId"])

    def state() -> str:
        return str(httpx.get(f"{rest}/status/{name}").json()["driverState"])

    eventually(lambda: state() not in ("SUBMITTED", "RUNNING"), within_s=WITHIN_S, what="the driver ends")
    here = folder / "work" / name
    assert state() == "FINISHED", (here / "stderr").read_text()[-4000:]
    return str((here / "stdout").read_text())


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
