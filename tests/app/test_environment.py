"""Variables of the environment that look like settings, and are none."""

from __future__ import annotations

import pytest

from tricklecast.app.environment import KNOWN, LONGEST, NAMED, overlooked
from tricklecast.app.settings import Settings


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TRICKLECAST_MAX_READER", "TRICKLECAST_MAX_READERS"),
        ("TRICKLECAST_MAX_CHANELS", "TRICKLECAST_MAX_CHANNELS"),
        ("TRICKLECAST_ACCESSLOG", "TRICKLECAST_ACCESS_LOG"),
        ("tricklecast_tls_certs", "TRICKLECAST_TLS_CERT"),
        ("TRICKLECAST_TOKENS", "TRICKLECAST_TOKEN"),
    ],
)
def test_a_misspelt_setting_is_told_with_what_was_meant(name: str, nearest: str) -> None:
    """As it is written, and as it should be."""
    assert overlooked(["PATH", name]) == f"no setting, and ignored: {name} (did you mean {nearest}?)"


@pytest.mark.parametrize("name", ["TRICKLECAST_SERVICE_HOST", "TRICKLECAST_", "TRICKLECAST_CONFORMANCE_URL"])
def test_what_is_like_no_setting_is_told_as_it_is(name: str) -> None:
    """Somebody else may use the prefix."""
    assert overlooked([name]) == f"no setting, and ignored: {name}"


def test_settings_are_no_strangers() -> None:
    """Every setting is known, in any case, and so is the clients' token."""
    names = [f"TRICKLECAST_{name.upper()}" for name in Settings.model_fields]
    assert overlooked([*names, *map(str.lower, names), "TRICKLECAST_TOKEN", "PATH", "XTRICKLECAST_X"]) is None
    assert {name.removeprefix("TRICKLECAST_") for name in names} < KNOWN


@pytest.mark.parametrize(("count", "more"), [(NAMED - 1, ""), (NAMED, ""), (NAMED + 1, " and 1 more")])
def test_it_is_one_line_however_many_there_are(count: int, more: str) -> None:
    """One below and at the limit all are named; one above, how many more there are; none at any length."""
    line = overlooked([f"TRICKLECAST_QQ\n{number}" + "x" * 1000 for number in range(count)])
    assert line is not None
    assert "\n" not in line
    assert line.endswith(more or "x")
    assert len(line) < 100 + NAMED * (LONGEST + 50)
