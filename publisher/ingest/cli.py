"""``tricklecast ingest``."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import typer

from tricklecast.trickle.amounts import parse_duration, parse_limit
from tricklecast.trickle.errors import InvalidInput
from tricklecast.trickle.terminal import NO_CREDENTIALS, Credentials, Screen, checked, option, with_credentials
from tricklecast.trickle.wire import split_urls

RTMP_PORT: Final = 1935

_LIMITS: Final = "Limits"


@with_credentials
async def ingest(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="Where encoders connect: rtmp://0.0.0.0:1935 or srt://0.0.0.0:9000.",
        ),
    ],
    to: Annotated[
        str,
        option(
            "URL",
            "Where to publish streams: http://localhost:2939/trickle/, to which the command adds the stream key (SRT: "
            "the streamid), or a URL with {key}. SRT: or one channel, for one stream. Of a cluster, one for each node, "
            "with commas between.",
            "--to",
        ),
    ],
    keys: Annotated[
        Path | None,
        option(
            "FILE",
            "Take only streams that are in this file, with a line CHANNEL SECRET for each. The stream key is the "
            "secret, or CHANNEL?token=SECRET. The file is read for each stream.",
        ),
    ] = None,
    takeover: Annotated[
        bool,
        option(
            None,
            "Replace a stream with the same key, and other publishers of the channel. By default, a new stream is "
            "refused.",
            "--takeover",
        ),
    ] = False,
    quiet: Annotated[bool, option(None, "Print no lines about streams.", "--quiet")] = False,
    credentials: Credentials = NO_CREDENTIALS,
    container: Annotated[
        Literal["mpegts", "fmp4"] | None,
        option(
            None,
            "MPEG-TS, or fragmented MP4 with an init segment in every segment.",
            default="mpegts; fmp4 for codecs that only MP4 carries",
        ),
    ] = None,
    min_segment: Annotated[str, option("TIME", "A segment ends at the first keyframe after this time.")] = "1s",
    reconnect_for: Annotated[
        str,
        option(
            "TIME|forever",
            "How long a channel waits for its encoder after the connection broke, and for a server that is away. When "
            "the encoder ends its stream itself, the channel ends at once.",
            group=_LIMITS,
        ),
    ] = "60s",
    max_streams: Annotated[int, typer.Option(min=1, max=1000, help="Streams at a time.", rich_help_panel=_LIMITS)] = 16,
) -> None:
    """Publish the streams of encoders (OBS, ffmpeg, hardware): a channel for each stream.

    Nothing is encoded anew. A channel begins with its stream and ends with it. If a connection breaks, the channel
    waits for the encoder, and goes on. Ctrl-C ends all channels.

    OBS streams to the server rtmp://HOST:1935/live with a stream key. Without --keys, the key is the channel's name.

    Exit codes: 1 an error; 2 wrong usage; 130 Ctrl-C; 143 SIGTERM.

    Examples:

    \b
      tricklecast ingest rtmp://0.0.0.0:1935 --to http://localhost:2939/trickle/ --keys keys.txt
      tricklecast ingest srt://0.0.0.0:9000 --to http://localhost:2939/trickle/
      tricklecast ingest srt://0.0.0.0:9000 --to http://localhost:2939/trickle/cam
    """
    scheme, host, port = checked("ADDRESS", _address, address)
    from tricklecast.publisher.ingest.keys import Channels, names_many
    from tricklecast.publisher.ingest.rtmp_listener import RtmpListener
    from tricklecast.publisher.ingest.sessions import SessionOptions, publish_from
    from tricklecast.publisher.ingest.srt import SrtReceiver
    from tricklecast.publisher.ingest.srt_listener import SrtListener, parse_address
    from tricklecast.publisher.media.reader import MediaOptions
    from tricklecast.trickle.client.arguments import channel_urls
    from tricklecast.trickle.pyav import need_pyav

    need_pyav()
    reconnect_s = checked("--reconnect-for", parse_limit, reconnect_for)
    options = SessionOptions(
        media=MediaOptions(
            container=container,
            min_segment_s=checked("--min-segment", parse_duration, min_segment),
            reconnect_for_s=reconnect_s,
        ),
        outage_s=reconnect_s,
        max_sessions=max_streams,
        takeover=takeover,
        credentials=credentials,
    )
    say = (lambda _: None) if quiet else Screen().say
    receiver: RtmpListener | SrtListener | SrtReceiver
    if scheme == "rtmp" or names_many(split_urls(to)[0]):
        checked("--to", Channels, to)
        channels = checked("--keys", partial(Channels, to), keys)
        if keys is None and not _is_loopback(host) and "passphrase=" not in address:
            say("everybody who can reach this port can publish; give --keys FILE to check stream keys")
        if scheme == "rtmp":
            receiver = await RtmpListener.open(host, port, channels, max_streams=max_streams, say=say)
        else:
            checked("ADDRESS", parse_address, address)
            receiver = await SrtListener.open(address, channels, max_streams=max_streams, say=say)
    else:
        if keys is not None:
            raise typer.BadParameter(
                "one stream has no key: end --to with /, or use srt://...?passphrase=", param_hint="--keys"
            )
        receiver = await SrtReceiver.open(address, channel_urls(to), say=say)
    await publish_from(receiver, options, say)


def _address(text: str) -> tuple[str, str, int]:
    """Scheme, host and port of ``rtmp://HOST:PORT`` or ``srt://HOST:PORT?OPTIONS``."""
    parts = urlsplit(text)
    default = {"rtmp": RTMP_PORT, "srt": None}
    if parts.scheme not in default:
        raise InvalidInput("use rtmp://HOST:PORT or srt://HOST:PORT")
    port = default[parts.scheme] if parts.port is None else parts.port
    if port is None:
        raise InvalidInput("an SRT address has a port: srt://0.0.0.0:9000")
    if parts.path not in ("", "/") or (parts.scheme == "rtmp" and parts.query):
        raise InvalidInput(f"leave out the path: {parts.scheme}://HOST:PORT")
    return parts.scheme, parts.hostname or "", port


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
