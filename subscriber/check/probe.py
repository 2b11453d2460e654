"""Subscribes for a while, and writes down what comes and when."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import anyio
import anyio.to_thread
import httpx

from tricklecast.subscriber.check.content import Channel, Content
from tricklecast.subscriber.check.decode import first_picture, has_decoder
from tricklecast.subscriber.check.media import Container, Kind
from tricklecast.subscriber.check.observations import Ended, Head, Picture, Run, Seen
from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.segment import Segment
from tricklecast.trickle import wire
from tricklecast.trickle.client.transport import TrickleTransport
from tricklecast.trickle.errors import TrickleError, header_int
from tricklecast.trickle.records import Reason
from tricklecast.trickle.terminal import Bearer

MAX_SEGMENTS: Final = 20_000
"""A check ends after so many: its notes are in memory (about 2 kB each)."""

POLL_S: Final = 1.0
"""How often the server's head is asked for."""

POLL_TIMEOUT_S: Final = 10.0

_FORMATS: Final = {Container.MPEGTS: "mpegts", Container.FMP4: "mp4"}


@dataclass(frozen=True, slots=True)
class Order:
    """What to look at.

    Attributes:
        url: the channel.
        start: where to begin, as ``Subscriber`` takes it.
        for_s: how long to look, in seconds.
        wait_s: how long to wait for a channel that is not there yet, in seconds.
        decode: pictures are decoded, if PyAV is there.
        tls: what https servers are checked against; ``None``: the system's authorities.
        auth: adds an access token to requests, if there is one.
    """

    url: str
    start: str = "next"
    for_s: float = 30.0
    wait_s: float = 0.0
    decode: bool = True
    tls: ssl.SSLContext | None = None
    auth: Bearer | None = None


class Probe:
    """One look at a channel.

    Args:
        order: what to look at.
        unix_us: the wall clock, in microseconds since 1970.

    Raises:
        InvalidURL, InvalidChannelName, InvalidSeq: the order cannot be carried out.

    Attributes:
        size: bytes read so far.
    """

    def __init__(self, order: Order, unix_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self.size = 0
        self._order = order
        self._unix_us = unix_us
        self._client = httpx.AsyncClient(transport=TrickleTransport(order.tls or True), auth=order.auth)
        self._subscriber = Subscriber(
            order.url, start=order.start, wait_for_channel_s=order.wait_s, client=self._client
        )
        self._decoder = Decoder() if order.decode and has_decoder() else None
        self._channel = Channel()
        self._seen: list[Seen] = []
        self._heads: list[Head] = []
        self._reading = 0
        self._began_s = self._over_s = 0.0
        self._ended = Ended.INTERRUPTED
        self._error: TrickleError | None = None

    @property
    def segments(self) -> int:
        """How many segments were seen so far, without the one under way."""
        return len(self._seen)

    def run(self) -> Run:
        """What was seen; also after :meth:`look` was cancelled."""
        pictures = {} if self._decoder is None else self._decoder.pictures
        return Run(
            tuple(replace(seen, picture=pictures.get(seen.number)) for seen in self._seen),
            tuple(self._heads),
            self._over_s - self._began_s,
            self._ended,
            "" if self._error is None else str(self._error),
            self._subscriber.missed_at_end,
            self._subscriber.statistics().resumed,
            self._decoder is not None,
        )

    async def look(self) -> None:
        """Subscribe until the time is over or the channel is.

        Raises:
            TrickleError: the subscription failed before there was any segment. A later failure is part of the run.
        """
        self._began_s = anyio.current_time()
        try:
            async with self._client, anyio.create_task_group() as tasks:
                if self._decoder is not None:
                    tasks.start_soon(self._decoder.work)
                try:
                    await self._look()
                finally:
                    self._over_s = anyio.current_time()
                    if self._decoder is not None:
                        self._decoder.end()
        finally:
            self._over_s = self._over_s or anyio.current_time()
        if self._error is not None and not self._seen:
            raise self._error

    async def _look(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask_for_head)
            with anyio.move_on_after(self._order.for_s) as limit:
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
            if len(self._seen) >= MAX_SEGMENTS:
                self._ended = Ended.FULL
                return
            content = self._channel.segment(follows=follows and not segment.gap and not segment.restarted)
            await self._read(segment, content)
            follows = self._seen[-1].whole
        self._ended = Ended.CHANNEL

    async def _read(self, segment: Segment, content: Content) -> None:
        taken_s = first_s = last_s = anyio.current_time()
        self._reading = segment.seq
        left = True
        try:
            async for chunk in segment:
                last_s = anyio.current_time()
                first_s = first_s if content.size else last_s
                content.feed(chunk)
                self.size += len(chunk)
            left = False
        finally:
            seen = self._seen_of(segment, content, left=left)
            self._seen.append(replace(seen, taken_s=taken_s, first_s=first_s, last_s=last_s))
        self._reading = segment.seq + 1
        if self._decoder is not None:
            self._decoder.offer(self._seen[-1], content)

    def _seen_of(self, segment: Segment, content: Content, *, left: bool) -> Seen:
        skipped = segment.truncated == Reason.SKIPPED
        since_s = anyio.current_time() - segment.answered_at
        return Seen(
            len(self._seen),
            segment.seq,
            epoch=segment.epoch,
            gap=segment.gap,
            restarted=segment.restarted,
            content_type=segment.content_type,
            size_at_start=segment.size_at_start,
            skipped=skipped,
            truncated=None if skipped else segment.truncated,
            broken=None if segment.broken is None else str(segment.broken),
            left=left,
            size=content.size,
            requested_s=segment.requested_at,
            answered_s=segment.answered_at,
            wall_us=self._unix_us() - round(since_s * 1e6),
            media=content.finish(),
            producer_us=content.producer_us(),
        )

    async def _ask_for_head(self) -> None:
        """Ask the server for its head every now and then, as long as it answers that."""
        url = self._subscriber.url.next()
        while True:
            asked_s = anyio.current_time()
            try:
                response = await self._client.get(url, timeout=POLL_TIMEOUT_S)
            except httpx.HTTPError:
                response = None  # the subscription itself says what is wrong
            now_s = anyio.current_time()
            if response is not None and response.status_code == wire.Status.BAD_REQUEST:
                return  # a server from before July 2026 has no such route
            head = None if response is None else header_int(response.headers, wire.LATEST)
            if head is not None and self._seen:
                self._heads.append(Head(now_s, now_s - asked_s, head, self._reading))
            await anyio.sleep(POLL_S)


class Decoder:
    """Decodes first pictures in a thread, one at a time; what comes while it is busy waits, and then is left out.

    Attributes:
        pictures: what came of them, by the segment's number in the check.
    """

    def __init__(self) -> None:
        self.pictures: dict[int, Picture] = {}
        self._send, self._receive = anyio.create_memory_object_stream[tuple[int, bytes, str]](1)

    def offer(self, seen: Seen, content: Content) -> None:
        """Decode the first picture of a segment, if there is time for it."""
        format_ = _FORMATS.get(seen.media.container)
        has_video = any(track.kind is Kind.VIDEO for track in seen.media.tracks)
        if format_ is not None and has_video and seen.whole:
            with suppress(anyio.WouldBlock):
                self._send.send_nowait((seen.number, bytes(content.head), format_))

    def end(self) -> None:
        """No more are offered; what waits is still decoded."""
        self._send.close()

    async def work(self) -> None:
        """Decode until the end."""
        async with self._receive:
            async for number, head, format_ in self._receive:
                picture = await anyio.to_thread.run_sync(first_picture, head, format_)
                if picture is not None:
                    self.pictures[number] = picture
