"""Which client a request comes from, behind proxies and without, and the keys under which it is counted."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.data_plane.client_address import (
    MAX_HOPS,
    MAX_TEXT,
    TrustedProxies,
    client_key,
    client_of,
    guarded_client,
    has_name,
    plain,
    user_agent,
)
from tricklecast.trickle.records import Op

PROXIES = TrustedProxies([ip_network("10.0.0.0/8"), ip_network("2001:db8:99::/48")])
PEER = "10.0.0.1"


@pytest.mark.parametrize(
    ("ip", "trusted"),
    [
        ("10.255.0.1", True),
        ("::ffff:10.0.0.1", True),
        ("2001:db8:99::1", True),
        ("11.0.0.1", False),
        ("2001:db8:98::1", False),
        ("", False),
        ("nonsense", False),
    ],
)
def test_what_is_a_trusted_proxy(ip: str, trusted: bool) -> None:
    """An address of one of the networks, however it is written; where there are none, nothing is."""
    assert (ip in PROXIES) is trusted
    assert ip not in TrustedProxies([])


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7, 10.0.0.9", "192.0.2.7"),
        ("198.51.100.1, 192.0.2.7,10.0.0.9", "192.0.2.7"),
        ("garbage, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.7, 10.0.0.9", "10.0.0.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("192.0.2.7, ::ffff:10.0.0.9", "192.0.2.7"),
        ("2001:DB8::7", "2001:db8::7"),
        ("2001:db8::7, 2001:db8:99::1", "2001:db8::7"),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("[2001:db8::7]:4711", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
    ],
)
def test_the_client_is_the_last_that_is_no_proxy(forwarded: str, client: str) -> None:
    """Entries further left may have been written by any client."""
    assert PROXIES.client(PEER, forwarded) == client


@pytest.mark.parametrize(
    "forwarded",
    [
        "",
        ",",
        "unknown",
        "192.0.2.7, garbage",
        "192.0.2.7,",
        "192.0.2.7, garbage, 10.0.0.9",
        "192.0.2",
        "192.0.2.7:http",
        "[2001:db8::7]x",
        "[2001:db8::7",
        "fe80::1%eth0\x00",
        "\xb2\xb2",
        "1" * 10_000,
        "::1%" + "x" * 10_000,
    ],
)
def test_where_the_header_does_not_say_it_the_peer_is_the_client(forwarded: str) -> None:
    """Nothing that is no address gets into a log, or names a client."""
    assert PROXIES.client(PEER, forwarded) == PEER


@pytest.mark.parametrize(("hops", "client"), [(MAX_HOPS - 1, "10.0.0.2"), (MAX_HOPS, PEER), (40_000, PEER)])
def test_nobody_is_followed_through_a_thousand_proxies(hops: int, client: str) -> None:
    """Each address costs time; whoever sends thousands is not looked for."""
    assert PROXIES.client(PEER, ",".join(["10.0.0.2"] * hops)) == client


@given(st.text(max_size=80))
def test_any_text_is_answered_with_an_address(forwarded: str) -> None:
    """Any text in the header."""
    assert plain(PROXIES.client(PEER, forwarded))
    assert len(PROXIES.client(PEER, forwarded)) <= 39


@pytest.mark.parametrize(
    ("ip", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_under_what_an_address_is_counted(ip: str, key: str) -> None:
    """IPv4 as it is, whatever it is wrapped in; of IPv6 the network of one customer."""
    assert client_of(ip) == key


def test_an_address_is_written_in_one_way() -> None:
    """A socket for both kinds shows IPv4 addresses as IPv6 ones."""
    assert plain("::ffff:192.0.2.7") == "192.0.2.7"
    assert [plain(ip) for ip in ("192.0.2.7", "2001:db8::1", "::1", "::x")] == [
        "192.0.2.7",
        "2001:db8::1",
        "::1",
        "::x",
    ]


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        ("10.0.0.1", [b"203.0.113.9", b"192.0.2.7, 10.0.0.9"], "192.0.2.7"),
        ("::ffff:10.0.0.1", [b"192.0.2.7"], "192.0.2.7"),
        ("198.51.100.1", [b"192.0.2.7"], "198.51.100.1"),
        ("10.0.0.1", [], "10.0.0.1"),
    ],
)
def test_only_a_trusted_proxy_names_the_client(peer: str, lines: list[bytes], client: str) -> None:
    """Several lines of the header count as one; the header of any other peer is ignored."""
    headers = [(b"x-forwarded-for", line) for line in lines]
    assert PROXIES.origin(peer, [(b"host", b"h"), *headers]) == client


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (b"player/2.1 (x)", ("player/2.1 (x)", "player/2.1")),
        (b"", (None, None)),
        (b"x" * 9000, ("x" * MAX_TEXT, "x" * 64)),
    ],
)
def test_a_user_agent_and_its_release(value: bytes, parts: tuple[str | None, str | None]) -> None:
    """The text is cut, and its first word is the release."""
    assert user_agent(value) == parts


def test_a_key_for_a_client_without_a_name() -> None:
    """The key depends on address and user agent, and on nothing else."""
    assert client_key("192.0.2.1", "a") == client_key("192.0.2.1", "a")
    assert len({client_key("192.0.2.1", "a"), client_key("192.0.2.1", "b"), client_key("192.0.2.2", "a")}) == 3


def test_the_storm_guards_key_of_a_client() -> None:
    """Address, operation, and the client's own name, or else its user agent."""
    named, other = {b"trickle-client": b"me", b"user-agent": b"a"}, {b"trickle-client": b"me", b"user-agent": b"b"}
    assert guarded_client(Op.READ, named, "1") == guarded_client(Op.READ, other, "1")
    keys = {
        guarded_client(Op.READ, named, "1"),
        guarded_client(Op.READ, named, "2"),
        guarded_client(Op.PUBLISH, named, "1"),
        guarded_client(Op.READ, {b"user-agent": b"a"}, "1"),
        guarded_client(Op.READ, {}, "1"),
    }
    assert len(keys) == 5
    assert (has_name(named), has_name({b"trickle-client": b""}), has_name({})) == (True, False, False)
