"""The busiest channels by name, and all others in one: whatever there are, the labels are few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tricklecast.app.core.channel import Channel
from tricklecast.app.metrics.families import PREFIX

OTHER: Final = "_other"
"""Stands for all channels that are not named. Names that begin with ``_`` belong to the server."""

MIN_INTERVAL_S: Final = 5.0
"""A scrape that comes sooner gets the rates of the one before: two servers that scrape in turn both get rates over a
time that means something."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What went through a channel, in body bytes per second."""

    channel: str
    received: float
    sent: float

    @property
    def both(self) -> float:
        """What it is ranked by."""
        return self.received + self.sent


class TopChannels(Collector):
    """The ``size`` channels through which most bytes went since the last scrape. They are gauges: a counter of a
    channel that is shown now and then would stand still and jump.

    Args:
        channels: all channels by name.
        clock: seconds.
        size: how many are named; with 0 there is nothing at all.
    """

    def __init__(self, channels: Mapping[str, Channel], clock: Callable[[], float], size: int) -> None:
        self._channels = channels
        self._clock = clock
        self._size = size
        self._counted = self._count()
        self._counted_at = clock()
        self._shown: list[Rate] = []

    def collect(self) -> Iterator[Metric]:
        """One gauge for each direction."""
        if not self._size:
            return
        now = self._clock()
        if now - self._counted_at >= MIN_INTERVAL_S:
            self._shown = self._rates(now)
        yield _family("received", "Body bytes published per second, the busiest channels.", self._shown)
        yield _family("sent", "Body bytes delivered per second by reads that have ended.", self._shown)

    def _rates(self, now: float) -> list[Rate]:
        before, self._counted = self._counted, self._count()
        seconds, self._counted_at = now - self._counted_at, now
        rates = []
        for name, counts in self._counted.items():
            epoch, received, sent = before.get(name, counts)
            if epoch != counts[0] or name not in before:
                received = sent = 0
            rates.append(Rate(name, (counts[1] - received) / seconds, (counts[2] - sent) / seconds))
        top = nlargest(self._size, rates, key=attrgetter("both"))
        named = {rate.channel for rate in top}
        return [*top, _sum(rate for rate in rates if rate.channel not in named)]

    def _count(self) -> dict[str, tuple[int, int, int]]:
        """Epoch, bytes in and bytes out of each channel, so far."""
        if not self._size:
            return {}
        channels = self._channels.items()
        return {name: (channel.epoch, channel.bytes_in, channel.bytes_out) for name, channel in channels}


def _sum(rates: Iterable[Rate]) -> Rate:
    received = sent = 0.0
    for rate in rates:
        received += rate.received
        sent += rate.sent
    return Rate(OTHER, received, sent)


def _family(direction: str, text: str, rates: list[Rate]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{PREFIX}channel_{direction}_bytes_per_second", text, labels=["channel"])
    for rate in rates:
        family.add_metric([rate.channel], getattr(rate, direction))
    return family
