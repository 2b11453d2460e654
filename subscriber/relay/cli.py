"""``tricklecast relay``: its options. It imports no client before the command runs, so that ``--help`` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from tricklecast.trickle.amounts import parse_limit
from tricklecast.trickle.errors import ChannelNotFound
from tricklecast.trickle.terminal import (
    LOSS_EXIT_CODE,
    NO_CREDENTIALS,
    ChannelUrls,
    Credentials,
    ReconnectFor,
    Wait,
    checked,
    no_channel,
    option,
    with_credentials,
)


@with_credentials
async def relay(
    url: ChannelUrls,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="rtmp://HOST/APP/KEY, rtmps://HOST/APP/KEY, or srt://HOST:PORT with SRT's options as its query; - "
            "reads it from standard input, where no other user of the machine sees it.",
        ),
    ],
    start: Annotated[str, option("WHERE", "Where to begin: current, next, earliest, or a number.")] = "current",
    wait: Wait = "0s",
    reconnect_for: ReconnectFor = "60s",
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Push a channel to another server: to YouTube, to a CDN, to another `tricklecast ingest`.

    Nothing is encoded anew. The target gets the stream at the pace at which it plays, one segment behind the channel. A
    target that is too slow, or away for a while, loses segments, and the stream goes on at a key picture. A target that
    never took the stream is an error at once; later --reconnect-for holds for it, as for the channel's server.

    Exit codes: 0 the channel ended, and the target got all of it; 1 an error; 2 wrong usage; 3 the channel ended, and
    parts of it are missing at the target; 130 Ctrl-C; 143 SIGTERM.

    Examples:

    \b
      URL=http://localhost:2939/trickle/cam
      echo rtmp://a.rtmp.youtube.com/live2/KEY | tricklecast relay $URL -
      tricklecast relay $URL srt://cdn.example:9000
    """
    import sys

    from tricklecast.subscriber.core import parse_start
    from tricklecast.subscriber.relay.run import Request, run
    from tricklecast.subscriber.relay.target import Target
    from tricklecast.trickle.client.arguments import channel_urls

    channel_urls(url)
    target = sys.stdin.readline().strip() if to == "-" else to
    begin = checked("--start", parse_start, start)
    request = Request(
        url,
        checked("TARGET", Target.parse, target),
        start=begin,
        wait_s=checked("--wait", parse_limit, wait),
        reconnect_s=checked("--reconnect-for", parse_limit, reconnect_for),
        credentials=credentials,
    )
    try:
        is_whole = await run(request)
    except ChannelNotFound as error:
        raise no_channel(error, url, request.wait_s) from error
    if not is_whole:
        raise typer.Exit(LOSS_EXIT_CODE)
