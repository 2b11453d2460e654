"""``tricklecast storms check``: what is understood of a log, why a line is not, and how a field map begins."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tricklecast.analytics.cli.options import ClientKey, LogFormat, PathPrefix
from tricklecast.analytics.errors import AnalyticsError, BadInput
from tricklecast.analytics.lines.dialect import text
from tricklecast.analytics.report.formats import date_and_time

if TYPE_CHECKING:
    from tricklecast.analytics.lines import Reading
    from tricklecast.analytics.lines.inferred import Draft
    from tricklecast.analytics.lines.recognise import Format

_SHOWN: Final = ("ts_us", "method", "path", "status", "dur_us", "wait_us", "bytes_out", "client", "ip", "ua", "node")
_NEEDED: Final = ("status", "dur_us", "client")
MAX_BAD: Final = 5
MAX_VALUE: Final = 60


def check(
    logs: Annotated[list[str], typer.Argument(metavar="LOG...", help="Access logs: files, folders, globs; - too.")],
    log_format: LogFormat = "auto",
    client_key: ClientKey = None,
    path_prefix: PathPrefix = None,
) -> None:
    """Show what is understood of logs: format, fields of a first line, and why lines cannot be read.

    It looks at the first lines of each file. Where a format is unknown it prints the beginning of a field map.

    Exit codes: 0 all files are understood; 2 wrong usage; 3 a file is not, or more than 1 % of its first lines.

    Examples:

    \b
      tricklecast storms check access.log
      tricklecast storms check access.log --format edge.toml
    """
    from tricklecast.analytics.lines import Reading, find_logs
    from tricklecast.analytics.lines.files import shown_name, spooled

    good = True
    try:
        reading = Reading(log_format, client_key, path_prefix)
        reading.check()
        with spooled(find_logs(logs)) as files:
            for name in files.names:
                lines, understood = _checked(name, reading)
                good = good and understood
                sys.stdout.write(f"{shown_name(name)}\n" + "".join(f"  {line}\n" for line in lines))
            for name in files.copies:
                sys.stdout.write(f"{name}\n  not looked at: another file has the same lines\n")
            for name in files.passed:
                sys.stdout.write(f"{name}\n  passed over: it is neither called like a log nor of a known format\n")
    except AnalyticsError as error:
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    if not good:
        raise typer.Exit(BadInput.exit_code)


def _checked(name: str, reading: Reading) -> tuple[list[str], bool]:
    """The lines that the command prints of a file, and whether the file is understood."""

    from tricklecast.analytics.lines.embedded import ChunkReader
    from tricklecast.analytics.lines.files import REMOTE, LineReader, is_parquet
    from tricklecast.analytics.lines.reading import parquet_format, parquet_values
    from tricklecast.analytics.lines.recognise import (
        SAMPLE_LINES,
        NothingUnderstood,
        UnknownFormat,
        draft,
        recognise,
    )
    from tricklecast.analytics.lines.records import parsed
    from tricklecast.analytics.scan import embedded

    if REMOTE.match(name):
        raise BadInput(f"check reads files of this machine, and {name!r} is not one")
    form: Format | None
    with embedded.connect(0) as con:
        if is_parquet(name):
            if (form := parquet_format(name)) is None:
                return ["no whole Parquet file: it has no footer"], False
            table = f"(FROM read_parquet({text(name)}, file_row_number = true) LIMIT {SAMPLE_LINES})"
            raw, shape = parquet_values(form, "0", "file_row_number + 1", table, reading)
            return _outcome(form, con.sql(parsed(shape, raw)).to_arrow_table().to_pylist(), reading)
        reader = LineReader(name)
        reader.close()
        sample = reader.sample()
        if not sample:
            return ["damaged: nothing of it can be read" if reader.damaged else "no lines"], False
        try:
            form = recognise(name, sample, reading.format)
        except (UnknownFormat, NothingUnderstood) as error:
            return [str(error), *_draft(draft(sample), name)], False
        found, understood = _outcome(form, ChunkReader(con, form, reading).read(sample).to_pylist(), reading)
    return found + (_draft(draft(sample), name) if form.unsure else []), understood


def _draft(begun: Draft, name: str) -> list[str]:
    title = f"A field map, to be completed. Save it as log.toml, then: tricklecast storms {name} --format log.toml"
    return ["", title, "", *begun.toml.splitlines()]


def _outcome(form: Format, rows: Sequence[dict[str, Any]], reading: Reading) -> tuple[list[str], bool]:
    """The outcome of a file's first lines, and whether nearly all of them could be read."""
    from tricklecast.analytics.lines.records import OTHER

    bad = [row for row in rows if row["bad"] not in (None, OTHER)]
    requests = [row for row in rows if row["bad"] is None and row["kind"] == "exchange"]
    other = sum(row["bad"] == OTHER for row in rows)
    found = [f"format: {form.title}"]
    if requests:
        # A line with all that the others have says most.
        first = max(requests, key=lambda row: sum(row[name] is not None for name in _SHOWN))
        found += [f"{name}: {_value(name, first[name])}{_source(form, name, first[name])}" for name in _SHOWN]
    found.append(f"{len(rows):,} lines looked at: {len(requests):,} requests, {len(bad):,} unreadable, {other:,} other")
    found += [f"line {row['no']}: {row['bad']} cannot be read: {_cut(row['text'] or '')}" for row in bad[:MAX_BAD]]
    found += [form.unsure] if form.unsure else []
    for name in _NEEDED:
        missing = sum(row[name] is None and row["reason"] is None for row in requests)
        if missing:
            found.append(f"{missing:,} of {len(requests):,} requests have no {name}")
    found += reading.unused([form.name])
    return found, bool(rows) and len(bad) <= len(rows) / 100 and bool(requests or form.fields is None)


def _value(name: str, value: Any) -> str:
    if name == "ts_us" and value is not None:
        return f"{value} ({date_and_time(value)} UTC)"
    return "-" if value is None else _cut(str(value))


def _source(form: Format, name: str, value: Any) -> str:
    """From which columns a field comes."""
    if form.fields is None or value is None or name == "client":
        return ""
    given = {"method": "request", "path": "request"}.get(name, name)
    sources = form.fields.fields.get(name) or form.fields.fields.get(given) or ()
    used = [" ".join(source.path) + (f" in {source.unit}" if source.unit else "") for source in sources[:3]]
    return f"  ({', '.join(used)})" if used else ""


def _cut(text: str) -> str:
    shown = text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "…"
    return shown.encode("unicode_escape").decode() if not shown.isprintable() else shown
