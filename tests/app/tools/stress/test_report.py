"""The report of a run, for people and for programs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tricklecast.app.tools.stress.ledger import Fault
from tricklecast.app.tools.stress.load import Load
from tricklecast.app.tools.stress.messages import Health, Left, Orders, Received, Sent
from tricklecast.app.tools.stress.report import as_document, print_report, progress, progress_line
from tricklecast.app.tools.stress.runner import Plan, Run, Worker, bottlenecks

LOAD = Load(seed=1, channels=1, segments=2, every_s=0.5, smallest=20, largest=20, chunk_bytes=20)
MS = 1_000_000


def result(health: Health) -> Run:
    """A run in which the second segment was lost."""
    run = Run(Plan("http://host/trickle", "x", LOAD, subscribers=1))
    run.publishers.append(Worker("publishing process 1", "publish", Orders((), LOAD)))
    run.publishers[0].health = health
    for ordinal in (0, 1):
        run.ledger.add(Sent(0, ordinal, ordinal, 20, f"#{ordinal}", 0, 0, 0))
    run.ledger.add(Received(0, 0, 0, 0, 20, "#0", 4 * MS, 6 * MS))
    run.ledger.add(Left("subscriber", 0, 0, 1, "", {"requests": 5, "retries": 1, "segments": 1}))
    run.ledger.close()
    run.seconds = 2.0
    return run


def told(run: Run) -> str:
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
    assert "missing: 1 — the server stored it and did not deliver it; the subscriber reported a gap" in said
    assert "segment 1, subscriber 0 of stress-x-0" in said
    assert "BOTTLENECK" not in said


def test_a_report_of_nothing_has_no_latencies() -> None:
    """A run without segments prints no zeros, which would look like a quick server."""
    load = replace(LOAD, channels=2)
    run = Run(Plan("http://host/trickle", "x", load, subscribers=2))
    run.ledger.add(Sent(0, 0, -1, 0, "", 0, 0, 0, "no such channel"))
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
        (None, 0),
    ],
)
def test_what_counts_as_a_bottleneck(health: Health | None, reasons: int) -> None:
    """Too much of a core, a late event loop and a publisher that wakes too late are three reasons."""
    assert len(list(bottlenecks({"a": health}))) == reasons


def test_the_document_has_every_kind_of_fault() -> None:
    """The document has a 0 for each kind of fault that did not happen."""
    document = as_document(result(Health(0.2, 3.0, 0.0, 100)))
    assert document["version"] == 1
    assert document["faults"] == {fault.name.lower(): int(fault is Fault.MISSING) for fault in Fault}
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
