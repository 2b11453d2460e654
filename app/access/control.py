"""Who may use the control plane: the holder of its token, and tokens with the right ``manage`` for their channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from tricklecast.app.access import refusals
from tricklecast.app.access.credentials import from_headers
from tricklecast.app.access.grants import Grant, Rejected
from tricklecast.app.access.judge import NO_KEYS, UNKNOWN_KEY, Judge
from tricklecast.app.access.rules import ANY, EVERYTHING, Right, Rights
from tricklecast.app.control_plane.middleware import HEALTH, MAY_MANAGE, METRICS, RECORD, everything, refuse
from tricklecast.trickle.records import AccessRecord, Reason

if TYPE_CHECKING:
    from tricklecast.app.access.secrets import Secret
    from tricklecast.app.data_plane.answers import Jitter
    from tricklecast.app.data_plane.replies import Reply

CHANNELS: Final = "/api/v1/channels"


class GuardControlPlane:
    """ASGI middleware that lets in who may manage something.

    Args:
        app: the application inside.
        token: whoever has it may do everything; ``None``: nobody.
        judge: of other tokens; ``None``: there are none.
        metrics_open: whether everybody may read the metrics.
        jitter: for ``Retry-After``.
    """

    def __init__(
        self, app: ASGIApp, *, token: Secret | None, judge: Judge | None, metrics_open: bool, jitter: Jitter
    ) -> None:
        self._app = app
        self._token = token
        self._judge = judge
        self._open = HEALTH | {METRICS} if metrics_open else HEALTH
        self._jitter = jitter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        record: AccessRecord = scope[RECORD]
        outcome = await self._judge_request(scope, record)
        if isinstance(outcome, Rights):
            scope[MAY_MANAGE] = _manages(outcome)
            await self._app(scope, receive, send)
            return
        await refuse(outcome, scope, receive, send)

    async def _judge_request(self, scope: Scope, record: AccessRecord) -> Rights | Reply:
        token = from_headers(dict(scope["headers"]))
        if token is None:
            return refusals.MISSING
        if self._token is not None and self._token.equals(token):
            return EVERYTHING
        if self._judge is None:
            return refusals.rejected("signature")
        try:
            grant = await _grant(self._judge, token)
        except Rejected as error:
            if error.why == NO_KEYS:
                return refusals.unavailable(Reason.token(error.why), self._jitter)
            return refusals.rejected(error.why)
        record.client = grant.subject or record.client
        allowed = bool(grant.rights.manage) if _is_channels(scope["path"]) else ANY in grant.rights.manage
        return grant.rights if allowed else refusals.NOT_ALLOWED


async def _grant(judge: Judge, token: bytes) -> Grant:
    """What a token allows, after a look for newer keys if need be.

    Raises:
        Rejected: nothing.
    """
    try:
        return judge.judge(token)
    except Rejected as error:
        if error.why not in (UNKNOWN_KEY, NO_KEYS) or judge.key_server is None:
            raise
        came = asyncio.Event()
        if not judge.key_server.ask(came.set):
            raise
    await came.wait()
    return judge.judge(token)


def _is_channels(path: str) -> bool:
    return path == CHANNELS or path.startswith(f"{CHANNELS}/")


def _manages(rights: Rights) -> Callable[[str], bool]:
    if ANY in rights.manage:
        return everything
    return lambda channel: rights.has(Right.MANAGE, channel)
