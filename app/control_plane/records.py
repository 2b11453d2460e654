"""Access records for the control plane: op ``api``."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tricklecast.app.control_plane.scope import RECORD
from tricklecast.app.data_plane.asgi_bridge import CONNECTION, AsgiExchange
from tricklecast.app.data_plane.client_address import client_key, user_agent
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.trickle.records import AccessRecord, Op, Reason

REFUSED: Final = {
    400: Reason.BAD_REQUEST,
    403: Reason.FORBIDDEN,
    404: Reason.NOT_FOUND,
    405: Reason.BAD_REQUEST,
    422: Reason.BAD_REQUEST,
    503: Reason.SHUTDOWN,
}
"""Why a request was refused, by its status, where nobody has said more."""


class RecordRequests:
    """ASGI middleware that ends every request with an access record.

    Args:
        app: the application inside. plane: where records go.
    """

    def __init__(self, app: ASGIApp, plane: DataPlane) -> None:
        self._app = app
        self._plane = plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter_ns()
        client = scope.get("client")
        ip = self._plane.proxies.origin(client[0], scope["headers"]) if client else None
        ua, release = user_agent(dict(scope["headers"]).get(b"user-agent", b""))
        record = AccessRecord(
            self._plane.wall_us(),
            node=self._plane.node,
            op=Op.API,
            method=scope["method"],
            path=scope["path"][:512],
            client=client_key(ip or "", ua),
            ip=ip,
            ua=ua,
            release=release,
            bytes_out=0,
            reason=Reason.COMPLETE,
        )

        scope[RECORD] = record
        connection: AsgiExchange | None = scope.get(CONNECTION)

        async def watch(message: Message) -> None:
            await send(message)
            if connection is not None and connection.gone is not None:
                record.reason = connection.gone
            elif message["type"] == "http.response.start":
                record.status = message["status"]
                if record.reason == Reason.COMPLETE:
                    record.reason = REFUSED.get(message["status"], Reason.COMPLETE)
                record.wait_us = (time.perf_counter_ns() - begun) // 1000
            else:
                record.bytes_out = (record.bytes_out or 0) + len(message.get("body", b""))
                if connection is not None and not message.get("more_body"):
                    record.reason = await connection.taken(record) or record.reason

        try:
            await self._app(scope, receive, watch)
        except asyncio.CancelledError:
            record.reason = Reason.SHUTDOWN
            raise
        except Exception:
            record.status, record.reason = 500, Reason.ERROR
            raise
        finally:
            record.dur_us = (time.perf_counter_ns() - begun) // 1000
            self._plane.ended(record)
