"""Field maps: which field of a foreign log gives which field of the record. TOML, checked as it is read.

Four come with the package (``analytics/sources/maps``); a file of one's own has the same form
(docs/reference/log-formats.md). Nothing else knows any other program's log.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from tricklecast.analytics.errors import AnalyticsError
from tricklecast.trickle.records import FIELD_NAMES
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
    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"

    @property
    def micros(self) -> float | None:
        """Microseconds per unit; ``None`` for a date."""
        return {Unit.S: 1e6, Unit.MS: 1e3, Unit.US: 1.0, Unit.NS: 1e-3}.get(self)


@dataclass(frozen=True, slots=True)
class Source:
    """One field of a foreign line.

    Attributes:
        path: the keys that lead to it; a number is a place in a list. Of ``words``: those that make it up.
        unit: of a time or duration.
        coarse: it has whole seconds only.
    """

    path: tuple[str, ...]
    unit: Unit | None = None
    coarse: bool = False

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class FieldMap:
    """How the lines of one format become records.

    Attributes:
        name: of the format.
        layout: how a line is made up; columns: the names of its words, in order, for ``words``.
        fields: for each field of the record the sources that may give it, the best first. ``request`` stands for
            method and path in one: ``GET /path HTTP/1.1``.
        stamped: which moment the times are of.
        prefix: what the paths of the channels begin with.
        only: a line whose source has another value is of something else, and skipped.
        gone: values that say that the client left first.
    """

    name: str
    layout: Layout
    columns: tuple[str, ...]
    fields: Mapping[str, tuple[Source, ...]]
    stamped: Stamp = Stamp.END
    prefix: str = DEFAULT_BASE_PATH
    only: tuple[tuple[Source, str], ...] = ()
    gone: tuple[tuple[Source, tuple[str, ...]], ...] = ()

    def sources(self) -> Iterator[Source]:
        """Every field of a line that is looked at."""
        for choices in self.fields.values():
            yield from choices
        yield from (source for source, _ in (*self.only, *self.gone))


REQUEST: Final = "request"

TARGETS: Final = frozenset({*FIELD_NAMES, REQUEST}) - {"v", "kind", "event", "detail"}
"""What a map can fill: a foreign log has exchanges only."""

IN_TIME: Final = frozenset({"ts_us", "dur_us", "wait_us", "retry_after_ms", "guard_ms"})
"""Fields whose sources need a unit."""

_KEYS: Final = frozenset({"name", "layout", "columns", "stamped", "prefix", "only", "gone", "fields"})
_SOURCE_KEYS: Final = frozenset({"from", "unit", "coarse"})
_MAX_BYTES: Final = 1 << 20


def built_in(name: str) -> FieldMap:
    """A map that comes with the package."""
    text = files("tricklecast.analytics.sources").joinpath("maps", f"{name}.toml").read_text(encoding="utf-8")
    return parse_map(text, name)


def load_map(path: str) -> FieldMap:
    """A map from a file.

    Raises:
        BadFormat: it cannot be read, or is no field map; the message says what is wrong with it.
    """
    try:
        if Path(path).stat().st_size > _MAX_BYTES:
            raise BadFormat(f"field map {path!r} is too large")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadFormat(f"cannot read field map {path!r}: {getattr(error, 'strerror', None) or error}") from error
    return parse_map(text, path)


def parse_map(text: str, name: str) -> FieldMap:
    """A map from its TOML.

    Args:
        name: what it is called if it does not say.

    Raises:
        BadFormat: it is no field map.
    """
    try:
        table = tomllib.loads(text)
        _known(table, _KEYS, "the map")
        found = _build(table, name)
        _check(found)
    except (tomllib.TOMLDecodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadFormat(f"field map {name!r}: {_told(error)}") from error
    return found


def _build(table: Mapping[str, Any], name: str) -> FieldMap:
    columns = tuple(_text(column) for column in table.get("columns", ()))
    return FieldMap(
        name=_text(table.get("name", name)),
        layout=Layout(table.get("layout", Layout.JSON)),
        columns=columns,
        fields={field: tuple(_sources(given)) for field, given in table["fields"].items()},
        stamped=Stamp(table.get("stamped", Stamp.END)),
        prefix=_text(table.get("prefix", DEFAULT_BASE_PATH)),
        only=tuple((_source(path), _text(value)) for path, value in table.get("only", {}).items()),
        gone=tuple((_source(path), _texts(values)) for path, values in table.get("gone", {}).items()),
    )


def _sources(given: Any) -> Iterator[Source]:
    for one in given if isinstance(given, list) else [given]:
        yield _source(one)


def _source(given: Any) -> Source:
    if isinstance(given, str):
        return Source(tuple(given.split(".")))
    _known(given, _SOURCE_KEYS, "a source")
    path = given["from"]
    # A list spells out keys that have dots in them.
    keys = _texts(path) if isinstance(path, list) else tuple(_text(path).split("."))
    unit = given.get("unit")
    return Source(keys, None if unit is None else Unit(unit), bool(given.get("coarse", False)))


def _check(found: FieldMap) -> None:
    if unknown := sorted(set(found.fields) - TARGETS):
        raise ValueError(f"the record has no field {unknown[0]!r}")
    if "ts_us" not in found.fields:
        raise ValueError("nothing gives ts_us, the time")
    if REQUEST not in found.fields and not {"method", "path"} <= set(found.fields):
        raise ValueError("nothing gives method and path, nor request")
    for field in sorted(IN_TIME & set(found.fields)):
        for source in found.fields[field]:
            if source.unit is None or (field != "ts_us" and source.unit.micros is None):
                raise ValueError(f"the source of {field} needs a unit: s, ms, us or ns")
    if not found.prefix.startswith("/") and found.prefix:
        raise ValueError("prefix must begin with /")
    if any("" in source.path for source in found.sources()):
        raise ValueError("a source has an empty name")
    if found.layout is Layout.WORDS:
        _check_words(found)
    else:
        tree(found.sources())


def _check_words(found: FieldMap) -> None:
    if len({column.lower() for column in found.columns}) != len(found.columns) or not found.columns:
        raise ValueError("columns must name each word of a line once")
    for source in found.sources():
        if unknown := sorted(set(source.path) - set(found.columns)):
            raise ValueError(f"no column is called {unknown[0]!r}")


Tree = dict[str, "Tree | None"]
"""The keys of nested objects; ``None`` for a value."""


def tree(sources: Iterable[Source]) -> Tree:
    """The nested keys that the sources need.

    Raises:
        ValueError: a key is a value in one source and an object in another, or two differ only by case: no schema can
            have both.
    """
    root: Tree = {}
    for source in sources:
        level = root
        for place, key in enumerate(source.path):
            last = place == len(source.path) - 1
            if any(key != other and key.lower() == other.lower() for other in level):
                raise ValueError(f"{str(source)!r} differs from another key only by case")
            below = level.setdefault(key, None if last else {})
            if last is not (below is None):
                raise ValueError(f"{str(source)!r} is used both as a value and as an object")
            level = below if below is not None else {}
    return root


def _known(table: Any, keys: frozenset[str], what: str) -> None:
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


def _told(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
