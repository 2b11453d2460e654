"""Channels that carry JSON: one document per segment, or one per line.

::

    async for message in json_messages("http://host:2939/trickle/control"):
        print(message.seq, message.value)

A channel of control messages has one document in each segment; :func:`json_lines` is for a log that runs on over
segments, whose lines may be cut anywhere by chunks and by segments' ends. Nothing is lost in silence: what was missed
or could not be used is counted on the next message (``gap``, ``skipped``) and in all (``messages.skipped``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, Unpack

import httpx
import orjson

from tricklecast.subscriber.client import Subscriber
from tricklecast.subscriber.lines import Broken, Item, Line, Lines
from tricklecast.subscriber.runtime import Runtime
from tricklecast.subscriber.segment import OnBroken, Segment
from tricklecast.subscriber.single_use import SingleUse
from tricklecast.subscriber.start import AnyStart
from tricklecast.subscriber.verdicts import OnLag
from tricklecast.trickle.client.arguments import check_number
from tricklecast.trickle.errors import BrokenByPeer, ClosedHere, ConnectionLost, Position, SegmentTooLarge

MESSAGE_LIMIT: Final = 1024 * 1024
"""Longest document by default, in bytes: far more than a control message has, and little enough to be held."""

OnError: TypeAlias = Literal["raise", "skip"]


class Options(TypedDict, total=False):
    """What :class:`~tricklecast.subscriber.Subscriber` takes beside its URL."""

    start: AnyStart
    on_lag: OnLag | str
    on_broken: OnBroken
    wait_for_channel_s: float
    refresh_s: float
    stall_timeout_s: float | None
    transport: httpx.AsyncBaseTransport | None
    auth: httpx.Auth | tuple[str, str] | Callable[[httpx.Request], httpx.Request] | None
    client: httpx.AsyncClient | None
    runtime: Runtime | None


class BadMessage(BrokenByPeer):
    """What was published is no JSON document, is too long, or did not come whole.

    Inside ``async with``, iterating can go on: the next message is the one after it. Its ``resume`` is behind a
    segment that is bad for ever; it is the segment itself if its connection was cut, or if it holds other lines, which
    then come again.
    """

    what = "not a JSON message"


@dataclass(frozen=True, slots=True)
class Message:
    """A document.

    Attributes:
        seq: the segment that it was in; of a line, the one in which it ended.
        value: what it says: a dict, list, str, int, float, bool or ``None``.
        gap: segments missed since the message before.
        skipped: documents since the message before that could not be used, and parts of lines that were cut off by
            a gap or by a segment that was not whole.
        restarted: the channel's numbering is another one than that of the message before.
    """

    seq: int
    value: Any
    gap: int = 0
    skipped: int = 0
    restarted: bool = False


class _Source(Protocol):
    """Where documents come from."""

    async def next(self) -> Item | None:
        """The next document, or something that cannot be one; ``None`` at the end."""
        ...

    def resume(self, item: Broken) -> Position | None:
        """Where to begin again after that."""
        ...


class Messages(SingleUse[Message]):
    """The messages of a channel, to be iterated over like a :class:`Subscriber`: with or without ``async with``.

    Attributes:
        subscriber: what they come from: its position, its statistics, its ``missed_at_end``, its ``seek``.
        skipped: documents, and parts of lines, that could not be used so far.
    """

    def __init__(self, subscriber: Subscriber, source: _Source, tally: _Tally, on_error: OnError) -> None:
        super().__init__()
        self.subscriber: Final = subscriber
        self.skipped = 0
        self._source = source
        self._tally = tally
        self._on_error = on_error

    async def _open(self) -> None:
        await self.subscriber.__aenter__()

    async def _close(self) -> None:
        await self.subscriber.__aexit__(None, None, None)

    async def __anext__(self) -> Message:
        """The next message; the end of the channel ends the iteration.

        Raises:
            BadMessage: a document cannot be used, and ``on_error`` is ``"raise"``.
            TrickleError: what ``Subscriber`` raises.
        """
        while (item := await self._source.next()) is not None:
            if isinstance(item, Line):
                try:
                    return self._tally.message(item.seq, orjson.loads(item.data))
                except orjson.JSONDecodeError as error:
                    item = Broken(item.seq, str(error), torn=item.doubtful)
            self.skipped += 1
            self._tally.skipped += 1
            # Half a line is nobody's mistake, and is told like the gap that it comes from.
            if self._on_error == "raise" and not item.torn:
                failed = BadMessage(seq=item.seq, detail=item.why)
                failed.resume = self._source.resume(item)
                raise failed
        raise StopAsyncIteration


@dataclass(slots=True)
class _Tally:
    """What the next message has to tell beside its value."""

    gap: int = 0
    skipped: int = 0
    restarted: bool = False

    def begun(self, segment: Segment) -> None:
        self.gap += segment.gap
        self.restarted = self.restarted or segment.restarted

    def message(self, seq: int, value: Any) -> Message:
        message = Message(seq, value, self.gap, self.skipped, self.restarted)
        self.gap, self.skipped, self.restarted = 0, 0, False
        return message


class _Segments:
    """One document per segment."""

    def __init__(self, subscriber: Subscriber, tally: _Tally, limit: int) -> None:
        self._subscriber = subscriber
        self._tally = tally
        self._limit = limit

    async def next(self) -> Item | None:
        async for segment in self._subscriber:
            self._tally.begun(segment)
            try:
                data = await segment.read(self._limit)
            except SegmentTooLarge as error:
                return Broken(segment.seq, error.detail)
            except ConnectionLost as error:
                return Broken(segment.seq, f"cut after {segment.bytes_read} bytes: {error.detail}", again=True)
            except ClosedHere:
                continue  # left by a seek
            if segment.truncated is not None:
                return Broken(segment.seq, f"truncated: {segment.truncated}")
            if data.strip():
                return Line(segment.seq, data)
        return None

    def resume(self, item: Broken) -> Position | None:
        after = self._subscriber.position
        return replace(after, seq=item.seq) if item.again and after is not None else after


class _SegmentsOfLines:
    """One document per line, over all segments."""

    def __init__(self, subscriber: Subscriber, tally: _Tally, limit: int) -> None:
        self._subscriber = subscriber
        self._tally = tally
        self._lines = Lines(limit)
        self._ready: deque[Item] = deque()
        self._segment: Segment | None = None
        self._expected: int | None = None

    async def next(self) -> Item | None:
        over = False
        while not (self._ready or over):
            if self._segment is None:
                over = not await self._begin()
            else:
                await self._read(self._segment)
        return self._ready.popleft() if self._ready else None

    def resume(self, item: Broken) -> Position | None:
        # The other lines of that segment come again; to begin behind it would lose those that follow in it.
        after = self._subscriber.position
        return None if after is None else replace(after, seq=item.seq)

    async def _begin(self) -> bool:
        """Go on to the next segment; ``False`` at the end of the channel."""
        try:
            segment = await anext(self._subscriber)
        except StopAsyncIteration:
            self._ready += self._lines.finish(whole=self._subscriber.missed_at_end == 0)
            return False
        self._tally.begun(segment)
        follows = segment.seq == self._expected and not (segment.gap or segment.restarted)
        self._ready += self._lines.begin(segment.seq, follows=follows)
        self._segment, self._expected = segment, segment.seq + 1
        return True

    async def _read(self, segment: Segment) -> None:
        try:
            chunk = await anext(segment, b"")
        except (ClosedHere, ConnectionLost):  # given up by a cancelled call, or cut
            chunk = b""
        if chunk:
            self._ready += self._lines.feed(chunk)
        else:
            self._ready += self._lines.end(whole=segment.complete)
            self._segment = None


def json_messages(
    url: str, *, limit: int = MESSAGE_LIMIT, on_error: OnError = "raise", **options: Unpack[Options]
) -> Messages:
    """A channel with one JSON document per segment; segments without any are passed over.

    Args:
        url: the channel.
        limit: the length of the longest document, in bytes.
        on_error: ``"raise"``, or ``"skip"`` to count a segment that is not a JSON document and go on.
        options: the other arguments of :class:`~tricklecast.subscriber.Subscriber`.

    Raises:
        InvalidInput: an argument is wrong.
    """
    check_number("limit", limit, at_least=1, whole=True)
    subscriber, tally = Subscriber(url, **options), _Tally()
    return Messages(subscriber, _Segments(subscriber, tally, limit), tally, on_error)


def json_lines(
    url: str, *, limit: int = MESSAGE_LIMIT, on_error: OnError = "raise", **options: Unpack[Options]
) -> Messages:
    """A channel whose segments, one after the other, are lines of JSON; each message comes as soon as its line ends.

    Where a segment was missed or was not whole, the two halves of a line are never glued together: what was begun is
    dropped, and so is the first line after it unless it is a whole object or array. The same holds for the first line
    of a subscription that begins in the middle of the channel. What was dropped is counted as ``skipped``.

    Args:
        url: the channel.
        limit: the length of the longest line, in bytes.
        on_error: ``"raise"``, or ``"skip"`` to count a line that is not a JSON document and go on.
        options: the other arguments of :class:`~tricklecast.subscriber.Subscriber`.

    Raises:
        InvalidInput: an argument is wrong.
    """
    check_number("limit", limit, at_least=1, whole=True)
    subscriber, tally = Subscriber(url, **options), _Tally()
    return Messages(subscriber, _SegmentsOfLines(subscriber, tally, limit), tally, on_error)
