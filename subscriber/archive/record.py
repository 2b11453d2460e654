"""``record(url, directory)``: a channel kept in a folder, and taken up again where it was left."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tricklecast.subscriber.archive.disk import Disk
from tricklecast.subscriber.archive.folder import INDEX
from tricklecast.subscriber.archive.index import Contents, Entry
from tricklecast.subscriber.archive.keep import Keep
from tricklecast.subscriber.archive.writer import FolderWriter
from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.start import AnyStart
from tricklecast.subscriber.statistics import Statistics
from tricklecast.trickle.errors import InvalidInput, Position
from tricklecast.trickle.paths import ChannelURL


@dataclass(frozen=True, slots=True)
class Recording:
    """What a call of :func:`record` has done.

    Attributes:
        segments: segments recorded by it, empty ones included. bytes: their sizes, added up.
        missed: segments that could not be had, between others or before the end.
        truncated: segments that are not whole, as the server said. broken: those whose rest could not be had.
        removed: segments removed from the folder, to make room.
        position: where the next call will go on.
    """

    segments: int
    bytes: int
    missed: int
    truncated: int
    broken: int
    removed: int
    position: Position | None


async def record(
    url: str,
    directory: str | os.PathLike[str],
    *,
    start: AnyStart = "next",
    keep_segments: int | None = None,
    keep_bytes: int | None = None,
    on_segment: Callable[[Entry], None] | None = None,
    disk: Disk | None = None,
    **options: Any,
) -> Recording:
    """Record a channel until its end: one file per segment, and an index (``index.jsonl``).

    ::

        await record("http://host:2939/trickle/camera", "camera/", on_segment=lambda entry: print(entry.file))

    Called again, it goes on where the last call was left, however that ended: behind the last segment that is whole
    in the folder. A file is complete, or it is not there. Cancel it to stop; use ``anyio.move_on_after`` for a time.

    Args:
        url: the channel's URL.
        directory: the folder; it is made if it is not there.
        start: where a new recording begins, as for :class:`tricklecast.subscriber.Subscriber`.
        keep_segments, keep_bytes: how much the folder may hold; the oldest segments are removed, and the index says
            so. ``None``: everything is kept.
        on_segment: is told each segment that was recorded.
        disk: the file system, for tests.
        options: of :class:`tricklecast.subscriber.Subscriber`.

    Raises:
        DirectoryInUse: another process records into that folder.
        DamagedIndex, InvalidInput: it cannot be recorded into that folder.
        SinkFailed: the disk is full, or fails; ``resume`` is where to go on.
        TrickleError: what :class:`tricklecast.subscriber.Subscriber` raises.
    """
    channel = ChannelURL.parse(url).channel
    keep = Keep(keep_segments, keep_bytes)
    async with FolderWriter(Path(directory), channel, keep=keep, disk=disk) as writer:
        folder = writer.folder
        removed = folder.removed
        options["on_broken"] = "skip"
        async with Subscriber(url, start=folder.position or start, **options) as subscriber:
            async for segment in subscriber:
                await writer.begin()
                async for chunk in segment:
                    await writer.write(chunk)
                entry = await writer.finish(segment)
                if on_segment is not None:
                    on_segment(entry)
            statistics = subscriber.statistics()
            await writer.ended(subscriber.missed_at_end)
        return _recording(statistics, folder.removed - removed, folder.position)


def _recording(statistics: Statistics, removed: int, position: Position | None) -> Recording:
    return Recording(
        statistics.segments,
        statistics.bytes,
        statistics.missed,
        statistics.truncated,
        statistics.broken,
        removed,
        position,
    )


def read_index(directory: str | os.PathLike[str]) -> list[Entry]:
    """The segments of a recording whose files are there, oldest first; also while it is being written.

    Raises:
        InvalidInput: that is no recording.
        DamagedIndex: its index is not readable.
    """
    path: Final = Path(directory) / INDEX
    try:
        with path.open("rb") as lines:
            return list(Contents.scan(lines).kept)
    except OSError as error:
        raise InvalidInput(f"no recording in {directory}: {error.strerror or error}") from error
