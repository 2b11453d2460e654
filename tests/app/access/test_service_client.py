"""The HTTP client for the operator's services: cookies, proxies of the environment, and errors."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.app.access.service import answering, service
from tests.support.waiting import WITHIN_S
from tricklecast.app.access.service_client import problem_of, service_client
from tricklecast.trickle import __version__


def test_no_cookie_is_kept() -> None:
    """The client ignores cookies, also one that it could not send back."""
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, headers=[(b"Set-Cookie", b"\xff\xfe=\x80; Max-Age=60"), (b"Set-Cookie", b"a=b")])

    async def main() -> None:
        async with service_client("http://x/", {"X": "y"}, timeout_s=1) as client:
            for _ in range(2):
                await client.get("http://x/")

    with answering(handle):
        asyncio.run(main())
    assert [request.headers.get("cookie") for request in asked] == [None, None]
    assert (asked[0].headers["user-agent"], asked[0].headers["x"]) == (f"tricklecast/{__version__}", "y")


def test_a_service_on_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's proxy counts for services on other machines only."""

    async def ask(url: str) -> int:
        async with service_client(url, {}, timeout_s=WITHIN_S) as client:
            return (await client.post(url, content=b"{}")).status_code

    with service() as asked, service() as proxy:
        asked.says(204)
        proxy.says(403)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert asyncio.run(ask(asked.url)) == 204
        assert asyncio.run(ask("http://elsewhere.invalid/")) == 403


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (httpx.ReadError("gone"), "gone"),
        (httpx.ReadError(""), "ReadError"),
        (ValueError("odd"), "ValueError: odd"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_problem_is_one_line(error: Exception, text: str) -> None:
    """The text for an exception is one line, and never empty."""
    assert problem_of(error) == text
