"""Which format a file has: what it is named does not count, only what is in it.

First the wrapping is told (``wrapping.py``), then the format of what is inside; if nothing is known inside, the lines
are taken as they are. JSON is known by its keys, some texts by a regular expression, a table by its line ``#Fields:``,
and what else has a quoted request by the contents of its columns (``inferred.py``). A file of which something is
missing is refused, and the message names it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any, Final

from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines.inferred import (
    JSON,
    TOOK,
    Draft,
    Missing,
    bare,
    begun,
    columns_of,
    cut,
    infer,
    looks_like_request,
    named,
    pairs,
)
from tricklecast.analytics.lines.mapped import (
    BadFormat,
    FieldMap,
    FieldSource,
    Layout,
    Stamp,
    Tree,
    Unit,
    built_in,
    grow,
    load_map,
    parse_map,
)
from tricklecast.analytics.lines.wrapping import LABEL, MAX_DEPTH, STAMPED, Unwrapper, wrapping_of
from tricklecast.trickle.records import VERSION, Kind

AUTO: Final = "auto"
TRICKLECAST: Final = "tricklecast"
PARQUET: Final = "parquet"

JSON_MAPS: Final = (
    "caddy", "traefik", "envoy", "cloudflare", "gcp", "kong", "ecs", "ecs-dotted", "nginx", JSON,
)  # fmt: skip
"""In the order in which they are tried: the most particular first."""

TEXT_MAPS: Final = ("envoy-text", "haproxy", "alb", "squid", "gin")
TABLE: Final = "w3c"
LOGFMT: Final = "logfmt"
COMBINED: Final = "combined"
APACHE: Final = "apache"
_INFERRED: Final = (COMBINED, APACHE)

NAMED: Final[dict[str, tuple[str, ...]]] = {
    TRICKLECAST: (TRICKLECAST,),
    "nginx": ("nginx", JSON, COMBINED),
    APACHE: (APACHE, JSON),
    "envoy": ("envoy", "envoy-text"),
    "caddy": ("caddy",),
    "traefik": ("traefik", COMBINED),
    "haproxy": ("haproxy",),
    "alb": ("alb",),
    "squid": ("squid",),
    "gin": ("gin",),
    TABLE: (TABLE,),
    "cloudflare": ("cloudflare",),
    "gcp": ("gcp",),
    "ecs": ("ecs", "ecs-dotted"),
    "kong": ("kong",),
    JSON: (JSON,),
    LOGFMT: (LOGFMT,),
}
"""Names of ``--format``, and the formats that each may turn out to be."""

SAMPLE_LINES: Final = 400
"""Looked at per file, so that neither damage at its beginning nor what a container says first hides its format."""

_OWN: Final = b'"ts_us":'
_FIELDS_LINE: Final = b"#Fields:"
_NUMBER: Final = re.compile(r"\d*\.?\d*(?:[eE][+-]?\d+)?")
_FINE: Final = re.compile(r".*:\d\d[.,]\d.*|\d{10,19}\.\d+|\d{13,19}|\d\.\d+[eE]\d+")
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
        wrapping: what stands around each line, the outer one first.
        columns: for Parquet: name and type of each column, in Arrow's words.
        versions: other versions of the record than ours that its first lines are of.
        unsure: what could not be decided about its lines, in a sentence.
    """

    name: str
    fields: FieldMap | None = None
    present: frozenset[str] = frozenset()
    quoted: frozenset[int] = frozenset()
    columns: tuple[tuple[str, str], ...] = ()
    versions: tuple[str, ...] = ()
    wrapping: tuple[str, ...] = ()
    unsure: str = ""

    @property
    def title(self) -> str:
        """Its name, for people."""
        return " in ".join((self.name, *reversed(self.wrapping)))

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
    if lines and (archive := next((what for what, begins in _ARCHIVES.items() if begins.match(lines[0])), None)):
        raise UnknownFormat(f"{name!r} is {archive}, which is not read: unpack it first")
    found: Format | None = None
    error: UnknownFormat | None = None
    for wrapping, inner in _unwrapped(lines):
        try:
            found = replace(_recognised(name, inner, asked), wrapping=wrapping)
        except UnknownFormat as unknown:
            # What is said of the innermost lines says most.
            error = error or unknown
            continue
        if not wrapping or found.fields is None or _asked_fits(found.fields, inner):
            return found
    if found is None or found.wrapping:
        assert error is not None
        raise error
    return found


_ARCHIVES: Final = {
    "a zip archive": re.compile(rb"PK\x03\x04"),
    "a tar archive": re.compile(rb"(?s).{0,300}ustar"),
    "a 7z archive": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "a file in Snappy's framing": re.compile(rb"\xff\x06sNaPpY"),
    "compressed twice": re.compile(rb"\x1f\x8b\x08|BZh[1-9]1AY|\xfd7zXZ|\x28\xb5\x2f\xfd"),
}
"""Files that hold logs in a form that is not read, by how their first line begins without its zeros."""


def _unwrapped(lines: Sequence[bytes]) -> list[tuple[tuple[str, ...], list[bytes]]]:
    """The lines without each wrapping that they may have, the most wrapped first; then as they are.

    Then without whatever is before JSON; last, with the time of the wrapping before each line.
    """
    found: list[tuple[tuple[str, ...], list[bytes]]] = [((), list(lines))]
    for wrapping, inner in found:
        # A table's first columns look like the time that a container writes before a line.
        table = any(line.startswith(_FIELDS_LINE) for line in inner)
        if len(wrapping) < MAX_DEPTH and STAMPED not in wrapping and not table:
            for name in wrapping_of(inner):
                bare = Unwrapper((name,)).feed(b"\n".join(inner) + b"\n").split(b"\n")
                found.append(((*wrapping, name), [line for line in bare if line.strip()]))
    return sorted(found, key=lambda one: (STAMPED in one[0], LABEL in one[0], -len(one[0])))


def _asked_fits(fields: FieldMap, lines: Sequence[bytes]) -> bool:
    """Whether lines are of a map, as far as can be told: one that was asked for fits everything else."""
    if fields.layout is Layout.JSON:
        return any(_fits(record, fields) for line in lines if (record := _object(line)) is not None)
    if fields.layout is Layout.PATTERN:
        return any(map(_pattern(fields.pattern).match, lines))
    if fields.layout is Layout.WORDS and fields.name not in _INFERRED:
        return any(len(cut(line.decode("utf-8", "replace"))) == len(fields.columns) for line in lines)
    if fields.layout is Layout.TABLE and fields.columns:
        count, between = len(fields.columns), fields.pattern.encode()
        return any(line.count(between) == count - 1 for line in lines)
    return fields.layout is not Layout.LOGFMT or any(pairs(line) for line in lines)


def draft(lines: Sequence[bytes]) -> Draft:
    """The field map of lines of an unknown format, as far as it can be told."""
    return min((Draft(inner) for _, inner in _unwrapped(lines) if inner), key=lambda one: len(one.missing))


@cache
def _pattern(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())


def _recognised(name: str, lines: Sequence[bytes], asked: str) -> Format:
    if asked.endswith(".toml"):
        return _asked_for(name, load_map(asked), lines)
    formats = NAMED.get(asked, (TRICKLECAST, *JSON_MAPS, *TEXT_MAPS, TABLE, COMBINED, LOGFMT))
    if len(formats) == 1 and formats[0] not in (TRICKLECAST, TABLE):
        return _asked_for(name, built_in(formats[0]), lines)
    if (len(formats) == 1 and formats[0] != TABLE) or not lines:
        return _format(name, formats[0], lines)
    if TABLE in formats and any(line.startswith(_FIELDS_LINE) for line in lines):
        return _format(name, TABLE, lines)
    votes = Counter[str]()
    for line in lines:
        if (found := _looks_like(line, formats)) is not None:
            votes[found] += 1
            if votes[found] > len(lines) / 2:
                break
    if not votes:
        if asked == AUTO and (table := Draft(lines)).header and not table.missing:
            return _with_map(parse_map(table.toml, "table"), lines)
        raise UnknownFormat(_why_not(name, lines))
    best = max(votes.values())
    return _format(name, next(found for found in formats if votes[found] == best), lines)


_ODD_JSON: Final = re.compile(rb"^\s*(?:\[\s*(?:\{|$)|\{\s*$)|\}\{")
"""The beginning of an array, of an object over several lines, or objects without a line's end between them."""


def _why_not(name: str, lines: Sequence[bytes]) -> str:
    """The message of a format that cannot be told; it names what the lines lack, if they are near to one."""
    known = f"pass --format {', '.join(NAMED)} or a field map (a .toml file), which storms check {name} drafts"
    begin = f"cannot tell the format of {name!r}, which begins with {shown(lines[0])}"
    if any(map(_ODD_JSON.search, lines[:2])):
        return f"{begin}: it is JSON, but not one object in each line, as jq -c '.[]?' writes it"
    records = [record for line in lines if (record := _object(line) or pairs(line)) is not None]
    if len(records) * 2 < len(lines):
        if any(b'"' in line for line in lines):
            try:
                infer(built_in(COMBINED), lines)
            except Missing as missing:
                return f"{begin}: {missing}; {known}"
        return f"{begin}: {known}"
    found = named(columns_of(records)).keys()
    lacking = " and ".join(what for what, choices in _NEEDED if not any(names <= found for names in choices))
    told = f" it has keys and values, without {lacking};" if lacking else ""
    return f"{begin}:{told} its keys are {', '.join(list(records[0])[:12])}; {known}"


_NEEDED: Final = (
    ("a time", ({"ts_us"},)),
    ("a status", ({"status"},)),
    ("a request", ({"request"}, {"method", "path"})),
)
"""Fields without which a line says nothing about a request."""


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
        for found in formats:
            if found in TEXT_MAPS and _pattern(built_in(found).pattern).match(line):
                return found
        inferred = next((one for one in _INFERRED if one in formats), None)
        if inferred and looks_like_request(line):
            return inferred
        values = pairs(line) if LOGFMT in formats else None
        return LOGFMT if values is not None and _has_all(named(columns_of([values]))) else None
    for found in formats:
        if found == TRICKLECAST:
            if record.get("kind") in tuple(Kind) and "ts_us" in record:
                return found
        elif found == JSON:
            return JSON if _has_all(named(columns_of([record]))) else None
        elif found in JSON_MAPS and _fits(record, built_in(found)):
            return found
    return None


def _has_all(fields: Container[str]) -> bool:
    return all(any(all(name in fields for name in names) for names in choices) for _, choices in _NEEDED)


MENDED: Final = (
    (r"(^|[^\\])((?:\\\\)*)\\x", r"\1\2\\u00"),
    (r":[ ]*([0-9.]+(?:[ ]*[,:][ ]+[0-9.-]+)+)[ ]*([,}])", r':"\1"\2'),
    (r":[ ]*-?[ ]*([,}])", r":null\1"),
)
"""The escapes of nginx in JSON without ``escape=json``, and how they are made valid, for Python and RE2."""


def _object(line: bytes) -> dict[str, Any] | None:
    if line.lstrip()[:1] != b"{":
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        for pattern, now in MENDED:
            line = re.sub(pattern.encode(), now.encode(), line)
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


def _format(name: str, form: str, lines: Sequence[bytes]) -> Format:
    if form == TRICKLECAST:
        return Format(TRICKLECAST, versions=_versions(lines))
    try:
        return _with_map(built_in(form), lines)
    except Missing as missing:
        raise UnknownFormat(
            f"cannot read {name!r}, which begins with {shown(lines[0])}: {missing}; "
            "pass --format and a field map (a .toml file)"
        ) from missing


def _versions(lines: Sequence[bytes]) -> tuple[str, ...]:
    records = [record for line in lines if (record := _object(line)) is not None]
    found = {repr(record["v"])[:_SHOWN] for record in records if "v" in record}
    return tuple(sorted(found - {repr(VERSION)}))


def _with_map(fields: FieldMap, lines: Sequence[bytes]) -> Format:
    if fields.layout is Layout.WORDS:
        return _with_words(fields, lines)
    if fields.layout is Layout.TABLE and not fields.columns:
        return _with_table(fields, lines)
    if fields.name == LOGFMT:
        return _with_logfmt(fields, lines)
    if fields.layout is not Layout.JSON:
        return Format(fields.name, fields, frozenset(fields.fields))
    records = [record for line in lines if (record := _object(line)) is not None]
    used = {name: () if fields.name == JSON else _used(sources, records) for name, sources in fields.fields.items()}
    # A file without lines, or none that can be read: nothing is known of it, so everything is looked for.
    present = {name for name, sources in used.items() if sources} if records else set(used)
    if present & _OF_ANSWERS and fields.name not in _ALL_KEYS:
        # A header that no line of the sample has may be in others.
        present |= _OF_ANSWERS & set(used)
    kept = dict(fields.fields)
    if fields.name in JSON_MAPS:
        told = named(columns_of(records))
        for name, sources in told.items():
            # A map's own key is surer than a name; but the address of a connection may be a balancer's.
            if not used.get(name) or fields.name == JSON or (name == "ip" and fields.name == "nginx"):
                # A field that the sample does not have may come later, and so may the address of another proxy.
                later = kept.get(name, ()) if name == "ip" else ()
                merged = dict.fromkeys((*sources, *used.get(name, ()), *later))
                kept[name] = tuple(sorted(merged, key=_rank) if name == "ip" else merged)
                if name == "dur_us":
                    kept[name] = tuple(_plausible(source, records) for source in merged)
                present.add(name)
                if name == "ts_us" and begun(sources[0].path):
                    fields = replace(fields, stamped=Stamp.START)
        stamps = kept["ts_us"] if fields.name == JSON else used["ts_us"]
        kept["ts_us"] = tuple(_timed(source, records) for source in stamps or kept["ts_us"])
        if fields.name in _ALL_KEYS:
            kept["dur_us"] = tuple(_plausible(source, records) for source in kept["dur_us"])
        kept = _compatible(kept, {source for sources in (*used.values(), *told.values()) for source in sources})
    if fields.name == "caddy" and records:
        kept["dur_us"] = tuple(replace(source, unit=_unit_of_caddy(records)) for source in kept["dur_us"])
    if "request" not in present:
        present |= {"method", "path"}
    return Format(fields.name, replace(fields, fields=kept), frozenset(present | {"ts_us"}) & set(kept))


_OF_ANSWERS: Final = frozenset({"rseq", "next_seq", "eos"})
_ALL_KEYS: Final = frozenset({"nginx", JSON})
"""Formats in which every line has every key, with nothing for what is not known."""


def _rank(source: FieldSource) -> int:
    """Where an address stands among others: forwarded ones come first."""
    names = [bare(key.path[-1]) for key in built_in(JSON).fields["ip"]]
    name = bare(source.path[-1])
    return names.index(name) if name in names else "forwarded" not in name


def _plausible(source: FieldSource, records: list[dict[str, Any]]) -> FieldSource:
    """A duration in seconds, if its key says so, or if it has fractions and is short; else nobody knows its unit."""
    if source.unit is not Unit.S or TOOK.fullmatch(bare(source.path[-1])):
        return source
    texts = [
        text for record in records if _NUMBER.fullmatch(text := str(_at(record, source.path))) and text.strip(".eE")
    ]
    seconds = not texts or (any("." in text for text in texts) and median(map(float, texts)) <= _LONGEST)
    return source if seconds else replace(source, unit=Unit.STATED)


_LONGEST: Final = 60
"""Seconds."""


def _unit_of_caddy(records: list[dict[str, Any]]) -> Unit:
    """Caddy writes durations as seconds with a fraction, as whole milliseconds, or as whole nanoseconds."""
    found = [value for record in records if isinstance(value := record.get("duration"), (int, float))]
    if not found or any(isinstance(value, float) for value in found):
        return Unit.S
    middle = median(found)
    # In between it may be long polls in milliseconds, or tiny files in nanoseconds: it is not known.
    return Unit.MS if middle < 15_000 else Unit.NS if middle > 60_000 else Unit.STATED


def _compatible(
    fields: dict[str, tuple[FieldSource, ...]], there: Container[FieldSource]
) -> dict[str, tuple[FieldSource, ...]]:
    """The sources that one schema can have: a key is a value or an object, and none differs from another by case.

    Args:
        there: those that the sample has; they come before all others.
    """
    taken: set[FieldSource] = set()
    root: Tree = {}
    every = [source for sources in fields.values() for source in sources]
    for source in sorted(every, key=lambda source: source not in there):
        try:
            grow(root, source)
        except ValueError:
            continue
        taken.add(source)
    kept = {name: tuple(source for source in sources if source in taken) for name, sources in fields.items()}
    return {name: sources for name, sources in kept.items() if sources}


def _with_logfmt(fields: FieldMap, lines: Sequence[bytes]) -> Format:
    records = [record for line in lines if (record := pairs(line)) is not None]
    found = named(columns_of(records))
    if not _has_all(found):
        return Format(fields.name, fields, frozenset(fields.fields))
    found["ts_us"] = tuple(_timed(source, records) for source in found["ts_us"])
    # What the sample does not have may come later under its plain name.
    every = {name: (*found.get(name, ()), *sources) for name, sources in fields.fields.items()}
    stamped = Stamp.START if begun(found["ts_us"][0].path) else Stamp.END
    return Format(fields.name, replace(fields, fields=every | found, stamped=stamped), frozenset(found))


def _timed(source: FieldSource, records: list[dict[str, Any]]) -> FieldSource:
    """A source of times, and whether this file's are whole seconds."""
    values = [str(value) for record in records if (value := _at(record, source.path)) not in (None, "", "-")]
    return replace(source, coarse=bool(values) and not any(map(_FINE.fullmatch, values)))


def _used(sources: tuple[FieldSource, ...], records: list[dict[str, Any]]) -> tuple[FieldSource, ...]:
    """The sources that this file uses.

    A header that a line does not have may be in others: it is enough that the object of all headers is there.
    """
    return tuple(source for source in sources if any(_there(record, source) for record in records))


def _there(record: dict[str, Any], source: FieldSource) -> bool:
    if len(source.path) > 2:
        return isinstance(_at(record, source.path[:-2]), dict)
    above = _at(record, source.path[:-1])
    if not isinstance(above, dict) or source.path[-1] not in above:
        return False
    value = above[source.path[-1]]
    if isinstance(value, dict):
        return False
    if source.unit is None or source.unit.micros is None or value in ("", "-", None):
        return True
    # A duration with a unit of its own may stand anywhere; a date is no number.
    return bool(_NUMBER.fullmatch(str(value))) or str(value)[-1:].isalpha() or "," in str(value)


def _with_words(fields: FieldMap, lines: Sequence[bytes]) -> Format:
    """The columns of this file; a map of the user's own names them, and the sample tells which stand in quotes."""
    if fields.name in _INFERRED:
        if not any(map(looks_like_request, lines)):
            return Format(fields.name, fields, frozenset(fields.fields), _quoted_columns(fields))
        found, quoted, unsure = infer(fields, lines)
        return Format(fields.name, found, frozenset(found.fields), quoted, unsure=unsure)
    rows = [words for line in lines if len(words := cut(line.decode("utf-8", "replace"))) == len(fields.columns)]
    if not rows:
        return Format(fields.name, fields, frozenset(fields.fields), _quoted_columns(fields))
    shape, _ = Counter(tuple(quoted for _, quoted in words) for words in rows).most_common(1)[0]
    quoted = frozenset(place for place, is_quoted in enumerate(shape) if is_quoted)
    return Format(fields.name, fields, frozenset(fields.fields), quoted)


def _quoted_columns(fields: FieldMap) -> frozenset[int]:
    """The quoted columns where no line tells them: those of the combined format."""
    quoted = ("request", "http_referer", "http_user_agent")
    return frozenset(place for place, column in enumerate(fields.columns) if column in quoted)


def _with_table(fields: FieldMap, lines: Sequence[bytes]) -> Format:
    """The columns that the file's last line ``#Fields:`` names.

    Raises:
        Missing: there is none, or a column that a request needs is not among them.
    """
    headers = [line for line in lines if line.startswith(_FIELDS_LINE)]
    if not headers:
        raise Missing("it has no line #Fields:, which names the columns")
    columns = tuple(headers[-1].decode("utf-8", "replace").partition(":")[2].split())
    rows = [line.decode("utf-8", "replace") for line in lines if not line.startswith(b"#")]
    between = "\t" if any("\t" in row for row in rows) else " "
    sources = {
        name: kept
        for name, given in fields.fields.items()
        if (kept := tuple(source for source in given if set(source.path) <= set(columns)))
    }
    for name, column in (
        ("ts_us", "date and time"),
        ("status", "sc-status"),
        ("method", "cs-method"),
        ("path", "cs-uri-stem"),
    ):
        if name not in sources:
            raise Missing(f"its line #Fields: has no {column}")
    if "dur_us" in sources:
        place = columns.index("time-taken")
        values = [cells[place] for row in rows if len(cells := row.split(between)) == len(columns)]
        # IIS writes whole milliseconds, and all others seconds.
        unit = Unit.S if any("." in value for value in values) or "sc-win32-status" not in columns else Unit.MS
        sources["dur_us"] = tuple(replace(source, unit=unit) for source in sources["dur_us"])
    gone = tuple((source, values) for source, values in fields.gone if set(source.path) <= set(columns))
    if len(set(columns)) != len(columns):
        raise Missing("its line #Fields: names a column twice")
    return Format(
        fields.name, replace(fields, columns=columns, fields=sources, pattern=between, gone=gone), frozenset(sources)
    )
