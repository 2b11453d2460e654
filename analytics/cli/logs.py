"""``tricklecast logs``: compact, tail, schema."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tricklecast.analytics.cli.interrupts import interruptible, load_duckdb
from tricklecast.analytics.cli.options import ClientKey, LogFormat, PathPrefix
from tricklecast.analytics.report.formats import counted

if TYPE_CHECKING:
    from tricklecast.analytics.logs.compact import Compacted

SHOWN: Final = 100
"""Characters of a line that was left out."""

_FILTERS: Final = "Filters (may be repeated; * matches any characters)"


def _only(metavar: str, text: str) -> Any:
    """An option that leaves lines out."""
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_FILTERS)


def compact(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOG...", help="Access logs: files (also .gz, Parquet), folders, globs.")
    ],
    out: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Write to this folder: DIR/dt=.../hr=.../.")
    ],
    log_format: LogFormat = "auto",
    client_key: ClientKey = None,
    path_prefix: PathPrefix = None,
) -> None:
    """Turn access logs into hourly Parquet files, which are smaller, and several times faster to read.

    Run it as often as you like, also on logs that still grow: lines that were compacted before are not compacted again,
    and late lines go to their hour.

    Exit codes: 0 done; 2 wrong usage; 3 bad input; 130 Ctrl-C.

    Examples:

    \b
      tricklecast logs compact access-*.jsonl.gz -o parquet/
      tricklecast logs compact /var/log/nginx/trickle.log* -o parquet/ --format nginx
    """
    with interruptible():
        load_duckdb()
        from tricklecast.analytics.lines import Reading, find_logs
        from tricklecast.analytics.logs.compact import compact as do

        reading = Reading(log_format, client_key, path_prefix)
        reading.check()
        _say(do(find_logs(logs), Path(out).absolute(), reading, _tell), out)


def tail(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Access logs; - is standard input.")],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on as the files grow, also across rotations.")
    ] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", metavar="N", min=0, help="Begin with the last N lines of each file.")
    ] = 10,
    failures: Annotated[bool, typer.Option("--failures", help="Only refusals and errors: status 400 and up.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Show the lines as they are.")] = False,
    channel: Annotated[list[str] | None, _only("NAME", "Only these channels.")] = None,
    client: Annotated[list[str] | None, _only("NAME", "Only these clients.")] = None,
    status: Annotated[list[str] | None, _only("CODE", "Only these status codes: 404, 5xx.")] = None,
    op: Annotated[list[str] | None, _only("NAME", "Only these operations and events: read, publish, drain …")] = None,
    reason: Annotated[list[str] | None, _only("NAME", "Only these reasons.")] = None,
    log_format: LogFormat = "auto",
    client_key: ClientKey = None,
    path_prefix: PathPrefix = None,
) -> None:
    """Show access logs of any format in a form that people can read: a line per request. Times are UTC.

    Exit codes: 0 done; 2 wrong usage; 3 bad input; 130 Ctrl-C.

    Examples:

    \b
      tricklecast logs tail -f access.jsonl --failures
      tricklecast logs tail -n 100 /var/log/nginx/trickle.log --channel 'cam-*' --status 5xx
    """
    from tricklecast.analytics.lines import Reading
    from tricklecast.analytics.logs.lines import readable
    from tricklecast.analytics.logs.tail import Tail, Wanted, statuses

    reading = Reading(log_format, client_key, path_prefix, details=True)
    reading.check()
    columns = {"channel": channel, "client": client, "op": op, "reason": reason}
    try:
        codes = statuses(status or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    wanted = Wanted({"status": codes} | {name: given or [] for name, given in columns.items()}, failures)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    with interruptible():
        for record in Tail(wanted, reading).records(files, lines, follow=follow):
            if raw:
                sys.stdout.flush()
                sys.stdout.buffer.write(record["line"] + b"\n")
                sys.stdout.buffer.flush()
            else:
                print(readable(record, colour=colour), flush=True)


def schema() -> None:
    """Print the JSON Schema of a line of the access log.

    Examples:

    \b
      tricklecast logs schema > access-log.schema.json
    """
    from tricklecast.analytics.logs.schema import json_schema

    print(json.dumps(json_schema(), indent=2))


def _tell(stage: str) -> None:
    print(f"compact: {stage} …", file=sys.stderr, flush=True)


def _say(done: Compacted, out: str) -> None:
    if done.hours:
        print(
            f"{counted(done.lines, 'line')}, {done.bytes_in / 1e6:,.1f} MB, into {counted(done.hours, 'hour')} of "
            f"{out!r}: {done.bytes_out / 1e6:,.1f} MB"
        )
    if done.doubled:
        print(f"left out, because another file has the same requests: {counted(done.doubled, 'line')}")
    if done.known:
        print(f"{counted(done.known, 'file')} had nothing new")
    if done.bad:
        print(f"left out, because they are not access records: {counted(done.bad, 'line')}, such as")
        for sample in done.samples:
            more = "…" if len(sample.text) > SHOWN else ""
            print(f"  {sample.file}: {sample.text[:SHOWN]!a}{more} ({sample.why})")
    for name in done.left:
        print(f"left out, damaged or incomplete: {name!r}")
    for name in done.strange:
        print(f"left out, unknown format: {name!r}")
