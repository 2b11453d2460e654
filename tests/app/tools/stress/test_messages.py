"""The messages between the command and its workers."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import pytest

from tricklecast.app.tools.stress import messages
from tricklecast.app.tools.stress.load import Load
from tricklecast.app.tools.stress.messages import (
    Client,
    Left,
    Orders,
    Received,
    Sent,
    clock,
    from_line,
    from_row,
    to_line,
    to_row,
)

LOAD = Load(seed=7, channels=4, segments=10, every_s=0.5, smallest=100, largest=3_000_000, chunk_bytes=65_536)


def test_orders_survive_the_pipe() -> None:
    """Orders that were written are read again."""
    orders = Orders((Client(0, "http://host/trickle/a"), Client(1, "http://host/trickle/b", 3)), LOAD, "next", "ca.pem")
    line = to_line(orders=asdict(orders))
    assert line.endswith(b"\n")
    assert Orders.read(from_line(line)["orders"]) == orders


@pytest.mark.parametrize(
    "record",
    [
        Sent(0, 1, 2, 3, "digest", 4, 5, 6, "refused"),
        Received(0, 1, 2, -1, 3, "digest", 4, 5, 6, "broken"),
        Left("publisher", 0, 0, 0, "", {"requests": 4}),
    ],
)
def test_records_survive_the_pipe(record: messages.Record) -> None:
    """A record that was written is read again, as the same kind."""
    assert from_row(from_line(to_line(rows=[to_row(record)]))["rows"][0]) == record


def test_processes_share_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes share the monotonic clock on Linux, and the wall clock on systems without that promise."""
    monkeypatch.setattr(sys, "platform", "linux")
    assert clock() is time.monotonic_ns
    monkeypatch.setattr(sys, "platform", "plan9")
    assert clock() is time.time_ns
