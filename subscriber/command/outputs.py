"""Where a run's segments go: a pipe, a file, a folder, a media file, or nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, Self

from tricklecast.subscriber.archive import FolderWriter, Keep
from tricklecast.subscriber.remux.joiner import is_remuxed
from tricklecast.subscriber.remux.output import RemuxOutput
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import Sink, open_sink
from tricklecast.trickle import wire
from tricklecast.trickle.errors import Position
from tricklecast.trickle.paths import ChannelURL


class Output(Protocol):
    """Takes segments, one after another. An async context manager.

    Attributes:
        position: where it wants to go on, whatever the user says; ``None``: nowhere in particular.
        file: the file that the last segment went to, if it has one of its own.
    """

    @property
    def position(self) -> Position | None: ...

    @property
    def file(self) -> str | None: ...

    async def begin(self, segment: Segment) -> None:
        """A segment begins; one that was not ended is given up."""
        ...

    async def write(self, data: bytes) -> None:
        """Take a chunk of it.

        Raises:
            SinkFailed: it cannot be written.
            SinkClosed: whoever read it has gone.
        """
        ...

    async def end(self) -> None:
        """The segment is over.

        Raises:
            SinkFailed: it cannot be written.
        """
        ...

    async def ended(self, gap: int) -> None:
        """The channel is over; ``gap`` segments were missed before its end."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class NoOutput:
    """Lets everything pass: for those who want to know, not to have."""

    position: Position | None = None
    file: str | None = None

    async def begin(self, segment: Segment) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def end(self) -> None: ...

    async def ended(self, gap: int) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None: ...


class BytesOutput(NoOutput):
    """Bytes as they come, joined.

    Args:
        sink: where they go. name: what it is called; an ending that belies the bytes is noted, once.
        note: is told so.
    """

    def __init__(self, sink: Sink, name: str, note: Callable[[str], None]) -> None:
        self._sink: Final = sink
        self._name = name
        self._note: Callable[[str], None] | None = note

    async def begin(self, segment: Segment) -> None:
        """A segment begins."""
        note, self._note = self._note, None
        if note is not None and self._name.lower().endswith(".ts") and segment.content_type == wire.MP4:
            note(f"the channel is fragmented MP4, and so is what goes to {self._name}: better call it .mp4")

    async def write(self, data: bytes) -> None:
        """Pass a chunk on at once."""
        await self._sink.write(data)

    async def end(self) -> None:
        """Hand what is buffered to the operating system."""
        await self._sink.flush()

    async def __aenter__(self) -> Self:
        await self._sink.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._sink.__aexit__(*exc_info)


class FolderOutput:
    """A file per segment and an index.

    Args:
        writer: the folder.
    """

    def __init__(self, writer: FolderWriter) -> None:
        self._writer = writer
        self._segment: Segment | None = None
        self.file: str | None = None

    @property
    def position(self) -> Position | None:
        """Behind the newest segment in the folder."""
        return self._writer.folder.position

    async def begin(self, segment: Segment) -> None:
        """A segment begins."""
        self._segment = segment
        await self._writer.begin()

    async def write(self, data: bytes) -> None:
        """Write a chunk of it."""
        await self._writer.write(data)

    async def end(self) -> None:
        """The segment is whole: it gets its name, and a line in the index."""
        assert self._segment is not None
        self.file = (await self._writer.finish(self._segment)).file

    async def ended(self, gap: int) -> None:
        """The channel is over: the index says so."""
        await self._writer.ended(gap)

    async def __aenter__(self) -> Self:
        await self._writer.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._writer.__aexit__(*exc_info)


def open_output(
    target: str | None, url: str, note: Callable[[str], None], *, raw: bool = False, keep: Keep | None = None
) -> Output:
    """The output that ``target`` names.

    Args:
        target: a path, ``-`` for standard output, or ``None`` for none. A path that ends with a slash, or is one of a
            folder, gets a file per segment; one whose ending names a media container, a file of that kind.
        url: the channel.
        note: is told, for people, what is odd about the output.
        raw: write bytes as they come, whatever the path's ending.
        keep: how much a folder may hold.

    Raises:
        InvalidInput: nothing can be written there.
        TrickleError: a media file is wished for, and PyAV is not installed.
    """
    if target is None:
        return NoOutput()
    path = Path(target)
    if is_folder(target):
        return FolderOutput(FolderWriter(path, ChannelURL.parse(url).channel, keep=keep))
    if target != "-" and not raw and is_remuxed(path):
        return RemuxOutput(path, note)
    return BytesOutput(open_sink(target), target, note)


def is_folder(target: str) -> bool:
    """Whether that names a folder, which gets a file per segment."""
    return target not in ("", "-") and (target.endswith(os.sep) or Path(target).is_dir())
