"""The segments of one publisher that are in flight, their requests, and the tasks that make these.

A segment gets an :class:`Upload` when there is something to send: a preconnect, or a new one. At most
:data:`MAX_REQUESTS` uploads have a task at a time (a *carrier*); the others wait, by seq.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio

from tricklecast.publisher.body import Body
from tricklecast.publisher.core import Receipt, Ticket
from tricklecast.trickle.client.tasks import Notifier

MAX_REQUESTS: Final = 4
"""Requests that are under way, or wait for their turn, at the same time. The server takes a segment only up to one
beyond its head, so further ones have to wait in any case; a task for each would cost more than its segment."""

StartTask: TypeAlias = Callable[..., object]
"""Starts a background task: ``TaskGroup.start_soon``."""


class Upload:
    """The requests for one seq, one after the other, the first of which most often begins as a preconnect."""

    def __init__(self, ticket: Ticket, body: Body, turn: int) -> None:
        self.ticket = ticket
        self.body = body
        self.turn = turn  # its place among all uploads, whatever numbers they get
        self.scope: anyio.CancelScope | None = None  # of the carrier that carries it now
        self.is_cut = False  # no further request is made
        self.fills_gap = False  # it ends without a byte, in place of a segment that was given up
        self.waits = True  # for its first carrier
        self.is_carried = False  # a request of it is under way
        self.attempt_scope: anyio.CancelScope | None = None  # cancelling it ends this attempt: another one follows
        self.segment: InFlight | None = None  # None while it is a preconnect
        self.is_begun = False  # a connection has had a byte of it, or its end
        self.awaits_retry = False  # it is to be sent again, and no connection has had a byte of that yet

    def cut(self) -> None:
        """Cut the request off, or let there be none."""
        self.is_cut = True
        if self.scope is not None:
            self.scope.cancel()


@dataclass(slots=True, eq=False)
class InFlight:
    """A segment from its beginning until the program knows its result. Its writer and ``Segments`` share it."""

    entered_at: float
    is_told: bool  # events say that it begins and is published
    ended_at: float = 0.0  # when its writer ended it; 0: it has not
    left: bool = False  # its writer has ended it or cut it off
    upload: Upload | None = None  # its request, once there is something to send
    has_number: bool = True  # that of its request, unless it was given up: then another segment may have got it
    first_byte_s: float | None = None  # as in a receipt
    result: Receipt | Exception | None = None  # None while it is neither published nor lost
    done: Notifier = field(default_factory=Notifier)  # there is a result
    is_seen: bool = False  # the program knows the result
    asking: int = 0  # tasks that wait for the result

    @property
    def seq(self) -> int | None:
        """Its number; ``None`` before there is something to send, and if another segment may have got it."""
        return self.upload.ticket.seq if self.upload is not None and self.has_number else None

    @property
    def handed(self) -> int:
        """Bytes that were handed over."""
        return 0 if self.upload is None else self.upload.body.handed

    def check(self) -> None:
        """Raise why the segment failed, if it did."""
        if isinstance(self.result, Exception):
            self.is_seen = True
            raise self.result


class Carriers:
    """Tasks that carry uploads, one after the other, and the uploads that wait for one of them.

    Args:
        carry: makes the requests of one upload, to the end.

    Attributes:
        carrying: the uploads that have a carrier.
    """

    def __init__(self, carry: Callable[[Upload], Awaitable[None]]) -> None:
        self.carrying: set[Upload] = set()
        self._carry = carry
        self._tasks = 0
        self._free: list[Notifier] = []  # of tasks that have nothing to carry
        self._due: deque[Upload] = deque()  # by seq: the next carrier that is free takes the first one
        self._queued: deque[Upload] = deque()  # by seq, behind those: each is due once another one has ended

    @property
    def waiting(self) -> list[Upload]:
        """The uploads that no carrier has had yet, by seq."""
        return [*self._due, *self._queued]

    def add(self, upload: Upload, start: StartTask) -> None:
        """Have an upload carried, at once or behind others.

        Args:
            start: starts a task, if one more is needed.
        """
        busy = len(self.carrying) + len(self._due)
        if busy >= MAX_REQUESTS:
            upload.body.rest()
            self._queued.append(upload)
            return
        self._due.append(upload)
        if self._free:
            self._free.pop().notify()
        elif self._tasks <= busy:
            self._tasks += 1
            start(self._run)

    def remove(self, upload: Upload) -> None:
        """Take out one that waits."""
        upload.waits = False
        if upload in self._due:
            self._due.remove(upload)
            self._take_next()
        else:
            self._queued.remove(upload)

    def sort(self) -> None:
        """Uploads that are queued have got other numbers: put them in order again."""
        self._queued = deque(sorted(self._queued, key=lambda one: one.ticket.seq))

    async def _run(self) -> None:
        """Carry the uploads that are due, one after the other; never returns."""
        woken = Notifier()
        while True:
            is_cut = False
            with anyio.CancelScope() as scope:  # one for each upload would cost more than its bytes
                while not is_cut:
                    if not self._due:
                        self._free.append(woken)
                        await woken.wait()
                        continue
                    upload = self._due.popleft()
                    upload.scope, upload.waits = scope, False
                    self.carrying.add(upload)
                    try:
                        await self._carry(upload)
                    finally:
                        upload.scope = None
                        self.carrying.discard(upload)
                        self._take_next()
                    is_cut = upload.is_cut  # and the scope with it

    def _take_next(self) -> None:
        """One upload less is carried or due: the first one of the queue is due."""
        if self._queued:
            self._due.append(self._queued.popleft())
