"""What a person sees of a run: a live line, and a summary."""

from __future__ import annotations

import io

from tricklecast.publisher.feed import Totals
from tricklecast.publisher.run import Status
from tricklecast.publisher.segments import PublisherStatistics
from tricklecast.trickle.terminal import Screen


def status(url: str = "http://h/c") -> Status:
    """One that writes nowhere."""
    return Status(url, Screen(io.StringIO()))


def test_the_line_says_what_is_going_on() -> None:
    """Before the first segment it waits; troubles are shown only if there are any."""
    shown = status()
    line = shown.line(Totals(), PublisherStatistics(), 100)
    assert line == "http://h/c · waiting for the input · 0 B · 0 kbit/s · 0 in flight · 0 s"
    shown.source("reconnecting, attempt 2")
    totals = Totals(segments=1, bytes=5 << 30, lost=2, dropped=3, seq=4)
    line = shown.line(totals, PublisherStatistics(in_flight=1, retries=6), 200)
    assert "segment 4 · 5.4 GB" in line
    assert line.endswith("1 in flight · retries 6 · dropped 3 · lost 2 · reconnecting, attempt 2 · 0 s")
    shown.source("")
    assert "reconnecting" not in shown.line(Totals(), PublisherStatistics(), 100)


def test_a_narrow_terminal_has_what_matters_most() -> None:
    """The address is shortened first, then left out; troubles stay."""
    shown = status("http://localhost:2939/trickle/cam")
    totals, statistics = Totals(seq=12, lost=1), PublisherStatistics(in_flight=1)
    full = shown.line(totals, statistics, 200)
    assert shown.line(totals, statistics, len(full) + 1) == full
    assert shown.line(totals, statistics, len(full)).startswith("cam · segment 12 · 0 B")
    for width in (40, 45, 50, 60):
        line = shown.line(totals, statistics, width)
        assert line.startswith("segment 12")
        assert "lost 1" in line
        assert len(line) < width
    assert shown.line(totals, statistics, 10) == "segment 12 · 0 kbit/s · lost 1"


def test_the_summary_is_one_line() -> None:
    """What was published, what went wrong, and how it ended."""
    shown = status()
    assert shown.summary(Totals(), PublisherStatistics(), "over") == "published 0 segments (0 B) in 0.0 s; over"
    one = shown.summary(
        Totals(segments=1, bytes=2048, lost=3, dropped=2, seq=0), PublisherStatistics(retries=1), "over"
    )
    assert one == "published 1 segment (2.0 kB) in 0.0 s, the last one 0, 1 retry, 2 dropped, 3 lost; over"
