"""The data directory of several workers: each has one of its own, and channels move when the number changes.

The first worker has the data directory itself, and worker 1, for example, its folder ``worker-1``. So a server of one
process finds what it expects, and a directory of an earlier version is that of the first worker.

A channel is in the directory of its owner, which follows from its name and the number of workers. Before a server
starts, :func:`settle` locks all directories, and moves channels that are in the wrong one:

1. the front's journal gets the facts of the worker that its log lacks, so that later facts of these channels, which
   other workers will tell, come behind them;
2. the channels' rows are written to the right directory, with new ids;
3. the folders of their segments are renamed into that directory, so no byte is copied;
4. their rows are removed from the wrong one.

Each step is on the disk before the next one begins. A crash leaves the rows in both directories, and each folder in one
of them. The next start does the same again: it finds the rows in the right directory, keeps their ids, and renames the
folders that are still in the wrong one. Nothing is ever in none. All epochs of a name move, those that have ended as
well, so no epoch is given twice.

When nothing has to move, only the names of the channels are read.

A directory of a worker that there is no more is removed when it has no channels. Its facts are the front's by then, and
files that a server has set aside in it go to the data directory.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from tricklecast.app.storage.database import (
    ASIDE,
    BEGINNING,
    OPENED,
    Batch,
    ChannelRow,
    Contents,
    Database,
    SegmentRow,
    StorageError,
    sync_folder,
    unusable,
    unused_name,
)
from tricklecast.app.storage.restore import files_of, tidy

_LOGGER = logging.getLogger("tricklecast.storage")

_WORKER: Final = re.compile(r"worker-([1-9][0-9]{0,3})")

REMOVED: Final = ".removed"
"""The end of the name of a directory that is being removed."""

GROUP_ROWS: Final = 10_000
"""Rows that are moved in one transaction."""


def folder_of(folder: Path, worker: int) -> Path:
    """The data directory of one worker."""
    return folder / f"worker-{worker}" if worker else folder


def workers_in(folder: Path) -> list[int]:
    """The workers that have a directory in this data directory, the first one included."""
    if not folder.is_dir():
        return []
    found = [_WORKER.fullmatch(one.name) for one in folder.iterdir()]
    return [0, *sorted(int(one[1]) for one in found if one is not None)]


def settle(folder: Path, workers: int, owner: Callable[[str], int]) -> list[int]:
    """Move each channel to the directory of its owner, and remove directories of workers that there are no more.

    Args:
        folder: the data directory. workers: their number.
        owner: the worker that owns the channel of this name.

    Returns:
        Descriptors with the locks of the workers' directories, in their order. A server of one worker gets none, since
        it locks its directory itself.

    Raises:
        StorageError: a directory is used by another server, or cannot be read or written.
    """
    there = workers_in(folder)
    if there in ([], [0]) and workers == 1 and not _half_removed(folder):
        return []
    databases: dict[int, Database] = {}
    try:
        for worker in sorted({*there, *range(workers)}):
            databases[worker] = Database(folder_of(folder, worker), fsync=True)
        try:
            _arrange(databases, workers, owner)
        except sqlite3.DatabaseError:  # one is damaged, perhaps: it is repaired, and all steps may be repeated
            for database in databases.values():
                _contents(database)
            _arrange(databases, workers, owner)
        return [os.dup(databases[worker].lock) for worker in range(workers)] if workers > 1 else []
    except (OSError, sqlite3.Error) as error:
        raise unusable(folder, error) from error
    finally:
        for database in databases.values():
            database.close()


def _half_removed(folder: Path) -> list[Path]:
    return list(folder.glob(f"worker-*{REMOVED}"))


def _arrange(databases: dict[int, Database], workers: int, owner: Callable[[str], int]) -> None:
    for rest in _half_removed(databases[0].folder):
        shutil.rmtree(rest)
    moved = sum(_move_from(worker, databases, owner) for worker in databases)
    if moved:
        _LOGGER.warning("channels that have moved to the directories of their workers: %d", moved)
    for worker in [worker for worker in databases if worker >= workers]:
        _remove(worker, databases)
    # The front follows the log of a worker that has never started from its beginning.
    known = databases[0].positions()
    new = [worker for worker, one in databases.items() if worker not in known and worker and not one.has_started()]
    if new:
        databases[0].commit(Batch(positions=dict.fromkeys(new, BEGINNING)))


def _move_from(worker: int, databases: dict[int, Database], owner: Callable[[str], int]) -> int:
    """Move channels that another worker owns; returns how many epochs."""
    source = databases[worker]
    if all(owner(name) == worker for name in source.names()):
        return 0
    contents = _contents(source)
    segments: dict[int, list[SegmentRow]] = defaultdict(list)
    for row in contents.segments:
        segments[row.channel].append(row)
    leaving: dict[int, list[ChannelRow]] = defaultdict(list)
    for channel in contents.channels:
        if (target := owner(channel.name)) != worker:
            leaving[target].append(channel)
    if worker and leaving:
        _take_facts(worker, databases)
    for target, channels in leaving.items():
        unused = databases[target].unused_id()
        marks, lives, copies = source.playlists(), source.lives(), source.copies()
        for group in _groups(channels, segments):
            ids = {}
            for channel in group:
                ids[channel.id] = _id_there(channel, source, databases[target]) or unused
                unused += ids[channel.id] == unused
            playlists = {ids[one.id]: marks[one.id] for one in group if one.id in marks}
            about = Batch(playlists=playlists, copies={ids[one.id]: True for one in group if one.id in copies})
            about.lives = {ids[one.id]: lives[one.id] for one in group if one.id in lives}
            _move(group, ids, segments, about, source, databases[target])
    return sum(map(len, leaving.values()))


def _contents(database: Database) -> Contents:
    """The rows of a directory, which is repaired if it was damaged, and has no unknown files then."""
    contents = database.contents()
    files = [(channel, file) for channel, file, _ in files_of(database.folder)]
    for text in contents.damaged + tidy(database, contents, contents.segments, files):
        _LOGGER.error("%s: %s", database.folder, text)
    return contents


def _groups(channels: list[ChannelRow], segments: dict[int, list[SegmentRow]]) -> Iterator[list[ChannelRow]]:
    group: list[ChannelRow] = []
    rows = 0
    for channel in channels:
        group.append(channel)
        rows += 1 + len(segments[channel.id])
        if rows >= GROUP_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _id_there(channel: ChannelRow, source: Database, target: Database) -> int | None:
    """The id of a channel in the directory to which it goes, if a start that did not come to its end has moved it.

    Raises:
        StorageError: there is another channel of this name and epoch.
    """
    found = target.find(channel.name, channel.epoch)
    if found is None:
        return None
    id, created_us = found
    if created_us != channel.created_us or (_folder(source, channel.id).exists() and _folder(target, id).exists()):
        raise StorageError(
            f"channel {channel.name!r} has epoch {channel.epoch} both in {str(source.folder)!r} and in"
            f" {str(target.folder)!r}: a version without workers, or a copy of the directory, was used in between;"
            f" export what you need of one of them (tricklecast store export), and move it away"
        )
    return id


def _folder(database: Database, channel: int) -> Path:
    return database.path(channel, 0).parent


def _move(  # steps 2 to 4
    group: list[ChannelRow],
    ids: dict[int, int],
    segments: dict[int, list[SegmentRow]],
    about: Batch,
    source: Database,
    target: Database,
) -> None:
    rows = [(row._replace(channel=ids[one.id]), None) for one in group for row in segments[one.id]]
    channels = {ids[one.id]: one._replace(id=ids[one.id]) for one in group}
    for first in range(0, max(1, len(rows)), GROUP_ROWS):
        target.commit(replace(about, channels=channels, segments=list(rows[first : first + GROUP_ROWS])))
    for one in group:
        if (old := _folder(source, one.id)).exists():
            os.rename(old, _folder(target, ids[one.id]))
    for database in (target, source):
        sync_folder(database.folder / "segments")
    removed = {(one.id, row.seq) for one in group for row in segments[one.id]}
    source.commit(Batch(forgotten=list(ids), removed=removed))


def _take_facts(worker: int, databases: dict[int, Database]) -> None:
    """Give the front's journal the facts of a worker that it lacks; if they are gone, none of its followers goes on."""
    front = databases[0]
    if not databases[worker].has_started():
        return
    _, here = front.facts_behind(None)
    batch = Batch(floor=here.number + 1)  # beyond all that followers have seen
    found, batch.positions[worker] = databases[worker].facts_behind(front.positions().get(worker))
    if found is not None:
        shown = (row for row in found if row.kind != OPENED)
        batch.facts = [row._replace(number=index) for index, row in enumerate(shown, here.number + 1)]
        batch.floor = 0
    front.commit(batch)


def _remove(worker: int, databases: dict[int, Database]) -> None:
    """Remove the directory of a worker that there is no more, unless something in it could not be moved."""
    database = databases[worker]
    if database.names():
        return
    _take_facts(worker, databases)
    _contents(database)
    databases.pop(worker).close()
    folder, data = database.folder, databases[0].folder
    for one in sorted(folder.iterdir()):
        if (found := ASIDE.fullmatch(one.name)) is not None:
            name = unused_name(data, found[1])
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.rename(f"{one}{suffix}", data / f"{name}{suffix}")
    gone = folder.with_name(folder.name + REMOVED)
    folder.rename(gone)
    shutil.rmtree(gone)
    databases[0].commit(Batch(positions={worker: BEGINNING}))
