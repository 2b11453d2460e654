"""A channel as a whole: create it, ask where its head is, end it. One request each, without retries."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from tricklecast.trickle import __version__, wire
from tricklecast.trickle.client.answers import Answer, Lost, exchange
from tricklecast.trickle.client.arguments import channel_url, check_header_value, check_headers, check_number
from tricklecast.trickle.client.transport import TrickleTransport
from tricklecast.trickle.errors import ChannelNotFound, RemoteProtocolError

USER_AGENT: Final = f"tricklecast/{__version__}"


@dataclass(frozen=True, slots=True)
class Head:
    """Where a channel stands.

    Attributes:
        next_seq: the head: one past the newest segment that has begun.
        epoch: which life of the channel's name this is; ``None`` if the server does not say.
        ended: whether the channel is over.
    """

    next_seq: int
    epoch: int | None
    ended: bool


class Channel:
    """A channel of a server, under asyncio or trio. It keeps no connection: there is nothing to close.

    Args:
        url: the channel, ``http[s]://host:port/trickle/CHANNEL``.
        headers: sent with every request.
        auth: any authentication that httpx knows.
        verify: whether and how the server's certificate is checked, as in httpx.
        timeout_s: how long each step of a request may take (connect, send, answer), in seconds.

    Raises:
        InvalidInput: an argument is wrong.

    Every method raises :exc:`~tricklecast.trickle.errors.BrokenByPeer`: ``ConnectionLost`` if there is no answer,
    ``Refused`` if the server says no, and the errors that it names itself.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | tuple[str, str] | Callable[[httpx.Request], httpx.Request] | None = None,
        verify: ssl.SSLContext | bool = True,
        timeout_s: float = 10.0,
    ) -> None:
        check_headers(headers or {})
        check_number("timeout_s", timeout_s, above=0)
        self.url = channel_url(url)
        self._headers = {"User-Agent": USER_AGENT, **(headers or {})}
        self._auth = auth
        self._verify = verify
        self._timeout = httpx.Timeout(timeout_s)

    async def create(self, content_type: str = wire.DEFAULT_CONTENT_TYPE) -> None:
        """Create the channel. If it exists already, nothing changes, its media type included.

        Args:
            content_type: the media type of its segments.

        Raises:
            InvalidInput: the media type cannot be sent.
        """
        check_header_value("content_type", content_type)
        answer = await self._request("POST", str(self.url), {wire.EXPECT_CONTENT: content_type})
        if answer.status != wire.Status.OK:
            raise answer.error(None)

    async def head(self) -> Head:
        """Ask where the channel stands.

        Raises:
            ChannelNotFound: there is no such channel.
            RemoteProtocolError: the answer does not say it.
        """
        answer = await self._request("GET", self.url.next())
        if answer.status != wire.Status.OK and not answer.closed:
            raise answer.error(None)
        next_seq = answer.natural(wire.LATEST)
        if next_seq is None:
            raise RemoteProtocolError(answer.status, detail=f"no {wire.LATEST}")
        return Head(next_seq, answer.natural(wire.EPOCH), answer.closed)

    async def end(self) -> None:
        """End the channel: its readers are told. Its segments can still be read for some seconds.

        Raises:
            ChannelNotFound: there is no such channel, or it has ended already.
        """
        answer = await self._request("DELETE", str(self.url))
        if answer.status == wire.Status.BAD_REQUEST:  # what the protocol says of a missing channel
            raise ChannelNotFound(answer.status, detail=answer.detail)
        if answer.status != wire.Status.OK:
            raise answer.error(None)

    async def _request(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> Answer:
        transport = TrickleTransport(verify=self._verify)
        async with httpx.AsyncClient(
            transport=transport, headers=self._headers, auth=self._auth, timeout=self._timeout
        ) as http:
            opened = await exchange(http, method, url, headers or {})
            if isinstance(opened, Lost):
                raise opened.error
            return opened.answer
