"""AccessRecord v1: one line of the access log. The server writes it, and the storm report reads it.

A line is one JSON object. ``kind = "exchange"`` is a request with its response, written when the exchange has ended.
``kind = "event"`` is something that happened to the server or to a channel: the storm report looks there for the cause
of a storm. Fields may be added; a changed meaning needs another :data:`VERSION`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

VERSION: Final = 1


class Kind(StrEnum):
    """The subject of a line."""

    EXCHANGE = "exchange"
    EVENT = "event"


class Op(StrEnum):
    """The operation that a request asks for."""

    PUBLISH = "publish"
    READ = "read"
    NEXT = "next"
    STREAM = "stream"
    PLAYLIST = "playlist"
    HLS = "hls"
    CLIP = "clip"
    FEED = "feed"
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
    MIRROR = "mirror"
    UNREACHABLE = "unreachable"
    LOOP = "loop"
    ERROR = "error"

    @staticmethod
    def limit(name: str) -> str:
        """Return the reason of a refusal by a limit: ``limit:<name>``."""
        return f"limit:{name}"

    @staticmethod
    def token(why: str) -> str:
        """Return the reason of a refusal for a bad or missing token: ``token:<why>``."""
        return f"token:{why}"

    @staticmethod
    def webhook(why: str) -> str:
        """Return the reason of a refusal by the webhook, or because it did not answer: ``webhook:<why>``."""
        return f"webhook:{why}"


class Event(StrEnum):
    """The events that lines of kind ``event`` report."""

    SERVER_START = "server_start"
    SERVER_READY = "server_ready"
    WORKER_RESTART = "worker_restart"
    DRAIN = "drain"
    SERVER_STOP = "server_stop"
    CHANNEL_CREATE = "channel_create"
    CHANNEL_END = "channel_end"
    CONFIG = "config"
    LOG_DROPPED = "log_dropped"


class Figures:
    """The fields of a line that metrics count, for a server without an access log.

    They take half of a line's memory, and less than half of its time.
    """

    __slots__ = (
        "bytes_in", "bytes_out", "client", "detail", "dur_us", "eos", "epoch", "guard_ms", "next_seq", "op", "reason",
        "retry_after_ms", "rseq", "status", "wait_us",
    )  # fmt: skip

    op: str | None
    status: int | None
    epoch: int | None
    rseq: int | None
    next_seq: int | None
    reason: str | None
    bytes_in: int | None
    bytes_out: int | None
    wait_us: int | None
    dur_us: int | None
    eos: bool | None
    client: str | None
    retry_after_ms: int | None
    guard_ms: int | None
    detail: str | None

    def __init__(self) -> None:
        self.op = self.reason = self.client = self.detail = None
        self.status = self.epoch = self.rseq = self.next_seq = None
        self.bytes_in = self.bytes_out = self.wait_us = self.dur_us = None
        self.eos = self.retry_after_ms = self.guard_ms = None


class AccessRecord(Figures):
    """One line. A field that does not apply is ``None``, and is left out of the JSON.

    (No dataclass, which sets each of the thirty fields when it is made: that is a third of a line's cost.)

    Attributes:
        v: the version of this schema.
        ts_us: the time at which the request arrived (or the event happened), in microseconds since 1970-01-01 UTC.
        node: the server that wrote the line; worker: which one of its workers, from 0, if it has several.
        answered_by: the node of the cluster that was asked in this one's place, and answered.
        via: the node of the cluster that passed the request on; its own line has the same request.
        kind: ``exchange`` or ``event``.
        event: the :class:`Event`; ``None`` for an exchange.
        op: the :class:`Op`.
        method, path, status: as on the wire; the path without its query.
        channel, epoch: the channel's name, and its epoch.
        seq: the seq as **requested** (-1, -2, ...); rseq: as **resolved**; ``None`` if it was not.
        next_seq: the channel's head at the time of the response.
        reason: how the exchange ended: a :class:`Reason`, or ``limit:<name>``, ``token:<why>``, ``webhook:<why>``.
        bytes_in, bytes_out: body bytes of the request and of the response.
        wait_us: time from the arrival to the first byte of the response, in microseconds, without ``guard_ms``.
        dur_us: time from the arrival to the end of the exchange, likewise.
        eos: the response had ``Lp-Trickle-Closed``.
        client: a key that stays the same for a client; ip: its address; conn: number of its connection on this server.
        ua: the user agent, cut; release: the user agent's first ``product/version``.
        attempt: as the client says: 1 for an original request, 2 for its first retry, and so on.
        retry_after_ms: ``Retry-After`` of the response; guard_ms: the delay by the storm guard. In milliseconds.
        trace: the W3C trace id, if the client sent one.
        detail: more about an event, why a client was cut off, the other client that publishes, a stream's segments.
    """

    ts_us: int
    kind: str = Kind.EXCHANGE
    node: str | None = None
    worker: int | None = None
    answered_by: str | None = None
    via: str | None = None
    event: str | None = None
    method: str | None = None
    path: str | None = None
    channel: str | None = None
    seq: int | None = None
    ip: str | None = None
    conn: int | None = None
    ua: str | None = None
    release: str | None = None
    attempt: int | None = None
    trace: str | None = None
    v: int = VERSION

    def __init__(self, ts_us: int, **fields: Any) -> None:
        super().__init__()
        self.ts_us = ts_us
        for name, value in fields.items():
            if name not in FIELD_NAMES:
                raise TypeError(f"a line has no field {name!r}")
            setattr(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of this line: each field that applies, in the order of the schema."""
        return {name: value for name in FIELD_NAMES if (value := getattr(self, name)) is not None}


SCHEMA: Final[tuple[tuple[str, str], ...]] = (
    ("v", "int"),
    ("ts_us", "long"),
    ("node", "string"),
    ("worker", "int"),
    ("answered_by", "string"),
    ("via", "string"),
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
"""Names and types of the fields, in the order of the JSON. The types are Spark SQL's short names."""

FIELD_NAMES: Final = tuple(name for name, _ in SCHEMA)
