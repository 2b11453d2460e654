"""``tricklecast storms watch``: its options."""

from __future__ import annotations

import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tricklecast.analytics.command.params_file import load_params
from tricklecast.analytics.command.request import FailOn, spark_conf
from tricklecast.analytics.command.times import parse_duration
from tricklecast.analytics.errors import AnalyticsError
from tricklecast.analytics.watch_old.request import WatchRequest, checked_url, source_of

_ALERTS, _SPARK = "Alerts", "Spark"


class Beginning(StrEnum):
    """Where a first run begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


def watch(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="LOG...", help="Files that grow, folders of them, or kafka://HOST[:PORT]/TOPIC."),
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
    fail_on: Annotated[FailOn, typer.Option(help="Exit with 1 if there was a storm from this severity on.")] = (
        FailOn.NEVER
    ),
    for_time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after so long, such as 10m.")
    ] = None,
    params: Annotated[
        str | None, typer.Option(metavar="FILE", help="Thresholds, as a TOML file of names and numbers.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One threshold; may be given again.")
    ] = None,
    kafka_config: Annotated[
        str | None, typer.Option(metavar="FILE", help="librdkafka's settings, NAME=VALUE per line (TLS, SASL, ...).")
    ] = None,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting for Spark; may be given again.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show Spark's log and whole errors.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Nothing but alerts and errors.")] = False,
) -> None:
    """Tell of retry storms while they happen: within a second of the tenth request, from a log that still grows.

    Ctrl-C or SIGTERM end it. With --state, the next run goes on where this one ended, and tells nothing twice.

    Exit codes: 0 ended as asked, 1 storms from --fail-on upwards, 2 usage, 3 bad input (no such log, or a state that
    is another watch's), 4 Spark or Java missing or failed.
    """
    try:
        request = WatchRequest(
            source=source_of(logs, kafka_config),
            earliest=beginning is Beginning.EARLIEST,
            params=load_params(params, settings or ()),
            state=state,
            json=json,
            webhooks=tuple(checked_url(url) for url in webhook or ()),
            alertmanagers=tuple(checked_url(url) for url in alertmanager or ()),
            fail_on=fail_on.value,
            master=master,
            conf=spark_conf(conf or ()),
            for_s=None if for_time is None else parse_duration(for_time) / 1e6,
            verbose=verbose,
            quiet=quiet,
        )
        from tricklecast.analytics.watch_old.run import (
            run,  # brings rich and httpx along, which take longer than a usage error
        )

        found = run(request)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except AnalyticsError as error:
        if verbose:
            traceback.print_exc()
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    if fail_on is not FailOn.NEVER and found.has(fail_on.value):
        raise typer.Exit(1)
