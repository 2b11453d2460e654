"""Second holders of a registry's channels, which are told facts and bytes and nothing else, and how they are compared.

What a reader is told, what a publisher will be told after a takeover, and all statistics but those of a holder's own
readers must be the same. ``active_at`` may be earlier: a retry whose bytes are all there publishes nothing new.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.properties.heir import Bytes, check_heir, check_prefix, roomy
from tricklecast.app.core.copies import Copy
from tricklecast.app.core.facts import ChannelCreated, ChannelEnded, Fact, Journal, SegmentClosed, SegmentOpened
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Faults, Segment, State
from tricklecast.app.core.state import Channel, Ready, Upcoming
from tricklecast.app.core.window import Budget
from tricklecast.app.replication.feed import Feed
from tricklecast.app.replication.records import FeedEnd, Hello, Parser
from tricklecast.app.replication.replica import Replica
from tricklecast.trickle.wire import NO_LIFE

ROOMY_BYTES: Final = 10_000_000
"""With less memory a feed lasts for a moment only."""


def compare(holder: Channel, owner: Channel, *, knows_all: bool) -> None:
    """Compare a second holder with the owner, after a change.

    Args:
        knows_all: it has heard of all facts; one that began with a snapshot does not know what was evicted before.

    Raises:
        AssertionError: a reader, or a publisher after a takeover, would be answered otherwise.
    """
    for seq in {-5, -2, -1, *range(max(0, owner.next_seq - 8), owner.next_seq + 3), *owner.segments}:
        waits = owner.segments.get(seq)
        if waits is not None and waits.state is State.WAITING and not waits.written and seq >= owner.next_seq:
            continue  # only readers of the owner have it
        assert _answer(holder, seq) == _answer(owner, seq), f"a GET of {seq} is answered as by the owner"
    own, other = holder.statistics(), owner.statistics()
    own = replace(
        own, active_at=other.active_at, readers=other.readers, bytes_out=other.bytes_out, created_at=other.created_at
    )
    if not knows_all:
        own = replace(own, evicted=other.evicted, cost=other.cost)  # its frames are those of the feed
    assert own == other, "statistics are the owner's"
    assert holder.facts == owner.facts, "no fact is missing"
    assert (holder.floor, holder.jumped_to) == (owner.floor, owner.jumped_to), "the same seqs are settled"
    assert holder.lives == owner.lives, "readers of earlier numberings are told the same"
    # A copy keeps a mark that its owner takes back: its own players may be in that playlist.
    keeps = isinstance(holder, Copy) and not owner.playlist
    assert keeps or holder.playlist == owner.playlist, "its playlist counts alike"
    assert holder.window.held == holder.window.cost + holder.window.open, "the memory is counted"


class Twin:
    """A channel that is told what its owner decides."""

    def __init__(self, fact: ChannelCreated, owner: Channel, limits: Limits) -> None:
        faults = Faults()
        budget = Budget(10**12, faults)
        self.channel = Channel(fact.channel, fact.epoch, "", 0.0, NO_LIFE, limits, budget, faults)
        self._owner = owner
        # Segments of the owner that are read, with how many of their frames are.
        self._read: dict[int, tuple[Segment, int]] = {}
        # What it was told, in order.
        self._history: list[Fact | Bytes] = []
        self._limits, self._checks = limits, 0

    def hear(self, fact: Fact) -> None:
        """Take the bytes from before a fact, and the fact."""
        self.pull()
        self.channel.apply(fact)
        self._history.append(fact)

    def pull(self) -> None:
        """Take the bytes that are there now."""
        channel = self.channel
        for seq in channel._open:
            segment, done = self._read.get(seq) or (self._owner.segments[seq], 0)
            own = channel.segments[seq]
            for frame in segment.frames[done:]:
                size = segment.offsets[done + 1] - segment.offsets[done]
                assert channel.bytes_stored(own, frame, size, own.price(frame))
                self._history.append((seq, frame, size))
                done += 1
            self._read[seq] = segment, done

    def check(self) -> None:
        """Compare with the owner."""
        self.pull()
        owner, twin = self._owner, self.channel
        compare(twin, owner, knows_all=True)
        assert twin.created_at == owner.created_at
        assert twin.active_at <= owner.active_at
        assert (twin.drain_until, twin._first) == (owner.drain_until, owner._first)
        self._checks += 1
        if self._checks % 7 == 0:  # after some of its prefixes it is adopted: one after another, the newest more often
            behind = self._checks // 7 % min(len(self._history), 12)
            check_prefix(self._history[: len(self._history) - behind], self._limits, owner.active_at)


class Heard:
    """What the journal of a server has heard of a copy: each fact is news, and they have indexes without gaps."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._index = journal, journal.index
        self._open: set[int] = set()
        self._began = self._over = False
        journal.subscribe(self.hear, ChannelCreated, ChannelEnded, SegmentOpened, SegmentClosed)

    def hear(self, fact: Fact) -> None:
        """A fact of the copy."""
        self._index += 1
        assert fact.index == self._index == self._journal.index
        assert self._began is (type(fact) is not ChannelCreated), "it begins once, before all else"
        assert not self._over, "its end is the last fact"
        match fact:
            case SegmentOpened():
                assert fact.seq not in self._open, "it is told once"
                self._open.add(fact.seq)
            case SegmentClosed():
                assert (fact.seq in self._open) is (fact.size > 0), "what closes with bytes was opened before"
                self._open.discard(fact.seq)
        self._began, self._over = True, type(fact) is ChannelEnded


class Fed:
    """A copy of one channel, over a feed that breaks now and then, or begins anew."""

    def __init__(self, owner: Channel, source: Registry) -> None:
        self._owner, self._source = owner, source
        self._feed: Feed | None = None
        self._checks = 0
        self._begin()

    def _begin(self) -> None:
        self._target = target = Registry(roomy(self._source.limits), autocreate=True)
        self._heard = Heard(target.journal)

        def begin(epoch: int) -> Channel:
            copy = target.channels.get(self._owner.name)
            if not isinstance(copy, Copy) or copy.ended:
                return target.replicate(self._owner.name, epoch, 0.0, copied=True)
            copy.begin_again(0.0)
            return copy

        self._replica = Replica(self._owner.name, target, lambda: 0.0, lambda at_us: at_us / 1e6, fresh=begin)

    def end(self) -> None:
        """The channel is forgotten."""
        if self._feed is not None:
            self._feed.end(FeedEnd.SHUTDOWN)

    def check(self) -> None:
        """Take what there is, and compare; each fifth time the connection has broken before."""
        self._checks += 1
        if self._feed is not None and self._checks % 5 == 0:
            self._feed.end(FeedEnd.SHUTDOWN)
        if self._feed is None or self._feed.over is not None:
            if self._feed is not None and self._feed.over is FeedEnd.ENDED:
                return
            if self._checks % 3 == 0:
                self._replica.instance = ""  # it is another start of the source, as far as it knows
            (hello,) = Parser("", float).feed(self._replica.hello())
            assert isinstance(hello, Hello)
            self._feed = Feed(self._owner, hello, self._source.budget, "x", lambda at: round(at * 1e6), lambda: None)
        while records := self._feed.pull(1000):
            self._replica.receive(b"".join(records))
        assert self._replica.channel is not None
        assert self._feed.over is FeedEnd.ENDED or self._replica.live
        compare(self._replica.channel, self._owner, knows_all=False)
        if self._checks % 8 == 0 and self._replica.live and not self._replica.channel.ended:
            self._target.journal.listeners.update({kind: [] for kind in self._target.journal.listeners})
            assert isinstance(self._owner, OwnedChannel)
            check_heir(self._target, self._replica.channel, self._owner, self._owner.active_at)
            self._feed.end(FeedEnd.SHUTDOWN)
            self._begin()
        if self._source.limits.total_bytes < ROOMY_BYTES:
            self._feed.end(FeedEnd.SHUTDOWN)  # the oracle does not count the memory of what is not taken yet


def _answer(channel: Channel, seq: int) -> object:
    found = channel.resolve(seq)
    if not isinstance(found, Ready | Upcoming):
        return found
    segment = found.segment
    channel.release(segment)
    body = b"".join(segment.payload())
    times = round(segment.opened_at, 6), round(segment.closed_at or 0.0, 6)
    unused = segment.state is State.WAITING and not segment.written  # it may be there for readers only
    keys = None if unused else (segment.key, segment.body_at, segment.former_keys)
    return type(found), found.head, segment.seq, segment.state, segment.size, body, times, keys, channel.life


class Twins:
    """One second holder for each channel of a registry.

    Args:
        leave_out: a kind of fact that gets lost.
    """

    def __init__(self, leave_out: type[Fact] | None = None) -> None:
        self.registry: Registry | None = None
        self._leave_out = leave_out
        self._twins: dict[tuple[str, int], Twin] = {}
        self._fed: dict[tuple[str, int], Fed] = {}

    def hear(self, fact: Fact) -> None:
        """A fact has happened."""
        assert self.registry is not None
        owner = self.registry.channels[fact.channel]
        if type(fact) is ChannelCreated:
            self._twins[fact.channel, fact.epoch] = Twin(fact, owner, self.registry.limits)
            self._fed[fact.channel, fact.epoch] = Fed(owner, self.registry)
        twin = self._twins[fact.channel, fact.epoch]
        if type(fact) is self._leave_out:
            twin.channel.facts += 1  # it is not noticed at once
        else:
            twin.hear(fact)

    def check(self) -> None:
        """Compare all channels that are there."""
        assert self.registry is not None
        for name_and_epoch, fed in list(self._fed.items()):
            channel = self.registry.channels.get(name_and_epoch[0])
            if channel is None or channel.epoch != name_and_epoch[1]:
                fed.end()
                del self._fed[name_and_epoch]
        for channel in self.registry.channels.values():
            name_and_epoch = channel.name, channel.epoch
            self._twins[name_and_epoch].check()
            if self._leave_out is None:
                self._fed[name_and_epoch].check()
