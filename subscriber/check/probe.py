"""Subscribes to a channel for a while, and writes down which segments come and when.

A thread looks into the segments, one after the other. While it is busy, one more segment waits; then reading does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import anyio
import anyio.to_thread

from tricklecast.subscriber.check.media import Media, MediaReader, SegmentBytes
from tricklecast.subscriber.check.study import Ended, Head, Received, Run
from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.core import AnyStart
from tricklecast.subscriber.segment import Segment
from tricklecast.trickle.client.channel import Channel
from tricklecast.trickle.client.retry import RECONNECT_S
from tricklecast.trickle.errors import BrokenByPeer, TrickleError
from tricklecast.trickle.records import Reason
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials
from tricklecast.trickle.wire import Status

MAX_SEGMENTS: Final = 20_000
"""A check ends after this many segments: its notes are in memory (about 2 kB each)."""

POLL_S: Final = 1.0
"""Seconds between two requests for the server's head."""


class Probe:
    """One look at a channel.

    Args:
        start: where to begin, as ``Subscriber`` takes it.
        for_s: how long to read, in seconds.
        wait_s: how long to wait for a channel that is not there yet, in seconds; ``None``: for ever.
        reconnect_s: how long a server that was there may be away, likewise.
        decode: decode the first picture of segments, if PyAV is there.

    Raises:
        InvalidInput: an argument is wrong.

    Attributes:
        size: bytes read so far.
    """

    def __init__(
        self,
        url: str,
        *,
        start: AnyStart = "next",
        for_s: float = 30.0,
        wait_s: float | None = 0.0,
        reconnect_s: float | None = RECONNECT_S,
        decode: bool = True,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self.size = 0
        self._for_s = for_s
        self._decode = decode
        self._subscriber = Subscriber(
            url, start=start, wait_for_channel_s=wait_s, reconnect_s=reconnect_s, **credentials.arguments
        )
        self._channel = Channel(url, **credentials.arguments)
        self._segments: list[Received] = []
        self._media: dict[int, Media] = {}
        self._reader = MediaReader()
        self._jobs, self._todo = anyio.create_memory_object_stream[tuple[int, Callable[..., Media]]](1)
        self._heads: list[Head] = []
        self._reading = 0
        self._began_s = self._over_s = 0.0
        self._ended = Ended.INTERRUPTED
        self._error: TrickleError | None = None

    @property
    def segments(self) -> int:
        """How many segments were read so far, without the one under way."""
        return len(self._segments)

    def run(self) -> Run:
        """Return the segments that were received, also after :meth:`look` was cancelled."""
        return Run(
            tuple(replace(one, media=self._media.get(one.number, one.media)) for one in self._segments),
            tuple(self._heads),
            self._over_s - self._began_s,
            self._ended,
            "" if self._error is None else str(self._error),
            self._subscriber.missed_at_end,
            self._subscriber.statistics().resumed,
        )

    async def look(self) -> None:
        """Subscribe until the time is over or the channel is.

        Raises:
            TrickleError: the subscription failed before there was any segment. A later failure is part of the run.
        """
        self._began_s = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_into_segments)
            try:
                await self._look()
            finally:
                self._over_s = anyio.current_time()
                self._jobs.close()
        if self._error is not None and not self._segments:
            raise self._error

    async def _look(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask_for_head)
            with anyio.move_on_after(self._for_s) as limit:
                try:
                    async with self._subscriber:
                        await self._subscribe()
                except TrickleError as error:
                    self._ended, self._error = Ended.ERROR, error
            if limit.cancelled_caught:
                self._ended = Ended.TIME
            tasks.cancel_scope.cancel()

    async def _subscribe(self) -> None:
        follows = False
        async for segment in self._subscriber:
            if len(self._segments) >= MAX_SEGMENTS:
                self._ended = Ended.FULL
                return
            follows = await self._read(segment, follows=follows and not segment.gap and not segment.restarted)
        self._ended = Ended.CHANNEL

    async def _read(self, segment: Segment, *, follows: bool) -> bool:
        """Read a segment; whether the next one can join it."""
        taken_s = first_s = last_s = anyio.current_time()
        self._reading = segment.seq
        content = SegmentBytes()
        left = True
        try:
            async for chunk in segment:
                last_s = anyio.current_time()
                first_s = first_s if content.size else last_s
                content.add(chunk)
                self.size += len(chunk)
            left = False
        finally:
            received = self._received(segment, content.size, left=left)
            self._segments.append(replace(received, taken_s=taken_s, first_s=first_s, last_s=last_s))
            container, data = content.take()
            job = received.number, partial(self._reader.read, container, data, follows=follows, whole=received.whole)
            self._media[received.number] = Media(container, unread="the check was interrupted")
            if left:  # this task has been cancelled
                with suppress(anyio.WouldBlock):
                    self._jobs.send_nowait(job)
        self._reading = segment.seq + 1
        await self._jobs.send(job)
        return received.whole

    def _received(self, segment: Segment, size: int, *, left: bool) -> Received:
        skipped = segment.truncated == Reason.SKIPPED
        since_s = anyio.current_time() - segment.answered_at
        return Received(
            len(self._segments),
            segment.seq,
            epoch=segment.epoch,
            gap=segment.gap,
            restarted=segment.restarted,
            content_type=segment.content_type,
            skipped=skipped,
            truncated=None if skipped else segment.truncated,
            broken=None if segment.broken is None else str(segment.broken),
            left=left,
            size=size,
            requested_s=segment.requested_at,
            answered_s=segment.answered_at,
            wall_us=time.time_ns() // 1000 - round(since_s * 1e6),
        )

    async def _look_into_segments(self) -> None:
        """Also after a cancellation: the report has the segments read by then."""
        with anyio.CancelScope(shield=True):
            async with self._todo:
                async for number, look in self._todo:
                    # Decoding is the first thing that a busy machine goes without.
                    decode = self._decode and not self._todo.statistics().current_buffer_used
                    self._media[number] = await anyio.to_thread.run_sync(partial(look, decode=decode))

    async def _ask_for_head(self) -> None:
        """Ask the server for its head every now and then, as long as it answers that."""
        async with self._channel as channel:
            while True:
                asked_s = anyio.current_time()
                try:
                    head = await channel.head()
                except TrickleError as error:  # the subscription itself reports the fault
                    if isinstance(error, BrokenByPeer) and error.status == Status.BAD_REQUEST:
                        return  # a server from before July 2026 has no such route
                else:
                    now_s = anyio.current_time()
                    if self._segments:
                        self._heads.append(Head(now_s, now_s - asked_s, head.next_seq, self._reading))
                await anyio.sleep(POLL_S)
