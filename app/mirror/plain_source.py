"""Any other trickle server as the source of a mirror, such as Livepeer's: it is asked by plain GETs.

Such a server has no list, no feed and no epochs. So this is what a mirror of it has:

- **Channels** are those that it is told by name, and those that the changefeed (``_changes``) names, if there is one.
- **Epochs** are counted here. A channel that ended and exists again is one more, as is one whose head goes back, or
  whose last segment is another one when a feed comes back. The first one that is seen is one more than the last one
  that the mirror knows, since nobody can tell whether it is the same channel.
- **The feed** is made of its segments (:mod:`~tricklecast.app.mirror.plain_feed`). Nothing behind the server's own
  window can be had, and there are no checksums.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Final

from pydantic import BaseModel, Field, ValidationError

from tricklecast.app.mirror.plain_feed import BACK, Counted, PlainFeed
from tricklecast.app.mirror.requests import ANSWER_S, Requests, Silent, name_of, number
from tricklecast.app.mirror.sides import (
    FeedStream,
    GoneThere,
    IndexTooOld,
    Listing,
    News,
    SourceChannel,
    SourceError,
    SourceLies,
    SourceSegment,
)
from tricklecast.trickle import wire
from tricklecast.trickle.paths import is_reserved
from tricklecast.trickle.wire import redacted

WAIT_S: Final = 20.0
"""How long a request for news of the changefeed waits."""

POLL_S: Final = 5.0
"""Without a changefeed, channels are looked at this often."""

MAX_NAMES: Final = 10_000
"""Channels that are remembered."""


class _Change(BaseModel):
    added: Annotated[list[str], Field(max_length=MAX_NAMES)] = []
    removed: Annotated[list[str], Field(max_length=MAX_NAMES)] = []


class PlainSource:
    """See :class:`~tricklecast.app.mirror.sides.Source`.

    Args:
        requests: to the server. names: of channels that are mirrored. last_epoch: the last one that the mirror knows.

    Attributes:
        instance: of this object: what another one has counted is nothing to it.
        plain: what a user should know of it.
    """

    def __init__(self, requests: Requests, names: Iterable[str], last_epoch: Callable[[str], int]) -> None:
        self.requests, self.instance = requests, f"plain-{secrets.token_hex(8)}"
        api = redacted(requests.root)
        self.plain = f"by plain GETs, since {api} has no API of tricklecast: live channels only, and no checksums"
        self._names, self._last_epoch = list(names), last_epoch
        self._known: dict[str, Counted] = {}
        self._tells = False  # there is a changefeed

    async def close(self) -> None:
        """Close idle connections."""
        await self.requests.close()

    # What is there.

    async def look(self) -> Listing:
        """List the channels that are known and live."""
        index = await self._head(wire.CHANGEFEED)
        self._tells = index is not None
        if index is None and not self._names:
            problem = "neither lists its channels nor has a changefeed: name the channels that are to be mirrored"
            raise SourceError(f"{self.requests.shown} {problem}")
        names = dict.fromkeys([*self._names, *self._known])
        for seq in range(max(0, (index or 0) - BACK), index or 0):
            names.update(dict.fromkeys(await self._told(seq) or ()))
        found = [await self.channel(name) for name in names]
        return Listing(self.instance, index or 0, [one for one in found if one is not None])

    async def news(self, after: int, instance: str) -> News:
        """Wait for names in the changefeed; without one, look at each channel after a while."""
        if instance != self.instance:
            raise IndexTooOld("another mirror has counted this index")
        if not self._tells:
            await asyncio.sleep(POLL_S)
            return News(after, [name for name in self._names if await self._is_news(name)])
        try:
            names = await self._told(after, WAIT_S)
        except Silent:
            return News(after, ())
        if names is None:
            raise IndexTooOld(f"{self.requests.shown} does not keep its news {after} any more")
        return News(after + 1, names)

    async def _told(self, seq: int, within_s: float = ANSWER_S) -> list[str] | None:
        """The names in one segment of the changefeed; ``None`` if it is not there."""
        response, body = await self.requests.get(self.requests.path(wire.CHANGEFEED, seq), within_s=within_s)
        if response.status_code in (404, wire.Status.SEQ_MISSING) or wire.CLOSED in response.headers:
            return None
        if response.status_code != 200:
            raise self.requests.refusal(response.status_code, body, "subscribe, for all channels (*)")
        try:
            change = _Change.model_validate_json(body or b"{}")
        except ValidationError as error:
            raise SourceLies(f"{self.requests.shown}: its news {seq} make no sense: {body[:80]!r}") from error
        return [name_of(name) for name in (*change.added, *change.removed) if not is_reserved(name)]

    async def _is_news(self, name: str) -> bool:
        known = self._known.get(name)
        epoch = None if known is None or known.over else known.epoch
        found = await self.channel(name)
        return epoch != (None if found is None else found.epoch)

    async def channel(self, name: str) -> SourceChannel | None:
        """A channel as it is now, with the epoch that is counted here."""
        before = known.head if (known := self._known.get(name)) is not None else 0
        head, known = await self._head(name), self._known.get(name)
        if head is None:
            self.over(name)
            return None
        if known is None or known.over or head + BACK < before:
            last = max(self._last_epoch(name), 0 if known is None else known.epoch)
            self._known.pop(name, None)
            known = self._known[name] = Counted(last + 1)
            while len(self._known) > MAX_NAMES:
                del self._known[next(iter(self._known))]
        known.now, known.head = head, max(known.head, head)
        return SourceChannel(name, known.epoch)

    def over(self, name: str) -> None:
        """A channel has ended: the next one of its name is another one."""
        if (known := self._known.get(name)) is not None:
            known.over = True

    async def _head(self, name: str) -> int | None:
        """The head of a channel; ``None`` if none of this name lives."""
        response, body = await self.requests.get(self.requests.path(name, wire.NEXT_ROUTE))
        status = response.status_code
        if name == wire.CHANGEFEED and status in (wire.Status.UNAUTHORIZED, wire.Status.FORBIDDEN):
            return None  # not for this token
        if status == 404 or wire.CLOSED in response.headers:
            return None
        if status != 200:
            raise self.requests.refusal(status, body, f"subscribe, for {name!r}")
        return number(response, wire.LATEST)

    async def segments(self, name: str, epoch: int, after: int) -> Sequence[SourceSegment]:
        """An empty list: all segments that can be had come by the feed."""
        return ()

    async def read(self, name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
        """None was listed."""
        raise GoneThere(f"segment {segment.seq} of {name!r} cannot be read behind the feed")
        yield b""

    @asynccontextmanager
    async def follow(self, name: str) -> AsyncIterator[FeedStream]:
        """Follow a channel by GETs."""
        if await self.channel(name) is None:
            raise GoneThere(f"there is no channel {name!r} at {self.requests.shown}")
        feed = PlainFeed(self, name, self._known[name])
        try:
            yield feed
        finally:
            await feed.close()
