"""Creates a channel, asks where its head is, and ends it. Each method sends one request, without retries."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Self

from tricklecast.trickle import wire
from tricklecast.trickle.client.arguments import (
    USER_AGENT,
    Auth,
    URLs,
    channel_urls,
    check_content_type,
    check_headers,
    check_number,
    check_verify,
    httpx_auth,
)
from tricklecast.trickle.client.connection import RequestTimeouts
from tricklecast.trickle.client.exchange import Answer, Lost, TrickleClient, exchange
from tricklecast.trickle.client.nodes import Nodes, ask
from tricklecast.trickle.errors import ChannelNotFound, LocalProtocolError, RemoteProtocolError
from tricklecast.trickle.paths import ChannelURL


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a channel.

    Attributes:
        next_seq: one past the newest segment that has begun; 0 if none has.
        epoch: counts the channels of this name; ``None`` if the server does not say.
        ended: the channel has ended.
    """

    next_seq: int
    epoch: int | None
    ended: bool


class Channel:
    """A channel of a server, under asyncio or trio.

    Inside ``async with Channel(url) as channel:`` its requests share a connection, which is closed where the block
    ends. Without a block, each request has a connection of its own, and there is nothing to close.

    Args:
        url: the channel, ``http[s]://host:port/trickle/CHANNEL``; or several such URLs, one for each node of a cluster.
            A query (``?token=…``) is sent with each request.
        headers: sent with every request.
        auth: a token, or any authentication that httpx knows.
        verify: whether and how the server's certificate is checked, as in httpx.
        timeout_s: how long each step of a request may take (connect, send, response), in seconds.

    Raises:
        InvalidInput: an argument is wrong.

    Besides the errors that it names, each method raises ``ConnectionLost`` if there is no response, and ``Refused`` if
    the server says no. Both are :exc:`~tricklecast.trickle.errors.BrokenByPeer`.
    """

    def __init__(
        self,
        url: URLs,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        verify: ssl.SSLContext | bool = True,
        timeout_s: float = 10.0,
    ) -> None:
        check_headers(headers or {})
        check_verify(verify)
        check_number("timeout_s", timeout_s, above=0)
        urls = channel_urls(url)
        self.url = urls[0]
        self._nodes = Nodes(urls, Random())
        self._headers = {"User-Agent": USER_AGENT, **(headers or {})}
        self._auth = httpx_auth(auth)
        self._verify = verify
        self._timeout = RequestTimeouts.each(timeout_s)
        self._kept: TrickleClient | None = None  # inside a block

    async def __aenter__(self) -> Self:
        if self._kept is not None:
            raise LocalProtocolError("the channel is in a block already")
        self._kept = self._client()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection of the block. Without a block it does nothing."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.aclose()

    async def create(self, content_type: str = wire.DEFAULT_CONTENT_TYPE) -> None:
        """Create the channel. A channel that exists stays as it is, and keeps its media type.

        Args:
            content_type: the media type of its segments.

        Raises:
            InvalidInput: this is no media type.
        """
        check_content_type(content_type)
        answer = await self._request("POST", str, {wire.EXPECT_CONTENT: content_type})
        if answer.status != wire.Status.OK:
            raise answer.error(None)

    async def head(self) -> Head:
        """Ask for the channel's head.

        Raises:
            ChannelNotFound: the channel does not exist.
            RemoteProtocolError: the response does not name the head.
        """
        answer = await self._request("GET", ChannelURL.next)
        if answer.status != wire.Status.OK and not answer.closed:
            raise answer.error(None)
        next_seq = answer.natural(wire.LATEST)
        if next_seq is None:
            raise RemoteProtocolError(answer.status, detail=f"no {wire.LATEST}")
        return Head(next_seq, answer.natural(wire.EPOCH), answer.closed)

    async def end(self) -> None:
        """End the channel. Waiting readers learn it at once; its segments can still be read for some seconds.

        Raises:
            ChannelNotFound: the channel does not exist, or has ended already.
        """
        answer = await self._request("DELETE", str)
        if answer.status == wire.Status.BAD_REQUEST:  # the protocol's status for the DELETE of a missing channel
            raise ChannelNotFound(wire.Status.NOT_FOUND, detail=answer.detail)
        if answer.status != wire.Status.OK:
            raise answer.error(None)

    async def _request(
        self, method: str, target: Callable[[ChannelURL], str], headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with self._client() if self._kept is None else nullcontext(self._kept) as http:
            outcome = await ask(self._nodes, lambda url: exchange(http, method, target(url), headers or {}))
        if isinstance(outcome, Lost):
            raise outcome.error
        return outcome

    def _client(self) -> TrickleClient:
        return TrickleClient(self._verify, headers=self._headers, auth=self._auth, timeout=self._timeout)
