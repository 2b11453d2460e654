"""Times and durations as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_UNITS_S: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}

_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([a-z]+)")

FORMS: Final = "2025-10-09T14:30:00Z, 2025-10-09 14:30 (UTC), 2025-10-09, '2h ago', now"
"""The forms that :func:`parse_time` takes, for messages."""


def parse_time(text: str, now_us: int) -> int:
    """A moment, microseconds since the epoch.

    Args:
        text: an ISO 8601 time or date, without a zone in UTC, a date being its first moment; ``now``; or how long
            ago: ``2h ago``, or ``2h`` for short.
        now_us: what ``now`` is.

    Raises:
        ValueError: it is none of these, or before 1970.
    """
    words = text.strip().lower()
    if words == "now":
        return now_us
    length = words.removesuffix("ago").strip()
    if length != words or _DURATION.fullmatch(length):
        return _since_epoch(now_us - parse_duration(length), text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"not a time: {text!r}; write {FORMS}") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # A difference of times, not timestamp(): a float has no room for the microseconds of this century.
    since_epoch = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return _since_epoch((since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds, text)


def parse_duration(text: str) -> int:
    """A length of time such as ``90s``, ``1.5 h`` or ``30d``, microseconds.

    Raises:
        ValueError: it is none.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS_S:
        raise ValueError(f"not a duration: {text.strip()!r}; write 90s, 15m, 2h, 30d or 4w")
    return round(float(found[1]) * _UNITS_S[found[2]] * 1_000_000)


def _since_epoch(us: int, text: str) -> int:
    if us < 0:
        raise ValueError(f"{text!r} is before 1970")
    return us
