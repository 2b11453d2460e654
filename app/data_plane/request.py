"""One request as it was parsed, and the access record that begins with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.app.data_plane.cors import ALLOWED
from tricklecast.app.data_plane.identity import CLIENT, MAX_TEXT, client_key, user_agent
from tricklecast.app.data_plane.routes import Route
from tricklecast.trickle import wire
from tricklecast.trickle.records import AccessRecord

if TYPE_CHECKING:
    from tricklecast.app.data_plane.publish import Publish

CONTENT_TYPE: Final = b"content-type"
EXPECT_CONTENT: Final = wire.EXPECT_CONTENT.lower().encode()
TRUNCATED: Final = wire.TRUNCATED.lower().encode()
RESET: Final = wire.RESET.lower().encode()
IDEMPOTENCY_KEY: Final = wire.IDEMPOTENCY_KEY.lower().encode()
_ATTEMPT: Final = wire.ATTEMPT.lower().encode()
_TRACEPARENT: Final = wire.TRACEPARENT.encode()
_AUTHORIZATION: Final = b"authorization"
_CREDENTIALS_BYTES: Final = 9 << 10
"""More than a token may have (8 KiB)."""

_NEEDED: Final = (
    b"user-agent", b"expect", b"content-length", b"transfer-encoding", CONTENT_TYPE, EXPECT_CONTENT,
    TRUNCATED, RESET, IDEMPOTENCY_KEY, _ATTEMPT, CLIENT,
)  # fmt: skip
"""Header fields that a POST is asked for once its record has begun; of any other request none."""


class Request:
    """A request on a segment route.

    Attributes:
        method, target: as on the wire.
        route: what it asks for.
        headers: by lower-case name; of a repeated one the last.
        http10: the client speaks HTTP/1.0. keep_alive: it wants the connection to stay.
        chunks: body that has arrived and was not taken yet, as the publisher's chunks.
        complete: whether the body has ended.
        publish: the exchange that takes the body, once there is one.
        queued: whether it waits behind an unfinished exchange of its connection.
        held: whether its body is kept and not read on, since it waits
            (:class:`app.data_plane.waiting.Waiting`).
        ip: the address of its client, as far as it is known.
        cors: whether a page of another origin has made it, and what that page may do.
        arrived: when it was complete, on the plane's clock; set where it had to wait before it began.
    """

    __slots__ = (
        "arrived",
        "chunks",
        "complete",
        "cors",
        "headers",
        "held",
        "http10",
        "ip",
        "keep_alive",
        "method",
        "publish",
        "queued",
        "route",
        "target",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        route: Route,
        headers: dict[bytes, bytes],
        *,
        http10: bool,
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.target = target
        self.route = route
        self.headers = headers
        self.http10 = http10
        self.keep_alive = keep_alive
        self.ip: str | None = None
        self.chunks: list[bytes] = []
        self.complete = False
        self.publish: Publish | None = None
        self.queued = False
        self.held = False
        self.arrived = 0.0
        self.cors = ALLOWED

    def text(self, name: bytes) -> str:
        """A header's value as text; ``""`` if it is missing."""
        value = self.headers.get(name)
        return value.decode("latin-1").strip() if value else ""

    def take(self) -> list[bytes]:
        """The body that has arrived and was not taken yet."""
        chunks, self.chunks = self.chunks, []
        return chunks

    def attempt(self) -> int:
        """Which attempt at the same request this is, as the client counts: 1 for the first."""
        return _attempt(self.headers.get(_ATTEMPT))

    def shrink(self, *, credentials: bool) -> None:
        """Keep only what it takes to begin the exchange once more, where many requests may have to wait for that.

        Values that are too long by far stay too long: whoever checks them comes to the same.

        Args:
            credentials: whether somebody will ask for a token again: in a header, or in the query.
        """
        headers = self.headers
        needed = _NEEDED if self.method == b"POST" else ()
        self.headers = {name: headers[name][: MAX_TEXT + 1] for name in needed if name in headers}
        if not credentials:
            self.target = b""
        elif (value := headers.get(_AUTHORIZATION)) is not None:
            self.headers[_AUTHORIZATION] = value[:_CREDENTIALS_BYTES]

    def record(self, *, ts_us: int, node: str | None, ip: str | None, conn: int) -> AccessRecord:
        """Begin the access record of this request, for a server that writes an access log."""
        headers, route = self.headers, self.route
        ua, release = user_agent(headers.get(b"user-agent", b""))
        client = headers.get(CLIENT)
        return AccessRecord(
            ts_us,
            node=node,
            op=route.op,
            method=self.method.decode("latin-1"),
            path=self.target.partition(b"?")[0].decode("latin-1")[: 2 * MAX_TEXT],
            channel=route.channel or None,
            seq=route.seq,
            client=client.decode("latin-1")[:MAX_TEXT] if client else client_key(ip or "", ua),
            ip=ip,
            conn=conn,
            ua=ua,
            release=release,
            attempt=self.attempt(),
            trace=_trace(headers.get(_TRACEPARENT)),
        )


def _attempt(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) < 7 else 1


def _trace(value: bytes | None) -> str | None:
    """The trace id of a ``traceparent`` (W3C Trace Context, section 3.2)."""
    if value is None:
        return None
    fields = value.split(b"-")
    return fields[1].decode("latin-1") if len(fields) >= 4 and len(fields[1]) == 32 else None
