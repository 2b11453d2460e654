"""News made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tricklecast.analytics.causes import Cause
from tricklecast.analytics.classes import StormClass
from tricklecast.analytics.episodes import Severity
from tricklecast.analytics.report.model import Episode
from tricklecast.analytics.watch_old.news import news_of
from tricklecast.analytics.watch_old.open_storms import Change, Kind

BASE_US = 1_760_000_000_000_000

EPISODE = Episode(
    id="0123456789ab",
    storm=StormClass.ZERO_BYTE_LOOP,
    severity=Severity.CRITICAL,
    start_us=BASE_US,
    end_us=BASE_US + 3_000_000,
    n=300,
    hits=300,
    clients=("player-7",),
    n_clients=1,
    channels=("film",),
    n_channels=1,
    node="edge-1",
    release="probe/1.0",
    seq_lo=7,
    seq_hi=7,
    head=7,
    trigger="channel_end",
    trigger_us=BASE_US,
    peak_rps=100.0,
    backoff="hot_loop",
    retry_after=None,
    bytes_out=0,
    handler_s=0.1,
    why=Cause("the server serves the same empty segment again", "an empty close must advance the head"),
)


def news(name: str = "a", kind: Kind = Kind.BEGAN, **fields: Any) -> dict[str, Any]:
    """News of one storm.

    Args:
        name: its id; fields: of its episode.
    """
    return news_of(Change(kind, replace(EPISODE, id=name, **fields)), BASE_US + 4_000_000)
