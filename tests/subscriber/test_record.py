"""``record()`` against a real server: what is in the folder is what was published, however often it was interrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.subscriber.fake import run
from tests.subscriber.faulty_disk import FULL, FaultyDisk
from tests.support.local import LocalServer, local_server
from tests.support.waiting import until
from tricklecast.app.tools.conformance.target import RemoteChannel
from tricklecast.subscriber import DirectoryInUse, Entry, Position, Recording, read_index, record
from tricklecast.subscriber.archive import INDEX
from tricklecast.subscriber.sinks import SinkFailed
from tricklecast.trickle.errors import InvalidInput


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """One server for all; each test has a channel of its own."""
    with local_server(channel_drain_s=30) as running:
        yield running


@pytest.fixture
def channel(server: LocalServer, request: pytest.FixtureRequest) -> Iterator[RemoteChannel]:
    """A channel of five segments."""
    with server.client() as target:
        channel = target.channel(request.node.name)
        channel.create("video/mp2t")
        channel.publish(0, b"zero", b"one" * 100_000, b"two", b"three", b"four")
        yield channel


def url_of(server: LocalServer, channel: RemoteChannel) -> str:
    """Where subscribers find it."""
    return f"http://127.0.0.1:{server.port}{channel.path}"


def stored(path: Path) -> list[tuple[int, bytes, int]]:
    """Seq, bytes and gap of all that is in the folder, as its index says, each checked against its hash."""
    found = []
    for entry in read_index(path):
        data = b"" if entry.file is None else (path / entry.file).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry.sha256
        found.append((entry.seq, data, entry.gap))
    return found


def test_a_channel_is_in_the_folder(server: LocalServer, channel: RemoteChannel, tmp_path: Path) -> None:
    """Each segment is a file of the right kind, told as it comes, and summed up at the end."""
    channel.end()
    entries: list[Entry] = []

    async def main() -> Recording:
        return await record(url_of(server, channel), tmp_path, start="earliest", on_segment=entries.append)

    got = run(main)
    assert got == Recording(5, 300_016, 0, 0, 0, 0, Position(5, 1, entries[-1].numbering))
    assert stored(tmp_path) == [
        (0, b"zero", 0),
        (1, b"one" * 100_000, 0),
        (2, b"two", 0),
        (3, b"three", 0),
        (4, b"four", 0),
    ]
    assert entries == read_index(tmp_path)
    assert entries[0].file == "life1/00000000.ts"
    assert b'"kind": "ended"' in (tmp_path / INDEX).read_bytes()


def test_it_goes_on_where_it_was_left(server: LocalServer, channel: RemoteChannel, tmp_path: Path) -> None:
    """Cancelled in the middle of a segment, and called again: nothing is missing, and nothing twice."""
    upload = channel.upload(5, b"fi")
    channel.arrived(5, b"fi")

    async def interrupted() -> None:
        async with anyio.create_task_group() as group:

            def stop(entry: Entry) -> None:
                if entry.seq == 4:
                    group.cancel_scope.cancel()

            with anyio.CancelScope():
                await record(url_of(server, channel), tmp_path, start=0, on_segment=stop)

    run(interrupted)
    assert [seq for seq, _, _ in stored(tmp_path)] == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", INDEX, "life1"]
    upload.chunk(b"ve")
    upload.end()
    channel.end()
    again = run(lambda: record(url_of(server, channel), tmp_path, start="next"))
    assert again.segments == 1
    assert stored(tmp_path)[-1] == (5, b"five", 0)


def test_a_full_disk_says_where_to_go_on(
    server: LocalServer, channel: RemoteChannel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next call completes the recording."""
    channel.end()
    counter = FaultyDisk()
    monkeypatch.setattr("tricklecast.subscriber.archive.Disk", lambda: counter)
    run(lambda: record(url_of(server, channel), tmp_path / "whole", start=0))
    full = FaultyDisk(counter.steps - 9, error=FULL)
    monkeypatch.setattr("tricklecast.subscriber.archive.Disk", lambda: full)
    with pytest.raises(SinkFailed, match="No space left") as failed:
        run(lambda: record(url_of(server, channel), tmp_path / "full", start=0))
    monkeypatch.undo()
    last = read_index(tmp_path / "full")[-1]
    assert failed.value.resume == Position(last.seq + 1, 1, last.numbering)
    run(lambda: record(url_of(server, channel), tmp_path / "full"))
    assert stored(tmp_path / "full") == stored(tmp_path / "whole")


def test_a_reborn_channel_is_another_life(server: LocalServer, channel: RemoteChannel, tmp_path: Path) -> None:
    """Its segments have the same numbers; none is replaced."""
    channel.end()
    run(lambda: record(url_of(server, channel), tmp_path, start=3))
    channel.create("video/mp2t")
    channel.publish(0, b"new")

    def on_segment(entry: Entry) -> None:
        channel.end()

    run(lambda: record(url_of(server, channel), tmp_path, on_segment=on_segment))
    entries = read_index(tmp_path)
    assert [(entry.seq, entry.life, entry.epoch) for entry in entries] == [(3, 1, 1), (4, 1, 1), (0, 2, 2)]
    assert entries[-1].restarted


def test_a_limited_folder_holds_the_newest(server: LocalServer, channel: RemoteChannel, tmp_path: Path) -> None:
    """And the call says how many it has removed."""
    channel.end()
    got = run(lambda: record(url_of(server, channel), tmp_path, start=0, keep_segments=2))
    assert got.removed == 3
    assert [seq for seq, _, _ in stored(tmp_path)] == [3, 4]
    with pytest.raises(InvalidInput):
        run(lambda: record(url_of(server, channel), tmp_path, keep_bytes=0))


def test_a_recording_does_not_begin_between_two_lines(tmp_path: Path) -> None:
    """A folder has whole segments; it is not made."""
    with pytest.raises(InvalidInput, match="between two lines"):
        run(lambda: record("http://host/trickle/c", tmp_path / "new", start=Position(1, offset=9)))
    assert not (tmp_path / "new").exists()


def test_a_folder_in_use_is_refused(server: LocalServer, channel: RemoteChannel, tmp_path: Path) -> None:
    """Before anything is asked of the server."""

    async def main() -> None:
        refused: list[BaseException] = []

        async def second() -> None:
            try:
                await record(url_of(server, channel), tmp_path)
            except DirectoryInUse as error:
                refused.append(error)

        async with anyio.create_task_group() as group:

            def on_segment(entry: Entry) -> None:
                if entry.seq == 4:
                    group.start_soon(second)
                    group.start_soon(end)

            async def end() -> None:
                await until(lambda: refused)
                group.cancel_scope.cancel()

            await record(url_of(server, channel), tmp_path, start=0, on_segment=on_segment)
        assert refused

    run(main)
