"""What happens during a subscription, as data: one JSON object per line (docs/reference/subscribe-events.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import ClassVar, Final, TypeAlias

from tricklecast import subscriber
from tricklecast.trickle import errors

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Started:
    """The subscription begins.

    Attributes:
        url: the channel. output: where the bytes go. start: where it begins: a position, or what the user said.
    """

    event: ClassVar[str] = "start"
    url: str
    output: str | None
    start: str


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """A segment has been read, or as much of it as there was.

    Attributes:
        seq, epoch, life, content_type, lag: what the server says of it.
        bytes: how much of it was read.
        gap: segments missed before it. restarted: the numbering began anew with it.
        truncated, broken: why it is not whole.
        wait_ms: from the request to the answer's head. first_byte_ms: from the request to its first byte.
        read_ms: from the head to the last byte.
        file: the file that it is in, in a folder.
    """

    event: ClassVar[str] = "segment"
    seq: int
    epoch: int | None
    life: str | None
    bytes: int
    gap: int
    restarted: bool
    truncated: str | None
    broken: str | None
    content_type: str
    lag: int
    wait_ms: float
    first_byte_ms: float | None
    read_ms: float
    file: str | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Segments were missed.

    Attributes:
        missed: how many. before: the segment that followed; ``None``: the end of the channel.
    """

    event: ClassVar[str] = "gap"
    missed: int
    before: int | None


@dataclass(frozen=True, slots=True)
class Retry:
    """Requests were made again after failures.

    Attributes:
        retries: how many since the last such event. error: what the newest was about.
    """

    event: ClassVar[str] = "retry"
    retries: int
    error: str


@dataclass(frozen=True, slots=True)
class Reconnecting:
    """The subscription failed and is begun again.

    Attributes:
        error, message: the error's :func:`name_of`, and what it says.
        start: where it goes on. delay_s: after so many seconds.
    """

    event: ClassVar[str] = "reconnect"
    error: str
    message: str
    start: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Note:
    """Something about the output that people should know."""

    event: ClassVar[str] = "note"
    message: str


@dataclass(frozen=True, slots=True)
class Totals:
    """All of a run.

    Attributes:
        seconds: how long it took.
        segments, bytes, gaps, missed, truncated, broken, resumed, retries, requests: as in
            :class:`tricklecast.subscriber.Statistics`, over all subscriptions of the run.
    """

    seconds: float = 0.0
    segments: int = 0
    bytes: int = 0
    gaps: int = 0
    missed: int = 0
    truncated: int = 0
    broken: int = 0
    resumed: int = 0
    retries: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over, as wished.

    Attributes:
        reason: ``channel`` (it ended), ``time`` (``--for``), ``signal`` (Ctrl-C, SIGTERM) or ``reader`` (whoever read
            the output has gone).
        resume: where another run would go on, if that is known. totals: all of it.
    """

    event: ClassVar[str] = "end"
    reason: str
    resume: str | None
    totals: Totals


@dataclass(frozen=True, slots=True)
class Failed:
    """The run is over because of an error.

    Attributes:
        error, message: the error's :func:`name_of`, and what it says.
        resume: where another run would go on, if that is known. totals: all of it.
    """

    event: ClassVar[str] = "error"
    error: str
    message: str
    resume: str | None
    totals: Totals


Event: TypeAlias = Started | SegmentRead | Gap | Retry | Reconnecting | Note | Ended | Failed


def name_of(error: errors.TrickleError) -> str:
    """What scripts know an error by: its type, or the nearest one that ``subscriber`` or ``trickle.errors`` has."""
    return next(kind.__name__ for kind in type(error).__mro__ if _is_public(kind))


def _is_public(kind: type) -> bool:
    return any(getattr(module, kind.__name__, None) is kind for module in (errors, subscriber))


def as_line(event: Event, time: float) -> bytes:
    """The event's line.

    Args:
        event: what happened.
        time: when, in seconds of Unix time.
    """
    said = {"v": VERSION, "event": event.event, "time": round(time, 3), **_fields(event)}
    return json.dumps(said, ensure_ascii=False).encode() + b"\n"


def _fields(event: Event | Totals) -> dict[str, object]:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return {
        name: _fields(value) if isinstance(value, Totals) else round(value, 3) if isinstance(value, float) else value
        for name, value in values.items()
    }
