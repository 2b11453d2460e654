"""The suite as a document: names, rules and profiles that a reader can rely on."""

from __future__ import annotations

import re

import pytest

from tricklecast.app.tools.conformance.cases import CASES, GROUPS
from tricklecast.app.tools.conformance.profiles import ANY, PROFILES, Profile, ServerSettings
from tricklecast.app.tools.conformance.response import equal
from tricklecast.app.tools.conformance.runner import Case, Group, each, needs
from tricklecast.app.tools.conformance.target import Address, RemoteChannel, Target


def test_names_are_distinct() -> None:
    """A name means one rule."""
    assert len({case.name for case in CASES}) == len(CASES)


def test_cases_read_well() -> None:
    """A name is `group/rule-in-short`, and a rule is one sentence that fits a line."""
    assert [case.name for case in CASES if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", case.name)] == []
    assert [case.name for case in CASES if not re.fullmatch(r".{20,140}[.]", case.rule)] == []


def test_cases_and_profiles_fit() -> None:
    """Each case names at least one profile, each profile has a case, and each limit of time is a setting."""
    assert {profile for case in CASES for profile in case.profiles} == set(PROFILES)
    assert [case.name for case in CASES if not case.profiles] == []
    assert {case.within for case in CASES} - {""} <= set(ServerSettings.__dataclass_fields__)


def test_sections_come_in_the_order_of_the_protocol() -> None:
    """A reader of the list from top to bottom reads the protocol."""
    numbered = [group.section for group in GROUPS if group.section[0].isdigit()]
    assert [section[0] for section in numbered] == sorted(section[0] for section in numbered)


def test_a_case_says_what_it_needs() -> None:
    """A case that cannot run against a server names the flags and the profile that it needs."""
    case = Case("g/n", "1", "Rule.", lambda _: None, ("no-autocreate",))
    assert case.unfit("no-autocreate") is None
    assert case.unfit("default") == "needs a server started with --no-autocreate (--profile no-autocreate)"


def test_a_group_makes_cases_of_methods() -> None:
    """Name and rule of a case come from the method; private methods are none; marks are kept."""

    class TwoWords(Group, section="9. Nothing"):
        def some_rule(self, c: RemoteChannel) -> None:
            """It holds."""

        @needs("idle", alone=True, within="idle_timeout_s")
        def another(self, c: RemoteChannel) -> None:
            """That, too."""

        def _helper(self) -> None: ...

    first, second = TwoWords.cases()
    assert (first.name, first.rule, first.section, first.profiles) == (
        "two-words/some-rule",
        "It holds.",
        "9. Nothing",
        ANY,
    )
    assert (second.profiles, second.alone, second.within) == (("idle",), True, "idle_timeout_s")


def test_a_method_with_rows_is_a_case_for_each() -> None:
    """The row's key stands in the name, its words in the rule, and the method gets the rest."""

    class Table(Group, section="9. Nothing"):
        @needs("root")
        @each(("one", "1", 1), ("two", "2", 2))
        def has_X(self, c: RemoteChannel, value: int) -> None:
            """It has {}."""
            equal(c.name, value, 1)

    one, two = Table.cases()
    assert [(case.name, case.rule, case.profiles) for case in (one, two)] == [
        ("table/has-one", "It has 1.", ("root",)),
        ("table/has-two", "It has 2.", ("root",)),
    ]
    channel = Target(Address("host", 1)).channel("c")
    one.check(channel)
    with pytest.raises(Exception, match="expected c: 1, got 2"):
        two.check(channel)


@pytest.mark.parametrize("text", [None, "", "Two\nlines."])
def test_a_case_needs_its_rule(text: str | None) -> None:
    """A method without a rule of one line is refused when its group is read."""

    class Untold(Group, section="9. Nothing"):
        def rule(self, c: RemoteChannel) -> None: ...

    Untold.rule.__doc__ = text
    with pytest.raises(ValueError, match="docstring of one line"):
        list(Untold.cases())


def test_profiles_become_flags() -> None:
    """A profile's options are the arguments of `tricklecast serve`, switches and values alike."""
    profile = Profile(
        "x", "a test", {"autocreate": False, "changefeed": True, "channel_drain_s": 0.5, "base_path": "/"}
    )
    assert profile.flags == ("--no-autocreate", "--changefeed", "--channel-drain-s", "0.5", "--base-path", "/")


def test_profiles_set_deadlines() -> None:
    """The cases know the settings that a profile changes; the others are the server's defaults."""
    assert PROFILES["no-drain"].settings == ServerSettings(channel_drain_s=0)
    assert PROFILES["root"].settings == ServerSettings()
