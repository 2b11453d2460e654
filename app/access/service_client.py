"""The HTTP client for the operator's services: the key server and the webhook."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urlsplit

import httpx

from tricklecast.app.access.settings import LOOPBACK
from tricklecast.trickle import __version__


def service_client(
    url: str,
    headers: dict[str, str],
    *,
    timeout_s: float,
    connections: int | None = None,
) -> httpx.AsyncClient:
    """Make a client for one service.

    The client keeps no cookies: a service could set any number of them, and httpx would send them back unchecked. It
    asks a service on this machine without a proxy, even if ``HTTP_PROXY`` is set: the question, which may hold a
    token, must not leave the machine, and the answer must not come from another one.

    Args:
        url: of the service. headers: of each request, beside the user agent.
        timeout_s: for each step of a request, in seconds.
        connections: how many may be open at a time; ``None``: any number.
    """
    return httpx.AsyncClient(
        headers={"User-Agent": f"tricklecast/{__version__}", **headers},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=connections),
        trust_env=urlsplit(url).hostname not in LOOPBACK,
    )


def problem_of(error: Exception) -> str:
    """Say in one line why a service gave no answer.

    Callers use it for every exception, foreseen or not: an answer that breaks httpx is the service's fault, and must
    not end the task that asked, and the server with it.
    """
    text = str(error)
    return text if text and isinstance(error, httpx.HTTPError) else f"{type(error).__name__}: {text}".rstrip(": ")
