"""Authorization as the data plane sees it: it asks an `Authorizer` before it serves a request, and gets a value.

The data plane knows nothing of tokens and webhooks. It owns the exchange: while a decision is pending it keeps the
request, and when a permission expires it ends what still runs under it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import Reply


class Granted(NamedTuple):
    """The client may make the request.

    Attributes:
        subject: the client's name, as its token says; ``None`` if no token names it.
        expires_at: the time at which the permission ends, seconds since 1970; ``math.inf``: it does not end.
        basis: the authorizer's own value, for :meth:`Authorizer.holds`.
    """

    subject: str | None
    expires_at: float
    basis: Any = None


class Refused(NamedTuple):
    """The client may not make the request.

    Attributes:
        reply: the response.
        subject: the client's name, if its token was valid and did not suffice.
    """

    reply: Reply
    subject: str | None = None


class Pending:
    """A decision that takes time: the server asks a key server or a webhook.

    The data plane calls :meth:`then` in the same step in which it gets this object. The decision comes later, from the
    event loop, unless the data plane cancels it because the client or the server has gone.
    """

    __slots__ = ("_callback", "cancelled")

    def __init__(self) -> None:
        self._callback: Callable[[Granted | Refused], None] | None = None
        self.cancelled = False

    def then(self, callback: Callable[[Granted | Refused], None]) -> None:
        """Call back once, with the decision."""
        self._callback = callback

    def cancel(self) -> None:
        """Never call back."""
        self._callback = None
        self.cancelled = True

    def decide(self, decision: Granted | Refused) -> None:
        """Tell the data plane; the authorizer calls this, from a callback of the event loop."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(decision)


class Authorizer(Protocol):
    """Decides whether a client may make a request."""

    def authorize(self, request: Request) -> Granted | Refused | Pending:
        """Decide about a request for a known route (``request.route.op`` is set, ``request.route.error`` is not).

        It reads ``route.op``, ``route.channel``, ``headers``, ``target``, ``ip`` and ``certified`` of the request, and
        keeps no reference to it.
        """

    @property
    def generation(self) -> int:
        """A number that changes whenever permissions may have been withdrawn."""

    def holds(self, granted: Granted) -> bool:
        """Whether a permission has not been withdrawn since it was given."""
