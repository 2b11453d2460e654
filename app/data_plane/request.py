"""A request: its parsed head, and its access record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from tricklecast.app.data_plane.client_address import CLIENT, MAX_TEXT, USER_AGENT, client_key, user_agent
from tricklecast.app.data_plane.cors import ALLOWED
from tricklecast.app.data_plane.routing import Route
from tricklecast.trickle import wire
from tricklecast.trickle.records import AccessRecord, Figures

CONTENT_TYPE: Final = b"content-type"
CONTENT_ENCODING: Final = b"content-encoding"
RANGE: Final = b"range"
IF_RANGE: Final = b"if-range"
IF_NONE_MATCH: Final = b"if-none-match"
ACCEPT_ENCODING: Final = b"accept-encoding"
EXPECT_CONTENT: Final = wire.EXPECT_CONTENT.lower().encode()
TRUNCATED: Final = wire.TRUNCATED.lower().encode()
RESET: Final = wire.RESET.lower().encode()
EPOCH: Final = wire.EPOCH.lower().encode()
IF_IDLE: Final = wire.IF_IDLE.lower().encode()
LEAVE: Final = wire.LEAVE.lower().encode()
LIFE: Final = wire.LIFE.lower().encode()
IDEMPOTENCY_KEY: Final = wire.IDEMPOTENCY_KEY.lower().encode()
CLUSTER: Final = wire.CLUSTER.lower().encode()
_ATTEMPT: Final = wire.ATTEMPT.lower().encode()
_TRACEPARENT: Final = wire.TRACEPARENT.encode()
_AUTHORIZATION: Final = b"authorization"
_CREDENTIALS_BYTES: Final = 9 << 10
"""Longer than a token may be (8 KiB)."""

_NEEDED: Final = (
    USER_AGENT, b"expect", b"content-length", b"transfer-encoding", CONTENT_TYPE, CONTENT_ENCODING, EXPECT_CONTENT,
    TRUNCATED, RESET, EPOCH, IF_IDLE, LEAVE, IDEMPOTENCY_KEY, LIFE, _ATTEMPT, CLIENT,
)  # fmt: skip
"""Header fields of a parked POST or DELETE that later stages read."""

_NEEDED_TO_READ: Final = (RANGE, IF_RANGE, IF_NONE_MATCH, ACCEPT_ENCODING, LIFE, EPOCH)
"""Header fields of any other parked request that later stages read."""

_LENGTH_DIGITS: Final = 20
"""Digits of the largest length that the parser accepts, 2**64 - 1, without leading zeros."""


_NO_RECORD: Final = Figures()
"""Until a request begins."""


FACTS: Final = ("epoch", "rseq", "next_seq", "guard_ms")
"""Fields of a record that are whole numbers, and that only the node knows that answers."""


class Via(NamedTuple):
    """The way of a request to this node of a cluster, and its client, as the node says that has passed the request on.

    Attributes:
        hops: the names of the nodes that it has passed, the oldest first. The first one has authorized it.
        ip: the client's address, if it is known. certified: the name in the client's certificate.
        subject: the client's signed name; ``""`` without one.
    """

    hops: tuple[str, ...]
    ip: str | None = None
    certified: str | None = None
    subject: str = ""


def facts_of(record: Figures, reason: str = "") -> str:
    """The facts of an access record that another node's record of the same request has, too (:data:`.wire.CLUSTER`).

    For example ``reason=complete;epoch=1;rseq=7``.

    Args:
        reason: how the exchange ends, if that is known.
    """
    known = [f"reason={reason}"] if reason else []
    known += [f"{name}={value}" for name in FACTS if (value := getattr(record, name, None)) is not None]
    if (detail := getattr(record, "detail", None)) is not None:
        known.append(f"detail={quote(detail, safe=' ')}")
    return ";".join(known)


class Request:
    """A request whose head has arrived.

    Args:
        method, target: as on the wire.
        route: the segment route; ``None`` for a request of the control plane.
        headers: by lower-case name; the lines of a repeated field are joined by commas.
        http10: the client speaks HTTP/1.0. keep_alive: the client wants the connection to stay open.
    """

    __slots__ = (
        "arrived", "certified", "chunks", "complete", "cors", "fields", "headers", "held", "http10", "ip",
        "keep_alive", "length", "looks", "method", "record", "route", "subject", "target", "via", "waits",
    )  # fmt: skip

    def __init__(
        self,
        method: bytes,
        target: bytes,
        route: Route | None,
        headers: dict[bytes, bytes],
        *,
        http10: bool,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.route = route
        self.headers = headers
        self.fields: Sequence[tuple[bytes, bytes]] = ()  # all header lines in order, for the control plane only
        self.http10 = http10
        self.keep_alive = keep_alive
        self.length: int | None = None  # the announced size of the body, if the client announces it
        self.ip: str | None = None  # the client's address, if it is known
        self.certified: str | None = None  # the name in the client's certificate, if it had to show one
        self.subject = ""  # the signed name of the client, if it has one
        self.via: Via | None = None  # the way through other nodes of a cluster, if one of them has passed it on
        # The body that has arrived and that no exchange has taken yet, in the client's chunks.
        self.chunks: list[bytes] = []
        self.complete = False  # the body has ended
        # The body is stored as it arrives, since the exchange has not begun: the request is queued behind another one
        # of its connection, or parked.
        self.waits = False
        self.cors = ALLOWED
        self.arrived = 0.0  # the time at which the head was complete, on the plane's clock; set when the request begins
        self.record: Figures = _NO_RECORD  # set when the request begins
        self.held = False  # the storm guard has delayed it, and does not delay it again
        self.looks = 0  # how often the core was asked about a POST that has overtaken others

    def text(self, name: bytes) -> str:
        """The value of a header as text; ``""`` if the header is missing."""
        value = self.headers.get(name)
        return value.decode("latin-1").strip() if value else ""

    def attempt(self) -> int:
        """The number of this attempt at the same request, as the client counts: 1 for the first."""
        value = self.headers.get(_ATTEMPT)
        return int(value) if value is not None and value.isdigit() and len(value) < 7 else 1

    def shrink(self, *, credentials: bool, forwards: bool = False) -> None:
        """Keep only the header fields that later stages read: thousands of requests may be parked at a time.

        A value that is too long is cut to one character too many, so that it is still refused.

        Args:
            credentials: keep the token, too, in a header or in the query.
            forwards: keep what another node of the cluster reads, if the request is passed on.
        """
        headers = self.headers
        needed: tuple[bytes, ...] = _NEEDED if self.method in (b"POST", b"DELETE") else _NEEDED_TO_READ
        if forwards:
            needed = (*_NEEDED, *_NEEDED_TO_READ, _TRACEPARENT)
        self.headers = {name: headers[name][: MAX_TEXT + 1] for name in needed if name in headers}
        if not credentials and not forwards:
            self.target = b""
        elif credentials and (value := headers.get(_AUTHORIZATION)) is not None:
            self.headers[_AUTHORIZATION] = value[:_CREDENTIALS_BYTES]

    def begin_record(self, *, ts_us: int, node: str | None, ip: str | None, conn: int) -> AccessRecord:
        headers, route = self.headers, self.route
        record = AccessRecord(ts_us)
        record.node = node
        record.method = self.method.decode("latin-1")
        record.path = self.target.partition(b"?")[0].decode("latin-1")[: 2 * MAX_TEXT]
        record.ip = ip
        record.conn = conn
        ua, record.release = user_agent(headers.get(USER_AGENT, b""))
        record.ua = ua
        client = headers.get(CLIENT)
        record.client = client.decode("latin-1")[:MAX_TEXT] if client else client_key(ip or "", ua)
        record.attempt = self.attempt()
        record.trace = _trace(headers.get(_TRACEPARENT))
        if route is not None:
            record.op = route.op
            record.channel = route.channel or None
            record.seq = route.seq
        return record


def has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body follows the head, or may follow it."""
    return b"transfer-encoding" in headers or (b"content-length" in headers and bool(content_length(headers)))


def content_length(headers: Mapping[bytes, bytes]) -> int | None:
    """The announced size of the body in bytes; ``None`` if the client does not announce it."""
    value = headers.get(b"content-length")
    if value is None or not value.isdigit():
        return None
    # Python refuses to read numbers of more than some thousand digits, zeros included.
    return int(value if len(value) <= _LENGTH_DIGITS else value.lstrip(b"0")[:_LENGTH_DIGITS] or b"0")


def expects_continue(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the client sends its body only after ``100 Continue``."""
    return b"expect" in headers and b"100-continue" in map(bytes.strip, headers[b"expect"].lower().split(b","))


def _trace(value: bytes | None) -> str | None:
    """The trace id of a ``traceparent`` (W3C Trace Context, section 3.2)."""
    if value is None:
        return None
    fields = value.split(b"-")
    return fields[1].decode("latin-1") if len(fields) >= 4 and len(fields[1]) == 32 else None
