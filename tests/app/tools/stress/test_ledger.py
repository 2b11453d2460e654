"""The comparison of both sides: it names every kind of fault, and calls nothing else a fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest

from tricklecast.app.tools.stress.ledger import (
    EXAMPLES,
    Durations,
    FaultKind,
    FoundFault,
    Ledger,
    SubscriberCheck,
    WorkerReport,
)
from tricklecast.app.tools.stress.load import Comparison, Load, PlannedSegment, StressPlan

PLAN = StressPlan("http://host/trickle", "x", Load(1, 1, 100, 0.1, 1000, 1000, 400), subscribers=1)
S = 1_000_000_000

Deliver = Callable[["Side"], object]
"""Lets a subscriber receive something."""


class Side:
    """One subscriber, and the report of its process."""

    def __init__(self, number: int = 0) -> None:
        self.report = WorkerReport()
        self.reader = SubscriberCheck(PLAN, 0, number, self.report.faults.append)

    def get(
        self, ordinal: int, *, seq: int | None = None, gap: int = 0, flaw: FaultKind | None = None, spoil: str = ""
    ) -> None:
        """Receive a segment; it may come with other bytes, without its end, or without its marker."""
        data = PlannedSegment(PLAN.load, 0, ordinal).bytes(0, 1000)
        match spoil:
            case "bytes":
                data = data[:-1] + bytes([data[-1] ^ 1])
            case "end":
                data = data[:-10]
            case "marker":
                data = b"?" + data[1:]
            case "empty":
                data = b""
        compared = Comparison(PLAN.load, 0)
        compared.add(data)
        self.report.segments += self.reader.received(ordinal if seq is None else seq, gap, compared, flaw)


def get(
    ordinal: int, *, seq: int | None = None, gap: int = 0, flaw: FaultKind | None = None, spoil: str = ""
) -> Deliver:
    return lambda side: side.get(ordinal, seq=seq, gap=gap, flaw=flaw, spoil=spoil)


def faults(
    published: int, *delivered: Deliver, lost: int = -1, missed: int = 0, failed: bool = False
) -> dict[str, int]:
    """The faults of a run: ``published`` segments, one of which may not be stored, and those that came to a subscriber.

    Args:
        published: number of segments.
        delivered: what came.
        lost: a segment that the server does not store.
        missed: number of segments that the subscriber reports as missed at the end.
        failed: an error ended the subscriber.
    """
    side, ledger = Side(), Ledger(PLAN)
    for deliver in delivered:
        deliver(side)
    side.reader.leave(missed, published * S, failed=failed)
    ledger.add("subscribing process 1", "subscribe", side.report)
    unstored = [FoundFault(FaultKind.UNPUBLISHED, 0, lost, "segment 1 of a: refused")] if lost >= 0 else []
    ledger.add("publishing process 1", "publish", WorkerReport(published=[(0, published)], faults=unstored))
    ledger.close()
    return dict(ledger.faults)


def test_all_is_well() -> None:
    """Segments that came once, in order and with the same bytes are no fault; both sides are added up."""
    ledger = Ledger(PLAN)
    side = Side()
    for ordinal in range(5):
        side.get(ordinal)
    side.reader.leave(0, S, failed=False)
    side.report.counts.update(requests=6)
    # WorkerReport travel as JSON.
    ledger.add("a", "subscribe", WorkerReport(**json.loads(json.dumps(vars(side.report)))))
    sent = WorkerReport(
        segments=5,
        bytes=5000,
        wanted=5,
        published=[(0, 5)],
        samples={"behind": [1000], "first_byte": [2000], "whole": [3000]},
    )
    ledger.add("b", "publish", WorkerReport(**json.loads(json.dumps(vars(sent)))))
    ledger.close()
    assert not ledger.faults
    assert (ledger.published.segments, ledger.published.bytes) == (5, 5000)
    assert (ledger.received.segments, ledger.received.wanted, ledger.received.counts["requests"]) == (5, 5, 6)
    maxima = [latencies.quantiles()["max"] for latencies in ledger.latencies.values()]
    assert maxima == [2.0, 3.0, 1.0]


def test_missing() -> None:
    """A missing segment whose gap the library reported is missing; without a report it is missing without a word."""
    assert faults(3, get(0), get(2, gap=1)) == {FaultKind.MISSING: 1}
    assert faults(3, get(0), get(2)) == {FaultKind.SILENT: 1}
    assert faults(4, get(0), get(3, gap=1)) == {FaultKind.MISSING: 1, FaultKind.SILENT: 1}


def test_an_empty_answer_hides_a_segment() -> None:
    """A segment that came empty although it was published with bytes is missing without a word."""
    assert faults(2, get(0, spoil="empty"), get(1)) == {FaultKind.SILENT: 1}


def test_missing_at_the_end() -> None:
    """Segments missing at the end count, too: reported by a number, by an error, or not at all."""
    assert faults(3, get(0), missed=2) == {FaultKind.MISSING: 2}
    assert faults(3, get(0), missed=1) == {FaultKind.MISSING: 1, FaultKind.SILENT: 1}
    assert faults(3, get(0), failed=True) == {FaultKind.MISSING: 2}
    assert faults(3, get(0)) == {FaultKind.SILENT: 2}
    assert faults(3, get(0), get(2), failed=True) == {FaultKind.SILENT: 1}, "an error does not excuse an earlier hole"


def test_a_run_that_ends_early_misses_nothing() -> None:
    """Segments that would have begun after the end of the run are not published."""
    side = Side()
    side.reader.leave(0, S // 2, failed=False)
    assert [finding.ordinal for finding in side.report.faults] == list(range(6)), "one each tenth of a second"
    assert faults(0) == {}, "the ledger knows how many were published"


def test_doubled() -> None:
    """The same content under another seq, or under the same again, is doubled; what it replaced is missing."""
    assert faults(1, get(0), get(0)) == {FaultKind.DOUBLED: 1}
    assert faults(2, get(0), get(0, seq=1)) == {FaultKind.DOUBLED: 1, FaultKind.SILENT: 1}


def test_reordered() -> None:
    """Two segments whose content was swapped: one comes too late, none is missing."""
    assert faults(3, get(0), get(2, seq=1), get(1, seq=2)) == {FaultKind.REORDERED: 1}


@pytest.mark.parametrize("spoil", ["bytes", "end", "marker"])
def test_differing(spoil: str) -> None:
    """Other bytes without a mark differ, also if the marker is what was spoiled."""
    assert faults(3, get(0), get(1, spoil=spoil), get(2)) == {FaultKind.DIFFERING: 1}


def test_cut_short_and_marked() -> None:
    """A part that is marked as one is a fault, but no silent one."""
    assert faults(1, get(0, flaw=FaultKind.TRUNCATED, spoil="end")) == {FaultKind.TRUNCATED: 1}
    assert faults(1, get(0, flaw=FaultKind.BROKEN, spoil="end")) == {FaultKind.BROKEN: 1}
    assert faults(1, get(0, flaw=FaultKind.BROKEN, spoil="empty")) == {FaultKind.BROKEN: 1}


def test_a_gap_that_was_none() -> None:
    """A library that reports a received segment as missing is wrong, too."""
    assert faults(2, get(0), get(1, gap=1)) == {FaultKind.FALSE_GAP: 1}
    assert faults(3, get(0), get(2, seq=2, gap=1), get(1, seq=3)) == {FaultKind.REORDERED: 1, FaultKind.FALSE_GAP: 1}
    assert faults(1, get(0), missed=1) == {}, "nothing was published there: not known to be wrong"


def test_a_segment_that_is_not_stored() -> None:
    """A segment that its publisher reports as not stored may be missing or cut: that is no second fault."""
    only = {FaultKind.UNPUBLISHED: 1}
    assert faults(3, get(0), get(2), lost=1) == only
    assert faults(3, get(0), get(2, gap=1), lost=1) == only
    assert faults(3, get(0), get(2, seq=1), lost=1) == only, "it never had a seq"
    assert faults(3, get(0), get(1, flaw=FaultKind.TRUNCATED, spoil="end"), get(2), lost=1) == only
    assert faults(3, get(0), get(1, spoil="end"), get(2), lost=1) == {**only, FaultKind.DIFFERING: 1}


def test_a_publisher_that_lost_its_place() -> None:
    """Seqs may run ahead of ordinals: gaps are then reported in seqs, and skipped seqs are no fault."""
    first = [get(0), get(1, seq=5, gap=4)]
    assert faults(4, *first, get(2, seq=6), get(3, seq=7)) == {}
    assert faults(4, *first, get(3, seq=7, gap=1)) == {FaultKind.MISSING: 1}
    assert faults(4, *first, get(2, seq=6, spoil="marker"), get(3, seq=7)) == {FaultKind.DIFFERING: 1}


def test_a_segment_that_nobody_publishes() -> None:
    """Seqs beyond the load are faults, and neither they nor huge gaps fill the memory."""
    assert faults(0, get(0, seq=10**12, spoil="marker")) == {FaultKind.DIFFERING: 1}
    assert faults(0, get(100)) == {FaultKind.DIFFERING: 1}
    assert faults(1, get(0, gap=10**12)) == {}


def test_caught_up() -> None:
    """A run may end when the subscribers of no process wait for a segment."""
    ledger = Ledger(PLAN)
    assert ledger.caught_up
    ledger.add("a", "subscribe", WorkerReport(waiting=1))
    ledger.add("b", "subscribe", WorkerReport())
    assert not ledger.caught_up
    ledger.add("a", "subscribe", WorkerReport())
    assert ledger.caught_up


def test_examples_are_few() -> None:
    """The ledger names a few places, however many faults there are."""
    side, ledger = Side(), Ledger(PLAN)
    side.reader.leave(0, 100 * S, failed=False)
    ledger.add("a", "subscribe", side.report)
    ledger.add("b", "publish", WorkerReport(published=[(0, 50)]))
    ledger.close()
    assert ledger.faults[FaultKind.SILENT] == 50
    assert len(ledger.examples[FaultKind.SILENT]) == EXAMPLES
    assert ledger.examples[FaultKind.SILENT][0] == "segment 0, subscriber 0 of stress-x-0"


def test_a_fault_is_described() -> None:
    """An example names the segment, the subscriber and the sizes."""
    side = Side(3)
    side.get(0, spoil="end")
    side.get(1, spoil="bytes")
    side.get(2, spoil="end", flaw=FaultKind.BROKEN)
    assert [finding.where for finding in side.report.faults] == [
        "segment 0, subscriber 3 of stress-x-0: 990 bytes for 1000",
        "segment 1, subscriber 3 of stress-x-0: 1000 bytes",
        "segment 2, subscriber 3 of stress-x-0: 990 of 1000 bytes",
    ]


def test_quantiles_are_close_to_the_exact_ones() -> None:
    """Over five orders of magnitude no quantile is more than 0.1 % off, and the maximum is exact to 1 µs."""
    rng = Random(1)
    values = sorted(int(10 ** rng.uniform(1, 6)) for _ in range(20_000))
    latencies = Durations()
    for value in values:
        latencies.add(value)
    quantiles = latencies.quantiles()
    for percent in (50, 95, 99):
        # Below 1 ms the histogram counts in whole microseconds.
        assert quantiles[f"p{percent}"] == pytest.approx(values[percent * 200 - 1] / 1000, rel=0.001)
    assert (quantiles["samples"], quantiles["max"]) == (20_000, values[-1] / 1000)


def test_latencies_at_the_limits() -> None:
    """Without samples all is 0; a duration below 0 counts as 0, and 11 days are no limit."""
    latencies = Durations()
    zeros = {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
    assert latencies.quantiles() == {"samples": 0, **zeros}
    latencies.add(-5)
    assert latencies.quantiles() == {"samples": 1, **zeros}
    latencies.add(10**12)
    assert latencies.quantiles()["max"] == 1_000_000_000.0
