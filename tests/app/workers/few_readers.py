"""``tricklecast`` whose channels are busy with four readers; it is run as ``python -m``."""

from __future__ import annotations

from typing import Any

from tricklecast.__main__ import main
from tricklecast.app.workers import busy

SMALL: dict[str, Any] = {"SPREAD_FROM": 4, "SPREAD_UNTIL": 3, "LOOK_S": 0.25, "KEEP_S": 1.0}

if __name__ == "__main__":
    for name, value in SMALL.items():
        assert hasattr(busy, name), name
        setattr(busy, name, value)
    main()
