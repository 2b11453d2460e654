"""A disk of its own for tests of full disks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may mount no file system: disks are full by an injected error only")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
