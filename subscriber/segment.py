"""One segment, as its subscriber reads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Literal, TypeAlias

import anyio

from tricklecast.subscriber.core import Advance
from tricklecast.subscriber.events import Monitor, SegmentBroken, SegmentResumed, SegmentTruncated
from tricklecast.subscriber.fetch import Fetcher, Received
from tricklecast.trickle import wire
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connection import ResponseBody
from tricklecast.trickle.client.exchange import Answer
from tricklecast.trickle.client.tasks import BackgroundTask, HomeLoop
from tricklecast.trickle.errors import ClosedHere, ConnectionLost, Position, SegmentTooLarge, header_int

READ_LIMIT: Final = 64 * 1024 * 1024
"""Most bytes that ``read()`` holds by default: the server's default limit for a segment."""

TAKEOVERS: Final = 2
"""Cuts in a row that a change of the channel's node explains."""

OnBroken: TypeAlias = Literal["skip", "raise"]


class Segment:
    """A segment. Iterate over it, or call :meth:`read_some` or :meth:`read`.

    Iterating yields one chunk for each ``write`` of the publisher, up to 64 KiB in one piece. Going on to the next
    segment leaves this one. A read that is cancelled, for example by a timeout, loses no byte: the next read goes on.

    If the connection is cut, the segment is requested again and goes on where it stopped. Only if the server does not
    have it any more, it is ``broken``.

    One task reads a segment at a time: a second one gets ``anyio.BusyResourceError``, since each would have some of the
    bytes. Any task may leave it.

    Attributes:
        seq: its number.
        epoch: of the channel that it belongs to; ``None`` if the server does not say.
        life: the name of its numbering. It stays the same when a server is restarted and its publisher goes on;
            ``None`` if the server does not say.
        gap: segments missed immediately before this one. After ``restarted`` these are segments of the new numbering,
            as far as the server says. Segments that the user skipped by a seek do not count.
        restarted: the numbering is not that of the segment before, or of the position at which the subscription began:
            the channel was created again, or the server was restarted.
        content_type: the channel's media type.
        size_at_start: bytes that the server had when it answered, ``None`` if it does not say.
        lag: newer segments that had begun when the server got the GET for this one; 0 at the live edge.
        truncated: why the segment is not whole, as the server said at its start or, at the latest, at its end.
            ``"skipped"``: it has no byte because its publisher passed it over; a segment that was published without a
            byte has ``None``. ``"unknown"``: a proxy has dropped what the server said at the end, and the server does
            not have the segment any more.
        broken: the connection was cut before the segment's end, and the rest cannot be had.
        requested_at: when the GET was made that was answered with this segment, in seconds on a monotonic clock.
        answered_at: when the head of that answer came, on the same clock.
    """

    def __init__(
        self,
        begun: Advance,
        answer: Answer,
        fetcher: Fetcher,
        monitor: Monitor,
        home: HomeLoop,
        on_end: Callable[[Segment], None],
        *,
        stall_timeout_s: float | None,
        on_broken: OnBroken,
    ) -> None:
        self.seq: Final = begun.seq
        self.epoch: Final = begun.epoch
        self.life: Final = begun.life
        self.gap: Final = begun.gap
        self.restarted: Final = begun.restarted
        self.content_type: Final = begun.content_type
        self.size_at_start: Final = begun.size_at_start
        self.lag: Final = begun.lag
        self.truncated: str | None = begun.truncated
        self.broken: ConnectionLost | None = None
        self._is_open = not begun.empty  # neither read to its end, nor broken, nor left
        self._is_left = False
        self.requested_at: Final = answer.requested_at
        self.answered_at: Final = answer.answered_at
        self._begun = begun
        self._answer = answer  # that is read now
        self._fetcher = fetcher
        self._monitor = monitor
        self._counts = monitor.counts
        self._home = home
        self._on_end = on_end
        self._stall_s = stall_timeout_s
        answer.body.limit_silence(stall_timeout_s)
        self._on_broken = on_broken
        self._received = Received()
        self._unread: list[bytes] = []  # of a read() that was cancelled
        self._cut: ConnectionLost | None = None
        self._no_fault = False
        self._resumed_at: int | None = None
        self._in_vain = 0  # cuts in a row without a byte between them
        # A request of the reader's runs in a task of its own, so that it outlives a call that is cancelled.
        self._task: BackgroundTask | None = None
        self._ending: Answer | None = None  # what the task has found
        self._rest: tuple[Answer, bytes] | ConnectionLost | None = None
        self._stopped = False
        self._is_read = False  # a task reads it now

    @property
    def bytes_read(self) -> int:
        """How many bytes have been received."""
        return self._received.size

    @property
    def position(self) -> Position:
        """Where a subscription begins that reads this segment again."""
        return Position(self.seq, self.epoch, self.life)

    @property
    def complete(self) -> bool:
        """Whether the segment was read to its end, and is whole."""
        return not (self._is_open or self._is_left) and self.broken is None and self.truncated is None

    def __aiter__(self) -> Segment:
        return self

    def __anext__(self) -> Coroutine[Any, Any, bytes]:
        """The next chunk, as the publisher wrote it.

        A broken segment ends like a whole one, with ``broken`` set, unless the subscriber has ``on_broken="raise"``.
        A segment that is left by a seek ends, too.

        Raises:
            ConnectionLost: the segment broke, with ``on_broken="raise"``; again at every further call.
            ClosedHere: the segment was left before.
        """
        return self._receive(iterates=True)

    async def read_some(self) -> bytes:
        """The bytes that are there, joined up to about 64 KiB; waits for at least one, and returns ``b""`` at the end.

        This is the cheapest way to read: chunks that came together cost one call.

        Raises:
            ConnectionLost: the segment broke, with ``on_broken="raise"``; again at every further call.
            ClosedHere: the segment was left before.
        """
        return await self._receive()

    async def read(self, limit: int = READ_LIMIT) -> bytes:
        """The rest of the segment.

        Args:
            limit: most bytes to hold.

        Raises:
            ConnectionLost: the segment broke: a part of it could be taken for all of it.
            SegmentTooLarge: it is longer than the limit; the segment has been left.
            ClosedHere: the segment was left before.
        """
        parts, self._unread = self._unread, []
        size = sum(map(len, parts))
        try:
            while size <= limit and (data := await self._receive()):
                parts.append(data)
                size += len(data)
        finally:
            self._unread = parts
        if size > limit:
            self._unread = []
            await self.aclose()
            error = SegmentTooLarge(None, seq=self.seq, detail=f"longer than the limit of {limit} bytes")
            error.resume = self.position
            raise error
        if self.broken is not None:
            raise self.broken
        if self._is_left:
            raise ClosedHere(f"segment {self.seq} was left by a seek")
        return self._take_unread()

    async def aclose(self) -> None:
        """Leave the segment, also while another task reads it: that task gets ``ClosedHere``.

        Nothing happens if it was read to its end.
        """
        if self._is_open:
            self._is_left = True
            try:
                await self._end()
            finally:
                await self._stop_task()

    async def stop(self) -> None:
        """Leave the segment, also while another task reads it: there it ends, and is not complete."""
        self._stopped = True
        await self.aclose()

    def _take_unread(self) -> bytes:
        unread, self._unread = self._unread, []
        return b"".join(unread)

    async def _receive(self, *, iterates: bool = False) -> bytes:
        """The next bytes; ``b""`` at the end, after a break and after :meth:`stop`, or the end of an iteration.

        Nothing is awaited between receiving bytes and returning them, so that a cancellation cannot lose them.

        Args:
            iterates: return one chunk, instead of all that came together.
        """
        if self._is_read:
            raise anyio.BusyResourceError("reading")
        self._home.check()
        if self._unread:
            return self._take_unread()
        self._is_read = True
        try:
            while self._is_open:
                if self._cut is not None:
                    data = await self._resume(self._cut)
                else:
                    body = self._answer.body
                    try:
                        data = await (body.receive_chunk() if iterates else body.receive())
                    except faults.TransportError as error:
                        if not self._is_left:
                            self._no_fault = isinstance(error, faults.ReadTimeout)
                            self._cut = self._lost(f"no byte for {self._stall_s:g} s" if self._no_fault else str(error))
                        continue
                    except BaseException:
                        if not body.keeps_cancelled and not self._is_left:
                            # A transport that the user passed: its response is of no use after a cancellation. Ask for
                            # the rest.
                            self._no_fault, self._cut = True, self._lost("the read was cancelled")
                        raise
                    if not data and not await self._was_cut(body.trailer(wire.SIZE)):
                        await self._end(is_read=True)
                if data and self._is_open:
                    self._received.add(data)
                    self._counts["bytes"] += len(data)
                    return data
        finally:
            self._is_read = False
        if self._is_left and not self._stopped:
            raise ClosedHere(f"segment {self.seq} was left")
        if self.broken is not None and self._on_broken == "raise":
            raise self.broken
        if iterates:
            raise StopAsyncIteration
        return b""

    async def _was_cut(self, told: str | None) -> bool:
        """Whether the body, which is over, ended before the segment did, or has bytes too many.

        The server is asked where the trailers are missing: some proxies drop them, or end a body that broke off as if
        it were whole.

        Args:
            told: how long the segment is, as the trailer says.
        """
        size = None if told is None else header_int({wire.SIZE: told}, wire.SIZE)
        if size is not None and not size == self._received.size >= (self.size_at_start or 0):
            told_bytes = max(size, self.size_at_start or 0)
            self._cut = self._lost(f"it ended after {self._received.size} of {told_bytes} bytes")
            return True
        answer = self._answer
        if self.truncated or told is not None or not isinstance(answer.body, ResponseBody):
            return False  # another transport may know no trailers
        if answer.life is None or answer.natural(wire.SIZE) is None:
            return False  # a server of another make sends none
        await self._outlive(self._find_ending)
        if self._is_left:
            return False
        found, self._ending = self._ending, None
        size = None if found is None else found.natural(wire.SIZE)
        if found is None or size is None:
            self.truncated = "unknown"
        elif size > self._received.size:
            self._cut = self._lost(f"it ended after {self._received.size} of {size} bytes")
        else:
            self.truncated = found.headers.get(wire.TRUNCATED)
        return self._cut is not None

    async def _resume(self, error: ConnectionLost) -> bytes:
        """Go on behind what was read, or mark the segment as broken."""
        rest: tuple[Answer, bytes] | ConnectionLost | None = None
        if self._task is None:
            # Two cuts without a byte between them are enough: the same would happen again. Not so in a cluster: a
            # replica ends when another node takes the channel over, and that node may go on.
            self._in_vain = self._in_vain + 1 if self._resumed_at == self._received.size else 0
            if self._in_vain > (0 if self._fetcher.nodes.alone else TAKEOVERS) and not self._no_fault:
                rest = error
        if rest is None:
            await self._outlive(lambda: self._find_rest(error))
            if self._is_left:
                return b""
            rest, self._rest = self._rest, None
            assert rest is not None
        if isinstance(rest, ConnectionLost):
            rest.resume = self.position
            self.broken = rest
            await self._end()
            return b""
        if not self._no_fault:
            self._monitor.emit(SegmentResumed(self.seq, self._received.size))
        self._answer, first = rest
        self._cut, self._no_fault, self._resumed_at = None, False, self._received.size
        self._answer.body.limit_silence(self._stall_s)
        self.truncated = self.truncated or self._answer.headers.get(wire.TRUNCATED)
        return first

    async def _find_ending(self) -> None:
        self._ending = await self._fetcher.ending(self._begun)

    async def _find_rest(self, error: ConnectionLost) -> None:
        await self._answer.body.aclose()
        self._rest = await self._fetcher.rest(self._begun, self._received, error, no_fault=self._no_fault)

    async def _outlive(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this work in the segment's task, and wait for its end.

        A cancelled call leaves it running, and the next call waits for the same work: calls that are shorter than a
        pause or a round trip get there, too. It is stopped when the segment is left.
        """
        task = self._task = self._task or BackgroundTask(work)
        await task.over()
        if not self._is_left:  # aclose() has the task otherwise
            self._task = None
            task.check()

    async def _stop_task(self) -> None:
        """Stop the task, and drop what it has found."""
        task, self._task = self._task, None
        if task is None:
            return
        try:
            await task.stop()
        finally:
            if isinstance(self._rest, tuple):
                await self._rest[0].body.aclose()

    def _lost(self, detail: str) -> ConnectionLost:
        error = ConnectionLost(seq=self.seq, detail=detail)
        error.resume = self.position
        return error

    async def _end(self, *, is_read: bool = False) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self.truncated = self.truncated or self._answer.body.trailer(wire.TRUNCATED)
        try:
            if self.truncated is not None:
                self._monitor.emit(SegmentTruncated(self.seq, self.truncated))
            if self.broken is not None:
                self._monitor.emit(SegmentBroken(self.seq, self._received.size, self.broken))
            self._on_end(self)
        finally:
            if not is_read:  # a body closes itself at its end
                await self._answer.body.aclose()
