"""Requests to a source: each has a deadline and a bound, and says in plain words what was answered instead.

No redirect is followed, and no proxy of the environment is used, as by all of this project's clients
(:mod:`~tricklecast.trickle.client.exchange`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from tricklecast.app.mirror.sides import SourceAway, SourceError, SourceLies
from tricklecast.trickle import __version__
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.arguments import server_url
from tricklecast.trickle.client.bridge import TrickleTransport, httpx_client
from tricklecast.trickle.errors import InvalidChannelName
from tricklecast.trickle.paths import MAX_DIGITS, parse_channel
from tricklecast.trickle.wire import printable, redacted

CONNECT_S: Final = 5.0

ANSWER_S: Final = 15.0
"""A source answers within this time, unless it is asked to wait."""

MAX_ANSWER: Final = 64 << 20
"""Bytes of an answer that is no segment: a list of 500,000 channels."""

MAX_SAID: Final = 200
"""Characters of a refusal's text that are shown."""

M = TypeVar("M", bound=BaseModel)


class Silent(SourceAway):
    """Nothing came within the time."""


class Requests:
    """Requests to one source.

    Args:
        url: of its base path, as clients have it: ``http://host:2939/trickle``.
        token: of access control; ``None`` for none. tls: the authorities that are trusted; ``None``: the system's.
        api: any URL of its control plane, if that has another address.

    Attributes:
        url, root: of its base path, and of its control plane. shown: the first one without secrets.

    Raises:
        InvalidInput: that is no URL of a server.
    """

    def __init__(
        self, url: str, token: str | None = None, tls: ssl.SSLContext | None = None, *, api: str | None = None
    ) -> None:
        self.root = server_url(api or url)
        self.url = url.partition("?")[0].rstrip("/")
        self.shown = redacted(self.url)
        self.tls = tls
        self.headers = {"User-Agent": f"tricklecast-mirror/{__version__}", "Trickle-Client": "mirror"}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self._client = httpx_client(TrickleTransport(tls or True), self.headers)

    def path(self, channel: str, tail: str | int) -> str:
        """The URL of something of a channel: of a segment, for example."""
        return f"{self.url}/{quote(channel, safe='')}/{tail}"

    @asynccontextmanager
    async def open(self, url: str, *, answer_s: float | None = ANSWER_S) -> AsyncIterator[httpx.Response]:
        """Send a GET; the response, whose body is not read yet.

        Args:
            answer_s: how long its head, and each silence in its body, may take; ``None``: as long as it takes.

        Raises:
            SourceError: there is no answer, also while the body is read (``SourceAway``: nor a connection).
        """
        timeout = httpx.Timeout(answer_s, connect=CONNECT_S)
        try:
            response = await self._client.send(self._client.build_request("GET", url, timeout=timeout), stream=True)
            try:
                yield response
            finally:
                await response.aclose()
        except (httpx.ReadTimeout, faults.ReadTimeout):
            raise Silent(f"{self.shown}: nothing came within {answer_s:g} s") from None
        except (httpx.TransportError, faults.TransportError) as error:
            trust = "certificate verify failed" in str(error)
            hint = ". Name its authority in the variable SSL_CERT_FILE of the process that asks" if trust else ""
            raise SourceAway(f"{self.shown}: {error or type(error).__name__}{hint}") from error

    async def get(self, url: str, *, within_s: float = ANSWER_S) -> tuple[httpx.Response, bytes]:
        """Send a GET; the response, and its body, which is no segment.

        Raises:
            SourceError: there is no answer within the time. SourceLies: it is too long.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(within_s), self.open(url, answer_s=within_s) as response:
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_ANSWER:
                        raise SourceLies(f"{self.shown}: an answer of more than {MAX_ANSWER} bytes")
        except TimeoutError:
            raise Silent(f"{self.shown}: no answer within {within_s:g} s") from None
        return response, bytes(body)

    async def read(self, model: type[M], route: str, right: str, *, within_s: float = ANSWER_S) -> M | httpx.Response:
        """Ask the control plane.

        Args:
            model: of the answer. route: the path and the query. right: which the token needs.

        Returns:
            The answer; the response, if its status is 404 or 410.

        Raises:
            SourceError: it refuses. SourceLies: its answer makes no sense.
        """
        response, body = await self.get(self.root + route, within_s=within_s)
        if response.status_code in (404, 410):
            return response
        if response.status_code != 200:
            raise self.refusal(response.status_code, body, right)
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = f"{route.partition('?')[0]}, {'.'.join(map(str, first['loc']))}"
            raise SourceLies(f"{self.shown}: {where} makes no sense: {first['msg']}") from None

    def refusal(self, status: int, body: bytes, right: str) -> SourceError:
        """What a status means that is not wanted."""
        said = printable(body[: 4 * MAX_SAID].decode("utf-8", "replace").partition("\n")[0])[:MAX_SAID]
        if status == 401:
            return SourceError(f"{self.shown} wants another token ({said}): it needs the right {right}")
        if status == 403:
            return SourceError(f"{self.shown}: the token lacks the right {right} ({said})")
        kind = SourceAway if status in (502, 503, 504) else SourceError  # most likely it is being restarted
        return kind(f"{self.shown} answers {status}: {said}")

    async def close(self) -> None:
        """Close idle connections."""
        await self._client.aclose()


def name_of(text: str) -> str:
    """The name of a channel, as the source tells it.

    Raises:
        SourceLies: no channel can have it.
    """
    try:
        return parse_channel(text.replace("%", "%25"))
    except InvalidChannelName as error:
        raise SourceLies(str(error)) from None


def number(response: httpx.Response, field: str) -> int:
    """The number in a header field.

    Raises:
        SourceLies: there is none.
    """
    text = response.headers.get(field, "")
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise SourceLies(f"{response.url.host}: {field} is no number: {text[:40]!r}")
    return int(text)
