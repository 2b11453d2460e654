"""Text to numbers and times, as Spark columns. What does not fit is null: a foreign line may hold anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.sources.fieldmap import Unit

if TYPE_CHECKING:
    from pyspark.sql import Column

_CLF: Final = "dd/MMM/yyyy:HH:mm:ss Z"
_FALSE: Final = ("", "-", "0", "false", "null")
_NOT_BARE: Final = r"[\[,]|\.\d+:"
"""A list, brackets, or a port after an IPv4 address."""

_MAX_RELEASE: Final = 64
"""As the server cuts it."""


def quantity(text: Column, unit: Unit, per: int = 1) -> Column:
    """A number with a unit as a whole number.

    Args:
        text: the number, as text.
        unit: what it counts; not a date.
        per: microseconds per unit of the result: 1 or 1,000.
    """
    from pyspark.sql import functions as F

    assert unit.micros is not None
    # What is no number, or none that fits, is null. Casting it to find that out costs an exception per line, ten times
    # what reading a number costs, and most lines have nothing in some field; numbers of ours begin with a digit.
    digits = F.when(F.ascii(text).between(ord("0"), ord("9")), text)
    # A cast to an integer cuts, and is cheap; F.round() takes a detour over decimals.
    return (digits.try_cast("double") * (unit.micros / per) + 0.5).try_cast("long")


def moment(text: Column, unit: Unit) -> Column:
    """A time as microseconds since the epoch."""
    from pyspark.sql import functions as F

    match unit:
        case Unit.ISO:
            return F.unix_micros(text.try_cast("timestamp"))
        case Unit.CLF:
            return F.unix_micros(F.try_to_timestamp(F.translate(text, "[]", ""), F.lit(_CLF)))
        case _:
            return quantity(text, unit)


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
    inner = F.substring_index(F.substring_index(first, "]", 1), "[", -1)
    bare = F.when(F.startswith(first, F.lit("[")), inner).otherwise(F.substring_index(first, ":", 1))
    return F.when(text.rlike(_NOT_BARE), bare).otherwise(text)


def identity(text: Column) -> Column:
    """A number for a connection: its own, or one made from its text."""
    from pyspark.sql import functions as F

    return F.coalesce(text.try_cast("long"), F.when(text.isNotNull(), F.xxhash64(text)))


def product(ua: Column) -> Column:
    """A user agent's first ``product/version``."""
    from pyspark.sql import functions as F

    return F.substring(F.substring_index(ua, " ", 1), 1, _MAX_RELEASE)
