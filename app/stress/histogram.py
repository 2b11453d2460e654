"""Quantiles of any number of durations, in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

PRECISION_BITS: Final = 7
"""A quantile is exact to one part in 2**7, that is 0.8 %, which is far below what repeats from run to run."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """What a histogram says, in milliseconds; all 0 without samples."""

    samples: int
    p50: float
    p95: float
    p99: float
    max: float


class Histogram:
    """Counts durations by their leading bits: as many buckets as there are orders of magnitude, times 128.

    So a bucket is as wide as its values are imprecise, as in HdrHistogram.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._samples = 0
        self._max_ns = 0

    def add(self, ns: int) -> None:
        """Count one duration in nanoseconds; one below 0 counts as 0."""
        ns = max(0, ns)
        self._samples += 1
        self._max_ns = max(self._max_ns, ns)
        shift = max(0, ns.bit_length() - PRECISION_BITS - 1)
        self._counts[(ns >> shift) << shift] += 1

    def quantile_ms(self, share: float) -> float:
        """The duration that this share of all does not exceed, in milliseconds; 0 without samples.

        Args:
            share: above 0, up to 1.
        """
        wanted = share * self._samples
        for bottom_ns in sorted(self._counts):
            wanted -= self._counts[bottom_ns]
            if wanted <= 0:
                return bottom_ns / 1e6
        return 0.0

    def quantiles(self) -> Quantiles:
        """The usual ones. The maximum is exact."""
        p50, p95, p99 = (self.quantile_ms(share) for share in (0.5, 0.95, 0.99))
        return Quantiles(self._samples, p50, p95, p99, self._max_ns / 1e6)
