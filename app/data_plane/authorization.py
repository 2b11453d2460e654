"""What the data plane asks before a request may go on, where access is controlled: the values, and the interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tricklecast.app.data_plane.request import Request
from tricklecast.app.data_plane.responses import Reply


class Granted(NamedTuple):
    """The request may go on.

    Attributes:
        subject: whom the token was given to, if it says so.
        expires_at: when the token expires, in seconds since the epoch; infinite if never.
    """

    subject: str | None
    expires_at: float


class Refused(NamedTuple):
    """The request may not go on; this is the response."""

    reply: Reply


class Pending(Protocol):
    """The decision takes a service's answer."""

    def then(self, callback: Callable[[Granted | Refused], None]) -> None:
        """Have the decision told, once, from the event loop."""

    def cancel(self) -> None:
        """Nobody waits for it any more: the callback is not called."""


class Authorizer(Protocol):
    """Decides which request may do what."""

    def authorize(self, request: Request) -> Granted | Refused | Pending:
        """Decide about a request on a segment route, now or later."""
