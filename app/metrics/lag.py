"""How far readers are behind, at the moment of the scrape: of those whose connection is full or who catch up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.data_plane.connection import Connection
from app.data_plane.plane import DataPlane
from app.data_plane.reader import Reader
from app.metrics.families import gauge, gauges

MOST: Final = 5_000
"""So many are looked at, about 1 ms: those that have stalled longest come first, and they are furthest behind."""

STEPS: Final = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""From what the kernel holds for a reader, to where it is cut off by default."""


class ReaderLag(Collector):
    """The largest lag, and how many readers are how far behind."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """As of now."""
        behind: Iterator[Connection | Reader] = chain(self._plane.stalled, self._plane.catching_up)
        lags = [who.lag() for who in islice(behind, MOST)]
        yield gauge(
            "reader_lag_max_bytes", "Body bytes that the furthest reader is behind.", max(0, max(lags, default=0))
        )
        counts = {str(step): float(sum(lag > step for lag in lags)) for step in STEPS}
        yield gauges("readers_behind", "Readers that are further behind than so many body bytes.", "bytes", counts)
