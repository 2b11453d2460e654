"""One segment: its states, its frames, its cursors and its writer."""

from __future__ import annotations

import inspect
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.core.support import Bench, Told, Watcher
from tricklecast.app.core.limits import Capacity
from tricklecast.app.core.payers import Payer
from tricklecast.app.core.publishers import Identity, Presence
from tricklecast.app.core.results import Ending, Outcome
from tricklecast.app.core.rules import OwnedChannel
from tricklecast.app.core.segment import (
    FRAME_COST,
    MAX_FORMER_KEYS,
    SEGMENT_COST,
    TRANSITIONS,
    Event,
    Faults,
    Segment,
    State,
    Writer,
    encode_frame,
    prefix,
)
from tricklecast.trickle.errors import LocalProtocolError

CLOSED = [state for state in State if state not in (State.WAITING, State.OPEN)]

HOW_TO_REACH: dict[State, list[Event]] = {
    State.WAITING: [],
    State.OPEN: [Event.BYTES],
    State.COMPLETE: [Event.BYTES, Event.FINISH],
    State.EMPTY: [Event.FINISH],
    State.TRUNCATED: [Event.BYTES, Event.TRUNCATE],
    State.SKIPPED: [Event.SKIP],
    State.TERMINATED: [Event.TERMINATE],
}

EXPECTED = {
    (State.WAITING, Event.BYTES): State.OPEN,
    (State.WAITING, Event.FINISH): State.EMPTY,
    (State.WAITING, Event.SKIP): State.SKIPPED,
    (State.WAITING, Event.TERMINATE): State.TERMINATED,
    (State.OPEN, Event.BYTES): State.OPEN,
    (State.OPEN, Event.FINISH): State.COMPLETE,
    (State.OPEN, Event.TRUNCATE): State.TRUNCATED,
    (State.OPEN, Event.TERMINATE): State.TERMINATED,
}
"""Written down a second time on purpose: a change of the table is a change of the protocol."""


def do(segment: Segment, event: Event, now: float = 1.0) -> None:
    if event is Event.BYTES:
        segment.store(encode_frame([b"abc"]), 3)
    else:
        segment.close(event, now)


def reach(state: State) -> Segment:
    segment = Segment(7)
    for event in HOW_TO_REACH[state]:
        do(segment, event)
    assert segment.state is state
    return segment


def picture(segment: Segment) -> list[object]:
    fields = [name for name, one in vars(Segment).items() if inspect.isdatadescriptor(one)]
    return [getattr(segment, name) for name in fields] + [list(segment.frames), dict(segment.cursors)]


def test_the_table_is_the_protocols() -> None:
    """Which event leads where is what section 1 of the protocol says, and nothing else."""
    assert TRANSITIONS == EXPECTED


@pytest.mark.parametrize(("state", "event"), list(EXPECTED))
def test_a_known_event_leads_to_the_next_state(state: State, event: Event) -> None:
    """Every pair in the table does what the table says."""
    segment = reach(state)
    do(segment, event, 5.0)
    after = EXPECTED[state, event]
    assert (segment.state, segment.closed) == (after, after in CLOSED)
    assert segment.closed_at == (5.0 if after in CLOSED else None)


@pytest.mark.parametrize(("state", "event"), [pair for pair in product(State, Event) if pair not in EXPECTED])
def test_an_unknown_event_changes_nothing(state: State, event: Event) -> None:
    """Every pair that is not in the table is the caller's mistake, and the segment is what it was."""
    segment = reach(state)
    segment.cursors[Watcher(segment)] = None
    before = picture(segment)
    with pytest.raises(LocalProtocolError, match=f"segment 7 is {state}: no {event.name} now"):
        do(segment, event)
    assert picture(segment) == before


@pytest.mark.parametrize("state", CLOSED)
def test_nothing_leaves_closed(state: State) -> None:
    """A closed state is final: no event is known for it."""
    assert not any(before is state for before, _ in TRANSITIONS)


@pytest.mark.parametrize("state", [State.WAITING, State.OPEN])
def test_bytes_do_not_close(state: State) -> None:
    """Closing by an event that only opens is refused and changes nothing."""
    segment = reach(state)
    before = picture(segment)
    with pytest.raises(LocalProtocolError, match="BYTES does not close"):
        segment.close(Event.BYTES, 1.0)
    assert picture(segment) == before


def test_closing_lets_go_of_the_writer() -> None:
    """A closed segment has no writer."""
    segment = reach(State.OPEN)
    segment.writer = make_writer(segment)
    segment.close(Event.FINISH, 3.0)
    assert segment.writer is None
    assert segment.closed_at == 3.0


@pytest.mark.parametrize("state", State)
def test_complete_means_that_the_publisher_finished_with_bytes(state: State) -> None:
    """Only one way of closing is complete."""
    assert reach(state).complete == (state is State.COMPLETE)


def test_stored_frames_are_kept_in_order() -> None:
    """Each arrival is one entry, and the size counts body bytes without the encoding."""
    segment = Segment(0)
    frames = [encode_frame([b"ab", b"c"]), encode_frame([b"defg"])]
    segment.store(frames[0], 3)
    segment.store(frames[1], 4)
    assert (segment.frames, segment.size) == (frames, 7)


def test_a_segment_is_counted_for_what_it_costs() -> None:
    """Itself, and each frame as it is encoded, with what Python adds to it."""
    segment = Segment(0)
    assert segment.cost == SEGMENT_COST
    frames = [encode_frame([b"a"]), encode_frame([b"b" * 1000, b"c"])]
    prices = []
    for frame in frames:
        prices.append(segment.price(frame))
        segment.store(frame, 1)
    assert sum(prices) == segment.cost == SEGMENT_COST + sum(map(len, frames)) + 2 * FRAME_COST


def test_the_costs_are_no_less_than_what_python_takes() -> None:
    """The objects alone, as Python itself measures them; what malloc adds shows in the process only."""
    segments = [Segment(10**6 + number) for number in range(100)]
    for segment in segments:
        segment.key = "k" * 256
        segment.store(encode_frame([b"x"]), 1)
        segment.close(Event.FINISH, 1.5)
    one = segments[0]
    frame = one.frames[0]
    parts = (one, one.frames, one.cursors, one.key, one.seq, one.closed_at)
    places = sys.getsizeof(segments) + sys.getsizeof({segment.seq: segment for segment in segments})
    assert sum(map(sys.getsizeof, parts)) + places / 100 <= SEGMENT_COST
    frames = [encode_frame([b"%d" % number]) for number in range(1000)]
    assert sys.getsizeof(frame) - len(frame) + sys.getsizeof(list(iter(frames))) / 1000 + 16 <= FRAME_COST


def test_closing_forgets_the_keys_of_earlier_bodies() -> None:
    """No body is taken in any more that they could be told from."""
    segment = written("k", 3)
    segment.state = State.OPEN
    segment.begin_body("other")
    segment.close(Event.FINISH, 1.0)
    assert segment.former_keys == ()


def test_storing_wakes_nobody() -> None:
    """The caller wakes the cursors when the whole change is done."""
    segment = Segment(0)
    watcher = Watcher(segment)
    segment.cursors[watcher] = None
    do(segment, Event.BYTES)
    do(segment, Event.FINISH)
    assert watcher.wakes == 0


def test_cursors_of_an_open_segment_are_woken_each_time() -> None:
    """As long as more may come, a cursor stays."""
    segment = reach(State.OPEN)
    watchers = [Watcher(segment), Watcher(segment)]
    segment.cursors = dict.fromkeys(watchers)
    segment.wake(Faults())
    segment.wake(Faults())
    assert [watcher.wakes for watcher in watchers] == [2, 2]
    assert list(segment.cursors) == watchers


def test_cursors_of_a_closed_segment_stay_until_they_leave() -> None:
    """They are told the end, and keep the bytes in memory as long as they read."""
    segment = reach(State.COMPLETE)
    watchers = [Watcher(segment), Watcher(segment)]
    segment.cursors = dict.fromkeys(watchers)
    segment.wake(Faults())
    assert [(watcher.wakes, watcher.saw_close) for watcher in watchers] == [(1, True), (1, True)]
    assert list(segment.cursors) == watchers


def test_a_cursor_may_remove_itself_at_the_end() -> None:
    """A reader that detaches from within its last wake disturbs no other one."""

    class Leaver(Watcher):
        def wake(self) -> None:
            super().wake()
            self.segment.cursors.pop(self, None)

    segment = reach(State.EMPTY)
    watchers = [Leaver(segment), Leaver(segment)]
    segment.cursors = dict.fromkeys(watchers)
    segment.wake(Faults())
    assert [watcher.wakes for watcher in watchers] == [1, 1]


def test_a_segment_is_wanted_by_its_writer_and_its_readers() -> None:
    """By either of them; without both, nobody misses it."""
    bench = Bench()
    assert bench.reserve(0).segment.is_wanted
    waited_for = bench.wait(1).segment
    assert waited_for.is_wanted
    waited_for.cursors.clear()
    assert not waited_for.is_wanted


def test_a_segment_shows_what_it_is() -> None:
    """A segment's text names its seq, state and size."""
    assert repr(reach(State.OPEN)) == "<Segment 7 open 3 B>"


def test_a_frame_is_http_chunks() -> None:
    """A chunk is its length in hexadecimal, a line end, the bytes, and a line end."""
    assert encode_frame([b"hello", b"x" * 26]) == b"5\r\nhello\r\n1a\r\n" + b"x" * 26 + b"\r\n"


@given(chunks=st.lists(st.binary(min_size=1, max_size=300)))
def test_decoding_a_frame_gives_the_chunks_back(chunks: list[bytes]) -> None:
    """Frames are lossless and keep the boundaries, whatever the bytes look like."""
    segment = Segment(0)
    segment.store(encode_frame(chunks), sum(map(len, chunks)))
    assert list(segment.payload()) == chunks


@given(chunks=st.lists(st.binary(min_size=1, max_size=9), max_size=5), size=st.integers(0, 50))
def test_prefix_is_the_first_bytes(chunks: list[bytes], size: int) -> None:
    """The first bytes come as chunks that are not empty, cut where the limit lies."""
    first = prefix(chunks, size)
    assert b"".join(first) == b"".join(chunks)[:size]
    assert all(first)


def written(key: str | None, size: int) -> Segment:
    """A segment into which one body has put some bytes."""
    segment = Segment(7)
    segment.begin_body(key)
    segment.size = size
    return segment


def test_a_body_is_known_by_its_key() -> None:
    """The same key is told how much of its body is there; any other body begins where this one is."""
    segment = written("k", 3)
    assert segment.begin_body("k") == 3
    assert segment.begin_body("other") == 0
    segment.size += 2
    assert segment.begin_body("other") == 2
    assert (segment.body_at, segment.former_keys) == (3, ("k",))
    assert segment.begin_body(None) == segment.begin_body(None) == 0
    assert (segment.body_at, segment.former_keys) == (5, ("k", "other"))


def test_a_body_without_bytes_leaves_no_key() -> None:
    """Only bytes can be doubled."""
    segment = written("k", 0)
    segment.begin_body("other")
    assert segment.former_keys == ()
    assert segment.admits("k", 1)


def test_a_body_that_was_taken_over_is_not_admitted_again() -> None:
    """Bodies without a key, and new ones, are; of one and the same body, only the latest attempt."""
    segment = written("k", 3)
    segment.begin_body("other")
    segment.writer = make_writer(segment, attempt=2)
    assert not segment.admits("k", 1)
    assert segment.admits("new", 1)
    assert segment.admits(None, 1)
    assert [segment.admits("other", attempt) for attempt in (1, 2, 3)] == [False, True, True]


def test_former_keys_do_not_grow_without_bound() -> None:
    """A segment that so many bodies have shared takes no further key, and still takes bytes without one."""
    segment = written("0", 1)
    for number in range(1, MAX_FORMER_KEYS + 1):
        assert segment.admits(str(number), 1)
        segment.begin_body(str(number))
        segment.size += 1
    assert not segment.admits("one more", 1)
    assert segment.admits(str(MAX_FORMER_KEYS), 1)
    assert segment.admits(None, 1)


@pytest.mark.parametrize("state", State)
def test_a_finished_body_is_known_by_its_key(state: State) -> None:
    """Complete or empty; whatever was cut off has not come to its end."""
    segment = reach(state)
    segment.key = "k"
    assert segment.is_finished_by("k") == (state in (State.COMPLETE, State.EMPTY))
    assert not segment.is_finished_by("other")
    segment.key = None
    assert not segment.is_finished_by(None)


def test_faults_are_handed_over_in_their_order() -> None:
    """Each once; what the callee raises leaves the rest for the next time."""
    told: list[object] = []
    faults = Faults()
    faults.deliver_to(lambda victim, error: told.append(victim))
    faults.note("a", ValueError())
    faults.note("b", ValueError())
    faults.deliver()
    faults.deliver()
    assert (told, faults.noted) == (["a", "b"], [])


class Raiser(Watcher):
    """A cursor that raises, whatever it is told."""

    def wake(self) -> None:
        super().wake()
        raise ValueError("wake")

    def evict(self) -> None:
        raise ValueError("evict")


def test_a_cursor_that_raises_keeps_no_other_from_being_told() -> None:
    """Neither of new bytes nor of an eviction; each fault is noted with its cursor."""
    segment, faults = reach(State.COMPLETE), Faults()
    raiser, other = Raiser(segment), Raiser(segment)
    segment.cursors = dict.fromkeys([raiser, other])
    segment.wake(faults)
    segment.evict_readers(faults)
    assert [watcher.wakes for watcher in (raiser, other)] == [1, 1]
    noted = [(victim, str(error)) for victim, error in faults.noted]
    assert noted == [(raiser, "wake"), (other, "wake"), (raiser, "evict"), (other, "evict")]


def test_a_fault_that_nobody_takes_is_raised() -> None:
    """The default is to raise the exception when the change is done."""
    faults = Faults()
    faults.note("victim", ValueError("a fault"))
    with pytest.raises(ValueError, match="a fault"):
        faults.deliver()


def make_writer(segment: Segment | None = None, attempt: int = 1) -> Writer[OwnedChannel]:
    if segment is None:
        segment = Segment(4)
        segment.size = 10
    return Writer(Bench("c").channel, segment, 9, Told(), Presence(Identity("p"), 0.0), attempt=attempt)


@pytest.mark.parametrize("ending", Ending)
def test_a_settled_token_is_stale_and_knows_why(ending: Ending) -> None:
    """Settling records the ending and the bytes that the segment holds at that moment."""
    writer = make_writer()
    assert writer.outcome is None
    assert writer.settle(ending) == Outcome(ending, 10)
    writer.segment.size = 11
    assert writer.outcome == Outcome(ending, 10)


def test_settling_tells_nobody() -> None:
    """The owner hears of it from the channel, when the whole change is done."""
    writer = make_writer()
    writer.settle(Ending.SUPERSEDED)
    assert isinstance(writer.owner, Told)
    assert writer.owner.outcomes == []


def test_a_writer_that_is_counted_counts_until_it_is_settled() -> None:
    """It takes its place among the publishers, and gives it back; the server's own writers take none."""
    publishers, writer = Capacity(5), make_writer()
    writer.settle(Ending.COMPLETE)
    writer = make_writer()
    writer.count(publishers)
    assert publishers.used == 1
    writer.settle(Ending.COMPLETE)
    assert publishers.used == 0


def test_a_token_shows_what_it_is() -> None:
    """A token's text names its channel, its segment, its serial and whether it is still good."""
    writer = make_writer()
    assert repr(writer) == "<Writer #9 valid of <Segment 4 waiting 10 B> in <Channel 'c'.1 head 0>>"
    writer.settle(Ending.CLOSED_BY_OTHER)
    assert repr(writer) == "<Writer #9 closed_by_other of <Segment 4 waiting 10 B> in <Channel 'c'.1 head 0>>"


@pytest.mark.parametrize(
    ("repeated", "chunks", "new", "left"),
    [
        (3, [b"a"], [], 2),
        (3, [b"abc"], [], 0),
        (3, [b"ab", b"cd", b"ef"], [b"d", b"ef"], 0),
        (0, [b"ab"], [b"ab"], 0),
        (3, [], [], 3),
    ],
)
def test_what_is_repeated_is_passed_over(repeated: int, chunks: list[bytes], new: list[bytes], left: int) -> None:
    """Bytes that the segment has are left out, and those behind them come in chunks that are not empty."""
    writer = make_writer()
    writer.repeated = repeated
    assert (writer.pass_over(chunks), writer.repeated) == (new, left)


class Tap:
    """Storage's cursor."""

    def __init__(self, segment: Segment, error: Exception | None = None) -> None:
        self.segment = segment
        self.error = error
        self.woken = 0
        segment.tap(self)

    def wake(self) -> None:
        self.woken += 1
        if self.error is not None:
            raise self.error

    def evict(self) -> None:
        self.segment.untap(self)


def test_what_it_takes_is_paid_for_by_its_publisher() -> None:
    """By the newest one, as much as it takes at that time; one without a byte costs nothing yet."""
    segment, first, second = Segment(0), Payer(10**6), Payer(10**6)
    segment.charge(first)
    assert (segment.payer, first.open) == (first, 0)
    segment.store(encode_frame([b"x"]), 1)
    first.open += segment.cost
    segment.charge(first)
    segment.charge(second)
    assert (segment.payer, first.open, second.open) == (second, 0, segment.cost)
    segment.charge(None)
    assert (segment.payer, second.open) == (None, 0)
    segment.charge(first)
    assert first.open == segment.cost


def test_a_segment_that_is_read_again_is_closed_before_it_is_loaded() -> None:
    """It has its size, state and times from the beginning; its bytes come part by part."""
    segment = Segment(3)
    segment.restore(State.TRUNCATED, 5, 1.0, 2.0)
    assert (segment.closed, segment.state, segment.size, segment.is_loaded) == (True, State.TRUNCATED, 5, False)
    assert (segment.opened_at, segment.closed_at) == (1.0, 2.0)
    segment.load(encode_frame([b"abc"]), 3)
    segment.load(encode_frame([b"de"]), 2)
    assert (segment.offsets.tolist(), segment.size, segment.is_loaded) == ([0, 3, 5], 5, True)


def test_storage_is_told_as_readers_are_and_is_none() -> None:
    """It is woken by bytes and by the end, and told to leave; nobody waits for it, and it wakes nobody else later."""
    bench = Bench()
    writer = bench.open(0)
    segment, reader = writer.segment, bench.attach(writer.segment)
    tap = Tap(segment)
    bench.channel.append(writer, [b"y"], 0.0)
    bench.channel.finish(writer, (), 0.0)
    assert (tap.woken, reader.wakes) == (2, 2)
    assert segment.is_read
    assert bench.channel.reading.used == 1
    bench.channel.detach(reader, segment)
    assert (segment.is_read, segment.is_wanted) == (True, False)
    segment.evict_readers(Faults())
    assert not segment.is_read


def test_a_fault_of_storage_keeps_no_reader_from_being_woken() -> None:
    """It is noted like that of a reader."""
    segment = Segment(0)
    segment.store(encode_frame([b"x"]), 1)
    reader, tap, faults = Watcher(segment), Tap(segment, OSError("disk")), Faults()
    segment.cursors[reader] = None
    segment.wake(faults)
    assert reader.wakes == 1
    assert [victim for victim, _ in faults.noted] == [tap]


def test_where_its_owner_says_that_a_body_begins() -> None:
    """The same statement twice changes nothing, and one that begins at the start forgets what lay before."""
    segment = Segment(0)
    for key, body_at in (("a", 0), ("b", 3), ("b", 3), ("c", 5)):
        segment.begin_body(key, body_at)
    assert (segment.key, segment.body_at, segment.former_keys) == ("c", 5, ("a", "b"))
    segment.begin_body("a", 0)
    assert (segment.key, segment.body_at, segment.former_keys) == ("a", 0, ())
    segment.begin_body(None, 2)
    segment.begin_body("d", 3)
    assert (segment.key, segment.former_keys) == ("d", ("a",))
