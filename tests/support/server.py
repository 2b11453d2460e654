"""A real server in a process of its own, on a free port."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support.forked import command_of, forked
from tests.support.waiting import WITHIN_S
from tricklecast.app.tools.conformance.target import Address, Target

QUICK_END = ("--shutdown-drain-s", "0.1")
"""What a test's server has unless it is given another one: connections that tests leave open would keep it for 5 s."""


@dataclass(frozen=True)
class RunningServer:
    """A server that listens.

    Attributes:
        base: URL of the base path. url: URL of the server's root.
        process: ends as it does, and passes signals on. pid: its process, which a test may kill.
        access_log: its access log, if it writes one.
    """

    base: str
    url: str
    process: subprocess.Popen[str]
    pid: int
    access_log: Path | None

    def target(self, tls: ssl.SSLContext | None = None) -> Target:
        """A client's view of it: raw connections that are strict about what they get."""
        base_path = self.base.partition("://")[2].partition("/")[2]
        address = Address("127.0.0.1", self.port, f"/{base_path}" if base_path else "", tls)
        return Target(address, at_once_s=WITHIN_S)

    @contextmanager
    def client(self, tls: ssl.SSLContext | None = None) -> Iterator[Target]:
        """A client that closes its connections at the end of the block."""
        target = self.target(tls)
        try:
            yield target
        finally:
            target.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rsplit(":", 1)[1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WITHIN_S)


@contextmanager
def serve(
    *arguments: str,
    access_log: Path | None = None,
    scheme: str = "http",
    stderr: IO[str] | None = None,
    fork: bool = True,
    nursery: str = "tests.support.forked",
) -> Iterator[RunningServer]:
    """Run `tricklecast serve` with these arguments until the block ends.

    Args:
        arguments: of the command.
        access_log: where it writes one.
        scheme: `https` if the arguments switch TLS on.
        stderr: a file that gets the server's standard error instead of the test run's.
        fork: start it fast (`tests/support/forked.py`); not for a test that measures its memory.
        nursery: the module of which it is a fork.
    """
    options = ["serve", "--port", "0", *QUICK_END, *arguments]
    if access_log is not None:
        options += ["--access-log", str(access_log)]
    started = forked(*options, module=nursery) if fork else [sys.executable, "-m", "tricklecast", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    assert process.stdout is not None
    try:
        # The server says when it listens; if it ends instead, the line is empty.
        line = process.stdout.readline().strip()
        assert line.startswith("tricklecast is listening on "), f"the server did not start: {line!r}"
        base = line.removeprefix("tricklecast is listening on ")
        authority = base.removeprefix(f"{scheme}://").partition("/")[0]
        pid = command_of(process.pid, nursery) if fork else process.pid
        yield RunningServer(base, f"{scheme}://{authority}", process, pid, access_log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()
