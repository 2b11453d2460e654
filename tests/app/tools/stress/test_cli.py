"""The options of `tricklecast stress`, wrong usage, and the report."""

from __future__ import annotations

import asyncio
import io
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from tests.support.local import local_server
from tricklecast.app.tools.stress.cli import (
    as_document,
    base_url,
    parse_sizes,
    print_report,
    progress,
    progress_line,
    segments_in,
    stress,
)
from tricklecast.app.tools.stress.ledger import FaultKind, FoundFault, WorkerReport
from tricklecast.app.tools.stress.load import Load, StressPlan
from tricklecast.app.tools.stress.runner import Health, StressFailed, StressRun
from tricklecast.trickle.errors import InvalidInput

LOAD = Load(seed=1, channels=1, segments=2, every_s=0.5, smallest=20, largest=20, chunk_bytes=20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"for_": "soon"},
        {"segment_every": "0"},
        {"segment_bytes": "3"},
        {"chunk_bytes": "many"},
    ],
)
def test_wrong_usage_is_refused_at_once(wrong: dict[str, Any]) -> None:
    """The command refuses a wrong option before it starts a process."""
    with pytest.raises(typer.BadParameter):
        asyncio.run(stress(**{"url": "http://127.0.0.1:1", **wrong}))


def test_a_bad_certificate_file(tmp_path: Path) -> None:
    """The command reads the certificates before the run, and not only in each process."""
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    with pytest.raises(typer.BadParameter, match="cannot read certificates"):
        asyncio.run(stress("https://127.0.0.1:1", ca_file=path))


def test_a_server_that_is_not_there() -> None:
    """A server that cannot be reached is one line, and no table of faults."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(StressFailed, match=f"{url}/trickle cannot be reached"):
            asyncio.run(stress(url))


def test_a_server_that_is_no_trickle_server() -> None:
    """A server that creates no channel, for example below a wrong base path, is one line."""
    with local_server() as server, pytest.raises(StressFailed, match=r"/nonsense creates no channels\. Is .*HTTP 404"):
        asyncio.run(stress(f"http://127.0.0.1:{server.port}/nonsense"))


def test_sizes() -> None:
    """A size may have a unit, and may be a range."""
    assert parse_sizes("1kB") == (1000, 1000)
    assert parse_sizes("1KiB-1MiB") == (1024, 1048576)


@pytest.mark.parametrize("text", ["10kB-1kB", "10", "-"])
def test_wrong_sizes(text: str) -> None:
    """An empty range, a segment smaller than its marker, and a text without a number are refused."""
    with pytest.raises(InvalidInput):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:2939", "http://host:2939/trickle"),
        ("http://host:2939/", "http://host:2939"),
        ("https://host/live//trickle/", "https://host/live/trickle"),
    ],
)
def test_the_base_path_of_a_url(url: str, base: str) -> None:
    """A URL without a path has the usual base path."""
    assert base_url(url) == base


@pytest.mark.parametrize(("for_s", "every_s", "segments"), [(30, 0.5, 60), (0.3, 0.1, 3), (1, 0.3, 4), (0.1, 5, 1)])
def test_segments_fill_the_time(for_s: float, every_s: float, segments: int) -> None:
    """A channel gets the segments that begin within the time, however floats round, and at least one."""
    assert segments_in(for_s, every_s) == segments


def result(health: Health) -> StressRun:
    """A run in which the second segment was lost."""
    run = StressRun(StressPlan("http://host/trickle", "x", LOAD, subscribers=1))
    run.health["publishing process 1"] = health
    missing = FoundFault(FaultKind.MISSING, 0, 1, "segment 1, subscriber 0 of stress-x-0")
    run.ledger.add("a", "publish", WorkerReport(2, 40, 2, published=[(0, 2)]))
    report = WorkerReport(1, 20, samples={"first_byte": [4000], "whole": [6000]}, faults=[missing])
    report.counts.update(requests=5, retries=1, segments=1)
    run.ledger.add("b", "subscribe", report)
    run.ledger.close()
    run.seconds = 2.0
    return run


def told(run: StressRun) -> str:
    """The report as it is printed."""
    out = io.StringIO()
    print_report(Console(file=out, soft_wrap=True, highlight=False, markup=False), run)
    return out.getvalue()


def test_a_report_names_faults_and_figures() -> None:
    """The report shows both sides' sums, requests, latencies, and each fault with its meaning and a place."""
    said = told(result(Health(0.2, 3.0, 0.0, 100)))
    assert said.startswith("1 publisher, with 1 subscriber on http://host/trickle, 2.0 s")
    assert "published   2 of 2 segments, 40 B, 20 B/s" in said
    assert "received    1 of 2 segments, 20 B, 10 B/s, 5 requests, 1 retries" in said
    assert "first byte  p50 4.0" in said
    assert "publishing process 1: 20% of a core, event loop 3.0 ms late (p99)" in said
    assert "missing: 1 — the server stored it and did not deliver it; the subscriber reported a gap" in said
    assert "segment 1, subscriber 0 of stress-x-0" in said
    assert "BOTTLENECK" not in said


def test_a_report_of_nothing_has_no_latencies() -> None:
    """A run without segments prints no zeros, which would look like a quick server."""
    run = StressRun(StressPlan("http://host/trickle", "x", replace(LOAD, channels=2), subscribers=2))
    lost = FoundFault(FaultKind.UNPUBLISHED, 0, 0, "a segment of stress-x-0: no such channel")
    run.ledger.add("a", "publish", WorkerReport(faults=[lost]))
    run.ledger.close()
    said = told(run)
    assert said.startswith("2 publishers, each with 2 subscribers")
    assert "first byte  no segment to tell by" in said
    assert "    a segment of stress-x-0: no such channel" in said


def test_a_report_says_when_the_tool_was_the_bottleneck() -> None:
    """The report names the reason and the remedy."""
    said = told(result(Health(0.95, 3.0, 0.0, 100)))
    assert "THE TOOL WAS THE BOTTLENECK" in said
    assert "publishing process 1 used 95% of a core (more than 80%)" in said
    assert "--processes" in said


@pytest.mark.parametrize(
    ("health", "reasons"),
    [
        (Health(0.8, 20.0, 20.0, 9), 0),
        (Health(0.81, 0.0, 0.0, 9), 1),
        (Health(0.0, 21.0, 0.0, 9), 1),
        (Health(0.9, 30.0, 30.0, 9), 3),
    ],
)
def test_what_counts_as_a_bottleneck(health: Health, reasons: int) -> None:
    """Too much of a core, a late event loop and a publisher that wakes too late are three reasons."""
    assert len(list(health.bottlenecks("a"))) == reasons


def test_the_document_has_every_kind_of_fault() -> None:
    """The document has a 0 for each kind of fault that did not happen."""
    document = as_document(result(Health(0.2, 3.0, 0.0, 100)))
    assert document["version"] == 1
    assert document["faults"] == {fault.name.lower(): int(fault is FaultKind.MISSING) for fault in FaultKind}
    assert document["examples"] == {"missing": ["segment 1, subscriber 0 of stress-x-0"]}
    assert document["latency_ms"]["whole"]["max"] == 6.0
    assert not document["ok"]


def test_progress_is_shown_on_a_terminal_only() -> None:
    """A terminal shows a line with the progress, a file nothing."""
    run = result(Health(0.2, 3.0, 0.0, 100))
    assert progress_line(run) == "starting: 2 of 2 segments published, 1 of 2 received, 1 fault"
    for terminal in (False, True):
        out = io.StringIO()
        with progress(Console(file=out, force_terminal=terminal, width=100), run):
            pass
        assert ("segments published" in out.getvalue()) is terminal
