"""Who is told what happens: people by lines on standard error, programs by JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from tricklecast.subscriber.command.events import (
    Ended,
    Event,
    Failed,
    Gap,
    Note,
    Reconnecting,
    Retry,
    SegmentRead,
    Started,
    as_line,
)
from tricklecast.subscriber.command.progress import Progress, summary
from tricklecast.subscriber.sinks import Sink
from tricklecast.trickle.terminal import count

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_HZ: Final = 4


class Reporter(Protocol):
    """Is told each event, in order."""

    async def tell(self, event: Event) -> None:
        """Something happened.

        Raises:
            SinkClosed: whoever read the events has gone.
        """
        ...

    def live(self, progress: Progress) -> AbstractContextManager[None]:
        """While the block runs, show how far it is, if somebody is there to see it."""
        ...


class People:
    """What is worth a line, and a line that lives on a terminal.

    Args:
        console: standard error by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self._console: Console = console or Console(stderr=True, soft_wrap=True, highlight=False)
        self._retry = ""

    async def tell(self, event: Event) -> None:
        """Most events are no news for people, and what is asked for again and again is so once."""
        if isinstance(event, Retry):
            if event.error == self._retry:
                return
            self._retry = event.error
        elif isinstance(event, SegmentRead):
            self._retry = ""
        for text in _lines(event):
            self._say(text)

    @contextmanager
    def live(self, progress: Progress) -> Iterator[None]:
        """A line on a terminal; nothing elsewhere."""
        if not self._console.is_terminal:
            yield
            return
        from rich.live import Live
        from rich.text import Text

        def line() -> Text:
            return Text(progress.line(), no_wrap=True, overflow="ellipsis")

        with Live(console=self._console, get_renderable=line, refresh_per_second=REFRESH_HZ, transient=True):
            yield

    def _say(self, text: str) -> None:
        if self._console.is_terminal or not self._console.stderr:
            # Not markup: a server's words are shown, never interpreted.
            self._console.print(text, markup=False)
        else:  # not through rich, which ends the process at a broken pipe
            with suppress(OSError):
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()


class Programs:
    """Every event, as a line of JSON.

    Args:
        sink: where they go. It is waited for, so that a slow reader is never more than one line behind.
        clock: Unix time in seconds.
    """

    def __init__(self, sink: Sink, clock: Callable[[], float] = time.time) -> None:
        self._sink = sink
        self._clock = clock

    async def tell(self, event: Event) -> None:
        """Write its line, and hand it on at once."""
        await self._sink.write(as_line(event, self._clock()))
        await self._sink.flush()

    @contextmanager
    def live(self, progress: Progress) -> Iterator[None]:
        """Nothing: programs do not watch."""
        yield


def _lines(event: Event) -> Iterator[str]:
    match event:
        case Started():
            return
        case Gap(missed, before):
            where = "the end of the channel" if before is None else f"segment {before}"
            yield f"warning: {count(missed, 'segment')} missed before {where}"
        case SegmentRead() as segment:
            yield from _faults(segment)
        case Retry(retries, error):
            yield f"warning: asked again{'' if retries == 1 else f' {retries} times'}: {error}"
        case Reconnecting(_, message, start, delay_s):
            yield f"warning: {message}; trying again in {delay_s:.1f} s at {start}"
        case Note(message):
            yield f"warning: {message}"
        case Ended(_, resume, totals):
            yield summary(totals) + (f"; the next is {resume}" if resume else "")
        case Failed(_, _, resume, totals):
            # An error that came first of all says enough; it is printed by the command line.
            if totals.segments:
                yield summary(totals)
            if resume:
                yield f"to go on without loss: --start {resume}"
        case _:
            assert_never(event)


def _faults(segment: SegmentRead) -> Iterator[str]:
    if segment.restarted:
        yield f"warning: the channel began anew at segment {segment.seq}"
    if segment.truncated == "skipped":
        yield f"warning: segment {segment.seq} was never published: its publisher has passed it over"
    elif segment.truncated is not None:
        yield f"warning: segment {segment.seq} is truncated: {segment.truncated}"
    if segment.broken is not None:
        yield f"warning: segment {segment.seq} was cut after {segment.bytes} bytes: {segment.broken}"
