"""The requests of one connection take turns: one exchange at a time, in order."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from tricklecast.app.data_plane.dispatch import begin
from tricklecast.app.data_plane.patience import Patience
from tricklecast.app.data_plane.request import Request
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status

QUEUE_REQUESTS: Final = 64
QUEUE_BYTES: Final = 64 << 10
"""How much may be pipelined behind an unfinished exchange, heads included, before reading pauses."""

MAX_QUEUED: Final = 4 * QUEUE_REQUESTS
"""So many requests end the connection. What was received at once before reading pauses is still parsed: 256 KiB of
smallest requests would be some 10,000, of 1 kB each."""


class Turns(Patience):
    """A connection on which requests may be pipelined.

    Attributes:
        queue: requests behind an unfinished exchange; ``None`` until there is one.
    """

    __slots__ = ("_queued_bytes", "queue")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue: deque[Request] | None = None
        self._queued_bytes = 0

    def complete(self, *, close: bool) -> None:
        super().complete(close=close)
        if self.queue and not self.deaf:
            self._go_on()

    def busy(self) -> bool:
        return bool(self.queue) or super().busy()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.queue:
            self._go_on()

    def enqueue(self, request: Request, head_bytes: int) -> None:
        """Let a request wait for its turn."""
        if self.queue is None:
            self.queue = deque()
        elif len(self.queue) >= MAX_QUEUED:
            self.reject_pipelined()
            return
        request.queued = True
        self.queue.append(request)
        self._queued_bytes += head_bytes
        self._limit_queue()

    def reject_pipelined(self) -> None:
        """More is pipelined than anybody needs."""
        self.reject(Status.TOO_MANY_REQUESTS, "Too many pipelined requests", Reason.limit("pipelined_requests"))

    def deliver(self, request: Request) -> None:
        """Give the body that has arrived to the exchange that takes it, if it is its turn already."""
        if (publish := request.publish) is not None:
            chunks = request.take()
            if self.exchange is not publish:
                return
            if request.complete:
                publish.body_ended(chunks)
            elif chunks:
                publish.data(chunks)
        elif request.queued:
            self._queued_bytes += sum(map(len, request.chunks))
            self._limit_queue()
        elif not request.held:
            request.chunks.clear()

    def _go_on(self) -> None:
        self._limit_queue()
        self.loop.call_soon(self._next)

    def _limit_queue(self) -> None:
        if self.queue and (len(self.queue) > QUEUE_REQUESTS or self._queued_bytes > QUEUE_BYTES):
            self.flow.pause_reading()
            self.plane.paused.add(self)

    def _next(self) -> None:
        """Begin the request that was pipelined behind the one that is now over."""
        if self.queue and self.exchange is None and not self.asgi_in_progress():
            self.stay()
            request = self.queue.popleft()
            request.queued = False
            if not self.queue:
                self._queued_bytes = 0
                # The rest of this request's body may still have to be read.
                self.flow.resume_reading()
            begin(self, request)
            if request.chunks or request.complete:
                self.deliver(request)
