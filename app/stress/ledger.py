"""Compares what was published with what was received. No I/O, no clock.

Records come in any order between processes, but each publisher's and each subscriber's own come in the order in which
things happened to it. What is kept of a segment is forgotten as soon as all who read the channel are past it: memory
grows with the distance between the slowest subscriber and its publisher, and with the number of faults, not with the
length of the run.

A segment is known by its ordinal, which is written into it (see :mod:`trickle.stress`), not by the seq
under which it
came: so the same bytes under two seqs are a doubled segment, and two swapped ones are reordered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tricklecast.app.stress.accounts import Channel, Place, Reader
from tricklecast.app.stress.faults import Fault, Faults
from tricklecast.app.stress.histogram import Histogram
from tricklecast.trickle.stress import Left, Received, Record, Sent


@dataclass
class Traffic:
    """One side's sums.

    Attributes:
        segments, bytes: how many were stored, or delivered whole.
        wanted: how many there should have been.
        counts: the libraries' own statistics, added up.
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
    """The account of one run.

    Args:
        channels: their names, in the order of their numbers.
        subscribers: how many read each.
        segments: how many are published on each, at most.

    Attributes:
        faults: what went wrong.
        published, received: sums of both sides.
        first_byte: from when a segment's first chunk was due to when a subscriber had it.
        whole: from when its last chunk was due to when a subscriber had its end.
        behind: how far behind the schedule segments were written.
    """

    def __init__(self, channels: list[str], subscribers: int, segments: int) -> None:
        self._segments = segments
        self._channels = [Channel(name, subscribers) for name in channels]
        self.faults = Faults()
        self.published, self.received = Traffic(), Traffic()
        self.first_byte, self.whole, self.behind = Histogram(), Histogram(), Histogram()

    def add(self, record: Record) -> None:
        """Take one record in."""
        channel = self._channels[record.channel]
        match record:
            case Sent():
                self._sent(channel, record)
            case Received():
                self._received(channel, channel.readers[record.number], record)
            case Left():
                self._left(channel, record)

    @property
    def caught_up(self) -> bool:
        """Whether all subscribers that still read have come to the newest segment that is stored."""
        return all(
            reader.gone or next(_unseen(channel, reader), None) is None
            for channel in self._channels
            for reader in channel.readers
        )

    def close(self) -> None:
        """No record follows: what has not come is missing."""
        for channel in self._channels:
            for received in channel.early():
                where = f"segment {received.seq} of {channel.name}: nobody says that it was published"
                self.faults.add(Fault.DIFFERING, where)
            for reader in channel.readers:
                self.received.wanted += channel.count - len(channel.failed)
                self._settle(channel, reader)

    def _sent(self, channel: Channel, sent: Sent) -> None:
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

    def _received(self, channel: Channel, reader: Reader, received: Received) -> None:
        reader.hear(received.seq, received.gap)
        ordinal = received.ordinal
        if ordinal < 0:
            if not received.size and not received.flaw:
                return  # the server says that there is nothing in it; if there should be, it is missing
            ordinal = channel.ordinal(received.seq)
        if ordinal >= self._segments:
            self.faults.add(Fault.DIFFERING, f"{_where(channel, received)}: no such segment is published")
            return
        match reader.place(ordinal):
            case Place.AGAIN:
                self.faults.add(Fault.DOUBLED, _where(channel, received))
                return
            case Place.LATE:
                self.faults.add(Fault.REORDERED, _where(channel, received))
        if (sent := channel.sent.get(ordinal)) is not None:
            self._compare(channel, received, sent)
        elif not channel.is_forgotten(ordinal):
            channel.wait(ordinal, received)

    def _compare(self, channel: Channel, received: Received, sent: Sent) -> None:
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

    def _left(self, channel: Channel, left: Left) -> None:
        if left.role == "publisher":
            self.published.add_counts(left.counts)
            if left.error:
                self.faults.add(Fault.PUBLISHER_FAILED, f"publisher of {channel.name}: {left.error}")
            return
        self.received.add_counts(left.counts)
        reader = channel.readers[left.number]
        reader.leave(left.missed, failed=bool(left.error))
        if left.error:
            self.faults.add(Fault.SUBSCRIBER_FAILED, f"{reader.name}: {left.error}")

    def _settle(self, channel: Channel, reader: Reader) -> None:
        """Count what one subscriber has missed, and whether it knows."""
        holes = (ordinal for ordinal in reader.holes - channel.failed if ordinal < channel.count)
        missing = {channel.seq(ordinal) for ordinal in holes}
        rest = {channel.seq(ordinal) for ordinal in _unseen(channel, reader)}
        failed = {channel.seq(ordinal) for ordinal in channel.failed}
        told = reader.told()
        for seq in sorted(missing | rest):
            knows = seq in told or (reader.failed and seq in rest)
            self.faults.add(Fault.MISSING if knows else Fault.SILENT, f"segment {seq}, {reader.name}")
        for seq in sorted(told - missing - rest - failed):
            if channel.is_used(seq):
                self.faults.add(Fault.FALSE_GAP, f"segment {seq}, {reader.name}")


def _unseen(channel: Channel, reader: Reader) -> Iterator[int]:
    """The ordinals after the newest one that a subscriber has, as far as they are stored."""
    return (ordinal for ordinal in range(reader.expected, channel.count) if ordinal not in channel.failed)


def _where(channel: Channel, received: Received) -> str:
    return f"segment {received.seq}, {channel.readers[received.number].name}"
