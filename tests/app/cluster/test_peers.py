"""Signatures between nodes: which requests a node believes, and the URLs at which nodes find each other."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.cluster.peers import MAX_SIGNED, NodeUrl, Peers, sign, verify
from tricklecast.app.data_plane.request import CLUSTER, Request, Via
from tricklecast.app.data_plane.responses import FORGED, LOOP
from tricklecast.trickle.errors import InvalidInput

SECRET = b"0123456789abcdef0123456789abcdef"

names = st.text(min_size=1, max_size=40)
ways = st.builds(
    Via,
    st.lists(names, min_size=1, max_size=3).map(tuple),
    st.none() | names,
    st.none() | names,
    st.text(max_size=40),
)


@given(ways)
def test_what_a_node_has_signed_is_read_as_it_was(via: Via) -> None:
    """Names of any script pass; the value is one that a header field can have."""
    value = sign(SECRET, b"POST", b"/trickle/cam/5?x=%20", via)
    assert value.isascii()
    assert b" " not in value
    assert value.decode().isprintable()
    assert verify(SECRET, b"POST", b"/trickle/cam/5?x=%20", value) == via


@given(ways, st.data())
def test_a_changed_value_is_not_believed(via: Via, data: st.DataObject) -> None:
    """Nor one with a byte less or more."""
    value = sign(SECRET, b"GET", b"/trickle/cam/5", via)
    at = data.draw(st.integers(0, len(value) - 1))
    other = data.draw(st.integers(33, 126).filter(lambda byte: byte != value[at]))
    for wrong in (value[:at] + bytes([other]) + value[at + 1 :], value[:at] + value[at + 1 :], value + b"0"):
        assert verify(SECRET, b"GET", b"/trickle/cam/5", wrong) is None


@pytest.mark.parametrize(
    ("secret", "method", "target"),
    [
        (b"another secret, as long as it is", b"GET", b"/trickle/cam/5"),
        (SECRET, b"POST", b"/trickle/cam/5"),
        (SECRET, b"GET", b"/trickle/cam/6"),
        (SECRET, b"GET", b"/trickle/cam/5?token=x"),
    ],
)
def test_a_signature_is_good_for_one_request(secret: bytes, method: bytes, target: bytes) -> None:
    """Not for another method, another target, or in another cluster."""
    value = sign(SECRET, b"GET", b"/trickle/cam/5", Via(("a",), "192.0.2.1"))
    assert verify(secret, method, target, value) is None


@pytest.mark.parametrize("secret", [b"", b"short"])
def test_without_a_secret_nobody_is_a_node(secret: bytes) -> None:
    """An empty key is one that everybody knows."""
    with pytest.raises(ValueError, match="secret is not known"):
        sign(secret, b"GET", b"/", Via(("a",)))
    assert verify(secret, b"GET", b"/", sign(SECRET, b"GET", b"/", Via(("a",)))) is None


@pytest.mark.parametrize("value", [b"", b".", b"x", b"x.y", b"." * MAX_SIGNED * 2, b"\xff.\xff"])
def test_any_bytes_are_refused(value: bytes) -> None:
    """Whatever a client writes into the field, also what is no text."""
    assert verify(SECRET, b"GET", b"/", value) is None


def test_a_value_of_another_version_is_refused() -> None:
    """A signature over fields that this node does not know is no reason to fail."""

    class Other(tuple[object, ...]):
        pass

    for fields in (Other(), Other([[], None, None, ""]), Other([["a"], None, None, "", 5])):
        assert verify(SECRET, b"GET", b"/", sign(SECRET, b"GET", b"/", fields)) is None  # type: ignore[arg-type]


def _request(value: bytes) -> Request:
    return Request(b"GET", b"/trickle/cam/5", None, {CLUSTER: value}, http10=False, keep_alive=True)


def test_a_node_believes_its_peers_and_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """What others send is counted each time, and logged once a minute."""
    here, there = Peers("here", lambda: SECRET), Peers("there", lambda: SECRET)
    via = Via(("there",), "192.0.2.1", None, "studio")
    assert here.sender(_request(there.sign(b"GET", b"/trickle/cam/5", via))) == via
    assert here.sender(_request(there.sign(b"GET", b"/trickle/cam/5"))) == Via(("there",))
    with caplog.at_level(logging.WARNING, "tricklecast.cluster"):
        for _ in range(3):
            assert here.sender(_request(b"let me in")) is FORGED
    assert (here.forged, len(caplog.records)) == (3, 1)


@pytest.mark.parametrize("hops", [("here", "there", "here"), ("a", "b", "c")])
def test_a_request_that_goes_in_a_circle_ends(hops: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    """It has passed more nodes than a moving channel explains. It may come back to a node to which a channel moved."""
    here = Peers("here", lambda: SECRET)
    with caplog.at_level(logging.WARNING, "tricklecast.cluster"):
        for _ in range(2):
            assert here.sender(_request(sign(SECRET, b"GET", b"/trickle/cam/5", Via(hops)))) is LOOP
    assert here.loops == 2
    assert [", ".join(hops) in record.getMessage() for record in caplog.records] == [True]
    assert here.looped(("here", "there")) is None


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("http://10.0.0.1:2939/trickle", NodeUrl("10.0.0.1", 2939, False, b"10.0.0.1:2939", b"/trickle")),
        ("https://edge-1.example/", NodeUrl("edge-1.example", 443, True, b"edge-1.example", b"")),
        ("http://[2001:db8::1]:80/a/b/", NodeUrl("2001:db8::1", 80, False, b"[2001:db8::1]:80", b"/a/b")),
    ],
)
def test_the_url_of_a_node(url: str, parsed: NodeUrl) -> None:
    """It says where to connect, and below which path the channels are."""
    assert NodeUrl.parse(url) == parsed


@pytest.mark.parametrize(
    "url",
    ["", "10.0.0.1:2939", "ftp://a/", "http:///trickle", "http://a:x/", "http://a/?b", "http://a/#b", "http://u@a/",
     "http://a/b c", "http://a/\r\nx: y", "http://[::1/"],
)  # fmt: skip
def test_what_is_no_url_of_a_node(url: str) -> None:
    """It is refused when it is read, not when the first request goes there."""
    with pytest.raises(InvalidInput):
        NodeUrl.parse(url)
