"""Which format a file has: what it is named does not count, only what is in it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.mapped import BadFormat, FieldMap, Layout, Source, Unit, built_in, load_map
from tricklecast.trickle.records import VERSION, Kind

AUTO: Final = "auto"
TRICKLECAST: Final = "tricklecast"
PARQUET: Final = "parquet"

JSON_MAPS: Final = ("caddy", "traefik", "envoy", "nginx")
"""In the order in which they are tried: the most particular first."""

COMBINED: Final = "combined"

NAMED: Final[dict[str, tuple[str, ...]]] = {
    TRICKLECAST: (TRICKLECAST,),
    "nginx": ("nginx", COMBINED),
    "envoy": ("envoy",),
    "caddy": ("caddy",),
    "traefik": ("traefik",),
}
"""What can be asked for by name, and which formats that may turn out to be."""

SAMPLE_LINES: Final = 200
"""Looked at per file, so that some damage at its beginning does not hide its format."""

_COMBINED: Final = re.compile(rb'\S+ \S+ .*?\[[^\]]{20,40}\] ".*?(?<!\\)" \d+ (?:\d+|-)(?: |\r|$)')
_OWN: Final = b'"ts_us":'
_WORD: Final = re.compile(rb'"(?P<quoted>(?:[^"\\]|\\.)*)"(?= |$)|(?P<plain>\S+)')
_MSEC: Final = re.compile(rb"\d{9,11}\.\d{3}")
_SECONDS: Final = re.compile(rb"\d{1,8}\.\d{3}")
_REQUEST_ID: Final = re.compile(rb"[0-9a-f]{32}")
_NUMBER: Final = re.compile(r"\d*\.?\d*(?:[eE][+-]?\d+)?")
_MAX_WORDS: Final = 64
_MIN_WORDS: Final = 8
_SHOWN: Final = 60


class UnknownFormat(BadInput):
    """A file's first lines are of no format that is known."""


class NothingUnderstood(BadInput):
    """Of all the lines of a file, not one could be read."""


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a file.

    Attributes:
        name: ``tricklecast``, ``parquet``, or that of a field map.
        fields: the map, with those sources that this file uses; ``None`` for records of our own.
        present: fields of the map that this file's lines have.
        quoted: for ``words``: places of the words that stand in quotes.
        columns: for Parquet: name and type of each column, in Arrow's words.
        versions: other versions of the record than ours that its first lines are of.
    """

    name: str
    fields: FieldMap | None = None
    present: frozenset[str] = frozenset()
    quoted: frozenset[int] = frozenset()
    columns: tuple[tuple[str, str], ...] = ()
    versions: tuple[str, ...] = ()

    @property
    def coarse(self) -> bool:
        """Whether its times are whole seconds: nothing can be said about the pauses between requests."""
        return self.fields is not None and self.fields.fields["ts_us"][0].coarse


def check_format(asked: str) -> None:
    """Whether there is such a ``--format``.

    Raises:
        BadFormat: there is not, or its field map is wrong.
    """
    if asked == AUTO or asked in NAMED:
        return
    if not asked.endswith(".toml"):
        raise BadFormat(f"unknown format {asked!r}: expected auto, {', '.join(NAMED)} or a field map (a .toml file)")
    load_map(asked)


def recognise(name: str, lines: Sequence[bytes], asked: str = AUTO) -> Format:
    """The format of a file.

    Args:
        name: of the file, for messages.
        lines: its first ones, none of them blank.
        asked: ``auto``, a name of :data:`NAMED`, or the path of a field map. What is asked for by a name that means
            one format is believed: lines that look otherwise will be counted as unparsable.

    Raises:
        UnknownFormat: the lines are of no format that is known.
        BadFormat: there is no format that is called as asked, or the map is wrong.
    """
    check_format(asked)
    if asked.endswith(".toml"):
        return _asked_for(name, load_map(asked), lines)
    formats = NAMED.get(asked, (TRICKLECAST, *JSON_MAPS, COMBINED))
    if len(formats) == 1 and formats[0] != TRICKLECAST:
        return _asked_for(name, built_in(formats[0]), lines)
    if len(formats) == 1 or not lines:
        return _format(formats[0], lines)
    votes = Counter(found for line in lines if (found := _looks_like(line, formats)) is not None)
    if not votes:
        raise UnknownFormat(
            f"cannot tell the format of {name!r}, which begins with {shown(lines[0])}: "
            f"pass --format {', '.join(NAMED)} or a field map (a .toml file)"
        )
    best = max(votes.values())
    return _format(next(found for found in formats if votes[found] == best), lines)


def _asked_for(name: str, fields: FieldMap, lines: Sequence[bytes]) -> Format:
    records = [record for line in lines if (record := _object(line)) is not None]
    for source, _ in fields.only:
        # Lines of something else are passed over without a word; not a whole file of them.
        if records and all(_at(record, source.path) is None for record in records):
            raise NothingUnderstood(
                f"no line at the beginning of {name!r} has a {source}, as those of {fields.name} do"
            )
    return _with_map(fields, lines)


def shown(line: bytes) -> str:
    """The beginning of a line, fit for a message."""
    return repr(line[:_SHOWN].decode("utf-8", "replace")) + ("…" if len(line) > _SHOWN else "")


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
        elif found != COMBINED and _fits(record, built_in(found)):
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
        return any(_at(record, source.path) is not None for source in fields.fields.get(name, ()))

    if any(_at(record, source.path) is None for source, _ in fields.only):
        return False
    return there("ts_us") and there("status") and (there("request") or (there("method") and there("path")))


def _at(record: Any, path: Iterable[str]) -> Any:
    for key in path:
        if isinstance(record, list) and key.isdigit():
            record = record[int(key)] if int(key) < len(record) else None
        else:
            record = record.get(key) if isinstance(record, dict) else None
    return record


def _format(name: str, lines: Sequence[bytes]) -> Format:
    return Format(TRICKLECAST, versions=_versions(lines)) if name == TRICKLECAST else _with_map(built_in(name), lines)


def _versions(lines: Sequence[bytes]) -> tuple[str, ...]:
    records = [record for line in lines if (record := _object(line)) is not None]
    found = {repr(record["v"])[:_SHOWN] for record in records if "v" in record}
    return tuple(sorted(found - {repr(VERSION)}))


def _with_map(fields: FieldMap, lines: Sequence[bytes]) -> Format:
    if fields.layout is Layout.WORDS:
        return _with_words(fields, lines)
    records = [record for line in lines if (record := _object(line)) is not None]
    used = {name: _used(sources, records) for name, sources in fields.fields.items()}
    # A file without lines, or none that can be read: nothing is known of it, so everything is looked for.
    present = {name for name, sources in used.items() if sources} if records else set(used)
    kept = {name: sources or fields.fields[name] for name, sources in used.items()}
    if "request" not in present:
        present |= {"method", "path"}
    return Format(fields.name, replace(fields, fields=kept), frozenset(present | {"ts_us"}) & set(kept))


def _used(sources: tuple[Source, ...], records: list[dict[str, Any]]) -> tuple[Source, ...]:
    """The sources that this file uses: each that is looked for in every line costs time.

    A header that a line does not have may be in others: it is enough that the object of all headers is there.
    """
    return tuple(source for source in sources if any(_there(record, source) for record in records))


def _there(record: dict[str, Any], source: Source) -> bool:
    if len(source.path) > 2:
        return isinstance(_at(record, source.path[:-2]), dict)
    above = _at(record, source.path[:-1])
    if not isinstance(above, dict) or source.path[-1] not in above:
        return False
    value = above[source.path[-1]]
    if source.unit is None or value in ("", "-", None):
        return True
    # A "timestamp" may be a number in one file and a date in another.
    return bool(_NUMBER.fullmatch(str(value))) == (source.unit.micros is not None)


def _with_words(fields: FieldMap, lines: Sequence[bytes]) -> Format:
    """The map for as many words as the lines have; those beyond its own are told by what they look like."""
    counts = Counter(len(words) for line in lines if len(words := _words(line)) >= _MIN_WORDS)
    if not counts:
        return Format(fields.name, fields, frozenset(fields.fields), _quoted_columns(fields))
    number = counts.most_common(1)[0][0]
    sample = next(words for line in lines if len(words := _words(line)) == number)
    columns, taken = list(fields.columns[:number]), set[str]()
    # The "common" format ends before the user agent.
    sources = {name: kept for name, given in fields.fields.items() if (kept := _in_columns(given, columns))}
    for place in range(len(fields.columns), number):
        columns.append(f"word_{place + 1}")
        meaning = _meaning(sample[place][0], taken)
        taken.add(meaning)
        if meaning:
            unit = None if meaning == "request_id" else Unit.S
            sources[meaning] = (Source((columns[-1],), unit), *sources.get(meaning, ()))
    found = replace(fields, columns=tuple(columns), fields=sources)
    quoted = frozenset(place for place, (_, is_quoted) in enumerate(sample) if is_quoted)
    return Format(fields.name, found, frozenset(sources), quoted)


def _in_columns(sources: tuple[Source, ...], columns: Sequence[str]) -> tuple[Source, ...]:
    return tuple(source for source in sources if set(source.path) <= set(columns))


def _quoted_columns(fields: FieldMap) -> frozenset[int]:
    """What stands in quotes where no line tells: as in the combined format."""
    quoted = ("request", "http_referer", "http_user_agent")
    return frozenset(place for place, column in enumerate(fields.columns) if column in quoted)


def _meaning(word: bytes, taken: set[str]) -> str:
    if _MSEC.fullmatch(word) and "ts_us" not in taken:
        return "ts_us"
    if _REQUEST_ID.fullmatch(word) and "request_id" not in taken:
        return "request_id"
    return "dur_us" if _SECONDS.fullmatch(word) and "dur_us" not in taken else ""


def _words(line: bytes) -> list[tuple[bytes, bool]]:
    """Each word, and whether it stands in quotes."""
    words = []
    for found in _WORD.finditer(line.rstrip()):
        quoted = found["quoted"]
        words.append((found["plain"] if quoted is None else quoted, quoted is not None))
        if len(words) > _MAX_WORDS:
            break
    return words
