"""Parts of reading that both engines share: how logs are read, the counts, and the SQL for a format's lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.dialect import text
from tricklecast.analytics.lines.files import ALWAYS, REMOTE, LogFiles, Window, is_parquet, node_of, sample_of
from tricklecast.analytics.lines.mapped import (
    DEFAULT_KEY,
    TARGETS,
    BadFormat,
    ClientKey,
    FieldSource,
    Layout,
    gathered,
    key_sources,
    matched,
    of_requests,
    paired,
    parse_client_key,
    shape,
    tabled,
    tree,
    words,
)
from tricklecast.analytics.lines.recognise import (
    AUTO,
    MENDED,
    PARQUET,
    TRICKLECAST,
    Format,
    NothingUnderstood,
    UnknownFormat,
    check_format,
    recognise,
)
from tricklecast.analytics.lines.records import DETAILS, LINE, Shape, client_key, own_fields, parsed, unreadable
from tricklecast.trickle.paths import normalize_base_path
from tricklecast.trickle.records import FIELD_NAMES

OWN: Final = tuple(name for name in FIELD_NAMES if name in ("v", "via") or name in dict(LINE))
"""Fields of our own record that are looked at."""

KNOWN: Final = frozenset({*OWN, *(name for name, _ in (*LINE, *DETAILS))})
"""Columns of Parquet that are looked at."""

MAX_SAMPLES: Final = 5
"""Bad lines that are shown."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How logs are to be read.

    Attributes:
        format: ``auto``, ``tricklecast``, ``nginx``, ``envoy``, ``caddy``, or the path of a field map.
        client_key: whom a line is from, as typed: ``client,ip+ua``; ``None`` for what suits the format.
        path_prefix: what the paths of the channels begin with; ``None`` for what the field map says.
        window: only lines of requests that arrived in it; those without a time are kept, to be counted.
        details: read the columns :data:`~tricklecast.analytics.lines.records.DETAILS` as well.
        texts: keep the text of every line, not of the bad ones alone.
    """

    format: str = AUTO
    client_key: str | None = None
    path_prefix: str | None = None
    window: Window = ALWAYS
    details: bool = False
    texts: bool = False

    def check(self) -> None:
        """Whether all of it makes sense; needs no file.

        Raises:
            BadFormat: there is no such format, or its field map or the client key is wrong.
            InvalidURL: the prefix is no path.
        """
        check_format(self.format)
        if self.client_key is not None:
            parse_client_key(self.client_key)
        normalize_base_path(self.path_prefix or "")

    def unused(self, formats: Iterable[str]) -> list[str]:
        """Options that say nothing about logs of these formats, a sentence each: the reader expects them to."""
        if self.path_prefix is None or not (named := sorted({TRICKLECAST, PARQUET} & set(formats))):
            return []
        logs = " and ".join(named)
        return [f"--path-prefix {self.path_prefix} changes nothing in {logs} logs: their lines name the channel."]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that could not be read.

    Attributes:
        file: the file's name; no: the line's number in it, from 1; ``None`` where the engine does not know.
        why: the field that is wrong, or ``unreadable``; text: how it begins.
    """

    file: str
    no: int | None
    why: str
    text: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the lines in the files.

    Attributes:
        lines: all lines but blank ones; bad: those that could not be read; samples: a few of them.
        unrouted: exchanges whose path matches no route.
        future: lines that are later than now. doubled: lines left out because their request's id was there before.
        bad_timed: bad lines whose time could be read.
        first_us, last_us: the earliest and the latest time of all lines, bad and doubled ones too.
        other: lines that are none of the server's, in the log of a container.
        requests: good lines that are about one. unnamed: those without a client; unanswered: without a status.
    """

    lines: int = 0
    bad: int = 0
    unrouted: int = 0
    future: int = 0
    doubled: int = 0
    samples: tuple[BadLine, ...] = ()
    bad_timed: int = 0
    first_us: int | None = None
    last_us: int | None = None
    other: int = 0
    requests: int = 0
    unnamed: int = 0
    unanswered: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Those of both, without samples: :func:`first_samples`."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        times = [us for us in (self.first_us, self.last_us, other.first_us, other.last_us) if us is not None]
        return Counts(**sums, first_us=min(times, default=None), last_us=max(times, default=None))


_SUMS: Final = (
    "lines", "bad", "unrouted", "future", "doubled", "bad_timed", "other", "requests", "unnamed", "unanswered",
)  # fmt: skip
"""Fields of :class:`Counts` that add up."""


def first_samples(found: Iterable[tuple[int, BadLine]]) -> list[BadLine]:
    """The first few of bad lines, each of which comes with its file's number, in the order of files and lines."""
    ordered = sorted(found, key=lambda sample: (sample[0], sample[1].no or 0, sample[1].text))
    return [bad for _, bad in ordered[:MAX_SAMPLES]]


@dataclass(frozen=True, slots=True)
class Recognised:
    """The files and their formats.

    Attributes:
        names: the files that are read; a file's place is its number in the column ``file``.
        formats: of each.
        strange: files that were found in a folder beside the others, and are of no known format.
        unreadable: Parquet files without a whole footer.
        gone: files of a folder that were not there any more.
        whole: objects whose lines Spark cannot read itself (:mod:`analytics.spark.objects`).
    """

    names: tuple[str, ...]
    formats: tuple[Format, ...]
    strange: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    whole: frozenset[str] = frozenset()

    def groups(self) -> list[tuple[Format, list[int]]]:
        """Files that are read alike, as numbers, by format."""
        found: dict[object, tuple[Format, list[int]]] = {}
        for number, form in enumerate(self.formats):
            fields = form.fields and (form.fields.columns, tuple(form.fields.fields.items()))
            key = (form.name, fields, form.present, form.quoted, form.columns, form.wrapping)
            found.setdefault(key, (form, []))[1].append(number)
        return list(found.values())


def recognise_files(
    files: LogFiles,
    reading: Reading,
    sample: Callable[[str], Sequence[bytes]] | None = None,
    part: bool = False,
) -> Recognised:
    """The format of each file.

    Args:
        sample: gives the first lines of a file; ``None`` for local files.
        part: these are some files of a report: that none of them is a log is no error.

    Raises:
        UnknownFormat: that of a file cannot be told; what is no log in a folder is left out if there is one that is.
        BadInput: a file cannot be read. BadFormat: as of :meth:`Reading.check`.
    """
    reading.check()
    names: list[str] = []
    formats: list[Format] = []
    strange: dict[str, UnknownFormat] = {}
    gone: dict[str, BadInput] = {}
    unreadable = []
    for name in files.names:
        try:
            found = _format_of(name, reading, sample or sample_of)
        except UnknownFormat as error:
            if name not in files.searched:
                raise
            strange[name] = error
            continue
        except BadInput as error:
            if name not in files.searched or not isinstance(error.__cause__, FileNotFoundError):
                raise
            gone[name] = error
            continue
        if found is None:
            unreadable.append(name)
            continue
        names.append(name)
        formats.append(found)
    if (strange or gone) and not names and not part:
        raise next(iter((strange or gone).values()))
    if unreadable and not names and not part:
        raise NothingUnderstood(f"{unreadable[0]!r} is no whole Parquet file: it has no footer")
    return Recognised(tuple(names), tuple(formats), tuple(strange), tuple(unreadable), tuple(gone))


def _format_of(name: str, reading: Reading, sample: Callable[[str], Sequence[bytes]]) -> Format | None:
    if REMOTE.match(name) and ".parquet" in name:
        return Format(PARQUET)
    try:
        if not REMOTE.match(name) and is_parquet(name):
            return parquet_format(name)
        return recognise(name, sample(name), reading.format)
    except OSError as error:
        raise BadInput(f"cannot read {name!r}: {error.strerror or error}") from error


def parquet_format(name: str) -> Format | None:
    """The columns of a Parquet file; ``None`` if it has no whole footer."""
    import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        schema = pq.read_schema(name)
    except (pa.ArrowException, ValueError, OSError):
        return None
    return Format(PARQUET, columns=tuple((field.name, str(field.type)) for field in schema))


def sources_of(form: Format, reading: Reading) -> list[FieldSource]:
    """The values that are taken out of a line of JSON."""
    key = _key(reading)
    if form.fields is None:
        names = (*OWN, *(name for name, _ in DETAILS if reading.details and name not in OWN))
        return [FieldSource((name,)) for name in names]
    own = key_sources(form.fields, key or DEFAULT_KEY).values()
    return list({source.path: FieldSource(source.path) for source in (*form.fields.sources(), *own)}.values())


def values_of(sources: Sequence[FieldSource]) -> Callable[[FieldSource], str]:
    """The column of each source: ``s0``, ``s1`` … in their order."""
    places = {source.path: f"s{place}" for place, source in enumerate(sources)}
    return lambda source: places[source.path]


def _structure(sources: Sequence[FieldSource]) -> str:
    """The type of a line of JSON, every value a text."""

    def of(below: object) -> str:
        if not isinstance(below, dict):
            return '"VARCHAR"'  # whatever is there, as text: a status may be 200 or "200"
        if all(key.isdigit() for key in below):
            return f"[{of(next(iter(below.values())))}]"
        return f"{{{', '.join(f'{chr(34)}{key}{chr(34)}: {of(under)}' for key, under in below.items())}}}"

    try:
        return of(tree(sources))
    except ValueError as error:
        raise BadFormat(f"client key: {error}") from error


def json_values(sources: Sequence[FieldSource], raw: str, *, mended: bool = False) -> str:
    """SELECT of ``file``, ``no``, ``line``, ``broken`` and the text of each source of a line of JSON.

    Args:
        raw: SELECT with ``file``, ``no`` and ``line``.
        mended: also read what nginx writes without ``escape=json``: ``\\x22``, ``-`` and ``0.1, 0.2`` without quotes.
    """
    tests = f"(SELECT file, no, line, coalesce({unreadable()}, true) AS odd FROM ({raw}) l) o"
    # DuckDB passes over a comma too many; outside of texts there must be none.
    suspect = "instr(line, ',}') > 0 OR instr(line, ',]') > 0"
    bare = r"""regexp_replace(line, '"([^"\\]|\\.)*"', '""', 'g')"""
    lenient = f"CASE WHEN {suspect} THEN regexp_matches({bare}, ',[]}}]') ELSE false END"
    tests = f"(SELECT file, no, line, odd OR {lenient} AS odd FROM {tests}) v"
    struct = _structure(sources).replace("'", "''")
    # To ask json_valid() first would be to read every line twice.
    read = f"try(json_transform(line, '{struct}'))"
    if mended:
        valid = "line"
        for pattern, now in MENDED:
            valid = f"regexp_replace({valid}, {text(pattern)}, {text(now)}, 'g')"
        bare = "':[ ]*-?[ ]*[,}]|:[ ]*[0-9.]+[ ]*[,:][ ]+[0-9-]'"
        suspect = f"instr(line, {text(chr(92) + 'x')}) > 0 OR regexp_matches(line, {bare})"
        again = read.replace("json_transform(line,", f"json_transform({valid},")
        read = f"coalesce({read}, CASE WHEN {suspect} THEN {again} END)"
    made = f"SELECT *, CASE WHEN NOT odd THEN {read} END AS x FROM {tests}"
    named = ", ".join(f"{_taken(source)} AS s{place}" for place, source in enumerate(sources))
    return f"SELECT file, no, line, x IS NULL AS broken, {named} FROM ({made}) j"


def _taken(source: FieldSource) -> str:
    """SQL for a value in the object ``x``."""
    value = "x"
    for place, key in enumerate(source.path):
        value += f"[{int(key) + 1}]" if place and key.isdigit() else f'."{key}"'
    return value


def node_sql(names: Sequence[str]) -> str:
    """SQL for what the server is called whose lines do not say, from the column ``file``.

    Args:
        names: the files, by their numbers.
    """
    nodes = [node_of(name) for name in names]
    values = ["CAST(NULL AS STRING)" if node is None else f"({text(node)})" for node in nodes]
    if len(set(nodes)) <= 1:
        return values[0] if values else "CAST(NULL AS STRING)"
    return f"[{', '.join(values)}][file + 1]"


def parquet_values(form: Format, number: str, no: str, table: str, reading: Reading) -> tuple[str, Shape]:
    """SELECT of the values of Parquet rows, and their shape: our record's columns, whatever their types.

    Args:
        number: SQL for the file's number; no: for the row's; table: what is selected from.
    """
    there = [name for name, _ in form.columns if name in KNOWN]
    values = ", ".join(f'CAST("{name}" AS STRING) AS t_{name}' for name in there)
    raw = f"SELECT {number} AS file, {no} AS no, CAST(NULL AS STRING) AS line, false AS broken, {values} FROM {table}"
    return raw, own_shape({name: f"t_{name}" for name in there}, reading)


def own_shape(texts: dict[str, str], reading: Reading) -> Shape:
    """The shape of our own records.

    Args:
        texts: SQL for the text of each of their fields.

    Raises:
        BadFormat: the client key has a field that they do not have.
    """
    fields = own_fields(texts) | {"broken": "broken"}
    key = _key(reading)
    if key is not None:
        for name in (part for choice in key for part in choice):
            if name not in TARGETS:
                raise BadFormat(f"client key: {TRICKLECAST} has no field {name!r}")
        fields["client_key"] = client_key(key, texts)
    return Shape(fields, native=True)


def selected(form: Format, reading: Reading, raw: str, node: str | None = None) -> str:
    """SELECT of the columns :data:`~tricklecast.analytics.lines.records.PARSED` of a format's lines.

    Args:
        raw: SELECT with ``file``, ``no`` and ``line``. node: SQL for the server of a line that does not name one.

    Raises:
        BadFormat: the client key has a field that the format does not have.
    """
    prefix = None if reading.path_prefix is None else normalize_base_path(reading.path_prefix)
    window = (reading.window.from_us, reading.window.to_us)
    if form.fields is None:
        sources = sources_of(form, reading)
        value = values_of(sources)
        found = own_shape({source.path[0]: value(source) for source in sources}, reading)
        values = json_values(sources, raw)
        return parsed(
            found, values, window, node=node, details=reading.details, other=_other(form), texts=reading.texts
        )
    fields = form.fields
    match fields.layout:
        case Layout.JSON:
            sources = sources_of(form, reading)
            values, value = json_values(sources, raw, mended=True), values_of(sources)
            fields, values, value = gathered(fields, values, value)
        case Layout.WORDS:
            values, value = words(form.fields, form.quoted, raw)
        case Layout.PATTERN:
            values, value = matched(form.fields, raw)
        case Layout.TABLE:
            values, value = tabled(form.fields, raw)
        case Layout.LOGFMT:
            values, value = paired(raw)
    found = shape(fields, value, form.present, _key(reading) or DEFAULT_KEY, prefix)
    if form.fields.only:
        values = f"SELECT * FROM ({values}) every WHERE {of_requests(form.fields, value)}"
    return parsed(found, values, window, node=node, details=reading.details, other=_other(form), texts=reading.texts)


def _other(form: Format) -> str | None:
    """SQL for whether a line that cannot be read is none of the format's, but of what else a container has written."""
    if not form.wrapping:
        return None
    if form.fields is None or form.fields.layout is Layout.JSON:
        return "left(ltrim(line), 1) <> '{'"
    error_log = "regexp_matches(line, '^[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9:]{8} [[]')"
    return f'(NOT regexp_matches(line, \'"[A-Z]+ [^"]*"\') OR {error_log})'


def _key(reading: Reading) -> ClientKey | None:
    return None if reading.client_key is None else parse_client_key(reading.client_key)


def check_understood(
    recognised: Recognised,
    searched: Iterable[str],
    good: dict[int, int],
    bad: dict[int, int],
    window: Window = ALWAYS,
    samples: Sequence[BadLine] = (),
) -> None:
    """Whether something was understood of each file that somebody gave.

    Args:
        searched: files that nobody gave by name; good, bad: number of such lines by the file's number.
        window: only lines of that time were looked at: a file may have none of them but broken ones without a time.
        samples: some bad lines, for the message.

    Raises:
        NothingUnderstood: of one of them nothing was.
    """
    found = set(searched) if window == ALWAYS else set(recognised.names)
    for number, name in enumerate(recognised.names):
        if bad.get(number) and not good.get(number) and (name not in found or not good):
            raise NothingUnderstood(
                f"none of {bad[number]:,} lines of {name!r} could be read as {recognised.formats[number].title}"
                f"{_first_reason(samples, number, name)}; tricklecast storms check {name} shows what is understood"
            )


def _first_reason(samples: Sequence[BadLine], number: int, name: str) -> str:
    """Why a line of a file cannot be read, for the end of a message; empty if no such line is known."""
    wrong = next((bad for bad in samples if bad.file in (name, str(number))), None)
    if wrong is None:
        return ""
    return f": {wrong.why} cannot be read" if wrong.why != "unreadable" else f": the form differs, {wrong.text[:60]!r}"
