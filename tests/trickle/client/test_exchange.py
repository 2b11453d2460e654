"""One request: clean responses, typed losses, the first line of an error, and what goes past httpx."""

from __future__ import annotations

import asyncio
import contextlib

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.support.peers import Head, Peer, fake_server, run
from tricklecast.trickle import wire
from tricklecast.trickle.bearer import Bearer
from tricklecast.trickle.client import faults
from tricklecast.trickle.client.bridge import TrickleTransport
from tricklecast.trickle.client.connection import (
    BodyWriter,
    LiveBody,
    RequestTimeouts,
)
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost, TrickleClient, exchange, first_line
from tricklecast.trickle.errors import ChannelEnded, ConnectionLost, Refused, RemoteProtocolError, SegmentMissing


def client(read_s: float | None = 5.0) -> httpx.AsyncClient:
    """A client as publisher and subscriber make it."""
    timeout = httpx.Timeout(connect=5.0, read=read_s, write=5.0, pool=None)
    return httpx.AsyncClient(transport=TrickleTransport(), timeout=timeout)


async def get(http: httpx.AsyncClient, url: str) -> ExchangeOutcome:
    return await exchange(http, "GET", url, seq=7, place="here: ")


def test_only_clean_headers_are_taken_in() -> None:
    """Integer headers are integers of at most 15 digits; unknown headers are left out."""
    headers = httpx.Headers(
        {
            wire.SEQ: " 7 ",
            wire.LATEST: "-1",
            wire.SIZE: "9" * 16,
            wire.EPOCH: "one",
            wire.LIFE: "abc:3",
            wire.RETRY_AFTER: "2",
            "X-Other": "1",
            "Content-Type": "video/mp2t",
            "Content-Length": "0",
        }
    )
    answer = Answer.read(200, headers.raw)
    assert answer.headers == {wire.SEQ: "7", wire.LATEST: "-1", wire.RETRY_AFTER: "2", wire.LIFE: "abc:3"}
    assert (answer.natural(wire.SEQ), answer.natural(wire.LATEST), answer.natural(wire.SIZE)) == (7, None, None)
    assert (answer.content_type, answer.empty, answer.closed) == ("video/mp2t", True, False)
    assert answer.life == wire.Life("abc", 3)
    assert answer.retry_after_s == 2.0


def test_a_header_that_comes_twice_is_left_out() -> None:
    """Neither of the two values can be trusted."""
    answer = Answer.read(200, [(b"lp-trickle-seq", b"1"), (b"Lp-Trickle-Size", b"2"), (b"Lp-Trickle-Seq", b"3")])
    assert answer.headers == {wire.SIZE: "2"}


def test_an_answer_stands_for_an_error() -> None:
    """The error has the segment that was asked for and the detail."""
    answer = Answer.read(470, [(b"lp-trickle-latest", b"9")])
    answer.detail = "Entry not found"
    error = answer.error(3)
    assert isinstance(error, SegmentMissing)
    assert (error.seq, error.latest, error.detail) == (3, 9, "Entry not found")
    ended = Answer.read(200, [(b"Lp-Trickle-Closed", b"terminated")])
    assert ended.closed
    assert isinstance(ended.error(None), ChannelEnded)


def test_a_redirect_says_where_to() -> None:
    """The text has the URL, without secrets and control characters."""
    location = (b"Location", b"https://me:secret@cdn.example/trickle/cam?token=abc\xc2\x9b2J")
    answer = Answer.read(301, [location, (b"Content-Length", b"3")])
    text = "the answer is not from a trickle server: it redirects to https://***@cdn.example/trickle/cam?token=***"
    assert str(answer.error(3)) == f"{text}: use that URL instead (HTTP 301, segment 3)"
    assert Answer.read(301, []).detail == ""


def test_how_a_body_is_compressed_is_known() -> None:
    """``identity`` is no compression."""
    codings = [b"gzip", b" Identity", b"BR"]
    assert [Answer.read(200, [(b"Content-Encoding", name)]).coding for name in codings] == ["gzip", "", "br"]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"", ""),
        (b"\n\n one line \r\nanother", "one line"),
        (b"\xff\x00bell\x07", "\ufffdbell"),
        (b"x" * 1000, "x" * 200),
        (b"\n<html>\r\n<head><title>\n502 Bad Gateway\n</title></head></html>", "a web page: 502 Bad Gateway"),
        (b"<!DOCTYPE HTML>\n<p>no title", "a web page"),
    ],
)
def test_first_lines_are_printable_and_short(body: bytes, line: str) -> None:
    """An error's body may be binary, or a page of HTML, of which only the title says something."""
    assert first_line(body) == line


def test_an_answer_brings_its_first_line() -> None:
    """The response has the body's first line; a short body leaves its connection usable."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            for _ in range(2):
                await peer.head()
                await peer.answer(403, body=b"you may not\nhere")
            await peer.closed()

        async with fake_server(script) as server, client() as http:
            for _ in range(2):
                opened = await get(http, server.base)
                assert isinstance(opened, Answer)
                assert await opened.body.receive() == b""
                error = opened.error(7)
                assert isinstance(error, Refused)
                assert error.detail == "you may not"
            assert len(server.peers) == 1

    run(main())


@pytest.mark.parametrize("end", ["drips", "breaks", "long"])
def test_the_status_counts_whatever_the_body_does(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that drips, breaks off or never ends does not delay the response."""
    monkeypatch.setattr("tricklecast.trickle.client.exchange.DETAIL_S", 0.1 if end == "drips" else 30.0)

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(b"HTTP/1.1 403 No\r\nContent-Length: 1000000\r\n\r\nbecause")
            if end == "breaks":
                peer.writer.close()
                return
            if end == "long":
                await peer.send(b"!" * 2000)
            await peer.closed()

        async with fake_server(script) as server, client() as http:
            opened = await get(http, server.base)
            assert isinstance(opened, Answer)
            assert opened.status == 403
            assert opened.detail.startswith("because")

    run(main())


def test_a_body_that_is_wanted_stays_open() -> None:
    """The caller reads its chunks, one by one or joined."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n"
            )
            await peer.closed()

        async with fake_server(script) as server, client() as http:
            opened = await exchange(http, "GET", server.base, stays_open=lambda answer: answer.status == 200)
            assert isinstance(opened, Answer)
            assert opened.body.keeps_cancelled
            assert await opened.body.receive_chunk() == b"a"
            assert await opened.body.receive() in (b"b", b"bc")
            while await opened.body.receive():
                pass
            await opened.body.aclose()

    run(main())


async def exchanged(method: str, *replies: tuple[int, str]) -> tuple[ExchangeOutcome, list[str], str]:
    """What comes of a request to a server that redirects, the paths that it was asked for, and its address."""
    paths: list[str] = []

    async def script(peer: Peer) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client has closed the connection
            while True:
                paths.append((await peer.head()).path)
                status, location = replies[len(paths) - 1]
                await peer.answer(status, {"Location": location.format(root=root)} if location else {})

    async with fake_server(script) as server, TrickleClient(timeout=RequestTimeouts.each(5.0)) as http:
        root = server.base.removesuffix("/trickle")
        return await exchange(http, method, f"{root}/old/cam/next"), paths, root


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("location", ["/new/cam/next?x=1", "{root}/new/cam/next?x=1", "../../new/cam/next?x=1"])
def test_a_get_follows_a_redirect_within_its_origin(status: int, location: str) -> None:
    """The answer is the one of the other URL, over the same connection."""
    found, paths, _ = run(exchanged("GET", (status, location), (200, "")))
    assert isinstance(found, Answer)
    assert (found.status, paths) == (200, ["/old/cam/next", "/new/cam/next?x=1"])


@pytest.mark.parametrize(
    ("method", "location", "asked", "told"),
    [
        ("POST", "/new/cam/next", 1, "{root}/new/cam/next"),  # without a body: it may create the channel "next"
        ("GET", "http://127.0.0.1:1/new/cam/next", 1, "http://127.0.0.1:1/new/cam"),
        ("GET", "https://127.0.0.1/new/cam/next?token=x", 1, "https://127.0.0.1/new/cam?token=***"),
        ("GET", "//other.example/cam", 1, "http://other.example/cam"),
        ("GET", "http://[/next", 1, "http://["),
        ("GET", "/old/cam/next", 6, "{root}/old/cam"),
    ],
)
def test_other_redirects_are_told(method: str, location: str, asked: int, told: str) -> None:
    """They concern a method that writes, lead to another origin or nowhere, or run in a circle.

    The URL that is told is the channel's: what this request has behind it is left out.
    """
    found, paths, root = run(exchanged(method, *[(308, location)] * 6))
    assert isinstance(found, Answer)
    assert (found.status, len(paths)) == (308, asked)
    assert found.detail == f"it redirects to {told.format(root=root)}: use that URL instead"


def test_a_redirected_segment_is_told_as_its_channel() -> None:
    """Its number is the client's. The answer is that to a body, which is written no more."""

    async def main() -> None:
        async def script(peer: Peer) -> None:
            await peer.head()
            await peer.answer(307, {"Location": "https://127.0.0.1/new/cam/7"})

        async with fake_server(script) as server, TrickleClient(timeout=RequestTimeouts.each(5.0)) as http:
            found = await exchange(http, "POST", f"{server.base}/cam/7", body=Fixed())
        assert isinstance(found, Answer)
        assert found.detail == "it redirects to https://127.0.0.1/new/cam: use that URL instead"

    run(main())


def test_a_refused_certificate_is_a_refusal() -> None:
    """The error is not that of a lost connection, which may be there again later."""

    async def refused(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("why") from faults.CertificateRefused("it wants another one")

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(refused)) as http:
            found = await get(http, "https://host/trickle/cam/7")
        assert isinstance(found, Lost)
        assert isinstance(found.error, Refused)
        assert (found.error.temporary, found.error.detail) == (False, "here: it wants another one")

    run(main())


class Fixed(LiveBody):
    """A body of one chunk."""

    def start(self, writer: BodyWriter) -> None:
        writer.write(b"data", last=True)

    def resume(self) -> None: ...

    def detach(self) -> None: ...


@pytest.mark.parametrize(("kind", "user"), [(TrickleClient, ""), (TrickleClient, "me@"), (httpx.AsyncClient, "")])
def test_a_live_body_is_sent_in_chunks(kind: type[httpx.AsyncClient] | type[TrickleClient], user: str) -> None:
    """It goes straight to the transport, or through httpx if there is authentication."""

    async def script(peer: Peer) -> None:
        head = await peer.head()
        assert head.headers["transfer-encoding"] == "chunked"
        assert await peer.reader.readexactly(14) == b"4\r\ndata\r\n0\r\n\r\n"
        await peer.answer(200, {wire.SEQ: "4"})

    async def main() -> None:
        async with (
            fake_server(script) as server,
            kind(transport=TrickleTransport(), timeout=httpx.Timeout(5.0)) as http,
        ):
            opened = await exchange(http, "POST", server.base.replace("//", f"//{user}"), body=Fixed())
            assert isinstance(opened, Answer)
            assert opened.natural(wire.SEQ) == 4

    run(main())


def test_a_transport_without_timeouts_is_not_waited_for() -> None:
    """The read timeout holds for transports that ignore it."""

    async def never(_: httpx.Request) -> httpx.Response:
        await anyio.sleep_forever()
        raise AssertionError

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(never)) as http:
            lost = await exchange(http, "GET", "http://host/", timeouts=httpx.Timeout(0.02))
            assert isinstance(lost, Lost)
            assert lost.waited_s == 0.02

    run(main())


@pytest.mark.parametrize("fault", ["refused", "cut", "garbage", "silent"])
def test_losses_are_told_apart(fault: str) -> None:
    """A refused connection, a broken one, another protocol, and a response that is late."""

    async def main() -> None:
        done = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.head()
            if fault == "garbage":
                await peer.send(b"SSH-2.0-OpenSSH\r\n\r\n")
            if fault == "silent":
                await done.wait()

        async with fake_server(script) as server, client(0.1 if fault == "silent" else 5.0) as http:
            url = "http://127.0.0.1:1/" if fault == "refused" else server.base
            lost = await get(http, url)
            done.set()
        assert isinstance(lost, Lost)
        assert lost.error.seq == 7
        if fault == "refused":
            assert str(lost.error) == "cannot connect to http://127.0.0.1:1: Connection refused (segment 7)"
        else:
            assert lost.error.detail.startswith("here: ")
        assert isinstance(lost.error, RemoteProtocolError if fault == "garbage" else ConnectionLost)
        assert lost.connected is (fault != "refused")
        assert lost.waited_s == (0.1 if fault == "silent" else 0.0)

    run(main())


def test_an_answer_without_a_body_leaves_its_connection_usable() -> None:
    """An empty body is not read, and the next request uses the same connection."""

    async def script(peer: Peer) -> None:
        for seq in (4, 5):
            await peer.head()
            await peer.answer(200, {wire.SEQ: str(seq)})

    async def main() -> None:
        async with fake_server(script) as server, client() as http:
            for seq in (4, 5):
                opened = await get(http, server.base)
                assert isinstance(opened, Answer)
                assert opened.empty
                assert opened.natural(wire.SEQ) == seq
            assert len(server.peers) == 1

    run(main())


class Whole(LiveBody):
    """A body of one chunk."""

    def start(self, writer: BodyWriter) -> None:
        writer.write(b"all", last=True)

    def resume(self) -> None: ...

    def detach(self) -> None: ...


def test_a_header_that_http_does_not_allow_is_a_local_error() -> None:
    """Nothing is sent, neither through httpx nor past it."""

    async def main() -> None:
        async with httpx.AsyncClient(transport=TrickleTransport()) as http, TrickleClient() as plain:
            with pytest.raises(httpx.LocalProtocolError):
                await http.get("http://127.0.0.1:1/", headers={"X": "a\r\nY: b"})
            with pytest.raises(faults.LocalProtocolError):
                plain.send_plain("GET", "http://127.0.0.1:1/", {"X": "a\r\nY: b"}, None, None)

    run(main())


@pytest.mark.parametrize("is_own", [True, False])
def test_a_token_takes_the_short_way(is_own: bool) -> None:
    """The client's token, or the one of this request, is a header, and goes before one that the caller set."""

    async def main() -> None:
        heads: list[Head] = []
        tokens = iter(["one", "two"])

        async def script(peer: Peer) -> None:
            for _ in range(2):
                heads.append(await peer.head())
                await peer.answer(200)

        bearer = Bearer(lambda: next(tokens))
        own, asked = (bearer, None) if is_own else (None, bearer)
        headers = {"authorization": "Basic x"}
        async with fake_server(script) as server, TrickleClient(auth=own) as http:
            for _ in range(2):
                sending = http.send_plain("GET", f"{server.base}/c/1", headers, None, None, asked)
                assert sending is not None
                response = await sending
                response.close()
        assert [head.headers["authorization"] for head in heads] == ["Bearer one", "Bearer two"]

    run(main())


def test_a_plain_request_may_have_a_live_body() -> None:
    """It is sent in chunks; the second request reuses the server's origin."""

    async def main() -> None:
        bodies: list[list[bytes]] = []

        async def script(peer: Peer) -> None:
            for _ in range(2):
                head = await peer.head()
                assert head.headers["transfer-encoding"] == "chunked"
                bodies.append(await peer.body())
                await peer.answer(200)

        async with fake_server(script) as server, TrickleClient() as http:
            for _ in range(2):
                sending = http.send_plain("POST", f"{server.base}/c/1", {}, Whole(), None)
                assert sending is not None
                response = await sending
                assert response.head.status_code == 200
                await response.aclose()
        assert bodies == [[b"all"]] * 2

    run(main())


def test_a_plain_request_takes_the_short_way() -> None:
    """It has the client's headers and its own. With authentication, httpx sends it."""

    async def main() -> None:
        heads: list[Head] = []

        async def script(peer: Peer) -> None:
            heads.append(await peer.head())
            await peer.answer(200)

        async with fake_server(script) as server:
            root = server.base.removesuffix("/trickle")
            async with TrickleClient(headers={"User-Agent": "a", "X": "b"}) as http:
                sending = http.send_plain("GET", f"{root}/c/1?token=a", {"user-agent": "c"}, None, None)
                assert sending is not None
                response = await sending
                assert (response.head.status_code, await response.receive()) == (200, b"")
            with pytest.raises(RuntimeError, match="closed"):
                await exchange(http, "GET", root)
            async with TrickleClient(auth=("user", "secret")) as http:
                assert http.send_plain("GET", f"{root}/c/3", {}, None, None) is None
        [head] = heads
        assert (head.method, head.path, head.headers["host"]) == ("GET", "/c/1?token=a", root.partition("//")[2])
        assert (head.headers["user-agent"], head.headers["x"]) == ("c", "b")

    run(main())


@pytest.mark.parametrize("auth", [None, ("user", "secret")], ids=["plain", "httpx"])
def test_a_request_may_have_a_key_of_its_own(auth: tuple[str, str] | None) -> None:
    """It goes before the client's; the next request has another one, or the client's."""

    async def main() -> None:
        heads: list[Head] = []

        async def script(peer: Peer) -> None:
            for _ in range(3):
                heads.append(await peer.head())
                await peer.answer(200)

        usual = {"Idempotency-Key": "usual"}
        async with fake_server(script) as server, TrickleClient(auth=auth, headers=usual) as http:
            for key in ("a.1", "a.2", ""):
                assert isinstance(await exchange(http, "POST", f"{server.base}/c/1", {"X": "y"}, key=key), Answer)
        assert [head.headers.get("idempotency-key") for head in heads] == ["a.1", "a.2", "usual"]
        assert [head.headers["x"] for head in heads] == ["y"] * 3

    run(main())


@pytest.mark.parametrize("auth", [None, ("user", "secret")], ids=["plain", "httpx"])
def test_no_cookie_is_kept(auth: tuple[str, str] | None) -> None:
    """The next request carries none that a server set, and those that the program set."""

    async def main() -> None:
        heads: list[Head] = []

        async def script(peer: Peer) -> None:
            for number in range(2):
                heads.append(await peer.head())
                await peer.answer(200, {"Set-Cookie": f"c{number}=" + "x" * 4000})

        http = TrickleClient(auth=auth, headers={"Cookie": "own=1"})
        async with fake_server(script) as server, http:
            for number in range(2):
                assert isinstance(await exchange(http, "GET", f"{server.base}/c/{number}"), Answer)
        assert [head.headers["cookie"] for head in heads] == ["own=1", "own=1"]

    run(main())


def test_a_transport_that_was_not_used_is_closed_as_well() -> None:
    """It is the program's, and has no connections of ours."""

    class Counted(httpx.AsyncBaseTransport):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    async def main() -> None:
        transport = Counted()
        async with TrickleClient(transport=transport):
            pass
        assert transport.closed == 1

    run(main())
