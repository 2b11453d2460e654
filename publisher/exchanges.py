"""The four requests of a publisher: HTTP on one side, outcomes on the other."""

from __future__ import annotations

from typing import Final

import httpx

from tricklecast.publisher.body import Sending
from tricklecast.publisher.verdicts import Answered, Lost, Outcome, Ticket
from tricklecast.trickle import __version__, wire
from tricklecast.trickle.client.arguments import check_header_value
from tricklecast.trickle.errors import ConnectionLost, RemoteProtocolError
from tricklecast.trickle.paths import ChannelURL

USER_AGENT: Final = f"tricklecast/{__version__}"

CONNECT_S: Final = 5.0
"""Two lost SYNs are made up for by then."""

SILENCE_S: Final = 10.0
"""A peer that for so long takes nothing of a body, or owes the answer to one that it has, is given up. A server
answers a whole body at once; what is longer than this in a live stream's way has lost it its audience."""

TIMEOUT: Final = httpx.Timeout(connect=CONNECT_S, write=SILENCE_S, read=SILENCE_S, pool=None)

_DETAIL_BYTES: Final = 1024


def media_type(text: str) -> str:
    """Check the media type of segments.

    Raises:
        InvalidInput: a header cannot carry it.
    """
    check_header_value("Content-Type", text)
    return text


class Exchanges:
    """Makes requests about one channel.

    Args:
        http: an httpx client; its transport must read while it writes.
        url: the channel.
        content_type: the media type of its segments.
    """

    def __init__(self, http: httpx.AsyncClient, url: ChannelURL, content_type: str) -> None:
        self._http = http
        self._url = url
        self._content_type = media_type(content_type)

    async def post(self, ticket: Ticket, body: Sending) -> Outcome:
        """Publish a segment. Returns early if the server answers early."""
        headers = {"Content-Type": self._content_type, wire.IDEMPOTENCY_KEY: ticket.key}
        if ticket.reset:
            headers[wire.RESET] = "1"
        if ticket.numbering:
            headers[wire.LIFE] = ticket.numbering
        url = self._url.segment(ticket.seq)
        request = self._http.build_request("POST", url, content=body, headers=headers | _attempt(ticket.attempt))
        return await self._send(request, ticket.seq)

    async def next(self, attempt: int) -> Outcome:
        """Ask where the head is."""
        return await self._send(self._http.build_request("GET", self._url.next(), headers=_attempt(attempt)))

    async def delete(self, attempt: int) -> Outcome:
        """End the channel."""
        return await self._send(self._http.build_request("DELETE", str(self._url), headers=_attempt(attempt)))

    async def give_up(self, seq: int) -> Outcome:
        """Tell the server that no more will come of a segment: what it has is a part."""
        headers = {wire.TRUNCATED: "dropped"}
        return await self._send(self._http.build_request("DELETE", self._url.segment(seq), headers=headers), seq)

    async def _send(self, request: httpx.Request, seq: int | None = None) -> Outcome:
        try:
            response = await self._http.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return Lost(ConnectionLost(seq=seq, detail=_reason(error)), connected=False)
        except httpx.RemoteProtocolError as error:
            return Lost(RemoteProtocolError(seq=seq, detail=_reason(error)))
        except httpx.TimeoutException as error:
            return Lost(ConnectionLost(seq=seq, detail=_reason(error)), waited_s=SILENCE_S)
        except httpx.TransportError as error:
            return Lost(ConnectionLost(seq=seq, detail=_reason(error)))
        return Answered(response.status_code, response.headers, await _first_line(response))


def _attempt(number: int) -> dict[str, str]:
    return {wire.ATTEMPT: str(number)} if number > 1 else {}


async def _first_line(response: httpx.Response) -> str:
    """The first line of a body, for people. The status counts even if the body breaks off."""
    data = b""
    try:
        async for part in response.aiter_bytes():
            data += part
            if len(data) >= _DETAIL_BYTES:
                break
    except (httpx.TransportError, httpx.DecodingError):
        pass
    finally:
        await response.aclose()
    lines = data[:_DETAIL_BYTES].decode("utf-8", "replace").splitlines()
    return "".join(char for char in lines[0] if char.isprintable()).strip() if lines else ""


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
