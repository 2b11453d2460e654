"""Amounts: what is read, what is refused, and how they are written."""

from __future__ import annotations

import pytest

from tricklecast.trickle.amounts import (
    count,
    duration,
    parse_bitrate,
    parse_duration,
    parse_limit,
    parse_size,
    rate,
    size,
    transferred,
)
from tricklecast.trickle.errors import InvalidInput

# Amounts in arguments.


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        (" 2 min ", 120),
        ("2m", 120),
        ("1.5 H", 5400),
        ("7d", 604_800),
        ("1w", 604_800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """Durations are read with and without a unit; plain numbers are seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1", "-1s", "1 day", "1e3", "1 2", "\u0661s", "inf", "nan"])
def test_other_texts_are_no_durations(text: str) -> None:
    """An empty text, a bare unit and zero are refused, among others."""
    with pytest.raises(InvalidInput, match=r"not a duration: .*30s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0.0), ("30s", 30.0), ("2min", 120.0), (" Forever", None), ("inf", None)]
)
def test_a_limit_may_be_none(text: str, seconds: float | None) -> None:
    """It is a duration otherwise, and may be zero."""
    assert parse_limit(text) == seconds


def test_other_texts_are_no_limits() -> None:
    """The error names all that may be written."""
    with pytest.raises(InvalidInput, match=r"not a duration: 'ever' .*30s.*, and not forever"):
        parse_limit("ever")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.15, "0.15s"), (75, "75s"), (120, "2min"), (3600, "1h"), (604_800, "7d")]
)
def test_a_duration_is_written_as_it_is_read(seconds: float, text: str) -> None:
    """It is written in the largest unit that needs no fraction."""
    assert duration(seconds) == text
    assert parse_duration(text, zero=True) == seconds


def test_zero_may_be_allowed() -> None:
    """With ``zero=True``, 0 is a duration."""
    assert parse_duration("0", zero=True) == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64KiB", 65_536), ("1.5 kb", 1500), ("1.5 MB", 1_500_000), ("20GB", 20_000_000_000), ("7b", 7)],
)
def test_sizes(text: str, size: int) -> None:
    """Sizes are read in bytes, with units of powers of 1000 or 1024."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "4 parsecs", "0", "0.5", "-1", "1e3"])
def test_other_texts_are_no_sizes(text: str) -> None:
    """A size below one byte is refused, among others."""
    with pytest.raises(InvalidInput, match=r"not a size: .*64KiB"):
        parse_size(text)


@pytest.mark.parametrize(("text", "bits"), [("64000", 64_000), ("800k", 800_000), ("2.5M", 2_500_000), ("1 K", 1000)])
def test_bit_rates(text: str, bits: int) -> None:
    """Rates are read in bits per second, with the units k and M."""
    assert parse_bitrate(text) == bits


@pytest.mark.parametrize("text", ["", "k", "0", "0.5", "-1", "1kbit", "1s"])
def test_other_texts_are_no_bit_rates(text: str) -> None:
    """A rate below one bit per second is refused, among others."""
    with pytest.raises(InvalidInput, match=r"not a bit rate: .*800k"):
        parse_bitrate(text)


# Numbers in reports.


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e9, "2.0 GB"), (3.25e12, "3.2 TB")],
)
def test_sizes_are_written_for_people(number: float, text: str) -> None:
    """Sizes are written in powers of 1000, with one digit."""
    assert size(number) == text


def test_rates_and_counts_are_written_for_people() -> None:
    """They have the unit or the plural that fits."""
    assert (rate(64_000), rate(2_345_678)) == ("64 kbit/s", "2.35 Mbit/s")
    assert (count(1, "gap"), count(2, "gap"), count(2, "retry", "retries")) == ("1 gap", "2 gaps", "2 retries")


def test_the_beginning_of_a_summary() -> None:
    """Both clients' summaries begin with it."""
    assert transferred("received", 1, 1500, 2.04) == "received 1 segment (1.5 kB) in 2.0 s"
