"""The restore after a restart: channels go on as if every client had merely lost its connection.

Stop, crash and restart are one case: the directory is as the last whole batch left it. The restore reads its rows, and

1. checks each segment against its file: the file must be long enough. The bytes of open segments must match their
   checksums; after a crash of the machine also those of the last two minutes, which the kernel may not have written.
   Other checksums are compared when a reader asks for the segment;
2. closes segments that were open as truncated, with the bytes that are written;
3. brings back the latest epoch of each name: live, in the rest of its drain, or as a tombstone. Older epochs keep their
   segments until retention removes them;
4. removes files that no row names. If rows of the database are lost, it renames these files instead;
5. writes all this as the first batch, with the index of the last fact, so that no index is given twice.
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

from tricklecast.app.core.registry import Registry, Restored
from tricklecast.app.core.segment import State
from tricklecast.app.storage.archive import FILE_BYTES, Archive, StoredChannel
from tricklecast.app.storage.database import Batch, FactRow, ServerStart, boot_id, unusable, unused_name

logger = logging.getLogger("tricklecast.storage")

UNWRITTEN_S: Final = 120
"""After a crash of the machine the checksums of segments from this time before it are compared: the kernel may not have
written their bytes. It writes bytes that are older than 30 s (Linux, ``vm.dirty_expire_centisecs``)."""

MAX_LINES: Final = 20
"""Damages that are logged one by one; one line counts the others."""

_READ: Final = 1 << 20  # bytes read at a time


@dataclass(slots=True)
class Restoration:
    """The result of a restore.

    Attributes:
        channels: live ones. segments, bytes: those of live and ended channels.
        truncated: segments that were open. damaged: one sentence about each thing that could not be read.
    """

    channels: int = 0
    segments: int = 0
    bytes: int = 0
    truncated: int = 0
    damaged: list[str] = field(default_factory=list)


def restore(archive: Archive, registry: Registry, now: float) -> Restoration:
    """Bring channels back, before the first request. Damaged segments are removed and reported; the others stay.

    Args:
        archive: the storage of the registry.
        registry: has no channels yet.
        now: the registry's time, seconds.

    Raises:
        StorageError: permission to read a folder or a file is missing. Its segments are not taken for lost.
    """
    try:
        return _restore(archive, registry, now)
    except PermissionError as error:
        raise unusable(archive.database.folder, error) from error


def _restore(archive: Archive, registry: Registry, now: float) -> Restoration:
    database = archive.database
    now_us = archive.wall_us()  # at the time ``now``: to read the directory may take long
    contents = database.contents()
    report = Restoration(damaged=contents.damaged)
    batch = Batch()
    registry.journal.index = archive.index = contents.index
    boot = boot_id()
    crashed = not contents.server_starts or not boot or contents.server_starts[-1].boot != boot
    latest = max((row.closed_us or row.opened_us for row in contents.segments), default=0)
    doubtful_us = latest - UNWRITTEN_S * 1_000_000 if crashed else latest + 1
    channels = {row.id: StoredChannel(archive, row) for row in contents.channels}
    sizes = _sizes(database.folder)
    ends: dict[tuple[int, int], int] = {}
    heads: dict[int, int] = {}
    for row in sorted(contents.segments, key=lambda row: (row.closed_us or now_us, row.seq)):
        stored = channels.get(row.channel)
        if stored is None:
            report.damaged.append(f"segment {row.seq} belongs to an unknown channel and is left out")
            batch.removed.append((row.channel, row.seq))
            continue
        heads[row.channel] = max(heads.get(row.channel, 0), row.seq + 1)
        key = row.channel, row.file
        ends[key] = max(ends.get(key, 0), row.start + row.size)
        why = ""
        if row.size and row.start + row.size > sizes.get(key, 0):
            why = "its file is missing" if key not in sizes else "its file is too short"
        elif row.size and (row.closed_us is None or row.closed_us >= doubtful_us):
            same = checksum(database.path(*key), row.start, row.size) == row.crc
            why = "" if same else "its checksum does not match"
        if why:
            report.damaged.append(f"segment {row.seq} of {stored.row.name!r} (epoch {stored.row.epoch}): {why}")
            batch.removed.append((row.channel, row.seq))
            continue
        if row.closed_us is None:
            row = row._replace(state=State.TRUNCATED.value, closed_us=now_us)
            report.truncated += 1
            registry.journal.index += 1
            batch.segments.append((row, None))
            place = stored.row.name, stored.row.epoch, row.seq, row.state, row.size
            batch.facts.append(FactRow(registry.journal.index, now_us, "closed", *place))
        archive.keep(stored, row)
    report.segments, report.bytes = archive.segments, archive.bytes
    latest_of = {stored.row.name: stored for stored in sorted(channels.values(), key=lambda one: one.row.epoch)}
    for stored in sorted(channels.values(), key=lambda one: one.row.ended_us or now_us):
        if latest_of[stored.row.name] is stored:
            head = max(stored.row.next_seq, heads.get(stored.row.id, 0))
            report.channels += _bring_back(archive, registry, stored, head, now, now_us)
            continue
        if stored.row.ended_us is None:  # its end was not written, and the next one has begun
            stored.row = stored.row._replace(ended_us=now_us)
            batch.channels[stored.row.id] = stored.row
        archive.ended[stored.row.id] = stored
    for (channel, file), end in ends.items():
        if file and end < FILE_BYTES and (channel, file) in archive.files and channels[channel].row.ended_us is None:
            channels[channel].room.append((file, end))
    unknown = [key for key in sizes if key not in archive.files]
    archive.expire(channels.values())
    known = [row.id for row in contents.channels] + [row.channel for row in contents.segments]
    archive.next_channel = max([*known, *(channel for channel, _ in sizes)], default=0) + 1
    archive.next_file = max((file for _, file in (*sizes, *ends)), default=0) + 1
    batch.server_start = ServerStart(registry.instance, contents.index, now_us, boot)
    archive.start(batch, contents.index)
    ends_at = [*(start.began_at for start in contents.server_starts[1:]), contents.index]
    archive.server_starts = {start.instance: last for start, last in zip(contents.server_starts, ends_at, strict=False)}
    if unknown and not contents.complete:
        report.damaged.append(_set_aside(archive, unknown))
    else:
        _remove(archive, unknown)
    archive.figures.damaged += len(report.damaged)
    for one in report.damaged[:MAX_LINES]:
        logger.error("%s: %s", database.folder, one)
    if (more := len(report.damaged) - MAX_LINES) > 0:
        logger.error("%s: %d more of these", database.folder, more)
    return report


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


def _sizes(folder: Path) -> dict[tuple[int, int], int]:
    return {(channel, file): size for channel, file, size in files_of(folder)}


def _bring_back(
    archive: Archive, registry: Registry, stored: StoredChannel, next_seq: int, now: float, now_us: int
) -> bool:
    """Bring the latest epoch of a name back: live, in its drain, or as a tombstone. Returns whether it is live."""
    row = stored.row
    limits = registry.limits
    archive.live[row.name] = stored
    archive.epochs[row.name] = row.epoch
    age_s = (now_us - row.created_us) / 1e6
    if row.ended_us is None:
        registry.restore(Restored(row.name, row.epoch, row.content_type, next_seq, age_s), now)
        return True
    archive.ended[row.id] = stored
    ended_s = max(0.0, (now_us - row.ended_us) / 1e6)
    if ended_s < limits.channel_drain_s:
        drain_s = limits.channel_drain_s - ended_s
        registry.restore(Restored(row.name, row.epoch, row.content_type, next_seq, age_s, drain_s), now)
    elif ended_s < limits.channel_drain_s + limits.tombstone_s:
        registry.bury(row.name, row.epoch, next_seq, now + limits.channel_drain_s + limits.tombstone_s - ended_s)
    return False


def _remove(archive: Archive, unknown: Iterable[tuple[int, int]]) -> None:
    """Remove files that no row names: the server ended between a batch and the removal of its files."""
    for channel, file in unknown:
        path = archive.database.path(channel, file)
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()


def _set_aside(archive: Archive, unknown: Sequence[tuple[int, int]]) -> str:
    """Rename files that no row of a damaged or lost database names. Returns a sentence about it."""
    folder = archive.database.folder
    name = unused_name(folder, "segments.unknown")
    for channel, file in unknown:
        path = archive.database.path(channel, file)
        new = folder / name / path.parent.name / path.name
        with suppress(OSError):
            new.parent.mkdir(parents=True, exist_ok=True)
            path.rename(new)
            path.parent.rmdir()
    return f"{len(unknown)} files that are not in journal.sqlite: set aside in {name}"
