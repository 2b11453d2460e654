"""What a source of lines says about itself: how far behind it is, and what it cannot read.

It lives in a process of Spark's. The command learns of it through a small file in the state's folder.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Health:
    """How a source is doing.

    Attributes:
        files: files, or partitions, that are followed.
        lines, bytes: read since it was started.
        lag_bytes: what stands in the log and has not been read; of Kafka, messages.
        lost_bytes: what was gone before it could be read.
        problems: what cannot be read and why, by name.
    """

    files: int = 0
    lines: int = 0
    bytes: int = 0
    lag_bytes: int = 0
    lost_bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def write_health(path: Path, health: Health) -> None:
    """Puts it where the command looks. A full disk is the ledger's to complain about."""
    import orjson

    unfinished = path.with_suffix(".tmp")
    with contextlib.suppress(OSError):
        unfinished.write_bytes(orjson.dumps(asdict(health), option=orjson.OPT_NON_STR_KEYS))
        os.replace(unfinished, path)


def read_health(path: Path) -> Health | None:
    """What the source last said; ``None`` if it has not said anything yet."""
    import orjson

    try:
        return Health(**orjson.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
