"""``tricklecast logs``: compact, tail, schema."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.logs.schema import SchemaFormat, example_lines, schema_text
from tricklecast.analytics.report.formats import counted

if TYPE_CHECKING:
    from tricklecast.analytics.logs.compact import Compacted, Todo
    from tricklecast.analytics.logs.lines import Wanted

_Logs = Annotated[list[str], typer.Argument(metavar="LOG...", help="Files (also .gz, Parquet), folders, globs.")]
_Only = Annotated[list[str] | None, typer.Option(help="Only these; may be repeated, and have * in it.")]


def compact(
    logs: _Logs,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the hours go: DIR/dt=.../hr=.../.")],
    log_format: Annotated[
        str,
        typer.Option("--format", metavar="NAME|FILE", help="auto, tricklecast, nginx, envoy, caddy, or a field map."),
    ] = "auto",
    client_key: Annotated[
        str | None, typer.Option(metavar="FIELD[+FIELD]", help="What tells clients apart, in proxies' logs: ip+ua, ...")
    ] = None,
    path_prefix: Annotated[
        str | None, typer.Option(metavar="PATH", help="What stands before /CHANNEL/SEQ in proxies' logs.")
    ] = None,
    rejects: Annotated[
        str | None, typer.Option(metavar="FILE", help="Append the lines that are no access records to this file.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show Spark's log.")] = False,
) -> None:
    """Turn access logs into hourly Parquet, which is read several times faster and takes a fraction of the space.

    Run it as often as you like, also on logs that are still being written: what has been compacted is not compacted
    again, and late lines go to their hour. Exit codes: 0 done, 2 usage, 3 bad input, 4 Spark or Java missing.
    """
    from tricklecast.analytics.inputs import find_logs
    from tricklecast.analytics.logs.compact import compact as do
    from tricklecast.analytics.logs.compact import look_through
    from tricklecast.analytics.logs.journal import held
    from tricklecast.analytics.sources import Reading, recognise
    from tricklecast.analytics.spark import LOCAL, SMALL_INPUT, failures_as_one_line, spark_session

    reading = Reading(log_format, client_key, path_prefix)
    files = find_logs(logs)
    recognise(files, reading)
    target = Path(out).absolute()
    with held(target) as work:
        _tell(f"looking through {len(files.names):,} files")
        todo = look_through(files, target)
        if not todo.pieces:
            return _say_nothing_new(todo)
        small = files.size <= SMALL_INPUT
        _tell("starting Spark")
        with spark_session(LOCAL, small=small, verbose=verbose) as spark, failures_as_one_line():
            _tell(f"writing {sum(piece.end - piece.start for piece in todo.pieces) / 1e6:,.1f} MB of logs into hours")
            done = do(spark, files, todo, target, work, reading, Path(rejects) if rejects else None)
    _say(done, todo, out, rejects)


def tail(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Access logs; - is standard input.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they grow, and across rotations.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many lines of each file to begin with.")] = 10,
    channel: _Only = None,
    client: _Only = None,
    status: Annotated[list[str] | None, typer.Option(help="Only these: 404, 5xx; may be repeated.")] = None,
    op: _Only = None,
    reason: _Only = None,
    failures: Annotated[bool, typer.Option("--failures", help="Only refusals and errors: status 400 and up.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The lines as they are, JSON.")] = False,
) -> None:
    """Show access logs, for people: one line per request, filtered, and as they grow.

    Times are UTC. Ctrl-C ends it.
    """
    from tricklecast.analytics.logs.lines import Wanted

    wanted = Wanted(
        channels=tuple(channel or ()),
        clients=tuple(client or ()),
        statuses=tuple(status or ()),
        ops=tuple(op or ()),
        reasons=tuple(reason or ()),
        failures=failures,
    )
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        for line in _wanted_lines(files, lines, wanted, following=follow):
            _print(line, raw=raw, colour=colour)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def schema(
    form: Annotated[
        SchemaFormat, typer.Option("--format", help="JSON Schema, Spark's DDL, a table, or Avro.")
    ] = SchemaFormat.MARKDOWN,
    example: Annotated[bool, typer.Option("--example", help="Print two lines as an example instead.")] = False,
) -> None:
    """Print the schema of the access log."""
    print("\n".join(example_lines()) if example else schema_text(form))


def _wanted_lines(files: list[str], count: int, wanted: Wanted, *, following: bool) -> Iterator[bytes]:
    from tricklecast.analytics.logs.follow import Follower, follow, last_lines

    followers = []
    for name in files:
        if name == "-":
            yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer if line.strip() and wanted(line))
            continue
        try:
            found, at = last_lines(name, count, wanted)
        except (OSError, EOFError) as error:
            raise BadInput(f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}") from error
        yield from found
        followers.append(Follower(name, at))
    if following and followers:
        yield from filter(wanted, follow(followers))


def _print(line: bytes, *, raw: bool, colour: bool) -> None:
    from tricklecast.analytics.logs.lines import readable

    if raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
    else:
        print(readable(line, colour=colour), flush=True)


def _tell(stage: str) -> None:
    print(f"compact: {stage} …", file=sys.stderr, flush=True)


def _say_nothing_new(todo: Todo) -> None:
    print(f"nothing new in {counted(todo.known, 'file')}")
    _say_left(todo)


def _say(done: Compacted, todo: Todo, out: str, rejects: str | None) -> None:
    ratio = f", {done.bytes_in / done.bytes_out:.1f} times smaller" if done.bytes_out else ""
    print(
        f"{counted(done.lines, 'line')}, {done.bytes_in / 1e6:,.1f} MB, into {counted(done.hours, 'hour')} of {out!r}: "
        f"{done.bytes_out / 1e6:,.1f} MB{ratio}"
    )
    if todo.known:
        print(f"{counted(todo.known, 'file')} had nothing new")
    if done.rejected:
        where = f"they are in {rejects!r}" if rejects else "--rejects FILE keeps them"
        print(f"left out, being no access records: {counted(done.rejected, 'line')}; {where}")
    _say_left(todo)


def _say_left(todo: Todo) -> None:
    for name in todo.left:
        print(f"left out, damaged or not yet whole: {name!r}")
