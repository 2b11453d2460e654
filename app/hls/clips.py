"""Clips: what a channel carried between two moments, as the bytes of one file.

**The problem.** People want a minute of a channel as a file, from the server's window and its data directory. A program
that knows media could write one, and would take as much time as the media have bytes, in the loop that serves all
others.

**The idea.** A clip is the channel's own bytes in their order. Segments of MPEG-TS, one after the other, are a file. So
are those of fragmented MP4 behind one init segment: the init segments of the later ones are left out. So nothing is
decoded or written anew, pictures and times are those of the channel, and the size is known before the first byte is
sent. Only where each segment's media begin must be looked up: a thread reads the heads, :data:`BATCH` segments at a
time. A segment of MP4 that broke off is read wholly: it ends behind its last whole fragment.

A clip has whole segments, from the one that was being written at the first moment to the one that was being written at
the last. It begins with a key picture then. Where the init segment changes there is no such file: two clips are
needed.
"""

from __future__ import annotations

import logging
from asyncio import Task, get_running_loop
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Final, NamedTuple, cast

from tricklecast.app.clock import to_us
from tricklecast.app.core.segment import COMPLETE, EMPTY, Segment
from tricklecast.app.core.state import Channel, SegmentSummary
from tricklecast.app.hls.packager import Waiter
from tricklecast.app.hls.playlist import date_of
from tricklecast.app.hls.recording import Stored
from tricklecast.app.hls.units import scanner
from tricklecast.trickle.media.containers import Container, init_segment, sniff

logger = logging.getLogger("tricklecast.hls")

MAX_SEGMENTS: Final = 4096
"""Segments of a clip: two hours of those of 2 s."""

MAX_CLIPS: Final = 16
"""Clips that are made or sent at a time."""

HEAD_BYTES: Final = 64 << 10
"""Bytes of each segment that are read: an init segment is shorter."""

TAG_BYTES: Final = 12
"""Bytes of a clip's tag."""

BATCH: Final = 32
"""Segments that are looked at in one call of the thread, which other readers wait for."""


class Piece(NamedTuple):
    """The bytes of a segment that belong to a clip: from, to."""

    seq: int
    begin: int
    end: int


class Clip(NamedTuple):
    """A clip, before it is sent.

    Attributes:
        container: of the media. init: the init segment, which comes first; nothing in MPEG-TS. pieces: what follows.
        gaps: segments in between that are missing, or are cut short.
        opened_us: when the first one began, microseconds since 1970.
        tag: the entity tag: the same for the same bytes, at every holder of the channel and after a restart.
    """

    container: Container
    init: bytes
    pieces: tuple[Piece, ...]
    gaps: int
    opened_us: int
    tag: bytes

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.init) + sum(one.end - one.begin for one in self.pieces)

    def part(self, begin: int, end: int) -> Clip:
        """The bytes from ``begin`` on and before ``end``, of the init segment and of the pieces."""
        at, pieces = len(self.init), []
        for one in self.pieces:
            first, last = max(begin - at, 0), min(end - at, one.end - one.begin)
            if first < last:
                pieces.append(Piece(one.seq, one.begin + first, one.begin + last))
            at += one.end - one.begin
        return self._replace(init=self.init[begin:end], pieces=tuple(pieces))


class CannotClip(Exception):
    """There is no such clip. The text says what to ask for instead.

    Attributes:
        is_other: the media are of another kind than the file that was asked for, or change in the middle.
    """

    def __init__(self, why: str, *, is_other: bool = False) -> None:
        super().__init__(why)
        self.is_other = is_other


class _Head(NamedTuple):
    """The container of a segment, and where its media begin and end.

    Attributes:
        init: its init segment, if it has one. end: up to where a decoder can use it.
    """

    container: Container
    init: bytes
    end: int


def between(channel: Channel, since_us: int, until_us: int) -> Iterator[SegmentSummary]:
    """The segments that have closed, from the one that was being written at a moment to that of another.

    Args:
        since_us, until_us: the moments, microseconds since 1970.
    """
    for one in channel.listed(0, since_us, to_us):
        if one.closed_us is None:
            return
        yield one
        if one.closed_us >= until_us:
            return


class Making:
    """A clip while it is made.

    Args:
        channel: that has it, or had it. summaries: its segments, ascending, at least one.
        wanted: the container that was asked for.

    Attributes:
        clip: when it is made. error: why it cannot be.
        waiting: requests that are called then.
    """

    def __init__(self, channel: Channel, summaries: Sequence[SegmentSummary], wanted: Container) -> None:
        self.channel, self.wanted = channel, wanted
        self.clip: Clip | None = None
        self.error: CannotClip | None = None
        self.waiting: dict[Waiter, None] = {}
        self._summaries = summaries
        self._task: Task[None] = get_running_loop().create_task(self._make(), name="clip")

    @property
    def is_over(self) -> bool:
        """Whether it is made, or cannot be."""
        return self.clip is not None or self.error is not None

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._task.cancel()

    async def _make(self) -> None:
        try:
            self.clip = await self._plan()
        except CannotClip as error:
            self.error = error
        except Exception:
            self.error = CannotClip("The segments cannot be read now")
            logger.exception("a clip of %r cannot be made", self.channel.name)
        waiting = [*self.waiting]
        self.waiting.clear()
        for one in waiting:
            one.go_on()

    async def _plan(self) -> Clip:
        stored = cast("Stored | None", self.channel.retained)
        thread = None if stored is None else stored.thread
        pieces: list[Piece] = []
        opened_us = 0
        whole, init = sum(one.state is EMPTY for one in self._summaries), b""
        digest = blake2b(digest_size=TAG_BYTES)
        full = [one for one in self._summaries if one.size]
        for first in range(0, len(full), BATCH):
            batch = [
                (one, source)
                for one in full[first : first + BATCH]
                if (source := self._source(one, stored)) is not None
            ]
            for one, head in await get_running_loop().run_in_executor(thread, _look_at_all, batch):
                whole += one.state is COMPLETE
                if not pieces:
                    self._check(one, head)
                    init, opened_us = head.init, one.opened_us
                    digest.update(init)
                elif head.container is not self.wanted or (head.init and head.init != init):
                    at = date_of(one.opened_us)
                    why = f"The media change at segment {one.seq}: ask for one clip until {at}, and one since then"
                    raise CannotClip(why, is_other=True)
                if head.end > (begin := len(head.init)):
                    pieces.append(Piece(one.seq, begin, head.end))
                    digest.update(b"%d %d %d %d;" % (one.opened_us, one.seq, begin, head.end))
        if not pieces:
            raise CannotClip("The server no longer has media of that time: GET .../segments lists what it has")
        span = self._summaries[-1].seq - self._summaries[0].seq + 1
        tag = f'"{digest.hexdigest()}"'.encode()
        return Clip(self.wanted, init, tuple(pieces), span - whole, opened_us, tag)

    def _check(self, one: SegmentSummary, head: _Head) -> None:
        """Whether a clip can begin with a segment."""
        own = {Container.MPEGTS: "ts", Container.FMP4: "mp4"}.get(head.container)
        if own is None:
            why = "A clip needs MPEG-TS or fragmented MP4, and this channel has neither: record it with `subscribe -o`"
            raise CannotClip(why, is_other=True)
        if head.container is not self.wanted:
            kind = "MPEG-TS" if own == "ts" else "fragmented MP4"
            why = f"This channel is {kind}: ask for clip.{own}; `tricklecast clip` makes other files of it"
            raise CannotClip(why, is_other=True)
        if own == "mp4" and not head.init:
            why = f"Segment {one.seq} has no init segment of its own: begin the clip with one that has"
            raise CannotClip(why, is_other=True)

    def _source(self, one: SegmentSummary, stored: Stored | None) -> Iterable[bytes] | None:
        """The bytes of a segment for the thread, as many as it needs; ``None``: they are gone, or there are none."""
        segment = self.channel.segments.get(one.seq)
        if segment is None and stored is not None:
            if (opener := stored.opener(one.seq)) is not None:
                return _opened(opener)
            segment = stored.find(one.seq)  # it has left the window, and is being written
        return None if segment is None else _beginning(segment, wholly=one.state is not COMPLETE)


def _beginning(segment: Segment, *, wholly: bool) -> list[bytes]:
    """The first bytes of a segment in memory, or all of them."""
    last = len(segment.frames)
    if not wholly:
        last = next((at for at in range(1, last) if segment.offsets[at] >= HEAD_BYTES), last)
    return [bytes(one) for one in segment.payload(0, last)]


# In the thread.


def _opened(opener: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """The bytes of a stored segment, which is opened when the first ones are asked for."""
    yield from opener()


def _look_at_all(
    batch: Sequence[tuple[SegmentSummary, Iterable[bytes]]],
) -> list[tuple[SegmentSummary, _Head]]:
    """Look at some segments. Those that cannot be read any more are left out: retention removes them."""
    found = []
    for one, source in batch:
        try:
            found.append((one, _look(source, one)))
        except OSError as error:
            logger.warning("a stored segment cannot be read: %s", error)
    return found


def _look(source: Iterable[bytes], one: SegmentSummary) -> _Head:
    head, rest = bytearray(), iter(source)
    for data in rest:
        head += data
        if len(head) >= HEAD_BYTES:
            break
    container = sniff(head)
    if container is not Container.FMP4:
        return _Head(container, b"", one.size)
    init, end = init_segment(head), one.size
    if one.state is not COMPLETE and (scan := scanner(container, init)) is not None:
        for data in chain((bytes(head),), rest):
            scan.feed(data)
        end = scan.finish(one.size)
    return _Head(container, init, end)
