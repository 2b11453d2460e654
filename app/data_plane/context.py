"""The data plane's shared state: schedulers, limits, counters and settings of all connections, and the sweeper's work.

One :class:`DataPlane` is one server. A connection reads its rules here and counts here; the plane knows connections
only by :class:`~app.data_plane.scheduling.Peer`, so that neither HTTP/1.1 nor TLS is of its concern.

The sweeper calls :meth:`DataPlane.tick` a few times a second. Everything that ends by time ends there: timeouts, lag,
permissions, channels, playlists. Each part is guarded, so that a fault in one does not stop the others.

A fault of the server costs one exchange or one connection, never the process. It is logged with its stack trace and
counted; then the channel in use is checked (:func:`app.core.invariants.check_channel`), and ended if it is not sound. A
lack of memory is a fault of its own kind: it is counted apart, and logged at most once in :data:`SHORT_S`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from tricklecast.app.clock import to_us, wall_us
from tricklecast.app.core.facts import EndReason
from tricklecast.app.core.invariants import check_channel
from tricklecast.app.core.limits import Admission
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.state import Channel
from tricklecast.app.core.storm_guard import StormGuard
from tricklecast.app.data_plane.authorization import Authorizer, Granted
from tricklecast.app.data_plane.client_address import Network, TrustedProxies
from tricklecast.app.data_plane.cors import ANY, Cors
from tricklecast.app.data_plane.deadlines import HALF_CLOSED, HALF_CLOSED_S, SlowPeers, Timeouts, gone
from tricklecast.app.data_plane.hosts import Hosts
from tricklecast.app.data_plane.latency import Histogram, Latencies
from tricklecast.app.data_plane.pacing import Pacing
from tricklecast.app.data_plane.request import Request, Via
from tricklecast.app.data_plane.responses import EXPIRED, REVOKED, Reply
from tricklecast.app.data_plane.routing import Route, Router
from tricklecast.app.data_plane.scheduling import Peer, Turns
from tricklecast.app.hls.packager import Packagers
from tricklecast.app.hls.recording import FindPast, Recordings
from tricklecast.app.replication.sending import Sending
from tricklecast.trickle.records import AccessRecord, Figures

UNCOUNTED: Final = 1000
"""Exchanges that have ended and are not counted yet: to count them takes 0.3 ms, during which nobody is served."""

SHORT_S: Final = 60.0
"""The server says that it is degraded for this time after memory ran out."""

LOGGER: Final = logging.getLogger("tricklecast.data_plane")

RecordSink = Callable[[AccessRecord], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of the data plane. Bytes and seconds.

    Attributes:
        base_path: the path below which segment routes live, ``""`` for the root.
        reader_lag_bytes, reader_lag_s: the server cuts off a reader that is farther behind than this.
        publisher_wait_s: the longest time for which a publisher waits for readers, at a stretch.
        keep_alive_s: the time for which a connection may be idle between requests.
        linger_s: the time for which a connection that was answered early is still read from before it is closed. To
            close it with unread data would make the kernel reset it, and the client might lose the response.
        half_closed_s: the time for which a client that has closed its sending side may wait for a response.
        head_timeout_s: the time that a request's head may take from its first byte, and then a body that is discarded.
        url_bytes, header_bytes: limits of one request's head.
        metrics_channels: the number of channels that the metrics name.
        storm_guard: whether clients that repeat fruitless requests are answered later.
        trusted_proxies: addresses of proxies whose ``X-Forwarded-For`` is believed.
        cors_read_origins, cors_write_origins: origins of the web pages that may read and write segments.
        allowed_hosts, own_hosts: the names that the server accepts in ``Host`` (:mod:`app.data_plane.hosts`).
        is_local, control_is_local: whether only programs on this machine reach the channels, and the control plane.
    """

    base_path: str = "/trickle"
    reader_lag_bytes: int = 16 << 20
    reader_lag_s: float = 10.0
    publisher_wait_s: float = 0.15
    keep_alive_s: float = 75.0
    linger_s: float = 1.0
    half_closed_s: float = HALF_CLOSED_S
    head_timeout_s: float = 10.0
    url_bytes: int = 8 << 10
    header_bytes: int = 64 << 10
    metrics_channels: int = 10
    storm_guard: bool = True
    trusted_proxies: tuple[Network, ...] = ()
    cors_read_origins: tuple[str, ...] = (ANY,)
    cors_write_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    own_hosts: tuple[str, ...] = ("127.0.0.1",)
    is_local: bool = False
    control_is_local: bool = False


class ParkedFor(StrEnum):
    """The event that a parked request waits for."""

    GUARD = "guard"
    """The storm guard's delay."""
    OVERTAKEN = "overtaken"
    """The POSTs of the seqs below its own, which it has overtaken."""
    PLAYLIST = "playlist"
    """A new segment or part of an HLS playlist."""
    AUTHORIZATION = "authorization"
    """The answer of a key server or a webhook."""
    NODE = "node"
    """A connection to another node of the cluster."""
    REPLICA = "replica"
    """A copy of a channel of another node of the cluster, or the cluster's word on which node has the channel."""
    SOURCE = "source"
    """A channel that the server publishes itself, on demand."""


class Streamed(StrEnum):
    """The fate of a segment of a stream, as the metrics count it."""

    WHOLE = "whole"
    CUT_SHORT = "cut_short"
    """The segment was truncated."""
    LEFT_OUT = "left_out"
    """The segment had no publisher, or had left the window."""


class Durability(Protocol):
    """Storage, as exchanges of publishers see it; on a node of a cluster with the node's lease behind it.

    Attributes:
        durability: the promise of a response to a publisher at present: ``memory``, ``journal`` or ``fsync``.
        degraded: why the promise is weaker than usual; empty if it is not.
        delays: publishers are answered by :meth:`when_stored`, not at once.
        fenced: nothing may be published at present, since another node may own the channels by now.
    """

    @property
    def durability(self) -> str: ...
    @property
    def degraded(self) -> str: ...
    @property
    def delays(self) -> bool: ...
    @property
    def fenced(self) -> bool: ...

    def when_stored(self, callback: Callable[[bool | Reply], None], channel: Channel | None = None) -> None:
        """Call back when storage has all changes until now.

        Args:
            callback: gets ``False`` if storage has failed, or the response if the publisher is refused for another
                reason.
            channel: to which was published; it may have ended; ``None`` if it is gone.
        """

    async def flush(self) -> bool:
        """Wait for the result of :meth:`when_stored`."""


class Witness(Protocol):
    """Counts refused, delayed and cut-off requests. A flood of them must be cheap."""

    def note(self, kind: str, why: str, channel: str = "", name: bytes = b"", ip: str | None = None) -> None:
        """Count one.

        Args:
            kind: ``refused``, ``held`` (by the storm guard) or ``cut_off``.
            why: the reason, as the access log has it.
            channel: the name in the request; the channel need not exist.
            name, ip: the client's own name (``Trickle-Client``), and its address.
        """


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[str | None]]
"""Serves a connection that was switched to another protocol: a coroutine, or a task that has begun. It closes the
connection when it is done, and returns why, for its access record."""


class Elsewhere(Protocol):
    """The other nodes of a cluster, as a request sees them: one may have passed it on, and one may be its place."""

    def switch(self, request: Request) -> Reply | Serve:
        """Another node, or who takes itself for one, asks to switch a connection to another protocol."""

    def sender(self, request: Request) -> Via | Reply:
        """Find out which node has passed on a request that has ``Trickle-Cluster``.

        Returns:
            The way of the request, and its client; or a refusal, if no node has signed this request, or if it has gone
            round in circles.
        """

    def answer(self, connection: Any, request: Request, route: Route) -> Any:
        """Answer a request for which this node is not the place, or let this node's core answer it.

        A request that has waited comes here again, as to any stage.

        Args:
            connection: the :class:`~app.data_plane.exchange.Caller`, which is known only to modules above this one.

        Returns:
            ``None``: the core of this node answers, with a channel that it owns or holds. Else a :class:`Reply`; or an
            :class:`~app.data_plane.exchange.Exchange`, that of a request which is forwarded or waits.
        """


class Demand(Protocol):
    """The inputs that the server publishes itself, as a request sees them: one may begin with its first reader."""

    def answer(self, connection: Any, request: Request, route: Route) -> Any:
        """Let a reader wait for a channel that is published on demand.

        A request that has waited comes here again, as to any stage.

        Args:
            connection: the :class:`~app.data_plane.exchange.Caller`, which is known only to modules above this one.

        Returns:
            ``None``: it need not wait; or a :class:`Reply`, or an :class:`~app.data_plane.exchange.Exchange` that
            waits.
        """


class DataPlane:
    """The shared state of all connections.

    Args:
        registry: the core.
        options: see :class:`Options`.
        sink: takes the access record of each exchange when it ended; ``None`` if there is no access log.
        node: this server's name in the records.
        authorizer: decides about requests; ``None``: every request may do everything.
        durability: storage, if there is any.
        past: finds channels in it that have ended.
        witness: takes note of refusals, if there is one.
        numbers: of the connections, in their order.
        admission: of connections and requests; ``None``: by the limits of the registry.

    Attributes:
        cluster: answers requests for channels that are not here; ``None`` if this server is no node of a cluster.
        feeds: that clients follow.
        sources: inputs that the server publishes itself; ``None``: there are none.
    """

    def __init__(
        self,
        registry: Registry,
        options: Options,
        *,
        sink: RecordSink | None = None,
        node: str | None = None,
        authorizer: Authorizer | None = None,
        durability: Durability | None = None,
        past: FindPast | None = None,
        witness: Witness | None = None,
        numbers: Iterator[int] | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.registry = registry
        self.options = options
        self.sink = sink
        self.node = node
        self.rng = random.Random()
        self.authorizer = authorizer
        self.durability = durability
        self.witness = witness
        self.cluster: Elsewhere | None = None  # it serves by this plane, so it is set as soon as it is there
        self.sources: Demand | None = None
        self.clock = time.monotonic
        self.wall_us = wall_us
        self.router = Router(options.base_path)
        self.cors = Cors(options.cors_read_origins, options.cors_write_origins)
        self.hosts, self.control_hosts = _hosts(options)
        self.turns = Turns(self.fault)
        self.timeouts = Timeouts(
            rest_s=options.keep_alive_s, owed_s=options.head_timeout_s, half_closed_s=options.half_closed_s
        )
        self.slow_peers = SlowPeers(
            lambda: self.clock(), lag_bytes=options.reader_lag_bytes, lag_s=options.reader_lag_s
        )
        self.pacing = Pacing(options.publisher_wait_s, self.fault)
        self.feeds = Sending(registry)
        self.packagers = Packagers(registry, lambda: self.clock(), to_us, self._soon)
        self.recordings = None if past is None else Recordings(registry, past, lambda: self.clock())
        self.clips = 0  # that are being made or sent (clips.py)
        self.connection_numbers = numbers or count(1)
        self.connections: set[Peer] = set()  # all open ones
        self.parsers = 0  # of connections: those that read a request, and some that wait
        self.surplus: dict[Peer, None] = {}  # those beyond a limit, the oldest first
        self.pipelined: set[Peer] = set()  # not read from, since too much is pipelined on them
        self.expiring: dict[Peer, Granted] = {}  # permissions of running exchanges, which may end before these
        self._next_expiry = math.inf  # the first expires_at of these
        self._generation = 0 if authorizer is None else authorizer.generation  # of the permissions last looked at
        self.handshakes: set[asyncio.Task[Any]] = set()  # TLS handshakes under way
        self.failed_handshakes = 0
        self.admission = admission or Admission(registry.limits, registry.capacities.connections)
        self.proxies = TrustedProxies(options.trusted_proxies)
        self.guard = StormGuard() if options.storm_guard else None
        self.parked: dict[ParkedFor, set[object]] = {why: set() for why in ParkedFor}
        self.parked_bytes = 0  # bytes of the bodies of parked requests
        self.holds = 0  # responses that the storm guard has delayed
        self.held_us = 0  # the time of these delays in all, those of requests that are parked now left out
        self.unheld = 0  # responses that were not delayed, since too many were already
        self.faults = 0  # faults of the server, but for a lack of memory
        self.memory_errors = 0
        self._out_of_memory_at = -math.inf  # when memory ran out last, by the clock
        self._exchanges: Counter[tuple[str, int, str]] = Counter()  # ended ones, by op, status and reason
        self._ended: list[tuple[str, int, str]] = []  # those that are not counted yet
        self.latencies = Latencies()
        self.loop_lag = Histogram()  # microseconds by which the sweeper was late, as everything else at that moment
        self.bytes_in = 0  # body bytes of segment routes
        self.bytes_out = 0
        self.streamed = dict.fromkeys(Streamed, 0)  # segments of streams
        self._second = 0  # of `date`
        self.date = ""  # the value of the header field
        self._set_date()
        registry.faults.deliver_to(self.core_fault)

    def use(self, options: Options) -> None:
        """Take over settings that may change while the server runs: host names, origins of web pages, proxies."""
        before = self.options
        self.options = options = replace(options, is_local=before.is_local, control_is_local=before.control_is_local)
        self.cors = Cors(options.cors_read_origins, options.cors_write_origins)
        self.proxies = TrustedProxies(options.trusted_proxies)
        self.hosts, self.control_hosts = _hosts(options)

    @property
    def exchanges(self) -> Counter[tuple[str, int, str]]:
        """The exchanges that have ended, by op, status and reason."""
        self._count_ended()
        return self._exchanges

    def _count_ended(self) -> None:
        """Count what has ended since the last time: many at once cost a fifth of what they cost one by one."""
        self._exchanges.update(self._ended)
        self._ended.clear()

    def jitter(self, low: int, high: int) -> int:
        """A whole number of seconds between two bounds, both included."""
        # randint takes a microsecond, which is much of a refusal.
        return low + int(self.rng.random() * (high - low + 1))

    def ended(self, record: Figures) -> None:
        """Count and log an exchange that has ended."""
        op = record.op or "none"
        self._ended.append((op, record.status or 0, record.reason or ""))
        if len(self._ended) >= UNCOUNTED:
            self._count_ended()
            self.latencies.settle()
        if (wait_us := record.wait_us) is not None:
            self.latencies.waits[op].add(wait_us)
        self.bytes_in += record.bytes_in or 0
        self.bytes_out += record.bytes_out or 0
        if self.sink is not None:
            assert isinstance(record, AccessRecord), "where there is a log, records are begun for it"
            self.sink(record)

    def permit(self, connection: Peer, granted: Granted) -> None:
        """Let a connection's exchange go on until this permission expires or is withdrawn."""
        self.expiring[connection] = granted
        self._next_expiry = min(self._next_expiry, granted.expires_at)

    # Faults of the server itself (docs/explanation/hostile-input.md): each costs one exchange, or one connection.

    def fault(self, what: str, error: BaseException, channel: str | None = None) -> None:
        """Log a fault with its stack trace, count it, and check the channel that was in use.

        Args:
            what: the place, for the log line: ``while reading a segment``.
            channel: the name of the channel in use, if any.
        """
        if isinstance(error, MemoryError):
            self._out_of_memory(what)
        else:
            self.faults += 1
            LOGGER.error("fault of the server %s", what, exc_info=error)
        if channel is not None:
            self._end_if_unsound(channel)

    @property
    def short_of_memory(self) -> bool:
        """Whether memory ran out within the last :data:`SHORT_S`."""
        return self.clock() - self._out_of_memory_at < SHORT_S

    def _out_of_memory(self, what: str) -> None:
        """Count a lack of memory, and log it once in :data:`SHORT_S`. A stack trace would take memory."""
        is_logged, self._out_of_memory_at = self.short_of_memory, self.clock()
        self.memory_errors += 1
        if not is_logged:
            LOGGER.error(
                "out of memory %s: requests that need more get 503; lower --max-total-bytes (%d, of which %d are used)",
                what,
                self.registry.limits.total_bytes,
                self.registry.budget.used,
            )

    def core_fault(self, party: object, error: Exception) -> None:
        """Handle an exception of a reader or publisher that the core told of a change. All others were told, too.

        The change may still be going on, and the core must not be called back from here.
        """
        failed = getattr(party, "failed", None) or partial(self.fault, "while a change was announced")
        asyncio.get_running_loop().call_soon(failed, error)

    def _end_if_unsound(self, name: str) -> None:
        """End a channel whose invariants do not hold any more, so that its clients see that it is over."""
        channel = self.registry.channels.get(name)
        if not isinstance(channel, OwnedChannel):
            return
        try:
            check_channel(channel)
        except MemoryError:
            return  # there is no memory for the check; nearly always the change had not begun
        except Exception as error:
            LOGGER.error("channel %r was ended, because its state is not valid", name, exc_info=error)
            try:
                self.registry.end(name, self.clock(), EndReason.FAULT, force=True)
            except Exception as error:
                LOGGER.error("channel %r was dropped, because it could not be ended", name, exc_info=error)
                self.registry.drop(channel)

    # The sweeper's work.

    def expire(self, now: float) -> None:
        """End and forget channels and segments whose time is over."""
        self.guarded("in the sweeper (core)", lambda: self.registry.expire(now))

    def tick(self, now: float) -> None:
        """End all that is due. The sweeper calls this; a fault in one part does not stop the others."""
        parts: tuple[tuple[str, Callable[[], object]], ...] = (
            ("core", lambda: self.registry.expire(now)),
            ("exchanges", self._count_ended),
            ("latencies", self.latencies.settle),
            ("loop lag", self.loop_lag.settle),
            ("timeouts", lambda: self.timeouts.expire(now)),
            ("slow peers", lambda: self.slow_peers.expire(now, self.turns)),
            ("pacing", self.pacing.expire),
            ("playlists", lambda: self.packagers.expire(now)),
            ("recordings", lambda: None if self.recordings is None else self.recordings.expire(now)),
            ("feeds", self.feeds.expire),
            ("withdrawn permissions", self._end_withdrawn),
            ("expired tokens", self._end_expired),
            ("closed connections", self._forget_gone),
            ("storm guard", lambda: None if self.guard is None else self.guard.expire(now)),
            ("date", self._set_date),
        )
        for what, part in parts:
            self.guarded(f"in the sweeper ({what})", part)

    def guarded(self, what: str, call: Callable[[], object]) -> None:
        """Call a function. An exception of it is a fault of the server, and ends nothing else."""
        try:
            call()
        except Exception as error:
            self.fault(what, error)

    def end_all(self) -> None:
        """Close idle connections, and break the others: the time to finish is over."""
        for handshake in list(self.handshakes):
            handshake.cancel()
        for connection in list(self.connections):
            if connection.unfinished:
                connection.abort()
            else:
                connection.close()

    def _soon(self, function: Callable[[], None]) -> None:
        """Call a function of a packager in a later turn of the event loop."""
        asyncio.get_running_loop().call_soon(self.guarded, "while a playlist was made", function)

    def _set_date(self) -> None:
        second = self.wall_us() // 1_000_000
        if second != self._second:
            self._second = second
            self.date = formatdate(second, usegmt=True)

    def _end_withdrawn(self) -> None:
        authorizer = self.authorizer
        if authorizer is None or authorizer.generation == self._generation:
            return
        self._generation = authorizer.generation
        self._end_those(REVOKED, lambda granted: not authorizer.holds(granted))

    def _end_expired(self) -> None:
        now = self.wall_us() / 1_000_000
        if now >= self._next_expiry:
            self._end_those(EXPIRED, lambda granted: granted.expires_at <= now)
            self._next_expiry = min((granted.expires_at for granted in self.expiring.values()), default=math.inf)

    def _end_those(self, reply: Reply, is_over: Callable[[Granted], bool]) -> None:
        for connection in [connection for connection, granted in self.expiring.items() if is_over(granted)]:
            del self.expiring[connection]
            connection.end_permission(reply)

    def _forget_gone(self) -> None:
        now = self.clock()
        for connection in gone(self.pipelined, HALF_CLOSED):
            self.timeouts.closed_half(connection, now)
        for peer in gone(self.timeouts.half_closed):
            peer.peer_gone()


def _hosts(options: Options) -> tuple[Hosts, Hosts]:
    allowed, own = options.allowed_hosts, options.own_hosts
    return Hosts(allowed, own, is_local=options.is_local), Hosts(allowed, own, is_local=options.control_is_local)
