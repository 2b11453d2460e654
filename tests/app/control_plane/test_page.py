"""How often a page is made."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tricklecast.app.control_plane.page import CHEAP_S, REST, Page
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.metrics.endpoint import collectors


class Costly(Collector):
    """Each collection takes so many CPU seconds, and counts."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s
        self.worked = 0.0
        self.times = 0

    def collect(self) -> Iterator[Metric]:
        self.times += 1
        self.worked += self.cost_s
        yield GaugeMetricFamily("times", "So many.", value=self.times)


def made(cost_s: float, *asked_at: float) -> int:
    """How often a page that costs so much is made, when it is asked for at these times."""
    costly, now = Costly(cost_s), [0.0]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(costly)
    page = Page(partial(generate_latest, registry), lambda: now[0], lambda: costly.worked)
    for now[0] in asked_at:
        text = page.text().decode()
        assert f"times {costly.times}.0" in text, "the last one that was made is shown"
    return costly.times


def test_a_cheap_page_is_always_new() -> None:
    """However often it is asked for, up to the limit."""
    assert made(CHEAP_S, 0, 0, 0) == 3


def test_a_costly_page_is_shown_again_for_a_while() -> None:
    """Until the loop has had ten times as long for others; then it is new."""
    assert made(0.03, 0, 0.1, REST * 0.03 - 0.001) == 1
    assert made(0.03, 0, REST * 0.03) == 2


def test_a_page_tells_its_age() -> None:
    """Seconds since it was made, not since it was shown."""
    now, worked = [100.0], [0.0]

    def make() -> bytes:
        worked[0] += 1.0
        return b"%d" % worked[0]

    page = Page(make, lambda: now[0], lambda: worked[0])
    assert (page.text(), page.age_s) == (b"1", 0.0)
    now[0] += REST - 1.0
    assert (page.text(), page.age_s) == (b"1", REST - 1.0)
    now[0] += 1.0
    assert (page.text(), page.age_s) == (b"2", 0.0)


def test_the_page_does_not_grow_with_channels() -> None:
    """Labels are bounded: three hundred channels have no more series than thirty."""

    def series(channels: int) -> int:
        now = [0.0]
        plane = DataPlane(Registry(Limits(), autocreate=True), Options())
        plane.clock = lambda: now[0]
        registry = collectors(plane, None)
        for n in range(channels):
            assert plane.registry.publish_own(f"c{n}", "", b"x" * n, 0.0) is not None
        now[0] = 60.0
        return generate_latest(registry).count(b"\n")

    assert series(300) == series(30)
