"""What the data plane asks before it begins an exchange, where access is controlled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tricklecast.app.data_plane.tally import Record

if TYPE_CHECKING:
    from tricklecast.app.data_plane.connection import Connection
    from tricklecast.app.data_plane.exchange import Exchange
    from tricklecast.app.data_plane.request import Request
    from tricklecast.app.data_plane.routes import Route

    Begin = Callable[[Connection, Request, Route, Record, Exchange], None]
    """Begins what had to wait; the last argument is the exchange that stood for it."""


class Gate(Protocol):
    """Decides who may begin what."""

    def admits(self, connection: Connection, request: Request, route: Route, record: Record, begin: Begin) -> bool:
        """Whether a request may begin now. If not, it was refused, or waits and will be begun by ``begin``."""

    def left(self, connection: Connection) -> None:
        """A connection is closed."""

    def tick(self) -> None:
        """End what may not go on. Called a few times a second."""
