"""Figures as people read them; the same in every form of the report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

TIMES: Final = "\N{MULTIPLICATION SIGN}"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def date_and_time(us: int) -> str:
    """``2025-10-09 08:53:20``, UTC; a number that is no time as what it is (a log may say anything)."""
    try:
        return (_EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{us} µs"


def clock(us: int) -> str:
    """``08:53:20``, UTC, where the day is told elsewhere."""
    written = date_and_time(us)
    return written if written.endswith("µs") else written[-8:]


def size(count: int) -> str:
    """Bytes in binary units."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_BINARY_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.1f} {_BINARY_UNITS[unit]}" if unit else f"{count:,} B"


def rate(per_second: float) -> str:
    """Requests per second: whole ones from ten on."""
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.2g}/s"


def percent(share: float) -> str:
    """A share of 0 to 1; never ``100 %`` for less than all, nor ``0 %`` for more than nothing."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.99 < share < 1:
        return "> 99 %"
    return f"{share:.{1 if 0 < share < 0.0995 else 0}%}".replace("%", " %")


def number(value: float) -> str:
    """With two or three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:.3g}"


def times(ratio: float) -> str:
    """How many times, with the sign for it: two decimals, one from ten on, none from a hundred on."""
    digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
    return f"{ratio:,.{digits}f} {TIMES}"


def counted(count: int, noun: str) -> str:
    """``1 client``, ``12 clients``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """A length of time in two or three digits: ``350 ms``, ``4.2 s``, ``18 s``, ``3.2 min``, ``12 h``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for length, unit in ((1, "s"), (60, "min"), (3600, "h")):
        amount = seconds / length
        if amount < 120 or unit == "h":
            break
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:,.0f} {unit}"
