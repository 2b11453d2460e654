"""The channels of a server: typed values, or one typed error for each way in which there are none."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

import tricklecast
from tests.support.local import local_server
from tests.support.peers import run
from tricklecast import ChannelInfo, Publisher, list_channels, sync
from tricklecast.trickle.client.listing import fetch_channels
from tricklecast.trickle.errors import ConnectionLost, InvalidInput, InvalidURL, Refused, RemoteProtocolError

CHANNEL = {
    "name": "camera",
    "node": "a",
    "state": "live",
    "epoch": 1,
    "next_seq": 12,
    "content_type": "video/mp2t",
    "window": {"segments": 11, "bytes": 1_500_000, "earliest": 1},
    "readers": 3,
    "bytes_in": 2_000_000,
    "bytes_out": 6_000_000,
    "publisher": {"connected": True},
    "created_at": "2026-01-01T00:00:00Z",
    "active_at": "2026-01-01T00:00:01Z",
    "something_new": {"that": ["nobody", "knows"]},
}


def fetch(answer: httpx.Response | Exception, url: str = "http://host:2939/trickle/x") -> dict[str, Any]:
    def handler(request: httpx.Request) -> httpx.Response:
        query = url.partition("?")[2]
        assert str(request.url) == "http://host:2939/api/v1/channels" + (f"?{query}" if query else "")
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tricklecast.trickle.client.bridge.TrickleTransport", lambda tls: httpx.MockTransport(handler))
        return asyncio.run(fetch_channels(url))


@pytest.mark.parametrize("url", ["http://host:2939", "http://host:2939/", "http://host:2939/trickle/camera/5?token=t"])
def test_any_url_on_the_server_will_do(url: str) -> None:
    """Its root is what counts, and its query, which may be an access token."""
    assert fetch(httpx.Response(200, json={"channels": [CHANNEL]}), url) == {"channels": [CHANNEL]}


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
        (httpx.RemoteProtocolError("SSH-2.0"), RemoteProtocolError),
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


def listed(answer: dict[str, Any]) -> tricklecast.Channels:
    with pytest.MonkeyPatch.context() as patch:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
        patch.setattr("tricklecast.trickle.client.bridge.TrickleTransport", lambda tls: transport)
        return asyncio.run(list_channels("http://host:2939"))


def test_channels_are_values() -> None:
    """Sorted by name, without those of the server itself; nodes that did not answer are told."""
    other = CHANNEL | {"name": "attic", "state": "draining"}
    found = listed({"channels": [CHANNEL, other, {"name": "_changes"}], "unreachable": ["b"]})
    assert [(one.name, one.ended) for one in found] == [("attic", True), ("camera", False)]
    assert (len(found), found.unreachable) == (2, ("b",))
    assert found.channels[1] == ChannelInfo(
        *("camera", "a", False, 1, "video/mp2t", 12, 1, 11, 1_500_000, 3, True, 2_000_000, 6_000_000),
        *(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)),
    )


@pytest.mark.parametrize("odd", [{"name": "x"}, CHANNEL | {"window": 7}, CHANNEL | {"created_at": "today"}])
def test_a_channel_that_cannot_be_understood_is_an_error(odd: dict[str, Any]) -> None:
    """It is another server, or a much older one."""
    with pytest.raises(RemoteProtocolError, match="describes a channel in another way"):
        listed({"channels": [odd]})


def test_a_wrong_argument_is_refused() -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidInput, match="timeout_s"):
        run(list_channels("http://host:2939", timeout_s=0))
    with pytest.raises(InvalidInput, match="token"):
        run(list_channels("http://host:2939", auth=""))


def test_the_channels_of_a_server() -> None:
    """A real one; with and without `async`."""

    async def scenario(root: str) -> tricklecast.Channels:
        async with Publisher(f"{root}/trickle/words", content_type="text/plain") as publisher:
            await publisher.publish(b"hello")
            return await list_channels(root, verify=False)

    with local_server() as server:
        root = f"http://127.0.0.1:{server.port}"
        (channel,) = run(scenario(root))
        assert (channel.name, channel.next_seq, channel.bytes, channel.ended) == ("words", 1, 5, False)
        assert (channel.published, channel.content_type) == (True, "text/plain")
        (ended,) = sync.list_channels(f"{root}/trickle/words")
        assert ended.ended
