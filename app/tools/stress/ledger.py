"""The comparison of what publishers sent with what subscribers received. It has no clock and does no I/O.

Records of different processes come in any order. Those of one publisher or one subscriber come in the order of events.
The ledger forgets a segment when all subscribers of its channel are past it. So memory grows with the distance between
the slowest subscriber and its publisher, and with the number of faults, not with the length of the run.

The ledger knows a segment by its ordinal, which is written into it (:class:`~.load.Marker`), and not by its seq. So the
same bytes under two seqs are a doubled segment, and two swapped segments are reordered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from tricklecast.app.tools.stress.messages import Left, Received, Record, Sent

EXAMPLES: Final = 5
"""Limit of examples for each kind of fault. All others are only counted."""

MAX_REPORTED: Final = 1_000_000
"""Limit of missed segments that a subscriber may report at once: a faulty server must not fill the memory."""

_MAX_US: Final = 3_600_000_000
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of durations, in milliseconds; all 0 without samples."""

    samples: int
    p50: float
    p95: float
    p99: float
    max: float


class Latencies:
    """A histogram of durations from 1 µs to 1 hour. Quantiles are exact to 0.1 %, the maximum to 1 µs."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, _MAX_US, _DIGITS)

    def add(self, ns: int) -> None:
        """Count a duration in nanoseconds. One below 0 counts as 0, since clocks of two processors may differ."""
        self._histogram.record_value(min(max(0, ns // 1000), _MAX_US))

    def quantiles(self) -> Quantiles:
        """The quantiles of all durations so far."""
        values = self._histogram.get_percentile_to_value_dict([50, 95, 99])
        samples, largest = self._histogram.get_total_count(), self._histogram.max_value
        p50, p95, p99 = (min(values.get(percent, 0), largest) / 1000 for percent in (50, 95, 99))
        return Quantiles(samples, p50, p95, p99, largest / 1000)


class Fault(StrEnum):
    """A kind of fault. The value is its name in reports."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Fault:
        """A member with its meaning, for people."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    SILENT = "missing without a word", "the server stored it and never delivered it, and the subscriber reported no gap"
    MISSING = "missing", "the server stored it and did not deliver it; the subscriber reported a gap"
    DOUBLED = "doubled", "delivered a second time"
    REORDERED = "reordered", "delivered after a later one"
    DIFFERING = "differing", "delivered as whole, with other bytes than were published"
    TRUNCATED = "truncated", "stored whole, delivered in part, marked as such by the server"
    BROKEN = "broken", "delivered in part: the connection was cut"
    FALSE_GAP = "gap reported for what came", "the subscriber reported it missing although it came"
    UNPUBLISHED = "not stored", "the publisher was told, or found, that the server does not have it whole"
    PUBLISHER_FAILED = "publisher failed", "it gave up before the end of the run"
    SUBSCRIBER_FAILED = "subscriber failed", "it gave up before the end of its channel, or did not reach it in time"


class Faults:
    """Counts faults, and keeps the first examples of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[Fault] = Counter()
        self.examples: dict[Fault, list[str]] = {}

    def add(self, fault: Fault, where: str) -> None:
        """Count a fault.

        Args:
            fault: its kind.
            where: the segment, its channel and its subscriber, for people.
        """
        self.counts[fault] += 1
        known = self.examples.setdefault(fault, [])
        if len(known) < EXAMPLES:
            known.append(where)

    def __bool__(self) -> bool:
        return bool(self.counts)


class Place(Enum):
    """The place of a received segment among those before it."""

    IN_ORDER = "after all of them"
    LATE = "a later segment came first"
    REPEATED = "it came before"


class _Subscriber:
    """The position of a subscriber in its channel.

    Args:
        name: for people.

    Attributes:
        expected: the ordinal after the newest received one.
        holes: older ordinals that have not come.
        gone: it reads no more.
        failed: an error ended it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.expected = 0
        self.holes: set[int] = set()
        self.gone = False
        self.failed = False
        self._reported: list[range] = []
        self._last_seq = -1

    def received(self, seq: int, gap: int) -> None:
        """A segment came, and the library reported this number of missed segments before it."""
        self._report(max(0, seq - min(gap, MAX_REPORTED)), seq)
        self._last_seq = seq

    def place(self, ordinal: int) -> Place:
        """Note the segment with this ordinal, and return its place."""
        if ordinal >= self.expected:
            self.holes.update(range(self.expected, ordinal))
            self.expected = ordinal + 1
            return Place.IN_ORDER
        if ordinal in self.holes:
            self.holes.remove(ordinal)
            return Place.LATE
        return Place.REPEATED

    def leave(self, missed: int, *, failed: bool) -> None:
        """The subscriber has ended.

        Args:
            missed: number of segments after the last received one that the library reported as missed.
            failed: an error ended it.
        """
        self._report(self._last_seq + 1, self._last_seq + 1 + min(missed, MAX_REPORTED))
        self.gone, self.failed = True, failed

    def reported(self) -> set[int]:
        """The seqs that the library reported as missed."""
        return {seq for reported in self._reported for seq in reported}

    def _report(self, first: int, end: int) -> None:
        if first < end:
            self._reported.append(range(first, end))


class _Channel:
    """One channel.

    Args:
        name: for people.
        subscribers: number of its subscribers.

    Attributes:
        subscribers: its subscribers.
        sent: the publisher's records that some subscribers are not past, by ordinal.
        failed: ordinals that the server does not store.
        count: one more than the newest ordinal that the publisher has reported.
    """

    def __init__(self, name: str, subscribers: int) -> None:
        self.name = name
        self.subscribers = [_Subscriber(f"subscriber {number} of {name}") for number in range(subscribers)]
        self.sent: dict[int, Sent] = {}
        self.failed: set[int] = set()
        self.count = 0
        self._early: dict[int, list[Received]] = {}
        self._forgotten = 0
        # Pairs (ordinal, seq - ordinal from there on). The difference changes when a publisher loses its position.
        self._shifts: list[tuple[int, int]] = [(0, 0)]

    def add(self, sent: Sent) -> list[Received]:
        """Note the publisher's record of a segment; returns the subscribers' records that came before it."""
        self.count = max(self.count, sent.ordinal + 1)
        if not self.is_forgotten(sent.ordinal):
            self.sent[sent.ordinal] = sent
        if sent.error:
            self.failed.add(sent.ordinal)
        if sent.seq >= 0 and self.seq(sent.ordinal) != sent.seq:
            self._shifts.append((sent.ordinal, sent.seq - sent.ordinal))
            self._shifts.sort()
        return self._early.pop(sent.ordinal, [])

    def keep(self, ordinal: int, received: Received) -> None:
        """Keep a subscriber's record until the publisher's record of the segment comes."""
        self._early.setdefault(ordinal, []).append(received)

    def early(self) -> Iterator[Received]:
        """The kept records of subscribers."""
        return (received for records in self._early.values() for received in records)

    def seq(self, ordinal: int) -> int:
        """The seq of a published segment, by the records so far."""
        return ordinal + next(shift for begins, shift in reversed(self._shifts) if begins <= ordinal)

    def ordinal(self, seq: int) -> int:
        """The ordinal of a published segment, by the records so far."""
        return next((seq - shift for begins, shift in reversed(self._shifts) if begins <= seq - shift), seq)

    def is_used(self, seq: int) -> bool:
        """Whether a segment was published under this seq. A publisher that loses its position skips some."""
        ordinal = self.ordinal(seq)
        return ordinal < self.count and self.seq(ordinal) == seq

    def is_forgotten(self, ordinal: int) -> bool:
        """Whether the ledger has dropped the publisher's record."""
        return ordinal < self._forgotten

    def forget(self) -> None:
        """Drop the publisher's records that all subscribers are past."""
        slowest = min((reader.expected for reader in self.subscribers if not reader.gone), default=self.count)
        end = min(slowest, self.count)
        for ordinal in range(self._forgotten, end):
            self.sent.pop(ordinal, None)
        self._forgotten = max(self._forgotten, end)

    def ahead(self, reader: _Subscriber) -> Iterator[int]:
        """The ordinals of stored segments after the newest one that a subscriber has."""
        return (ordinal for ordinal in range(reader.expected, self.count) if ordinal not in self.failed)


@dataclass
class Traffic:
    """The sums of one side.

    Attributes:
        segments, bytes: number of stored, or of wholly delivered, segments and bytes.
        wanted: number of segments that should have been stored or delivered.
        counts: the sums of the libraries' own statistics.
    """

    segments: int = 0
    bytes: int = 0
    wanted: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def add_counts(self, counts: dict[str, int]) -> None:
        """Add one library's statistics."""
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number


class Ledger:
    """The comparison of one run.

    Args:
        channels: names of the channels, in the order of their numbers.
        subscribers: number of subscribers of each.
        segments: limit of segments on each.

    Attributes:
        faults: the faults so far.
        published, received: the sums of both sides.
        first_byte: from the time at which a segment's first chunk was due to its arrival at a subscriber.
        whole: from the time at which its last chunk was due to the arrival of its end.
        behind: the delay of writing behind the schedule.
    """

    def __init__(self, channels: list[str], subscribers: int, segments: int) -> None:
        self._segments = segments
        self._channels = [_Channel(name, subscribers) for name in channels]
        self.faults = Faults()
        self.published, self.received = Traffic(), Traffic()
        self.first_byte, self.whole, self.behind = Latencies(), Latencies(), Latencies()

    def add(self, record: Record) -> None:
        """Take one record in."""
        channel = self._channels[record.channel]
        match record:
            case Sent():
                self._sent(channel, record)
            case Received():
                self._received(channel, channel.subscribers[record.number], record)
            case Left():
                self._left(channel, record)

    @property
    def caught_up(self) -> bool:
        """Whether all subscribers that still read have the newest stored segment."""
        return all(
            reader.gone or next(channel.ahead(reader), None) is None
            for channel in self._channels
            for reader in channel.subscribers
        )

    def close(self) -> None:
        """Count the missing segments. No record may follow."""
        for channel in self._channels:
            for received in channel.early():
                where = f"segment {received.seq} of {channel.name}: no publisher reported it"
                self.faults.add(Fault.DIFFERING, where)
            for reader in channel.subscribers:
                self.received.wanted += channel.count - len(channel.failed)
                self._settle(channel, reader)

    def _sent(self, channel: _Channel, sent: Sent) -> None:
        self.published.wanted += 1
        self.behind.add(sent.behind_ns)
        if sent.error:
            which = f"segment {sent.seq}" if sent.seq >= 0 else "a segment"
            self.faults.add(Fault.UNPUBLISHED, f"{which} of {channel.name}: {sent.error}")
        else:
            self.published.segments += 1
            self.published.bytes += sent.size
        for received in channel.add(sent):
            self._compare(channel, received, sent)
        channel.forget()

    def _received(self, channel: _Channel, reader: _Subscriber, received: Received) -> None:
        reader.received(received.seq, received.gap)
        ordinal = received.ordinal
        if ordinal < 0:
            if not received.size and not received.flaw:
                return  # an empty segment; if it was published with bytes, it counts as missing in the end
            ordinal = channel.ordinal(received.seq)
        if ordinal >= self._segments:
            self.faults.add(Fault.DIFFERING, f"{_where(channel, received)}: no such segment is published")
            return
        match reader.place(ordinal):
            case Place.REPEATED:
                self.faults.add(Fault.DOUBLED, _where(channel, received))
                return
            case Place.LATE:
                self.faults.add(Fault.REORDERED, _where(channel, received))
        if (sent := channel.sent.get(ordinal)) is not None:
            self._compare(channel, received, sent)
        elif not channel.is_forgotten(ordinal):
            channel.keep(ordinal, received)

    def _compare(self, channel: _Channel, received: Received, sent: Sent) -> None:
        if received.flaw:
            if not sent.error:
                flaw = Fault.BROKEN if received.flaw == "broken" else Fault.TRUNCATED
                self.faults.add(flaw, f"{_where(channel, received)}: {received.size} of {sent.size} bytes")
        elif received.digest != sent.digest:
            detail = f"{received.size} bytes for {sent.size}" if received.size != sent.size else f"{sent.size} bytes"
            self.faults.add(Fault.DIFFERING, f"{_where(channel, received)}: {detail}")
        else:
            self.received.segments += 1
            self.received.bytes += received.size
            self.first_byte.add(received.first_ns - sent.first_due_ns)
            self.whole.add(received.last_ns - sent.last_due_ns)

    def _left(self, channel: _Channel, left: Left) -> None:
        if left.role == "publisher":
            self.published.add_counts(left.counts)
            if left.error:
                self.faults.add(Fault.PUBLISHER_FAILED, f"publisher of {channel.name}: {left.error}")
            return
        self.received.add_counts(left.counts)
        reader = channel.subscribers[left.number]
        reader.leave(left.missed, failed=bool(left.error))
        if left.error:
            self.faults.add(Fault.SUBSCRIBER_FAILED, f"{reader.name}: {left.error}")

    def _settle(self, channel: _Channel, reader: _Subscriber) -> None:
        """Count the segments that one subscriber missed, and whether its library reported them."""
        holes = (ordinal for ordinal in reader.holes - channel.failed if ordinal < channel.count)
        missing = {channel.seq(ordinal) for ordinal in holes}
        rest = {channel.seq(ordinal) for ordinal in channel.ahead(reader)}
        failed = {channel.seq(ordinal) for ordinal in channel.failed}
        reported = reader.reported()
        for seq in sorted(missing | rest):
            known = seq in reported or (reader.failed and seq in rest)
            self.faults.add(Fault.MISSING if known else Fault.SILENT, f"segment {seq}, {reader.name}")
        for seq in sorted(reported - missing - rest - failed):
            if channel.is_used(seq):
                self.faults.add(Fault.FALSE_GAP, f"segment {seq}, {reader.name}")


def _where(channel: _Channel, received: Received) -> str:
    return f"segment {received.seq}, {channel.subscribers[received.number].name}"
