"""What somebody who may not is answered: one line that helps the rightful and tells nobody else anything."""

from __future__ import annotations

from typing import Final

from tricklecast.app.data_plane.answers import OVERLOAD_RETRY_S, Jitter
from tricklecast.app.data_plane.replies import Reply
from tricklecast.trickle import wire
from tricklecast.trickle.records import Reason
from tricklecast.trickle.wire import Status

CHALLENGE: Final = 'Bearer realm="tricklecast"'
_INVALID: Final = f'{CHALLENGE}, error="invalid_token"'
_INSUFFICIENT: Final = f'{CHALLENGE}, error="insufficient_scope"'


def _refusal(status: Status, reason: str, challenge: str, text: str) -> Reply:
    # Whoever is refused may be about to send a body: it is not read.
    headers = ((wire.WWW_AUTHENTICATE, challenge),) if challenge else ()
    return Reply(status, reason, headers, text.encode(), close=True)


MISSING: Final = _refusal(Status.UNAUTHORIZED, Reason.token("missing"), CHALLENGE, "Token required")
EXPIRED: Final = _refusal(Status.UNAUTHORIZED, Reason.EXPIRED, _INVALID, "Token expired")
NOT_ALLOWED: Final = _refusal(Status.FORBIDDEN, Reason.FORBIDDEN, _INSUFFICIENT, "Not allowed")


def rejected(why: str) -> Reply:
    """For a token that is not believed. All reasons but one look the same from outside."""
    if why == "expired":
        return EXPIRED
    return _refusal(Status.UNAUTHORIZED, Reason.token(why), _INVALID, "Token invalid")


def refused_by_webhook(status: int) -> Reply:
    """For what the webhook refused, with the status that it chose."""
    reason = Reason.webhook("refused")
    match status:
        case Status.UNAUTHORIZED:
            return _refusal(Status.UNAUTHORIZED, reason, CHALLENGE, "Not allowed")
        case Status.NOT_FOUND:
            return _refusal(Status.NOT_FOUND, reason, "", "Stream not found")
        case _:
            return _refusal(Status.FORBIDDEN, reason, "", "Not allowed")


def unavailable(reason: str, jitter: Jitter) -> Reply:
    """For a request that cannot be judged at present."""
    return Reply(
        Status.UNAVAILABLE,
        reason,
        body=b"Access cannot be checked",
        close=True,
        retry_after_s=jitter(*OVERLOAD_RETRY_S),
    )
