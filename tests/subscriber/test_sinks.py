"""Files and pipes: what is written, when, and what happens if it cannot be."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import anyio
import pytest

from tests.subscriber.fake import run
from tests.support.waiting import WITHIN_S, until
from tricklecast.subscriber.sinks import FileSink, OneAtATime, PipeSink, SinkClosed, SinkFailed, open_sink
from tricklecast.trickle.errors import InvalidInput


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe; a test may close the reading one."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(writer)
    try:
        os.close(reader)
    except OSError:
        assert reader  # closed by the test


class TestFiles:
    def test_bytes_are_written_in_order(self, tmp_path: Path) -> None:
        """What was there before is replaced, and the count is right."""
        path = tmp_path / "out.ts"
        path.write_bytes(b"old and long enough to show")

        async def main() -> None:
            async with open_sink(str(path)) as sink:
                for data in (b"one", b"two"):
                    await sink.write(data)
                assert sink.written == 6

        run(main)
        assert path.read_bytes() == b"onetwo"

    def test_a_file_that_opens_too_late_is_closed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who writes was cancelled while the disk took its time; nothing stays open."""
        entered, go = threading.Event(), threading.Event()
        opened: list[FileIO] = []

        def slow(target: Path) -> FileIO:
            entered.set()
            go.wait()
            opened.append(target.open("wb", buffering=0))
            return opened[0]

        monkeypatch.setattr("tricklecast.subscriber.sinks._open", slow)

        async def main() -> None:
            async with FileSink(tmp_path / "out") as sink, anyio.create_task_group() as group:
                group.start_soon(sink.write, b"late")
                await anyio.to_thread.run_sync(entered.wait)
                group.cancel_scope.cancel()
            go.set()
            await until(lambda: opened and opened[0].closed)

        anyio.run(main)

    def test_what_is_written_is_visible(self, tmp_path: Path) -> None:
        """Before the file is closed."""
        path = tmp_path / "out.ts"

        async def main() -> None:
            async with FileSink(path) as sink:
                await sink.write(b"segment")
                assert await anyio.Path(path).read_bytes() == b"segment"

        run(main)

    def test_without_a_byte_nothing_is_touched(self, tmp_path: Path) -> None:
        """A subscription that fails does not destroy the last recording."""
        path = tmp_path / "out.ts"
        path.write_bytes(b"precious")

        async def main() -> None:
            async with FileSink(path):
                pass

        run(main)
        assert path.read_bytes() == b"precious"

    def test_a_path_that_cannot_be_is_refused_at_once(self, tmp_path: Path) -> None:
        """A folder, and a folder that is not there."""
        with pytest.raises(InvalidInput, match="is a folder"):
            open_sink(str(tmp_path))
        with pytest.raises(InvalidInput, match="does not exist"):
            open_sink(str(tmp_path / "no" / "out.ts"))

    def test_a_path_without_permission_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before anything is received."""
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(InvalidInput, match="permission denied"):
            open_sink(str(tmp_path / "out.ts"))

    @pytest.mark.parametrize("room", [0, 3])
    def test_a_full_disk_is_said_so(self, tmp_path: Path, room: int) -> None:
        """With how much the file has."""
        path = tmp_path / "out.ts"
        kept = " after 3 bytes" if room else ""

        async def main() -> None:
            async with FileSink(path) as sink:
                with pytest.raises(SinkFailed, match=f"cannot write to {path}{kept}: File too large"):
                    await sink.write(b"four")

        before = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores the signal that comes with it
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            run(main)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert path.stat().st_size == room

    def test_standard_output_may_be_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is written to and left open."""
        with (tmp_path / "out").open("wb") as file:
            monkeypatch.setattr("sys.stdout", file)

            async def main() -> None:
                async with open_sink("-") as sink:
                    await sink.write(b"data")

            run(main)
            assert not file.closed
            os.fstat(file.fileno())
        assert (tmp_path / "out").read_bytes() == b"data"


class TestPipes:
    def test_standard_output_may_be_a_pipe(self, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        """Then no thread is used, which a full pipe could hold for ever."""
        with os.fdopen(os.dup(pipe[1]), "wb") as file:
            monkeypatch.setattr("sys.stdout", file)
            assert isinstance(open_sink("-"), PipeSink)

    def test_more_than_a_pipe_holds_goes_through(self, pipe: tuple[int, int]) -> None:
        """In order, as fast as it is read."""
        data = os.urandom(1_000_000)

        async def main() -> bytes:
            got = bytearray()

            async def read() -> None:
                while len(got) < len(data):
                    got.extend(await asyncio.to_thread(os.read, pipe[0], 70_000))

            async with anyio.create_task_group() as group, PipeSink(pipe[1]) as sink:
                group.start_soon(read)
                await sink.write(data)
                await sink.end()
                assert sink.written == len(data)
            return bytes(got)

        assert run(main) == data

    def test_a_full_pipe_can_be_left(self, pipe: tuple[int, int]) -> None:
        """Nobody reads: a cancelled write ends, and the event loop was never blocked."""

        async def main() -> None:
            sink = PipeSink(pipe[1])
            with anyio.move_on_after(0.02) as scope:
                await sink.write(b"x" * 10_000_000)
            assert scope.cancelled_caught
            assert 0 < sink.written < 10_000_000

        run(main)

    def test_a_reader_who_is_gone_ends_it(self, pipe: tuple[int, int]) -> None:
        """As its own type of end, since it is none of ours."""

        async def main() -> None:
            sink = PipeSink(pipe[1])
            os.close(pipe[0])
            with pytest.raises(SinkClosed):
                await sink.write(b"x")

        run(main)

    def test_a_pipe_that_fails_is_said_so(self, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        """Any other error of the operating system."""

        def fail(*_: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        async def main() -> None:
            with pytest.raises(SinkFailed, match="Input/output error"):
                await PipeSink(pipe[1]).write(b"x")

        monkeypatch.setattr(os, "write", fail)
        run(main)


class TestNamedPipes:
    def test_a_reader_is_waited_for(self, tmp_path: Path) -> None:
        """And what it is given is the same; when it goes, that is a normal end."""
        path = tmp_path / "pipe"
        os.mkfifo(path)

        async def main() -> None:
            async with open_sink(str(path)) as sink, anyio.create_task_group() as group:
                group.start_soon(sink.write, b"data")
                await anyio.wait_all_tasks_blocked()
                reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                await anyio.wait_readable(reader)
                assert os.read(reader, 100) == b"data"
                os.close(reader)
                with pytest.raises(SinkClosed):
                    await sink.write(b"more")

        run(main)

    def test_one_that_nobody_reads_can_be_left(self, tmp_path: Path) -> None:
        """Ctrl-C ends a command that waits for its reader."""
        path = tmp_path / "pipe"
        os.mkfifo(path)

        async def main() -> None:
            with anyio.move_on_after(0.02) as scope:
                async with open_sink(str(path)) as sink:
                    await sink.write(b"data")
            assert scope.cancelled_caught

        run(main)

    def test_one_that_is_gone_is_said_so(self, tmp_path: Path) -> None:
        """By its name."""
        path = tmp_path / "pipe"
        os.mkfifo(path)

        async def main() -> None:
            sink = open_sink(str(path))
            path.unlink()
            with pytest.raises(SinkFailed, match=f"cannot write to {path}: No such file"):
                await sink.write(b"data")

        run(main)


def test_what_is_cancelled_is_over_before_the_next_begins() -> None:
    """A thread goes on when its task is cancelled: a file would be closed while it is written to."""
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def write() -> None:
        begun.set()
        go.wait(WITHIN_S)
        done.append("written")

    async def main() -> None:
        threads = OneAtATime()
        writing = asyncio.ensure_future(threads.run(write))
        await asyncio.to_thread(begun.wait, WITHIN_S)
        writing.cancel()
        await asyncio.wait({writing})
        assert writing.cancelled()
        closing = asyncio.ensure_future(threads.run(done.append, "closed"))
        await asyncio.wait({closing}, timeout=0.1)
        assert done == []
        go.set()
        await closing

    asyncio.run(main())
    assert done == ["written", "closed"]
