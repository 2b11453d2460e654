"""Figures as people read them; the same in every form of the report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

UNKNOWN: Final = "\N{EN DASH}"
_TIMES: Final = "\N{MULTIPLICATION SIGN}"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def moment(us: int) -> datetime | None:
    """Microseconds since the epoch as a time; ``None`` for a number that is none (a log may say anything)."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return None


def date_and_time(us: int) -> str:
    """``2025-10-09 08:53:20``, UTC."""
    when = moment(us)
    return f"{us} µs" if when is None else when.strftime("%Y-%m-%d %H:%M:%S")


def clock(us: int) -> str:
    """``08:53:20``, UTC, where the day is told elsewhere."""
    when = moment(us)
    return f"{us} µs" if when is None else when.strftime("%H:%M:%S")


def moment_in(us: int, *others: int | None) -> str:
    """The time alone if all these are on one day, which is then told elsewhere; else with its date."""
    written = date_and_time(us)
    days = {date_and_time(other)[:10] for other in others if other is not None}
    return clock(us) if days <= {written[:10]} else written


def duration(seconds: float) -> str:
    """In the unit that is read best: milliseconds below a second, hours from two hours on."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if abs(seconds) < 7200 else f"{seconds / 3600:,.1f} h"


def millis(value: float) -> str:
    """Milliseconds, in seconds from one second on."""
    return f"{value:.1f} ms" if value < 10 else duration(value / 1000)


def size(count: int) -> str:
    """Bytes in binary units."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_BINARY_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.1f} {_BINARY_UNITS[unit]}" if unit else f"{count:,} B"


def rate(per_second: float) -> str:
    """Requests per second: whole ones from ten on."""
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.2g}/s"


def peak(per_second: float) -> str:
    """The same for a column that says so: one decimal below ten, so that a slow drip is not 0."""
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def percent(share: float) -> str:
    """A share of 0 to 1; never ``100 %`` for less than all, nor ``0 %`` for more than nothing."""
    if 0 < share < 0.0001:
        return "< 0.01 %"
    if 0.9999 < share < 1:
        return "> 99.99 %"
    digits = 2 if share < 0.01 or share > 0.99 else 1
    return f"{share:.{0 if share in (0.0, 1.0) else digits}%}".replace("%", " %")


def times(ratio: float) -> str:
    """How many times, with the sign for it: two decimals, one from ten on, none from a hundred on."""
    digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
    return f"{ratio:,.{digits}f} {_TIMES}"


def counted(count: int, noun: str) -> str:
    """``1 client``, ``12 clients``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """A length of time in two or three digits: ``350 ms``, ``4.2 s``, ``18 s``, ``3.2 min``, ``12 h``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for length, unit in ((1, "s"), (60, "min"), (3600, "h")):
        amount = seconds / length
        if amount < 120 or unit == "h":
            break
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:,.0f} {unit}"
