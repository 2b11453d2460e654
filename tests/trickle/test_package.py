"""The package as such: what installing it promises."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tricklecast import trickle


def test_the_version_is_that_of_the_distribution() -> None:
    """Clients report this version in their user agent, so it must be the one that was released."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert trickle.__version__ == project["version"]
