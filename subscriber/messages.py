"""Channels that carry JSON: one document per segment, or one per line.

::

    async for message in json_messages("http://host:2939/trickle/control"):
        print(message.seq, message.value)

A control channel has one document in each segment; ``publisher.publish_json`` writes it. :func:`json_lines` reads a
log that runs on over segments, whose lines may be cut anywhere by the ends of chunks and segments. Nothing is lost in
silence: documents that were missed or cannot be used are counted on the next message (``gap``, ``skipped``) and in
total (``messages.skipped``).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, Self, TypeAlias, Unpack

import anyio
import orjson

from tricklecast.subscriber.client import ReaderOptions, Subscriber
from tricklecast.subscriber.core import AnyStart, check_whole
from tricklecast.subscriber.events import OnEvent
from tricklecast.subscriber.segment import Segment
from tricklecast.trickle.client.arguments import URLs, check_number, check_options
from tricklecast.trickle.errors import (
    BrokenByPeer,
    ClosedHere,
    ConnectionLost,
    InvalidInput,
    Position,
    SegmentTooLarge,
    TrickleError,
)
from tricklecast.trickle.wire import MESSAGE_LIMIT

_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
"""An integer of more than 64 bits has at least 19 digits."""

OnError: TypeAlias = Literal["raise", "skip"]


class BadMessage(BrokenByPeer):
    """A document is not JSON, is too long, or did not come whole.

    Inside ``async with`` the iteration can go on: the next message is the one after it. ``resume`` is behind a document
    that stays bad. It is in front of one whose connection was cut, and of a line that is too long, whose end has not
    come yet.
    """

    summary = "not a JSON message"


@dataclass(frozen=True, slots=True)
class Message:
    """A document.

    Attributes:
        seq: the segment that it was in; of a line, the segment in which the line ended.
        value: a dict, list, str, int, float, bool or ``None``.
        gap: segments missed since the message before.
        skipped: documents since the message before that could not be used and were not raised as :class:`BadMessage`,
            and parts of lines that were cut off by a gap or by a segment that was not whole; 1 for such a segment if
            further lines may be missing behind a whole one.
        restarted: the channel's numbering is another one than that of the message before.
    """

    seq: int
    value: Any
    gap: int = 0
    skipped: int = 0
    restarted: bool = False


class Messages:
    """The messages of a channel, to be iterated over like a ``Subscriber``: with or without ``async with``.

    A call that is cancelled loses nothing: the next one goes on. Segments without a byte are left out. One task
    iterates at a time: a second one gets ``anyio.BusyResourceError``.

    Lines may go on over the ends of segments. Where a segment was missed or is not whole, two halves of a line are
    never joined: the line that was begun is dropped, and so is the first line afterwards, unless it is a whole object
    or array. The same holds for the first line of a subscription that begins in the middle of the channel, unless it
    begins at a :attr:`position` of lines. Dropped lines are counted as ``skipped``.

    Args:
        subscriber: where the segments come from.
        lines: the documents are lines, each of which comes as soon as it ends; otherwise there is one per segment.
        limit: the length of the longest document, in bytes.
        on_error: ``"raise"``, or ``"skip"`` to count a document that is not JSON and go on.

    Attributes:
        subscriber: gives the statistics, ``missed_at_end`` and ``seek``. Its own position knows segments alone, and is
            behind lines that are still to come.
        skipped: documents, and parts of lines, that could not be used so far.

    Raises:
        InvalidInput: an argument is wrong.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        *,
        lines: bool = False,
        limit: int = MESSAGE_LIMIT,
        on_error: OnError = "raise",
    ) -> None:
        check_number("limit", limit, at_least=1, whole=True)
        if on_error not in ("raise", "skip"):
            raise InvalidInput(f"on_error is 'raise' or 'skip', not {on_error!r}")
        if lines:
            subscriber._joins_lines = True
        else:
            check_whole(subscriber.position)
        self.subscriber: Final = subscriber
        self.skipped = 0
        self._limit = limit
        self._on_error = on_error
        self._lines = Lines(limit) if lines else None
        self._ready: deque[Line | Bad] = deque()
        self._segment: Segment | None = None
        self._expected: int | None = None
        self._over = False
        self._guard = anyio.ResourceGuard("iterating over")
        self._gap = self._newly_skipped = 0
        self._restarted = False
        self._last: Segment | None = None  # the segment that was begun last, and holds what is ready
        self._origin = subscriber._origin
        self._place: Position | None = None  # what position() says, or said before self._taken
        self._taken: Place | None = None  # in self._last

    @property
    def position(self) -> Position | None:
        """Behind the last message: pass it, or its text, as ``start`` to go on there, without a loss or a repetition.

        With lines it may be in the middle of a segment (``128@3:9f86d081884c7d65+512``). What the next message is going
        to tell (``gap``, ``skipped``, ``restarted``) is behind it, and is told again. ``None`` while the first segment
        depends on the server's head.
        """
        has_begun = self.subscriber._begun is not None  # since it was opened, or was told to go elsewhere
        return (self._settled() if has_begun else None) or self.subscriber.position

    def _settled(self) -> Position | None:
        if self._taken is not None and self._last is not None:
            seq, offset = self._taken
            self._place, self._taken = Position(seq, self._last.epoch, self._last.life, offset), None
        return self._place

    async def __aenter__(self) -> Self:
        await self.subscriber.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.subscriber.__aexit__(*exc_info)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.subscriber._looped(self)

    async def __anext__(self) -> Message:
        """The next message; the end of the channel ends the iteration.

        Raises:
            BadMessage: a document cannot be used, and ``on_error`` is ``"raise"``.
            TrickleError: the errors of ``Subscriber``.
        """
        while True:
            with self._guard:
                await self._fill()
            item = self._ready.popleft()
            if isinstance(item, Line):
                try:
                    value = _value(item.data)
                except (ValueError, RecursionError) as error:
                    item = Bad(item.seq, str(error), torn=item.doubtful, after=item.after)
                else:
                    self._taken = item.after
                    return self._message(item.seq, value)
            self.skipped += 1
            # Half a line is no fault of its publisher. It is counted, like the gap that it comes from.
            if self._on_error == "raise" and not item.torn:
                self._taken = item.after or self._taken
                failed = BadMessage(seq=item.seq, detail=item.why)
                failed.resume = self.position
                raise failed
            self._newly_skipped += 1  # what was raised has been told

    async def _fill(self) -> None:
        """Read until there is a document, or a fault of one."""
        while not self._ready:
            if self._segment is None:
                await self._begin()
            elif self._lines is None:
                await self._read_document(self._segment)
            else:
                await self._read_lines(self._segment, self._lines)

    def _message(self, seq: int, value: Any) -> Message:
        message = Message(seq, value, self._gap, self._newly_skipped, self._restarted)
        self._gap, self._newly_skipped, self._restarted = 0, 0, False
        return message

    def _pass_over(self, segment: Segment, offset: int | None) -> None:
        """Nothing in a segment is still to come."""
        if not (self._gap or self._newly_skipped or self._restarted):  # the next message has nothing to tell
            self._taken = (segment.seq + 1, offset)

    async def _begin(self) -> None:
        """Go on to the next segment.

        Raises:
            StopAsyncIteration: the channel has ended.
        """
        try:
            segment = await anext(self.subscriber)
        except StopAsyncIteration:
            if self._lines is not None and not self._over:
                self._over = True
                self._ready += self._lines.finish(whole=self.subscriber.missed_at_end == 0)
            if self._ready:
                return
            raise
        except TrickleError as error:
            if error.resume is not None:  # it knows segments alone
                error.resume = self.position
            raise
        offset = self._placed(segment)
        self._gap += segment.gap
        self._restarted = self._restarted or segment.restarted
        if self._lines is not None:
            follows = segment.seq == self._expected and not (segment.gap or segment.restarted)
            self._ready += self._lines.begin(segment.seq, follows=follows, offset=offset)
        self._segment, self._expected, self._over = segment, segment.seq + 1, False

    def _placed(self, segment: Segment) -> int | None:
        """Note where a segment begins; returns its offset, if it is the one that a position of lines names."""
        self._settled()
        self._last = segment
        origin = self.subscriber._origin
        if origin is self._origin:
            self._place = self._place or segment.position
            return None
        self._origin = self._place = origin
        return None if origin is None or segment.gap or segment.restarted else origin.offset

    async def _read_document(self, segment: Segment) -> None:
        item: Line | Bad | None = None
        after = segment.seq + 1, None
        try:
            data = await segment.read(self._limit)
        except SegmentTooLarge as error:
            item = Bad(segment.seq, error.detail, after=after)
        except ConnectionLost as error:
            # Reading the segment again may help.
            item = Bad(segment.seq, f"cut after {segment.bytes_read} bytes: {error.detail}", after=(segment.seq, None))
        except ClosedHere:
            pass  # left by a seek
        else:
            if segment.truncated is not None:
                item = Bad(segment.seq, f"truncated: {segment.truncated}", after=after)
            elif data.strip():
                item = Line(segment.seq, data, after)
            else:
                self._pass_over(segment, None)
        self._segment = None
        if item is not None:
            self._ready.append(item)

    async def _read_lines(self, segment: Segment, lines: Lines) -> None:
        try:
            data = await segment.read_some()
        except (ClosedHere, ConnectionLost):  # left by another task, or cut
            data = b""
        if data:
            self._ready += lines.feed(data)
        else:
            is_cut = segment.truncated is not None or segment.broken is not None
            self._ready += lines.end(whole=segment.complete, is_cut=is_cut)
            if segment.complete and lines.is_between:
                self._pass_over(segment, None if lines.is_doubtful else 0)
            self._segment = None


class MessageOptions(ReaderOptions, total=False):
    """The arguments of :class:`tricklecast.subscriber.Subscriber` that concern messages."""

    start: AnyStart
    on_event: OnEvent | None


def json_messages(
    url: URLs, *, limit: int = MESSAGE_LIMIT, on_error: OnError = "raise", **options: Unpack[MessageOptions]
) -> Messages:
    """The JSON documents of a channel, one per segment: :class:`Messages` of ``Subscriber(url, **options)``."""
    check_options("json_messages()", options, {*MessageOptions.__optional_keys__, "on_broken"})
    return Messages(Subscriber(url, **options), limit=limit, on_error=on_error)


def json_lines(
    url: URLs, *, limit: int = MESSAGE_LIMIT, on_error: OnError = "raise", **options: Unpack[MessageOptions]
) -> Messages:
    """The lines of a channel, each a JSON document: :class:`Messages` of ``Subscriber(url, **options)``."""
    check_options("json_lines()", options, {*MessageOptions.__optional_keys__, "on_broken"})
    return Messages(Subscriber(url, **options), lines=True, limit=limit, on_error=on_error)


Place: TypeAlias = tuple[int, int | None]
"""The seq and the offset of a :class:`Position`."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end, never blank; or the one document of a segment.

    It ended in segment ``seq``; ``after`` is behind it. If it is ``doubtful``, it may be the rest of a line.
    """

    seq: int
    data: bytes
    after: Place
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """A document that cannot be used, as turned out in segment ``seq``.

    Attributes:
        why: its fault, for people.
        torn: it is a part of a line, the other part of which was missed.
        after: where to go on; ``None``: at the end of the document before.
    """

    seq: int
    why: str
    torn: bool = False
    after: Place | None = None


class Lines:
    """Splits a channel into lines. For each segment, call :meth:`begin`, :meth:`feed` for its bytes, and :meth:`end`.

    A line that was begun before a gap is dropped there. The bytes after a gap may begin in the middle of a line, too:
    the first line is *doubtful*, and counts as a line only if it is a whole object or array, since no rest of a JSON
    object or array is one. (The rest of a number is a number.)

    Args:
        limit: longest line, in bytes; more than that is never held.

    Attributes:
        is_doubtful: the next byte may be in the middle of a line.
    """

    __slots__ = ("_dropping", "_known", "_limit", "_offset", "_part", "_seq", "is_doubtful")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seq = -1
        self._part = bytearray()
        self.is_doubtful = True
        self._dropping = False
        self._offset = 0  # of the next byte in its segment
        self._known = 0  # bytes still to come that were read before

    @property
    def is_between(self) -> bool:
        """No line has begun that is not over."""
        return not (self._dropping or self._part.strip())

    def begin(self, seq: int, *, follows: bool, offset: int | None = None) -> list[Line | Bad]:
        """A segment begins.

        Args:
            follows: nothing was missed between it and the segment before.
            offset: this many bytes of it were read before, and a line begins behind them.
        """
        items = [] if follows and offset is None else self._tear()
        self.is_doubtful = self.is_doubtful and seq != 0 and offset is None
        self._seq, self._offset, self._known = seq, 0, offset or 0
        return items

    def feed(self, chunk: bytes) -> list[Line | Bad]:
        """Some of its bytes; returns the lines that ended in them."""
        known = min(self._known, len(chunk))
        self._known -= known
        self._offset += known
        *whole, rest = chunk[known:].split(b"\n")
        items: list[Line | Bad] = []
        for end in whole:
            self._offset += len(end) + 1
            items += self._add(end)
            items += self._line()
        self._offset += len(rest)
        return items + self._add(rest)

    def end(self, *, whole: bool, is_cut: bool = False) -> list[Line | Bad]:
        """The segment has ended. Its last line may go on in the next one, unless the segment was not whole.

        Args:
            is_cut: lines may be missing behind the last one, though that is whole.
        """
        if whole and not self._known:
            return []
        # A segment that is shorter than the bytes that were read of it is another one.
        return self._tear() or [self._half()] * (is_cut or whole)

    def finish(self, *, whole: bool) -> list[Line | Bad]:
        """The channel has ended, and its last line with it, unless segments were missed there."""
        return self._line() if whole else self._tear()

    def _add(self, data: bytes) -> list[Line | Bad]:
        if self._dropping:
            return []
        self._part += data
        if len(self._part) <= self._limit:
            return []
        self._part.clear()
        self._dropping = True
        return [Bad(self._seq, f"a line of more than {self._limit} bytes", torn=self.is_doubtful)]

    def _line(self) -> list[Line | Bad]:
        data, doubtful = bytes(self._part).strip(), self.is_doubtful
        self._part.clear()
        self.is_doubtful = self._dropping = False
        if not data:
            return []
        if doubtful and data[:1] not in b"{[":
            return [self._half()]
        return [Line(self._seq, data, (self._seq, self._offset), doubtful)]

    def _tear(self) -> list[Line | Bad]:
        items: list[Line | Bad] = [self._half()] if self._part.strip() else []
        self._part.clear()
        self.is_doubtful, self._dropping = True, False
        return items

    def _half(self) -> Bad:
        return Bad(self._seq, "a part of a line", torn=True)


def _value(data: bytes) -> Any:
    """The value of a JSON document; every integer is exact.

    orjson reads integers of more than 64 bits as floating-point numbers. Documents that may have one are left to
    Python's own parser, which is a few times slower.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply for Python's parser.
    """
    if _LONG_NUMBER.search(data) is None:
        return orjson.loads(data)
    return json.loads(data.decode(), parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no value of JSON")
