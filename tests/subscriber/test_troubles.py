"""Each trouble with a server is one line, and its end another one."""

from __future__ import annotations

from tricklecast.subscriber.events import Connected, Ended, Retrying, SegmentResumed, SkippedAhead, SubscriberEvent
from tricklecast.subscriber.troubles import Troubles
from tricklecast.trickle.errors import ConnectionLost, Refused, SegmentMissing


def test_an_outage_is_a_line_when_it_begins_and_one_when_it_is_over() -> None:
    """Whatever segments the retries in between are for."""
    clock = iter([10.0, 42.5, 60.0, 61.0])
    troubles = Troubles(lambda: next(clock))
    lost = [Retrying(ConnectionLost(seq=attempt % 2), 1.0, attempt) for attempt in range(2, 13)]
    events: list[SubscriberEvent] = [Connected(), *lost, Connected(), *lost, Connected()]
    lines = [troubles.line(event) for event in events]
    assert [line for line in lines if line] == [
        "warning: connection lost (segment 0); trying again",
        "the server answers again, after 32.5 s",
        "warning: connection lost (segment 0); trying again",
        "the server answers again, after 1.0 s",
    ]


def test_a_segment_that_goes_on_is_the_end_of_an_outage() -> None:
    """The answer for the next one may be long in coming."""
    clock = iter([1.0, 3.0])
    troubles = Troubles(lambda: next(clock))
    events: list[SubscriberEvent] = [Connected(), Retrying(ConnectionLost(), 1.0, 2), SegmentResumed(0, 5), Connected()]
    assert [troubles.line(event) for event in events][2:] == ["the server answers again, after 2.0 s", ""]


def test_a_server_that_was_never_there_does_not_answer_again() -> None:
    """It was waited for."""
    clock = iter([1.0, 3.0])
    troubles = Troubles(lambda: next(clock))
    troubles.line(Retrying(ConnectionLost(), 1.0, 2))
    assert troubles.line(Connected()) == "the server answers, after 2.0 s"


def test_an_answer_is_told_once_until_a_segment_was_read() -> None:
    """Each kind of them, whatever its text."""
    troubles = Troubles()
    events: list[SubscriberEvent] = [Retrying(Refused(503, seq=seq), 1.0, 2) for seq in (0, 1)]
    ahead = SkippedAhead(3, 7, SegmentMissing(470, seq=3))
    events += [Retrying(Refused(429), 1.0, 2), ahead, ahead, Ended()]
    said = [troubles.line(event) for event in events]
    assert [bool(line) for line in said] == [True, False, True, True, False, False]
    assert said[3].endswith("; going on at segment 7")
    troubles.over()
    assert troubles.line(events[0]) == said[0]
