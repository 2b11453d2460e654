"""Thresholds from a file or the command line: read, checked, and refused with a reason."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from tricklecast.analytics.command.params_file import load_params
from tricklecast.analytics.params import StormParams


def test_a_file_and_settings(tmp_path: Path) -> None:
    """The command line overrides the file, and the file the defaults."""
    file = tmp_path / "storms.toml"
    file.write_text("[storms]\ngap_s = 10\nwarn_hits = 5\n")
    params = load_params(str(file), ["warn_hits=6", "warn_rps = 2.5"])
    assert (params.gap_s, params.warn_hits, params.warn_rps) == (10.0, 6, 2.5)
    assert params.critical_hits == StormParams().critical_hits
    file.write_text("gap_s = 7\n")
    assert load_params(str(file), []).gap_s == 7.0


def test_every_default_is_allowed() -> None:
    """Writing down what applies anyway changes nothing."""
    settings = [f"{field.name}={getattr(StormParams(), field.name)}" for field in fields(StormParams)]
    assert load_params(None, settings) == StormParams()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gap=3", "no such parameter: 'gap'; did you mean 'gap_s'"),
        ("holidays=3", "no such parameter: 'holidays'"),
        ("gap_s", "'gap_s' is not NAME=VALUE"),
        ("gap_s=long", "gap_s is a number, not 'long'"),
        ("gap_s=nan", "gap_s = nan"),
        ("gap_s=-1", "gap_s = -1"),
        ("gap_s=0", "gap_s = 0"),
        ("warn_hits=2.5", "warn_hits is a whole number, not 2.5"),
        ("max_bad_share=2", "up to 1"),
        ("warn_hits=500", "warn_hits = 500 is above critical_hits = 10"),
    ],
)
def test_wrong_settings(setting: str, message: str) -> None:
    """Each is told with its name and what is wrong."""
    with pytest.raises(ValueError, match=message):
        load_params(None, [setting])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"gap_s =", "cannot read"),
        (b"\xff", "cannot read"),
        (b"storms = 3", "expected names and numbers"),
        (b"[storms]\ngap_s = 1\n[other]\nx = 1", "one table"),
        (b"warn_hits = true", "whole number"),
        (b"[gap_s]\nx = 1", "gap_s is a number"),
    ],
)
def test_wrong_files(text: bytes, message: str, tmp_path: Path) -> None:
    """Neither broken nor strange files are a stack trace."""
    file = tmp_path / "storms.toml"
    file.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        load_params(str(file), [])


def test_no_file() -> None:
    """It is told by its name."""
    with pytest.raises(ValueError, match=r"cannot read '/none\.toml': No such file"):
        load_params("/none.toml", [])
