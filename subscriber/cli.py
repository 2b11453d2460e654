"""The commands ``tricklecast subscribe`` and ``tricklecast channels``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from subscriber.start import Start
from trickle.errors import InvalidInput


async def subscribe(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The channel: http://HOST:PORT/trickle/CHANNEL.", show_default=False)
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="File to write, or - for standard output (the default in a pipe)."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(help="Where to begin: next, current, a seq, or -N for the N-th segment from the head."),
    ] = "next",
    for_s: Annotated[
        float | None, typer.Option("--for", min=0, help="Stop after so many seconds.", metavar="SECONDS")
    ] = None,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", min=0, help="Wait so many seconds for a channel that is not there yet.", metavar="SECONDS"
        ),
    ] = 0.0,
    on_lag: Annotated[
        str, typer.Option(help="Where to go on after falling too far behind: live, earliest, or fail.")
    ] = "live",
) -> None:
    """Receive a channel: all its segments, one after another, in a file or a pipe.

    Warnings about missed or cut segments and a summary go to standard error.
    """
    from subscriber.recording import Request, record
    from subscriber.verdicts import OnLag

    try:
        Start.parse(start)
        lag = OnLag(on_lag)
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint="--start") from None
    except ValueError:
        raise typer.BadParameter("use live, earliest or fail", param_hint="--on-lag") from None
    if output is None:
        if sys.stdout.isatty():
            raise typer.BadParameter(
                "media on a terminal helps nobody: name a file (-o FILE), or use a pipe", param_hint="--output"
            )
        output = "-"
    await record(Request(url, output, start, for_s, wait_s, lag))


async def channels(
    url: Annotated[str, typer.Argument(metavar="URL", help="Any URL on the server.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print what the server says as JSON.")] = False,
) -> None:
    """List the channels of a server."""
    from subscriber.listing import fetch_channels, print_channels

    print_channels(await fetch_channels(url), as_json=as_json)
