"""A server of Spark Connect, as it is started from pip's Spark, and a client in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from tests.analytics.support.scenarios import write_all
from tests.analytics.support.writer import write_lines
from tests.support.ports import free_port

DEADLINE_S = 120
ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("not __import__('importlib').util.find_spec('grpc')", reason="needs grpcio: pyspark[connect]"),
]

CLIENT = """
import sys
from pyspark.sql import SparkSession
from tricklecast.analytics import incidents

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
found = incidents(spark.read.text(sys.argv[2]))
found.write.mode("append").parquet(sys.argv[3])
print(sorted(row.id for row in spark.read.parquet(sys.argv[3]).collect()))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of Spark Connect with one core."""
    home = Path(pyspark.__file__).parent
    port = free_port()
    command = [
        str(home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[1]"),
        *("--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false", "spark-internal"),
    ]
    settings = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "server").open("w") as said:
        process = subprocess.Popen(command, env=os.environ | settings, stdout=said, stderr=said, start_new_session=True)
    try:
        until = time.monotonic() + DEADLINE_S
        while not answers(port):
            assert process.poll() is None, (tmp_path / "server").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def run(*arguments: str) -> str:
    """Standard output of Python in a process of its own."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # There are storms: the command says so by 1, as Python does of an error that nobody has caught.
    assert done.returncode in (0, 1), done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stdout


def test_a_session_of_spark_connect(server: str, tmp_path: Path) -> None:
    """The Python API and the command work in it, and write incidents to a table."""
    log = str(write_lines(tmp_path / "a.jsonl", write_all(5)[0]))
    here = run("-m", "tricklecast", "storms", log, "--engine", "embedded", "--json-file", "-")
    ids = sorted(re.findall(r'"id": ?"([0-9a-f]{12})"', here))
    assert ids
    assert run("-c", CLIENT, server, log, str(tmp_path / "table")).strip() == str(ids)
    there = run("-m", "tricklecast", "storms", log, "--master", server, "--json-file", "-")
    assert sorted(re.findall(r'"id": ?"([0-9a-f]{12})"', there)) == ids
