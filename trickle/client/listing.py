"""The channels of a server, as its control plane lists them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tricklecast.trickle.client.arguments import Auth, check_number, check_verify, server_url
from tricklecast.trickle.client.control import TIMEOUT_S, ask, json_of
from tricklecast.trickle.client.exchange import first_line
from tricklecast.trickle.errors import RemoteProtocolError, TrickleError, error_for
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import redacted

if TYPE_CHECKING:
    import httpx

ROUTE: Final = "/api/v1/channels"


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """A channel, as its server saw it at that moment.

    Attributes:
        name: its name, the last part of its URL.
        node: the server that has it.
        ended: it has ended, and can still be read for some seconds.
        epoch: counts the channels of this name.
        content_type: the media type of its segments.
        next_seq: one past the newest segment that has begun; 0 if none has.
        earliest: the oldest segment that can be read now.
        segments: closed segments that the server keeps. bytes: of those.
        readers: clients that read it.
        published: a publisher is connected.
        bytes_in: bytes published in this epoch. bytes_out: bytes that its readers have got.
        created_at: when it was created. active_at: when something was last published.
    """

    name: str
    node: str
    ended: bool
    epoch: int
    content_type: str
    next_seq: int
    earliest: int
    segments: int
    bytes: int
    readers: int
    published: bool
    bytes_in: int
    bytes_out: int
    created_at: datetime
    active_at: datetime


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of a server: iterate over it.

    Attributes:
        channels: by name. Those of the server itself, such as ``_changes``, are not among them.
        unreachable: nodes of a cluster that did not answer: the channels that they have are missing.
    """

    channels: tuple[ChannelInfo, ...]
    unreachable: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[ChannelInfo]:
        return iter(self.channels)

    def __len__(self) -> int:
        return len(self.channels)


async def list_channels(
    url: str, *, auth: Auth | None = None, verify: ssl.SSLContext | bool = True, timeout_s: float = TIMEOUT_S
) -> Channels:
    """List the channels of a server, or of the cluster that it belongs to.

    Args:
        url: any URL on the server that has its control plane. Its query is sent along.
        auth: a token, or any authentication that httpx knows.
        verify: whether and how the server's certificate is checked, as in httpx.
        timeout_s: the deadline of the answer, in seconds.

    Raises:
        InvalidURL: this is no URL of a server. InvalidInput: another argument is wrong.
        ConnectionLost: the server does not answer.
        Refused: the server says no.
        RemoteProtocolError: this is not a tricklecast server.
    """
    check_number("timeout_s", timeout_s, above=0)
    check_verify(verify)
    answer = await fetch_channels(url, verify, auth, within_s=timeout_s)
    try:
        found = [_info(channel) for channel in answer["channels"] if not is_reserved(str(channel["name"]))]
        nodes = tuple(str(node) for node in answer.get("unreachable") or ())
    except (KeyError, TypeError, ValueError) as error:
        detail = f"{redacted(server_url(url))}{ROUTE} describes a channel in another way: {error!r}"
        raise RemoteProtocolError(200, detail=detail) from error
    return Channels(tuple(sorted(found, key=lambda channel: channel.name)), nodes)


def _info(channel: dict[str, Any]) -> ChannelInfo:
    window = channel["window"]
    return ChannelInfo(
        name=str(channel["name"]),
        node=str(channel["node"]),
        ended=channel["state"] != "live",
        epoch=int(channel["epoch"]),
        content_type=str(channel["content_type"]),
        next_seq=int(channel["next_seq"]),
        earliest=int(window["earliest"]),
        segments=int(window["segments"]),
        bytes=int(window["bytes"]),
        readers=int(channel["readers"]),
        published=bool(channel["publisher"]["connected"]),
        bytes_in=int(channel["bytes_in"]),
        bytes_out=int(channel["bytes_out"]),
        created_at=datetime.fromisoformat(channel["created_at"]),
        active_at=datetime.fromisoformat(channel["active_at"]),
    )


async def fetch_channels(
    url: str,
    tls: ssl.SSLContext | bool | None = None,
    auth: Auth | None = None,
    *,
    within_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Ask a server for its channels, with all that it says of them.

    Args:
        url: any URL on the server. Its query is sent along, since it may hold an access token.
        tls, auth, within_s: as of :func:`.control.ask`.

    Returns:
        The JSON object of the answer; ``"channels"`` is a list of objects.

    Raises:
        InvalidURL: this is no URL of a server.
        ConnectionLost: the server does not answer.
        Refused: the server says no.
        RemoteProtocolError: this is not a tricklecast server.
    """
    root = server_url(url)
    query = urlsplit(url).query
    response = await ask(root, f"{ROUTE}?{query}" if query else ROUTE, tls, auth, within_s=within_s)
    status = response.status_code
    match status, json_of(response):
        case 200, {"channels": [*channels]} as answer if all(isinstance(channel, dict) for channel in channels):
            return dict(answer)
        case 200, None:
            detail = f"{redacted(root)}{ROUTE} is not JSON"
        case 200, _:
            detail = f"{redacted(root)}{ROUTE} holds no list of channels"
        case _ if status == 404 or status < 400:
            detail = f"{redacted(root)} has no {ROUTE}"
        case _:
            raise error_of(response)
    raise RemoteProtocolError(status, detail=detail)


def error_of(response: httpx.Response) -> TrickleError:
    """Return the error for a refusal of the control plane."""
    return error_for(response.status_code, response.headers, detail=first_line(response.content))
