"""A request's body that is written while it is being sent, and kept so that it can be sent again.

One writer at a time. As long as the connection takes its chunks, they go from the writer's own task straight to the
socket. Only where the socket has no room, the writer waits until the request's task has found some.

All segments of a publisher share one :class:`Buffer`. It holds all that the server has not confirmed: so a segment is
sent again after a lost connection, and segments that come during an outage wait for its end. Where it is full, a
segment that the connection takes lets go of its own bytes and goes on (it cannot be sent again then); otherwise the
writer waits, or the publisher gives older segments up for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio.lowlevel

from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connection import BodyWriter, LiveBody
from tricklecast.trickle.client.tasks import Notifier

CHUNK_OVERHEAD: Final = 64
"""Bytes counted on top of each chunk's own: about those that CPython needs to keep it, so small ones cannot add up."""

BURST: Final = 32
"""After this many chunks other tasks get their turn: a millisecond, for chunks of 64 KiB."""


class Buffer:
    """The memory of all bodies of one publisher.

    Args:
        limit: how many bytes are kept, :data:`CHUNK_OVERHEAD` for each chunk included. Each body may hold one chunk
            more, so that a full buffer never stops a connection that takes its bytes.
        used: how many of them are taken.
        reclaim: gives up other bodies until this many bytes of this one fit, and returns whether they do; ``None``
            gives up none.
    """

    def __init__(self, limit: int = 0, used: int = 0, *, reclaim: Callable[[Body, int], bool] | None = None) -> None:
        self.limit = limit
        self.used = used
        self._reclaim = reclaim
        self.waiting: set[Body] = set()  # bodies whose writers wait for room

    def fits(self, size: int) -> bool:
        """Whether there is room for ``size`` bytes."""
        return self.used + size <= self.limit

    def make_room(self, body: Body, size: int) -> bool:
        """Whether there is room for a body's bytes, if need be after others were given up."""
        return self.fits(size) or (self._reclaim is not None and self._reclaim(body, size))

    def give_back(self, size: int) -> None:
        """Bytes are let go: writers that wait for room look again."""
        self.used -= size
        if self.waiting:
            for body in list(self.waiting):
                body.changes.notify()


class Body:
    """The chunks of one segment: from a writer to one request after the other.

    Each request sends them from the start. The body keeps them for the next request as long as the buffer has room.
    Beyond that, once the request under way has sent them all, it lets them go, and cannot be sent again.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.count = 0  # chunks that were handed over
        self.handed = 0  # bytes that the writer has handed over
        self.over = False  # the writer has ended the body
        self.held = True  # all that was handed over is still here
        self.changes = Notifier()
        self._buffer = buffer
        self._chunks: deque[bytes] = deque()
        self._let_go = 0  # chunks at the front that are held no more
        self._held_bytes = 0  # with CHUNK_OVERHEAD for each chunk
        self.retains = True  # written chunks are kept for the next request
        self._sending: Sending | None = None
        self._resting = False  # no request will be under way for a while: chunks are only kept
        self._stopped = False  # nobody takes chunks any more
        self._writers = 0  # that were there before this one

    def send(self, begun: Callable[[], None] = lambda: None) -> Sending:
        """The body of the next request, from its start; an earlier request gets no more.

        Args:
            begun: called when its first chunk has been written, or its end is reached.
        """
        self._sending = Sending(self, begun)
        self._resting = False
        self.changes.notify()  # a full buffer lets this request's chunks through
        return self._sending

    def rest(self) -> None:
        """No request will be under way for a while: the writer may go on as long as there is room."""
        self._sending = None
        self._resting = True
        self.changes.notify()

    async def put(self, chunk: bytes, *, last: bool = False) -> bool:
        """Hand one chunk over; ``False`` if the body was stopped, or taken back, instead.

        Args:
            chunk: at least one byte.
            last: the body ends with it.

        Returns when the chunk was written to the connection; at once, where the body rests or its request has yet to
        catch up, as long as the chunk can be kept. Not to be called again before it has returned, nor after
        :meth:`end`. Cancelled, it takes the chunk back unless a request has it already.
        """
        writer, size = self._writers, len(chunk) + CHUNK_OVERHEAD
        while not self._stopped and not self._has_room(size):
            self._buffer.waiting.add(self)
            try:
                await self.changes.wait()
            finally:
                self._buffer.waiting.discard(self)
            if writer != self._writers:
                return False
        if self._stopped:
            return False
        at, sending = self.count, self._sending
        live = not self._resting and (sending is None or sending.written == at)
        self.over = last
        self._add(chunk, size)
        if sending is not None and sending.written > at:
            if not self.count % BURST:
                await anyio.lowlevel.checkpoint()
            return not self._stopped and writer == self._writers
        try:
            if not live:
                await anyio.lowlevel.checkpoint()
            while live and self._is_open_to(writer) and not self._resting and self._lacks(at):
                await self.changes.wait()
        except BaseException:
            if self._is_open_to(writer) and (self._sending is None or self._sending.taken <= at):
                self._chunks.pop()
                self.count -= 1
                self._held_bytes -= size
                self._buffer.give_back(size)
                self.handed -= len(chunk)
                self.over = False
            raise
        return self._is_open_to(writer)

    def put_nowait(self, chunk: bytes) -> bool:
        """Hand one chunk over without waiting; ``False`` if the body was stopped, or too much waits already.

        The body lets written chunks go first, if it needs their room to keep this one.
        """
        size = len(chunk) + CHUNK_OVERHEAD
        if not self._stopped and not self._has_room(size) and self._sending is not None:
            self.retains = False
            self.let_go_of(self._sending.written)
        if self._stopped or (self._held_bytes and not self._buffer.make_room(self, size)):
            return False
        self._add(chunk, size)
        return True

    def take_all_back(self) -> bool:
        """Empty the body for another writer; ``False`` if a request has something of it already.

        A call of the first writer that is still waiting adds nothing to the body any more.
        """
        if not self.held or (self._sending is not None and (self._sending.taken or self._sending.ended)):
            return False
        self.count -= len(self._chunks)
        self._chunks.clear()
        self._buffer.give_back(self._held_bytes)
        self._held_bytes = 0
        self.handed = 0
        self.over = False
        self._writers += 1
        self.changes.notify()
        return True

    def end(self) -> None:
        """No chunk follows."""
        self.over = True
        if self._sending is None or not self._sending.push():
            self.changes.notify()

    async def flush(self) -> bool:
        """Wait until the end was handed over in the way of :meth:`put`, with the same result."""
        writer, sending = self._writers, self._sending
        live = not self._resting and (sending is None or sending.written == self.count)
        while live and self._is_open_to(writer) and not self._resting and not (self._sending and self._sending.ended):
            await self.changes.wait()
        return self._is_open_to(writer)

    def forget(self) -> None:
        """Give the room of this body back now: it was given up, and its chunks follow when its request has ended."""
        self._buffer.give_back(self._held_bytes)
        self._buffer = Buffer(self._held_bytes, self._held_bytes)

    def stop(self) -> None:
        """Nobody takes chunks any more; wakes the writer."""
        self._stopped = True
        self._sending = None
        self.let_go_of(self.count)
        self.changes.notify()

    def chunk(self, at: int) -> bytes:
        """The chunk with this number, counted from 0; it must still be held."""
        return self._chunks[at - self._let_go]

    def _add(self, chunk: bytes, size: int) -> None:
        self._chunks.append(chunk)
        self.count += 1
        self._held_bytes += size
        self._buffer.used += size
        self.handed += len(chunk)
        if self._sending is None or not self._sending.push():
            self.changes.notify()  # the task that reads the body

    def let_go_of(self, count: int) -> None:
        """Hold the chunks below this number no more: the body cannot be sent again."""
        size = 0
        if count == self.count:
            size = self._held_bytes
            self._chunks.clear()
        else:
            for _ in range(self._let_go, count):
                size += len(self._chunks.popleft()) + CHUNK_OVERHEAD
        if size:
            self.held = False
            self._let_go = count
            self._held_bytes -= size
            self._buffer.give_back(size)

    def _is_open_to(self, writer: int) -> bool:
        """Whether the chunks of this writer still belong here; writers are counted."""
        return not self._stopped and writer == self._writers

    def _lacks(self, at: int) -> bool:
        """Whether the chunk with this number has not been written yet."""
        return self._sending is None or self._sending.written <= at

    def _has_room(self, size: int) -> bool:
        buffer = self._buffer
        if self.retains and buffer.used + size <= buffer.limit:
            return True
        if self._sending is not None and self._sending.written == self.count:
            self.retains = False
            self.let_go_of(self.count)
            return True
        return self.retains and self._buffer.make_room(self, size)


class Sending(LiveBody):
    """A body as one request sends it."""

    def __init__(self, body: Body, begun: Callable[[], None]) -> None:
        self.sent = 0  # bytes that the transport has taken
        self.taken = 0  # chunks that it has taken
        self.written = 0  # chunks that it has written to the connection
        self.ended = False  # it has seen the end
        self._body = body
        self._begun = begun
        self._writer: BodyWriter | None = None
        self._waits = False  # for resume()
        self._has_last = False  # the transport has taken the end with the last chunk

    def start(self, writer: BodyWriter) -> None:
        """Write the body to a connection; see :class:`LiveBody`.

        Raises:
            WriteError: the request is made again, for the sake of authentication, and the body is not held.
        """
        if not self._body.held:
            raise faults.WriteError("the body cannot be sent again")
        self.sent = self.taken = self.written = 0
        self._writer, self._waits, self._has_last, self.ended = writer, False, False, False
        if self._body.handed or self._body.over:
            self.push()
            self._body.changes.notify()

    def resume(self) -> None:
        """See :class:`LiveBody`."""
        self._waits = False
        if self.written < self.taken:
            self._confirm()
        self.push()
        self._body.changes.notify()

    def detach(self) -> None:
        """See :class:`LiveBody`."""
        self._writer = None

    def push(self) -> bool:
        """Write the chunks that were handed over, as far as there is room; ``False`` if nothing can be written now."""
        body, writer, taken = self._body, self._writer, self.taken
        if writer is None or self._waits:
            return False
        most = taken + BURST
        while taken < body.count:
            if taken == most:
                self._waits = True
                writer.pause()
                return True
            chunk = body._chunks[taken - body._let_go]
            self.taken = taken = taken + 1
            self.sent += len(chunk)
            self._has_last = is_last = body.over and taken == body.count
            if not writer.write(chunk, last=is_last):
                self._waits = True
                return True
            self._confirm()
        if body.over and not self.ended:
            if not self._has_last:
                writer.end()
            self._end()
        return True

    @property
    def is_whole(self) -> bool:
        """Whether the transport has taken all of the body, with its end: the server may have it, and may answer."""
        return self.ended or self._has_last

    def __aiter__(self) -> Sending:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk, for transports that read a body: by asking for it they say that the last one was written."""
        if self.written < self.taken:
            self._confirm()
            self._body.changes.notify()
        while self.taken == self._body.count:
            if self._body.over:
                self._end()
                self._body.changes.notify()
                raise StopAsyncIteration
            await self._body.changes.wait()
        chunk = self._body.chunk(self.taken)
        self.taken += 1
        self.sent += len(chunk)
        return chunk

    def _confirm(self) -> None:
        self.written = self.taken
        if self.written == 1:
            self._begun()
        if not self._body.retains:
            self._body.let_go_of(self.written)

    def _end(self) -> None:
        self.ended = True
        if not self.taken:
            self._begun()
