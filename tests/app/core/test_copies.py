"""Copies of another server's channels: what the journal hears of them, feeds that begin anew, and promotion."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.core.support import Shelf, Told, Watcher, check_registry, content, publish, refusal
from tricklecast.app.core.copies import Copy, OtherChannel
from tricklecast.app.core.facts import (
    BodyBegun,
    BodyLeft,
    ChannelCreated,
    ChannelEnded,
    EndReason,
    Fact,
    Journal,
    PlaylistMarked,
    SegmentClosed,
    SegmentEvicted,
    SegmentOpened,
)
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry, Restored
from tricklecast.app.core.results import Cause
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import COMPLETE, EMPTY, OPEN, TERMINATED, TRUNCATED, WAITING, State, encode_frame
from tricklecast.app.core.state import Found, Ready
from tricklecast.app.core.window import Eviction
from tricklecast.trickle.errors import LocalProtocolError
from tricklecast.trickle.wire import Life


class Disk:
    """Storage that has some segments of each channel, and says which channels it was told of."""

    refuses = False

    def __init__(self, *seqs: int) -> None:
        self.failed: str | None = None
        self.shelf = Shelf(*seqs)
        self.begun: list[tuple[str, int]] = []
        self.promoted: list[tuple[str, int]] = []

    def begin(self, channel: OwnedChannel | Copy) -> Shelf:
        self.begun.append((channel.name, channel.epoch))
        return self.shelf

    def promote(self, name: str, epoch: int) -> None:
        self.promoted.append((name, epoch))

    def last_epoch(self, name: str) -> int:
        return 0


class Bench:
    """A registry with one copy, whose owner says what the test says.

    Attributes:
        told: what the journal has heard.
    """

    def __init__(self, *, disk: Disk | None = None, instance: str = "", **limits: Any) -> None:
        self.told: list[Fact] = []
        journal = Journal()
        journal.subscribe(self.told.append, ChannelCreated, ChannelEnded, SegmentOpened, SegmentClosed)
        self.registry = Registry(Limits(**limits), autocreate=True, instance=instance, journal=journal, storage=disk)
        copy = self.registry.replicate("c", 3, 0.0, copied=True)
        assert isinstance(copy, Copy)
        self.copy = copy

    def say(self, kind: type[Fact], *about: object, at: float = 5.0) -> None:
        """The owner says something in a snapshot."""
        self.copy.apply(kind(99, 0, at, "c", 3, *about))

    def create(self, at: float = 1.0) -> None:
        """It says what the channel is."""
        self.say(ChannelCreated, "video/mp2t", "owner.3", at=at)

    def open(self, seq: int, data: bytes = b"x", at: float = 5.0) -> None:
        """It says that a segment has begun, and with which bytes."""
        self.say(BodyBegun, seq, None, 0, at=at)
        self.say(SegmentOpened, seq, at=at)
        if data:
            segment, frame = self.copy.segments[seq], encode_frame([data])
            assert self.copy.bytes_stored(segment, frame, len(data), segment.price(frame))

    def close(self, seq: int, size: int = 1, state: State = COMPLETE, at: float = 6.0) -> None:
        """It says how a segment has closed."""
        self.say(SegmentClosed, seq, state, size, None, at=at)

    def publish(self, seq: int, data: bytes = b"x", at: float = 5.0) -> None:
        """A segment from beginning to end."""
        self.open(seq, data, at)
        self.close(seq, len(data), at=at + 1)

    @property
    def heard(self) -> list[tuple[str, object]]:
        """The kinds of what the journal has heard, with the seq or the reason."""
        found = []
        for fact in self.told:
            about = fact.reason if isinstance(fact, ChannelEnded) else getattr(fact, "seq", None)
            found.append((type(fact).__name__, about))
        return found

    def wait(self, seq: int) -> Watcher:
        """A GET that has to wait."""
        found = self.copy.resolve(seq)
        assert isinstance(found, Found), found
        watcher = Watcher(found.segment)
        self.registry.attach(watcher, self.copy, found.segment)
        return watcher


def test_the_journal_hears_of_a_copy_with_the_index_of_this_server() -> None:
    """As of an owned channel: each fact once, without gaps; other facts concern the copy only. Closed ones count."""
    disk = Disk()
    bench = Bench(disk=disk)
    assert disk.begun == [], "nobody knows yet what it is"
    bench.create()
    bench.publish(0)
    bench.say(PlaylistMarked, "1 is next")
    bench.close(1, 0, EMPTY)
    bench.say(ChannelEnded, 2, EndReason.DELETED, at=7.0)
    assert bench.heard == [
        ("ChannelCreated", None), ("SegmentOpened", 0), ("SegmentClosed", 0), ("SegmentClosed", 1),
        ("ChannelEnded", "deleted"),
    ]  # fmt: skip
    assert [fact.index for fact in bench.told] == [1, 2, 3, 4, 5]
    assert disk.begun == [("c", 3)]
    assert isinstance(bench.copy.retained, Shelf)
    assert (bench.registry.journal.closed[COMPLETE], bench.registry.journal.closed[EMPTY]) == (1, 1)
    assert (bench.copy.created_at, bench.copy.content_type, bench.copy.life) == (1.0, "video/mp2t", Life("owner.3"))


def test_a_copy_can_be_followed_when_it_is_settled() -> None:
    """Its followers hear all facts of the owner with its numbers, and one without a number if they must begin anew."""
    bench = Bench()
    bench.create()
    assert not bench.copy.settled
    bench.copy.go_live(7, 0, (), 1.0)
    assert bench.copy.settled
    heard: list[tuple[str, int]] = []
    bench.copy.follow(lambda fact: heard.append((type(fact).__name__, fact.number)))
    for number, (kind, *about) in enumerate(((BodyBegun, 0, None, 0), (BodyLeft, 0), (PlaylistMarked, "m")), 8):
        bench.copy.apply(kind(99, number, 5.0, "c", 3, *about))
    assert heard == [("BodyBegun", 8), ("BodyLeft", 9), ("PlaylistMarked", 10)]
    assert bench.copy.settled
    bench.create()
    assert (heard.pop(), bench.copy.settled) == (("ChannelCreated", 0), False)
    bench.copy.go_live(20, 0, (), 1.0)
    bench.copy.begin_again(2.0)
    assert not bench.copy.settled
    bench.registry.end_copy(bench.copy, 3.0, EndReason.MOVED)
    assert heard[3:] == [("ChannelEnded", 0)]


def test_the_mark_of_a_playlist_is_the_owners_until_somebody_plays_here() -> None:
    """An owner without a mark takes none away; after a restart the mark that was stored stays."""
    bench = Bench()
    bench.create()
    for mark, stands in (("owner's", "owner's"), ("", "owner's"), ("newer", "newer")):
        bench.say(PlaylistMarked, mark)
        assert bench.copy.playlist == stands
    bench.copy.mark_playlist("here", 6.0)
    bench.say(PlaylistMarked, "newest")
    assert bench.copy.playlist == "here"
    copy = Bench().registry.restore(Restored("d", 1, "", 0, 1.0, "stored", copied=True), 2.0)
    assert isinstance(copy, Copy)
    copy.apply(PlaylistMarked(0, 0, 3.0, "d", 1, "another"))
    assert copy.playlist == "stored"


def test_a_copy_counts_as_one_of_the_servers_channels() -> None:
    """In the totals and for the limit; a channel that is held for its readers only does not."""
    bench = Bench(channels=5)
    bench.registry.replicate("other", 1, 0.0)
    totals = bench.registry.totals()
    assert (totals.live, totals.draining, bench.registry.capacities.channels.used) == (1, 0, 1)
    bench.registry.end_copy(bench.copy, 1.0, EndReason.MOVED)
    bench.registry.end_copy(bench.copy, 2.0, EndReason.MOVED)
    assert (bench.registry.totals().live, bench.registry.totals().draining) == (0, 1)
    bench.registry.expire(1000.0)
    assert (bench.registry.capacities.channels.used, bench.heard) == (0, [("ChannelEnded", "moved")])
    assert bench.registry.refuse_other_epoch("c", 4) is not None, "its epoch is remembered"
    bench.registry.replicate("c", 3, 0.0, copied=True)
    assert bench.registry.refuse_other_epoch("c", 3) is None


def test_nobody_may_publish_to_a_copy() -> None:
    """As to any channel of another server."""
    bench = Bench()
    assert refusal(bench.registry.reserve("c", 0, Told(), 0.0)).why is Cause.REPLICA
    assert refusal(bench.registry.end("c", 0.0)).why is Cause.REPLICA


def test_a_snapshot_tells_nothing_twice() -> None:
    """The owner says again what it has, after a broken connection: what is here is no news."""
    bench = Bench()
    bench.create()
    bench.open(0)
    before = bench.heard
    bench.create()
    bench.say(BodyBegun, 0, None, 0)
    bench.say(SegmentOpened, 0)
    assert bench.heard == before
    bench.close(0)
    assert bench.heard == [*before, ("SegmentClosed", 0)]


def test_a_copy_that_is_not_kept_ends() -> None:
    """What is open is cut short, and the journal hears of it; then the end."""
    bench = Bench()
    bench.create()
    bench.open(0)
    watcher = bench.wait(1)
    bench.registry.end_copy(bench.copy, 9.0, EndReason.DELETED)
    assert bench.heard[-2:] == [("SegmentClosed", 0), ("ChannelEnded", "deleted")]
    assert (bench.copy.segments[0].state, watcher.saw_close) == (TERMINATED, True)


def test_a_feed_begins_anew() -> None:
    """Readers that wait stay; what is open is cut short; the window comes again, and is told unless storage has it."""
    disk = Disk()
    bench = Bench(disk=disk, window_segments=5)
    bench.create()
    bench.publish(0, at=0.0)
    bench.publish(1, b"yes", at=1.0)
    bench.open(2, b"half", at=2.0)
    bench.say(BodyBegun, 3, None, 0)
    bench.say(SegmentOpened, 3, at=3.0)  # its first byte does not come
    bench.say(BodyBegun, 4, "key", 0)
    bench.wait(3)
    waiting = bench.wait(4)
    half = bench.copy.segments[2]
    disk.shelf.seqs = (0, 1)
    heard = len(bench.told)
    bench.copy.begin_again(8.0)
    assert (half.state, half.closed_at, bench.heard[heard:]) == (TRUNCATED, 8.0, [("SegmentClosed", 2)])
    assert {seq: segment.state for seq, segment in bench.copy.segments.items()} == {3: WAITING, 4: WAITING}
    assert (bench.copy.next_seq, len(bench.copy.window), waiting.wakes) == (4, 0, 0)
    assert bench.registry.budget.used == 0
    found = bench.copy.resolve(0)
    assert isinstance(found, Ready), "storage has it"
    heard = len(bench.told)
    bench.create()
    bench.publish(0, at=0.0)
    bench.publish(1, b"yes", at=1.0)
    assert bench.heard[heard:] == []
    bench.publish(2, b"half and the rest", at=2.0)
    bench.publish(3)
    assert bench.heard[heard:] == [
        ("SegmentOpened", 2),
        ("SegmentClosed", 2),
        ("SegmentOpened", 3),
        ("SegmentClosed", 3),
    ]
    assert content(bench.copy.segments[2]) == b"half and the rest"
    bench.publish(4)
    assert waiting.saw_close


def test_only_the_same_segment_is_known() -> None:
    """One that got its first byte at another time was written anew: the server hears of it."""
    disk = Disk(0, 1)
    bench = Bench(disk=disk)
    bench.create()
    bench.publish(0, at=0.5)
    assert bench.heard[1:] == [("SegmentOpened", 0), ("SegmentClosed", 0)]
    bench.close(1, 0, EMPTY, at=1.0)  # storage has one that closed then
    bench.open(2, at=2.0)
    assert bench.heard[3:] == [("SegmentOpened", 2)]


def test_what_is_known_and_open_when_a_feed_breaks_is_no_news() -> None:
    """Storage has all of it, so that it was cut short here concerns its readers only."""
    disk = Disk(0)
    bench = Bench(disk=disk)
    bench.create()
    bench.open(0, at=0.0)
    assert bench.copy.segments[0].state is OPEN
    bench.copy.begin_again(8.0)
    bench.publish(0, at=0.0)
    assert bench.heard == [("ChannelCreated", None)]
    bench.say(SegmentEvicted, 0, Eviction.AGE)
    bench.open(0, at=9.0)
    assert bench.heard[1:] == [("SegmentOpened", 0)], "it is another one"


def test_another_channel_of_the_same_epoch_is_noticed() -> None:
    """Its owner has lost its memory, and counts from the beginning: nothing of the two is mixed."""
    bench = Bench()
    bench.create(at=1.0)
    bench.copy.begin_again(2.0)
    with pytest.raises(OtherChannel, match="another channel"):
        bench.create(at=1.5)
    assert bench.copy.created_at == 1.0


def test_a_copy_comes_back_after_a_restart() -> None:
    """With its head, and what storage has; its feed is no news."""
    disk = Disk(0, 1)
    registry = Registry(Limits(), autocreate=True, instance="now", storage=disk)
    restored = registry.restore(Restored("c", 3, "video/mp2t", 2, 1.0, copied=True), 100.0)
    assert isinstance(restored, Copy)
    assert (restored.next_seq, restored.life, disk.begun) == (2, Life("now.3"), [("c", 3)])
    assert isinstance(restored.resolve(1), Ready)
    told: list[Fact] = []
    registry.journal.subscribe(told.append, ChannelCreated)
    restored.apply(ChannelCreated(1, 0, 1.0, "c", 3, "video/mp2t", "owner.3"))
    assert (told, restored.life) == ([], Life("owner.3"))
    check_copies(registry)


def check_copies(registry: Registry) -> None:
    """The memory of copies is counted."""
    for channel in registry.channels.values():
        assert channel.window.held == channel.window.cost + channel.window.open


def test_a_segment_with_wrong_bytes_is_forgotten() -> None:
    """A closed one; its memory is free."""
    bench = Bench()
    bench.create()
    bench.publish(0)
    bench.open(1)
    for seq in (0, 0, 1, 7):
        bench.copy.remove(seq)
    assert (list(bench.copy.segments), bench.copy.floor) == ([1], 1)
    check_copies(bench.registry)


@pytest.mark.parametrize("instance", ["", "here"])
def test_a_copy_is_promoted(instance: str) -> None:
    """It goes on in the next epoch as this server's own, with its window, numbering and readers."""
    disk = Disk()
    bench = Bench(disk=disk, instance=instance, channels=1)
    bench.create()
    bench.publish(0)
    bench.open(1, b"half")
    waiting = bench.wait(2)
    owned = bench.registry.promote(bench.copy, 9.0)
    check_registry(bench.registry)
    assert (owned.epoch, owned.next_seq, owned.life, owned.content_type) == (4, 2, Life("owner.3"), "video/mp2t")
    assert (disk.begun, disk.promoted) == ([("c", 3), ("c", 4)], [("c", 4)])
    assert bench.heard[-2:] == [("ChannelEnded", "moved"), ("ChannelCreated", None)]
    assert (bench.told[-2].epoch, bench.told[-1].epoch) == (3, 4)
    publish(bench.registry, "c", 2, b"new", now=10.0)
    assert waiting.saw_close
    assert content(owned.segments[0]) == b"x"
    with pytest.raises(LocalProtocolError, match="no copy that can be promoted"):
        bench.registry.promote(bench.copy, 11.0)
