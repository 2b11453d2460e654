"""The two sides of a mirror, as its engine sees them: the source, and the destination that holds the copies.

The engine (:mod:`~tricklecast.app.mirror.engine`) knows neither HTTP nor storage. So it runs between two servers, and
in a simulated world, too.

The source is asked over a network: it answers late, never, or with lies. The destination is the server in whose process
the mirror runs: what it is told is done when the call returns, which is what lets a compare-and-set of the registry and
the step that it allows be one step.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tricklecast.app.core.segment import State
from tricklecast.app.replication.records import FeedEnd
from tricklecast.trickle.errors import TrickleError


class SourceError(TrickleError):
    """The source cannot be reached, or does not answer as it should: the text says which, and what to do."""


class SourceAway(SourceError):
    """No connection to the source can be made, it breaks before an answer, or none comes; or a proxy says so."""


class SourceLies(SourceError):
    """The source contradicts itself: a wrong checksum, a size that differs, an index that goes backwards."""


class GoneThere(SourceError):
    """The source does not have it any more, or the channel has another epoch by now."""


class IndexTooOld(SourceError):
    """The source does not keep the news that follow the index any more, or was started anew: look at all of it."""


class SourceChannel(NamedTuple):
    """A channel that lives at the source.

    Attributes:
        created_us: when it began, microseconds since 1970; 0 if the source does not tell. A source in memory that was
            started again counts epochs from 1: the same epoch with another time is another channel.
    """

    name: str
    epoch: int
    created_us: int = 0


class SourceSegment(NamedTuple):
    """A closed segment that can be read at the source.

    Attributes:
        crc: CRC-32 of its bytes; ``None`` if the source does not tell.
        opened_us, closed_us: when, microseconds since 1970.
    """

    seq: int
    state: State
    size: int
    crc: int | None
    opened_us: int
    closed_us: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All channels that live at the source.

    Attributes:
        instance, index: the start of the source, and the last of its facts that the list includes: :meth:`Source.news`
            goes on from there.
    """

    instance: str
    index: int
    channels: Sequence[SourceChannel]


@dataclass(frozen=True, slots=True)
class News:
    """Names of channels that have begun or ended, up to an index; what happens within a channel is in its feed."""

    index: int
    names: Sequence[str]


class FeedStream(Protocol):
    """The feed of one channel, on its way (:mod:`~tricklecast.app.replication.records`)."""

    async def send(self, data: bytes) -> None:
        """Send ``HELLO``, once."""

    async def receive(self) -> bytes:
        """The next bytes; ``b""`` when the source has closed the stream."""


class Source(Protocol):
    """The server that is mirrored. Each method raises :class:`SourceError`."""

    async def look(self) -> Listing:
        """List all channels that live."""

    async def news(self, after: int, instance: str) -> News:
        """Wait for news after an index; none of them after a while.

        Raises:
            IndexTooOld: begin with :meth:`look`.
        """

    async def channel(self, name: str) -> SourceChannel | None:
        """A channel as it is now; ``None`` if no such channel lives."""

    async def segments(self, name: str, epoch: int, after: int) -> Sequence[SourceSegment]:
        """The closed segments above a seq (-1: all) that can be read, ascending, a page of them; none at the end.

        Raises:
            GoneThere: the channel is not of this epoch.
        """

    def follow(self, name: str) -> AbstractAsyncContextManager[FeedStream]:
        """Follow a channel: its window, and all that happens to it.

        Raises:
            GoneThere: no such channel lives.
        """

    def read(self, name: str, epoch: int, segment: SourceSegment) -> AsyncGenerator[bytes, None]:
        """The bytes of a closed segment.

        Raises:
            GoneThere: it cannot be read any more.
        """


class Held(Protocol):
    """A channel of the source, as the destination holds it (:class:`~tricklecast.app.replication.replica.Replica`).

    Attributes:
        live: whether everything is here that the source had when the present feed began.
    """

    @property
    def live(self) -> bool: ...

    def hello(self) -> bytes:
        """Begin with a new feed: what is sent to the source, once."""

    def receive(self, data: bytes) -> FeedEnd | None:
        """Apply what has come; why the source ends the feed, if it does.

        Raises:
            FeedError: this is no feed, or it is one of another epoch than is held, or it does not go on from what is
                here. Nothing of the wrong part is visible, and the next feed begins with all that is needed.
            OutOfMemory: there is no memory for its bytes.
        """


class HeldCopy(NamedTuple):
    """A closed segment that the destination has. crc: of its bytes, if it is known without reading them."""

    seq: int
    size: int
    crc: int | None


class Destination(Protocol):
    """The server that holds the copies.

    Attributes:
        stores: whether it keeps segments behind the window of a channel.
    """

    @property
    def stores(self) -> bool: ...

    def channels(self) -> Mapping[str, int]:
        """The epochs of the copied channels that live here, by name."""

    def hold(self, name: str, epoch: int, closed: Callable[[HeldCopy], None]) -> Held:
        """The copy of a channel, of this epoch, for one feed after the other. An older epoch of it ends with that.

        Args:
            closed: told of each segment that has closed here, checked against the checksum that the feed has told.

        Raises:
            TrickleError: it cannot be held, since a channel of this server has the name, or a limit is reached.
        """

    def copies(self, name: str, epoch: int) -> Iterable[HeldCopy]:
        """The closed segments that are here."""

    def keeps(self, name: str, epoch: int, segment: SourceSegment) -> bool:
        """Whether a segment from behind the window would stay here, if it was inserted now."""

    def insert(self, name: str, epoch: int, segment: SourceSegment, body: Sequence[bytes]) -> bool:
        """Show a segment from behind the window; ``False`` if there is no room for it, or it is here already.

        Raises:
            OSError: the disk does not take it.
        """

    def end(self, name: str) -> None:
        """The channel has ended at the source, or is not mirrored any more; a channel of this server's own stays."""

    async def checksum(self, name: str, epoch: int, seq: int) -> int | None:
        """CRC-32 of the bytes of a segment, read again; ``None`` if it is not here any more."""

    def remove(self, name: str, epoch: int, seq: int) -> None:
        """Forget a segment whose bytes are wrong; it will be copied again."""
