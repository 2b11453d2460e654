"""One run of ``tricklecast subscribe``: the segments of a channel into an output, and lines for people or programs."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from tricklecast import subscriber as public
from tricklecast.subscriber.archive import FolderWriter, Keep
from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.command.moments import Moment, Timetable
from tricklecast.subscriber.core import AnyStart, OnLag
from tricklecast.subscriber.events import Loss, Retrying, SkippedAhead, SubscriberEvent, SubscriberStatistics
from tricklecast.subscriber.media.joiner import JoinedFile, is_joined
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import Output, SinkClosed, open_sink
from tricklecast.subscriber.troubles import Troubles
from tricklecast.trickle import errors, wire
from tricklecast.trickle.amounts import count, rate, size, transferred
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.client.retry import RECONNECT_S
from tricklecast.trickle.client.tasks import first_error
from tricklecast.trickle.errors import BrokenByPeer, ChannelNotFound, InvalidSeq, Position, TrickleError
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials, RateMeter, Screen

_FORMATS: Final = {wire.MPEG_TS: ("MPEG-TS", ".ts"), wire.MP4: ("fragmented MP4", ".mp4")}
"""Of each media type of channels: its name, and the ending of its files."""

_NAMED: Final = {
    **dict.fromkeys((".ts", ".mts", ".m2ts"), wire.MPEG_TS),
    **dict.fromkeys((".mp4", ".m4v", ".m4a", ".mov"), wire.MP4),
    **dict.fromkeys((".mkv", ".mka", ".webm", ".avi", ".flv", ".ogg", ".ogv", ".mpg", ".mp3", ".aac", ".wav"), ""),
}
"""The media type that the end of a file's name promises; empty: one that no channel has."""

VERSION: Final = 1
"""Of the JSON events (docs/reference/subscribe-events.md)."""

COUNTED: Final = ("segments", "bytes", "gaps", "missed", "truncated", "broken", "resumed", "retries", "requests")
"""The counters of :class:`tricklecast.subscriber.SubscriberStatistics` that the last event has."""

WAITING_S: Final = 2.0
"""After this many seconds without a first segment, a line says what the command waits for."""

OF_THE_PAST: Final = (
    "of a channel that is over, `tricklecast clip` makes a file, and `tricklecast store export` copies all"
)
"""The advice where ``--since`` finds no channel."""

REPORT_S: Final = 1.0
"""How long the last event may take if its reader does not read, in seconds."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of ``tricklecast subscribe``, as the user gave them; times are in seconds.

    Attributes:
        output: a path, ``-``, or ``None`` for no output.
        since: when the first segment is on its way; ``None``: ``start`` counts.
        until: when the last segment is on its way. for_s: seconds after which to stop. ``None``: at the channel's end.
    """

    url: str
    output: str | None
    start: AnyStart = "current"
    since: Moment | None = None
    until: Moment | None = None
    for_s: float | None = None
    wait_s: float | None = 0.0
    on_lag: OnLag | None = None
    reconnect_s: float | None = RECONNECT_S
    raw: bool = False
    keep: Keep = field(default_factory=Keep)
    credentials: Credentials = NO_CREDENTIALS


class Received(NamedTuple):
    """The counts of a run.

    Attributes:
        left_out: segments that came, and of which the output has nothing.
    """

    statistics: SubscriberStatistics
    left_out: int


async def run(request: Request, report: Report | None = None) -> Received:
    """Receive a channel until its end, or until the time is over.

    Raises:
        TrickleError: those of ``Subscriber`` and of the outputs. It is no error if the reader of a pipe leaves.
    """
    return await _Run(request, report or Report()).run()


class _Run:
    """One run of the command."""

    def __init__(self, request: Request, report: Report) -> None:
        self._request = request
        self._report = report
        self._progress = Progress(channel_urls(request.url)[0].channel)
        self._notes: deque[str] = deque()
        self._retries: deque[str] = deque()
        self._troubles = Troubles()
        self._noticed = anyio.Event()
        self._output = open_output(request, self._notes.append)
        self._progress.left_out = lambda: self._output.left_out
        self._subscriber: Subscriber | None = None
        self._segment: Segment | None = None
        self._times = Timetable(request.url, request.credentials)
        self._wanted_to: tuple[int, int] | None = None  # epoch and seq of the last segment of --until, once it is known
        self._is_past = False  # the channel of --since was not there at the beginning
        self._is_over = False  # nothing that begins from now on is wanted
        until = request.until
        # The time of --until, if it is to come, and whether it has passed and the server has told that segment.
        self._ends_at = until.at if until is not None and until.at is not None and until.at > time.time() else None
        self._was_asked = anyio.Event()
        self._limit = anyio.CancelScope()  # of the time in which segments are read
        self._takes = False  # a segment, and decides whether another one is wanted

    async def run(self) -> Received:
        try:
            with self._report.live(self._progress.line):
                reason = await self._watched()
        except TrickleError as error:
            if not _is_final(error):
                error.resume = self._output.position or self._output.unsaved or error.resume or self._resume()
            await self._last_error(error)
            raise
        except anyio.get_cancelled_exc_class():
            await self._last_end("signal")
            raise
        await self._last_end(reason)
        return Received(self._progress.statistics(), self._output.left_out)

    async def _watched(self) -> str:
        """Receive while other tasks tell of retries, and of a first segment that does not come; why it ended."""
        reason = "reader"
        try:
            async with anyio.create_task_group() as tasks:
                for watch in (self._watch_retries, self._watch_start, self._watch_end):
                    tasks.start_soon(watch)
                reason = await self._timed()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            _, failures = group.split(SinkClosed)  # without any, the reader of the output or of the events has gone
            if failures is not None:
                error = first_error(failures)
                raise error from error.__cause__
        return reason

    async def _timed(self) -> str:
        request = self._request
        with self._limit, anyio.move_on_after(request.for_s) as scope:
            async with self._output:
                start = await self._start()
                await self._report.tell(
                    "start", url=wire.redacted_urls(request.url), output=request.output, start=str(start)
                )
                if await self._begins_before_end(start):
                    await self._receive(start)
        return "time" if scope.cancelled_caught or self._is_over else "channel"

    async def _start(self) -> AnyStart:
        """Where to begin."""
        request = self._request
        if self._output.position is not None:
            return self._output.position
        if request.since is None:
            return request.start
        try:
            answer = await self._times.since(request.since)
        except ChannelNotFound:
            self._is_past = True
            return "earliest"
        return Position(answer.segments[0].seq, answer.epoch) if answer.segments else "next"

    # --until.

    async def _begins_before_end(self, start: AnyStart) -> bool:
        """If --until has passed, find the last segment: whether it, or one before it, is still to be read."""
        until = self._request.until
        if until is None or until.on(now := time.time()) > now:
            return True
        last, answer = await self._times.last(until)
        if last is None:
            raise TrickleError(f"{self._progress.channel} has nothing of the time before --until")
        self._wanted_to = answer.epoch, last.seq
        begin: Position | None = None
        with suppress(InvalidSeq):  # not a position, but "earliest"
            begin = Position.parse(str(start))
        self._is_over = begin is not None and self._is_behind(begin.epoch or answer.epoch, begin.seq)
        return not self._is_over

    async def _watch_end(self) -> None:
        """If --until is to come, wait for it and find the last segment; end a wait for one that is behind it."""
        if self._ends_at is None:
            return
        while (wait_s := self._ends_at - time.time()) > 0:  # noqa: ASYNC110 - the system's clock may be set meanwhile
            await anyio.sleep(min(wait_s, 1.0))
        with suppress(TrickleError):  # the server does not say: then it is the one that is being read
            last, answer = await self._times.last(Moment(at=self._ends_at))
            self._wanted_to = answer.epoch, -1 if last is None else last.seq
        self._was_asked.set()
        if self._subscriber is None or self._takes:
            return  # it is decided before the first segment, or behind the present one
        following = self._subscriber.position
        self._is_over = (
            following is None
            or following.epoch is None
            or self._wanted_to is None
            or self._is_behind(following.epoch, following.seq)
        )
        if self._is_over:
            self._limit.cancel()

    async def _is_last(self, segment: Segment, *, read: bool) -> bool:
        """Whether no segment behind this one is wanted, or this one neither, unless it was read already."""
        if self._ends_at is not None and time.time() >= self._ends_at:
            await self._was_asked.wait()
            self._is_over = self._wanted_to is None
        if self._wanted_to is not None and not self._is_over:
            self._is_over = self._is_behind(segment.epoch, segment.seq + read, restarted=segment.restarted)
        return self._is_over

    def _is_behind(self, epoch: int | None, seq: int, *, restarted: bool = False) -> bool:
        """Whether a segment lies behind the last one of --until, or in a numbering that began after it."""
        assert self._wanted_to is not None
        last_epoch, last_seq = self._wanted_to
        if epoch == last_epoch:
            return seq > last_seq
        return restarted or (epoch or 0) > last_epoch

    async def _receive(self, start: AnyStart) -> None:
        """Read to the end of the channel."""
        request = self._request
        self._subscriber = subscriber = Subscriber(
            request.url,
            start=start,
            on_lag=request.on_lag,
            on_event=self._on_event,
            wait_for_channel_s=request.wait_s,
            reconnect_s=request.reconnect_s,
            **request.credentials.arguments,
        )
        self._progress.statistics = subscriber.statistics
        async with subscriber:
            async for segment in subscriber:
                self._takes = True
                if await self._is_last(segment, read=False):
                    return
                await self._take(segment)
                if await self._is_last(segment, read=True):
                    return
                self._takes = False
        if missed := subscriber.missed_at_end:
            await self._report.tell("gap", missed=missed, before=None)
        await self._output.ended(subscriber.missed_at_end)

    async def _take(self, segment: Segment) -> None:
        self._segment = segment
        if self._progress.seq is None and (note := _misnamed(self._request, segment.content_type)):
            self._notes.append(note)
        self._progress.begun(segment.seq, segment.lag)
        if segment.gap:
            await self._report.tell("gap", missed=segment.gap, before=segment.seq)
        await self._output.begin(segment)
        first_at: float | None = None
        while chunk := await segment.read_some():
            first_at = anyio.current_time() if first_at is None else first_at
            await self._output.write(chunk)
        over_at = anyio.current_time()
        await self._output.end()
        self._segment = None
        self._progress.ended()
        await self._tell_notes()
        self._troubles.over()
        await self._report.tell(
            "segment",
            seq=segment.seq,
            epoch=segment.epoch,
            life=segment.life,
            bytes=segment.bytes_read,
            gap=segment.gap,
            restarted=segment.restarted,
            truncated=segment.truncated,
            broken=None if segment.broken is None else str(segment.broken),
            content_type=segment.content_type,
            lag=segment.lag,
            wait_ms=1000 * (segment.answered_at - segment.requested_at),
            first_byte_ms=None if first_at is None else 1000 * (first_at - segment.requested_at),
            read_ms=1000 * (over_at - segment.answered_at),
            file=self._output.file,
        )

    def _on_event(self, event: SubscriberEvent) -> None:
        if isinstance(event, Loss):
            self._report.say(f"warning: {event}")
        elif line := self._troubles.line(event):
            self._report.say(line)
        if isinstance(event, Retrying | SkippedAhead):
            if isinstance(event, Retrying):
                self._progress.state = "reconnecting"
            self._retries.append(str(event.error))
            self._noticed.set()

    async def _watch_retries(self) -> None:
        while True:
            self._noticed = anyio.Event()
            await self._tell_retries()
            await self._noticed.wait()

    async def _watch_start(self) -> None:
        """Say what the command waits for, if the first segment takes long to come."""
        await anyio.sleep(WAITING_S)
        if self._progress.seq is None and self._progress.statistics().requests:
            self._progress.newest_at = await self._times.newest_began()
        if self._progress.seq is None:
            text = self._progress.waiting()
            hint = "; --start current reads it from its beginning" if self._progress.newest_at is not None else ""
            await self._report.tell("note", f"{text}{hint}", message=text)

    async def _tell_retries(self) -> None:
        if self._retries:
            retries, error = len(self._retries), self._retries[-1]
            self._retries.clear()
            await self._report.tell("retry", retries=retries, error=error)

    async def _tell_notes(self) -> None:
        while self._notes:
            text = self._notes.popleft()
            await self._report.tell("note", f"warning: {text}", message=text)

    async def _last_end(self, reason: str) -> None:
        progress, resume = self._progress, _text(self._resume())
        line = progress.summary()
        if resume:
            line += f"; the next one is {resume}"
        elif not progress.statistics().segments and self._is_past:
            line += f"; {OF_THE_PAST}"
        elif not progress.statistics().segments and self._request.start == "next":
            line += f"; no segment of {progress.channel} began in this time"
        await self._last("end", line, reason=reason, resume=resume, totals=progress.totals())

    async def _last_error(self, error: TrickleError) -> None:
        totals, resume = self._progress.totals(), _text(error.resume)
        # Before the first segment, the error says enough; the command line prints it.
        lines = [self._progress.summary()] if totals["segments"] else []
        if lines and resume:
            target = self._request.output
            is_file = target not in (None, "-") and self._output.position is None  # a folder goes on where it was
            lines.append(f"to go on without loss: --start {resume}" + is_file * ", into another file: -o replaces one")
        await self._last("error", *lines, error=name_of(error), message=str(error), resume=resume, totals=totals)

    async def _last(self, event: str, *lines: str, **fields: object) -> None:
        """Tell the last event, also if the run was cancelled; do not wait for a reader that has gone, or stopped."""
        with suppress(TrickleError), anyio.move_on_after(REPORT_S, shield=True):
            await self._tell_retries()
            await self._tell_notes()
            await self._report.tell(event, *lines, **fields)

    def _resume(self) -> Position | None:
        """Where another run goes on without loss. A segment that was not read to its end is read again."""
        kept = self._output.position or self._output.unsaved
        if kept is not None:
            return kept
        if self._segment is not None:
            return self._segment.position
        return None if self._subscriber is None else self._subscriber.position


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)


def _is_final(error: TrickleError) -> bool:
    """Whether another run would fail in the same way: a server does not take the same token later."""
    return isinstance(error, BrokenByPeer) and error.status in (wire.Status.UNAUTHORIZED, wire.Status.FORBIDDEN)


# For people and programs.


class Report:
    """Tells people lines, or programs JSON.

    Args:
        sink: where programs read events, instead of people. :meth:`tell` waits for it, so that a slow reader is never
            more than one event behind.
    """

    def __init__(self, screen: Screen | None = None, sink: Output | None = None) -> None:
        self._screen = screen or Screen()
        self._sink = sink
        self._turn = anyio.Lock()  # two tasks may tell something at once, and one descriptor has one waiter

    async def tell(self, event: str, *lines: str, **fields: object) -> None:
        """Something happened.

        Args:
            event: its name in JSON.
            lines: for people.
            fields: for programs.

        Raises:
            SinkClosed: the reader of the events has gone.
        """
        if self._sink is None:
            for line in lines:
                self.say(line)
            return
        head = {"v": VERSION, "event": event, "time": time.time()}
        async with self._turn:
            await self._sink.write(json.dumps(_rounded(head | fields), ensure_ascii=False).encode() + b"\n")
            await self._sink.end()

    def say(self, line: str) -> None:
        if self._sink is None:
            self._screen.say(line)

    def live(self, line: Callable[[], str]) -> AbstractContextManager[None]:
        """Keep a line up to date while the block runs, for people on a terminal."""
        return self._screen.live(line) if self._sink is None else nullcontext()


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded(value) if isinstance(value, dict) else round(value, 3) if isinstance(value, float) else value
        for name, value in values.items()
    }


def name_of(error: TrickleError) -> str:
    """The name by which scripts know an error: of its type, or of the nearest one that can be imported."""
    return next(
        kind.__name__
        for kind in type(error).__mro__
        if any(getattr(module, kind.__name__, None) is kind for module in (errors, public))
    )


class Progress:
    """Counts, and the state at the moment.

    Args:
        clock: monotonic seconds.

    Attributes:
        seq: the newest segment; ``None`` before the first one.
        left_out: how many segments the output has nothing of.
        state: the work instead of reading; empty while segments are read.
        newest_at: when the newest segment began, as far as that is known.
    """

    def __init__(self, channel: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.channel = channel
        self.seq: int | None = None
        self.state = ""
        self.newest_at: float | None = None
        self.statistics: Callable[[], SubscriberStatistics] = SubscriberStatistics
        self.left_out: Callable[[], int] = int
        self._clock = clock
        self._began_at = clock()
        self._rate = RateMeter(clock)
        self._lag = 0
        self._waiting = True

    def begun(self, seq: int, lag: int) -> None:
        self.seq, self._lag, self.state, self._waiting = seq, lag, "", False
        self.newest_at = self._clock()

    def ended(self) -> None:
        """A segment has been read."""
        self._waiting = True

    def totals(self) -> dict[str, float]:
        """All so far, for programs."""
        now, seconds = self.statistics(), self._clock() - self._began_at
        return {"seconds": seconds, **{name: getattr(now, name) for name in COUNTED}, "left_out": self.left_out()}

    def summary(self) -> str:
        """All so far, in the last line for people: the bytes received, and the faults."""
        now = self.statistics()
        faults = [
            f"{count(now.gaps, 'gap')} ({count(now.missed, 'segment')} missed)" if now.gaps else "",
            f"{now.truncated} truncated" if now.truncated else "",
            f"{now.broken} cut" if now.broken else "",
            f"{left_out} left out" if (left_out := self.left_out()) else "",
        ]
        line = transferred("received", now.segments, now.bytes, self._clock() - self._began_at)
        return f"{line}; {', '.join(filter(None, faults)) or 'no gaps'}"

    def waiting(self) -> str:
        """Return words for the thing that the command waits for."""
        text = f"waiting for the next segment of {self.channel}"
        if self.newest_at is None:
            return text
        return f"{text}; the newest one began {self._clock() - self.newest_at:.0f} s ago"

    def line(self) -> str:
        """The state in one line. The most important words come first; the terminal cuts the rest."""
        now, seconds = self.statistics(), self._clock() - self._began_at
        waits = self._waiting and (self.newest_at is None or self._clock() - self.newest_at > WAITING_S)
        words = [self.state or (self.waiting() if waits else f"segment {self.seq}"), f"lag {self._lag}"]
        words += [rate(self._rate.bits_per_s(now.bytes)), size(now.bytes), f"{seconds:.0f} s"]
        words += [f"{now.missed} missed in {count(now.gaps, 'gap')}"] if now.gaps else []
        words += [f"{now.truncated + now.broken} cut"] if now.truncated + now.broken else []
        words += [count(now.retries, "retry", "retries")] if now.retries else []
        return " · ".join(words)


def open_output(request: Request, note: Callable[[str], None]) -> Output:
    """The output that the user named.

    Args:
        note: gets lines, for people, about oddities of the output.

    Raises:
        InvalidInput: nothing can be written there.
        TrickleError: a media file is wanted, and PyAV is not installed.
    """
    target = request.output
    if target is None:
        return Output()
    if is_folder(target):
        return FolderWriter(Path(target), channel_urls(request.url)[0].channel, keep=request.keep)
    if target != "-" and not request.raw and is_joined(Path(target)):
        return JoinedFile(Path(target), note, " (--raw, or another ending, takes any bytes)")
    return open_sink(target)


def is_folder(target: str) -> bool:
    """Whether that names a folder, which gets a file per segment."""
    return target not in ("", "-") and (target.endswith(os.sep) or Path(target).is_dir())


def _misnamed(request: Request, content_type: str) -> str:
    """The fault of the name of a file that gets a channel's bytes as they come; empty if it has none."""
    path = Path(request.output or "")
    promised = _NAMED.get(os.path.splitext(request.output or "")[1].lower(), content_type)
    is_made_anew = is_joined(path) and not request.raw
    if promised == content_type or content_type not in _FORMATS or is_made_anew:
        return ""
    name, fits = _FORMATS[content_type]
    return f"the channel is {name}, and so is {path}; a name that ends with {fits} would fit"
