"""Segments in, one file out; a second one where the media changes so that one file could not hold both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from tricklecast.subscriber.remux.container import FORMATS, File, NothingToWrite
from tricklecast.subscriber.remux.source import NotMedia, Part, Reader, Slot, Track
from tricklecast.subscriber.remux.timeline import Timeline, Times
from tricklecast.subscriber.sinks import SinkFailed
from tricklecast.trickle.errors import TrickleError

if TYPE_CHECKING:
    from av import Packet
    from av.stream import Stream

WAIT_SEGMENTS: Final = 3
"""A file says at its beginning what streams it has. One that the first segments announce without enough of it to know
its parameters (a sound that has not begun) is waited for so long, and then left out."""

_RAW: Final = " (--raw, or another ending, takes any bytes)"

_Packets: TypeAlias = "list[tuple[Slot, Packet[Stream], Times]]"


class Joiner:
    """Joins segments of media.

    Pictures that refer to others which were lost are left out, so that nothing in the file is broken; what was lost
    stays open on the time line for up to half a minute.

    Args:
        path: the file; its ending says what kind it is to be (``subscriber.remux.container.FORMATS``). Where the
            media changes, the next file gets a number: ``out-2.mp4``.
        say: is told, for people, what does not get into the file.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._format = FORMATS[path.suffix.lower()]
        self._say = say
        self._reader = Reader()
        self._timeline = Timeline()
        self._gate = _Gate()
        self._file: File | None = None
        self._waiting: list[tuple[Part, bool]] = []
        self._whole_before = False
        self._unreadable: NotMedia | None = None
        self.files: list[Path] = []

    def add(self, data: BinaryIO, name: str, *, whole: bool = True, follows: bool = True) -> None:
        """Add a segment.

        Args:
            data: its bytes. name: what to call it.
            whole: it was not cut short.
            follows: it is the one after the last that was added: nothing was missed in between.

        Raises:
            SinkFailed: the file cannot be written.
            NotMedia: none of the first segments can be read, or has a stream that the file can hold.
        """
        follows = follows and self._whole_before
        try:
            part = self._reader.read(data, whole=whole)
        except NotMedia as error:
            self._unusable(error, name)
            return
        self._whole_before = whole
        self._waiting.append((part, follows))
        try:
            self._write_waiting()
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Finish the file.

        Raises:
            SinkFailed: it cannot be written.
            NotMedia: segments came, and none of them could be read.
        """
        try:
            self._write_waiting(last=True)
            self._end()
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self._drop()
        if not self.files and self._unreadable is not None:
            raise self._unreadable

    def _drop(self) -> None:
        """Free everything, after a failure, too."""
        for part, _ in self._waiting:
            part.container.close()
        self._waiting.clear()
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _unusable(self, error: NotMedia, name: str) -> None:
        self._whole_before = False
        if self.files or self._waiting:
            self._say(f"{name} is left out: {error}")
            return
        if self._unreadable is None:
            self._unreadable = NotMedia(
                f"{name} is no media that can be put into a {self._path.suffix} file: {error}{_RAW}"
            )
            return
        raise self._unreadable

    def _write_waiting(self, *, last: bool = False) -> None:
        """Write what is there, as soon as it is known what the file has to hold."""
        while self._waiting:
            part, follows = self._waiting[0]
            if self._file is not None and not _fits(self._file, part):
                self._end()
                self._say(f"the media changes: it goes on in {self._next_path()}")
            if self._file is None:
                self._open(last=last)
            if self._file is None:
                return
            self._waiting.pop(0)
            with closing(part.container):
                self._write(self._file, part, follows=follows)

    def _write(self, file: File, part: Part, *, follows: bool) -> None:
        if not follows:
            self._gate.close()
        packets = [packet for packet in self._gate.passed(part.packets) if packet[0] in file.tracks]
        if packets:
            placed = self._timeline.place([times for _, _, times in packets], wraps=part.wraps)
            for (slot, packet, _), times in zip(packets, placed, strict=True):
                file.write(slot, packet, times)

    def _open(self, *, last: bool) -> None:
        tracks: dict[Slot, Track] = {}
        for part, _ in self._waiting:
            for slot, track in part.tracks.items():
                known = tracks.get(slot)
                if known is None or known.shape is None:
                    tracks[slot] = track
        complete = {slot: track for slot, track in tracks.items() if track.shape is not None}
        if len(complete) < max(1, len(tracks)) and len(self._waiting) < WAIT_SEGMENTS and not last:
            return
        try:
            self._file = File(self._next_path(), self._format, complete)
        except NothingToWrite as error:
            raise NotMedia(str(error)) from None
        self.files.append(self._file.path)
        for slot in tracks.keys() - complete.keys():
            self._say(f"left out: a stream ({slot[0]}) that has not begun")
        for (kind, _), codec in self._file.left_out.items():
            self._say(f"left out: a stream ({kind}, {codec}) that a {self._path.suffix} file does not hold")

    def _next_path(self) -> Path:
        number = len(self.files) + 1
        return self._path if number == 1 else self._path.with_stem(f"{self._path.stem}-{number}")

    def _end(self) -> None:
        file, self._file = self._file, None
        self._timeline = Timeline()
        self._gate.close()
        if file is not None and not file.close():
            self.files.remove(file.path)

    def _failed(self, error: OSError) -> SinkFailed:
        name = self.files[-1] if self.files else self._path
        return SinkFailed(f"cannot write to {name}: {error.strerror or error}")


def is_remuxed(path: Path) -> bool:
    """Whether a file of that name is put together by a :class:`Joiner`."""
    return path.suffix.lower() in FORMATS


def require_av() -> None:
    """Fail early where PyAV is not installed.

    Raises:
        TrickleError: it is not.
    """
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise TrickleError('writing media files needs PyAV: pip install "tricklecast[media]"') from error


def _fits(file: File, part: Part) -> bool:
    used = {slot for slot, _, _ in part.packets}
    return all(file.fits(slot, part.tracks[slot]) for slot in used)


class _Gate:
    """Lets pass what can be decoded: after a loss, each video from its next keyframe on."""

    def __init__(self) -> None:
        self._open: set[Slot] = set()

    def close(self) -> None:
        """Something was lost."""
        self._open.clear()

    def passed(self, packets: _Packets) -> Iterator[tuple[Slot, Packet[Stream], Times]]:
        """Those of a segment's packets that pass."""
        since: dict[Slot, int] = {}
        for slot, packet, times in packets:
            if slot[0] == "video":
                if slot not in self._open:
                    if not packet.is_keyframe:
                        continue
                    self._open.add(slot)
                    since[slot] = times.pts
                # A picture that comes after a keyframe and is shown before it refers to what came before, too.
                if times.pts < since.get(slot, times.pts):
                    continue
            yield slot, packet, times
