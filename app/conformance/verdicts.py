"""How a case can end other than by passing."""

from __future__ import annotations

from typing import Final

_SHOWN_BYTES: Final = 200


class Failure(Exception):
    """The server did something else than the rule says.

    Attributes:
        expected: what the rule asks for.
        got: what came instead, shortened.
    """

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(expected, got)
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return f"expected {self.expected}, got {self.got}"


class Skip(Exception):
    """The case cannot tell, for the reason given; neither passed nor failed."""


def shorten(data: bytes, limit: int = _SHOWN_BYTES) -> str:
    """Bytes for people: printable, with the middle left out and counted when there are too many."""
    if len(data) <= limit:
        return repr(data)[1:]
    half = limit // 2
    return f"{repr(data[:half])[1:]}… {len(data) - limit} bytes …{repr(data[-half:])[1:]}"
