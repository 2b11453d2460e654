"""Durations and sizes as people write them in options."""

from __future__ import annotations

import re
from typing import Final

from trickle.errors import InvalidInput

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES: Final = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_AMOUNT: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.ASCII)


def parse_duration(text: str) -> float:
    """Read a duration, in seconds: ``30``, ``30s``, ``500ms``, ``2min``, ``1.5h`` or ``7d``.

    Raises:
        InvalidInput: it is not one.
    """
    value = _parse(text, _SECONDS)
    if value is None:
        raise InvalidInput(f"not a duration: {text[:40]!r} (30s, 500ms, 2min or 1h)")
    return value


def parse_size(text: str) -> int:
    """Read a size, in bytes: ``500MB``, ``1.5 GB``; the unit is a power of 1000 and must be given.

    Raises:
        InvalidInput: it is not one.
    """
    value = _parse(text, _BYTES)
    if value is None:
        raise InvalidInput(f"not a size: {text[:40]!r} (500MB, 20GB)")
    return round(value)


def _parse(text: str, units: dict[str, float]) -> float | None:
    match = _AMOUNT.fullmatch(text.strip().lower())
    unit = None if match is None else units.get(match[2])
    return None if match is None or unit is None else float(match[1]) * unit
