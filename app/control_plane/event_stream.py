"""Server-Sent Events: the common part of the streams of changes and of the dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tricklecast.app.control_plane.middleware import RECORD, permission_over
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.encoding import encode
from tricklecast.app.http1.asgi_bridge import CONNECTION, AsgiExchange
from tricklecast.trickle import wire
from tricklecast.trickle.records import AccessRecord, Reason

EVENT_STREAM: Final = "text/event-stream"

RETRY_MS: Final = 2_000
"""A browser waits for this time before it connects again."""

STOPS: Final = "the server is shutting down"


class EventStream(StreamingResponse):
    """A stream that counts as a follower while it lasts. Its events end when the client has left.

    Args:
        join, leave: called at its beginning and at its end.
        gzip: whether the bytes are compressed.
    """

    def __init__(
        self, events: AsyncIterator[bytes], join: Callable[[], None], leave: Callable[[], None], *, gzip: bool = False
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would hold events back
        if gzip:
            headers["Content-Encoding"] = "gzip"
        super().__init__(events, headers=headers, media_type=EVENT_STREAM)
        self._join, self._leave = join, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._join()
        try:
            await self.stream_response(send)
        finally:
            self._leave()


def why_over(request: Request, plane: DataPlane) -> str | None:
    """The reason for which a follower's request ends now; ``None`` if it goes on."""
    connection: AsgiExchange | None = request.scope.get(CONNECTION)
    if connection is not None and connection.gone is not None:
        return connection.gone
    if plane.registry.shutting_down:
        return Reason.SHUTDOWN
    return permission_over(request.scope, plane.wall_us() / 1e6)


def come_back_s(plane: DataPlane) -> int:
    """The value of ``Retry-After`` for a client that is sent away, drawn evenly, in seconds."""
    return plane.jitter(*plane.registry.come_back_s)


def come_back_later(request: Request, plane: DataPlane, detail: str) -> Response:
    """Answer 503: a limit is reached, or the server stops."""
    wait_s = come_back_s(plane)
    record: AccessRecord = request.scope[RECORD]
    record.retry_after_ms = wait_s * 1000
    return Response(encode({"detail": detail}), 503, {wire.RETRY_AFTER: str(wait_s)}, media_type="application/json")
