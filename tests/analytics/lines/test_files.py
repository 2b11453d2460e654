"""Arguments become files, each once; files become lines, whatever is in them."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import sys
from pathlib import Path

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pytest

from tests.analytics.lines.traffic import NATIVE, START_US, as_line, read_files, write
from tricklecast.analytics.errors import BadInput
from tricklecast.analytics.lines import NothingUnderstood, Window, find_logs
from tricklecast.analytics.lines.embedded import read_lines
from tricklecast.analytics.lines.files import shown_name, spooled
from tricklecast.analytics.spark.objects import spark_path

LOG = b"".join(NATIVE.replace(b'"seq":1', b'"seq":%d' % seq) + b"\n" for seq in range(300))


def test_folders_globs_and_files(tmp_path: Path) -> None:
    """A folder is searched for logs, a glob takes what it matches, and a file is taken whatever it is called."""
    for name in (
        "a/access.jsonl",
        "a/access.jsonl.1",
        "a/b/x.log.2.gz",
        "a/notes.txt",
        "a/.hidden.log",
        "a/_tmp/y.log",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = find_logs([str(tmp_path / "a"), str(tmp_path / "a" / "access*"), str(tmp_path / "a" / "notes.txt")])
    names = [os.path.relpath(name, tmp_path / "a") for name in found.names]
    assert names == ["access.jsonl", "access.jsonl.1", "b/x.log.2.gz", "notes.txt"]
    assert {os.path.basename(name) for name in found.searched} == {"x.log.2.gz"}
    for missing in ("none", "none*", "a/b/c"):
        with pytest.raises(BadInput, match="no such log"):
            find_logs([str(tmp_path / missing)])


def test_partitions_of_other_hours_are_left_out(tmp_path: Path) -> None:
    """What a path says about the time of its lines is enough."""
    for hour in ("08", "09"):
        folder = tmp_path / "dt=2025-10-09" / f"hr={hour}"
        folder.mkdir(parents=True)
        write(folder / "a.jsonl", LOG)
    found = find_logs([str(tmp_path)], Window(START_US + 600_000_000, None))
    assert ([name.count("hr=09") for name in found.names], found.other_hours) == ([1], 1)
    with pytest.raises(BadInput, match="no partition of these logs"):
        find_logs([str(tmp_path)], Window(None, 1))


def test_copies_are_read_once(tmp_path: Path) -> None:
    """The same file twice, a link, a compressed copy, and one that was made before the log went on."""
    whole = write(tmp_path / "access.log", LOG)
    os.symlink(whole, tmp_path / "link.log")
    copies = [
        write(tmp_path / "access.log.1", LOG),
        write(tmp_path / "access.log.2.gz", gzip.compress(LOG)),
        write(tmp_path / "earlier.log", LOG[: len(LOG) // 2]),
    ]
    other = write(tmp_path / "other.log", LOG.splitlines(keepends=True)[0] + LOG[5000:])
    found = find_logs([whole, str(tmp_path)])
    assert sorted(found.names) == [whole, other]
    assert sorted(found.copies) == sorted(copies)


def test_lines_that_look_alike_are_as_many_requests(tmp_path: Path) -> None:
    """A client that repeats itself within a microsecond is what is looked for; only an id tells of a double,
    and only in another file: an id that one file has twice is the client's."""
    rows, lines = read_files(write(tmp_path / "a.log", [NATIVE] * 5), write(tmp_path / "b.log", [b"{}", NATIVE]))
    assert (len(rows), lines.counts.doubled) == (6, 0)
    nginx = {"msec": START_US / 1e6, "request_method": "GET", "request_uri": "/trickle/film/1", "status": 404}
    ids = [as_line(nginx | {"request_id": f"{number:032x}"}) for number in range(9)]
    rows, lines = read_files(
        write(tmp_path / "c.log", ids[:6] + [as_line(nginx)] * 2), write(tmp_path / "d.log", ids[3:] + ids[3:4])
    )
    assert (len(rows), lines.counts.doubled) == (12, 3)


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".zst"])
def test_compressed_files(ending: str, tmp_path: Path) -> None:
    """Compressed logs are read as they are; of one that ends early, what comes before is."""
    packed = LOG
    match ending:
        case ".gz":
            packed = gzip.compress(LOG)
        case ".bz2":
            packed = bz2.compress(LOG)
        case ".zst":
            packed = pa.compress(LOG, codec="zstd", asbytes=True)
    rows, lines = read_files(write(tmp_path / f"a.log{ending}", packed))
    assert (len(rows), lines.damaged) == (300, ())
    if ending == ".gz":
        more = gzip.compress(b"".join(LOG.replace(b"player-1", os.urandom(4).hex().encode()) for _ in range(40)))
        cut = write(tmp_path / "cut.log.gz", more[: len(more) // 2])
        rows, lines = read_files(cut)
        assert len(rows) > 100
        assert lines.damaged == (cut,)


def test_blocks_are_put_together_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a file falls into blocks, its lines are whole; one that is longer than a block is bad, and only that."""
    monkeypatch.setattr("tricklecast.analytics.lines.files.BLOCK", 1000)
    monkeypatch.setattr("tricklecast.analytics.lines.files.MAX_LINE", 3000)
    monkeypatch.setattr("tricklecast.analytics.lines.records.MAX_LINE", 3000)
    huge = NATIVE.replace(b"player-1", b"x" * 20_000)
    rows, lines = read_files(write(tmp_path / "a.log", LOG + huge + b"\n" + LOG))
    assert [row["seq"] for row in rows] == [*range(300), *range(300)]
    assert [(bad.no, bad.why) for bad in lines.counts.samples] == [(301, "unreadable")]


def test_bad_lines_are_shown_with_their_numbers(tmp_path: Path) -> None:
    """Some of them, with what is wrong; blank lines are no lines."""
    path = write(tmp_path / "a.log", [NATIVE, b"", b"oops \xff", NATIVE.replace(b":200", b':"?"'), b" \t\r", NATIVE])
    _, lines = read_files(path)
    found = [(bad.file, bad.no, bad.why, bad.text[:6]) for bad in lines.counts.samples]
    assert found == [(path, 3, "unreadable", "oops \ufffd"), (path, 4, "status", '{"v":1')]
    assert (lines.counts.lines, lines.counts.bad) == (4, 2)


def test_a_line_that_is_being_written_is_not_counted(tmp_path: Path) -> None:
    """What has no end and cannot be read will be a line the next time; what can be read is one."""
    _, lines = read_files(write(tmp_path / "a.log", LOG + NATIVE[:30]))
    assert (lines.counts.lines, lines.counts.bad) == (300, 0)
    _, lines = read_files(write(tmp_path / "b.log", LOG + NATIVE))
    assert lines.counts.lines == 301


def test_nothing_understood_is_an_error(tmp_path: Path) -> None:
    """A file of which not one line could be read is never a quiet zero; an empty one is."""
    for log, told in ((b"words\n", "cannot tell the format"), (b'{"ts_us": 1, }\n' * 3, "none of 3 lines")):
        with pytest.raises(BadInput, match=told):
            read_files(write(tmp_path / "a.log", log))
    with pytest.raises(NothingUnderstood):
        read_files(write(tmp_path / "a.log", LOG), format="caddy")
    rows, lines = read_files(write(tmp_path / "empty.log", b""))
    assert (rows, lines.counts.lines) == ([], 0)


def test_other_files_in_a_folder_are_named(tmp_path: Path) -> None:
    """An error.log beside the access logs is left out; alone it is an error."""
    write(tmp_path / "access.log", LOG)
    other = write(tmp_path / "error.log", [b"2025/10/09 08:53:20 [error] oops"])
    rows, lines = read_files(str(tmp_path))
    assert (len(rows), lines.recognised.strange) == (300, (other,))
    with pytest.raises(BadInput, match="cannot tell"):
        read_files(other)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` is read like a file."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(LOG))))
    with spooled(find_logs(["-"])) as files, duckdb.connect() as con:
        lines = read_lines(con, files)
        assert lines.counts.lines == 300
        assert list(map(shown_name, lines.recognised.names)) == ["standard input"]


def test_what_only_spark_reads(tmp_path: Path) -> None:
    """A URI is left to Spark, but for one of this machine's files; a glob in a name is none."""
    with duckdb.connect() as con, pytest.raises(BadInput, match="only Spark"):
        read_lines(con, find_logs(["s3a://bucket/logs"]))
    assert spark_path("s3a://logs/a[1].log") == r"s3a://logs/a\[1\].log"
    odd = write(tmp_path / "a b.log", LOG)
    assert find_logs([Path(odd).as_uri()]).names == (odd,)
    assert find_logs(["s3a://bucket/logs"]).remote == ("s3a://bucket/logs",)


def test_parquet_without_footer_is_named(tmp_path: Path) -> None:
    """It cannot be read at all; alone it is an error."""
    write(tmp_path / "a.log", LOG)
    cut = write(tmp_path / "cut.parquet", b"PAR1....")
    _, lines = read_files(str(tmp_path))
    assert lines.recognised.unreadable == (cut,)
    with pytest.raises(NothingUnderstood, match="footer"):
        read_files(cut)
