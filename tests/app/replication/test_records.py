"""Records, and what is no record: nothing of a wrong type or size gets past the parser."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pytest

from tricklecast.app.core.facts import (
    BodyBegun,
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    NumberingNamed,
    SegmentClosed,
    SegmentEvicted,
)
from tricklecast.app.core.segment import State
from tricklecast.app.core.state import MAX_LIVES
from tricklecast.app.core.window import Eviction
from tricklecast.app.replication.records import (
    MAX_CHUNK,
    MAX_KEY,
    Beat,
    Begin,
    End,
    FeedEnd,
    FeedError,
    HeldSegment,
    Hello,
    Parser,
    Record,
    RecordKind,
    SegmentBytes,
    SnapshotOver,
    chunk_records,
    fact_record,
    record,
)

BEGIN: Final = Begin("x", 1, True)

HELLO: Final = {"version": 1, "channel": "c", "instance": "x", "epoch": 1, "have": []}


def _begin(**more: object) -> dict[str, object]:
    return {"version": 1, "instance": "x", "epoch": 1, "fresh": True, **more}


def raw(kind: int, payload: Any) -> bytes:
    """A record of anything."""
    data = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    return bytes([kind]) + len(data).to_bytes(4, "big") + data


def parse(data: bytes) -> list[Record]:
    """The records of one connection."""
    return list(Parser("c", lambda at_us: at_us / 1e6).feed(data))


@pytest.mark.parametrize(
    "message",
    [
        Hello("c", "", 0, ()),
        Hello("c", "x", 2, (HeldSegment(0, 7, State.COMPLETE), HeldSegment(1, 0, State.WAITING))),
        Hello("c", "", 0, (), checksums=True),
        BEGIN,
        Begin("x", 1, True, ()),
        Begin("x", 1, False, (("a-B.9", 0), ("b", 7))),
        SnapshotOver(3, 100),
        End(FeedEnd.LAG),
        Beat(),
    ],
)
def test_a_message_comes_as_it_was_sent(message: Hello | Begin | SnapshotOver | End | Beat) -> None:
    """Of each kind but facts and chunks."""
    assert parse(record(message)) == [message]


@pytest.mark.parametrize(
    "fact",
    [
        ChannelCreated(0, 1, 2.5, "c", 1, "video/mp2t", "n.1"),
        NumberingNamed(0, 2, 2.5, "c", 1, "n.1", 7),
        BodyBegun(0, 0, 2.5, "c", 1, 7, "k" * MAX_KEY, 0),
        SegmentClosed(0, 3, 2.5, "c", 1, 7, State.TRUNCATED, 9, None),
        SegmentEvicted(0, 4, 2.5, "c", 1, 7, Eviction.AGE),
        ChannelEnded(0, 5, 2.5, "c", 1, 8, EndReason.IDLE),
    ],
)
def test_a_fact_comes_as_it_was_sent(fact: Fact) -> None:
    """With the epoch of its feed; its index is the owner's own."""
    assert parse(record(BEGIN) + fact_record(fact, lambda at: round(at * 1e6)))[1] == fact


def test_a_peer_names_no_more_numberings_than_are_remembered() -> None:
    """The newest ones. Older peers name none, and are not told of any."""
    lives = tuple((f"n{number}", number) for number in range(MAX_LIVES + 1))
    assert parse(record(Begin("x", 1, True, lives))) == [Begin("x", 1, True, lives[1:])]
    assert b"lives" not in record(BEGIN)


def test_a_checksum_is_that_of_one_fact() -> None:
    """The next one has none, unless it says so; and without one nothing is sent that older peers do not know."""
    parser = Parser("c", float)
    closed = SegmentClosed(0, 1, 0.0, "c", 1, 7, State.COMPLETE, 4, None)
    seen = [parser.crc for _ in parser.feed(record(BEGIN) + fact_record(closed, int, 9) + fact_record(closed, int))]
    assert seen == [None, 9, None]
    assert b"crc" not in fact_record(closed, int)
    assert b"checksums" not in record(Hello("c", "", 0, ()))
    with pytest.raises(FeedError, match="'9' is no number"):
        parse(record(BEGIN) + raw(RecordKind.FACT, {"kind": "BodyLeft", "number": 1, "at": 0, "seq": 0, "crc": "9"}))


def test_a_long_chunk_comes_in_parts() -> None:
    """None of them is empty."""
    data = b"".join(chunk_records(7, memoryview(b"x" * MAX_CHUNK + b"y")))
    assert parse(data) == [SegmentBytes(7, b"x" * MAX_CHUNK), SegmentBytes(7, b"y")]


def test_a_record_may_come_in_pieces() -> None:
    """Byte by byte it is the same."""
    parser = Parser("c", float)
    data = record(BEGIN) + record(End(FeedEnd.LAG))
    found = [one for at in range(len(data)) for one in parser.feed(data[at : at + 1])]
    assert found == [BEGIN, End(FeedEnd.LAG)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "a record of .* bytes; 1048576 are allowed"),
        (raw(9, b""), "9 is not a valid RecordKind"),
        (raw(RecordKind.BYTES, b"x"), "a record that cannot be read"),
        (raw(RecordKind.BYTES, bytes(8)), "a chunk of no byte"),
        (raw(RecordKind.HELLO, b"{"), "a record that cannot be read"),
        (raw(RecordKind.HELLO, []), "a record that cannot be read"),
        (raw(RecordKind.HELLO, b"[" * 2000), "a record that cannot be read"),
        (raw(RecordKind.HELLO, HELLO | {"version": 99}), "does not speak version 1 of the feed: run the same release"),
        (raw(RecordKind.HELLO, HELLO | {"have": 7}), "a record that cannot be read"),
        (raw(RecordKind.HELLO, HELLO | {"have": [[0, 1]]}), "a record that cannot be read"),
        (raw(RecordKind.HELLO, HELLO | {"have": [[0, "1", "open"]]}), "'1' is no number"),
        (raw(RecordKind.HELLO, HELLO | {"have": [[-1, 1, "open"]]}), "-1 is no number"),
        (raw(RecordKind.HELLO, HELLO | {"have": [[True, 1, "open"]]}), "True is no number"),
        (raw(RecordKind.HELLO, HELLO | {"have": [[1 << 63, 1, "open"]]}), "is no number"),
        (raw(RecordKind.HELLO, HELLO | {"have": [[0, 1, []]]}), "a record that cannot be read"),
        (raw(RecordKind.HELLO, HELLO | {"channel": None}), "None is no text"),
        (raw(RecordKind.BEGIN, {"version": 1, "instance": "x", "epoch": 0, "fresh": True}), "without an epoch"),
        (record(BEGIN) * 2, "it begins twice"),
        (raw(RecordKind.BEGIN, {"version": 1, "instance": "x", "epoch": 1}), "'fresh'"),
        (raw(RecordKind.BEGIN, _begin(lives=7)), "a record that cannot be read"),
        (raw(RecordKind.BEGIN, _begin(lives=[["a"]])), "a record that cannot be read"),
        (raw(RecordKind.BEGIN, _begin(lives=[[["a"], 0]])), "is no name of a numbering"),
        (raw(RecordKind.BEGIN, _begin(lives=[["a b", 0]])), "'a b' is no name of a numbering"),
        (raw(RecordKind.BEGIN, _begin(lives=[["a", -1]])), "-1 is no number"),
        (raw(RecordKind.SNAPSHOT_OVER, {"facts": 1, "bytes_in": 1.5}), "1.5 is no number"),
        (raw(RecordKind.END, {"why": "so"}), "'so' is not a valid FeedEnd"),
        (raw(RecordKind.END, {}), "'why'"),
        (raw(RecordKind.FACT, {"kind": "Fact"}), "'Fact'"),
        (raw(RecordKind.FACT, {"kind": "BodyLeft", "number": 1, "at": "noon", "seq": 1}), "a time is a whole number"),
        (raw(RecordKind.FACT, {"kind": "BodyLeft", "number": 1, "at": 0, "seq": "1"}), "'1' is no number"),
        (
            raw(RecordKind.FACT, {"kind": "BodyBegun", "number": 1, "at": 0, "seq": 1, "key": "k" * 257, "body_at": 0}),
            "is no text of at most 256 characters",
        ),
        (
            raw(RecordKind.FACT, {"kind": "NumberingNamed", "number": 1, "at": 0, "name": "a\r\nb", "first": 0}),
            "is no name of a numbering",
        ),
    ],
)
def test_what_is_no_record(data: bytes, problem: str) -> None:
    """The error says what it is, and no other error comes out."""
    with pytest.raises(FeedError, match=problem):
        parse(data)
