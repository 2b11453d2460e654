"""Subscriptions in the process: what is delivered, when one ends and why, and who is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from tests.app.core.support import created, owned
from tests.support.waiting import until
from tricklecast.app import bus as buses
from tricklecast.app.bus import (
    STEPS,
    Bus,
    CannotSubscribe,
    Facts,
    OutOfCapacity,
    SegmentData,
    ServerClosed,
    Subscription,
    SubscriptionEnded,
    Unsubscribed,
)
from tricklecast.app.changes import Change, Changes, IndexGone
from tricklecast.app.core.facts import Journal
from tricklecast.app.core.invariants import check_channel
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Refusal
from tricklecast.app.core.segment import COMPLETE, EMPTY, Segment, Writer, encode_frame
from tricklecast.app.core.state import SegmentSummary
from tricklecast.app.core.window import Budget
from tricklecast.app.query import InvalidQuery
from tricklecast.app.storage.archive import Archive, Retention
from tricklecast.app.storage.database import Database
from tricklecast.app.storage.replay import PIECE_BYTES
from tricklecast.app.storage.restore import take_inventory
from tricklecast.trickle.errors import ChannelEnded, LocalProtocolError

P = ParamSpec("P")
T = TypeVar("T")


class Owner:
    """A publisher whom nothing interests."""

    def preempted(self, outcome: object) -> None: ...


class Bench:
    """A registry, a bus, and a loop that turns when it is told to."""

    def __init__(self, limits: Limits | None = None, keep: int | None = None, subscriptions: int = 500) -> None:
        self.later: list[Callable[[], None]] = []
        self.registry = Registry(limits or Limits(), autocreate=True, instance="me")
        self.changes = Changes(self.registry, defer=self.later.append, keep=keep, wall_us=lambda: 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(buses, "MAX_SUBSCRIPTIONS", subscriptions)
            self.bus = Bus(self.changes, self.registry, defer=self.later.append)

    def turn(self) -> None:
        """One turn of the event loop."""
        later = self.later[:]
        self.later.clear()
        for function in later:
            function()

    def settle(self) -> None:
        """As many as there is something to do in."""
        while self.later:
            self.turn()

    def check(self) -> None:
        """The core is sound."""
        for name in self.registry.channels:
            check_channel(owned(self.registry, name))

    def create(self, *names: str) -> None:
        for name in names:
            self.registry.create(name, "", 0.0)

    def write(self, channel: str, seq: int) -> Writer[Any]:
        writer = self.registry.reserve(channel, seq, Owner(), 0.0)
        assert isinstance(writer, Writer)
        return writer

    def publish(self, channel: str, seq: int, *chunks: bytes) -> None:
        writer = self.write(channel, seq)
        writer.channel.finish(writer, chunks, 0.0)


def within(capacity: int, subscribe: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Subscribe where a subscriber may be this far behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buses, "CAPACITY", capacity)
        return subscribe(*args, **kwargs)


def now(subscription: Subscription[Any]) -> list[Any]:
    """Everything that can be read without waiting; at its end the reason, if it has ended."""
    found: list[Any] = []
    while True:
        step = subscription.__anext__()
        try:
            step.send(None)
        except StopIteration as item:
            found.append(item.value)
        except (SubscriptionEnded, ChannelEnded) as reason:
            return [*found, reason]
        else:
            step.close()
            return found


def indexes(found: list[Any]) -> list[int]:
    return [change.index for change in found if isinstance(change, Change)]


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return run


# Facts.


@in_loop
async def test_a_subscriber_gets_what_its_query_matches_from_now_on() -> None:
    """In order, each once; a subscriber that waits is woken."""
    bench = Bench()
    bench.create("before")
    facts = bench.bus.subscribe("kind = 'added' AND channel = 'a*'")
    waiting = asyncio.ensure_future(anext(facts))
    await asyncio.sleep(0)
    bench.create("a", "b", "ab")
    bench.settle()
    assert (await waiting).channel == "a"
    assert [change.channel for change in now(facts)] == ["ab"]
    assert now(facts) == []


@in_loop
async def test_nothing_is_delivered_in_the_middle_of_a_change() -> None:
    """The core's call returns before any subscriber's query is judged."""
    bench = Bench()
    facts = bench.bus.subscribe()
    bench.settle()
    bench.create("a")
    assert now(facts) == []
    bench.settle()
    assert indexes(now(facts)) == [1]


@in_loop
async def test_a_subscriber_goes_on_from_an_index() -> None:
    """With every fact behind it, however many more there are than it may be behind."""
    bench = Bench()
    for number in range(3 * STEPS):
        created(bench.registry.journal, f"c{number}")
    facts = within(2, bench.bus.subscribe, after=7)
    found: list[int] = []
    while len(found) < 3 * STEPS - 7:
        bench.settle()
        found += indexes(now(facts))
    assert found == list(range(8, 3 * STEPS + 1))
    assert facts.ended is None


@in_loop
async def test_one_that_falls_behind_ends_and_knows_where_to_go_on() -> None:
    """Delivered facts are read first; then each call raises the same reason; no fact is lost or doubled."""
    bench = Bench()
    facts = within(3, bench.bus.subscribe, "kind = 'added'")
    bench.settle()
    bench.create(*"abc")
    bench.settle()
    assert facts.ended is None
    bench.create(*"defgh")
    bench.settle()
    *read, reason = now(facts)
    assert indexes(read) == [1, 2, 3]
    assert isinstance(reason, OutOfCapacity)
    assert reason.index == 3
    assert str(reason).endswith("go on from 3")
    facts.unsubscribe()
    await bench.bus.close()
    assert now(facts)[0] is reason
    assert now(facts)[0] is reason


@in_loop
async def test_going_on_after_an_eviction_works_at_once() -> None:
    """Even while newcomers are refused; a backlog of any size is no reason to end it again."""
    bench = Bench(subscriptions=5)
    facts = within(2, bench.bus.subscribe)
    others = [bench.bus.subscribe() for _ in range(3)]
    bench.settle()
    bench.create(*"abcdefghij")
    bench.settle()
    reason = now(facts)[-1]
    assert isinstance(reason, OutOfCapacity)
    others.append(bench.bus.subscribe(after=0))
    with pytest.raises(CannotSubscribe, match="4 of 5 subscriptions are used"):
        bench.bus.subscribe()
    again = within(2, bench.bus.subscribe, after=reason.index)
    found = []
    for _ in range(10):
        bench.settle()
        found += indexes(now(again))
    assert found == list(range(reason.index + 1, 11))
    assert again.ended is None


@in_loop
async def test_facts_about_others_do_not_count() -> None:
    """A subscriber is behind by the facts that it wants."""
    bench = Bench()
    facts = within(1, bench.bus.subscribe, "channel = 'mine'")
    bench.settle()
    for number in range(500):
        bench.create(f"c{number}")
        bench.settle()
    bench.create("mine")
    bench.settle()
    assert indexes(now(facts)) == [501]


@in_loop
async def test_facts_that_are_not_kept_any_more_end_it() -> None:
    """With the index that it has seen, which cannot be gone on from: nothing is passed over without a word."""
    bench = Bench(keep=8)
    bench.create("a", "b")
    facts = within(1, bench.bus.subscribe, after=0)
    bench.settle()
    bench.create(*(f"c{number}" for number in range(30)))
    bench.settle()
    assert indexes(now(facts)) == [1]
    bench.settle()
    (reason,) = now(facts)
    assert isinstance(reason, OutOfCapacity)
    assert reason.index == 1
    with pytest.raises(IndexGone):
        bench.bus.subscribe(after=reason.index)


@in_loop
async def test_unsubscribing_does_not_overtake_what_was_delivered() -> None:
    """That is read first, then the reason; also at the end of an async with block."""
    bench = Bench()
    async with bench.bus.subscribe() as facts:
        bench.settle()
        bench.create("a", "b")
        bench.settle()
    bench.create("c")
    bench.settle()
    *read, reason = now(facts)
    assert indexes(read) == [1, 2]
    assert isinstance(reason, Unsubscribed)
    assert reason.index == 2
    facts.unsubscribe()
    assert now(facts)[0] is reason


@in_loop
async def test_a_task_that_waits_hears_of_the_end() -> None:
    """A task that waits for a fact is told when another one ends the subscription, or the bus closes."""
    bench = Bench()
    facts, others = bench.bus.subscribe(), bench.bus.subscribe()
    waiting = [asyncio.ensure_future(anext(one)) for one in (facts, others)]
    await asyncio.sleep(0)
    facts.unsubscribe()
    with pytest.raises(Unsubscribed):
        await waiting[0]
    await bench.bus.close()
    with pytest.raises(ServerClosed):
        await waiting[1]


@in_loop
async def test_a_task_that_is_cancelled_loses_nothing() -> None:
    """Facts that came at that moment are there for the next call."""
    bench = Bench()
    facts = bench.bus.subscribe()
    waiting = asyncio.ensure_future(anext(facts))
    await asyncio.sleep(0)
    bench.create("a")
    bench.settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert indexes(now(facts)) == [1]


@in_loop
async def test_one_task_at_a_time() -> None:
    """A second one that waits is an error of the program, and changes nothing."""
    bench = Bench()
    facts = bench.bus.subscribe()
    waiting = asyncio.ensure_future(anext(facts))
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="another task reads"):
        await anext(facts)
    bench.create("a")
    bench.settle()
    assert (await waiting).index == 1


@in_loop
async def test_closing_delivers_what_has_been_told_and_ends_all() -> None:
    """Then nobody can subscribe any more."""
    bench = Bench()
    loop = asyncio.get_running_loop()
    bus = Bus(bench.changes, bench.registry, defer=loop.call_soon)
    bench.create("a", "b")
    facts, stuck = bus.subscribe(after=0), within(1, bus.subscribe, after=0)
    await asyncio.sleep(0)
    bench.create("c")
    await bus.close()
    *read, reason = now(facts)
    assert (indexes(read), type(reason), reason.index) == ([1, 2, 3], ServerClosed, 3)
    *read, reason = now(stuck)
    assert (indexes(read), type(reason), reason.index) == ([1], ServerClosed, 1)
    with pytest.raises(CannotSubscribe, match="stopping"):
        bus.subscribe()
    assert bus.used.used == 0


@in_loop
async def test_closing_has_a_deadline() -> None:
    """Facts that are not delivered by then can be asked for: the reason says from where."""
    bench = Bench()
    bench.create(*(f"c{number}" for number in range(50)))
    facts = bench.bus.subscribe(after=0)
    await bench.bus.close(within_s=0)
    (reason,) = now(facts)
    assert (type(reason), reason.index) == (ServerClosed, 0)


@in_loop
async def test_only_the_living_are_counted() -> None:
    """One that has ended, in any way, makes room at once, though nobody has read its end."""
    bench = Bench()

    def evict(facts: Facts) -> None:
        bench.settle()
        bench.create("x")
        bench.settle()
        bench.registry.end("x", 0.0)
        bench.settle()
        assert isinstance(facts.ended, OutOfCapacity)

    for end in (Facts.unsubscribe, evict, Facts.unsubscribe):
        first, kept = within(1, bench.bus.subscribe), bench.bus.subscribe()
        end(first)
        assert bench.bus.used.used == 1
        again = bench.bus.subscribe()
        for one in (again, kept):
            one.unsubscribe()
        assert bench.bus.used.used == 0
    assert bench.bus.ends == {"Unsubscribed": 8, "OutOfCapacity": 1}


@in_loop
async def test_limits_of_all_subscriptions() -> None:
    """Newcomers are refused from 80 % on until less than 60 % are used; one that goes on may use all."""
    bench = Bench(subscriptions=10)
    subscribe = bench.bus.subscribe
    held = [subscribe() for _ in range(8)]
    with pytest.raises(CannotSubscribe, match="8 of 10"):
        subscribe()
    held += [subscribe(after=0), subscribe(after=0)]
    with pytest.raises(CannotSubscribe, match="10 of 10"):
        subscribe(after=0)
    for _ in range(4):
        held.pop(0).unsubscribe()
        with pytest.raises(CannotSubscribe):
            subscribe()
    held.pop(0).unsubscribe()
    assert bench.bus.used.used == 5
    assert subscribe().ended is None


@in_loop
async def test_what_cannot_be_subscribed_to_counts_nothing() -> None:
    """A query or index that makes no sense is told, and nothing has changed."""
    bench = Bench()
    with pytest.raises(InvalidQuery):
        bench.bus.subscribe("chanel = 'a'")
    with pytest.raises(IndexGone):
        bench.bus.subscribe(after=1)
    with pytest.raises(IndexGone):
        bench.bus.subscribe(after=0, instance="another")
    with pytest.raises(CannotSubscribe, match="no such channel"):
        bench.bus.read("a")
    assert bench.bus.used.used == 0


@in_loop
async def test_the_pump_leaves_the_loop_to_others() -> None:
    """It judges a bounded number of facts in a turn, by turns, so that a long backlog holds up no other subscriber."""
    bench = Bench()
    for number in range(8 * STEPS):
        created(bench.registry.journal, f"c{number}")
    long = bench.bus.subscribe("channel = 'last'", after=0)
    short = bench.bus.subscribe("channel = 'last'")
    bench.create("last")
    bench.turn()
    bench.turn()
    assert long.seen < 3 * STEPS
    assert len(now(short)) == 1
    bench.settle()
    assert len(now(long)) == 1


# Segments.


def part(seq: int, data: bytes, state: Any = None, gap: int = 0) -> SegmentData:
    return SegmentData("c", 1, seq, data, state, gap)


@in_loop
async def test_bytes_are_read_while_they_are_written() -> None:
    """Each chunk as it comes, the end of the segment, then the next one; the reader counts as one."""
    bench = Bench()
    bench.create("c")
    segments = bench.bus.read("c")
    assert (bench.registry.readers, bench.bus.used.used) == (1, 1)
    waiting = asyncio.ensure_future(anext(segments))
    await asyncio.sleep(0)
    writer = bench.write("c", 0)
    writer.channel.append(writer, [b"one", b"two"], 0.0)
    assert await waiting == part(0, b"onetwo")
    writer.channel.append(writer, [b"three"], 0.0)
    assert now(segments) == [part(0, b"three")]
    writer.channel.finish(writer, [], 0.0)
    assert now(segments) == [part(0, b"", COMPLETE)]
    bench.publish("c", 1)
    bench.publish("c", 2, b"x")
    assert now(segments) == [part(1, b"", EMPTY), part(2, b"x"), part(2, b"", COMPLETE)]
    bench.check()
    segments.unsubscribe()
    assert (bench.registry.readers, bench.bus.used.used) == (0, 0)
    assert isinstance(now(segments)[0], Unsubscribed)
    assert now(segments)[0].index == 3
    bench.check()


@in_loop
async def test_reading_begins_where_it_is_told() -> None:
    """As a GET does: N, the newest one that has begun, or the next one to begin."""
    bench = Bench()
    bench.create("c")
    for seq in range(4):
        bench.publish("c", seq, b"%d" % seq)
    assert [bench.bus.read("c", start).seq for start in (1, -2, -1)] == [1, 3, 4]
    with pytest.raises(CannotSubscribe, match="segment 9 is beyond the head, 4"):
        bench.bus.read("c", 9)
    with pytest.raises(CannotSubscribe, match="epoch 2 of the channel has ended; it is now in epoch 1"):
        bench.bus.read("c", epoch=2)
    assert bench.bus.read("c", epoch=1).epoch == 1
    bench.check()


@in_loop
async def test_segments_that_cannot_be_had_are_a_gap() -> None:
    """At the start and in the middle: a publisher may leave some out."""
    bench = Bench(Limits(window_segments=2))
    bench.create("c")
    for seq in range(4):
        bench.publish("c", seq, b"%d" % seq)
    segments = bench.bus.read("c", 0)
    assert now(segments) == [part(2, b"2", gap=2), part(2, b"", COMPLETE), part(3, b"3"), part(3, b"", COMPLETE)]
    segments.unsubscribe()
    reader = bench.bus.read("c", 3)
    writer = bench.registry.reserve("c", 9, Owner(), 0.0, reset=True)
    assert isinstance(writer, Writer)
    writer.channel.finish(writer, [b"9"], 0.0)
    bench.publish("c", 10, b"10")
    assert now(reader) == [
        part(3, b"3"),
        part(3, b"", COMPLETE),
        part(9, b"9", gap=5),
        part(9, b"", COMPLETE),
        part(10, b"10"),
        part(10, b"", COMPLETE),
    ]


@in_loop
async def test_a_reader_that_falls_behind_ends_at_the_segment_that_it_reads() -> None:
    """As soon as the facts are told, whether or not it reads; what was there when it came is no lag."""
    bench = Bench()
    bench.create("c")
    for seq in range(5):
        bench.publish("c", seq, b"x")
    slow = within(2, bench.bus.read, "c", 0)
    fast = within(2, bench.bus.read, "c", 0)
    bench.settle()
    assert len(now(fast)) == 10
    for seq in range(5, 8):
        bench.publish("c", seq, b"x")
        bench.settle()
        assert isinstance(slow.ended, OutOfCapacity)
        assert len(now(fast)) == 2
    (reason,) = now(slow)
    assert reason.index == 0
    for seq in range(8, 11):
        assert fast.ended is None
        bench.publish("c", seq, b"x")
        bench.settle()
    assert isinstance(fast.ended, OutOfCapacity)
    assert fast.ended.index == 8
    assert bench.registry.readers == bench.bus.used.used == 0


@in_loop
async def test_memory_that_is_needed_ends_a_reader() -> None:
    """It lets go of its segment at once, and knows which one that was."""
    bench = Bench(Limits(total_bytes=4000, window_segments=1))
    bench.create("c")
    bench.publish("c", 0, b"x" * 500)
    segments = bench.bus.read("c", 0)
    bench.publish("c", 1, b"x" * 500)
    bench.publish("c", 2, b"x" * 2000)
    assert isinstance(segments.ended, OutOfCapacity)
    assert segments.ended.index == 0
    bench.check()


@in_loop
async def test_the_end_of_the_channel_ends_its_readers() -> None:
    """After what it has, with the error that a Subscriber raises; a segment that nobody began is not told."""
    bench = Bench()
    bench.create("c", "d")
    writer = bench.write("c", 0)
    writer.channel.append(writer, [b"cut"], 0.0)
    open_one, waiting_one = bench.bus.read("c", 0), bench.bus.read("d")
    for name in "cd":
        bench.registry.end(name, 0.0)
        bench.create(name)
    *read, reason = now(open_one)
    assert [(one.data, one.state) for one in read] == [(b"cut", None), (b"", "terminated")]
    assert isinstance(reason, ChannelEnded)
    assert isinstance(now(waiting_one)[0], ChannelEnded)
    assert bench.bus.used.used == bench.registry.readers == 0
    bench.registry.end("c", 0.0)
    with pytest.raises(CannotSubscribe, match="ended"):
        bench.bus.read("c", 0)
    bench.check()


@in_loop
async def test_a_new_life_of_the_channel_is_not_read() -> None:
    """A reader of one life ends with it, though the seq that follows is there in the next one."""
    bench = Bench()
    bench.create("c")
    bench.publish("c", 0, b"old")
    segments = bench.bus.read("c", 0)
    bench.registry.end("c", 0.0)
    bench.create("c")
    bench.publish("c", 0, b"new")
    bench.publish("c", 1, b"new")
    *read, reason = now(segments)
    assert read == [part(0, b"old"), part(0, b"", COMPLETE)]
    assert isinstance(reason, ChannelEnded)


@in_loop
async def test_a_server_that_stops_ends_readers() -> None:
    """One that would wait for the next segment, and those that wait for bytes."""
    bench = Bench()
    bench.create("c")
    bench.publish("c", 0, b"x")
    segments, waiting = bench.bus.read("c", 0), bench.bus.read("c")
    bench.registry.shutting_down = True
    *read, reason = now(segments)
    assert len(read) == 2
    assert isinstance(reason, ServerClosed)
    with pytest.raises(CannotSubscribe, match="stopping"):
        bench.bus.read("c")
    await bench.bus.close()
    (reason,) = now(waiting)
    assert (type(reason), reason.index) == (ServerClosed, 1)


@in_loop
async def test_limits_of_readers_hold_for_readers_in_the_process() -> None:
    """They are readers as any other."""
    bench = Bench(Limits(readers_per_channel=1))
    bench.create("c")
    bench.publish("c", 0, b"x")
    segments = bench.bus.read("c", 0)
    with pytest.raises(CannotSubscribe, match="limit reached: readers_per_channel"):
        bench.bus.read("c", 0)
    assert len(now(segments)) == 2
    assert segments.seq == 1
    assert not isinstance(bench.registry.find("c"), Refusal)


class Stored:
    """Storage that has one segment, whose parts a test hands out; it counts how often it was asked for one."""

    def __init__(self) -> None:
        self.unreadable, self.asked = False, 0
        self.segment = Segment(0)
        self.segment.restore(COMPLETE, 6, 0.0, 0.0)
        self.segment.source = self

    def find(self, seq: int) -> Segment | None:
        return self.segment if seq == 0 else None

    def following(self, seq: int) -> int | None:
        return 0 if seq <= 0 else None

    def has(self, seq: int, opened_at: float) -> bool:
        return seq == 0

    def listed(self, seq: int, since_us: int) -> Iterator[SegmentSummary]:
        return iter(())

    def more(self) -> None:
        self.asked += 1


@in_loop
async def test_storage_is_asked_once_for_each_part() -> None:
    """However often its reader looks: a second question would say that the part was read that has not come yet."""
    bench = Bench(Limits(window_segments=1))
    bench.create("c")
    bench.publish("c", 0, b"gone")
    bench.publish("c", 1, b"x")
    channel = bench.registry.channels["c"]
    stored = channel.retained = Stored()
    parts = bench.bus.read("c", 0)
    assert (now(parts), now(parts), stored.asked) == ([], [], 1)
    stored.segment.load(encode_frame((b"abc",)), 3)
    assert (now(parts), now(parts), stored.asked) == ([part(0, b"abc")], [], 2)
    stored.segment.load(encode_frame((b"def",)), 3)
    assert now(parts)[:2] == [part(0, b"def"), part(0, b"", COMPLETE)]
    assert (stored.asked, len(stored.segment.cursors)) == (3, 0)  # the third call lets go


def stored(folder: Path, retention: Retention | None = None) -> tuple[Registry, Archive]:
    """A registry whose channels are kept in a folder, and whose windows hold one segment."""
    database = Database(folder)
    inventory = take_inventory(database, time.time_ns() // 1000)
    journal, limits = Journal(index=inventory.index), Limits(window_segments=1)
    budget = Budget(limits.total_bytes, journal.faults)
    archive = Archive(database, inventory, journal, budget, retention=retention)
    registry = Registry(limits, autocreate=True, journal=journal, budget=budget, storage=archive)
    archive.bring_back(registry, 0.0)
    return registry, archive


@in_loop
async def test_retention_removes_a_segment_that_a_program_has_come_to(tmp_path: Path) -> None:
    """Its file stays as long as the program reads it, though the program has not asked for a byte yet."""
    registry, archive = stored(tmp_path, Retention(channel_segments=2))
    defer = asyncio.get_running_loop().call_soon
    bus = Bus(Changes(registry, archive, defer=defer), registry, defer=defer)

    async def publish(seq: int) -> None:
        writer = registry.reserve("c", seq, Owner(), 0.0)
        assert isinstance(writer, Writer)
        writer.channel.finish(writer, [b"%d" % seq], 0.0)
        await archive.flush()

    for seq in range(2):
        await publish(seq)
    async with bus.read("c", 0) as segments:
        for seq in range(2, 6):
            await publish(seq)
        assert 0 not in archive.latest["c"].entries
        assert (await anext(segments)).data == b"0"
        assert (await anext(segments)).state is COMPLETE
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # the file is closed on its thread
    await archive.close()
    assert registry.budget.used == registry.channels["c"].window.cost


@in_loop
async def test_a_segment_is_read_from_storage_whole(tmp_path: Path) -> None:
    """In several parts, then from the window, with no seam to be seen, though calls that wait are cancelled between."""
    registry, archive = stored(tmp_path)
    defer = asyncio.get_running_loop().call_soon
    bus = Bus(Changes(registry, archive, defer=defer), registry, defer=defer)
    bodies = [bytes([65 + seq]) * (PIECE_BYTES * 2 + 9) + b"end" for seq in range(3)]
    for seq, body in enumerate(bodies):
        writer = registry.reserve("c", seq, Owner(), 0.0)
        assert isinstance(writer, Writer)
        writer.channel.finish(writer, [body], 0.0)
        await archive.flush()
    found: dict[int, bytes] = {}
    async with bus.read("c", 0) as segments:
        while len(found) < 3 or segments.seq < 3:
            waiting = asyncio.ensure_future(anext(segments))
            for _ in range(3):
                await asyncio.sleep(0)
                if not waiting.done() and waiting.cancel():
                    await asyncio.wait([waiting])
                    waiting = asyncio.ensure_future(anext(segments))
            one = await waiting
            assert one.gap == 0
            found[one.seq] = found.get(one.seq, b"") + one.data
    assert [found[seq] for seq in range(3)] == bodies
    await until(lambda: not archive.budget.lingering)
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})  # the file is closed on its thread
    await archive.close()
