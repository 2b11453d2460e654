"""The commands ``tricklecast subscribe``, ``clip`` and ``channels``: their options.

The module imports no client before a command runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tricklecast.trickle.amounts import parse_duration, parse_limit, parse_size
from tricklecast.trickle.errors import ChannelNotFound, TrickleError
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

if TYPE_CHECKING:
    from tricklecast.subscriber.archive import Keep

_LOSSES: Final = "Losses and errors"
_OUTPUT: Final = "Output"


@with_credentials
async def subscribe(
    url: ChannelUrls,
    output: Annotated[
        str | None,
        option(
            "PATH",
            "Where to write: - for standard output (the default in a pipe); FILE.mp4, .m4v, .mov, .m4a, .mkv or "
            ".mka for a media file that players can seek in; FOLDER/ for a file per segment and an index, which goes "
            "on where it was left; any other FILE for the bytes as they come.",
            "--output",
            "-o",
        ),
    ] = None,
    start: Annotated[
        str | None,
        option(
            "WHERE",
            "Where to begin: current (the newest segment that has begun), next (the one after it), earliest, a "
            "number, -N (-1 is next, -2 current, -3 the one before, ...), or a position such as "
            "128@3:9f86d081884c7d65, as the last line of an earlier run names it.",
            default="current",
        ),
    ] = None,
    since: Annotated[
        str | None,
        option(
            "TIME",
            "Begin with the segment published this long ago (10m, 2h), or at 2026-11-23T18:00:00, if the server still "
            "has it. A time of day needs its date, and is of this computer's time zone unless it names one (Z).",
        ),
    ] = None,
    until: Annotated[
        str | None,
        option(
            "TIME",
            "Stop behind the segment that was, or will be, on its way then: 5m (ago), 2026-11-23T19:30:00 (with its "
            "date, as for --since). A time that has passed needs --since, or a --start that lies before it.",
        ),
    ] = None,
    for_time: Annotated[str | None, option("TIME", "Stop after this time: 30s, 500ms, 2min, 1h.", "--for")] = None,
    wait: Wait = "0s",
    raw: Annotated[
        bool, option(None, "Write the bytes as they come, also to a FILE.mp4.", "--raw", group=_OUTPUT)
    ] = False,
    keep: Annotated[
        str | None,
        option(
            "LIMIT",
            "In a folder, keep only the newest segments: a number of them (500), or a size (20GB).",
            group=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        option(
            None,
            "Print each event as a line of JSON: on standard error if the media goes to standard output (-o -), "
            "otherwise on standard output. Without -o, no media is written.",
            "--json",
            group=_OUTPUT,
        ),
    ] = False,
    on_lag: Annotated[
        Literal["earliest", "live", "fail"] | None,
        option(
            None,
            "Where to go on after falling too far behind: earliest (the oldest segment that is left; the default of a "
            "FOLDER/, of --since, and of --start earliest or a number), live (the newest one; the default otherwise), "
            "or fail.",
            group=_LOSSES,
        ),
    ] = None,
    fail_on: Annotated[
        Literal["never", "gap", "loss"],
        option(
            None,
            f"Exit with {LOSS_EXIT_CODE} if segments were missed (gap), or missed, truncated, cut, or left out of a "
            "media file (loss); or never.",
            group=_LOSSES,
        ),
    ] = "never",
    reconnect_for: ReconnectFor = "60s",
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Receive the segments of a channel, until the channel ends.

    Warnings about missing or incomplete segments, and a summary, go to standard error.

    Exit codes: 0 the channel or the time ended; 1 an error: the last line says how to go on; 2 wrong usage; 3 see
    --fail-on; 130 Ctrl-C; 143 SIGTERM. Files are complete and readable in all of these cases.

    Examples:

    \b
      URL=http://localhost:2939/trickle/cam
      tricklecast subscribe $URL | ffplay -
      tricklecast subscribe $URL -o film.mp4 --for 10min
      tricklecast subscribe $URL -o match/ --since 2026-11-23T18:00 --until 2026-11-23T20:00
      tricklecast subscribe $URL -o recording/ --keep 20GB --reconnect-for forever
      tricklecast subscribe $URL --json | jq .
    """
    from tricklecast.subscriber.command.moments import Moment
    from tricklecast.subscriber.command.run import OF_THE_PAST, Report, Request, is_folder, run
    from tricklecast.subscriber.core import OnLag, parse_start
    from tricklecast.subscriber.sinks import standard_sink

    if since is not None and start is not None:
        raise typer.BadParameter("give --since or --start, not both", param_hint="--since")
    begin = None if since is None else checked("--since", Moment.parse, since)
    end = None if until is None else checked("--until", Moment.parse, until)
    now_at = time.time()
    if end is not None and begin is not None and end.on(now_at) <= begin.on(now_at):
        raise typer.BadParameter(f"it would end before it begins: --since {since}", param_hint="--until")
    first = checked("--start", parse_start, start or "current")
    policy = None if on_lag is None else OnLag(on_lag)
    target = _target(output, as_json=as_json)
    into_folder = is_folder(target or "")
    if policy is None and (begin is not None or into_folder):
        policy = OnLag.EARLIEST  # it begins, or goes on, at a position, and wants everything all the same
    is_new = begin is None and first in ("current", "next") and not into_folder
    if is_new and end is not None and end.on(now_at) <= now_at:
        raise typer.BadParameter("that time has passed: give --since or --start", param_hint="--until")
    limit = _keep(keep)
    if keep is not None and not into_folder:
        raise typer.BadParameter("only a folder can be limited: use -o FOLDER/", param_hint="--keep")
    request = Request(
        url,
        target,
        start=first,
        since=begin,
        until=end,
        for_s=None if for_time is None else checked("--for", parse_duration, for_time),
        wait_s=checked("--wait", parse_limit, wait),
        on_lag=policy,
        reconnect_s=checked("--reconnect-for", parse_limit, reconnect_for),
        raw=raw,
        keep=limit,
        credentials=credentials,
    )
    on_stderr = target == "-"
    report = Report(sink=standard_sink("stderr" if on_stderr else "stdout")) if as_json else None
    try:
        totals, left_out = await run(request, report)
    except TrickleError as error:
        if report is not None and on_stderr:
            raise typer.Exit(1) from error  # the last event says why; nothing but events may go to this stream
        if isinstance(error, ChannelNotFound):
            failure = no_channel(error, url, request.wait_s)
            if begin is not None and failure is not error:
                failure = TrickleError(f"{failure}; {OF_THE_PAST}")
            raise failure from error
        raise
    lost = totals.missed + (totals.truncated + totals.broken + left_out if fail_on == "loss" else 0)
    if lost and fail_on != "never":
        raise typer.Exit(LOSS_EXIT_CODE)


@with_credentials
async def clip(
    url: ChannelUrls,
    output: Annotated[
        Path,
        option("FILE", "The file: .mp4, .m4v, .mov, .m4a, .mkv or .mka. It is replaced.", "--output", "-o"),
    ],
    since: Annotated[
        str,
        option(
            "TIME", "Begin with the segment published this long ago (10m, 90s), or at 2026-11-23T18:00:00.", "--since"
        ),
    ],
    until: Annotated[str, option("TIME", "End with the segment published then. 0s is now.", "--until")] = "0s",
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Cut a file out of the media that a channel has carried, as far back as its server keeps it.

    The clip begins with the segment, and so with a key picture, that was on its way at --since, and ends with that of
    --until: a line says how much longer it is. Nothing is encoded anew. The file appears when it is complete; a run
    that fails or is stopped leaves none, and the old file of that name stays.

    Exit codes: 0 done; 1 an error, and no file; 2 wrong usage; 3 done, but parts of that time are missing: lines say
    which; 130 Ctrl-C; 143 SIGTERM.

    Examples:

    \b
      URL=http://localhost:2939/trickle/cam
      tricklecast clip $URL -o goal.mp4 --since 90s --until 60s
      tricklecast clip $URL -o last-hour.mkv --since 1h
    """
    from tricklecast.subscriber.command.clip import Clip, check_name, run
    from tricklecast.subscriber.command.moments import Moment

    checked("--output", check_name, output)
    begin, end = checked("--since", Moment.parse, since), checked("--until", Moment.parse, until)
    now_at = time.time()
    if end.on(now_at) <= begin.on(now_at):
        raise typer.BadParameter(f"the clip would end before it begins: --since {since}", param_hint="--until")
    if end.on(now_at) > now_at:
        raise typer.BadParameter("that time is to come: a clip ends now (0s) at the latest", param_hint="--until")
    try:
        is_whole = await run(Clip(url, output, begin, end, credentials))
    except ChannelNotFound as error:
        raise no_channel(error, url) from error
    if not is_whole:
        raise typer.Exit(LOSS_EXIT_CODE)


@with_credentials
async def channels(
    url: Annotated[str, typer.Argument(metavar="URL", help="Any URL on the server.")],
    as_json: Annotated[bool, option(None, "Print the server's answer, as JSON.", "--json")] = False,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """List the channels of a server: a table on a terminal, tab-separated columns in a pipe.

    Exit codes: 0 done; 1 an error; 2 wrong usage.

    Examples:

    \b
      tricklecast channels http://localhost:2939
      tricklecast channels http://localhost:2939 --json | jq '.channels[].name'
    """
    from tricklecast.subscriber.command.listing import print_channels
    from tricklecast.trickle.client.listing import fetch_channels

    answer = await fetch_channels(url, credentials.tls, credentials.auth)
    print_channels(answer, as_json=as_json)


def _target(output: str | None, *, as_json: bool) -> str | None:
    if output == "":
        raise typer.BadParameter("the name is empty", param_hint="--output")
    if output is None and not as_json:
        output = "-"
        if sys.stdout is not None and sys.stdout.isatty():
            raise typer.BadParameter(
                "refusing to write media to a terminal; use -o FILE or a pipe", param_hint="--output"
            )
    return output


def _keep(text: str | None) -> Keep:
    from tricklecast.subscriber.archive import Keep

    if text is None:
        return Keep()
    if text.strip().isdecimal():
        return checked("--keep", lambda number: Keep(segments=int(number)), text)
    return checked("--keep", lambda amount: Keep(bytes=parse_size(amount)), text)
