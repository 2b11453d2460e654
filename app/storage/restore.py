"""The restore after a restart: channels go on as if every client had merely lost its connection.

Stop, crash and restart are one case: the directory is as the last whole batch left it. :func:`take_inventory` reads it
before anything else of a server is made, since the journal and the archive begin where the directory ends. It

1. checks each segment against its file: the file must be long enough. The bytes of open segments must match their
   checksums; after a crash of the machine also those of the last two minutes, which the kernel may not have written.
   Other checksums are compared when a reader asks for the segment;
2. closes segments that were open as truncated, with the bytes that are written. Each such end is a fact, which gets the
   next index;
3. removes files that no row names. If rows of the database are lost, it renames these files instead.

Then :meth:`~app.storage.archive.Archive.bring_back` tells the registry of the latest epoch of each name, and writes all
this as the first batch, with the index of the last fact, so that no index is given twice. Older epochs keep their
segments until retention removes them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

from tricklecast.app.core.segment import State
from tricklecast.app.storage.database import (
    Batch,
    ChannelRow,
    Contents,
    Database,
    FactRow,
    SegmentRow,
    boot_id,
    unusable,
    unused_name,
)

logger = logging.getLogger("tricklecast.storage")

UNWRITTEN_S: Final = 120
"""After a crash of the machine the checksums of segments from this time before it are compared: the kernel may not have
written their bytes. It writes bytes that are older than 30 s (Linux, ``vm.dirty_expire_centisecs``)."""

MAX_LINES: Final = 20
"""Damages that are logged one by one; one line counts the others."""

_READ: Final = 1 << 20  # bytes read at a time


@dataclass(slots=True)
class Inventory:
    """The contents of a data directory at the start of a server, with which its archive begins.

    Attributes:
        channels: in the order in which they ended, live ones last. Of each name only the latest epoch may be live.
        segments: the closed ones whose bytes are there, in the order in which they closed.
        ends: by channel and file, the end of the last segment in it.
        next_channel, next_file: ids that no channel and no file has had yet.
        server_starts: earlier starts, and the index up to which the facts of each are kept.
        stored_index: of the last fact in the directory. index: of the last fact, those of ``batch`` included.
        batch: the changes that the check of the directory has made, which are to be written first.
        damaged: one sentence about each thing that is unreadable.
    """

    channels: list[ChannelRow] = field(default_factory=list)
    segments: list[SegmentRow] = field(default_factory=list)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    next_channel: int = 1
    next_file: int = 1
    server_starts: dict[str, int] = field(default_factory=dict)
    stored_index: int = 0
    index: int = 0
    batch: Batch = field(default_factory=Batch)
    damaged: list[str] = field(default_factory=list)


def take_inventory(database: Database, now_us: int) -> Inventory:
    """Read and check a data directory. Damaged segments are removed and reported; the others stay.

    Args:
        now_us: the time, microseconds since 1970, at which open segments are closed.

    Raises:
        StorageError: the directory cannot be read. Where only a permission is missing, nothing is taken for lost.
    """
    try:
        return _take_inventory(database, now_us)
    except PermissionError as error:
        raise unusable(database.folder, error) from error


def _take_inventory(database: Database, now_us: int) -> Inventory:
    contents = database.contents()
    sizes = {(channel, file): size for channel, file, size in files_of(database.folder)}
    found = Inventory(stored_index=contents.index, index=contents.index, damaged=contents.damaged)
    _check_segments(found, contents, sizes, database, now_us)
    _end_channels(found, contents, now_us)
    ids = [row.id for row in contents.channels] + [row.channel for row in contents.segments]
    found.next_channel = max([*ids, *(channel for channel, _ in sizes)], default=0) + 1
    found.next_file = max((file for _, file in (*sizes, *found.ends)), default=0) + 1
    ends_at = [*(start.began_at for start in contents.server_starts[1:]), contents.index]
    found.server_starts = {start.instance: last for start, last in zip(contents.server_starts, ends_at, strict=False)}
    found.damaged += tidy(database, contents, found.segments, sizes)
    for one in found.damaged[:MAX_LINES]:
        logger.error("%s: %s", database.folder, one)
    if (more := len(found.damaged) - MAX_LINES) > 0:
        logger.error("%s: %d more of these", database.folder, more)
    return found


def _check_segments(
    found: Inventory, contents: Contents, sizes: dict[tuple[int, int], int], database: Database, now_us: int
) -> None:
    """Compare segments with their files, and close those that are open."""
    boot = boot_id()
    crashed = not contents.server_starts or not boot or contents.server_starts[-1].boot != boot
    latest = max((row.closed_us or row.opened_us for row in contents.segments), default=0)
    doubtful_us = latest - UNWRITTEN_S * 1_000_000 if crashed else latest + 1
    channels = {row.id: row for row in contents.channels}
    for row in sorted(contents.segments, key=lambda row: (row.closed_us or now_us, row.seq)):
        channel = channels.get(row.channel)
        if channel is None:
            found.damaged.append(f"segment {row.seq} belongs to an unknown channel and is left out")
            found.batch.removed.add((row.channel, row.seq))
            continue
        key = row.channel, row.file
        found.ends[key] = max(found.ends.get(key, 0), row.start + row.size)
        why = ""
        if row.size and row.start + row.size > sizes.get(key, 0):
            why = "its file is missing" if key not in sizes else "its file is too short"
        elif row.size and (row.closed_us is None or row.closed_us >= doubtful_us):
            same = checksum(database.path(*key), row.start, row.size) == row.crc
            why = "" if same else "its checksum does not match"
        if why:
            found.damaged.append(f"segment {row.seq} of {channel.name!r} (epoch {channel.epoch}): {why}")
            found.batch.removed.add((row.channel, row.seq))
            continue
        if row.closed_us is None:
            row = row._replace(state=State.TRUNCATED.value, closed_us=now_us)
            found.index += 1
            found.batch.segments.append((row, None))
            place = channel.name, channel.epoch, row.seq, row.state, row.size
            found.batch.facts.append(FactRow(found.index, now_us, "closed", *place))
        found.segments.append(row)


def _end_channels(found: Inventory, contents: Contents, now_us: int) -> None:
    """Find the head of each channel, and end those whose end was not written before the next epoch began."""
    heads: dict[int, int] = {}
    for segment in contents.segments:
        heads[segment.channel] = max(heads.get(segment.channel, 0), segment.seq + 1)
    latest = {row.name: row.id for row in sorted(contents.channels, key=lambda row: row.epoch)}
    for row in contents.channels:
        row = row._replace(next_seq=max(row.next_seq, heads.get(row.id, 0)))
        if row.ended_us is None and latest[row.name] != row.id:
            row = found.batch.channels[row.id] = row._replace(ended_us=now_us)
        found.channels.append(row)
    found.channels.sort(key=lambda row: (row.ended_us is None, row.ended_us))


def checksum(path: Path, start: int, size: int) -> int | None:
    """The CRC-32 of some bytes of a file; ``None`` if they are not all there.

    Raises:
        PermissionError: they may be there, and this process may not read them.
    """
    crc = 0
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            while size:
                data = file.read(min(size, _READ))
                if not data:
                    return None
                crc = crc32(data, crc)
                size -= len(data)
    except PermissionError:
        raise
    except OSError:
        return None
    return crc


def files_of(folder: Path) -> Iterator[tuple[int, int, int]]:
    """The files of segments in a data directory: channel, file, size in bytes."""
    for channel in (folder / "segments").iterdir():
        if channel.name.isdecimal() and channel.is_dir():
            for entry in os.scandir(channel):
                name = entry.name.removesuffix(".seg")
                if name.isdecimal():
                    yield int(channel.name), int(name), entry.stat().st_size


def tidy(
    database: Database, contents: Contents, segments: Iterable[SegmentRow], files: Iterable[tuple[int, int]]
) -> list[str]:
    """Remove the files that none of these segments is in, or rename them if rows are lost: a sentence about that."""
    named = {(row.channel, row.file) for row in segments if row.size}
    unknown = [key for key in files if key not in named]
    if unknown and not contents.complete:
        return [_set_aside(database, unknown)]
    _remove(database, unknown)
    return []


def _remove(database: Database, unknown: Iterable[tuple[int, int]]) -> None:
    """Remove files that no row names: the server ended between a batch and the removal of its files."""
    for channel, file in unknown:
        path = database.path(channel, file)
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()


def _set_aside(database: Database, unknown: Sequence[tuple[int, int]]) -> str:
    """Rename files that no row of a damaged or lost database names. Returns a sentence about it."""
    folder = database.folder
    name = unused_name(folder, "segments.unknown")
    for channel, file in unknown:
        path = database.path(channel, file)
        new = folder / name / path.parent.name / path.name
        with suppress(OSError):
            new.parent.mkdir(parents=True, exist_ok=True)
            path.rename(new)
            path.parent.rmdir()
    return f"{len(unknown)} files that are not in journal.sqlite: set aside in {name}"
