"""The query language of facts: ``channel = 'a*' AND kind = 'closed' AND bytes > 1000``.

docs/reference/changes.md has the grammar. A query without terms is true of everything. A term is false of a fact that
lacks its field, with ``!=`` too.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tricklecast.trickle.errors import InvalidInput

MAX_LENGTH: Final = 1024
"""Characters of a query."""

MAX_TERMS: Final = 16
"""A query is judged for every fact."""

MAX_DIGITS: Final = 18
"""Before and after the point of a number."""

_TOKEN: Final = re.compile(
    r"""\s* (?: (?P<text> ' (?: [^'\\] | \\['*\\] )* ')
              | (?P<number> -?[0-9]+ (?:\.[0-9]+)? )
              | (?P<word> [A-Za-z_][A-Za-z0-9_]* )
              | (?P<sign> != | <= | >= | = | < | > ) )""",
    re.VERBOSE | re.ASCII,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EXISTS: Final = "EXISTS"
_AND: Final = "AND"


class InvalidQuery(InvalidInput):
    """A query does not follow the grammar, or compares a field with a value of another type.

    Attributes:
        position: of the first character that is wrong, counted from 0.
    """

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem}, at character {position + 1} of the query")
        self.position = position


class Term(NamedTuple):
    """One condition.

    Attributes:
        field: its name. sign: ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` or ``EXISTS``.
        value: the field is compared with it; ``None`` for ``EXISTS``. prefix: a text need only begin with the value.
    """

    field: str
    sign: str
    value: str | int | float | None = None
    prefix: bool = False

    def judge(self, value: object) -> bool:
        """Whether the term is true for this value of its field; ``None``: the object has no such value."""
        if value is None:
            return False
        if self.sign == _EXISTS:
            return True
        if self.prefix:
            assert isinstance(value, str)
            assert isinstance(self.value, str)
            return value.startswith(self.value) is (self.sign == "=")
        return _COMPARISONS[self.sign](value, self.value)


@dataclass(frozen=True, slots=True)
class Query:
    """A query matches an object for which all of its terms are true."""

    terms: tuple[Term, ...] = ()

    def matches(self, value: object) -> bool:
        """Whether all terms are true for an object that has the query's fields as attributes."""
        return all(term.judge(getattr(value, term.field)) for term in self.terms)

    def about(self, field: str) -> Query:
        """The terms that concern one field."""
        return Query(tuple(term for term in self.terms if term.field == field))


def parse(text: str, fields: Mapping[str, type]) -> Query:
    """Read a query.

    Args:
        text: of the query.
        fields: the known fields, and the type of each: ``str``, ``int`` or ``float``.

    Raises:
        InvalidQuery: with the problem and its place.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidQuery(f"a query has at most {MAX_LENGTH} characters", MAX_LENGTH)
    tokens = _tokens(text)
    terms: list[Term] = []
    at = 0
    while tokens[at].kind != "end":
        if terms:
            if tokens[at].text.upper() != _AND or tokens[at].kind != "word":
                raise InvalidQuery("expected AND or the end of the query", tokens[at].position)
            at += 1
        if len(terms) == MAX_TERMS:
            raise InvalidQuery(f"a query has at most {MAX_TERMS} terms", tokens[at].position)
        term, at = _term(tokens, at, fields)
        terms.append(term)
    return Query(tuple(terms))


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            problem = "the text has no end, or a \\ before another character than ' * \\" if text[at] == "'" else ""
            raise InvalidQuery(problem or f"{text[at]!r} means nothing here", at)
        assert token.lastgroup is not None, "one of the alternatives matched"
        found.append(_Token(token.lastgroup, token[token.lastgroup], token.start(token.lastgroup)))
        at = token.end()
    return [*found, _Token("end", "", end)]


def _term(tokens: list[_Token], at: int, fields: Mapping[str, type]) -> tuple[Term, int]:
    """Read one term; returns it, and where the next token is."""
    field = tokens[at]
    if field.kind != "word":
        raise InvalidQuery("expected the name of a field", field.position)
    if field.text not in fields:
        raise InvalidQuery(f"unknown field {field.text!r}; the fields are {', '.join(fields)}", field.position)
    sign = tokens[at + 1]
    if sign.kind == "word" and sign.text.upper() == _EXISTS:
        return Term(field.text, _EXISTS), at + 2
    if sign.kind != "sign":
        raise InvalidQuery("expected EXISTS or one of = != < <= > >=", sign.position)
    value = tokens[at + 2]
    if value.kind not in ("text", "number"):
        raise InvalidQuery("expected a number, or a text in single quotes", value.position)
    is_text = fields[field.text] is str
    if is_text is not (value.kind == "text"):
        raise InvalidQuery(f"{field.text} is {'a text' if is_text else 'a number'}", value.position)
    if not is_text:
        return Term(field.text, sign.text, _number(value)), at + 3
    if sign.text not in ("=", "!="):
        raise InvalidQuery(f"{field.text} is a text; compare it with = or !=", sign.position)
    inner = value.text[1:-1]
    stars = _ESCAPED.sub("_", inner)
    if "*" in stars[:-1]:
        raise InvalidQuery("a * must be at the end of a text; write \\* for the character itself", value.position)
    prefix = stars.endswith("*")
    return Term(field.text, sign.text, _ESCAPED.sub(r"\1", inner[:-1] if prefix else inner), prefix), at + 3


def _number(token: _Token) -> int | float:
    if any(len(digits) > MAX_DIGITS for digits in token.text.lstrip("-").split(".")):
        raise InvalidQuery(f"a number has at most {MAX_DIGITS} digits", token.position)
    return float(token.text) if "." in token.text else int(token.text)
