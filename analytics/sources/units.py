"""Text to numbers and times, as Spark columns. What does not fit is null: a foreign line may hold anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from analytics.sources.fieldmap import Unit

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_MICROS: Final = 4_102_444_800_000_000
"""2100-01-01, microseconds: beyond it nothing is a time or a duration, and no cast can overflow below it."""

_CLF: Final = "dd/MMM/yyyy:HH:mm:ss Z"
_FALSE: Final = ("", "-", "0", "false", "null")
_MAX_RELEASE: Final = 64
"""As the server cuts it."""


def quantity(text: Column, unit: Unit, per: int) -> Column:
    """A number with a unit as a whole number.

    Args:
        text: the number, as text.
        unit: what it counts; not a date.
        per: microseconds per unit of the result: 1 or 1,000.
    """
    from pyspark.sql import functions as F

    assert unit.micros is not None
    number = text.try_cast("double") * (unit.micros / per)
    # NaN is greater than every number, for Spark.
    return F.when(number.between(0, MAX_MICROS), F.round(number).cast("long"))


def moment(text: Column, unit: Unit) -> Column:
    """A time as microseconds since the epoch."""
    from pyspark.sql import functions as F

    match unit:
        case Unit.ISO:
            # A number would be taken for a year.
            return F.when(F.length(text) >= 16, F.unix_micros(text.try_cast("timestamp")))
        case Unit.CLF:
            return F.unix_micros(F.try_to_timestamp(F.translate(text, "[]", ""), F.lit(_CLF)))
        case _:
            return quantity(text, unit, 1)


def whole(text: Column, kind: str) -> Column:
    """An integer of Spark's type ``kind``."""
    return text.try_cast(kind)


def flag(text: Column) -> Column:
    """Whether there is something that does not mean no; null if there is nothing."""
    from pyspark.sql import functions as F

    return ~F.lower(text).isin(*_FALSE)


def known(text: Column) -> Column:
    """Text, or null where a log writes ``-`` or nothing for what it does not know."""
    from pyspark.sql import functions as F

    return F.when(~text.isin("", "-"), text)


def address(text: Column) -> Column:
    """The first IP address of a list, without port and brackets."""
    from pyspark.sql import functions as F

    first = F.trim(F.substring_index(text, ",", 1))
    dotted = F.contains(first, F.lit("."))
    bracketed = F.startswith(first, F.lit("["))
    inner = F.substring_index(F.substring_index(first, "]", 1), "[", -1)
    return F.when(bracketed, inner).when(dotted, F.substring_index(first, ":", 1)).otherwise(first)


def identity(text: Column) -> Column:
    """A number for a connection: its own, or one made from its text."""
    from pyspark.sql import functions as F

    return F.coalesce(text.try_cast("long"), F.when(text.isNotNull(), F.xxhash64(text)))


def product(ua: Column) -> Column:
    """A user agent's first ``product/version``."""
    from pyspark.sql import functions as F

    return F.substring(F.substring_index(ua, " ", 1), 1, _MAX_RELEASE)
