"""``tricklecast storms watch``: its options."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from tricklecast.analytics.cli.options import ClientKey, LogFormat, ParamsFile, PathPrefix, Settings
from tricklecast.analytics.cli.thresholds import thresholds
from tricklecast.analytics.errors import AnalyticsError
from tricklecast.analytics.maintenance import parse_maintenance
from tricklecast.trickle.wire import redacted


class Beginning(StrEnum):
    """Where a first run begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


State = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for what must survive a restart.", file_okay=False)
]
Start = Annotated[
    Beginning, typer.Option("--start", help="Where a first run begins. A later one goes on where it ended.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print each alert as a line of JSON.")]
Webhooks = Annotated[
    list[str] | None, typer.Option(metavar="URL", help="POST alerts as JSON to this URL. May be repeated.")
]
Alertmanagers = Annotated[
    list[str] | None, typer.Option(metavar="URL", help="Send alerts to this Alertmanager. May be repeated.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only alerts and errors.")]
Alerts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND:URL",
        help="Tell slack:URL, pagerduty:KEY, alertmanager:URL or webhook:URL; @FILE in place of a URL or key reads it"
        " from a file. May be repeated.",
    ),
]
MaintenanceWindows = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WINDOW",
        help="Hold alerts back: 02:00-04:00 (UTC), 'sat,sun 22:00-06:00 Europe/Berlin', TIME/TIME, or FILE.toml."
        " May be repeated.",
    ),
]


def watch(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG...", help="Access logs that grow: files, folders, or - for standard input."),
    ],
    state: State = None,
    beginning: Start = Beginning.LATEST,
    json: AsJson = False,
    webhook: Webhooks = None,
    alertmanager: Alertmanagers = None,
    alert: Alerts = None,
    maintenance: MaintenanceWindows = None,
    log_format: LogFormat = "auto",
    client_key: ClientKey = None,
    path_prefix: PathPrefix = None,
    params: ParamsFile = None,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Report retry storms while they happen: within a second of the tenth request.

    With --state, the next run goes on where this one ended, and repeats no alert.

    Exit codes: 0 Ctrl-C or SIGTERM; 2 wrong usage, or the state is in use; 3 bad input: no such log, an unknown format,
    or the state of another watch.

    Examples:

    \b
      tricklecast storms watch access.jsonl --state /var/lib/storms
      tricklecast storms watch /var/log/nginx/trickle.log --alert slack:@/etc/storms/slack-url
    """
    # They bring DuckDB along, which takes longer than a usage error.
    from tricklecast.analytics.lines import BadFormat, Reading
    from tricklecast.analytics.watch.deliver import receiver
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
            webhooks=tuple(map(checked_url, webhook or ())),
            alertmanagers=tuple(map(checked_url, alertmanager or ())),
            receivers=tuple(map(receiver, alert or ())),
            maintenance=parse_maintenance(maintenance or ()),
            quiet=quiet,
        )
    except (ValueError, BadFormat) as error:
        raise typer.BadParameter(str(error)) from None
    try:
        run(request)
    except AnalyticsError as error:
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error


def checked_url(url: str) -> str:
    """The URL of a receiver.

    Raises:
        ValueError: it is none.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{redacted(url)!r} is no http:// or https:// URL")
    return url
