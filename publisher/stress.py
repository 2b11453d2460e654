"""The publishing side of ``tricklecast stress``: keeps to a schedule, whatever the server does.

A segment's chunks are due at fixed times. One that is late is written at once, and its latency counts from when it was
due: a server that holds its publishers up cannot hide that.
"""

from __future__ import annotations

import hashlib
import ssl
from contextlib import suppress
from dataclasses import fields

import anyio
import httpx
from anyio.abc import TaskStatus

from tricklecast.publisher.client import Publisher, Segment
from tricklecast.trickle import wire
from tricklecast.trickle.errors import ConnectionLost, TrickleError, error_for
from tricklecast.trickle.load import CONTENT_TYPE, Load
from tricklecast.trickle.stress import Desk, Left, Orders, Seat, Sent


async def work(orders: Orders, desk: Desk) -> None:
    """Publish on every seat's channel, and end the channels when the run does.

    The channels exist when ``desk.ready()`` is called: a subscriber that waits for its channel would take one that
    ends before anything is published for the past of one that is still to begin.
    """
    block = orders.load.block()
    start = _Start()
    verify = ssl.create_default_context(cafile=orders.ca_file) if orders.ca_file else True
    seats = [_Seat(seat, orders.load, block, desk, start) for seat in orders.seats]
    async with anyio.create_task_group() as tasks:
        async with httpx.AsyncClient(verify=verify) as client:
            for seat in seats:
                await tasks.start(seat.run, verify, client)
        start.at(await desk.ready())
        for seat in seats:
            await seat.finished.wait()
        desk.finished()


class _Start:
    """When the first segment is due, once that is known."""

    def __init__(self) -> None:
        self.ns = 0
        self._known = anyio.Event()

    def at(self, ns: int) -> None:
        self.ns = ns
        self._known.set()

    async def wait(self) -> None:
        await self._known.wait()


class _Seat:
    """One channel's publisher.

    Attributes:
        finished: it will publish no more.
    """

    def __init__(self, seat: Seat, load: Load, block: bytes, desk: Desk, start: _Start) -> None:
        self.finished = anyio.Event()
        self._seat = seat
        self._load = load
        self._block = block
        self._desk = desk
        self._start = start

    async def run(
        self, verify: ssl.SSLContext | bool, client: httpx.AsyncClient, *, task_status: TaskStatus[None]
    ) -> None:
        error, entered = "", False
        # Not start=0: who has asked for its position knows that there is a server, and then always ends its channel.
        publisher = Publisher(
            self._seat.url, content_type=CONTENT_TYPE, start="resume", when_full="wait", verify=verify
        )
        try:
            await _create(client, self._seat.url)
            async with publisher:
                task_status.started()
                entered = True
                await self._start.wait()
                await self._publish(publisher)
                self.finished.set()
                await self._desk.closed()
        except TrickleError as failure:
            error = str(failure)
        if not entered:
            task_status.started()
        self.finished.set()
        await self._desk.record(Left("publisher", self._seat.channel, 0, 0, error, _counts(publisher)))

    async def _publish(self, publisher: Publisher) -> None:
        async with anyio.create_task_group() as fates:
            for ordinal in range(self._load.segments):
                await self._until(self._start.ns + self._load.begins_ns(self._seat.channel, ordinal))
                if self._desk.is_closed or publisher.error is not None:
                    break
                # A server that is slow to confirm one segment must not delay the next one.
                segment = publisher.segment(wait=False)
                sent = await self._write(segment, ordinal)
                fates.start_soon(self._settle, segment, sent)
        if publisher.error is not None:
            raise publisher.error

    async def _write(self, segment: Segment, ordinal: int) -> Sent:
        """Write one segment; what was written, and how late."""
        channel, load = self._seat.channel, self._load
        begins_ns = self._start.ns + load.begins_ns(channel, ordinal)
        pieces = -(-load.size(channel, ordinal) // load.chunk_bytes)
        step_ns = load.every_s * 1e9 / pieces
        digest, size, behind_ns, due_ns, error = hashlib.sha256(), 0, 0, begins_ns, ""
        try:
            async with segment:
                for number, chunk in enumerate(load.chunks(self._block, channel, ordinal)):
                    due_ns = await self._until(begins_ns + int(number * step_ns))
                    behind_ns = max(behind_ns, self._desk.now() - due_ns)
                    await segment.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
        except TrickleError as failure:
            error = str(failure)
        return Sent(channel, ordinal, -1, size, digest.hexdigest(), min(begins_ns, due_ns), due_ns, behind_ns, error)

    async def _settle(self, segment: Segment, sent: Sent) -> None:
        """Report a segment when its fate is known."""
        seq, error = -1, ""
        try:
            seq = (await segment.settled()).seq
        except TrickleError as failure:
            error = sent.error or str(failure)
            with suppress(TrickleError):  # it never got as far as that
                seq = segment.seq
        await self._desk.record(sent._replace(seq=seq, error=error))

    async def _until(self, due_ns: int) -> int:
        """Wait until something is due; returns when it was. At the end of the run everything is due at once."""
        now_ns = self._desk.now()
        if now_ns < due_ns:
            with anyio.move_on_after((due_ns - now_ns) / 1e9):
                await self._desk.closed()
                return min(due_ns, self._desk.now())
            self._desk.woke(self._desk.now() - due_ns)
        return due_ns


async def _create(client: httpx.AsyncClient, url: str) -> None:
    """Have the server create a channel.

    Raises:
        ConnectionLost: it does not answer.
        TrickleError: it says no.
    """
    try:
        answer = await client.post(url, headers={wire.EXPECT_CONTENT: CONTENT_TYPE})
    except httpx.HTTPError as error:
        raise ConnectionLost(detail=f"the channel cannot be created: {error or type(error).__name__}") from None
    if not answer.is_success:
        raise error_for(answer.status_code, answer.headers, detail=answer.text.partition("\n")[0])


def _counts(publisher: Publisher) -> dict[str, int]:
    statistics = publisher.statistics()
    return {f.name: n for f in fields(statistics) if type(n := getattr(statistics, f.name)) is int}
