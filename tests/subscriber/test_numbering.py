"""Which numbering an answer is about, and which segments are missing in it."""

from __future__ import annotations

import pytest

from tricklecast.subscriber.numbering import KnownNumbering, first_of
from tricklecast.trickle import wire
from tricklecast.trickle.client.exchange import Answer


def answer(**headers: object) -> Answer:
    """``life="a:0"`` is the header ``Lp-Trickle-Life: a:0``."""
    return Answer(200, {"Lp-Trickle-" + name.capitalize(): str(value) for name, value in headers.items()})


@pytest.mark.parametrize(
    ("headers", "is_other"),
    [
        ({}, False),
        ({"epoch": 1}, False),
        ({"epoch": 2}, True),
        ({"epoch": 2, "life": "a:0"}, False),
        ({"epoch": 1, "life": "b:0"}, True),
        ({"epoch": 1, "life": "b:5"}, False),
        ({"epoch": 2, "life": "b:5"}, True),
        ({"epoch": 1, "life": "b"}, False),
    ],
)
def test_the_life_decides_and_then_the_epoch(headers: dict[str, object], is_other: bool) -> None:
    """5 is the next seq of the numbering a in epoch 1. One of another name that begins there goes on with it."""
    assert KnownNumbering(1, "a").is_other(answer(**headers), 5) is is_other


def test_what_is_not_known_is_not_compared() -> None:
    """A position from before there were names is as good as it was."""
    assert not KnownNumbering(1).is_other(answer(epoch=1, life="b:0"), 5)
    assert not KnownNumbering(None, "a").is_other(answer(epoch=2), 5)
    assert KnownNumbering(1).is_other(answer(epoch=2, life="b:0"), 5)


@pytest.mark.parametrize(
    ("headers", "is_other"),
    [
        ({"latest": 3}, False),
        ({"latest": 3, "epoch": 1}, True),
        ({"latest": 3, "epoch": 1, "life": "a:0"}, False),
        ({"latest": 7, "epoch": 1}, False),
        ({"latest": 7, "epoch": 2}, True),
        ({"epoch": 1}, False),
    ],
)
def test_at_the_end_a_head_that_is_behind_proves_it_too(headers: dict[str, object], is_other: bool) -> None:
    """Not on a server without epochs: its head may go back for a moment."""
    assert KnownNumbering(1, "a").is_other_at_end(answer(**headers), 5) is is_other


def test_the_first_seq_of_a_numbering_is_0_where_the_server_does_not_say() -> None:
    """It says so with the name; a name alone says that nothing of it was written."""
    assert [first_of(answer(**headers)) for headers in ({}, {"life": "a"}, {"life": "a:7"})] == [0, 0, 7]


def take(
    known: KnownNumbering, seq: int, life: str | None = None, *, is_other: bool = False, follows: bool = True
) -> int:
    parsed = None if life is None else wire.parse_life(life)
    return known.take(seq, 1, parsed, empty=False, is_other=is_other, follows=follows)


class TestMissed:
    def test_segments_are_counted_from_the_expected_one(self) -> None:
        """Each time from the one behind the last; nothing is missed where nothing was expected."""
        known = KnownNumbering()
        assert [take(known, seq) for seq in (7, 8, 11)] == [0, 0, 2]
        assert known.missed(20) == 8

    def test_in_another_numbering_they_count_from_its_first_one(self) -> None:
        """If the reader follows: one that has gone elsewhere did not want what lies before its target."""
        known = KnownNumbering(1, "a", expected=5)
        assert take(known, 5, "b:2", is_other=True) == 3
        assert known.life == "b"
        known = KnownNumbering(1, "a", expected=5)
        assert take(known, 5, "b:2", is_other=True, follows=False) == 0
        assert known.life == "b"

    def test_the_name_is_learnt_once_something_was_written_under_it(self) -> None:
        """A server to which nothing was written has kept segments of the numbering before."""
        known = KnownNumbering(1, "a")
        take(known, 5, "b")
        assert known.life == "a"
        take(known, 6, "b:6")
        assert known.life == "b"

    def test_an_epoch_that_is_not_said_stays(self) -> None:
        """Some answers lack it."""
        known = KnownNumbering(3)
        known.take(0, None, None, empty=False, is_other=False, follows=True)
        assert known.epoch == 3


class TestGoneBack:
    """The head was found to be behind what was read, so the publisher goes on, or begins anew."""

    def test_a_publisher_that_goes_on_has_left_out_nothing_that_was_read(self) -> None:
        """Found empty, the channel is read from its new start. The empty segment there decides nothing."""
        known = KnownNumbering(1, "a", head=5, expected=5).gone_back(0, 0, follows=True)
        assert (known.epoch, known.life, known.head, known.restarted) == (None, "a", 0, True)
        assert known.take(0, 1, None, empty=True, is_other=False, follows=True) == 0
        assert take(known, 8) == 3, "5, 6 and 7; not those from before the restart"
        assert take(known, 10) == 1

    def test_one_that_begins_anew_is_counted_from_there(self) -> None:
        """A seq below those from before shows it, and so for all that follows."""
        known = KnownNumbering(1, "a", expected=5).gone_back(2, 0, follows=True)
        assert take(known, 2) == 2
        assert take(known, 7) == 4

    def test_twice_the_highest_seq_counts(self) -> None:
        """The publisher may still go on from there."""
        known = KnownNumbering(expected=9).gone_back(3, 3, follows=True)
        take(known, 3)
        assert known.gone_back(2, 2, follows=True).expected_before == 4
        known = KnownNumbering(expected=9).gone_back(3, 3, follows=True).gone_back(2, 2, follows=True)
        assert (known.expected, known.expected_before) == (2, 9)

    def test_a_start_beyond_the_head_is_no_restart(self) -> None:
        """Nothing was read before it, so nothing can go on; and a reader that expects nothing misses nothing."""
        known = KnownNumbering(expected=100).gone_back(5, 5, follows=False)
        assert (known.expected, known.expected_before, known.restarted) == (5, None, False)
        assert KnownNumbering().gone_back(5, 5, follows=False).expected is None
