"""The recording of a channel that is over, for ``tricklecast clip``: its server has it in the data directory.

Such a channel has no segments any more under its own numbers: one that begins anew has these. Its playlist of HLS
(``media.m3u8``) names all of it: for each segment a file, the time of its begin, and its length.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self
from urllib.parse import urljoin, urlsplit

import anyio

from tricklecast.subscriber.command.moments import NOW, Listed, Moment, Timetable, time_of
from tricklecast.trickle import wire
from tricklecast.trickle.client.arguments import channel_urls
from tricklecast.trickle.client.listing import error_of
from tricklecast.trickle.errors import ChannelNotFound, Position, SegmentMissing
from tricklecast.trickle.wire import Status

PLAYLIST: Final = "media.m3u8"

WITHIN_S: Final = 60.0
"""The server answers within this time, in seconds, also with a playlist of many segments."""

PAUSE_S: Final = 1.0

_SEQ: Final = re.compile(r"-([0-9]+)\.\w+$")


@dataclass(frozen=True, slots=True)
class Piece(Listed):
    """A segment of a recording.

    Attributes:
        truncated: why it is not whole, in the server's word; empty if it is.
        url: of its bytes. init: of the init segment in front of them; empty if they need none, as in MPEG-TS.
    """

    closed_at: float
    url: str
    init: str
    truncated: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    """A segment of a recording, as :class:`~.joiner.JoinedFile` takes it."""

    seq: int
    gap: int
    truncated: str
    restarted: bool = False

    @property
    def complete(self) -> bool:
        """Whether its publisher ended it."""
        return not self.truncated

    @property
    def position(self) -> Position:
        """Where it is in the channel."""
        return Position(self.seq)


@dataclass(frozen=True, slots=True)
class Recording:
    """The segments of a channel that is over.

    Attributes:
        pieces: in order; at least one.
        left_out: segments without media that can be shown.
        now_at: when the server named them, in seconds of Unix time, by its clock.
    """

    times: Timetable
    pieces: tuple[Piece, ...]
    now_at: float
    left_out: frozenset[int] = frozenset()

    @classmethod
    async def of(cls, times: Timetable) -> Self:
        """Ask the server for it.

        Raises:
            ChannelNotFound: there is no recording, or the server makes none.
            TrickleError: it does not answer.
        """
        node = channel_urls(times.url)[0]
        place, query = f"{urlsplit(str(node)).path}/{PLAYLIST}", f"?{node.query}" if node.query else ""
        deadline = anyio.current_time() + WITHIN_S
        while True:
            response = await times.fetch(node.root, place + query, WITHIN_S)
            if response.status_code != Status.UNAVAILABLE or anyio.current_time() >= deadline:
                break
            await anyio.sleep(PAUSE_S)  # a long recording is read first
        if response.status_code not in (Status.OK, Status.NOT_FOUND):
            raise error_of(response)
        lines = response.text.splitlines() if response.status_code == Status.OK else []
        if "#EXT-X-PLAYLIST-TYPE:VOD" not in lines or not (pieces := tuple(_pieces(lines, place, query))):
            raise ChannelNotFound(404)
        told = (line.removeprefix(f"{wire.LEFT_OUT}:") for line in lines if line.startswith(wire.LEFT_OUT))
        left_out = frozenset(int(seq) for one in told for seq in one.split(",") if seq.isdecimal())
        return cls(times, pieces, time_of(response), left_out)

    def between(self, since: Moment, until: Moment) -> tuple[Piece, ...]:
        """The segments that were on their way at these moments, and all between."""
        begin, end = since.on(self.now_at), math.inf if until == NOW else until.on(self.now_at)
        return tuple(one for one in self.pieces if one.closed_at >= begin and one.opened_at <= end)

    async def read(self, first: int) -> AsyncIterator[tuple[Whole, bytes]]:
        """Read all of them, each as a whole. Those that were removed meanwhile are in the gap of the next one.

        Args:
            first: the seq that should be the first.

        Raises:
            TrickleError: the server does not answer, or refuses.
        """
        root = channel_urls(self.times.url)[0].root
        init, of = b"", ""
        before = first - 1
        for one in self.pieces:
            try:
                if one.init != of:
                    init, of = await self._bytes(root, one.init, one.seq) if one.init else b"", one.init
                data = init + await self._bytes(root, one.url, one.seq)
            except SegmentMissing as error:
                if error.status != Status.NOT_FOUND:
                    raise
                continue
            yield Whole(one.seq, one.seq - before - 1, one.truncated), data
            before = one.seq

    async def _bytes(self, root: str, place: str, seq: int) -> bytes:
        response = await self.times.fetch(root, place, WITHIN_S)
        if response.status_code != 200:
            raise SegmentMissing(response.status_code, seq=seq, detail="it is not in the recording any more")
        return response.content


def _pieces(lines: list[str], place: str, query: str) -> list[Piece]:
    """The segments of a playlist; their URLs have the query of its own."""
    found: list[Piece] = []
    init, opened_at, seconds, truncated = "", 0.0, 0.0, ""
    for line in lines:
        name, _, value = line.partition(":")
        if name == "#EXT-X-MAP":
            init = urljoin(place, value.partition('URI="')[2].partition('"')[0])
        elif name == "#EXT-X-PROGRAM-DATE-TIME":
            opened_at = datetime.fromisoformat(value).timestamp()
        elif name == wire.CUT:
            truncated = value
        elif name == "#EXTINF":
            seconds = float(value.partition(",")[0])
        elif line and not line.startswith("#"):
            path, _, _ = line.partition("?")
            if number := _SEQ.search(path):
                needs = "" if path.endswith(".ts") else init
                place_of = urljoin(place, path) + query
                found.append(Piece(int(number[1]), opened_at, opened_at + seconds, place_of, needs, truncated))
            truncated = ""
    return found
