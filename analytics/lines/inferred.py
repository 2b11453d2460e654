"""Lines of words whose columns nobody has named: nginx's and Apache's "combined", and what people append to it.

A server's administrator writes the format, and the log does not say it. But the values tell what they are: a time in
brackets, a quoted request with the status after it, addresses, a user agent. A column gets its meaning from *all*
sample lines of the most frequent shape, because one line misleads: a "-" may be anything, and of
``$upstream_response_time $request_time`` only the sum shows which is the whole (it is never less than its part).

A line is cut at its quotes, and what is not quoted at its spaces;
:func:`~tricklecast.analytics.lines.mapped.words` does the same in SQL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tricklecast.analytics.lines.mapped import FieldMap, Layout, Source, Unit

Word = tuple[str, bool]
"""A word, and whether it stands in quotes."""

_IP: Final = r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[?[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}\]?)"
_IPS: Final = re.compile(rf"(?:unknown|{_IP})(?:, ?(?:unknown|{_IP}))*,?")
_REQUEST: Final = re.compile(r"[A-Z]{2,16} \S.*")
_HTTP: Final = re.compile(r"[A-Z]{2,16} \S.* HTTP/\d(?:\.\d)?")
_CLF: Final = re.compile(r"\[?\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d([.,]\d+)?(?: ?[+-]\d{4})?\]?")
_ZONE: Final = re.compile(r"[+-]\d{2}:?\d{2}\]")
_ISO: Final = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?")
_MSEC: Final = re.compile(r"\[?\d{10}\.\d{3,6}\]?|\d{13}|\d{16}")
_STATUS: Final = re.compile(r"[1-9]\d\d|0|000|-")
_WHOLE: Final = re.compile(r"\d+")
_FRACTION: Final = re.compile(r"\d{1,8}\.(?:\d{3}|\d{6})")
_STATED: Final = re.compile(r"\d+(?:\.\d+)?(?:ns|us|\u00b5s|ms|s)")
_LABEL: Final = re.compile(r"(?:rt|request_time|req_time|reqtime|duration|dur|took|latency|elapsed)=")
_GRPC: Final = re.compile(r"grpc(?:[._-]?(?:status|code))?=")
_UPSTREAM: Final = re.compile(r"-|[\d.]+(?:(?: ?, ?| : )(?:-|[\d.]+))*")
_ID: Final = re.compile(r"[0-9a-f]{32}")
_AGENT: Final = re.compile(r"[\w.-]+/\d|Mozilla")
_LINK: Final = re.compile(r"(?:https?|android-app)://")

_LEAST_MICROS: Final = 20
"""Microseconds that no request of Apache's takes less than; whole seconds are less as a rule."""

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
            found += [(word, False) for word in run.strip().split(" ")]
        if len(found) > MAX_WORDS:
            break
    return found


def _is_time(word: str) -> bool:
    return bool(_CLF.fullmatch(word) or _ISO.fullmatch(word) or _MSEC.fullmatch(word))


def looks_like_request(line: bytes) -> bool:
    """Whether a line has what these formats all have: a time, and a status after something quoted."""
    words = cut(line.decode("utf-8", "replace"))
    quoted = next((place for place, (_, is_quoted) in enumerate(words) if is_quoted), None)
    return (
        quoted is not None
        and any(_is_time(word) for word, _ in words)
        and any(re.fullmatch(r"[1-9]\d\d|0|000", word) and not is_quoted for word, is_quoted in words)
        and any(is_quoted and _REQUEST.match(word) for word, is_quoted in words)
    )


class Missing(ValueError):
    """The lines have no column of a kind that a request needs; the message names it."""


def infer(
    name: str, gone: tuple[tuple[Source, tuple[str, ...]], ...], lines: Sequence[bytes]
) -> tuple[FieldMap, frozenset[int]]:
    """The field map of some lines, and which columns stand in quotes.

    Args:
        name: of the format. gone: statuses that say that the client left first.

    Raises:
        Missing: no time, no request or no status.
    """
    rows = [words for line in lines if (words := cut(line.decode("utf-8", "replace")))]
    telling = [words for words in rows if any(quoted and _REQUEST.match(word) for word, quoted in words)]
    telling = [words for words in telling if any(_is_time(word) for word, _ in words)] or telling
    if not telling:
        raise Missing('it has no quoted request ("GET /path HTTP/1.1")')
    (shape, _), *_ = Counter(tuple(quoted for _, quoted in words) for words in telling).most_common(1)
    sample = [words for words in telling if tuple(quoted for _, quoted in words) == shape]
    columns = [[words[place][0] for words in sample] for place in range(len(shape))]
    told = _Told(columns, shape)
    fields = told.fields()
    names = tuple(told.names[place] for place in range(len(shape)))
    found = FieldMap(name, Layout.WORDS, names, fields, gone=gone)
    return found, frozenset(place for place, quoted in enumerate(shape) if quoted)


class _Told:
    """Gives each column of a sample its meaning: one after the other takes its column, the surest first."""

    def __init__(self, columns: list[list[str]], quoted: tuple[bool, ...]) -> None:
        self._columns, self._quoted = columns, quoted
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

    def fields(self) -> dict[str, tuple[Source, ...]]:
        """The sources of each field.

        Raises:
            Missing: no time, no request or no status.
        """
        fields: dict[str, tuple[Source, ...]] = {}
        asked = [
            (sum(bool(_HTTP.fullmatch(value)) for value in self._columns[place]), -place)
            for place in self._free
            if self._quoted[place] and any(_REQUEST.match(value) for value in self._columns[place])
        ]
        request = -max(asked)[1]
        fields["request"] = (Source((self._take(request, "request"),)),)
        fields["ts_us"] = self._times()
        codes = [place for place in self._where(_STATUS.fullmatch) if not self._quoted[place]]
        after = [place for place in codes if place > request]
        codes = [
            place for place in after or codes if any(value[:1] in "12345" for value in self._columns[place])
        ] or after
        if not codes:
            raise Missing("it has no status after the request")
        status = codes[0]
        fields["status"] = (Source((self._take(status, "status"),)),)
        if status + 1 in self._where(_WHOLE.fullmatch, dash=True) and not self._quoted[status + 1]:
            fields["bytes_out"] = (Source((self._take(status + 1, "body_bytes_sent"),)),)
        self._agent(fields, request)
        self._address(fields, request)
        self._id(fields)
        if labelled := self._labelled(_GRPC, "grpc_status"):
            fields["grpc"] = (labelled,)
        self._duration(fields, status)
        return fields

    def _times(self) -> tuple[Source, ...]:
        """The finest first: whole seconds only where there is nothing else."""
        found = [Source((self._take(place, "msec"),), Unit.TIME) for place in self._where(_MSEC.fullmatch)[:1]]
        for place in self._where(lambda value: _CLF.fullmatch(value) or _ISO.fullmatch(value))[:1]:
            values = self._columns[place]
            path = [self._take(place, "time_local")]
            if place + 1 in self._free and _most(_ZONE.fullmatch, self._columns[place + 1]):
                path.append(self._take(place + 1, "zone"))
            fine = any(re.search(r":\d\d[.,]\d", value) for value in values)
            found.append(Source(tuple(path), Unit.TIME, coarse=not fine))
        if not found:
            raise Missing("it has no time ([09/Oct/2025:08:53:20 +0000], ISO 8601 or $msec)")
        return tuple(sorted(found, key=lambda source: source.coarse))

    def _agent(self, fields: dict[str, tuple[Source, ...]], request: int) -> None:
        """Of two texts after the request, the one with links is the referer."""

        def is_text(place: int) -> bool:
            given = [value for value in self._columns[place] if value != "-"]
            return not given or not all(_IPS.fullmatch(value) or _UPSTREAM.fullmatch(value) for value in given)

        def links(place: int) -> bool:
            return any(map(_LINK.match, self._columns[place]))

        def agents(place: int) -> bool:
            return any(map(_AGENT.match, self._columns[place]))

        quoted = [place for place in sorted(self._free) if place > request and self._quoted[place]]
        texts = list(filter(is_text, quoted))[:2]
        if not texts:
            return
        agent = texts[-1]
        if len(texts) == 2 and (links(texts[1]) or (agents(texts[0]) and not agents(texts[1]) and not links(texts[0]))):
            agent = texts[0]
        elif len(texts) == 1 and links(agent):
            self._take(agent, "http_referer")
            return
        fields["ua"] = (Source((self._take(agent, "http_user_agent"),)),)
        for place in texts:
            if place != agent:
                self._take(place, "http_referer")

    def _address(self, fields: dict[str, tuple[Source, ...]], request: int) -> None:
        """Behind a balancer, the connection has the balancer's address: a forwarded one is the client's, and wins."""
        agent = next((place for place, name in self.names.items() if name == "http_user_agent"), None)
        forwarded, direct = list[int](), list[int]()
        for place in sorted(self._free):
            values = [value for value in self._columns[place] if value not in ("-", "")]
            if not _most(_IPS.fullmatch, values):
                continue
            if place > request:
                listed = any("," in value for value in values)
                behind = agent is not None and place == agent + 1 and self._quoted[place]
                if (values and listed) or behind:
                    forwarded.append(place)
            elif values:
                direct.append(place)
        sources = [Source((self._take(place, "http_x_forwarded_for"),)) for place in forwarded[:1]]
        for number, place in enumerate(direct):
            last = number == len(direct) - 1
            sources.append(Source((self._take(place, "remote_addr" if last else f"forwarded_{number + 1}"),)))
        if not direct and 0 in self._free and not self._quoted[0] and request > 0:
            # Apache may look up names. After a virtual host's name and port comes the client's.
            place = 1 if re.fullmatch(r"\S+:\d+", self._columns[0][0]) and 1 in self._free else 0
            sources.append(Source((self._take(place, "remote_addr"),)))
        if sources:
            fields["ip"] = tuple(sources)

    def _id(self, fields: dict[str, tuple[Source, ...]]) -> None:
        """An id that one request has: one that two lines share is a trace's, or the client's."""
        for place in self._where(_ID.fullmatch)[:1]:
            values = self._columns[place]
            if len(set(values)) == len(values):
                fields["request_id"] = (Source((self._take(place, "request_id"),)),)

    def _labelled(self, label: re.Pattern[str], name: str) -> Source | None:
        """The column that has a label: ``rt=0.020`` or ``rt="0.020"``, whose value is the next column."""
        for place in self._where(label.match):
            self._take(place, name)
            if place + 1 in self._free and self._quoted[place + 1] and self._columns[place][0].endswith("="):
                return Source((self._take(place + 1, f"{name}_value"),))
            return Source((name,), split=("=", 2))
        return None

    def _duration(self, fields: dict[str, tuple[Source, ...]], status: int) -> None:
        if labelled := self._labelled(_LABEL, "request_time"):
            fields["dur_us"] = (replace(labelled, unit=Unit.S),)
            return
        if stated := self._where(_STATED.fullmatch, after=status, dash=True):
            fields["dur_us"] = (Source((self._take(stated[-1], "request_time"),), Unit.STATED),)
            return
        if fractions := self._where(_FRACTION.fullmatch, after=status, dash=True):
            sums = {place: sum(map(_number, self._columns[place])) for place in fractions}
            best = max(fractions, key=lambda place: (sums[place], "-" not in self._columns[place], -place))
            fields["dur_us"] = (Source((self._take(best, "request_time"),), Unit.S),)
            return
        numbers = [place for place in self._where(_WHOLE.fullmatch, after=status) if not self._quoted[place]]
        if len(numbers) == 1 or (len(numbers) == 2 and self._same(*numbers)):
            place = max(numbers, key=lambda one: sum(map(_number, self._columns[one])))
            micros = len(numbers) == 2 or min(map(_number, self._columns[place])) >= _LEAST_MICROS
            unit = Unit.US if micros else Unit.S
            fields["dur_us"] = (Source((self._take(place, "request_time"),), unit),)

    def _same(self, one: int, other: int) -> bool:
        """Whether two columns are the seconds and the microseconds of one duration."""
        pairs = zip(self._columns[one], self._columns[other], strict=True)
        return all(
            int(max(pair)) // 1_000_000 == int(min(pair)) for pair in (sorted(map(_number, two)) for two in pairs)
        )


def _most(fits: Callable[[str], object], values: Sequence[str]) -> bool:
    """Whether nearly all values fit: a client can write anything into some columns of its own lines."""
    return sum(bool(fits(value)) for value in values) >= MOST * len(values)


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0
