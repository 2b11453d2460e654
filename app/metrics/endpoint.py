"""``/metrics``: all collectors, rendered at the moment of the scrape."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from app.access_log import AccessLog
from app.data_plane.plane import DataPlane
from app.metrics.plane import PlaneCollector


def metrics_router(plane: DataPlane, log: AccessLog | None) -> APIRouter:
    """``/metrics`` in Prometheus' text format."""
    router = APIRouter(tags=["metrics"])
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PlaneCollector(plane, log))

    @router.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
