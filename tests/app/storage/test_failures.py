"""A disk that is full or fails: publishers see what was promised, and storage catches up when it can."""

from __future__ import annotations

import errno
import random
import threading
from contextlib import ExitStack, closing, suppress
from functools import partial
from glob import glob
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import aiofiles
import pytest

from tests.app.storage.crash import History, Life, Promise, check, served
from tests.app.storage.test_archive import body, durable, full, held, settled
from tests.support.local import LocalServer
from tests.support.waiting import WITHIN_S, eventually
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, SegmentClosed, SegmentOpened
from tricklecast.app.metrics import storage_metrics
from tricklecast.app.storage import archive as module
from tricklecast.app.storage.archive import Archive
from tricklecast.app.storage.database import Batch, Database
from tricklecast.app.tools.conformance.response import ConnectionCut


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory that does not exist yet."""
    return tmp_path / "data"


class Disk:
    """The disk of a server in this process: full, until it has room."""

    def __init__(self, server: LocalServer, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = server
        self._archive = archive
        self._monkeypatch = monkeypatch
        self._commit = archive.database.commit

    def fill(self) -> None:
        """Nothing can be written."""
        self._monkeypatch.setattr(self._archive.database, "commit", full)

    def free(self) -> None:
        """It can be written again, and storage has noticed."""
        self._monkeypatch.setattr(self._archive.database, "commit", self._commit)
        self._server.inside(self._archive._retry)
        eventually(lambda: self._server.inside(lambda: self._archive.failed) is None, what="it can be written again")
        settled(self._server, self._archive)


def metrics(server: LocalServer) -> dict[str, float]:
    """The figures of /metrics, by what follows ``tricklecast_storage_``."""
    families = server.inside(lambda: list(storage_metrics(server.plane)))
    return {
        sample.name.removeprefix("tricklecast_storage_"): sample.value for one in families for sample in one.samples
    }


def test_the_alarm(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The log, the metrics and /readyz say that storage has failed, and that it has come back; losses are counted."""
    with durable(folder) as (server, target, archive):
        disk = Disk(server, archive, monkeypatch)
        channel = target.channel("film").publish(0, body(0))
        assert target.ask("GET", "/readyz").body == b'{"status":"ready"}'
        disk.fill()
        channel.publish(1, *(body(seq) for seq in range(1, 6)))
        answer = target.ask("GET", "/readyz")
        assert (answer.status, answer.body) == (200, b'{"status":"degraded","reasons":["storage"]}')
        assert (metrics(server)["failed"], metrics(server)["failures_total"]) == (1, 1)
        disk.free()
        # The window holds two of the five.
        found = metrics(server)
        assert (found["failed"], found["lost_total"], found["segments"], found["backlog_bytes"]) == (0, 3, 3, 0)
        assert found["written_bytes_total"] == found["bytes"] == 3000
        assert target.ask("GET", "/readyz").body == b'{"status":"ready"}'
    assert "cannot be written ([Errno 28] No space left on device): channels go on in memory" in caplog.text
    assert "can be written again; 3 segments are missing in it" in caplog.text


def test_a_failed_batch_leaves_no_waste(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of a segment that was written before is written anew, whole; the file that it was in goes."""
    with durable(folder) as (server, target, archive):
        disk = Disk(server, archive, monkeypatch)
        upload, _ = target.channel("film").started(0, b"before ")
        settled(server, archive)
        disk.fill()
        upload.chunk(b"after")
        eventually(lambda: server.inside(lambda: archive.failed))
        upload.end()
        assert upload.answer().get("Lp-Trickle-Durability") == "memory"
        disk.free()
        known = server.inside(lambda: set(archive.files))
        assert {(int(path.parent.name), int(path.stem)) for path in folder.rglob("*.seg")} == known
        assert len(known) == 1
    with durable(folder) as (_, target, _):
        target.channel("film").has(0, b"before after")


def test_a_part_whose_rest_is_lost_does_not_come_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that was answered, and has left the window before the disk had room, is missing and not cut."""
    with durable(folder) as (server, target, archive):
        disk = Disk(server, archive, monkeypatch)
        channel = target.channel("film")
        upload, _ = channel.started(0, b"before ")
        settled(server, archive)
        disk.fill()
        upload.chunk(b"after").end()
        assert upload.answer().status == 200
        channel.publish(1, body(1), body(2), body(3))
        disk.free()
        assert channel.get(0).status == 470
    with durable(folder) as (server, target, archive):
        assert server.inside(lambda: archive.counters.damaged) == 0
        assert target.channel("film").get(0).status == 470
        target.channel("film").has(3, body(3))


def test_an_empty_segment_of_a_failed_batch_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no bytes that would be read again from the window."""
    with durable(folder) as (server, target, archive):
        disk = Disk(server, archive, monkeypatch)
        channel = target.channel("film").publish(0, body(0))
        disk.fill()
        channel.upload(1).end()
        eventually(lambda: server.inside(lambda: archive.failed))
        disk.free()
    with durable(folder) as (_, target, _):
        answer = target.channel("film").get(1)
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    ("fact", "on_disk_full"),
    [
        (ChannelCreated, "memory"),
        (SegmentOpened, "memory"),
        (SegmentClosed, "memory"),
        (SegmentClosed, "refuse"),
        (ChannelEnded, "memory"),
    ],
)
def test_a_fact_that_storage_could_not_take(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fact: type, on_disk_full: str
) -> None:
    """From then on no answer promises that it is kept; storage catches up as after an error of the disk."""
    take = Archive._take

    def stumble(archive: Archive, heard: Any, *args: Any) -> None:
        if type(heard) is fact:
            raise ZeroDivisionError("deaf")
        take(archive, heard, *args)

    with durable(folder, on_disk_full=on_disk_full) as (server, target, archive):
        channel, other = target.channel("film").publish(0, body(0)), target.channel("other").create()
        with monkeypatch.context() as patched:
            patched.setattr(Archive, "_take", stumble)
            if fact is ChannelCreated:
                answer = target.channel("new").ask("POST")
            else:
                answer = other.end() if fact is ChannelEnded else channel.post(1, body(1))
        told = {"memory": (200, "memory"), "refuse": (503, None)}[on_disk_full]
        assert (answer.status, answer.get("Lp-Trickle-Durability")) == told
        assert server.inside(lambda: archive.failed) == "deaf"
        goes_on(server, archive)
        assert channel.post(2, body(2)).get("Lp-Trickle-Durability") == "journal"
    with durable(folder) as (_, target, _):
        channel = target.channel("film").has(0, body(0)).has(2, body(2))
        if fact in (SegmentOpened, SegmentClosed):
            channel.has(1, body(1))
        found = {name: target.ask("GET", target.channel(name).at("next")).status for name in ("other", "new")}
        assert found == {"other": 404 if fact is ChannelEnded else 200, "new": 200 if fact is ChannelCreated else 404}


def test_bytes_that_storage_could_not_take(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment is not promised, and is there all the same when storage has gone on."""
    with durable(folder) as (server, target, archive):
        upload, _ = target.channel("film").started(0, b"before ")
        settled(server, archive)
        with monkeypatch.context() as patched:
            patched.setattr(Archive, "kick", lambda _: 1 // 0)
            upload.chunk(b"after")
            eventually(lambda: server.inside(lambda: archive.failed))
        assert upload.end().answer().get("Lp-Trickle-Durability") == "memory"
        goes_on(server, archive)
    with durable(folder) as (_, target, _):
        target.channel("film").has(0, b"before after")


def test_segments_that_are_given_up_do_not_fill_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A publisher without room loses many a second: the first one is told at once, the others together."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film")
        uploads = [channel.started(seq, b"begun")[0] for seq in range(3)]
        for tap in server.inside(lambda: list(archive.latest["film"].taps.values())):
            server.inside(partial(archive.give_up, tap))
        server.inside(archive.tick)
        for upload in uploads:
            upload.end()
    told = [message for message in caplog.messages if "not stored" in message]
    text = "segments that are not stored, since their memory was needed: "
    assert told == [f"{text}1; the newest is 0 of 'film'", f"{text}2; the newest is 2 of 'film'"]


def goes_on(server: LocalServer, archive: Archive) -> None:
    """Let storage try again, and wait until it has written what it lacked, and has lost nothing."""
    server.inside(archive._retry)
    eventually(lambda: server.inside(lambda: archive.failed) is None, what="storage goes on")
    settled(server, archive)
    assert metrics(server)["lost_total"] == 0


def test_a_change_is_missed_while_a_batch_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher that waits for the batch is told its own outcome, and the other one that nothing is promised."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").create()
        other = target.channel("other").create()
        with held(archive, monkeypatch) as wants:
            first = channel.upload(0, body(0)).end()
            assert wants.wait(WITHIN_S)
            with monkeypatch.context() as patched:
                patched.setattr(Archive, "_take", lambda *_: 1 // 0)
                assert other.post(0, body(7)).get("Lp-Trickle-Durability") == "memory"
            assert server.inside(lambda: archive.counters.failures) == 0
        # The batch is written, and the segment whose end it did not hold yet is told as what it is.
        assert first.answer().get("Lp-Trickle-Durability") == "memory"
        eventually(lambda: server.inside(lambda: archive.counters.failures) == 1, what="storage goes without")
        goes_on(server, archive)
    with durable(folder) as (_, target, _):
        target.channel("film").has(0, body(0))
        target.channel("other").has(0, body(7))


def test_who_is_refused_is_refused_in_the_middle_of_a_segment_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``refuse`` no segment is answered 200 that is in memory only, also if it had begun before."""
    with durable(folder, on_disk_full="refuse") as (server, target, archive):
        disk = Disk(server, archive, monkeypatch)
        channel = target.channel("film").publish(0, body(0))
        first, second = channel.upload(1, b"one"), channel.upload(2, b"two")
        eventually(lambda: channel.next_seq() == 3)
        settled(server, archive)
        disk.fill()
        for upload in (first, second):
            upload.end()
            assert upload.answer().status == 503
        disk.free()
        channel.has(1, b"one").has(2, b"two").publish(3, b"on")
    with durable(folder) as (_, target, _):
        target.channel("film").has(1, b"one").has(2, b"two").has(3, b"on")


def test_a_segment_that_was_refused_when_it_was_whole_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers have it, and it is written later. With its key it is 200 then; without one it is closed, as any other."""
    with durable(folder, on_disk_full="refuse") as (server, target, archive):
        disk = Disk(server, archive, monkeypatch)
        channel = target.channel("film").publish(0, body(0))
        keys: list[dict[str, str]] = [{"Idempotency-Key": "one"}, {}]
        uploads = [channel.upload(seq, body(seq), headers=key) for seq, key in enumerate(keys, 1)]
        eventually(lambda: channel.next_seq() == 3)
        settled(server, archive)
        disk.fill()
        for upload in uploads:
            upload.end()
            assert upload.answer().status == 503
        channel.has(1, body(1)).has(2, body(2))
        disk.free()
        again = [channel.upload(seq, body(seq), headers=key) for seq, key in enumerate(keys, 1)]
        again[0].end()
        assert [upload.answer().status for upload in again] == [200, 409]
    with durable(folder) as (_, target, _):
        target.channel("film").has(1, body(1)).has(2, body(2))


def test_a_channel_that_is_made_anew_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both its lives are known afterwards: that the first one has ended, and what the second one's window holds."""
    with durable(folder) as (server, target, archive):
        disk = Disk(server, archive, monkeypatch)
        channel = target.channel("film").publish(0, body(0), body(1))
        disk.fill()
        channel.publish(2, body(2)).end()
        channel.publish(0, b"new")
        disk.free()
        rows = server.inside(lambda: archive.database.contents().channels)
        assert [(row.epoch, row.next_seq, row.ended_us is None) for row in rows] == [(1, 3, False), (2, 1, True)]
        assert server.inside(lambda: len(archive.ended)) == 1
    with durable(folder) as (_, target, _):
        target.channel("film").has(0, b"new", epoch=2)


def test_what_is_too_old_goes_while_the_disk_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention may be what makes room."""
    with durable(folder, retain_age_s=3600) as (server, target, archive):
        target.channel("film").publish(0, *(body(seq) for seq in range(4)))
        settled(server, archive)
        commit, now_us = archive.database.commit, archive.wall_us()

        def no_more_bytes(batch: Batch, channels: list[int]) -> None:
            commit(batch)
            full(batch)

        monkeypatch.setattr(archive.database, "commit", full)
        monkeypatch.setattr(archive.database, "recover", no_more_bytes)
        target.channel("other").publish(0, body(4))
        assert server.inside(lambda: archive.failed)
        archive.wall_us = lambda: now_us + 3_601_000_000
        server.inside(archive._retry)
        eventually(lambda: not glob(f"{folder}/**/*.seg", recursive=True), what="the file is removed")
        assert server.inside(lambda: archive.failed)


@pytest.mark.parametrize("on_disk_full", ["memory", "refuse"])
def test_a_server_starts_on_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, on_disk_full: str) -> None:
    """It serves what is there, and does with publishers what it does on a disk that fills up later."""
    with durable(folder) as (_, target, _):
        target.channel("film").publish(0, body(0))
    commit = Database.commit
    monkeypatch.setattr(Database, "commit", lambda database, batch: full(batch))
    with durable(folder, on_disk_full=on_disk_full) as (server, target, archive):
        channel = target.channel("film").has(0, body(0))
        answer = channel.post(1, body(1))
        assert answer.status == (200 if on_disk_full == "memory" else 503)
        monkeypatch.setattr(Database, "commit", commit)
        server.inside(archive._retry)
        eventually(lambda: server.inside(lambda: archive.failed) is None)
        settled(server, archive)
        lives = server.inside(lambda: archive.database.contents().server_starts)
        assert lives[-1].instance == server.plane.registry.instance
    with durable(folder) as (_, target, _):
        assert target.channel("film").next_seq() == (2 if on_disk_full == "memory" else 1)


def test_a_file_that_cannot_be_opened_now_is_not_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files: this reader is cut off, and the next one gets the segment."""
    with durable(folder) as (server, target, archive):
        channel = target.channel("film").publish(0, *(body(seq) for seq in range(4)))
        settled(server, archive)
        opened = aiofiles.open

        def fail(*arguments: Any, **options: Any) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(aiofiles, "open", fail)
        with pytest.raises(ConnectionCut):
            channel.get(0)
        monkeypatch.setattr(aiofiles, "open", opened)
        channel.has(0, body(0))
        assert server.inside(lambda: archive.counters.damaged) == 0


def test_facts_that_wait_for_the_disk_are_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stands still costs no more memory than so many facts; followers begin with a snapshot."""
    monkeypatch.setattr(module, "MAX_FACTS", 50)
    with durable(folder, ack="memory") as (server, target, archive):
        channel = target.channel("film").publish(0, body(0))
        settled(server, archive)
        monkeypatch.setattr(archive, "kick", lambda: None)
        channel.publish(1, *(b"x" for _ in range(60)))
        assert server.inside(lambda: len(archive._batch.facts)) <= 50
        monkeypatch.undo()
        server.inside(archive.kick)
        settled(server, archive)
        facts = server.inside(archive.database.facts)
        assert [fact.number for fact in facts] == list(range(facts[0].number, facts[0].number + len(facts)))
        assert facts[-1].number == server.plane.registry.journal.index


def test_a_disk_that_hangs_at_the_end_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that stops waits for its disk for a limited time, and says that not all could be written."""
    monkeypatch.setattr(module, "END_S", 0.1)
    with ExitStack() as hangs:
        with durable(folder) as (_, target, archive):
            wants = hangs.enter_context(held(archive, monkeypatch))
            target.channel("film").upload(0, b"x").end()
            assert wants.wait(WITHIN_S)
        assert "cannot be written (the storage thread did not return in time)" in caplog.text
    eventually(lambda: all(thread.name != "storage" for thread in threading.enumerate()), what="the disk has answered")
    archive.database.close()


@pytest.mark.parametrize(
    ("operation", "number"),
    [
        *(
            (operation, number)
            for operation in ("write-seg", "write-wal", "sync-seg", "sync-wal", "any")
            for number in (errno.ENOSPC, errno.EIO)
        ),
        # A tool that root ran has made the folder its own; a file system that was mounted again, read-only; a quota.
        *(("create-seg", number) for number in (errno.EACCES, errno.EROFS, errno.ENOENT)),
        ("write-seg", errno.EDQUOT),
        ("write-seg", errno.EROFS),
    ],
)
def test_calls_that_fail(tmp_path: Path, operation: str, number: int) -> None:
    """Each call of a server's own process may fail: publishers go on in memory, and everything is there afterwards."""
    folder, control = tmp_path / "data", tmp_path / "fail"
    histories = {"small": History("small")}
    rng = random.Random(5)
    with (
        served(folder, "fsync", SEAM_FAIL=str(control)) as server,
        closing(Publisher(server.port, histories["small"], rng)) as published,
    ):
        assert published.several(3) == {"fsync"}
        control.write_text(f"{operation} {number}")
        eventually(lambda: published.several(1) == {"memory"}, what="storage has failed")
        assert published.several(3) == {"memory"}
        control.unlink()
        eventually(lambda: published.several(1) == {"fsync"}, what="storage has caught up")
        check(server, histories, Promise(acked=True, sound=False))
        eventually(lambda: "cannot be written" in server.errors.read_text(), what="the log's thread has written it")
        server.errors.unlink()
    with served(folder, "fsync") as server:
        check(server, histories, Promise(acked=True))


@pytest.mark.parametrize("ack", ["journal", "fsync"])
def test_a_disk_that_is_really_full(small_disk: Path, ack: str) -> None:
    """The kernel says so, in the middle of a write; when there is room again, everything is written."""
    folder, filler = small_disk / "data", small_disk / "filler"
    histories = {"small": History("small")}
    with (
        served(folder, ack) as server,
        closing(Publisher(server.port, histories["small"], random.Random(6))) as published,
    ):
        assert published.several(3) == {ack}
        with suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        eventually(lambda: published.several(1, 30_000) == {"memory"}, what="the disk is full")
        filler.unlink()
        eventually(lambda: published.several(1) == {ack}, what="storage has caught up")
        check(server, histories, Promise(acked=True, sound=False))
        server.errors.unlink()
    with served(folder, ack) as server:
        check(server, histories, Promise(acked=True))


class Publisher:
    """Publishes segments one by one."""

    def __init__(self, port: int, history: History, rng: random.Random) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
        history.lives.append(Life())
        history.created = 1
        self._life, self._rng = history.lives[0], rng

    def several(self, number: int, size: int = 500) -> set[str]:
        """Publish so many of this size; returns what the server says of their durability."""
        said = set()
        for _ in range(number):
            data = self._rng.randbytes(size)
            seq = len(self._life.sent)
            self._connection.request("POST", f"/trickle/small/{seq}", body=data)
            answer = self._connection.getresponse()
            answer.read()
            assert answer.status == 200
            self._life.sent.append(data)
            self._life.acked.add(seq)
            said.add(answer.headers["Lp-Trickle-Durability"])
        return said

    def close(self) -> None:
        """Close its connection."""
        self._connection.close()
