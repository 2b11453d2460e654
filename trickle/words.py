"""Numbers for people."""

from __future__ import annotations


def size(number: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def rate(bits_per_s: float) -> str:
    """A bit rate for people, in powers of 1000."""
    if bits_per_s < 1e6:
        return f"{bits_per_s / 1e3:.0f} kbit/s"
    return f"{bits_per_s / 1e6:.2f} Mbit/s"


def count(number: int, noun: str, plural: str = "") -> str:
    """So many of something: ``1 segment``, ``2 segments``.

    Args:
        number: how many. noun: of one. plural: of several; the noun with an ``s`` if not given.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
