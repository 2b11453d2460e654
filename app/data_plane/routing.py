"""Routes of the data plane: from method and path to an operation on a channel (docs/reference/protocol.md, section 2).

Nearly all requests are for ``/base/channel/digits``; :meth:`Router.find` recognises these without splitting the path. A
path that belongs to neither plane is refused at its head, with the form of a channel's URL: otherwise a publisher that
has forgotten the base path would be told after its body that the body is too large for the control plane.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from tricklecast.trickle.amounts import parse_duration
from tricklecast.trickle.errors import InvalidChannelName, InvalidInput, InvalidSeq
from tricklecast.trickle.media.ladder import Rung, parse_ladder
from tricklecast.trickle.paths import MAX_DIGITS, parse_channel, parse_seq
from tricklecast.trickle.records import Op
from tricklecast.trickle.wire import (
    CHANGEFEED,
    CLIP_MP4_ROUTE,
    CLIP_TS_ROUTE,
    HLS_ROUTE,
    LADDER_PARAMETER,
    LAST_SEQ,
    MEDIA_PLAYLIST_ROUTE,
    NEXT_ROUTE,
    PICTURE_PLAYLIST_ROUTE,
    PLAYLIST_ROUTE,
    SEQ_CURRENT,
    SEQ_NEXT,
    STREAM_ROUTE,
)

CONTROL_PLANE: Final = frozenset(
    (
        *("api", "metrics", "healthz", "readyz", "docs", "redoc", "openapi.json", "favicon.ico"),
        *("dashboard", "wall", "watch", "publish", "static"),  # web pages and their files
    )
)
"""First path segments of the control plane. With base path ``/`` no channel can have one of these names."""

CHANNEL_METHODS: Final = {b"POST": Op.CREATE, b"DELETE": Op.DELETE}
SEGMENT_METHODS: Final = {b"GET": Op.READ, b"HEAD": Op.READ, b"POST": Op.PUBLISH, b"DELETE": Op.CLOSE_SEGMENT}
NEXT_METHODS: Final = {b"GET": Op.NEXT, b"HEAD": Op.NEXT}
STREAM_METHODS: Final = {b"GET": Op.STREAM, b"HEAD": Op.STREAM}
PLAYLIST_METHODS: Final = {b"GET": Op.PLAYLIST, b"HEAD": Op.PLAYLIST}
CLIP_METHODS: Final = {b"GET": Op.CLIP, b"HEAD": Op.CLIP}
HLS_METHODS: Final = {b"GET": Op.HLS, b"HEAD": Op.HLS}
HINT: Final = "this URL names a channel; its segments are at CHANNEL/SEQ"
"""The answer to a client that reads or publishes at a channel's URL."""

NO_CHANNEL: Final = "this URL has no channel; a segment is at CHANNEL/SEQ, the head at CHANNEL/next"
"""The answer if a seq stands in the channel's place: the client takes the base path for a channel's URL."""

STARTS: Final = {b"earliest": -LAST_SEQ, b"latest": SEQ_CURRENT, b"current": SEQ_CURRENT, b"next": SEQ_NEXT}
"""Names for the seq at which a stream starts; the earliest one is the N-th from the head, for a large N."""

START_PARAMETER: Final = "start"
FROM_PARAMETER: Final = "from"
"""In the query of a multivariant playlist that begins in the past, and of the media playlist that it names."""

_NEXT: Final = NEXT_ROUTE.encode()
_STREAM: Final = STREAM_ROUTE.encode()
_PLAYLIST: Final = PLAYLIST_ROUTE.encode()
_MEDIA_PLAYLIST: Final = MEDIA_PLAYLIST_ROUTE.encode()
_PICTURE_PLAYLIST: Final = PICTURE_PLAYLIST_ROUTE.encode()
_HLS: Final = HLS_ROUTE.encode()
_CLIPS: Final = (CLIP_MP4_ROUTE.encode(), CLIP_TS_ROUTE.encode())
_MEDIA: Final = re.compile(
    rb"([0-9a-zA-Z.]{1,40})-(?:([0-9]{1,15})(?:-([0-9]{1,15})|\.([0-9]{1,6}))?\.(ts|m4s|m4a|vtt)|init-([0-9a-f]{12})\.(mp4|ts))",
    re.ASCII,
)
_READ_ONLY: Final = "GET, HEAD, OPTIONS"
_TAILS: Final = frozenset(
    {NEXT_ROUTE, STREAM_ROUTE, PLAYLIST_ROUTE, MEDIA_PLAYLIST_ROUTE, PICTURE_PLAYLIST_ROUTE}
    | {CLIP_MP4_ROUTE, CLIP_TS_ROUTE}
)
_SEGMENT_ALLOW: Final = "GET, HEAD, POST, DELETE, OPTIONS"

MAX_SUBJECT: Final = 64
"""Bytes of a wrong path that the storm guard remembers."""

_NOT_PLAIN: Final = frozenset({b"", CHANGEFEED.encode(), *(name.encode() for name in CONTROL_PLANE)})
"""First path segments that may not be a channel's name, or that name the changefeed."""


class Media(NamedTuple):
    """The file of an HLS playlist that a URL names: a segment, a part of one, or an init segment.

    Attributes:
        prefix: the name of the epoch, and the rule by which its segments are cut.
        seq: of the channel's segment; ``None`` for an init segment.
        at: the byte of the channel's segment at which the HLS segment begins; 0 for the first or only one.
        part: the number of the part; ``None`` for the whole HLS segment.
        extension: ``ts``, ``m4s``, ``m4a``, ``vtt`` or ``mp4``.
        init: the name of an init segment.
    """

    prefix: str
    seq: int | None
    at: int
    part: int | None
    extension: str
    init: str = ""

    @property
    def tag(self) -> bytes:
        """Its entity tag: its name, since a name never means other bytes (docs/adr/0029)."""
        ending = ".vtt" if self.extension == "vtt" else ""
        return f'"{self.prefix}-{self.seq}-{self.at}-{self.part}-{self.init}{ending}"'.encode()


class Start(NamedTuple):
    """Where a playlist begins that keeps all segments; one of these.

    Attributes:
        back_s: this many seconds before the live edge. at_us: at this time, microseconds since 1970.
        seq: with this segment of the channel, as a multivariant playlist says.
    """

    back_s: float | None = None
    at_us: int | None = None
    seq: int | None = None


class Blocking(NamedTuple):
    """The query of a request for a playlist.

    Attributes:
        msn, part: the client waits for this segment, or this part of it; ``None``: it does not wait.
        token: the access token in the URL, not decoded.
        is_media: ``media.m3u8`` was asked for, or ``iframes.m3u8``, not ``index.m3u8``.
        is_pictures: ``iframes.m3u8`` was asked for.
        track: the number of the one track that the media are to have; ``None``: all tracks.
        start: where a playlist begins that keeps all segments; ``None``: near the live edge.
        ladder: the rungs of a ladder whose highest one this channel is; empty: the channel stands alone.
    """

    msn: int | None
    part: int | None
    token: bytes
    is_media: bool
    track: int | None = None
    start: Start | None = None
    ladder: tuple[Rung, ...] = ()
    is_pictures: bool = False


class Route:
    """The operation and the object of a request.

    (No named tuple, which takes twice as long to make, and twelve times as long in compiled code.)

    Attributes:
        op: ``None`` if the path does not know the method.
        channel: the channel's name, decoded.
        seq: the seq as in the path, for example -1; ``None`` for a route without one.
        allow: the methods that this path knows.
        error: one line about a wrong path or query; the request is then refused.
        not_found: there is no such route.
        media: the file of an HLS playlist. blocking: the query of a playlist.
    """

    __slots__ = ("allow", "blocking", "channel", "error", "media", "not_found", "op", "seq")

    def __init__(
        self,
        op: Op | None,
        channel: str = "",
        seq: int | None = None,
        allow: str = "",
        error: str = "",
        not_found: bool = False,
        media: Media | None = None,
        blocking: Blocking | None = None,
    ) -> None:
        self.op = op
        self.channel = channel
        self.seq = seq
        self.allow = allow
        self.error = error
        self.not_found = not_found
        self.media = media
        self.blocking = blocking


class Router:
    """Finds the route of a request, and leaves requests of the control plane to it.

    Args:
        base_path: ``/trickle``, or ``""`` for the root.

    Attributes:
        prefix: the base path, and a slash.
    """

    def __init__(self, base_path: str) -> None:
        self._base = tuple(part.encode("ascii") for part in base_path.split("/") if part)
        self.prefix = b"".join([b"/%b" % part for part in self._base]) + b"/"
        self._skip = len(self.prefix)
        hint = f"Not found: a channel is at {base_path}/CHANNEL, a segment at {base_path}/CHANNEL/SEQ"
        self._nowhere = Route(None, error=hint, not_found=True)

    def find(self, method: bytes, target: bytes) -> Route | None:
        """The route of a request; ``None`` if it belongs to the control plane."""
        if target.startswith(self.prefix):  # /base/channel/digits, as all but a few are
            part, _, tail = target[self._skip :].partition(b"/")
            op = SEGMENT_METHODS.get(method)
            # (b"?" in part takes twice as long as find: it tries first whether b"?" is a number.)
            plain = tail.isdigit() and len(tail) <= MAX_DIGITS and part not in _NOT_PLAIN and part.find(b"?") < 0
            if plain and op is not None:
                try:
                    return Route(op, _channel(part), int(tail), _SEGMENT_ALLOW)
                except InvalidChannelName:
                    pass  # parse_route names the problem
        parts = self.match(target)
        if parts is not None:
            route = parse_route(method, parts, target.partition(b"?")[2])
            return self._nowhere if route.not_found else route
        first = path_of(target).lstrip(b"/").partition(b"/")[0].decode("latin-1")
        return None if not first or first in CONTROL_PLANE else self._nowhere

    def feed(self, method: bytes, target: bytes) -> Route | None:
        """The route of a request that offers to switch to a feed; ``None`` if there is no feed at this path."""
        parts = self.match(target)
        if method != b"GET" or parts is None or len(parts) > 1:
            return None
        route = parse_route(method, parts)
        return Route(Op.FEED, route.channel) if route.channel else route

    def subject(self, target: bytes) -> str:
        """The storm guard's name for a wrong path: its first segment, below the base path if it begins with that."""
        parts = self.match(target) or tuple(filter(None, path_of(target).split(b"/")))
        return "/" + parts[0][:MAX_SUBJECT].decode("latin-1") if parts else "/"

    def match(self, target: bytes) -> tuple[bytes, ...] | None:
        """The path segments of a request target below the base path; ``None`` if it is not below the base path.

        Runs of slashes count as one: ``//c/0`` is served as ``/c/0``, since a redirect would kill a streaming
        POST. The query is ignored.
        """
        path = path_of(target)
        parts = tuple(filter(None, path.split(b"/")))
        depth = len(self._base)
        if parts[:depth] != self._base or len(parts) == depth:
            return None
        below = parts[depth:]
        if not depth and below[0].decode("latin-1") in CONTROL_PLANE:
            return None
        # `/c/` names a segment and forgets its seq: taken for `/c`, a POST's body would vanish.
        return (*below, b"") if len(below) == 1 and path.endswith(b"/") else below


def path_of(target: bytes) -> bytes:
    """The path of a request target, without its query; empty if it has none (``*``, a host alone)."""
    path = target.partition(b"?")[0]
    if path.startswith(b"/"):
        return path
    # The absolute form that proxies send: http://host/path (RFC 9112, section 3.2.2).
    _, found, rest = path.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if found else b""


def parse_route(method: bytes, parts: tuple[bytes, ...], query: bytes = b"") -> Route:
    """Read the route from the path segments below the base path, and from the query."""
    try:
        channel = _channel(parts[0])
    except InvalidChannelName as error:
        return Route(None, error=f"Invalid channel name: {error.why}")
    if len(parts) == 1:
        op = CHANNEL_METHODS.get(method)
        hint = "" if op else f"Method not allowed: {hint_for(channel)}"
        return Route(op, channel, allow="POST, DELETE, OPTIONS", error=hint)
    if len(parts) == 3 and parts[1] == _HLS and (media := _MEDIA.fullmatch(parts[2])):
        return Route(HLS_METHODS.get(method), channel, allow=_READ_ONLY, media=_media(media))
    if len(parts) > 2:
        return Route(None, channel, error="Not found", not_found=True)
    tail = parts[1]
    if tail == _NEXT:
        return Route(NEXT_METHODS.get(method), channel, allow=_READ_ONLY)
    if tail == _STREAM:
        return _stream_route(STREAM_METHODS.get(method), channel, query)
    if tail in (_PLAYLIST, _MEDIA_PLAYLIST, _PICTURE_PLAYLIST):
        return _playlist_route(PLAYLIST_METHODS.get(method), channel, query, tail)
    if tail in _CLIPS:
        return Route(CLIP_METHODS.get(method), channel, allow=_READ_ONLY)
    op = SEGMENT_METHODS.get(method)
    try:
        seq = _seq_for(op, tail.decode("latin-1"))
    except InvalidInput:
        return Route(op, channel, error="Invalid idx" if op else "", allow=_SEGMENT_ALLOW)
    if channel == CHANGEFEED and op is Op.READ:
        op = Op.CHANGES
    return Route(op, channel, seq, _SEGMENT_ALLOW)


def _stream_route(op: Op | None, channel: str, query: bytes) -> Route:
    """A stream, and the seq at which it starts."""
    start = parameter(query, b"start") or b"latest"
    try:
        seq = STARTS[start] if start in STARTS else parse_seq(start.decode("latin-1"))
    except InvalidSeq:
        error = "Invalid start: it is earliest, current, next, N or -N"
        return Route(op, channel, error=error if op else "", allow=_READ_ONLY)
    return Route(op, channel, seq, _READ_ONLY)


def _playlist_route(op: Op | None, channel: str, query: bytes, tail: bytes) -> Route:
    """A playlist, and the segment or part that the client waits for (draft-pantos-hls-rfc8216bis, section 6.2.5.2)."""
    is_media = tail != _PLAYLIST
    numbers: list[int | None] = []
    for name in (b"_HLS_msn", b"_HLS_part", b"track"):
        value = parameter(query, name)
        numbers.append(int(value) if value.isdigit() and len(value) <= MAX_DIGITS else None)
        if value and numbers[-1] is None:
            error = f"Invalid {name.decode()}: it is a number"
            return Route(op, channel, error=error if op else "", allow=_READ_ONLY)
    msn, part, track = numbers
    if part is not None and msn is None:
        return Route(op, channel, error="_HLS_part without _HLS_msn" if op else "", allow=_READ_ONLY)
    try:
        start = _start(query, is_media=is_media)
    except ValueError:
        what = "it is a seq" if is_media else "it is a duration before the live edge (10min), or a time"
        error = f"Invalid {FROM_PARAMETER if is_media else START_PARAMETER}: {what}"
        return Route(op, channel, error=error if op else "", allow=_READ_ONLY)
    if start is not None and msn is not None and not is_media:
        return Route(op, channel, error=f"_HLS_msn with {START_PARAMETER}" if op else "", allow=_READ_ONLY)
    ladder: tuple[Rung, ...] = ()
    if (text := parameter(query, LADDER_PARAMETER.encode())) and not is_media:
        try:
            ladder = parse_ladder(text.decode("latin-1"))
        except ValueError as problem:
            return Route(op, channel, error=f"Invalid {LADDER_PARAMETER}: {problem}" if op else "", allow=_READ_ONLY)
        if msn is not None:
            return Route(op, channel, error=f"_HLS_msn with {LADDER_PARAMETER}" if op else "", allow=_READ_ONLY)
    token = parameter(query, b"token")
    asked = Blocking(msn, part, token, is_media, track, start, ladder, is_pictures=tail == _PICTURE_PLAYLIST)
    return Route(op, channel, allow=_READ_ONLY, blocking=asked)


def _start(query: bytes, *, is_media: bool) -> Start | None:
    """Where a playlist begins, if its query says so.

    Raises:
        ValueError: the query says it wrongly.
    """
    value = parameter(query, (FROM_PARAMETER if is_media else START_PARAMETER).encode()).decode()
    if not value:
        return None
    if is_media:
        if not (value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS):
            raise ValueError(value)
        return Start(seq=int(value))
    return parse_moment(value)


def parse_moment(value: str) -> Start:
    """Read how long ago something was (``90s``, ``10min``), or when (``2026-11-28T18:00:00Z``).

    Raises:
        ValueError: it is neither.
    """
    try:
        return Start(back_s=parse_duration(value, zero=True))
    except InvalidInput:
        pass
    at = datetime.fromisoformat(value)
    return Start(at_us=round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e6))


def _media(found: re.Match[bytes]) -> Media:
    prefix, seq, at, part, extension, init, init_extension = (
        None if group is None else group.decode("ascii") for group in found.groups()
    )
    assert prefix is not None, "every name has one"
    number = None if seq is None else int(seq)
    kind = extension or init_extension or ""
    return Media(prefix, number, int(at or 0), None if part is None else int(part), kind, init or "")


def parameter(query: bytes, name: bytes) -> bytes:
    """The decoded value of the first parameter of this name in a query; ``b""`` if there is none."""
    values = (value for key, _, value in (part.partition(b"=") for part in query.split(b"&")) if key == name)
    return unquote_to_bytes(next(values, b""))


def hint_for(channel: str) -> str:
    """The hint to a client that uses the one-part URL of ``channel`` as if it were a segment's."""
    return NO_CHANNEL if channel in _TAILS or channel.removeprefix("-").isdecimal() else HINT


@lru_cache(maxsize=8192)
def _channel(part: bytes) -> str:
    return parse_channel(part.decode("utf-8", "surrogateescape"))


def _seq_for(op: Op | None, text: str) -> int:
    """Read a seq: any for reading, -1 or N for publishing, N for closing a segment."""
    seq = parse_seq(text)
    if seq < 0 and (op is Op.CLOSE_SEGMENT or (op is Op.PUBLISH and seq != SEQ_NEXT)):
        raise InvalidSeq(text)
    return seq
