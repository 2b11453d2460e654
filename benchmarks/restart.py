"""How a server's clients come back after a restart: the peak at its successor, drained and killed.

Run it as ``python benchmarks/restart.py``. So many readers wait; the server is stopped and started again on the same
port. The readers do no more than they are told: they wait for exactly as long as ``Retry-After`` says, without a jitter
of their own, and for a second where nobody answers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from benchmarks.servers import raise_file_limit
from tricklecast.testing import TestServer, server

CLIENTS: Final = 2000
DRAIN_S: Final = 10.0
RESTART_S: Final = 2.0
WINDOW_S: Final = 1.0
CHANNELS: Final = 20
NOBODY_S: Final = 1.0
"""How long a client waits where nobody answers."""

BOUND: Final = 2.0
"""The busiest second at the successor, in units of the rate at which clients are sent away."""


@dataclass
class Outage:
    """What the clients saw.

    Attributes:
        waiting: of them at the beginning. back: when each asked the successor, in seconds.
        answers: of both servers, by status; 0 where nobody answered.
    """

    waiting: int = 0
    back: list[float] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)

    @property
    def peak(self) -> int:
        """Clients in the busiest second."""
        return busiest(self.back, WINDOW_S)


def busiest(times: Iterable[float], window_s: float) -> int:
    """How many lie in the fullest window of this length."""
    ordered = sorted(times)
    first = most = 0
    for number, at in enumerate(ordered):
        while ordered[first] <= at - window_s:
            first += 1
        most = max(most, number - first + 1)
    return most


async def ask(port: int, method: str, path: str) -> tuple[int, float]:
    """One request; its status, 0 if nobody answers, and how long to wait before the next one, in seconds."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return 0, NOBODY_S
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    except (OSError, asyncio.IncompleteReadError):
        return 0, NOBODY_S
    finally:
        writer.close()
    _, told, rest = head.partition("retry-after: ")
    return int(head.split(" ", 2)[1]), float(rest.split("\r\n", 1)[0]) if told else 0.0


async def client(running: TestServer, number: int, outage: Outage) -> None:
    """Wait for a segment that does not come, and come back until somebody has another answer than to come back."""
    outage.waiting += 1
    while True:
        asked = time.monotonic()
        status, wait_s = await ask(running.port, "GET", f"/trickle/c{number % CHANNELS}/0")
        outage.answers[status] += 1
        if status not in (0, 503):
            # The successor does not know the channel. That it is asked is all that counts here.
            outage.back.append(asked)
            return
        await asyncio.sleep(wait_s)


async def live_through(running: TestServer, clients: int, stop: Callable[[], object]) -> Outage:
    """Let clients wait, restart the server, and see them all come back."""
    outage = Outage()
    for number in range(CHANNELS):
        await ask(running.port, "POST", f"/trickle/c{number}")
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(running, number, outage))
            if not number % 50:
                await asyncio.sleep(0.01)
        await _all_wait(running, clients)
        await asyncio.to_thread(stop)
        await asyncio.to_thread(running.restart)
    return outage


async def _all_wait(running: TestServer, clients: int) -> None:
    wanted = f"tricklecast_readers {clients}.0"
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        if wanted in text:
            return
        await asyncio.sleep(0.1)


def measure(clients: int, drain_s: float, restart_s: float) -> dict[str, Outage]:
    """One restart in order, and one kill."""
    settings = {"shutdown_drain_s": drain_s, "shutdown_deadline_s": drain_s + 3, "shutdown_restart_s": restart_s}
    found = {}
    for name, stop in (("drained", TestServer.stop), ("killed", TestServer.kill)):
        with server(**settings) as running:
            found[name] = asyncio.run(live_through(running, clients, partial(stop, running)))
    return found


def print_found(console: Console, found: dict[str, Outage], drain_s: float) -> bool:
    """A table, and whether the drain keeps to the bound."""
    table = Table("server", "clients", "back within", "busiest second", "spread rate", "peak / rate", "503", "refused")
    for name, outage in found.items():
        rate = outage.waiting / drain_s
        span = max(outage.back) - min(outage.back)
        counts = (str(outage.answers[503]), str(outage.answers[0]))
        table.add_row(name, str(outage.waiting), f"{span:.1f} s", str(outage.peak), f"{rate:.0f}/s",
                      f"{outage.peak / rate:.2f}", *counts)  # fmt: skip
    console.print(table)
    drained = found["drained"]
    kept = drained.peak < BOUND * drained.waiting / drain_s
    console.print(f"peak below {BOUND:g} x the spread rate: {'yes' if kept else 'NO'}")
    return kept


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"waiting readers [{CLIENTS}]")
    parser.add_argument("--drain-s", type=float, default=DRAIN_S, help=f"shutdown_drain_s [{DRAIN_S:g}]")
    parser.add_argument("--restart-s", type=float, default=RESTART_S, help=f"shutdown_restart_s [{RESTART_S:g}]")
    arguments = parser.parse_args()
    raise_file_limit()
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"load average {os.getloadavg()[0]:.1f} at the start")
    found = measure(arguments.clients, arguments.drain_s, arguments.restart_s)
    return 0 if print_found(console, found, arguments.drain_s) else 1


if __name__ == "__main__":
    sys.exit(main())
