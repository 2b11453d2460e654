"""A nursery (``tests/support/forked.py``) of servers whose channels are busy with four readers, and whose feeds may lag
less.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.support.forked import serve_forks
from tricklecast.app.cluster import feed
from tricklecast.app.workers import busy

SMALL: dict[Any, dict[str, Any]] = {
    busy: {"SPREAD_FROM": 4, "SPREAD_UNTIL": 3, "LOOK_S": 0.25, "KEEP_S": 1.0},
    feed: {"MAX_BEHIND": 100},
}

if __name__ == "__main__":
    for module, values in SMALL.items():
        for name, value in values.items():
            assert hasattr(module, name), name
            setattr(module, name, value)
    serve_forks(sys.argv[2])
