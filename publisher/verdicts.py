"""What a publisher asks, what it is answered, and what follows: the words of :mod:`tricklecast.publisher.core`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from tricklecast.trickle import wire
from tricklecast.trickle.errors import ConnectionLost, RemoteProtocolError, TrickleError, error_for, header_int

NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
"""A seq as people and servers write it."""


class Closed(Enum):
    """How a published segment closed."""

    COMPLETE = "complete"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one published segment.

    Attributes:
        seq: its number in the channel.
        sent: bytes that were written.
        stored: bytes that the server says it has, including those of an earlier publisher of the same segment;
            ``None`` if it did not say.
        closed: how it closed.
        first_byte_s: seconds from entering the segment until its first chunk was handed to the connection (the one
            that brought the answer); ``None`` for an empty segment, and not compared.
        answered_s: seconds from entering the segment to the answer; not compared.
        attempts: requests that it took; 1 if nothing went wrong.
    """

    seq: int
    sent: int
    stored: int | None
    closed: Closed
    first_byte_s: float | None = field(default=None, compare=False)
    answered_s: float | None = field(default=None, compare=False)
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission to make one request for one segment.

    Attributes:
        seq: which one.
        key: its ``Idempotency-Key``, the same for all of its attempts.
        attempt: 1 for the first request, 2 for its first retry, ...
        reset: the request says ``Lp-Trickle-Reset``: everything before it is over.
        exposed: the server may have bytes of it, or its end, from an earlier attempt.
        final: it keeps its seq: a server that is gone had bytes of it, or its end, and readers may have it from there.
        life: which life of the server it was made for, as far as lives could be told apart.
        confirmed: the newest seq that the server had confirmed by then; -1 if there was none.
        numbering: what the request says of the numbering that it goes on with (``Lp-Trickle-Life``).
    """

    seq: int
    key: str = ""
    attempt: int = 1
    reset: bool = False
    exposed: bool = False
    final: bool = False
    life: int = 0
    confirmed: int = -1
    numbering: str = ""

    def again(self, seq: int | None = None, *, exposed: bool = False) -> Ticket:
        """The ticket of the next attempt; at another seq, if one is given, of which the server has nothing."""
        if seq is not None:
            return replace(self, seq=seq, attempt=self.attempt + 1, exposed=False)
        return replace(self, attempt=self.attempt + 1, exposed=self.exposed or exposed)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a segment had come when the outcome of a request was known.

    Attributes:
        sent: bytes of the body that were taken for sending in this request.
        ended: so was the end of the body.
        lived_s: seconds since the request was made.
        handed: bytes of the body that the writer has handed over so far.
        over: the writer has ended the body.
        held: all of those bytes are still held, so that the body can be sent from its start.
    """

    sent: int = 0
    ended: bool = False
    lived_s: float = 0.0
    handed: int = 0
    over: bool = False
    held: bool = True

    @property
    def begun(self) -> bool:
        """Whether there is something to be published; otherwise it is a preconnect."""
        return self.handed > 0 or self.over

    @property
    def exposed(self) -> bool:
        """Whether this request may have brought something to the server."""
        return self.sent > 0 or self.ended


@dataclass(frozen=True, slots=True)
class Answered:
    """The server answered.

    Attributes:
        status: the HTTP status.
        headers: found in any case.
        detail: first line of the body.
    """

    status: int
    headers: Mapping[str, str]
    detail: str = ""

    @property
    def head(self) -> int | None:
        """The position that an answer of ``GET /{channel}/next`` gives; ``None`` if it gives none."""
        # An ended channel stays readable for a while. What is published now begins the next life of its name.
        if self.status == wire.Status.NOT_FOUND or (self.status == wire.Status.OK and self.headers.get(wire.CLOSED)):
            return 0
        if self.status != wire.Status.OK:
            return None
        head = header_int(self.headers, wire.LATEST)
        if head is None and NUMBER.fullmatch(self.detail):
            head = int(self.detail)
        return head if head is not None and head >= 0 else None

    @property
    def life(self) -> wire.Life | None:
        """The numbering that the channel has, as the server says."""
        return wire.parse_life(self.headers.get(wire.LIFE, ""))


@dataclass(frozen=True, slots=True)
class Lost:
    """There was no answer.

    Attributes:
        error: why.
        connected: a connection had been made.
        waited_s: seconds for which nothing came on it that was due, so that it was given up.
    """

    error: ConnectionLost | RemoteProtocolError
    connected: bool = True
    waited_s: float = 0.0


Outcome = Answered | Lost


def error_of(outcome: Outcome, seq: int | None) -> TrickleError | None:
    """The error that an outcome stands for; ``None`` for a 200 that is not the end of the channel."""
    if isinstance(outcome, Lost):
        return outcome.error
    if outcome.status == wire.Status.OK and not outcome.headers.get(wire.CLOSED):
        return None
    return error_for(outcome.status, outcome.headers, seq=seq, detail=outcome.detail)


@dataclass(frozen=True, slots=True)
class Advance:
    """Go on. Of a segment: it is done with, either published (``receipt``) or lost (``error``, for its writer).

    Attributes:
        drop: the server may hold a part of it: tell it that no more will come, so that its readers learn it too.
    """

    receipt: Receipt | None = None
    error: TrickleError | None = None
    drop: bool = False


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Wait for ``delay_s`` seconds, then send the same request again.

    Attributes:
        exposed: the server may have a part of what was sent.
        holds: it is the server's wish: nothing else is begun on the channel before that, either.
    """

    delay_s: float
    exposed: bool = False
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Resync:
    """Wait for ``delay_s`` seconds, then send the segment as ``seq``. Preconnects are void: they get new numbers."""

    delay_s: float
    seq: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more can be published."""

    error: TrickleError


Verdict = Advance | RetryAfter | Resync | Stop
