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
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NoReturn, Self, TypeAlias, Unpack

import anyio
import orjson

from tricklecast.subscriber.client import ReaderOptions, Subscriber
from tricklecast.subscriber.core import AnyStart
from tricklecast.subscriber.events import OnEvent
from tricklecast.subscriber.segment import Segment
from tricklecast.trickle.client.arguments import URLs, check_number, check_options
from tricklecast.trickle.errors import BrokenByPeer, ClosedHere, ConnectionLost, InvalidInput, Position, SegmentTooLarge
from tricklecast.trickle.wire import MESSAGE_LIMIT

_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
"""An integer of more than 64 bits has at least 19 digits."""

OnError: TypeAlias = Literal["raise", "skip"]


class BadMessage(BrokenByPeer):
    """A document is not JSON, is too long, or did not come whole.

    Inside ``async with`` the iteration can go on: the next message is the one after it. ``resume`` is behind a segment
    that stays bad. It is the segment itself if its connection was cut, or if it holds other lines, which then come
    again.
    """

    summary = "not a JSON message"


@dataclass(frozen=True, slots=True)
class Message:
    """A document.

    Attributes:
        seq: the segment that it was in; of a line, the segment in which the line ended.
        value: a dict, list, str, int, float, bool or ``None``.
        gap: segments missed since the message before.
        skipped: documents since the message before that could not be used, and parts of lines that were cut off by a
            gap or by a segment that was not whole; 1 for such a segment if further lines may be missing behind a whole
            one.
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
    or array. The same holds for the first line of a subscription that begins in the middle of the channel. Dropped
    lines are counted as ``skipped``.

    Args:
        subscriber: where the segments come from.
        lines: the documents are lines, each of which comes as soon as it ends; otherwise there is one per segment.
        limit: the length of the longest document, in bytes.
        on_error: ``"raise"``, or ``"skip"`` to count a document that is not JSON and go on.

    Attributes:
        subscriber: gives the position, the statistics, ``missed_at_end`` and ``seek``.
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
                    return self._message(item.seq, _value(item.data))
                except (ValueError, RecursionError) as error:
                    item = Bad(item.seq, str(error), torn=item.doubtful)
            self.skipped += 1
            self._newly_skipped += 1
            # Half a line is no fault of its publisher. It is counted, like the gap that it comes from.
            if self._on_error == "raise" and not item.torn:
                failed = BadMessage(seq=item.seq, detail=item.why)
                failed.resume = self._resume(item)
                raise failed

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

    def _resume(self, bad: Bad) -> Position | None:
        after = self.subscriber.position
        # The other lines of the segment come again; beginning behind it would lose those that follow in it.
        return replace(after, seq=bad.seq) if after is not None and (bad.again or self._lines is not None) else after

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
        self._gap += segment.gap
        self._restarted = self._restarted or segment.restarted
        if self._lines is not None:
            follows = segment.seq == self._expected and not (segment.gap or segment.restarted)
            self._ready += self._lines.begin(segment.seq, follows=follows)
        self._segment, self._expected, self._over = segment, segment.seq + 1, False

    async def _read_document(self, segment: Segment) -> None:
        item: Line | Bad | None = None
        try:
            data = await segment.read(self._limit)
        except SegmentTooLarge as error:
            item = Bad(segment.seq, error.detail)
        except ConnectionLost as error:
            item = Bad(segment.seq, f"cut after {segment.bytes_read} bytes: {error.detail}", again=True)
        except ClosedHere:
            pass  # left by a seek
        else:
            if segment.truncated is not None:
                item = Bad(segment.seq, f"truncated: {segment.truncated}")
            elif data.strip():
                item = Line(segment.seq, data)
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


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end, never blank; or the one document of a segment.

    It ended in segment ``seq``. If it is ``doubtful``, it may be the rest of a line.
    """

    seq: int
    data: bytes
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Bad:
    """A document that cannot be used, as turned out in segment ``seq``.

    Attributes:
        why: its fault, for people.
        torn: it is a part of a line, the other part of which was missed.
        again: reading the segment again may help.
    """

    seq: int
    why: str
    torn: bool = False
    again: bool = False


class Lines:
    """Splits a channel into lines. For each segment, call :meth:`begin`, :meth:`feed` for its bytes, and :meth:`end`.

    A line that was begun before a gap is dropped there. The bytes after a gap may begin in the middle of a line, too:
    the first line is *doubtful*, and counts as a line only if it is a whole object or array, since no rest of a JSON
    object or array is one. (The rest of a number is a number.)

    Args:
        limit: longest line, in bytes; more than that is never held.
    """

    __slots__ = ("_doubtful", "_dropping", "_limit", "_part", "_seq")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seq = -1
        self._part = bytearray()
        self._doubtful = True
        self._dropping = False

    def begin(self, seq: int, *, follows: bool) -> list[Line | Bad]:
        """A segment begins; ``follows``: nothing was missed between it and the segment before."""
        items = [] if follows else self._tear()
        self._doubtful = self._doubtful and seq != 0
        self._seq = seq
        return items

    def feed(self, chunk: bytes) -> list[Line | Bad]:
        """Some of its bytes; returns the lines that ended in them."""
        *whole, rest = chunk.split(b"\n")
        items: list[Line | Bad] = []
        for end in whole:
            items += self._add(end)
            items += self._line()
        return items + self._add(rest)

    def end(self, *, whole: bool, is_cut: bool = False) -> list[Line | Bad]:
        """The segment has ended. Its last line may go on in the next one, unless the segment was not whole.

        Args:
            is_cut: lines may be missing behind the last one, though that is whole.
        """
        return [] if whole else self._tear() or [self._half()] * is_cut

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
        return [Bad(self._seq, f"a line of more than {self._limit} bytes", torn=self._doubtful)]

    def _line(self) -> list[Line | Bad]:
        data, doubtful = bytes(self._part).strip(), self._doubtful
        self._part.clear()
        self._doubtful = self._dropping = False
        if not data:
            return []
        if doubtful and data[:1] not in b"{[":
            return [self._half()]
        return [Line(self._seq, data, doubtful)]

    def _tear(self) -> list[Line | Bad]:
        items: list[Line | Bad] = [self._half()] if self._part.strip() else []
        self._part.clear()
        self._doubtful, self._dropping = True, False
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
