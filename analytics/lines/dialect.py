"""SQL that both engines run: DuckDB ("embedded") and Spark.

Everything that is said about a line is one SQL text for both. Functions that the two engines call by different names
stand in :data:`DIFFERENT`, and nowhere else. Texts of the log come in as columns, never as part of the SQL.

A value from a log may be anything. The expressions here give null for what does not fit, and never raise an error; both
engines must agree, so only what both read alike is accepted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Engine(StrEnum):
    """What runs the SQL."""

    EMBEDDED = "embedded"
    """DuckDB, in this process."""
    SPARK = "spark"


DIFFERENT: Final[dict[str, tuple[str, str]]] = {
    # name: (DuckDB, Spark)
    "iso_us": ("epoch_us(try_cast({0} AS TIMESTAMPTZ))", "unix_micros(try_cast({0} AS TIMESTAMP))"),
    "clf_us": (
        "epoch_us(try_strptime({0}, '%d/%b/%Y:%H:%M:%S %z'))",
        "unix_micros(try_to_timestamp({0}, 'dd/MMM/yyyy:HH:mm:ss Z'))",
    ),
    "matches": ("regexp_matches({0}, {1})", "regexp_like({0}, {1})"),
    "bytes": ("strlen({0})", "octet_length({0})"),
    "item": ("({0})[{1}]", "try_element_at({0}, {1})"),
    "one_slash": ("regexp_replace({0}, '/+', '/', 'g')", "regexp_replace({0}, '/+', '/')"),
    # In a path a plus is a plus; only in forms it is a space. DuckDB leaves it alone.
    "decoded": ("try(url_decode({0}))", "coalesce(try_url_decode(replace({0}, '+', '%2B')), {0})"),
    # Infinity and NaN are numbers to both, "1d" only to Java, and so is "0x1p3".
    "number": (
        "CASE WHEN {0} BETWEEN '-' AND '9~' THEN try_cast({0} AS DOUBLE) END",
        "CASE WHEN {0} BETWEEN '-' AND '9~' AND right({0}, 1) NOT IN ('d', 'D', 'f', 'F') AND instr({0}, 'x') = 0"
        " THEN try_cast({0} AS DOUBLE) END",
    ),
    "whole_part": ("try_cast(trunc({0}) AS BIGINT)", "try_cast({0} AS BIGINT)"),
    # Spark's optimiser copies an expression to wherever its value is used, and runs it as often: a line would be parsed
    # once for each of its fields. It leaves alone what could have another value each time.
    "once": ("{0}", "CASE WHEN rand() >= 0 THEN {0} END"),
    "plain_end": ("rtrim({0}, chr(13) || chr(10))", "rtrim(chr(13), {0})"),
}
"""Functions whose names or arguments differ."""


def call(engine: Engine, name: str, *arguments: str) -> str:
    """SQL for one of :data:`DIFFERENT`.

    Args:
        name: of the function; arguments: SQL expressions.
    """
    embedded, spark = DIFFERENT[name]
    return (embedded if engine is Engine.EMBEDDED else spark).format(*arguments)


def text(value: str) -> str:
    """A SQL text; the engines differ in what a backslash in one means, so it is put together from its code."""
    return " || chr(92) || ".join(f"'{part}'" for part in value.replace("'", "''").split("\\"))


def whole(engine: Engine, value: str, factor: float = 1.0) -> str:
    """A whole number as BIGINT, from text: a multiple of it, rounded; null if it is no number.

    Exact up to 2**53, which every column that there is stays below. A fraction without a factor is cut off.
    """
    number = call(engine, "number", value)
    scaled = number if factor == 1.0 else f"{number} * {factor:.9f}e0 + 0.5e0"
    return call(engine, "whole_part", scaled)


def known(value: str) -> str:
    """Text, or null where a log writes ``-`` or nothing for what it does not know."""
    return f"nullif(nullif({value}, '-'), '')"


def flag(value: str) -> str:
    """Whether there is something that does not mean no, from text; null stays null."""
    return f"lower({value}) NOT IN ('', '-', '0', 'false', 'null')"


def cut(engine: Engine, value: str, characters: int) -> str:
    """The beginning of a text. Cutting copies what is short enough, too, so that is asked first."""
    return f"CASE WHEN {call(engine, 'bytes', value)} > {characters} THEN left({value}, {characters}) ELSE {value} END"


_DATE: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?"


def iso_us(engine: Engine, value: str) -> str:
    """Microseconds since 1970 of an ISO 8601 date and time, UTC if it names no zone.

    Not in the session's time zone, which belongs to the user.
    """
    zoned = call(engine, "matches", value, f"'{_DATE}(Z|[+-][0-9]{{2}}:[0-9]{{2}})$'")
    bare = call(engine, "matches", value, f"'{_DATE}$'")
    stamp = f"CASE WHEN {zoned} THEN {value} WHEN {bare} THEN {value} || 'Z' END"
    return call(engine, "iso_us", stamp)


def clf_us(engine: Engine, value: str) -> str:
    """Microseconds since 1970 of ``09/Oct/2025:08:53:20 +0000``, brackets around it allowed."""
    bare = f"translate({value}, '[]', '')"
    fits = call(engine, "matches", bare, "'^[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4}$'")
    return call(engine, "clf_us", f"CASE WHEN {fits} THEN {bare} END")


def address(engine: Engine, value: str) -> str:
    """The first IP address of a list, without port and brackets."""
    first = f"trim(split_part({value}, ',', 1))"
    inner = f"replace(split_part({first}, ']', 1), '[', '')"
    bare = f"CASE WHEN left({first}, 1) = '[' THEN {inner} ELSE split_part({first}, ':', 1) END"
    port = call(engine, "matches", value, "'[.][0-9]+:'")
    odd = f"instr({value}, ',') > 0 OR left({value}, 1) = '[' OR {port}"
    return f"CASE WHEN {odd} THEN {bare} ELSE {value} END"
