"""A folder with one file per segment and an index, which a crash at any point leaves in order.

A segment is written under a temporary name, synced, given its name in one step, and only then put into the index: a
file that the index names is whole, and a crash loses the segment under way, which the next run reads again. A line of
the index that a crash has torn is cut off when the folder is opened again.

Everything here blocks; :mod:`tricklecast.subscriber.archive.record` calls it from a worker thread.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from tricklecast.subscriber.archive.disk import Disk
from tricklecast.subscriber.archive.index import Contents, DamagedIndex, Entry, extension, line
from tricklecast.subscriber.archive.keep import Keep
from tricklecast.subscriber.sinks import SinkFailed
from tricklecast.trickle.errors import InvalidInput, LocalProtocolError, Position

INDEX: Final = "index.jsonl"
LOCK: Final = ".lock"
PART: Final = ".part"
"""The segment under way. A folder has one writer, and that one writes one segment at a time."""

BUFFER_BYTES: Final = 256 * 1024
"""Chunks are gathered up to this size, since each write costs a change of threads."""

COMPACT_LINES: Final = 1000
"""From so many lines about removed segments on, the index is written anew without them."""


class Recorded(Protocol):
    """What is used of a :class:`tricklecast.subscriber.Segment`."""

    @property
    def seq(self) -> int: ...
    @property
    def epoch(self) -> int | None: ...
    @property
    def life(self) -> str | None: ...
    @property
    def gap(self) -> int: ...
    @property
    def restarted(self) -> bool: ...
    @property
    def content_type(self) -> str: ...
    @property
    def truncated(self) -> str | None: ...
    @property
    def broken(self) -> Exception | None: ...


class Folder:
    """A recording on disk: open it, then for each segment :meth:`begin`, :meth:`write` and :meth:`finish`.

    Args:
        path: the folder; it is made if it is not there.
        channel: the channel's name; a folder holds one channel.
        keep: how much it may hold.
        disk: the file system.
        clock: Unix time in seconds.
    """

    def __init__(
        self,
        path: Path,
        channel: str,
        *,
        keep: Keep | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path: Final = path
        self._channel = channel
        self._keep = keep or Keep()
        self._disk = disk or Disk()
        self._clock = clock
        self._contents = Contents()
        self._lock: BinaryIO | None = None
        self._index: BinaryIO | None = None
        self._part: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._size = 0
        self._began_at = 0.0

    @property
    def position(self) -> Position | None:
        """Where to go on: behind the newest segment; ``None`` for a new recording."""
        last = self._contents.last
        return None if last is None else Position(last.seq + 1, last.epoch, last.numbering)

    @property
    def removed(self) -> int:
        """Segments removed so far, to make room."""
        return self._contents.removed

    @property
    def under_way(self) -> bool:
        """Whether bytes of a segment were written that is not finished."""
        return self._part is not None

    def open(self) -> None:
        """Take the folder: lock it, read its index, and repair what a crash has left.

        Raises:
            DirectoryInUse: another process records into it.
            DamagedIndex: its index is not readable.
            InvalidInput: it holds another channel, or other files, or cannot be made.
            SinkFailed: the repair failed.
        """
        try:
            self._disk.make(self.path)
            self._lock = self._disk.lock(self.path / LOCK)
        except OSError as error:
            raise InvalidInput(f"cannot record into {self.path}: {error.strerror or error}") from error
        try:
            self._read_index()
        except OSError as error:
            self.close()
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """A segment begins."""
        self._hash, self._size, self._began_at = hashlib.sha256(), 0, self._clock()

    def write(self, data: bytes | bytearray) -> None:
        """Write some of the segment.

        Raises:
            SinkFailed: it cannot be written: the disk is full, ...
        """
        try:
            if self._part is None:
                self._part = self._disk.create(self.path / PART)
            self._disk.write(self._part, data)
        except OSError as error:
            raise self._failed(error) from error
        self._hash.update(data)
        self._size += len(data)

    def finish(self, segment: Recorded) -> Entry:
        """The segment is over: name its file, and put it into the index; then make room.

        Raises:
            SinkFailed: it cannot be written. The index is as it was before.
        """
        entry = self._entry(segment)
        try:
            if self._part is not None and entry.file is not None:
                self._disk.sync(self._part)
                self._close_part()
                final = self.path / entry.file
                self._disk.make(final.parent)
                self._disk.rename(self.path / PART, final)
            self._append(entry.line())
            self._contents.add(entry)
            self._make_room()
        except OSError as error:
            raise self._failed(error) from error
        return entry

    def discard(self) -> None:
        """Forget the segment under way."""
        self._close_part()
        with suppress(OSError):  # it is removed when the folder is opened again
            self._disk.remove(self.path / PART)

    def ended(self, gap: int) -> None:
        """The channel has ended.

        Args:
            gap: segments missed between the last one and the end.

        Raises:
            SinkFailed: it cannot be written.
        """
        try:
            self._append(line("ended", at=self._clock(), gap=gap))
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Give the folder back. What was under way is gone."""
        self._close_part()
        for file in (self._index, self._lock):
            if file is not None:
                file.close()
        self._index = self._lock = None

    def _entry(self, segment: Recorded) -> Entry:
        life = self._life(segment)
        name = f"life{life}/{segment.seq:08d}{extension(segment.content_type)}"
        return Entry(
            segment.seq,
            life,
            name if self._size else None,
            self._size,
            self._hash.hexdigest(),
            segment.content_type,
            segment.epoch,
            self._began_at,
            self._clock(),
            segment.gap,
            segment.restarted,
            segment.truncated,
            None if segment.broken is None else str(segment.broken),
            segment.life,
        )

    def _life(self, segment: Recorded) -> int:
        """No file is ever replaced by one of another life, whatever numbers the server gives."""
        last = self._contents.last
        if last is None:
            return 1
        is_same = segment.life is not None and segment.life == last.numbering
        reborn = None not in (last.epoch, segment.epoch) and last.epoch != segment.epoch and not is_same
        return last.life + (segment.restarted or reborn or segment.seq <= last.seq)

    def _read_index(self) -> None:
        path = self.path / INDEX
        if not path.exists():
            self._check_empty()
        self._index = self._disk.extend(path)
        with path.open("rb") as lines:
            try:
                self._contents = Contents.scan(lines)
            except DamagedIndex as error:
                raise DamagedIndex(f"cannot record into {self.path}: {error}") from None
        known = self._contents.channel
        if known != self._channel and self._contents.last is None:
            self._contents = Contents()  # the channel of a run that got nothing: perhaps a slip of the pen
        elif known != self._channel:
            raise InvalidInput(f"{self.path} holds a recording of channel {known!r}, not of {self._channel!r}")
        self._disk.remove(self.path / PART)
        self._disk.truncate(self._index, self._contents.size)
        if not self._contents.size:
            self._append(line("channel", channel=self._channel))
        self._make_room()

    def _check_empty(self) -> None:
        """Neither mix a recording with other files, nor replace those of one whose index was lost."""
        for path in self.path.iterdir():
            if not path.name.startswith(".") and path.name != "lost+found":
                raise InvalidInput(f"{self.path} holds other files ({path.name}, ...): record into a folder of its own")

    def _append(self, data: bytes) -> None:
        if self._index is None:
            raise LocalProtocolError("the folder is not open")
        try:
            self._disk.write(self._index, data)
            self._disk.sync(self._index)
        except OSError:
            with suppress(OSError):  # or else it is cut off when the folder is opened again
                self._disk.truncate(self._index, self._contents.size)
            raise
        self._contents.size += len(data)

    def _make_room(self) -> None:
        while self._keep.exceeded(self._contents):
            oldest = self._contents.kept[0]
            if oldest.file is not None:
                self._disk.remove(self.path / oldest.file)
            # A crash here is made good when the folder is opened again: it finds the same segment the oldest.
            self._append(line("removed", life=oldest.life, seq=oldest.seq, file=oldest.file))
            self._contents.drop_oldest()
        if self._contents.dead >= max(COMPACT_LINES, 4 * len(self._contents.kept)):
            self._compact()

    def _compact(self) -> None:
        """Write the index anew without the removed segments, and put it in the place of the old one in one step."""
        contents, path = self._contents, self.path / INDEX
        header = line("channel", channel=self._channel, removed=contents.removed)
        data = header + b"".join(entry.line() for entry in contents.kept)
        with self._disk.create(self.path / PART) as file:
            self._disk.write(file, data)
            self._disk.sync(file)
        self._disk.rename(self.path / PART, path)
        if self._index is not None:
            self._index.close()
        self._index = self._disk.extend(path)
        contents.size, contents.dead = len(data), 0

    def _close_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.close()

    def _failed(self, error: OSError) -> SinkFailed:
        failed = SinkFailed(f"cannot write to {self.path}: {error.strerror or error}")
        failed.resume = self.position
        return failed
