"""``tricklecast gateway webrtc``."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from tricklecast.trickle.amounts import parse_limit
from tricklecast.trickle.errors import InvalidInput, InvalidURL, MissingExtra, needs
from tricklecast.trickle.terminal import (
    NO_CREDENTIALS,
    Credentials,
    ReconnectFor,
    Screen,
    checked,
    option,
    with_credentials,
)

if TYPE_CHECKING:
    from tricklecast.trickle.paths import ChannelURL

LISTEN: Final = "127.0.0.1:8889"


@with_credentials
async def webrtc(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The server whose channels viewers get: http://HOST:PORT/trickle/. Of a cluster, one for each node, "
            "with commas between.",
        ),
    ],
    listen: Annotated[
        str, option("HOST:PORT", "Where viewers send HTTP. Media go from UDP ports that the system chooses.")
    ] = LISTEN,
    max_viewers: Annotated[int, typer.Option(min=1, max=1000, help="Viewers at a time, of all channels.")] = 50,
    stun: Annotated[
        str | None,
        option("stun:HOST:PORT", "Ask this server for the gateway's public address; for a gateway behind NAT."),
    ] = None,
    quiet: Annotated[bool, option(None, "Print no lines about viewers.", "--quiet")] = False,
    reconnect_for: ReconnectFor = "60s",
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Give channels to browsers by WebRTC (WHEP), with less than 200 ms of delay.

    A viewer posts its offer to http://HOST:PORT/whep/CHANNEL. H.264 and Opus are passed on as they are; other sound is
    encoded as Opus, once for all viewers of a channel. Pictures that browsers do not take (B-pictures, HEVC, AV1) are
    refused: publish them with --transcode. The gateway subscribes to a channel while somebody watches it.

    Everybody who can reach the gateway can watch. Ctrl-C ends it.

    Exit codes: 1 an error; 2 wrong usage; 130 Ctrl-C; 143 SIGTERM.

    Examples:

    \b
      tricklecast gateway webrtc http://localhost:2939/trickle/
      tricklecast gateway webrtc http://localhost:2939/trickle/ --listen 0.0.0.0:8889 --token-file token.txt
    """
    servers = checked("URL", _servers, url)
    host, port = checked("--listen", _address, listen)
    reconnect_s = checked("--reconnect-for", parse_limit, reconnect_for)
    if stun is not None and not re.fullmatch(r"stuns?:[^/@\s]+", stun):
        raise typer.BadParameter("use stun:HOST:PORT", param_hint="--stun")
    try:
        from tricklecast.subscriber.gateway.whep import Gateway, serve
    except ModuleNotFoundError as error:
        raise MissingExtra(f"gateway webrtc {needs(error.name or 'aiortc', 'webrtc')}") from None

    screen = Screen()
    say = (lambda _: None) if quiet else screen.say
    gateway = Gateway(servers, credentials, say, max_viewers=max_viewers, stun=stun, reconnect_s=reconnect_s)
    with _listener(host, port) as listener:
        if not ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback:
            screen.say("everybody who can reach this port can watch the channels")
        screen.say(f"viewers post to http://{host}:{listener.getsockname()[1]}/whep/CHANNEL")
        await serve(gateway, listener)


def _servers(text: str) -> tuple[ChannelURL, ...]:
    from tricklecast.trickle.client.arguments import channel_urls, server_url
    from tricklecast.trickle.wire import split_urls

    urls = split_urls(text)
    for url in urls:
        server_url(url)
        if not url.partition("?")[0].endswith("/"):
            raise InvalidURL(url, "end it with a slash: viewers name the channel")
    return channel_urls(["CHANNEL?".join(url.split("?", 1)) if "?" in url else f"{url}CHANNEL" for url in urls])


def _address(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.path:
        raise InvalidInput("use HOST:PORT, as in 0.0.0.0:8889")
    return host, port


def _listener(host: str, port: int) -> socket.socket:
    from tricklecast.trickle.client.connecting import reason

    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InvalidInput(f"cannot listen on {host}:{port}: {reason(error)}") from None
