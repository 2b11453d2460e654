"""A channel that another server owns, held here: it serves its readers as the owner does.

A replica reads the owner's feed and applies it to a channel of this registry. Everything else is the same: the same
class, the same readers, the same limits of memory. What is beside it:

- **The connection breaks.** Readers stay, and wait. The replica comes back and says what it has; the owner sends the
  rest. When the owner has been away for too long the channel ends here, visibly, as if the owner had ended it.
- **Another life.** If the owner's channel is of another epoch, or the owner was started again, nothing of what is here
  is sure to be a part of it: the channel ends here, and a new one begins.
- **No memory.** Bytes that find no room end the channel here, too, and the replica begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tricklecast.app.cluster.records import VERSION, FeedError, Kind, Over, Parser, Record, record
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.segment import encode_frame
from tricklecast.app.core.state import Channel
from tricklecast.trickle.errors import TrickleError


class OutOfMemory(TrickleError):
    """There is no memory here for the bytes of the channel."""


class Replica:
    """Holds one channel of another server. It does no input or output (:mod:`~tricklecast.app.cluster.transport`).

    Args:
        name: of the channel.
        registry: in which it is held; nobody else may write to the channel there.
        clock: the registry's time, seconds. to_time: turns microseconds since 1970 into it.

    Attributes:
        channel: what is held; ``None`` before the first feed has begun.
        live: whether everything is here that the owner had when the present feed began.
        snapshots: how many feeds have begun.
    """

    def __init__(
        self, name: str, registry: Registry, clock: Callable[[], float], to_time: Callable[[int], float]
    ) -> None:
        self.name = name
        self.channel: Channel | None = None
        self.live = False
        self.snapshots = 0
        self._registry, self._clock, self._to_time = registry, clock, to_time
        self._instance = ""
        self._parser = Parser(name, to_time)

    def hello(self) -> bytes:
        """Begin with a new connection: what is sent to the owner, once."""
        self._parser, self.live = Parser(self.name, self._to_time), False
        hello: dict[str, Any] = {"version": VERSION, "channel": self.name}
        if self.channel is not None and not self.channel.ended:
            have = [(one.seq, one.size, one.closed) for one in self.channel.segments.values()]
            hello |= {"instance": self._instance, "epoch": self.channel.epoch, "have": have}
        return record(Kind.HELLO, hello)

    def receive(self, data: bytes) -> Over | None:
        """Apply what has come; why the owner ends the feed, if it does.

        Raises:
            FeedError: this is no feed, or it does not go on from what is here.
            OutOfMemory: there is no memory for its bytes.
        """
        try:
            for found in self._parser.feed(data):
                if found.kind is Kind.END:
                    return Over(found.about["why"])
                if found.kind is Kind.BEGIN:
                    self._begin(found)
                elif self.channel is None:
                    raise FeedError(f"{found.kind.name} before BEGIN")
                else:
                    self._apply(self.channel, found)
        finally:
            self._registry.faults.deliver()
        return None

    def _begin(self, begin: Record) -> None:
        about = begin.about
        if about.get("version") != VERSION:
            raise FeedError(f"version {about.get('version')!r} of the feed is not known; this is {VERSION}")
        if about["fresh"] or self.channel is None:
            self.end()
            self.channel = self._registry.replicate(self.name, about["epoch"], self._clock())
        self._instance, self._parser.epoch = about["instance"], about["epoch"]
        self.snapshots += 1

    def _apply(self, channel: Channel, found: Record) -> None:
        if found.kind is Kind.BYTES:
            segment = channel.segments.get(found.seq)
            if segment is None or segment.closed:
                raise FeedError(f"bytes of segment {found.seq}, which is not open")
            frame = encode_frame((found.chunk,))
            if not channel.bytes_stored(segment, frame, len(found.chunk), segment.price(frame)):
                raise OutOfMemory("there is no memory for its bytes")
            channel.active_at = self._clock()
            segment.wake(self._registry.faults)
        elif found.kind is Kind.LIVE:
            channel.follow(found.about["facts"], found.about["bytes_in"])
            self.live = True
        elif found.fact is not None:
            channel.apply(found.fact)
            if channel.ended:
                self._registry.drain(channel)
        else:
            raise FeedError(f"{found.kind.name} in the middle of a feed")

    def end(self) -> None:
        """Let go of the channel, unless it has ended: here it is over, and its readers are told."""
        self.live = False
        channel = self.channel
        if channel is not None and not channel.ended:
            channel.break_off(self._clock())
            self._registry.drain(channel)
            self._registry.faults.deliver()
