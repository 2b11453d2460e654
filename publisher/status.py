"""What a person sees of a running ``tricklecast publish``: a live line on a terminal, a summary at the end."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from tricklecast.publisher.feed import Totals
from tricklecast.publisher.segments import PublisherStatistics
from tricklecast.trickle.terminal import count, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

RATE_S: Final = 5.0
"""Over how many seconds the bitrate is taken: longer than a usual segment, so that it does not swing with each."""

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
        self._rate = _Rate()

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
    def live(self, totals: Totals, statistics: Callable[[], PublisherStatistics]) -> Iterator[None]:
        """Keep a line up to date while the block runs; on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        from rich.live import Live

        line = _Line(lambda: self.line(totals, statistics(), self._console.width))
        with Live(line, console=self._console, refresh_per_second=_REFRESH_HZ, transient=True):
            yield

    def line(self, totals: Totals, statistics: PublisherStatistics, width: int | None = None) -> str:
        """The state in one line. Where it does not fit into ``width`` columns, what matters least is left out first."""
        now = time.monotonic()
        seq = "waiting" if totals.seq is None else f"segment {totals.seq}"
        rate = f"{self._rate.per_second(now, totals.bytes) * 8 / 1e6:.2f} Mbit/s"
        amount, elapsed = size(totals.bytes), f"{now - self._begun_at:.0f} s"
        counts = {"retries": statistics.retries, "dropped": totals.dropped, "lost": totals.lost}
        troubles = [f"{name} {number}" for name, number in counts.items() if number]
        if self._source:
            troubles.append(self._source)
        state = [rate, f"{statistics.in_flight} in flight", *troubles]
        channel = self._url.rpartition("/")[2]
        lines = (
            "  ".join(parts)
            for parts in (
                [self._url, seq, amount, *state, elapsed],
                [channel, seq, amount, *state, elapsed],
                [seq, amount, *state, elapsed],
                [seq, *state, elapsed],
                [seq, *state],
                [seq, rate, *troubles],
            )
        )
        line = next(lines)
        while width is not None and len(line) > width and (shorter := next(lines, None)) is not None:
            line = shorter
        return line

    def summary(self, totals: Totals, statistics: PublisherStatistics, how: str) -> str:
        """What was published, and how it ended."""
        elapsed_s = time.monotonic() - self._begun_at
        parts = [f"published {count(totals.segments, 'segment')} ({size(totals.bytes)}) in {elapsed_s:.1f} s"]
        if totals.seq is not None:
            parts.append(f"the last one {totals.seq}")
        if statistics.retries:
            parts.append(count(statistics.retries, "retry", "retries"))
        counts = {"dropped": totals.dropped, "lost": totals.lost}
        parts += [f"{number} {name}" for name, number in counts.items() if number]
        return f"{', '.join(parts)}; {how}"


class _Rate:
    """How fast a counter rose over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def per_second(self, now: float, count: int) -> float:
        self._samples.append((now, count))
        while len(self._samples) > 2 and now - self._samples[0][0] > RATE_S:
            self._samples.popleft()
        since, before = self._samples[0]
        return (count - before) / (now - since) if now > since else 0.0


class _Line:
    """Rendered anew at each refresh."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self._text(), no_wrap=True, overflow="ellipsis")
