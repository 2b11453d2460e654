"""Whole runs: a real server has no faults, and all faults of a faulty one are named."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest
import typer

from tests.app.tools.stress.faulty import Answer, BodyOf, Spoil, faulty_server
from tests.support.forked import forked_deep
from tests.support.local import LocalServer, local_server
from tests.support.peers import run
from tests.support.waiting import WITHIN_S, eventually, until
from tricklecast.app.tools.stress import runner
from tricklecast.app.tools.stress.cli import as_document, stress
from tricklecast.app.tools.stress.ledger import FaultKind
from tricklecast.app.tools.stress.load import Load, StressPlan
from tricklecast.app.tools.stress.runner import StressFailed, StressRun
from tricklecast.trickle.records import Op

LOAD = Load(seed=5, channels=2, segments=8, every_s=0.05, smallest=100, largest=20_000, chunk_bytes=4096)


def url_of(server: LocalServer) -> str:
    return f"http://127.0.0.1:{server.port}/trickle"


def left_open(server: LocalServer) -> set[str | None]:
    """The channels of stress runs that were not ended."""
    of_stress = [record for record in list(server.records) if (record.channel or "").startswith("stress-")]
    ended = {record.channel for record in of_stress if record.op == Op.DELETE and record.status == 200}
    return {record.channel for record in of_stress if record.op == Op.PUBLISH} - ended


def codes(result: StressRun) -> list[int | None]:
    """The exit codes of all processes."""
    return [worker.process.returncode for worker in result.workers]


def test_a_sound_server_has_no_faults(capsys: pytest.CaptureFixture[str]) -> None:
    """Every segment reaches every subscriber; the result as JSON says so, and the channels are ended."""
    with local_server() as server:
        run(
            stress(
                f"http://127.0.0.1:{server.port}",
                publishers=3,
                subscribers=3,
                for_="400ms",
                segment_every="50ms",
                segment_bytes="100B-20kB",
                chunk_bytes="4KiB",
                processes=2,
                seed=5,
                as_json=True,
            )
        )
        eventually(lambda: not left_open(server), what="the channels are ended")
    result = json.loads(capsys.readouterr().out)
    assert result["ok"]
    assert set(result["faults"].values()) == {0}
    assert result["published"]["segments"] == 3 * 8
    assert result["received"]["segments"] == result["received"]["wanted"] == 3 * 3 * 8
    assert result["received"]["bytes"] == 3 * result["published"]["bytes"]
    assert result["received"]["counts"]["requests"] >= 3 * 3 * 9
    assert result["latency_ms"]["first_byte"]["samples"] == 72
    assert 0 < result["latency_ms"]["whole"]["p50"] <= result["latency_ms"]["whole"]["max"]
    assert len(result["workers"]) == 4
    # One that gets no processor for the whole of this short run has none.
    assert any(worker["samples"] > 0 for worker in result["workers"].values())


async def _double(seq: int, body: BodyOf) -> Answer:
    return Answer(await body(2 if seq == 3 else seq))


async def _swap(seq: int, body: BodyOf) -> Answer:
    return Answer(await body({3: 4, 4: 3}.get(seq, seq)))


async def _flip(seq: int, body: BodyOf) -> Answer:
    data = bytearray(await body(seq))
    data[-1] ^= seq == 3
    return Answer(bytes(data))


async def _repeat_a_chunk(seq: int, body: BodyOf) -> Answer:
    data = await body(seq)
    return Answer(data + (data[-50:] if seq == 3 else b""))


async def _lose_a_piece(seq: int, body: BodyOf) -> Answer:
    data = await body(seq)
    return Answer(data[:-1] if seq == 3 else data)


async def _empty(seq: int, body: BodyOf) -> Answer:
    return Answer(b"" if seq == 3 else await body(seq))


async def _drop(seq: int, body: BodyOf) -> Answer:
    return Answer(moved_to=5) if seq == 3 else Answer(await body(seq))


async def _truncate(seq: int, body: BodyOf) -> Answer:
    data = await body(seq)
    return Answer(data[:-1], trailer="truncated") if seq == 3 else Answer(data)


async def _cut(seq: int, body: BodyOf) -> Answer:
    data = await body(seq)
    return Answer(data[:-1], cut=True) if seq == 3 else Answer(data)


WRONG: dict[str, tuple[Spoil, dict[FaultKind, int]]] = {
    "a segment comes twice": (_double, {FaultKind.DOUBLED: 1, FaultKind.SILENT: 1}),
    "two are swapped": (_swap, {FaultKind.REORDERED: 1}),
    "a bit is flipped": (_flip, {FaultKind.DIFFERING: 1}),
    "a chunk comes twice": (_repeat_a_chunk, {FaultKind.DIFFERING: 1}),
    "a byte is lost": (_lose_a_piece, {FaultKind.DIFFERING: 1}),
    "a segment is hidden": (_empty, {FaultKind.SILENT: 1}),
    "a segment is dropped": (_drop, {FaultKind.MISSING: 1}),
    "the end is missing, and marked": (_truncate, {FaultKind.TRUNCATED: 1}),
    "the connection is cut": (_cut, {FaultKind.BROKEN: 1}),
}


def test_what_is_wrong_is_named() -> None:
    """Each channel has another fault; the ledger counts each under its name, and finds nothing else."""

    async def main() -> StressRun:
        async with faulty_server({number: spoil for number, (spoil, _) in enumerate(WRONG.values())}) as base:
            plan = StressPlan(base, "x", replace(LOAD, channels=len(WRONG)), subscribers=1)
            result = StressRun(plan)
            await result.carry_out()
            return result

    ledger = run(main()).ledger
    for number, (what, (_, expected)) in enumerate(WRONG.items()):
        channel = f"stress-x-{number}"
        found = {
            fault: sum(f" of {channel}" in where for where in examples) for fault, examples in ledger.examples.items()
        }
        assert {fault: count for fault, count in found.items() if count} == expected, what
    assert ledger.faults.total() == sum(sum(expected.values()) for _, expected in WRONG.values())


def test_faults_are_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """A single flipped bit: exit code 1, and the report says where."""

    async def main() -> None:
        async with faulty_server({0: _flip}) as base:
            await stress(base, 1, 2, "300ms", segment_every="50ms", segment_bytes="1kB", seed=1)

    with pytest.raises(typer.Exit) as left:
        run(main())
    assert left.value.exit_code == 1
    said = capsys.readouterr().out
    assert "differing: 2 — delivered as whole, with other bytes than were published" in said
    assert "segment 3, subscriber 0 of stress-" in said


def test_a_tool_that_cannot_keep_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with a blocked event loop makes the latencies void, with the reason, and is no fault."""
    with local_server() as server:
        load = replace(LOAD, channels=1, segments=4, largest=100)
        monkeypatch.setattr(runner, "WORKER", "tests.app.tools.stress.blocked")
        result = StressRun(StressPlan(url_of(server), "x", load, subscribers=1))
        run(result.carry_out())
    document = as_document(result)
    assert document["ok"]
    reasons = document["latency_ms"]["void"]
    assert any(reason.startswith("publishing process 1 ran its event loop") for reason in reasons), reasons


def test_a_worker_that_breaks_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a process exits early the run fails without a result, and its other processes end."""
    with local_server() as server:
        monkeypatch.setattr(runner, "WORKER", "tests.app.tools.stress.broken")
        result = StressRun(StressPlan(url_of(server), "x", LOAD, subscribers=1))
        with pytest.raises(StressFailed, match="publishing process 1 broke"):
            run(result.carry_out())
    assert codes(result)[0] == 3
    assert None not in codes(result)


def test_cancelled_it_leaves_nothing() -> None:
    """A cancelled run ends its processes and channels, however early, and still compares the segments so far."""
    with local_server() as server:

        async def main(when: Callable[[StressRun], object]) -> StressRun:
            result = StressRun(StressPlan(url_of(server), "x", replace(LOAD, segments=1000), subscribers=1))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(result.carry_out)
                await until(lambda: when(result))
                tasks.cancel_scope.cancel()
            return result

        for when in (
            lambda _: True,
            lambda run: run.phase == "publishing",  # and nothing is due yet
            lambda run: run.ledger.received.segments,
        ):
            result = run(main(when))
            assert result.interrupted
            assert not result.ledger.faults, result.ledger.examples
            assert set(codes(result)) <= {0}, codes(result)
        assert result.ledger.received.segments > 0
        assert result.ledger.received.segments == result.ledger.published.segments < 2000
        eventually(lambda: not left_open(server), what="the channels are ended")


def test_ctrl_c_shows_what_came_so_far() -> None:
    """The first Ctrl-C ends the channels, prints the report, and is the exit code."""
    with local_server() as server:
        started = forked_deep("stress", url_of(server), "-p", "2", "-s", "1", "--for", "10m", "--json")
        with subprocess.Popen(started, stdout=subprocess.PIPE, text=True) as process:
            try:
                read = (Op.READ, 200)
                eventually(lambda: read in [(one.op, one.status) for one in list(server.records)], what="a read")
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=WITHIN_S)
            finally:
                process.kill()
        assert process.returncode == 130
        eventually(lambda: not left_open(server), what="the channels are ended")
    result = json.loads(said)
    assert result["interrupted"]
    assert result["ok"], result["examples"]
    assert result["received"]["segments"] > 0
