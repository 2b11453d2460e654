"""Texts of unknown origin are shown, never obeyed."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.analytics.report.plain import MAX_MARKS, plain, spelled


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("plain name", "plain name"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\ud800", "\\ud800"),
        ("ärger 漢", "ärger 漢"),
        ("x" * 41, "x" * 39 + "…"),
        ("\x1b" * 40, "\\x1b" * 9 + "\\x1…"),
        ("a\u202eb\u2066c\ufeffd", "a\\u202eb\\u2066c\\ufeffd"),
        ("no\u00a0break", "no\\xa0break"),
        ("filler\u3164", "filler\\u3164"),
        ("שלום", "שלום"),
    ],
)
def test_plain(value: str | None, shown: str) -> None:
    """Printable text stays; everything else is spelled out; long names are cut."""
    assert plain(value) == shown


def test_towers_of_accents_fall() -> None:
    """As many combining marks as scripts need are left alone; more are spelled out, so that they cover no line."""
    mark = "\u0301"
    assert spelled(f"e{mark * MAX_MARKS}x") == f"e{mark * MAX_MARKS}x"
    assert spelled(f"e{mark * (MAX_MARKS + 2)}x") == f"e{mark * MAX_MARKS}\\u0301\\u0301x"


@given(st.text())
def test_nothing_is_obeyed(value: str) -> None:
    """Whatever the text, what is shown has no control, format, surrogate or separator character but the space."""
    assert {unicodedata.category(char)[0] for char in spelled(value).replace(" ", "")} & {"C", "Z"} == set()
    assert len(plain(value, 20)) <= 20
