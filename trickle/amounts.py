"""Durations, sizes and bit rates as people write them in options, one grammar for all commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tricklecast.trickle.errors import InvalidInput

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BINARY_BYTES: Final = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.ASCII)


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Read a duration, in seconds: ``30``, ``30s``, ``500ms``, ``2min``, ``1.5h`` or ``7d``.

    Args:
        text: what was written.
        zero: whether none at all is a duration, too.

    Raises:
        InvalidInput: it is not one.
    """
    value = _parse(text, _SECONDS)
    if value is None or not (value or zero):
        raise InvalidInput(f"not a duration: {text[:40]!r} (30s, 500ms, 2min or 1h)")
    return value


def parse_size(text: str) -> int:
    """Read a size, in bytes: ``4096``, ``64KiB`` (powers of 1024) or ``1.5 MB`` (powers of 1000).

    Raises:
        InvalidInput: it is not one, or less than 1 byte.
    """
    value = _parse(text, _BYTES | _BINARY_BYTES)
    if value is None or value < 1:
        raise InvalidInput(f"not a size: {text[:40]!r} (64KiB, 500MB)")
    return int(value)


def parse_bitrate(text: str) -> int:
    """Read a bit rate, in bits per second: ``800k``, ``2.5M`` or ``64000``.

    Raises:
        InvalidInput: it is not one, or less than 1 bit per second.
    """
    value = _parse(text, _BITS)
    if value is None or value < 1:
        raise InvalidInput(f"not a bit rate: {text[:40]!r} (800k, 2.5M or 64000)")
    return round(value)


def _parse(text: str, units: Mapping[str, float]) -> float | None:
    match = _AMOUNT.fullmatch(text.strip().lower())
    unit = None if match is None else units.get(match[2])
    return None if match is None or unit is None else float(match[1]) * unit
