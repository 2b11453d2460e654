"""How services outside are asked, whatever they answer and whatever the environment says."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.app.access.service import service
from tests.app.access.test_webhooks import ask_all
from tests.support.waiting import WITHIN_S, until
from tricklecast.app.access.jwks import KeyServer
from tricklecast.app.access.outside import outside_client, problem_of
from tricklecast.app.access.webhooks import FAILED

STRANGE_COOKIE = [(b"Set-Cookie", b"\xff\xfe=\x80; Max-Age=60")]


def test_no_cookie_is_kept() -> None:
    """Another header of an answer is none of ours, least of all one that could not be sent back."""
    asked: list[httpx.Request] = []

    def answering(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, headers=STRANGE_COOKIE)

    decisions, _ = ask_all(answering, b"1", b"2", b"3", concurrency=1)
    assert decisions == [200, 200, 200]
    assert [request.headers.get("cookie") for request in asked] == [None, None, None]


def test_an_answer_that_nobody_foresaw(caplog: pytest.LogCaptureFixture) -> None:
    """It is no answer; the next question is asked all the same."""

    def strange(request: httpx.Request) -> httpx.Response:
        if request.content == b"1":
            raise UnicodeError("what is that")
        return httpx.Response(200)

    decisions, _ = ask_all(strange, b"1", b"2", concurrency=1)
    assert decisions == [FAILED, 200]
    assert [record.message for record in caplog.records] == ["http://hook/ does not decide: UnicodeError: what is that"]


def test_keys_that_nobody_foresaw() -> None:
    """They are a fetch that failed, and it is tried again."""

    def strange(request: httpx.Request) -> httpx.Response:
        raise UnicodeError("what is that")

    async def main() -> None:
        keys = KeyServer(
            "https://keys/",
            refetch_s=0.001,
            max_age_s=3600,
            changed=lambda: None,
            transport=httpx.MockTransport(strange),
        )
        task = asyncio.create_task(keys.run())
        async with asyncio.timeout(WITHIN_S):
            await until(lambda: keys.failures > 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_what_is_on_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked must not leave the machine."""

    async def ask(url: str) -> int:
        async with outside_client(url, {}, None, timeout_s=WITHIN_S) as client:
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
def test_what_is_said_about_it(error: Exception, text: str) -> None:
    """One line, never an empty one."""
    assert problem_of(error) == text
