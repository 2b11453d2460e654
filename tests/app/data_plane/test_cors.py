"""Which web pages may read and write."""

from __future__ import annotations

import pytest

from tests.support.local import local_server
from tricklecast.app.data_plane.cors import ALLOWED, ANY, REFUSED, Cors

PAGE, OTHER = "https://page.example", "https://other.example"


def decide(cors: Cors, method: str, origin: str | None = PAGE, *, host: str = "h:1", scheme: str = "http") -> object:
    """The decision about a request of a page of this origin."""
    headers = {b"host": host.encode()}
    if origin is not None:
        headers[b"origin"] = origin.encode()
    return cors.decide(method.encode(), headers, scheme)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_any_page_may_read_by_default(method: str) -> None:
    """The answer carries the permission, and the names of our headers, which the page may then see."""
    decision = Cors([ANY], []).decide(method.encode(), {b"origin": PAGE.encode()}, "http")
    assert decision.allowed
    assert dict(decision.headers)["access-control-allow-origin"] == "*"
    assert "Lp-Trickle-Seq" in dict(decision.headers)["access-control-expose-headers"]


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_no_page_may_write_by_default(method: str) -> None:
    """The server refuses the request itself: a browser sends a simple POST without a preflight."""
    assert decide(Cors([ANY], []), method) is REFUSED


def test_a_page_that_may_not_read_is_served_and_cannot_see_the_answer() -> None:
    """A read changes nothing, and without permission the browser keeps the answer from the page."""
    assert decide(Cors([OTHER], []), "GET") is ALLOWED


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_listed_origin_is_permitted_by_name(method: str) -> None:
    """Caches are told that the answer depends on the origin; other origins are not permitted."""
    cors = Cors([PAGE, OTHER], [PAGE, OTHER])
    decision = cors.decide(method.encode(), {b"origin": PAGE.encode()}, "http")
    assert decision.allowed
    assert decision.headers[:2] == (("access-control-allow-origin", PAGE), ("vary", "origin"))
    assert decide(cors, "POST", "https://evil.example") is REFUSED


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "is_same"),
    [
        (None, "h:1", "http", True),
        ("http://h:1", "h:1", "http", True),
        ("HTTP://H:1", "h:1", "http", True),
        ("https://h:1", "h:1", "https", True),
        ("https://h:1", "h:1", "http", True),
        ("http://h:1", "h:1", "https", False),
        ("http://h:2", "h:1", "http", False),
        ("http://h", "", "http", False),
        ("http://", "", "http", False),
        ("null", "h:1", "http", False),
    ],
    ids=["no-origin", "same", "case", "TLS", "proxy-speaks-TLS", "downgrade", "port", "no-host", "empty", "null"],
)
def test_requests_of_the_same_origin_are_not_concerned(
    origin: str | None, host: str, scheme: str, is_same: bool
) -> None:
    """Neither are those without an origin, which no page has made."""
    assert decide(Cors([], []), "POST", origin, host=host, scheme=scheme) is (ALLOWED if is_same else REFUSED)


@pytest.mark.parametrize(
    ("wanted", "write", "methods"),
    [
        ("GET", [], "GET, HEAD"),
        ("HEAD", [PAGE], "GET, HEAD"),
        ("DELETE", [PAGE], "POST, DELETE"),
        ("POST", [ANY], "POST, DELETE"),
    ],
)
def test_a_preflight_is_answered_like_the_request_it_asks_for(wanted: str, write: list[str], methods: str) -> None:
    """It permits the methods of that kind only: browsers remember the answer for a day."""
    headers = {b"origin": PAGE.encode(), b"access-control-request-method": wanted.encode()}
    decision = Cors([ANY], write).decide(b"OPTIONS", headers, "http")
    assert decision.allowed
    permitted = dict(decision.headers)
    assert permitted["access-control-allow-methods"] == methods
    assert "Authorization" in permitted["access-control-allow-headers"]


def test_a_preflight_for_a_write_that_is_not_allowed_is_refused() -> None:
    """The browser then never sends the write."""
    headers = {b"origin": PAGE.encode(), b"access-control-request-method": b"DELETE"}
    assert Cors([ANY], []).decide(b"OPTIONS", headers, "http") is REFUSED


def test_a_page_cannot_end_a_channel_of_an_open_server() -> None:
    """DELETE and a simple POST of a foreign page are 403 and change nothing; a configured page may write."""
    with local_server(cors_write_origins=(PAGE,)) as server, server.client() as target:
        channel = target.channel("c")
        channel.publish(0, b"kept")
        for method, tail in (("DELETE", ""), ("DELETE", "/0"), ("POST", "/1"), ("POST", "")):
            refused = target.ask(method, channel.path + tail, {"Origin": OTHER, "Content-Type": "text/plain"}, b"x")
            assert (refused.status, refused.body.count(b"\n")) == (403, 0)
            assert refused.get("Access-Control-Allow-Origin") is None
        assert (channel.next_seq(), channel.get(0).body) == (1, b"kept")
        assert server.record(method="DELETE", seq=0).reason == "forbidden"
        same = {"Origin": f"http://127.0.0.1:{server.port}"}
        assert target.ask("POST", channel.at(1), same, b"same").status == 200
        written = target.ask("DELETE", channel.path, {"Origin": PAGE})
        assert (written.status, written.get("Access-Control-Allow-Origin")) == (200, PAGE)
