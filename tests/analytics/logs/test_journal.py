"""Files take their places all together, wherever a run is interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tricklecast.analytics.errors import BadInput, Busy, CannotWrite
from tricklecast.analytics.logs.journal import FOLDER, LEDGER, commit, held


def state(out: Path) -> dict[str, str]:
    """Every file that counts, with its content."""
    files = (path for path in out.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(out)): path.read_text() for path in files}


def prepare(out: Path, work: Path) -> dict[Path, Path]:
    """Three new files, one of which takes the place of an old one."""
    (out / "hr=0").mkdir(exist_ok=True)
    (out / "hr=0/lines").write_text("old")
    moves = {work / str(hour): out / f"hr={hour}/lines" for hour in range(3)}
    for source in moves:
        source.write_text(f"new {source.name}")
    return moves


DONE = {"hr=0/lines": "new 0", "hr=1/lines": "new 1", "hr=2/lines": "new 2", f"{FOLDER}/{LEDGER}": "ledger"}


def test_all_at_once(tmp_path: Path) -> None:
    """After a commit every file and the ledger are in their places, and nothing else is left."""
    with held(tmp_path) as work:
        commit(tmp_path, prepare(tmp_path, work), "ledger")
    assert state(tmp_path) == DONE


@pytest.mark.parametrize("after", range(7))
def test_interrupted_anywhere(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before or after any step, the next run finds all as before, or finishes it."""
    steps = 0
    replace, unlink = Path.replace, Path.unlink

    def step() -> None:
        nonlocal steps
        if steps == after:
            raise KeyboardInterrupt
        steps += 1

    def slow_replace(self: Path, target: Path) -> Path:
        step()
        return replace(self, target)

    def slow_unlink(self: Path, missing_ok: bool = False) -> None:
        step()
        unlink(self, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", slow_replace)
        patched.setattr(Path, "unlink", slow_unlink)
        # A killed process cleans nothing up.
        patched.setattr("tricklecast.analytics.logs.journal.shutil.rmtree", lambda *args, **kwargs: None)
        try:
            with held(tmp_path) as work:
                commit(tmp_path, prepare(tmp_path, work), "ledger")
        except KeyboardInterrupt:
            pass
    with held(tmp_path):
        found = state(tmp_path)
    assert found == DONE if after > 0 else found == {"hr=0/lines": "old"}


def test_one_at_a_time(tmp_path: Path) -> None:
    """A second run into the same folder is refused, and nothing of the first is lost."""
    with held(tmp_path) as work:
        (work / "a").write_text("a")
        with pytest.raises(Busy), held(tmp_path):
            pass
        assert (work / "a").exists()


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """A file where the folder should be, or a note that is none, is one line."""
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match="cannot write"), held(tmp_path / "file"):
        pass
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "pending.json").write_text("{")
    with pytest.raises(BadInput, match="damaged"), held(tmp_path):
        pass
