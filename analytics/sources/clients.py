"""Whom a line is from: ``--client-key``.

A key is a list of choices between commas, the first that a line has counts; a choice is one field, or several joined
by ``+``: ``client,ip+ua``. ``ua`` is shortened to a checksum, the others stand as they are, so that a client can be
found in the log again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tricklecast.analytics.sources.fieldmap import BadFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

ClientKey = tuple[tuple[str, ...], ...]
"""Choices of fields."""

OWN: Final[ClientKey] = (("client",),)
"""Our own log names the client itself."""

DEFAULT: Final[ClientKey] = (("client",), ("ip", "ua"))
"""A proxy's log: the client's own name if the log has it, else address and user agent, as the server does it."""

MAX_CLIENT: Final = 256


def parse_client_key(text: str) -> ClientKey:
    """Reads a ``--client-key``.

    Raises:
        BadFormat: a choice or a field is empty.
    """
    key = tuple(tuple(part.strip() for part in choice.split("+")) for choice in text.split(","))
    if not all(part for choice in key for part in choice):
        raise BadFormat(f"client key {text!r} has an empty part; expected something like ip+ua")
    return key


def client_column(key: ClientKey, column: Callable[[str], Column]) -> Column:
    """The client of a line.

    Args:
        column: gives the column of a field's name.
    """
    from pyspark.sql import functions as F

    return F.substring(F.coalesce(*(_choice(choice, column) for choice in key)), 1, MAX_CLIENT)


def _choice(choice: tuple[str, ...], column: Callable[[str], Column]) -> Column:
    from pyspark.sql import functions as F

    # Without its first field it is no choice; the others only tell apart those that share the first.
    return F.concat(column(choice[0]), *(F.coalesce(_part(name, column(name)), F.lit("")) for name in choice[1:]))


def _part(name: str, value: Column) -> Column:
    from pyspark.sql import functions as F

    if name == "ua":
        return F.concat(F.lit("#"), F.lower(F.hex(F.crc32(F.encode(value, "UTF-8")))))
    return F.concat(F.lit("+"), value)
