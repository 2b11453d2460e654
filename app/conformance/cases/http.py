"""Below the protocol: what HTTP/1.1 itself asks of the server (RFC 9110, RFC 9112)."""

from __future__ import annotations

from tricklecast.app.conformance import expect
from tricklecast.app.conformance.case import Group
from tricklecast.app.conformance.connection import encode_chunk
from tricklecast.app.conformance.http1 import Framing
from tricklecast.app.conformance.stream import Cut
from tricklecast.app.conformance.target import Target
from tricklecast.trickle import wire

HTTP = Group("http", "HTTP layer (RFC 9110, RFC 9112)")


@HTTP.case()
def one_dot_zero_readers_get_a_plain_body(target: Target) -> None:
    """A reader that speaks HTTP/1.0 gets the bytes of a kept segment unframed, and then the end."""
    channel = target.channel()
    channel.publish(0, b"plain")
    connection = target.open()
    connection.send(connection.render("GET", channel.at(0), version="1.0"))
    response = expect.segment(connection.response(), 0, b"plain")
    expect.true(response.framed is not Framing.CHUNKED, "no chunked framing", response.framed)
    connection.closed()


@HTTP.case()
def one_dot_zero_readers_follow_an_open_segment(target: Target) -> None:
    """A reader that speaks HTTP/1.0 gets an open segment as it comes; its end is the end of the connection."""
    channel = target.channel()
    upload, _ = channel.started(0, b"one,")
    connection = target.open()
    connection.send(connection.render("GET", channel.at(0), version="1.0"))
    response = expect.status(connection.head(), 200)
    expect.equal("the framing", response.framed, Framing.CLOSE)
    expect.equal("the bytes so far", connection.body(4), b"one,")
    upload.chunk(b"two")
    expect.equal("the bytes", connection.body(3), b"two")
    upload.end()
    expect.equal("the rest", connection.rest(), b"")


@HTTP.case()
def one_dot_zero_publishers_are_served(target: Target) -> None:
    """A publisher that speaks HTTP/1.0 with a Content-Length is served."""
    channel = target.channel()
    connection = target.open()
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "5"}, "1.0") + b"plain")
    expect.status(connection.response(), 200)
    expect.segment(channel.get(0), 0, b"plain")


@HTTP.case()
def expect_100_continue_is_answered(target: Target) -> None:
    """A publisher that waits for `100 Continue` before its body hears it."""
    channel = target.channel()
    connection = target.open()
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "4", "Expect": "100-continue"}))
    connection.expects("POST")
    expect.equal("the interim status", connection.interim().status, 100)
    connection.send(b"body")
    expect.status(connection.response(), 200)
    expect.segment(channel.get(0), 0, b"body")


@HTTP.case()
def expect_100_continue_hears_refusals(target: Target) -> None:
    """A publisher that waits for `100 Continue` hears a refusal without sending its body."""
    channel = target.channel()
    channel.publish(0)
    connection = target.open()
    connection.send(connection.render("POST", channel.at(9), {"Content-Length": "4", "Expect": "100-continue"}))
    connection.expects("POST")
    expect.status(connection.response(), 470)


@HTTP.case()
def header_names_have_no_case(target: Target) -> None:
    """Header names are found in any case."""
    channel = target.channel()
    expect.status(target.ask("POST", channel.path, {"EXPECT-content": "video/mp2t"}, b""), 200)
    channel.publish(0)
    expect.status(channel.post(30, b"x", {wire.RESET.lower(): "1"}), 200)
    expect.header(channel.get(30), "Content-Type", "video/mp2t")


@HTTP.case()
def requests_may_come_byte_by_byte(target: Target) -> None:
    """A request that comes one byte at a time, chunk sizes included, is understood."""
    channel = target.channel()
    connection = target.open()
    head = connection.render("POST", channel.at(0), {"Transfer-Encoding": "chunked"})
    for byte in head + encode_chunk(b"slow") + b"0\r\n\r\n":
        connection.send(bytes([byte]))
    connection.expects("POST")
    expect.header(expect.status(connection.response(), 200), wire.SIZE, 4)
    expect.segment(channel.get(0), 0, b"slow")


@HTTP.case()
def chunk_extensions_and_trailers_are_not_data(target: Target) -> None:
    """Extensions of chunks and trailers of a published body are not part of the segment."""
    channel = target.channel()
    connection = target.open()
    head = connection.render("POST", channel.at(0), {"Transfer-Encoding": "chunked"})
    connection.send(head + b'4;name="value"\r\ndata\r\n0;last\r\nX-Trailer: yes\r\n\r\n')
    connection.expects("POST")
    expect.status(connection.response(), 200)
    expect.segment(channel.get(0), 0, b"data")


@HTTP.case()
def h2c_upgrade_is_ignored(target: Target) -> None:
    """A GET that offers to upgrade to HTTP/2 is served as the HTTP/1.1 that it is."""
    channel = target.channel()
    channel.publish(0, b"data")
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    expect.segment(channel.get(0, headers), 0, b"data")


@HTTP.case()
def h2c_upgrade_of_a_publisher_is_ignored(target: Target) -> None:
    """A POST that offers to upgrade to HTTP/2 is served as HTTP/1.1, its body included, counted or chunked."""
    channel = target.channel()
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    expect.header(expect.status(channel.post(0, b"counted", headers), 200), wire.SIZE, 7)
    upload = channel.upload(1, b"chunk", b"ed", headers=headers).end()
    expect.header(expect.status(upload.answer(), 200), wire.SIZE, 7)
    expect.segment(channel.get(0), 0, b"counted")
    expect.segment(channel.get(1), 1, b"chunked")


@HTTP.case()
def pipelined_reads_are_answered_in_order(target: Target) -> None:
    """Several GETs sent at once on one connection are answered one after the other, in their order."""
    channel = target.channel()
    channel.publish(0, b"a", b"b", b"c")
    connection = target.open()
    connection.send(b"".join(connection.render("GET", channel.at(seq)) for seq in (2, 0, 1)))
    for seq, data in ((2, b"c"), (0, b"a"), (1, b"b")):
        expect.segment(connection.response(), seq, data)


@HTTP.case()
def pipelined_reads_wait_for_each_other(target: Target) -> None:
    """A GET that is ready does not overtake an earlier one on the same connection that waits."""
    channel = target.channel()
    channel.publish(0, b"ready")
    connection = target.open()
    connection.send(connection.render("GET", channel.at(1)) + connection.render("GET", channel.at(0)))
    target.settle()
    connection.silent()
    channel.publish(1, b"waited for")
    expect.segment(connection.response(), 1, b"waited for")
    expect.segment(connection.response(), 0, b"ready")


@HTTP.case()
def pipelined_publish_and_read(target: Target) -> None:
    """A POST and a GET of the same segment sent at once on one connection are served in their order."""
    channel = target.channel()
    connection = target.open()
    post = connection.render("POST", channel.at(0), {"Content-Length": "4"}) + b"both"
    connection.send(post + connection.render("GET", channel.at(0)))
    connection.expects("POST")
    expect.status(connection.response(), 200)
    expect.segment(connection.response(), 0, b"both")


@HTTP.case()
def half_a_request_changes_nothing(target: Target) -> None:
    """A request that breaks off in its headers changes nothing."""
    channel = target.channel()
    connection = target.open()
    connection.send(connection.render("POST", channel.at(0), {"Content-Length": "4"})[:-2])
    connection.abort()
    target.settle()
    expect.status(channel.get("next"), 404)


@HTTP.case()
def half_closed_readers_are_no_danger(target: Target) -> None:
    """A reader that closes its sending side is answered or dropped; the channel goes on."""
    channel = target.channel()
    channel.publish(0, b"data")
    connection = channel.read(0)
    connection.half_close()
    try:
        expect.segment(connection.response(), 0, b"data")
    except Cut as cut:
        expect.true("before a response" in cut.got, "an answer or the end", cut.got)
    expect.segment(channel.get(0), 0, b"data")
