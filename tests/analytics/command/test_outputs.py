"""Outputs are checked before the work, and replaced in one step."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.analytics.support.sample_report import sample_report
from tricklecast.analytics.command.outputs import Outputs, write_at_once
from tricklecast.analytics.errors import CannotWrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_all_forms_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several files, one of them standard output, and nothing left over beside them."""
    outputs = Outputs(html=str(tmp_path / "r.html"), json="-", prom=str(tmp_path / "r.prom"))
    outputs.check()
    assert outputs.uses_stdout
    outputs.write(sample_report())
    assert capsys.readouterr().out.startswith("{")
    assert (tmp_path / "r.html").read_text().startswith("<!")
    assert "tricklecast_storms_requests" in (tmp_path / "r.prom").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.prom"]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"json": "-", "html": "-"}, "both write to '-'"),
        ({"json": "TMP/a", "html": "TMP/./a"}, "both write to"),
        ({"json": "TMP"}, "is a folder"),
        ({"json": ""}, "is a folder"),
        ({"json": "TMP/none/r.json"}, "cannot write"),
        ({"parquet": "TMP/none/tables"}, "cannot write"),
        ({"parquet": "TMP/file"}, "is no folder"),
        ({"parquet": "TMP/full"}, "something else in it"),
    ],
)
def test_what_cannot_be_written(outputs: dict[str, str], message: str, tmp_path: Path) -> None:
    """It is found before Spark starts; a folder with other things in it is not replaced."""
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "holiday.jpg").touch()
    with pytest.raises(ValueError, match=message):
        Outputs(**{name: value.replace("TMP", str(tmp_path)) for name, value in outputs.items()}).check()


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    """Whoever has the old one open goes on reading it; a link stays one; everybody may read it who could."""
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    with real.open() as reader:
        write_at_once(str(link), "new")
        assert reader.read() == "old"
    assert link.is_symlink()
    assert real.read_text() == "new"
    umask = os.umask(0)
    os.umask(umask)
    assert real.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """A device or pipe is no file to be replaced: /dev/null stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_at_once(str(pipe), "text")
    reader.join(timeout=120)
    assert read == ["text"]
    write_at_once(os.devnull, "text")
    assert not Path(os.devnull).is_file()


def test_a_folder_that_went_away(tmp_path: Path) -> None:
    """What fails after all is one line."""
    with pytest.raises(CannotWrite, match="No such file"):
        write_at_once(str(tmp_path / "gone" / "r.json"), "text")


@pytest.mark.long
def test_tables_replace_older_ones(spark: SparkSession, tmp_path: Path) -> None:
    """A folder of tables is replaced as a whole, and only if it is one."""
    outputs = Outputs(parquet=str(tmp_path / "tables"))
    for rows in (3, 5):
        outputs.check()
        outputs.write_tables(spark, sample_report(), spark.range(rows))
        assert spark.read.parquet(str(tmp_path / "tables" / "rollup")).count() == rows
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
