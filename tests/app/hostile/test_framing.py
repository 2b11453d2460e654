"""Requests that two parties could read differently: refused, and what hides in them is not done."""

from __future__ import annotations

import pytest

from tests.app.hostile.support import exchange, statuses
from tests.support.local import LocalServer
from tricklecast.app.tools.conformance.target import RemoteChannel, Target

CHUNKED_BODY = b"4\r\ndata\r\n0\r\n\r\n"

LENGTHS = {
    "length and chunks": (b"Content-Length: 14\r\nTransfer-Encoding: chunked\r\n", 400),
    "chunks and length": (b"Transfer-Encoding: chunked\r\nContent-Length: 14\r\n", 400),
    "length and identity": (b"Content-Length: 14\r\nTransfer-Encoding: identity\r\n", 400),
    "two lengths": (b"Content-Length: 14\r\nContent-Length: 4\r\n", 400),
    "one length twice": (b"Content-Length: 14\r\nContent-Length: 14\r\n", 400),
    "a list of lengths": (b"Content-Length: 14, 14\r\n", 400),
    "a signed length": (b"Content-Length: +14\r\n", 400),
    "a negative length": (b"Content-Length: -14\r\n", 400),
    "a hexadecimal length": (b"Content-Length: 0xe\r\n", 400),
    "a length with a blank": (b"Content-Length: 1 4\r\n", 400),
    "an empty length": (b"Content-Length:\r\n", 400),
    "a length beyond 64 bits": (b"Content-Length: 18446744073709551616\r\n", 400),
    "identity": (b"Transfer-Encoding: identity\r\n", (400, 501)),
    "gzip and chunks": (b"Transfer-Encoding: gzip, chunked\r\n", 501),
    "chunks and gzip": (b"Transfer-Encoding: chunked, gzip\r\n", (400, 501)),
    "chunks twice": (b"Transfer-Encoding: chunked, chunked\r\n", (400, 501)),
    "chunks in two lines": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", (400, 501)),
    "chunks and identity": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", (400, 501)),
    "something like chunks": (b"Transfer-Encoding: xchunked\r\n", (400, 501)),
    "quoted chunks": (b'Transfer-Encoding: "chunked"\r\n', (400, 501)),
    "chunks after a control character": (b"Transfer-Encoding: \x0bchunked\r\n", (400, 501)),
    "a blank before the colon": (b"Transfer-Encoding : chunked\r\n", 400),
    "a folded coding": (b"Transfer-Encoding:\r\n chunked\r\n", 400),
    "a coding after a bare LF": (b"X: y\nTransfer-Encoding: chunked\r\n", 400),
    "a coding after a bare CR": (b"X: y\rTransfer-Encoding: chunked\r\n", 400),
    "a coding after a NUL": (b"X: y\0\r\nTransfer-Encoding: chunked\r\n", 400),
}

HEADS = {
    "no Host": (b"GET %b HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET %b HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    "a URL of another host": (b"GET http://y%b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "chunks in HTTP/1.0": (b"POST %b HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "a fold": (b"GET %b HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    "a blank before the first header": (b"GET %b HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    "bare LF": (b"GET %b HTTP/1.1\nHost: x\n\n", 400),
    "one bare LF": (b"GET %b HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400),
    "one bare CR": (b"GET %b HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", 400),
    "a bare LF at the end": (b"GET %b HTTP/1.1\r\nHost: x\r\n\n", 400),
    "a NUL in a value": (b"GET %b HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n", 400),
    "a NUL in a name": (b"GET %b HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n", 400),
    "a NUL in the path": (b"GET %b\0 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a tab in the path": (b"GET %b\t HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "raw bytes in the path": (b"GET %b\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a control character": (b"GET %b HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n", 400),
    "no colon": (b"GET %b HTTP/1.1\r\nHost: x\r\nA\r\n\r\n", 400),
    "no name": (b"GET %b HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", 400),
    "HTTP/0.9": (b"GET %b\r\n\r\n", 505),
    "HTTP/2.0": (b"GET %b HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    "HTTP/1.2": (b"GET %b HTTP/1.2\r\nHost: x\r\n\r\n", 400),
    "http/1.1": (b"GET %b http/1.1\r\nHost: x\r\n\r\n", 400),
    "an unknown method": (b"FETCH %b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a method in small letters": (b"get %b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "CONNECT": (b"CONNECT %b HTTP/1.1\r\nHost: x\r\n\r\n", (400, 501)),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n%.0b", 400),
    "TLS": (bytes.fromhex("160301020001000001fc0303") + bytes(100) + b"%.0b", 400),
}

CHUNKS = {
    "0x": b"0x4\r\ndata\r\n",
    "a sign": b"-4\r\ndata\r\n",
    "a blank": b"4 \r\ndata\r\n",
    "a blank before it": b" 4\r\ndata\r\n",
    "no size": b"\r\ndata\r\n",
    "letters": b"four\r\ndata\r\n",
    "beyond 64 bits": b"10000000000000004\r\ndata\r\n",
    "bare LF": b"4\ndata\r\n",
    "bare CR": b"4\rdata\r\n",
    "bare LF in an extension": b"4;a\nb\r\ndata\r\n",
    "bare LF in a quoted extension": b'4;a="\nb"\r\ndata\r\n',
    "a NUL in an extension": b"4;a=\0\r\ndata\r\n",
    "bare LF behind it": b"4\r\ndata\n0\r\n\r\n",
    "nothing behind it": b"4\r\ndata0\r\n\r\n",
    "more than its size": b"4\r\ndata!\r\n0\r\n\r\n",
    "a length among the trailer fields": b"4\r\ndata\r\n0\r\nContent-Length: 5\r\n\r\n",
    "a coding among the trailer fields": b"4\r\ndata\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
}


def hidden(channel: RemoteChannel) -> bytes:
    """A request that would create a channel."""
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % channel.path.encode()


@pytest.mark.parametrize(("fields", "status"), LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("path", ["/trickle/framing/0", "/trickle/framing", "/api/v1/channels", "/healthz"])
def test_a_body_without_a_clear_end_is_refused(
    server: LocalServer, channel: RemoteChannel, path: str, fields: bytes, status: int | tuple[int, ...]
) -> None:
    """On every route: one answer, the end, no channel, and nothing of what might hide behind it."""
    head = b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n" % (path.encode(), fields)
    for offer in (b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"):
        data = head.replace(b"Host: x\r\n", b"Host: x\r\n" + offer) + CHUNKED_BODY + hidden(channel)
        got = statuses(exchange(server, data, half_close=False))
        assert len(got) == 1
        assert got[0] in (status if isinstance(status, tuple) else (status,))
    assert set(server.plane.registry.channels) <= {"_changes", "control"}


@pytest.mark.parametrize("path", ["/trickle/framing/0", "/api/v1/channels", "/healthz"])
def test_the_largest_length_is_just_too_large(server: LocalServer, path: str) -> None:
    """2**64 - 1 bytes are announced to nobody."""
    data = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n" % path.encode()
    assert statuses(exchange(server, data, half_close=False)) == [413]
    assert set(server.plane.registry.channels) <= {"_changes", "control"}


@pytest.mark.parametrize(("head", "status"), HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("path", ["/trickle/control/0", "/healthz", "http://x/trickle/control/next"])
def test_a_head_that_is_not_clear_is_refused(
    server: LocalServer, channel: RemoteChannel, path: str, head: bytes, status: int | tuple[int, ...]
) -> None:
    """Whole, and byte by byte: the same answer, the end, and nothing of what might hide behind it."""
    data = head % path.encode() + hidden(channel)
    got = statuses(exchange(server, data, half_close=False))
    assert len(got) == 1
    assert got[0] in (status if isinstance(status, tuple) else (status,))
    connection = channel.target.open()
    for byte in data:
        if not connection.try_send(bytes([byte])):
            break
    assert connection.response().status == got[0]
    assert set(server.plane.registry.channels) <= {"_changes", "control"}


@pytest.mark.parametrize("wire", CHUNKS.values(), ids=CHUNKS.keys())
def test_a_chunk_that_is_none_is_refused(server: LocalServer, channel: RemoteChannel, wire: bytes) -> None:
    """The publisher is told; what came before stays for one that can go on, what might hide behind it is not done."""
    other = channel.target.channel()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % channel.at(0).encode()
    got = statuses(exchange(server, head + b"4\r\ngood\r\n" + wire + hidden(other), half_close=False))
    assert got == [400]
    assert other.name not in server.plane.registry.channels
    channel.upload(0, b"!").end().answer()
    body = channel.get(0).body
    assert body.startswith(b"good")
    assert body.endswith(b"!")


def test_an_offer_of_another_protocol_swallows_nothing(server: LocalServer, target: Target) -> None:
    """A request to the control plane with a body and an offer is served, and so is the one behind it."""
    body = b'{"name": "offered"}'
    connection = target.open()
    headers = {"Connection": "Upgrade", "Upgrade": "h2c", "Content-Type": "application/json"}
    head = connection.render("POST", "/api/v1/channels", {**headers, "Content-Length": str(len(body))})
    connection.send(head)
    target.settle()
    connection.send(body + connection.render("DELETE", "/api/v1/channels/offered"))
    connection.expects("POST")
    assert connection.response().status == 201
    connection.expects("DELETE")
    assert connection.response().status == 200


def test_an_offer_in_http_1_0_is_answered_in_http_1_0(server: LocalServer) -> None:
    """A client that knows no chunks is sent none, whatever else it offers."""
    data = b"GET /trickle/control/0 HTTP/1.0\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    answer = exchange(server, data, half_close=False)
    assert b"transfer-encoding" not in answer.lower()
    assert answer.endswith(b"\r\n\r\nfirst")


def test_garbage_behind_a_request_does_not_harm_it(server: LocalServer, channel: RemoteChannel) -> None:
    """The request is answered, the garbage with 400, and the connection closes: in both planes."""
    for path in (b"/trickle/control/0", b"/healthz"):
        request = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path
        got = statuses(exchange(server, request + b"garbage\r\n\r\n" + hidden(channel), half_close=False))
        assert got in ([200, 400], [200])
    body = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\ndata" % channel.at(0).encode()
    assert statuses(exchange(server, body + b"\0\0\0", half_close=False)) == [200, 400]
    assert channel.get(0).body == b"data"


def test_nothing_is_read_behind_a_last_request(server: LocalServer, channel: RemoteChannel) -> None:
    """`Connection: close` means it: what follows is not done."""
    data = b"GET /trickle/control/next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + hidden(channel)
    assert statuses(exchange(server, data, half_close=False)) == [200]
    assert channel.name not in server.plane.registry.channels


@pytest.mark.parametrize("blank", [b" ", b"\t", b" \t  "])
def test_blanks_behind_a_value_are_no_part_of_it(server: LocalServer, channel: RemoteChannel, blank: bytes) -> None:
    """Every field is read as if they were not there: the name, the body's length, what the client waits for."""
    path = channel.path.encode()
    fields = (b"Host: 127.0.0.1", b"Origin: http://127.0.0.1", b"Content-Length: 4", b"Expect: 100-continue")
    head = b"".join(b"%b%b\r\n" % (field, blank) for field in fields)
    both = b"POST %b/0 HTTP/1.1\r\n%b\r\ndataPOST %b HTTP/1.1\r\n%b\r\ndata" % (path, head, path, head)
    answers = exchange(server, both, half_close=False)
    assert answers.startswith(b"HTTP/1.1 100 ")
    assert statuses(answers) == [200, 400]
    channel.get(0).segment(0, b"data")


@pytest.mark.parametrize("fields", [b"Host: x\r\nHost: y\r\n", b"Host: x y\r\n", b"Host: x\r\nA\r\n"])
def test_a_refused_head_request_has_no_body(server: LocalServer, fields: bytes) -> None:
    """The client expects none, whatever the length says."""
    answer = exchange(server, b"HEAD /trickle/control/0 HTTP/1.1\r\n%b\r\n" % fields, half_close=False)
    assert statuses(answer) == [400]
    assert answer.endswith(b"\r\n\r\n")
