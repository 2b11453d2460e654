"""``tricklecast storms stream``: its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from tricklecast.analytics.cli.storms import default_master, spark_conf
from tricklecast.analytics.cli.watch import watching


@watching
def stream(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Where new logs appear: folders, URIs (s3a://...), or kafka://BROKER:9092/TOPIC.",
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where Spark notes how far it has read.", show_default="in --state"),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="How often it is looked for what is new.", min=0.1, max=86_400)
    ] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Read what is new, and end: for cron.")] = False,
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
    *,
    shared: dict[str, Any],
) -> Callable[[], None]:
    """Report retry storms in logs that arrive as files or messages, with Spark: the watch for more than one machine.

    Each file is read once, so it must appear whole: write it elsewhere, or as NAME.tmp, and rename it. With --state,
    the next run goes on where this one ended, and repeats no alert.

    Exit codes: 0 Ctrl-C or SIGTERM, or all was read with --once; 2 wrong usage, or the state is in use; 3 bad input: no
    such folder, an unknown format, or the state of another watch; 4 Spark or Java is missing or failed.

    Examples:

    \b
      tricklecast storms stream s3a://logs/access/ --state /var/lib/storms --master spark://spark:7077
      tricklecast storms stream /mnt/logs --state /var/lib/storms --alert slack:@/etc/storms/slack-url
    """
    from tricklecast.analytics.spark.stream import StreamRequest, run

    chosen = spark_conf(conf or ())
    if shared["state"] is None and (once or checkpoint is not None):
        raise ValueError("--once and --checkpoint need --state: what a run knows would be lost with it")
    request = StreamRequest(tuple(sources), **shared, checkpoint=checkpoint, interval_s=interval, once=once)
    master = master or chosen.pop("spark.master", None)
    return lambda: run(request, master or default_master(), chosen, verbose=verbose)
