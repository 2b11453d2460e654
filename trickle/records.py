"""AccessRecord v1: one line of the access log, defined once for the server that writes it and the jobs that read it.

A line is one JSON object. ``kind = "exchange"`` is one request with its response, written when it ended;
``kind = "event"`` is something that happened to the server or a channel, which storms are later joined to.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

VERSION: Final = 1


class Kind(StrEnum):
    """What a line is about."""

    EXCHANGE = "exchange"
    EVENT = "event"


class Op(StrEnum):
    """What a request asked for."""

    PUBLISH = "publish"
    READ = "read"
    NEXT = "next"
    STREAM = "stream"
    PLAYLIST = "playlist"
    HLS = "hls"
    CREATE = "create"
    DELETE = "delete"
    CLOSE_SEGMENT = "close_segment"
    CHANGES = "changes"
    API = "api"


class Reason(StrEnum):
    """How an exchange ended."""

    COMPLETE = "complete"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    SKIPPED = "skipped"
    TERMINATED = "terminated"
    AHEAD = "ahead"
    GONE = "gone"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    SUPERSEDED = "superseded"
    OCCUPIED = "occupied"
    TOO_LARGE = "too_large"
    BAD_REQUEST = "bad_request"
    FORBIDDEN = "forbidden"
    EXPIRED = "expired"
    TIMEOUT = "timeout"
    CLIENT_GONE = "client_gone"
    EVICTED = "evicted"
    HANDSHAKE = "handshake"
    GUARD = "guard"
    SHUTDOWN = "shutdown"
    STORAGE = "storage"
    REPLICA = "replica"
    ERROR = "error"

    @staticmethod
    def limit(name: str) -> str:
        """The reason of a refusal by the limit of that name: ``limit:<name>``."""
        return f"limit:{name}"

    @staticmethod
    def token(why: str) -> str:
        """The reason of a refusal of a token, or of none: ``token:<why>``."""
        return f"token:{why}"

    @staticmethod
    def webhook(what: str) -> str:
        """The reason of a refusal by the webhook, or for want of its answer: ``webhook:<what>``."""
        return f"webhook:{what}"


class Event(StrEnum):
    """What a line of kind ``event`` reports."""

    SERVER_START = "server_start"
    SERVER_READY = "server_ready"
    DRAIN = "drain"
    SERVER_STOP = "server_stop"
    CHANNEL_CREATE = "channel_create"
    CHANNEL_END = "channel_end"
    CONFIG = "config"
    LOG_DROPPED = "log_dropped"


@dataclass(slots=True)
class AccessRecord:
    """One line. Fields that do not apply are ``None`` and are left out of the JSON.

    Attributes:
        v: version of this schema.
        ts_us: arrival of the request (or time of the event), microseconds since the epoch.
        node: which server wrote it.
        kind: ``exchange`` or ``event``.
        event: for events: which; for exchanges ``None``.
        op: what was asked for.
        method, path, status: as on the wire; the path without its query.
        channel, epoch: the channel's name, and which life of that name.
        seq: the seq as **requested** (-1, -2, ...); rseq: as **resolved**; ``None`` if it was not.
        next_seq: the channel's head when the answer was given.
        reason: how the exchange ended: a :class:`Reason`, or ``limit:<name>``, ``token:<why>``, ``webhook:<what>``.
        bytes_in, bytes_out: body bytes of the request and of the response.
        wait_us: arrival to first response byte; dur_us: arrival to the end. Microseconds, without ``guard_ms``.
        eos: the answer carried ``Lp-Trickle-Closed``.
        client: stable key of the client; ip: its address; conn: number of its connection on this server.
        ua: its user agent, cut; release: the user agent's first ``product/version``.
        attempt: 1 for an original request, 2 for its first retry, ... as the client says.
        retry_after_ms: how long the client was told to wait; guard_ms: how long it was held back.
        trace: W3C trace id, if the client sent one.
        detail: more: about an event, why a client was cut off, which other client publishes, a stream's segments.
    """

    ts_us: int
    kind: str = Kind.EXCHANGE
    node: str | None = None
    event: str | None = None
    op: str | None = None
    method: str | None = None
    path: str | None = None
    status: int | None = None
    channel: str | None = None
    epoch: int | None = None
    seq: int | None = None
    rseq: int | None = None
    next_seq: int | None = None
    reason: str | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    wait_us: int | None = None
    dur_us: int | None = None
    eos: bool | None = None
    client: str | None = None
    ip: str | None = None
    conn: int | None = None
    ua: str | None = None
    release: str | None = None
    attempt: int | None = None
    retry_after_ms: int | None = None
    guard_ms: int | None = None
    trace: str | None = None
    detail: str | None = None
    v: int = VERSION

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of this record: every field that applies, in the order of the schema."""
        return {name: value for name in FIELD_NAMES if (value := getattr(self, name)) is not None}


SCHEMA: Final[tuple[tuple[str, str], ...]] = (
    ("v", "int"),
    ("ts_us", "long"),
    ("node", "string"),
    ("kind", "string"),
    ("event", "string"),
    ("op", "string"),
    ("method", "string"),
    ("path", "string"),
    ("status", "int"),
    ("channel", "string"),
    ("epoch", "int"),
    ("seq", "long"),
    ("rseq", "long"),
    ("next_seq", "long"),
    ("reason", "string"),
    ("bytes_in", "long"),
    ("bytes_out", "long"),
    ("wait_us", "long"),
    ("dur_us", "long"),
    ("eos", "boolean"),
    ("client", "string"),
    ("ip", "string"),
    ("conn", "long"),
    ("ua", "string"),
    ("release", "string"),
    ("attempt", "int"),
    ("retry_after_ms", "long"),
    ("guard_ms", "long"),
    ("trace", "string"),
    ("detail", "string"),
)
"""Field names and types, in the order of the JSON; the types are Spark SQL's short names."""

FIELD_NAMES: Final = tuple(name for name, _ in SCHEMA)

assert set(FIELD_NAMES) == {field.name for field in fields(AccessRecord)}
