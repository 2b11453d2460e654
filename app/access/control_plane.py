"""Access to the control plane: its own token allows everything; other tokens need the right ``manage``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from tricklecast.app.access import responses
from tricklecast.app.access.rights import ANY, EVERYTHING, Claims, InvalidToken, Right, Rights, bearer_token
from tricklecast.app.access.secrets import is_secret
from tricklecast.app.control_plane.middleware import (
    HEALTH,
    MAY_MANAGE,
    METRICS,
    PERMISSION_OVER,
    RECORD,
    everything,
    refuse,
)
from tricklecast.app.data_plane.responses import REVOKED, Reply
from tricklecast.trickle.records import AccessRecord, Reason

if TYPE_CHECKING:
    from pydantic import SecretBytes

    from tricklecast.app.access.tokens import TokenVerifier

CHANNELS: Final = "/api/v1/channels"
CHANGES: Final = "/api/v1/changes"
DASHBOARD: Final = "/api/v1/dashboard"
SOURCES: Final = "/api/v1/sources"


class AuthorizeControlPlane:
    """ASGI middleware that serves only clients that may manage something.

    Args:
        app: the application inside.
        control_token: returns the token whose holders may do everything; it may change. ``None``: there is none.
        tokens: verifies other tokens; ``None``: there are none.
        metrics_open: whether everybody may read the metrics.
        is_open: whether everybody may request any other path.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        control_token: Callable[[], SecretBytes | None],
        tokens: TokenVerifier | None,
        metrics_open: bool,
        is_open: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._control_token = control_token
        self._tokens = tokens
        self._open = HEALTH | {METRICS} if metrics_open else HEALTH
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open or self._is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        rights = await self._authorize(scope)
        if isinstance(rights, Reply):
            await refuse(rights, scope, receive, send)
            return
        scope[MAY_MANAGE] = _may_manage(rights)
        await self._app(scope, receive, send)

    async def _authorize(self, scope: Scope) -> Rights | Reply:
        token = bearer_token(dict(scope["headers"]))
        if token is None:
            return responses.MISSING
        control_token = self._control_token()
        if control_token is not None and is_secret(control_token, token):
            scope[PERMISSION_OVER] = lambda now: None if self._control_token() == control_token else REVOKED.reason
            return EVERYTHING
        if self._tokens is None:
            return responses.invalid_token("signature")
        try:
            claims = await _verify(self._tokens, token)
        except InvalidToken as error:
            return responses.invalid_token(error.why)
        record: AccessRecord = scope[RECORD]
        record.client = claims.subject or record.client
        scope[PERMISSION_OVER] = partial(_why_over, self._tokens, claims)
        path, manage = scope["path"], claims.rights.manage
        # The routes show only the channels that the token may manage; all else is about the whole server.
        shown = path in (CHANNELS, CHANGES, DASHBOARD, SOURCES) or path.startswith(f"{CHANNELS}/")
        allowed = bool(manage) if shown else ANY in manage
        return claims.rights if allowed else responses.not_managing(None if shown else ANY)


def _why_over(tokens: TokenVerifier, claims: Claims, now: float) -> str | None:
    if not tokens.holds(claims):
        return REVOKED.reason
    return Reason.EXPIRED if now >= claims.expires_at else None


async def _verify(tokens: TokenVerifier, token: bytes) -> Claims:
    """Return the claims of a token. If its key is unknown, fetch the key set first.

    Raises:
        InvalidToken: the token allows nothing.
    """
    try:
        return tokens.verify(token)
    except InvalidToken as error:
        fetched = asyncio.Event()
        if not error.unknown_key or not tokens.refetch(fetched.set):
            raise
    await fetched.wait()
    return tokens.verify(token)


def _may_manage(rights: Rights) -> Callable[[str], bool]:
    if ANY in rights.manage:
        return everything
    return lambda channel: rights.has(Right.MANAGE, channel)
