"""Below the protocol: a connection is used again after every answer that does not say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.connection import Connection
from tricklecast.app.conformance.target import Channel, Target

KEEP_ALIVE = Group("keep-alive", "HTTP layer (RFC 9110, RFC 9112)")


def _reused(target: Target, ask: Callable[[Channel, Connection], None], status: int) -> None:
    channel = target.channel()
    channel.publish(0, b"data")
    expect.status(channel.post(1, b""), 200)
    connection = target.open()
    ask(channel, connection)
    response = expect.status(connection.response(), status)
    if response.closes:
        connection.closed()
        return
    connection.request("GET", channel.at("next"))
    expect.status(connection.response(), 200)


def _request(channel: Channel, connection: Connection, method: str, tail: str, body: bytes | None = None) -> None:
    connection.request(method, channel.path + tail, body=body)


for _name, _what, _method, _tail, _body, _status in (
    ("segment", "a segment", "GET", "/0", None, 200),
    ("empty-segment", "an empty segment", "GET", "/1", None, 200),
    ("470", "a 470", "GET", "/9", None, 470),
    ("400", "a 400", "GET", "/x", None, 400),
    ("405", "a 405", "PUT", "/0", b"unread", 405),
    ("409", "a 409", "POST", "/0", b"unread", 409),
    ("next", "the head", "GET", "/next", None, 200),
    ("head-request", "a HEAD", "HEAD", "/0", None, 200),
    ("create", "a create", "POST", "", b"", 200),
    ("stored-segment", "a stored segment", "POST", "/2", b"stored", 200),
    ("deleted-segment", "a deleted segment", "DELETE", "/1", None, 200),
):
    KEEP_ALIVE.add(
        f"after-{_name}",
        f"After {_what} the connection takes the next request, or was said to close and does.",
        partial(_reused, ask=partial(_request, method=_method, tail=_tail, body=_body), status=_status),
    )


@KEEP_ALIVE.case()
def after_404(target: Target) -> None:
    """After a 404 the connection takes the next request, or was said to close and does."""
    channel = target.channel()
    connection = target.send("GET", channel.at(0))
    response = expect.status(connection.response(), 404)
    if response.closes:
        connection.closed()
        return
    connection.request("POST", channel.path, body=b"")
    expect.status(connection.response(), 200)


@KEEP_ALIVE.case()
def after_a_live_segment(target: Target) -> None:
    """After a segment that was followed live the connection takes the next request."""
    channel = target.channel()
    channel.create()
    reader = channel.waiting(0)
    channel.publish(0, b"a", b"b")
    expect.segment(reader.response(), 0, b"a")
    reader.request("GET", channel.at(1))
    expect.segment(reader.response(), 1, b"b")


@KEEP_ALIVE.case()
def is_ended_on_request(target: Target) -> None:
    """A client that sends `Connection: close` is answered and then let go."""
    channel = target.channel()
    channel.publish(0, b"data")
    connection = channel.read(0, {"Connection": "close"})
    expect.segment(connection.response(), 0, b"data")
    connection.closed()


@KEEP_ALIVE.case()
def after_403(target: Target) -> None:
    """After a 403 the connection takes the next request, or was said to close and does."""
    channel = target.channel()
    channel.create()
    connection = target.send("POST", f"{target.base}/_{channel.name}/0", body=b"unread")
    response = expect.status(connection.response(), 403)
    if response.closes:
        connection.closed()
        return
    connection.request("GET", channel.at("next"))
    expect.status(connection.response(), 200)
