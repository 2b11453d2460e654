"""The subscribing side of ``tricklecast stress``: reads, hashes and reports every segment."""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import fields

import anyio
from anyio.abc import TaskStatus

from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.transport import TrailerTransport
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.load import MARKER_BYTES, Marker
from tricklecast.trickle.stress import Desk, Left, Orders, Received, Seat


async def work(orders: Orders, desk: Desk) -> None:
    """Read every seat's channel to its end.

    When ``desk.ready()`` is called, all of them have begun to ask for their first segment.
    """
    context = ssl.create_default_context(cafile=orders.ca_file) if orders.ca_file else None
    async with anyio.create_task_group() as tasks:
        for seat in orders.seats:
            transport = TrailerTransport(context)
            subscriber = Subscriber(seat.url, start=orders.start, transport=transport)
            await tasks.start(_Seat(seat, subscriber, desk).run)
        await desk.ready()


class _Seat:
    """One subscriber."""

    def __init__(self, seat: Seat, subscriber: Subscriber, desk: Desk) -> None:
        self._seat = seat
        self._subscriber = subscriber
        self._desk = desk
        self._reported = 0

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Read until the channel's end, or until the run's if that comes first."""
        error, entered = "it was still reading when the run ended", False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._leave_at_the_end, tasks.cancel_scope)
            try:
                async with self._subscriber:
                    task_status.started()
                    entered = True
                    await self._read()
                error = ""
            except TrickleError as failure:
                error = str(failure)
            tasks.cancel_scope.cancel()
        if not entered:
            task_status.started()
        statistics = self._subscriber.statistics()
        counts = {f.name: n for f in fields(statistics) if type(n := getattr(statistics, f.name)) is int}
        missed = statistics.missed - self._reported
        await self._desk.record(Left("subscriber", self._seat.channel, self._seat.number, missed, error, counts))

    async def _leave_at_the_end(self, scope: anyio.CancelScope) -> None:
        await self._desk.closed()
        scope.cancel()

    async def _read(self) -> None:
        async for segment in self._subscriber:
            self._reported += segment.gap
            await self._desk.record(await self._segment(segment))

    async def _segment(self, segment: Segment) -> Received:
        digest, head, first_ns = hashlib.sha256(), b"", 0
        async for chunk in segment:
            if not first_ns:
                first_ns = self._desk.now()
            if len(head) < MARKER_BYTES:
                head += chunk[:MARKER_BYTES]
            digest.update(chunk)
        last_ns = self._desk.now()
        marker = Marker.read(head)
        return Received(
            channel=self._seat.channel,
            number=self._seat.number,
            seq=segment.seq,
            ordinal=marker.ordinal if marker is not None and marker.channel == self._seat.channel else -1,
            size=segment.bytes_read,
            digest=digest.hexdigest(),
            first_ns=first_ns or last_ns,
            last_ns=last_ns,
            gap=segment.gap,
            flaw=_flaw(segment),
        )


def _flaw(segment: Segment) -> str:
    if segment.broken is not None:
        return "broken"
    return "" if segment.truncated is None else "truncated"
