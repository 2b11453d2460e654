"""The contract of ``tricklecast stress``: what its worker processes are told, what they publish, and what they report.

The command (``app/stress``) starts processes that publish and processes that subscribe, and compares what both sides
saw. They meet here only, as everybody does.

**Lines.** Orders go to a worker's standard input, reports come from its standard output; each is one JSON object per
line.

==============  ============================================================================================
to a worker     ``{"orders": …}`` first; ``{"go": ns}``, when the first segment is due; the end of the input
                ends the run, so that no worker outlives the command
from a worker   ``{"ready": true}``; ``{"rows": [[kind, …], …]}`` with many records at a time;
                ``{"finished": true}`` when all is published; ``{"health": {…}}`` as the last line
==============  ============================================================================================

**Times** are nanoseconds on one clock that all processes of the machine share. What is published:
:mod:`tricklecast.trickle.load`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Protocol

from tricklecast.trickle.load import Load


@dataclass(frozen=True, slots=True)
class Seat:
    """One publisher or subscriber of a worker.

    Attributes:
        channel: the channel's number.
        url: its URL.
        number: which subscriber of the channel; 0 for its publisher.
    """

    channel: int
    url: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is to do.

    Attributes:
        seats: whom it plays.
        load: what is published.
        start: where subscribers begin, as :class:`tricklecast.subscriber.Subscriber` takes it.
        ca_file: certificates to trust with https; empty for the usual ones.
    """

    seats: tuple[Seat, ...]
    load: Load
    start: str = "0"
    ca_file: str = ""

    def dump(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Orders:
        """Read what :meth:`dump` wrote."""
        seats = tuple(Seat(**seat) for seat in fields["seats"])
        return cls(seats, Load(**fields["load"]), fields["start"], fields["ca_file"])


# Named tuples, not dataclasses: there may be millions of these, and as tuples they are rows of JSON already.


class Sent(NamedTuple):
    """A publisher is done with one segment.

    Attributes:
        channel, ordinal: which one.
        seq: the seq it was published as; -1 if it never got one.
        size, digest: what was written: bytes, and their SHA-256.
        first_due_ns, last_due_ns: when its first and its last chunk were due. Latency counts from there and not from
            when they were written, so that a server that slows its publishers down does not look quick.
        behind_ns: how far behind the schedule it was written, at worst.
        error: why it is not stored; empty if it is.
    """

    channel: int
    ordinal: int
    seq: int
    size: int
    digest: str
    first_due_ns: int
    last_due_ns: int
    behind_ns: int
    error: str = ""


class Received(NamedTuple):
    """A subscriber is done with one segment.

    Attributes:
        channel, number: whose.
        seq: the seq it came as.
        ordinal: the one in its marker; -1 if there is none, or if it is another channel's.
        size, digest: what was read: bytes, and their SHA-256.
        first_ns, last_ns: when its first chunk and its end were there.
        gap: how many segments before it the library said were missed.
        flaw: what the library said is wrong with it: that it is ``truncated`` or ``broken``; empty if nothing.
    """

    channel: int
    number: int
    seq: int
    ordinal: int
    size: int
    digest: str
    first_ns: int
    last_ns: int
    gap: int = 0
    flaw: str = ""


class Left(NamedTuple):
    """A publisher or a subscriber has ended.

    Attributes:
        role: ``publisher`` or ``subscriber``.
        channel, number: which one.
        missed: how many segments the library said were missed before the end, after the last one that came.
        error: what ended it; empty if that was the end of the run.
        counts: the library's statistics, as far as they are numbers.
    """

    role: str
    channel: int
    number: int
    missed: int
    error: str
    counts: dict[str, int]


Record = Sent | Received | Left

_KINDS: Final[dict[str, type[Sent] | type[Received] | type[Left]]] = {"sent": Sent, "received": Received, "left": Left}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def to_row(record: Record) -> list[Any]:
    """A record as a row of JSON."""
    return [_NAMES[type(record)], *record]


def from_row(row: list[Any]) -> Record:
    """Read what :func:`to_row` wrote.

    Raises:
        KeyError, TypeError: it is no such row.
    """
    return _KINDS[row[0]](*row[1:])


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a worker could keep up; times in milliseconds.

    Attributes:
        cpu: the share of one core that it used, 0 to 1, from the start to the end of the schedule.
        lag_ms: how late its event loop ran what was due (99th percentile).
        late_ms: how late it woke to write a chunk whose time had come (99th percentile); 0 for subscribers.
        samples: how often the lag was measured.
    """

    cpu: float
    lag_ms: float
    late_ms: float
    samples: int


class Desk(Protocol):
    """A worker's side of the conversation, as those who publish and subscribe see it."""

    def now(self) -> int:
        """Nanoseconds on the clock that all workers share."""
        ...

    async def ready(self) -> int:
        """Say that all is set up, and wait for the start; returns when the first segment is due (see :meth:`now`)."""
        ...

    async def record(self, record: Record) -> None:
        """Report; waits while too much is waiting to be written."""
        ...

    def woke(self, late_ns: int) -> None:
        """Note how late a chunk was written although nothing but this process held it back."""
        ...

    def finished(self) -> None:
        """Say that everything is published."""
        ...

    async def closed(self) -> None:
        """Wait until the run is to end."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the run is to end."""
        ...


def to_line(**message: Any) -> bytes:
    """One line of the conversation."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """Read what :func:`to_line` wrote.

    Raises:
        ValueError: it is no JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a line of the conversation is a JSON object")
    return message
