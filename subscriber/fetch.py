"""The subscriber's GETs: for the next segment, made while the present one is read, and for the rest of a cut segment.

A GET of a segment always begins at its first byte. So the rest of a cut segment is read by the same GET once more: the
bytes that the user has already come again, and are dropped. Their beginning and their end are compared with what the
user has: on a server that was restarted in between, another segment may have that number.

A server that cuts off a reader for being too slow looks like a broken network, and is handled in the same way: if the
segment is still kept, it is read on; if it has left the window, ``on_lag`` says where to go.

A GET for the next segment may wait for ever, so a server that has hung looks like a quiet channel. After a wait in
which a server said nothing since the subscriber began, or :data:`CHECK_WAITS` waits in a row, the subscriber asks where
the head is. A server that does not answer that is away.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from tricklecast.subscriber.core import (
    Advance,
    Ask,
    Cursor,
    Decision,
    End,
    Resolved,
    Resync,
    RetryAfter,
    is_renumbered,
)
from tricklecast.subscriber.events import Monitor, Retrying, SkippedAhead
from tricklecast.trickle import __version__, wire
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connection import RequestTimeouts
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost, TrickleClient, exchange
from tricklecast.trickle.client.nodes import Nodes, ask, shown
from tricklecast.trickle.client.retry import Stop
from tricklecast.trickle.client.tasks import BackgroundTask, Notifier, clock
from tricklecast.trickle.errors import ConnectionLost, TrickleError
from tricklecast.trickle.paths import ChannelURL

if TYPE_CHECKING:
    import httpx

    from tricklecast.trickle.client.arguments import HttpxAuth

CONNECT_S: Final = 10.0
"""How long a connection may take to be made."""

ANSWER_S: Final = 5.0
"""How long the reader waits for a segment that the server should have, and for each of its old chunks. A server that
has the segment sends it at once; a server that lets the reader wait has another segment in mind."""

NEXT_S: Final = 10.0
"""How long a server may take to say where the head is, which it knows."""

HELD_S: Final = 1.0
"""A server that closes the connection 1 s after the request or later had let it wait for a segment. A port of another
program closes it at once."""

CHECK_WAITS: Final = 5
"""After this many waits in a row without an answer (at least 100 s), the server is asked whether it still answers."""

COMPARED_BYTES: Final = 4096
"""How much of the beginning and of the end of what was read is compared when a cut segment is read on."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The clock, the delays and the random numbers of a subscriber.

    Attributes:
        now: seconds on a monotonic clock.
    """

    rng: Random = field(default_factory=Random)
    now: Callable[[], float] = anyio.current_time
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


class Preconnect:
    """The GET for the next segment, which a task of the :class:`Fetcher` makes.

    Attributes:
        delay_s: it is made after so many seconds.
        abandoned: the result is not wanted any more.
        task: makes it.
        result: the result, once it is there, and the answer that it is about.
    """

    __slots__ = ("_changes", "_error", "_is_over", "abandoned", "answer", "delay_s", "result", "task")

    def __init__(self, delay_s: float, changes: Notifier) -> None:
        self.delay_s = delay_s
        self.answer: Answer | None = None
        self.abandoned = False
        self.result: Advance | End | Stop | None = None
        self._error: Exception | None = None
        self._is_over = False
        self.task: BackgroundTask | None = None
        self._changes = changes  # is notified when it is over, and when the task is

    @property
    def outcome(self) -> Advance | End | Stop:
        """The result, once it is over and was not abandoned.

        Raises:
            ClosedHere: the task was cancelled with all others of the program.
            Exception: what it raised, for example the error of a transport that the user passed.
        """
        if self._error is not None:
            raise self._error
        if self.result is None and self.task is not None:
            self.task.check()
        assert self.result is not None
        return self.result

    async def over(self) -> None:
        """Wait for the result. A cancelled wait changes nothing."""
        assert self.task is not None
        if self._is_over or self.task.is_over:
            await anyio.lowlevel.checkpoint_if_cancelled()
        while not (self._is_over or self.task.is_over):
            await self._changes.wait()

    def end(self, error: Exception | None = None) -> None:
        """Its task is done with it."""
        self._error, self._is_over = error, True
        self._changes.notify()

    async def abandon(self) -> None:
        """Stop the task if it makes this one, wait for its end, and close the response. It may be called twice."""
        self.abandoned = True
        try:
            if self.task is not None and not self._is_over:
                await self.task.stop()
        finally:
            if self.answer is not None:
                await self.answer.body.aclose()


def request_headers() -> dict[str, str]:
    """The headers of each request of one subscriber."""
    return {
        "Accept-Encoding": "identity",
        "User-Agent": f"tricklecast-subscriber/{__version__}",
        # The same name over reconnects: logs can tell one client from another. It does not have 16 digits, since
        # servers give names of 16 digits to clients without one.
        wire.CLIENT: f"subscriber-{os.urandom(6).hex()}",
    }


@dataclass(slots=True)
class Fetcher:
    """Makes the GETs of one subscriber.

    Attributes:
        auth: authentication of each request; ``None``: that of ``http``.
        on_resolved: called with the seq that ``next`` turned out to be.
    """

    nodes: Nodes
    http: TrickleClient | httpx.AsyncClient
    auth: HttpxAuth | None
    cursor: Cursor
    monitor: Monitor
    runtime: Runtime
    on_resolved: Callable[[int], None]
    headers: dict[str, str]
    _waits: int = CHECK_WAITS - 1  # in a row, without an answer; the first one of all is checked
    # One task makes one GET after the other: a task for each would cost as much as a small segment.
    _task: BackgroundTask | None = None
    _due: Preconnect | None = None  # that it makes next
    _woken: Notifier = field(default_factory=Notifier)  # wakes it
    _changes: Notifier = field(default_factory=Notifier)  # wakes who waits for the result

    def __post_init__(self) -> None:
        if self.runtime.now is anyio.current_time:
            self.runtime = replace(self.runtime, now=clock())  # it is asked three times for each segment

    def preconnect(self, delay_s: float) -> Preconnect:
        """Begin the GET for the next segment, after ``delay_s`` seconds."""
        self._due = pending = Preconnect(delay_s, self._changes)
        if self._task is None or self._task.is_over:
            self._task = BackgroundTask(self._work, self._changes)
        else:
            self._woken.notify()
        pending.task = self._task
        return pending

    async def stop(self) -> None:
        """Stop the task, and wait for its end."""
        if self._task is not None:
            await self._task.stop()

    async def _work(self) -> None:
        """Make what is due, one after the other; never returns."""
        while True:
            pending, self._due = self._due, None
            if pending is None:
                await self._woken.wait()
                continue
            error: Exception | None = None
            try:
                delay_s: float | None = pending.delay_s
                while delay_s is not None:
                    if delay_s > 0:
                        await self.runtime.sleep(delay_s)
                    delay_s = await self._try(pending)
            except Exception as unexpected:
                error = unexpected
            pending.end(error)

    async def _get(self, wanted: Ask, wait_s: float, *, may_wait: bool = False) -> ExchangeOutcome | None:
        """Make one GET; ``None`` if the head of a segment did not come within ``wait_s`` seconds.

        Args:
            may_wait: the segment may not have begun, so that a node that lets the reader wait has not failed.
        """
        headers = self.headers | {wire.ATTEMPT: str(wanted.attempt)}
        if wanted.life is not None:
            headers[wire.LIFE] = wanted.life
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
                stays_open=None if wanted.seq is None else _has_body,
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
            self._waits = 0
        return None if isinstance(found, Lost) and found.waited_s and wanted.seq is not None else found

    def _moved(self, error: TrickleError, pause_s: float, attempt: int) -> None:
        """A GET goes to another node."""
        self.cursor.moved()
        self.monitor.emit(Retrying(error, pause_s, attempt))

    async def ending(self, begun: Advance) -> Answer | None:
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

    async def _try(self, pending: Preconnect) -> float | None:
        """Make one GET. After how many seconds to make another one; ``None`` if the result is there."""
        requested_at = self.runtime.now()
        if self._waits >= CHECK_WAITS:
            self.monitor.counts["refreshes"] += 1
            found = await self._get(Ask(None), NEXT_S)
            if isinstance(found, Lost) and not pending.abandoned:
                return self._settled(pending, self._lost(found, requested_at))
            requested_at = self.runtime.now()
        wanted = self.cursor.ask()
        found = await self._get(wanted, self.cursor.refresh_after(self.runtime.rng), may_wait=True)
        outcome: Decision | None = None
        try:
            # No await between the answer and its result: a subscriber that is closed now finds the response.
            outcome = None if pending.abandoned else self._decide(wanted, found, requested_at)
            if isinstance(outcome, Advance):
                assert isinstance(found, Answer)
                found.requested_at, found.answered_at = requested_at, self.runtime.now()
                pending.result, pending.answer = outcome, found
                return None
        finally:
            if isinstance(found, Answer) and pending.answer is None:
                await found.body.aclose()
        if outcome is None:
            return None if pending.abandoned else 0.0
        return self._settled(pending, outcome)

    def _settled(self, pending: Preconnect, outcome: Decision) -> float | None:
        """After how many seconds to make another GET; ``None`` if there is none to make."""
        if isinstance(outcome, End | Stop):
            pending.result = outcome
            return None
        return outcome.delay_s

    def _lost(self, lost: Lost, requested_at: float) -> Decision:
        """Report a GET without an answer; return the cursor's decision."""
        now = self.runtime.now()
        waited_s = now - requested_at if lost.connected and not lost.waited_s else 0.0
        taken = lost.waited_s > 0 or waited_s >= HELD_S
        outcome = self.cursor.lost(lost.error, now, self.runtime.rng, taken=taken, waited_s=waited_s)
        if isinstance(outcome, RetryAfter):
            self.monitor.emit(Retrying(outcome.error, outcome.delay_s, self.cursor.ask().attempt))
        return outcome

    def _decide(self, ask: Ask, found: ExchangeOutcome | None, requested_at: float) -> Decision | None:
        """Report a GET; return the cursor's decision, or ``None`` to make the same GET at once."""
        now, rng = self.runtime.now(), self.runtime.rng
        if found is None:
            self.monitor.counts["refreshes"] += 1
            self._waits += 1
            self.cursor.refreshed()
            return None
        if isinstance(found, Lost):
            return self._lost(found, requested_at)
        self.monitor.answered()
        outcome = self.cursor.answered(found, now, rng)
        match outcome:
            case RetryAfter(delay_s, error):
                self.monitor.emit(Retrying(error, delay_s, self.cursor.ask().attempt))
            case Resync(seq, _, error):
                # A negative number is the protocol's word for the newest segment.
                wanted = None if ask.seq is None or ask.seq < 0 else ask.seq
                self.monitor.emit(SkippedAhead(wanted, seq, error))
            case Resolved(seq):
                self.on_resolved(seq)
        return outcome

    async def rest(
        self, begun: Advance, received: Received, error: ConnectionLost, *, no_fault: bool
    ) -> tuple[Answer, bytes] | ConnectionLost:
        """Request a segment until it goes on behind what was read of it.

        Args:
            received: what the user has of it.
            no_fault: the connection did not break: it was silent, or its reader was cancelled. The first GET is made
                at once, and costs no retry: it also asks whether the server is still there.

        Returns:
            The response that the rest comes from, with the first bytes of the rest; or why it cannot be had.
        """
        cause: TrickleError = error
        floor_s: float | None = None
        while True:
            if no_fault:
                self.monitor.counts["refreshes"] += 1
            else:
                delay_s = self.cursor.cut(self.runtime.now(), self.runtime.rng, floor_s=floor_s)
                if delay_s is None:
                    return error
                self.monitor.emit(Retrying(cause, delay_s, received.attempts + 1))
                await self.runtime.sleep(delay_s)
            received.attempts += 1
            found = await self._get(Ask(begun.seq, received.attempts), ANSWER_S)
            floor_s = None
            match found:
                case Lost(lost):
                    if not isinstance(lost, ConnectionLost):
                        return error
                    cause = lost  # if the server process is gone, the next one may have the segment on its disk
                case Answer() as answer if is_same(answer, begun, received.size):
                    first = await self._skip(begun, received, answer)
                    if isinstance(first, bytes):
                        self.cursor.resumed()
                        return answer, first
                    if first is None:
                        return error
                    cause = first
                case Answer() as answer:
                    await answer.body.aclose()
                    may_come = answer.status == wire.Status.NOT_FOUND and not answer.closed and not self.nodes.alone
                    if (
                        answer.status != wire.Status.TOO_MANY_REQUESTS
                        and answer.status < wire.Status.SERVER_ERROR
                        and not may_come  # a node that takes the channel over has it when its publisher comes
                    ):
                        return error
                    cause, floor_s = answer.error(begun.seq), answer.retry_after_s
                case None:
                    silent = Unanswered(seq=begun.seq, detail=f"{error.detail}, and the server does not answer")
                    if self.nodes.alone:
                        return silent if no_fault else error
                    cause = silent
            no_fault = False

    async def _skip(self, begun: Advance, received: Received, answer: Answer) -> bytes | ConnectionLost | None:
        """Drop what the user has; ``None`` if the segment does not begin with it.

        Returns:
            The bytes that came with the last ones of what was dropped.
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


class Unanswered(ConnectionLost):
    """The server accepts connections and does not answer, not even about a segment that it was sending."""


def is_same(answer: Answer, begun: Advance, size: int) -> bool:
    """Whether a response can be the same segment, judged by its head."""
    told_size, life = answer.natural(wire.SIZE), answer.life
    has_its_life = life is not None and life.name == begun.life
    return (
        _has_body(answer)
        and answer.natural(wire.SEQ) == begun.seq
        and (answer.natural(wire.EPOCH) == begun.epoch or has_its_life)
        and not is_renumbered(answer, begun.epoch, begun.life, begun.seq + 1)
        and (told_size is None or told_size >= size)
    )


def _has_body(answer: Answer) -> bool:
    """Whether the bytes of a segment may follow the head of an answer."""
    return answer.status == wire.Status.OK and not (answer.closed or answer.empty)
