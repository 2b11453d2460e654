"""The data directory of several workers: each has one of its own, and channels move when the number changes.

The first worker has the data directory itself, and worker 1, for example, its folder ``worker-1``. So a server of one
process finds what it expects, and a directory of an earlier version is that of the first worker.

A channel is in the directory of its owner, which follows from its name and the number of workers. Before a server
starts, :func:`settle` looks at all directories and moves channels that are in the wrong one:

1. its rows are written to the right directory, with a new id;
2. its folder is renamed into that directory, so no byte is copied;
3. its rows are removed from the wrong one.

A crash leaves the rows in both, and the folder in one of them. The next start does the same again: it finds the rows in
the right directory, keeps their id, and goes on. Nothing is ever in none.

The facts of the first worker are those of the server, so those of a directory that goes away go with it.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tricklecast.app.storage.database import Batch, Database, SegmentRow, unusable

_WORKER: Final = re.compile(r"worker-([1-9][0-9]{0,3})")

MOVED_ROWS: Final = 10_000
"""Rows of segments that are written in one transaction."""


def folder_of(folder: Path, worker: int) -> Path:
    """The data directory of one worker."""
    return folder / f"worker-{worker}" if worker else folder


def workers_in(folder: Path) -> list[int]:
    """The workers that have a directory in this data directory, the first one included."""
    if not folder.is_dir():
        return []
    found = [_WORKER.fullmatch(one.name) for one in folder.iterdir()]
    return [0, *sorted(int(one[1]) for one in found if one is not None)]


def settle(folder: Path, workers: int, owner: Callable[[str], int], *, fsync: bool = False) -> int:
    """Move each channel to the directory of its owner, and remove directories of workers that there are no more.

    Args:
        folder: the data directory. workers: their number.
        owner: the worker that owns the channel of this name.
        fsync: as for :class:`~app.storage.database.Database`.

    Returns:
        How many channels (epochs of a name) were moved.

    Raises:
        StorageError: a directory is used by another server, or cannot be read or written.
    """
    there = workers_in(folder)
    if there in ([], [0]) and workers == 1:
        return 0
    databases: dict[int, Database] = {}
    try:
        for worker in sorted({*there, *range(workers)}):
            databases[worker] = Database(folder_of(folder, worker), fsync=fsync)
        moved = sum(_move_from(worker, databases, owner) for worker in databases)
        for worker in [worker for worker in databases if worker >= workers]:
            database = databases.pop(worker)
            contents = database.contents()
            database.close()
            if not contents.channels:
                shutil.rmtree(database.folder)
    except OSError as error:
        raise unusable(folder, error) from error
    finally:
        for database in databases.values():
            database.close()
    return moved


def _move_from(worker: int, databases: dict[int, Database], owner: Callable[[str], int]) -> int:
    source = databases[worker]
    try:
        if all(owner(name) == worker for name in source.names()):
            return 0
    except sqlite3.Error:
        pass  # damaged: it is repaired as far as possible
    contents = source.contents()
    segments: dict[int, list[SegmentRow]] = defaultdict(list)
    for row in contents.segments:
        segments[row.channel].append(row)
    moved = 0
    for channel in contents.channels:
        target = databases[owner(channel.name)]
        if target is source:
            continue
        moved += 1
        id = target.id_of(channel.name, channel.epoch)
        rows = [(row._replace(channel=id), None) for row in segments[channel.id]]
        for first in range(0, max(1, len(rows)), MOVED_ROWS):
            target.commit(
                Batch(channels={id: channel._replace(id=id)}, segments=list(rows[first : first + MOVED_ROWS]))
            )
        old, new = source.path(channel.id, 0).parent, target.path(id, 0).parent
        if old.exists():
            if new.exists():
                shutil.rmtree(new)  # a rest of an earlier channel of this id: no row names it
            os.rename(old, new)
        source.commit(Batch(forgotten=[channel.id], removed=[(channel.id, row.seq) for row in segments[channel.id]]))
    return moved
