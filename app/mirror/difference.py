"""The segments that only a former source has, when another server has taken its place.

After a promotion two servers have channels of the same names, each in epochs of its own. A segment that the old one has
and the new one has not, or has with other bytes, would be lost when the old one becomes a mirror of the new one. So it
is listed, and written to files. It is never put among the new one's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tricklecast.app.mirror.sides import Source, SourceChannel, SourceSegment
from tricklecast.trickle.errors import TrickleError


class OnlyThere(NamedTuple):
    """A segment that one server has."""

    channel: str
    epoch: int
    segment: SourceSegment


async def only_at(old: Source, new: Source) -> list[OnlyThere]:
    """The segments that can be read at the old server, and not with the same bytes at the new one.

    Raises:
        SourceError: one of the two does not answer.
    """
    found = []
    for channel in (await old.look()).channels:
        there = await new.channel(channel.name)
        known = {} if there is None else {one.seq: one async for one in _segments(new, there)}
        async for one in _segments(old, channel):
            other = known.get(one.seq)
            if other is None or (other.size, other.crc) != (one.size, one.crc):
                found.append(OnlyThere(channel.name, channel.epoch, one))
    return found


async def _segments(source: Source, channel: SourceChannel) -> AsyncIterator[SourceSegment]:
    after = -1
    while page := await source.segments(channel.name, channel.epoch, after):
        for one in page:
            yield one
        after = page[-1].seq


async def export(source: Source, segments: Sequence[OnlyThere], folder: Path) -> None:
    """Write segments to files: a folder for each channel, a file for each segment, ``EPOCH-SEQ``.

    Raises:
        SourceError: the server does not answer. TrickleError: a file cannot be written.
    """
    for name, epoch, segment in segments:
        path = folder / quote(name, safe="") / f"{epoch}-{segment.seq:08}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                async with aclosing(source.read(name, epoch, segment)) as chunks:
                    async for chunk in chunks:
                        file.write(chunk)
        except OSError as error:
            raise TrickleError(f"cannot write {path}: {error.strerror or error}") from None
