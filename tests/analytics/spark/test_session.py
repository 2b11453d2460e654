"""Spark's start: quiet, local, and with one helpful line where it is impossible."""

from __future__ import annotations

import builtins
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # it ships no types

from tricklecast.analytics.errors import SparkFailed, SparkUnavailable
from tricklecast.analytics.spark import java
from tricklecast.analytics.spark import session as spark_module
from tricklecast.analytics.spark.java import java_version
from tricklecast.analytics.spark.session import check_master, failures_as_one_line, one_line, settings, spark_session

EVENT = '{"ts_us":1760000000000000,"kind":"event","event":"server_start"}\n'
"""A log in which nothing happens."""


def fake_java(folder: Path, version: str, code: int = 1) -> Path:
    """A java that says its version and cannot run Spark; returns its home."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {code}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


def run_storms(log: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, where no session is active."""
    code = "from tricklecast.__main__ import main; main()"
    return run_python(code, "storms", str(log), "--engine", "spark", *options, **env)


def run_python(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs Python on this text."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])} | env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_local_settings() -> None:
    """A local session listens on the loopback only, has no UI, and as many partitions as cores; one for a small log."""
    chosen = settings("local[*]", small=True)
    assert chosen["spark.driver.bindAddress"] == chosen["spark.driver.host"] == "127.0.0.1"
    assert chosen["spark.ui.enabled"] == "false"
    assert chosen["spark.sql.session.timeZone"] == "UTC"
    assert chosen["spark.master"] == "local[1]"
    large = settings("local[*]")
    assert int(large["spark.sql.shuffle.partitions"]) == len(os.sched_getaffinity(0))
    assert "TieredStopAtLevel" in chosen["spark.driver.extraJavaOptions"]


def test_room_for_compiled_code() -> None:
    """A session that goes on has room for what Java compiles, also without the optimising compiler: else all of it
    becomes several times slower after a few dozen reports, or ends."""
    options = settings("local[*]", small=True)["spark.driver.extraJavaOptions"].split()
    (room,) = [option for option in options if option.startswith("-XX:ReservedCodeCacheSize=")]
    assert int(room.partition("=")[2].removesuffix("m")) >= 128


def test_cluster_settings() -> None:
    """A cluster decides about its network, its partitions and its Java itself."""
    chosen = settings("spark://master:7077", small=True)
    assert not {"spark.driver.host", "spark.sql.shuffle.partitions", "spark.driver.extraJavaOptions"} & set(chosen)


def test_the_users_settings_win() -> None:
    """--conf overrides what is chosen here; under spark-submit the master is left alone."""
    chosen = settings(None, conf={"spark.driver.memory": "4g", "spark.eventLog.enabled": "true"})
    assert chosen["spark.driver.memory"] == "4g"
    assert chosen["spark.eventLog.enabled"] == "true"
    assert "spark.master" not in chosen


@pytest.mark.parametrize(
    ("master", "message", "code"),
    [
        ("spark://127.0.0.1:1", "no Spark master answers at spark://127.0.0.1:1: 127.0.0.1:1: Connection refused", 4),
        ("spark://127.0.0.1:1,127.0.0.1:2", "127.0.0.1:2: Connection refused", 4),
        ("spark://host", "expected spark://HOST:PORT", 2),
        ("spark://host:99999", "expected spark://HOST:PORT", 2),
        ("localhost", "no such --master: 'localhost'", 2),
        ("mesos://host:5050", "no such --master", 2),
        ("yarn", "HADOOP_CONF_DIR", 4),
    ],
)
def test_masters_that_cannot_be(master: str, message: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told at once, in one line, and not after a minute in stack traces; a form of no master is wrong usage."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(SparkUnavailable) as refused:
        check_master(master)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == code


def test_masters_that_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several standalone masters one has to answer; what only Spark can know is left to it."""
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")
    for master in ("local", "local[*]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn", "k8s://https://host:6443"):
        check_master(master)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Py4JError("java.lang.OutOfMemoryError: Java heap space"), "--conf spark.driver.memory=4g"),
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's Java process has ended"),
        (ConnectionRefusedError("refused"), "Spark's Java process has ended"),
        (Py4JError("java.io.IOException: No space left on device"), "--conf spark.local.dir=FOLDER"),
        (
            Py4JError("An error occurred while calling o7.sql.\n: java.lang.Odd: so\n\tat x"),
            "Spark failed: java.lang.Odd: so",
        ),
        (Py4JError("odd"), "Spark failed: odd (-v shows all of it)"),
    ],
)
def test_failures_say_what_to_do(error: Exception, message: str) -> None:
    """Where that is known; the others are Spark's own first line."""
    with pytest.raises(SparkFailed) as failed, failures_as_one_line():
        raise error
    assert message in str(failed.value)


@pytest.mark.long
def test_the_whole_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The whole command, from nothing: the report on stdout, and not a word of Spark on stderr."""
    log = tmp_path / "access.jsonl"
    log.write_text(EVENT)
    done = run_storms(log)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("No incidents.")


def test_java_too_old(tmp_path: Path) -> None:
    """An old Java is told with its version and what to install; the exit code is 4."""
    log = tmp_path / "access.jsonl"
    log.write_text(EVENT)
    done = run_storms(log, JAVA_HOME=str(fake_java(tmp_path / "jdk", "11.0.2")))
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("tricklecast: Spark needs Java 17 or newer: install it")
    assert done.stderr.splitlines()[-1].endswith("(found version 11)")
    assert "Traceback" not in done.stderr


class NeverStarts:
    """What starts Spark, and fails after some words of Java's."""

    def config(self, name: str, value: str) -> NeverStarts:
        """A setting."""
        return self

    @property
    def builder(self) -> NeverStarts:
        """Itself."""
        return self

    def getActiveSession(self) -> None:
        """There is none yet."""

    def getOrCreate(self) -> None:
        """Writes where Java would."""
        os.write(2, b"words\n\tat some.Error.of(Stack)\njava.lang.Error: no room\n")
        raise RuntimeError("gateway exited")


def test_spark_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Java is new enough and Spark fails all the same, its own first error is shown, in one line."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "17.0.9", 0)))
    monkeypatch.setattr(spark_module, "check_installed", NeverStarts)
    with pytest.raises(SparkUnavailable) as refused, spark_session():
        pass
    assert str(refused.value) == "Spark did not start: java.lang.Error: no room (-v shows all of it)"


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java, what to install is said at once."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(spark_module, "check_installed", NeverStarts)
    with pytest.raises(SparkUnavailable, match="apt-get install openjdk-17-jre-headless"), spark_session():
        pass


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyspark, the line that installs it is said."""
    real_import = builtins.__import__

    def without_pyspark(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("pyspark"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pyspark)
    with pytest.raises(SparkUnavailable, match=r"pip install '\.\[analytics\]' in a clone"), spark_session():
        pass


@pytest.mark.parametrize(("said", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("nonsense", None)])
def test_java_version(said: str, version: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The major version is read from what java says, in the old form and the new."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", said, 0)))
    assert java_version() == version


def test_java_version_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java has no version, and one that cannot be run neither."""
    monkeypatch.setattr(java, "find_java", lambda: None)
    assert java_version() is None
    monkeypatch.setattr(java, "find_java", lambda: "/nonexistent/java")
    assert java_version() is None


def test_an_active_session_is_used_and_left_running(spark: Any) -> None:
    """The command does not stop a session that it did not start."""
    with spark_session() as session:
        assert session is spark
    assert spark.range(1).count() == 1


class GoneSession:
    """A session whose Java has been killed: the system had no memory left."""

    @property
    def builder(self) -> GoneSession:
        """Itself."""
        return self

    conf = builder

    def getActiveSession(self) -> None:
        """There is none yet."""

    def config(self, name: str, value: str) -> GoneSession:
        """A setting."""
        return self

    def getOrCreate(self) -> GoneSession:
        """Itself."""
        return self

    def get(self, name: str) -> str:
        """A setting's value."""
        return "2"

    def stop(self) -> None:
        """Nobody is there to be stopped."""
        raise ConnectionRefusedError(111, "Connection refused")


def test_java_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is gone is said once, by whoever worked with it, and with the exit code of Spark: not by the end."""
    monkeypatch.setattr(spark_module, "check_installed", GoneSession)
    with (
        pytest.raises(SparkFailed, match="Java process has ended") as failed,
        spark_session(),
        failures_as_one_line(),
    ):
        raise Py4JNetworkError("Answer from Java side is empty")
    assert failed.value.exit_code == 4


def test_failures_become_one_line(spark: Any) -> None:
    """What Spark raises is one line, without the Java stack."""
    shown = pytest.raises(SparkFailed, match=r"^Spark failed: .*missing.* \(-v shows all of it\)$")
    with shown as caught, failures_as_one_line():
        spark.sql("SELECT missing FROM VALUES (1)").collect()
    assert "\n" not in str(caught.value)


def test_one_line() -> None:
    """The first line that says something, cut, and without control characters."""
    assert one_line("\n \n a\x1b[31mb \nsecond") == "a?[31mb"
    assert one_line("") == "no message"
    assert len(one_line("x" * 1000)) == 300
