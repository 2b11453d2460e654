"""The data directories of several workers: channels move to their owners, whenever the server is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from typer.testing import CliRunner

from tests.app.test_changes import Start
from tricklecast.app.cli import cli
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.state import Lives
from tricklecast.app.storage import settle as settling
from tricklecast.app.storage.archive import Retention
from tricklecast.app.storage.database import (
    BEGINNING,
    Batch,
    ChannelRow,
    Database,
    FactRow,
    SegmentRow,
    StorageError,
    sync_folder,
)
from tricklecast.app.storage.restore import take_inventory
from tricklecast.app.storage.settle import folder_of, settle, workers_in
from tricklecast.app.workers.placement import owner_of

NAMES = [f"channel{number}" for number in range(12)]


def owner(workers: int) -> Callable[[str], int]:
    return lambda name: owner_of(name, workers)


def settled(folder: Path, workers: int) -> None:
    """As at the start of a server with this number of workers, which ends at once."""
    for lock in settle(folder, workers, owner(workers)):
        os.close(lock)


@dataclass
class Stored:
    """A data directory: bytes by name, epoch and seq; by name and epoch, whether the channel lives, its mark, and its
    numberings."""

    segments: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    channels: dict[tuple[str, int], bool] = field(default_factory=dict)
    playlists: dict[tuple[str, int], str] = field(default_factory=dict)
    lives: dict[tuple[str, int], Lives] = field(default_factory=dict)
    places: dict[str, set[int]] = field(default_factory=dict)


def contents(folder: Path) -> Stored:
    """All workers' directories, as their servers would find them."""
    found = Stored()
    for worker in workers_in(folder):
        with closing(Database(folder_of(folder, worker))) as database:
            inventory = take_inventory(database, time.time_ns() // 1000)
            assert inventory.damaged == []
            names = {row.id: row for row in inventory.channels}
            for row in inventory.channels:
                assert (row.name, row.epoch) not in found.channels
                found.channels[row.name, row.epoch] = row.ended_us is None
                found.places.setdefault(row.name, set()).add(worker)
            found.playlists |= {(names[id].name, names[id].epoch): mark for id, mark in database.playlists().items()}
            found.lives |= {(names[id].name, names[id].epoch): lives for id, lives in database.lives().items()}
            for segment in inventory.segments:
                of = names[segment.channel]
                data = b""
                if segment.size:
                    data = database.path(segment.channel, segment.file).read_bytes()
                    data = data[segment.start : segment.start + segment.size]
                assert crc32(data) == segment.crc
                found.segments[of.name, of.epoch, segment.seq] = data
    return found


def written(folder: Path, workers: int = 1, names: list[str] = NAMES) -> Stored:
    """A directory in which names have several epochs; some have ended, one has no bytes."""

    async def main() -> None:
        for worker in range(workers):
            start = Start(folder_of(folder, worker), f"start of {worker}")
            for number, name in enumerate(names):
                if owner_of(name, workers) != worker:
                    continue
                for epoch in range(1 + number % 3):
                    channel = start.registry.create(name, "x/y", 0.0)
                    assert isinstance(channel, OwnedChannel)
                    channel.mark_playlist(f"{name} {epoch}", 0.0)
                    for seq in range(number % 4):
                        start.registry.publish_own(name, "", f"{name} {epoch} {seq}".encode(), 0.0)
                    if epoch < number % 3 or number % 5 == 0:
                        await start.archive.flush()
                        start.registry.end(name, 0.0)
            await start.archive.flush()
            await start.crash()

    settled(folder, workers)
    asyncio.run(main())
    return contents(folder)


@pytest.mark.parametrize("changes", [[2], [3, 1], [2, 4, 3, 1, 2]])
def test_channels_are_with_their_owners(tmp_path: Path, changes: list[int]) -> None:
    """All epochs and bytes are there after any change of the number, and directories without a worker are gone."""
    before = written(tmp_path / "data")
    assert before.lives.keys() == {key[:2] for key in before.segments}
    for workers in changes:
        settled(tmp_path / "data", workers)
        after = contents(tmp_path / "data")
        assert (after.segments, after.channels) == (before.segments, before.channels)
        assert after.lives == before.lives
        assert after.playlists == before.playlists == {(name, of): f"{name} {of - 1}" for name, of in before.channels}
        assert after.places == {name: {owner_of(name, workers)} for name in NAMES}
        assert workers_in(tmp_path / "data") == list(range(workers))


def test_channels_come_back_in_the_order_of_their_creation(tmp_path: Path) -> None:
    """Also those that have moved, although their rows came later."""

    async def main() -> None:
        settled(tmp_path, 2)
        for worker in range(2):
            start = Start(folder_of(tmp_path, worker), "earlier")
            for created, name in enumerate(NAMES):
                if owner_of(name, 2) == worker:
                    start.registry.create(name, "", float(created))
            await start.archive.flush()
            await start.crash()
        settled(tmp_path, 1)
        start = Start(tmp_path, "later")
        assert list(start.registry.channels) == NAMES
        await start.crash()

    asyncio.run(main())


class Killed(BaseException):
    """The process has ended here."""


@pytest.mark.parametrize("steps", [range(1, 1000, 7), pytest.param(range(1, 1000), marks=pytest.mark.long)])
def test_a_kill_at_any_step_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
    """Before and after each transaction, rename, sync and removal; the next start may have yet another number."""
    names = NAMES[:4]
    before = written(tmp_path / "whole", names=names)
    monkeypatch.setattr(settling, "GROUP_ROWS", 4)
    monkeypatch.setattr(settling, "Database", lambda folder, fsync: Database(folder))  # the machine does not stop here
    calls = 0
    kill_at = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == kill_at:
                raise Killed
            result = function(*args, **options)
            calls += 1
            if calls == kill_at:
                raise Killed
            return result

        return call

    monkeypatch.setattr(Database, "commit", counted(Database.commit))
    monkeypatch.setattr(os, "rename", counted(os.rename))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    monkeypatch.setattr(settling, "sync_folder", counted(sync_folder))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree))
    for number in steps:
        folder = tmp_path / "data"
        kill_at = 0
        shutil.copytree(tmp_path / "whole", folder)
        calls, kill_at = 0, number
        try:
            settled(folder, 3)
            settled(folder, 1)
        except Killed:
            pass
        finished, kill_at = calls < number, 0
        settled(folder, next_number := 1 + number % 4)
        after = contents(folder)
        assert (after.segments, after.channels) == (before.segments, before.channels), number
        assert after.places == {name: {owner_of(name, next_number)} for name in names}
        shutil.rmtree(folder)
        if finished:
            break
    assert finished
    assert number > 40


def test_nothing_is_read_or_written_when_nothing_has_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with half a million segments takes no longer than it would with one worker."""
    written(tmp_path / "data", 2)
    monkeypatch.delattr(Database, "contents")
    monkeypatch.delattr(Database, "commit")
    settled(tmp_path / "data", 2)


def test_a_second_server_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    """With any number of workers, also while the first one starts a worker again."""
    folder = tmp_path / "data"
    locks = settle(folder, 2, owner(2))
    assert len(locks) == 2
    for workers in (1, 2, 3):
        with pytest.raises(StorageError, match="another server uses"):
            settle(folder, workers, owner(workers))
    for worker in range(2):
        with pytest.raises(StorageError, match="another server uses"):
            Database(folder_of(folder, worker))
        for _ in range(2):  # a worker, and its successor
            Database(folder_of(folder, worker), lock=os.dup(locks[worker])).close()
    for lock in locks:
        os.close(lock)
    alone = Database(folder)
    for workers in (2, 3):
        with pytest.raises(StorageError, match="another server uses"):
            settle(folder, workers, owner(workers))
    alone.close()
    settled(folder, 1)


def test_a_damaged_database_is_repaired_on_the_way(tmp_path: Path) -> None:
    """As with one worker: what can be read moves, what was set aside stays, and is in the data directory in the end."""
    folder = tmp_path / "data"
    before = written(folder, 2)
    path = folder / "worker-1" / "journal.sqlite"
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = sql.execute("SELECT rootpage FROM sqlite_master WHERE name = 'segment'").fetchone()
        (size,) = sql.execute("PRAGMA page_size").fetchone()
    with open(path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(16))
    settled(folder, 1)
    after = contents(folder)
    assert workers_in(folder) == [0]
    assert after.channels == before.channels
    lost = {key for key in before.segments if key not in after.segments}
    assert {owner_of(name, 2) for name, _, _ in lost} == {1}
    names = {one.name for one in folder.iterdir()}
    assert {"journal.sqlite.damaged-1", "segments.unknown-1"} <= names


def test_what_no_row_names_goes_before_it_moves(tmp_path: Path) -> None:
    """A file that a killed server has left is not taken for a damage of the new directory."""
    folder = tmp_path / "data"
    before = written(folder)
    for channel in (folder / "segments").iterdir():
        (channel / "00000999.seg").write_bytes(b"rest")
    settled(folder, 2)
    assert not list(folder.rglob("00000999.seg"))
    assert contents(folder).segments == before.segments


def test_two_channels_of_one_name_and_epoch_are_refused(tmp_path: Path) -> None:
    """A version without workers has used the directory in between; nothing is lost, and the error says what to do."""
    folder = tmp_path / "data"
    name = next(name for name in NAMES if owner_of(name, 2) == 1)
    settled(folder, 2)
    for worker in (0, 1):
        with closing(Database(folder_of(folder, worker))) as database:
            database.commit(Batch(channels={5: ChannelRow(5, name, 1, "", 0, 1000 + worker)}))
    with pytest.raises(StorageError, match=f"channel '{name}' has epoch 1 both in .* move it away"):
        settle(folder, 2, owner(2))
    for worker in (0, 1):
        with closing(Database(folder_of(folder, worker))) as database:
            assert database.find(name, 1) == (5, 1000 + worker)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), sqlite3.OperationalError("disk is full")])
def test_a_directory_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """In one line; with the earlier number of workers it starts as ever."""
    folder = tmp_path / "data"
    before = written(folder)

    def fail(*args: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Database, "commit", fail)
        with pytest.raises(StorageError, match=r"cannot use the data directory .*(No space|full)"):
            settle(folder, 2, owner(2))
    settled(folder, 1)
    assert contents(folder).segments == before.segments


def facts(folder: Path, worker: int = 0) -> list[tuple[str, str]]:
    with closing(Database(folder_of(folder, worker))) as database:
        return [(row.kind, row.channel) for row in database.facts()]


def told(folder: Path, worker: int, instance: str, *rows: tuple[str, str]) -> None:
    """A start of a worker that stored these facts."""

    async def main() -> None:
        start = Start(folder_of(folder, worker), instance)
        for kind, name in rows:
            if kind == "added":
                start.registry.create(name, "", 0.0)
            else:
                start.registry.publish_own(name, "", b"x", 0.0)
        await start.archive.flush()
        await start.crash()

    asyncio.run(main())


def test_facts_move_before_their_channels(tmp_path: Path) -> None:
    """The front had not heard of them, and the new owner's facts come behind them. What it has heard comes once."""
    folder = tmp_path / "data"
    name = next(name for name in NAMES if owner_of(name, 3) == 1)
    settled(folder, 3)
    told(folder, 1, "one", ("added", name), ("closed", name), ("closed", name))
    told(folder, 0, "front")
    with closing(Database(folder)) as front:
        assert front.positions() == {1: BEGINNING, 2: BEGINNING}
    settled(folder, 1)
    assert facts(folder) == [("added", name), ("closed", name), ("closed", name)]
    settled(folder, 1)
    settled(folder, 2)
    settled(folder, 1)
    assert facts(folder) == [("added", name), ("closed", name), ("closed", name)]


def test_facts_that_are_gone_let_nobody_go_on(tmp_path: Path) -> None:
    """The front's directory is older than that of the worker, say from a backup."""
    folder = tmp_path / "data"
    name = next(name for name in NAMES if owner_of(name, 2) == 1)
    settled(folder, 2)
    told(folder, 1, "one", ("added", name), ("closed", name))
    told(folder, 0, "front", ("added", "f"))
    with closing(Database(folder_of(folder, 1))) as other, closing(Database(folder)) as front:
        other.commit(Batch(floor=2))
        _, before = front.facts_behind(None)
    settled(folder, 1)

    async def main() -> None:
        start = Start(folder, "later")
        assert start.changes.floor > before.number
        await start.crash()

    asyncio.run(main())


def test_retention_is_shared(tmp_path: Path) -> None:
    """An archive keeps to the limit that it is given at present."""

    async def main() -> None:
        start = Start(tmp_path, "one")
        start.registry.create("a", "", 0.0)
        for _ in range(10):
            start.registry.publish_own("a", "", bytes(100), 0.0)
        await start.archive.flush()
        assert (start.archive.bytes, start.archive.limit) == (1000, Retention().total_bytes)
        start.archive.limit = 450
        start.archive.tick()
        assert start.archive.bytes == 400
        await start.archive.flush()
        await start.crash()

    asyncio.run(main())


def store(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["store", *map(str, arguments)])
    return done.exit_code, done.stdout


def test_the_store_commands_see_one_directory(tmp_path: Path) -> None:
    """They list, check, export and prune the same with one worker and with three."""
    folder = tmp_path / "data"
    written(folder)
    listed = store("ls", folder)
    assert listed[1].count("\n") > len(NAMES)
    settled(folder, 3)
    assert store("ls", folder) == listed
    assert store("check", folder)[0] == 0
    name = next(name for number, name in enumerate(NAMES) if owner_of(name, 3) == 2 and number % 4)
    assert "worker-2/segments/" in store("ls", folder, name)[1]
    assert store("export", folder, name, "-o", tmp_path / "out")[0] == 0
    assert (tmp_path / "out").read_bytes().startswith(name.encode())
    (folder / "worker-3" / "segments").mkdir(parents=True)  # the server was killed when it made this one
    assert store("ls", folder) == listed
    shutil.rmtree(folder / "worker-3")
    (folder / "worker-2" / "segments.unknown-1").mkdir()
    assert "set aside by the server: worker-2/segments.unknown-1" in store("check", folder)[1]
    assert store("prune", folder, "--keep-bytes", "1")[0] == 0
    assert contents(folder).segments.keys() == {key for key, data in contents(folder).segments.items() if not data}
    locks = settle(folder, 3, owner(3))
    os.close(locks[0])
    assert store("prune", folder, "--keep-bytes", "1")[0] == 1, "a server uses a part of it"
    for lock in locks[1:]:
        os.close(lock)


def test_a_channel_that_was_about_to_move_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was killed when its rows were in both directories, before or after its files had moved."""
    folder = tmp_path / "data"
    before = written(folder)
    check = store("check", folder)

    def fail(*args: object) -> None:
        raise Killed

    for name in ("rename", "listdir"):
        with monkeypatch.context() as patch:
            if name == "rename":
                patch.setattr(os, "rename", fail)
            else:
                patch.setattr(settling, "sync_folder", fail)
            with pytest.raises(Killed):
                settle(folder, 2, owner(2))
        assert store("check", folder) == check
    settled(folder, 2)
    assert contents(folder).segments == before.segments


def test_rows_of_many_segments_move_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction takes more than :data:`~settling.GROUP_ROWS` of them."""
    monkeypatch.setattr(settling, "GROUP_ROWS", 10)
    folder = tmp_path / "data"
    name = next(name for name in NAMES if owner_of(name, 2) == 1)
    with closing(Database(folder)) as database:
        rows: list[tuple[SegmentRow, None]] = [
            (SegmentRow(1, seq, "empty", 0, 0, 0, 0, 1, 1), None) for seq in range(95)
        ]
        fact = FactRow(1, 1, "added", name, 1)
        database.commit(Batch(facts=[fact], channels={1: ChannelRow(1, name, 1, "", 95, 1)}, segments=list(rows)))
    sizes = []
    commit = Database.commit

    def noted(database: Database, batch: Batch) -> None:
        sizes.append(len(batch.segments))
        commit(database, batch)

    monkeypatch.setattr(Database, "commit", noted)
    settled(folder, 2)
    assert max(sizes) == 10
    assert sum(sizes) == 95 == len(contents(folder).segments)
