"""Publishers wait for readers: a channel of the core, readers that move, and a clock that a test sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.app.core.support import Watcher, owned
from tests.support.compiled import needs_interpreter
from tricklecast.app.core.limits import Limits
from tricklecast.app.core.registry import Registry
from tricklecast.app.core.results import Outcome
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import Segment, Writer
from tricklecast.app.core.state import Ready, Upcoming
from tricklecast.app.data_plane import pacing, scheduling
from tricklecast.app.data_plane.pacing import (
    FAR_BYTES,
    IDLE_S,
    IDLE_TURN_S,
    LATE_BYTES,
    LATE_FACTOR,
    LATE_S,
    LOOK_S,
    MOVED_S,
    SEGMENT_BYTES,
    STEP_BYTES,
    STILL_LOOKS,
    TIDY_SHARE,
    TRICKLE_BYTES,
    Pace,
    Pacing,
)
from tricklecast.app.data_plane.scheduling import READERS

WAIT_S = 0.5
SIZE = STEP_BYTES - SEGMENT_BYTES
"""Of a segment here: one look for each."""


class Loop:
    """An event loop with timers, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Callable[[], None]] = []
        self.soon: list[Callable[[], None]] = []

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def call_soon(self, callback: Callable[..., None], *arguments: object) -> None:
        self.soon.append(partial(callback, *arguments))

    def turn(self, seconds: float) -> None:
        """One turn, which takes so long."""
        self.now += seconds
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def after(self, seconds: float) -> None:
        """Time passes, and then the timers that were set are due."""
        self.now += seconds
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()


class Line:
    """A connection of a publisher or a reader."""

    def __init__(self) -> None:
        self.deaf = False
        self.exchange: object = None
        self.pauses = 0
        self.most: int | None = None

    def pause(self, reason: int) -> None:
        assert not self.pauses & reason, "paused twice"
        self.pauses |= reason

    def resume(self, reason: int) -> None:
        self.pauses &= ~reason

    def read_less(self, size: int) -> None:
        self.most = size


class Owner:
    """Holds a writer."""

    def preempted(self, outcome: Outcome) -> None:
        raise AssertionError(outcome)


class Reader:
    """A reader that requests one segment after the other, and takes what a test lets it take."""

    paces = True

    def __init__(self, bench: Bench, seq: int) -> None:
        self.connection = Line()
        self.segment: Segment | None = None
        self.sent = 0
        self._bench = bench
        self._request(seq)

    def wake(self) -> None:
        """It takes nothing by itself."""

    def evict(self) -> None:
        raise AssertionError("evicted")

    def take(self, size: int | None = None) -> None:
        """Take so many bytes of the segment, or all; if that is the end of it, be between two requests."""
        segment = self.segment
        assert segment is not None
        self.sent = segment.size if size is None else self.sent + size
        if segment.closed and self.sent == segment.size:
            self._bench.channel.detach(self, segment)
            self.segment, self.connection.exchange = None, None
            self._bench.pacing.finished(self._bench.channel, cast(Any, self.connection), segment.seq)
            self._next = segment.seq + 1

    def ask(self) -> None:
        """Request the next segment."""
        self._request(self._next)

    def seek(self, seq: int) -> None:
        """Request another segment."""
        self._request(seq)

    def follow(self) -> None:
        """Take all that there is, and wait for the next segment."""
        while self.segment is None or self.segment.closed:
            if self.segment is None:
                self.ask()
            self.take()

    def _request(self, seq: int) -> None:
        found = self._bench.channel.resolve(seq)
        assert isinstance(found, Ready | Upcoming)
        self.segment = found.segment
        self.connection.exchange = self
        self.sent = 0
        self._bench.channel.attach(self, found.segment)


class Bench:
    """A channel with a publisher on one connection."""

    def __init__(self, loop: Loop, wait_s: float = WAIT_S) -> None:
        self.loop = loop
        self.faults: list[tuple[str, Exception]] = []
        self.pacing = Pacing(wait_s, lambda what, error: self.faults.append((what, error)))
        self.registry = Registry(Limits(), autocreate=True)
        self.registry.create("c", "", loop.now)
        self.channel = owned(self.registry, "c")
        pace = self.pacing.of(self.channel)
        assert pace is not None
        self.pace = pace
        self.publisher = Line()
        self._serial = 0

    def write(self, seq: int) -> Writer[OwnedChannel]:
        """A POST of this segment."""
        self._serial += 1
        writer = self.channel.reserve(seq, Owner(), self._serial, self.loop.now)
        assert isinstance(writer, Writer)
        return writer

    def append(
        self, writer: Writer[OwnedChannel], size: int = SIZE, *, end: bool = False, line: Line | None = None
    ) -> None:
        """The publisher sends so much, as the data plane hands it on."""
        (self.channel.finish if end else self.channel.append)(writer, [b"x" * size], self.loop.now)
        self.pace.ended += SEGMENT_BYTES * end
        if self.pace.published >= self.pace.look_at:
            self.pacing.published(self.pace, cast(Any, line or self.publisher))

    def publish(self, segments: int, size: int = SIZE) -> int:
        """Publish whole segments until the publisher has to wait; how many it were."""
        for number in range(segments):
            if self.publisher.pauses:
                return number
            self.append(self.write(self.channel.next_seq), size, end=True)
        return segments

    @property
    def waits(self) -> bool:
        """Whether the publisher waits for readers."""
        return bool(self.publisher.pauses & READERS)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """The loop and the clock of the modules; looks take no time."""
    needs_interpreter()
    loop = Loop()
    monkeypatch.setattr(pacing, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    for module in (pacing, scheduling):
        monkeypatch.setattr(module, "perf_counter", lambda: loop.now)
    return loop


def test_a_publisher_waits_when_nearly_all_readers_lack_more_than_the_limit(loop: Loop) -> None:
    """It is read again as soon as one in ten has come nearer."""
    bench = Bench(loop)
    readers = [Reader(bench, 0) for _ in range(LATE_FACTOR + 2)]
    assert bench.publish(100) == LATE_BYTES // SIZE + 1, "no segment more than the limit"
    assert bench.waits
    assert bench.pacing.waits == 1
    readers[0].follow()
    loop.after(LOOK_S)
    assert bench.waits, "one of eleven is in time"
    readers[1].follow()
    loop.after(LOOK_S)
    assert not bench.waits
    assert not loop.timers
    assert bench.publisher.most is None
    bench.append(bench.write(bench.channel.next_seq), end=True)
    assert not bench.waits


def test_a_reader_that_takes_something_ends_the_wait_before_the_timer(loop: Loop) -> None:
    """So the loop does not sleep while a publisher waits. There is one timer, however often it does."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    for _ in range(3):
        assert bench.publish(100) < 100
        bench.pacing.advanced(bench.channel)
        loop.turn(0)
        assert bench.waits, "it lacks as much as before"
        reader.follow()
        bench.pacing.advanced(bench.channel)
        loop.turn(0)
        assert not bench.waits
        assert not loop.soon
    assert len(loop.timers) == 1
    loop.after(LOOK_S)
    assert not loop.timers


def test_a_loop_with_other_work_does_not_look_before_the_timer(loop: Loop) -> None:
    """It looks after the first turn in which it had nothing else to do, once for all that has happened until then."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    bench.publish(100)
    reader.follow()
    for _ in range(3):
        bench.pacing.advanced(bench.channel)
        loop.turn(2 * IDLE_TURN_S)
        assert bench.waits
        assert len(loop.soon) == 1
    loop.after(LOOK_S)
    assert not bench.waits
    loop.turn(2 * IDLE_TURN_S)
    assert not loop.soon, "nobody waits any more"


def test_what_storage_reads_is_no_reader(loop: Loop) -> None:
    """The cursor with which it reads each segment has no connection, and nobody waits for it."""
    bench = Bench(loop)
    Reader(bench, 0)
    for _ in range(3):
        writer = bench.write(bench.channel.next_seq)
        writer.segment.cursors[Watcher(writer.segment)] = None
        bench.append(writer, end=True)
    assert not bench.faults


def test_readers_between_two_requests_are_waited_for(loop: Loop) -> None:
    """The kernel has taken the whole segment for them, and they have not asked for the next one yet."""
    bench = Bench(loop)
    readers = [Reader(bench, 0) for _ in range(3)]
    bench.publish(1)
    for reader in readers:
        reader.take()
    assert bench.publish(100) < 2 * LATE_BYTES // SIZE
    assert bench.waits
    for reader in readers:
        reader.follow()
    loop.after(LOOK_S)
    assert not bench.waits


def test_a_small_stream_makes_its_readers_late_by_time(loop: Loop) -> None:
    """A reader that lacks what is older than the limit is late, though that is little."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    bench.publish(1)
    reader.take(SIZE // 2)
    loop.now += LATE_S
    bench.publish(1)
    assert bench.waits
    reader.follow()
    loop.after(LOOK_S)
    assert not bench.waits


def test_readers_of_tiny_segments_are_late_by_their_number(loop: Loop) -> None:
    """A quarter of the window, in segments, is too much, however few bytes that is."""
    bench = Bench(loop)
    Reader(bench, 0)
    assert bench.publish(Limits().window_segments, 1) <= Limits().window_segments // 4 + STEP_BYTES // SEGMENT_BYTES
    assert bench.waits


def test_a_publisher_does_not_wait_while_one_reader_keeps_up(loop: Loop) -> None:
    """However many others are late: a viewer that has been in time for a while shows that the pace is fine."""
    bench = Bench(loop)
    viewer, *slow = readers = [Reader(bench, 0) for _ in range(5 * LATE_FACTOR)]
    for number in range(60):
        bench.publish(1)
        for reader in readers if number < 30 else [viewer]:
            reader.follow()
        for reader in slow:
            reader.take(1)
        loop.now += MOVED_S / 20
        assert not bench.waits
    assert bench.publish(60) < 60, "the viewer is late, too"


@pytest.mark.parametrize(("lapse_s", "waits"), [(0.02, False), (0.1, True)])
def test_a_reader_that_was_late_for_a_moment_keeps_up(loop: Loop, lapse_s: float, waits: bool) -> None:
    """A server that was busy with others for 20 ms makes all late. A reader that needs longer does not keep up."""
    bench = Bench(loop)
    viewer, *slow = readers = [Reader(bench, 0) for _ in range(5 * LATE_FACTOR)]
    for number in range(60):
        bench.publish(1)
        for reader in readers if number < 50 else [viewer]:
            reader.follow()
        for reader in slow:
            reader.take(1)
        loop.now += MOVED_S / 20
    bench.publish(60)
    loop.after(lapse_s)
    assert bench.waits, "the viewer is late, too"
    viewer.follow()
    loop.after(LOOK_S)
    assert bench.waits == waits


def test_a_reader_that_has_paused_is_not_waited_for(loop: Loop) -> None:
    """It catches up, like one that came late."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    writer = bench.write(0)
    bench.append(writer, STEP_BYTES)
    reader.take()
    loop.now += 2 * MOVED_S
    for _ in range(2):
        bench.append(writer, 2 * LATE_BYTES)
        reader.take(1)
        assert not bench.waits


def test_a_reader_of_the_open_segment_is_in_time_whatever_comes_after_it(loop: Loop) -> None:
    """The publisher sends two segments at a time: the reader gets the second one when the first one ends."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    first, second = bench.write(0), bench.write(1)
    bench.append(first)
    reader.take()
    for _ in range(2 * LATE_BYTES // SIZE):
        bench.append(second, line=(other := Line()))
        assert not other.pauses
    bench.append(first)
    assert not bench.waits


def test_a_client_that_reads_on_two_connections_is_in_time(loop: Loop) -> None:
    """While one connection reads a segment the other one is idle, or waits for the next segment."""
    bench = Bench(loop)
    clients = [(Reader(bench, 0), Reader(bench, 1)) for _ in range(3)]
    slow = Reader(bench, 0)
    bench.publish(1)
    for first, _ in clients:
        first.take()
    writer = bench.write(1)
    for _ in range(4 * LATE_BYTES // SIZE):
        bench.append(writer)
        assert not bench.waits
        slow.take(1)
        for _, second in clients:
            second.take()


def test_a_reader_that_goes_back_is_not_waited_for(loop: Loop) -> None:
    """A viewer that seeks on the connection on which it was in time catches up like one that came late."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    for _ in range(3 * LATE_BYTES // SIZE):
        assert bench.publish(1) == 1
        reader.follow()
    bench.channel.detach(reader, cast(Segment, reader.segment))
    reader.seek(0)
    for _ in range(20):
        assert bench.publish(1) == 1
        reader.take()
        reader.ask()


def test_a_reader_that_stands_still_does_not_move_with_the_segments_below_its_own(loop: Loop) -> None:
    """Bytes of a lower segment, which is still open, are not taken for its progress."""
    bench = Bench(loop)
    below, above = bench.write(0), bench.write(1)
    still = [Reader(bench, 1) for _ in range(LATE_FACTOR + 1)]
    good = Reader(bench, 0)
    bench.append(above)
    for reader in still:
        reader.take(1)
    loop.now += 2 * MOVED_S
    for _ in range(STILL_LOOKS + 1):
        bench.append(above, LATE_BYTES)
        loop.after(WAIT_S + LOOK_S)
    waits = bench.pacing.waits
    for _ in range(20):
        bench.append(below)
        good.take()
        assert not bench.waits
    assert bench.pacing.waits == waits


def test_all_publishers_of_the_channel_wait(loop: Loop) -> None:
    """Each one when it publishes next; all are read again together."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    bench.publish(100)
    other = Line()
    bench.append(bench.write(bench.channel.next_seq), 1, line=other)
    assert bench.waits
    assert other.pauses == READERS
    assert bench.pacing.waits == 1
    reader.follow()
    loop.after(LOOK_S)
    assert not bench.waits
    assert not other.pauses


def test_a_publisher_waits_for_a_limited_time_and_then_is_read_a_little(loop: Loop) -> None:
    """Readers that move but stay late pace it; every wait is as long as the setting says."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    bench.publish(100)
    for _ in range(STILL_LOOKS + 1):
        loop.after(WAIT_S / (STILL_LOOKS + 2))
        assert bench.waits
        reader.take(1)
    loop.after(WAIT_S)
    assert not bench.waits
    assert bench.publisher.most == TRICKLE_BYTES
    bench.publish(1)
    assert bench.waits
    assert bench.pacing.waits == 2


def test_readers_that_stand_still_are_waited_for_once(loop: Loop) -> None:
    """Then their channel's publisher is as fast as if they were not there."""
    bench = Bench(loop)
    for _ in range(3):
        Reader(bench, 0)
    bench.publish(100)
    waited = 0
    while bench.waits:
        loop.after(LOOK_S)
        waited += 1
    assert waited * LOOK_S <= WAIT_S + LOOK_S
    loop.now += WAIT_S
    for _ in range(STILL_LOOKS):
        bench.publish(1)
        loop.after(LATE_S)
    waits = bench.pacing.waits
    assert bench.publish(100) == 100
    assert bench.pacing.waits == waits


def test_slow_readers_are_not_waited_for_where_most_are_fast(loop: Loop) -> None:
    """One that moves by a few bytes while the others have all."""
    bench = Bench(loop)
    fast = [Reader(bench, 0) for _ in range(2)]
    slow = Reader(bench, 0)
    for _ in range(50):
        assert bench.publish(1) == 1
        slow.take(1)
        for reader in fast:
            reader.follow()
    assert bench.pacing.waits == 0


def test_a_reader_that_catches_up_is_not_waited_for_before_it_has(loop: Loop) -> None:
    """It came when much was there already; a live publisher does not notice it."""
    bench = Bench(loop)
    bench.publish(2 * LATE_BYTES // SIZE)
    reader = Reader(bench, 0)
    for _ in range(20):
        assert bench.publish(1) == 1
        reader.take()
        reader.ask()
    reader.follow()
    assert bench.publish(1) == 1
    assert bench.publish(100) < 100, "it is in time now, and counts"


def test_readers_that_are_far_behind_are_not_waited_for(loop: Loop) -> None:
    """They were in time once, and are so late that the publisher would wait for long."""
    bench = Bench(loop, wait_s=1000.0)
    reader = Reader(bench, 0)
    bench.publish(100)
    assert bench.waits
    bench.append(bench.write(bench.channel.next_seq), FAR_BYTES, end=True)
    reader.take(1)
    loop.after(LOOK_S)
    assert not bench.waits


def test_an_ended_channel_holds_nobody(loop: Loop) -> None:
    """Its publishers are read again, and it is forgotten."""
    bench = Bench(loop)
    Reader(bench, 0)
    bench.publish(100)
    bench.registry.end("c", loop.now, force=True)
    loop.after(LOOK_S)
    assert not bench.waits
    assert not loop.timers
    bench.pacing.expire()
    assert bench.pacing.of(bench.channel) is not bench.pace


def test_a_dropped_channel_is_forgotten(loop: Loop) -> None:
    """A fault of the server has left its state unsound, and no publisher finds it any more."""
    bench = Bench(loop)
    bench.registry.drop(bench.channel)
    bench.pacing.expire()
    assert bench.pacing.of(bench.channel) is not bench.pace


def test_no_channel_has_a_pace_where_the_setting_is_0(loop: Loop) -> None:
    """Nothing is noted, and nothing is looked at."""
    channel = Bench(loop).channel
    pacing = Pacing(0.0, lambda what, error: pytest.fail(what))
    assert pacing.of(channel) is None
    pacing.finished(channel, cast(Any, Line()), 0)
    pacing.expire()


def test_every_channel_is_tidied_in_the_end(loop: Loop) -> None:
    """The sweeper looks at a share of the channels at a time, each of them once before any is looked at again."""
    bench = Bench(loop)
    for number in range(3 * TIDY_SHARE - 1):
        channel = bench.registry.create(str(number), "", loop.now)
        assert isinstance(channel, OwnedChannel)
        bench.pacing.of(channel)
    tidied: list[Pace] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pace, "tidy", lambda pace, _now: tidied.append(pace))
        for _ in range(TIDY_SHARE):
            before = len(tidied)
            bench.pacing.expire()
            assert len(tidied) - before <= 4
    assert len(set(tidied)) == 3 * TIDY_SHARE


def test_gone_readers_are_not_waited_for(loop: Loop) -> None:
    """A connection that is closed, or reads another channel, does not count."""
    bench = Bench(loop)
    gone, elsewhere = Reader(bench, 0), Reader(bench, 0)
    bench.publish(1)
    for reader in (gone, elsewhere):
        reader.take()
    gone.connection.deaf = True
    elsewhere.connection.exchange = object()
    bench.pacing.expire()
    assert not bench.pace.finished
    assert bench.publish(100) == 100
    bench.pacing.finished(cast(OwnedChannel, object()), cast(Any, gone.connection), 0)  # a channel without a publisher


def test_an_idle_channel_forgets_its_readers(loop: Loop) -> None:
    """Connections that are long closed are not kept."""
    bench = Bench(loop)
    reader = Reader(bench, 0)
    bench.publish(1)
    reader.take()
    loop.now += IDLE_S + 1
    bench.pacing.expire()
    assert not bench.pace.finished
    assert bench.publish(LATE_BYTES // SIZE) == LATE_BYTES // SIZE


def test_looks_do_not_take_the_loop(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of them there is a multiple of what one takes, unless much is published."""
    bench = Bench(loop)
    looks = 0

    def positions() -> tuple[dict[Any, Any], dict[Any, Any]]:
        nonlocal looks
        looks += 1
        loop.now += 0.001
        return {}, {}

    monkeypatch.setattr(type(bench.pace), "_positions", lambda _: positions())
    assert bench.publish(100) == 100
    assert looks == 100 * STEP_BYTES // LATE_BYTES


def test_a_fault_of_the_server_does_not_leave_a_publisher_waiting(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, and the publisher is read again."""
    bench = Bench(loop)
    Reader(bench, 0)
    bench.publish(100)
    error = RuntimeError("broken")

    def fail(*_: object) -> bool:
        raise error

    monkeypatch.setattr(type(bench.pace), "is_late", fail)
    broken = Line()
    monkeypatch.setattr(broken, "resume", fail)
    bench.pace.held = {cast(Any, broken): None, **bench.pace.held}
    loop.after(LOOK_S)
    assert not bench.waits
    assert not loop.timers
    assert bench.faults == [("while a publisher waited", error), ("while a publisher was read again", error)]
