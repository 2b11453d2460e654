"""The storm guard: how much later the server answers a client that keeps asking for what it was just told.

The rule (docs/explanation/storm-guard.md): each reply that brings its client nothing new counts one
against its bucket, and each second takes one off. Up to :data:`FREE` nothing happens; each reply beyond that is held
twice as long as the one before, from 20 ms up to 1 s. No client is ever refused.

There is one bucket for each client, channel and *matter*:

- Replies that bring nothing whichever seq the client asks for share one bucket per client and channel
  (:data:`ALWAYS_FRUITLESS`): a client that counts upwards through missing seqs repeats itself. The bucket is forgotten
  when the client gets what it asked for.
- Replies that are right once for each reader (an empty segment, a closed one, one that has left the window) have a
  bucket per seq: a client that steps to another seq has a new bucket, and is not delayed.

Why a loop ends at one request per second and reply: its bucket fills to the point where each reply is held for one
second, and in that second just the one is taken off that the next reply adds. Why a polite client is never delayed:
one request per second adds what the second takes off, so its bucket never rises; and a client that advances never asks
twice for one seq.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from math import exp2
from typing import Final

FREE: Final = 8
FREE_FOR_MANY: Final = 64
"""Replies of one bucket that are free: of one client, and of a client without a name, which may be many readers behind
one address (a class, an office). Eight requests are the least that is called a storm
(docs/reference/storm-classes.md), and real clients repeat a 470 five times at once (docs/reference/protocol.md,
section 7)."""

FIRST_HOLD_S: Final = 0.02
LONGEST_HOLD_S: Final = 1.0
"""The first hold, which doubles with each further reply, and the longest. A loop of one request a second costs a
server nothing, and a client learns of a change at most one second late."""

DOUBLED: Final = 7
"""A bucket holds no more beyond what is free than it takes to reach the longest hold (20 ms doubled six times), so that
it is empty soon after the loop has stopped."""

FORGOTTEN_S: Final = float(FREE_FOR_MANY + DOUBLED)
"""Seconds without a request after which any bucket is empty: one reply is taken off per second."""

BUCKETS: Final = 65_536
"""Buckets kept at a time, 0.4 kB each; the one unused for longest makes room. More than there may be readers (50,000):
if all of them loop at the end of one great event, none pushes another out."""


class ReplyKind(Enum):
    """A kind of reply that may bring its client no further."""

    MISSING = auto()
    """404: there is no such channel."""
    AHEAD = auto()
    """470: beyond the head."""
    REFUSED = auto()
    """Any other refusal: a limit (429, 503), or a request that is wrong."""
    ENDED = auto()
    """200: the channel has ended."""
    KNOWN = auto()
    """200: the number of the head, or that a channel exists, which the client may have been told before."""
    GONE = auto()
    """470: below the head."""
    CLOSED = auto()
    """409, or 200 for what is stored already: this segment is published."""
    EMPTY = auto()
    """200 without a byte: the segment closed empty."""
    SAME = auto()
    """200 with all bytes of a closed segment, which the client may have had before."""


ALWAYS_FRUITLESS: Final = frozenset(
    {ReplyKind.MISSING, ReplyKind.AHEAD, ReplyKind.REFUSED, ReplyKind.ENDED, ReplyKind.KNOWN}
)
"""Replies that bring nothing new whichever seq the client asks for. The others are right once for each reader."""


class _Bucket:
    """Replies that were given and not yet taken off, as of the time ``at``."""

    __slots__ = ("at", "level")

    def __init__(self, now: float) -> None:
        self.level, self.at = 0.0, now


class StormGuard:
    """Counts the replies that bring each client nothing new, and says how long to hold the next one.

    Args:
        clients: buckets kept at a time; a client that loops fills one per channel and reply.
    """

    def __init__(self, clients: int = BUCKETS) -> None:
        self._limit = clients
        self._buckets: OrderedDict[tuple[int, str, int | None], _Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Buckets kept."""
        return len(self._buckets)

    def hold(self, client: int, channel: str, kind: ReplyKind, seq: int, now: float, *, many: bool) -> float:
        """Count a reply that a client is about to be given.

        Args:
            client: a number that stands for the client, the same each time.
            channel: the channel's name.
            kind: of the reply.
            seq: the seq that the reply is about.
            now: the time in seconds; never earlier than in the call before.
            many: whether the client has no name of its own, so that it may be many readers.

        Returns:
            Seconds by which to delay the reply: 0 for none, at most :data:`LONGEST_HOLD_S`.
        """
        key = (client, channel, None if kind in ALWAYS_FRUITLESS else seq)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(now)
            if len(self._buckets) > self._limit:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        free = FREE_FOR_MANY if many else FREE
        bucket.level = min(max(0.0, bucket.level - (now - bucket.at)) + 1.0, free + DOUBLED)
        bucket.at = now
        beyond = bucket.level - free
        return min(FIRST_HOLD_S * exp2(beyond - 1.0), LONGEST_HOLD_S) if beyond > 0.0 else 0.0

    def progress(self, client: int, channel: str) -> None:
        """A client got what it asked for: its fruitless replies on the channel are no longer held against it."""
        self._buckets.pop((client, channel, None), None)

    def expire(self, now: float) -> None:
        """Forget the buckets that are empty by now."""
        while self._buckets:
            key, bucket = next(iter(self._buckets.items()))
            if now - bucket.at < FORGOTTEN_S:
                return
            del self._buckets[key]
