"""The comparison of both sides: it names every kind of fault, and calls nothing else a fault."""

from __future__ import annotations

from random import Random

import pytest

from tricklecast.app.tools.stress.ledger import EXAMPLES, Fault, Latencies, Ledger, Quantiles
from tricklecast.app.tools.stress.messages import Left, Received, Record, Sent

MS = 1_000_000


def sent(ordinal: int, *, seq: int | None = None, error: str = "", channel: int = 0) -> Sent:
    """A publisher's record of a segment that was due every 100 ms, over 50 ms."""
    due = ordinal * 100 * MS
    return Sent(channel, ordinal, ordinal if seq is None else seq, 1000, f"#{ordinal}", due, due + 50 * MS, MS, error)


def received(
    ordinal: int,
    *,
    seq: int | None = None,
    number: int = 0,
    gap: int = 0,
    flaw: str = "",
    digest: str = "",
    size: int = 1000,
) -> Received:
    """A subscriber's record: first byte after 2 ms, the end after 3 ms."""
    due = ordinal * 100 * MS
    at = ordinal if seq is None else seq
    return Received(0, number, at, ordinal, size, digest or f"#{ordinal}", due + 2 * MS, due + 53 * MS, gap, flaw)


def left(*, number: int = 0, missed: int = 0, error: str = "", role: str = "subscriber") -> Left:
    """The record of a client that ended."""
    return Left(role, 0, number, missed, error, {"requests": 3})


def faults(*records: Record, subscribers: int = 1, segments: int = 100) -> dict[Fault, int]:
    """The faults that a ledger finds in these records."""
    return dict(account(*records, subscribers=subscribers, segments=segments).faults.counts)


def account(*records: Record, subscribers: int = 1, segments: int = 100) -> Ledger:
    """A ledger with these records, closed."""
    ledger = Ledger(["a"], subscribers, segments)
    for record in records:
        ledger.add(record)
    ledger.close()
    return ledger


def test_all_is_well() -> None:
    """Segments that came once, in order and with the same bytes are no fault; latencies count from the schedule."""
    records: list[Record] = [record for n in range(5) for record in (sent(n), received(n), received(n, number=1))]
    ledger = account(*records, left(), left(number=1), subscribers=2)
    assert not ledger.faults
    assert (ledger.published.segments, ledger.published.bytes) == (5, 5000)
    assert (ledger.received.segments, ledger.received.wanted, ledger.received.bytes) == (10, 10, 10_000)
    assert ledger.received.counts == {"requests": 6}
    assert (ledger.first_byte.quantiles().max, ledger.whole.quantiles().max) == (2.0, 3.0)
    assert ledger.behind.quantiles().max == 1.0


def test_the_order_between_processes_does_not_matter() -> None:
    """The subscriber's record of a segment may come long before the publisher's."""
    rng = Random(3)
    for _ in range(30):
        sides: list[list[Record]] = [
            [sent(n) for n in range(20)],
            [received(n) for n in range(20)],
            [received(n, number=1) for n in range(20)],
        ]
        records: list[Record] = []
        while any(sides):
            records.append(rng.choice([side for side in sides if side]).pop(0))
        ledger = account(*records, subscribers=2)
        assert not ledger.faults
        assert ledger.first_byte.quantiles().samples == 40


def test_missing_and_reported() -> None:
    """A gap that the library reported is missing, but not silently."""
    assert faults(sent(0), sent(1), sent(2), received(0), received(2, gap=1)) == {Fault.MISSING: 1}


def test_missing_without_a_word() -> None:
    """A segment that is stored and never came, without a gap being reported, is the worst fault."""
    assert faults(sent(0), sent(1), sent(2), received(0), received(2)) == {Fault.SILENT: 1}


def test_an_empty_answer_hides_a_segment() -> None:
    """A segment that came empty although it was published with bytes is missing without a word."""
    assert faults(sent(0), received(-1, seq=0, size=0), left()) == {Fault.SILENT: 1}


def test_missing_at_the_end() -> None:
    """Segments missing at the end count, too: reported by a number, by an error, or not at all."""
    tail: list[Record] = [sent(0), sent(1), sent(2), received(0)]
    assert faults(*tail, left(missed=2)) == {Fault.MISSING: 2}
    assert faults(*tail, left(missed=1)) == {Fault.MISSING: 1, Fault.SILENT: 1}
    assert faults(*tail, left(error="connection lost")) == {Fault.MISSING: 2, Fault.SUBSCRIBER_FAILED: 1}
    assert faults(*tail, left()) == {Fault.SILENT: 2}


def test_an_error_does_not_excuse_an_earlier_hole() -> None:
    """A subscriber that fails later should still have reported an earlier gap."""
    records: list[Record] = [sent(0), sent(1), sent(2), received(0), received(2), left(error="broken")]
    assert faults(*records) == {Fault.SILENT: 1, Fault.SUBSCRIBER_FAILED: 1}


def test_doubled() -> None:
    """The same content under another seq, or under the same again, is doubled; what it replaced is missing."""
    assert faults(sent(0), received(0), received(0), left()) == {Fault.DOUBLED: 1}
    assert faults(sent(0), sent(1), received(0), received(0, seq=1)) == {Fault.DOUBLED: 1, Fault.SILENT: 1}


def test_reordered() -> None:
    """Two segments whose content was swapped: one comes too late, none is missing."""
    assert faults(*map(sent, range(3)), received(0), received(2, seq=1), received(1, seq=2)) == {Fault.REORDERED: 1}


def test_differing() -> None:
    """Other bytes without a mark differ, also if the marker is what was spoiled."""
    assert faults(sent(0), received(0, digest="#other")) == {Fault.DIFFERING: 1}
    assert faults(sent(0), received(0, size=900, digest="#other")) == {Fault.DIFFERING: 1}
    assert faults(sent(0), sent(1), received(0), received(-1, seq=1, digest="#other")) == {Fault.DIFFERING: 1}


def test_cut_short_and_marked() -> None:
    """A part that is marked as one is a fault, but no silent one."""
    assert faults(sent(0), received(0, flaw="truncated", size=10, digest="#part")) == {Fault.TRUNCATED: 1}
    assert faults(sent(0), received(0, flaw="broken", size=10, digest="#part")) == {Fault.BROKEN: 1}
    assert faults(sent(0), received(-1, seq=0, flaw="broken", size=0, digest="#")) == {Fault.BROKEN: 1}


def test_a_gap_that_was_none() -> None:
    """A library that reports a received segment as missing is wrong, too."""
    assert faults(sent(0), sent(1), received(0), received(1, gap=1), left()) == {Fault.FALSE_GAP: 1}
    assert faults(sent(0), received(0), left(missed=1)) == {}, "nothing was published there: not known to be wrong"


def test_a_segment_that_is_not_stored() -> None:
    """A segment that its publisher reports as not stored may be missing or cut: that is no second fault."""
    lost: list[Record] = [sent(0), sent(1, error="refused"), sent(2)]
    assert faults(*lost, received(0), received(2)) == {Fault.UNPUBLISHED: 1}
    assert faults(*lost, received(0), received(2, gap=1)) == {Fault.UNPUBLISHED: 1}
    cut = received(1, flaw="truncated", size=10, digest="#part")
    assert faults(*lost, received(0), cut, received(2)) == {Fault.UNPUBLISHED: 1}
    unmarked = received(1, size=10, digest="#part")
    assert faults(*lost, received(0), unmarked, received(2)) == {Fault.UNPUBLISHED: 1, Fault.DIFFERING: 1}


def test_a_publisher_that_lost_its_place() -> None:
    """Seqs may run ahead of ordinals; gaps are then counted in seqs, and skipped seqs are no fault."""
    records: list[Record] = [sent(0), sent(1, seq=5), sent(2, seq=6), sent(3, seq=7)]
    assert faults(*records, received(0), received(1, seq=5, gap=4), received(2, seq=6), received(3, seq=7)) == {}
    assert faults(*records, received(0), received(1, seq=5), received(3, seq=7, gap=1)) == {Fault.MISSING: 1}
    spoiled = received(-1, seq=6, digest="#other")
    assert faults(*records, received(0), received(1, seq=5), spoiled, received(3, seq=7)) == {Fault.DIFFERING: 1}


def test_a_publisher_that_failed() -> None:
    """A publisher that gave up is a fault of its own."""
    ledger = account(left(role="publisher", error="superseded"))
    assert ledger.faults.examples == {Fault.PUBLISHER_FAILED: ["publisher of a: superseded"]}
    assert ledger.published.counts == {"requests": 3}


def test_a_segment_without_a_publisher() -> None:
    """Segments that no publisher reports, and seqs beyond the load, are faults and do not fill the memory."""
    assert faults(received(3)) == {Fault.DIFFERING: 1}
    assert faults(received(-1, seq=10**12, digest="#other")) == {Fault.DIFFERING: 1}
    assert faults(sent(0), received(0, gap=10**12), left()) == {}


def test_caught_up() -> None:
    """A run may end when all subscribers that still read have all stored segments."""
    ledger = Ledger(["a"], 2, 10)
    assert ledger.caught_up
    ledger.add(sent(0))
    ledger.add(received(0))
    assert not ledger.caught_up
    ledger.add(sent(1, error="refused"))
    ledger.add(left(number=1, error="connection lost"))
    assert ledger.caught_up


def test_examples_are_few() -> None:
    """The ledger names a few places, however many faults there are."""
    ledger = account(*map(sent, range(50)), left())
    assert ledger.faults.counts[Fault.SILENT] == 50
    assert len(ledger.faults.examples[Fault.SILENT]) == EXAMPLES
    assert ledger.faults.examples[Fault.SILENT][0] == "segment 0, subscriber 0 of a"


@pytest.mark.parametrize("lag", [0, 40])
def test_memory_does_not_grow_with_the_run(lag: int) -> None:
    """What all are past is forgotten: as many records are kept as the slowest subscriber is behind."""
    ledger = Ledger(["a"], 2, 10_000)
    kept = 0
    for n in range(2_000):
        ledger.add(sent(n))
        ledger.add(received(n))
        if n >= lag:
            ledger.add(received(n - lag, number=1))
        kept = max(kept, len(ledger._channels[0].sent))
    assert kept <= lag + 2
    assert sum(1 for _ in ledger._channels[0].early()) == 0


def test_quantiles_are_close_to_the_exact_ones() -> None:
    """Over five orders of magnitude no quantile is more than 0.1 % off, and the maximum is exact to 1 µs."""
    rng = Random(1)
    values = sorted(int(10 ** rng.uniform(4, 9)) for _ in range(20_000))
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    quantiles = latencies.quantiles()
    for percent, found in ((50, quantiles.p50), (95, quantiles.p95), (99, quantiles.p99)):
        assert found == pytest.approx(values[percent * 200 - 1] / 1e6, rel=0.001)
    assert (quantiles.samples, quantiles.max) == (20_000, values[-1] // 1000 / 1000)


def test_latencies_at_the_limits() -> None:
    """Without samples all is 0; a duration below 0 counts as 0, and one beyond an hour as an hour."""
    latencies = Latencies()
    assert latencies.quantiles() == Quantiles(0, 0.0, 0.0, 0.0, 0.0)
    latencies.add(-5)
    assert latencies.quantiles() == Quantiles(1, 0.0, 0.0, 0.0, 0.0)
    latencies.add(10**15)
    assert latencies.quantiles().max == 3_600_000.0
