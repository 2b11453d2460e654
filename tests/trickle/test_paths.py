"""Channel names, seqs and URLs: the accepted, the refused, and that writing and reading agree."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.trickle.errors import InvalidChannelName, InvalidSeq, InvalidURL
from tricklecast.trickle.paths import (
    MAX_NAME_BYTES,
    ChannelURL,
    is_reserved,
    normalize_base_path,
    parse_channel,
    parse_seq,
    parse_server_url,
    socket_path,
)

_NAMES = (
    st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/\\"), min_size=1, max_size=60)
    .filter(lambda name: ".." not in name and name != ".")
    .filter(lambda name: len(name.encode()) <= MAX_NAME_BYTES)
)


@pytest.mark.parametrize(("text", "seq"), [("0", 0), ("007", 7), ("-1", -1), ("-2", -2), ("9" * 15, 10**15 - 1)])
def test_seqs_that_follow_the_grammar(text: str, seq: int) -> None:
    """One to fifteen ASCII digits with an optional minus are a seq."""
    assert parse_seq(text) == seq


@pytest.mark.parametrize(
    "text",
    ["", "-", "+1", "1.0", "1e3", "0x1", " 1", "1 ", "1\n", "--1", "1_0", "abc", "next", "9" * 16, "\u0661", "\uff11"],
)
def test_anything_else_is_not_a_seq(text: str) -> None:
    """Texts that Python's int() would accept are refused, too."""
    with pytest.raises(InvalidSeq):
        parse_seq(text)


@given(st.text())
def test_no_text_breaks_the_seq_parser(text: str) -> None:
    """For any text, the result is a seq of at most fifteen digits or InvalidSeq."""
    try:
        seq = parse_seq(text)
    except InvalidSeq:
        return
    assert abs(seq) < 10**15


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("c", "c"),
        ("%63", "c"),
        ("a%20b", "a b"),
        ("caf%C3%A9", "caf\u00e9"),
        ("a+b", "a+b"),
        (".hidden", ".hidden"),
        ("a.b", "a.b"),
        ("_changes", "_changes"),
        ("100%", "100%"),
        ("x" * 255, "x" * 255),
        ("%C3%A9" * 127, "\u00e9" * 127),
    ],
)
def test_names_are_percent_decoded(raw: str, name: str) -> None:
    """A path segment is decoded to the channel's name."""
    assert parse_channel(raw) == name


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("", "empty"),
        ("x" * 256, "longer"),
        ("%C3%A9" * 128, "longer"),
        ("a%2Fb", "slash"),
        ("a%5Cb", "slash"),
        ("..", r"contains '\.\.'"),
        ("%2e%2e", r"contains '\.\.'"),
        ("a..b", r"contains '\.\.'"),
        (".", r"is '\.'"),
        ("a%00b", "control"),
        ("a%0Ab", "control"),
        ("a%7F", "control"),
        ("%C2%85", "control"),
        ("%FF", "UTF-8"),
        ("\ud800", "UTF-8"),
    ],
)
def test_names_that_are_refused_say_why(raw: str, why: str) -> None:
    """A name that is ambiguous or leads out of the path is refused with the reason."""
    with pytest.raises(InvalidChannelName, match=why) as caught:
        parse_channel(raw)
    assert caught.value.raw == raw


@given(_NAMES)
def test_every_valid_name_survives_encoding(name: str) -> None:
    """A name that is quoted and parsed stays the same."""
    assert parse_channel(quote(name, safe="")) == name


@given(st.text(max_size=300))
def test_no_text_breaks_the_name_parser(raw: str) -> None:
    """For any text, the result is a safe name or InvalidChannelName."""
    try:
        name = parse_channel(raw)
    except InvalidChannelName:
        return
    assert 1 <= len(name.encode()) <= MAX_NAME_BYTES
    assert "/" not in name
    assert ".." not in name
    assert "\x00" not in name


@pytest.mark.parametrize(("name", "reserved"), [("_changes", True), ("_x", True), ("x_", False), ("x", False)])
def test_names_of_the_server(name: str, reserved: bool) -> None:
    """A name belongs to the server if, and only if, it begins with an underscore."""
    assert is_reserved(name) is reserved


@pytest.mark.parametrize(
    ("base_path", "normal"),
    [("", ""), ("/", ""), ("//", ""), ("trickle", "/trickle"), ("/trickle/", "/trickle"), ("/a//b/", "/a/b")],
)
def test_base_paths_are_normalised(base_path: str, normal: str) -> None:
    """A base path begins with a slash and ends without one; the root is empty."""
    assert normalize_base_path(base_path) == normal


@pytest.mark.parametrize("base_path", ["/a/../b", "/.", "/a?b", "/a#b", "/a b", "/a\n"])
def test_base_paths_that_are_refused(base_path: str) -> None:
    """A base path with dots to resolve, a query, a fragment or white space is refused."""
    with pytest.raises(InvalidURL, match="base path"):
        normalize_base_path(base_path)


@given(st.text(max_size=50))
def test_normalising_twice_changes_nothing(base_path: str) -> None:
    """A normalised base path is not changed again."""
    try:
        once = normalize_base_path(base_path)
    except InvalidURL:
        return
    assert normalize_base_path(once) == once


def test_a_channel_url_is_taken_apart() -> None:
    """A URL is split into root, base path, decoded name and query."""
    url = ChannelURL.parse("https://host:1234/a//b/caf%C3%A9/?token=x")
    assert url == ChannelURL("https://host:1234", "/a/b", "caf\u00e9", "token=x")


def test_urls_of_a_channel() -> None:
    """The URLs of channel, segment and /next have the name encoded and keep the query."""
    url = ChannelURL("http://h:1", "/trickle", "a b/c", "token=x")
    assert str(url) == "http://h:1/trickle/a%20b%2Fc?token=x"
    assert url.segment(-1) == "http://h:1/trickle/a%20b%2Fc/-1?token=x"
    assert url.next() == "http://h:1/trickle/a%20b%2Fc/next?token=x"


@pytest.mark.parametrize("url", ["http://h/c", "http://[::1]:2939/trickle/c", "https://u:p@h:1/a/b/c?q=1"])
def test_a_plain_url_is_built_back_as_it_was(url: str) -> None:
    """A URL that needs no normalising is built back unchanged."""
    assert str(ChannelURL.parse(url)) == url


@given(name=_NAMES, seq=st.integers(-(10**15) + 1, 10**15 - 1))
def test_built_urls_parse_back_to_the_channel(name: str, seq: int) -> None:
    """For any name and seq, the URL that is built names the same channel."""
    url = ChannelURL("http://h:1", "/trickle", name)
    assert ChannelURL.parse(str(url)) == url
    assert url.segment(seq).endswith(f"/{seq}")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("host/c", "must begin"),
        ("ftp://host/c", "must begin"),
        ("unix:/run/x", r"a Unix socket is http\+unix://%2F"),
        ("http+unix://run/trickle/c", "names no socket"),
        ("http+unix://%2Frun%00/trickle/c", "names no socket"),
        ("http:///c", "no host"),
        ("http://host:99999/c", "its host or port is not valid"),
        ("http://[::1/c", "its host or port is not valid"),
        ("http://[FE80::1]:7/c", "a link-local address needs the name of the network interface"),
        ("http://[febf::1]/c", r"interface: \[febf::1%eth0\]"),
        ("http://host/a\tb/c", "a control character"),
        ("http://host/c\n", "a control character"),
        ("http://host/\x01/c", "a control character"),
        ("http://host", "names no channel"),
        ("http://host/", "names no channel"),
        ("http://host:1/watch/cam", "which itself is http://host:1/trickle/cam$"),
        ("http://host/trickle/cam#1", r"a channel has no fragment \(#\.\.\.\); a # in its name is written %23$"),
    ],
)
def test_urls_that_are_refused_say_why(url: str, why: str) -> None:
    """A URL that names no channel is refused before anything is sent."""
    with pytest.raises(InvalidURL, match=why) as caught:
        ChannelURL.parse(url)
    assert caught.value.url == url


def test_a_unix_socket_s_path_survives_lower_case() -> None:
    """Capitals in the path are escaped: programs may bring the authority of a URL into lower case."""
    url = ChannelURL.parse("http+unix://%2FRun%2Fa%C3%A4 B.sock/trickle/cam?token=1")
    assert str(url) == "http+unix://%2f%52un%2fa%c3%a4%20%42.sock/trickle/cam?token=1"
    assert ChannelURL.parse(str(url)) == url
    assert socket_path(url.root.partition("//")[2]) == "/Run/aä B.sock"


def test_a_url_with_a_bad_name_is_refused_for_the_name() -> None:
    """If only the name is wrong, the error is about the name."""
    with pytest.raises(InvalidChannelName):
        ChannelURL.parse("http://host/trickle/a%00b")


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/trickle/c/0?x=1#f", "http://h:1/healthz"])
def test_any_url_leads_to_its_server(url: str) -> None:
    """The URL of any page or channel is reduced to scheme and authority."""
    assert parse_server_url(url) == "http://h:1"


def test_a_server_url_needs_a_host() -> None:
    """A URL without a host is refused."""
    with pytest.raises(InvalidURL, match="no host"):
        parse_server_url("http://")


def test_an_unusable_port_is_not_repeated() -> None:
    """The message leaves a bad port out: a password with a slash looks like a port."""
    with pytest.raises(InvalidURL) as caught:
        ChannelURL.parse("http://me:sec/ret@host/c")
    assert str(caught.value) == "not a usable URL: '***@host/c': its host or port is not valid"


@pytest.mark.parametrize("zone", ["%eth0", "%25eth0"])
def test_the_interface_of_a_link_local_address(zone: str) -> None:
    """Both spellings (RFC 6874 and the plain one) reach the resolver as the plain one."""
    assert ChannelURL.parse(f"http://[fe80::1{zone}]:2939/trickle/c").root == "http://[fe80::1%eth0]:2939"
    assert ChannelURL.parse("http://[fec0::1]/c").root == "http://[fec0::1]"
