"""Turns: which connection is read or written next, and when a publisher waits for its readers.

Theory of operation, of this module and of :mod:`app.data_plane.pacing`. One event loop serves thousands of connections,
and a callback that runs for long delays all others. Two resources are shared by turns, bytes and time:

- **Reading.** A connection is read at most once per turn of the loop, :data:`TURN_BYTES` at most. A connection whose
  input is expensive to parse (1-byte chunks) gets smaller reads, and rests for a multiple of the time that they took.
- **Writing.** A reader that is behind, and whose socket takes data, queues here. Its turn is :data:`TURN_BYTES`, too;
  all such readers together get :data:`WRITE_S` of each turn of the loop, then sockets are polled again.

Turns alone do not bound how far readers fall behind: a publisher that sends faster than the server relays, or than all
readers take, drives them out of the window. So a publisher is *held*: its connection is not read, its socket fills, and
TCP slows it down. The server holds the publishers of a channel for one of two reasons, and for a limited time each:

- **The server is behind** (:class:`Flow`): readers of the channel wait for their turn, or the next request of a reader
  that was served an older segment is on its way. This lasts until the queue is empty, :data:`HOLD_S` at a stretch.
- **The readers are behind** (:class:`~app.data_plane.pacing.Pace`): nearly all that still read are late, though no
  queue and no full socket shows it, since the kernel takes whole segments for a reader that is between two requests.
  This lasts until one in ten is in time, ``publisher_wait_s`` at a stretch.

A reader whose socket is full is neither: it waits in no queue, and slows no publisher. Nor does one slow reader beside
a fast one. It falls behind alone, and :mod:`app.data_plane.deadlines` cuts it off.

Nothing here is a task per reader, a timer per chunk, or a queue longer than the number of connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final, Protocol

from tricklecast.app.core.limits import Limit
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.slow_readers import Cut
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.responses import Reply
from tricklecast.trickle.records import Reason

TURN_BYTES: Final = 256 << 10
"""Bytes that one connection may have read, or be written, in one turn of the event loop; a larger frame goes as one."""

LEAST_TURN_BYTES: Final = 2 << 10
"""The smallest read of a connection whose input is expensive to parse."""

DEAR_S: Final = 0.001
"""A read that takes longer to parse is dear: the connection's next read is half as large. 64 KiB of 1-byte chunks take
11 ms, 64 KiB of 8 KiB chunks 0.05 ms."""

REST_FACTOR: Final = 4
LONGEST_REST_S: Final = 0.05
"""A connection whose reads are dear rests for this multiple of a read's cost, so that it takes a fifth of the loop."""

WRITE_FRAMES: Final = 512
"""Frames that one reader is written in one turn, below the 1024 buffers that one ``writev`` takes (IOV_MAX)."""

WRITE_S: Final = 0.002
"""Readers that are behind get this time in one turn of the event loop, before sockets are polled again."""

HOLD_S: Final = 0.02
"""A channel's publishers are held for its readers for this time at a stretch. Then they are read once in any case: a
live encoder of 25 Mbit/s gets through while a fast reader catches up through the whole window."""

EXPECTED_TURNS: Final = 3
"""Turns of the loop for which a channel's publishers wait for the next request of a reader that has just been served a
segment that is not the newest. On an idle server that is a tenth of a millisecond."""

TURN, COST, CHANNEL, QUEUE, PARKED, READERS, MORE, NODE = (1 << bit for bit in range(8))
"""The reasons for which a connection is not read from: it had its turn; its input was dear; its channel's readers come
first; too much is pipelined; the body of a parked request is held back; its channel's readers are late; its last read
is not all parsed; the node to which its request goes takes no more. Each reason is set and cleared by itself."""

OnFault = Callable[[str, Exception], None]
"""Told of a fault of the server: a phrase for the log, such as ``while a publisher was read again``, and the
exception."""


class Peer(Protocol):
    """A connection, as turns, deadlines, pacing and the plane see it; its other end is the peer.

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

    def too_slow(self) -> None:
        """End its request, the rest of which did not arrive in time."""

    def let_go(self) -> None:
        """End its exchange if no byte was sent yet, since its peer closed its half long ago."""

    def end_permission(self, reply: Reply) -> None:
        """End its exchange with this reply, since the permission has expired or was withdrawn."""

    def yield_place(self) -> bool:
        """Give its place beyond a limit to a newer connection. Returns ``False`` if it is being answered."""

    def drain(self, after_s: float) -> None:
        """Shut down: answer a client that only waits, after this time."""

    def abort(self, reason: str = Reason.SHUTDOWN) -> None:
        """Break the connection. An exchange on it ends with this reason."""

    def close(self) -> None:
        """Close the connection when all bytes are written."""


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
