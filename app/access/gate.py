"""Where access is decided for requests on segment routes: first the token, then the webhook."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import orjson

from tricklecast.app.access import refusals
from tricklecast.app.access.credentials import MAX_TOKEN_BYTES, from_headers, from_query
from tricklecast.app.access.entry import Entry
from tricklecast.app.access.expiry import Expiries
from tricklecast.app.access.grants import Rejected
from tricklecast.app.access.judge import NO_KEYS, UNKNOWN_KEY, Judge
from tricklecast.app.data_plane.publish import Publish
from tricklecast.app.data_plane.tally import Record
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

if TYPE_CHECKING:
    from tricklecast.app.access.webhooks import Webhook
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.gate import Begin
    from tricklecast.app.data_plane.request import Request
    from tricklecast.app.data_plane.routes import Route

OPERATIONS: Final = {
    Op.CREATE: "create",
    Op.PUBLISH: "publish",
    Op.CLOSE_SEGMENT: "publish",
    Op.READ: "subscribe",
    Op.CHANGES: "subscribe",
    Op.NEXT: "next",
    Op.DELETE: "delete",
}
"""What the webhook is told that is wanted."""


class AccessGate:
    """Admits the requests of those who may.

    Args:
        judge: of tokens; ``None``: nobody needs one.
        webhook: is asked as well; ``None``: nobody is.
        fail_open: whether what the webhook does not decide is allowed.
        token_in_query: whether ``?token=`` counts.
        node: this server's name, for the webhook.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        judge: Judge | None,
        webhook: Webhook | None = None,
        *,
        fail_open: bool = False,
        token_in_query: bool = False,
        node: str | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._judge = judge
        self._webhook = webhook
        self._fail_open = fail_open
        self._token_in_query = token_in_query
        self._node = node
        self._wall = wall
        self._expiries: Expiries[Connection] = Expiries()

    def admits(self, connection: Connection, request: Request, route: Route, record: Record, begin: Begin) -> bool:
        """Whether a request may begin now. If not, it was refused, or waits and will be begun by ``begin``."""
        if route.op is None or route.error:
            return True  # to be told what is wrong with it
        return self._check_token(Entry(connection, request, route, record, begin, self._check_token))

    def left(self, connection: Connection) -> None:
        """A connection is closed."""
        self._expiries.remove(connection)

    def tick(self) -> None:
        """End the exchanges whose token has expired."""
        for connection in self._expiries.due(self._wall()):
            if connection.exchange is not None:
                _expire(connection)

    def _check_token(self, entry: Entry) -> bool:
        if self._judge is None:
            return self._check_webhook(entry)
        token = self._token(entry.request)
        if token is None:
            return entry.refuse(refusals.MISSING)
        try:
            grant = self._judge.judge(token)
        except Rejected as error:
            return self._reject(entry, error.why, self._judge)
        entry.subject = grant.subject
        entry.record.client = grant.subject or entry.record.client
        if not grant.rights.allow(entry.op, entry.channel):
            return entry.refuse(refusals.NOT_ALLOWED)
        self._expiries.set(entry.connection, grant.expires_at)
        return self._check_webhook(entry)

    def _reject(self, entry: Entry, why: str, judge: Judge) -> bool:
        """Refuse a token, unless newer keys may show that it is a good one; always ``False``."""
        keys = judge.key_server if why in (UNKNOWN_KEY, NO_KEYS) and not entry.waits else None
        if keys is not None and keys.ask(lambda: self._go_on(entry, self._check_token)):
            entry.wait()
            return False
        if why == NO_KEYS:
            return entry.refuse(refusals.unavailable(Reason.token(why), entry.connection.plane.jitter))
        return entry.refuse(refusals.rejected(why))

    def _check_webhook(self, entry: Entry) -> bool:
        if self._webhook is None:
            return True
        # Only where nobody has checked it yet: the service may know what it is.
        token = None if self._judge is not None else self._token(entry.request)
        if token is not None and len(token) > MAX_TOKEN_BYTES:
            return entry.refuse(refusals.rejected("malformed"))
        question = self._question(entry, token)
        status = self._webhook.known(question)
        if status is not None:
            return self._obey(entry, status)
        if self._webhook.ask(question, lambda status: self._go_on(entry, lambda entry: self._obey(entry, status))):
            entry.wait()
            return False
        if self._fail_open:
            return True
        return entry.refuse(refusals.unavailable(Reason.limit("webhook"), entry.connection.plane.jitter))

    def _obey(self, entry: Entry, status: int) -> bool:
        if status == Status.OK or (status == Status.UNAVAILABLE and self._fail_open):
            return True
        if status == Status.UNAVAILABLE:
            return entry.refuse(refusals.unavailable(Reason.webhook("failed"), entry.connection.plane.jitter))
        return entry.refuse(refusals.refused_by_webhook(status))

    def _go_on(self, entry: Entry, check: Callable[[Entry], bool]) -> None:
        """What was waited for is there."""
        if not entry.over and check(entry):
            entry.begin()

    def _token(self, request: Request) -> bytes | None:
        token = from_headers(request.headers)
        return from_query(request.target) if token is None and self._token_in_query else token

    def _question(self, entry: Entry, token: bytes | None) -> bytes:
        """The text of the question. An answer holds for the same text, so that nothing is in it that need not be."""
        return orjson.dumps(
            {
                "v": 1,
                "node": self._node,
                "operation": OPERATIONS[entry.op],
                "channel": entry.channel,
                "subject": entry.subject,
                "token": None if token is None else token.decode("latin-1"),
                "ip": entry.request.ip,
            }
        )


def _expire(connection: Connection) -> None:
    """End the exchange on a connection whose token has expired.

    Whoever has not been sent anything is told. A reader in the middle of a segment is cut off without a final chunk, so
    that it cannot take the part for the whole; a segment that was being written closes as truncated.
    """
    exchange = connection.exchange
    assert exchange is not None, "there is something to be ended"
    if not exchange.answerable:
        connection.abort(Reason.EXPIRED)
        return
    written = exchange.writer if isinstance(exchange, Publish) and exchange.received else None
    exchange.send_away(refusals.EXPIRED)
    if written is not None:
        plane = connection.plane
        plane.registry.close_segment(written.channel.name, written.segment.seq, plane.clock(), truncate=True)
