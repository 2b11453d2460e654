"""The list of events: equal ones are one, a flood is counted, and only what is out of the ordinary is told."""

from __future__ import annotations

from collections.abc import Callable

from tests.app.core.support import grant, make_registry, publish
from tricklecast.app.changes import Changes
from tricklecast.app.web.events import KEPT_EVENTS, MAX_NAME, PER_SECOND, Events


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return int(self.now * 1e6)


def test_equal_events_of_a_second_are_one_with_a_count() -> None:
    """Those of the next second are another one; the client's own name stands before its address."""
    clock = Clock()
    events = Events(clock, clock.wall_us)
    for _ in range(3):
        events.note("refused", "limit:readers", "cam", b"player", "192.0.2.1")
    clock.now += 1.5
    events.note("refused", "limit:readers", "cam", b"", "192.0.2.1")
    events.seal()
    told = [(one.number, one.time, one.client, one.count) for one in events.after(0)]
    assert told == [(1, 100.0, "player", 3), (2, 101.5, "192.0.2.1", 1)]
    assert [one.number for one in events.after(1)] == [2]
    assert events.after(2) == []


def test_a_flood_is_counted_by_its_kind() -> None:
    """Of many different events of one second the first ones are kept, and the number of the others."""
    clock = Clock()
    events = Events(clock, clock.wall_us)
    for number in range(10_000):
        events.note("refused" if number % 2 else "held", "limit:readers", f"cam-{number}")
    events.note("created", "", "cam")  # comes too late to be looked at
    events.seal()
    told = [one for one in events.after(0) if one.kind != "created"]
    assert len(events.after(0)) == len(told) + 1
    assert len(told) == PER_SECOND + 2
    assert sum(one.count for one in told) == 10_000
    assert {(one.kind, one.why, one.channel) for one in told[-2:]} == {("refused", "", ""), ("held", "", "")}


def test_the_list_and_its_texts_are_bounded() -> None:
    """Old events go; a client does not decide how long its name is here."""
    clock = Clock()
    events = Events(clock, clock.wall_us)
    for _ in range(KEPT_EVENTS + 50):
        events.note("cut_off", "lag_s", "cam", b"n" * 5000)
        clock.now += 1.0
    events.seal()
    told = events.after(0)
    assert (len(told), told[-1].number, len(told[0].client)) == (KEPT_EVENTS, KEPT_EVENTS + 50, MAX_NAME)


def test_what_the_protocol_answers_every_day_is_no_event() -> None:
    """A reader that is ahead, and a publisher of a closed segment, are refused, and that is all."""
    clock = Clock()
    events = Events(clock, clock.wall_us)
    for why in ("ahead", "gone", "not_found", "conflict", "shutdown"):
        events.note("refused", why, "cam")
    events.note("held", "ahead", "cam")
    events.seal()
    assert [one.kind for one in events.after(0)] == ["held"]


def test_channels_and_segments_that_did_not_become_whole() -> None:
    """Created, truncated, ended; nothing of the server's own channels, and nothing of complete segments."""
    clock = Clock()
    registry, _ = make_registry()
    events = Events(clock, clock.wall_us)
    later: list[Callable[[], None]] = []
    Changes(registry, defer=later.append).listeners.append(events.hear)
    registry.publish_own("_own", "", b"x", 1.0)
    publish(registry, "cam", 0)
    writer = grant(registry, "cam", 1)
    writer.channel.append(writer, (b"half",), 1.0)
    registry.close_segment("cam", 1, 1.0, truncate=True)
    registry.end("cam", 2.0)
    for function in later:
        function()
    events.seal()
    told = [(one.kind, one.why, one.channel, one.seq) for one in events.after(0)]
    assert told == [("created", "", "cam", None), ("truncated", "", "cam", 1), ("ended", "deleted", "cam", None)]
