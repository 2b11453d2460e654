"""Requests to the control plane of a server, for commands."""

from __future__ import annotations

import ssl
from typing import Any, Final

import anyio
import httpx

from tricklecast.trickle.client.transport import InvalidAnswer, TrickleTransport
from tricklecast.trickle.errors import ConnectionLost, RemoteProtocolError
from tricklecast.trickle.terminal import Bearer
from tricklecast.trickle.wire import redacted

TIMEOUT_S: Final = 10.0


async def ask(
    root: str,
    route: str,
    tls: ssl.SSLContext | None,
    auth: Bearer | None,
    *,
    method: str = "GET",
    within_s: float = TIMEOUT_S,
) -> httpx.Response:
    """Send a request without a body.

    Args:
        root: of the server, as :func:`.arguments.server_url` gives it. route: the path and the query.
        tls: the authorities that https servers are checked against; ``None``: the system's.
        auth: adds an access token. within_s: the deadline of the answer.

    Raises:
        ConnectionLost: the server does not answer. RemoteProtocolError: that is no answer of HTTP.
    """
    shown = redacted(root)
    try:
        async with httpx.AsyncClient(transport=TrickleTransport(tls or True), timeout=within_s, auth=auth) as client:
            with anyio.fail_after(within_s):
                return await client.request(method, root + route)
    except InvalidAnswer as error:
        raise RemoteProtocolError(detail=f"{shown}: {error}") from error
    except TimeoutError as error:
        raise ConnectionLost(detail=f"{shown}: no answer within {within_s:g} s") from error
    except httpx.ConnectError as error:
        raise ConnectionLost(detail=str(error), server=shown) from error
    except httpx.TransportError as error:
        raise ConnectionLost(detail=f"{shown}: {error or type(error).__name__}") from error


def json_of(response: httpx.Response) -> Any:
    """The body; ``None`` if it is not JSON."""
    try:
        return response.json()
    except ValueError:
        return None
