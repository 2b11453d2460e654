"""`tricklecast store`: what is in a data directory, whether it is whole, and less of it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.app.storage.test_archive import body, durable, settled
from tricklecast.app.cli import cli
from tricklecast.app.storage.cli import CannotUse
from tricklecast.app.storage.database import segment_path

SEGMENTS = 5


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with two lives of one channel, and another one that was being written."""
    folder = tmp_path_factory.mktemp("written") / "data"
    with durable(folder) as (server, target, archive):
        film = target.channel("film").create("video/mp2t").publish(0, b"first life")
        film.end()
        film.create("text/plain").publish(0, *(body(seq) for seq in range(SEGMENTS)))
        film.upload(SEGMENTS).end()
        target.channel("other").publish(0, b"other")
        settled(server, archive)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(written, tmp_path / "data"))


def store(*arguments: object) -> Result:
    """Run ``tricklecast store``."""
    return CliRunner().invoke(cli, ["store", *map(str, arguments)])


def document(*arguments: object) -> Any:
    """The output of the command with ``--json``."""
    return json.loads(store(*arguments, "--json").stdout)


def test_check_finds_nothing(folder: Path) -> None:
    """A directory that is as it was written: exit code 0."""
    done = store("check", folder)
    assert (done.exit_code, done.stdout) == (0, "3 channels, 8 segments, 5.0 kB: no findings\n")
    assert document("check", folder) == {
        "channels": 3,
        "segments": 8,
        "bytes": 5015,
        "findings": [],
        "set_aside": [],
    }


def test_check_finds_what_is_damaged(folder: Path) -> None:
    """A flipped bit, a missing file, a wrong row, each with its place; exit code 1, and nothing is changed."""
    path = segment_path(folder, 2, 2)
    data = bytearray(path.read_bytes())
    data[2500] ^= 1
    path.write_bytes(data)
    segment_path(folder, 1, 1).unlink()
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql, sql:
        sql.execute("UPDATE segment SET crc = crc + 1 WHERE channel = 3")
    (folder / "segments.unknown-1").mkdir()
    done = store("check", folder)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "table segment: row (3, 0) does not match its checksum",
        "segment 0 of 'film': its file is missing",
        "segment 2 of 'film': its checksum does not match",
        "set aside by the server: segments.unknown-1",
        "3 channels, 7 segments, 5.0 kB: 3 findings",
    ]
    found = document("check", folder)
    assert found["findings"][1:] == [
        {"channel": "film", "epoch": 1, "seq": 0, "what": "its file is missing"},
        {"channel": "film", "epoch": 2, "seq": 2, "what": "its checksum does not match"},
    ]
    assert found["set_aside"] == ["segments.unknown-1"]


def test_ls(folder: Path) -> None:
    """Channels with each of their lives; the segments of the latest, or of the one that is named."""
    lines = [line.split("\t") for line in store("ls", folder).stdout.splitlines()]
    assert lines[0][:6] == ["CHANNEL", "EPOCH", "STATE", "NEXT", "SEGMENTS", "BYTES"]
    assert [line[:7] for line in lines[1:]] == [
        ["film", "1", "ended", "1", "1", "10", "video/mp2t"],
        ["film", "2", "live", "6", "6", "5000", "text/plain"],
        ["other", "1", "live", "1", "1", "5", ""],
    ]
    segments = document("ls", folder, "film")
    assert [(row["seq"], row["state"], row["bytes"]) for row in segments] == [
        *((seq, "complete", 1000) for seq in range(SEGMENTS)),
        (SEGMENTS, "empty", 0),
    ]
    assert segments[1]["file"] == "segments/000002/00000002.seg"
    assert [row["bytes"] for row in document("ls", folder, "film", "--epoch", 1)] == [10]


def test_export(folder: Path, tmp_path: Path) -> None:
    """To a file one after the other, to a folder one by one, or to standard output; nothing is overwritten."""
    whole = b"".join(body(seq) for seq in range(SEGMENTS))
    assert store("export", folder, "film", "-o", tmp_path / "film").exit_code == 0
    assert (tmp_path / "film").read_bytes() == whole
    assert store("export", folder, "film", "-o", f"{tmp_path}/parts/").exit_code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()} == {
        f"{seq:08d}.txt": body(seq) for seq in range(SEGMENTS)
    }
    assert store("export", folder, "film", "--epoch", 1, "-o", "-").stdout_bytes == b"first life"
    for out in (tmp_path / "film", tmp_path / "parts"):
        done = store("export", folder, "film", "-o", out)
        assert isinstance(done.exception, CannotUse)
        assert str(done.exception) == f"cannot write {str(out)!r}: File exists"


def test_export_to_a_reader_that_has_seen_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends as others do in a pipe (``| head``), without a message."""

    def closed(*args: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("tricklecast.app.storage.cli._copy", closed)
    done = store("export", folder, "film", "-o", "-")
    assert done.stderr == ""
    assert not isinstance(done.exception, CannotUse)


def test_export_leaves_out_what_is_damaged(folder: Path, tmp_path: Path) -> None:
    """It says so, and the exit code is 1."""
    os.truncate(segment_path(folder, 2, 2), 4500)
    done = store("export", folder, "film", "-o", tmp_path / "film")
    assert (done.exit_code, done.stderr) == (1, "segment 4: its file is too short\n")
    assert (tmp_path / "film").read_bytes() == b"".join(body(seq) for seq in range(SEGMENTS - 1))


def test_prune(folder: Path) -> None:
    """The oldest go first, a file with its last segment; heads and epochs stay."""
    dry = store("prune", folder, "--keep-bytes", "3000B", "--dry-run").stdout.splitlines()
    assert dry == [
        "film (epoch 1): 1 segment, 10 B",
        "film (epoch 2): 3 segments, 3.0 kB",
        "would remove: 4 segments, 3.0 kB",
    ]
    assert document("check", folder)["segments"] == 8
    assert store("prune", folder, "--keep-bytes", "3000B").stdout.splitlines()[-1] == "removed: 4 segments, 3.0 kB"
    assert document("check", folder) | {"bytes": 0} == {
        "channels": 3,
        "segments": 4,
        "bytes": 0,
        "findings": [],
        "set_aside": [],
    }
    assert not segment_path(folder, 1, 1).exists()
    assert segment_path(folder, 2, 2).exists()
    assert store("prune", folder, "--older-than", "1h").stdout == "removed: 0 segments, 0 B\n"
    assert store("prune", folder, "--older-than", "1ms", "--channel", "film").exit_code == 0
    assert not segment_path(folder, 2, 2).exists()
    assert [row["next"] for row in document("ls", folder)] == [1, 6, 1]
    with durable(folder) as (_, target, _):
        target.channel("film").publish(6, b"on").has(6, b"on", epoch=2)
        target.channel("other").has(0, b"other")


def test_prune_must_be_told_what(folder: Path) -> None:
    """Without a limit it would remove nothing, or all: wrong usage."""
    assert store("prune", folder).exit_code == 2
    assert store("prune", folder, "--older-than", "soon").exit_code == 2


def test_beside_a_running_server(folder: Path) -> None:
    """Reading works; nothing is removed, and the message says why."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").publish(6, b"now")
        upload, _ = channel.started(7, b"half")
        settled(server, archive)
        assert document("check", folder)["findings"] == []
        assert document("ls", folder, "film")[-1]["state"] == "open"
        done = store("prune", folder, "--older-than", "1ms")
        assert isinstance(done.exception, CannotUse)
        assert "another server uses the data directory" in str(done.exception)
        upload.end()


def test_segments_that_retention_removes_meanwhile_are_no_findings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that does not match is looked up again before it is called damaged."""
    from tricklecast.app.storage import cli as module

    progress = module._progress

    def removed(total: int) -> Any:
        with closing(sqlite3.connect(folder / "journal.sqlite")) as sql, sql:
            sql.execute("DELETE FROM segment WHERE channel = 2")
        segment_path(folder, 2, 2).unlink()
        return progress(total)

    monkeypatch.setattr(module, "_progress", removed)
    assert store("check", folder).exit_code == 0


@pytest.mark.parametrize("what", ["nothing", "newer", "nonsense"])
def test_what_cannot_be_read(folder: Path, what: str) -> None:
    """Exit code 3, and one line that says why."""
    path = folder / "journal.sqlite"
    if what == "nothing":
        path.unlink()
    elif what == "nonsense":
        path.write_bytes(b"nonsense" * 1000)
    else:
        with closing(sqlite3.connect(path)) as sql:
            sql.execute("PRAGMA user_version = 2")
    said = {"nothing": "is not a data directory", "newer": "a later version", "nonsense": "cannot read"}
    for command in (["check"], ["ls"], ["prune", "--older-than", "1d"]):
        done = store(command[0], folder, *command[1:])
        assert isinstance(done.exception, CannotUse)
        assert done.exception.exit_code == 3
        assert said[what] in str(done.exception)
    assert not (folder / "journal.sqlite.damaged-1").exists()


def test_a_directory_that_cannot_be_written_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite would have to write beside the database; when nobody else does, it need not."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert store("check", folder).exit_code == 0
    assert not list(folder.glob("journal.sqlite-*"))


def test_there_is_no_such_channel(folder: Path) -> None:
    """It is named, with the epoch that was asked for."""
    for arguments in (["ls", folder, "none"], ["ls", folder, "film", "--epoch", 3]):
        done = store(*arguments)
        assert isinstance(done.exception, CannotUse)
        assert "has no channel" in str(done.exception)


def test_a_backup_of_a_running_server(folder: Path, tmp_path: Path) -> None:
    """First the database by SQLite's own backup, then the files: it is whole, and a server starts on it."""
    backup = tmp_path / "backup"
    backup.mkdir()
    with durable(folder) as (_, target, _):
        channel = target.channel("film").publish(6, b"before")
        with (
            closing(sqlite3.connect(folder / "journal.sqlite")) as sql,
            closing(sqlite3.connect(backup / "journal.sqlite")) as copy,
        ):
            sql.backup(copy)
        channel.publish(7, b"between")
        shutil.copytree(folder / "segments", backup / "segments")
    assert store("check", backup).exit_code == 0
    with durable(backup) as (_, target, _):
        target.channel("film").has(6, b"before", epoch=2)
        assert target.channel("film").next_seq() == 7
