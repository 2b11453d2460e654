"""A nursery (``tests/support/forked.py``) of servers whose channels are busy with four readers."""

from __future__ import annotations

import sys
from typing import Any

from tests.support.forked import serve_forks
from tricklecast.app.workers import busy

SMALL: dict[str, Any] = {"SPREAD_FROM": 4, "SPREAD_UNTIL": 3, "LOOK_S": 0.25, "KEEP_S": 1.0}

if __name__ == "__main__":
    for name, value in SMALL.items():
        assert hasattr(busy, name), name
        setattr(busy, name, value)
    serve_forks(sys.argv[2])
