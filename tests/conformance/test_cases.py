"""The suite as a document: names, rules and profiles that a reader can rely on."""

from __future__ import annotations

import re

import pytest

from tricklecast.app.conformance.case import Case, Group
from tricklecast.app.conformance.cases import CASES, GROUPS
from tricklecast.app.conformance.profiles import ANY, PROFILES, Profile, Settings
from tricklecast.app.conformance.target import Target


def _nothing(target: Target) -> None:
    """Holds."""


def test_names_are_distinct() -> None:
    """A name means one rule."""
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_reads_well(case: Case) -> None:
    """A name is `group/rule-in-short`, and a rule is one sentence that fits a line."""
    assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", case.name)
    assert re.fullmatch(r".{20,140}[.]", case.rule)
    assert case.section


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_runs_somewhere(case: Case) -> None:
    """Each case names at least one profile that exists."""
    assert case.profiles
    assert set(case.profiles) <= set(PROFILES)


def test_every_profile_is_needed() -> None:
    """A profile without a case would be a configuration that nobody checks."""
    assert {profile for case in CASES for profile in case.profiles} == set(PROFILES)


def test_sections_come_in_the_order_of_the_protocol() -> None:
    """Reading the list from top to bottom is reading the protocol."""
    numbered = [group.section for group in GROUPS if group.section[0].isdigit()]
    assert [section[0] for section in numbered] == sorted(section[0] for section in numbered)


def test_a_case_says_what_it_needs() -> None:
    """A case that cannot run against a server names the flags and the profile that it needs."""
    case = Case("g/n", "1", "Rule.", _nothing, ("no-autocreate",))
    assert case.unfit("no-autocreate") is None
    assert case.unfit("default") == "needs a server started with --no-autocreate (--profile no-autocreate)"


def test_a_group_makes_names_and_rules_of_functions() -> None:
    """The decorator takes the name from the function and the rule from its docstring."""
    group = Group("g", "9. Nothing")

    @group.case()
    def some_rule(target: Target) -> None:
        """It holds."""

    (case,) = group.cases
    assert (case.name, case.rule, case.section, case.profiles) == ("g/some-rule", "It holds.", "9. Nothing", ANY)


@pytest.mark.parametrize("text", [None, "", "Two\nlines."])
def test_a_case_needs_its_rule(text: str | None) -> None:
    """A case without a rule of one line is refused when it is defined."""

    def check(target: Target) -> None:
        del target

    check.__doc__ = text
    with pytest.raises(ValueError, match="docstring of one line"):
        Group("g", "1").case()(check)


def test_profiles_become_flags() -> None:
    """A profile's options are the arguments of `tricklecast serve`, switches and values alike."""
    profile = Profile(
        "x", "a test", {"autocreate": False, "changefeed": True, "channel_drain_s": 0.5, "base_path": "/"}
    )
    assert profile.flags == ("--no-autocreate", "--changefeed", "--channel-drain-s", "0.5", "--base-path", "/")


def test_profiles_set_deadlines() -> None:
    """What a profile changes is known to the cases; the rest are the server's defaults."""
    assert PROFILES["no-drain"].settings == Settings(channel_drain_s=0)
    assert PROFILES["root"].settings == Settings()
