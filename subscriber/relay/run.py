"""One run of ``tricklecast relay``: reads a channel, and pushes it to another server at the pace at which it plays.

Theory of operation
===================

A reader takes whole segments into a queue; a sender turns each into pieces, and passes them on when they are due. So a
target gets an even stream, one segment behind the channel. While the target is away or too slow, the queue fills, and
its oldest segments are dropped: the stream then goes on at a key picture. The sender makes a connection that breaks
anew, after growing random pauses, and begins with the newest segments. A connection counts as good once it has lasted
for a while: a server that takes a connection and refuses the stream has not come back.
"""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Final

import anyio
from anyio import to_thread

from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.core import AnyStart, OnLag
from tricklecast.subscriber.events import Loss, SubscriberEvent
from tricklecast.subscriber.relay.outflow import Outflow, Piece
from tricklecast.subscriber.relay.target import ConnectionBroke, Push, Target
from tricklecast.subscriber.troubles import Troubles
from tricklecast.trickle.amounts import count, rate, size
from tricklecast.trickle.client.retry import RECONNECT_S, Retries
from tricklecast.trickle.client.tasks import Notifier, beside
from tricklecast.trickle.errors import ConnectionLost, TrickleError
from tricklecast.trickle.pyav import need_pyav
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials, RateMeter, Screen

QUEUE_SEGMENTS: Final = 8
QUEUE_BYTES: Final = 64 << 20
"""More than these do not wait for the target: the oldest are dropped. One segment may wait in any case."""

MIN_LIFE_S: Final = 5.0
"""A connection that lasted less was never good."""

LATE_S: Final = 1.0
"""Media that comes later than this, with nothing behind it, sets the pace anew: the source had a pause."""


@dataclass(frozen=True, slots=True)
class Request:
    """The user's request; times are in seconds.

    Attributes:
        start: where to begin, as of :class:`~tricklecast.subscriber.Subscriber`.
        wait_s: how long to wait for a channel that does not exist; ``None``: for ever.
        reconnect_s: how long the channel's server, and the target, may be away; ``None``: for ever.
    """

    url: str
    target: Target
    start: AnyStart = "current"
    wait_s: float | None = 0.0
    reconnect_s: float | None = RECONNECT_S
    credentials: Credentials = NO_CREDENTIALS


@dataclass(frozen=True, slots=True)
class _Waiting:
    seq: int
    data: bytes
    is_whole: bool
    follows: bool


async def run(request: Request, screen: Screen | None = None) -> bool:
    """Push a channel until it ends.

    Returns:
        Whether the target got all of it.

    Raises:
        TrickleError: the channel cannot be read, or the target cannot be reached for too long.
    """
    need_pyav()
    return await _Relay(request, screen or Screen()).run()


class _Relay:
    def __init__(self, request: Request, screen: Screen) -> None:
        self._request = request
        self._screen = screen
        self._rng = Random()
        self._queue: deque[_Waiting] = deque()
        self._queued = 0  # bytes
        self._changed = Notifier()
        self._is_over = False  # the channel has ended
        self._outflow = Outflow(lambda text: screen.say(f"warning: {text}"))
        self._push: Push | None = None
        self._pace = _Pace()
        self._begun_at = 0.0
        self._retries = Retries(reconnect_s=request.reconnect_s)  # of the target
        self._was_good = False
        self._troubles = Troubles()  # of the source
        self._dropped = self._sent = 0
        self._is_whole = True
        self._is_dropping = False
        self._rate = RateMeter()
        self._state = "waiting for the channel"

    async def run(self) -> bool:
        try:
            with self._screen.live(self._line):
                await beside(self._read, self._send)
        finally:
            if self._push is not None:
                await self._push.stop()
            shown = self._request.target.shown
            dropped = f", {count(self._dropped, 'segment')} dropped" if self._dropped else ""
            if self._begun_at:
                self._screen.say(f"sent {size(self._sent)} to {shown}{dropped}")
            elif sys.exc_info()[0] is None:  # an error in front of all says enough
                self._screen.say(f"nothing was sent to {shown}: the channel has ended, and had nothing to send")
        return self._is_whole and not self._dropped

    def _line(self) -> str:
        words = [self._state, rate(self._rate.bits_per_s(self._sent)), size(self._sent)]
        words += [f"{self._dropped} dropped"] if self._dropped else []
        return " · ".join([*words, f"{len(self._queue)} waiting"])

    # Reading.

    async def _read(self) -> None:
        request = self._request
        subscriber = Subscriber(
            request.url,
            start=request.start,
            on_lag=OnLag.EARLIEST,
            on_event=self._on_event,
            wait_for_channel_s=request.wait_s,
            reconnect_s=request.reconnect_s,
            **request.credentials.arguments,
        )
        async with subscriber:
            async for segment in subscriber:
                try:
                    data = await segment.read()
                except ConnectionLost:  # it broke: its rest cannot be had; what came before is still there
                    data = await segment.read_some()
                self._troubles.over()
                if data:
                    self._add(_Waiting(segment.seq, data, segment.complete, not segment.gap and not segment.restarted))
        self._is_over = True
        self._changed.notify()
        await anyio.sleep_forever()  # the sender ends the run

    def _on_event(self, event: SubscriberEvent) -> None:
        if isinstance(event, Loss):
            self._is_whole = False
            self._screen.say(f"warning: {event}")
        elif line := self._troubles.line(event):
            self._screen.say(line)

    def _add(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        self._queued += len(waiting.data)
        while len(self._queue) > 1 and (len(self._queue) > QUEUE_SEGMENTS or self._queued > QUEUE_BYTES):
            self._drop()
        self._changed.notify()

    def _drop(self) -> None:
        self._queued -= len(self._queue.popleft().data)
        self._dropped += 1
        if not self._is_dropping and self._push is not None:  # of one that is away, people know already
            self._screen.say("warning: the target is too slow: segments are dropped, and it goes on at a key picture")
        self._is_dropping = True

    # Sending.

    async def _send(self) -> None:
        while (waiting := await self._next()) is not None:
            follows = waiting.follows and not self._is_dropping
            self._is_dropping = False
            pieces = await to_thread.run_sync(self._pieces, waiting, follows)
            await self._pass(pieces)
        await self._pass(await to_thread.run_sync(self._rest))
        if self._push is not None:
            try:
                await self._push.end()
            except ConnectionBroke as error:
                if not self._was_ever_good():
                    raise self._failed(error) from error
                self._is_whole = False
                self._screen.say(f"warning: {self._request.target.shown}: {error}")

    async def _next(self) -> _Waiting | None:
        while not self._queue:
            if self._is_over:
                return None
            await self._changed.wait()
        waiting = self._queue.popleft()
        self._queued -= len(waiting.data)
        self._state = f"segment {waiting.seq}"
        return waiting

    def _pieces(self, waiting: _Waiting, follows: bool) -> list[Piece]:
        name = f"segment {waiting.seq}"
        self._outflow.add(io.BytesIO(waiting.data), name, whole=waiting.is_whole, follows=follows)
        return self._outflow.take()

    def _rest(self) -> list[Piece]:
        self._outflow.close()
        return self._outflow.take()

    async def _pass(self, pieces: list[Piece]) -> None:
        """Pass a segment's pieces on when they are due; a connection that breaks costs the rest of them."""
        try:
            for piece in pieces:
                if piece.begins:
                    await self._connect()
                assert self._push is not None, "each stream begins with a piece that says so"
                await self._pace.wait(piece.due_s, is_behind=bool(self._queue))
                await self._push.send(piece.data)
                self._sent += len(piece.data)
        except ConnectionBroke as error:
            await self._broke(error)

    async def _connect(self) -> None:
        if self._push is not None:  # the media has changed
            push, self._push = self._push, None
            try:
                await push.end()
            finally:
                await push.stop()
        self._pace = _Pace()
        self._begun_at = time.monotonic()
        self._push = await Push.begin(self._request.target)

    async def _broke(self, error: ConnectionBroke) -> None:
        """Say why, and wait before the next attempt.

        Raises:
            TrickleError: it has been tried for long enough, or there never was a connection.
        """
        if self._push is not None:
            await self._push.stop()
            self._push = None
        shown, limit_s = self._request.target.shown, self._request.reconnect_s
        delay_s = self._retries.outlast(time.monotonic(), self._rng) if self._was_ever_good() else None
        if delay_s is None:
            raise self._failed(error) from error
        self._is_whole = False
        if self._retries.tries == 1:
            how_long = "" if limit_s is None else f"for {limit_s:g} s "
            self._screen.say(f"warning: {shown}: {error}; trying {how_long}to connect again")
        self._state = f"reconnecting, attempt {self._retries.tries}"
        await anyio.sleep(delay_s)
        while len(self._queue) > 1:  # it goes on live
            self._drop()
        await to_thread.run_sync(self._outflow.renew)

    def _was_ever_good(self) -> bool:
        """Judge the connection that has ended: whether the target ever took the stream."""
        if time.monotonic() - self._begun_at >= MIN_LIFE_S:
            self._retries.worked()
            self._was_good = True
        return self._was_good

    def _failed(self, error: ConnectionBroke) -> TrickleError:
        return TrickleError(f"cannot push to {self._request.target.shown}: {error}")


class _Pace:
    """Lets pieces wait until they are due."""

    def __init__(self) -> None:
        self._begun_at: float | None = None  # when the piece due at 0 was due

    async def wait(self, due_s: float, *, is_behind: bool) -> None:
        """Wait for a moment of the stream.

        Args:
            is_behind: more media waits already, so that to be late is the target's fault, and is made up for.
        """
        now = time.monotonic()
        if self._begun_at is None or (now - self._begun_at - due_s > LATE_S and not is_behind):
            self._begun_at = now - due_s
        await anyio.sleep(max(0.0, self._begun_at + due_s - now))
