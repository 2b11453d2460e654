"""Durations and bitrates as people write them in options."""

from __future__ import annotations

import re
from typing import Final

from trickle.errors import InvalidInput

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_BITS: Final = {"": 1, "k": 1000, "m": 1_000_000}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.ASCII)


def parse_seconds(text: str) -> float:
    """Read a duration: ``10``, ``10s``, ``1.5s``, ``500ms``, ``2min`` or ``1h``.

    Raises:
        InvalidInput: it is not one, or not longer than 0.
    """
    value = _parse(text, _SECONDS)
    if value is None:
        raise InvalidInput(f"not a duration: {text!r} (10s, 500ms, 2min or 1h)")
    return value


def parse_bitrate(text: str) -> int:
    """Read a bitrate, in bits per second: ``800k``, ``2.5M`` or ``64000``.

    Raises:
        InvalidInput: it is not one, or less than 1 bit per second.
    """
    value = _parse(text, _BITS)
    if value is None or value < 1:
        raise InvalidInput(f"not a bitrate: {text!r} (800k, 2.5M or 64000)")
    return round(value)


def _parse(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        return None
    return float(match[1]) * units[match[2]] or None
