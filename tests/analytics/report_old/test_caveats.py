"""What limits how far a report can be trusted, in words."""

from __future__ import annotations

from dataclasses import replace

from tests.analytics.support.sample_report import at, quiet_report, sample_report
from tricklecast.analytics.report.formats import UNKNOWN
from tricklecast.analytics.report.plain import as_text
from tricklecast.analytics.report_old.caveats import MAX_LISTED, caveats
from tricklecast.analytics.report_old.change import change, interval_words
from tricklecast.analytics.report_old.figures import LogGap, Quality, RateRatio


def said(quality: Quality) -> list[str]:
    """The caveats as lines."""
    return [as_text(phrase, 200) for phrase in caveats(quality)]


def test_a_good_log() -> None:
    """There is nothing to say about a log without faults, nor about an empty one."""
    assert said(quiet_report().quality) == []
    assert said(Quality(0, 0, 0, 0, 0)) == []


def test_every_fault_is_said() -> None:
    """Each of them in words of its own, with how much."""
    assert said(replace(sample_report().quality, coarse=True, events=0)) == [
        "12 lines could not be read (0.01 %)",
        "records lost by the server (1 log_dropped event)",
        "50 requests without a client: in no client's episode",
        "120 lines were there more than once and are counted once",
        "no lifecycle events: no storm has a trigger",
        "times are whole seconds: how clients paced themselves cannot be judged",
        "fields that no line has: trace",
        "compressed files that end early or are none: logs/relay-1/access-2.jsonl.gz",
        "files left out, being copies of others: logs/relay-2/copy-of-access.jsonl",
        "Lines of two versions of the record are mixed.",
        "no lines from relay-2 between 2025-10-09 09:04:56 and 2025-10-09 09:05:01 UTC",
        "the clock of relay-1 is 1.5 s behind from 2025-10-09 09:26:40 UTC on",
    ]


def test_many_faults_are_counted() -> None:
    """A log with a thousand holes does not make a report of a thousand lines."""
    gap = LogGap("n", at(0), at(60))
    poor = Quality(1, 0, 1, 0, 0, gaps=(gap,) * (MAX_LISTED + 5), damaged_files=("f",) * (MAX_LISTED + 3))
    assert said(poor)[0].endswith(" and 3 more")
    assert said(poor)[-1] == "5 more gaps and steps of clocks"
    assert len(said(poor)) == MAX_LISTED + 2


def ratio(lo: float | None, hi: float | None) -> RateRatio:
    """A ratio with this interval."""
    return RateRatio("x", 1, 2, 3, 4, None, lo, hi)


def test_changes() -> None:
    """Only an interval that is wholly on one side of 1 says worse or better."""
    assert change(ratio(1.01, None)) == "worse"
    assert change(ratio(None, 0.9)) == "better"
    assert change(ratio(0.9, 1.1)) == change(ratio(None, None)) == "no clear change"
    assert interval_words(ratio(0.725, 1.1034)) == "0.725 to 1.1"
    assert interval_words(ratio(84.1, None)) == "from 84.1"
    assert interval_words(ratio(None, 0.9)) == "0 to 0.9"
    assert interval_words(ratio(None, None)) == UNKNOWN
