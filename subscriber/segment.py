"""One segment, as its subscriber reads it, and the GETs of segments.

A GET of a segment always begins at its first byte. So the rest of a cut segment is read by the same GET once more: the
bytes that the user has already come again, and are dropped. Their beginning and their end are compared with the
user's: on a server that was restarted in between, another segment may have that number.

After an outage two GETs wait, each for itself: the one for the rest, and the one for the next segment. The user gets
neither before the slower one, so the answer that the server is back ends the pause of the other, too
(:meth:`Requests.pause`).

A server that cuts off a reader for being too slow looks like a broken network, and is handled in the same way: if the
segment is still kept, it is read on; if it has left the window, ``on_lag`` says where to go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import anyio

from tricklecast.subscriber.core import Ask, Cursor, NextSegment
from tricklecast.subscriber.events import Monitor, Retrying, SegmentBroken, SegmentResumed, SegmentTruncated
from tricklecast.subscriber.numbering import KnownNumbering
from tricklecast.trickle import wire
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connection import RequestTimeouts, ResponseBody
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost, TrickleClient, exchange
from tricklecast.trickle.client.nodes import Nodes, ask, shown
from tricklecast.trickle.client.retry import MIN_DELAY_S
from tricklecast.trickle.client.tasks import BackgroundTask, HomeLoop, clock
from tricklecast.trickle.errors import (
    BrokenByPeer,
    ClosedHere,
    ConnectionLost,
    Position,
    SegmentMissing,
    SegmentTooLarge,
    TrickleError,
    header_int,
)
from tricklecast.trickle.paths import ChannelURL

if TYPE_CHECKING:
    import httpx

    from tricklecast.trickle.client.arguments import HttpxAuth

READ_LIMIT: Final = 64 * 1024 * 1024
"""Most bytes that ``read()`` holds by default: the server's default limit for a segment."""

CUTS_IN_VAIN: Final = 2
"""Cuts in a row, without a byte between them, that need not mean that the next one comes as well: a proxy is started
again, or another node takes the channel over."""

OnBroken: TypeAlias = Literal["skip", "raise"]

CONNECT_S: Final = 10.0
"""How long a connection may take to be made."""

ANSWER_S: Final = 5.0
"""How long the reader waits for a segment that the server should have, and for each of its old chunks. A server that
has the segment sends it at once; a server that lets the reader wait has another segment in mind."""

NEXT_S: Final = 10.0
"""How long a server may take to say where the head is, which it knows."""

CHECK_WAITS: Final = 5
"""After this many waits in a row without an answer (at least 100 s), the subscriber asks whether the server answers."""

BACK_S: Final = 0.25
"""A GET whose pause ends early, since the server is back, is made within this time: not all readers at once."""

COMPARED_BYTES: Final = 4096
"""Bytes at the beginning and at the end of a cut segment that the reader compares before it reads on."""


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
            byte has ``None``. ``"unknown"``: a proxy has dropped the server's word at the end, and the server does
            not have the segment any more.
        broken: the connection was cut before the segment's end, and the rest cannot be had.
        requested_at: when the GET was made that was answered with this segment, in seconds on a monotonic clock.
        answered_at: when the head of that answer came, on the same clock.
    """

    def __init__(
        self,
        begun: NextSegment,
        answer: Answer,
        requests: Requests,
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
        self._requests = requests
        self._monitor = requests.monitor
        self._counts = requests.monitor.counts
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
        self._ending: Answer | None = None  # the answer that the task has found
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

    async def _was_cut(self, trailer: str | None) -> bool:
        """Whether the body, which is over, ended before the segment did, or has bytes too many.

        The server is asked where the trailers are missing: some proxies drop them, or end a body that broke off as if
        it were whole.

        Args:
            trailer: the size of the segment, as the server says at the end of the body.
        """
        size = None if trailer is None else header_int({wire.SIZE: trailer}, wire.SIZE)
        if size is not None and not size == self._received.size >= (self.size_at_start or 0):
            whole = max(size, self.size_at_start or 0)
            self._cut = self._shortened(whole)
            return True
        answer = self._answer
        if self.truncated or trailer is not None or not isinstance(answer.body, ResponseBody):
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
            self._cut = self._shortened(size)
        else:
            self.truncated = found.headers.get(wire.TRUNCATED)
        return self._cut is not None

    async def _resume(self, error: ConnectionLost) -> bytes:
        """Go on behind the bytes that were read, or mark the segment as broken."""
        rest: tuple[Answer, bytes] | ConnectionLost | None = None
        if self._task is None:
            # A body that ends too soon in the same way again will do so each time. Not so in a cluster: a replica ends
            # when another node takes the channel over, and that node may go on.
            self._in_vain = self._in_vain + 1 if self._resumed_at == self._received.size else 0
            is_same_again = isinstance(error, Shortened) and self._requests.nodes.alone
            if self._in_vain > (0 if is_same_again else CUTS_IN_VAIN) and not self._no_fault:
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
        self._ending = await self._requests.ending(self._begun)

    async def _find_rest(self, error: ConnectionLost) -> None:
        await self._answer.body.aclose()
        self._rest = await self._requests.rest(self._begun, self._received, error, no_fault=self._no_fault)

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
        """Stop the task, and drop its answer."""
        task, self._task = self._task, None
        if task is None:
            return
        try:
            await task.stop()
        finally:
            if isinstance(self._rest, tuple):
                await self._rest[0].body.aclose()

    def _shortened(self, size: int) -> Shortened:
        return Shortened(seq=self.seq, detail=f"it ended after {self._received.size} of {size} bytes")

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


# GETs.


@dataclass(frozen=True, slots=True)
class Runtime:
    """The clock, the delays and the random numbers of a subscriber; tests have others.

    Attributes:
        clock: called in the event loop of the subscriber; returns its clock, a function of monotonic seconds.
    """

    rng: Random = field(default_factory=Random)
    clock: Callable[[], Callable[[], float]] = clock
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep


class Received:
    """The part of a segment that was read: its size, its beginning and its end, as references to its chunks.

    A check sum over all bytes would cost more than receiving them.

    Attributes:
        size: bytes.
        attempts: how many GETs it has taken so far.
    """

    __slots__ = ("_head", "_head_size", "_tail", "_tail_size", "attempts", "size")

    def __init__(self) -> None:
        self.size = 0
        self.attempts = 1
        self._head: list[bytes] = []
        self._head_size = 0
        self._tail: list[bytes] = []
        self._tail_size = 0

    def add(self, chunk: bytes) -> None:
        """Another chunk was read."""
        size = len(chunk)
        self.size += size
        if self._head_size < COMPARED_BYTES:
            self._head.append(chunk)
            self._head_size += size
        if size >= COMPARED_BYTES:
            self._tail, self._tail_size = [chunk], COMPARED_BYTES
            return
        self._tail.append(chunk)
        self._tail_size += size
        if self._tail_size >= 2 * COMPARED_BYTES or len(self._tail) >= COMPARED_BYTES:
            # Chunks of a few bytes are joined, so that this costs little for each of them.
            self._tail, self._tail_size = [b"".join(self._tail)[-COMPARED_BYTES:]], COMPARED_BYTES

    def is_like(self, other: Received) -> bool:
        """Whether two readings have the same size, beginning and end."""
        return self._sample() == other._sample()

    def _sample(self) -> tuple[int, bytes, bytes]:
        return self.size, b"".join(self._head)[:COMPARED_BYTES], b"".join(self._tail)[-COMPARED_BYTES:]


@dataclass(slots=True)
class Requests:
    """Makes the GETs of one subscriber.

    Attributes:
        auth: authentication of each request; ``None``: that of ``http``.
        now: the clock of the runtime: seconds.
        waits: how many in a row had no answer, as far as their maker has counted them here. At :data:`CHECK_WAITS` the
            subscriber asks where the head is before it waits again.
        pauses: those that may end early, each with the failure that it follows.
    """

    nodes: Nodes
    http: TrickleClient | httpx.AsyncClient
    auth: HttpxAuth | None
    cursor: Cursor
    monitor: Monitor
    runtime: Runtime
    now: Callable[[], float]
    headers: dict[str, str]
    waits: int = 0
    pauses: dict[anyio.CancelScope, BrokenByPeer] = field(default_factory=dict)

    async def get(self, wanted: Ask, wait_s: float, *, may_wait: bool = False) -> ExchangeOutcome | None:
        """Make one GET; ``None`` if the head of a segment did not come within ``wait_s`` seconds.

        Args:
            may_wait: the segment may not have begun, so that a node that lets the reader wait has not failed.
        """
        headers = self.headers | {wire.ATTEMPT: str(wanted.attempt)}
        if wanted.life is not None:
            headers[wire.LIFE] = wanted.life
            if wanted.epoch is not None:
                headers[wire.EPOCH] = str(wanted.epoch)
        wait_s = wait_s if wanted.seq is not None else min(wait_s, NEXT_S)
        timeouts = RequestTimeouts(self.nodes.connect_s(CONNECT_S), read=wait_s, write=wait_s)

        def request(url: ChannelURL) -> Awaitable[ExchangeOutcome]:
            self.monitor.counts["requests"] += 1
            return exchange(
                self.http,
                "GET",
                url.next() if wanted.seq is None else url.segment(wanted.seq),
                headers,
                timeouts=timeouts,
                seq=wanted.seq,
                place=f"{shown(url.root)}: ",
                auth=self.auth,
                stays_open=None if wanted.seq is None else has_body,
            )

        found = await ask(
            self.nodes,
            request,
            seq=wanted.seq,
            may_wait=may_wait and wanted.seq is not None,
            on_move=lambda error, pause_s: self._moved(error, pause_s, wanted.attempt + 1),
            sleep=self.runtime.sleep,
        )
        if isinstance(found, Answer):
            self.waits = 0
            if self.pauses and found.status == wire.Status.SEQ_MISSING:
                self.back(SegmentMissing)
        return None if isinstance(found, Lost) and found.waited_s and wanted.seq is not None else found

    async def pause(self, delay_s: float, cause: TrickleError) -> None:
        """Wait before a GET that has failed is made again, or until another GET shows that the server is back.

        A segment that begins or goes on shows it, and so does a 470, but not to a GET that got 470 itself: two GETs
        would end each other's pauses for ever. So each pause that lasts its time ends one other early, at most, and so
        does each segment. A pause that the server asks for lasts its time, whatever another GET gets.
        """
        if not isinstance(cause, BrokenByPeer) or cause.retry_after or cause.status == wire.Status.TOO_MANY_REQUESTS:
            await self.runtime.sleep(delay_s)
            return
        with anyio.CancelScope() as scope:
            self.pauses[scope] = cause
            try:
                await self.runtime.sleep(delay_s)
            finally:
                del self.pauses[scope]
        if scope.cancelled_caught:
            await self.runtime.sleep(self.runtime.rng.uniform(MIN_DELAY_S, BACK_S))

    def back(self, *but_after: type[BrokenByPeer]) -> None:
        """The server is back: end the pauses of other GETs, but not those that follow such a failure."""
        for scope, cause in self.pauses.items():
            if not isinstance(cause, but_after):
                scope.cancel()

    def _moved(self, error: TrickleError, pause_s: float, attempt: int) -> None:
        """A GET goes to another node."""
        self.cursor.moved()
        self.monitor.emit(Retrying(error, pause_s, attempt))

    async def ending(self, begun: NextSegment) -> Answer | None:
        """Ask how a segment ended whose body is over; ``None`` if nobody knows."""
        self.monitor.counts["requests"] += 1
        self.monitor.counts["refreshes"] += 1
        timeouts = RequestTimeouts(self.nodes.connect_s(CONNECT_S), read=ANSWER_S, write=ANSWER_S)
        found = await ask(
            self.nodes,
            lambda url: exchange(
                *(self.http, "HEAD", url.segment(begun.seq), self.headers),
                timeouts=timeouts,
                seq=begun.seq,
                auth=self.auth,
            ),
            sleep=self.runtime.sleep,
        )
        if isinstance(found, Lost) or found.status != wire.Status.OK:
            return None
        is_other = found.natural(wire.SEQ) != begun.seq or found.natural(wire.EPOCH) != begun.epoch
        return None if is_other else found

    async def rest(
        self, begun: NextSegment, received: Received, error: ConnectionLost, *, no_fault: bool
    ) -> tuple[Answer, bytes] | ConnectionLost:
        """Request a segment until it goes on behind the bytes that were read of it.

        Args:
            received: the bytes of it that the user has.
            no_fault: the connection did not break: it was silent, or its reader was cancelled. The first GET is made
                at once, and costs no retry: it also asks whether the server is still there.

        Returns:
            The response that the rest comes from, with the first bytes of the rest; or why it cannot be had.
        """
        cause: TrickleError = error
        floor_s: float | None = None
        was_away = False  # the server was restarted, so it may have fewer bytes of the segment than the reader
        while True:
            if no_fault:
                self.monitor.counts["refreshes"] += 1
            else:
                delay_s = self.cursor.cut(self.now(), self.runtime.rng, floor_s=floor_s)
                if delay_s is None:
                    return error
                self.monitor.emit(Retrying(cause, delay_s, received.attempts + 1))
                await self.pause(delay_s, cause)
            received.attempts += 1
            found = await self.get(Ask(begun.seq, received.attempts), ANSWER_S)
            floor_s = None
            match found:
                case Lost(lost):
                    if not isinstance(lost, ConnectionLost):
                        return error
                    cause, was_away = lost, True  # the next server process may have the segment on its disk
                case Answer() as answer if is_same(answer, begun) and not is_shorter(answer, received.size):
                    first = await self._skip(begun, received, answer)
                    if isinstance(first, bytes):
                        self.cursor.resumed()
                        self.back()
                        return answer, first
                    if first is None:
                        return error
                    cause = first
                case Answer() as answer:
                    await answer.body.aclose()
                    if (
                        answer.status != wire.Status.TOO_MANY_REQUESTS
                        and answer.status < wire.Status.SERVER_ERROR
                        and not may_come(answer, begun, was_away=was_away)
                    ):
                        return error
                    was_away = True
                    cause, floor_s = answer.error(begun.seq), answer.retry_after_s
                case None:
                    silent = ConnectionLost(seq=begun.seq, detail=f"{error.detail}, and the server does not answer")
                    if self.nodes.alone:
                        self.waits = CHECK_WAITS
                        return silent if no_fault else error
                    cause = silent
            no_fault = False

    async def _skip(self, begun: NextSegment, received: Received, answer: Answer) -> bytes | ConnectionLost | None:
        """Drop the bytes that the user has; ``None`` if the segment does not begin with them.

        Returns:
            The bytes that came with the last ones of those dropped.
        """
        first: bytes | ConnectionLost | None = None
        body, again, chunk = answer.body, Received(), b""
        body.limit_silence(ANSWER_S)
        try:
            while again.size < received.size:
                chunk = await body.receive_chunk()
                if not chunk:
                    return None
                old = chunk[: received.size - again.size]
                again.add(old)
                chunk = chunk[len(old) :]
            if again.is_like(received):
                first = chunk
        except faults.ReadTimeout:
            return None
        except faults.TransportError as error:
            first = ConnectionLost(seq=begun.seq, detail=str(error))
        finally:
            if not isinstance(first, bytes):
                await body.aclose()
        return first


class Shortened(ConnectionLost):
    """A body ended as if it were whole, and is not."""


def is_same(answer: Answer, begun: NextSegment) -> bool:
    """Whether a response can be the same segment, judged by its head."""
    life = answer.life
    has_its_life = life is not None and life.name == begun.life
    return (
        has_body(answer)
        and answer.natural(wire.SEQ) == begun.seq
        and (answer.natural(wire.EPOCH) == begun.epoch or has_its_life)
        and not KnownNumbering(begun.epoch, begun.life).is_other(answer, begun.seq + 1)
    )


def is_shorter(answer: Answer, size: int) -> bool:
    """Whether the server has less than ``size`` bytes of a segment."""
    its_size = answer.natural(wire.SIZE)
    return its_size is not None and its_size < size


def may_come(answer: Answer, begun: NextSegment, *, was_away: bool) -> bool:
    """Whether a server that lacks bytes which the reader has of a segment may have them soon.

    It was restarted, or another node takes the channel over, and the publisher sends its open segments again: the
    channel is not there yet, or ends before the segment, or the segment has not grown again.

    Args:
        was_away: an answer before this one says that it was restarted.
    """
    if answer.status == wire.Status.NOT_FOUND:
        return not answer.closed
    if answer.status == wire.Status.SEQ_MISSING:
        head = answer.natural(wire.LATEST)
        is_other = KnownNumbering(begun.epoch, begun.life).is_other(answer, begun.seq + 1)
        return head is not None and head <= begun.seq and not is_other
    return was_away and is_same(answer, begun) and wire.TRUNCATED not in answer.headers


def has_body(answer: Answer) -> bool:
    """Whether the bytes of a segment may follow the head of an answer."""
    return answer.status == wire.Status.OK and not (answer.closed or answer.empty)
