"""What one client did to one channel: the part of a storm that grows by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.figures import Figures
from tricklecast.analytics.watch_old.judging import requests, retry_after


@dataclass(slots=True)
class Part:
    """What one client did to one channel; or, of a fleet, all of them.

    Attributes:
        clients, channels: requests of each; n, hits, ...: see :class:`~analytics.report.model.Episode`.
    """

    clients: dict[str, int]
    channels: dict[str, int]
    n: int
    hits: int
    first_us: int
    last_us: int
    peak_rps: float
    releases: list[str | None]
    seq_lo: int | None
    seq_hi: int | None
    head: int | None
    bytes_out: int
    dur_us: int
    gap_ms: float | None
    retry_after: str | None

    @classmethod
    def of(
        cls, figures: Figures, clients: Mapping[str, int], channels: Mapping[str | None, int], params: StormParams
    ) -> Part:
        """A part that adds up to these figures."""
        n = requests(figures, params)
        return cls(
            dict(clients),
            {channel: count for channel, count in channels.items() if channel is not None},
            n,
            figures.hits(params),
            figures.first_us,
            figures.last_us,
            max(figures.peak_rps, figures.mean_rps(params)),
            list(figures.releases),
            figures.seq_lo,
            figures.seq_hi,
            figures.head_hi,
            figures.bytes_out,
            figures.dur_us,
            figures.gap_ms,
            retry_after(figures, params),
        )


def together(one: Part, other: Part) -> Part:
    """Two parts as one."""
    return Part(
        {name: one.clients.get(name, 0) + other.clients.get(name, 0) for name in (*one.clients, *other.clients)},
        {name: one.channels.get(name, 0) + other.channels.get(name, 0) for name in (*one.channels, *other.channels)},
        one.n + other.n,
        one.hits + other.hits,
        min(one.first_us, other.first_us),
        max(one.last_us, other.last_us),
        max(one.peak_rps, other.peak_rps),
        list(dict.fromkeys((*one.releases, *other.releases))),
        least((one.seq_lo, other.seq_lo)),
        most((one.seq_hi, other.seq_hi)),
        most((one.head, other.head)),
        one.bytes_out + other.bytes_out,
        one.dur_us + other.dur_us,
        one.gap_ms,
        one.retry_after,
    )


def least(values: Iterable[int | None]) -> int | None:
    """The smallest that is known."""
    return min((value for value in values if value is not None), default=None)


def most(values: Iterable[int | None]) -> int | None:
    """The largest that is known."""
    return max((value for value in values if value is not None), default=None)
