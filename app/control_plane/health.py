"""Whether the server lives, and whether it wants new work."""

from __future__ import annotations

from fastapi import APIRouter, Response

from tricklecast.app.core.registry import Registry


def health_router(registry: Registry) -> APIRouter:
    """``/healthz`` and ``/readyz``."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz", summary="Is the process alive?")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz", summary="Does it take new work?", responses={503: {"description": "Shutting down"}})
    async def readyz(response: Response) -> dict[str, str]:
        if registry.shutting_down:
            response.status_code = 503
            return {"status": "draining"}
        return {"status": "ready"}

    return router
