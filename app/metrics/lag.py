"""How far readers are behind, at the moment of the scrape: of those whose connection is full or who catch up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.metrics.families import gauge, gauges

MOST: Final = 5_000
"""So many are looked at, about 1 ms: those that have stalled longest come first, and they are furthest behind."""

STEPS: Final = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""From what the kernel holds for a reader, to where it is cut off by default."""


STEPS_S: Final = (0.5, 1, 2, 5)
"""From two looks of the sweeper, to half of the time after which a reader is cut off by default."""


class ReaderLag(Collector):
    """The largest lag, and how many readers are how far behind."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """As of now."""
        stalled = (peer.reader() for peer in self._plane.slow_peers.stalled)
        late = [reader for reader in islice(chain(stalled, self._plane.turns), MOST) if reader is not None]
        lags, ages = [reader.lag() for reader in late], [self._plane.slow_peers.lag_s(reader) for reader in late]
        yield gauge(
            "reader_lag_max_bytes", "Body bytes that the furthest reader is behind.", max(0, max(lags, default=0))
        )
        counts = {str(step): float(sum(lag > step for lag in lags)) for step in STEPS}
        yield gauges("readers_behind", "Readers that are further behind than so many body bytes.", "bytes", counts)
        longest = max(ages, default=0)
        yield gauge("reader_lag_max_seconds", "For how long a reader has lacked what was published.", longest)
        counts = {str(step): float(sum(age > step for age in ages)) for step in STEPS_S}
        yield gauges("readers_late", "Readers that have lacked something for more seconds.", "seconds", counts)
