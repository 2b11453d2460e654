"""``tricklecast channels``: the control plane's answer as JSON, table or columns."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tricklecast.subscriber.command.listing import fetch_channels, print_channels
from tricklecast.trickle.client.transport import InvalidAnswer
from tricklecast.trickle.errors import ConnectionLost, InvalidURL, Refused, RemoteProtocolError

CAMERA = {
    "name": "camera",
    "state": "live",
    "epoch": 1,
    "next_seq": 12,
    "content_type": "video/mp2t",
    "window": {"segments": 12, "bytes": 1_500_000, "earliest": 0},
    "readers": 3,
    "bytes_in": 2_000_000,
    "bytes_out": 6_000_000,
    "publisher": {"connected": True, "writing": [11]},
    "something_new": {"that": ["nobody", "knows"]},
}


def fetch(answer: httpx.Response | Exception, url: str = "http://host:2939/trickle/x") -> dict[str, Any]:
    def handler(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://host:2939/api/v1/channels"
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tricklecast.trickle.client.control.TrickleTransport", lambda tls: httpx.MockTransport(handler))
        return asyncio.run(fetch_channels(url))


@pytest.mark.parametrize("url", ["http://host:2939", "http://host:2939/", "http://host:2939/trickle/camera/5?q=1"])
def test_any_url_on_the_server_will_do(url: str) -> None:
    """Its root is what counts."""
    assert fetch(httpx.Response(200, json={"channels": [CAMERA]}), url) == {"channels": [CAMERA]}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(404, text="not here"), RemoteProtocolError),
        (httpx.Response(302, headers={"Location": "/login"}), RemoteProtocolError),
        (httpx.Response(200, text="<html>"), RemoteProtocolError),
        (httpx.Response(200, content=b"\xff\xfe"), RemoteProtocolError),
        (httpx.Response(200, json=[1]), RemoteProtocolError),
        (httpx.Response(200, json={"channels": {"a": 1}}), RemoteProtocolError),
        (httpx.Response(200, json={"channels": [1]}), RemoteProtocolError),
        (httpx.Response(401, text="who are you?"), Refused),
        (httpx.Response(503, text="draining"), Refused),
        (httpx.ConnectError("Connection refused"), ConnectionLost),
        (httpx.ReadTimeout(""), ConnectionLost),
        (InvalidAnswer("SSH-2.0"), RemoteProtocolError),
        (TimeoutError(), ConnectionLost),
    ],
)
def test_what_is_not_a_list_of_channels_is_an_error(answer: httpx.Response | Exception, error: type[Exception]) -> None:
    """One typed error for each way in which a server can be another one, or none."""
    with pytest.raises(error):
        fetch(answer)


def test_a_bad_url_is_refused() -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidURL):
        fetch(httpx.Response(200), "localhost:2939")


def test_json_is_what_the_server_said(capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, also what this version does not know."""
    print_channels({"channels": [CAMERA], "readers": 3}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"channels": [CAMERA], "readers": 3}


def test_a_pipe_gets_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Tab-separated, one channel a line; what is missing or odd is a dash, and nothing can add lines or columns."""
    odd = {"name": "tab\there\nthere\x1b[31m", "window": 7, "publisher": None, "bytes_in": "many"}
    print_channels({"channels": [CAMERA, odd]})
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.split("\t")[:3] == ["CHANNEL", "STATE", "NEXT"]
    assert second.split("\t") == [
        "camera", "live", "12", "12", "1.5 MB", "3", "connected", "2.0 MB", "6.0 MB", "video/mp2t",
    ]  # fmt: skip
    assert third.split("\t") == ["tab?here?there?[31m", *["-"] * 9]


def test_nodes_whose_channels_are_missing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, so that a pipe gets channels alone."""
    print_channels({"channels": [CAMERA], "unreachable": ["b", "c\x1b"]})
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert shown.err.splitlines() == [
        f"node {name} does not answer: channels that it has are missing here" for name in ("b", "c?")
    ]


def test_a_terminal_gets_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are aligned, numbers on the right; no channels are said so."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_channels({"channels": [CAMERA, {"name": "x"}]})
    header, camera, other = capsys.readouterr().out.splitlines()
    assert header.startswith("CHANNEL  STATE  NEXT  SEGMENTS")
    assert camera.startswith("camera   live     12        12  1.5 MB")
    assert other.startswith("x        -         -         -       -")
    print_channels({"channels": [{"name": "_changes"}]})
    assert capsys.readouterr().out == "no channels\n"
