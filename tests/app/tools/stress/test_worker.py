"""A worker's messages to the command, and its measurement of itself."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.local import local_server
from tricklecast.app.tools.stress import worker
from tricklecast.app.tools.stress.load import Load, Role, StressPlan
from tricklecast.app.tools.stress.worker import ParentCommand

LOAD = Load(seed=1, channels=1, segments=2, every_s=0.02, smallest=20, largest=20, chunk_bytes=20)


def talk(role: Role, out: Path, *orders: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a worker that receives these messages, and then the end of its input; returns its own messages."""
    read, write = os.pipe()
    with open(write, "wb") as pipe:
        pipe.writelines(json.dumps(message).encode() + b"\n" for message in orders)
    with open(read, "rb") as heard, out.open("wb") as said:
        asyncio.run(worker.serve(role, 0, heard, said))
    return [json.loads(line) for line in out.read_bytes().splitlines()]


def test_the_end_of_the_input_is_the_end_of_the_run(tmp_path: Path) -> None:
    """A worker does not wait for a command that exited before the start, or before it gave orders."""
    assert talk("publish", tmp_path / "out") == []
    with local_server() as server:
        plan = StressPlan(f"http://127.0.0.1:{server.port}/trickle", "x", LOAD, subscribers=1)
        said = talk("publish", tmp_path / "out", {"plan": asdict(plan)})
        server.record(op="delete", channel="stress-x-0", status=200)
    assert [state for message in said for state in message if state != "report"] == ["ready", "finished", "health"]
    assert all("report" in message for message in said)
    assert "health" in said[-1]
    assert said[-1]["health"]["samples"] == 0


def test_lag_and_processor_time_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop that is always 10 ms late, and a process that uses half a core, are measured as that."""

    def ticks(step_ns: int) -> Iterator[int]:
        return count(step_ns, step_ns)

    # Two looks at the clock frame each wait, and there are three looks for each two at the processor time.
    now, used = ticks(20_000_000), ticks(20_000_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(now))
    monkeypatch.setattr(time, "process_time_ns", lambda: next(used))

    async def main() -> None:
        command = ParentCommand(StressPlan("http://host/trickle", "x", LOAD, subscribers=1), io.BytesIO())
        command.go_ns = 2_000_000_000
        command.go.set()
        await command.measure()
        command.late.add(7000)
        health = command.health()
        assert health.cpu == pytest.approx(0.5, rel=0.05)
        assert health.lag_ms == pytest.approx(10, rel=0.01)
        assert health.late_ms == pytest.approx(7, rel=0.01)
        assert health.samples > 10

    asyncio.run(main())
