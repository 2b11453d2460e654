"""What a scrape says, and every metric that a server can expose."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tricklecast.app.access.authorizer import Access
from tricklecast.app.access_log import AccessLog, LogShare
from tricklecast.app.bus import Bus
from tricklecast.app.changes import Changes
from tricklecast.app.cluster.member import Member
from tricklecast.app.control_plane.api import Page
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.data_plane.context import DataPlane, Options
from tricklecast.app.metrics import Metrics, cluster_metrics, mirror_metrics, source_metrics, worker_metrics
from tricklecast.app.mirror.routes import LagModel, MirrorModel
from tricklecast.app.reload import Reload
from tricklecast.app.settings import load
from tricklecast.app.workers.link import Link
from tricklecast.app.workers.mesh import socket_pairs
from tricklecast.app.workers.overview import joined_metrics
from tricklecast.app.workers.shared import Shared
from tricklecast.app.workers.supervisor import Worker

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Every sample by its name and labels; the text must parse, and no sample may be there twice."""
    found = [
        ((sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


class _Once(Collector):
    """Metrics that are there already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def scrape(found: Iterable[Metric]) -> Samples:
    """The samples of these metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(found))
    return samples(generate_latest(registry).decode())


def labelled(found: Samples, name: str, label: str) -> dict[str, float]:
    """The values of one metric by the value of its only label."""
    return {dict(labels)[label]: value for (sample, labels), value in found.items() if sample == name}


class Family(NamedTuple):
    """One metric, as its table row has it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def series(self) -> set[str]:
        """The names of its series, which is what queries are made of."""
        if self.kind != "histogram":
            return {self.name}
        return {f"{self.name}_{part}" for part in ("bucket", "sum", "count")}


def _later(function: Callable[[], None]) -> None:
    """Nothing happens here."""


def metrics_of(plane: DataPlane, log: AccessLog | None = None) -> Metrics:
    """The metrics of a server without access control and without web pages."""
    bus = Bus(Changes(plane.registry, defer=_later), plane.registry, defer=_later)
    settings = load({}).settings
    access = Access(settings, "here")
    return Metrics(plane, log, access, bus, None, Reload(settings, access, plane))


def _member() -> Member:
    """A node that is in no cluster yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = load({"cluster": "nats://127.0.0.1:1"}).settings
        return Member(settings, "here", listener, DataPlane(Registry(Limits(), autocreate=True), Options()))


def _mirror() -> MirrorModel:
    """One that has all of its figures."""
    return MirrorModel(state="following", last_contact=0.0, lag=LagModel(segments=0, bytes=0, seconds=0.0))


def families() -> list[Family]:
    """In the order in which they are exposed."""
    plane = DataPlane(Registry(Limits(), autocreate=True), Options())
    log = AccessLog(Path("unused"), node=None, max_bytes=1, max_age_s=1, files=1, queue=1)
    worker = Worker(0, 2, socket_pairs(2), Shared(2), log=LogShare(), alive=-1, predecessors=0, status=-1)
    exposed = [*metrics_of(plane, log).collect(), *worker_metrics(Link(worker, plane, lambda: None))]
    exposed += cluster_metrics(_member())
    exposed += mirror_metrics(_mirror(), 1.0)
    exposed += source_metrics([{"name": "cam", "state": "running", "restarts": 0}])
    worker.log.close()
    for sock in chain.from_iterable(worker.mesh):
        sock.close()
    found = [
        Family(
            metric.name + ("_total" if metric.type == "counter" else ""),
            metric.type,
            tuple(getattr(metric, "_labelnames", ())),
            metric.documentation,
        )
        for metric in [*exposed, *ProcessCollector(registry=None).collect()]
    ]
    of_each = text_string_to_metric_families(joined_metrics([Page(b"", problem="gone")]).decode())
    return found + [
        Family(metric.samples[0].name, metric.type, tuple(metric.samples[0].labels), metric.documentation)
        for metric in of_each
    ]
