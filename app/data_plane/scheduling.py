"""Turns and deadlines: the connection that is served next, and the states that end with time.

Two resources are shared by turns, bytes and time, so that no connection takes the event loop for itself:

- **Reading.** A connection is read at most once per turn of the loop, :data:`TURN_BYTES` at most. A connection whose
  input is expensive to parse (1-byte chunks) gets smaller reads, and rests for a multiple of the time that they took.
- **Writing.** Readers that are behind queue for turns of :data:`WRITE_BYTES`; together they get :data:`WRITE_S` of each
  turn of the loop.
- **Publishers and their readers.** While readers of a channel whose sockets take data wait for their turn, the server
  is behind, and the channel's publishers are not read (:class:`Flow`). A reader whose socket is full is itself behind:
  it is not in the queue, and slows no publisher. :mod:`app.data_plane.pacing` covers readers between two requests.

Nothing here is a task per reader, a timer per chunk, or a queue longer than the number of connections.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from time import perf_counter
from typing import Any, Final, Protocol, TypeVar

from tricklecast.app.core.limits import Limit
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.slow_readers import Cut, Stall, Timelines
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.responses import Reply
from tricklecast.trickle.records import Reason

TURN_BYTES: Final = 256 << 10
"""Bytes that one connection may have read in one turn of the event loop."""

LEAST_TURN_BYTES: Final = 2 << 10
"""The smallest read of a connection whose input is expensive to parse."""

DEAR_S: Final = 0.001
"""A read that takes longer to parse is dear: the connection's next read is half as large. 64 KiB of 1-byte chunks take
11 ms, 64 KiB of 8 KiB chunks 0.05 ms."""

REST_FACTOR: Final = 4
LONGEST_REST_S: Final = 0.05
"""A connection whose reads are dear rests for this multiple of a read's cost, so that it takes a fifth of the loop."""

WRITE_BYTES: Final = 256 << 10
WRITE_FRAMES: Final = 512
"""A reader that is behind is written this number of bytes in one turn, or one frame if that is larger; and this number
of frames, below the 1024 buffers that one ``writev`` takes (IOV_MAX)."""

WRITE_S: Final = 0.002
"""Readers that are behind get this time in one turn of the event loop, before sockets are polled again."""

HOLD_S: Final = 0.02
"""A channel's publishers are held for its readers for this time at a stretch. Then they are read once in any case: a
live encoder of 25 Mbit/s gets through while a fast reader catches up through the whole window."""

EXPECTED_TURNS: Final = 3
"""Turns of the loop for which a channel's publishers wait for the next request of a reader that has just been served a
segment that is not the newest. On an idle server that is a tenth of a millisecond."""

TURN, COST, CHANNEL, QUEUE, PARKED, READERS, MORE = (1 << bit for bit in range(7))
"""The reasons for which a connection is not read from: it had its turn; its input was dear; its channel's readers come
first; too much is pipelined; the body of a parked request is held back; its channel's readers are late; its last read
is not all parsed. Each reason is set and cleared by itself."""

HALF_CLOSED_S: Final = 10.0
"""A peer that has closed its half may wait this long for the first byte of its response. A client that is gone looks
the same until the server sends to it."""

MAX_HALF_CLOSED: Final = 1024
"""Half-closed connections whose peer waits; one more, and the one that has waited longest is answered 503."""

HALF_CLOSED: Final = getattr(select, "POLLRDHUP", 0)
"""The event of a half-closed connection. Only Linux has it. Elsewhere poll still reports a reset."""

OnFault = Callable[[str, Exception], None]
"""Told of a fault of the server: a phrase for the log, such as ``while a publisher was read again``, and the
exception."""


class Peer(Protocol):
    """A connection, as turns, time limits, pacing and the plane see it.

    Stages and exchanges see a :class:`~app.data_plane.exchange.Caller`, which also has a plane and can write.

    Attributes:
        write_paused: the transport holds bytes that the peer has not taken.
        deaf: the connection is about to close, and its input is ignored.
        surplus: the limit that the connection exceeds; its requests on segment routes are refused.
    """

    write_paused: bool
    deaf: bool
    surplus: Limit | None

    @property
    def exchange(self) -> object:
        """The exchange in progress, if any."""

    @property
    def unfinished(self) -> bool:
        """Whether an exchange runs on it, or its peer has not taken all of a response yet."""

    @property
    def waiting(self) -> bool:
        """Whether its client only waits, for a segment or with a preconnect."""

    def fileno(self) -> int:
        """The descriptor of its socket; -1 if the socket is closed."""

    # Reading.

    def pause(self, reason: int) -> None:
        """Stop reading, for this reason."""

    def resume(self, reason: int) -> None:
        """Read again, if no other reason is left."""

    def read_less(self, size: int) -> None:
        """Limit the size of the next read."""

    # Writing.

    def unsent(self) -> int:
        """Bytes that the transport holds because the peer does not take them."""

    def reader(self) -> SlowReader | None:
        """The reader on this connection, if it has one that is not done."""

    # Its end.

    def cut_off(self, why: Cut) -> None:
        """Break the connection, since its peer does not read."""

    def peer_gone(self) -> None:
        """Close a connection that is not read from, and that its peer has closed or reset."""

    def rested(self) -> None:
        """Close it, since it was idle between requests for too long."""

    def too_slow(self) -> None:
        """End its request, the rest of which did not arrive in time."""

    def let_go(self) -> None:
        """End its exchange if no byte was sent yet, since its peer has closed its half long ago."""

    def end_permission(self, reply: Reply) -> None:
        """End its exchange with this reply, since the permission has expired or was withdrawn."""

    def make_room(self) -> bool:
        """Give its place beyond a limit to a newer connection. Returns ``False`` if it is being answered."""

    def drain(self, after_s: float) -> None:
        """Shut down: answer a client that only waits, after this time."""

    def abort(self, reason: str = Reason.SHUTDOWN) -> None:
        """Break the connection. An exchange on it ends with this reason."""

    def close(self) -> None:
        """Close the connection when all bytes are written."""


PeerT = TypeVar("PeerT", bound=Peer)


class SlowReader(Protocol):
    """A reader that is behind, as the schedulers see it."""

    channel: Channel
    segment: Segment
    queued: bool

    def take_turn(self) -> None:
        """Write what one turn allows; queue again if there is more and the socket takes it."""

    def lag(self) -> int:
        """Body bytes published while it was there and not sent yet."""

    def has(self) -> int:
        """Body bytes that its peer has taken, or that were there when it came."""

    def failed(self, error: Exception) -> None:
        """End the reader, since it met a fault of the server."""


class Hold:
    """Publishers' connections that are not read from, for one reason, until they are all read again."""

    __slots__ = ("_reason", "held", "since")

    def __init__(self, reason: int) -> None:
        self._reason = reason
        self.held: dict[Peer, None] = {}
        self.since = 0.0  # the time at which the first of them was held

    def hold(self, peer: Peer) -> None:
        """Stop reading from a publisher, since readers come first."""
        held = self.held
        if not held:
            self.since = perf_counter()
        if peer not in held:
            held[peer] = None
            peer.pause(self._reason)

    def release(self, on_fault: OnFault, size: int | None = None) -> None:
        """Read from the publishers again.

        Args:
            on_fault: told of a connection that raises; the others are read from all the same.
            size: the limit of the first read from each; ``None``: no limit of its own.
        """
        held, self.held = self.held, {}
        for peer in held:
            try:
                if size is not None:
                    peer.read_less(size)
                peer.resume(self._reason)
            except Exception as error:
                on_fault("while a publisher was read again", error)


class Flow(Hold):
    """The publishers of one channel, held while its readers are behind."""

    __slots__ = ("expected", "queued")

    def __init__(self) -> None:
        super().__init__(CHANNEL)
        self.queued = 0  # readers that wait for their turn to be written to
        self.expected = 0  # turns of the loop for which a reader's next request is still expected


class Turns:
    """Serves connections by turns.

    Args:
        on_fault: told of a fault that met a connection, or that a reader could not be told of.
    """

    def __init__(self, on_fault: OnFault) -> None:
        self._on_fault = on_fault
        # Every connection is read into this buffer, and parsed before the next one is read. The buffer is no constant
        # of the module: two servers in one process run in threads of their own.
        self.input = memoryview(bytearray(TURN_BYTES))
        self.flows: dict[object, Flow] = {}  # by channel, while its publishers are to be held
        self._readers: deque[SlowReader] = deque()  # readers that are behind
        self._ends: deque[SlowReader] = deque()  # readers that lack only the end of their segment
        self._inputs: list[Peer] = []  # connections that have had their turn to be read
        self._scheduled = False  # _run is called in the next turn of the loop

    def __iter__(self) -> Iterator[SlowReader]:
        """The readers that wait for their turn."""
        return iter(self._readers)

    # Writing.

    def add_reader(self, reader: SlowReader) -> None:
        """Queue a reader that is behind, and whose socket takes data."""
        if reader.queued:
            return
        reader.queued = True
        self._readers.append(reader)
        self._flow(reader.channel).queued += 1
        self._schedule()

    def add_end(self, reader: SlowReader) -> None:
        """Queue a reader that lacks only the end of its segment, behind all readers that lack bytes."""
        if not reader.queued:
            reader.queued = True
            self._ends.append(reader)
            self._schedule()

    # Reading.

    def had_turn(self, peer: Peer) -> None:
        """Read from a connection in the next turn of the loop, since it had its share of this one."""
        peer.pause(TURN)
        self._inputs.append(peer)
        self._schedule()

    def was_dear(self, peer: Peer, cost_s: float) -> None:
        """Let a connection rest, since its input took this long."""
        peer.pause(COST)
        asyncio.get_running_loop().call_later(min(REST_FACTOR * cost_s, LONGEST_REST_S), peer.resume, COST)

    # Publishers and their readers.

    def expect_request(self, channel: object) -> None:
        """Hold publishers for a reader's next request, since it was served a segment that is not the newest."""
        self._flow(channel).expected = EXPECTED_TURNS
        self._schedule()

    def request_came(self, channel: object) -> None:
        """Note that a reader of this channel has made its next request: publishers need not wait for it."""
        flow = self.flows.get(channel)
        if flow is not None:
            flow.expected = 0

    # Mechanics.

    def _flow(self, channel: object) -> Flow:
        flow = self.flows.get(channel)
        if flow is None:
            flow = self.flows[channel] = Flow()
        return flow

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """One turn: write to readers that are behind, then read from those that had their turn."""
        self._scheduled = False
        until = perf_counter() + WRITE_S
        self._serve(self._readers, until, counted=True)
        self._serve(self._ends, until + WRITE_S, counted=False)
        if self.flows:
            self._settle_flows()
        inputs, self._inputs = self._inputs, []
        for peer in inputs:
            try:
                peer.resume(TURN)
            except Exception as error:
                self._on_fault("while a connection was read again", error)
        if self._readers or self._ends or self._inputs or self.flows:
            self._schedule()

    def _serve(self, readers: deque[SlowReader], until: float, *, counted: bool) -> None:
        """Give each reader of a queue one turn, until the time is over."""
        for _ in range(len(readers)):
            reader = readers.popleft()
            reader.queued = False
            channel = reader.channel
            try:
                reader.take_turn()
            except Exception as error:
                try:
                    reader.failed(error)
                except Exception as again:
                    self._on_fault("while a reader was told of a fault", again)
            if counted:
                self.flows[channel].queued -= 1
            if perf_counter() >= until:
                return

    def _settle_flows(self) -> None:
        """Read again from publishers whose readers have caught up, and from those that were held for :data:`HOLD_S`."""
        now = perf_counter()
        for channel, flow in list(self.flows.items()):
            if flow.expected:
                flow.expected -= 1
            if not (flow.queued or flow.expected):
                del self.flows[channel]
                flow.release(self._on_fault)
            elif flow.held and now - flow.since >= HOLD_S:
                flow.release(self._on_fault)


class Timeouts:
    """Connections by states that end after a time.

    All stays in one state last equally long, so a dict in the order of arrival is in the order of deadlines, too.

    Args:
        rest_s: the time for which a connection may be idle between requests.
        owed_s: the time that the rest of a request may take while no exchange runs on its connection.
        half_closed_s: the time for which a peer that has closed its half may wait for the first byte of its response.
    """

    def __init__(self, *, rest_s: float, owed_s: float, half_closed_s: float = HALF_CLOSED_S) -> None:
        self.rest_s, self.owed_s, self.half_closed_s = rest_s, owed_s, half_closed_s
        self.resting: dict[Peer, float] = {}  # idle between requests; the deadline of each
        self.owing: dict[Peer, float] = {}  # in the middle of a request
        self.half_closed: dict[Peer, float] = {}  # closed by their peer in one direction

    def expire(self, now: float) -> None:
        """End the states whose time is over."""
        for peer in due(self.half_closed, now):
            self.let_go(peer, now)
        for peer in due(self.resting, now):
            del self.resting[peer]
            peer.rested()
        for peer in due(self.owing, now):
            del self.owing[peer]
            peer.too_slow()

    def closed_half(self, peer: Peer, now: float) -> None:
        """Note that a peer has closed its half of its connection, and is owed a response."""
        self.half_closed.setdefault(peer, now + self.half_closed_s)
        if len(self.half_closed) > MAX_HALF_CLOSED:
            self.let_go(next(iter(self.half_closed)), now)

    def let_go(self, peer: Peer, now: float) -> None:
        """End the exchange of a half-closed connection if no byte was sent yet; else look again later."""
        del self.half_closed[peer]
        self.half_closed[peer] = now + self.half_closed_s
        peer.let_go()

    def forget(self, peer: Peer) -> None:
        """Remove a connection that is gone."""
        self.resting.pop(peer, None)
        self.owing.pop(peer, None)
        self.half_closed.pop(peer, None)


class SlowPeers:
    """Connections whose transport holds bytes that the peer does not take. The sweeper cuts off those beyond a limit.

    Args:
        clock: seconds.
        lag_bytes, lag_s: the limits of a reader's lag; a peer may also take nothing for ``lag_s``.
    """

    def __init__(self, clock: Callable[[], float], *, lag_bytes: int, lag_s: float) -> None:
        self._clock = clock
        self._lag_bytes, self._lag_s = lag_bytes, lag_s
        self.stalled: dict[Peer, Stall] = {}  # the connections with unsent bytes
        self.timelines = Timelines(lag_s)  # the times at which the bytes were published that readers lack
        self.cut_offs = dict.fromkeys(Cut, 0)  # connections that were cut off, by reason

    def stall(self, peer: Peer) -> None:
        """Add a connection whose transport begins to hold bytes."""
        self.stalled[peer] = Stall(self._clock(), peer.unsent())

    def flowing(self, peer: Peer) -> None:
        """Remove a connection whose transport is empty again, or that is gone."""
        self.stalled.pop(peer, None)

    def expire(self, now: float, queued: Iterable[SlowReader]) -> None:
        """Cut off peers that stand still, or are too far behind in bytes or seconds.

        Args:
            queued: readers that are behind though their socket takes data.
        """
        segments = {reader.segment: None for reader in queued}
        segments.update({reader.segment: None for peer in self.stalled if (reader := peer.reader()) is not None})
        self.timelines.look(segments, now)
        for peer, stall in list(self.stalled.items()):
            if (why := self._verdict(peer, stall, now)) is not None:
                self.cut_offs[why] += 1
                peer.cut_off(why)

    def lag_s(self, reader: SlowReader) -> float:
        """The age of the oldest byte that a reader lacks and that was published while it was there, seconds."""
        return self.timelines.age_s(reader.segment, reader.has(), self._clock())

    def _verdict(self, peer: Peer, stall: Stall, now: float) -> Cut | None:
        if stall.stands_still(peer.unsent(), now, self._lag_s):
            return Cut.STILL
        reader = peer.reader()
        if reader is None:
            return None
        if reader.lag() > self._lag_bytes:
            return Cut.BYTES
        return Cut.AGE if reader.has() < self.timelines.overdue(reader.segment, now) else None


def gone(peers: Iterable[PeerT], events: int = 0) -> list[PeerT]:
    """The connections that are broken or have one of these events. Only this shows it while they are not read from."""
    poll = select.poll()
    by_fd: dict[int, PeerT] = {}
    for peer in peers:
        if (fd := peer.fileno()) >= 0:
            by_fd[fd] = peer
            poll.register(fd, events)
    return [by_fd[fd] for fd, _ in poll.poll(0)] if by_fd else []


def due(times: dict[Any, float], now: float) -> list[Any]:
    """The keys whose deadline is over, from a dict in the order of deadlines."""
    return list(takewhile(lambda key: times[key] <= now, times))
