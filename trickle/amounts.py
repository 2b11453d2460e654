"""Durations, sizes and rates: as commands, settings and requests give them, and as reports write them.

Server, clients and analytics must read ``30s`` and write ``1.5 MB`` alike, so the grammar of amounts stands here once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tricklecast.trickle.errors import InvalidInput

# Amounts in arguments.

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES: Final = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BINARY_BYTES: Final = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_BITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_AMOUNT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.ASCII)


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Read a duration, in seconds: ``30``, ``30s``, ``500ms``, ``2min``, ``1.5h``, ``7d`` or ``4w``.

    Args:
        zero: allow a duration of 0.

    Raises:
        InvalidInput: the text is not a duration.
    """
    value = _parse(text, _SECONDS)
    if value is None or not (value or zero):
        raise InvalidInput(f"not a duration: {text[:40]!r} (30s, 500ms, 2min, 1h or 7d)")
    return value


def parse_limit(text: str) -> float | None:
    """Read for how long something may go on, in seconds: a duration, ``0``, or ``forever`` (``inf``): ``None``.

    Raises:
        InvalidInput: the text is none of these.
    """
    if text.strip().lower() in ("forever", "inf"):
        return None
    try:
        return parse_duration(text, zero=True)
    except InvalidInput as error:
        raise InvalidInput(f"{error}, and not forever") from None


def parse_size(text: str) -> int:
    """Read a size, in bytes: ``4096``, ``64KiB`` (powers of 1024) or ``1.5 MB`` (powers of 1000).

    Raises:
        InvalidInput: the text is not a size, or the size is below 1 byte.
    """
    value = _parse(text, _BYTES | _BINARY_BYTES)
    if value is None or value < 1:
        raise InvalidInput(f"not a size: {text[:40]!r} (64KiB, 500MB)")
    return int(value)


def parse_bitrate(text: str) -> int:
    """Read a bit rate, in bits per second: ``800k``, ``2.5M`` or ``64000``.

    Raises:
        InvalidInput: the text is not a bit rate, or the rate is below 1 bit per second.
    """
    value = _parse(text, _BITS)
    if value is None or value < 1:
        raise InvalidInput(f"not a bit rate: {text[:40]!r} (800k, 2.5M or 64000)")
    return round(value)


def _parse(text: str, units: Mapping[str, float]) -> float | None:
    match = _AMOUNT.fullmatch(text.strip().lower())
    unit = None if match is None else units.get(match[2])
    return None if match is None or unit is None else float(match[1]) * unit


# Numbers in reports.


def size(number: float) -> str:
    """Write a number of bytes in powers of 1000: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def duration(seconds: float) -> str:
    """Write a time as :func:`parse_duration` reads it, in the largest unit that needs no fraction: ``7d``, ``90s``."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def rate(bits_per_s: float) -> str:
    """Write a bit rate in powers of 1000: ``64 kbit/s``, ``2.35 Mbit/s``."""
    if bits_per_s < 1e6:
        return f"{bits_per_s / 1e3:.0f} kbit/s"
    return f"{bits_per_s / 1e6:.2f} Mbit/s"


def count(number: int, noun: str, plural: str = "") -> str:
    """Write a number with its noun: ``1 segment``, ``2 segments``. The plural is the noun with an ``s`` by default."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def transferred(verb: str, segments: int, number: int, seconds: float) -> str:
    """Write the beginning of a summary: ``received 3 segments (1.5 MB) in 2.0 s``.

    Args:
        verb: ``published`` or ``received``.
        segments: number of segments.
        number: their size in bytes.
        seconds: duration of the run.
    """
    return f"{verb} {count(segments, 'segment')} ({size(number)}) in {seconds:.1f} s"
