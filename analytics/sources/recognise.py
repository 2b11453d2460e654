"""Which format a file has: what it is named does not count, only what is in it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.sources.fieldmap import BadFormat, FieldMap, Layout, Source, Unit, built_in, load_map
from tricklecast.trickle.records import VERSION, Kind

AUTO: Final = "auto"
TRICKLECAST: Final = "tricklecast"
PARQUET: Final = "parquet"

JSON_MAPS: Final = ("caddy", "envoy", "nginx")
"""In the order in which they are tried: the most particular first."""

COMBINED: Final = "combined"

NAMED: Final[dict[str, tuple[str, ...]]] = {
    TRICKLECAST: (TRICKLECAST,),
    "nginx": ("nginx", COMBINED),
    "envoy": ("envoy",),
    "caddy": ("caddy",),
}
"""What can be asked for by name, and which formats that may turn out to be."""

_COMBINED: Final = re.compile(rb'\S+ \S+ \S+ \[[^\]]{20,40}\] ".*?(?<!\\)" \d+ (?:\d+|-)(?: |$)')
_OWN: Final = b'"ts_us":'
_WORD: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"(?= |$)|(\S+)')
_MSEC: Final = re.compile(rb"\d{9,11}\.\d{3}")
_SECONDS: Final = re.compile(rb"\d{1,8}\.\d{3}")
_NUMBER: Final = re.compile(rb"\d*\.?\d*(?:[eE][+-]?\d+)?")
_MAX_WORDS: Final = 64
_SHOWN: Final = 60


class UnknownFormat(BadInput):
    """A file's first lines are of no format that is known."""


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a file.

    Attributes:
        name: ``tricklecast``, ``parquet``, or that of a field map.
        fields: the map; ``None`` for records of our own.
        columns: for ``words``: the names of the words in this file.
        coarse: its times are whole seconds: nothing can be said about the pauses between requests.
        versions: other versions of the record than ours that its first lines are of.
    """

    name: str
    fields: FieldMap | None = None
    columns: tuple[str, ...] = ()
    coarse: bool = False
    versions: tuple[str, ...] = ()


def recogniser(asked: str) -> Callable[[str, list[bytes]], Format]:
    """What tells a file's format from its name (for messages) and first lines.

    Args:
        asked: ``auto``, a name of :data:`NAMED`, or the path of a field map.

    Raises:
        BadFormat: there is no such format, or the map is wrong.
    """
    if asked == AUTO:
        return lambda name, lines: _chosen(name, lines, (TRICKLECAST, *JSON_MAPS, COMBINED))
    if asked in NAMED:
        return lambda name, lines: _forced(name, lines, NAMED[asked])
    if not asked.endswith(".toml"):
        raise BadFormat(f"no format {asked!r}: expected auto, {', '.join(NAMED)} or a field map (a .toml file)")
    fields = load_map(asked)
    return lambda name, lines: _with_map(fields, lines)


def _forced(name: str, lines: list[bytes], formats: tuple[str, ...]) -> Format:
    """What was asked for is believed: lines that look otherwise will be counted as unparsable."""
    if len(formats) == 1 or not lines:
        return _format(formats[0], lines)
    return _chosen(name, lines, formats)


def _chosen(name: str, lines: list[bytes], formats: tuple[str, ...]) -> Format:
    if not lines:
        return Format(TRICKLECAST)  # of nothing
    votes = Counter(found for line in lines if (found := _looks_like(line, formats)) is not None)
    if not votes:
        raise UnknownFormat(
            f"cannot tell the format of {name!r}, which begins with {_shown(lines[0])}: "
            f"pass --format {', '.join(NAMED)} or a field map (a .toml file)"
        )
    best = max(votes.values())
    return _format(next(found for found in formats if votes[found] == best), lines)


def _looks_like(line: bytes, formats: tuple[str, ...]) -> str | None:
    record = _object(line)
    if record is None:
        if TRICKLECAST in formats and _OWN in line:
            return TRICKLECAST  # what is left of a line of ours
        return COMBINED if COMBINED in formats and _COMBINED.match(line) else None
    for found in formats:
        if found == TRICKLECAST:
            if record.get("kind") in tuple(Kind) and "ts_us" in record:
                return found
        elif found != COMBINED and _fits(record, _map(found)):
            return found
    return None


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _fits(record: dict[str, Any], fields: FieldMap) -> bool:
    """Whether a line has what a request needs."""

    def there(name: str) -> bool:
        return any(_at(record, source) is not None for source in fields.fields.get(name, ()))

    if any(_at(record, source) is None for source, _ in fields.only):
        return False
    return there("ts_us") and there("status") and (there("request") or (there("method") and there("path")))


def _at(record: Any, source: Source) -> Any:
    for key in source.path:
        if isinstance(record, list) and key.isdigit():
            record = record[int(key)] if int(key) < len(record) else None
        else:
            record = record.get(key) if isinstance(record, dict) else None
    return record


@cache
def _map(name: str) -> FieldMap:
    return built_in(name)


def _format(name: str, lines: list[bytes]) -> Format:
    return Format(TRICKLECAST, versions=_versions(lines)) if name == TRICKLECAST else _with_map(_map(name), lines)


def _versions(lines: list[bytes]) -> tuple[str, ...]:
    records = [record for line in lines if (record := _object(line)) is not None]
    found = {repr(record["v"])[:_SHOWN] for record in records if "v" in record}
    return tuple(sorted(found - {repr(VERSION)}))


def _with_map(fields: FieldMap, lines: list[bytes]) -> Format:
    if fields.layout is Layout.WORDS:
        fields = _with_words(fields, lines)
        return Format(fields.name, fields, fields.columns, _first_is_coarse(fields.fields["ts_us"]))
    records = [record for line in lines if (record := _object(line)) is not None]
    fields = replace(fields, fields={name: _present(choices, records) for name, choices in fields.fields.items()})
    return Format(fields.name, fields, (), _first_is_coarse(fields.fields["ts_us"]))


def _present(choices: tuple[Source, ...], records: list[dict[str, Any]]) -> tuple[Source, ...]:
    """The choices without those that this file does not use: each that is looked for in every line costs time."""
    used = tuple(source for source in choices if any(_can_be(_at(record, source), source) for record in records))
    return used or choices


def _can_be(value: Any, source: Source) -> bool:
    """Whether it is there; a ``timestamp`` may be a number in one file and a date in another."""
    if value is None or source.unit is None or value in ("", "-"):
        return value is not None
    return bool(_NUMBER.fullmatch(str(value).encode())) == (source.unit.micros is not None)


def _first_is_coarse(sources: Iterable[Source]) -> bool:
    return next((source.coarse for source in sources), False)


def _with_words(fields: FieldMap, lines: list[bytes]) -> FieldMap:
    """The map for as many words as the lines have; those beyond its own are told by what they look like."""
    counts = Counter(len(words) for line in lines if len(words := _words(line)) >= len(fields.columns))
    if not counts:
        return fields
    number = counts.most_common(1)[0][0]
    sample = next(words for line in lines if len(words := _words(line)) == number)
    extra: dict[str, str] = {}
    for place in range(len(fields.columns), number):
        extra[f"word_{place + 1}"] = _meaning(sample[place], set(extra.values()))
    found = replace(fields, columns=(*fields.columns, *extra))
    for column, meaning in extra.items():
        if meaning in ("ts_us", "dur_us"):
            choices = (Source((column,), Unit.S), *found.fields.get(meaning, ()))
            found = replace(found, fields={**found.fields, meaning: choices})
    return found


def _meaning(word: bytes, taken: set[str]) -> str:
    if _MSEC.fullmatch(word) and "ts_us" not in taken:
        return "ts_us"
    return "dur_us" if _SECONDS.fullmatch(word) and "dur_us" not in taken else ""


def _words(line: bytes) -> list[bytes]:
    words = []
    for found in _WORD.finditer(line.rstrip()):
        words.append(found[1] if found[1] is not None else found[2])
        if len(words) > _MAX_WORDS:
            break
    return words


def _shown(line: bytes) -> str:
    return repr(line[:_SHOWN].decode("utf-8", "replace")) + ("…" if len(line) > _SHOWN else "")
