"""Checks of the arguments that a program passes to a client."""

from __future__ import annotations

import math
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from tricklecast.trickle.client.arguments import (
    CONNECTION_HEADERS,
    channel_url,
    channel_urls,
    check_async,
    check_content_type,
    check_header_value,
    check_headers,
    check_number,
    check_options,
    check_verify,
    httpx_auth,
    merged,
    server_url,
)
from tricklecast.trickle.errors import InvalidInput, InvalidURL


def test_urls_that_can_be_sent() -> None:
    """The URL of a channel is taken apart; any URL of a server is reduced to its root."""
    assert str(channel_url("http://h:1/trickle/a b?token=x")) == "http://h:1/trickle/a%20b?token=x"
    assert server_url("http://h:1/trickle/cam") == "http://h:1"
    with pytest.raises(InvalidInput, match="the server's URL is a text, not int"):
        server_url(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "urls",
    [
        ["http://a:1/trickle/cam?token=x", "https://b/cam", "http://a:1/trickle/cam/?token=x"],
        "http://a:1/trickle/cam?token=x,https://b/cam",
        "http://a:1/trickle/cam?token=x , HTTPS://b/cam",
    ],
)
def test_a_channel_has_a_url_at_each_node_of_a_cluster(urls: str | list[str]) -> None:
    """In a list, or in a text with commas between them. One that comes twice counts once."""
    assert [str(url) for url in channel_urls(urls)] == ["http://a:1/trickle/cam?token=x", "https://b/cam"]


def test_a_comma_within_a_url_belongs_to_it() -> None:
    """Of a channel's name, or of a query."""
    (one,) = channel_urls("http://h/trickle/a,b?token=x,y")
    assert (one.channel, one.query) == ("a,b", "token=x,y")


@pytest.mark.parametrize(
    ("urls", "why"),
    [
        ([], "give at least one URL"),
        ("http://a/trickle/cam,http://b/trickle/mic", "names the channel 'mic'; the first URL names 'cam'"),
        ("", "not a usable URL"),
        (["http://a/cam", "ftp://b/cam"], "must begin with http"),
        (None, "a list of texts, not NoneType"),
        (["http://a/cam", None], "a list of texts, not NoneType"),
        (b"http://a/cam", "a list of texts, not bytes"),
    ],
)
def test_urls_that_name_no_channel_or_several(urls: Any, why: str) -> None:
    """The error says what is wrong."""
    with pytest.raises(InvalidInput, match=why):
        channel_urls(urls)


@pytest.mark.parametrize("url", ["http://999.1.1.1/trickle/cam", "http://h\u2603x..y/trickle/cam"])
def test_urls_that_httpx_refuses(url: str) -> None:
    """The error is InvalidURL, so that a command shows one line."""
    for read in (channel_url, server_url):
        with pytest.raises(InvalidURL, match="not a usable URL"):
            read(url)


def test_a_lone_surrogate_in_a_path() -> None:
    """A path that UTF-8 cannot encode is an invalid URL."""
    with pytest.raises(InvalidURL, match="surrogates not allowed"):
        channel_url("http://h/\ud800/cam")


@pytest.mark.parametrize(
    ("value", "limits"),
    [(0, {"at_least": 0}), (0.5, {"above": 0}), (2, {"at_least": 0, "at_most": 2, "whole": True}), (-1e9, {})],
)
def test_numbers_within_their_limits(value: float, limits: dict[str, Any]) -> None:
    """A limit is inclusive (``at_least``, ``at_most``) or exclusive (``above``)."""
    check_number("n", value, **limits)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None, 1j])
def test_values_that_are_not_finite_numbers(value: object) -> None:
    """NaN is refused, although no comparison with a limit fails for it."""
    with pytest.raises(InvalidInput, match=r"^n must be a (finite )?number, not "):
        check_number("n", value)


@pytest.mark.parametrize(
    ("value", "limits", "text"),
    [
        (-0.1, {"at_least": 0}, "n must be a number at least 0, not -0.1"),
        (0, {"above": 0}, "n must be a number above 0, not 0"),
        (3, {"at_least": 0, "at_most": 2, "whole": True}, "n must be a whole number at least 0 and at most 2, not 3"),
        (1.0, {"whole": True}, "n must be a whole number, not 1.0"),
        (math.inf, {"above": 0}, "n must be a finite number above 0, not inf"),
    ],
)
def test_numbers_out_of_range(value: float, limits: dict[str, Any], text: str) -> None:
    """The message names the argument, its limits and the value."""
    with pytest.raises(InvalidInput) as failed:
        check_number("n", value, **limits)
    assert str(failed.value) == text


def test_headers_that_a_client_may_send() -> None:
    """The default headers of an httpx client are allowed."""
    check_headers({"Authorization": "Bearer x", "X-Empty": "", "X-Words": "a b\tc"})
    check_headers(httpx.AsyncClient().headers)


@pytest.mark.parametrize("name", sorted(CONNECTION_HEADERS))
def test_headers_that_the_transport_sets(name: str) -> None:
    """They are refused in upper and lower case."""
    with pytest.raises(InvalidInput, match=rf"^the client itself sets the header {name.title()}$"):
        check_headers({name.title(): "1"})


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\n", "\u00e9", 1])
def test_names_that_no_header_has(name: Any) -> None:
    """A name that is no HTTP token is refused."""
    with pytest.raises(InvalidInput, match=r"^not the name of a header: "):
        check_headers({name: "1"})


def test_headers_are_a_mapping() -> None:
    """A list of pairs, which httpx takes, is refused by a clear error."""
    with pytest.raises(InvalidInput, match="headers are a dictionary of names and values, not list"):
        check_headers([("X-Name", "value")])  # type: ignore[arg-type]


def test_clients_and_transports_that_block_are_refused() -> None:
    """httpx has one of each kind for programs without async, under nearly the same name."""
    check_async("client", None, "httpx.AsyncClient")
    check_async("client", httpx.AsyncClient(), "httpx.AsyncClient")
    check_async("transport", httpx.AsyncHTTPTransport(), "httpx.AsyncBaseTransport")
    with pytest.raises(InvalidInput, match=r"client is an httpx\.AsyncClient, not Client"):
        check_async("client", httpx.Client(), "httpx.AsyncClient")
    with pytest.raises(InvalidInput, match=r"transport is an httpx\.AsyncBaseTransport, not HTTPTransport"):
        check_async("transport", httpx.HTTPTransport(), "httpx.AsyncBaseTransport")


@pytest.mark.parametrize("value", [" a", "a ", "a\nb", "a\x00", "\u00e9", "a\x7f", b"a", None])
def test_values_that_no_header_has(value: Any) -> None:
    """They are refused, and the message does not repeat the value."""
    with pytest.raises(InvalidInput, match=r"^the header X must be printable ASCII without white space around it$"):
        check_header_value("X", value)


def test_a_token_is_sent_as_bearer() -> None:
    """A token becomes Bearer; any other authentication goes to httpx unchanged."""
    made = httpx_auth("eyJ.x.y")
    assert callable(made)
    assert made(httpx.Request("GET", "http://h/")).headers["Authorization"] == "Bearer eyJ.x.y"
    basic = httpx.BasicAuth("user", "password")
    assert httpx_auth(basic) is basic
    assert httpx_auth(None) is None


@pytest.mark.parametrize("token", ["", "two\nlines", " s3cr3t", "tök"])
def test_a_token_that_cannot_be_sent(token: str) -> None:
    """It is refused, and the error does not repeat it."""
    with pytest.raises(InvalidInput) as raised:
        httpx_auth(token)
    assert token.strip() not in str(raised.value) or not token


@pytest.mark.parametrize(
    "auth",
    [b"s3cr3t", 5, {"token": "s3cr3t"}, ("s3cr3t",), (1, 2), ("s3cr3t", None), ("u", "s3cr3t", "q"), ()],
)
def test_what_is_no_authentication(auth: Any) -> None:
    """The error names the kinds, and not the secret."""
    with pytest.raises(InvalidInput, match="auth is a token") as raised:
        httpx_auth(auth)
    assert "s3cr3t" not in str(raised.value)
    pairs: list[Any] = [("user", "password"), ("user", b"password")]
    assert [httpx_auth(pair) for pair in pairs] == pairs


@pytest.mark.parametrize("verify", [None, 1, "ca.pem", Path("ca.pem")])
def test_a_certificate_is_checked_as_the_program_says(verify: object) -> None:
    """A path is no answer, and neither is nothing: both would be taken for another one than was meant."""
    for usual in (True, False, ssl.create_default_context()):
        check_verify(usual)
    with pytest.raises(InvalidInput, match="verify is True, False or an ssl") as raised:
        check_verify(verify)
    assert ("create_default_context(cafile=FILE)" in str(raised.value)) is ("ca.pem" in str(verify))


def test_headers_of_the_program_replace_usual_ones() -> None:
    """In any case of their letters."""
    assert merged({"User-Agent": "a", "X": "b"}, {"user-agent": "c"}) == {"X": "b", "user-agent": "c"}


@pytest.mark.parametrize("value", ["video/mp2t", "application/x-a.b+c", 'text/plain; charset="utf-8"', "a/b ;x=1"])
def test_media_types(value: str) -> None:
    """Parameters are the program's own affair."""
    check_content_type(value)


@pytest.mark.parametrize("value", ["", "a b", "video", "video/", "/mp2t", "video/mp2t x", "a/b/c", "a/b\n", None])
def test_what_is_no_media_type(value: object) -> None:
    """A player would not know what to do with it."""
    with pytest.raises(InvalidInput, match=r"media type|the header Content-Type"):
        check_content_type(value)


def test_an_unknown_option_is_named_with_its_function() -> None:
    """As Python itself does: the caller knows nothing of the class that the options are passed on to."""
    check_options("frames()", ["auth"], ["auth", "verify"])
    with pytest.raises(TypeError, match=r"^frames\(\) got an unexpected keyword argument 'bogus'$"):
        check_options("frames()", ["auth", "bogus"], ["auth", "verify"])
