"""The numbering: which seq comes next, and whose channel it is by now."""

from __future__ import annotations

import pytest

from tricklecast.publisher.numbering import BACKWARDS, Numbering
from tricklecast.trickle.errors import LocalProtocolError


def published(*seqs: int) -> Numbering:
    """A publisher that has published these, in a channel of epoch 2."""
    numbering = Numbering(None)
    numbering.place(seqs[0], 2)
    for seq in seqs:
        assert numbering.take() == seq
        numbering.bind(seq)
        numbering.note_sent(seq)
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
    numbering.note_sent(6)
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
    numbering.begin_epoch(since=-1)
    assert not numbering.leaps(7)


def test_the_last_number_is_handed_back() -> None:
    """The next segment gets it. One with others behind it is no longer free."""
    numbering = published(4)
    for _ in range(2):
        numbering.bind(numbering.take())
    assert not numbering.hand_back(5)
    assert numbering.hand_back(6)
    assert (numbering.newest, numbering.take()) == (5, 6)


def test_a_number_that_was_given_up_is_not_used_again() -> None:
    """The server may have closed it: a 409 for the newest number would be taken for another publisher's doing."""
    numbering = published(4)
    for _ in range(2):
        numbering.bind(numbering.take())
    numbering.settle(6, closed=False)
    assert numbering.skip(5, 6, begun=True) == 7
    assert numbering.compare(7, 4) is None


def test_a_number_that_is_given_up_can_be_leapt_over_or_is_beside_another() -> None:
    """While an older one is open, the server takes one beyond its head, and so none behind two that it has not."""
    numbering = published(4)
    for _ in range(4):
        numbering.bind(numbering.take())
    assert [numbering.is_oldest(seq) for seq in (5, 6)] == [True, False]
    numbering.settle(6, closed=False)
    assert [numbering.is_beside_gap(seq) for seq in (5, 7, 8)] == [True, True, False]
    assert [numbering.has_gap(head, 7) for head in (5, 6, 7)] == [True, True, False]


@pytest.mark.parametrize(
    ("head", "unwritten", "forgotten"),
    [
        (7, True, None),
        (6, True, range(6, 7)),  # the server was killed, and had not stored the newest one
        (4, True, range(4, 7)),
        (2, True, range(4, 7)),  # those before were another publisher's
        (0, False, range(4, 7)),
        (5, False, None),  # another publisher's channel
    ],
)
def test_confirmed_segments_that_the_server_has_lost_are_named(
    head: int, unwritten: bool, forgotten: range | None
) -> None:
    """From the head to which it went back; none of those that were not confirmed yet, or not by it."""
    numbering = published(4, 5, 6)
    numbering.compare(head, 6, unwritten=unwritten)
    assert numbering.forgotten == forgotten


def test_confirmed_segments_are_lost_once() -> None:
    """After the next loss, those that were published since are named, and what the server kept before."""
    numbering = published(4, 5, 6)
    numbering.compare(6, 6, unwritten=True)
    for seq in (7, 8):
        numbering.bind(seq)
        numbering.settle(seq, closed=True)
    numbering.begin_epoch(since=8)
    assert numbering.forgotten == range(4, 9)
    numbering.forgotten = None
    numbering.begin_epoch(since=8)
    assert numbering.forgotten is None


@pytest.mark.parametrize(
    ("head", "epoch", "why"),
    [
        (6, 2, None),
        (7, 2, None),
        (8, 2, "has come to 6"),
        (5, 2, "another client"),
        (6, 3, "began it again"),
        (6, None, None),
        (6, 1, None),
        (0, 2, None),
        (0, 3, "began it again"),
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
    assert (numbering.renewals, numbering.confirmed) == (0, 9)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_head_right_behind_what_was_on_its_way_is_a_new_life(given_up: bool) -> None:
    """The server was restarted, and a request that something between held back has reached it first."""
    numbering = published(4)
    for seq in (5, 6, 7):
        numbering.bind(numbering.take())
        numbering.note_sent(seq)
    numbering.settle(7, closed=True)
    if given_up:
        numbering.settle(5, closed=False)
    assert numbering.compare(5, 7)
    assert numbering.compare(6, 7) is None
    assert (numbering.renewals, numbering.confirmed) == (1, -1)
    assert numbering.may_open(7)
    assert numbering.take() == 8


def test_whoever_has_published_nothing_judges_nothing() -> None:
    """Any head is a place to begin."""
    numbering = Numbering(3)
    assert numbering.compare(50, -1, 7) is None
    assert numbering.renewals == 0


def test_an_empty_channel_begins_a_new_life() -> None:
    """The confirmed segments are gone with it, and the numbers go on."""
    numbering = published(4, 5)
    assert numbering.compare(0, 5, 1) is None
    assert (numbering.renewals, numbering.confirmed, numbering.take()) == (1, -1, 6)
    assert numbering.compare(0, -1) is None
    assert numbering.renewals == 1


def test_a_seq_that_came_too_early_stays() -> None:
    """Once something is confirmed, a 470 says only that the head is still behind."""
    numbering = published(4, 5)
    numbering.bind(numbering.take())
    assert numbering.move(6, 6, begun=True) is None


def test_the_first_of_several_moves_and_the_others_follow() -> None:
    """A wrong beginning is given up; numbers that are still in use are passed by."""
    numbering = Numbering(None)
    numbering.place(9, None)
    for _ in range(2):
        numbering.bind(numbering.take())
    assert numbering.move(10, 8, begun=True) is None
    assert numbering.move(9, 8, begun=True) == 8
    assert numbering.next == 9
    assert numbering.move(10, 8, begun=True) == 9
    assert [numbering.take(), numbering.newest] == [10, 9]


def test_numbers_out_of_line_are_not_given_twice() -> None:
    """One that has not heard yet that it must move keeps its number for so long."""
    numbering = Numbering(None)
    numbering.place(1, None)
    for _ in range(2):
        numbering.bind(numbering.take())
    assert numbering.move(1, 0, begun=True) == 0
    assert [numbering.take(), numbering.take()] == [1, 3]


def test_those_that_wait_get_numbers_behind_the_one_that_moved() -> None:
    """The ones that are out of line are replaced by the next; nobody is sent before the first of all has flowed."""
    numbering = Numbering(None)
    numbering.place(9, None)
    for _ in range(4):
        numbering.bind(numbering.take())
    numbering.note_sent(10)
    assert numbering.move(9, 3, begun=True) == 3
    assert [numbering.is_in_line(seq) for seq in (3, 11)] == [True, False]
    assert numbering.line_up(3, [11, 12]) == [3, 4, 5]
    assert [numbering.next, numbering.newest] == [6, 5]
    # The one at 10 was sent already, and hears of it now: those that wait line up behind it.
    assert numbering.move(10, 3, begun=True) == 6
    assert numbering.line_up(6, [4, 5]) == [4, 5, 6]
    assert [numbering.take(), numbering.newest] == [7, 6]


def test_a_seq_that_was_closed_moves_behind_all_that_is_in_use() -> None:
    """And never to one that is confirmed."""
    numbering = published(4)
    for seq in (5, 6, 7):
        numbering.bind(numbering.take())
        numbering.note_sent(seq)
    numbering.settle(7, closed=True)
    assert numbering.skip(5, 6, begun=True) == 8
    assert numbering.newest == 8
    assert numbering.may_open(8)
    numbering.settle(6, closed=False)
    assert numbering.skip(8, 9, begun=False) == 9


def test_a_seq_that_nothing_was_sent_as_can_be_used_again() -> None:
    """Unless something has begun behind it."""
    numbering = published(4)
    for _ in range(2):
        numbering.bind(numbering.take())
    assert [numbering.release(seq) for seq in (5, 6)] == [False, True]
    numbering.bind(6)
    assert not numbering.is_oldest(6)


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


def test_segments_may_be_confirmed_in_any_order() -> None:
    """The newest of them counts for the head; all of them are lost if the channel is gone."""
    numbering = Numbering(None)
    numbering.place(4, 2)
    for _ in range(2):
        numbering.bind(numbering.take())
    for seq in (5, 4):
        numbering.settle(seq, closed=True)
    assert (numbering.newest, numbering.confirmed, numbering.take()) == (5, 5, 6)
    numbering.begin_epoch(since=5)
    assert numbering.forgotten == range(4, 6)


def test_a_chosen_beginning_is_tried_with_a_reset_first() -> None:
    """With it the server takes any number from its head on. One that does not has the last word."""
    numbering = Numbering(50)
    numbering.bind(numbering.take())
    assert numbering.move(50, 3, begun=True) is None
    assert numbering.leaps(50)
    assert numbering.move(50, 3, begun=True) == 3
