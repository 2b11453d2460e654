"""The report in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.analytics.support.sample_report import (
    empty_report,
    hostile_report,
    large_report,
    quiet_report,
    sample_episode,
    sample_report,
)
from tricklecast.analytics.report_old.model import Report
from tricklecast.analytics.report_old.terminal import MAX_ROWS, PLAIN_WIDTH, print_report


def printed(found: Report, width: int = PLAIN_WIDTH) -> str:
    """What a terminal of that width would show, without colours."""
    out = io.StringIO()
    print_report(found, Console(file=out, width=width, markup=False, emoji=False, highlight=False))
    return out.getvalue()


def test_it_tells_the_story() -> None:
    """Verdict, waste, worst minute, episodes with ids, causes, offenders, budgets, change and caveats are there."""
    text = printed(sample_report())
    worst = sample_report().episodes[0]
    for part in (
        "8 retry storms, 4 of them critical; 1 still going on when the log ends.\noverload_amplification on relay-2",
        "Likely cause: many clients retry faster",
        "Do first: shed load",
        "111,640 requests, 89,990 wanted: amplification 1.24",
        "wasted: 21,650 requests, 774.7 MiB, 72.0 min of handling",
        "succeeded at once 94.2 %, in the end 99.68 %",
        "worst minute: relay-2 at 2025-10-09 09:05 UTC, 8,412 requests, amplification 4.02",
        f"{worst.id}  CRITICAL  overload_amplification",
        "studio-b/news +1, viewer-100 +340",
        "channel_end",
        "3.1 s later",
        "hot_loop",
        "  → let the client ask for the next seq after an empty answer.",
        "clients: viewer-17 50.0 %, studio-b-encoder 25.0 %",
        "Retry budgets broken in 47 minutes, the worst:",
        "client viewer-17 at 2025-10-09 09:18 UTC: 188 retries in 190 requests (98.9 %)",
        "by release: player/2.3.1 against player/2.4.0:",
        "zero_byte_loop, 0 of 60,100 → 299 of 48,000 (worse; from 84.1)",
        "Log: 111,672 lines, 12 unparsable, 9 events.",
        "the clock of relay-1 is 1.5 s behind",
        f"--explain {worst.id}",
    ):
        assert part in text


@pytest.mark.parametrize("width", [100, PLAIN_WIDTH])
def test_the_table_fits(width: int) -> None:
    """In 100 columns as in a log: every id, class, count and name is there, and nothing is cut off at the right."""
    report = sample_report()
    lines = printed(report, width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for episode in report.episodes:
        row = next(line for line in lines if line.startswith(episode.id))
        assert episode.storm in row
        assert f"{episode.n:,}" in row
        assert episode.clients[0] in text


def test_without_storms() -> None:
    """It is one line, and what was examined; there is nothing to explain."""
    text = printed(quiet_report())
    assert text.startswith("No retry storms.\nExamined: 90,000 requests to 2 nodes")
    assert "--explain" not in text
    assert printed(empty_report()).startswith("No retry storms.\nNothing was examined")


def test_of_sparse_episodes() -> None:
    """What is not known is a dash; more than one name is a count."""
    sparse = sample_episode(
        clients=(), channels=("a", "b"), n_channels=3000, trigger=None, trigger_us=None, backoff=None, outcome=None,
        node=None, seq_lo=None,
    )  # fmt: skip
    text = printed(sample_report(episodes=(sparse,), n_episodes=1))
    assert "a +2,999, -" in text
    assert next(line for line in text.splitlines() if line.startswith(sparse.id)).split()[-5:] == ["-"] * 5


def test_the_worst_are_shown() -> None:
    """The table ends somewhere, and says how much is missing; so do the caveats and the offenders."""
    text = printed(large_report(MAX_ROWS + 5))
    assert text.count("CRITICAL") + text.count("WARN") == MAX_ROWS
    assert "… and 22 more; --json and --html list up to 1,000" in text
    assert "probe" in text
    assert "viewer-5 " not in text


def test_hostile_names_are_spelled_out() -> None:
    """Escape codes, markup, bells and direction overrides are shown, not obeyed."""
    text = printed(hostile_report(), 400)
    assert "\\x1b[31m[red]x[/red]\\x07\\u202e\\x9b3" in text
    assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert "more" in text
