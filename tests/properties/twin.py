"""Second holders of a registry's channels, which are told facts and bytes and nothing else, and how they are compared.

What a reader is told, what a publisher will be told after a takeover, and all statistics but those of a holder's own
readers must be the same. ``active_at`` may be earlier: a retry whose bytes are all there publishes nothing new.
"""

from __future__ import annotations

from dataclasses import replace

from tricklecast.app.core.facts import ChannelCreated, Fact
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import Faults, Segment, State
from tricklecast.app.core.state import Channel, Serve, Wait
from tricklecast.app.core.window import Budget
from tricklecast.trickle.wire import NO_LIFE


class Twin(Channel):
    """A channel that is told what its owner decides."""

    def __init__(self, fact: ChannelCreated, owner: Channel, limits: Limits) -> None:
        faults = Faults()
        super().__init__(fact.channel, fact.epoch, "", 0.0, NO_LIFE, limits, Budget(10**12, faults), faults)
        self._owner = owner
        # Segments of the owner that are read, with how many of their frames are.
        self._read: dict[int, tuple[Segment, int]] = {}

    def hear(self, fact: Fact) -> None:
        """Take the bytes from before a fact, and the fact."""
        self.pull()
        self.apply(fact)

    def pull(self) -> None:
        """Take the bytes that are there now."""
        for seq in self._open:
            segment, done = self._read.get(seq) or (self._owner.segments[seq], 0)
            own = self.segments[seq]
            for frame in segment.frames[done:]:
                size = segment.offsets[done + 1] - segment.offsets[done]
                assert self.bytes_stored(own, frame, size, own.price(frame))
                done += 1
            self._read[seq] = segment, done

    def check(self) -> None:
        """Compare with the owner, after a change.

        Raises:
            AssertionError: a reader, or a publisher after a takeover, would be answered otherwise.
        """
        self.pull()
        owner = self._owner
        for seq in {-5, -2, -1, *range(max(0, owner.next_seq - 8), owner.next_seq + 3), *owner.segments}:
            waits = owner.segments.get(seq)
            if waits is not None and waits.state is State.WAITING and not waits.written and seq >= owner.next_seq:
                continue  # only readers of the owner have it
            assert _answer(self, seq) == _answer(owner, seq), f"a GET of {seq} is answered as by the owner"
        own, other = self.statistics(), owner.statistics()
        assert own.active_at <= other.active_at
        own = replace(own, active_at=other.active_at, readers=other.readers, bytes_out=other.bytes_out)
        assert own == other, "statistics are the owner's"
        assert (self.floor, self.drain_until, self._first) == (owner.floor, owner.drain_until, owner._first)
        assert self.window.held == self.window.cost + self.window.open, "the memory is counted"


def _answer(channel: Channel, seq: int) -> object:
    found = channel.resolve(seq)
    if not isinstance(found, Serve | Wait):
        return found
    segment = found.segment
    channel.release(segment)
    body = b"".join(segment.payload())
    times = segment.opened_at, segment.closed_at
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

    def hear(self, fact: Fact) -> None:
        """A fact has happened."""
        assert self.registry is not None
        owner = self.registry.channels[fact.channel]
        if type(fact) is ChannelCreated:
            self._twins[fact.channel, fact.epoch] = Twin(fact, owner, self.registry.limits)
        twin = self._twins[fact.channel, fact.epoch]
        if type(fact) is self._leave_out:
            twin.facts += 1  # it is not noticed at once
        else:
            twin.hear(fact)

    def check(self) -> None:
        """Compare all channels that are there."""
        assert self.registry is not None
        for channel in self.registry.channels.values():
            self._twins[channel.name, channel.epoch].check()
