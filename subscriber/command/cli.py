"""The commands ``tricklecast subscribe`` and ``tricklecast channels``."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.terminal import (
    CaFile,
    Token,
    TokenFile,
    bearer_for,
    checked,
    parse_duration,
    parse_size,
    tls_context,
)

if TYPE_CHECKING:
    from tricklecast.subscriber.archive import Keep

LOSS_EXIT_CODE = 3


async def subscribe(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The channel: http://HOST:PORT/trickle/CHANNEL.", show_default=False)
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Where to write: - for standard output (the default in a pipe); FILE.mp4, .m4v, .mov, .m4a, .mkv or "
            ".mka for a file that players can seek in; FOLDER/ for a file per segment and an index, which goes on "
            "where it was left; any other FILE for the bytes as they come.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Where to begin: next, current (the newest segment that has begun), earliest, a seq, -N for the N-th "
            "from the head, or a position such as 128@3:9f86d081884c7d65, as the end of a run names it.",
        ),
    ] = "next",
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Begin with what was published so long ago, as far as the server keeps it: 10m, 2h."
        ),
    ] = None,
    on_lag: Annotated[
        str,
        typer.Option(metavar="POLICY", help="Where to go on after falling too far behind: live, earliest, or fail."),
    ] = "live",
    for_time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Stop after so long: 30s, 500ms, 2min, 1h.")
    ] = None,
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="Wait so long for a channel that is not there yet.")
    ] = "0s",
    reconnect: Annotated[
        bool,
        typer.Option("--reconnect", help="After an error, subscribe again where it ended, for as long as it takes."),
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="LIMIT", help="For a folder: keep the newest segments only, so many (500) or so much (20GB)."
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the bytes as they come, whatever the file is called.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Tell what happens as one JSON object per line, on standard output, or on standard error if the "
            "output goes to standard output. Without -o nothing is written.",
        ),
    ] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="LOSS",
            help=f"Exit with {LOSS_EXIT_CODE} if segments were missed (gap), or missed or not whole (loss); or never.",
        ),
    ] = "never",
    ca_file: CaFile = None,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """Receive a channel, all its segments, until it ends.

    Warnings about missed or cut segments and a summary go to standard error; on a terminal a line shows the state.

    Exit codes: 0 the channel ended, or the time was over; 1 an error, which names the position to go on from; 2 wrong
    usage; 3 see --fail-on; 130 Ctrl-C; 143 SIGTERM. Whatever ends it, the files are in order.
    """
    from tricklecast.subscriber.command.job import FailOn, Request, reports_on, run
    from tricklecast.subscriber.command.outputs import is_folder
    from tricklecast.subscriber.core import OnLag, Start
    from tricklecast.subscriber.sinks import standard_stream

    checked("--start", Start.parse, start)
    if since is not None and start != "next":
        raise typer.BadParameter("say where to begin once: --since or --start", param_hint="--since")
    losses = checked("--fail-on", FailOn, fail_on, "never, gap or loss")
    target = _target(output, as_json=as_json)
    limit = _keep(keep)
    if keep is not None and not is_folder(target or ""):
        raise typer.BadParameter("only a folder can be kept small: name one (-o FOLDER/)", param_hint="--keep")
    request = Request(
        url,
        target,
        start,
        None if for_time is None else checked("--for", parse_duration, for_time),
        checked("--wait", partial(parse_duration, zero=True), wait),
        checked("--on-lag", OnLag, on_lag, "live, earliest or fail"),
        reconnect,
        raw,
        limit,
        checked("--ca-file", tls_context, ca_file),
        bearer_for(token, token_file),
        None if since is None else checked("--since", parse_duration, since),
    )
    on_stderr = request.output == "-"
    reporter = reports_on(standard_stream("stderr" if on_stderr else "stdout")) if as_json else None
    try:
        totals = await run(request, reporter)
    except TrickleError as error:
        if reporter is not None and on_stderr:
            raise typer.Exit(1) from error  # the last event says why, on a stream that holds nothing but events
        raise
    lost = totals.missed + (totals.truncated + totals.broken if losses is FailOn.LOSS else 0)
    if lost and losses is not FailOn.NEVER:
        raise typer.Exit(LOSS_EXIT_CODE)


async def channels(
    url: Annotated[str, typer.Argument(metavar="URL", help="Any URL on the server.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print what the server says as JSON.")] = False,
    ca_file: CaFile = None,
    token: Token = None,
    token_file: TokenFile = None,
) -> None:
    """List the channels of a server."""
    from tricklecast.subscriber.command.listing import fetch_channels, print_channels
    from tricklecast.trickle.client.transport import TrickleTransport

    transport = TrickleTransport(checked("--ca-file", tls_context, ca_file) or True)
    print_channels(await fetch_channels(url, transport, bearer_for(token, token_file)), as_json=as_json)


def _target(output: str | None, *, as_json: bool) -> str | None:
    if output == "":
        raise typer.BadParameter("an empty name", param_hint="--output")
    if output is not None or as_json:
        return output
    if sys.stdout is not None and sys.stdout.isatty():
        raise typer.BadParameter(
            "media on a terminal helps nobody: name a file (-o FILE), or use a pipe", param_hint="--output"
        )
    return "-"


def _keep(text: str | None) -> Keep:
    from tricklecast.subscriber.archive import Keep

    if text is None:
        return Keep()
    if text.strip().isdecimal():
        return checked("--keep", lambda number: Keep(segments=int(number)), text)
    return checked("--keep", lambda amount: Keep(bytes=parse_size(amount)), text)
