"""Offers of another protocol are ignored: the request is served as plain HTTP/1.1, body included."""

from __future__ import annotations

import pytest

from tricklecast.app.tools.conformance.connection import encode_chunk
from tricklecast.app.tools.conformance.target import Channel, Target

OFFER = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}


def test_a_counted_body_behind_an_offer(channel: Channel, target: Target) -> None:
    """Java's HttpClient offers h2c with a POST: its body is published."""
    connection = target.open()
    connection.request("POST", channel.at(0), OFFER, b"body")
    assert connection.response().status == 200
    assert channel.get(0).body == b"body"
    connection.request("GET", channel.at(0))
    assert connection.response().body == b"body"


def test_a_chunked_body_behind_an_offer_trickles(channel: Channel, target: Target) -> None:
    """Also piece by piece, with the head in a packet of its own."""
    connection = target.open()
    connection.send(connection.render("POST", channel.at(0), {**OFFER, "Transfer-Encoding": "chunked"}))
    connection.expects("POST")
    reader = channel.waiting(0)
    connection.send(encode_chunk(b"one"))
    assert reader.head().status == 200
    assert reader.chunk() == b"one"
    connection.send(encode_chunk(b"two") + b"0\r\n\r\n")
    assert connection.response().status == 200
    assert reader.rest() == b"two"


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_a_read_with_an_offer(channel: Channel, target: Target, upgrade: str) -> None:
    """A GET that offers an upgrade is just read."""
    channel.publish(0, b"body")
    connection = target.open()
    connection.request("GET", channel.at(0), {"Connection": "Upgrade", "Upgrade": upgrade})
    assert connection.response().body == b"body"
    connection.request("GET", channel.at("next"))
    assert connection.response().body == b"1"


def test_an_offer_to_the_control_plane(target: Target) -> None:
    """The control plane answers such a request, too."""
    connection = target.open()
    connection.request("GET", "/healthz", {"Connection": "Upgrade", "Upgrade": "websocket"})
    assert connection.response().status == 200
