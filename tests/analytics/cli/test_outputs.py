"""Files of a report: whole or not at all, readable for whom the umask says, checked before the work."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tricklecast.analytics.cli.outputs import check_outputs, write_at_once
from tricklecast.analytics.errors import CannotWrite


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Its permissions stay, a link stays a link, and nothing else is left."""
    target = tmp_path / "report.json"
    target.write_text("old")
    target.chmod(0o640)
    link = tmp_path / "latest.json"
    link.symlink_to(target)
    write_at_once(str(link), "new")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", 0o640)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.json", "report.json"]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    """Not those of a temporary file, which nobody else may read."""
    before = os.umask(0o022)
    try:
        write_at_once(str(tmp_path / "report.json"), "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.json").stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no half of the new one beside it."""

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "report.json"
    target.write_text("old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CannotWrite, match="No space left"):
        write_at_once(str(target), "new")
    assert (target.read_text(), len(list(tmp_path.iterdir()))) == ("old", 1)


def test_a_device_is_written_to_as_it_is() -> None:
    """It cannot be replaced."""
    write_at_once("/dev/null", "text")


def test_places_are_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a file in none, one file for two forms."""
    with pytest.raises(ValueError, match="is a folder"):
        check_outputs({"--json-file": str(tmp_path)})
    (tmp_path / "fixed").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(ValueError, match=r"fixed/x': Permission denied$"):
            check_outputs({"--json-file": str(tmp_path / "fixed" / "x")})
    with pytest.raises(ValueError, match="there is no folder"):
        check_outputs({"--json-file": str(tmp_path / "none" / "x")})
    with pytest.raises(ValueError, match="both write to"):
        check_outputs({"--json-file": str(tmp_path / "x"), "--html": str(tmp_path / "." / "x")})
    check_outputs({"--json-file": "-", "--html": str(tmp_path / "x")})
