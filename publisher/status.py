"""What a person sees of a running ``tricklecast publish``: a live line on a terminal, a summary at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from publisher.feed import Totals

if TYPE_CHECKING:
    from rich.console import Console

_REFRESH_HZ: Final = 4


class Status:
    """Reports on standard error, so that standard output stays free for data.

    Args:
        url: the channel, as it is shown.
    """

    def __init__(self, url: str) -> None:
        from rich.console import Console

        self._console: Console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._url = url
        self._begun_at = time.monotonic()
        self._source = ""

    def say(self, message: str) -> None:
        """One line that stays. A standard error that nobody reads any more is no reason to stop publishing."""
        if self._console.is_terminal:
            self._console.print(message, markup=False)
        else:  # not through rich, which ends the process at a broken pipe
            with suppress(OSError):
                sys.stderr.write(f"{message}\n")
                sys.stderr.flush()

    def source(self, state: str) -> None:
        """What the source does, if that is not what it should; else nothing. May be called in any thread."""
        self._source = state

    @contextmanager
    def live(self, totals: Totals) -> Iterator[None]:
        """Keep a line up to date while the block runs; on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        from rich.live import Live

        line = _Line(self, totals)
        with Live(line, console=self._console, refresh_per_second=_REFRESH_HZ, transient=True):
            yield

    def line(self, totals: Totals) -> str:
        """The state in one line."""
        elapsed_s = max(time.monotonic() - self._begun_at, 0.001)
        seq = "waiting" if totals.seq is None else f"segment {totals.seq}"
        rate = totals.bytes * 8 / elapsed_s / 1e6
        lost = f"  lost {totals.lost}" if totals.lost else ""
        return f"{self._url}  {seq}  {_size(totals.bytes)}  {rate:.2f} Mbit/s  {elapsed_s:.0f} s{lost}"

    def summary(self, totals: Totals, how: str) -> str:
        """What was published, and how it ended."""
        elapsed_s = time.monotonic() - self._begun_at
        segments = f"{totals.segments} segment{'' if totals.segments == 1 else 's'}"
        lost = f", {totals.lost} lost" if totals.lost else ""
        last = "" if totals.seq is None else f", the last one {totals.seq}"
        return f"published {segments} ({_size(totals.bytes)}) in {elapsed_s:.1f} s{last}{lost}; {how}"


class _Line:
    """Rendered anew at each refresh."""

    def __init__(self, status: Status, totals: Totals) -> None:
        self._status = status
        self._totals = totals

    def __rich__(self) -> str:
        return self._status.line(self._totals)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
