"""``tricklecast storms watch``: its options, and those that it shares with ``storms stream``."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from tricklecast.analytics.cli.interrupts import load_duckdb
from tricklecast.analytics.cli.options import ClientKey, LogFormat, ParamsFile, PathPrefix, Settings
from tricklecast.analytics.cli.thresholds import thresholds
from tricklecast.analytics.errors import AnalyticsError
from tricklecast.analytics.maintenance import parse_maintenance


class Beginning(StrEnum):
    """Where a first run begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


def _shared(
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for what must survive a restart.", file_okay=False)
    ] = None,
    beginning: Annotated[
        Beginning, typer.Option("--start", help="Where a first run begins. A later one goes on where it ended.")
    ] = Beginning.LATEST,
    json: Annotated[bool, typer.Option("--json", help="Print each alert as a line of JSON.")] = False,
    webhook: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="POST alerts as JSON to this URL. May be repeated.")
    ] = None,
    alertmanager: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Send alerts to this Alertmanager. May be repeated.")
    ] = None,
    alert: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:URL",
            help="Tell slack:URL, pagerduty:KEY, alertmanager:URL or webhook:URL; @FILE in place of a URL or key reads"
            " it from a file. May be repeated.",
        ),
    ] = None,
    maintenance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WINDOW",
            help="Hold alerts back: 02:00-04:00 (UTC), 'sat,sun 22:00-06:00 Europe/Berlin', TIME/TIME, or FILE.toml."
            " May be repeated.",
        ),
    ] = None,
    log_format: LogFormat = "auto",
    client_key: ClientKey = None,
    path_prefix: PathPrefix = None,
    params: ParamsFile = None,
    settings: Settings = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only alerts and errors.")] = False,
) -> dict[str, Any]:
    """The fields of a :class:`~tricklecast.analytics.watch.run.WatchRequest` that follow from these options."""
    # They bring DuckDB along, which takes longer than a usage error.
    from tricklecast.analytics.lines import Reading
    from tricklecast.analytics.watch.deliver import receiver

    reading = Reading(log_format, client_key, path_prefix)
    reading.check()
    told = [f"webhook:{url}" for url in webhook or ()] + [f"alertmanager:{url}" for url in alertmanager or ()]
    return {
        "reading": reading,
        "params": thresholds(params, settings or ()),
        "earliest": beginning is Beginning.EARLIEST,
        "state": state,
        "json": json,
        "receivers": tuple(map(receiver, [*told, *(alert or ())])),
        "maintenance": parse_maintenance(maintenance or ()),
        "quiet": quiet,
    }


def watching(command: Callable[..., Callable[[], None]]) -> Callable[..., None]:
    """Adds the shared options to a command, which gets what follows from them as ``shared``, and returns its work.

    What it raises is told as the usage error, or the exit code, that it is.
    """
    shared = signature(_shared, eval_str=True).parameters
    own = [one for one in signature(command, eval_str=True).parameters.values() if one.name != "shared"]

    @wraps(command)
    def run(**given: Any) -> None:
        from tricklecast.analytics.lines import BadFormat

        try:
            fields = _shared(**{name: given.pop(name) for name in shared})
            work = command(**given, shared=fields)
        except (ValueError, BadFormat) as error:
            raise typer.BadParameter(str(error)) from None
        try:
            work()
        except AnalyticsError as error:
            if given.get("verbose"):
                traceback.print_exc()
            print(f"tricklecast: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from error

    every = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*own, *shared.values())]
    run.__signature__ = Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in every}
    return run


@watching
def watch(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG...", help="Access logs that grow: files, folders, or - for standard input."),
    ],
    *,
    shared: dict[str, Any],
) -> Callable[[], None]:
    """Report retry storms while they happen: within a second of the tenth request.

    With --state, the next run goes on where this one ended, and repeats no alert.

    Exit codes: 0 Ctrl-C or SIGTERM; 2 wrong usage, or the state is in use; 3 bad input: no such log, an unknown format,
    or the state of another watch.

    Examples:

    \b
      tricklecast storms watch access.jsonl --state /var/lib/storms
      tricklecast storms watch /var/log/nginx/trickle.log --alert slack:@/etc/storms/slack-url
    """
    load_duckdb()
    from tricklecast.analytics.watch.run import WatchRequest, run

    return lambda: run(WatchRequest(tuple(logs), **shared))
