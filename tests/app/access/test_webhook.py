"""The webhook: how it is asked, how long its answers are used, and what counts as no answer."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from functools import partial
from hashlib import sha256
from typing import Any

import httpx
import pytest
from pydantic import SecretBytes

from tests.app.access.service import answering
from tests.support.waiting import until
from tricklecast.app.access.webhook import FAILED, MAX_CACHE_S, MAX_WAITING, Webhook, max_age_s, sign


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def ask_all(handler: Callable[[httpx.Request], Any], *bodies: bytes, **options: Any) -> tuple[list[int], Webhook]:
    """Ask, and wait for all answers. Returns the decisions in the order of the questions, and the webhook."""

    async def main() -> tuple[list[int], Webhook]:
        settings = {"secret": None, "timeout_s": 20.0, "concurrency": 2, "cache_s": 5.0, **options}
        hook = Webhook("http://hook/", **settings)
        running = asyncio.create_task(hook.run())
        decisions = dict.fromkeys(range(len(bodies)), 0)
        for number, body in enumerate(bodies):
            assert hook.ask(body, partial(decisions.__setitem__, number))
        assert not any(decisions.values()), "the callback comes later"
        await until(lambda: all(decisions.values()))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return list(decisions.values()), hook

    with answering(handler):
        return asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "decision"),
    [(200, 200), (204, 200), (299, 200), (401, 401), (403, 403), (404, 404)]
    + [(status, FAILED) for status in (302, 400, 402, 429, 500, 503)],
)
def test_decisions(status: int, decision: int) -> None:
    """2xx allows, 401, 403 and 404 refuse; any other status, also a redirect, is no answer."""
    decisions, hook = ask_all(lambda request: httpx.Response(status, headers={"Location": "/elsewhere"}), b"x")
    assert decisions == [decision]
    assert hook.outcomes == {decision: 1}


def test_a_request() -> None:
    """The question is a signed JSON text."""
    sent: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(204)

    ask_all(handle, b"{}", secret=SecretBytes(b"key"), wall=lambda: 7.9)
    (request,) = sent
    assert (request.method, str(request.url), request.content) == ("POST", "http://hook/", b"{}")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["trickle-signature"] == sign(SecretBytes(b"key"), 7, b"{}")


def test_the_signature() -> None:
    """The signature is the HMAC of the time, a dot and the body."""
    assert sign(SecretBytes(b"key"), 7, b"{}") == "t=7,v1=" + hmac.new(b"key", b"7.{}", sha256).hexdigest()


def test_concurrency() -> None:
    """The server sends a limited number of questions at a time; the others wait in the queue."""
    running, most = 0, 0

    async def slow(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return httpx.Response(200)

    decisions, hook = ask_all(slow, *[b"%d" % number for number in range(20)])
    assert (decisions, most, hook.waiting) == ([200] * 20, 2, 0)


def test_equal_questions_share_an_answer() -> None:
    """The server sends a question once, however many requests wait for the answer."""
    sent: list[bytes] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return httpx.Response(403)

    decisions, _ = ask_all(handle, b"x", b"x", b"y", b"x")
    assert decisions == [403] * 4
    assert sorted(sent) == [b"x", b"y"]


def test_a_limited_number_of_questions_waits() -> None:
    """The server takes no further question, except one that waits already."""

    async def main() -> None:
        hook = Webhook("http://hook/", secret=None, timeout_s=1, concurrency=1, cache_s=1)
        for number in range(MAX_WAITING):
            assert hook.ask(b"%d" % number, lambda status: None)
        assert not hook.ask(b"one more", lambda status: None)
        assert hook.ask(b"0", lambda status: None)
        assert hook.waiting == MAX_WAITING

    asyncio.run(main())


def test_the_time_in_the_queue_counts() -> None:
    """The server does not send a question that has waited longer than the timeout."""
    clock, sent = Clock(), []

    async def slow(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        clock.now += 30
        return httpx.Response(200)

    decisions, _ = ask_all(slow, b"1", b"2", clock=clock, concurrency=1)
    assert (decisions, sent) == ([200, FAILED], [b"1"])


def test_an_answer_is_used_for_a_while() -> None:
    """The server uses an answer until its age is reached, and then asks again."""
    clock = Clock()
    _, hook = ask_all(lambda request: httpx.Response(403), b"x", clock=clock)
    clock.now += 4.9
    assert hook.remembered(b"x") == 403
    clock.now += 0.1
    assert hook.remembered(b"x") is None


@pytest.mark.parametrize("answer", [httpx.Response(500), httpx.Response(200, headers={"Cache-Control": "no-store"})])
def test_answers_that_are_not_remembered(answer: httpx.Response) -> None:
    """The next request asks again if there was no answer, or one that must not be stored."""
    _, hook = ask_all(lambda request: answer, b"x")
    assert hook.remembered(b"x") is None


def test_the_body_of_an_answer_decides_nothing() -> None:
    """A body that breaks or never ends does not matter either."""

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 5000
        raise AssertionError("more was read than need be")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise httpx.ReadError("gone")

    contents: dict[bytes, Any] = {b"1": b"no", b"2": body(), b"3": broken()}
    decisions, _ = ask_all(lambda request: httpx.Response(200, content=contents[request.content]), *contents)
    assert decisions == [200, 200, 200]


def test_one_warning_for_a_series_of_failures(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is one line of the log, not one for every request; the next outage is another one."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.content == b"3":
            return httpx.Response(200)
        raise httpx.ConnectError("no way")

    ask_all(handle, b"1", b"2", b"3", b"4", b"5", concurrency=1)
    assert [record.message for record in caplog.records] == ["no decision from http://hook/: no way"] * 2


def test_an_unforeseen_exception(caplog: pytest.LogCaptureFixture) -> None:
    """An exception that nobody foresaw is no answer, and the server goes on to ask."""

    def handle(request: httpx.Request) -> httpx.Response:
        if request.content == b"1":
            raise UnicodeError("what is that")
        return httpx.Response(200)

    decisions, _ = ask_all(handle, b"1", b"2", concurrency=1)
    assert decisions == [FAILED, 200]
    assert [record.message for record in caplog.records] == [
        "no decision from http://hook/: UnicodeError: what is that"
    ]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 5.0),
        ("private", 5.0),
        ("max-age=0", 0.0),
        ("max-age=7", 7.0),
        ("private, Max-Age=7", 7.0),
        ('max-age="7"', 7.0),
        ("s-maxage=9", 5.0),
        ("max-age=7,no-store", 0.0),
        ("no-cache", 0.0),
        ("max-age=999999999", MAX_CACHE_S),
        ("max-age=-1", 5.0),
        ("max-age=" + "9" * 400, 5.0),
    ],
)
def test_how_long_an_answer_is_used(header: str, seconds: float) -> None:
    """``Cache-Control`` says how long, up to an hour; without it the setting does."""
    assert max_age_s(header, 5.0) == seconds
