"""The HTTP layer (RFC 9110, RFC 9112): versions, framing, pipelining, connection reuse, and malformed requests."""

from __future__ import annotations

from tricklecast.app.tools.conformance.connection import encode_chunk
from tricklecast.app.tools.conformance.response import ConnectionCut, check, equal
from tricklecast.app.tools.conformance.runner import Group, each
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.trickle import wire

_CHUNKED = {"Transfer-Encoding": "chunked"}
_EXPECTING = {"Content-Length": "4", "Expect": "100-continue"}
_H2C = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}


class Http(Group, section="HTTP layer (RFC 9110, RFC 9112)"):
    def one_dot_zero_readers_get_a_plain_body(self, c: RemoteChannel) -> None:
        """A reader that speaks HTTP/1.0 gets the bytes of a kept segment unframed, and then the end."""
        connection = c.publish(0, b"plain").target.send("GET", c.at(0), version="1.0")
        response = connection.segment(0, b"plain")
        check(not response.head.chunked, "a body without chunks", response)
        connection.closed()

    def one_dot_zero_readers_follow_an_open_segment(self, c: RemoteChannel) -> None:
        """A reader that speaks HTTP/1.0 gets an open segment as it comes; its end is the end of the connection."""
        upload, _ = c.started(0, b"one,")
        connection = c.target.send("GET", c.at(0), version="1.0")
        head = connection.head().expect(200).head
        check(not head.chunked and head.length is None, "a body that ends with the connection", head)
        connection.gets(b"one,")
        upload.chunk(b"two")
        connection.gets(b"two")
        upload.end()
        connection.ends()

    def one_dot_zero_publishers_are_served(self, c: RemoteChannel) -> None:
        """A publisher that speaks HTTP/1.0 with a Content-Length is served."""
        c.target.send("POST", c.at(0), {"Content-Length": "5"}, b"plain", "1.0").expect(200)
        c.has(0, b"plain")

    def expect_100_continue_is_answered(self, c: RemoteChannel) -> None:
        """A publisher that waits for `100 Continue` before its body receives it."""
        connection = c.target.send("POST", c.at(0), _EXPECTING)
        equal("the interim status", connection.interim().status, 100)
        connection.send(b"body")
        connection.expect(200)
        c.has(0, b"body")

    def expect_100_continue_hears_refusals(self, c: RemoteChannel) -> None:
        """A publisher that waits for `100 Continue` receives a refusal without sending its body."""
        c.publish(0).target.send("POST", c.at(9), _EXPECTING).expect(470)

    def header_names_have_no_case(self, c: RemoteChannel) -> None:
        """Header names are found in any case."""
        c.ask("POST", {"EXPECT-content": "video/mp2t"}, b"").expect(200)
        c.publish(0).post(30, b"x", {wire.RESET.lower(): "1"}).expect(200)
        c.get(30).expect(content_type="video/mp2t")

    def requests_may_come_byte_by_byte(self, c: RemoteChannel) -> None:
        """A request that comes one byte at a time, chunk sizes included, is understood."""
        connection = c.target.open()
        for byte in connection.render("POST", c.at(0), _CHUNKED) + encode_chunk(b"slow") + b"0\r\n\r\n":
            connection.send(bytes([byte]))
        connection.expect(200, size=4)
        c.has(0, b"slow")

    def chunk_extensions_and_trailers_are_not_data(self, c: RemoteChannel) -> None:
        """Extensions of chunks and trailers of a published body are not part of the segment."""
        body = b'4;name="value"\r\ndata\r\n0;last\r\nX-Trailer: yes\r\n\r\n'
        c.target.send("POST", c.at(0), _CHUNKED, body).expect(200)
        c.has(0, b"data")

    def h2c_upgrade_is_ignored(self, c: RemoteChannel) -> None:
        """A GET that offers to upgrade to HTTP/2 is served as the HTTP/1.1 that it is."""
        c.publish(0, b"data").get(0, _H2C).segment(0, b"data")

    def h2c_upgrade_of_a_publisher_is_ignored(self, c: RemoteChannel) -> None:
        """A POST that offers to upgrade to HTTP/2 is served as HTTP/1.1, its body included, counted or chunked."""
        c.post(0, b"counted", _H2C).expect(200, size=7)
        c.upload(1, b"chunk", b"ed", headers=_H2C).stored(size=7)
        c.has(0, b"counted").has(1, b"chunked")

    def pipelined_reads_are_answered_in_order(self, c: RemoteChannel) -> None:
        """Several GETs sent at once on one connection are answered one after the other, in their order."""
        c.publish(0, b"a", b"b", b"c")
        connection = c.target.open()
        connection.send(b"".join(connection.render("GET", c.at(seq)) for seq in (2, 0, 1)))
        for seq, data in ((2, b"c"), (0, b"a"), (1, b"b")):
            connection.segment(seq, data)

    def pipelined_reads_wait_for_each_other(self, c: RemoteChannel) -> None:
        """A GET that is ready does not overtake an earlier one on the same connection that waits."""
        c.publish(0, b"ready")
        connection = c.target.open()
        connection.send(connection.render("GET", c.at(1)) + connection.render("GET", c.at(0)))
        c.target.settle()
        connection.silent()
        c.publish(1, b"waited for")
        connection.segment(1, b"waited for")
        connection.segment(0, b"ready")

    def pipelined_publish_and_read(self, c: RemoteChannel) -> None:
        """A POST and a GET of the same segment sent at once on one connection are served in their order."""
        connection = c.target.open()
        post = connection.render("POST", c.at(0), {"Content-Length": "4"}) + b"both"
        connection.send(post + connection.render("GET", c.at(0)))
        connection.expect(200)
        connection.segment(0, b"both")

    def half_a_request_changes_nothing(self, c: RemoteChannel) -> None:
        """A request that breaks off in its headers changes nothing."""
        connection = c.target.open()
        connection.send(connection.render("POST", c.at(0), {"Content-Length": "4"})[:-2])
        c.lose(connection)
        c.unknown()

    def half_closed_readers_are_no_danger(self, c: RemoteChannel) -> None:
        """A reader that closes its sending side is answered or dropped; the channel goes on."""
        connection = c.publish(0, b"data").read(0)
        connection.half_close()
        try:
            connection.segment(0, b"data")
        except ConnectionCut as cut:
            check("before a response" in cut.got, "an answer or the end", cut.got)
        c.has(0, b"data")


class KeepAlive(Group, section="HTTP layer (RFC 9110, RFC 9112)"):
    @each(
        ("segment", "a segment", "GET", "/{c}/0", None, 200),
        ("empty-segment", "an empty segment", "GET", "/{c}/1", None, 200),
        ("470", "a 470", "GET", "/{c}/9", None, 470),
        ("400", "a 400", "GET", "/{c}/x", None, 400),
        ("403", "a 403", "POST", "/_{c}/0", b"unread", 403),
        ("404", "a 404", "GET", "/{c}-missing/0", None, 404),
        ("405", "a 405", "PUT", "/{c}/0", b"unread", 405),
        ("409", "a 409", "POST", "/{c}/0", b"unread", 409),
        ("next", "the head", "GET", "/{c}/next", None, 200),
        ("head-request", "a HEAD", "HEAD", "/{c}/0", None, 200),
        ("create", "a create", "POST", "/{c}", b"", 200),
        ("deleted-segment", "a deleted segment", "DELETE", "/{c}/1", None, 200),
    )
    def after_X(self, c: RemoteChannel, method: str, path: str, body: bytes | None, status: int) -> None:
        """After {} the connection takes the next request, or was said to close and does."""
        c.publish(0, b"data", b"")
        connection = c.target.send(method, c.target.base + path.replace("{c}", c.name), body=body)
        if connection.expect(status).closes:
            connection.closed()
            return
        connection.request("GET", c.at("next"))
        connection.expect(200)

    def after_a_live_segment(self, c: RemoteChannel) -> None:
        """After a segment that was followed live the connection takes the next request."""
        reader = c.create().waiting(0)
        c.publish(0, b"a", b"b")
        reader.segment(0, b"a")
        reader.request("GET", c.at(1))
        reader.segment(1, b"b")

    def is_ended_on_request(self, c: RemoteChannel) -> None:
        """The server answers a client that sends `Connection: close`, and then closes the connection."""
        connection = c.publish(0, b"data").read(0, {"Connection": "close"})
        connection.segment(0, b"data")
        connection.closed()


class Malformed(Group, section="HTTP layer (RFC 9110, RFC 9112)"):
    @each(
        (
            "length-and-chunked",
            "Content-Length together with Transfer-Encoding",
            b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ndata\r\n0\r\n\r\n",
        ),
        ("two-lengths", "Two different Content-Lengths", b"Content-Length: 4\r\nContent-Length: 5\r\n\r\ndata!"),
        ("negative-length", "A negative Content-Length", b"Content-Length: -1\r\n\r\n"),
        ("length-of-letters", "A Content-Length that is no number", b"Content-Length: four\r\n\r\ndata"),
        ("space-before-colon", "A space between a header's name and its colon", b"Content-Length : 0\r\n\r\n"),
        ("header-without-colon", "A header line without a colon", b"Content-Length\r\n\r\n"),
        ("control-character", "A NUL in a header", b"X-Nul: a\x00b\r\nContent-Length: 0\r\n\r\n"),
        ("no-http", "A request that is no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b""),
        ("strange-version", "An unknown version", b" HTTX/1.1\r\n\r\n", b"GET /"),
    )
    def X_is_400(self, c: RemoteChannel, rest: bytes, start: bytes | None = None) -> None:
        """{} is 400, and creates no channel."""
        connection = c.target.open()
        connection.send((connection.render("POST", c.at(0))[:-2] if start is None else start) + rest)
        connection.expect(400)
        c.unknown()

    def chunk_does_not_complete_a_segment(self, c: RemoteChannel) -> None:
        """A body whose chunk size is no number is never answered 200, and its segment does not end as complete."""
        upload, _ = c.started(0, b"good")
        upload.connection.send(b"zz\r\nbad!\r\n0\r\n\r\n")
        try:
            response = upload.answer()
            check(response.status >= 400, "a refusal or the end of the connection", response)
        except ConnectionCut as cut:
            check("before a response" in cut.got, "a refusal or the end of the connection", cut.got)
        response = c.upload(0, b",resumed").end().answer()
        check(response.status in (200, 409), "the segment to be resumed or closed", response)
        kept = c.get(0).body
        check(kept in (b"good", b"good,resumed"), "no bytes of the bad chunk", kept)
