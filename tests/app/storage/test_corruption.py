"""A data directory that is not as it was written: what is damaged is named and set aside, and the rest is there."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.app.storage.test_archive import body, durable, settled
from tests.support.forked import forked
from tests.support.waiting import WITHIN_S
from tricklecast.app.core.segment import Segment, encode_frame
from tricklecast.app.core.state import Lives
from tricklecast.app.storage import restore
from tricklecast.app.storage.database import (
    OPEN_FILES,
    Append,
    Batch,
    ChannelRow,
    Contents,
    Database,
    SegmentRow,
    ServerStart,
    StorageError,
    segment_path,
)

SEGMENTS = 40


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with three channels; nobody changes it."""
    folder = tmp_path_factory.mktemp("written") / "data"
    with durable(folder) as (server, target, archive):
        for name in ("film", "other"):
            target.channel(name).create("video/mp2t").publish(0, *(body(seq) for seq in range(SEGMENTS)))
        target.channel("over").publish(0, b"x").end()
        settled(server, archive)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(written, tmp_path / "data"))


def contents(folder: Path) -> Contents:
    """The rows that a server finds when it starts on this directory."""
    with closing(Database(folder)) as database:
        return database.contents()


def flip(path: Path, at: int, bit: int = 0) -> None:
    """One bit becomes another."""
    with open(path, "r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 1 << bit]))


def test_no_flipped_bit_of_the_database_is_taken_for_what_was_written(written: Path, tmp_path: Path) -> None:
    """Every row that comes back is as it was; damage is named; the damaged file is kept; a second start is quiet."""
    whole = contents(Path(shutil.copytree(written, tmp_path / "whole")))
    assert (len(whole.channels), len(whole.segments)) == (3, 2 * SEGMENTS + 1)
    rng = random.Random(7)
    size = (written / "journal.sqlite").stat().st_size
    lost, refused = [], []
    for number in range(150):
        folder = Path(shutil.copytree(written, tmp_path / str(number)))
        before = (folder / "journal.sqlite").read_bytes()
        place = 100 if number < 50 else 0  # a third of them in the first page, the tables of which are
        at = rng.randrange(place, 4096 if number < 50 else size)
        flip(folder / "journal.sqlite", at, rng.randrange(8))
        try:
            found = contents(folder)
        except StorageError as error:
            refused.append(str(error))
            continue
        assert set(found.segments) <= set(whole.segments), at
        assert {row[:3] for row in found.channels} <= {row[:3] for row in whole.channels}, at
        if found.segments != whole.segments or found.channels != whole.channels:
            assert found.damaged, at
            (aside,) = folder.glob("journal.sqlite.damaged-1")
            assert len(aside.read_bytes()) == len(before)
            lost.append(len(whole.segments) - len(found.segments))
            assert contents(folder).damaged == []
    assert lost
    assert sum(lost) < len(lost) * 2 * SEGMENTS / 2, "most of it is salvaged"
    assert [text for text in refused if "a later version" not in text] == []


def test_a_damaged_channel_is_put_together(folder: Path) -> None:
    """Its segments are of no use without its name, and its epoch must not be given again: both stand elsewhere, too."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql, sql:
        sql.execute("UPDATE channel SET next_seq = 7, content_type = 'nonsense' WHERE name = 'film'")
    found = contents(folder)
    (film,) = [row for row in found.channels if row.name == "film"]
    assert (film.epoch, film.next_seq, film.content_type, film.ended_us) == (1, SEGMENTS, "video/mp2t", None)
    assert "rebuilt from" in " ".join(found.damaged)
    with durable(folder) as (_, target, _):
        target.channel("film").publish(SEGMENTS, b"on").has(SEGMENTS, b"on").has(3, body(3))


def test_a_salvaged_database_has_the_numberings(folder: Path) -> None:
    """Readers of earlier ones would miss, unnoticed, what was written anew."""

    def lives() -> dict[int, Lives]:
        with closing(Database(folder)) as database:
            database.contents()
            return database.lives()

    before = lives()
    assert set(before) == {1, 2, 3}
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql, sql:
        sql.execute("UPDATE channel SET next_seq = 7 WHERE id = 1")
        sql.execute("UPDATE numbering SET checksum = 7 WHERE channel = 2")
    assert lives() == {1: before[1], 3: before[3]}
    assert (folder / "journal.sqlite.damaged-1").exists()


@pytest.mark.parametrize(
    ("words", "at", "bit"),
    [(b"opened_us INTEGER", 0, 7), (b"next_seq INTEGER,\n", 16, 3), (b"began_at", 5, 7), (b"lives TEXT", 1, 7)],
)
def test_a_damaged_definition_of_a_table_costs_nothing(
    folder: Path, written: Path, tmp_path: Path, words: bytes, at: int, bit: int
) -> None:
    """Neither a name that is no UTF-8, nor a comma that is none any more: the rows are where they were."""
    whole = contents(Path(shutil.copytree(written, tmp_path / "whole")))
    flip(folder / "journal.sqlite", (folder / "journal.sqlite").read_bytes().index(words) + at, bit)
    found = contents(folder)
    assert (found.segments, found.channels, found.index) == (whole.segments, whole.channels, whole.index)
    assert found.server_starts == whole.server_starts
    assert "was damaged, and is restored" in "".join(found.damaged)
    assert contents(folder).damaged == []


def test_a_row_that_is_no_text_hides_no_others(folder: Path) -> None:
    """Bytes that are not UTF-8 are a damaged row, and not the end of the table."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql, sql:
        sql.execute("UPDATE segment SET state = CAST(x'ff' AS TEXT) WHERE channel = 1 AND seq = 0")
    found = contents(folder)
    assert (len(found.segments), len(found.channels)) == (2 * SEGMENTS, 3)


def test_a_row_that_has_got_the_key_of_another_one_is_missed(folder: Path) -> None:
    """A flipped bit may make a key of a key: of two rows that are the same row, one is damaged."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql, sql:
        sql.execute("CREATE TABLE keyless AS SELECT * FROM segment")
        sql.execute("UPDATE keyless SET seq = 7 WHERE channel = 1 AND seq = 3")
        sql.execute("DROP TABLE segment")
        sql.execute("ALTER TABLE keyless RENAME TO segment")
    found = contents(folder)
    assert [row.seq for row in found.segments if row.channel == 1] == [seq for seq in range(SEGMENTS) if seq != 3]
    assert found.damaged[0] == "table segment: row (1, 7) does not match its checksum"


@pytest.mark.parametrize("how", ["missing", "empty", "nonsense"])
def test_files_without_their_database_are_kept(folder: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that knows nothing of them sets them aside, says so, and begins anew."""
    before = {path.relative_to(folder / "segments"): path.read_bytes() for path in folder.rglob("*.seg")}
    journal = folder / "journal.sqlite"
    journal.unlink()
    if how != "missing":
        journal.write_bytes(b"" if how == "empty" else b"nonsense" * 1000)
    with durable(folder) as (_, target, _):
        assert target.channel("film").get(0).status == 404
        target.channel("film").publish(0, b"new").has(0, b"new")
    aside = folder / "segments.unknown-1"
    assert {path.relative_to(aside): path.read_bytes() for path in aside.rglob("*.seg")} == before
    assert "files that are not in journal.sqlite: set aside in segments.unknown-1" in caplog.text
    assert (folder / "journal.sqlite.damaged-1").exists() == (how == "nonsense")


def test_a_log_without_its_database_is_kept(folder: Path) -> None:
    """SQLite would remove it."""
    (folder / "journal.sqlite").unlink()
    (folder / "journal.sqlite-wal").write_bytes(b"what was written last")
    assert "journal.sqlite is missing, and its log is there" in contents(folder).damaged[0]
    assert (folder / "journal.sqlite.damaged-1-wal").read_bytes() == b"what was written last"


def test_a_salvage_that_a_crash_interrupts_is_completed(folder: Path) -> None:
    """The new database is whole before the damaged one is renamed."""
    os.rename(folder / "journal.sqlite", folder / "journal.sqlite.new")
    assert len(contents(folder).segments) == 2 * SEGMENTS + 1
    shutil.copy(folder / "journal.sqlite", folder / "journal.sqlite.new")
    assert len(contents(folder).segments) == 2 * SEGMENTS + 1
    assert not (folder / "journal.sqlite.new").exists()


def test_a_later_schema_is_refused_and_left_as_it_is(folder: Path) -> None:
    """A server that does not know the tables changes nothing; the directory is free again."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql:
        sql.execute("PRAGMA user_version = 2")
    before = (folder / "journal.sqlite").read_bytes()
    for _ in range(2):
        with pytest.raises(StorageError, match=r"was written by a later version of tricklecast \(schema 2\)"):
            Database(folder)
    assert (folder / "journal.sqlite").read_bytes() == before


def test_a_version_that_is_lost_is_put_right(folder: Path) -> None:
    """Tables without a version are those of this version."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as sql:
        sql.execute("PRAGMA user_version = 0")
    found = contents(folder)
    assert (len(found.segments), found.damaged) == (
        2 * SEGMENTS + 1,
        ["journal.sqlite had lost the version of its tables, which is restored"],
    )


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_directory_that_may_not_be_written_is_refused(written: Path, mode: int) -> None:
    """In one line, which names it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(shutil.copytree(written, Path(name) / "data"))
        os.chmod(name, 0o755)
        os.chmod(folder, mode)
        with (
            unprivileged(),
            pytest.raises(StorageError, match=r"cannot use the data directory .*ermission"),
        ):
            Database(folder)
        os.chmod(folder, 0o755)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everywhere: for the length of the block this process is nobody."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize("how", ["cut", "missing"])
def test_a_damaged_file_costs_the_segments_in_it(folder: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Those behind the cut, or all; the other channel is whole, and the head stays."""
    path = segment_path(folder, 1, 1)
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, 10 * 1000 + 1)
    with durable(folder) as (server, target, archive):
        channel, other = target.channel("film"), target.channel("other")
        for seq in range(SEGMENTS):
            other.has(seq, body(seq))
        for seq in range(10 if how == "cut" else 0):
            channel.has(seq, body(seq))
        assert channel.get(10).status == 470
        assert channel.next_seq() == SEGMENTS
        channel.publish(SEGMENTS, b"on").has(SEGMENTS, b"on")
        assert server.inside(lambda: archive.counters.damaged) == (SEGMENTS - 10 if how == "cut" else SEGMENTS)
    why = "its file is too short" if how == "cut" else "its file is missing"
    assert f"segment 10 of 'film' (epoch 1): {why}" in caplog.text
    assert "more of these" in caplog.text


def test_what_is_younger_than_a_crash_of_the_machine_is_read_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After another boot a segment whose bytes are wrong is gone before anybody asks for it."""
    flip(segment_path(folder, 1, 1), 3500)
    monkeypatch.setattr(restore, "boot_id", lambda: "another")
    with durable(folder) as (_, target, _):
        assert target.channel("film").get(3).status == 470
        target.channel("film").has(2, body(2)).has(4, body(4))


def test_a_batch_has_all_its_files_open_until_they_are_synced(tmp_path: Path) -> None:
    """More files than are kept open: each is synced, under its own descriptor."""
    number = OPEN_FILES + 40
    segment = Segment(0)
    segment.store(encode_frame([b"x"]), 1)
    with closing(Database(tmp_path / "data", fsync=True)) as database:
        appends = [Append(channel, channel, 0, segment, 0, 1, 0) for channel in range(1, number + 1)]
        rows = [ChannelRow(append.channel, f"c{append.channel}", 1, "", 1, 0) for append in appends]
        segments = [
            (SegmentRow(append.channel, 0, "complete", 0, 0, append.file, 0, 0, 1), append) for append in appends
        ]
        database.commit(
            Batch(
                channels={row.id: row for row in rows},
                appends=appends,
                segments=list(segments),
                server_start=ServerStart("a", 0, 0, ""),
            )
        )
        assert len(database._files) == OPEN_FILES
        assert {row.size for row in database.contents().segments} == {1}


@pytest.mark.parametrize("why", ["another server uses", "a later version", "cannot use"])
def test_a_server_that_may_not_start_says_why_in_one_line(folder: Path, why: str) -> None:
    """And its exit code is 1."""
    with ExitStack() as stack:
        if "another" in why:
            stack.enter_context(closing(Database(folder)))
        elif "later" in why:
            with closing(sqlite3.connect(folder / "journal.sqlite")) as sql:
                sql.execute("PRAGMA user_version = 2")
        else:
            folder = folder / "journal.sqlite"
        command = forked("serve", "--port", "0", "--data-dir", folder)
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert why in done.stderr
    assert done.stderr.startswith("tricklecast: ")
    assert done.stderr.count("\n") == 1
