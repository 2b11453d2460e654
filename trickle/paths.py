"""Channel names, seqs and the URLs made of them (docs/reference/protocol.md, "Routes")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from tricklecast.trickle.errors import InvalidChannelName, InvalidSeq, InvalidURL
from tricklecast.trickle.wire import LAST_SEQ, redacted

MAX_NAME_BYTES: Final = 255
"""A channel's name must be usable as a file name: an archive has a folder per channel."""

MAX_DIGITS: Final = len(str(LAST_SEQ))
"""Digits of a seq."""

PLAYER_PAGES: Final = "/watch"
"""``/watch/CHANNEL`` is a page for browsers. People copy its URL from the address bar and pass it to a client."""

UNIX: Final = "http+unix"
"""The scheme of a URL whose authority is the percent-encoded path of a Unix socket."""

_SEQ = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_IN_SOCKETS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
_LINK_LOCAL = re.compile(r"fe[89ab][0-9a-f]:")
"""Begins an address of fe80::/10. Each network of the machine may have that address, so it needs an interface."""


def parse_seq(text: str) -> int:
    """Read the seq of a GET: ``-?[0-9]{1,15}``.

    Raises:
        InvalidSeq: the text does not follow the grammar.
    """
    if not _SEQ.fullmatch(text):
        raise InvalidSeq(text)
    return int(text)


def parse_channel(raw: str) -> str:
    """Percent-decode one path segment and check that it can name a channel.

    Args:
        raw: the path segment of the URL, percent-encoded.

    Returns:
        The channel's name. It may begin with ``_`` (see :func:`is_reserved`).

    Raises:
        InvalidChannelName: empty, longer than 255 bytes, not UTF-8, or containing ``/``, ``..`` or a
            control character.
    """
    try:
        data = unquote_to_bytes(raw)
        name = data.decode("utf-8")
    except ValueError:  # UnicodeError included: not UTF-8, or a lone surrogate
        raise InvalidChannelName(raw, "not UTF-8") from None
    if not data:
        raise InvalidChannelName(raw, "empty")
    if len(data) > MAX_NAME_BYTES:
        raise InvalidChannelName(raw, f"longer than {MAX_NAME_BYTES} bytes")
    if "/" in name or "\\" in name:
        raise InvalidChannelName(raw, "contains a slash")
    if name == "." or ".." in name:
        raise InvalidChannelName(raw, "contains '..'" if ".." in name else "is '.'")
    if _CONTROL.search(name):
        raise InvalidChannelName(raw, "contains a control character")
    return name


def is_reserved(name: str) -> bool:
    """Whether a channel of this name belongs to the server. Clients may read such a channel, but not write to it."""
    return name.startswith("_")


def normalize_base_path(base_path: str) -> str:
    """Bring a configured base path into the form ``/a/b`` (``""`` for the root).

    Raises:
        InvalidURL: it holds a query, a fragment, white space or a ``..``.
    """
    parts = [part for part in base_path.split("/") if part]
    if any(part in (".", "..") for part in parts) or re.search(r"[?#\s]", base_path):
        raise InvalidURL(base_path, "a base path is a plain URL path such as /trickle")
    return "".join(f"/{part}" for part in parts)


@lru_cache(maxsize=256)
def _quoted(channel: str) -> str:
    return quote(channel, safe="")


@dataclass(frozen=True, slots=True)
class ChannelURL:
    """The URL of a channel, taken apart.

    Attributes:
        root: scheme and authority, without a trailing slash (``http://host:2939``). Of a Unix socket, each character
            of its path but ``a-z``, ``0-9``, ``.``, ``_`` and ``-`` is percent-encoded, so that nothing is lost where
            the authority of a URL is brought into lower case.
        base_path: the server's base path (``/trickle``; ``""`` for the root).
        channel: the channel's name, decoded.
        query: appended to every URL of the channel, since it may hold an access token (``""`` if none).
    """

    root: str
    base_path: str
    channel: str
    query: str = ""

    @classmethod
    def parse(cls, url: str) -> ChannelURL:
        """Take ``http[s]://host[:port]/base/path/channel`` apart; the last path segment is the channel.

        ``http+unix://%2Frun%2Ftricklecast.sock/base/path/channel`` names a Unix socket.

        Raises:
            InvalidURL: another scheme, no host, a bad port, no channel in the path, or a fragment.
            InvalidChannelName: the last path segment cannot name a channel.
        """
        root, path, query = _split(url)
        base_path, _, last = path.rstrip("/").rpartition("/")
        if not last:
            raise InvalidURL(url, "it names no channel; expected http://host:port/trickle/CHANNEL")
        if base_path == PLAYER_PAGES:
            there = f"{redacted(root)}/trickle/{last}"
            raise InvalidURL(url, f"it is the page that plays a channel, which itself is {there}")
        if "#" in url:  # no request carries a fragment: the user would get another channel than the one meant
            raise InvalidURL(url, "a channel has no fragment (#...); a # in its name is written %23")
        return cls(root, normalize_base_path(base_path), parse_channel(last), query)

    def __str__(self) -> str:
        return self._url(_quoted(self.channel))

    def segment(self, seq: int) -> str:
        """Return the URL of a segment. A GET may use the negative seqs -1 and -2."""
        return self._url(f"{_quoted(self.channel)}/{seq}")

    def next(self) -> str:
        """Return the URL whose GET returns the head as text."""
        return self._url(f"{_quoted(self.channel)}/next")

    def _url(self, tail: str) -> str:
        return f"{self.root}{self.base_path}/{tail}" + (f"?{self.query}" if self.query else "")


def parse_server_url(url: str) -> str:
    """Reduce any URL of a server to its root, ``scheme://authority``. The control plane's paths begin there.

    Raises:
        InvalidURL: no http(s) scheme, no host, or a bad port.
    """
    return _split(url)[0]


def _split(url: str) -> tuple[str, str, str]:
    if _CONTROL.search(url):  # urlsplit would remove line ends and tabs without a word
        raise InvalidURL(url, "it contains a control character")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # A password with a slash looks like a port: so neither the error's text nor the part up to the last @ is shown.
        _, at, rest = url.rpartition("@")
        raise InvalidURL(f"***@{rest}" if at else url, "its host or port is not valid") from None
    if parts.scheme == UNIX:
        return f"{UNIX}://{_escaped(parts.netloc, url)}", parts.path, parts.query
    if parts.scheme in ("unix", "https+unix"):
        raise InvalidURL(url, f"a Unix socket is {UNIX}://%2Frun%2FSOCKET/trickle/CHANNEL")
    if parts.scheme not in ("http", "https"):
        raise InvalidURL(url, "it must begin with http:// or https://")
    if not parts.hostname:
        raise InvalidURL(url, "it has no host")
    netloc = parts.netloc
    if _LINK_LOCAL.match(parts.hostname):
        if "%" not in parts.hostname:
            example = f"[{parts.hostname}%eth0]"
            raise InvalidURL(url, f"a link-local address needs the name of the network interface: {example}")
        netloc = netloc.replace("%25", "%")  # as RFC 6874 writes it in a URL; the resolver wants it plain
    return f"{parts.scheme}://{netloc}", parts.path, parts.query


def socket_path(authority: str) -> str:
    """Return the path of a Unix socket, which the authority of its URL has percent-encoded."""
    return unquote(authority, errors="surrogateescape")


def _escaped(authority: str, url: str) -> str:
    data = unquote_to_bytes(authority)
    if not data.startswith(b"/") or b"\0" in data:
        raise InvalidURL(url, f"it names no socket: write {UNIX}://%2Frun%2FSOCKET/trickle/CHANNEL")
    return "".join(chr(byte) if byte in _IN_SOCKETS else f"%{byte:02x}" for byte in data)
