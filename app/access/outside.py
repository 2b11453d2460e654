"""How services outside are asked: nothing is taken from their answers but the answers."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urlsplit

import httpx

from tricklecast.app.access.settings import LOOPBACK
from tricklecast.trickle import __version__


def outside_client(
    url: str,
    headers: dict[str, str],
    transport: httpx.AsyncBaseTransport | None,
    *,
    timeout_s: float,
    connections: int | None = None,
) -> httpx.AsyncClient:
    """A client for one service.

    It keeps no cookies: there is no end to them, and they are sent back as they are. What is on this machine it asks
    without a proxy, whatever the environment says (``HTTP_PROXY``): the question, and the token in it, must not leave
    the machine, and the answer must not come from elsewhere.

    Args:
        url: that will be asked. headers: of each request, besides the user agent.
        transport: for tests.
        timeout_s: for each step of a request.
        connections: open at a time; ``None``: as many as it takes.
    """
    return httpx.AsyncClient(
        headers={"User-Agent": f"tricklecast/{__version__}", **headers},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=connections),
        transport=transport,
        trust_env=urlsplit(url).hostname not in LOOPBACK,
    )


def problem_of(error: Exception) -> str:
    """One line about why there is no answer.

    Whatever an answer provokes is its sender's fault, and means that there is none: it must not end the task that asks,
    and the whole server with it.
    """
    text = str(error)
    return text if text and isinstance(error, httpx.HTTPError) else f"{type(error).__name__}: {text}".rstrip(": ")
