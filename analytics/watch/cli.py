"""``tricklecast storms watch``: its options."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from tricklecast.analytics.cli.thresholds import thresholds
from tricklecast.analytics.errors import AnalyticsError
from tricklecast.trickle.wire import redacted


class Beginning(StrEnum):
    """Where a first run begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


class FailOn(StrEnum):
    """The severity from which a storm is a failure."""

    MINOR = "minor"
    WARN = "warn"
    CRITICAL = "critical"
    NEVER = "never"


def watch(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOG...", help="Files that grow, folders of them, or - (stdin).")
    ],
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep here what must survive a restart.", file_okay=False)
    ] = None,
    beginning: Annotated[
        Beginning, typer.Option("--from", help="Where a first run begins; a later one goes on.")
    ] = Beginning.LATEST,
    json: Annotated[bool, typer.Option("--json", help="Print alerts as JSON, one per line.")] = False,
    webhook: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="POST alerts there, as JSON; may be given again.")
    ] = None,
    alertmanager: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Send alerts to this Alertmanager; may be given again.")
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="Exit with 1 if there was a storm from this severity on.")
    ] = FailOn.NEVER,
    for_time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after so long, such as 10m.")
    ] = None,
    log_format: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="auto, tricklecast, nginx, envoy, caddy, or a field map (TOML)."
        ),
    ] = "auto",
    client_key: Annotated[
        str | None, typer.Option(metavar="FIELDS", help="Whom a line is from, such as client,ip+ua.")
    ] = None,
    path_prefix: Annotated[
        str | None, typer.Option(metavar="PATH", help="What the paths of the channels begin with.")
    ] = None,
    params: Annotated[
        str | None, typer.Option(metavar="FILE", help="Thresholds, as a TOML file of names and numbers.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One threshold; may be given again.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Nothing but alerts and errors.")] = False,
) -> None:
    """Tell of retry storms while they happen: within a second of the tenth request, from logs that still grow.

    Ctrl-C or SIGTERM end it. With --state, the next run goes on where this one ended, and tells nothing twice.

    Exit codes: 0 ended as asked, 1 storms from --fail-on upwards, 2 usage, or the state is in use, 3 bad input (no such
    log, one of which nothing is understood, or a state that is another watch's).
    """
    # They bring DuckDB along, which takes longer than a usage error.
    from tricklecast.analytics.cli.times import parse_duration
    from tricklecast.analytics.lines import BadFormat, Reading
    from tricklecast.analytics.rules.incidents import Severity
    from tricklecast.analytics.watch.run import WatchRequest, run

    try:
        reading = Reading(log_format, client_key, path_prefix)
        reading.check()
        request = WatchRequest(
            logs=tuple(logs),
            reading=reading,
            params=thresholds(params, settings or ()),
            earliest=beginning is Beginning.EARLIEST,
            state=state,
            json=json,
            webhooks=tuple(map(_url, webhook or ())),
            alertmanagers=tuple(map(_url, alertmanager or ())),
            for_s=None if for_time is None else parse_duration(for_time) / 1e6,
            quiet=quiet,
        )
    except (ValueError, BadFormat) as error:
        raise typer.BadParameter(str(error)) from None
    try:
        found = run(request)
    except AnalyticsError as error:
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    severities = list(Severity)
    if fail_on is not FailOn.NEVER and any(
        severities.index(worst) >= severities.index(Severity(fail_on.value)) for worst in found.began.values()
    ):
        raise typer.Exit(1)


def _url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{redacted(url)!r} is no http:// or https:// URL")
    return url
