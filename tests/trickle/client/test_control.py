"""Requests of commands to the control plane: the answer, or one typed error for each way in which there is none."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import pytest

from tests.support.peers import Peer, fake_server, run
from tests.support.ports import free_port
from tricklecast.trickle.client import control, faults
from tricklecast.trickle.client.connection import Pool, RawRequest, ResponseBody
from tricklecast.trickle.client.control import answer_of, ask, json_of, show
from tricklecast.trickle.errors import ConnectionLost, Refused, RemoteProtocolError, TrickleError


async def answered(data: bytes | None, *, within_s: float = 10.0) -> httpx.Response:
    """Ask a server that answers this; ``None``: it says nothing; empty: it closes the connection."""

    async def serve(peer: Peer) -> None:
        head = await peer.head()
        assert (head.method, head.path) == ("POST", "/trickle/api/v1/x?to=a")
        if data is None:
            await peer.closed()
        else:
            await peer.send(data)

    async with fake_server(serve) as fake:
        return await ask(fake.base, "/api/v1/x?to=a", None, None, method="POST", within_s=within_s)


def test_the_answer_of_a_server() -> None:
    """Any status is one; a body that is not JSON is none."""
    response = run(answered(b'HTTP/1.1 409 Conflict\r\nContent-Length: 9\r\n\r\n{"a": 12}'))
    assert (response.status_code, json_of(response)) == (409, {"a": 12})
    response = run(answered(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnone"))
    assert (response.status_code, json_of(response)) == (200, None)


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        ("404 Not Found", '{"detail": "Not Found"}', RemoteProtocolError, "has no such thing"),
        ("405 Method Not Allowed", "", RemoteProtocolError, "has no such thing"),
        ("409 Conflict", '{"detail": "busy\\u001b"}', TrickleError, "^busy[?]$"),
        ("502 Bad Gateway", "<html>", TrickleError, "answers 502: a web page"),
        ("401 Unauthorized", "Token required", Refused, "wants a valid token: http://.*: Token required"),
        ("200 OK", "[1]", RemoteProtocolError, "has no such thing"),
    ],
)
def test_a_refusal_is_an_error(status: str, body: str, error: type[Exception], words: str) -> None:
    """It says what the server says, or that it has no such route."""
    with pytest.raises(error, match=words):
        run(asked(status, body))


def test_an_object_is_the_answer() -> None:
    """The request has had a body of JSON."""
    assert run(asked("200 OK", '{"a": 1}')) == {"a": 1}


async def asked(status: str, body: str) -> dict[str, Any]:
    """Send an object of JSON to a server that answers this."""

    async def serve(peer: Peer) -> None:
        head = await peer.head()
        assert head.headers["content-type"] == "application/json"
        text = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        await peer.send(text.encode())

    async with fake_server(serve) as fake:
        return await answer_of(fake.base, "/x", None, None, absent="has no such thing", method="PUT", body={"b": 2})


class Over(Exception):
    """The test has seen enough."""


async def shown(*answers: object, as_json: bool, every_s: float | None) -> object:
    """Show these answers, or errors, one after the other."""
    left = iter(answers)

    async def ask() -> dict[str, Any]:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, dict)
        return answer

    return await show(ask, lambda answer: f"a is {answer['a']}", as_json=as_json, every_s=every_s)


def test_an_answer_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """For a person, or as JSON; an error is the caller's."""
    assert run(shown({"a": 1}, as_json=False, every_s=None)) == {"a": 1}
    run(shown({"a": 1}, as_json=True, every_s=None))
    assert capsys.readouterr().out == 'a is 1\n{\n  "a": 1\n}\n'
    with pytest.raises(ConnectionLost):
        run(shown(ConnectionLost(detail="away"), as_json=False, every_s=None))


@pytest.mark.parametrize(("terminal", "before"), [(False, ""), (True, "\x1b[H\x1b[J")])
def test_an_answer_is_watched(
    terminal: bool, before: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one that differs; a terminal is cleared first. A server that is away is told, and asked again."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    answers = ({"a": 1}, {"a": 1}, ConnectionLost(detail="away"), {"a": 2}, Over())
    with pytest.raises(Over):
        run(shown(*answers, as_json=False, every_s=0))
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[-1], len(lines)] == [f"{before}a is 1", f"{before}a is 2", 3]
    assert lines[1].startswith(f"{before}tricklecast: ")
    assert "away" in lines[1]
    with pytest.raises(Over):
        run(shown({"a": 1}, Over(), as_json=True, every_s=0))
    assert capsys.readouterr().out == '{"a": 1}\n'


def test_a_silent_server_is_told_of_early(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, while its answer is waited for."""
    monkeypatch.setattr(control, "QUIET_S", 0.05)
    said: list[str] = []

    async def ask() -> dict[str, Any]:
        while not said:
            await asyncio.sleep(0.01)
            said.extend(capsys.readouterr().err.splitlines())
        return {"a": 1}

    run(show(ask, lambda answer: f"a is {answer['a']}", as_json=False, every_s=None))
    assert said == ["tricklecast: no answer for 0.05 s; it may take 10 s"]
    assert capsys.readouterr() == ("a is 1\n", "")


def test_a_server_that_does_not_answer() -> None:
    """The error names it: it speaks another protocol, is silent, goes away, or is not there."""
    with pytest.raises(RemoteProtocolError, match=r"127\.0\.0\.1"):
        run(answered(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"))
    with pytest.raises(ConnectionLost, match=r"no answer within 0\.05 s"):
        run(answered(None, within_s=0.05))
    with pytest.raises(ConnectionLost):
        run(answered(b""))
    with pytest.raises(ConnectionLost, match="refused"):
        run(ask(f"http://127.0.0.1:{free_port()}", "/", None, None))
    assert control.TIMEOUT_S > 1


def test_a_refused_certificate_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so, and no more: a connection that was lost may be there again later."""

    async def send(pool: Pool, request: RawRequest) -> ResponseBody:
        raise faults.CertificateRefused("the server wants a client certificate")

    monkeypatch.setattr(Pool, "send", send)
    with pytest.raises(Refused) as raised:
        run(ask("https://host", "/", None, None))
    assert str(raised.value) == "refused by the server: https://host: the server wants a client certificate"
