"""``/metrics``: all collectors, rendered at the moment of the scrape."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from tricklecast.app.access.authorizer import Access
from tricklecast.app.access_log import AccessLog
from tricklecast.app.control_plane.page import Page
from tricklecast.app.data_plane.plane import DataPlane
from tricklecast.app.metrics.access import AccessCollector
from tricklecast.app.metrics.lag import ReaderLag
from tricklecast.app.metrics.limits import LimitsCollector
from tricklecast.app.metrics.plane import PlaneCollector
from tricklecast.app.metrics.process import ServerCollector
from tricklecast.app.metrics.top import TopChannels


def collectors(plane: DataPlane, log: AccessLog | None, access: Access | None = None) -> CollectorRegistry:
    """Everything that a server exposes.

    Args:
        log: its access log, if it writes one.
        access: decides who may do what, if anybody does.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (
        PlaneCollector(plane),
        ReaderLag(plane),
        TopChannels(plane.registry.channels, plane.clock, plane.options.metrics_channels),
        LimitsCollector(plane, log),
        ServerCollector(plane, log),
        AccessCollector(access),
    ):
        registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def metrics_router(plane: DataPlane, log: AccessLog | None, access: Access | None = None) -> APIRouter:
    """``/metrics`` in Prometheus' text format."""
    router = APIRouter(tags=["metrics"])
    page = Page(partial(generate_latest, collectors(plane, log, access)))

    @router.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(page.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
