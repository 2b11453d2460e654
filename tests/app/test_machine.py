"""How much memory the process may use, and the budget that follows from it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import WITHIN_S
from tricklecast.app import machine
from tricklecast.app.machine import default_budget, memory_limit
from tricklecast.app.settings import Settings

MIB = 1 << 20


@pytest.mark.parametrize(
    ("own_group", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "268435456\n"}, 256 * MIB),
        ("0::/a/b\n", {"a/memory.max": "104857600\n", "a/b/memory.max": "max\n", "memory.max": "max"}, 100 * MIB),
        ("0::/not/mounted\n", {"memory.max": "104857600\n"}, 100 * MIB),
        ("9:cpu:/x\n4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": "104857600"}, 100 * MIB),
        ("4:cpu,memory:/a\n", {"memory/a/memory.limit_in_bytes": "52428800"}, 50 * MIB),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, own_group: str, files: dict[str, str], expected: int) -> None:
    """Of both versions of control groups, and of the groups around the process's own."""
    (tmp_path / "own").write_text(own_group)
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    assert memory_limit(tmp_path / "cgroup", tmp_path / "own") == expected


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    """Or the process's own limit (ulimit -v)."""
    whole = memory_limit(tmp_path, tmp_path / "none")
    assert whole is not None
    assert whole > 128 * MIB
    code = "from tricklecast.app.settings import Settings; print(int(Settings().max_total_bytes))"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (600 * MIB, 600 * MIB))

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=WITHIN_S, preexec_fn=limit
    )
    assert int(done.stdout) == 300 * MIB


@pytest.mark.parametrize(("allowed", "budget"), [(None, 1 << 30), (8 << 30, 1 << 30), (512 * MIB, 256 * MIB)])
def test_the_budget_is_half_of_what_there_is(monkeypatch: pytest.MonkeyPatch, allowed: int | None, budget: int) -> None:
    """At most 1 GiB; a setting replaces it."""
    monkeypatch.setattr(machine, "memory_limit", lambda: allowed)
    assert default_budget() == budget
    assert Settings.model_validate({"max_total_bytes": "2GiB"}).max_total_bytes == 2 << 30
