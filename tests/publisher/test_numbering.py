"""Which seq comes next, and whose channel it is by now."""

from __future__ import annotations

import pytest

from tricklecast.publisher.core import BACKWARDS, Numbering
from tricklecast.trickle.errors import LocalProtocolError


def published(*seqs: int) -> Numbering:
    """A publisher that has published these, in a channel of epoch 2."""
    numbering = Numbering(None)
    numbering.place(seqs[0], 2)
    for seq in seqs:
        assert numbering.take() == seq
        numbering.bind(seq)
        numbering.flow(seq)
        numbering.settle(seq, closed=True)
    return numbering


def test_a_seq_needs_a_beginning() -> None:
    """Nothing is numbered before the position is known."""
    with pytest.raises(LocalProtocolError):
        Numbering(None).take()


def test_seqs_count_up() -> None:
    """From where the channel is, and none is opened more than one beyond what the server can know."""
    numbering = published(4, 5)
    assert [numbering.may_open(seq) for seq in (6, 7, 8)] == [True, True, False]
    assert numbering.take() == 6
    numbering.flow(6)
    assert numbering.may_open(7)
    fixed = Numbering(9)
    assert [fixed.may_open(seq) for seq in (9, 10)] == [True, False]


def test_a_seq_leaps_over_those_that_were_given_up() -> None:
    """One more than the server may know of can be told from its place; and an unknown head is not leapt from."""
    numbering = published(4)
    for seq in (5, 6, 7):
        numbering.bind(numbering.take())
        assert not numbering.leaps(seq)
    numbering.settle(5, closed=False)
    assert [numbering.leaps(seq) for seq in (6, 7)] == [False, False]
    numbering.settle(6, closed=False)
    assert numbering.leaps(7)
    numbering.begin_life()
    assert not numbering.leaps(7)


@pytest.mark.parametrize(
    ("head", "epoch", "why"),
    [
        (6, 2, None),
        (7, 2, None),
        (8, 2, "beyond 6"),
        (5, 2, "another's"),
        (6, 3, "begun again"),
        (6, None, None),
        (6, 1, None),
        (0, 2, None),
    ],
)
def test_a_head_is_our_own_doing_or_it_is_not(head: int, epoch: int | None, why: str | None) -> None:
    """It is, from what was confirmed to what was sent; in a later epoch it is not; an empty channel is anybody's."""
    numbering = published(4, 5)
    numbering.bind(numbering.take())
    verdict = numbering.compare(head, numbering.confirmed, epoch)
    assert verdict is None if why is None else why in (verdict or "")


def test_a_head_that_is_known_to_wander_may_go_back_a_little() -> None:
    """The reference server's does, without anybody else being there."""
    numbering = published(*range(10))
    assert numbering.compare(10 - BACKWARDS, 9, exact=False) is None
    assert numbering.compare(9 - BACKWARDS, 9, exact=False)
    assert numbering.compare(9, 9)


def test_an_answer_may_be_older_than_what_is_known_by_now() -> None:
    """It is held against what was confirmed when it was asked for, be it a head or that there is none."""
    numbering = published(*range(10))
    assert numbering.compare(7, 6) is None
    assert numbering.compare(6, 6)
    assert numbering.compare(0, -1) is None
    assert (numbering.life, numbering.confirmed) == (0, 9)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_head_right_behind_what_was_on_its_way_is_a_new_life(given_up: bool) -> None:
    """The server was restarted, and a request that something between held back has reached it first."""
    numbering = published(4)
    for seq in (5, 6, 7):
        numbering.bind(numbering.take())
        numbering.flow(seq)
    numbering.settle(7, closed=True)
    if given_up:
        numbering.settle(5, closed=False)
    assert numbering.compare(5, 7)
    assert numbering.compare(6, 7) is None
    assert (numbering.life, numbering.confirmed) == (1, -1)
    assert numbering.may_open(7)
    assert numbering.take() == 8


def test_whoever_has_published_nothing_judges_nothing() -> None:
    """Any head is a place to begin."""
    numbering = Numbering(3)
    assert numbering.compare(50, -1, 7) is None
    assert numbering.life == 0


def test_an_empty_channel_begins_a_new_life() -> None:
    """What was confirmed is gone with it, and the numbers go on."""
    numbering = published(4, 5)
    assert numbering.compare(0, 5, 1) is None
    assert (numbering.life, numbering.confirmed, numbering.take()) == (1, -1, 6)
    assert numbering.compare(0, -1) is None
    assert numbering.life == 1


def test_a_seq_that_came_too_early_stays() -> None:
    """Once something is confirmed, a 470 says only that the head is still behind."""
    numbering = published(4, 5)
    numbering.bind(numbering.take())
    assert numbering.move(6, 6, begun=True) is None


def test_the_first_of_several_moves_and_the_others_follow() -> None:
    """A wrong beginning is given up; numbers that are still in use are passed by."""
    numbering = Numbering(9)
    for _ in range(2):
        numbering.bind(numbering.take())
    assert numbering.move(10, 8, begun=True) is None
    assert numbering.move(9, 8, begun=True) == 8
    assert numbering.next == 9
    assert numbering.move(10, 8, begun=True) == 9
    assert [numbering.take(), numbering.newest] == [10, 9]


def test_numbers_out_of_line_are_not_given_twice() -> None:
    """One that has not heard yet that it must move keeps its number for so long."""
    numbering = Numbering(1)
    for _ in range(2):
        numbering.bind(numbering.take())
    assert numbering.move(1, 0, begun=True) == 0
    assert [numbering.take(), numbering.take()] == [1, 3]


def test_a_seq_that_was_closed_moves_behind_all_that_is_in_use() -> None:
    """And never to one that is confirmed."""
    numbering = published(4)
    for seq in (5, 6, 7):
        numbering.bind(numbering.take())
        numbering.flow(seq)
    numbering.settle(7, closed=True)
    assert numbering.skip(5, 6, begun=True) == 8
    assert numbering.newest == 8
    assert numbering.may_open(8)
    numbering.settle(6, closed=False)
    assert numbering.skip(8, 9, begun=False) == 9


def test_a_seq_that_nothing_was_sent_as_can_be_used_again() -> None:
    """Unless something has begun behind it."""
    numbering = published(4)
    for seq in (5, 6):
        numbering.bind(numbering.take())
        numbering.release(seq)
    assert [numbering.is_last(seq) for seq in (5, 6)] == [False, True]


def test_what_was_published_is_not_numbered_again() -> None:
    """A 470 may have put the numbering before a segment that gets through under its old number all the same."""
    numbering = Numbering(0)
    for seq in (0, 1):
        assert numbering.take() == seq
        numbering.bind(seq)
    assert numbering.move(0, 0, begun=True) == 0
    assert numbering.next == 1
    numbering.settle(1, closed=True)
    assert numbering.take() == 2
