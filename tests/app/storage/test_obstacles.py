"""Something stands in the way of the data directory: storage has failed until bytes of segments are written again."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.app.storage.test_archive import ACKS, body, durable, settled
from tests.app.storage.test_failures import metrics
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.storage import archive as module
from tricklecast.app.storage import database
from tricklecast.app.storage.database import Database, StorageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory that does not exist yet, whose server tries again soon."""
    monkeypatch.setattr(module, "RETRY_S", 0.02)
    monkeypatch.setattr(database, "LOCK_S", 0.05)
    return tmp_path / "data"


@contextmanager
def a_file_for_a_folder(folder: Path, name: str = "segments/000001") -> Iterator[None]:
    """Where the folder of the channel was, a file is."""
    place, aside = folder / name, folder / "aside"
    place.rename(aside)
    place.write_bytes(b"")
    yield
    place.unlink()
    aside.rename(place)


def a_file_for_all_folders(folder: Path) -> AbstractContextManager[None]:
    """Where the folder of all channels was, a file is."""
    return a_file_for_a_folder(folder, "segments")


@contextmanager
def a_read_only_mount(folder: Path) -> Iterator[None]:
    """The folder of all channels was mounted again, read-only. What is open stays writable."""
    place = folder / "segments"
    if subprocess.run(["mount", "--bind", place, place], capture_output=True, check=False).returncode:
        pytest.skip("this user may mount no file system")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@contextmanager
def a_locked_database(folder: Path) -> Iterator[None]:
    """Another process writes to the database, and does not come to an end."""
    other = sqlite3.connect(folder / "journal.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


@contextmanager
def an_immutable_folder(folder: Path) -> Iterator[None]:
    """Nothing can be made in the folder of the channel, not even by root."""
    place = folder / "segments" / "000001"
    if subprocess.run(["chattr", "+i", place], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable folders")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", place], check=True)


OBSTACLES = (a_file_for_a_folder, a_file_for_all_folders, a_read_only_mount, a_locked_database, an_immutable_folder)


@pytest.mark.parametrize("ack", ACKS)
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_storage_has_failed_as_long_as_no_segment_can_be_written(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    obstacle: Callable[[Path], Any],
    ack: str,
) -> None:
    """However often it tries: the gauge stays 1, nothing says that it is over, and then everything is written."""
    monkeypatch.setattr(module, "FILE_BYTES", 1)  # each segment needs a file
    with durable(folder, ack=ack, window_segments=20) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0), body(1))
        settled(server, archive)
        with obstacle(folder):
            channel.publish(2, body(2))
            eventually(lambda: server.inside(lambda: archive.failed), what="it has failed")
            assert channel.post(3, body(3)).get("Lp-Trickle-Durability") == "memory"
            tried = archive.counters.failures
            eventually(lambda: archive.counters.failures > tried + 3, what="it was tried again")
            channel.publish(4, body(4))
            found = metrics(server)
            assert (found["failed"], found["lost_total"]) == (1, 0)
            assert "can be written again" not in caplog.text
            assert b"degraded" in target.ask("GET", "/readyz").body
        eventually(lambda: server.inside(lambda: archive.failed) is None, what="it can be written again")
        settled(server, archive)
        assert "can be written again; 0 segments are missing in it" in caplog.text
        assert caplog.text.count(" still cannot be written") <= 2, "each reason is told once"
        assert channel.post(5, body(5)).get("Lp-Trickle-Durability") == ack
        settled(server, archive)
    with durable(folder) as (_, target, _):
        for seq in range(6):
            target.channel("film").has(seq, body(seq))


@pytest.mark.parametrize("ack", ACKS)
@pytest.mark.parametrize("removed", ["segments/000001", "segments"])
def test_a_folder_that_is_removed_under_the_server(folder: Path, ack: str, removed: str) -> None:
    """No publisher is told that a file without a name keeps its segment; the folder is made anew, from the windows."""
    with durable(folder, ack=ack, window_segments=20) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        settled(server, archive)
        shutil.rmtree(folder / removed)
        assert channel.post(1, body(1)).get("Lp-Trickle-Durability") == "memory"
        eventually(lambda: archive.counters.failures, what="it is noticed")
        eventually(lambda: server.inside(lambda: archive.failed) is None, what="it can be written again")
        channel.publish(2, body(2))
        settled(server, archive)
    with durable(folder) as (_, target, _):
        target.channel("film").has(1, body(1)).has(2, body(2))
        assert target.channel("film").get(0).status == 470


def test_a_database_that_is_removed_under_the_server(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite would write on to a file without a name. Only a restart begins a new one."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        settled(server, archive)
        shutil.rmtree(folder)
        assert channel.post(1, body(1)).get("Lp-Trickle-Durability") == "memory"
        eventually(lambda: archive.counters.failures > 3, what="it was tried again")
        assert server.inside(lambda: archive.failed) is not None
    assert "removed while the server runs; restart the server" in caplog.text
    assert "1 segments are missing in it" in caplog.text


def test_lost_segments_are_counted_when_they_are_lost(folder: Path) -> None:
    """While storage has failed: those that have left the windows will never be stored."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        with a_file_for_all_folders(folder):
            channel.publish(1, *(body(seq) for seq in range(1, 6)))
            eventually(lambda: metrics(server)["lost_total"] == 3, what="the window holds two of the five")
        eventually(lambda: server.inside(lambda: archive.failed) is None, what="it can be written again")
        assert metrics(server)["lost_total"] == 3


def test_what_is_missing_at_the_end_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server's end is the last moment for it."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        settled(server, archive)
        place = folder / "segments"
        shutil.rmtree(place)
        place.write_bytes(b"")
        channel.publish(1, *(body(seq) for seq in range(1, 6)))
    assert "is left as it is: 5 segments are missing in it" in caplog.text
    assert archive.counters.lost == 5


def test_the_last_attempt_is_at_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is well again shortly before the server ends gets what the windows hold."""
    with durable(folder, window_segments=20) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        settled(server, archive)
        with a_file_for_all_folders(folder):
            channel.publish(1, body(1), body(2))
            eventually(lambda: server.inside(lambda: archive.failed), what="it has failed")
            monkeypatch.setattr(module, "RETRY_S", 3600)

            def waits() -> bool:
                return archive._retrying is not None and archive._retrying.when() > server.loop.time() + 60

            eventually(lambda: server.inside(waits), what="the next attempt is an hour away")
    with durable(folder) as (_, target, _):
        target.channel("film").has(1, body(1)).has(2, body(2))


def test_a_start_with_a_folder_that_cannot_be_written(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server says so at once, before anything is published; it serves what is there, and then stores."""
    with durable(folder) as (_, target, _):
        target.channel("film").publish(0, body(0))
        target.channel("other").publish(0, body(1))
    with a_file_for_a_folder(folder), durable(folder) as (server, target, _):
        assert metrics(server)["failed"] == 1
        target.channel("other").has(0, body(1))
    assert "cannot be written ([Errno 20] Not a directory" in caplog.text


def test_a_start_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A server that could store nothing does not start."""
    (tmp_path / "segments").write_bytes(b"")
    with pytest.raises(StorageError, match="File exists"):
        Database(tmp_path)


def test_attempts_do_not_grow(folder: Path) -> None:
    """Changes that wait to be written take as much memory after many attempts as after one."""
    with durable(folder, window_segments=20) as (server, target, archive):
        target.channel("film").publish(0, body(0))
        settled(server, archive)

        def sizes() -> list[int]:
            batch = archive._batch
            lists = (batch.facts, batch.channels, batch.appends, batch.segments, batch.removed, batch.files)
            return [*map(len, lists), len(batch.forgotten), len(archive._touched), len(archive._partly_written)]

        with a_file_for_all_folders(folder):
            channel = target.channel("film").publish(1, body(1))
            channel.end()
            target.channel("film").publish(0, body(2))
            eventually(lambda: archive.counters.failures > 3, what="it was tried again")
            before = server.inside(sizes)
            tried = archive.counters.failures
            eventually(lambda: archive.counters.failures > tried + 20, what="it was tried again")
            # Between two attempts; in the middle of one, the rows are with the thread that writes.
            eventually(lambda: server.inside(sizes) == before, what="nothing has grown")


def test_channels_that_come_and_go_meanwhile_are_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives that the directory has never heard of leave nothing behind."""
    monkeypatch.setattr(module, "MAX_ENDED", 5)
    with durable(folder, ack="memory", storm_guard="off") as (server, target, archive):
        target.channel("film").publish(0, body(0))
        settled(server, archive)
        with a_file_for_all_folders(folder):
            target.channel("film").publish(1, body(1))
            eventually(lambda: archive.failed, what="it has failed")
            for _ in range(30):
                target.channel("other").create().end()
            tried = archive.counters.failures
            eventually(lambda: archive.counters.failures > tried + 2, what="it was tried again")
            assert server.inside(lambda: (len(archive.ended), archive._batch.forgotten)) == (5, [])
            assert server.inside(lambda: len(archive._batch.channels)) <= 7
            assert server.inside(lambda: len(archive._touched)) <= 7


@pytest.mark.parametrize("ack", ACKS)
def test_less_room_than_the_windows_hold(small_disk: Path, monkeypatch: pytest.MonkeyPatch, ack: str) -> None:
    """Storage goes on with the newest segments, and leaves room for those that come; the others are lost, and told."""
    monkeypatch.setattr(module, "RETRY_S", 0.02)
    folder, filler = small_disk / "data", small_disk / "filler"
    with durable(folder, ack=ack, window_segments=50) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        settled(server, archive)
        with suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        channel.publish(1, *(body(seq, 400_000) for seq in range(1, 21)))  # 8 MB
        eventually(lambda: server.inside(lambda: archive.failed), what="the disk is full")
        os.truncate(filler, filler.stat().st_size - (6 << 20))
        eventually(lambda: server.inside(lambda: archive.failed) is None, what="it can be written again")
        assert channel.post(21, body(21, 400_000)).get("Lp-Trickle-Durability") == ack
        settled(server, archive)
        lost = server.inside(lambda: archive.counters.lost)
        assert 10 <= lost <= 16
        assert server.inside(lambda: archive.latest["film"].seqs) == [0, *range(lost + 1, 22)]
    with durable(folder) as (_, target, _):
        for seq in (0, *range(lost + 1, 22)):
            target.channel("film").has(seq, body(seq, 400_000 if seq else 1000))


def test_a_quota_of_which_the_file_system_does_not_tell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt that finds no room tries half as much, until it fits."""
    with durable(folder, window_segments=50) as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        settled(server, archive)
        commit = Database.commit

        def limited(database: Database, batch: Any) -> None:
            if (
                sum(len(view) for part in batch.appends for view in part.segment.payload(part.first, part.last))
                > 100_000
            ):
                raise OSError(122, "Disk quota exceeded")
            commit(database, batch)

        monkeypatch.setattr(Database, "commit", limited)
        with a_file_for_all_folders(folder):
            channel.publish(1, *(body(seq, 30_000) for seq in range(1, 11)))
            eventually(lambda: server.inside(lambda: archive.failed), what="it has failed")
        eventually(lambda: server.inside(lambda: archive.failed) is None, what="it can be written again")
        settled(server, archive)
        assert server.inside(lambda: archive.latest["film"].seqs)[-2:] == [9, 10]
        assert channel.post(11, body(11)).get("Lp-Trickle-Durability") == "journal"


def test_a_disk_that_does_not_answer_does_not_keep_the_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that misses the deadline of its last batch says what is missing, and answers waiting publishers."""
    monkeypatch.setattr(module, "END_S", 0.1)
    with durable(folder) as (server, target, archive):
        target.channel("film").create()
        settled(server, archive)
        place = folder / "segments" / "000001"
        place.mkdir()
        os.mkfifo(place / "00000001.seg")  # to open it for writing waits for a reader
        upload = target.channel("film").upload(0, body(0))
        upload.end()
        eventually(lambda: archive._busy, what="it writes")
        asyncio.run_coroutine_threadsafe(archive.close(), server.loop).result(WITHIN_S)
        assert upload.answer().get("Lp-Trickle-Durability") == "memory"
        assert target.channel("film").post(1, body(1)).get("Lp-Trickle-Durability") == "memory"
        # Let the thread go: it belongs to the tests' process.
        reader = os.open(place / "00000001.seg", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(reader, fcntl.F_SETFL, 0)
        os.close(reader)
    assert "does not answer: the server ends without it" in caplog.text
    assert "1 segments are missing in it" in caplog.text


def test_one_that_waits_and_raises_keeps_nothing_from_the_others(folder: Path) -> None:
    """Those behind it are told, and storage goes on; it is a fault of the server, which is counted."""
    with durable(folder) as (server, target, archive):
        told: list[bool] = []

        def raises(kept: bool) -> None:
            raise ValueError(kept)

        def ask() -> None:
            archive.when_stored(raises)
            archive.when_stored(told.append)

        target.channel("film").publish(0, body(0))
        server.inside(ask)
        eventually(lambda: told == [True], what="the second one is told")
        target.channel("film").publish(1, body(1))
        assert server.plane.faults == 1


def test_a_fault_of_retention_does_not_end_the_sweeper(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged and counted, and everything else goes on."""
    with durable(folder) as (server, target, archive):
        monkeypatch.setattr(archive, "tick", lambda: 1 // 0)
        eventually(lambda: server.plane.faults >= 2, what="the sweeper goes on")
        monkeypatch.undo()
        target.channel("film").publish(0, body(0)).has(0, body(0))
