"""``tricklecast storms stream``: its options."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from tricklecast.analytics.cli.options import ClientKey, LogFormat, ParamsFile, PathPrefix, Settings
from tricklecast.analytics.cli.storms import default_master, spark_conf
from tricklecast.analytics.cli.thresholds import thresholds
from tricklecast.analytics.errors import AnalyticsError
from tricklecast.analytics.maintenance import parse_maintenance
from tricklecast.analytics.watch.cli import (
    Alertmanagers,
    Alerts,
    AsJson,
    Beginning,
    MaintenanceWindows,
    Quiet,
    Start,
    State,
    Webhooks,
    checked_url,
)


def stream(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Where new logs appear: folders, URIs (s3a://...), or kafka://BROKER:9092/TOPIC.",
        ),
    ],
    state: State = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where Spark notes how far it has read.", show_default="in --state"),
    ] = None,
    beginning: Start = Beginning.LATEST,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="How often it is looked for what is new.", min=0.1, max=86_400)
    ] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Read what is new, and end: for cron.")] = False,
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
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where Spark runs: local[*], spark://HOST:7077, yarn, k8s://https://HOST.",
            show_default="local[*]",
        ),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark. May be repeated.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show Spark's log, and complete errors.")] = False,
    quiet: Quiet = False,
) -> None:
    """Report retry storms in logs that arrive as files or messages, with Spark: the watch for more than one machine.

    Each file is read once, so it must appear whole: write it elsewhere, or as NAME.tmp, and rename it. With --state,
    the next run goes on where this one ended, and repeats no alert.

    Exit codes: 0 Ctrl-C or SIGTERM, or all was read with --once; 2 wrong usage, or the state is in use; 3 bad input: no
    such folder, an unknown format, or the state of another stream; 4 Spark or Java is missing or failed.

    Examples:

    \b
      tricklecast storms stream s3a://logs/access/ --state /var/lib/storms --master spark://spark:7077
      tricklecast storms stream /mnt/logs --state /var/lib/storms --alert slack:@/etc/storms/slack-url
    """
    # They bring DuckDB along, which takes longer than a usage error.
    from tricklecast.analytics.lines import BadFormat, Reading
    from tricklecast.analytics.spark.stream import StreamRequest, run
    from tricklecast.analytics.watch.deliver import receiver

    try:
        reading = Reading(log_format, client_key, path_prefix)
        reading.check()
        chosen = spark_conf(conf or ())
        if state is None and (once or checkpoint is not None):
            raise ValueError("--once and --checkpoint need --state: what a run knows would be lost with it")
        request = StreamRequest(
            logs=tuple(sources),
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
            checkpoint=checkpoint,
            interval_s=interval,
            once=once,
        )
    except (ValueError, BadFormat) as error:
        raise typer.BadParameter(str(error)) from None
    try:
        run(request, master or chosen.pop("spark.master", None) or default_master(), chosen, verbose=verbose)
    except AnalyticsError as error:
        if verbose:
            traceback.print_exc()
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
