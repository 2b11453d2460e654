"""Recording a channel into a folder: one file per segment and an index, in order after a crash at any point.

A segment is written under a temporary name, synced, and renamed in one step; its folder is synced; only then it is put
into the index. So a file that the index names is whole, also after a power failure. A crash loses the segment that was
being written, and the next run reads it again. A line of the index that a crash has torn is cut off when the folder is
opened again.

The index (``index.jsonl``) has one JSON object per line, and is only appended to:

====================  ==================================================================================
``kind``              Meaning
====================  ==================================================================================
``channel``           the channel of this recording; the first line
``segment``           a segment was recorded whole: its file is there (see :class:`Entry`)
``removed``           a segment's file was removed, to make room
``ended``             the channel ended here; ``gap`` segments were missed before its end
====================  ==================================================================================

Readers ignore lines of unknown kinds and unknown fields, so that older programs can read the files of newer ones.
A last line without its end was being written when its program died; it counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, Unpack

import anyio

from tricklecast.subscriber.client import ReaderOptions, Subscriber
from tricklecast.subscriber.core import AnyStart, OnLag, Start, check_whole
from tricklecast.subscriber.events import OnEvent
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import OneAtATime, Output, SinkFailed
from tricklecast.trickle.client.arguments import URLs, channel_urls, check_number, check_options
from tricklecast.trickle.errors import InvalidInput, LocalProtocolError, Position, TrickleError
from tricklecast.trickle.media.containers import SNIFF_BYTES, Container, sniff

VERSION: Final = 1

_HEADER: Final = f'{{"v": {VERSION}, "kind": "channel", "channel": '.encode()
"""How the first line begins, even if it is torn. A file that begins with something else is not ours to repair."""

_EXTENSIONS: Final = {
    "video/mp2t": ".ts",
    "video/mp4": ".mp4",
    "audio/mp4": ".m4a",
    "video/webm": ".webm",
    "video/x-matroska": ".mkv",
    "audio/aac": ".aac",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "application/json": ".json",
    "application/x-ndjson": ".jsonl",
    "text/plain": ".txt",
    "text/vtt": ".vtt",
}
"""Own table: that of :mod:`mimetypes` depends on the machine."""

_CONTAINERS: Final[dict[Container, tuple[str, ...]]] = {Container.MPEGTS: (".ts",), Container.FMP4: (".mp4", ".m4a")}
"""The extensions of formats that the first bytes tell apart."""

_SNIFFED: Final = frozenset(chain.from_iterable(_CONTAINERS.values()))


class DamagedIndex(TrickleError):
    """A line of the index cannot be read, and no crash has torn it. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A recorded segment.

    Attributes:
        seq: its number. life: which numbering it belongs to, counted 1, 2, … within this recording: a channel that is
            created again, or whose server has restarted, begins anew, and so do the server's epochs.
        file: its file, relative to the folder; ``None``: the segment was empty.
        size: of its file, in bytes. sha256: of its bytes, in hexadecimal.
        content_type: the channel's media type.
        epoch: of the channel, as the server counts; ``None`` where it does not say.
        began_at, ended_at: when its first and its last byte came, in seconds of Unix time.
        gap: segments missed immediately before it. restarted: the numbering began anew with it.
        truncated: why it is not whole, as the server said. broken: why the rest of it could not be had.
        numbering: the name that the server gives to the numbering; ``None`` where it does not say.
    """

    seq: int
    life: int
    file: str | None
    size: int
    sha256: str
    content_type: str
    epoch: int | None
    began_at: float
    ended_at: float
    gap: int = 0
    restarted: bool = False
    truncated: str | None = None
    broken: str | None = None
    numbering: str | None = None

    def line(self) -> bytes:
        return line("segment", **asdict(self))


def line(kind: str, **fields: Any) -> bytes:
    """One line of the index, its end included."""
    return json.dumps({"v": VERSION, "kind": kind, **fields}, ensure_ascii=False).encode() + b"\n"


def extension(content_type: str) -> str:
    """Return the file extension for segments of this media type; ``.bin`` if none is known."""
    return _EXTENSIONS.get(content_type.partition(";")[0].strip().lower(), ".bin")


def _extension(content_type: str, head: bytes) -> str:
    """The same, unless it is the other one of MPEG-TS and MP4: a channel has one type, whatever comes in it."""
    told, found = extension(content_type), _CONTAINERS.get(sniff(head), ())
    return told if not found or told in found or told not in _SNIFFED else found[0]


@dataclass(slots=True)
class Contents:
    """The contents of an index, read line by line.

    Attributes:
        channel: whose recording it is; ``None`` while it is empty.
        last: the newest segment; where to go on is behind it.
        kept: the segments whose files are there, oldest first. kept_bytes: their sizes, added up.
        removed: segments that were removed. dead: lines that are about them.
        size: bytes of the index up to its last whole line; the rest is torn.
    """

    channel: str | None = None
    last: Entry | None = None
    kept: deque[Entry] = field(default_factory=deque)
    kept_bytes: int = 0
    removed: int = 0
    dead: int = 0
    size: int = 0

    @classmethod
    def scan(cls, lines: Iterable[bytes]) -> Contents:
        """Read an index.

        Args:
            lines: with their ends, as a binary file yields them.

        Raises:
            DamagedIndex: a line that is not the last one makes no sense, or the first one is of something else.
        """
        contents = cls()
        wrong: int | None = None
        for number, text in enumerate(lines, 1):
            if wrong is not None:
                raise DamagedIndex(f"line {wrong} of the index is damaged")
            if contents._take(text):
                contents.size += len(text)
            else:
                wrong = number
            if contents.channel is None and text[: len(_HEADER)] != _HEADER[: len(text)]:
                raise DamagedIndex("that is no index of a recording")
        return contents

    def add(self, entry: Entry) -> None:
        """A segment was recorded."""
        self.last = entry
        self.kept.append(entry)
        self.kept_bytes += entry.size

    def drop_oldest(self) -> None:
        """The oldest segment was removed."""
        self.kept_bytes -= self.kept.popleft().size
        self.removed += 1
        self.dead += 2

    def _take(self, text: bytes) -> bool:
        """Take a line in; whether it is one."""
        if not text.endswith(b"\n"):
            return False
        try:
            said = json.loads(text)
            match said["kind"]:
                case "channel":
                    self.channel, self.removed = str(said["channel"]), int(said.get("removed", 0))
                case "segment":
                    self.add(Entry(**{name: said[name] for name in Entry.__slots__ if name in said}))
                # The oldest goes first, always; a line that was written twice names one that is gone already.
                case "removed" if self.kept and (self.kept[0].life, self.kept[0].seq) == (said["life"], said["seq"]):
                    self.drop_oldest()
        except (ValueError, KeyError, TypeError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Keep:
    """How much a recording may hold. The oldest segments are removed first, the newest one never.

    Attributes:
        segments: the highest number of segments, 1 or more; ``None``: no limit.
        bytes: the highest number of bytes, 1 or more; ``None``: no limit.

    Raises:
        InvalidInput: a limit is below 1 or no whole number.
    """

    segments: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name, limit in (("keep_segments", self.segments), ("keep_bytes", self.bytes)):
            check_number(name, limit, at_least=1, whole=True, or_none=True)

    def exceeded(self, contents: Contents) -> bool:
        """Whether the oldest segment must be removed."""
        over = self.segments is not None and len(contents.kept) > self.segments
        over |= self.bytes is not None and contents.kept_bytes > self.bytes
        return over and len(contents.kept) > 1


class DirectoryInUse(TrickleError):
    """Another process is recording into that folder."""


class Disk:
    """The file system. Every method blocks, and raises ``OSError`` as the system does."""

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> BinaryIO:
        return path.open("wb", buffering=0)

    def extend(self, path: Path) -> BinaryIO:
        return path.open("ab", buffering=0)

    def write(self, file: BinaryIO, data: bytes | bytearray) -> None:
        """Write all of it; a full disk may take a part."""
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += file.write(view[done:])

    def sync(self, file: BinaryIO) -> None:
        """Make the written bytes survive a crash of the machine."""
        os.fsync(file.fileno())

    def truncate(self, file: BinaryIO, size: int) -> None:
        file.truncate(size)

    def rename(self, path: Path, to: Path) -> None:
        """Give a file its name, in one step; a file that had that name is replaced."""
        path.replace(to)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable: without this a power failure may undo a rename or a new file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def lock(self, path: Path) -> BinaryIO:
        """A file that nobody else can lock until it is closed, be it by the end of this process.

        Raises:
            DirectoryInUse: somebody else has locked it.
        """
        import fcntl  # POSIX only, like the other promises about crashes

        file = path.open("wb", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise DirectoryInUse(f"another process is recording into {path.parent}") from None
        except BaseException:
            file.close()
            raise
        return file


INDEX: Final = "index.jsonl"
LOCK: Final = ".lock"
PART: Final = ".part"
"""The segment under way. A folder has one writer, and that one writes one segment at a time."""

BUFFER_BYTES: Final = 256 * 1024
"""Chunks are gathered up to this size, since each write costs a change of threads."""

COMPACT_LINES: Final = 1000
"""From this many lines about removed segments on, the index is written anew without them."""


class Folder:
    """A recording on disk: open it, then for each segment :meth:`begin`, :meth:`write` and :meth:`finish`.

    Args:
        path: the folder; it is made if it is not there.
        channel: the channel's name; a folder holds one channel.
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
        self._head = b""  # its first bytes, which tell its format
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

    def open(self) -> None:
        """Take the folder: lock it, read its index, and repair the traces of a crash.

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
            with self._repeatable():
                self._read_index()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """A segment begins; one that was not finished is forgotten."""
        if self._part is not None:
            self.discard()
        self._hash, self._size, self._head, self._began_at = hashlib.sha256(), 0, b"", self._clock()

    def write(self, data: bytes | bytearray) -> None:
        """Write some of the segment.

        Raises:
            SinkFailed: it cannot be written: the disk is full, ...
        """
        with self._repeatable():
            if self._part is None:
                self._part = self._disk.create(self.path / PART)
            self._disk.write(self._part, data)
        self._hash.update(data)
        self._size += len(data)
        self._head += data[: SNIFF_BYTES - len(self._head)]

    def finish(self, segment: Segment) -> Entry:
        """The segment is over: name its file, and put it into the index; then make room.

        Raises:
            SinkFailed: it cannot be written. The index is as it was before.
        """
        entry = self._entry(segment)
        with self._repeatable():
            if self._part is not None and entry.file is not None:
                self._disk.sync(self._part)
                self._close_part()
                final = self.path / entry.file
                self._disk.make(final.parent)
                self._disk.rename(self.path / PART, final)
                self._disk.sync_folder(final.parent)
                self._disk.sync_folder(self.path)  # for the folder of a new life
            self._append(entry.line())
            self._contents.add(entry)
            self._make_room()
        return entry

    def discard(self) -> None:
        """Forget the segment under way."""
        self._close_part()
        with suppress(OSError):  # it is removed when the folder is opened again
            self._disk.remove(self.path / PART)

    def ended(self, gap: int) -> None:
        """The channel has ended; ``gap`` segments were missed before its end. Errors as in :meth:`write`."""
        with self._repeatable():
            self._append(line("ended", at=self._clock(), gap=gap))

    def close(self) -> None:
        """Give the folder back. A segment that was under way is gone."""
        self._close_part()
        for file in (self._index, self._lock):
            if file is not None:
                file.close()
        self._index = self._lock = None

    def _entry(self, segment: Segment) -> Entry:
        life = self._life(segment)
        name = f"life{life}/{segment.seq:08d}{_extension(segment.content_type, self._head)}"
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

    def _life(self, segment: Segment) -> int:
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
            self._disk.sync_folder(self.path)
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
        self._disk.sync_folder(self.path)
        if self._index is not None:
            self._index.close()
        self._index = self._disk.extend(path)
        contents.size, contents.dead = len(data), 0

    def _close_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.close()

    @contextmanager
    def _repeatable(self) -> Iterator[None]:
        """Turn an ``OSError`` into ``SinkFailed``, which says where to go on."""
        try:
            yield
        except OSError as error:
            failed = SinkFailed(f"cannot write to {self.path}: {error.strerror or error}")
            failed.resume = self.position
            raise failed from error


class FolderWriter(Output):
    """Writes the segments of a channel into a folder.

    A segment that is not ended when the block is left is not kept: it is read again by the next run.

    Args:
        path, channel, keep, disk: see :class:`Folder`.

    Attributes:
        entry: the last segment.
    """

    def __init__(self, path: Path, channel: str, *, keep: Keep | None = None, disk: Disk | None = None) -> None:
        self.folder: Final = Folder(path, channel, keep=keep, disk=disk)
        self.entry: Entry | None = None
        self._buffer = bytearray()
        self._segment: Segment | None = None
        self._threads = OneAtATime()

    @property
    def position(self) -> Position | None:
        """Where to go on: behind the newest segment in the folder."""
        return self.folder.position

    @property
    def file(self) -> str | None:
        return None if self.entry is None else self.entry.file

    async def __aenter__(self) -> Self:
        await self._threads.run(self.folder.open)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._threads.run(self._leave)

    async def begin(self, segment: Segment) -> None:
        self._buffer.clear()
        self._segment = segment
        await self._threads.run(self.folder.begin)

    async def write(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= BUFFER_BYTES:
            await self._threads.run(self._flush)

    async def end(self) -> None:
        await self._threads.run(self._finish)

    async def ended(self, gap: int) -> None:
        await self._threads.run(self.folder.ended, gap)

    def _finish(self) -> None:
        assert self._segment is not None
        if self._buffer:
            self._flush()
        self.entry = self.folder.finish(self._segment)

    def _flush(self) -> None:
        self.folder.write(self._buffer)
        self._buffer.clear()

    def _leave(self) -> None:
        self.folder.discard()
        self.folder.close()


@dataclass(frozen=True, slots=True)
class Recording:
    """The result of a call of :func:`record`.

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


class RecordOptions(ReaderOptions, total=False):
    """The arguments of :class:`tricklecast.subscriber.Subscriber` that concern a recording."""

    on_event: OnEvent | None


async def record(
    url: URLs,
    directory: str | os.PathLike[str],
    *,
    start: AnyStart = "next",
    keep_segments: int | None = None,
    keep_bytes: int | None = None,
    on_segment: Callable[[Entry], None] | None = None,
    **options: Unpack[RecordOptions],
) -> Recording:
    """Record a channel until its end: one file per segment, and an index (``index.jsonl``).

    ::

        await record("http://host:2939/trickle/camera", "camera/", on_segment=lambda entry: print(entry.file))

    Called again, it goes on where the last call was left, however that ended: behind the last segment that is whole
    in the folder. A file is complete, or it is not there. Cancel it to stop; use ``anyio.move_on_after`` for a time.
    Then nothing is returned: ``on_segment`` was called with each recorded segment, and :func:`read_index` has them.

    Args:
        url: the channel's URL, or several, as for :class:`tricklecast.subscriber.Subscriber`.
        directory: the folder; it is made if it is not there.
        start: where a new recording begins, as for :class:`tricklecast.subscriber.Subscriber`. Wherever that is, a
            recording wants everything from there on: ``on_lag`` is ``"earliest"`` unless it is given.
        keep_segments, keep_bytes: how much the folder may hold; the oldest segments are removed, and the index says
            so. ``None``: everything is kept.
        on_segment: called with each segment that was recorded.
        options: of :class:`tricklecast.subscriber.Subscriber`.

    Raises:
        DirectoryInUse: another process records into that folder.
        DamagedIndex, InvalidInput: it cannot be recorded into that folder.
        SinkFailed: the disk is full, or fails; ``resume`` is where to go on.
        TrickleError: the errors of :class:`tricklecast.subscriber.Subscriber`.
    """
    check_options("record()", options, {*RecordOptions.__optional_keys__, "on_broken"})
    channel = channel_urls(url)[0].channel
    keep = Keep(keep_segments, keep_bytes)
    check_whole(Start.parse(start).position)
    async with FolderWriter(Path(directory), channel, keep=keep) as writer:
        folder = writer.folder
        removed = folder.removed
        options.setdefault("on_lag", OnLag.EARLIEST)
        async with Subscriber(url, start=folder.position or start, **options) as subscriber:
            async for segment in subscriber:
                await writer.begin(segment)
                while data := await segment.read_some():
                    await writer.write(data)
                await writer.end()
                if on_segment is not None and writer.entry is not None:
                    on_segment(writer.entry)
            statistics = subscriber.statistics()
            await writer.ended(subscriber.missed_at_end)
        return Recording(
            statistics.segments,
            statistics.bytes,
            statistics.missed,
            statistics.truncated,
            statistics.broken,
            folder.removed - removed,
            folder.position,
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
