"""Starting Spark, quietly, and saying what to install where that fails.

Imported only when a report is wanted: ``pyspark`` takes a third of a second to import and seconds to start.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final

from analytics.errors import SparkFailed, SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
DRIVER_MEMORY: Final = "1g"
JAVA_VERSION: Final = 17
"""The oldest Java that Spark 4 runs on."""

SMALL_INPUT: Final = 100_000_000
"""Bytes of log up to which Java's optimising compiler does not pay for itself: without it such a report takes half of
the CPU time. Above, parsing JSON profits from it."""

_QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

_INSTALL_JAVA: Final = (
    f"Spark needs Java {JAVA_VERSION} or newer: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
)


def settings(master: str, *, small: bool = False, verbose: bool = False) -> dict[str, str]:
    """Spark's configuration for a report.

    Args:
        master: where to run: ``local[*]``, ``spark://…`` and so on.
        small: the input is small (:data:`SMALL_INPUT`): start fast rather than run fast.
        verbose: let Spark log.
    """
    chosen = {
        "spark.master": master,
        "spark.app.name": "tricklecast storms",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN" if verbose else "ERROR",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
    }
    if master.startswith("local"):
        chosen |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # The default of 200 costs three times the whole report here, and adaptive planning does not make up for it.
            "spark.sql.shuffle.partitions": str(_cores()),
            "spark.sql.adaptive.enabled": "false",
        }
        if small:
            chosen["spark.driver.extraJavaOptions"] = _QUICK_JAVA
    return chosen


@contextmanager
def spark_session(master: str = LOCAL, *, small: bool = False, verbose: bool = False) -> Iterator[SparkSession]:
    """A Spark session; one that is already active is used, and left running.

    Args:
        master, small: see :func:`settings`.
        verbose: do not hide what Spark writes to stderr.

    Raises:
        SparkUnavailable: pyspark or Java is missing or too old, or Spark did not start.
    """
    session_type = _import_session()
    if active := session_type.getActiveSession():
        yield active
        return
    session = _start(session_type, settings(master, small=small, verbose=verbose), verbose=verbose)
    try:
        yield session
    finally:
        session.stop()


def _import_session() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable('the report needs Spark: pip install "tricklecast[analytics]"') from error
    return SparkSession


def _start(session_type: type[SparkSession], chosen: dict[str, str], *, verbose: bool) -> SparkSession:
    if find_java() is None:
        raise SparkUnavailable(_INSTALL_JAVA)
    builder = session_type.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with TemporaryFile() as noise:
        try:
            with _stderr_to(None if verbose else noise):
                return builder.getOrCreate()
        except Exception as error:  # pyspark and py4j raise a dozen unrelated types here; each means the same
            raise SparkUnavailable(_why_not_started(noise, error)) from error


def find_java() -> str | None:
    """The Java that Spark would run: that of ``JAVA_HOME``, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")


def java_version() -> int | None:
    """The major version of :func:`find_java`'s Java; ``None`` if it does not say."""
    java = find_java()
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _why_not_started(noise: IO[bytes], error: Exception) -> str:
    version = java_version()
    if version is None or version < JAVA_VERSION:
        return _INSTALL_JAVA + (f" (found version {version})" if version else "")
    noise.seek(0)
    said = noise.read()[-100_000:].decode(errors="replace").splitlines()
    telling = [line for line in said if re.search(r"Error|Exception", line) and not line.startswith("\tat ")]
    return f"Spark did not start: {one_line((telling or [str(error)])[0])} (-v shows all of it)"


@contextmanager
def _stderr_to(target: IO[bytes] | None) -> Iterator[None]:
    """Lets processes that are started meanwhile, that is: Spark's JVM, write their stderr elsewhere for all their life.

    Its first lines come before any logging configuration is read, so that nothing but a redirection silences them.
    """
    if target is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(target.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Runs plans as they are, for many small ones over few rows: compiling them would take longer than running them."""
    before = {name: spark.conf.get(name) for name in _INTERPRETED}
    try:
        for name, value in _INTERPRETED.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            spark.conf.set(name, was or "")


@contextmanager
def failures_as_one_line() -> Iterator[None]:
    """Turns what Spark raises while it works into :class:`SparkFailed`, without the pages of Java stack."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise SparkFailed(f"Spark failed: {one_line(str(error))} (-v shows all of it)") from error


def one_line(text: str, limit: int = 300) -> str:
    """The first line that says something, without control characters."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return "".join(char if char.isprintable() else "?" for char in first)[:limit]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
