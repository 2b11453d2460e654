"""What the watches of tests are asked for."""

from __future__ import annotations

from pathlib import Path

from tricklecast.analytics.params import StormParams
from tricklecast.analytics.watch_old.request import WatchRequest


def request(log: Path, state: Path | None = None) -> WatchRequest:
    """A watch of one file, or of one folder's."""
    return WatchRequest(
        source={"logs": [str(log)]},
        earliest=True,
        params=StormParams(),
        state=state,
        json=False,
        webhooks=(),
        alertmanagers=(),
        fail_on="never",
        master="local[*]",
        conf={},
        for_s=None,
        verbose=False,
        quiet=True,
    )
