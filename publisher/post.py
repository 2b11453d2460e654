"""One request of a publisher, and how requests are made."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from tricklecast.publisher.body import Body
from tricklecast.publisher.flights import Flight, WhenFull
from tricklecast.publisher.verdicts import Ticket


@dataclass(frozen=True, slots=True)
class Options:
    """How requests are made; the defaults of :class:`~tricklecast.publisher.client.Publisher` are explained there."""

    preconnect: int
    max_in_flight: int
    when_full: WhenFull
    retain_bytes: int


class Post:
    """The requests for one seq, one after the other, the first of which most often begins as a preconnect.

    Attributes:
        ticket: which segment, and the how-many-th attempt.
        body: its bytes.
        scope: cancelling it cuts the request off.
        flight: the segment that it carries; ``None`` while it is a preconnect.
        touched: something of it has been handed to a connection.
        resting: it has to be made again, and nothing of that has been handed to a connection yet.
    """

    def __init__(self, ticket: Ticket, body: Body) -> None:
        self.ticket = ticket
        self.body = body
        self.scope = anyio.CancelScope()
        self.flight: Flight | None = None
        self.touched = False
        self.resting = False
