"""What all connections share: the registry, the clock, who waits, and what is counted."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from tricklecast.app.core.limits import Admission
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.slow_readers import Cut, Stall, Timelines
from tricklecast.app.core.storm_guard import StormGuard
from tricklecast.app.data_plane.catching_up import CatchingUp
from tricklecast.app.data_plane.client_address import Network, TrustedProxies
from tricklecast.app.data_plane.histogram import Histogram
from tricklecast.app.data_plane.latencies import Latencies
from tricklecast.app.data_plane.paused import gone
from tricklecast.app.data_plane.replies import CONTINUE
from tricklecast.app.data_plane.routes import Router
from tricklecast.app.data_plane.stalled import cut_off_stalled
from tricklecast.app.data_plane.tally import Record
from tricklecast.trickle.records import AccessRecord, Reason

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.gate import Gate
    from tricklecast.app.data_plane.guarded import Guarded
    from tricklecast.app.data_plane.overtaking import Overtaking
    from tricklecast.app.data_plane.patience import Patience
    from tricklecast.app.data_plane.publish import Publish

T = TypeVar("T")

RecordSink = Callable[[AccessRecord], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of the data plane. Bytes and seconds.

    Attributes:
        base_path: below which segment routes live, ``""`` for the root.
        interim_interval_s: how often an idle preconnect is sent ``100 Continue``.
        reader_lag_bytes, reader_lag_s: how far a reader may fall behind before it is cut off.
        linger_s: how long a connection that was answered early is still read from before it is closed: closing
            with unread data would make the kernel reset it, and the client might lose the answer.
        head_timeout_s: how long a request's head may take from its first byte, and then a body that nobody reads.
        url_bytes, header_bytes: limits of one request's head.
        metrics_channels: how many channels the metrics name.
        storm_guard: whether clients that repeat what gets them nowhere are answered later.
        trusted_proxies: where proxies are that say truly who their clients are.
    """

    base_path: str = "/trickle"
    interim_interval_s: float = 10.0
    reader_lag_bytes: int = 16 << 20
    reader_lag_s: float = 10.0
    linger_s: float = 1.0
    head_timeout_s: float = 10.0
    url_bytes: int = 8 << 10
    header_bytes: int = 64 << 10
    metrics_channels: int = 10
    storm_guard: bool = True
    trusted_proxies: tuple[Network, ...] = ()


class DataPlane:
    """The shared part of the data plane.

    Args:
        registry: the core.
        options: see :class:`Options`.
        sink: takes the access record of each exchange when it ended; ``None`` if there is no access log.
        node: this server's name in the records.
        rng: where jitter comes from.
        access: decides who may do what; ``None``: everybody may do everything.

    Attributes:
        admission: decides about connections, and about requests of each client. proxies: those that are believed.
        handshakes: of TLS, that are under way. failed_handshakes: how many came to nothing.
        surplus: connections beyond a limit, oldest first.
        preconnects: idle ones, each with the time of its next interim answer; in the order of that time.
        overtaking: POSTs that wait for those that they have overtaken.
        guard: the storm guard, unless it is off.
        guarded: exchanges that it holds back now.
        holds, held_us: how many it has held back so far, and for how long altogether (those of ``guarded`` not yet).
        unheld: how many it would have, had there not been too many already.
        stalled: connections with unsent bytes. cut_offs: how many of them were cut off, by the reason.
        timelines: when the bytes were published that somebody lacks.
        catching_up: readers that are behind, and whose connection takes more.
        ending: readers that have all of a segment but its end.
        resting: connections between requests, new ones included, each with the time when it closes; in that order.
        unfinished: connections whose request has begun to arrive while nobody waits for the rest of it, each with the
            time when it must be there; in that order.
        paused: connections that are not read from, since too much is pipelined on them.
        exchanges: ended ones, counted by (op, status, reason). latencies: how long they waited.
        loop_lag: how late the sweeper was, in microseconds: as late as everything else at that moment.
        bytes_in, bytes_out: body bytes of segment routes.
    """

    def __init__(
        self,
        registry: Registry,
        options: Options,
        *,
        sink: RecordSink | None = None,
        node: str | None = None,
        rng: random.Random | None = None,
        access: Gate | None = None,
    ) -> None:
        self.registry = registry
        self.options = options
        self.sink = sink
        self.node = node
        self.rng = rng or random.Random()
        self.access = access
        self.clock = time.monotonic
        self.wall_us: Callable[[], int] = lambda: time.time_ns() // 1000
        self.router = Router(options.base_path)
        self.connection_numbers: Iterator[int] = count(1)
        self.connections: set[Connection] = set()
        self.handshakes: set[asyncio.Task[Any]] = set()
        self.failed_handshakes = 0
        self.surplus: dict[Patience, None] = {}
        self.admission = Admission(registry.limits, registry.capacities.connections)
        self.proxies = TrustedProxies(options.trusted_proxies)
        self.preconnects: dict[Publish, float] = {}
        self.overtaking: set[Overtaking] = set()
        self.guard = StormGuard() if options.storm_guard else None
        self.guarded: set[Guarded] = set()
        self.holds = 0
        self.held_us = 0
        self.unheld = 0
        self.stalled: dict[Connection, Stall] = {}
        self.catching_up = CatchingUp()
        self.ending = CatchingUp()
        self.cut_offs = dict.fromkeys(Cut, 0)
        self.resting: dict[Connection, float] = {}
        self.unfinished: dict[Patience, float] = {}
        self.paused: set[Connection] = set()
        self.exchanges: Counter[tuple[str, int, str]] = Counter()
        self.latencies = Latencies()
        self.loop_lag = Histogram()
        self.bytes_in = 0
        self.bytes_out = 0
        self.timelines = Timelines(options.reader_lag_s)
        self._common: tuple[object, bytes] = (None, b"")

    def jitter(self, low: int, high: int) -> int:
        """A whole number of seconds between two bounds, both included."""
        # randint takes a microsecond, which is much of a refusal.
        return low + int(self.rng.random() * (high - low + 1))

    def common(self, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        """``date`` and ``server`` as header lines; uvicorn makes a new list of them every second."""
        source, lines = self._common
        if source is not default_headers:
            lines = b"".join([b"%b: %b\r\n" % header for header in default_headers])
            self._common = (default_headers, lines)
        return lines

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

    def tick(self, now: float) -> None:
        """Do what is due. Called by the sweeper a few times a second."""
        self.registry.expire(now)
        self.latencies.settle()
        self._send_interim(now)
        cut_off_stalled(self, self.timelines, now)
        self._close_resting(now)
        if self.access is not None:
            self.access.tick()
        self._reject_unfinished(now)
        self._forget_gone()
        if self.guard is not None:
            self.guard.expire(now)

    def end_all(self) -> None:
        """Close the connections on which nothing is running, and break the others: the time to finish is over."""
        for handshake in list(self.handshakes):
            handshake.cancel()
        for connection in list(self.connections):
            if connection.unfinished:
                connection.abort()
            else:
                connection.transport.close()

    def _send_interim(self, now: float) -> None:
        for exchange in _due(self.preconnects, now):
            del self.preconnects[exchange]
            self.preconnects[exchange] = now + self.options.interim_interval_s
            exchange.connection.send(CONTINUE)

    def _close_resting(self, now: float) -> None:
        for connection in _due(self.resting, now):
            del self.resting[connection]
            connection.timeout_keep_alive_handler()

    def _reject_unfinished(self, now: float) -> None:
        for connection in _due(self.unfinished, now):
            connection.too_slow()

    def _forget_gone(self) -> None:
        self.paused = {connection for connection in self.paused if connection.flow.read_paused}
        for connection in gone(self.paused):
            connection.abort(Reason.CLIENT_GONE)


def _due(times: dict[T, float], now: float) -> list[T]:
    """The keys whose time has come, of a dict in the order of its times."""
    return list(takewhile(lambda key: times[key] <= now, times))
