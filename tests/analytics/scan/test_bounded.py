"""Logs that are larger than memory: what does not fit goes to a folder, which never stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tricklecast.analytics.scan import embedded

MIB = 1 << 20
MEMORY = 32 * MIB
ROWS = 200_000
HOLD = f"""
import signal
from tricklecast.analytics.scan import embedded
with embedded.bounded(memory={MEMORY}) as con:
    con.execute("CREATE TEMP TABLE held AS SELECT md5(i::VARCHAR) || repeat('x', 400) AS line FROM range({ROWS}) t(i)")
    print("there", flush=True)
    signal.pause()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_does_not_fit_goes_to_disk(folder: Path) -> None:
    """A table and its sum are three times the memory: DuckDB holds no more than it may, and the answer is right."""
    with embedded.bounded(memory=MEMORY) as con:
        con.execute(f"CREATE TEMP TABLE held AS SELECT i, repeat('x', 400) || i AS line FROM range({ROWS}) t(i)")
        ((held,),) = con.execute("SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()").fetchall()
        assert held <= MEMORY
        assert sum(path.stat().st_size for path in files(folder)) > MIB
        assert con.execute("SELECT count(DISTINCT line) FROM held").fetchall() == [(ROWS,)]
        con.execute("DROP TABLE held")
    assert list(folder.iterdir()) == []


def test_few_lines_need_no_folder(folder: Path) -> None:
    """A small log is read without a look at the disk."""
    with embedded.bounded(embedded.SMALL - 1):
        assert list(folder.iterdir()) == []


def test_what_a_killed_run_leaves_goes_with_the_next(folder: Path) -> None:
    """A run that lives keeps its folder; one that was killed leaves it, and the next one removes it."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as run:
        try:
            assert run.stdout is not None
            run.stdout.readline()
            held = files(folder)
            assert held
            with embedded.bounded():
                assert files(folder) == held
            run.send_signal(signal.SIGKILL)
            run.wait()
            assert files(folder) == held
            with embedded.bounded():
                assert files(folder) == []
        finally:
            run.kill()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["mkdir", "rename"])
def test_ctrl_c_while_a_folder_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The folder goes under whichever of its two names it has when Ctrl-C comes."""
    step = getattr(Path, name)

    def interrupted(*arguments: object) -> None:
        step(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, name, interrupted)
    with pytest.raises(KeyboardInterrupt), embedded.bounded():
        raise AssertionError("it was interrupted before")
    assert list(folder.iterdir()) == []
