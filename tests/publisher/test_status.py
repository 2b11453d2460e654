"""What a person sees: a live line on a terminal, a summary, and nothing that breaks a pipe."""

from __future__ import annotations

import io
import sys
import time

import pytest

from tricklecast.publisher.feed import Totals
from tricklecast.publisher.segments import PublisherStatistics
from tricklecast.publisher.status import RATE_S, Status


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


class Broken(io.StringIO):
    """A standard error that nobody reads any more."""

    def write(self, text: str, /) -> int:
        """Fail as a closed pipe does."""
        raise BrokenPipeError


def test_a_terminal_has_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the segment, the amount and what was lost; elsewhere nothing is shown."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    totals = Totals(segments=3, bytes=3_000_000, lost=1, seq=7)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        status = Status("http://h/c")
        with status.live(totals, lambda: PublisherStatistics(in_flight=2)):
            status.say("[a line that stays]")
        assert "[a line that stays]\n" in stream.getvalue()
        assert ("segment 7" in stream.getvalue()) is shown
        assert ("3.0 MB" in stream.getvalue()) is shown


def test_the_line_says_what_is_going_on() -> None:
    """Before the first segment it waits; troubles are shown only if there are any."""
    status = Status("http://h/c")
    assert status.line(Totals(), PublisherStatistics()).startswith(
        "http://h/c  waiting  0 B  0.00 Mbit/s  0 in flight  0 s"
    )
    status.source("reconnecting, attempt 2")
    line = status.line(
        Totals(segments=1, bytes=5 << 30, lost=2, dropped=3, seq=4), PublisherStatistics(in_flight=1, retries=6)
    )
    assert "segment 4  5.4 GB" in line
    assert line.endswith("1 in flight  retries 6  dropped 3  lost 2  reconnecting, attempt 2  0 s")
    status.source("")
    assert "reconnecting" not in status.line(Totals(), PublisherStatistics())


def test_a_narrow_terminal_has_what_matters_most() -> None:
    """The address is shortened first, then left out; troubles stay."""
    status = Status("http://localhost:2939/trickle/cam")
    totals, statistics = Totals(bytes=1 << 20, seq=12, lost=1), PublisherStatistics(in_flight=1)
    full = status.line(totals, statistics)
    assert status.line(totals, statistics, len(full)) == full
    assert status.line(totals, statistics, len(full) - 1).startswith("cam  segment 12  1.0 MB")
    for width in (31, 40, 45, 50, 60):
        line = status.line(totals, statistics, width)
        assert line.startswith("segment 12")
        assert "lost 1" in line
        assert len(line) <= width
    assert status.line(totals, statistics, 10) == "segment 12  0.00 Mbit/s  lost 1"


def test_a_channel_may_be_called_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like markup of the terminal library is shown as it is."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with Status("http://h/[bold]c[/red]").live(Totals(), PublisherStatistics):
        pass
    assert "http://h/[bold]c[/red]" in stream.getvalue()


def test_the_bitrate_is_that_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was faster or slower before does not count."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    status = Status("http://h/c")
    totals = Totals(seq=1)
    for second in range(20):
        totals.bytes += 1_000_000 if second < 10 else 125_000
        now += 1
        line = status.line(totals, PublisherStatistics())
        if second == 9:
            assert "8.00 Mbit/s" in line
    assert RATE_S < 10
    assert "1.00 Mbit/s" in line


def test_the_summary_is_one_line() -> None:
    """What was published, what went wrong, and how it ended."""
    status = Status("http://h/c")
    assert status.summary(Totals(), PublisherStatistics(), "over") == "published 0 segments (0 B) in 0.0 s; over"
    one = status.summary(
        Totals(segments=1, bytes=2048, lost=3, dropped=2, seq=0), PublisherStatistics(retries=1), "over"
    )
    assert one == "published 1 segment (2.0 kB) in 0.0 s, the last one 0, 1 retry, 2 dropped, 3 lost; over"


def test_nobody_listening_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed standard error is ignored."""
    monkeypatch.setattr(sys, "stderr", Broken())
    status = Status("http://h/c")
    status.say("one")
    status.say("two")
