"""Numberings over any number of restarts: what a reader holds is what the channel has, or the reader is told.

Servers are killed before they have stored all that readers have, and publishers go on, or leave the channel to others
who write the same numbers anew. The core and the subscriber's cursor are the real ones. Storage
is a list: each server leaves a prefix of what was written, with the numberings as they stood at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.app.core.support import Told
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry, Resolution, Restored
from tricklecast.app.core.results import Ahead, Gone, Refusal
from tricklecast.app.core.segment import Segment, State, Writer
from tricklecast.app.core.state import Lives, Ready, Upcoming
from tricklecast.subscriber.core import Cursor, Jump, NextSegment, OnLag
from tricklecast.trickle import wire
from tricklecast.trickle.backoff import RetryBudget
from tricklecast.trickle.client.exchange import Answer
from tricklecast.trickle.wire import Life, parse_life

LIMITS = Limits(window_segments=1000, overtaking_grace_s=0)
READERS = 4


@dataclass(eq=False)
class Publisher:
    """A publisher, as the client's core decides.

    Attributes:
        life: what its POSTs say; ``""`` if they say nothing. next: its next seq. sent: its segments. start: of the
            server, in which it has found its place. back: the seq from which on it could send again.
    """

    name: str
    life: str
    next: int
    start: int
    back: int
    sent: dict[int, str] = field(default_factory=dict)


class Reader:
    """A subscriber, with what it holds.

    Attributes:
        got: the newest form of each segment that it has read. told: whether it was told of a new numbering. at: the
            highest seq for which it has asked in the present one.
        is_lost: it follows a numbering that the server has lost with all of it.
    """

    def __init__(self, *, reads_all: bool) -> None:
        on_lag = None if reads_all else OnLag.LIVE
        self.cursor = Cursor(0, on_lag=on_lag, wait_for_channel_s=None, reconnect_s=None, budget=RetryBudget(9, 1000))
        self.reads_all = reads_all
        self.got: dict[int, str] = {}
        self.told = self.is_lost = False
        self.at = 0


class Stored:
    """The segments that a server before has stored."""

    def __init__(self, content: dict[int, str]) -> None:
        self._content = content

    def find(self, seq: int) -> Segment | None:
        """A stored segment."""
        if seq not in self._content:
            return None
        segment = Segment(seq)
        segment.restore(State.COMPLETE, 1, 0.0, 0.0)
        return segment

    def following(self, seq: int) -> int | None:
        """The next one that is stored."""
        return min((one for one in self._content if one >= seq), default=None)

    def listed(self, seq: int, since_us: int) -> Any:
        raise NotImplementedError

    def has(self, seq: int, opened_at: float) -> bool:
        raise NotImplementedError


class LivesMachine(RuleBasedStateMachine):
    """Drives one channel.

    Attributes:
        content: what the channel has, by seq: who wrote it. written: in this start, in order, with the numberings then.
        kept: the numberings that this start has found. top: the highest head that there ever was.
        all_named: whether all publishers so far have told the names of their numberings. epoch: of the channel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rng = Random(0)
        self.content: dict[int, str] = {}
        self.publishers: list[Publisher] = []
        self.count = self.starts = self.top = self.epoch = 0
        self.all_named = True
        self.readers = [Reader(reads_all=number % 2 == 0) for number in range(READERS)]
        self.kept: Lives = ()

    @initialize()
    def begin(self) -> None:
        """The first server."""
        self.start()

    def start(self) -> None:
        """A server starts on what is stored."""
        self.starts += 1
        self.written: list[tuple[int, str, Lives]] = []
        self.registry = Registry(LIMITS, autocreate=True, instance=f"s{self.starts}")
        if self.epoch:
            head = max(self.content, default=-1) + 1
            channel = self.registry.restore(Restored("c", self.epoch, "", head, 0.0, "", self.kept), 0.0)
            channel.retained = Stored(dict(self.content))

    @property
    def lives(self) -> Lives:
        channel = self.registry.channels.get("c")
        return () if channel is None else channel.lives

    # Publishers.
    #
    # All publishers of one start of the server have one numbering, so nobody can tell their segments apart. So when one
    # comes, the others are gone for good, and what was lost was sent again before (protocol.md, section 5, "Limit").

    def joins(self) -> bool:
        """Whether a publisher may come that does not go on with the channel's numbering."""
        channel = self.registry.live("c")
        if channel is not None and channel.life.first is not None and channel.next_seq < self.top:
            return False
        self.publishers = [one for one in self.publishers if one.start != self.starts]
        return True

    @property
    def head(self) -> int:
        channel = self.registry.live("c")
        return 0 if channel is None else channel.next_seq

    @rule(has_name=st.sampled_from([True, True, True, False]), segments=st.integers(1, 3))
    def begin_to_publish(self, has_name: bool, segments: int) -> None:
        """A publisher comes, and goes on at the head."""
        if self.joins():
            self.count += 1
            self.all_named &= has_name
            name, head = f"p{self.count}", self.head
            self.publishers.append(Publisher(name, str(Life(name, head)) if has_name else "", head, self.starts, head))
            self.publish(self.publishers[-1], segments)

    @precondition(lambda self: self.head)
    @rule(has_name=st.booleans(), segments=st.integers(1, 12))
    def begin_anew(self, has_name: bool, segments: int) -> None:
        """The channel ends, and another publisher begins its next epoch."""
        assert self.registry.end("c", 0.0) is None
        self.content, self.written, self.publishers = {}, [], []
        self.kept, self.top = (), 0
        for reader in self.readers:
            reader.is_lost = False
        self.begin_to_publish(has_name, segments)

    @precondition(lambda self: self.publishers)
    @rule(data=st.data(), segments=st.integers(1, 3), again=st.integers(0, 2))
    def go_on(self, data: st.DataObject, segments: int, again: int) -> None:
        """A publisher goes on; after a restart it sends up to two segments again."""
        publisher = data.draw(st.sampled_from(self.publishers))
        if publisher.start != self.starts:
            life = self.registry.channels["c"].life if self.head else Life("")
            is_anothers = life.first is not None and life.name != publisher.life.partition(":")[0]
            if is_anothers and (self.head < publisher.next or not self.joins()):
                return
            if self.head > publisher.next:
                self.publishers.remove(publisher)  # superseded
                return
            publisher.start = self.starts
            publisher.next = publisher.back = max(self.head, publisher.next - again, publisher.back)
        self.publish(publisher, segments)

    def publish(self, publisher: Publisher, segments: int) -> None:
        for _ in range(segments):
            seq, claim = publisher.next, parse_life(publisher.life) if publisher.life else None
            writer = self.registry.reserve("c", seq, Told(), 0.0, claim=claim)
            if not isinstance(writer, Writer):
                self.publishers.remove(publisher)
                return
            channel = writer.channel
            data = publisher.sent.setdefault(seq, f"{publisher.name}/{seq}")
            channel.finish(writer, [data.encode()], 0.0)
            publisher.next += 1
            publisher.life = publisher.life and str(channel.life)
            self.content[seq] = data
            self.epoch = channel.epoch
            self.top = max(self.top, seq + 1)
            self.written.append((seq, data, channel.lives))

    # Readers.

    @rule(number=st.integers(0, READERS - 1), most=st.integers(1, 12))
    def read(self, number: int, most: int) -> None:
        """A reader makes some requests."""
        self.requests(self.readers[number], most)

    def requests(self, reader: Reader, most: int) -> bool:
        """Make so many requests at most; returns whether the reader has come to the head, or waits for it."""
        for _ in range(most):
            ask = reader.cursor.ask()
            assert ask.seq is not None
            reader.at = max(reader.at, ask.seq)
            found = self.registry.resolve("c", ask.seq)
            if (follows := parse_life(ask.life or "")) is not None and not isinstance(found, Refusal):
                found = self.registry.channels["c"].renumbered(follows, ask.seq, found, ask.epoch) or found
            if isinstance(found, Upcoming):
                found.channel.release(found.segment)
                return True
            decision = reader.cursor.answered(answer(found), 0.0, self.rng)
            if isinstance(decision, NextSegment):
                self.take(reader, decision)
            elif not isinstance(decision, Jump):
                return True  # it waits: for the channel, or for its publisher to send again what was lost
        return False

    def take(self, reader: Reader, segment: NextSegment) -> None:
        reader.cursor.finished()
        if segment.restarted:
            changed = any(seq < reader.at and reader.got.get(seq) != data for seq, data in self.content.items())
            first = segment.seq - segment.gap
            has_hole = any(seq not in self.content for seq in range(first, segment.seq))  # of a segment that is lost
            is_known = self.all_named and not (reader.is_lost or has_hole)
            assert changed or not is_known, "a numbering that goes on does not begin anew"
            reader.got = {seq: data for seq, data in reader.got.items() if reader.reads_all and seq < first}
            reader.told, reader.at = True, 0
        if not segment.empty:
            reader.got[segment.seq] = self.content[segment.seq]

    @rule()
    def compare(self) -> None:
        """All readers catch up: each has what the channel has, or was told."""
        for number, reader in enumerate(self.readers):
            assert self.requests(reader, 500)
            channel = self.registry.channels.get("c")
            if channel is None or reader.cursor.ask().seq != channel.next_seq or reader.cursor._numbering.restarted:
                continue  # it waits for what was lost, or is told with its next segment
            wanted = self.content if reader.reads_all else self.content.keys() & reader.got.keys()
            wrong = {seq: (reader.got.get(seq), self.content[seq]) for seq in wanted}
            wrong = {seq: (got, there) for seq, (got, there) in wrong.items() if got != there}
            if wrong:
                assert reader.is_lost, f"reader {number} was not told: {wrong}, {channel.lives}"
                assert reader.told, f"reader {number} was not told: {wrong}, {channel.lives}"
                self.readers[number] = Reader(reads_all=reader.reads_all)
            else:
                reader.is_lost = False

    # Kills.

    @rule(lost=st.integers(0, 4))
    def kill(self, lost: int) -> None:
        """The server is killed before it has stored the last segments."""
        stored = self.written[: max(0, len(self.written) - lost)]
        for seq, _, _ in self.written[len(stored) :]:
            del self.content[seq]
        self.kept = stored[-1][2] if stored else self.kept
        names = {name for name, _ in self.kept}
        for reader in self.readers:
            known = reader.cursor._numbering
            if known.epoch in (None, self.epoch) and known.life not in (None, *names):
                reader.is_lost, reader.told = True, False
        self.start()


def answer(found: Resolution) -> Answer:
    """The head of an answer, as far as it tells about seqs."""
    headers: dict[str, object]
    match found:
        case Ready():
            channel, segment = found.channel, found.segment
            life = channel.life_of(segment.seq)
            headers = {wire.SEQ: segment.seq, wire.LATEST: found.head, wire.EPOCH: channel.epoch, wire.LIFE: life}
            return Answer(200, {name: str(value) for name, value in headers.items()}, empty=not segment.size)
        case Ahead() | Gone():
            headers = {
                wire.SEQ: found.seq,
                wire.LATEST: found.head,
                wire.EARLIEST: found.earliest,
                wire.EPOCH: found.epoch,
                wire.LIFE: found.life,
            }
            if isinstance(found, Gone):
                headers[wire.NEXT] = found.following
            return Answer(470, {name: str(value) for name, value in headers.items()})
    return Answer(404, {})


CI = settings(max_examples=150, stateful_step_count=40, deadline=None)

TestLives = LivesMachine.TestCase
TestLives.settings = CI


@pytest.mark.long
def test_no_rewritten_segment_is_missed_in_any_history() -> None:
    """Tens of thousands of histories."""
    run_state_machine_as_test(LivesMachine, settings=settings(CI, max_examples=30_000))
