"""Histograms, and the one that a value belongs to when an exchange ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.local import local_server
from tests.support.waiting import eventually
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import Segment
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.data_plane.latency import DELAYS_US, Histogram, Latencies
from tricklecast.trickle.records import AccessRecord, Op


def test_a_bound_belongs_to_its_bucket() -> None:
    """At the bound is inside, one above is in the next one, beyond the last is in a bucket of its own."""
    histogram = Histogram((10, 20))
    for value in (9, 10, 11, 20, 21):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == 71


@given(st.lists(st.integers(0, 100_000_000)))
def test_every_value_is_in_the_first_bucket_that_takes_it(values: list[int]) -> None:
    """The counts for Prometheus (at or below each bound) equal those of counting by hand."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    below = [sum(value <= bound for value in values) for bound in DELAYS_US]
    assert [sum(histogram.counts[: i + 1]) for i in range(len(DELAYS_US))] == below
    assert sum(histogram.counts) == len(values)
    assert histogram.sum == sum(values)


def test_the_bounds_ascend() -> None:
    """Bisection needs it."""
    assert list(DELAYS_US) == sorted(set(DELAYS_US))


def values(histogram: Histogram) -> tuple[int, int]:
    """How many, and their sum."""
    return sum(histogram.counts), histogram.sum


def segment(opened_at: float, closed_at: float) -> Segment:
    """One that got its first byte and closed at these times."""
    made = Segment(0)
    made.opened_at, made.closed_at = opened_at, closed_at
    return made


def test_waits_are_kept_by_operation() -> None:
    """Each in its own; a request that was never answered is not counted."""
    plane = DataPlane(Registry(Limits(), autocreate=True), Options())
    plane.ended(AccessRecord(0, op=Op.READ, wait_us=10))
    plane.ended(AccessRecord(0, op=Op.READ))
    plane.ended(AccessRecord(0, op=None, wait_us=7))
    waits = plane.latencies.waits
    assert values(waits[Op.READ]) == (1, 10)
    assert values(waits["none"]) == (1, 7)
    assert values(waits[Op.PUBLISH]) == (0, 0)


def test_what_was_noted_is_counted_before_anybody_scrapes() -> None:
    """A plane's tick counts the noted values, so that they do not pile up."""
    plane = DataPlane(Registry(Limits(), autocreate=True), Options())
    histograms = (plane.latencies.waits[Op.READ], plane.latencies.first_byte, plane.latencies.delivery)
    for histogram in histograms:
        for _ in range(100):
            histogram.add(10)
    plane.tick(1.0)
    assert [histogram._new for histogram in histograms] == [[], [], []]
    assert values(histograms[0]) == (100, 1000)


def test_a_reader_that_waited_counts_from_the_publishers_bytes() -> None:
    """Its own waiting is not the server's latency: 2 s of it were before there was a byte, 5 s before the last one."""
    latencies = Latencies()
    latencies.relayed(segment(102.0, 105.0), 100.0, wait_us=2_000_300, dur_us=5_000_700)
    assert values(latencies.first_byte) == (1, 300)
    assert values(latencies.delivery) == (1, 700)


def test_a_reader_that_came_later_has_no_first_byte_latency() -> None:
    """It catches up: from then on only the end is live; one that came after the end has neither."""
    latencies = Latencies()
    latencies.relayed(segment(99.0, 105.0), 100.0, wait_us=100, dur_us=5_000_700)
    assert values(latencies.first_byte) == (0, 0)
    assert values(latencies.delivery) == (1, 700)
    latencies.relayed(segment(99.0, 100.0), 100.0, wait_us=100, dur_us=700)
    assert values(latencies.delivery) == (1, 700)


def test_rounding_never_makes_a_latency_negative() -> None:
    """The same instant twice, as seconds and as microseconds."""
    latencies = Latencies()
    for n in range(1000):
        arrived, at = n / 7, n / 7 + n / 3
        us = int((at - arrived) * 1_000_000)
        latencies.relayed(segment(at, at), arrived, wait_us=us, dur_us=us)
    assert latencies.first_byte.sum == latencies.delivery.sum == 0


def test_a_relayed_segment_is_measured_over_the_wire() -> None:
    """One reader waits for it, one comes when it is over: the first is live, both are reads."""
    with local_server() as server, server.client() as target:
        channel = target.channel("live")
        channel.publish(0, b"a")
        reading = channel.waiting(1)
        channel.publish(1, b"b")
        assert reading.response().body == b"b"
        assert channel.get(1).body == b"b"
        latencies = server.plane.latencies
        eventually(lambda: sum(latencies.waits[Op.READ].counts) == 2)
        assert sum(latencies.first_byte.counts) == sum(latencies.delivery.counts) == 1
        assert latencies.first_byte.sum <= latencies.waits[Op.READ].sum
