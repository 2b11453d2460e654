"""A nursery (``tests/support/forked.py``) of servers whose channels are busy with four readers, whose feeds may lag
less, and whose workers wait longer for each other: no answer lacks a worker only because this machine is slow.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.support.forked import serve_forks
from tests.support.waiting import WITHIN_S
from tricklecast.app import changes
from tricklecast.app.replication import feed
from tricklecast.app.workers import busy, dashboard, facts, overview

SMALL: dict[Any, dict[str, Any]] = {
    busy: {"SPREAD_FROM": 4, "SPREAD_UNTIL": 3, "LOOK_S": 0.25, "KEEP_S": 1.0},
    feed: {"MAX_BEHIND": 100},
    changes: {"TOLD_S": WITHIN_S},
    **{module: {"SOON_S": WITHIN_S} for module in (dashboard, facts, overview)},
}

if __name__ == "__main__":
    for module, values in SMALL.items():
        for name, value in values.items():
            assert hasattr(module, name), name
            setattr(module, name, value)
    serve_forks(sys.argv[2], "serve")
