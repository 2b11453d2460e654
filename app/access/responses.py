"""The replies to clients that are refused, one line each.

No reply shows whether a channel exists, and none shows the holder of a forged token what is wrong with it: that is in
the access log.
"""

from __future__ import annotations

import random
from typing import Final

from tricklecast.app.access.rights import RIGHTS_OF_OP, Right
from tricklecast.app.data_plane.responses import EXPIRED, OVERLOAD_RETRY_S, REVOKED, Reply
from tricklecast.trickle import wire
from tricklecast.trickle.records import Op, Reason
from tricklecast.trickle.wire import Status

_CHALLENGE: Final = 'Bearer realm="tricklecast"'


def _refusal(status: Status, reason: str, challenge: str, text: bytes) -> Reply:
    # The connection closes, so that the server need not read a body that the client may have begun to send.
    headers = ((wire.WWW_AUTHENTICATE, challenge),) if challenge else ()
    return Reply(status, reason, headers, text, close=True)


MISSING: Final = _refusal(Status.UNAUTHORIZED, Reason.token("missing"), _CHALLENGE, b"Token required")
NOT_ALLOWED: Final = _refusal(
    Status.FORBIDDEN, Reason.FORBIDDEN, f'{_CHALLENGE}, error="insufficient_scope"', b"Not allowed"
)

_VERBS: Final = {Right.PUBLISH: "publish to", Right.SUBSCRIBE: "subscribe to", Right.MANAGE: "manage"}


def not_allowed(op: Op, channel: str) -> Reply:
    """The reply to a valid token whose rights do not suffice. It names the right; the channel need not exist."""
    verbs = " or ".join(_VERBS[right] for right in RIGHTS_OF_OP[op])
    return NOT_ALLOWED._replace(body=f"The token gives no right to {verbs} {channel}".encode())


def not_managing(name: str | None) -> Reply:
    """The reply of the control plane to a valid token without the right ``manage``.

    Args:
        name: the pattern that the token would have to have; ``None``: any would do.
    """
    missing = "any channel (manage)" if name is None else f"the whole server (manage: {name})"
    return NOT_ALLOWED._replace(body=f"The token gives no right to manage {missing}".encode())


REFUSED_BY_WEBHOOK: Final = {
    401: _refusal(Status.UNAUTHORIZED, Reason.webhook("refused"), _CHALLENGE, b"Not allowed"),
    403: _refusal(Status.FORBIDDEN, Reason.webhook("refused"), "", b"Not allowed"),
    404: _refusal(Status.NOT_FOUND, Reason.webhook("refused"), "", b"Stream not found"),
}
"""The replies to requests that the webhook refused, by the status that it chose."""


def invalid_token(why: str) -> Reply:
    """The reply to a token that is not valid: the same one for every reason that a forger could learn from.

    Args:
        why: the word of :class:`app.access.rights.InvalidToken`.
    """
    match why:
        case "expired":  # only the holder of a genuine token gets here, and below
            return EXPIRED
        case "revoked":
            return REVOKED
        case "no_keys":  # the token may be valid
            return unavailable(Reason.token(why))
    return EXPIRED._replace(reason=Reason.token(why), body=b"Token invalid")


def unavailable(reason: str) -> Reply:
    """The reply while the key server or the webhook is out of reach."""
    return Reply(
        Status.UNAVAILABLE,
        reason,
        body=b"Access cannot be checked",
        close=True,
        retry_after_s=random.randint(*OVERLOAD_RETRY_S),
    )
