"""The records of a feed: how the facts and bytes of a channel go over any stream of bytes.

A record is one byte for its kind, four bytes for the length of its payload, and the payload. Numbers are big-endian.

=========  ========================================================================================
kind       payload
=========  ========================================================================================
``HELLO``  from the replica, once, JSON: ``version``, ``channel``, and what it has already: ``instance``, ``epoch``,
           ``have`` (seq, bytes, whether it is closed, for each of its segments)
``BEGIN``  from the owner, once, JSON: ``version``, ``instance``, ``epoch``, ``fresh`` (whether it has to begin anew,
           since what it has is of another life or of another start of the owner)
``FACT``   JSON: the kind of the fact, its number, its time, and what that kind has. Without a number it is part of a
           snapshot (:meth:`~tricklecast.app.core.state.Channel.apply`)
``BYTES``  eight bytes for the seq, then one chunk of the segment, as the publisher's write arrived
``LIVE``   JSON: the snapshot is over; ``facts`` and ``bytes_in`` when it was taken
``END``    JSON: why the owner ends the feed (:class:`Over`)
=========  ========================================================================================

Times are microseconds since 1970, since the clocks of two processes have nothing else in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from enum import IntEnum, StrEnum
from struct import Struct
from struct import error as StructError
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from tricklecast.app.core.facts import KINDS, EndReason, Fact
from tricklecast.app.core.segment import State
from tricklecast.app.core.window import Eviction
from tricklecast.app.encoding import encode
from tricklecast.trickle.errors import TrickleError

VERSION: Final = 1

_HEAD: Final = Struct("!BI")
_SEQ: Final = Struct("!Q")

MAX_PAYLOAD: Final = 1 << 20
"""Of a record. The owner splits a longer chunk."""

MAX_CHUNK: Final = MAX_PAYLOAD - _SEQ.size


class Kind(IntEnum):
    """The kinds of records."""

    HELLO = 0
    BEGIN = 1
    FACT = 2
    BYTES = 3
    LIVE = 4
    END = 5


class Over(StrEnum):
    """Why the owner ends a feed."""

    ENDED = "ended"
    """The channel has ended, and everything is sent."""
    LAG = "lag"
    """The replica was too far behind: it begins again with a snapshot."""
    SHUTDOWN = "shutdown"
    """The owner stops."""


class FeedError(TrickleError):
    """The peer sends no feed, or not one of this version."""


class Record(NamedTuple):
    """A record that has come.

    Attributes:
        about: of JSON records. fact: of a ``FACT``. seq, chunk: of ``BYTES``.
    """

    kind: Kind
    about: Mapping[str, Any] = MappingProxyType({})
    fact: Fact | None = None
    seq: int = 0
    chunk: bytes = b""


_NAMES: Final = {kind: kind.__name__ for kind in KINDS}
_KINDS: Final = {name: kind for kind, name in _NAMES.items()}
_OWN: Final = {kind: tuple(field.name for field in fields(kind))[len(fields(Fact)) :] for kind in KINDS}
_ENUMS: Final[dict[str, Callable[[Any], Any]]] = {"state": State, "why": Eviction, "reason": EndReason}


def record(kind: Kind, about: dict[str, Any]) -> bytes:
    """A record of JSON."""
    payload = encode(about)
    return _HEAD.pack(kind, len(payload)) + payload


def fact_record(fact: Fact, to_us: Callable[[float], int]) -> bytes:
    """A record of a fact.

    Args:
        to_us: turns the registry's time into microseconds since 1970.
    """
    kind = type(fact)
    own = {name: getattr(fact, name) for name in _OWN[kind]}
    return record(Kind.FACT, {"kind": _NAMES[kind], "number": fact.number, "at": to_us(fact.at), **own})


def chunk_records(seq: int, chunk: memoryview) -> Iterator[bytes | memoryview]:
    """The records of a chunk, in parts that may be written one after the other: no byte is copied."""
    for start in range(0, len(chunk), MAX_CHUNK):
        part = chunk[start : start + MAX_CHUNK]
        yield _HEAD.pack(Kind.BYTES, _SEQ.size + len(part)) + _SEQ.pack(seq)
        yield part


class Parser:
    """Takes a feed apart, as its bytes come.

    Args:
        channel: of the facts. to_time: turns microseconds since 1970 into the registry's time.
    """

    def __init__(self, channel: str, to_time: Callable[[int], float]) -> None:
        self.epoch = 0  # the reader sets it when the feed has begun
        self._channel, self._to_time = channel, to_time
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that are whole with these bytes.

        Raises:
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
                yield self._record(kind, payload)
        finally:
            del self._buffer[:at]

    def _record(self, number: int, payload: bytes) -> Record:
        try:
            kind = Kind(number)
            if kind is Kind.BYTES:
                return Record(kind, seq=_SEQ.unpack_from(payload)[0], chunk=payload[_SEQ.size :])
            about = orjson.loads(payload)
            return Record(kind, fact=self._fact(about)) if kind is Kind.FACT else Record(kind, about)
        except (ValueError, KeyError, TypeError, StructError) as error:
            raise FeedError(f"a record that cannot be read: {error}") from error

    def _fact(self, about: dict[str, Any]) -> Fact:
        kind = _KINDS[about["kind"]]
        own = [_ENUMS.get(name, _same)(about[name]) for name in _OWN[kind]]
        return kind(0, about["number"], self._to_time(about["at"]), self._channel, self.epoch, *own)


def _same(value: Any) -> Any:
    return value
