"""The asynchronous side of a folder: it gathers chunks, and waits for the disk in a worker thread."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import anyio
from anyio import to_thread

from tricklecast.subscriber.archive.disk import Disk
from tricklecast.subscriber.archive.folder import BUFFER_BYTES, Folder, Recorded
from tricklecast.subscriber.archive.index import Entry
from tricklecast.subscriber.archive.keep import Keep


class FolderWriter:
    """Writes the segments of a channel into a folder, one after another; an async context manager.

    A segment that is not finished when the block is left is not kept: it is read again by the next run.

    Args:
        path, channel, keep, disk: see :class:`tricklecast.subscriber.archive.folder.Folder`.
    """

    def __init__(self, path: Path, channel: str, *, keep: Keep | None = None, disk: Disk | None = None) -> None:
        self.folder: Final = Folder(path, channel, keep=keep, disk=disk)
        self._buffer = bytearray()

    async def __aenter__(self) -> Self:
        await to_thread.run_sync(self.folder.open)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._leave)

    async def begin(self) -> None:
        """A segment begins; one that was under way is given up."""
        if self._buffer or self.folder.under_way:
            self._buffer.clear()
            await to_thread.run_sync(self.folder.discard)
        self.folder.begin()

    async def write(self, data: bytes) -> None:
        """Write a chunk of it.

        Raises:
            SinkFailed: it cannot be written: the disk is full, ...
        """
        self._buffer += data
        if len(self._buffer) >= BUFFER_BYTES:
            await to_thread.run_sync(self._flush)

    async def finish(self, segment: Recorded) -> Entry:
        """The segment is over.

        Raises:
            SinkFailed: it cannot be written. The index does not name it.
        """

        def finish() -> Entry:
            if self._buffer:
                self._flush()
            return self.folder.finish(segment)

        return await to_thread.run_sync(finish)

    async def ended(self, gap: int) -> None:
        """The channel has ended; ``gap`` segments were missed before its end."""
        await to_thread.run_sync(self.folder.ended, gap)

    def _flush(self) -> None:
        self.folder.write(self._buffer)
        self._buffer.clear()

    def _leave(self) -> None:
        self.folder.discard()
        self.folder.close()
