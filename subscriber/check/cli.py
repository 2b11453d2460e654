"""``tricklecast check``."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tricklecast.trickle.amounts import count, parse_duration, parse_limit, size
from tricklecast.trickle.errors import ChannelNotFound
from tricklecast.trickle.terminal import (
    NO_CREDENTIALS,
    Credentials,
    ReconnectFor,
    Screen,
    Wait,
    checked,
    no_channel,
    option,
    with_credentials,
)

if TYPE_CHECKING:
    from tricklecast.subscriber.check.rules import Judgement

EXIT_NOT_FINE: Final = 1

_LIMITS: Final = "Tests and limits"


@with_credentials
async def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="The channel: http://HOST:PORT/trickle/CHANNEL.")],
    for_time: Annotated[str, option("TIME", "Test for this time: 30s, 2m, 1h.", "--for")] = "30s",
    start: Annotated[
        str, option("WHERE", "Where to begin: next, current, earliest, a number, or -N (-1 is next, -2 current).")
    ] = "next",
    wait: Wait = "0s",
    strict: Annotated[bool, option(None, "Treat warnings as failures.", "--strict")] = False,
    as_json: Annotated[bool, option(None, "Print the report as JSON, with all segments.", "--json")] = False,
    decode: Annotated[
        bool, option(None, "Decode the first picture of each segment, if PyAV is installed.", group=_LIMITS)
    ] = True,
    max_latency: Annotated[
        str | None, option("TIME", "Highest end-to-end latency of 95 % of the segments.", group=_LIMITS, default="5s")
    ] = None,
    max_segment: Annotated[str | None, option("TIME", "Longest segment.", group=_LIMITS, default="10s")] = None,
    max_jitter: Annotated[
        str | None, option("TIME", "Longest delay of a segment.", group=_LIMITS, default="1s")
    ] = None,
    max_skew: Annotated[
        str | None,
        option(
            "TIME", "Longest time between the beginnings of audio and video in a segment.", group=_LIMITS, default="2s"
        ),
    ] = None,
    reconnect_for: ReconnectFor = "60s",
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Test a live channel: subscribe for a while, and report its faults.

    The test looks at segment lengths, keyframes, timestamps across segments, gaps, pace, latency and more. A limit that
    you give fails when it is exceeded; a default limit only warns. Ctrl-C prints the report so far.

    Exit codes: 0 no failure; 1 failures; 2 wrong usage.

    Examples:

    \b
      tricklecast check http://localhost:2939/trickle/cam
      tricklecast check http://localhost:2939/trickle/cam --for 2min --max-latency 2s --strict
    """
    from tricklecast.subscriber.core import parse_start

    _check_url(url)
    begin = checked("--start", parse_start, start)
    from tricklecast.subscriber.check.probe import Probe
    from tricklecast.subscriber.check.rules import Level, judge
    from tricklecast.subscriber.check.study import Limits

    for_s, wait_s = checked("--for", parse_duration, for_time), checked("--wait", parse_limit, wait)
    options = {"latency": max_latency, "segment": max_segment, "jitter": max_jitter, "skew": max_skew}
    given = {
        f"{name}_s": checked(f"--max-{name}", partial(parse_duration, zero=True), text)
        for name, text in options.items()
        if text is not None
    }
    limits = Limits(**given, given=frozenset(given))
    probe = Probe(
        url,
        start=begin,
        for_s=for_s,
        wait_s=wait_s,
        reconnect_s=checked("--reconnect-for", parse_limit, reconnect_for),
        decode=decode,
        credentials=credentials,
    )
    began = time.monotonic()

    def progress() -> str:
        passed = f"{time.monotonic() - began:.0f} of {for_s:.0f} s"
        return f"checking: {passed}, {count(probe.segments, 'segment')}, {size(probe.size)}"

    try:
        with Screen().live(progress):
            await probe.look()
    except ChannelNotFound as error:
        raise no_channel(error, url, wait_s) from error
    finally:
        # Also after Ctrl-C, unless it failed before there was anything to tell.
        if probe.segments or sys.exc_info()[0] is None:
            judgement = judge(probe.run(), limits)
            _print(url, judgement, as_json)
    if judgement.level is Level.FAIL or (strict and judgement.level is Level.WARN):
        raise typer.Exit(EXIT_NOT_FINE)


def _check_url(url: str) -> None:
    from tricklecast.trickle.client.arguments import channel_urls

    if os.path.exists(url):
        raise typer.BadParameter("this is a file, and a check tests a channel: publish it first", param_hint="URL")
    if len(channel_urls(url)) > 1:
        raise typer.BadParameter("a check judges the channel of one node: give one URL", param_hint="URL")


def _print(url: str, judgement: Judgement, as_json: bool) -> None:
    from rich.console import Console

    from tricklecast.subscriber.check.report import as_json as to_json
    from tricklecast.subscriber.check.report import print_report

    if as_json:
        sys.stdout.write(to_json(url, judgement))
    else:
        print_report(url, judgement, Console(highlight=False, markup=False, emoji=False))
