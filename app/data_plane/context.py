"""The data plane's shared state: what all connections have in common, and what the sweeper does with it."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.utils import formatdate
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from tricklecast.app.core.facts import EndReason
from tricklecast.app.core.invariants import check_channel
from tricklecast.app.core.limits import Admission
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.storm_guard import StormGuard
from tricklecast.app.data_plane.authorization import Authorizer, Granted
from tricklecast.app.data_plane.client_address import Network, TrustedProxies
from tricklecast.app.data_plane.cors import ANY, Cors
from tricklecast.app.data_plane.hosts import Hosts
from tricklecast.app.data_plane.latency import Histogram, Latencies
from tricklecast.app.data_plane.pacing import Pacing
from tricklecast.app.data_plane.request import Record
from tricklecast.app.data_plane.responses import EXPIRED, REVOKED, Reply
from tricklecast.app.data_plane.routing import Router
from tricklecast.app.data_plane.scheduling import HALF_CLOSED, HALF_CLOSED_S, Peer, SlowPeers, Timeouts, Turns, gone
from tricklecast.app.hls.packager import Packagers
from tricklecast.trickle import __version__
from tricklecast.trickle.records import AccessRecord

SHORT_S: Final = 60.0
"""For so long after memory ran out, the server says that it is degraded."""

LOGGER: Final = logging.getLogger("tricklecast.data_plane")

RecordSink = Callable[[AccessRecord], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of the data plane. Bytes and seconds.

    Attributes:
        base_path: the path below which segment routes live, ``""`` for the root.
        reader_lag_bytes, reader_lag_s: how far a reader may fall behind before the server cuts it off.
        publisher_wait_s: how long a publisher waits for readers that are behind, at a stretch.
        keep_alive_s: how long a connection may be idle between requests.
        linger_s: how long a connection that was answered early is still read from before it is closed. Closing it with
            unread data would make the kernel reset it, and the client might lose the response.
        half_closed_s: how long a client that has closed its sending side may wait for the first byte of an answer.
        head_timeout_s: how long a request's head may take from its first byte, and then a body that nobody reads.
        url_bytes, header_bytes: limits of one request's head.
        metrics_channels: how many channels the metrics name.
        storm_guard: whether clients that repeat fruitless requests are answered later.
        trusted_proxies: addresses of proxies whose ``X-Forwarded-For`` is believed.
        cors_read_origins, cors_write_origins: origins of the web pages that may read and write segments.
        allowed_hosts, own_hosts: names by which the server answers (:mod:`app.data_plane.hosts`).
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
    """What a parked request waits for."""

    GUARD = "guard"
    """The storm guard's delay."""
    OVERTAKEN = "overtaken"
    """The POSTs of the seqs below its own, which it has overtaken."""
    PLAYLIST = "playlist"
    """Something new in an HLS playlist."""
    AUTHORIZATION = "authorization"
    """The answer of a key server or a webhook."""


class Streamed(StrEnum):
    """What became of a segment that a stream has come to."""

    WHOLE = "whole"
    CUT_SHORT = "cut_short"
    """It was truncated."""
    LEFT_OUT = "left_out"
    """Nobody wrote it, or it had left the window."""


class Durability(Protocol):
    """Storage, to publishers.

    Attributes:
        durability: what an answer that a publisher gets now means: ``memory``, ``journal`` or ``fsync``.
        delays: whether publishers are answered only when storage has what they have published.
    """

    @property
    def durability(self) -> str: ...
    @property
    def delays(self) -> bool: ...

    def when_kept(self, told: Callable[[bool], None]) -> None:
        """Tell when storage has everything up to now; ``False`` if it cannot."""

    async def flush(self) -> bool:
        """Wait for what :meth:`when_kept` tells."""


class Witness(Protocol):
    """What is told at once of requests that were refused, delayed or cut off. A flood of them must cost it nothing."""

    def note(self, kind: str, why: str, channel: str = "", name: bytes = b"", ip: str | None = None) -> None:
        """Something happened to a request.

        Args:
            kind: ``refused``, ``held`` (by the storm guard) or ``cut_off``.
            why: the reason, as the access log has it.
            channel: that the request named; it need not exist.
            name, ip: the client's own name (``Trickle-Client``), and its address.
        """


class DataPlane:
    """The shared state of all connections.

    Args:
        registry: the core.
        options: see :class:`Options`.
        sink: takes the access record of each exchange when it ended; ``None`` if there is no access log.
        node: this server's name in the records.
        rng: the source of jitter.
        authorizer: decides which request may do what; ``None``: every request may do everything.

    Attributes:
        turns, timeouts, slow_peers, pacing: the schedulers. packagers: what HLS makes of channels.
        connections: all that are open. surplus: those beyond a limit, oldest first.
        handshakes: TLS handshakes that are under way. failed_handshakes: how many have failed.
        hosts, control_hosts: the names by which the channels and the control plane can be called.
        admission: decides about connections, and about requests of each client. proxies: those that are believed.
        guard: the storm guard, unless it is off. parked: requests that wait before they are answered, by the reason.
        parked_bytes: of their bodies.
        holds, held_us: how many responses the storm guard has delayed, and for how long (those parked now left out).
        unheld: how many it would have delayed, had there not been too many already.
        pipelined: connections that are not read from because too much is pipelined on them.
        exchanges: ended ones, counted by (op, status, reason). latencies: how long they took.
        faults: faults of the server that an exchange, or a connection, met. memory_errors: those for lack of memory.
        loop_lag: how late the sweeper was, in microseconds: as late as everything else at that moment.
        bytes_in, bytes_out: body bytes of segment routes. streamed: segments of streams, by what became of them.
        expiring: connections whose exchange ends when its permission does, and that permission.
        common: ``date`` and ``server`` as header lines.
        durability: storage, if there is any. The caller sets it.
        witness: is told of refusals; ``None``: nobody is. The caller sets it.
    """

    def __init__(
        self,
        registry: Registry,
        options: Options,
        *,
        sink: RecordSink | None = None,
        node: str | None = None,
        rng: random.Random | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.registry = registry
        self.options = options
        self.sink = sink
        self.node = node
        self.rng = rng or random.Random()
        self.authorizer = authorizer
        self.durability: Durability | None = None
        self.witness: Witness | None = None
        self.clock = time.monotonic
        self.wall_us: Callable[[], int] = lambda: time.time_ns() // 1000
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
        self.packagers = Packagers(registry, lambda: self.wall_us(), lambda: self.clock(), self._soon)
        self.connection_numbers: Iterator[int] = count(1)
        self.connections: set[Peer] = set()
        self.surplus: dict[Peer, None] = {}
        self.pipelined: set[Peer] = set()
        self.expiring: dict[Peer, Granted] = {}
        self._next_expiry = math.inf
        self._generation = 0 if authorizer is None else authorizer.generation  # of the permissions last looked at
        self.handshakes: set[asyncio.Task[Any]] = set()
        self.failed_handshakes = 0
        self.admission = Admission(registry.limits, registry.capacities.connections)
        self.proxies = TrustedProxies(options.trusted_proxies)
        self.guard = StormGuard() if options.storm_guard else None
        self.parked: dict[ParkedFor, set[object]] = {why: set() for why in ParkedFor}
        self.parked_bytes = 0
        self.holds = 0
        self.held_us = 0
        self.unheld = 0
        self.faults = 0
        self.memory_errors = 0
        self._out_of_memory_at = -math.inf  # when memory ran out last, by the clock
        self.exchanges: Counter[tuple[str, int, str]] = Counter()
        self.latencies = Latencies()
        self.loop_lag = Histogram()
        self.bytes_in = 0
        self.bytes_out = 0
        self.streamed = dict.fromkeys(Streamed, 0)
        self._date = 0
        self.common = b""
        self._set_date()
        registry.faults.on_fault = self.core_fault

    def use(self, options: Options) -> None:
        """Take over the settings that may change while the server runs: names, origins of web pages, proxies."""
        before = self.options
        self.options = options = replace(options, is_local=before.is_local, control_is_local=before.control_is_local)
        self.cors = Cors(options.cors_read_origins, options.cors_write_origins)
        self.proxies = TrustedProxies(options.trusted_proxies)
        self.hosts, self.control_hosts = _hosts(options)

    def jitter(self, low: int, high: int) -> int:
        """A whole number of seconds between two bounds, both included."""
        # randint takes a microsecond, which is much of a refusal.
        return low + int(self.rng.random() * (high - low + 1))

    def ended(self, record: Record) -> None:
        """An exchange ended: count it, and log it."""
        op = record.op or "none"
        self.exchanges[op, record.status or 0, record.reason or ""] += 1
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
        """Log a fault with its stack trace, count it, and make sure that the channel it met is still sound.

        Args:
            what: the place, for the log line: ``while reading a segment``.
            channel: the name of the channel that was being used, if there was one.
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
        """Count it, and tell the operator once in :data:`SHORT_S`; a stack trace would say nothing, and take memory."""
        told, self._out_of_memory_at = self.short_of_memory, self.clock()
        self.memory_errors += 1
        if not told:
            LOGGER.error(
                "out of memory %s: requests that need more get 503; lower --max-total-bytes (%d, of which %d are used)",
                what,
                self.registry.budget.limit,
                self.registry.budget.used,
            )

    def core_fault(self, party: object, error: Exception) -> None:
        """A reader or a publisher raised when the core told it of a change; the core has told all others.

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
            return  # there is no room to look at it; nearly always the change that found no memory had not begun
        except Exception as error:
            LOGGER.error("channel %r was ended, because its state is not valid", name, exc_info=error)
            try:
                self.registry.end(name, self.clock(), EndReason.FAULT, force=True)
            except Exception as error:
                LOGGER.error("channel %r was dropped, because it could not be ended", name, exc_info=error)
                self.registry.drop(channel)

    # The sweeper's work.

    def expire(self, now: float) -> None:
        """Let the core do what is due."""
        try:
            self.registry.expire(now)
        except Exception as error:
            self.fault("in the sweeper (core)", error)

    def tick(self, now: float) -> None:
        """Do what is due. The sweeper calls this a few times a second; a fault in one part does not keep the others."""
        parts: tuple[tuple[str, Callable[[], object]], ...] = (
            ("core", lambda: self.registry.expire(now)),
            ("latencies", self.latencies.settle),
            ("loop lag", self.loop_lag.settle),
            ("timeouts", lambda: self.timeouts.expire(now)),
            ("slow peers", lambda: self.slow_peers.expire(now, self.turns)),
            ("pacing", self.pacing.expire),
            ("playlists", lambda: self.packagers.expire(now)),
            ("withdrawn permissions", self._end_withdrawn),
            ("expired tokens", self._end_expired),
            ("closed connections", self._forget_gone),
            ("storm guard", lambda: None if self.guard is None else self.guard.expire(now)),
            ("date", self._set_date),
        )
        for what, part in parts:
            self.guarded(f"in the sweeper ({what})", part)

    def guarded(self, what: str, call: Callable[[], object]) -> None:
        """Call a function; what it raises is a fault of the server, and ends nothing else."""
        try:
            call()
        except Exception as error:
            self.fault(what, error)

    def end_all(self) -> None:
        """Close the connections on which nothing is running, and break the others: the time to finish is over."""
        for handshake in list(self.handshakes):
            handshake.cancel()
        for connection in list(self.connections):
            if connection.unfinished:
                connection.abort()
            else:
                connection.close()

    def _soon(self, function: Callable[[], None]) -> None:
        """Call a function in a later turn of the event loop."""
        asyncio.get_running_loop().call_soon(self._call, function)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self.fault("while a playlist was made", error)

    def _set_date(self) -> None:
        second = self.wall_us() // 1_000_000
        if second != self._date:
            self._date = second
            date = formatdate(second, usegmt=True)
            self.common = f"date: {date}\r\nserver: tricklecast/{__version__}\r\n".encode("ascii")

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
