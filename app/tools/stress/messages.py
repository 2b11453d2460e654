"""The messages between ``tricklecast stress`` and its worker processes.

Orders go to a worker's standard input, reports come from its standard output. Each message is one JSON object in one
line.

==============  ============================================================================================
to a worker     ``{"orders": …}`` first; ``{"go": ns}``, the time at which the first segment is due; the end of
                the input ends the run, so that no worker outlives the command
from a worker   ``{"ready": true}``; ``{"rows": [[kind, …], …]}`` with many records at a time;
                ``{"finished": true}`` when all is published; ``{"health": {…}}`` as the last line
==============  ============================================================================================

Times are nanoseconds on one clock that all processes of the machine share (:func:`clock`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tricklecast.app.tools.stress.load import Load

LINE_BYTES: Final = 64 << 20
"""Limit of a line. The orders of half a million subscribers fit in."""


def clock() -> Callable[[], int]:
    """The clock of a run, in nanoseconds.

    It is the monotonic clock on Linux and macOS, where it counts from the machine's start in all processes. Python does
    not promise that for other systems. They use the wall clock, which must not be set during a run.
    """
    return time.monotonic_ns if sys.platform in ("linux", "darwin") else time.time_ns


@dataclass(frozen=True, slots=True)
class Client:
    """One publisher or subscriber of a worker.

    Attributes:
        channel: the channel's number.
        url: the channel's URL.
        number: of the subscriber among those of the channel; 0 for its publisher.
    """

    channel: int
    url: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Orders:
    """The task of a worker.

    Attributes:
        clients: the publishers or subscribers that it runs.
        load: the published segments.
        start: where subscribers begin, as :class:`tricklecast.subscriber.Subscriber` takes it.
        ca_file: certificates to trust with https; empty for the system's.
    """

    clients: tuple[Client, ...]
    load: Load
    start: str = "0"
    ca_file: str = ""

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Orders:
        """Orders from the fields that ``asdict`` made of them."""
        clients = tuple(Client(**client) for client in fields["clients"])
        return cls(clients, Load(**fields["load"]), fields["start"], fields["ca_file"])


# Named tuples, not dataclasses: a run may make millions of them, and a tuple is a row of JSON already.


class Sent(NamedTuple):
    """A publisher is done with one segment.

    Attributes:
        channel, ordinal: of the segment.
        seq: its seq; -1 if it never got one.
        size, digest: number of written bytes, and their SHA-256.
        first_due_ns, last_due_ns: times at which its first and its last chunk were due. Latency counts from there, and
            not from the time of writing, so that a server that slows its publishers down does not look quick.
        behind_ns: the largest delay of a chunk behind the schedule.
        error: why the server does not store it; empty if it does.
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
        channel, number: of the subscriber.
        seq: the seq under which the server delivered it.
        ordinal: the number in its marker; -1 without a marker, or with another channel's.
        size, digest: number of read bytes, and their SHA-256.
        first_ns, last_ns: times at which its first chunk and its end came.
        gap: number of segments before it that the library reported as missed.
        flaw: the library's judgement of it: ``truncated``, ``broken`` or empty.
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
        channel, number: of the client.
        missed: number of segments after the last received one that the library reported as missed.
        error: why it ended early; empty if it ended with the run.
        counts: the numbers among the library's statistics.
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
    """The record of a row."""
    return _KINDS[row[0]](*row[1:])


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a worker could keep up.

    Attributes:
        cpu: the share of one core that it used while the schedule ran, 0 to 1.
        lag_ms: delay of its event loop, in milliseconds (99th percentile).
        late_ms: delay with which it woke to write a chunk, in milliseconds (99th percentile); 0 for subscribers.
        samples: number of measurements of the lag.
    """

    cpu: float
    lag_ms: float
    late_ms: float
    samples: int


def to_line(**message: Any) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """The message of a line."""
    message: dict[str, Any] = json.loads(line)
    return message
