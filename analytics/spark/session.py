"""Starting Spark, quietly, and saying what to install where that fails.

Imported only when a report is wanted: ``pyspark`` takes a third of a second to import and seconds to start.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from socketserver import BaseServer
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final

from tricklecast.analytics.errors import BadMaster, SparkFailed, SparkUnavailable
from tricklecast.analytics.signals import deferred, for_us_alone
from tricklecast.analytics.spark import java
from tricklecast.trickle.errors import needs
from tricklecast.trickle.wire import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
DRIVER_MEMORY: Final = "1g"
CONNECT: Final = "sc://"
"""The beginning of the address of a server of Spark Connect."""

CONNECT_S: Final = 5.0
"""How long a standalone master may take to accept a connection, seconds."""

MAX_PORT: Final = 65_535

SMALL_INPUT: Final = 100_000_000
"""Bytes of log up to which one core is enough, and Java's optimising compiler does not pay for itself."""

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_UNCHOSEN: Final = "200"
CLUSTER_PARTITIONS: Final = 32
"""Parts of a shuffle on a cluster where nobody has chosen another number. Spark's default is made for shuffles of raw
rows; those of a roll-up are small, and a report has a dozen of them."""

_SMALL: Final = {
    # Another Python takes longer to start than the lines of a small log take.
    "spark.sql.files.minPartitionNum": "1",
    _PARTITIONS: "1",
    # Compiling plans takes longer than running them as they are.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_ONE_CORE: Final = "local[1]"


def settings(
    master: str | None, *, small: bool = False, verbose: bool = False, conf: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Spark's configuration for a report.

    Args:
        master: where to run: ``local[*]``, ``spark://…`` and so on; ``None`` leaves it to ``spark-submit``.
        small: the input is small (:data:`SMALL_INPUT`): start fast rather than run fast.
        verbose: let Spark log.
        conf: settings of the user's, which override these.
    """
    chosen = {
        "spark.app.name": "tricklecast storms",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN" if verbose else "ERROR",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
    }
    if master is not None:
        chosen["spark.master"] = master
    if master is not None and master.startswith("local"):
        chosen |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # The default of 200 costs three times the whole report here, and adaptive planning does not make up for it.
            _PARTITIONS: str(_cores()),
            "spark.sql.adaptive.enabled": "false",
        }
        if small:
            chosen |= _SMALL
            if master == LOCAL:
                chosen["spark.master"] = _ONE_CORE
        chosen["spark.driver.extraJavaOptions"] = java.QUICK if small else java.FAST
    return chosen | dict(conf or {})


@contextmanager
def spark_session(
    master: str | None = LOCAL,
    *,
    small: bool = False,
    verbose: bool = False,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A Spark session; one that is already active is used, and left running.

    Args:
        master, small, conf: see :func:`settings`.
        verbose: do not hide what Spark writes to stderr.

    Raises:
        SparkUnavailable: pyspark or Java is missing or too old, no master answers, or Spark did not start.
    """
    session_type = check_installed()
    if active := session_type.getActiveSession():
        yield active
        return
    if master is not None:
        check_master(master)
    if master is not None and master.startswith(CONNECT):
        session = _connected(session_type, master, conf or {})
        try:
            yield session
        finally:
            _stop(session)
        return
    chosen = settings(master, small=small, verbose=verbose, conf=conf)
    session = _start(session_type, chosen, verbose=verbose)
    if session.conf.get(_PARTITIONS) == _UNCHOSEN:
        session.conf.set(_PARTITIONS, str(CLUSTER_PARTITIONS))
    try:
        yield session
    finally:
        _stop(session)


def _connected(session_type: type[SparkSession], address: str, conf: Mapping[str, str]) -> SparkSession:
    """A session on a server of Spark Connect: no Java is needed here, and the server has its settings already."""
    from pyspark.errors import PySparkException

    try:
        session = session_type.builder.remote(address).getOrCreate()
        for name, value in conf.items():
            session.conf.set(name, value)
        assert session.version  # the first call: the session before it is only a promise
    except ImportError as error:
        raise SparkUnavailable(f'{address} needs what "pip install pyspark[connect]" installs: {error}') from error
    except PySparkException as error:
        raise SparkUnavailable(f"no session at {address}: {one_line(str(error))}") from error
    return session


def _stop(session: SparkSession) -> None:
    """Ends the session. Where Java has gone, whoever worked with it has said so; there is nothing left to end."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it ships no types
    from pyspark.errors import PySparkException

    with warnings.catch_warnings(), suppress(Py4JError, PySparkException, OSError):
        warnings.simplefilter("ignore", RuntimeWarning)  # "unable to cleanly shutdown"
        session.stop()


def check_master(master: str) -> None:
    """Finds out at once what Spark would try for a minute and then say in a page of stack traces.

    Raises:
        BadMaster: ``master`` is no such thing.
        SparkUnavailable: none of its hosts answers, or YARN is not configured here.
    """
    if master.startswith("spark://"):
        _check_hosts(master)
    elif master.startswith(CONNECT):
        host, _, port = master.removeprefix(CONNECT).partition("/")[0].rpartition(":")
        if host and port.isdecimal() and ";use_ssl" not in master:
            _check_hosts(f"spark://{host}:{port}")
    elif master == "yarn":
        if not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
            raise SparkUnavailable("--master yarn needs HADOOP_CONF_DIR: the folder with the cluster's yarn-site.xml")
    elif not re.fullmatch(r"local(-cluster)?(\[[\w*, ]+\])?|k8s://.+", master):
        raise BadMaster(
            f"no such --master: {master!r}; local[*], spark://HOST:7077, sc://HOST:15002, yarn or k8s://HOST"
        )


def _check_hosts(master: str) -> None:
    failed: list[str] = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > MAX_PORT:
            raise BadMaster(f"no such --master: {master!r}; expected spark://HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        except OSError as error:
            failed.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise SparkUnavailable(f"no Spark master answers at {master}: {one_line('; '.join(failed))}")


def check_installed() -> type[SparkSession]:
    """Spark's session, if there is a Spark.

    Raises:
        SparkUnavailable: pyspark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable(f"the report {needs('Spark', 'analytics')}") from error
    return SparkSession


def _start(session_type: type[SparkSession], chosen: dict[str, str], *, verbose: bool) -> SparkSession:
    # Under spark-submit, Java runs already.
    if java.find_java() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        raise SparkUnavailable(java.INSTALL)
    # Where Spark runs Python on this machine, it is to be this one, which has these packages.
    if str(chosen.get("spark.master", "")).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not verbose:  # py4j has pages to say about a call that was interrupted, some of them to nobody's handler
        logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
        logging.getLogger().addHandler(logging.NullHandler())
        _quiet_accumulators()
    builder = session_type.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with TemporaryFile() as noise:
        try:
            # Interrupted while it starts, Java would be left behind: nobody knows its process yet.
            with _stderr_to(None if verbose else noise), deferred(), for_us_alone():
                session: SparkSession = builder.getOrCreate()
                return session
        except Exception as error:  # pyspark and py4j raise a dozen unrelated types here; each means the same
            raise SparkUnavailable(_why_not_started(noise, error)) from error


def _quiet_accumulators() -> None:
    """Nobody accumulates anything here, but pyspark listens for it, with a stack trace when Java has gone."""
    from pyspark import accumulators

    def passed_over(self: object, request: object, client_address: object) -> None:
        pass

    # The servers' names differ between the versions of pyspark.
    for server in vars(accumulators).values():
        if isinstance(server, type) and issubclass(server, BaseServer):
            server.handle_error = passed_over  # type: ignore[method-assign]


def _why_not_started(noise: IO[bytes], error: Exception) -> str:
    version = java.java_version()
    if version is None or version < java.JAVA_VERSION:
        return java.INSTALL + (f" (found version {version})" if version else "")
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
def failures_as_one_line() -> Iterator[None]:
    """Turns what Spark raises while it works into :class:`SparkFailed`, without the pages of Java stack."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise SparkFailed(_why_failed(error)) from error


def _why_failed(error: Exception) -> str:
    """One line that says what to do, where that is known."""
    from py4j.protocol import Py4JNetworkError

    text = str(error)
    if "OutOfMemoryError" in text:
        return f"Spark ran out of memory ({DRIVER_MEMORY} by default): pass --conf spark.driver.memory=4g"
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return "Spark's Java process has ended (killed for lack of memory?); -v shows its last output"
    if "No space left on device" in text:
        return "the disk for Spark's data is full: pass --conf spark.local.dir=FOLDER on a larger disk"
    return f"Spark failed: {one_line(text)} (-v shows all of it)"


def one_line(text: str, limit: int = 300) -> str:
    """The first line that says something, without control characters."""
    # py4j puts where it was called before what went wrong, and a colon before that.
    said = (line.strip().removeprefix(": ") for line in text.splitlines() if "occurred while calling" not in line)
    first = next(filter(None, said), "no message")
    return printable(first)[:limit]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
