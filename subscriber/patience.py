"""How long a subscriber waits, and what for."""

from __future__ import annotations

from typing import Final

from tricklecast.trickle.backoff import Backoff

REFRESH_S: Final = 20.0
"""Idle waits are asked again after this long, like Go's subscriber does; common proxies cut them at 30 s or 60 s."""

REFRESH_SPREAD: Final = 0.2
"""Share of the refresh time that is random, so that subscribers of one channel do not come back in step."""

MIN_PAUSE_S: Final = 0.05
"""Full jitter may draw 0; the same request is never made at once all the same."""

PATIENCE_S: Final = 300.0
"""A ``Retry-After`` beyond this is taken for a no."""

CUT_PATIENCE_S: Final = 10.0
"""The same for the rest of a segment that was cut: later, it has most likely left the window."""

DOUBTS: Final = 4
"""How often a head that seems to have gone back is asked again on a server that has not been away: about 2 s in all."""

REJOIN_WAIT_S: Final = 30.0
"""How long a server that went away is waited for, and its channel: a restart, and the publishers' own backoff."""

JOIN_BACKOFF: Final = Backoff(base_s=0.25, cap_s=2.0)
"""While waiting for a channel to begin; short, since what is published meanwhile is what is waited for."""
