"""Sends one request and returns its response with headers that can be trusted, or its loss.

Theory of operation
===================

*The problem.* A server, or another program at its address, may send anything: a seq that is no number, a header twice,
a megabyte of HTML as an error. The cores of both clients are state machines that must not meet any of this. They must
not meet the transport's exceptions, either.

*The idea.* :func:`exchange` is the only way from a core to the network, and it never raises for a failure of the other
side. It returns a response whose integer headers are integers, whose texts are printable, and whose error is one line
of at most ``DETAIL_CHARS`` characters; or :class:`Lost`, which says how far the request came. A header that breaks the
rules is left out, as if the server had not sent it.

*Past httpx.* httpx makes objects for URLs and headers, and generators for redirects and authentication. They cost more
CPU than the rest of a small segment, and httpx takes longer to load than both clients. So :class:`TrickleClient` gives
a plain request straight to its :class:`Pool` of connections, with a token as a header. httpx sends the rest: other
kinds of authentication, a program's own transport, URLs with a password, and names of hosts beyond ASCII. It is loaded
when one of these is used (:mod:`.bridge`).

*Bounds.* Of an error's body at most ``DETAIL_BYTES`` are read, for at most ``DETAIL_S``.

*Left out on purpose.* Cookies: a server could set any number of them, and each later request would carry them all.
Proxies for ``http://``: one that collects request bodies would hold a live segment back until its end.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import urljoin, urlsplit

import anyio

from tricklecast.trickle import wire
from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.connecting import Origin, origin_of
from tricklecast.trickle.client.connection import (
    NO_BODY,
    NO_TIMEOUTS,
    LiveBody,
    Pool,
    RawRequest,
    RequestTimeouts,
    ResponseBody,
)
from tricklecast.trickle.client.faults import InvalidAnswer
from tricklecast.trickle.client.grammar import InvalidHead, header_line, request_line
from tricklecast.trickle.errors import (
    ConnectionLost,
    Refused,
    RemoteProtocolError,
    TrickleError,
    error_for,
    retry_after_s,
)

if TYPE_CHECKING:
    import httpx

    from tricklecast.trickle.client.arguments import HttpxAuth
    from tricklecast.trickle.client.bridge import HttpxBody

DETAIL_BYTES: Final = 1024
"""Bytes of an error's body that are read. After a longer body the connection is closed."""

DETAIL_S: Final = 0.5
"""Time to wait for an error's body, in seconds. The status is known by then: the body only explains it."""

DETAIL_CHARS: Final = 200
"""Characters of the body's first line that an error shows: a line for people, not a page of HTML."""

_TITLE: Final = re.compile(rb"<title[^<>]*>([^<>]*)</title", re.IGNORECASE)

MAX_REDIRECTS: Final = 5
"""Redirects that one request follows."""

_OWN_END: Final = re.compile(r"/(?:next|-?[0-9]+)(?=[?#]|$)")
"""The end that a request for the head, or for a segment, has behind the channel's URL."""

_INTEGERS: Final = (
    *(wire.SEQ, wire.LATEST, wire.EARLIEST, wire.NEXT, wire.SIZE, wire.EPOCH),
    *(wire.PUBLISHING_FOR, wire.RETRY_AFTER),
)
_TEXTS: Final = (wire.CLOSED, wire.TRUNCATED, wire.LIFE, wire.PUBLISHER, wire.NODE, wire.ELSEWHERE)
_KNOWN: Final = {name.lower().encode(): (name, True) for name in _INTEGERS} | {
    name.lower().encode(): (name, False) for name in _TEXTS
}
"""The protocol's headers by their names in lower case: the name in ``trickle.wire``, and whether it is an integer."""

_OTHERS: Final = frozenset({b"content-type", b"content-length", b"content-encoding", b"location"})
"""HTTP's own headers that are read."""

_KEY: Final = wire.IDEMPOTENCY_KEY.encode()
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_INTEGER: Final = re.compile(r"-?[0-9]{1,15}", re.ASCII)


@lru_cache(maxsize=64)  # the next response has most of them, too; each is a part of a head, so all take 4 MiB at most
def _read(field: tuple[bytes, bytes]) -> tuple[str, str, bool] | None:
    """Read one header: its name, its value, and whether it is the protocol's; ``None`` if no client reads it.

    The value is empty if it breaks the protocol's rules.
    """
    lower = field[0].lower()
    if lower in _OTHERS:
        return lower.decode(), _printable(field[1]), False
    if (found := _KNOWN.get(lower)) is None:
        return None
    name, is_integer = found
    text = _printable(field[1])
    return name, "" if is_integer and not _INTEGER.fullmatch(text) else text, True


@dataclass(slots=True)
class Answer:
    """One response: the status and the headers that a client reads, and the body.

    Attributes:
        status: the HTTP status.
        headers: the protocol's headers, under the names of ``trickle.wire``. An integer header whose value is not an
            integer of at most 15 digits is left out, as if the server had not sent it.
        content_type: the segment's media type.
        empty: the response has no body (``Content-Length: 0``).
        detail: the first line of an error's body, for people.
        location: where a redirect leads, as the server wrote it.
        coding: the body's compression, for example ``gzip``; empty if there is none.
        body: open only if the caller of :func:`exchange` asked for that.
        requested_at, answered_at: when the request was made and when its head came, in seconds on a monotonic clock, as
            a caller notes it that wants to know.
    """

    status: int
    headers: Mapping[str, str]
    content_type: str = ""
    empty: bool = False
    detail: str = ""
    coding: str = ""
    location: str = ""
    body: ResponseBody | HttpxBody = field(default=NO_BODY, repr=False, compare=False)
    requested_at: float = 0.0
    answered_at: float = 0.0

    @classmethod
    def read(
        cls, status: int, headers: Iterable[tuple[bytes, bytes]], body: ResponseBody | HttpxBody = NO_BODY
    ) -> Answer:
        """Read a response's head.

        Args:
            status: the HTTP status.
            headers: all headers, with names in any case. A header of the protocol that comes twice is left out.
            body: the bytes behind the head.
        """
        known: dict[str, str] = {}
        twice: set[str] = set()
        others: dict[str, str] = {}
        for name, text, is_known in filter(None, map(_read, headers)):
            if not is_known:
                others[name] = text
            elif name in known:
                twice.add(name)
            elif text:
                known[name] = text
        for name in twice:
            del known[name]
        detail = location = ""
        if 300 <= status < 400 and (location := others.get("location", "")):
            detail = _redirect_text(location)
        empty = others.get("content-length") == "0"
        coding = others.get("content-encoding", "").lower()
        content_type = others.get("content-type", "")
        return cls(status, known, content_type, empty, detail, "" if coding == "identity" else coding, location, body)

    def natural(self, name: str) -> int | None:
        """Return the value of an integer header; ``None`` if it is missing or negative, which no seq is."""
        text = self.headers.get(name)
        return None if text is None or (value := int(text)) < 0 else value

    @property
    def closed(self) -> bool:
        """Whether the channel has ended (docs/reference/protocol.md, section 5)."""
        return wire.CLOSED in self.headers

    @property
    def life(self) -> wire.Life | None:
        """The numbering of the channel's segments; ``None`` if the server does not say."""
        return wire.parse_life(self.headers.get(wire.LIFE, ""))

    @property
    def retry_after_s(self) -> float | None:
        """The value of ``Retry-After``, in seconds; ``None`` if there is none."""
        return retry_after_s(self.headers)

    def error(self, seq: int | None) -> TrickleError:
        """Return the exception for this response, about the segment ``seq``."""
        return error_for(self.status, self.headers, seq=seq, detail=self.detail)


class Lost(NamedTuple):
    """A request without a response.

    Attributes:
        error: the cause. A ``RemoteProtocolError`` means that the program at that URL does not speak HTTP; ``Refused``,
            that the server wants another certificate of this client.
        connected: a connection had been made.
        waited_s: seconds that the client waited before it gave up; 0 if the connection broke.
    """

    error: ConnectionLost | RemoteProtocolError | Refused
    connected: bool = True
    waited_s: float = 0.0


# Requests.


class TrickleClient:
    """Sends the requests of one client that need no httpx; the others go by :meth:`by_httpx`.

    Args:
        verify: whether and how the server's certificate is checked, as in httpx.
        transport: of the program, instead of a :class:`Pool`.
        headers: sent with every request.
        auth: a token, or any authentication that httpx knows.
        timeout: of each request that has none of its own.

    Attributes:
        pool: has the connections; ``None``: the transport has other ones, or changes requests.
        httpx: the client of httpx, once a request has needed it.
        is_closed: it sends nothing any more.
    """

    def __init__(
        self,
        verify: ssl.SSLContext | bool = True,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        auth: HttpxAuth | None = None,
        timeout: RequestTimeouts | httpx.Timeout = NO_TIMEOUTS,
    ) -> None:
        self.timeout = timeout
        self.transport = transport
        self.headers = headers
        self.auth = auth
        pool = Pool(verify) if transport is None else getattr(transport, "plain", None)
        self.pool = pool if isinstance(pool, Pool) else None
        # Most lines of a head are those of the request before. (Kept by the client, since a token is among them.)
        self._lines = lru_cache(maxsize=32)(partial(_lines, headers))
        self.httpx: httpx.AsyncClient | None = None
        self.is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def by_httpx(self) -> httpx.AsyncClient:
        """The client of httpx for the requests that this one does not send itself; both share their connections.

        Raises:
            RuntimeError: this client is closed.
        """
        if self.is_closed:
            raise RuntimeError("the client is closed")
        if self.httpx is None:
            from tricklecast.trickle.client import bridge  # httpx is wanted

            transport = self.transport
            if transport is None:
                assert self.pool is not None, "there is no transport"
                transport = bridge.TrickleTransport(self.pool)
            self.httpx = bridge.httpx_client(transport, self.headers, self.auth, self.timeout)
        return self.httpx

    async def aclose(self) -> None:
        """Close the connections that are not in use."""
        self.is_closed = True
        if self.httpx is not None:
            await self.httpx.aclose()
        elif self.transport is not None:
            await self.transport.aclose()
        if self.pool is not None:
            await self.pool.aclose()

    def send_plain(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: LiveBody | None,
        timeouts: httpx.Timeout | RequestTimeouts | None,
        auth: HttpxAuth | None = None,
        key: str = "",
    ) -> Coroutine[Any, Any, ResponseBody] | None:
        """Send a request without httpx.

        Args:
            method, url, headers: as in httpx.
            body: sent in chunks.
            timeouts, auth: instead of the client's.
            key: the value of ``Idempotency-Key``, the header that no other request has; empty: none.

        Returns:
            A call that sends it, and returns the response's body, which has its head: :meth:`Pool.send`. ``None``: only
            httpx can send it.

        Raises:
            TransportError: HTTP does not allow the request, or its URL has another scheme.
        """
        auth, pool = auth or self.auth, self.pool
        if pool is None or not (auth is None or isinstance(auth, Bearer)):
            return None
        if self.is_closed or "@" in url or not url.isascii():
            return None
        root = url.find("/", url.find("//") + 2)
        token = None if auth is None else auth.token
        try:
            origin, lines = self._lines(url[:root], tuple(headers.items()), token, body is not None, key != "")
            line = request_line(method.encode(), url[root:].encode())
            if key:
                line += header_line(_KEY, key.encode())
        except InvalidHead as error:
            raise faults.LocalProtocolError(str(error)) from error
        timeouts = timeouts or self.timeout
        head = b"%b%b\r\n" % (line, lines)
        length = 0 if body is None else None
        return pool.send(RawRequest(origin, head, body, length, timeouts.connect, timeouts.write, timeouts.read))


def _lines(
    usual: Mapping[str, str],
    root: str,
    headers: tuple[tuple[str, str], ...],
    token: str | None,
    has_body: bool,
    has_key: bool,
) -> tuple[Origin, bytes]:
    """The server of a request, and the lines of its head that a later request may have, too.

    Args:
        usual: headers of all requests. headers: of this one, which replace them.
        root: ``scheme://host:port``.
        has_key: ``Idempotency-Key`` is none of them, since the request has its own.
    """
    origin, host = origin_of(root)
    fields = {b"host": header_line(b"Host", host)}
    for name, value in (*usual.items(), *headers, *([] if token is None else [("Authorization", f"Bearer {token}")])):
        fields[name.lower().encode()] = header_line(name.encode(), value.encode())
    if has_body:
        fields[b"transfer-encoding"] = b"Transfer-Encoding: chunked\r\n"
    if has_key:
        fields.pop(_KEY.lower(), None)
    return origin, b"".join(fields.values())


ExchangeOutcome = Answer | Lost


async def exchange(
    http: TrickleClient | httpx.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str] = _NO_HEADERS,
    *,
    body: LiveBody | None = None,
    timeouts: httpx.Timeout | RequestTimeouts | None = None,
    seq: int | None = None,
    place: str = "",
    auth: HttpxAuth | None = None,
    key: str = "",
    stays_open: Callable[[Answer], bool] | None = None,
) -> ExchangeOutcome:
    """Send a request, and wait for the head of its response.

    A GET or HEAD follows redirects within its origin, where a proxy may have moved the base path; at most
    :data:`MAX_REDIRECTS` of them, since they may lead in a circle. No request leaves its origin: it would take the
    token along.

    Args:
        http: sends it.
        method, url, headers: as in httpx.
        body: sent in chunks.
        timeouts: timeouts instead of those of ``http``.
        seq: the segment that the request is about, for errors.
        place: stands before the reason of a loss, for example the server's address.
        auth: authentication instead of that of ``http``.
        key: the value of ``Idempotency-Key``; empty: the request has no such header.
        stays_open: returns whether the caller reads the response's body; ``None``: it never does. If not, the first
            line is read, for at most :data:`DETAIL_S` seconds, and the body is closed.
    """
    redirects = 0
    while True:
        try:
            sending = None
            if isinstance(http, TrickleClient):
                sending = http.send_plain(method, url, headers, body, timeouts, auth, key)
            received: ResponseBody | HttpxBody
            if sending is None:
                own = {**headers, wire.IDEMPOTENCY_KEY: key} if key else headers
                status, fields, received = await _by_httpx(http, method, url, own, body, timeouts, auth)
            else:
                received = await sending
                status, fields = received.head.status_code, received.head.headers
        except InvalidAnswer as error:
            return Lost(RemoteProtocolError(seq=seq, detail=f"{place}{error}"))
        except faults.CertificateRefused as error:
            return Lost(Refused(seq=seq, detail=f"{place}{error}"))
        except faults.TransportError as error:
            why = str(error) or type(error).__name__
            if isinstance(error, faults.ConnectError | faults.ConnectTimeout):
                server = wire.redacted("/".join(url.split("/", 3)[:3]))
                return Lost(ConnectionLost(seq=seq, detail=why, server=server), connected=False)
            lost = ConnectionLost(seq=seq, detail=f"{place}{why}")
            timeouts = timeouts or http.timeout
            if isinstance(error, faults.ReadTimeout):
                return Lost(lost, waited_s=timeouts.read or 0.0)
            return Lost(lost, waited_s=(isinstance(error, faults.WriteTimeout) and timeouts.write) or 0.0)
        answer = Answer.read(status, fields, received)
        target = _redirected(method, url, answer) if answer.location and redirects < MAX_REDIRECTS else None
        if target is None:
            break
        url, redirects = target, redirects + 1
        await _beginning(answer)
    if stays_open is not None and stays_open(answer):
        return answer
    if answer.empty and isinstance(answer.body, ResponseBody):  # our transport sees an empty body's end without a read
        answer.body.close()
    else:
        line = first_line(await _beginning(answer))
        answer.detail = answer.detail or line
    if answer.location:
        answer.detail = _redirect_text(_channel_behind(method, url, answer.location, has_body=body is not None))
    return answer


def _redirected(method: str, url: str, answer: Answer) -> str | None:
    """The URL to ask instead; ``None`` if the redirect is not followed."""
    if method not in ("GET", "HEAD"):
        return None
    try:
        target = urljoin(url, answer.location)
        return target if urlsplit(target)[:2] == urlsplit(url)[:2] else None
    except ValueError:  # the server has sent no URL
        return None


def _channel_behind(method: str, url: str, location: str, *, has_body: bool) -> str:
    """The URL that a user can give instead: the whole one, without the end that this client has put behind it."""
    with suppress(ValueError):  # the server has sent no URL
        location = urljoin(url, location)
    own = _OWN_END.search(url) if method in ("GET", "HEAD") or has_body else None
    found = _OWN_END.search(location)
    if own is None or found is None or own[0] != found[0]:
        return location
    return location[: found.start()] + location[found.end() :]


def _redirect_text(target: str) -> str:
    return f"it redirects to {wire.redacted(target)[:DETAIL_CHARS]}: use that URL instead"


async def _by_httpx(
    http: TrickleClient | httpx.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: LiveBody | None,
    timeouts: httpx.Timeout | RequestTimeouts | None,
    auth: HttpxAuth | None,
) -> tuple[int, Iterable[tuple[bytes, bytes]], ResponseBody | HttpxBody]:
    """Send a request that needs httpx."""
    from tricklecast.trickle.client import bridge  # httpx is wanted

    if isinstance(http, TrickleClient):
        http = http.by_httpx()
    response, received = await bridge.send(http, method, url, headers, body, timeouts, auth)
    return response.status_code, response.headers.raw, received


def first_line(body: bytes) -> str:
    """Return the first line of an error's body, printable and short. Of a web page, its title: it is another program's.

    A proxy's page for 502 has a first line of ``<html>``, which says nothing to anybody.
    """
    body = body.strip()
    if body[:1] == b"<":
        title = _TITLE.search(body)
        body = b"a web page" + (b": " + title[1].strip() if title else b"")
    return _printable(body.partition(b"\n")[0])[:DETAIL_CHARS].strip()


def _printable(data: bytes) -> str:
    # Without characters that could control a terminal or forge a line of a log.
    text = data.decode("utf-8", "replace").strip()
    return text if text.isprintable() else "".join(char for char in text if char.isprintable())


async def _beginning(answer: Answer) -> bytes:
    """Read the beginning of a body and close it. A body that ends soon leaves its connection usable."""
    body, begin = answer.body, b""
    try:
        with anyio.move_on_after(DETAIL_S):
            while len(begin) <= DETAIL_BYTES and (chunk := await body.receive()):
                begin += chunk
    except faults.TransportError:
        pass  # the status counts even if the body breaks off
    finally:
        await body.aclose()
    return begin[:DETAIL_BYTES]
