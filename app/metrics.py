"""Prometheus metrics: each scrape of ``/metrics`` reads the figures that the server counts anyway.

Each function here yields metrics as of the moment of the scrape. All names begin with
``tricklecast_``; ``docs/reference/metrics.md`` lists them.
"""

from __future__ import annotations

import logging
import platform
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from heapq import nlargest
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tricklecast.app.access.authorizer import Access
from tricklecast.app.access_log import AccessLog
from tricklecast.app.bus import ENDS, Bus
from tricklecast.app.cluster.lease import LeaseState
from tricklecast.app.cluster.leased import LeasedDurability
from tricklecast.app.control_plane.api import Page
from tricklecast.app.core.limits import Capacity, Limit
from tricklecast.app.core.state import Channel
from tricklecast.app.data_plane.context import DataPlane, ParkedFor
from tricklecast.app.data_plane.latency import Histogram, Latencies
from tricklecast.app.data_plane.responses import MEMORY
from tricklecast.app.reload import Reload
from tricklecast.app.server_log import ServerLog
from tricklecast.app.sources.source import State
from tricklecast.app.storage.archive import Archive, StorageCounters
from tricklecast.app.usage import Use, lagging, limits_in_use
from tricklecast.app.workers.link import Link
from tricklecast.trickle import __version__
from tricklecast.trickle.records import Reason

if TYPE_CHECKING:
    from tricklecast.app.cluster.member import Member
    from tricklecast.app.mirror.routes import MirrorModel

PREFIX: Final = "tricklecast_"

LAG_BYTES: Final = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Steps of the lag in bytes: from the bytes that the kernel holds for a reader to the default limit of the lag."""

LAG_S: Final = (0.5, 1, 2, 5)
"""Steps of the lag in seconds: from two ticks of the sweeper to half of the default limit."""

OTHER_CHANNELS: Final = "_other"
"""The label of all channels that are not named. Channel names that begin with ``_`` belong to the server."""

MIN_INTERVAL_S: Final = 5.0
"""A scrape that comes sooner gets the channel rates of the scrape before. So two Prometheus servers that scrape in turn
both get rates over a meaningful time."""

MIRROR_STATES: Final = ("looking", "following", "unreachable", "stopped", "promoted", "deposed")
ROW_STATES: Final = ("pending", "started", "synced", "failed")

_REFUSED_BY_LIMIT: Final = Reason.limit("")


def metrics_text(metrics: Metrics, worker: int | None) -> Callable[[], bytes]:
    """Makes a text of these metrics, and those of the kernel about the process, in Prometheus' format.

    Args:
        worker: the number of this process, if the server has several.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    ProcessCollector(registry=registry)
    return partial(generate_latest, registry if worker is None else _OfWorker(registry, worker))


class _OfWorker(Collector):
    """Metrics of one worker, each sample with its number as a label."""

    def __init__(self, metrics: Collector, worker: int) -> None:
        self._metrics, self._label = metrics, {"worker": str(worker)}

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics.collect():
            metric.samples = [sample._replace(labels=self._label | sample.labels) for sample in metric.samples]
            yield metric


def metrics_router(page: Callable[[], Awaitable[Page]]) -> APIRouter:
    """The route ``/metrics``; ``page`` makes its text."""
    router = APIRouter(tags=["metrics"])

    @router.head("/metrics", include_in_schema=False)
    @router.get("/metrics", summary="Prometheus metrics")
    async def scrape() -> Response:
        return Response((await page()).text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router


class Metrics(Collector):
    """The metrics of a server.

    Args:
        log: the server's access log, if it writes one.
        dashboards: those that are open, if the server has web pages.
        reload: has the certificate, and the results of reloads.
        link: the ways to the other workers of the server, if there are any.
        member: what makes the server a node of a cluster, if it is one.
        mirror: tells how the mirror of the server stands, if it can have one.
        sources: tells how the sources stand that may run in this process.
    """

    def __init__(
        self,
        plane: DataPlane,
        log: AccessLog | None,
        access: Access,
        bus: Bus,
        dashboards: Capacity | None,
        reload: Reload,
        link: Link | None = None,
        member: Member | None = None,
        mirror: Callable[[], MirrorModel] | None = None,
        sources: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        rates = ChannelRates(plane.registry.channels, plane.clock, plane.options.metrics_channels)
        self._sources: tuple[Callable[[], Iterable[Metric]], ...] = (
            partial(_channels, plane),
            partial(_connections, plane),
            partial(_exchanges, plane),
            partial(_latencies, plane.latencies),
            partial(reader_lag, plane),
            rates.collect,
            partial(_limits, partial(limits_in_use, plane, log, bus, dashboards)),
            partial(server_metrics, plane, log),
            partial(access_metrics, access),
            partial(_reloads, reload),
            partial(storage_metrics, plane),
            partial(_changes, bus),
            *([] if link is None else [partial(worker_metrics, link)]),
            *([] if member is None else [partial(cluster_metrics, member)]),
            *([] if mirror is None else [lambda: mirror_metrics(mirror(), plane.wall_us() / 1e6)]),
            lambda: source_metrics(sources()),
        )

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            yield from source()


def source_metrics(sources: list[dict[str, Any]]) -> Iterator[Metric]:
    """How the inputs stand that the server publishes itself; nothing without any."""
    if not sources:
        return
    states = GaugeMetricFamily(
        PREFIX + "source_state", "State of each source: 1 for the present one.", labels=["source", "state"]
    )
    for source in sources:
        for state in State:
            states.add_metric([source["name"], state], source["state"] == state)
    yield states
    restarts = {source["name"]: source["restarts"] for source in sources}
    yield _counters("source_restarts", "Processes of sources that were started again.", "source", restarts)


# StorageCounters as metrics.


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """A counter; the Prometheus library appends ``_total`` to its name."""
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histograms_s(name: str, text: str, labels: list[str], histograms: Mapping[str, Histogram]) -> Metric:
    """Histograms of microseconds as metrics in seconds; without labels there is one, under the key ``""``."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for key, histogram in histograms.items():
        bounds = [str(bound / 1e6) for bound in histogram.bounds] + ["+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric([key] if labels else [], buckets, sum_value=histogram.sum / 1e6)
    return family


# The metrics of each part.


def _channels(plane: DataPlane) -> Iterator[Metric]:
    registry = plane.registry
    totals = registry.totals()
    yield _gauge("channels", "Channels that are live.", totals.live)
    yield _gauge("channels_draining", "Channels that have ended and are still readable.", totals.draining)
    yield _gauge("segments_kept", "Closed segments in the windows of all channels.", totals.segments)
    yield _gauge("segments_written", "Segments that are being written.", totals.writing)
    yield _gauge("segments_orphaned", "Open segments whose publisher is gone and may return.", totals.orphaned)
    yield _gauge("preconnects", "Open POSTs whose body has not begun.", totals.preconnected)
    yield _gauge("held_bytes", "Bytes of memory that all segments take.", registry.budget.used)
    closed = {str(state): float(n) for state, n in registry.journal.closed.items()}
    yield _counters("segments_closed", "Segments that have closed.", "state", closed)
    evicted = {str(why): n for why, n in registry.evictions().items()}
    yield _counters("segments_evicted", "Segments that have left their windows.", "reason", evicted)
    yield _gauge("audience", "Clients that read: subscribers, streams and players of HLS.", totals.audience)
    yield _gauge("readers", "Requests that read a segment or wait for one.", registry.readers)
    yield _gauge("readers_waiting", "Readers that wait for the first byte of a segment.", totals.waiting)


def _connections(plane: DataPlane) -> Iterator[Metric]:
    yield _gauge("connections", "Open connections.", len(plane.connections))
    yield _gauge("handshakes", "TLS handshakes that are under way.", len(plane.handshakes))
    yield _counter("failed_handshakes", "TLS handshakes that failed.", plane.failed_handshakes)
    yield _gauge("idle_connections", "Kept-alive connections between requests.", len(plane.timeouts.resting))
    cut_offs = {str(why): float(n) for why, n in plane.slow_peers.cut_offs.items()}
    yield _counters("cut_offs", "Connections that the server cut off.", "reason", cut_offs)
    yield _gauge("stalled_connections", "Connections whose peer does not read.", len(plane.slow_peers.stalled))
    yield _gauge(
        "overtaking_posts",
        "POSTs that have overtaken POSTs of lower seqs and wait for them.",
        len(plane.parked[ParkedFor.OVERTAKEN]),
    )
    yield _gauge("guarded", "Requests that the storm guard delays at present.", len(plane.parked[ParkedFor.GUARD]))


def _exchanges(plane: DataPlane) -> Iterator[Metric]:
    exchanges = CounterMetricFamily(
        PREFIX + "exchanges", "Requests that have ended.", labels=["op", "status", "reason"]
    )
    # Every limit has a series from the start: Prometheus does not take the first sample for an increase.
    refusals = Counter(dict.fromkeys([*map(str, Limit), MEMORY], 0))
    errors = 0
    for (op, status, reason), n in plane.exchanges.items():
        exchanges.add_metric([op, str(status), reason], n)
        if reason.startswith(_REFUSED_BY_LIMIT):
            refusals[reason.removeprefix(_REFUSED_BY_LIMIT)] += n
        elif reason == Reason.ERROR:
            errors += n
    yield exchanges
    yield _counters("refusals", "Requests refused by a limit.", "limit", dict(refusals))
    yield _counter("errors", "Requests that ended in a fault of the server.", errors)
    yield _counter("memory_errors", "Times that the process could not get memory.", plane.memory_errors)
    yield _counter("faults", "Faults of the server, in requests and outside of them.", plane.faults)
    yield _counter("publisher_waits", "Times that a channel's publishers waited for its readers.", plane.pacing.waits)
    yield _counter("guard_holds", "Answers that the storm guard has delayed.", plane.holds)
    yield _counter("guard_held_seconds", "Seconds of all delays by the storm guard.", plane.held_us / 1e6)
    yield _counter("guard_unheld", "Answers not delayed, since too many others were.", plane.unheld)
    streamed = {str(what): float(n) for what, n in plane.streamed.items()}
    yield _counters("stream_segments", "Segments that streams have passed, by outcome.", "outcome", streamed)
    yield _counter("received_bytes", "Body bytes published.", plane.bytes_in)
    yield _counter("sent_bytes", "Body bytes delivered.", plane.bytes_out)


def _latencies(latencies: Latencies) -> Iterator[Metric]:
    yield _histograms_s(
        "wait_seconds",
        "From the arrival of a request to the first byte of its answer, all waits included.",
        ["op"],
        latencies.waits,
    )
    yield _histograms_s(
        "first_byte_seconds",
        "From the arrival of a segment's first byte to its write to a reader that waited for it.",
        [],
        {"": latencies.first_byte},
    )
    yield _histograms_s(
        "delivery_seconds",
        "From the close of a segment to the write of its last byte to a reader that came before.",
        [],
        {"": latencies.delivery},
    )


def reader_lag(plane: DataPlane) -> Iterator[Metric]:
    """The lag of readers whose connection is full, and of those that catch up."""
    readers = lagging(plane)
    lags, ages = [reader.lag() for reader in readers], [plane.slow_peers.lag_s(reader) for reader in readers]
    yield _gauge("reader_lag_max_bytes", "Body bytes that the slowest reader lacks.", max(0, max(lags, default=0)))
    counts = {str(step): float(sum(lag > step for lag in lags)) for step in LAG_BYTES}
    yield _gauges("readers_behind", "Readers that lag by more than this number of body bytes.", "bytes", counts)
    longest = max(ages, default=0)
    yield _gauge("reader_lag_max_seconds", "Age of the oldest published byte that a reader lacks.", longest)
    counts = {str(step): float(sum(age > step for age in ages)) for step in LAG_S}
    yield _gauges(
        "readers_late", "Readers that have lacked a byte for more than this number of seconds.", "seconds", counts
    )


class _Rate(NamedTuple):
    """Body bytes per second of one channel."""

    channel: str
    received: float
    sent: float


class ChannelRates:
    """Bytes per second of the ``size`` busiest channels since the last scrape, and of all others together.

    They are gauges: the counter of a channel that is named in some scrapes only would stand still and jump.

    Args:
        channels: all channels by name.
        clock: seconds.
        size: the number of channels that are named; 0: no metric at all.
    """

    def __init__(self, channels: Mapping[str, Channel], clock: Callable[[], float], size: int) -> None:
        self._channels = channels
        self._clock = clock
        self._size = size
        self._counted = self._count()  # at the last scrape that was not too soon
        self._counted_at = clock()
        self._shown: list[_Rate] = []  # the rates of that scrape

    def collect(self) -> Iterator[Metric]:
        if not self._size:
            return
        now = self._clock()
        if now - self._counted_at >= MIN_INTERVAL_S:
            self._shown = self._rates(now)
        received = {rate.channel: rate.received for rate in self._shown}
        sent = {rate.channel: rate.sent for rate in self._shown}
        name = "channel_{}_bytes_per_second"
        text = "Body bytes published per second, of the busiest channels."
        yield _gauges(name.format("received"), text, "channel", received)
        yield _gauges(name.format("sent"), "Body bytes delivered per second by reads that have ended.", "channel", sent)

    def _rates(self, now: float) -> list[_Rate]:
        before, self._counted = self._counted, self._count()
        seconds, self._counted_at = now - self._counted_at, now
        rates = []
        for name, counts in self._counted.items():
            epoch, received, sent = before.get(name, counts)
            if epoch != counts[0] or name not in before:
                received = sent = 0
            rates.append(_Rate(name, (counts[1] - received) / seconds, (counts[2] - sent) / seconds))
        busiest = nlargest(self._size, rates, key=lambda rate: rate.received + rate.sent)
        named = {rate.channel for rate in busiest}
        return [*busiest, _sum(rate for rate in rates if rate.channel not in named)]

    def _count(self) -> dict[str, tuple[int, int, int]]:
        """Epoch, bytes received and bytes sent of each channel so far."""
        if not self._size:
            return {}
        channels = self._channels.items()
        return {name: (channel.epoch, channel.bytes_in, channel.bytes_out) for name, channel in channels}


def _sum(rates: Iterable[_Rate]) -> _Rate:
    received = sent = 0.0
    for rate in rates:
        received += rate.received
        sent += rate.sent
    return _Rate(OTHER_CHANNELS, received, sent)


def _limits(find: Callable[[], list[Use]]) -> Iterator[Metric]:
    """Every limit that all clients share, under one name each, so that one alert rule watches all."""
    uses = find()
    limits: dict[str, float] = {use.limit: use.most for use in uses if use.most is not None}
    used: dict[str, float] = {use.limit: use.used for use in uses if use.most is not None}
    yield _gauges("limit", "Limits that all clients share.", "limit", limits)
    yield _gauges("limit_used", "How much of each limit is in use.", "limit", used)
    closed = {use.limit: not use.joinable for use in uses if use.joinable is not None}
    yield _gauges("limit_joins_refused", "1 while the limit admits no new clients.", "limit", closed)


def server_metrics(plane: DataPlane, log: AccessLog | None) -> Iterator[Metric]:
    """The program, its event loop and its access log."""
    build = GaugeMetricFamily(
        PREFIX + "build_info", "Versions and node of the server; always 1.", labels=["version", "python", "node"]
    )
    build.add_metric([__version__, platform.python_version(), plane.node or ""], 1)
    yield build
    draining = plane.registry.shutting_down
    yield _gauge("draining", "1 from SIGTERM on, while the server shuts down.", draining)
    yield _histograms_s(
        "loop_lag_seconds", "How late a timer was, measured 20 times a second.", [], {"": plane.loop_lag}
    )
    yield _counter("journal_facts", "Facts so far: the index of the newest one.", plane.registry.journal.index)
    if log is not None:
        yield _gauge("log_queue_records", "Access records that wait to be written.", log.queued)
        yield _counter("log_records_written", "Access records written.", log.written)
        yield _counter("log_records_dropped", "Access records dropped: the queue was full.", log.dropped)
        text = "For how long access records have waited while none could be written."
        yield _gauge("log_stalled_seconds", text, log.stalled_s)
    lost = sum(handler.dropped for handler in logging.root.handlers if isinstance(handler, ServerLog))
    yield _counter("server_log_lines_dropped", "Lines of the server's own log dropped unread.", lost)


def access_metrics(access: Access) -> Iterator[Metric]:
    """Tokens, keys and the webhook; without access control the metrics are there, and empty."""
    verifier, webhook = access.tokens, access.webhook
    tokens: Mapping[str, float] = verifier.outcomes if verifier is not None else {}
    yield _counters("tokens", "Tokens in requests, by the result of their check.", "outcome", tokens)
    keys = verifier.remote if verifier is not None else None
    fetches = {} if keys is None else {"done": keys.fetches - keys.failures, "failed": keys.failures}
    yield _counters("key_fetches", "Fetches of the keys that verify tokens.", "outcome", fetches)
    answers = {str(status): n for status, n in webhook.outcomes.items()} if webhook is not None else {}
    yield _counters("webhook_answers", "Answers of the webhook; 503 if it gave none.", "status", answers)
    waiting = webhook.waiting if webhook is not None else 0
    yield _gauge("webhook_waiting", "Questions that the webhook has not answered yet.", waiting)


def _reloads(reload: Reload) -> Iterator[Metric]:
    """The results of reloads, and the first and last moment at which the certificate is valid."""
    counts, tls = reload.counts, reload.tls
    results: dict[str, float] = {"succeeded": counts.succeeded, "failed": counts.failed}
    yield _counters("reload", "Reloads of settings and files (SIGHUP).", "result", results)
    yield _gauge("last_reload_timestamp_seconds", "Time of the last reload; 0: none yet.", counts.last_at)
    yield _gauge("last_reload_failed", "1 if the last reload met an invalid setting or file.", counts.last_failed)
    begins, ends = (None, None) if tls is None else tls.valid  # without TLS there are no samples
    text = "Start of the certificate's validity, seconds since 1970."
    yield GaugeMetricFamily(PREFIX + "tls_not_before_timestamp_seconds", text, value=begins)
    text = "End of the certificate's validity, seconds since 1970."
    yield GaugeMetricFamily(PREFIX + "tls_not_after_timestamp_seconds", text, value=ends)


def storage_metrics(plane: DataPlane) -> Iterator[Metric]:
    """The data directory; without one the metrics are there, and 0."""
    found = plane.durability
    if isinstance(found, LeasedDurability):
        found = found.storage
    archive = found if isinstance(found, Archive) else None
    counters = StorageCounters() if archive is None else archive.counters
    failed = archive is not None and archive.failed is not None
    size, segments, backlog = (archive.bytes, archive.segments, archive.backlog) if archive else (0, 0, 0)
    yield _gauge("storage_failed", "1 while the data directory cannot be written.", failed)
    yield _gauge("storage_bytes", "Bytes of closed segments in the data directory.", size)
    yield _gauge("storage_segments", "Closed segments in the data directory.", segments)
    yield _gauge("storage_backlog_bytes", "Published bytes that are not in the data directory yet.", backlog)
    yield _counter("storage_commits", "Batches written to the data directory.", counters.commits)
    yield _counter("storage_commit_seconds", "Seconds spent on writing batches.", counters.commit_s)
    yield _counter("storage_failures", "Attempts to write a batch that failed.", counters.failures)
    yield _counter("storage_written_bytes", "Bytes of segments written to the data directory.", counters.written)
    yield _counter("storage_replayed_bytes", "Bytes of stored segments read for readers.", counters.replayed)
    yield _counter("storage_lost", "Segments that left memory before they were stored.", counters.lost)
    yield _counter("storage_removed", "Segments removed from the data directory.", counters.removed)
    yield _counter("storage_damaged", "Damage found at the start, or by a reader.", counters.damaged)


def _changes(bus: Bus) -> Iterator[Metric]:
    """The facts that followers of changes can read, and subscriptions in the process."""
    changes = bus.changes
    yield _gauge("changes_index", "Index of the newest fact that followers can read.", changes.index)
    yield _gauge("changes_floor", "Index up to which facts are no longer kept.", changes.floor)
    ends = {kind.__name__: bus.ends[kind.__name__] for kind in ENDS}
    yield _counters("subscription_ends", "Subscriptions of embedding programs that ended.", "reason", ends)


def worker_metrics(link: Link) -> Iterator[Metric]:
    """A worker's ways to the others, where the server has several."""
    handover, busy = link.handover, link.busy
    yield _counter("worker_restarts", "Times that this worker was started again.", link.worker.predecessors)
    yield _counter("connections_handed_over", "Connections handed over to other workers.", handover.handed_over)
    yield _counter("connections_taken", "Connections taken from other workers.", handover.taken)
    text = "TLS connections whose requests another worker answers."
    yield _gauge("tls_sessions_lent", text, len(handover.halves) // 2)
    yield _counter("questions_unanswered", "Questions to workers that got no answer.", link.questions.unanswered)
    yield _gauge("busy_channels", "Channels of this worker that all workers serve.", len(busy.spread))
    yield _gauge("replicas", "Channels of other workers that this one serves, too.", len(busy.held))


def cluster_metrics(member: Member) -> Iterator[Metric]:
    """The cluster as this node sees it, and what this node does for the others."""
    directory, durability, moving = member.directory, member.durability, member.moving
    state = directory.lease.state
    states = {one.name.lower(): float(one is state) for one in LeaseState}
    yield _gauges("cluster_lease", "1 for the state in which this node's lease is.", "state", states)
    yield _gauge("cluster_degraded", "1 while this node can decide nothing about channels.", bool(directory.degraded))
    age_s = directory.age_s
    yield _gauge("cluster_directory_age_seconds", "Seconds since the directory has brought something.", age_s)
    nodes = Counter(dict.fromkeys(("serving", "unreachable"), 0))
    for node in directory.nodes.values():
        nodes[node.state if node.over or directory.reachable(node.name) else "unreachable"] += 1
    yield _gauges("cluster_nodes", "Nodes in the directory, as this node sees them.", "state", nodes)
    events = asdict(directory.counters)
    yield _counters("cluster_directory_events", "What has happened in the directory.", "event", events)
    doubts: dict[str, float] = {
        "waited": durability.waited, "refused": durability.refused, "unconfirmed": durability.unconfirmed
    }  # fmt: skip
    text = "Answers to publishers while the lease was in doubt: that waited, that were refused, that are weaker."
    yield _counters("cluster_doubts", text, "outcome", doubts)
    yield _counters(
        "cluster_forwarded", "Requests that were passed on, by the node.", "node", member.forwarding.by_node
    )
    yield _counter(
        "cluster_forwards_failed", "Requests passed on that the node did not answer.", member.forwarding.failed
    )
    yield _counter(
        "cluster_questions_unanswered", "Questions to nodes that got no answer.", member.feeds.questions.unanswered
    )
    refusals: dict[str, float] = {"forged": member.peers.forged, "loop": member.peers.loops}
    yield _counters("cluster_refusals", "Requests that no node had signed, or that went in a circle.", "why", refusals)
    yield _gauge("cluster_replicas", "Channels of other nodes that are held here.", len(member.replicas.held))
    text = "Reads that were passed on since too many channels are held."
    yield _counter("cluster_replicas_refused", text, member.replicas.refused)
    yield _gauge("cluster_feeds", "Feeds of channels that this node sends to others.", len(member.feeds.sending.tasks))
    text = "Feeds that this node has ended; with lag, since the other node was too slow."
    yield _counters(
        "cluster_feeds_ended", text, "reason", {str(why): n for why, n in member.feeds.sending.ends.items()}
    )
    yield _gauge("cluster_moves_under_way", "Channels that are being moved to other nodes.", len(moving.under_way))
    moves = {str(outcome): float(n) for outcome, n in moving.counters.items()}
    yield _counters("cluster_moves", "Moves of channels that have ended.", "outcome", moves)
    yield _counter("cluster_placed", "Requests for new channels that went to a node with less to do.", moving.placed)
    history = {} if member.quorum is None else member.quorum.counters
    yield _counters("cluster_history_events", "What has happened to the histories in NATS.", "event", history)


def mirror_metrics(mirror: MirrorModel, now: float) -> Iterator[Metric]:
    """The mirror of this server: what it copies, and how far that is.

    If it copies nothing, its state is all, and how long ago the source was heard: how far it is behind nobody knows.

    Args:
        now: the time, in seconds since 1970.
    """
    if mirror.state == "none":
        return
    states = {state: float(state == mirror.state) for state in MIRROR_STATES}
    yield _gauges("mirror_state", "1 for the state in which the mirror is.", "state", states)
    if mirror.last_contact is not None:
        age_s = max(0.0, now - mirror.last_contact)
        yield _gauge("mirror_contact_age_seconds", "Seconds since the source has last answered.", age_s)
    if not mirror.copies:
        return
    channels: dict[str, float] = dict.fromkeys((*ROW_STATES, "deleted"), 0.0) | mirror.channels
    yield _gauges("mirror_channels", "Channels of the source, by the state of their copies.", "state", channels)
    segments: dict[str, float] = dict.fromkeys((*ROW_STATES, "beyond"), 0.0) | mirror.segments
    yield _gauges("mirror_segments", "Closed segments of the source, by the state of their copies.", "state", segments)
    yield _gauge("mirror_segments_verified", "Copies of segments whose bytes were read again.", mirror.verified)
    yield _gauge("mirror_live_channels", "Channels that are followed at their live edge.", mirror.live)
    yield _counter("mirror_copied_bytes", "Bytes that the source has sent.", mirror.copied_bytes)
    yield _counter("mirror_failures", "What has gone wrong with copies; it is tried again.", mirror.failures)
    yield _counter("mirror_mismatches", "Copies that were wrong when they were verified.", mirror.mismatches)
    if mirror.last_contact is None:  # how far the source is nobody knows
        return
    yield _gauge("mirror_lag_segments", "Closed segments of the source that are not here.", mirror.lag.segments)
    yield _gauge("mirror_lag_bytes", "Bytes of closed segments of the source that are not here.", mirror.lag.bytes)
    if mirror.lag.seconds is not None:
        text = "For how long something of live channels has not been here."
        yield _gauge("mirror_lag_seconds", text, mirror.lag.seconds)
