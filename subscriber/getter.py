"""One GET: its URL and headers, its longest wait, and what every failure of httpx is called here."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import anyio
import httpx

from tricklecast.subscriber.transport import GarbageAnswer
from tricklecast.subscriber.verdicts import Answer, Ask, Gone
from tricklecast.trickle import __version__, wire
from tricklecast.trickle.errors import ConnectionLost, RemoteProtocolError
from tricklecast.trickle.paths import ChannelURL

CONNECT_TIMEOUT_S: Final = 10.0

DETAIL_BYTES: Final = 1024
"""How much of an error's body is read; a longer one costs its connection."""

DETAIL_TIMEOUT_S: Final = 2.0
"""How long an error's body is waited for: it only makes a message nicer."""


@dataclass(frozen=True, slots=True)
class Got:
    """A response's head. The response is open only if a segment's bytes may follow."""

    answer: Answer
    response: httpx.Response


class Getter:
    """Makes the GETs of one subscriber.

    Args:
        url: the channel.
        client: what sends them.
    """

    def __init__(self, url: ChannelURL, client: httpx.AsyncClient) -> None:
        self._url = url
        self._server = wire.redacted(url.root)
        self._client = client
        self._headers = {
            "Accept-Encoding": "identity",
            "User-Agent": f"tricklecast-subscriber/{__version__}",
            # A name that stays the same over reconnects, by which logs can tell one client from another; no 16 digits,
            # as those are that a server gives to clients without a name.
            wire.CLIENT: f"subscriber-{secrets.token_hex(6)}",
        }

    async def get(self, ask: Ask, wait_s: float) -> Got | ConnectionLost | RemoteProtocolError | None:
        """Make one GET.

        Args:
            ask: which.
            wait_s: longest time until the head of the answer, in seconds.

        Returns:
            The answer's head, or why there is none; ``None`` if the wait was over first.
        """
        url = self._url.next() if ask.seq is None else self._url.segment(ask.seq)
        headers = self._headers | {wire.ATTEMPT: str(ask.attempt)}
        # No timeout on reading: waiting is the normal state, and ``wait_s`` bounds it.
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        request = self._client.build_request("GET", url, headers=headers, timeout=timeout)
        response: httpx.Response | None = None
        with anyio.move_on_after(wait_s):
            try:
                response = await self._client.send(request, stream=True)
            except GarbageAnswer as error:
                return RemoteProtocolError(seq=ask.seq, detail=f"{self._server}: {error}")
            except httpx.TransportError as error:
                lost = Gone if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else ConnectionLost
                return lost(seq=ask.seq, detail=f"{self._server}: {error or type(error).__name__}")
        return None if response is None else await _read_head(ask, response)


def body_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """A response's chunks; also of one that a mock has filled already."""
    return response.aiter_bytes() if response.is_stream_consumed else response.aiter_raw()


async def _read_head(ask: Ask, response: httpx.Response) -> Got:
    answer = Answer.read(response.status_code, response.headers)
    if ask.seq is not None and answer.status == wire.Status.OK and not (answer.closed or answer.empty):
        return Got(answer, response)
    body = await _drain(response)
    return Got(Answer.read(response.status_code, response.headers, body), response)


async def _drain(response: httpx.Response) -> bytes:
    """The beginning of a body that is no segment. One that ends soon leaves its connection usable."""
    body = b""
    try:
        with anyio.move_on_after(DETAIL_TIMEOUT_S):
            async for chunk in body_of(response):
                body += chunk
                if len(body) > DETAIL_BYTES:
                    break
    except httpx.TransportError:
        pass  # the head is all that counts
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()
    return body[:DETAIL_BYTES]
