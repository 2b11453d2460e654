"""The lowest versions that pyproject.toml allows: both engines, in a process of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.analytics.support.scenarios import write_all
from tests.analytics.support.writer import write_lines

ROOT = Path(__file__).parents[3]
PACKAGES = ("pyspark", "pyarrow", "duckdb", "msgspec")


def lowest() -> list[str]:
    """``name==version`` of each, as low as it is declared."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["analytics"]
    found = dict(re.fullmatch(r"([a-z]+)>=([\d.]+).*", one).groups() for one in declared)  # type: ignore[union-attr, misc]
    return [f"{name}=={found[name]}" for name in PACKAGES]


@pytest.mark.long
def test_the_lowest_versions(tmp_path: Path) -> None:
    """They give the report that the newest give."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is missing")
    command = [uv, "pip", "install", "-q", "--python", sys.executable, "--no-deps", "--target", str(tmp_path / "low")]
    done = subprocess.run([*command, *lowest()], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"cannot be installed: {done.stderr[-200:]}")
    log = str(write_lines(tmp_path / "a.jsonl", write_all(5)[0]))

    def told(engine: str, *paths: str) -> dict[str, Any]:
        """What is said with the packages of some folders."""
        ran = subprocess.run(
            [sys.executable, "-m", "tricklecast", "storms", log, "--engine", engine, "--json-file", "-"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([*paths, str(ROOT)])},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 1, ran.stderr
        return {name: value for name, value in json.loads(ran.stdout).items() if name != "engine"}

    newest = told("embedded")
    assert told("embedded", str(tmp_path / "low")) == newest
    assert told("spark", str(tmp_path / "low")) == newest
