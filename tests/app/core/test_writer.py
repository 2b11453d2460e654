"""Writer tokens and how their part ends."""

from __future__ import annotations

import pytest

from tests.app.core.support import Bench, Told
from tricklecast.app.core.capacity import Capacity
from tricklecast.app.core.segment import Segment
from tricklecast.app.core.writer import Outcome, Verdict, Writer


def make() -> Writer:
    segment = Segment(4)
    segment.size = 10
    return Writer(Bench("c").channel, segment, 9, Told())


@pytest.mark.parametrize("verdict", Verdict)
def test_a_settled_token_is_stale_and_knows_why(verdict: Verdict) -> None:
    """Settling records the verdict and the bytes that the segment holds at that moment."""
    writer = make()
    assert writer.outcome is None
    assert writer.settle(verdict) == Outcome(verdict, 10)
    writer.segment.size = 11
    assert writer.outcome == Outcome(verdict, 10)


def test_settling_tells_nobody() -> None:
    """The owner hears of it from the channel, when the whole change is done."""
    writer = make()
    writer.settle(Verdict.SUPERSEDED)
    assert isinstance(writer.owner, Told)
    assert writer.owner.outcomes == []


def test_a_writer_that_is_counted_counts_until_it_is_settled() -> None:
    """It takes its place among the publishers, and gives it back; the server's own writers take none."""
    publishers, writer = Capacity(5), make()
    assert not writer.counted
    writer.settle(Verdict.COMPLETE)
    writer = make()
    writer.count(publishers)
    assert (writer.counted, publishers.used) == (True, 1)
    writer.settle(Verdict.COMPLETE)
    assert publishers.used == 0


def test_a_token_shows_what_it_is() -> None:
    """A token's text names channel, epoch, seq, serial and whether it is still good."""
    writer = make()
    assert repr(writer) == "<Writer 'c'.1/4 #9 valid>"
    writer.settle(Verdict.CLOSED_BY_OTHER)
    assert repr(writer) == "<Writer 'c'.1/4 #9 closed_by_other>"


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
    writer = make()
    writer.repeated = repeated
    assert (writer.pass_over(chunks), writer.repeated) == (new, left)
