"""What goes into which histogram when an exchange ends."""

from __future__ import annotations

from tests.support.local import local_server
from tests.support.waiting import eventually
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import Segment
from tricklecast.app.data_plane.histogram import Histogram
from tricklecast.app.data_plane.latencies import Latencies
from tricklecast.app.data_plane.plane import DataPlane, Options
from tricklecast.trickle.records import AccessRecord, Op


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


def test_what_was_noted_does_not_pile_up() -> None:
    """The sweeper has it counted, whether anybody scrapes or not."""
    plane = DataPlane(Registry(Limits(), autocreate=True), Options())
    for _ in range(100):
        plane.ended(AccessRecord(0, op=Op.READ, wait_us=10))
    plane.latencies.first_byte.add(1)
    plane.latencies.delivery.add(1)
    plane.tick(1.0)
    histograms = (plane.latencies.waits[Op.READ], plane.latencies.first_byte, plane.latencies.delivery)
    assert [histogram._new for histogram in histograms] == [[], [], []]
    assert values(histograms[0]) == (100, 1000)


def test_a_reader_that_waited_counts_from_the_publishers_bytes() -> None:
    """Its own waiting is not the server's latency: 2 s of it were before there was a byte, 5 s before the last one."""
    latencies = Latencies()
    latencies.relayed(segment(102.0, 105.0), AccessRecord(0, wait_us=2_000_300, dur_us=5_000_700), 100.0)
    assert values(latencies.first_byte) == (1, 300)
    assert values(latencies.delivery) == (1, 700)


def test_a_reader_that_came_later_has_no_first_byte_latency() -> None:
    """It catches up: from then on only the end is live; one that came after the end has neither."""
    latencies = Latencies()
    latencies.relayed(segment(99.0, 105.0), AccessRecord(0, wait_us=100, dur_us=5_000_700), 100.0)
    assert values(latencies.first_byte) == (0, 0)
    assert values(latencies.delivery) == (1, 700)
    latencies.relayed(segment(99.0, 100.0), AccessRecord(0, wait_us=100, dur_us=700), 100.0)
    assert values(latencies.delivery) == (1, 700)


def test_rounding_never_makes_a_latency_negative() -> None:
    """The same instant twice, as seconds and as microseconds."""
    latencies = Latencies()
    for n in range(1000):
        arrived, at = n / 7, n / 7 + n / 3
        us = int((at - arrived) * 1_000_000)
        latencies.relayed(segment(at, at), AccessRecord(0, wait_us=us, dur_us=us), arrived)
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
