"""A copy: a channel of another server that this one holds as one of its own channels.

Whoever holds a channel for a while, for its readers, holds a plain :class:`~tricklecast.app.core.state.Channel`: it is
its owner's, and this server tells nobody of it. A copy is of this server: it is listed and counted, and storage keeps
it. So a copy tells the journal of its facts, each once, with the index of this server. The owner of the channel still
decides all of them.

**A copy outlives its feed.** A feed that begins anew tells all of the window again, and storage may have most of it. So
:meth:`Copy.begin_again` lets go of the window and of nothing else, and what storage has is not told again: a segment is
the same if it got its first byte in the same microsecond. Readers that wait, go on to wait.

**The mark of its playlist** is its owner's until a player asks here. Then this server has a playlist of its own, whose
numbers must not jump when the owner has none, or another one: the mark is that of this server from then on.

**A copy can be followed, too**, by a third server. It tells its followers the facts of its owner with their numbers,
as soon as it is settled: as long as its owner tells how the channel stands, nobody else can be told so. A fact without
a number says to its followers that its owner begins anew, or that the copy is over, and that they must do so, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import ClassVar

from tricklecast.app.core.facts import (
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    Journal,
    SegmentClosed,
    SegmentOpened,
)
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.segment import OPEN, TRUNCATE, Segment
from tricklecast.app.core.state import Channel, Lives
from tricklecast.app.core.window import Budget
from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.wire import Life


class OtherChannel(LocalProtocolError):
    """The owner has another channel of this epoch by now: it was begun anew, and has forgotten the one before."""


class Copy(Channel):
    """A channel of another server that this one holds as one of its own.

    Args:
        name, epoch, content_type, now, life, limits, budget: as of :class:`Channel`.
        journal: of the server.
        store: called when it begins; it sets :attr:`retained`.

    Attributes:
        told_by: the start of its owner that has told what is here; ``""`` if that may be wrong, or is not known.
    """

    belongs: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        epoch: int,
        content_type: str,
        now: float,
        *,
        limits: Limits,
        budget: Budget,
        journal: Journal,
        store: Callable[[Copy], None],
        life: Life,
    ) -> None:
        super().__init__(name, epoch, content_type, now, life, limits, budget, journal.faults)
        self._journal, self._store = journal, store
        self._has_begun = self.settled = False
        self.told_by = ""
        self._marked_here = False
        # Segments in memory that storage had before they came.
        self._known: set[int] = set()

    def restored(self, created_at: float, next_seq: int, playlist: str, lives: Lives) -> None:
        super().restored(created_at, next_seq, playlist, lives)
        self._has_begun, self._marked_here = True, bool(playlist)
        self._store(self)

    def apply(self, fact: Fact) -> None:
        """Apply a fact of its owner; tell its followers, and the journal if it is news here.

        Raises:
            OtherChannel: it is of another channel.
            LocalProtocolError: as :meth:`Channel.apply`.
        """
        is_news = fact.indexed
        match fact:
            case ChannelCreated():
                is_news = not self._has_begun
                if self._has_begun and fact.at != self.created_at:
                    raise OtherChannel(f"{self!r} is another channel than the one that its owner has in this epoch")
            case SegmentOpened():
                is_news = fact.seq in self._waiting
        if not fact.number:
            self.settled = False
        mark = self.playlist
        super().apply(fact)
        if self._marked_here or not self.playlist:
            self.playlist = mark
        match fact:
            case ChannelCreated() if is_news:
                self._has_begun = True
                self._store(self)
            case SegmentOpened() if is_news:
                is_news = not self._stores(fact.seq, fact.at)
            case SegmentClosed():
                # Without a byte it was never opened, and storage has the time when it closed.
                is_news = fact.seq not in self._known and (fact.size > 0 or not self._stores(fact.seq, fact.at))
        if is_news:
            self._announce(fact)
        self._journal.tell(self.followers, fact)

    def mark_playlist(self, mark: str, now: float) -> None:
        """The playlist of this server has moved on."""
        self.playlist, self._marked_here = mark, True

    def go_live(self, facts: int, bytes_in: int, awaited: Container[int], now: float) -> None:
        super().go_live(facts, bytes_in, awaited, now)
        self.settled = True

    def _stores(self, seq: int, opened_at: float) -> bool:
        if self.retained is None or not self.retained.has(seq, opened_at):
            return False
        self._known.add(seq)
        return True

    def segment_evicted(self, segment: Segment) -> None:
        super().segment_evicted(segment)
        self._known.discard(segment.seq)

    def begin_again(self, now: float) -> None:
        """Its owner is about to tell all of the window again, since it cannot know what is here.

        What is open here is truncated, visibly: it may come again, as whole as its owner has it.
        """
        self.settled = False
        for segment in self.unclosed:
            if segment.state is OPEN and segment.size:
                self.segment_closed(segment, TRUNCATE, now)
                self.window.keep(segment)
                self._announce_closed(segment, now)
            else:
                self.take_back_opening(segment)
                self.body_left(segment)
        for segment in [one for one in self.segments.values() if one.closed]:
            self.window.drop(segment, None)
            del self.segments[segment.seq]
        self._known.clear()
        self.wake_readers()

    def remove(self, seq: int) -> None:
        """Forget a closed segment, since its bytes are wrong."""
        segment = self.segments.get(seq)
        if segment is not None and segment.closed:
            self.window.drop(segment, None)
            self.segment_evicted(segment)

    def abandon(self, now: float, reason: EndReason = EndReason.MOVED) -> None:
        """It is not copied any more: what is open is cut short, and here the channel is over."""
        opened = list(self._open.values())
        super().abandon(now)
        for segment in opened:
            self._announce_closed(segment, now)
        self.announce_end(now, reason)

    def announce_end(self, now: float, reason: EndReason) -> None:
        """Tell the server, and its followers, that this epoch is over here."""
        over = ChannelEnded(0, 0, now, self.name, self.epoch, self.next_seq, reason)
        self._announce(over)
        self._journal.tell(self.followers, over)

    def _announce_closed(self, segment: Segment, now: float) -> None:
        if segment.seq not in self._known:
            about = segment.seq, segment.state, segment.size, segment.key
            self._announce(SegmentClosed(0, 0, now, self.name, self.epoch, *about))

    def _announce(self, fact: Fact) -> None:
        journal = self._journal
        journal.index += 1
        own = type(fact)  # its owner's index means nothing here
        fact.index = journal.index
        if isinstance(fact, SegmentClosed):
            journal.closed[fact.state] += 1
        journal.tell(journal.listeners[own], fact)
