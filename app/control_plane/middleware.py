"""Middleware around the control plane's routes: access records, limits of a client's address, cross-origin requests.

From the outside in: :class:`RecordRequests`, :class:`LimitRequests`, :class:`CheckHost`, :class:`CheckOrigin`, and,
where access is controlled, ``AuthorizeControlPlane`` of :mod:`tricklecast.app.access.control_plane`. They leave three
values for those further in, under the keys :data:`RECORD`, :data:`MAY_MANAGE` and :data:`PERMISSION_OVER` of the ASGI
scope.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

from fastapi import Depends, Request
from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tricklecast.app.data_plane.client_address import LOCAL, client_key, client_of, user_agent
from tricklecast.app.data_plane.context import DataPlane
from tricklecast.app.data_plane.cors import Cors
from tricklecast.app.data_plane.responses import MISDIRECTED, ORIGIN_REFUSED, Reply, limit_reply
from tricklecast.app.http1.asgi_bridge import CONNECTION, AsgiExchange
from tricklecast.trickle import wire
from tricklecast.trickle.records import AccessRecord, Op, Reason

RECORD: Final = "tricklecast.record"
"""The access record of the request."""

MAY_MANAGE: Final = "tricklecast.may_manage"
"""A function: whether the caller may see and manage the channel of this name. Missing without access control."""

PERMISSION_OVER: Final = "tricklecast.permission_over"
"""A function of the time (seconds since 1970) that returns the reason for which the caller's permission has ended, or
``None`` while it holds. Missing without access control."""

PASSED: Final = "tricklecast.passed"
"""The way of a request that another node of a cluster has passed on (:class:`Passed`)."""

HEALTH: Final = frozenset({"/healthz", "/readyz"})
"""Paths for load balancers; they need no token."""

METRICS: Final = "/metrics"

_UNLIMITED: Final = HEALTH | {METRICS}
"""Paths outside a client's limits: monitoring must see a server also when another client at the same address has used
up the limits. These requests cost little: health 0.1 ms, metrics what :class:`RateLimitedPage` allows."""

_REASONS: Final = {
    400: Reason.BAD_REQUEST,
    403: Reason.FORBIDDEN,
    404: Reason.NOT_FOUND,
    405: Reason.BAD_REQUEST,
    410: Reason.GONE,
    422: Reason.BAD_REQUEST,
    503: Reason.SHUTDOWN,
}
"""The reason of a refusal by its status, unless a middleware or route has set a more precise one."""

MayManage = Callable[[str], bool]


class Passed(NamedTuple):
    """The way of a request through other nodes of a cluster.

    Attributes:
        hops: the names of these nodes, the oldest first. client: its name in the access log.
    """

    hops: tuple[str, ...]
    client: str | None


def everything(name: str) -> bool:
    """The rule without access control: a caller may manage every channel."""
    del name
    return True


def permission_over(scope: Scope, now: float) -> str | None:
    """The reason to end a long response, since the caller's permission has ended; ``None`` while it holds."""
    over: Callable[[float], str | None] | None = scope.get(PERMISSION_OVER)
    return None if over is None else over(now)


async def _may_manage(request: Request) -> MayManage:
    found: MayManage = request.scope.get(MAY_MANAGE, everything)
    return found


Visible = Annotated[MayManage, Depends(_may_manage)]
"""A route's parameter: whether the caller may see and manage a channel."""


async def refuse(reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with a reply of the data plane, and set the reason of its access record."""
    record: AccessRecord = scope[RECORD]
    record.reason = reply.reason
    headers = {name: str(value) for name, value in reply.headers}
    if reply.retry_after_s is not None:
        headers[wire.RETRY_AFTER] = str(reply.retry_after_s)
        record.retry_after_ms = reply.retry_after_s * 1000
    await PlainTextResponse(reply.body, reply.status, headers)(scope, receive, send)


class _Middleware:
    """Stands before the application ``app``, and decides and counts with the plane, as segment routes do."""

    def __init__(self, app: ASGIApp, plane: DataPlane) -> None:
        self._app = app
        self._plane = plane


class RecordRequests(_Middleware):
    """Ends every request with an access record, of op ``api``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter_ns()
        record = scope[RECORD] = self._begin(scope)
        connection: AsgiExchange | None = scope.get(CONNECTION)

        async def watch(message: Message) -> None:
            await send(message)
            if connection is not None and connection.gone is not None:
                record.reason = connection.gone
            elif message["type"] == "http.response.start":
                record.status = message["status"]
                if record.reason == Reason.COMPLETE:
                    record.reason = _REASONS.get(message["status"], Reason.COMPLETE)
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
            if self._plane.witness is not None and (record.status or 0) >= 400 and record.reason:
                self._plane.witness.note("refused", record.reason, ip=record.ip)
            self._plane.ended(record)

    def _begin(self, scope: Scope) -> AccessRecord:
        plane, client = self._plane, scope.get("client")
        exchange: AsgiExchange | None = scope.get(CONNECTION)
        ip: str | None = client[0] if client else LOCAL
        if exchange is not None:  # under TLS its socket may lead to another worker, and `client` know nobody
            ip = exchange.connection.peer
        if ip is not None:
            ip = plane.proxies.origin(ip, scope["headers"])
        certified = None if exchange is None else exchange.connection.certified
        ua, release = user_agent(dict(scope["headers"]).get(b"user-agent", b""))
        passed: Passed | None = scope.get(PASSED)
        return AccessRecord(
            plane.wall_us(),
            node=plane.node,
            op=Op.API,
            method=scope["method"],
            path=scope["path"][:512],
            client=certified or client_key(ip or "", ua) if passed is None else passed.client,
            via=None if passed is None else passed.hops[-1],
            ip=ip,
            ua=ua,
            release=release,
            bytes_out=0,
            reason=Reason.COMPLETE,
        )


class LimitRequests(_Middleware):
    """Refuses a client's requests beyond its limits, which count its requests to both planes together.

    A connection beyond a limit may send requests here all the same, so that an operator gets in.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        plane = self._plane
        admission, clients = plane.admission, plane.admission.clients
        if clients is None or scope["path"] in _UNLIMITED:
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


class CheckHost(_Middleware):
    """Refuses requests for another host (:mod:`tricklecast.app.data_plane.hosts`). Health checks may use any name."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host")
        if scope["path"] in HEALTH or self._plane.control_hosts.allow(host):
            await self._app(scope, receive, send)
        else:
            await refuse(MISDIRECTED, scope, receive, send)


class CheckOrigin(_Middleware):
    """Applies CORS to the control plane: only pages that may write may also read.

    A player on any page may read segments, but only pages of ``cors_write_origins`` the list of channels and metrics.
    """

    def __init__(self, app: ASGIApp, plane: DataPlane) -> None:
        super().__init__(app, plane)
        self._made_for: tuple[str, ...] = ()  # the origins of the setting from which the rules were made
        self._cors = Cors((), ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = self._plane.options.cors_write_origins
        if origins is not self._made_for:
            self._made_for, self._cors = origins, Cors(origins, origins)
        method = scope["method"].encode("latin-1")
        decision = self._cors.decide(method, dict(scope["headers"]), scope["scheme"])
        if not decision.allowed:
            await refuse(ORIGIN_REFUSED, scope, receive, send)
        elif not decision.headers:
            await self._app(scope, receive, send)
        elif method == b"OPTIONS":
            await Response(status_code=204, headers=dict(decision.headers))(scope, receive, send)
        else:

            async def permit(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(dict(decision.headers))
                await send(message)

            await self._app(scope, receive, permit)
