"""``tricklecast storms check``: what is understood of a log, why a line is not, and how a field map begins."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tricklecast.analytics.cli.options import ClientKey, LogFormat, PathPrefix
from tricklecast.analytics.errors import AnalyticsError, BadInput

if TYPE_CHECKING:
    from tricklecast.analytics.lines import LogFiles, Reading
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
                lines, understood = _checked(files, name, reading)
                good = good and understood
                sys.stdout.write(f"{shown_name(name)}\n" + "".join(f"  {line}\n" for line in lines))
    except AnalyticsError as error:
        print(f"tricklecast: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error
    if not good:
        raise typer.Exit(BadInput.exit_code)


def _checked(files: LogFiles, name: str, reading: Reading) -> tuple[list[str], bool]:
    """The lines that the command prints of a file, and whether the file is understood."""
    from tricklecast.analytics.lines.files import REMOTE, is_parquet, sample_of
    from tricklecast.analytics.lines.recognise import NothingUnderstood, UnknownFormat, recognise

    if REMOTE.match(name):
        raise BadInput(f"check reads files of this machine, and {name!r} is not one")
    if is_parquet(name):
        return ["format: parquet, whose columns are those of the access log"], True
    sample = sample_of(name)
    if not sample:
        return ["no lines"], False
    try:
        form = recognise(name, sample, reading.format)
    except (UnknownFormat, NothingUnderstood) as error:
        return [str(error), "", "The beginning of a field map:", "", *_draft(sample)], False
    return _told(form, reading, sample)


def _told(form: Format, reading: Reading, sample: Sequence[bytes]) -> tuple[list[str], bool]:
    import duckdb

    from tricklecast.analytics.lines.embedded import ChunkReader
    from tricklecast.analytics.lines.records import OTHER

    with duckdb.connect(config={"threads": 1}) as con:
        rows = ChunkReader(con, form, reading).read(sample).to_pylist()
    bad = [row for row in rows if row["bad"] not in (None, OTHER)]
    requests = [row for row in rows if row["bad"] is None and row["kind"] == "exchange"]
    other = sum(row["bad"] == OTHER for row in rows)
    found = [f"format: {form.title}"]
    if requests:
        # A line with all that the others have says most.
        first = max(requests, key=lambda row: sum(row[name] is not None for name in _SHOWN))
        found += [f"{name}: {_value(first[name])}{_source(form, name)}" for name in _SHOWN]
    found.append(f"{len(rows):,} lines looked at: {len(requests):,} requests, {len(bad):,} unreadable, {other:,} other")
    found += [f"line {row['no']}: {row['bad']} cannot be read: {_cut(row['text'] or '')}" for row in bad[:MAX_BAD]]
    found += [form.unsure] if form.unsure else []
    for name in _NEEDED:
        missing = sum(row[name] is None and row["reason"] is None for row in requests)
        if missing:
            found.append(f"{missing:,} of {len(requests):,} requests have no {name}")
    return found, bool(rows) and len(bad) <= len(rows) / 100 and bool(requests or form.fields is None)


def _value(value: Any) -> str:
    return "-" if value is None else _cut(str(value))


def _source(form: Format, name: str) -> str:
    """From which columns a field comes."""
    if form.fields is None:
        return ""
    given = {"client": "client", "method": "request", "path": "request"}.get(name, name)
    sources = form.fields.fields.get(name) or form.fields.fields.get(given) or ()
    used = [" ".join(source.path) + (f" in {source.unit}" if source.unit else "") for source in sources[:3]]
    return f"  ({', '.join(used)})" if used else ""


def _cut(text: str) -> str:
    shown = text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "…"
    return shown.encode("unicode_escape").decode() if not shown.isprintable() else shown


def _draft(sample: Sequence[bytes]) -> Iterator[str]:
    """A field map with the file's keys or columns, for a user to complete."""
    from tricklecast.analytics.lines.inferred import cut

    records = [record for line in sample if isinstance(record := _json(line), dict)]
    if records:
        keys = Counter(key for record in records for key in _keys(record))
        yield 'layout = "json"'
        yield f"# keys: {', '.join(list(keys)[:40])}"
        columns = list(keys)
    else:
        shapes = Counter(tuple(quoted for _, quoted in cut(line.decode("utf-8", "replace"))) for line in sample)
        shape = shapes.most_common(1)[0][0]
        words = next(words for line in sample if len(words := cut(line.decode("utf-8", "replace"))) == len(shape))
        columns = [f"c{place}" for place in range(1, len(words) + 1)]
        yield 'layout = "words"'
        yield f"columns = {json.dumps(columns)}"
        for column, (word, _) in zip(columns, words, strict=True):
            yield f"# {column}: {_cut(word)}"
    yield 'stamped = "end"  # or "start": when the time is from'
    yield "[fields]"
    for field, hints, rest in _HINTS:
        place = next((column for column in columns if any(hint in column.lower() for hint in hints)), "…")
        yield f"{field} = " + (f'{{ from = "{place}", {rest} }}' if rest else f'"{place}"')


_HINTS: Final = (
    ("ts_us", ("time", "date", "ts"), 'unit = "time"'),
    ("dur_us", ("dur", "latency", "elapsed", "took"), 'unit = "ms"'),
    ("method", ("method", "verb"), ""),
    ("path", ("path", "uri", "url"), ""),
    ("status", ("status", "code"), ""),
    ("ip", ("ip", "addr", "client", "remote"), ""),
    ("ua", ("agent", "ua"), ""),
)


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _keys(record: dict[str, Any]) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from (f"{key}.{below}" for below in value)
        else:
            yield key
