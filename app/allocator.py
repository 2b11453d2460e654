"""The C library's allocator, where it is glibc's: memory that was freed goes back to the system.

Segments of many sizes come and go for days. What one leaves behind between others that stay is free, but the process
keeps it: 48 MiB of segments that changed all the time took 85, and take 55 with what is done here
(docs/explanation/memory.md).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

LARGE_BYTES: Final = 128 << 10
"""Blocks from this size on are the system's own, and go back to it at once. glibc begins with that, too, but raises it
to whatever was freed last, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD)."""

GROWTH: Final = 16
"""A sixteenth more than after the last time, and it is looked for what can be given back ..."""

LEAST_BYTES: Final = 8 << 20
"""... or by so much more, if that is more."""

EVERY_S: Final = 5.0
"""How often it is looked whether there is more. Giving back takes 1 to 4 ms per 100 MB (measured)."""

_M_MMAP_THRESHOLD: Final = -3


def keep_large_blocks_apart() -> None:
    """Have large blocks mapped and unmapped one by one, for as long as the process lives."""
    if (mallopt := _glibc("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def trim() -> None:
    """Give back every page that nothing is on."""
    if (malloc_trim := _glibc("malloc_trim")) is not None:
        malloc_trim(0)


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Trimmer:
    """Gives memory back whenever the process has grown, so that it may be what was freed that has made it grow.

    Args:
        resident: how much memory the process takes, in bytes. give_back: gives back what it can.
    """

    def __init__(self, resident: Callable[[], int] = resident_bytes, give_back: Callable[[], None] = trim) -> None:
        self._resident = resident
        self._give_back = give_back
        self._least = resident()

    async def run(self) -> None:
        """Look every few seconds, for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """Give back what can be given back, if there is more than there was at least since the last time."""
        resident = self._resident()
        if resident > self._least + max(self._least // GROWTH, LEAST_BYTES):
            self._give_back()
            resident = self._least = self._resident()
        self._least = min(self._least, resident)


def _glibc(name: str) -> Callable[..., int] | None:
    """One of its functions, which keep to themselves what they do; ``None`` in another C library."""
    library = ctypes.PyDLL(None)  # no other thread gains anything while this one is at it
    return getattr(library, name) if hasattr(library, "gnu_get_libc_version") else None
