"""A real server in a process of its own, on a free port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_S = 30
"""More than a server may take to stop on the slowest machine; only a hang reaches it."""


@dataclass(frozen=True)
class RunningServer:
    """A server that listens.

    Attributes:
        base: URL of the base path. url: URL of the server's root.
        process: its process. access_log: its access log, if it writes one.
    """

    base: str
    url: str
    process: subprocess.Popen[str]
    access_log: Path | None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rsplit(":", 1)[1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


@contextmanager
def serve(*arguments: str, access_log: Path | None = None, scheme: str = "http") -> Iterator[RunningServer]:
    """Run `tricklecast serve` with these arguments until the block ends."""
    command = [sys.executable, "-m", "app", "serve", "--port", "0", *arguments]
    if access_log is not None:
        command += ["--access-log", str(access_log)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRICKLECAST_")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        # The server says when it listens; if it ends instead, the line is empty.
        line = process.stdout.readline().strip()
        assert line.startswith("tricklecast is listening on "), f"the server did not start: {line!r}"
        base = line.removeprefix("tricklecast is listening on ")
        authority = base.removeprefix(f"{scheme}://").partition("/")[0]
        yield RunningServer(base, f"{scheme}://{authority}", process, access_log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()
