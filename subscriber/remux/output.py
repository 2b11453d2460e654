"""The asynchronous side of a :class:`Joiner`: it gathers a segment, and hands it to a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, Final, Self, cast

import anyio
from anyio import to_thread

from tricklecast.subscriber.remux.joiner import Joiner, require_av
from tricklecast.subscriber.segment import Segment
from tricklecast.subscriber.sinks import check_path
from tricklecast.trickle.errors import InvalidInput, Position, TrickleError

SPOOL_BYTES: Final = 16 * 1024 * 1024
"""A segment larger than this is gathered on disk."""


class RemuxOutput:
    """Puts the segments of a channel into one file that players can seek in. An async context manager.

    Args:
        path: the file; its ending says what kind it is to be.
        note: is told, for people, what does not get into it.

    Raises:
        InvalidInput: that path cannot be written.
        TrickleError: PyAV is not installed.
    """

    position: Position | None = None
    file: str | None = None

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        require_av()
        check_path(path)
        if path.exists() and not path.is_file():
            raise InvalidInput(
                f"cannot write a media file to {path}: it is no file; use --raw for the bytes as they come"
            )
        self._joiner = Joiner(path, note)
        self._note = note
        self._spool: SpooledTemporaryFile[bytes] | None = None
        self._segment: Segment | None = None

    async def begin(self, segment: Segment) -> None:
        """A segment begins; one that was not ended counts as cut short."""
        await to_thread.run_sync(self._add, False)
        self._spool, self._segment = SpooledTemporaryFile(SPOOL_BYTES), segment  # noqa: SIM115 - closed in _add

    async def write(self, data: bytes) -> None:
        """Gather a chunk of it: what a segment holds can be told only when all of it is there."""
        assert self._spool is not None
        self._spool.write(data)

    async def end(self) -> None:
        """The segment is over: add it to the file.

        Raises:
            SinkFailed: the file cannot be written.
            NotMedia: none of the first segments can be read.
        """
        segment = self._segment
        assert segment is not None
        await to_thread.run_sync(self._add, segment.truncated is None and segment.broken is None)

    async def ended(self, gap: int) -> None:
        """The channel is over."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Finish the file, whatever ended the run; the segment under way is in it as far as it came."""
        try:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._finish)
        except TrickleError as failure:
            if not isinstance(exc_info[1], TrickleError):
                raise
            if str(failure) != str(exc_info[1]):  # a full disk is full again
                self._note(str(failure))  # what came first is what ended the run

    def _add(self, whole: bool) -> None:
        spool, segment = self._spool, self._segment
        self._spool = self._segment = None
        if spool is None or segment is None:
            return
        with spool:
            if spool.tell():
                follows = not segment.gap and not segment.restarted
                self._joiner.add(cast(BinaryIO, spool), f"segment {segment.seq}", whole=whole, follows=follows)

    def _finish(self) -> None:
        try:
            self._add(whole=False)
        finally:
            self._joiner.close()
