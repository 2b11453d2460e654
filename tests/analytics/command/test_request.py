"""What is asked for is checked as a whole, before Spark starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tricklecast.analytics.command.baseline import Baseline, Kind, parse_baseline
from tricklecast.analytics.command.outputs import Outputs
from tricklecast.analytics.command.request import FailOn, Request, checked_format, spark_conf
from tricklecast.analytics.inputs import Window
from tricklecast.analytics.params import StormParams
from tricklecast.analytics.sources import Reading

NOW = 1_760_000_000_000_000

GOOD = Request(
    logs=("access.jsonl",),
    reading=Reading(),
    params=StormParams(),
    outputs=Outputs(),
    baseline=None,
    fail_on=FailOn.WARN,
    master="local[*]",
    conf={},
    state=None,
    keep_us=None,
    explain=None,
    verbose=False,
    quiet=False,
)


def test_a_good_request() -> None:
    """Nothing is wrong with it; an incremental one needs no logs."""
    GOOD.check()
    replace(GOOD, logs=(), state="state").check()
    replace(GOOD, explain="3f2a90c1d4e5", outputs=Outputs(json="-")).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logs": ()}, "no logs were given"),
        ({"reading": Reading(window=Window(5, 5))}, "--from is not before --to"),
        ({"keep_us": 5}, "--keep is about"),
        ({"verbose": True, "quiet": True}, "contradict"),
        ({"explain": "the worst"}, "an episode's id"),
        ({"explain": "../../etc"}, "an episode's id"),
        ({"explain": "3f2a90", "outputs": Outputs(html="-")}, "does not go with --html"),
        ({"explain": "3f2a90", "state": "state"}, "does not go with --incremental"),
        ({"explain": "3f2a90", "baseline": Baseline(Kind.RELEASE, "a")}, "does not go with --baseline"),
        ({"outputs": Outputs(html="-", json="-")}, "both write"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    """Each contradiction is told with its options."""
    with pytest.raises(ValueError, match=message):
        replace(GOOD, **changes).check()


def test_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time is a date, what is there are logs, anything else is a release; a prefix leaves no doubt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.jsonl").touch()
    assert parse_baseline("2025-10-09", NOW).kind is Kind.DATE
    assert parse_baseline("2h ago", NOW).at_us == NOW - 7_200_000_000
    assert parse_baseline("old.jsonl", NOW).kind is Kind.LOGS
    assert parse_baseline("old.*", NOW).kind is Kind.LOGS
    assert parse_baseline("s3a://bucket/logs", NOW).kind is Kind.LOGS
    assert parse_baseline("player/2.4.0", NOW) == Baseline(Kind.RELEASE, "player/2.4.0")
    assert parse_baseline("release:old.jsonl", NOW) == Baseline(Kind.RELEASE, "old.jsonl")
    assert parse_baseline("logs:none.jsonl", NOW) == Baseline(Kind.LOGS, "none.jsonl")
    assert parse_baseline("release:2025-10-09", NOW).kind is Kind.RELEASE
    assert parse_baseline("\0", NOW).kind is Kind.RELEASE


@pytest.mark.parametrize("text", ["", " ", "date:player/2.4.0", "release:"])
def test_no_baselines(text: str) -> None:
    """An empty one, or a date that is none."""
    with pytest.raises(ValueError, match=r"a baseline is|no time"):
        parse_baseline(text, NOW)


def test_formats(tmp_path: Path) -> None:
    """Known by name, or a field map that is there."""
    (tmp_path / "map.toml").touch()
    assert checked_format("nginx") == "nginx"
    assert checked_format(str(tmp_path / "map.toml")) == str(tmp_path / "map.toml")
    for name, message in (
        ("ngnix", "did you mean 'nginx'"),
        ("iis", "auto, tricklecast"),
        ("no.toml", "no such field map"),
    ):
        with pytest.raises(ValueError, match=message):
            checked_format(name)


def test_settings_for_spark() -> None:
    """KEY=VALUE of Spark's own; what has an option is set by that."""
    assert spark_conf(["spark.driver.memory=4g", "spark.x=a=b"]) == {"spark.driver.memory": "4g", "spark.x": "a=b"}
    for setting in ("spark.driver.memory", "driver.memory=4g", "spark.master=local"):
        with pytest.raises(ValueError, match=r"--conf takes|is set by --master"):
            spark_conf([setting])
