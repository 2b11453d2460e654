"""Pieces of DuckDB's SQL that formats and records share.

Texts of the log come in as columns, never as part of the SQL. A value from a log may be anything: the expressions here
give null for what does not fit, and never raise an error.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def asked(sql: str, value: Any) -> list[tuple[Any, ...]]:
    """The rows of a query without tables.

    Raises:
        ValueError: DuckDB refuses it.
    """
    import duckdb

    try:
        with _database().cursor() as con:
            return con.execute(sql, [value]).fetchall()
    except duckdb.Error as error:
        raise ValueError(str(error)) from error


@cache
def _database() -> DuckDBPyConnection:
    """An empty database that stays open, since it takes 10 ms to open one."""
    import duckdb

    return duckdb.connect(config={"threads": 1})


def text(value: str) -> str:
    """A SQL text."""
    return "'" + value.replace("'", "''") + "'"


def whole(value: str, factor: float = 1.0) -> str:
    """A whole number as BIGINT, from text: a multiple of it, rounded; null if it is no number.

    Exact up to 2**53, which every column that there is stays below. A fraction without a factor is cut off.
    """
    # Infinity and NaN are numbers to DuckDB.
    number = f"CASE WHEN {value} BETWEEN '-' AND '9~' THEN try_cast({value} AS DOUBLE) END"
    scaled = number if factor == 1.0 else f"{number} * {factor:.9f}e0 + 0.5e0"
    return f"try_cast(trunc({scaled}) AS BIGINT)"


_GRPC: Final = (
    "ok", "canceled", "unknown", "invalidargument", "deadlineexceeded", "notfound", "alreadyexists", "permissiondenied",
    "resourceexhausted", "failedprecondition", "aborted", "outofrange", "unimplemented", "internal", "unavailable",
    "dataloss", "unauthenticated",
)  # fmt: skip
"""gRPC's statuses in the order of their numbers."""


def grpc_code(value: str) -> str:
    """The number of a gRPC status: ``14``, ``UNAVAILABLE``, ``DeadlineExceeded``, ``Cancelled``; null for all else."""
    name = f"replace(replace(lower({value}), '_', ''), 'cancelled', 'canceled')"
    return f"coalesce({whole(value)}, nullif(list_position([{', '.join(map(text, _GRPC))}], {name}), 0) - 1)"


def known(value: str) -> str:
    """Text, or null where a log writes ``-`` or nothing for what it does not know."""
    return f"nullif(nullif({value}, '-'), '')"


def flag(value: str) -> str:
    """Whether there is something that does not mean no, from text; null stays null."""
    return f"lower({value}) NOT IN ('', '-', '0', 'false', 'null')"


def cut(value: str, characters: int) -> str:
    """The beginning of a text. Cutting copies what is short enough, too, so that is asked first."""
    return f"CASE WHEN strlen({value}) > {characters} THEN left({value}, {characters}) ELSE {value} END"


_DATE: Final = "[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.,][0-9]{1,9})?"
_USUAL: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$"
_ZONE: Final = "[+-][0-9]{2}(:?[0-9]{2})?"


def _bare(value: str) -> str:
    """A text without brackets; translate() takes three times as long."""
    return f"replace(replace({value}, '[', ''), ']', '')"


def iso_us(value: str) -> str:
    """Microseconds since 1970 of a date and time, ISO 8601 and what loggers make of it; UTC if it names no zone.

    ``2025-10-09T08:53:20.250Z``, ``… 08:53:20,250 +0200``, ``2025/10/09 08:53:20``, brackets around it allowed. Not in
    the session's time zone, which belongs to the user.
    """
    bare = _bare(value)
    date = f"translate(left({bare}, 10), '/', '-')"
    time = f"replace(regexp_extract(substr({bare}, 12), '^[0-9:]{{8}}([.,][0-9]+)?'), ',', '.')"
    zone = f"replace(regexp_extract(substr({bare}, 12), '{_ZONE}$'), ':', '')"
    hours, minutes = f"left({zone}, 3)", f"substr({zone}, 4, 2)"
    offset = f"coalesce(nullif({hours}, ''), '+00') || ':' || coalesce(nullif({minutes}, ''), '00')"
    other = f"{date} || 'T' || {time} || {offset}"
    odd = f"regexp_matches({bare}, '^{_DATE} ?([Zz]|UTC|GMT|{_ZONE})?$')"
    stamp = f"CASE WHEN regexp_matches({value}, '{_USUAL}') THEN {value} WHEN {odd} THEN {other} END"
    return f"epoch_us(try_cast({stamp} AS TIMESTAMPTZ))"


def clf_us(value: str) -> str:
    """Microseconds since 1970 of ``09/Oct/2025:08:53:20 +0000``, with a fraction, without a zone (then UTC), or with a
    space before the hour as well; brackets around it allowed."""
    bare = _bare(value)
    form = "^[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}[: ][0-9]{2}:[0-9]{2}:[0-9]{2}"
    usual = f"CASE WHEN regexp_matches({bare}, '{form.replace(': ', ':', 1)} [+-][0-9]{{4}}$') THEN {bare} END"
    odd = f"regexp_matches({bare}, '{form}([.,][0-9]{{1,9}})?( ?(Z|{_ZONE}))?$')"
    zone = f"coalesce(nullif(replace(regexp_extract({bare}, '[+-][0-9]{{2}}:?[0-9]{{2}}$'), ':', ''), ''), '+0000')"
    stamp = f"CASE WHEN {odd} THEN left({bare}, 11) || ':' || substr({bare}, 13, 8) || ' ' || {zone} END"
    fraction = f"CAST(rpad(regexp_extract({bare}, '[.,]([0-9]{{1,6}})', 1), 6, '0') AS BIGINT)"
    pattern = "'%d/%b/%Y:%H:%M:%S %z'"
    return (
        f"coalesce(epoch_us(try_strptime({usual}, {pattern})), epoch_us(try_strptime({stamp}, {pattern})) + {fraction})"
    )


def epoch_us(value: str) -> str:
    """Microseconds since 1970 of a number since then; its size says whether it counts s, ms, µs or ns.

    Seconds have less than twelve digits until the year 5138, and milliseconds have as many from 1973 on.
    """
    sized = [(1e11, 1e6), (1e14, 1e3), (1e17, 1.0)]
    number = whole(value)
    cases = " ".join(f"WHEN {number} < {limit:.0f} THEN {whole(value, factor)}" for limit, factor in sized)
    return f"CASE {cases} ELSE {whole(value, 1e-3)} END"


def time_us(value: str) -> str:
    """Microseconds since 1970 of a time in any of these forms, brackets around it allowed."""
    clf = f"instr(left({value}, 4), '/') IN (3, 4)"
    date = f"regexp_matches({value}, '^[[]?[0-9]{{4}}[-/]')"
    number = f"CASE WHEN left({value}, 1) = '[' OR right({value}, 1) = ']' THEN {_bare(value)} ELSE {value} END"
    return f"CASE WHEN {date} THEN {iso_us(value)} WHEN {clf} THEN {clf_us(value)} ELSE {epoch_us(number)} END"


_UNITS: Final = (
    ("h", 3600e6),
    ("m", 60e6),
    ("s", 1e6),
    ("ms", 1e3),
    ("[u\u00b5\u03bc]s", 1.0),
    ("ns", 1e-3),
)


def duration(value: str, micros: float | None, per: int = 1) -> str:
    """A duration or a time since 1970 as BIGINT: a number, or one with its unit, ``20ms``, ``1m30.5s``, ``PT1M30.5S``.

    Args:
        micros: microseconds per unit of a number without one; ``None`` where such a number has no meaning.
        per: microseconds per unit of the result.
    """
    anything = "|".join(name for name, _ in _UNITS)
    parts = " + ".join(
        f"coalesce(try_cast(nullif(regexp_extract({value}, '([0-9.]+) ?{name}([0-9]|$)', 1, 'i'), '') AS DOUBLE), 0)"
        f" * {scale:.9f}e0"
        for name, scale in _UNITS
    )
    stated = f"CASE WHEN regexp_matches({value}, '^(PT)?([0-9]+([.][0-9]+)? ?({anything}))+$', 'i') THEN {parts} END"
    stated = f"try_cast(trunc(({stated}) / {per}e0 + 0.5e0) AS BIGINT)"
    return stated if micros is None else f"coalesce({whole(value, micros / per)}, {stated})"


_ADDRESS: Final = "[0-9]{1,3}([.][0-9]{1,3}){3}"
_GROUP: Final = "[0-9A-Fa-f]{1,4}"
_SOME: Final = f"({_GROUP}:){{0,6}}({_GROUP})?"
_ADDRESS6: Final = f"({_GROUP}:){{7}}{_GROUP}|{_SOME}::{_SOME}"
"""Eight groups, or fewer around "::"; 08:53:20 is none."""


def address(value: str, *, strict: bool = False) -> str:
    """The first IP address of a list, without port, brackets and zone; ``::ffff:192.0.2.7`` is ``192.0.2.7``.

    ``2001:db8::7, 10.0.0.1``, ``[2001:db8::7]:443``, ``192.0.2.7:443`` and ``for="[2001:db8::7]";proto=https`` (RFC
    7239) are all read. What has no address in it stays as it is, as a host's name may: :data:`strict` makes it null. A
    socket, ``unix:``, and ``unknown`` are nobody.
    """
    plain = f"regexp_matches({value}, '^{_ADDRESS}$')"
    found = (
        f"regexp_extract({value}, '(^|[ ,=\"\\[])(::ffff:)?({_ADDRESS})(]?:[0-9]+)?($|[] ,;\"])', 3)",
        f"regexp_extract({value}, '(^|[ ,=\"\\[])({_ADDRESS6})($|[] ,;%\"])', 2)",
    )
    # The one that comes first.
    first = f"split_part({value}, ',', 1)"
    both = ", ".join(f"nullif({one.replace(value, first, 1)}, '')" for one in found)
    anywhere = ", ".join(f"nullif({one}, '')" for one in found)
    odd = f"regexp_matches({value}, '[ ,:;=\"\\[]')"
    nobody = f"instr({value}, ',') > 0 OR regexp_matches({value}, '^(unix:.*|@.*|unknown)$')"
    rest = "CAST(NULL AS STRING)" if strict else f"CASE WHEN NOT ({nobody}) THEN {value} END"
    return f"CASE WHEN {plain} THEN {value} WHEN {odd} THEN coalesce({both}, {anywhere}, {rest}) ELSE {rest} END"
