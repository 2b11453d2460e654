"""Windows of maintenance as people type them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tricklecast.analytics.maintenance import parse_maintenance
from tricklecast.analytics.times import parse_time


def at(text: str) -> int:
    return parse_time(text, 0)


@pytest.mark.parametrize(
    ("window", "moment", "expected"),
    [
        ("02:00-04:00", "2026-11-27T02:00", True),
        ("02:00-04:00", "2026-11-27T03:59:59", True),
        ("02:00-04:00", "2026-11-27T04:00", False),
        ("23:00-01:00", "2026-11-27T00:30", True),
        ("23:00-01:00", "2026-11-27T01:00", False),
        ("00:00-24:00", "2026-11-27T12:00", True),
        ("02:00-02:00", "2026-11-27T12:00", True),
        ("sat,sun 22:00-06:00", "2026-11-28T23:00", True),  # a Saturday
        ("sat,sun 22:00-06:00", "2026-11-30T05:59", True),  # the Monday after
        ("sat,sun 22:00-06:00", "2026-11-28T05:00", False),
        ("02:00-04:00 Europe/Berlin", "2026-07-01T00:30", True),
        ("02:00-04:00 Europe/Berlin", "2026-12-01T00:30", False),
        ("2026-11-28T02:00/2026-11-28T06:00", "2026-11-28T05:00", True),
        ("2026-11-28T02:00/2026-11-28T06:00", "2026-11-29T05:00", False),
    ],
)
def test_moments_in_a_window(window: str, moment: str, expected: bool) -> None:
    """By UTC, or by the clocks of a place; one may go past midnight."""
    assert (parse_maintenance([window]).covers(at(moment)) == window) == expected


def test_a_time_is_covered_as_a_whole() -> None:
    """What is in two of them is in none."""
    one = parse_maintenance(["02:00-04:00"])
    assert one.covers(at("2026-11-27T02:10"), at("2026-11-27T03:50"))
    assert not one.covers(at("2026-11-27T03:10"), at("2026-11-27T04:10"))
    assert not one.covers(at("2026-11-27T02:10"), at("2026-11-28T02:20"))
    assert not parse_maintenance([]).covers(0)


def test_windows_of_a_file(tmp_path: Path) -> None:
    """A list of the same texts."""
    file = tmp_path / "windows.toml"
    file.write_text('windows = ["02:00-04:00", "sun 10:00-11:00"]')
    assert len(parse_maintenance([str(file), "05:00-06:00"]).windows) == 3


def test_there_are_a_thousand_windows_at_most(tmp_path: Path) -> None:
    """Also if they stand in files."""
    (tmp_path / "some.toml").write_text(f"windows = {['02:00-04:00'] * 500}")
    some = [str(tmp_path / "some.toml")] * 2
    assert len(parse_maintenance(some).windows) == 1_000
    with pytest.raises(ValueError, match="more than 1,000 windows"):
        parse_maintenance([*some, "02:00-04:00"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2-4", "no window"),
        ("25:00-26:00", "no window"),
        ("02:60-04:00", "no window"),
        ("someday 02:00-04:00", "no window"),
        ("02:00-04:00 Mars/Olympus", "no such time zone"),
        ("02:00-04:00 ../etc", "no such time zone"),
        ("2026-11-28T06:00/2026-11-28T02:00", "no window"),
        ("2026-11-28T06:00", "no window"),
        ("missing.toml", "cannot read"),
    ],
)
def test_what_is_no_window(text: str, words: str) -> None:
    """The message says what to write."""
    with pytest.raises(ValueError, match=words):
        parse_maintenance([text])
