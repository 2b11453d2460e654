"""Checks the arguments that a program passes to a client: the URL, numbers, headers and authentication.

A client calls these functions in its constructor. Without them, a wrong value would fail inside a background task, or
after a minute of retries that cannot succeed.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Final, TypeAlias, Union

from tricklecast.trickle import __version__
from tricklecast.trickle.bearer import Bearer, check_token
from tricklecast.trickle.errors import InvalidInput, InvalidURL
from tricklecast.trickle.paths import ChannelURL, parse_server_url
from tricklecast.trickle.wire import split_urls

if TYPE_CHECKING:
    import httpx

USER_AGENT: Final = f"tricklecast/{__version__}"

HttpxAuth: TypeAlias = Union["httpx.Auth", tuple[str, str], Callable[["httpx.Request"], "httpx.Request"]]
"""Any authentication that httpx knows."""

Auth: TypeAlias = str | HttpxAuth
"""A token, which is sent as ``Authorization: Bearer``, or any authentication that httpx knows."""

URLs: TypeAlias = str | Sequence[str]
"""The URL of a channel; or several, one for each node of a cluster, in a list, or in a text with commas between."""

CONNECTION_HEADERS: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "proxy-connection"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that only the transport may set, in lower case: they describe the connection and the body's framing."""

MAX_PLAIN_URL: Final = 8192
"""httpx itself takes 64 KiB."""

MAX_PORT: Final = 65535

_PLAIN_URL: Final = re.compile(r"https?://(?P<host>[a-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?(?:[/?]|$)", re.ASCII | re.I)

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_MEDIA_TYPE: Final = re.compile(
    r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*;[\t\x20-\x7e]*)?", re.ASCII
)
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?", re.ASCII)


def channel_url(url: str) -> ChannelURL:
    """Take the URL of a channel apart.

    Raises:
        InvalidURL: the URL does not name a channel, or httpx cannot send a request to it.
        InvalidChannelName: the last part of its path cannot be a channel's name.
    """
    parsed = ChannelURL.parse(url)
    _check_sendable(url, str(parsed))
    return parsed


def channel_urls(urls: URLs) -> tuple[ChannelURL, ...]:
    """Take the URLs of one channel apart, which name the nodes of a cluster.

    Raises:
        InvalidInput: there is no URL, or one is no text.
        InvalidURL: they name different channels, or one of them is as for :func:`channel_url`.
        InvalidChannelName: as for :func:`channel_url`.
    """
    if isinstance(urls, str):
        urls = split_urls(urls)
    several: list[str] = [*urls] if isinstance(urls, Iterable) and not isinstance(urls, bytes) else [urls]
    for url in several:
        if not isinstance(url, str):  # not in the message, where a part of it may be a password
            raise InvalidInput(f"the channel's URL is a text, or a list of texts, not {type(url).__name__}")
    parsed = tuple(dict.fromkeys(map(channel_url, several)))
    if not parsed:
        raise InvalidInput("give at least one URL of the channel")
    for other in parsed:
        if other.channel != parsed[0].channel:
            why = f"it names the channel {other.channel!r}; the first URL names {parsed[0].channel!r}"
            raise InvalidURL(str(other), f"{why}: give URLs of one channel, at the nodes of a cluster")
    return parsed


def server_url(url: str) -> str:
    """Reduce any URL on a server to ``scheme://authority``.

    Raises:
        InvalidInput: the URL is no text.
        InvalidURL: the URL does not name a server, or httpx cannot send a request to it.
    """
    if not isinstance(url, str):  # not in the message, where a part of it may be a password
        raise InvalidInput(f"the server's URL is a text, not {type(url).__name__}")
    root = parse_server_url(url)
    _check_sendable(url, root)
    return root


def _check_sendable(url: str, sent: str) -> None:
    if _is_plain(sent):
        return
    import httpx  # it knows all rules; it takes longer to load than both clients, and few URLs need it

    try:
        httpx.URL(sent)
    except (httpx.InvalidURL, UnicodeError) as error:  # a lone surrogate is a UnicodeError
        raise InvalidURL(url, str(error)) from None


def _is_plain(sent: str) -> bool:
    """Whether httpx surely takes a URL: its host is a usual name or an IPv4 address, and no character is unusual."""
    found = _PLAIN_URL.match(sent)
    if found is None or not sent.isascii() or not sent.isprintable() or len(sent) > MAX_PLAIN_URL:
        return False
    host, port = found["host"], found["port"]
    if host.rpartition(".")[2].isdigit():
        try:
            socket.inet_pton(socket.AF_INET, host)
        except OSError:
            return False
    return "xn--" not in host.lower() and int(port or 0) <= MAX_PORT


def check_number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    whole: bool = False,
    or_none: bool = False,
) -> None:
    """Check a number that a program passed.

    Args:
        name: the argument's name, for the message.
        above: the lowest value, itself excluded.

    Raises:
        InvalidInput: the value is not a finite number (a ``bool`` is not one either), or is out of range.
    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    good = (or_none and value is None) or (
        math.isfinite(number)
        and (not whole or isinstance(number, int))
        and (at_least is None or number >= at_least)
        and (above is None or number > above)
        and (at_most is None or number <= at_most)
    )
    if not good:
        limits = [("at least", at_least), ("above", above), ("at most", at_most)]
        allowed = " and".join(f" {word} {limit}" for word, limit in limits if limit is not None)
        kind = "whole " if whole else "finite " if isinstance(value, float) and not math.isfinite(value) else ""
        raise InvalidInput(f"{name} must be a {kind}number{allowed}, not {value!r}")


def check_headers(headers: Mapping[str, str]) -> None:
    """Check headers that a program wants with every request.

    Raises:
        InvalidInput: they are no mapping, or HTTP does not allow the name or the value, or the transport sets this
            header (:data:`CONNECTION_HEADERS`). ``Connection: keep-alive`` is allowed, since every httpx client has it.
    """
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"headers are a dictionary of names and values, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidInput(f"not the name of a header: {name!r}")
        check_header_value(name, value)
        if name.lower() in CONNECTION_HEADERS and (name.lower(), value.lower()) != ("connection", "keep-alive"):
            raise InvalidInput(f"the client itself sets the header {name}")


def merged(usual: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the usual headers of a client, and those of the program, which replace usual ones, in any case."""
    named = {name.lower() for name in own}
    return {name: value for name, value in usual.items() if name.lower() not in named} | dict(own)


def check_header_value(name: str, value: object) -> None:
    """Check the value of a header.

    Args:
        name: the header, for the message. The message does not repeat the value, which may be a secret.

    Raises:
        InvalidInput: the value is not printable ASCII, or begins or ends with white space.
    """
    if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
        raise InvalidInput(f"the header {name} must be printable ASCII without white space around it")


def check_content_type(value: object) -> None:
    """Check the media type of a channel.

    Raises:
        InvalidInput: it is not ``type/subtype``, with parameters or without.
    """
    check_header_value("Content-Type", value)
    if not isinstance(value, str) or not _MEDIA_TYPE.fullmatch(value):
        raise InvalidInput(f"not a media type: {value!r} (video/mp2t, application/json; charset=utf-8)")


def httpx_auth(auth: Auth | None) -> HttpxAuth | None:
    """Turn a client's argument ``auth`` into httpx's.

    Raises:
        InvalidInput: a header cannot carry the token, or this is no authentication.
    """
    if isinstance(auth, str):
        check_token(auth, "the token")
        return Bearer(lambda: auth)
    if isinstance(auth, tuple):
        is_good = [isinstance(part, str | bytes) for part in auth] == [True, True]
    else:
        is_good = auth is None or callable(auth) or hasattr(auth, "auth_flow")
    if not is_good:
        kind = type(auth).__name__  # not the value: it may be a secret
        if isinstance(auth, tuple):
            kind += f" of {', '.join(type(part).__name__ for part in auth) or 'nothing'}"
        raise InvalidInput(f"auth is a token (str), a pair (user, password) or an authentication of httpx, not {kind}")
    return auth


def check_options(function: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of options that a function passes on to another one, which its caller does not know.

    Args:
        function: as its caller names it, for the message: ``"frames()"``.
        known: those that it passes on.

    Raises:
        TypeError: there is another one, in Python's own words.
    """
    for name in options:
        if name not in known:
            raise TypeError(f"{function} got an unexpected keyword argument {name!r}")


def check_async(name: str, value: object, wanted: str) -> None:
    """Check a client or transport of httpx that a program passed: httpx has one of each kind that blocks, too.

    Args:
        name: the argument's name, for the message. wanted: the kind that it has to be.

    Raises:
        InvalidInput: it is none that can be awaited.
    """
    if value is not None and not hasattr(value, "aclose"):
        raise InvalidInput(f"{name} is an {wanted}, not {type(value).__name__}")


def check_verify(verify: object) -> None:
    """Check whether and how a client wants its server's certificate checked.

    A path or ``None`` is refused: the one would check nothing that its author meant, the other nothing at all.

    Raises:
        InvalidInput: it is neither a ``bool`` nor an ``SSLContext``.
    """
    if not isinstance(verify, bool | ssl.SSLContext):
        hint = "; of a file: ssl.create_default_context(cafile=FILE)" if isinstance(verify, str | PathLike) else ""
        raise InvalidInput(f"verify is True, False or an ssl.SSLContext, not {verify!r}{hint}")
