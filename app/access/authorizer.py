"""Access control: it is made from the settings, decides about requests, and runs beside the server.

A client shows a token. The server verifies it (:mod:`app.access.tokens`), compares its rights with the request
(:mod:`app.access.rights`), and then asks the operator's webhook (:mod:`app.access.webhook`). Tokens and the webhook can
each be switched off; without both every client may do everything.

A decision is :class:`Granted`, :class:`Refused`, or :class:`Pending` while the server fetches keys or asks the webhook.
An exchange keeps its :class:`Granted` while it runs. When keys or revocations change, ``generation`` changes, and the
data plane asks :meth:`RequestAuthorizer.holds` for each running exchange: one whose key is gone, or whose token is
revoked, ends at the next tick of the sweeper. Expiry needs no question: ``Granted`` names its time.

Secrets come from files, which SIGHUP reads again. A file with a problem changes nothing: its former content stays in
use, and the log names the problem.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tricklecast.app.access import responses
from tricklecast.app.access.revocations import NOTHING_REVOKED, read_revocations
from tricklecast.app.access.rights import MAX_TOKEN_BYTES, Claims, InvalidToken, Rights, bearer_token, query_token
from tricklecast.app.access.secrets import InvalidKey, read_secret
from tricklecast.app.access.settings import AccessSettings
from tricklecast.app.data_plane.authorization import Granted, Pending, Refused
from tricklecast.app.data_plane.request import Request
from tricklecast.app.encoding import encode
from tricklecast.trickle.errors import InvalidInput, needs
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import SecretBytes

    from tricklecast.app.access.jwks import KeySet
    from tricklecast.app.access.tokens import TokenVerifier
    from tricklecast.app.access.webhook import Webhook

T = TypeVar("T")

MIN_CONTROL_TOKEN_BYTES: Final = 16
"""The control plane's token signs nothing, so that an attacker can only guess it by asking: 16 characters will do."""

OWN_SUBJECT: Final = "source"
"""The name of the server's own publishers in the access log."""

OPERATIONS: Final[Mapping[Op, str]] = {
    Op.CREATE: "create",
    Op.PUBLISH: "publish",
    Op.CLOSE_SEGMENT: "publish",
    Op.READ: "subscribe",
    Op.CHANGES: "subscribe",
    Op.STREAM: "subscribe",
    Op.PLAYLIST: "subscribe",
    Op.HLS: "subscribe",
    Op.CLIP: "subscribe",
    Op.FEED: "subscribe",
    Op.NEXT: "next",
    Op.DELETE: "delete",
}
"""The field ``operation`` of a question to the webhook."""


class Access:
    """All of access control.

    Args:
        node: this server's name, for the webhook.

    Attributes:
        tokens, webhook: ``None`` if switched off.
        authorizer: for the data plane; ``None`` if both are switched off.

    Raises:
        InvalidInput: a file cannot be read or has a wrong content, or a package is missing.
    """

    def __init__(self, settings: AccessSettings, node: str | None) -> None:
        self._files = _Files()
        problems = self._files.read(settings)
        if problems:
            raise problems[0]
        self.tokens = _token_verifier(settings, self._files) if settings.has_tokens else None
        self.webhook = _webhook(settings, settings.webhook_url, self._files) if settings.webhook_url else None
        self._metrics_open = settings.metrics_open
        self.authorizer: RequestAuthorizer | None = None
        if self.tokens is not None or self.webhook is not None:
            self.authorizer = RequestAuthorizer(
                self.tokens,
                self.webhook,
                fail_open=settings.webhook_fail_open,
                token_in_query=settings.token_in_query,
                node=node,
            )

    def reload(self, settings: AccessSettings) -> list[InvalidInput]:
        """Read all files again, and fetch the key set behind the URL. Exchanges whose key or token is gone end soon.

        Args:
            settings: the present ones. They switch the same parts on as at the start.

        Returns:
            The problems. The former content of a file with a problem stays in use.
        """
        files = self._files
        problems = files.read(settings)
        if self.tokens is not None:
            self.tokens.use(files.all_keys, files.revocations)
            if self.tokens.remote is not None:
                self.tokens.remote.refresh()
        if self.webhook is not None:
            self.webhook.use(files.webhook_secret)
        return problems

    @property
    def control_token(self) -> SecretBytes | None:
        """The token whose holders may do everything in the control plane; ``None`` if there is none."""
        return self._files.control_token

    @property
    def protects(self) -> bool:
        """Whether the control plane serves only clients with a token."""
        return self.tokens is not None or self.control_token is not None

    def protect(self, api: FastAPI, is_open: Callable[[str], bool] = lambda path: False) -> None:
        """Let the control plane serve only clients with a token, if there are tokens of either kind.

        Args:
            api: the control plane.
            is_open: whether everybody may request a path.
        """
        if not self.protects:
            return
        from tricklecast.app.access.control_plane import AuthorizeControlPlane

        api.add_middleware(
            AuthorizeControlPlane,
            control_token=lambda: self.control_token,
            tokens=self.tokens,
            metrics_open=self._metrics_open,
            is_open=is_open,
        )

    async def run(self) -> None:
        """Fetch keys and ask the webhook, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.tokens is not None and self.tokens.remote is not None:
                group.create_task(self.tokens.remote.run())
            if self.webhook is not None:
                group.create_task(self.webhook.run())


class RequestAuthorizer:
    """Decides about requests to the data plane (:class:`app.data_plane.authorization.Authorizer`).

    Args:
        tokens: ``None``: clients need no token.
        webhook: ``None``: it is switched off.
        fail_open: whether a request is granted if the webhook does not answer.
        token_in_query: whether a token in ``?token=`` counts if there is none in a header.
        node: this server's name, for the webhook.

    Attributes:
        own: tokens of the server's own processes, which publish (:mod:`app.sources`), each with its channels.
    """

    def __init__(
        self,
        tokens: TokenVerifier | None,
        webhook: Webhook | None = None,
        *,
        fail_open: bool = False,
        token_in_query: bool = False,
        node: str | None = None,
    ) -> None:
        self._tokens = tokens
        self._webhook = webhook
        self._fail_open = fail_open
        self._token_in_query = token_in_query
        self._node = node
        self.own: dict[bytes, tuple[str, ...]] = {}

    @property
    def generation(self) -> int:
        return 0 if self._tokens is None else self._tokens.generation

    def holds(self, granted: Granted) -> bool:
        """Whether a permission still holds: its token is not revoked, and its key is still in use."""
        return self._tokens is None or not isinstance(granted.basis, Claims) or self._tokens.holds(granted.basis)

    def authorize(self, request: Request) -> Granted | Refused | Pending:
        route, ip = request.route, request.ip
        assert route is not None, "the request is for a segment route"
        op, channel = route.op, route.channel
        assert op is not None, "the route is known"
        token = bearer_token(request.headers)
        if token is None and self._token_in_query:
            token = query_token(request.target)
        if token is not None and self.own and (published := self.own.get(token)) is not None:
            # The look-up goes by a hash with a random key: its time tells nothing about a token.
            rights = Rights(publish=published)
            if not rights.allow(op, channel):
                return Refused(responses.not_allowed(op, channel), OWN_SUBJECT)
            return Granted(OWN_SUBJECT, math.inf)
        if self._tokens is None:
            if token is not None and len(token) > MAX_TOKEN_BYTES:
                return Refused(responses.invalid_token("malformed"))
            return self._ask_webhook(Granted(request.certified, math.inf), op, channel, ip, token)
        if token is None:
            return Refused(responses.MISSING)
        try:
            claims = self._tokens.verify(token)
        except InvalidToken as error:
            pending = Pending()
            if error.unknown_key and self._tokens.refetch(lambda: self._verify_again(pending, op, channel, ip, token)):
                return pending
            return Refused(responses.invalid_token(error.why))
        return self._check_rights(claims, op, channel, ip)

    def _verify_again(self, pending: Pending, op: Op, channel: str, ip: str | None, token: bytes) -> None:
        """Decide about a token again, after the server has fetched the keys."""
        assert self._tokens is not None, "there are keys"
        if pending.cancelled:
            return
        decision: Granted | Refused | Pending
        try:
            decision = self._check_rights(self._tokens.verify(token), op, channel, ip)
        except InvalidToken as error:
            decision = Refused(responses.invalid_token(error.why))
        if isinstance(decision, Pending):
            decision.then(pending.decide)
        else:
            pending.decide(decision)

    def _check_rights(self, claims: Claims, op: Op, channel: str, ip: str | None) -> Granted | Refused | Pending:
        if not claims.rights.allow(op, channel):
            return Refused(responses.not_allowed(op, channel), claims.subject)
        # The server has verified the token; the webhook need not see it.
        return self._ask_webhook(Granted(claims.subject, claims.expires_at, claims), op, channel, ip, None)

    def _ask_webhook(
        self, granted: Granted, op: Op, channel: str, ip: str | None, token: bytes | None
    ) -> Granted | Refused | Pending:
        if self._webhook is None:
            return granted
        # Equal questions share an answer, so a question has no field that a service does not need to decide.
        question = encode(
            {
                "v": 1,
                "node": self._node,
                "operation": OPERATIONS[op],
                "channel": channel,
                "subject": granted.subject,
                "token": None if token is None else token.decode("latin-1"),
                "ip": ip,
            }
        )
        status = self._webhook.remembered(question)
        if status is not None:
            return self._follow_webhook(status, granted)
        pending = Pending()
        if self._webhook.ask(question, lambda status: pending.decide(self._follow_webhook(status, granted))):
            return pending
        return self._undecided(Reason.limit("webhook"), granted)

    def _follow_webhook(self, status: int, granted: Granted) -> Granted | Refused:
        match status:
            case Status.OK:
                # The webhook may have taken its time.
                return granted if self.holds(granted) else Refused(responses.invalid_token("revoked"), granted.subject)
            case Status.UNAVAILABLE:
                return self._undecided(Reason.webhook("failed"), granted)
        return Refused(responses.REFUSED_BY_WEBHOOK[status], granted.subject)

    def _undecided(self, reason: str, granted: Granted) -> Granted | Refused:
        return granted if self._fail_open else Refused(responses.unavailable(reason), granted.subject)


class _Files:
    """The contents of the files that settings name: keys, secrets, revocations.

    Attributes:
        keys: by the setting that names their file.
        control_token, webhook_secret, revocations: the contents of the other files; ``None``, or empty, without a file.
    """

    def __init__(self) -> None:
        self.keys: dict[str, KeySet] = {}
        self.control_token: SecretBytes | None = None
        self.webhook_secret: SecretBytes | None = None
        self.revocations = NOTHING_REVOKED

    @property
    def all_keys(self) -> KeySet:
        return tuple(chain.from_iterable(self.keys.values()))

    def read(self, settings: AccessSettings) -> list[InvalidInput]:
        """Read every file that is set, and return the problems. The former content of a file with a problem stays."""
        problems: list[InvalidInput] = []

        def load(setting: str, read: Callable[[Path], T], former: T) -> T:
            path: Path | None = getattr(settings, setting)
            try:
                return former if path is None else read(path)
            except InvalidKey as error:
                problems.append(InvalidKey(f"{setting}: {error}"))
                return former

        if settings.has_tokens:
            try:
                from tricklecast.app.access import jwks
            except ModuleNotFoundError as error:
                return [InvalidInput(f"access control {needs(str(error.name), 'tokens')}")]
            readers = {
                "jwt_secret_file": jwks.read_secret_key,
                "jwt_key_file": jwks.read_public_key,
                "jwks_file": jwks.read_key_set,
            }
            set_now = {setting: read for setting, read in readers.items() if getattr(settings, setting) is not None}
            self.keys = {setting: load(setting, read, self.keys.get(setting, ())) for setting, read in set_now.items()}
        least = partial(read_secret, least=MIN_CONTROL_TOKEN_BYTES)
        self.control_token = load("control_token_file", least, self.control_token)
        former = self.webhook_secret if settings.webhook_secret_file is not None else None
        self.webhook_secret = load("webhook_secret_file", read_secret, former)
        revoked = self.revocations if settings.revoked_file is not None else NOTHING_REVOKED
        self.revocations = load("revoked_file", read_revocations, revoked)
        return problems


def _token_verifier(settings: AccessSettings, files: _Files) -> TokenVerifier:
    from tricklecast.app.access import jwks, tokens

    remote = None
    if settings.jwks_url is not None:
        remote = jwks.RemoteKeySet(
            settings.jwks_url, refetch_s=settings.jwks_refetch_s, max_age_s=settings.jwks_max_age_s
        )
    return tokens.TokenVerifier(
        files.all_keys,
        remote,
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
        leeway_s=settings.jwt_leeway_s,
        size=settings.token_cache,
        revocations=files.revocations,
    )


def _webhook(settings: AccessSettings, url: str, files: _Files) -> Webhook:
    from tricklecast.app.access.webhook import Webhook

    return Webhook(
        url,
        secret=files.webhook_secret,
        timeout_s=settings.webhook_timeout_s,
        concurrency=settings.webhook_concurrency,
        cache_s=settings.webhook_cache_s,
    )
