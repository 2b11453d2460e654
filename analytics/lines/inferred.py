"""Columns of a log that nobody has named: their contents tell their meaning, and with JSON the names of keys, too.

Lines of words are nginx's and Apache's "combined", and what people append to it.

A server's administrator writes the format, and the log does not say it. But the values tell what they are: a time in
brackets, a quoted request with the status after it, addresses, a user agent. A column gets its meaning from *all*
sample lines of the most frequent shape, because one line misleads: a "-" may be anything, and of
``$upstream_response_time $request_time`` only the sum shows which is the whole (it is never less than its part).

A line is cut at its quotes, and what is not quoted at its spaces;
:func:`~tricklecast.analytics.lines.mapped.words` does the same in SQL.

The keys of JSON and logfmt have names, but each framework has its own: :func:`named` knows them by a table of names
(maps/json.toml) and believes a name only if the values are of its kind.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import ceil
from statistics import median
from typing import Any, Final

from tricklecast.analytics.lines.dialect import asked, time_us
from tricklecast.analytics.lines.mapped import LEADING, PAIR, FieldMap, FieldSource, Stamp, Unit, built_in

Word = tuple[str, bool]
"""A word, and whether it stands in quotes."""

_GROUP: Final = "[0-9A-Fa-f]{1,4}"
_IP6: Final = rf"(?:(?:{_GROUP}:){{7}}{_GROUP}|(?:{_GROUP}:){{0,6}}(?:{_GROUP})?::(?:{_GROUP}:){{0,6}}(?:{_GROUP})?)"
_IP: Final = rf"(?:(?:::ffff:)?\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d+)?|\[{_IP6}\](?::\d+)?|{_IP6}(?:%\w+)?)"
_IPS: Final = re.compile(rf"(?:unknown|{_IP})(?:, ?(?:unknown|{_IP}))*,?")
_REQUEST: Final = re.compile(r"[A-Z]{2,16} \S.*")
_HTTP: Final = re.compile(r"[A-Z]{2,16} \S.* HTTP/\d(?:\.\d)?")
_CLF: Final = re.compile(r"\[?\d\d/[A-Z][a-z]{2}/\d{4}[: ]\d\d:\d\d:\d\d([.,]\d+)?(?: ?[+-]\d{4})?\]?")
_ZONE: Final = re.compile(r"[+-]\d{2}:?\d{2}\]")
_ISO: Final = re.compile(r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?\]?")
_DAY: Final = re.compile(r"\[?(?:\d\d/[A-Z][a-z]{2}/\d{4}|\d{4}[-/]\d\d[-/]\d\d)")
_HOUR: Final = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?")
_FINE: Final = re.compile(r":\d\d[.,]\d")
_MSEC: Final = re.compile(r"\[?\d{10}\.\d{3,6}\]?|\d{13}|\d{16}")
_STATUS: Final = re.compile(r"[1-9]\d\d|0|000|-")
_CODED: Final = re.compile(r"[1-5]")
_WHOLE: Final = re.compile(r"\d+")
_FRACTION: Final = re.compile(r"\d{1,8}\.(?:\d{3}|\d{6})")
_PLAIN: Final = re.compile(r"\d+(?:\.\d+)?")
_STATED: Final = re.compile(r"(?i)(?:PT)?(?:\d+[hm])*\d+(?:\.\d+)? ?(?:ns|[u\u00b5\u03bc]s|ms|s)")
_LABEL: Final = re.compile(
    r"(?:rt|request_time|req_time|reqtime|duration|dur|took|latency|elapsed|response_time|resp_time|time)[=:](?!\d{9})"
)
_UNITS: Final = {
    "ms": Unit.MS,
    "msec": Unit.MS,
    "s": Unit.S,
    "sec": Unit.S,
    "us": Unit.US,
    "\u00b5s": Unit.US,
    "ns": Unit.NS,
}
_GRPC: Final = re.compile(r"grpc(?:[._-]?(?:status|code))?[=:]")
_ADDRESSED: Final = re.compile(r"(?i)for=|\[[\d.]+\]")
_FORWARDED: Final = re.compile(r"(?i)(?:\w*(?:forwarded|(?:client|real|connecting)[_-]?ip)[\w-]*|xff|fwd)[=:]")
_PORT: Final = re.compile(r"[.\]][\da-fA-F]*:\d+")
_UPSTREAM: Final = re.compile(r"-|[\d.]+(?:(?: ?, ?| : )(?:-|[\d.]+))*")
_ID: Final = re.compile(r"[0-9a-f]{32}")
_AGENT: Final = re.compile(r"(?!HTTP/)[\w.-]+/\d|Mozilla")
_LINK: Final = re.compile(r"(?:https?|android-app)://")

_LEAST_MICROS: Final = 10_000
"""Half of the requests take as many microseconds at least where a number without a unit is taken for Apache's %D:
as milliseconds, which Tomcat and Jetty write in the same place, that would be ten seconds."""

_MOST_SECONDS: Final = 20
"""Where Apache is said to have written them, smaller numbers than this are whole seconds, %T."""

_LONG: Final = 60
"""Half of the requests take less than this many seconds, or the numbers are no seconds."""

_MOST_HEADERS: Final = 4096
"""Bytes that the headers of an answer have less than, as a rule."""

MOST: Final = 0.9
"""Share of a column's values that tell its meaning."""

MAX_WORDS: Final = 96


def cut(line: str) -> list[Word]:
    """The words of a line."""
    found: list[Word] = []
    for place, run in enumerate(line.rstrip().replace('\\"', "\\x22").split('"')):
        if place % 2:
            found.append((run, True))
        elif run.strip():
            # Lists of nginx's upstreams and of forwarded addresses have spaces in them.
            found += [(word, False) for word in run.strip().replace(", ", ",").split(" ")]
        if len(found) > MAX_WORDS:
            break
    return found


def _is_time(word: str) -> bool:
    return bool(_CLF.fullmatch(word) or _ISO.fullmatch(word) or _MSEC.fullmatch(word))


def _has_time(words: Sequence[Word]) -> bool:
    return any(
        _is_time(word) or (_DAY.fullmatch(word) and after and _HOUR.fullmatch(after))
        for (word, _), (after, _) in zip(words, [*words[1:], ("", False)], strict=True)
    )


def looks_like_request(line: bytes) -> bool:
    """Whether a line has what these formats all have: a time, and a status after something quoted."""
    words = cut(line.decode("utf-8", "replace")) if b'{"' not in line else []
    quoted = next((place for place, (_, is_quoted) in enumerate(words) if is_quoted), None)
    all_quoted = all(is_quoted for _, is_quoted in words)
    return (
        quoted is not None
        and _has_time(words)
        and any(re.fullmatch(r"[1-9]\d\d|0|000", word) and is_quoted == all_quoted for word, is_quoted in words)
        and any(is_quoted and _REQUEST.match(word) for word, is_quoted in words)
    )


class Missing(ValueError):
    """The lines have no column of a kind that a request needs; the message names it."""


def infer(base: FieldMap, lines: Sequence[bytes]) -> tuple[FieldMap, frozenset[int], str]:
    """The field map of some lines, which columns stand in quotes, and what could not be decided, in a sentence.

    Args:
        base: what is known of the lines before their columns are told.

    Raises:
        Missing: no time, no request or no status.
    """
    rows = [words for line in lines if (words := cut(line.decode("utf-8", "replace")))]
    telling = [words for words in rows if any(quoted and _REQUEST.match(word) for word, quoted in words)]
    telling = [words for words in telling if _has_time(words)] or telling
    if not telling:
        raise Missing('it has no quoted request ("GET /path HTTP/1.1")')
    (shape, _), *_ = Counter(tuple(quoted for _, quoted in words) for words in telling).most_common(1)
    sample = [words for words in telling if tuple(quoted for _, quoted in words) == shape]
    columns = [[words[place][0] for words in sample] for place in range(len(shape))]
    meanings = _Meanings(columns, shape, base.stamped)
    fields = meanings.fields()
    names = tuple(meanings.names[place] for place in range(len(shape)))
    found = replace(base, columns=names, fields=fields, stamped=meanings.stamped)
    return found, frozenset(place for place, quoted in enumerate(shape) if quoted), meanings.unsure


_NAMES: Final = {1: ("time_local",), 2: ("time_local", "zone"), 3: ("day", "hour", "zone")}


def _same_times(numbers: Sequence[str], dates: Sequence[str]) -> bool:
    """Whether numbers since 1970 are the moments that dates of the same lines say."""
    moments = asked(f"SELECT {time_us('word')} FROM (SELECT unnest(?) AS word)", [*numbers, *dates])
    pairs_ = zip(moments[: len(numbers)], moments[len(numbers) :], strict=True)
    apart = [str(one - other) for (one,), (other,) in pairs_ if one is not None and other is not None]
    return _most(lambda us: abs(int(us)) <= 2_000_000, apart)


class _Meanings:
    """Gives each column of a sample its meaning: one after the other takes its column, the surest first."""

    def __init__(self, columns: list[list[str]], quoted: tuple[bool, ...], stamped: Stamp) -> None:
        self._columns, self._quoted = columns, quoted
        # Apache and Traefik write when a request began, all others when it ended. A line in Apache's own format says
        # which of the two it is only by its duration.
        self._apache = stamped is Stamp.START
        self.stamped = stamped
        self.unsure = ""
        self._free = set(range(len(columns)))
        # The name of each column, for --client-key.
        self.names = {place: f"word_{place + 1}" for place in range(len(columns))}

    def _take(self, place: int, name: str) -> str:
        self._free.discard(place)
        self.names[place] = name
        return name

    def _where(self, fits: Callable[[str], object], *, after: int = -1, dash: bool = False) -> list[int]:
        """Free columns whose values fit, but for a few; with ``dash`` some may be "-"."""
        found = []
        for place in sorted(self._free):
            values = [value for value in self._columns[place] if not (dash and value in ("-", ""))]
            if place > after and values and _most(fits, values):
                found.append(place)
        return found

    def fields(self) -> dict[str, tuple[FieldSource, ...]]:
        """The sources of each field.

        Raises:
            Missing: no time, no request or no status.
        """
        fields: dict[str, tuple[FieldSource, ...]] = {}
        asked = [
            (sum(bool(_HTTP.fullmatch(value)) for value in self._columns[place]), -place)
            for place in self._free
            if self._quoted[place] and any(_REQUEST.match(value) for value in self._columns[place])
        ]
        request = -max(asked)[1]
        fields["request"] = (FieldSource((self._take(request, "request"),)),)
        fields["ts_us"] = self._times(request)
        codes = [place for place in self._where(_STATUS.fullmatch) if any(map(_CODED.match, self._columns[place]))]
        if not codes:
            raise Missing("it has no status after the request")
        # Some put every column in quotes; where they do not, what is quoted comes from the client.
        status = min(codes, key=lambda place: (self._quoted[place], place < request, place))
        fields["status"] = (FieldSource((self._take(status, "status"),)),)
        size = self._where(_WHOLE.fullmatch, dash=True)
        if status + 1 in size and self._quoted[status + 1] == self._quoted[status]:
            fields["bytes_out"] = (FieldSource((self._take(status + 1, "body_bytes_sent"),)),)
        self._agent(fields, request)
        self._address(fields, request)
        self._id(fields)
        if labelled := self._labelled(_GRPC, "grpc_status"):
            fields["grpc"] = (labelled,)
        self._duration(fields, status)
        return fields

    def _times(self, request: int) -> tuple[FieldSource, ...]:
        """The finest first: whole seconds only where there is nothing else.

        Of several dates the one nearest before the request is its own; an agent that sends logs writes another one at
        the beginning of the line.
        """
        dates: list[tuple[int, ...]] = []
        for place in sorted(self._free):
            column = self._columns[place]
            if _most(lambda value: _CLF.fullmatch(value) or _ISO.fullmatch(value), column):
                dates.append((place,))
            elif _most(_DAY.fullmatch, column) and self._is_free(place + 1, _HOUR):
                dates.append((place, place + 1))
        dates.sort(key=lambda places: (places[0] > request, abs(places[0] - request)))
        found = []
        for places in dates[:1]:
            if self._is_free(places[-1] + 1, _ZONE):
                places = (*places, places[-1] + 1)
            values = [" ".join(words) for words in zip(*(self._columns[place] for place in places), strict=True)]
            path = tuple(self._take(place, name) for place, name in zip(places, _NAMES[len(places)], strict=True))
            found.append((FieldSource(path, Unit.TIME, coarse=not any(map(_FINE.search, values))), values))
        for place in self._where(_MSEC.fullmatch)[:1]:
            # Another time than the date's is that of something else.
            if not found or _same_times(self._columns[place], found[0][1]):
                found.append((FieldSource((self._take(place, "msec"),), Unit.TIME), self._columns[place]))
        if not found:
            raise Missing("it has no time ([09/Oct/2025:08:53:20 +0000], ISO 8601 or $msec)")
        return tuple(sorted((source for source, _ in found), key=lambda source: source.coarse))

    def _is_free(self, place: int, fits: re.Pattern[str]) -> bool:
        return place in self._free and _most(fits.fullmatch, self._columns[place])

    def _agent(self, fields: dict[str, tuple[FieldSource, ...]], request: int) -> None:
        """Of the texts after the request: the one that looks like an agent most often, else the second one."""

        def share(pattern: re.Pattern[str], place: int) -> float:
            return sum(map(bool, map(pattern.match, self._columns[place]))) / len(self._columns[place])

        quoted = [place for place in sorted(self._free) if place > request and self._quoted[place]]
        texts = []
        for place in quoted:
            given = [value for value in self._columns[place] if value not in ("-", "")]
            if not given or not all(_IPS.fullmatch(value) or _UPSTREAM.fullmatch(value) for value in given):
                texts.append(place)
        agent = max(texts, key=lambda place: (share(_AGENT, place), -place), default=None)
        if agent is None:
            return
        if not share(_AGENT, agent):
            agent = next((place for place in reversed(texts[:2]) if not share(_LINK, place)), None)
        if agent is not None:
            fields["ua"] = (FieldSource((self._take(agent, "http_user_agent"),)),)
        for place in [place for place in texts if agent is None or place < agent][:1]:
            self._take(place, "http_referer")

    def _address(self, fields: dict[str, tuple[FieldSource, ...]], request: int) -> None:
        """Behind a balancer, the connection has the balancer's address: a forwarded one is the client's, and wins."""
        agent = next((place for place, name in self.names.items() if name == "http_user_agent"), None)
        sources = [labelled] if (labelled := self._labelled(_FORWARDED, "http_x_forwarded_for")) else []
        forwarded, direct = list[int](), list[int]()
        for place in sorted(self._free):
            values = [value for value in self._columns[place] if value not in ("-", "")]
            behind = agent is not None and place == agent + 1
            if not _most(_IPS.fullmatch, values):
                continue
            if place < request and values:
                direct.append(place)
            elif any(map(_PORT.search, values)):
                continue  # an upstream's address has a port
            elif (behind and self._quoted[place]) or any("," in value for value in values):
                forwarded.append(place)
        if not sources and not direct and not forwarded:
            # Envoy has the addresses after the request.
            behind_it = self._where(_IPS.fullmatch, after=request, dash=True)
            forwarded = [place for place in behind_it if not any(map(_PORT.search, self._columns[place]))]
        sources += [FieldSource((self._take(place, "http_x_forwarded_for"),)) for place in forwarded[:1] if not sources]
        for number, place in enumerate(direct):
            last = number == len(direct) - 1
            sources.append(FieldSource((self._take(place, "remote_addr" if last else f"forwarded_{number + 1}"),)))
        if not direct and 0 in self._free and not self._quoted[0] and request > 0:
            # Apache may look up names. After a virtual host's name and port comes the client's.
            place = 1 if re.fullmatch(r"\S+:\d+", self._columns[0][0]) and 1 in self._free else 0
            sources.append(FieldSource((self._take(place, "remote_addr"),)))
        if sources:
            fields["ip"] = tuple(sources)

    def _id(self, fields: dict[str, tuple[FieldSource, ...]]) -> None:
        """An id that one request has: one that two lines share is a trace's, or the client's."""
        for place in self._where(_ID.fullmatch)[:1]:
            values = self._columns[place]
            if len(set(values)) == len(values):
                fields["request_id"] = (FieldSource((self._take(place, "request_id"),)),)

    def _labelled(self, label: re.Pattern[str], name: str) -> FieldSource | None:
        """The column that has a label: ``rt=0.020`` or ``rt="0.020"``, whose value is the next column."""
        for place in self._where(label.match):
            self._take(place, name)
            mark = re.search("[=:]", self._columns[place][0])
            if place + 1 in self._free and self._quoted[place + 1] and self._columns[place][0][-1:] in "=:":
                return FieldSource((self._take(place + 1, f"{name}_value"),))
            return FieldSource((name,), split=(mark[0] if mark else "=", 2))
        return None

    def _duration(self, fields: dict[str, tuple[FieldSource, ...]], status: int) -> None:
        if labelled := self._labelled(_LABEL, "request_time"):
            # A fraction is of seconds; a whole number without a unit may be anything.
            (place,) = (place for place, name in self.names.items() if name == labelled.path[0])
            values = [
                value.partition(labelled.split[0])[2] if labelled.split else value for value in self._columns[place]
            ]
            fields["dur_us"] = (replace(labelled, unit=Unit.S if any("." in one for one in values) else Unit.STATED),)
            return
        if stated := self._where(_STATED.fullmatch, after=status, dash=True):
            last = stated[-1]
            fields["dur_us"] = (FieldSource((self._take(last, "request_time"),), Unit.STATED),)
            if last == len(self._quoted) - 1 and self._quoted[last - 2 : last] == (True, True):
                self.stamped = Stamp.START  # Traefik: router, service, duration
            return
        for place in self._where(_UNITS.get, after=status):
            if place - 1 in self._where(_PLAIN.fullmatch, after=status, dash=True):
                unit = _UNITS[self._columns[place][0]]
                fields["dur_us"] = (FieldSource((self._take(place - 1, "request_time"),), unit),)
                return
        if fractions := self._where(_FRACTION.fullmatch, after=status, dash=True):
            sums = {place: sum(map(_number, self._columns[place])) for place in fractions}
            best = max(fractions, key=lambda place: (sums[place], "-" not in self._columns[place], -place))
            if median(map(_number, self._columns[best])) < _LONG:
                fields["dur_us"] = (FieldSource((self._take(best, "request_time"),), Unit.S),)
            return
        agent = max((place for place, name in self.names.items() if name == "http_user_agent"), default=status)
        numbers = [place for place in self._where(_WHOLE.fullmatch, after=agent) if not self._quoted[place]]
        both = len(numbers) == 2 and self._same(*numbers)
        if both or (len(numbers) == 1 and not self._is_size(numbers[0], status + 1)):
            place = max(numbers, key=lambda one: sum(map(_number, self._columns[one])))
            took = list(map(_number, self._columns[place]))
            if not (both or self._apache or median(took) >= _LEAST_MICROS):
                self.unsure = (
                    f"Column {place + 1}, a whole number, may be a duration, and nothing says its unit: --format apache"
                    " reads it as %D or %T, and a field map (storms check) as anything else."
                )
                return
            seconds = not both and min(took) < _MOST_SECONDS and median(took) < _LEAST_MICROS
            fields["dur_us"] = (FieldSource((self._take(place, "request_time"),), Unit.S if seconds else Unit.US),)
            self.stamped = Stamp.START

    def _is_size(self, place: int, size: int) -> bool:
        """Whether a column is the size of the answer with its headers."""
        both = zip(map(_number, self._columns[place]), map(_number, self._columns[size]), strict=True)
        return all(0 <= whole - body < _MOST_HEADERS for whole, body in both)

    def _same(self, one: int, other: int) -> bool:
        """Whether two columns are the seconds and the microseconds of one duration."""
        pairs = zip(self._columns[one], self._columns[other], strict=True)
        return all(
            int(max(pair)) // 1_000_000 == int(min(pair)) for pair in (sorted(map(_number, two)) for two in pairs)
        )


def _most(fits: Callable[[str], object], values: Sequence[str]) -> bool:
    """Whether nearly all values fit: a client can write anything into some columns of its own lines."""
    others = (True for value in values if not fits(value))
    return not next(islice(others, len(values) - ceil(MOST * len(values)), None), False)


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0


# --- JSON and logfmt --------------------------------------------------------------------------------------------------

Sources = dict[str, tuple[FieldSource, ...]]
Columns = dict[tuple[str, ...], list[str]]
"""The values of each column, by its name, or by the keys that lead to it."""

JSON: Final = "json"
"""The map with the names of keys."""
_VERB: Final = re.compile(r"[A-Z]{3,16}")
_TARGET: Final = re.compile(r"(?:/|\*$|[a-z]+://)\S*|[^\s/]+/\S*")
_CODE: Final = re.compile(r"[1-9]\d\d|0{1,3}|-1")
TOOK: Final = re.compile(
    "(?:duration|dur|latency|elapsed|took|(?:response|request|taken|total|processing|execution|service|elapsed|run)?time"
    "|time(?:taken|elapsed)|total)(?:in)?(s|sec|seconds|ms|msec|millis|milliseconds|us|usec|micros|microseconds|ns|nsec|nanos|nanoseconds)"
)
_BEHIND: Final = re.compile("upstream|backend|origin|server|local|target|destination|service", re.IGNORECASE)
"""Keys of what a proxy asked itself."""
_BEGUN: Final = re.compile("start|begin|begun|received|request|reqtime|accepted")
_MAX_DEPTH: Final = 4
_MAX_PATHS: Final = 400


def named(columns: Columns) -> Sources:
    """The sources of fields whose keys are called as those of :data:`JSON`, however written and wherever they stand.

    ``clientIP``, ``client.ip`` and ``props.client-ip`` are all ``client_ip``. A key counts only if its values are of
    the kind: "status": "ok" is none.

    Args:
        columns: as of :func:`columns_of`.
    """
    called: dict[str, list[tuple[str, ...]]] = {}
    for path in sorted(columns, key=len):
        keys = [bare(key) for key in path if not key.isdigit()]
        for name in {"".join(keys[-1:]), "".join(keys[-2:])}:
            called.setdefault(name, []).append(path)
    found: Sources = {}
    for field, sources in built_in(JSON).fields.items():
        choices = {
            path: replace(source, path=path)
            for source in sources
            for path in called.get(bare("".join(source.path)), ())
            if _is_kind(field, source.unit, columns[path])
            and (field in _ANYWHERE or not _BEHIND.search(".".join(path[:-1])))
        }
        if field == "dur_us":
            for name, paths in called.items():
                if stated := TOOK.fullmatch(name):
                    unit = Unit({"m": "ms", "u": "us", "n": "ns", "s": "s"}[stated[1][0]])
                    for path in paths:
                        if _is_kind(field, unit, columns[path]) and not _BEHIND.search(".".join(path[:-1])):
                            choices.setdefault(path, FieldSource(path, unit))
        if choices:
            found[field] = tuple(choices.values())
    if "ts_us" not in found and (LEADING,) in columns:
        found["ts_us"] = (FieldSource((LEADING,), Unit.TIME),)
    return found


def columns_of(records: Sequence[dict[str, Any]]) -> Columns:
    """The values of each key of some records, as texts; of a list the first one."""
    columns: Columns = {}
    for record in records:
        for path, value in _leaves(record):
            if value not in ("", "-", "None", "null") and (path in columns or len(columns) < _MAX_PATHS):
                columns.setdefault(path, []).append(value)
    return columns


_ANYWHERE: Final = frozenset({"request", "method", "path", "ua", "node", "grpc"})


def begun(path: Sequence[str]) -> bool:
    """Whether a key is that of the time when a request began, as far as its name says."""
    return bool(_BEGUN.search(bare("".join(path[-2:]))))


def _leaves(record: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Path and text of each value of a JSON object, down to a depth; of a list the first one."""
    rest: list[tuple[tuple[str, ...], Any]] = [((), record)]
    while rest:
        path, found = rest.pop()
        if isinstance(found, dict):
            if len(path) < _MAX_DEPTH:
                keys = [key for key in found if key and not re.search(r"[\"\\`\x00-\x1f]", key)]
                rest += [((*path, key), found[key]) for key in reversed(keys)]
        elif isinstance(found, list):
            if found and isinstance(found[0], str):
                yield (*path, "0"), found[0]
        elif path and found is not None:
            yield path, str(found)


@lru_cache(4096)
def bare(key: str) -> str:
    """A key without the ways in which it may be written."""
    return re.sub("[^a-z0-9]", "", key.lower())


def _is_kind(field: str, unit: Unit | None, values: Sequence[str]) -> bool:
    match field:
        case "ts_us":
            return _most(_is_moment, values)
        case "dur_us":
            if unit is Unit.STATED:
                return _most(_STATED.fullmatch, values)
            numbers = [float(value) for value in values if _PLAIN.fullmatch(value)]
            # Seconds that are hours are no seconds.
            long = unit is not None and unit.micros is not None and median(numbers or [0]) * unit.micros > 3600e6
            return not long and _most(lambda value: _PLAIN.fullmatch(value) or _STATED.fullmatch(value), values)
        case "status":
            return _most(_CODE.fullmatch, values)
        case "method":
            return _most(_VERB.fullmatch, values)
        case "path":
            return _most(_TARGET.fullmatch, values)
        case "request":
            return _most(_HTTP.fullmatch, values)
        case "ip":
            return _most(lambda value: _IPS.fullmatch(value) or _ADDRESSED.match(value), values)
        case "bytes_out" | "bytes_in":
            return _most(_WHOLE.fullmatch, values)
    return True


def _is_moment(value: str) -> bool:
    if _is_time(value):
        return True
    number = _number(value)
    return any(9e8 * scale < number < 4.2e9 * scale for scale in (1, 1e3, 1e6, 1e9))


def pairs(line: bytes) -> dict[str, str] | None:
    """The values of a line of logfmt, ``at=info status=200 path="/a b"``; ``None`` if it is none."""
    text = line.decode("utf-8", "replace")
    found: dict[str, str] = {}
    for name, value in re.findall(PAIR, text):
        found.setdefault(name, value.strip('"'))
    if len(found) < 4:
        return None
    first = text.lstrip().partition(" ")[0]
    return {LEADING: first} | found if _is_time(first) else found


# --- a draft of a field map -------------------------------------------------------------------------------------------

_VERBS: Final = re.compile("GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|CONNECT|TRACE|PROPFIND|PURGE")
_ANSWER: Final = re.compile(r"[1-5]\d\d")
_EXACT: Final = re.compile(r":\d\d[.,]\d|^\[?(?:\d{10}\.\d|\d{13})")
"""A time with fractions of a second."""
_URL: Final = re.compile(r"/\S*|https?://\S+")
_MAX_SHOWN: Final = 60


class Draft:
    """The field map of lines of an unknown format, as far as names and values of columns tell it.

    Attributes:
        missing: fields that a map needs and that no column looks like. toml: its text.
        header: whether the first line names the columns.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        """Args: lines: some lines, none of them blank."""
        self._head, self._columns, self.header = _taken_apart(lines)
        self._fields: dict[str, str] = {}
        self._used: set[tuple[str, ...]] = set()
        for field, sources in named(self._columns).items():
            self._set(field, sources[0].path, unit=sources[0].unit)
        self._by_values()
        self.missing = [
            what
            for what, names in (("time", "ts_us"), ("status", "status"), ("method", "method"), ("path", "path"))
            if names not in self._fields and not (what in ("method", "path") and "request" in self._fields)
        ]
        self.toml = "\n".join(self._lines()) + "\n"

    def _set(self, field: str, *paths: tuple[str, ...], unit: Unit | None = None) -> None:
        """Takes columns for a field; several make up one value."""
        self._used |= set(paths)
        keys = list(paths[0]) if len(paths) == 1 else [path[0] for path in paths]
        plain = len(paths) == 1 and not any("." in key for key in keys)
        name = json.dumps(".".join(keys) if plain else keys)
        values = [value for path in paths for value in self._columns[path]]
        coarse = ", coarse = true" if field == "ts_us" and not any(map(_EXACT.search, values)) else ""
        more = f', unit = "{unit}"{coarse}' if unit else ""
        self._fields[field] = name if plain and not more else f"{{ from = {name}{more} }}"

    def _by_values(self) -> None:
        """Fields that no name tells: the first column whose values are of the kind."""

        def first(fits: Callable[[str], object], share: float = MOST) -> tuple[str, ...] | None:
            for path, values in self._columns.items():
                if path not in self._used and values and sum(map(bool, map(fits, values))) >= share * len(values):
                    return path
            return None

        places = list(self._columns)
        if "ts_us" not in self._fields and (path := first(_is_moment) or first(_DAY.fullmatch)):
            after = places[places.index(path) + 1 :][:1]
            parts = [
                one
                for one in after
                if _most(lambda value: _ZONE.fullmatch(value) or _HOUR.fullmatch(value), self._columns[one])
            ]
            if parts or not _most(_DAY.fullmatch, self._columns[path]):
                self._set("ts_us", path, *parts, unit=Unit.TIME)
        if not {"method", "request"} & self._fields.keys():
            for field, fits in (("request", _HTTP.fullmatch), ("method", _VERBS.fullmatch)):
                if field not in self._fields and "request" not in self._fields and (path := first(fits)):
                    self._set(field, path)
        for field, fits, share in (
            ("path", _URL.fullmatch, MOST), ("status", _ANSWER.fullmatch, MOST), ("ip", _IPS.fullmatch, MOST),
            ("ua", _AGENT.match, 0.5),
        ):  # fmt: skip
            asked = field == "path" and "request" in self._fields
            if field not in self._fields and not asked and (path := first(fits, share)):
                self._set(field, path)
        if "dur_us" not in self._fields and (path := first(_STATED.fullmatch)):
            self._set("dur_us", path, unit=Unit.STATED)

    def _lines(self) -> Iterator[str]:
        if self.missing:
            yield f"# No column looks like a {' or a '.join(self.missing)}: name it below, or add it to the log."
        yield from self._head
        for path, values in self._columns.items():
            shown = values[0][:_MAX_SHOWN].encode("unicode_escape").decode() if values else "-"
            yield f"# {'.'.join(path)}: {shown}"
        yield 'stamped = "end"  # or "start": which moment of a request the time is of'
        yield "[fields]"
        for field in ("ts_us", "request", "method", "path", "status", "dur_us", "bytes_out", "ip", "ua", "grpc"):
            if field in self._fields:
                yield f"{field} = {self._fields[field]}"
        for what in self.missing:
            unit = ' = { from = "…", unit = "time" }' if what == "time" else ' = "…"'
            yield f"# {'ts_us' if what == 'time' else what}{unit}"
        if "dur_us" not in self._fields:
            free = [path for path in self._columns if path not in self._used and self._columns[path]]
            numbers = [path for path in free if _most(_PLAIN.fullmatch, self._columns[path])]
            fractions = [path for path in numbers if any("." in value for value in self._columns[path])]
            likely = fractions or numbers
            place = json.dumps(".".join(likely[0])) if likely else '"…"'
            unit = "s" if fractions else "ms"
            yield f'# dur_us = {{ from = {place}, unit = "{unit}" }}  # if it is the duration'


def _taken_apart(lines: Sequence[bytes]) -> tuple[list[str], Columns, bool]:
    """The layout of lines in TOML, the values of each column, and whether the first line names the columns."""
    texts = [line.decode("utf-8", "replace") for line in lines]
    for layout, parse in (("json", _json), ("logfmt", pairs)):
        records = [record for line in lines if (record := parse(line))]
        if len(records) * 2 > len(lines):
            return [f'layout = "{layout}"'], columns_of(records), False
    for between in ('","', "\t", "|", ";", ","):
        count, often = Counter(text.count(between) for text in texts).most_common(1)[0]
        if count >= 3 and often >= MOST * len(texts):
            rows = [[cell.strip('"') for cell in text.split(between)] for text in texts if text.count(between) == count]
            header = not any(re.search(r"\d{3}", cell) for cell in rows[0]) and len(set(rows[0])) == len(rows[0])
            names = rows[0] if header else [f"c{place}" for place in range(1, count + 2)]
            head = ['layout = "table"', f"between = {json.dumps(between)}", f"columns = {json.dumps(names)}"]
            return head, _columns(names, rows[header:]), header
    cuts = [words for text in texts if (words := cut(text))]
    shape = Counter(tuple(quoted for _, quoted in words) for words in cuts).most_common(1)[0][0]
    names = [f"c{place}" for place in range(1, len(shape) + 1)]
    rows = [[word for word, _ in words] for words in cuts if tuple(quoted for _, quoted in words) == shape]
    return ['layout = "words"', f"columns = {json.dumps(names)}"], _columns(names, rows), False


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Columns:
    return {(name,): [row[place] for row in rows if row[place] not in ("-", "")] for place, name in enumerate(names)}


def _json(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
