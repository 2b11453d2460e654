"""One access log of several processes: whole lines, each once, whatever happens to the file or to one of them.

Each test starts a program of its own (:func:`scenario`), which forks its writers as the supervisor of a server does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_access_log import all_lines, make, record, run, written
from tests.support.forked import python
from tests.support.logs import read_log
from tests.support.waiting import WITHIN_S, until
from tricklecast.app import access_log
from tricklecast.app.access_log import AccessLog, LogShare
from tricklecast.app.masking import LogIps, mask_for
from tricklecast.trickle.records import AccessRecord

WRITERS = 3
EACH = 400

Use = Callable[[AccessLog, int, "Turns"], Awaitable[None]]


def scenario(name: str, *arguments: object, out: Any = None) -> str:
    """Run a function of this file in a program of its own, and return what it prints."""
    program = f"import sys; from {__name__} import *; {name}(*sys.argv[1:])"
    done = subprocess.run(
        [python(), "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE if out is None else out,
        text=True,
        timeout=WITHIN_S,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    return done.stdout or ""


def fork_writers(
    path: str, use: Use, *, writers: int = WRITERS, share: LogShare | None = None, **settings: Any
) -> list[int | None]:
    """Fork writers of one log, each of which uses it and closes it; returns their exit codes."""
    share = share or LogShare()
    context = multiprocessing.get_context("fork")
    turns = Turns(context, writers)

    async def write(number: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            log = make(Path(path), share=share, worker=number, **settings)
            await log.check()
            await turns.all_here()  # a pipe must not end before all of them have it open
            writing = asyncio.ensure_future(log.run())
            await use(log, number, turns)
            log.close()
            await writing

    processes = [context.Process(target=lambda number=number: asyncio.run(write(number))) for number in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def change(**constants: float) -> None:
    """Change constants of the log in this program."""
    for name, value in constants.items():
        assert hasattr(access_log, name)
        setattr(access_log, name, value)


class Turns:
    """Processes wait for each other.

    Args:
        context: makes what they share. writers: their number.
    """

    def __init__(self, context: Any, writers: int) -> None:
        self.done = [context.Event() for _ in range(writers)]
        self._barrier = context.Barrier(writers)

    async def all_here(self) -> None:
        """Wait until every one of them has come to this point."""
        await asyncio.to_thread(self._barrier.wait)

    async def after(self, number: int) -> None:
        """Wait until a process is done; it says so by ``done``."""
        await until(self.done[number].is_set)


async def put_all(log: AccessLog, number: int, turns: Turns) -> None:
    """Put records as a busy worker does: some, while others are being written."""
    for count in range(EACH):
        log.put(record(count))
        if count % 50 == 0:
            await asyncio.sleep(0)
            await written(log, count // 2)


def by_writer(lines: list[dict[str, Any]]) -> dict[int, list[int]]:
    """The numbers of the records in the lines, by writer."""
    return {writer: [line["rseq"] for line in lines if line["worker"] == writer] for writer in range(WRITERS)}


COMPLETE = {writer: list(range(EACH)) for writer in range(WRITERS)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.jsonl"


def rotated(path: Path) -> list[Path]:
    return sorted(path.parent.glob("access-*.jsonl"))


# Each scenario runs in a program of its own; its test stands below it.


def busy(path: str, max_bytes: str, files: str) -> None:
    change(GATHER_S=0.001, WRITE_BYTES=1000 if int(max_bytes) > 1 else 1 << 20)  # a pipe takes large writes in parts
    assert fork_writers(path, put_all, max_bytes=int(max_bytes), files=int(files)) == [0] * WRITERS


def test_rotation_by_any_of_them_loses_and_doubles_nothing(path: Path) -> None:
    """All files together have each record once, in the order in which its worker has put it."""
    scenario("busy", path, 5000, 10_000)
    assert by_writer(all_lines(path)) == COMPLETE
    assert len(rotated(path)) > 10


def test_the_number_of_files_holds_for_all_of_them(path: Path) -> None:
    """The newest files are kept, whoever has made them."""
    scenario("busy", path, 5000, 2)
    assert len(rotated(path)) == 2
    kept = by_writer(all_lines(path))
    assert all(numbers == list(range(EACH))[len(COMPLETE[0]) - len(numbers) :] for numbers in kept.values())


@pytest.mark.parametrize("kind", ["pipe", "named pipe", "nowhere"])
def test_lines_stay_whole_in_what_is_no_file(kind: str, path: Path) -> None:
    """Standard output into a pipe, a named pipe, and /dev/null, which takes everything."""
    if kind == "nowhere":
        scenario("busy", "/dev/null", 1, 1)
        return
    if kind == "pipe":
        text = scenario("busy", "-", 1, 1)
    else:
        os.mkfifo(path)
        reader = subprocess.Popen(["cat", path], stdout=subprocess.PIPE, text=True)
        scenario("busy", path, 1, 1)
        text = reader.communicate(timeout=WITHIN_S)[0]
    assert by_writer([json.loads(line) for line in text.splitlines()]) == COMPLETE
    assert not rotated(path)


def die_while_writing(path: str) -> None:
    """A process has the lock, and is killed when half of its line is in the file."""
    share = LogShare()

    def write_half() -> None:
        assert not share.lock()
        os.write(1 if path == "-" else os.open(path, os.O_WRONLY | os.O_APPEND), b'{"v":1,"half":')
        os.kill(os.getpid(), signal.SIGKILL)

    async def use(log: AccessLog, number: int, turns: Turns) -> None:
        log.put(record(0))
        await written(log, 1)
        child = os.fork()
        if not child:
            write_half()
        os.waitpid(child, 0)  # noqa: ASYNC222 - it is killed by then
        log.put(record(1))
        await written(log, 2)

    assert fork_writers(path, use, writers=1, share=share) == [0]


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_killed_writer_leaves_one_torn_line_and_no_lock(kind: str, path: Path) -> None:
    """The line that it did not finish stays a line of its own, so it spoils none of another worker."""
    if kind == "file":
        scenario("die_while_writing", path)
    text = path.read_text() if kind == "file" else scenario("die_while_writing", "-")
    first, torn, second = text.splitlines()
    assert [json.loads(first)["rseq"], torn, json.loads(second)["rseq"]] == [0, '{"v":1,"half":', 1]


def stand_still(path: str) -> None:
    """A process has the lock for longer than the others wait."""
    change(LOCK_S=0.01)
    share = LogShare()

    async def use(log: AccessLog, number: int, turns: Turns) -> None:
        ready, says = os.pipe()
        child = os.fork()
        if not child:
            share.lock()
            os.write(says, b"x")
            signal.pause()
        os.read(ready, 1)
        log.put(record(0))
        await written(log, 1)
        log.put(record(1))
        await written(log, 2)
        assert not rotated(Path(path))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it is killed by then
        log.put(record(2))
        await written(log, 3)

    assert fork_writers(path, use, writers=1, share=share, max_bytes=1, files=9) == [0]


def test_a_writer_that_stands_still_with_the_lock_holds_up_no_line_of_a_file(path: Path) -> None:
    """Nobody rotates the file meanwhile; whoever gets the lock does."""
    scenario("stand_still", path)
    assert [line["rseq"] for line in all_lines(path)] == [0, 1, 2]
    assert rotated(path)


def full_disk(path: str) -> None:
    """Each process may write up to a size (the kernel takes a part of a line, as a full disk does), then to any."""
    change(RETRY_S=0.01)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))

    async def use(log: AccessLog, number: int, turns: Turns) -> None:
        log.put(record(0))
        await written(log, 1)
        await turns.all_here()
        for count in range(1, EACH):
            log.put(record(count))
        await until(lambda: log._trouble)
        await turns.all_here()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await written(log, EACH)

    assert fork_writers(path, use) == [0] * WRITERS


def test_a_full_disk_tears_no_line_of_another_worker(path: Path) -> None:
    """A line of which the disk has taken a part is undone by its writer, before another one writes."""
    scenario("full_disk", path)
    assert by_writer(read_log(path)) == COMPLETE


def renamed(path: str) -> None:
    """logrotate: the file is renamed, then all processes get SIGHUP, one after the other."""

    async def use(log: AccessLog, number: int, turns: Turns) -> None:
        if number:
            await turns.after(number - 1)
        else:
            log.put(record(0))
            await written(log, 1)
            os.rename(path, f"{path}.1")
            log.put(record(1))
            await written(log, 2)
        log.reopen()
        await until(lambda: not log._reopening)
        log.put(record(10))
        await written(log, 1 if number else 3)
        turns.done[number].set()

    assert fork_writers(path, use) == [0] * WRITERS


def test_a_file_that_logrotate_renames_is_left_at_sighup(path: Path) -> None:
    """Until the signal comes, lines go to the renamed file, so logrotate itself makes the new one."""
    scenario("renamed", path)
    assert [line["rseq"] for line in read_log(path.with_name("access.jsonl.1"))] == [0, 1]
    assert [(line["worker"], line["rseq"]) for line in read_log(path)] == [(0, 10), (1, 10), (2, 10)]


def removed(path: str) -> None:
    """Somebody removes the file; then all of them write."""

    async def use(log: AccessLog, number: int, turns: Turns) -> None:
        log.put(record(0))
        await written(log, 1)
        await turns.all_here()
        if number == 0:
            os.unlink(path)
        await turns.all_here()
        log.put(record(1))
        await written(log, 2)

    assert fork_writers(path, use) == [0] * WRITERS


def test_a_file_that_was_removed_is_made_anew_once(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first that sees it tells the operator; the others go on in the same new file."""
    scenario("removed", path)
    assert sorted((line["worker"], line["rseq"]) for line in read_log(path)) == [(0, 1), (1, 1), (2, 1)]
    assert capfd.readouterr().err.count("was removed; the server makes it anew") == 1


def emptied(path: str) -> None:
    """Somebody empties the file when it is nearly full; with its size of before, the next line would be too much."""

    async def use(log: AccessLog, number: int, turns: Turns) -> None:
        for count in range(2):
            log.put(record(count))
            await written(log, count + 1)
        await turns.all_here()
        if number == 0:
            assert 500 < os.stat(path).st_size < 800
            os.truncate(path, 0)
        await turns.all_here()
        log.put(record(2))
        await written(log, 3)

    assert fork_writers(path, use, max_bytes=800) == [0] * WRITERS


def test_a_file_that_is_emptied_is_as_long_as_it_is(path: Path) -> None:
    """copytruncate: the size is the file's, also if others write to it."""
    scenario("emptied", path)
    assert not rotated(path)
    assert sorted((line["worker"], line["rseq"]) for line in read_log(path)) == [(0, 2), (1, 2), (2, 2)]


def idle(path: str) -> None:
    """Writer 1 has nothing more to write while writer 0 rotates."""

    async def use(log: AccessLog, number: int, turns: Turns) -> None:
        log.put(record(0))
        await written(log, 1)
        await turns.all_here()
        if number == 0:
            first = os.stat(path).st_ino
            for count in range(10):
                log.put(record(count))
            await until(lambda: os.path.exists(path) and os.stat(path).st_ino != first)
            await turns.all_here()
            await turns.all_here()
            return
        assert os.stat(path).st_ino in open_files()
        await turns.all_here()
        assert os.stat(path).st_ino not in open_files()
        log.look()
        await until(lambda: os.stat(path).st_ino in open_files())
        await turns.all_here()

    assert fork_writers(path, use, writers=2, max_bytes=300) == [0, 0]


def open_files() -> set[int]:
    """The inodes of the files that this process has open."""
    found = set()
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            found.add(os.fstat(descriptor).st_ino)
    return found


def test_an_idle_worker_lets_go_of_a_file_that_another_has_rotated(path: Path) -> None:
    """Else a file that is removed later would keep its place on the disk."""
    scenario("idle", path)
    assert len(rotated(path)) >= 1


def stopped(path: str) -> None:
    """A pipe whose reader has stopped: each gives up at its end, and tells how many records are lost."""
    change(END_S=0.2)
    reading, writing = os.pipe()

    async def use(log: AccessLog, number: int, turns: Turns) -> None:
        for count in range(2000):
            log.put(record(count))
        await until(lambda: log.written or log.stalled_s > 0.1)

    codes = fork_writers(f"/dev/fd/{writing}", use)
    os.close(writing)
    whole = [json.loads(line) for line in os.fdopen(reading).read().splitlines()[:-1]]
    print(codes, len(whole) > 0)


def test_a_pipe_whose_reader_has_stopped_holds_none_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    """One waits in its write, the others for the lock: all of them end in time, each with its own error."""
    assert scenario("stopped", "-") == f"{[1] * WRITERS} True\n"
    assert capfd.readouterr().err.count("AccessLogError: cannot write the access log") == WRITERS


def test_no_folder_has_to_be_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a read-only file system writes its log to a pipe."""
    if not hasattr(os, "memfd_create"):
        pytest.skip("the lock is a file in memory on Linux only")
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with contextlib.closing(LogShare()) as made:
        assert not made.lock()
        made.unlock(True)


@pytest.fixture
def share() -> Iterator[LogShare]:
    with contextlib.closing(LogShare()) as made:
        yield made


def test_the_age_of_a_file_is_that_of_its_first_writer(share: LogShare, path: Path) -> None:
    """A worker that opens the file later rotates it no later: no file has lines of a longer time than is configured."""

    async def use(log: AccessLog) -> None:
        log.put(record(0))

    def writer(number: int) -> AccessLog:
        return make(path, share=share, worker=number, max_age_s=3600.0)

    run(lambda: writer(0), use)
    share.words[2] -= 3_600_000  # milliseconds
    run(lambda: writer(1), use)
    assert [len(read_log(file)) for file in rotated(path)] == [2]
    run(lambda: writer(2), use)
    assert [line["worker"] for line in read_log(path)] == [2]
    assert len(rotated(path)) == 1


def test_a_client_has_the_same_hash_in_the_lines_of_all_workers(share: LogShare, path: Path) -> None:
    """The key of masked addresses is the server's, also for a worker that is started again."""

    async def use(log: AccessLog) -> None:
        log.put(AccessRecord(0, ip="192.0.2.1"))

    def writer(number: int) -> AccessLog:
        return make(path, share=share, worker=number, mask=mask_for(LogIps.HASH, share.key))

    for number in (0, 1, 0):
        run(partial(writer, number), use)
    assert len({line["ip"] for line in read_log(path)} - {"192.0.2.1"}) == 1


def test_a_writer_that_always_has_more_lets_the_others_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that comes while others are written waits for the lock like those of the other workers."""
    monkeypatch.setattr(access_log, "GATHER_S", 0.0)
    share = LogShare()
    held: list[int] = []  # records that were written when the lock was given back
    unlock = share.unlock

    def unlock_and_note(whole: bool) -> None:
        held.append(log.written)
        unlock(whole)

    monkeypatch.setattr(share, "unlock", unlock_and_note)

    log = make(path, share=share, worker=0)
    take = log._take

    def take_and_put(lines: list[bytes]) -> None:
        take(lines)
        if log.written < 20:
            log.put(record(log.written + 1))

    monkeypatch.setattr(log, "_take", take_and_put)

    async def use(log: AccessLog) -> None:
        log.put(record(0))
        await written(log, 21)

    run(lambda: log, use)
    share.close()
    assert set(range(1, 22)) <= set(held)
