"""Below the protocol: what is no HTTP is refused, and publishes nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.connection import Connection
from tricklecast.app.conformance.stream import Cut
from tricklecast.app.conformance.target import Target

MALFORMED = Group("malformed", "HTTP layer (RFC 9110, RFC 9112)")


def _bad_request(target: Target, render: Callable[[Connection, str], bytes]) -> None:
    channel = target.channel()
    connection = target.open()
    connection.send(render(connection, channel.at(0)))
    expect.status(connection.response(), 400)
    expect.status(channel.get("next"), 404)


def _post(*lines: str, body: bytes = b"") -> Callable[[Connection, str], bytes]:
    def render(connection: Connection, path: str) -> bytes:
        head = connection.render("POST", path)[:-2]
        return head + "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1") + body

    return render


for _name, _rule, _render in (
    (
        "length-and-chunked",
        "Content-Length together with Transfer-Encoding",
        _post("Content-Length: 4", "Transfer-Encoding: chunked", body=b"4\r\ndata\r\n0\r\n\r\n"),
    ),
    ("two-lengths", "Two different Content-Lengths", _post("Content-Length: 4", "Content-Length: 5", body=b"data!")),
    ("negative-length", "A negative Content-Length", _post("Content-Length: -1")),
    ("length-of-letters", "A Content-Length that is no number", _post("Content-Length: four", body=b"data")),
    ("space-before-colon", "A space between a header's name and its colon", _post("Content-Length : 0")),
    ("header-without-colon", "A header line without a colon", _post("Content-Length")),
    ("control-character", "A NUL in a header", _post("X-Nul: a\x00b", "Content-Length: 0")),
    ("no-http", "Something that is no HTTP at all", lambda connection, path: b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"),
    ("strange-version", "An unknown version", lambda connection, path: f"GET {path} HTTX/1.1\r\n\r\n".encode()),
):
    MALFORMED.add(
        f"{_name}-is-400",
        f"{_rule} is 400, and creates no channel.",
        partial(_bad_request, render=_render),
    )


@MALFORMED.case()
def chunk_does_not_complete_a_segment(target: Target) -> None:
    """A body whose chunk size makes no sense is never answered 200, and its segment does not end as complete."""
    channel = target.channel()
    upload, _ = channel.started(0, b"good")
    upload.connection.send(b"zz\r\nbad!\r\n0\r\n\r\n")
    try:
        expect.true(upload.answer().status >= 400, "a refusal or the end of the connection", "a success")
    except Cut as cut:
        expect.true("before a response" in cut.got, "a refusal or the end of the connection", cut.got)
    second = channel.upload(0, b",resumed").end()
    expect.true(second.answer().status in (200, 409), "the segment to be resumed or closed", "something else")
    expect.true(channel.get(0).body in (b"good", b"good,resumed"), "no bytes of the bad chunk", channel.get(0).body)
