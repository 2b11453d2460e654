"""Rights: what a claim allows, for which channels, and that a mistake in it allows nothing."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tricklecast.app.access.rights import EVERYTHING, MAX_PATTERNS, RIGHTS_OF_OP, InvalidClaim, Right, Rights, matches
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
    """One pass finds the matches that backtracking finds."""
    assert matches(pattern, name) == fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_cannot_be_made_slow() -> None:
    """A pattern that costs backtracking hours is matched in one pass."""
    assert not matches("a*" * 100 + "b", "a" * 255)


def test_a_claim() -> None:
    """It has a list for each right; a missing list is empty."""
    rights = Rights.parse({"publish": ["a"], "subscribe": ["b*", "c"]})
    assert rights == Rights(("a",), ("b*", "c"), ())
    assert Rights.parse({}) == Rights()


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (None, "not an object"),
        ([], "not an object"),
        ({"read": []}, "unknown right 'read'"),
        ({"publish": "*"}, "not a list of names"),
        ({"publish": ["a", 1]}, "not a list of names"),
        ({"manage": [""]}, "empty, or longer"),
        ({"manage": ["x" * 256]}, "empty, or longer"),
        ({"subscribe": ["x"] * (MAX_PATTERNS + 1)}, "more than"),
    ],
)
def test_an_invalid_claim(claim: Any, text: str) -> None:
    """A claim of any other form gives no right."""
    with pytest.raises(InvalidClaim, match=text):
        Rights.parse(claim)


def test_the_longest_claim() -> None:
    """A claim at the limits is valid."""
    assert len(Rights.parse({"subscribe": ["x" * 255] * MAX_PATTERNS}).subscribe) == MAX_PATTERNS


@pytest.mark.parametrize(
    ("right", "allowed"),
    [
        (Right.PUBLISH, {Op.PUBLISH, Op.CLOSE_SEGMENT, Op.CREATE, Op.DELETE, Op.NEXT}),
        (Right.SUBSCRIBE, {Op.READ, Op.STREAM, Op.PLAYLIST, Op.HLS, Op.CLIP, Op.FEED, Op.CHANGES, Op.NEXT}),
        (Right.MANAGE, {Op.CREATE, Op.DELETE}),
    ],
)
def test_the_requests_of_each_right(right: Right, allowed: set[Op]) -> None:
    """A publisher may ask for its position, and create and end its channel; a manager may do the latter two."""
    rights = Rights.parse({str(right): ["cam"]})
    assert {op for op in RIGHTS_OF_OP if rights.allow(op, "cam")} == allowed
    assert not any(rights.allow(op, "other") for op in RIGHTS_OF_OP)
    assert set(RIGHTS_OF_OP) == set(Op) - {Op.API}


def test_the_servers_own_channels() -> None:
    """The changefeed names every channel, so that reading it needs the pattern ``*`` itself."""
    for pattern in ("_changes", "_*", "*_changes", "**"):
        assert not Rights(subscribe=(pattern,)).has(Right.SUBSCRIBE, "_changes")
    assert Rights(subscribe=("cam", "*")).has(Right.SUBSCRIBE, "_changes")
    assert EVERYTHING.has(Right.MANAGE, "_changes")
