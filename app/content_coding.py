"""Content codings: whether a client takes a compressed response (RFC 9110, section 12.5.3)."""

from __future__ import annotations

import re
from typing import Final

_GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:,|$|;\s*q=(?!0(?:\.0*)?\s*(?:,|$)))")


def takes_gzip(accepted: str) -> bool:
    """Whether a client with this ``Accept-Encoding`` takes a compressed response: not with ``gzip;q=0``."""
    return _GZIP.search(accepted) is not None
