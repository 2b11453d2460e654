"""Fakes around the core: who is told, who is woken, and short ways to publish and read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from tricklecast.app.core.facts import ChannelCreated, Fact, Journal
from tricklecast.app.core.invariants import check_channel
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry, Storage
from tricklecast.app.core.results import Ending, Outcome, Refusal
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import (
    FRAME_COST,
    SEGMENT_COST,
    Event,
    OnFault,
    Segment,
    State,
    Writer,
    encode_frame,
)
from tricklecast.app.core.state import Channel, Ready, SegmentSummary, Upcoming
from tricklecast.app.core.window import Budget
from tricklecast.trickle.paths import is_reserved


class Told:
    """A writer's owner that remembers what it was told."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def preempted(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def verdicts(self) -> list[Ending]:
        return [outcome.ending for outcome in self.outcomes]


class Watcher:
    """A cursor that counts its wakes and remembers whether the segment was closed at the last one."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.wakes = 0
        self.saw_close = False

    def wake(self) -> None:
        self.wakes += 1
        self.saw_close = self.segment.closed

    def evict(self) -> None:
        raise AssertionError("nobody is short of memory here")


class Leaver(Watcher):
    """A cursor that leaves as soon as it is told to."""

    def __init__(self, registry: Registry, channel: OwnedChannel, segment: Segment) -> None:
        super().__init__(segment)
        self._registry = registry
        self._channel = channel
        self.evicted = False
        registry.attach(self, channel, segment)

    def evict(self) -> None:
        self.evicted = True
        self._registry.detach(self, self._channel, self.segment)


class Bench:
    """One channel without a registry, with everything that it reports.

    Attributes:
        channel, budget: under test.
        journal: of the server. facts: what it reported.
        appointments: times at which the channel wants to be looked at.
        told: the owner of each writer.
    """

    def __init__(
        self, name: str = "c", content_type: str = "video/mp2t", on_fault: OnFault | None = None, **limits: Any
    ) -> None:
        self.limits = Limits(**limits)
        self.facts: list[Fact] = []
        self.appointments: list[float] = []
        self.told: dict[Writer[OwnedChannel], Told] = {}
        self.journal = journal = Journal()
        self.faults = journal.faults
        if on_fault is not None:
            self.faults.deliver_to(on_fault)
        self.budget = Budget(self.limits.total_bytes, self.faults)
        self.channel = OwnedChannel(
            name,
            1,
            content_type,
            0.0,
            limits=self.limits,
            budget=self.budget,
            journal=journal,
            schedule=lambda channel, when: self.appointments.append(when),
        )
        self.channel.follow(self.facts.append)
        self._serials = count(1)

    def ask(self, seq: int, now: float = 0.0, **options: Any) -> Any:
        """Ask to write a segment, as a POST does; return the writer or the refusal."""
        told = Told()
        answer = self.channel.reserve(seq, told, next(self._serials), now, **options)
        if isinstance(answer, Writer):
            self.told[answer] = told
        return answer

    def reserve(self, seq: int, now: float = 0.0, **options: Any) -> Writer[OwnedChannel]:
        """A POST that must be granted."""
        writer = self.ask(seq, now, **options)
        assert isinstance(writer, Writer), writer
        return writer

    def open(self, seq: int, data: bytes = b"x", now: float = 0.0, **options: Any) -> Writer[OwnedChannel]:
        """A POST whose first bytes have come."""
        writer = self.reserve(seq, now, **options)
        assert self.channel.append(writer, [data], now) is None
        return writer

    def publish(self, seq: int, data: bytes = b"x", now: float = 0.0, **options: Any) -> Segment:
        """A POST from beginning to end; no data makes an empty segment."""
        writer = self.reserve(seq, now, **options)
        self.channel.finish(writer, [data] if data else [], now)
        return writer.segment

    def orphan(self, seq: int, data: bytes = b"x", now: float = 0.0) -> Writer[OwnedChannel]:
        """A POST whose connection broke in the middle of its body."""
        writer = self.open(seq, data, now)
        self.channel.abort(writer, now)
        return writer

    def wait(self, seq: int) -> Watcher:
        """A GET that has to wait."""
        resolution = self.channel.resolve(seq)
        assert isinstance(resolution, Upcoming), resolution
        return self.attach(resolution.segment)

    def serve(self, seq: int) -> Segment:
        """A GET that is answered at once."""
        resolution = self.channel.resolve(seq)
        assert isinstance(resolution, Ready), resolution
        return resolution.segment

    def attach(self, segment: Segment) -> Watcher:
        watcher = Watcher(segment)
        self.channel.attach(watcher, segment)
        return watcher

    def verdicts(self, writer: Writer[OwnedChannel]) -> list[Ending]:
        """Return the verdicts that the writer's upload was told."""
        return self.told[writer].verdicts

    @property
    def states(self) -> dict[int, str]:
        """The state of every segment, by seq."""
        return {seq: str(segment.state) for seq, segment in sorted(self.channel.segments.items())}


class Shelf:
    """Storage that keeps some segments of one byte, which closed one second after the other."""

    def __init__(self, *seqs: int) -> None:
        self.seqs = seqs

    def find(self, seq: int) -> Segment | None:
        if seq not in self.seqs:
            return None
        segment = Segment(seq)
        segment.store(encode_frame([b"k"]), 1)
        segment.close(Event.FINISH, 0.0)
        return segment

    def following(self, seq: int) -> int | None:
        return min((one for one in self.seqs if one >= seq), default=None)

    def has(self, seq: int, opened_at: float) -> bool:
        return seq in self.seqs and opened_at == seq

    def listed(self, seq: int, since_us: int) -> Iterator[SegmentSummary]:
        for one in self.seqs:
            if one >= seq and one * 1_000_000 >= since_us:
                yield SegmentSummary(one, State.COMPLETE, 1, one * 1_000_000, one * 1_000_000, crc=one)


def make_registry(
    *, autocreate: bool = True, on_fault: OnFault | None = None, storage: Storage | None = None, **limits: Any
) -> tuple[Registry, list[Fact]]:
    """A registry and the list that its facts go to."""
    facts: list[Fact] = []
    journal = Journal()
    if on_fault is not None:
        journal.faults.deliver_to(on_fault)
    registry = Registry(Limits(**limits), autocreate=autocreate, journal=journal, storage=storage)

    # Who follows a channel when it is created hears of that, too.
    journal.subscribe(lambda fact: registry.channels[fact.channel].follow(facts.append), ChannelCreated)
    return registry, facts


def created(journal: Journal, name: str) -> None:
    """A channel came into being somewhere: the cheapest fact that followers hear of."""
    journal.index += 1
    journal.tell(journal.listeners[ChannelCreated], ChannelCreated(journal.index, 1, 0.0, name, 1, "", ""))


def owned(registry: Registry, name: str) -> OwnedChannel:
    """A channel that is there, and that nobody else owns."""
    channel = registry.channels[name]
    assert isinstance(channel, OwnedChannel), channel
    return channel


def grant(registry: Registry, name: str, seq: int, now: float = 0.0, **options: Any) -> Writer[OwnedChannel]:
    """A POST that must be granted."""
    writer = registry.reserve(name, seq, Told(), now, **options)
    assert isinstance(writer, Writer), writer
    return writer


def publish(registry: Registry, name: str, seq: int, data: bytes = b"x", now: float = 0.0, **options: Any) -> Segment:
    """A POST from beginning to end."""
    writer = grant(registry, name, seq, now, **options)
    writer.channel.finish(writer, [data] if data else [], now)
    return writer.segment


def refusal(answer: object) -> Refusal:
    """The answer, which must be a refusal."""
    assert isinstance(answer, Refusal), answer
    return answer


def content(segment: Segment) -> bytes:
    """The body bytes that a segment holds."""
    return b"".join(segment.payload())


def cost(*frames: bytes) -> int:
    """The memory that a segment of these frames, of one chunk each, is counted for."""
    return SEGMENT_COST + sum(len(encode_frame([frame])) + FRAME_COST for frame in frames)


def picture(registry: Registry) -> object:
    """All that a request which changes nothing leaves as it was."""
    channels = [channel.statistics() for channel in registry.channels.values()]
    return channels, registry.readers, registry.budget.used, registry.evictions(), registry.journal.index


def check_registry(registry: Registry) -> None:
    """Check every channel and the sums over them.

    Raises:
        AssertionError: an invariant does not hold.
    """
    held = readers = writers = 0
    for name, channel in registry.channels.items():
        assert channel.name == name, "a channel is filed under its own name"
        check_channel(owned(registry, name))
        _check_agenda(registry, channel)
        held += sum(segment.cost for segment in channel.segments.values() if segment.state is not State.WAITING)
        readers += channel.reading.used
        writers += sum(
            segment.writer is not None and segment.writer._counted is not None for segment in channel.segments.values()
        )
    for segment in registry.budget.lingering:
        assert segment.closed, "only a closed segment leaves its window"
        assert segment.cursors, "what lingers is being read"
        held += segment.cost
    assert registry.budget.used == held, "the budget counts just what is held"
    # A segment that closes without a byte cannot be refused, and no channel gives for one that holds more: each channel
    # may have one of them beyond the limit, and its next one takes that one's place.
    assert held <= registry.limits.total_bytes + SEGMENT_COST * len(registry.channels), "the budget holds"
    clients = [name for name in registry.channels if not is_reserved(name)]
    assert len(clients) == registry.capacities.channels.used, "channels are counted"
    assert writers == registry.capacities.publishers.used, "publishers are counted"
    assert readers <= registry.readers, "readers are counted, those of ended lives, too"
    for capacity in registry.capacities:
        assert 0 <= capacity.used <= capacity.limit, f"the limit holds: {capacity.used} of {capacity.limit}"
    assert len(registry._tombstones) <= registry.limits.tombstones, "the limit of tombstones holds"


def _check_agenda(registry: Registry, channel: Channel) -> None:
    due = [when for when in (channel.next_deadline(), registry._idle_at(channel)) if when is not None]
    if due:
        looked_at = registry._agenda.times.get(channel)
        assert looked_at is not None, "a channel with a deadline is looked at again"
        assert looked_at <= min(due), "and that is in time"
