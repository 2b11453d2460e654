"""Pieces of DuckDB's SQL that formats and records share.

Texts of the log come in as columns, never as part of the SQL. A value from a log may be anything: the expressions here
give null for what does not fit, and never raise an error.
"""

from __future__ import annotations

from typing import Final


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


def known(value: str) -> str:
    """Text, or null where a log writes ``-`` or nothing for what it does not know."""
    return f"nullif(nullif({value}, '-'), '')"


def flag(value: str) -> str:
    """Whether there is something that does not mean no, from text; null stays null."""
    return f"lower({value}) NOT IN ('', '-', '0', 'false', 'null')"


def cut(value: str, characters: int) -> str:
    """The beginning of a text. Cutting copies what is short enough, too, so that is asked first."""
    return f"CASE WHEN strlen({value}) > {characters} THEN left({value}, {characters}) ELSE {value} END"


_DATE: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?"


def iso_us(value: str) -> str:
    """Microseconds since 1970 of an ISO 8601 date and time, UTC if it names no zone.

    Not in the session's time zone, which belongs to the user.
    """
    zoned = f"regexp_matches({value}, '{_DATE}(Z|[+-][0-9]{{2}}:[0-9]{{2}})$')"
    bare = f"regexp_matches({value}, '{_DATE}$')"
    stamp = f"CASE WHEN {zoned} THEN {value} WHEN {bare} THEN {value} || 'Z' END"
    return f"epoch_us(try_cast({stamp} AS TIMESTAMPTZ))"


def clf_us(value: str) -> str:
    """Microseconds since 1970 of ``09/Oct/2025:08:53:20 +0000``, brackets around it allowed."""
    bare = f"translate({value}, '[]', '')"
    form = "^[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4}$"
    stamp = f"CASE WHEN regexp_matches({bare}, '{form}') THEN {bare} END"
    return f"epoch_us(try_strptime({stamp}, '%d/%b/%Y:%H:%M:%S %z'))"


def address(value: str) -> str:
    """The first IP address of a list, without port and brackets."""
    first = f"trim(split_part({value}, ',', 1))"
    inner = f"replace(split_part({first}, ']', 1), '[', '')"
    bare = f"CASE WHEN left({first}, 1) = '[' THEN {inner} ELSE split_part({first}, ':', 1) END"
    port = f"regexp_matches({value}, '[.][0-9]+:')"
    odd = f"instr({value}, ',') > 0 OR left({value}, 1) = '[' OR {port}"
    return f"CASE WHEN {odd} THEN {bare} ELSE {value} END"
