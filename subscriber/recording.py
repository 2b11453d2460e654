"""What ``tricklecast subscribe`` does: segments into a sink, and what happens on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import anyio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from subscriber.client import Subscriber
from subscriber.segment import Segment
from subscriber.sinks import Sink, SinkClosed, open_sink
from subscriber.statistics import Statistics
from subscriber.verdicts import OnLag
from trickle.errors import TrickleError

REFRESH_PER_S: Final = 4


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for.

    Attributes:
        url: the channel.
        output: a path, or ``-``.
        start: as the command line has it.
        for_s: seconds after which to stop; ``None``: at the channel's end.
        wait_s: how long to wait for the channel to begin, in seconds.
        on_lag: where to go on after falling behind.
    """

    url: str
    output: str
    start: str = "next"
    for_s: float | None = None
    wait_s: float = 0.0
    on_lag: OnLag = OnLag.LIVE


async def record(request: Request, console: Console | None = None) -> Statistics:
    """Write the segments of a channel to a sink until its end, or until the time is over.

    Args:
        request: what to do.
        console: where people are told about it; standard error by default.

    Raises:
        TrickleError: what ``Subscriber`` and the sinks raise. The reader of a pipe who goes is no error.
    """
    console = console or Console(stderr=True, soft_wrap=True)
    subscriber = Subscriber(request.url, start=request.start, wait_for_channel_s=request.wait_s, on_lag=request.on_lag)
    sink = open_sink(request.output)
    began = time.monotonic()
    failed = False
    try:
        with _status(console, subscriber, began), anyio.move_on_after(request.for_s):
            async with sink, subscriber:
                async for segment in subscriber:
                    await _write(segment, sink, console)
    except SinkClosed:
        pass
    except TrickleError:
        failed = True
        raise
    finally:
        # An error that came first of all says enough.
        if subscriber.statistics().segments or not failed:
            _say(console, summary(subscriber.statistics(), time.monotonic() - began))
    return subscriber.statistics()


async def _write(segment: Segment, sink: Sink, console: Console) -> None:
    if segment.gap:
        _say(console, f"warning: {_count(segment.gap, 'segment')} missed before segment {segment.seq}")
    if segment.restarted:
        _say(console, f"warning: the channel began anew at segment {segment.seq}")
    async for chunk in segment:
        await sink.write(chunk)
    await sink.flush()
    if segment.truncated is not None:
        _say(console, f"warning: segment {segment.seq} is truncated: {segment.truncated}")
    if segment.broken is not None:
        _say(console, f"warning: segment {segment.seq} was cut after {segment.bytes_read} bytes: {segment.broken}")


def summary(statistics: Statistics, seconds: float) -> str:
    """The last line: what was received, and what was not."""
    line = f"received {_count(statistics.segments, 'segment')}, {size(statistics.bytes)} in {seconds:.1f} s"
    faults = [
        f"{_count(statistics.gaps, 'gap')} ({_count(statistics.missed, 'segment')} missed)" if statistics.gaps else "",
        f"{statistics.truncated} truncated" if statistics.truncated else "",
        f"{statistics.broken} cut" if statistics.broken else "",
    ]
    return f"{line}; {', '.join(filter(None, faults)) or 'no gaps'}"


def size(number: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _say(console: Console, line: str) -> None:
    # Text, not markup: a server's words are shown, never interpreted.
    console.print(Text(line))


@contextmanager
def _status(console: Console, subscriber: Subscriber, began: float) -> Iterator[None]:
    """A line that lives while the subscription does, if somebody is there to see it."""
    if not console.is_terminal:
        yield
        return

    def line() -> Text:
        now, seconds = subscriber.statistics(), time.monotonic() - began
        bits = f"{8 * now.bytes / max(seconds, 0.1) / 1000:.0f} kbit/s"
        words = [f"{seconds:.0f} s", _count(now.segments, "segment"), size(now.bytes), bits]
        words += [f"{now.missed} missed"] if now.missed else []
        words += [f"{now.retries} retries ({now.last_error})"] if now.retries else []
        return Text(" · ".join(words), no_wrap=True, overflow="ellipsis")

    with Live(console=console, get_renderable=line, refresh_per_second=REFRESH_PER_S, transient=True):
        yield
