"""The records of a feed: how the facts and bytes of a channel go over any stream of bytes.

A record is one byte for its kind, four bytes for the length of its payload, and the payload. Numbers are big-endian.

=================  ================================================================================
kind               payload
=================  ================================================================================
``HELLO``          from the replica, once, JSON: :class:`Hello`
``BEGIN``          from the owner, once, JSON: :class:`Begin`
``FACT``           JSON: the kind of the fact, its number, its time, and the attributes of that kind. Number 0: it is
                   part of a snapshot (:meth:`~tricklecast.app.core.state.Channel.apply`). ``crc``: see :class:`Hello`
``BYTES``          eight bytes for the seq, then a chunk of the segment, which is not empty
``SNAPSHOT_OVER``  JSON, after the snapshot: :class:`SnapshotOver`
``END``            JSON, the last one: :class:`End`. A peer of any version understands it
``BEAT``           nothing: the owner is there, and has no news
=================  ================================================================================

Times are microseconds since 1970, since the clocks of two processes have nothing else in common.

A peer may be broken, or of another version. So :class:`Parser` lets nothing through but values of the right type and
size. Its users need only ask whether a record fits the channel: bytes of segment 7 do not, if 7 is not open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import IntEnum, StrEnum
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

import orjson

from tricklecast.app.core.facts import KINDS, MAX_MARK, EndReason, Fact
from tricklecast.app.core.segment import OPEN, WAITING, State
from tricklecast.app.core.state import MAX_LIVES, Lives
from tricklecast.app.core.window import Eviction
from tricklecast.app.encoding import encode
from tricklecast.trickle.errors import TrickleError
from tricklecast.trickle.wire import Life, parse_life

VERSION: Final = 1

_HEAD: Final = Struct("!BI")
_SEQ: Final = Struct("!Q")

MAX_PAYLOAD: Final = 1 << 20
"""Of a record. The owner splits a longer chunk."""

MAX_CHUNK: Final = MAX_PAYLOAD - _SEQ.size

MAX_KEY: Final = 256
"""Characters of an ``Idempotency-Key``; the memory of a segment is counted with one of that length."""


class RecordKind(IntEnum):
    """The kinds of records."""

    HELLO = 0
    BEGIN = 1
    FACT = 2
    BYTES = 3
    SNAPSHOT_OVER = 4
    END = 5
    BEAT = 6


class FeedEnd(StrEnum):
    """Why the owner ends a feed."""

    ENDED = "ended"
    """The channel has ended, and everything is sent."""
    LAG = "lag"
    """The replica was too far behind: it begins again with a snapshot."""
    SHUTDOWN = "shutdown"
    """The owner stops."""
    VERSION = "version"
    """The replica speaks another version of the feed."""


class FeedError(TrickleError):
    """The peer sends no feed, or one of another version, or one that does not fit the channel that is held."""


class OtherVersion(FeedError):
    """The peer speaks another version of the feed."""

    def __init__(self) -> None:
        text = f"the peer does not speak version {VERSION} of the feed: run the same release of tricklecast on both"
        super().__init__(text)


class HeldSegment(NamedTuple):
    """A segment that a replica has."""

    seq: int
    size: int
    state: State

    @property
    def closed(self) -> bool:
        """Whether the state is final."""
        return self.state not in (WAITING, OPEN)


class Hello(NamedTuple):
    """The replica asks for a channel, and names the segments that it has of it.

    Attributes:
        instance, epoch: the start of the owner, and the epoch of the channel, of which it has something; ``""`` and 0
            for nothing.
        checksums: whether each ``SegmentClosed`` is to have the CRC-32 of the segment's bytes, as ``crc``. Some owners
            of version 1 do not know this, and send none.
    """

    channel: str
    instance: str
    epoch: int
    have: tuple[HeldSegment, ...]
    checksums: bool = False


class Begin(NamedTuple):
    """The owner begins.

    Attributes:
        fresh: whether the replica has to begin anew, since what it has belongs to something else.
        lives: the numberings of the channel. Some owners of version 1 do not know this: ``None``.
    """

    instance: str
    epoch: int
    fresh: bool
    lives: Lives | None = None


class SegmentBytes(NamedTuple):
    """Bytes of a segment, which follow those that came before."""

    seq: int
    chunk: bytes


class SnapshotOver(NamedTuple):
    """The snapshot is over; what follows has happened since it was taken.

    Attributes:
        facts, bytes_in: of the channel when it was taken, less the bytes that are still to come.
    """

    facts: int
    bytes_in: int


class End(NamedTuple):
    """The owner ends the feed."""

    why: FeedEnd


class Beat(NamedTuple):
    """The owner is there, and has no news."""


Record = Hello | Begin | Fact | SegmentBytes | SnapshotOver | End | Beat
"""A record, taken apart."""

_CODES: Final = {
    Hello: RecordKind.HELLO,
    Begin: RecordKind.BEGIN,
    SnapshotOver: RecordKind.SNAPSHOT_OVER,
    End: RecordKind.END,
    Beat: RecordKind.BEAT,
}


def record(message: Hello | Begin | SnapshotOver | End | Beat) -> bytes:
    """A record of anything but facts and chunks."""
    about: dict[str, Any] = message._asdict()
    if isinstance(message, Begin) and message.lives is None:
        del about["lives"]
    if isinstance(message, Hello):
        about["have"] = list(map(tuple, message.have))  # JSON knows no named tuples
        if not message.checksums:
            del about["checksums"]
    if isinstance(message, Hello | Begin):
        about["version"] = VERSION
    return _record(_CODES[type(message)], about)


def fact_record(fact: Fact, to_us: Callable[[float], int], crc: int | None = None) -> bytes:
    """A record of a fact.

    Args:
        to_us: turns the registry's time into microseconds since 1970.
        crc: of the bytes of a segment that has closed, for a replica that has asked for it.
    """
    kind = type(fact)
    own = {name: getattr(fact, name) for name in _OWN[kind]}
    if crc is not None:
        own["crc"] = crc
    return _record(RecordKind.FACT, {"kind": kind.__name__, "number": fact.number, "at": to_us(fact.at), **own})


def chunk_records(seq: int, chunk: memoryview) -> Iterator[bytes | memoryview]:
    """The records of a chunk, in parts that may be written one after the other: no byte is copied."""
    for start in range(0, len(chunk), MAX_CHUNK):
        part = chunk[start : start + MAX_CHUNK]
        yield _HEAD.pack(RecordKind.BYTES, _SEQ.size + len(part)) + _SEQ.pack(seq)
        yield part


def _record(kind: RecordKind, about: dict[str, Any]) -> bytes:
    payload = encode(about) if about else b""
    return _HEAD.pack(kind, len(payload)) + payload


# What a peer may send.


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no number of bytes, facts or segments")
    return value


def _text(value: Any, most: int = MAX_PAYLOAD) -> str:
    if type(value) is not str or len(value) > most:
        raise ValueError(f"{value!r:.80} is no text of at most {most} characters")
    return value


def _key(value: Any) -> str | None:
    return None if value is None else _text(value, MAX_KEY)


def _name(value: Any) -> str:
    """The name of a numbering, which readers are told in a header; ``""`` if it has none."""
    if value != "" and (type(value) is not str or parse_life(value) != Life(value)):
        raise ValueError(f"{value!r:.80} is no name of a numbering")
    return str(value)


_READ: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("seq", "size", "body_at", "first", "next_seq"), _number),
    **dict.fromkeys(("numbering", "name"), _name),
    **{"content_type": _text, "key": _key, "mark": partial(_text, most=MAX_MARK)},
    **{"state": State, "why": Eviction, "reason": EndReason},
}
"""Checks each attribute that a kind of fact may have."""

_OWN: Final = {kind: tuple(field.name for field in fields(kind))[len(fields(Fact)) :] for kind in KINDS}
_KINDS: Final = {kind.__name__: (kind, [(name, _READ[name]) for name in own]) for kind, own in _OWN.items()}


def _hello(about: dict[str, Any]) -> Hello:
    have = tuple(HeldSegment(_number(seq), _number(size), State(state)) for seq, size, state in about["have"])
    checksums = about.get("checksums") is True
    return Hello(_text(about["channel"]), _text(about["instance"]), _number(about["epoch"]), have, checksums)


def _begin(about: dict[str, Any]) -> Begin:
    told = about.get("lives")
    lives = None if told is None else tuple((_name(name), _number(first)) for name, first in told[-MAX_LIVES:])
    return Begin(_text(about["instance"]), _number(about["epoch"]), about["fresh"] is not False, lives)


def _snapshot_over(about: dict[str, Any]) -> SnapshotOver:
    return SnapshotOver(_number(about["facts"]), _number(about["bytes_in"]))


def _end(about: dict[str, Any]) -> End:
    return End(FeedEnd(about["why"]))


_MESSAGES: Final[dict[RecordKind, Callable[[dict[str, Any]], Record]]] = {
    RecordKind.HELLO: _hello, RecordKind.BEGIN: _begin, RecordKind.SNAPSHOT_OVER: _snapshot_over,
    RecordKind.END: _end,
}  # fmt: skip


class Parser:
    """Takes a feed apart, as its bytes come.

    Args:
        channel: of the facts. to_time: turns microseconds since 1970 into the registry's time.

    Attributes:
        epoch: of the channel; 0 until the feed has begun.
        crc: what the fact that has just come says of its segment's bytes; ``None`` if it says nothing.
    """

    def __init__(self, channel: str, to_time: Callable[[int], float]) -> None:
        self.epoch = 0
        self.crc: int | None = None
        self._channel, self._to_time = channel, to_time
        # The beginning of a record that has not come wholly: MAX_PAYLOAD and what comes at a time.
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that are whole with these bytes.

        Raises:
            OtherVersion: the peer speaks another version.
            FeedError: this is no feed.
        """
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _HEAD.size:
                kind, size = _HEAD.unpack_from(self._buffer, at)
                if size > MAX_PAYLOAD:
                    raise FeedError(f"a record of {size} bytes; {MAX_PAYLOAD} are allowed")
                start = at + _HEAD.size
                if len(self._buffer) < start + size:
                    break
                payload = bytes(self._buffer[start : start + size])
                at = start + size
                yield self._message(kind, payload)
        finally:
            del self._buffer[:at]

    def _message(self, number: int, payload: bytes) -> Record:
        try:
            kind = RecordKind(number)
            if kind is RecordKind.BYTES:
                (seq,) = _SEQ.unpack_from(payload)
                if len(payload) == _SEQ.size:
                    raise ValueError("a chunk of no byte")  # readers would take it for the end of the segment
                return SegmentBytes(seq, payload[_SEQ.size :])
            if kind is RecordKind.BEAT:
                return Beat()
            about = orjson.loads(payload)
            if kind is RecordKind.FACT:
                return self._fact(about)
            if kind in (RecordKind.HELLO, RecordKind.BEGIN) and about["version"] != VERSION:
                raise OtherVersion
            message = _MESSAGES[kind](about)
            if isinstance(message, Begin):
                if self.epoch or not message.epoch:
                    raise ValueError("it begins twice, or without an epoch")
                self.epoch = message.epoch
            return message
        except (ValueError, LookupError, TypeError, StructError) as error:
            raise FeedError(f"a record that cannot be read: {error!r:.200}") from error

    def _fact(self, about: dict[str, Any]) -> Fact:
        kind, own = _KINDS[about["kind"]]
        if type(about["at"]) is not int:
            raise ValueError("a time is a whole number")
        at, number = self._to_time(about["at"]), _number(about["number"])
        self.crc = None if about.get("crc") is None else _number(about["crc"])
        return kind(0, number, at, self._channel, self.epoch, *[read(about[name]) for name, read in own])
