"""Access control as one part: made from the settings, run beside the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tricklecast.app.access.secrets import InvalidSecret, Secret, read_file, read_secret
from tricklecast.app.access.settings import AccessSettings
from tricklecast.trickle.errors import InvalidInput

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tricklecast.app.access.gate import AccessGate
    from tricklecast.app.access.judge import Judge
    from tricklecast.app.access.jwks import KeyServer
    from tricklecast.app.access.keys import Key
    from tricklecast.app.access.webhooks import Webhook
    from tricklecast.app.data_plane.answers import Jitter

MIN_CONTROL_TOKEN_BYTES = 16
"""It signs nothing, so that it can only be guessed by asking: 16 random characters are out of reach."""


class AccessUnavailable(InvalidInput):
    """A package that the settings need is not installed."""


class Access:
    """All that decides who may do what.

    Args:
        settings: say what is switched on.
        node: this server's name.
        wall: seconds since the epoch.

    Attributes:
        judge, webhook: ``None`` where they are switched off.
        gate: for the data plane; ``None`` where it has nothing to decide.
        control_token: may use the control plane.

    Raises:
        InvalidInput: a file cannot be read or does not hold what it should, or a package is missing.
    """

    def __init__(self, settings: AccessSettings, node: str | None, wall: Callable[[], float] = time.time) -> None:
        self.judge = _judge(settings, wall)
        self.webhook = _webhook(settings)
        self.control_token: Secret | None = None
        if settings.control_token_file is not None:
            with _file_of("control_token_file"):
                self.control_token = read_secret(settings.control_token_file, least=MIN_CONTROL_TOKEN_BYTES)
        self._metrics_open = settings.metrics_open
        self.gate: AccessGate | None = None
        if self.judge is not None or self.webhook is not None:
            from tricklecast.app.access.gate import AccessGate

            self.gate = AccessGate(
                self.judge,
                self.webhook,
                fail_open=settings.webhook_fail_open,
                token_in_query=settings.token_in_query,
                node=node,
                wall=wall,
            )

    def guard(self, api: FastAPI, jitter: Jitter) -> None:
        """Let only those use the control plane who may."""
        if self.judge is None and self.control_token is None:
            return
        from tricklecast.app.access.control import GuardControlPlane

        api.add_middleware(
            GuardControlPlane,
            token=self.control_token,
            judge=self.judge,
            metrics_open=self._metrics_open,
            jitter=jitter,
        )

    async def run(self) -> None:
        """Fetch keys and ask the webhook, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.judge is not None and self.judge.key_server is not None:
                group.create_task(self.judge.key_server.run())
            if self.webhook is not None:
                group.create_task(self.webhook.run())


@contextmanager
def _file_of(setting: str) -> Iterator[None]:
    """What is wrong with a file is said with the setting that names it."""
    try:
        yield
    except InvalidSecret as error:
        raise InvalidSecret(f"{setting}: {error}") from None


def _judge(settings: AccessSettings, wall: Callable[[], float]) -> Judge | None:
    if not settings.has_tokens:
        return None
    try:
        from tricklecast.app.access import jwks, keys, tokens
    except ModuleNotFoundError as error:
        raise AccessUnavailable(f'tokens need {error.name}: pip install "tricklecast[tokens]"') from None
    from tricklecast.app.access.judge import Judge

    own: list[Key] = []
    if settings.jwt_secret_file is not None:
        with _file_of("jwt_secret_file"):
            own.append(keys.secret_key(read_secret(settings.jwt_secret_file)))
    if settings.jwt_key_file is not None:
        with _file_of("jwt_key_file"):
            own.append(keys.pem_key(read_file(settings.jwt_key_file), settings.jwt_key_file))
    if settings.jwks_file is not None:
        with _file_of("jwks_file"):
            own += keys.parse_key_set(read_file(settings.jwks_file), settings.jwks_file)
    server: KeyServer | None = None
    if settings.jwks_url is not None:
        server = jwks.KeyServer(
            settings.jwks_url,
            refetch_s=settings.jwks_refetch_s,
            max_age_s=settings.jwks_max_age_s,
            changed=lambda: judge.forget(),
        )
    verifier = tokens.Verifier(
        lambda: own if server is None else [*own, *server.keys],
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
        leeway_s=settings.jwt_leeway_s,
    )
    judge = Judge(verifier, server, size=settings.token_cache, wall=wall)
    return judge


def _webhook(settings: AccessSettings) -> Webhook | None:
    if settings.webhook_url is None:
        return None
    from tricklecast.app.access.webhooks import Webhook

    secret: Secret | None = None
    if settings.webhook_secret_file is not None:
        with _file_of("webhook_secret_file"):
            secret = read_secret(settings.webhook_secret_file)
    return Webhook(
        settings.webhook_url,
        secret=secret,
        timeout_s=settings.webhook_timeout_s,
        concurrency=settings.webhook_concurrency,
        cache_s=settings.webhook_cache_s,
    )
