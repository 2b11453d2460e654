"""``tricklecast storms``: its options."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tricklecast.analytics.cli.times import parse_duration
from tricklecast.analytics.command.baseline import parse_baseline
from tricklecast.analytics.command.outputs import Outputs
from tricklecast.analytics.command.params_file import load_params
from tricklecast.analytics.command.request import FailOn, Request, checked_format, moment, now_us, spark_conf
from tricklecast.analytics.inputs import Window
from tricklecast.analytics.sources import Reading

LOCAL = "local[*]"

_OUTPUT, _INPUT, _SPARK = "Results", "What is read", "Spark"


def storms(
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG...", help="Access logs: files (also .gz, Parquet), folders, globs, URIs.", show_default=False
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Only what arrived from then on: 2025-10-09T14:30Z, '2h ago'."),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only what arrived before.")] = None,
    log_format: Annotated[
        str,
        typer.Option("--format", metavar="NAME|FILE", help="auto, tricklecast, nginx, envoy, caddy, or a field map."),
    ] = "auto",
    client_key: Annotated[
        str | None,
        typer.Option(metavar="FIELD[+FIELD]", help="What tells clients apart, in proxies' logs: ip+ua, ip, ..."),
    ] = None,
    path_prefix: Annotated[
        str | None, typer.Option(metavar="PATH", help="What stands before /CHANNEL/SEQ in proxies' logs.")
    ] = None,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE|-", help="Write the report as one HTML page.")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write the report as JSON.")] = None,
    parquet: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write tables: the episodes, and the roll-up behind them.")
    ] = None,
    prom: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write gauges for Prometheus (textfile collector).")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RELEASE|TIME|LOGS", help="Compare: with a release, before a time, or other logs."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="ID", help="Show one episode's evidence: lines, trigger, arithmetic.")
    ] = None,
    incremental: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Keep hourly roll-ups here, read only new logs, report on all."),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --incremental: forget what is older, such as 30d.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit with 1 from this severity on.")] = FailOn.WARN,
    params: Annotated[
        str | None, typer.Option(metavar="FILE", help="Thresholds, as a TOML file of names and numbers.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One threshold; may be given again.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(help="Where Spark runs: local[*] (default), spark://HOST:7077, yarn, k8s://https://HOST."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting for Spark; may be given again.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show Spark's log and whole errors.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress, and no report on the terminal.")] = False,
) -> None:
    """Find retry storms in access logs: what looped, since when, what triggered it, and what to do.

    `tricklecast storms watch` tells of them while they happen (a log called watch is ./watch).

    Exit codes: 0 no storm, 1 storms from --fail-on upwards, 2 usage, 3 bad input (no logs, or more than 1 % of the
    lines unparsable), 4 Spark or Java missing or failed.
    """
    try:
        request = Request(
            logs=tuple(logs or ()),
            reading=Reading(checked_format(log_format), client_key, path_prefix, Window(moment(since), moment(until))),
            params=load_params(params, settings or ()),
            outputs=Outputs(html=html, json=json_file, prom=prom, parquet=parquet),
            baseline=None if baseline is None else parse_baseline(baseline, now_us()),
            fail_on=fail_on,
            master=master or _default_master(),
            conf=spark_conf(conf or ()),
            state=incremental,
            keep_us=None if keep is None else parse_duration(keep),
            explain=explain,
            verbose=verbose,
            quiet=quiet,
        )
        request.check()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    from tricklecast.analytics.command.run import run  # brings rich along, which takes longer than a usage error

    run(request)


def _default_master() -> str | None:
    """This machine, unless ``spark-submit`` has started us: it has chosen already."""
    return None if "PYSPARK_GATEWAY_PORT" in os.environ else LOCAL
