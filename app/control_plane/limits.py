"""The limits of a client address, for what lies outside the base path: its requests of both planes count together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from tricklecast.app.control_plane.refuse import refuse
from tricklecast.app.control_plane.scope import HEALTH, METRICS, RECORD
from tricklecast.app.data_plane.answers import limit_reply
from tricklecast.app.data_plane.client_address import client_of

if TYPE_CHECKING:
    from tricklecast.app.data_plane.plane import DataPlane
    from tricklecast.trickle.records import AccessRecord

UNLIMITED = HEALTH | {METRICS}
"""Whoever watches a server gets in, above all when somebody at the same address has gone too far. These cost little:
health a tenth of a millisecond, metrics what ``app/metrics/page.py`` lets them."""


class LimitRequests:
    """ASGI middleware that refuses a client's requests beyond its limits, before anybody looks at them.

    Args:
        app: the application inside.
        plane: decides, as it does on segment routes. A connection beyond a limit may ask here all the same, so that
            an operator gets in (:mod:`app.data_plane.door`).
    """

    def __init__(self, app: ASGIApp, plane: DataPlane) -> None:
        self._app = app
        self._plane = plane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plane = self._plane
        admission, clients = plane.admission, plane.admission.clients
        if clients is None or scope["path"] in UNLIMITED:
            await self._app(scope, receive, send)
            return
        record: AccessRecord = scope[RECORD]
        client = clients.hold(client_of(record.ip or ""))
        try:
            limit = admission.begin(client, plane.clock())
            if limit is not None:
                reply = limit_reply(limit, plane.jitter, close=False, wait_s=admission.wait_s(limit))
                await refuse(reply, scope, receive, send)
                return
            try:
                await self._app(scope, receive, send)
            finally:
                admission.end(client)
        finally:
            clients.release(client)
