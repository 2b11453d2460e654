"""Field maps: which field of a foreign log gives which field of the record. TOML, checked as it is read.

Some come with the package (``analytics/lines/maps``); a file of one's own has the same form
(docs/reference/log-formats.md). Nothing else knows any other program's log, but for lines of words whose columns are
told by their contents (``inferred.py``).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from tricklecast.analytics.errors import AnalyticsError
from tricklecast.analytics.lines.dialect import (
    address,
    asked,
    clf_us,
    duration,
    epoch_us,
    flag,
    grpc_code,
    iso_us,
    known,
    text,
    time_us,
    whole,
)
from tricklecast.analytics.lines.records import LINE, Shape, client_key
from tricklecast.trickle.wire import DEFAULT_BASE_PATH


class BadFormat(AnalyticsError):
    """The format that was asked for is unknown, or its field map or the client key is wrong."""

    exit_code = 2


class Layout(StrEnum):
    """How a line is made up."""

    JSON = "json"
    """One JSON object."""
    WORDS = "words"
    """Words between spaces, those with spaces in quotes: the "combined" format and its kin."""
    PATTERN = "pattern"
    """A regular expression (RE2) takes the line apart; its named groups are the columns."""
    TABLE = "table"
    """Columns between tabs, spaces or another text; a line ``#Fields:`` of the file may name them: W3C, CloudFront."""
    LOGFMT = "logfmt"
    """``key=value`` between spaces, values with spaces in quotes."""


class Stamp(StrEnum):
    """Which moment of a request its line is stamped with."""

    START = "start"
    END = "end"


class Unit(StrEnum):
    """In what a time is written."""

    ISO = "iso"
    """A date and time, ISO 8601; UTC if it names no zone."""
    CLF = "clf"
    """``09/Oct/2025:08:53:20 +0000``."""
    EPOCH = "epoch"
    """A number since 1970 whose size says whether it counts s, ms, us or ns."""
    TIME = "time"
    """Any of these three."""
    STATED = "stated"
    """A duration with its unit, ``20ms``; a number without one is not known."""
    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"

    @property
    def micros(self) -> float | None:
        """Microseconds per unit; ``None`` for a date."""
        return {Unit.S: 1e6, Unit.MS: 1e3, Unit.US: 1.0, Unit.NS: 1e-3}.get(self)


@dataclass(frozen=True, slots=True)
class FieldSource:
    """One field of a foreign line.

    Attributes:
        path: the keys that lead to it; a number is a place in a list. Of ``words``: those that make it up.
        unit: of a time or duration.
        coarse: it has whole seconds only.
        split: only a piece of it: between which texts, and the piece's place, from 1, or from the end, -1.
        plus: what is added to it; what is below 0 counts as 0.
    """

    path: tuple[str, ...]
    unit: Unit | None = None
    coarse: bool = False
    split: tuple[str, int] | None = None
    plus: tuple[FieldSource, ...] = ()

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class FieldMap:
    """How the lines of one format become records.

    Attributes:
        name: of the format.
        layout: how a line is made up; columns: the names of its words, in order; pattern: what finds them.
        fields: for each of :data:`TARGETS` the sources that may give it, the best first.
        stamped: which moment the times are of.
        prefix: what the paths of the channels begin with.
        only: a line whose source has another value is of something else, and skipped.
        gone: values that say that the client left first.
    """

    name: str
    layout: Layout
    columns: tuple[str, ...]
    fields: Mapping[str, tuple[FieldSource, ...]]
    stamped: Stamp = Stamp.END
    prefix: str = DEFAULT_BASE_PATH
    only: tuple[tuple[FieldSource, str], ...] = ()
    gone: tuple[tuple[FieldSource, tuple[str, ...]], ...] = ()
    pattern: str = ""

    def sources(self) -> Iterator[FieldSource]:
        """Every field of a line that is looked at."""
        for choices in self.fields.values():
            for source in choices:
                yield from (source, *source.plus)
        yield from (source for source, _ in (*self.only, *self.gone))


REQUEST_LINE: Final = "request"
REQUEST_ID: Final = "request_id"
"""In a map ``request`` is ``GET /path HTTP/1.1``, and ``request_id`` an id that no other request has."""

TARGETS: Final = frozenset({*(name for name, _ in LINE), REQUEST_ID, "trace", "end_us"}) - {
    "kind",
    "event",
    "blind",
}
"""Fields of the record that a map can fill: a foreign log has exchanges only. ``end_us`` beside ``ts_us`` gives the
duration."""

IN_TIME: Final = frozenset({"ts_us", "end_us", "dur_us", "wait_us", "retry_after_ms", "guard_ms"})
"""Fields whose sources need a unit."""

LEADING: Final = "(leading)"
"""The first word of a line of logfmt, which may be its time."""

PAIR: Final = r"""(?:^|[ \t])([A-Za-z_][\w.-]*)=("(?:[^"\\]|\\.)*"|[^ \t"]*)"""
"""A key and its value in a line of logfmt, for Python and RE2."""

_KEYS: Final = frozenset(
    {"name", "layout", "columns", "stamped", "prefix", "only", "gone", "fields", "pattern", "between"}
)
_SOURCE_KEYS: Final = frozenset({"from", "unit", "coarse", "split", "part"})
_MAX_BYTES: Final = 1 << 20
_TYPES: Final = dict(LINE) | {"end_us": "BIGINT"}
_OF_STAMPS: Final = frozenset({Unit.ISO, Unit.CLF, Unit.EPOCH, Unit.TIME})


@cache
def built_in(name: str) -> FieldMap:
    """A map that comes with the package."""
    return parse_map(files("tricklecast.analytics.lines").joinpath("maps", f"{name}.toml").read_text("utf-8"), name)


def load_map(path: str) -> FieldMap:
    """A map from a file.

    Raises:
        BadFormat: it cannot be read, or is no field map; the message says what is wrong with it.
    """
    try:
        if Path(path).stat().st_size > _MAX_BYTES:
            raise BadFormat(f"field map {path!r} is too large")
        found = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadFormat(f"cannot read field map {path!r}: {getattr(error, 'strerror', None) or error}") from error
    made = parse_map(found, path)
    if made.layout is Layout.PATTERN:
        try:
            asked("SELECT regexp_matches('', ?)", made.pattern)
        except ValueError as error:
            raise BadFormat(f"field map {path!r}: pattern: {error}") from error
    return made


def parse_map(toml: str, name: str) -> FieldMap:
    """A map from its TOML.

    Args:
        name: what it is called if it does not say.

    Raises:
        BadFormat: it is no field map.
    """
    try:
        table = tomllib.loads(toml)
        _only_known(table, _KEYS, "the map")
        found = _build(table, name)
        _check(found)
    except (tomllib.TOMLDecodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise BadFormat(f"field map {name!r}: {told}") from error
    return found


def _build(table: Mapping[str, Any], name: str) -> FieldMap:
    layout = Layout(table.get("layout", Layout.JSON))
    pattern = _text(table.get("pattern", ""))
    groups = re.compile(pattern).groupindex if pattern else {}
    if layout is Layout.TABLE:
        pattern = _text(table.get("between", "\t"))
    return FieldMap(
        name=_text(table.get("name", name)),
        layout=layout,
        columns=tuple(groups) or tuple(_text(column) for column in table.get("columns", ())),
        fields={field: tuple(_sources(given)) for field, given in table["fields"].items()},
        stamped=Stamp(table.get("stamped", Stamp.END)),
        prefix=_text(table.get("prefix", DEFAULT_BASE_PATH)).rstrip("/"),
        only=tuple((_source(path), _text(value)) for path, value in table.get("only", {}).items()),
        gone=tuple((_source(path), _texts(values)) for path, values in table.get("gone", {}).items()),
        pattern=pattern,
    )


def _sources(given: Any) -> Iterator[FieldSource]:
    for one in given if isinstance(given, list) else [given]:
        yield _source(one)


def _source(given: Any) -> FieldSource:
    """One source, with those that are added to it; these have none of their own."""
    if not isinstance(given, dict) or "plus" not in given:
        return _plain(given)
    plus = given["plus"]
    first = _plain({key: value for key, value in given.items() if key != "plus"})
    added = (replace(_plain(one), unit=first.unit) for one in (plus if isinstance(plus, list) else [plus]))
    return replace(first, plus=tuple(added))


def _plain(given: Any) -> FieldSource:
    if isinstance(given, str):
        return FieldSource(tuple(given.split(".")))
    _only_known(given, _SOURCE_KEYS, "a source")
    path = given["from"]
    # A list spells out keys that have dots in them.
    keys = _texts(path) if isinstance(path, list) else tuple(_text(path).split("."))
    unit = None if (unit := given.get("unit")) is None else Unit(unit)
    if ("split" in given) is not ("part" in given):
        raise ValueError("split and part belong together: split = '/', part = 2")
    split = (_text(given["split"]), int(given["part"])) if "split" in given else None
    if split is not None and (not split[0] or not split[1]):
        raise ValueError("split must be a text, and part a number from 1 (or from the end, -1)")
    return FieldSource(keys, unit, bool(given.get("coarse", False)), split)


def _check(found: FieldMap) -> None:
    if unknown := sorted(set(found.fields) - TARGETS):
        raise ValueError(f"the record has no field {unknown[0]!r}")
    if "ts_us" not in found.fields:
        raise ValueError("ts_us, the time, has no source")
    if REQUEST_LINE not in found.fields and not {"method", "path"} <= set(found.fields):
        raise ValueError(f"there is no source for method and path, or for {REQUEST_LINE}")
    for field in sorted(IN_TIME & set(found.fields)):
        for source in found.fields[field]:
            stamp = field in ("ts_us", "end_us")
            if (
                source.unit is None
                or (source.unit in _OF_STAMPS and not stamp)
                or (source.unit is Unit.STATED and stamp)
            ):
                known_ones = "time, iso, clf, epoch, s, ms, us or ns" if stamp else "s, ms, us, ns or stated"
                raise ValueError(f"the source of {field} needs a unit: {known_ones}")
    if found.prefix and not re.fullmatch(r"(/[^/?#\s'\"\\]+)+", found.prefix):
        raise ValueError("prefix must be a plain path such as /trickle")
    if any("" in source.path for source in found.sources()):
        raise ValueError("a source has an empty name")
    if any(re.search(r"[\"\\`\x00-\x1f]", key) for source in found.sources() for key in source.path):
        raise ValueError("a source's name has a quote, a backslash or a control character")
    if found.layout is Layout.JSON:
        tree(found.sources())
        return
    if found.layout is Layout.LOGFMT or (found.layout is Layout.TABLE and not found.columns):
        return
    if found.layout is Layout.TABLE and not found.pattern:
        raise ValueError("between must be the text between two columns, such as a tab")
    pattern = re.compile(found.pattern) if found.layout is Layout.PATTERN else None
    if pattern and (pattern.groups != len(found.columns) or not found.columns):
        raise ValueError("pattern needs named groups, (?P<status>[0-9]+), and (?:…) for all others")
    if len(set(found.columns)) != len(found.columns) or not found.columns:
        raise ValueError("columns must name each word of a line once")
    for source in found.sources():
        if unknown := sorted(set(source.path) - set(found.columns)):
            raise ValueError(f"no column is called {unknown[0]!r}")


Tree = dict[str, "Tree | None"]
"""The keys of nested objects; ``None`` for a value."""


def tree(sources: Iterable[FieldSource]) -> Tree:
    """The nested keys that the sources need.

    Raises:
        ValueError: a key is a value in one source and an object in another, or two differ only by case: no schema can
            have both.
    """
    root: Tree = {}
    for source in sources:
        grow(root, source)
    return root


def grow(root: Tree, source: FieldSource) -> None:
    """Adds the keys of one source, or nothing if it cannot be there: as of :func:`tree`."""
    level = root
    for place, key in enumerate(source.path):
        last = place == len(source.path) - 1
        if any(key != other and key.lower() == other.lower() for other in level):
            raise ValueError(f"{str(source)!r} differs from another key only by case")
        below = level.setdefault(key, None if last else {})
        if last is not (below is None):
            raise ValueError(f"{str(source)!r} is used both as a value and as an object")
        level = below if below is not None else {}


def _only_known(table: Any, keys: frozenset[str], what: str) -> None:
    if not isinstance(table, dict):
        raise TypeError(f"{what} must be a table")
    if unknown := sorted(set(table) - keys):
        raise ValueError(f"{what} has no {unknown[0]!r}, only {', '.join(sorted(keys))}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be a text")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in (values if isinstance(values, list) else [values]))


# --- from a map to SQL ------------------------------------------------------------------------------------------------

ClientKey = tuple[tuple[str, ...], ...]
"""Choices of fields."""

DEFAULT_KEY: Final[ClientKey] = (("client",), ("ip", "ua"))
"""A proxy's log: the client's own name if the log has it, else address and user agent, as the server does it."""


def parse_client_key(key: str) -> ClientKey:
    """Reads a ``--client-key``: choices between commas, fields of a choice between ``+``.

    Raises:
        BadFormat: a choice or a field is empty.
    """
    found = tuple(tuple(part.strip() for part in choice.split("+")) for choice in key.split(","))
    if not all(part for choice in found for part in choice):
        raise BadFormat(f"client key {key!r} has an empty part; expected something like ip+ua")
    return found


def key_sources(fields: FieldMap, key: ClientKey) -> dict[str, FieldSource]:
    """Fields of a client key that are the log's own, and not the record's.

    Raises:
        BadFormat: the log has no such field.
    """
    found = {}
    for name in (part for choice in key for part in choice if part not in TARGETS):
        path = (name,) if fields.layout is not Layout.JSON else tuple(name.split("."))
        if fields.layout not in (Layout.JSON, Layout.LOGFMT) and name not in fields.columns:
            raise BadFormat(f"client key: {fields.name} has no field {name!r}")
        if re.search(r"[\"\\`\x00-\x1f]", name) or "" in path:
            raise BadFormat(f"client key: {name!r} is not a field")
        found[name] = FieldSource(path)
    return found


def shape(
    fields: FieldMap,
    value: Callable[[FieldSource], str],
    present: frozenset[str],
    key: ClientKey = DEFAULT_KEY,
    prefix: str | None = None,
) -> Shape:
    """How the lines of a mapped format are read.

    Args:
        value: SQL for the text of a source.
        present: fields of the map that this file's lines have.
        key: whom a line is from; prefix: in place of the map's.
    """
    taken = {name: _first(name, sources, value, name in present) for name, sources in fields.fields.items()}
    if "next_seq" not in present:
        # Where it is not logged its absence says nothing about the head.
        taken.pop("next_seq", None)
    texts = {name: known(_coalesced(sources, value)) for name, sources in fields.fields.items()}
    has = set(present)
    # The parts of "GET /path HTTP/1.1"; a path with spaces in it is no path.
    if REQUEST_LINE in taken:
        line = taken.pop(REQUEST_LINE)
        for place, name in enumerate(("method", "path"), 1):
            part = f"nullif(split_part({line}, ' ', {place}), '')"
            taken[name] = f"coalesce({taken[name]}, {part})" if name in taken else part
            has |= {name} if REQUEST_LINE in has else set()
    if REQUEST_ID in taken:
        taken["request"] = taken.pop(REQUEST_ID)
    if end := taken.pop("end_us", None):
        spent = f"{end} - {taken['ts_us']}"
        spent = f"CASE WHEN {spent} >= 0 THEN {spent} END"
        taken["dur_us"] = f"coalesce({taken['dur_us']}, {spent})" if "dur_us" in taken else spent
        has |= {"dur_us"} if "end_us" in has else set()
    blind = [name for name, _ in LINE if name not in has and name not in _DERIVED]
    stamps = fields.fields["ts_us"]
    if all(source.coarse for source in stamps):
        taken["coarse"] = "true"
        blind.insert(0, "ts_us")
    elif any(source.coarse for source in stamps):
        whens = " ".join(
            f"WHEN {_one('ts_us', source, value)} IS NOT NULL THEN {str(source.coarse).lower()}" for source in stamps
        )
        taken["coarse"] = f"CASE {whens} END"
    if fields.stamped is Stamp.END:
        taken["end_us"] = taken.pop("ts_us")
    taken["target"] = taken.pop("path", "CAST(NULL AS STRING)")
    taken["stated"] = texts.get("status", "CAST(NULL AS STRING)")
    taken["broken"] = "broken"
    # Some write several flags between commas.
    taken["gone"] = (
        " OR ".join(
            f"coalesce(instr(',' || {value(source)} || ',', {text(f',{one},')}) > 0, false)"
            for source, values in fields.gone
            for one in values
        )
        or "false"
    )
    own = {name: known(value(source)) for name, source in key_sources(fields, key).items()}
    parts = {}
    if "ip" in texts:
        parts["address"] = taken["ip"]
        taken["ip"] = texts["ip"] = "address"
    taken["client_key"] = client_key(key, texts | own)
    return Shape(taken, prefix=fields.prefix if prefix is None else prefix, blind=tuple(blind), parts=parts)


_DERIVED: Final = frozenset({"kind", "op", "channel", "seq", "release", "request", "blind", "client", "grpc"})
"""Columns that follow from others, or may be missing without any loss."""


def _first(name: str, sources: tuple[FieldSource, ...], value: Callable[[FieldSource], str], present: bool) -> str:
    choices = [_one(name, source, value, last=source is sources[-1]) for source in sources]
    found = choices[0] if len(choices) == 1 else f"coalesce({', '.join(choices)})"
    # What is always logged if it is there says no where it is not; an original request carries no number of attempts.
    return f"coalesce({found}, {_ABSENT[name]})" if name in _ABSENT and present else found


_ABSENT: Final = {"eos": "false", "attempt": "1"}


def _coalesced(sources: tuple[FieldSource, ...], value: Callable[[FieldSource], str]) -> str:
    return f"coalesce({', '.join(_piece(source, value) for source in sources)}, CAST(NULL AS STRING))"


def _piece(source: FieldSource, value: Callable[[FieldSource], str]) -> str:
    """SQL for the text of a source, or the piece of it that is wanted."""
    if source.split is None:
        return value(source)
    return f"nullif(split_part({value(source)}, {text(source.split[0])}, {source.split[1]}), '')"


def _one(name: str, source: FieldSource, value: Callable[[FieldSource], str], *, last: bool = True) -> str:
    """SQL for one source's value, converted; of several for an address, a name may stand in the last one only."""
    parts = [_converted(name, one.unit, _piece(one, value), last=last) for one in (source, *source.plus)]
    if len(parts) == 1:
        return parts[0]
    known_ones = ", ".join(f"coalesce({part}, -1)" for part in parts)
    total = " + ".join(f"greatest(coalesce({part}, 0), 0)" for part in parts)
    return f"CASE WHEN greatest({known_ones}) >= 0 THEN {total} END"


def _converted(name: str, unit: Unit | None, raw: str, *, last: bool) -> str:
    if name in IN_TIME and unit is not None:
        match unit:
            case Unit.ISO:
                return iso_us(raw)
            case Unit.CLF:
                return clf_us(raw)
            case Unit.EPOCH:
                return epoch_us(raw)
            case Unit.TIME:
                return time_us(raw)
            case _:
                return duration(raw, unit.micros, 1 if name.endswith("_us") else 1000)
    match _TYPES.get(name, "VARCHAR"):
        case "VARCHAR":
            return address(known(raw), strict=not last) if name == "ip" else known(raw)
        case "BOOLEAN":
            return flag(raw)
        case _:
            return grpc_code(raw) if name == "grpc" else whole(raw)


_EACH: Final = 2
"""Sources of a field that are converted each for itself."""


def gathered(
    fields: FieldMap, values: str, value: Callable[[FieldSource], str]
) -> tuple[FieldMap, str, Callable[[FieldSource], str]]:
    """The same with fewer sources: of many, the first text that a line has is converted.

    A plan with dozens of conversions takes longer to make than a small log to read.

    Args:
        values: SELECT of the sources' texts; value: SQL for one of them.
    """
    columns: dict[str, str] = {}
    kept: dict[str, tuple[FieldSource, ...]] = {}
    for name, sources in fields.fields.items():
        each = [source for place, source in enumerate(sources) if place < _EACH or source.plus or source.coarse]
        more: dict[Unit | None, list[str]] = {}
        for source in sources:
            if source not in each:
                more.setdefault(source.unit, []).append(known(_piece(source, value)))
        for unit, texts in more.items():
            key = f"m{len(columns)}"
            # Of several lists of addresses the first address counts.
            columns[key] = f"concat_ws(', ', {', '.join(texts)})" if name == "ip" else f"coalesce({', '.join(texts)})"
            each.append(FieldSource((f"({key})",), unit))
        kept[name] = tuple(each)
    if not columns:
        return fields, values, value
    named = ", ".join(f"{sql} AS {key}" for key, sql in columns.items())
    made = f"SELECT *, {named} FROM ({values}) each_one"
    return (
        replace(fields, fields=kept),
        made,
        lambda source: source.path[0][1:-1] if source.path[0][1:-1] in columns else value(source),
    )


def of_requests(fields: FieldMap, value: Callable[[FieldSource], str]) -> str:
    """SQL for whether a line is about a request; what cannot be read may have been, and is kept, to be counted."""
    conditions = " AND ".join(f"coalesce({value(source)} = {text(wanted)}, false)" for source, wanted in fields.only)
    return f"(broken OR ({conditions or 'true'}))"


def words(fields: FieldMap, quoted: frozenset[int], raw: str) -> tuple[str, Callable[[FieldSource], str]]:
    """SELECT that takes a line of words apart, and the SQL for the text of a source in it.

    A line is cut at its quotes, and what is not in quotes at its spaces: a fraction of what a regular expression costs.

    Args:
        quoted: places of the columns that stand in quotes, from 0.
        raw: SELECT with ``file``, ``no`` and ``line``.
    """
    runs: list[list[str]] = [[]]
    places: dict[str, tuple[int, int]] = {}
    for place, column in enumerate(fields.columns):
        if place in quoted:
            runs += [[column], []]
            places[column] = (len(runs) - 2, 0)
        else:
            runs[-1].append(column)
            places[column] = (len(runs) - 1, len(runs[-1]))
    # Apache escapes a quote by a backslash; nginx writes \x22.
    line = "replace(rtrim(line, chr(13) || chr(10)), chr(92) || chr(34), chr(92) || 'x22')"
    parts = [f"parts[{run + 1}]" for run in range(len(runs))]
    cut = [f"split(replace(trim({parts[run]}), ', ', ','), ' ') AS run_{run}" for run in range(0, len(runs), 2)]
    whole_line = [f"{parts[run]} AS run_{run}" for run in range(1, len(runs), 2)]
    first = len(runs[0])
    # Before the request stand addresses, of which a list may have several, and at the end of it the time.
    least = min(first, 5)
    # The last run may be shorter where the format was changed in the middle of a file.
    needed = max((run for run in range(len(runs)) if run % 2), default=0) + 1
    broken = f"coalesce(len(parts) < {needed} OR len(run_0) < {least}, true)"
    made = f"""SELECT *, {broken} AS broken FROM (SELECT *, {", ".join([*cut, *whole_line])}
        FROM (SELECT *, split({line}, chr(34)) AS parts FROM ({raw}) l) p) w"""

    def one(column: str) -> str:
        run, place = places[column]
        if run % 2:
            return f"run_{run}"
        if run == 0 and place > max(1, first - 4):
            # A user's name, which the client chooses, may have spaces in it. What follows is counted from the end.
            return f"run_0[{place - 1 - first}]"
        return f"run_{run}[{place}]"

    def value(source: FieldSource) -> str:
        return " || ' ' || ".join(map(one, source.path))

    return made, value


def matched(fields: FieldMap, raw: str) -> tuple[str, Callable[[FieldSource], str]]:
    """As :func:`words`, of lines that a regular expression takes apart."""
    names = ", ".join(text(name) for name in fields.columns)
    found = f"regexp_extract(rtrim(line, chr(13) || chr(10)), {text(fields.pattern)}, [{names}])"
    some = " || ".join(f'x."{name}"' for name in fields.columns)
    made = f"SELECT *, {some} = '' AS broken FROM (SELECT *, {found} AS x FROM ({raw}) l) m"
    return made, lambda source: " || ' ' || ".join(f'x."{name}"' for name in source.path)


def tabled(fields: FieldMap, raw: str) -> tuple[str, Callable[[FieldSource], str]]:
    """As :func:`words`, of lines with a column between two tabs or spaces; those that begin with "#" are left out."""
    cells = f"split(rtrim(line, chr(13) || chr(10)), {text(fields.pattern)})"
    broken = f"len(cells) <> {len(fields.columns)}"
    cut = f"SELECT *, {cells} AS cells FROM ({raw}) l WHERE left(line, 1) <> '#'"
    # A line of names is no request.
    names = f"trim(cells[1], chr(34)) = {text(fields.columns[0])} AND NOT ({broken})"
    made = f"SELECT *, {broken} AS broken FROM ({cut}) t WHERE NOT ({names})"

    def one(column: str) -> str:
        cell = f"trim(cells[{fields.columns.index(column) + 1}], chr(34))"
        if column != "cs(User-Agent)":
            return cell
        # CloudFront writes %20 for a space, and IIS +.
        spaced = cell if fields.pattern == "\t" else f"replace({cell}, '+', ' ')"
        return f"CASE WHEN instr({cell}, '%') > 0 THEN coalesce(try(url_decode({spaced})), {cell}) ELSE {spaced} END"

    return made, lambda source: " || ' ' || ".join(map(one, source.path))


def paired(raw: str) -> tuple[str, Callable[[FieldSource], str]]:
    """As :func:`words`, of lines of logfmt; of a key that a line has twice the first value counts."""
    line = "rtrim(line, chr(13) || chr(10))"
    lists = ", ".join(f"regexp_extract_all({line}, {text(PAIR)}, {group}) AS {'kv'[group - 1]}" for group in (1, 2))
    made = f"SELECT *, coalesce(len(k) < 4, true) AS broken FROM (SELECT *, {lists} FROM ({raw}) l) p"

    def one(key: str) -> str:
        if key == LEADING:
            return "split_part(ltrim(line), ' ', 1)"
        return f"trim(v[nullif(list_position(k, {text(key)}), 0)], chr(34))"

    return made, lambda source: " || ' ' || ".join(map(one, source.path))
