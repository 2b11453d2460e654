"""A real server for the tests of programs that publish or subscribe, on a free port. A fixture for pytest::

    @pytest.fixture(scope="session")
    def trickle():
        with tricklecast.testing.server() as running:
            yield running

``trickle.url("cam")`` is the URL of a channel. The server is a process of its own, as in production: a test can stop
it, kill it and start it again while the program under test runs (docs/adr/0004-a-server-for-the-users-tests.md).

The server ends with the test run, even if that is killed: it reads a pipe to the test process, and exits at the pipe's
end. It runs with Python's option ``-P``, so a folder of the user's project cannot hide a package of tricklecast.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from tricklecast.trickle.errors import TrickleError, needs
from tricklecast.trickle.records import FIELD_NAMES, AccessRecord, Kind

try:
    from tricklecast.app.serve_cli import ANNOUNCEMENT
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package == "tricklecast":
        raise
    raise ModuleNotFoundError(f"tricklecast.testing {needs(package, 'server')}", name=error.name) from None

__all__ = ["ServerFailed", "TestServer", "server"]

START_S: Final = 30.0
"""The server must listen within this time, in seconds. It usually takes 1 s."""

STOP_S: Final = 30.0
"""The server must stop within this time, in seconds; then it is killed."""

QUICK_END: Final = {"shutdown_drain_s": 0.1, "shutdown_deadline_s": 1, "shutdown_restart_s": 0}
"""Settings by which the server ends quickly, unless the test gives others."""

_LOOK_AGAIN_S: Final = 0.02
"""The access log is read again after this time, in seconds."""

_PROGRAM: Final = """
import os, sys, threading
def end_with_the_tests():
    os.read(0, 1)  # nobody writes, so this returns when the test process has ended
    os._exit(1)
threading.Thread(target=end_with_the_tests, daemon=True).start()
from tricklecast.__main__ import main
main()
"""


class ServerFailed(TrickleError):
    """The server did not start, stop or log in time. The message contains its output on standard error."""


class TestServer:
    """A running server.

    Attributes:
        base: the URL below which the channels are, for example ``http://127.0.0.1:40123/trickle``.
    """

    __test__ = False  # pytest must not collect this class

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.base = ""
        self._folder = folder  # access logs and standard error
        self._settings = {**QUICK_END, "half_closed_s": 0.1, **settings}  # a client that has left is soon forgotten
        self._starts = 0  # number of starts, for the name of the access log
        self._process: subprocess.Popen[str] | None = None  # None: the server does not run
        self._start(0)

    def url(self, channel: str) -> str:
        """Return the URL of a channel. The channel need not exist: the first publisher creates it."""
        return f"{self.base}/{quote(channel, safe='')}"

    @property
    def port(self) -> int:
        """The TCP port. It stays the same over restarts."""
        return int(self.base.split("://", 1)[1].partition("/")[0].rpartition(":")[2])

    def stop(self) -> int:
        """Send SIGTERM and wait until the server has drained; returns its exit code, 0 for success.

        Raises:
            ServerFailed: it did not end within 30 s, and was killed.
        """
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._end(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"the server did not stop{self._said()}") from None

    def kill(self) -> None:
        """Send SIGKILL: all connections break, and all channels and segments are lost."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def restart(self) -> None:
        """Stop the server if it runs, and start one on the same port with the same settings.

        Channels and segments live in memory: the new server has none.

        Raises:
            ServerFailed: the server does not start, for example because another program has taken the port.
        """
        self.stop()
        self._start(self.port)

    def records(self, count: int = 0, *, within_s: float = 10.0, **fields: Any) -> list[AccessRecord]:
        """Return the access records so far, over all restarts. Each request that has ended has one.

        The server writes a record up to a tenth of a second after its request has ended. So pass the number of records
        that the test expects. This call blocks; in a coroutine use
        ``await anyio.to_thread.run_sync(server.records)``.

        Args:
            count: wait until there are at least this many records.
            within_s: the longest wait, in seconds.
            fields: return only records with these values, for example ``op="read"``, ``channel="cam"``.

        Raises:
            ServerFailed: fewer records came in time.
        """
        deadline = time.monotonic() + within_s
        while len(found := [record for record in self._logged() if _matches(record, fields)]) < count:
            if time.monotonic() >= deadline:
                raise ServerFailed(f"{len(found)} access records with {fields}, not {count}, after {within_s:g} s")
            time.sleep(_LOOK_AGAIN_S)
        return found

    def _start(self, port: int) -> None:
        self._starts += 1
        # One log per start: a killed server may leave a half line at its end.
        log = self._folder / f"access{self._starts:04d}.jsonl"
        options = _options({**self._settings, "port": port, "access_log": log})
        with self._output.open("w") as output:
            # -P: Python must not import a folder of the test's working directory that is called "tricklecast".
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, "serve", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=_environment(),
            )
        self.base = self._announced()

    def _announced(self) -> str:
        """Wait until the server announces that it listens, and return its base URL."""
        assert self._process is not None
        assert self._process.stdout is not None
        poll = select.poll()  # select() takes no descriptor above 1,023
        poll.register(self._process.stdout, select.POLLIN)
        line = self._process.stdout.readline().strip() if poll.poll(1000 * START_S) else ""
        if not line.startswith(ANNOUNCEMENT):
            self.kill()
            raise ServerFailed(f"the server did not start{self._said()}")
        return line.removeprefix(ANNOUNCEMENT)

    def _end(self, within_s: float | None = None) -> int:
        process = self._process
        assert process is not None
        code = process.wait(within_s)
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()
        self._process = None
        return code

    @property
    def _output(self) -> Path:
        return self._folder / "stderr.txt"

    def _said(self) -> str:
        said = self._output.read_text(encoding="utf-8", errors="replace").strip()
        return f":\n{said}" if said else " without an error message"

    def _logged(self) -> Iterator[AccessRecord]:
        for path in sorted(self._folder.glob("access*.jsonl")):
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    record = _record(line)
                    if record.kind == Kind.EXCHANGE:
                        yield record


@contextmanager
def server(**settings: Any) -> Iterator[TestServer]:
    """Run a server on a free port until the block ends.

    Args:
        settings: settings of ``tricklecast serve``, with underscores: ``window_segments=8``, ``channel_drain_s=0``.
            Settings in environment variables of this process (``TRICKLECAST_…``) are ignored.

    Raises:
        ServerFailed: the server does not start; the message says why.
    """
    with tempfile.TemporaryDirectory(prefix="tricklecast-test-") as folder:
        running = TestServer(Path(folder), settings)
        try:
            yield running
        finally:
            running.stop()


def _matches(record: AccessRecord, fields: dict[str, Any]) -> bool:
    return all(getattr(record, name) == value for name, value in fields.items())


def _record(line: bytes) -> AccessRecord:
    return AccessRecord(**{name: value for name, value in orjson.loads(line).items() if name in FIELD_NAMES})


def _options(settings: dict[str, Any]) -> list[str]:
    options = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        match value:
            case None:
                continue
            case bool():
                options.append(f"--{flag}" if value else f"--no-{flag}")
            case _:
                options.append(f"--{flag}={value}")
    return options


def _environment() -> dict[str, str]:
    """Return this process's environment, without settings of the server, and with this package on the search path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    places = [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    return environment
