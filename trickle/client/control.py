"""Requests to the control plane of a server, for commands."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from tricklecast.trickle.client import faults
from tricklecast.trickle.client.arguments import Auth, httpx_auth
from tricklecast.trickle.client.exchange import first_line
from tricklecast.trickle.errors import ConnectionLost, Refused, RemoteProtocolError, TrickleError
from tricklecast.trickle.wire import printable, redacted

if TYPE_CHECKING:
    import httpx

TIMEOUT_S: Final = 10.0

QUIET_S: Final = 3.0
"""After this time, in seconds, a user who waits for an answer gets a line that says it."""


async def ask(
    root: str,
    route: str,
    tls: ssl.SSLContext | bool | None,
    auth: Auth | None,
    *,
    method: str = "GET",
    within_s: float = TIMEOUT_S,
    body: object = None,
) -> httpx.Response:
    """Send a request.

    Args:
        root: of the server, as :func:`.arguments.server_url` gives it. route: the path and the query.
        tls: the authorities that https servers are checked against; ``None`` and ``True``: the system's; ``False``:
            nothing is checked.
        auth: a token, or any authentication that httpx knows. within_s: the deadline of the answer.
        body: sent as JSON; none if ``None``.

    Raises:
        InvalidInput: a header cannot carry the token.
        ConnectionLost: the server does not answer. RemoteProtocolError: that is no answer of HTTP.
        Refused: the server wants another certificate of its clients.
    """
    import httpx  # it takes longer to load than both clients, and few programs ask the control plane

    from tricklecast.trickle.client.bridge import TrickleTransport

    transport = TrickleTransport(True if tls is None else tls)
    shown = redacted(root)
    try:
        async with httpx.AsyncClient(transport=transport, timeout=within_s, auth=httpx_auth(auth)) as client:
            with anyio.fail_after(within_s):
                return await client.request(method, root + route, json=body)
    except httpx.RemoteProtocolError as error:
        raise RemoteProtocolError(detail=f"{shown}: {error}") from error
    except TimeoutError as error:
        raise ConnectionLost(detail=f"{shown}: no answer within {within_s:g} s") from error
    except httpx.ConnectError as error:
        raise ConnectionLost(detail=str(error), server=shown) from error
    except httpx.TransportError as error:
        if isinstance(error.__cause__, faults.CertificateRefused):
            raise Refused(detail=f"{shown}: {error}") from error
        raise ConnectionLost(detail=f"{shown}: {error or type(error).__name__}") from error


async def answer_of(
    root: str,
    route: str,
    tls: ssl.SSLContext | bool | None,
    auth: Auth | None,
    *,
    absent: str,
    method: str = "GET",
    within_s: float = TIMEOUT_S,
    body: object = None,
) -> dict[str, Any]:
    """Send a request to a route that answers an object of JSON.

    Args:
        absent: the message about a server that has no such route. The others: as of :func:`ask`.

    Raises:
        ConnectionLost, RemoteProtocolError: as :func:`ask`; the latter also if there is no such route.
        Refused: it wants another token. TrickleError: it says no; the text is the server's.
    """
    response = await ask(root, route, tls, auth, method=method, within_s=within_s, body=body)
    answer, status = json_of(response), response.status_code
    if status == 200 and isinstance(answer, dict):
        return answer
    detail = answer.get("detail") if isinstance(answer, dict) else None
    if status < 400 or (status in (404, 405) and detail in ("Not Found", "Method Not Allowed", None)):
        raise RemoteProtocolError(status, detail=f"{redacted(root)} {absent}")
    line = first_line(response.content)
    if status in (401, 403):
        raise Refused(status, detail=f"{redacted(root)}: {line}")
    raise TrickleError(printable(str(detail or f"{redacted(root)} answers {status}: {line}")))


async def show(
    ask: Callable[[], Awaitable[dict[str, Any]]],
    table: Callable[[dict[str, Any]], str],
    *,
    as_json: bool,
    every_s: float | None,
) -> dict[str, Any]:
    """Print an answer: as JSON, or as a table.

    Args:
        ask: gets the answer. table: writes it for a person.
        every_s: seconds between two looks, which go on until cancelled. A terminal shows the newest answer only; a
            pipe gets each one that differs from the one before. If a server is away for a while, a line says so, and
            the command asks it again. ``None``: look once.

    A line on standard error says when a server takes long.

    Returns:
        The answer.

    Raises:
        ConnectionLost: the server does not answer, and is asked once only. TrickleError: as ``ask``.
    """
    shown = ""
    waits = f"tricklecast: no answer for {QUIET_S:g} s; it may take {TIMEOUT_S:g} s"
    while True:
        timer = asyncio.get_running_loop().call_later(QUIET_S, partial(print, waits, file=sys.stderr))
        try:
            answer = await ask()
            indent = 2 if every_s is None else None
            text = json.dumps(answer, indent=indent, ensure_ascii=False) if as_json else table(answer)
        except ConnectionLost as error:
            if every_s is None:
                raise
            text = f"tricklecast: {error}"
        finally:
            timer.cancel()
        if every_s is not None and sys.stdout.isatty() and not as_json:
            text = f"\x1b[H\x1b[J{text}"
        if text != shown:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
            shown = text
        if every_s is None:
            return answer
        await anyio.sleep(every_s)


def json_of(response: httpx.Response) -> Any:
    """The body; ``None`` if it is not JSON."""
    try:
        return response.json()
    except ValueError:
        return None
