"""The query language: what is true of what, and where a query says that it is wrong."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.query import MAX_LENGTH, MAX_TERMS, InvalidQuery, Query, Term, parse
from tricklecast.trickle.errors import InvalidInput

FIELDS = {"channel": str, "kind": str, "bytes": int, "time": float}
EVENT = SimpleNamespace(channel="a1", kind="closed", bytes=1001, time=2.5)
BARE = SimpleNamespace(channel="b", kind="added", bytes=None, time=2.5)


@pytest.mark.parametrize(
    ("text", "event", "bare"),
    [
        ("", True, True),
        ("  ", True, True),
        ("channel = 'a*' AND kind = 'closed' AND bytes > 1000", True, False),
        ("channel = 'a'", False, False),
        ("channel = 'a1'", True, False),
        ("channel != 'a*'", False, True),
        ("channel = '*'", True, True),
        ("channel = ''", False, False),
        ("kind = 'closed' and channel = 'b'", False, False),
        ("bytes EXISTS", True, False),
        ("bytes exists", True, False),
        ("bytes != 7", True, False),
        ("bytes = 1001", True, False),
        ("bytes < 1001", False, False),
        ("bytes <= 1001", True, False),
        ("bytes >= 1001", True, False),
        ("bytes > 1000.5", True, False),
        ("bytes>-1", True, False),
        ("time = 2.50", True, True),
        ("time<2.5", False, False),
    ],
)
def test_what_a_query_matches(text: str, event: bool, bare: bool) -> None:
    """All terms must be true; of what lacks the field none is, != included; a * at the end stands for any rest."""
    query = parse(text, FIELDS)
    assert (query.matches(EVENT), query.matches(BARE)) == (event, bare)


def test_a_character_with_a_meaning_can_be_written() -> None:
    """A backslash takes the meaning from a quote, a star and itself."""
    query = parse(r"channel = 'it\'s\\5\*'", FIELDS)
    assert query.terms == (Term("channel", "=", r"it's\5*"),)
    assert parse(r"channel = 'a\**'", FIELDS).terms == (Term("channel", "=", "a*", prefix=True),)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("chanel = 'a'", 0, "unknown field 'chanel'; the fields are channel, kind, bytes, time"),
        ("channel", 7, "expected EXISTS or one of = != < <= > >="),
        ("channel kind", 8, "expected EXISTS or one of = != < <= > >="),
        ("channel = ", 9, "expected a number, or a text in single quotes"),
        ("channel = kind", 10, "expected a number, or a text in single quotes"),
        ("channel = 1", 10, "channel is a text"),
        ("bytes = '1'", 8, "bytes is a number"),
        ("channel < 'a'", 8, "channel is a text; compare it with = or !="),
        ("bytes > 1 kind = 'x'", 10, "expected AND or the end of the query"),
        ("bytes > 1 'AND'", 10, "expected AND or the end of the query"),
        ("bytes > 1 AND", 13, "expected the name of a field"),
        ("AND bytes > 1", 0, "unknown field 'AND'; the fields are channel, kind, bytes, time"),
        ("= 1", 0, "expected the name of a field"),
        ("channel = 'a*b'", 10, "a * must be at the end of a text; write \\* for the character itself"),
        ("channel = '**'", 10, "a * must be at the end of a text; write \\* for the character itself"),
        (r"channel = '*\*'", 10, "a * must be at the end of a text; write \\* for the character itself"),
        ("channel =  'a", 11, "the text has no end, or a \\ before another character than ' * \\"),
        (r"channel = 'a\n'", 10, "the text has no end, or a \\ before another character than ' * \\"),
        ("bytes ~ 1", 6, "'~' means nothing here"),
        ("bytes > 1é", 9, "'é' means nothing here"),
        ("bytes > 1234567890123456789", 8, "a number has at most 18 digits"),
        ("time > 0.1234567890123456789", 7, "a number has at most 18 digits"),
    ],
)
def test_an_error_says_what_and_where(text: str, position: int, problem: str) -> None:
    """It is an invalid input; its position is that of the first wrong character."""
    with pytest.raises(
        InvalidQuery, match=f"^{re.escape(problem)}, at character {position + 1} of the query$"
    ) as error:
        parse(text, FIELDS)
    assert error.value.position == position
    assert isinstance(error.value, InvalidInput)


def test_a_query_has_limits() -> None:
    """Of its length and of its number of terms; both are reached, and neither is exceeded."""
    term = "bytes > 1"
    most = " AND ".join([term] * MAX_TERMS)
    assert len(parse(most, FIELDS).terms) == MAX_TERMS
    with pytest.raises(InvalidQuery, match="at most 16 terms"):
        parse(f"{most} AND {term}", FIELDS)
    assert parse(term.ljust(MAX_LENGTH), FIELDS) == parse(term, FIELDS)
    with pytest.raises(InvalidQuery, match="at most 1024 characters"):
        parse(term.ljust(MAX_LENGTH + 1), FIELDS)


def test_the_terms_about_one_field() -> None:
    """The others are left out."""
    query = parse("channel = 'a*' AND kind = 'added' AND channel != 'ab'", FIELDS)
    assert query.about("channel") == parse("channel = 'a*' AND channel != 'ab'", FIELDS)


TEXTS = st.text("ab'*\\ é", max_size=3)
NUMBERS = st.integers(-3, 3) | st.sampled_from([-1.5, 0.0, 0.1, 2.5, 1e-9, 123456789.125, 1e17])
NO = st.just(False)
SIGNS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
TERMS = st.one_of(
    st.builds(Term, st.sampled_from(["channel", "kind"]), st.sampled_from(["=", "!="]), TEXTS, st.booleans()),
    st.builds(
        Term, st.sampled_from(["bytes", "time"]), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), NUMBERS, NO
    ),
    st.builds(Term, st.sampled_from(list(FIELDS)), st.just("EXISTS"), st.none(), NO),
)
FACTS = st.fixed_dictionaries(
    {
        "channel": st.none() | TEXTS,
        "kind": st.none() | TEXTS,
        "bytes": st.none() | st.integers(-3, 3),
        "time": st.none() | NUMBERS,
    }
)


def naive(term: Term, fact: dict[str, object]) -> bool:
    """The examples of the grammar's page, word by word."""
    value = fact[term.field]
    if value is None:
        return False
    if term.sign == "EXISTS":
        return True
    if isinstance(value, str):
        wanted = str(term.value)
        same = value[: len(wanted)] == wanted if term.prefix else value == wanted
        return same if term.sign == "=" else not same
    assert isinstance(value, int | float)
    assert isinstance(term.value, int | float)
    difference = Fraction(value) - Fraction(term.value)
    return {
        "=": difference == 0,
        "!=": difference != 0,
        "<": difference < 0,
        "<=": difference <= 0,
        ">": difference > 0,
        ">=": difference >= 0,
    }[term.sign]


def written(term: Term) -> str:
    """The text of a term."""
    match term.value:
        case None:
            return f"{term.field} {term.sign}"
        case str():
            text = re.sub(r"['*\\]", r"\\\g<0>", term.value)
            return f"{term.field} {term.sign} '{text}{'*' if term.prefix else ''}'"
        case int():
            return f"{term.field} {term.sign} {term.value}"
        case float():
            digits = format(Decimal(repr(term.value)), "f")
            return f"{term.field} {term.sign} {digits}{'' if '.' in digits else '.0'}"


@given(st.lists(TERMS, max_size=5), FACTS)
def test_a_query_is_read_and_judges_as_its_terms_do(terms: list[Term], fact: dict[str, object]) -> None:
    """The terms that are read are those that were written, and each of them says what its words say."""
    query = Query(tuple(terms))
    assert parse(" AND ".join(map(written, terms)), FIELDS) == query
    assert query.matches(SimpleNamespace(**fact)) == all(naive(term, fact) for term in terms)
