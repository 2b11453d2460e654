"""Texts of unknown origin, made safe to show.

Names in a log come from whoever sent the requests: control characters, escape sequences, characters that turn the
direction of writing, invisible ones, letters under towers of accents. All of them are spelled out, never obeyed.
"""

from __future__ import annotations

import unicodedata
from typing import Final

MAX_NAME: Final = 40
"""Characters of a name that are shown in a row; of longer ones the beginning."""

MAX_MARKS: Final = 3
"""Combining marks in a row that living scripts need; more of them cover the neighbouring lines."""

_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Characters that Unicode counts as letters or symbols and that nobody can see."""


def plain(value: str | None, limit: int = MAX_NAME) -> str:
    r"""A text of unknown origin as something that is safe to print: what cannot be seen is spelled out; cut.

    >>> plain("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    if value is None:
        return "-"
    shown = spelled(value[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def spelled(value: str) -> str:
    """The same text with everything that is not plainly visible as an escape sequence, uncut."""
    if value.isascii() and value.isprintable():
        return value
    parts: list[str] = []
    marks = 0
    for char in value:
        category = unicodedata.category(char)[0]
        marks = marks + 1 if category == "M" else 0
        hidden = category in "CZ" or marks > MAX_MARKS or char in _BLANK
        parts.append(_escape(char) if hidden and char != " " else char)
    return "".join(parts)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")
