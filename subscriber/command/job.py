"""What ``tricklecast subscribe`` does: segments of a channel into an output, and everybody told."""

from __future__ import annotations

import ssl
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

import anyio

from tricklecast.subscriber.archive import Keep
from tricklecast.subscriber.client import Subscriber
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
    Totals,
    name_of,
)
from tricklecast.subscriber.command.listing import start_since
from tricklecast.subscriber.command.outputs import open_output
from tricklecast.subscriber.command.progress import Progress
from tricklecast.subscriber.command.reporting import People, Programs, Reporter
from tricklecast.subscriber.core import OnLag
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import SinkClosed, descriptor_sink
from tricklecast.trickle.backoff import Backoff
from tricklecast.trickle.client.transport import TrickleTransport
from tricklecast.trickle.errors import BrokenByPeer, Position, TrickleError
from tricklecast.trickle.terminal import Bearer
from tricklecast.trickle.wire import Status, redacted

WATCH_S: Final = 0.25
"""How often it is looked whether requests had to be made again."""

REPORT_S: Final = 1.0
"""How long a last event may take that nobody seems to read."""

RECONNECT: Final = Backoff(base_s=0.5, cap_s=30.0)
"""Between subscriptions; each has made its own, quicker retries before."""


class FailOn(StrEnum):
    """Which losses make a run that came to its end a failed one."""

    NEVER = "never"
    GAP = "gap"
    """Segments were missed."""

    LOSS = "loss"
    """Segments were missed, truncated or cut."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for.

    Attributes:
        url: the channel.
        output: a path, ``-``, or ``None`` for no output.
        start: as the command line has it. since_s: instead of it, how long ago, in seconds.
        for_s: seconds after which to stop; ``None``: at the channel's end.
        wait_s: how long to wait for the channel to begin, in seconds.
        on_lag: where to go on after falling behind.
        reconnect: whether to begin again after an error, for as long as it takes.
        raw: bytes as they come, whatever the output's name.
        keep: how much a folder may hold.
        tls: what https servers are checked against; ``None``: the system's authorities.
        auth: adds an access token to requests, if there is one.
    """

    url: str
    output: str | None
    start: str = "next"
    for_s: float | None = None
    wait_s: float = 0.0
    on_lag: OnLag = OnLag.LIVE
    reconnect: bool = False
    raw: bool = False
    keep: Keep = field(default_factory=Keep)
    tls: ssl.SSLContext | None = None
    auth: Bearer | None = None
    since_s: float | None = None


async def run(request: Request, reporter: Reporter | None = None, rng: Random | None = None) -> Totals:
    """Receive a channel until its end, or until the time is over.

    Args:
        request: what to do.
        reporter: who is told about it; people, on standard error, by default.
        rng: where jitter comes from.

    Raises:
        TrickleError: what ``Subscriber`` and the outputs raise. A reader of the output who goes is no error.
    """
    return await _Run(request, People() if reporter is None else reporter, rng or Random()).run()


def reports_on(descriptor: int) -> Reporter:
    """Events as JSON to an open file, terminal or pipe."""
    return Programs(descriptor_sink(descriptor))


class _Run:
    """One run of the command."""

    def __init__(self, request: Request, reporter: Reporter, rng: Random) -> None:
        self._request = request
        self._reporter = reporter
        self._rng = rng
        self._progress = Progress()
        self._notes: deque[str] = deque()
        self._output = open_output(request.output, request.url, self._notes.append, raw=request.raw, keep=request.keep)
        self._subscriber: Subscriber | None = None
        self._segment: Segment | None = None
        self._retries_told = 0

    async def run(self) -> Totals:
        try:
            with self._reporter.live(self._progress):
                reason = await self._watched()
        except TrickleError as error:
            error.resume = self._output.position or error.resume or self._resume()
            totals = self._progress.totals()
            await self._last(Failed(name_of(error), str(error), _text(error.resume), totals))
            raise
        except anyio.get_cancelled_exc_class():
            await self._last(Ended("signal", _text(self._resume()), self._progress.totals()))
            raise
        totals = self._progress.totals()
        await self._last(Ended(reason, _text(self._resume()), totals))
        return totals

    async def _watched(self) -> str:
        """Receive while another task looks for retries; why it ended."""
        failure: TrickleError | None = None
        reason = "reader"
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch, group.cancel_scope)
            try:
                reason = await self._timed()
            except SinkClosed:
                pass
            except TrickleError as error:
                failure = error  # not through the group, which would wrap it
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return reason

    async def _timed(self) -> str:
        with anyio.move_on_after(self._request.for_s) as scope:
            async with self._output:
                start = self._output.position or await self._begin()
                await self._reporter.tell(Started(redacted(self._request.url), self._request.output, str(start)))
                await self._receive(start)
        return "time" if scope.cancelled_caught else "channel"

    async def _begin(self) -> str:
        """Where to begin, as a start."""
        request = self._request
        if request.since_s is None:
            return request.start
        return await start_since(request.url, request.since_s, TrickleTransport(request.tls or True), request.auth)

    async def _receive(self, start: str | Position) -> None:
        """Subscribe, and again after errors if that is wished for, until the channel ends."""
        failures = 0
        while True:
            self._subscriber = subscriber = Subscriber(
                self._request.url,
                start=start,
                on_lag=self._request.on_lag,
                wait_for_channel_s=self._request.wait_s,
                transport=TrickleTransport(self._request.tls or True),
                auth=self._request.auth,
            )
            self._progress.subscribed(subscriber)
            try:
                async with subscriber:
                    async for segment in subscriber:
                        await self._take(segment)
                        failures = 0
                if subscriber.missed_at_end:
                    await self._reporter.tell(Gap(subscriber.missed_at_end, None))
                await self._output.ended(subscriber.missed_at_end)
                return
            except BrokenByPeer as error:
                if not self._request.reconnect or _is_final(error):
                    raise
                start = error.resume or start
                failures += 1
                told_s = getattr(error, "retry_after", None) or 0.0
                delay_s = RECONNECT.delay(failures, self._rng, floor_s=max(RECONNECT.base_s, told_s))
                self._progress.state = "reconnecting"
                await self._reporter.tell(Reconnecting(name_of(error), str(error), str(start), delay_s))
            await anyio.sleep(delay_s)

    async def _take(self, segment: Segment) -> None:
        self._segment = segment
        self._progress.begun(segment.seq, segment.lag)
        if segment.gap:
            await self._reporter.tell(Gap(segment.gap, segment.seq))
        await self._output.begin(segment)
        first_at: float | None = None
        async for chunk in segment:
            first_at = anyio.current_time() if first_at is None else first_at
            await self._output.write(chunk)
        over_at = anyio.current_time()
        await self._output.end()
        self._segment = None
        await self._tell_notes()
        await self._reporter.tell(self._read(segment, first_at, over_at))

    def _read(self, segment: Segment, first_at: float | None, over_at: float) -> SegmentRead:
        return SegmentRead(
            segment.seq,
            segment.epoch,
            segment.life,
            segment.bytes_read,
            segment.gap,
            segment.restarted,
            segment.truncated,
            None if segment.broken is None else str(segment.broken),
            segment.content_type,
            segment.lag,
            1000 * (segment.answered_at - segment.requested_at),
            None if first_at is None else 1000 * (first_at - segment.requested_at),
            1000 * (over_at - segment.answered_at),
            self._output.file,
        )

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """Tell of retries; the library counts them, and has nobody to tell."""
        try:
            while True:
                await anyio.sleep(WATCH_S)
                await self._tell_retries()
        except SinkClosed:
            scope.cancel()

    async def _tell_retries(self) -> None:
        retries = self._progress.totals().retries - self._retries_told
        if retries:
            self._retries_told += retries
            await self._reporter.tell(Retry(retries, str(self._progress.statistics.last_error)))

    async def _tell_notes(self) -> None:
        while self._notes:
            await self._reporter.tell(Note(self._notes.popleft()))

    async def _last(self, event: Event) -> None:
        """Tell the last event, also if the run was cancelled; a reader who is gone, or stuck, is not waited for."""
        with suppress(TrickleError), anyio.move_on_after(REPORT_S, shield=True):
            await self._tell_retries()
            await self._tell_notes()
            await self._reporter.tell(event)

    def _resume(self) -> Position | None:
        """Where another run would go on without loss: a segment that was not read to its end is read again."""
        if self._output.position is not None:
            return self._output.position
        if self._segment is not None:
            return self._segment.position
        return None if self._subscriber is None else self._subscriber.position


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)


def _is_final(error: BrokenByPeer) -> bool:
    """Whether asking again cannot help: the same token will not be taken for another one."""
    return error.status in (Status.UNAUTHORIZED, Status.FORBIDDEN)
