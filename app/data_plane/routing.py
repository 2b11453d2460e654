"""Routes: which requests are for the data plane, and what they ask for (docs/reference/protocol.md, section 2)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from tricklecast.trickle.errors import InvalidChannelName, InvalidInput, InvalidSeq
from tricklecast.trickle.paths import MAX_DIGITS, parse_channel, parse_seq
from tricklecast.trickle.records import Op
from tricklecast.trickle.wire import CHANGEFEED, NEXT_ROUTE, SEQ_NEXT

CONTROL_PLANE: Final = frozenset(
    (
        *("api", "metrics", "healthz", "readyz", "docs", "redoc", "openapi.json", "favicon.ico"),
        *("dashboard", "watch", "publish", "static"),  # web pages and their files
    )
)
"""First path segments of the control plane. With base path ``/`` they win, and cannot name a channel."""

CHANNEL_METHODS: Final = {b"POST": Op.CREATE, b"DELETE": Op.DELETE}
SEGMENT_METHODS: Final = {b"GET": Op.READ, b"HEAD": Op.READ, b"POST": Op.PUBLISH, b"DELETE": Op.CLOSE_SEGMENT}
NEXT_METHODS: Final = {b"GET": Op.NEXT, b"HEAD": Op.NEXT}
HINT: Final = "this URL names a channel; its segments are at CHANNEL/SEQ"
"""The answer to a client that reads or publishes at a channel's URL."""

NO_CHANNEL: Final = "this URL has no channel; a segment is at CHANNEL/SEQ, the head at CHANNEL/next"
"""The same if a segment stands in the channel's place: the client takes the base path for a channel's URL."""

_NEXT: Final = NEXT_ROUTE.encode()
_SEGMENT_ALLOW: Final = "GET, HEAD, POST, DELETE, OPTIONS"

MAX_SUBJECT: Final = 64
"""The storm guard remembers so many bytes of a wrong path."""

_NOT_PLAIN: Final = frozenset({b"", CHANGEFEED.encode(), *(name.encode() for name in CONTROL_PLANE)})
"""First path segments that may be something else than a channel's name."""


class Route(NamedTuple):
    """What a request asks for.

    Attributes:
        op: ``None`` if the method is not one of this path's.
        channel: the channel's name, decoded.
        seq: the seq as asked for; ``None`` for a route without one.
        allow: the methods that this path knows.
        error: what is wrong with the path, as one line; then nothing else counts.
        not_found: whether there is no such route at all.
    """

    op: Op | None
    channel: str = ""
    seq: int | None = None
    allow: str = ""
    error: str = ""
    not_found: bool = False


class Router:
    """Finds out which requests belong to the data plane.

    Args:
        base_path: ``/trickle``, or ``""`` for the root.
    """

    def __init__(self, base_path: str) -> None:
        self._base = tuple(part.encode("ascii") for part in base_path.split("/") if part)
        self._prefix = b"".join([b"/%b" % part for part in self._base]) + b"/"
        self._skip = len(self._prefix)
        hint = f"Not found: a channel is at {base_path}/CHANNEL, a segment at {base_path}/CHANNEL/SEQ"
        self._nowhere = Route(None, error=hint, not_found=True)

    def find(self, method: bytes, target: bytes) -> Route | None:
        """The route that a request asks for; ``None`` if it is the control plane's.

        A path that belongs to neither plane is refused at its head, with the form of a channel's URL: a publisher
        that has forgotten the base path would otherwise be told after its body that this was too large.
        """
        if (route := self.find_plain(method, target)) is not None:
            return route
        parts = self.match(target)
        if parts is not None:
            route = parse_route(method, parts)
            return self._nowhere if route.not_found else route
        first = _path(target).lstrip(b"/").partition(b"/")[0].decode("latin-1")
        return None if not first or first in CONTROL_PLANE else self._nowhere

    def find_plain(self, method: bytes, target: bytes) -> Route | None:
        """The route of a target that is ``/base/channel/digits``, as all but a few are; ``None`` for any other."""
        if target.startswith(self._prefix):
            part, _, tail = target[self._skip :].partition(b"/")
            op = SEGMENT_METHODS.get(method)
            plain = tail.isdigit() and len(tail) <= MAX_DIGITS and part not in _NOT_PLAIN and b"?" not in part
            if plain and op is not None:
                try:
                    return Route(op, _channel(part), int(tail), _SEGMENT_ALLOW)
                except InvalidChannelName:
                    pass  # said in words by parse_route
        return None

    def subject(self, target: bytes) -> str:
        """What a wrong path is about, to the storm guard: its first segment, below the base path if it begins so."""
        parts = self.match(target) or tuple(filter(None, _path(target).split(b"/")))
        return "/" + parts[0][:MAX_SUBJECT].decode("latin-1") if parts else "/"

    def match(self, target: bytes) -> tuple[bytes, ...] | None:
        """The path segments of a request target below the base path; ``None`` if it is not ours.

        Runs of slashes count as one: ``//c/0`` is served as ``/c/0``, since a redirect would kill a streaming
        POST. The query is ignored.
        """
        path = _path(target)
        parts = tuple(filter(None, path.split(b"/")))
        depth = len(self._base)
        if parts[:depth] != self._base or len(parts) == depth:
            return None
        below = parts[depth:]
        if not depth and below[0].decode("latin-1") in CONTROL_PLANE:
            return None
        # `/c/` names a segment and forgets its seq: taken for `/c`, a POST's body would vanish.
        return (*below, b"") if len(below) == 1 and path.endswith(b"/") else below


def _path(target: bytes) -> bytes:
    """The path of a request target, without its query; empty if it has none (``*``, a host alone)."""
    path = target.partition(b"?")[0]
    if path.startswith(b"/"):
        return path
    # The absolute form that proxies send: http://host/path (RFC 9112, section 3.2.2).
    _, found, rest = path.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if found else b""


def parse_route(method: bytes, parts: tuple[bytes, ...]) -> Route:
    """What a request asks for, given its path segments below the base path."""
    try:
        channel = _channel(parts[0])
    except InvalidChannelName as error:
        return Route(None, error=f"Invalid channel name: {error.why}")
    if len(parts) == 1:
        op = CHANNEL_METHODS.get(method)
        hint = "" if op else f"Method not allowed: {hint_for(channel)}"
        return Route(op, channel, allow="POST, DELETE, OPTIONS", error=hint)
    if len(parts) > 2:
        return Route(None, channel, error="Not found", not_found=True)
    tail = parts[1]
    if tail == _NEXT:
        return Route(NEXT_METHODS.get(method), channel, allow="GET, HEAD, OPTIONS")
    op = SEGMENT_METHODS.get(method)
    try:
        seq = _seq_for(op, tail.decode("latin-1"))
    except InvalidInput:
        return Route(op, channel, error="Invalid idx" if op else "", allow=_SEGMENT_ALLOW)
    if channel == CHANGEFEED and op is Op.READ:
        op = Op.CHANGES
    return Route(op, channel, seq, _SEGMENT_ALLOW)


def hint_for(channel: str) -> str:
    """What to tell a client that uses a URL of one part, which names ``channel``, as if it were a segment's."""
    return NO_CHANNEL if channel == NEXT_ROUTE or channel.removeprefix("-").isdecimal() else HINT


@lru_cache(maxsize=8192)
def _channel(part: bytes) -> str:
    return parse_channel(part.decode("utf-8", "surrogateescape"))


def _seq_for(op: Op | None, text: str) -> int:
    """A seq as this op may ask for it: any for reading, -1 or N for publishing, N for closing."""
    seq = parse_seq(text)
    if seq < 0 and (op is Op.CLOSE_SEGMENT or (op is Op.PUBLISH and seq != SEQ_NEXT)):
        raise InvalidSeq(text)
    return seq
