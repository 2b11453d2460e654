"""The access log: complete, rotated, bounded, and honest about what it dropped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import subprocess
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiofiles
import aiofiles.os
import pytest

from tests.support.logs import Record, matching, read_log
from tests.support.waiting import WITHIN_S, until
from tricklecast.app import access_log, encoding
from tricklecast.app.access_log import BATCH, AccessLog, AccessLogError
from tricklecast.trickle.records import AccessRecord, Event, Op


def make(path: Path, **settings: Any) -> AccessLog:
    """A log that neither rotates nor drops unless told so."""
    defaults: dict[str, Any] = {"node": "n1", "max_bytes": 1 << 30, "max_age_s": 3600.0, "files": 48, "queue": 100_000}
    return AccessLog(path, **{**defaults, **settings})


def run(make_log: Callable[[], AccessLog], use: Callable[[AccessLog], Awaitable[None]]) -> AccessLog:
    """Run a log, use it, close it, and wait until it is complete."""

    async def main() -> AccessLog:
        async with asyncio.timeout(WITHIN_S):
            log = make_log()
            writing = asyncio.ensure_future(log.run())
            await use(log)
            log.close()
            await writing
            return log

    return asyncio.run(main())


def record(number: int) -> AccessRecord:
    """A record that can be told from the others."""
    return AccessRecord(number, op=Op.READ, status=200, channel="c", rseq=number)


async def written(log: AccessLog, count: int) -> None:
    """Wait until so many records are in the file."""
    await until(lambda: log.written >= count)


def all_lines(path: Path) -> list[Record]:
    """The records of all files of a log, the rotated ones first."""
    files = sorted(path.parent.glob(f"{path.stem}-*{path.suffix}"))
    return [line for file in [*files, *([path] if path.exists() else [])] for line in read_log(file)]


def seqs(path: Path) -> list[int]:
    return [line["rseq"] for line in all_lines(path) if "rseq" in line]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.jsonl"


def test_each_record_is_one_line_in_order(path: Path) -> None:
    """Each record becomes one JSON object in a line, with only the fields that apply."""

    async def use(log: AccessLog) -> None:
        for number in range(3):
            log.put(record(number))

    log = run(lambda: make(path), use)
    assert seqs(path) == [0, 1, 2]
    assert read_log(path)[0] == {
        "v": 1, "ts_us": 0, "kind": "exchange", "op": "read", "status": 200, "channel": "c", "rseq": 0,
    }  # fmt: skip
    assert (log.written, log.dropped) == (3, 0)


def test_events_carry_the_node_and_the_time(path: Path) -> None:
    """A lifecycle event says when, where and what."""

    async def use(log: AccessLog) -> None:
        log.event(Event.CHANNEL_END, channel="c", epoch=2, detail="deleted")

    run(lambda: make(path), use)
    (line,) = read_log(path)
    assert line.pop("ts_us") > 1_700_000_000_000_000
    assert line == {
        "v": 1, "node": "n1", "kind": "event", "event": "channel_end", "channel": "c", "epoch": 2, "detail": "deleted",
    }  # fmt: skip


def test_the_file_is_appended_to(path: Path) -> None:
    """A restart does not destroy what is there."""

    async def use(log: AccessLog) -> None:
        log.put(record(1))

    run(lambda: make(path), use)
    run(lambda: make(path), use)
    assert seqs(path) == [1, 1]


@pytest.mark.parametrize("beginning", [b"SQLite format 3\0", b"-----BEGIN PRIVATE KEY-----\n", b"\n"])
def test_a_file_that_is_no_log_is_not_written_to(path: Path, beginning: bytes) -> None:
    """A wrong word on the command line: nothing is added to a database, a key, a film."""
    path.write_bytes(beginning)

    async def main() -> None:
        log = make(path)
        log.event(Event.SERVER_START)
        with pytest.raises(AccessLogError, match="the file is there, and is no access log; name another one"):
            await log.check()

    asyncio.run(main())
    assert path.read_bytes() == beginning


def test_the_directory_is_made(tmp_path: Path) -> None:
    """The log's directory need not exist."""

    async def use(log: AccessLog) -> None:
        log.put(record(1))

    run(lambda: make(tmp_path / "a" / "b" / "access.jsonl"), use)
    assert seqs(tmp_path / "a" / "b" / "access.jsonl") == [1]


def test_records_put_while_it_writes_are_written(path: Path) -> None:
    """The task wakes up again for later records."""

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        log.put(record(1))
        await written(log, 2)

    run(lambda: make(path), use)
    assert seqs(path) == [0, 1]


def test_rotation_by_size_loses_nothing(path: Path) -> None:
    """A file that has reached its size is renamed, and the next record goes into a new one."""

    async def use(log: AccessLog) -> None:
        for number in range(5):
            log.put(record(number))
            await written(log, number + 1)

    run(lambda: make(path, max_bytes=1), use)
    assert seqs(path) == [0, 1, 2, 3, 4]
    assert len(list(path.parent.glob("access-*.jsonl"))) >= 4


def test_rotation_by_age(path: Path) -> None:
    """A file that has reached its age is renamed as soon as it holds something."""

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        await until(lambda: list(path.parent.glob("access-*.jsonl")))
        log.put(record(1))

    run(lambda: make(path, max_age_s=1e-9), use)
    assert seqs(path) == [0, 1]


def test_only_so_many_rotated_files_are_kept(path: Path) -> None:
    """The oldest rotated files are removed."""

    async def use(log: AccessLog) -> None:
        for number in range(6):
            log.put(record(number))
            await written(log, number + 1)

    run(lambda: make(path, max_bytes=1, files=2), use)
    assert len(list(path.parent.glob("access-*.jsonl"))) == 2
    assert seqs(path)[-1] == 5


def test_a_close_with_much_to_write_is_complete(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was queued before the close is written, also where files are due for rotation meanwhile."""
    monkeypatch.setattr(access_log, "WRITE_BYTES", 5000)
    count = 3 * BATCH + 1

    async def use(log: AccessLog) -> None:
        for number in range(count):
            log.put(record(number))

    log = run(lambda: make(path, max_bytes=1), use)
    assert seqs(path) == list(range(count))
    assert log.written == count


def test_a_close_before_the_first_turn_is_complete(path: Path) -> None:
    """A log that is closed before its task has run at all still writes everything."""

    async def main() -> None:
        log = make(path)
        log.put(record(0))
        log.close()
        async with asyncio.timeout(WITHIN_S):
            await log.run()

    asyncio.run(main())
    assert seqs(path) == [0]


def test_a_close_during_a_rotation_is_complete(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that come, and a close that comes, while the file is being renamed, are honoured."""
    rename = aiofiles.os.rename

    async def main() -> None:
        log = make(path, max_bytes=1)

        async def slow_rename(*arguments: Any, **options: Any) -> None:
            await rename(*arguments, **options)
            if not log._closing:
                log.put(record(1))
                log.close()

        monkeypatch.setattr(aiofiles.os, "rename", slow_rename)
        log.put(record(0))
        async with asyncio.timeout(WITHIN_S):
            await log.run()

    asyncio.run(main())
    assert seqs(path) == [0, 1]


def test_a_full_queue_drops_and_says_how_many(path: Path) -> None:
    """The queue is bounded; what did not fit is counted and reported as an event, before anything later."""

    async def use(log: AccessLog) -> None:
        for number in range(10):
            log.put(record(number))
        assert log.dropped == 7
        await written(log, 3)
        log.put(record(10))

    log = run(lambda: make(path, queue=3), use)
    assert seqs(path) == [0, 1, 2, 10]
    (event,) = matching(all_lines(path), event="log_dropped")
    assert event["detail"] == "7 records"
    assert log.dropped == 7


def test_drops_are_reported_although_nothing_follows(path: Path) -> None:
    """The count of dropped records reaches the file even if they were the last ones."""

    async def use(log: AccessLog) -> None:
        for number in range(3):
            log.put(record(number))

    run(lambda: make(path, queue=1, max_bytes=1), use)
    assert [event["detail"] for event in matching(all_lines(path), event="log_dropped")] == ["2 records"]


@pytest.mark.parametrize("where", ["a file as directory", "a directory as file"])
def test_an_unwritable_path_is_one_clear_error(tmp_path: Path, where: str) -> None:
    """The error names the file and the reason."""
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "access.jsonl" if where == "a file as directory" else tmp_path
    with pytest.raises(
        AccessLogError, match=r"cannot write the access log .*: (Not a directory|Is a directory|File exists)"
    ):
        asyncio.run(make(path).run())


@pytest.mark.parametrize("torn", [b'{"v":1,"rse', b"x"])
def test_a_torn_line_is_not_glued_to_the_next(path: Path, torn: bytes) -> None:
    """A line that a killed server has torn stays a line of its own."""
    whole = b'{"v":1,"rseq":0}\n'
    path.write_bytes(whole + torn)

    async def use(log: AccessLog) -> None:
        log.put(record(1))

    run(lambda: make(path), use)
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[:2] == [whole, torn + b"\n"]
    assert json.loads(lines[2])["rseq"] == 1
    run(lambda: make(path), use)
    assert len(path.read_bytes().splitlines()) == 4, "a whole last line needs nothing"


def test_reopening_goes_on_in_a_file_of_the_same_name(path: Path) -> None:
    """Tools that rename a log themselves say so; nothing is lost, and nothing is renamed by the server."""
    renamed = path.with_name("access.jsonl.1")

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        os.rename(path, renamed)
        log.put(record(1))
        await written(log, 2)
        log.reopen()
        await until(path.exists)
        log.put(record(2))

    run(lambda: make(path), use)
    assert [line["rseq"] for line in read_log(renamed)] == [0, 1]
    assert seqs(path) == [2]
    assert sorted(file.name for file in path.parent.iterdir()) == ["access.jsonl", "access.jsonl.1"]


@pytest.mark.parametrize("torn", [b"", b'{"v":1'])
def test_a_log_that_is_renamed_as_soon_as_it_is_open_is_written_to(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, torn: bytes
) -> None:
    """Its last line is looked at where it is now; nobody is told of a trouble."""
    path.write_bytes(b"{}\n" + torn)
    renamed, opened = path.with_name("access.jsonl.1"), aiofiles.open

    async def open_and_rename(*arguments: Any, **options: Any) -> Any:
        file = await opened(*arguments, **options)
        os.rename(path, renamed)
        return file

    monkeypatch.setattr(aiofiles, "open", open_and_rename)

    async def use(log: AccessLog) -> None:
        log.put(record(0))

    log = run(lambda: make(path), use)
    assert (log.written, caplog.messages) == (1, [])
    before, _, last = renamed.read_bytes().rstrip(b"\n").rpartition(b"\n")
    assert (before + b"\n", json.loads(last)["rseq"]) == (b"{}\n" + (torn and torn + b"\n"), 0)


def test_reopening_while_much_is_queued_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nothing follows that would wake the writer again."""
    monkeypatch.setattr(access_log, "WRITE_BYTES", 5000)
    count = 3 * BATCH + 1

    async def use(log: AccessLog) -> None:
        for number in range(count):
            log.put(record(number))
            if not number % 500:
                log.reopen()
        await written(log, count)

    run(lambda: make(path), use)
    assert seqs(path) == list(range(count))


def test_a_rotated_file_is_never_overwritten(path: Path) -> None:
    """A server that was restarted within the second takes another number."""

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        await until(lambda: not path.exists() or not path.stat().st_size)

    for _ in range(4):
        run(lambda: make(path, max_bytes=1), use)
    assert seqs(path) == [0] * 4


def test_only_rotated_files_are_removed(path: Path) -> None:
    """The log of another server, whose name begins alike, is none of ours."""
    others = [
        path.with_name(name) for name in ("access-b.jsonl", "access-2.jsonl", "access-b-20250101T000000-0001.jsonl")
    ]
    for other in others:
        other.touch()

    async def use(log: AccessLog) -> None:
        for number in range(3):
            log.put(record(number))
            await written(log, number + 1)

    run(lambda: make(path, max_bytes=1, files=1), use)
    assert [other for other in others if not other.exists()] == []
    assert len(list(path.parent.glob("access-[0-9]*T*.jsonl"))) == 1


def test_names_of_rotated_files_are_in_order(path: Path) -> None:
    """Also those of a former server that rotated in the same second: the oldest file is removed first."""
    now = datetime.now(UTC)
    stamps = [(now + timedelta(seconds=second)).strftime("%Y%m%dT%H%M%S") for second in range(120)]
    former = [path.with_name(f"access-{stamp}-0030.jsonl") for stamp in stamps]
    for file in former:
        file.touch()

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)

    run(lambda: make(path, max_bytes=1, files=1000), use)
    (mine,) = [file for file in path.parent.glob("access-*.jsonl") if file.stat().st_size]
    assert mine.name.endswith("-0031.jsonl")


def test_a_file_is_synced_when_it_is_let_go_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the files, and a pipe or a device, which cannot be synced, is no error; a broken disk is."""
    synced: list[int] = []
    failure = errno.EINVAL

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        raise OSError(failure, os.strerror(failure))

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        await until(lambda: len(synced) >= 1)
        log.put(record(1))

    monkeypatch.setattr(os, "fsync", fsync)
    run(lambda: make(path, max_bytes=1), use)
    assert len(synced) >= 2
    assert min(synced[:2]) > 0
    failure = errno.EIO

    async def put_one(log: AccessLog) -> None:
        log.put(record(2))

    with pytest.raises(AccessLogError, match="Input/output error"):
        run(lambda: make(path), put_one)


class Disk:
    """A disk with so much room; what does not fit is written in part, as disks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self.refused = 0
        self._open = aiofiles.open
        monkeypatch.setattr(access_log, "RETRY_S", 0.001)
        monkeypatch.setattr(aiofiles, "open", self._opening)

    async def _opening(self, *args: Any, **options: Any) -> Any:
        file = await self._open(*args, **options)
        write = file.write

        async def limited(data: bytes) -> int:
            if not self.room:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            size = min(self.room, len(data))
            self.room -= size
            assert await write(data[:size]) == size
            return size

        file.write = limited
        return file


@pytest.mark.parametrize("room", [0, 1, 70, 71, 150, 1000])
def test_a_full_disk_stops_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    """Wherever it was cut off, the file ends with a whole line; when there is room again each record is a line once."""
    disk = Disk(monkeypatch)

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        disk.room = room
        for number in range(1, 30):
            log.put(record(number))
        await until(lambda: disk.refused > 1)
        assert log.written + log.queued == 30
        assert all_lines(path), "an operator may move the file away now: each line is whole"
        disk.room = 1 << 30
        await written(log, 30)

    log = run(lambda: make(path), use)
    assert seqs(path) == list(range(30))
    assert (log.written, log.dropped) == (30, 0)
    told, recovered = [entry.message for entry in caplog.records]
    assert re.fullmatch(
        rf"cannot write the access log {re.escape(str(path))} \(--access-log\): No space left on device; "
        r"the server tries again once a second; \d+ records wait, 0 were dropped",
        told,
    )
    assert recovered == f"the access log {path} can be written again; 0 records were dropped"


def test_a_disk_that_stays_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue stays bounded, and the end says that something is missing."""
    disk = Disk(monkeypatch)
    logs: list[AccessLog] = []

    async def use(log: AccessLog) -> None:
        logs.append(log)
        log.put(record(0))
        await written(log, 1)
        disk.room = 0
        for number in range(1, 30):
            log.put(record(number))
        await until(lambda: disk.refused > 1)

    with pytest.raises(AccessLogError, match="No space left on device; 10 records are lost"):
        run(lambda: make(path, queue=10), use)
    assert (logs[0].written, logs[0].queued, logs[0].dropped) == (1, 10, 19)


def test_without_memory_records_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server goes on, and each record is a line when there is memory again."""
    monkeypatch.setattr(access_log, "RETRY_S", 0.001)
    asked = 0

    def encode(*args: Any) -> bytes:
        nonlocal asked
        asked += 1
        if 2 <= asked <= 5:
            raise MemoryError
        return encoding.encode(*args)

    monkeypatch.setattr(access_log, "encode", encode)

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        log.put(record(1))
        log.put(record(2))
        await written(log, 3)

    run(lambda: make(path), use)
    assert seqs(path) == [0, 1, 2]
    assert "(--access-log): out of memory; the server tries again" in caplog.text


def test_few_lines_wait_and_further_records_take_their_place_behind_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a disk stands still, memory is bounded by the number of records, whatever their lines would take."""
    monkeypatch.setattr(access_log, "AHEAD_BYTES", 1000)
    monkeypatch.setattr(access_log, "WRITE_BYTES", 5000)
    disk = Disk(monkeypatch)

    async def use(log: AccessLog) -> None:
        disk.room = 100
        for number in range(3 * BATCH):
            log.put(record(number))
        await until(lambda: disk.refused > 3)
        lines = [line for line in log._queue if isinstance(line, bytes)]
        assert 1000 <= log._ahead == sum(map(len, lines)) < 1000 + 5000
        disk.room = 1 << 30
        await written(log, 3 * BATCH)
        assert log._ahead == 0
        log.put(record(3 * BATCH))
        assert log._ahead > 0

    run(lambda: make(path), use)
    assert seqs(path) == list(range(3 * BATCH + 1))


def test_a_log_that_is_gone_is_made_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be opened at the moment at which somebody else rotates it is waited for."""
    monkeypatch.setattr(access_log, "RETRY_S", 0.001)

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        os.rename(path, path.with_name("access.jsonl.1"))
        os.mkdir(path)
        log.reopen()
        await until(lambda: log._trouble)
        log.put(record(1))
        os.rmdir(path)
        await written(log, 2)

    run(lambda: make(path), use)
    assert [line["rseq"] for line in read_log(path.with_name("access.jsonl.1"))] == [0]
    assert seqs(path) == [1]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_log_that_was_removed_is_made_anew(path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """Its operator is told; further records would go to a file that nobody can open any more."""
    where = path.with_name("logs") / path.name

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 1)
        where.unlink()
        if what == "folder":
            where.parent.rmdir()
        log.put(record(1))
        await written(log, 2)

    run(lambda: make(where), use)
    assert seqs(where) == [1]
    assert [entry.message for entry in caplog.records] == [
        f"the access log {where} (--access-log) was removed; the server makes it anew"
    ]


def test_a_log_that_is_emptied_to_make_room_stays_a_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that was cut off is taken from the end that the file has then, and not from the one that it had."""
    disk = Disk(monkeypatch)

    async def use(log: AccessLog) -> None:
        for number in range(10):
            log.put(record(number))
        await written(log, 10)
        os.truncate(path, 0)  # : > access.jsonl
        disk.room = 20
        log.put(record(10))
        await until(lambda: disk.refused > 0)
        disk.room = 1 << 30
        await written(log, 11)

    run(lambda: make(path), use)
    assert seqs(path) == [10]


def test_a_pipe_is_written_to_as_it_is() -> None:
    """It has no size, and no name that could be given to another file: nothing is rotated, all lines come."""
    reading, writing = os.pipe()
    path = Path(f"/dev/fd/{writing}")

    async def use(log: AccessLog) -> None:
        for number in range(3):
            log.put(record(number))
            await written(log, number + 1)

    run(lambda: make(path, max_bytes=1, max_age_s=1e-9), use)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert [json.loads(line)["rseq"] for line in pipe] == [0, 1, 2]


def test_a_named_pipe_stays_open_for_its_reader(path: Path) -> None:
    """The check at the start opens it once and for all: a reader such as `cat` ends when nobody has it open."""
    os.mkfifo(path)
    reader = subprocess.Popen(["cat", path], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    read_line = reader.stdout.readline

    async def main() -> None:
        log = make(path)
        log.put(record(0))
        await log.check()
        assert json.loads(await asyncio.to_thread(read_line))["rseq"] == 0  # `cat` looks for more
        log.put(record(1))
        log.close()
        await log.run()

    asyncio.run(main())
    assert json.loads(reader.communicate(timeout=WITHIN_S)[0])["rseq"] == 1


def full_pipe() -> int:
    """The writing end of a pipe that takes no further byte, and whose reading end stays open."""
    _, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    return writing


def test_a_pipe_whose_reader_has_stopped_is_told_and_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator is told once, the queue stays bounded, and the close ends in time and says how much is lost."""
    monkeypatch.setattr(access_log, "END_S", 0.01)
    monkeypatch.setattr(access_log, "STALLED_S", 0.01)
    path = Path(f"/dev/fd/{full_pipe()}")

    async def use(log: AccessLog) -> None:
        assert log.stalled_s == 0.0
        for number in range(10):
            log.put(record(number))
        await until(lambda: log.stalled)
        log.look()
        log.look()

    with pytest.raises(AccessLogError, match=r"nobody reads it, or the disk does not answer; 3 records are lost"):
        run(lambda: make(path, queue=3), use)
    (told,) = [entry.message for entry in caplog.records]
    assert re.search(r"a write has not returned for \d+ s", told)


def test_a_pipe_that_nobody_opens_is_an_error_at_the_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits a while for a reader, and says then what is missing."""
    monkeypatch.setattr(access_log, "START_S", 0.01)
    os.mkfifo(path)

    async def main() -> None:
        log = make(path)
        log.put(record(0))
        await log.check()

    with pytest.raises(AccessLogError, match="nobody reads it"):
        asyncio.run(main())
