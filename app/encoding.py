"""JSON for logs and responses, also when memory runs out.

orjson 3.13 does not check whether it got memory for its buffer: without memory the process ends with a segmentation
fault, and all channels with it. So :func:`encode` allocates memory first, in a way that raises.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

ROOM: Final = 16 << 10
"""Bytes that must be free: a line of a log, with the copies that orjson makes while its buffer grows, is smaller."""


def encode(value: Any) -> bytes:
    """Encode a value as JSON.

    Args:
        value: of dictionaries, lists, texts, numbers.

    Raises:
        MemoryError: less than :data:`ROOM` is free.
    """
    bytes(ROOM)
    return orjson.dumps(value)
