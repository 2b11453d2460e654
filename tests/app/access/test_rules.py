"""Rights: what a claim allows, for which channels, and that a mistake in it gives nothing."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.access.rules import EVERYTHING, MAX_PATTERNS, RIGHTS_OF_OP, InvalidClaim, Right, Rights, matches
from tricklecast.trickle.records import Op


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("cam", ["cam"], ["", "ca", "cam1", "Cam"]),
        ("*", ["", "cam", "_x"], []),
        ("cam-*", ["cam-", "cam-1", "cam-*"], ["cam", "xcam-1"]),
        ("*-hd", ["-hd", "cam-hd"], ["cam-hd2", "hd"]),
        ("a*a", ["aa", "aba"], ["a", "ab"]),
        ("a*b*c", ["abc", "aXbYc", "abbc"], ["ac", "acb", "ab"]),
        ("**", ["", "x"], []),
        ("a.c", ["a.c"], ["abc"]),
        ("[ab]", ["[ab]"], ["a"]),
        ("?", ["?"], ["a"]),
    ],
)
def test_patterns(pattern: str, names: list[str], others: list[str]) -> None:
    """``*`` stands for any characters, also for none; everything else stands for itself, in its case."""
    assert [name for name in names if not matches(pattern, name)] == []
    assert [name for name in others if matches(pattern, name)] == []


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_patterns_match_as_shells_do(pattern: str, name: str) -> None:
    """The one pass finds what a search with going back finds."""
    assert matches(pattern, name) == fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_cannot_be_made_slow() -> None:
    """One that would cost a backtracking search an eternity."""
    assert not matches("a*" * 100 + "b", "a" * 255)


def test_a_claim() -> None:
    """A list for each right; one that is missing is not given."""
    rights = Rights.parse({"publish": ["a"], "subscribe": ["b*", "c"]})
    assert rights == Rights(("a",), ("b*", "c"), ())
    assert Rights.parse(rights.as_claim()) == rights
    assert Rights.parse({}) == Rights()


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (None, "no object"),
        ([], "no object"),
        ({"read": []}, "no right 'read'"),
        ({"publish": "*"}, "no list of names"),
        ({"publish": ["a", 1]}, "no list of names"),
        ({"manage": [""]}, "empty, or longer"),
        ({"manage": ["x" * 256]}, "empty, or longer"),
        ({"subscribe": ["x"] * (MAX_PATTERNS + 1)}, "more than"),
    ],
)
def test_a_claim_that_is_wrong(claim: Any, text: str) -> None:
    """Nothing of it counts."""
    with pytest.raises(InvalidClaim, match=text):
        Rights.parse(claim)


def test_the_longest_claim() -> None:
    """At the limits it is good."""
    assert len(Rights.parse({"subscribe": ["x" * 255] * MAX_PATTERNS}).subscribe) == MAX_PATTERNS


@pytest.mark.parametrize(
    ("right", "allowed"),
    [
        (Right.PUBLISH, {Op.PUBLISH, Op.CLOSE_SEGMENT, Op.CREATE, Op.DELETE, Op.NEXT}),
        (Right.SUBSCRIBE, {Op.READ, Op.CHANGES, Op.NEXT}),
        (Right.MANAGE, {Op.CREATE, Op.DELETE}),
    ],
)
def test_what_each_right_is_good_for(right: Right, allowed: set[Op]) -> None:
    """A publisher may find out where its channel is, begin and end it; a manager may do the latter two."""
    rights = Rights.parse({str(right): ["cam"]})
    assert {op for op in RIGHTS_OF_OP if rights.allow(op, "cam")} == allowed
    assert not any(rights.allow(op, "other") for op in RIGHTS_OF_OP)
    assert set(RIGHTS_OF_OP) == set(Op) - {Op.API}


def test_the_servers_own_channels_take_the_right_for_all() -> None:
    """The changefeed names every channel: who may not read every channel does not get it, whatever its patterns say."""
    for pattern in ("_changes", "_*", "*_changes", "**"):
        assert not Rights(subscribe=(pattern,)).has(Right.SUBSCRIBE, "_changes")
    assert Rights(subscribe=("cam", "*")).has(Right.SUBSCRIBE, "_changes")
    assert EVERYTHING.has(Right.MANAGE, "_changes")
